//! Two ends that send each other bytes, check each, and close.

use super::Pair;
use weir_stack::Stack;
use weir_stack::tcp::{State, TcpError, TcpId};

/// The byte at a place of the stream from one end: nothing repeats soon.
pub(crate) fn byte(end: usize, at: usize) -> u8 {
    let mixed = (at as u64 ^ (end as u64) << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 56) as u8
}

/// One end of a connection: what it has sent and read.
pub(crate) struct Talker {
    pub(crate) end: usize,
    pub(crate) connection: Option<TcpId>,
    to_send: usize,
    sent: usize,
    to_read: usize,
    pub(crate) read: usize,
    /// Bytes taken at a time.
    appetite: usize,
    pub(crate) closed: bool,
    pub(crate) ended: bool,
}

impl Talker {
    pub(crate) fn new(end: usize, to_send: usize, to_read: usize, appetite: usize) -> Talker {
        Talker {
            end,
            connection: None,
            to_send,
            sent: 0,
            to_read,
            read: 0,
            appetite,
            closed: false,
            ended: false,
        }
    }

    /// Writes and reads what is possible; whether anything was.
    pub(crate) fn talk(&mut self, now_ns: u64, stack: &mut Stack) -> bool {
        let Some(connection) = self.connection else {
            return false;
        };
        let mut moved = false;
        while self.sent < self.to_send {
            let room = stack.tcp_write_room(connection).clamp(1, self.appetite);
            let end = self.to_send.min(self.sent + room);
            let bytes: Vec<u8> = (self.sent..end).map(|at| byte(self.end, at)).collect();
            match stack.tcp_write(connection, &bytes) {
                Ok(count) => self.sent += count,
                Err(TcpError::WouldBlock) => break,
                Err(error) => panic!("write at {}: {error}", self.sent),
            }
            moved = true;
        }
        if self.sent == self.to_send && !self.closed {
            stack.tcp_shutdown(now_ns, connection).unwrap();
            self.closed = true;
            moved = true;
        }
        let mut buffer = vec![0; self.appetite];
        while !self.ended {
            match stack.tcp_read(connection, &mut buffer) {
                Ok(0) => self.ended = true,
                Ok(count) => {
                    for (offset, value) in buffer[..count].iter().enumerate() {
                        let at = self.read + offset;
                        assert_eq!(
                            *value,
                            byte(1 - self.end, at),
                            "byte {at} to end {}",
                            self.end
                        );
                    }
                    self.read += count;
                }
                Err(TcpError::WouldBlock) => break,
                Err(error) => panic!("read at {} of {}: {error}", self.read, self.to_read),
            }
            moved = true;
        }
        assert!(self.read <= self.to_read, "more than was sent");
        if self.ended {
            assert_eq!(self.read, self.to_read, "the end came early");
        }
        moved
    }
}

/// Sends `bytes[0]` from end 0 and `bytes[1]` from end 1, over a connection
/// that end 0 opens; gives how long it took.
pub(crate) fn exchange(
    pair: &mut Pair,
    at: [&str; 2],
    bytes: [usize; 2],
    appetite: usize,
    limit_ns: u64,
) -> u64 {
    let start_ns = pair.now_ns;
    let remote = std::net::SocketAddr::new(super::ip(at[1]), 80);
    let listener = pair.stacks[1].tcp_listen(remote, 5).unwrap();
    let mut talkers = [0, 1].map(|end| Talker::new(end, bytes[end], bytes[1 - end], appetite));
    let first = pair.stacks[0].tcp_connect(pair.now_ns, None, remote);
    talkers[0].connection = Some(first.unwrap());
    let mut opened = false;
    let done = pair.run(limit_ns, |pair| {
        if talkers[1].connection.is_none() {
            talkers[1].connection = pair.stacks[1].tcp_accept(pair.now_ns, listener).ok();
            if pair.by_channel {
                pair.channels = [0, 1].map(|end: usize| {
                    let connection = talkers[end].connection?;
                    pair.stacks[end].tcp_channel(connection)
                });
            }
        }
        // All SYNs may be lost, however many: then a person tries again.
        let state = talkers[0]
            .connection
            .and_then(|id| pair.stacks[0].tcp_state(id));
        opened |= !matches!(state, Some(State::SynSent | State::Closed));
        if state == Some(State::Closed) && !opened {
            let again = pair.stacks[0].tcp_connect(pair.now_ns, None, remote);
            talkers[0] = Talker::new(0, bytes[0], bytes[1], appetite);
            talkers[0].connection = Some(again.unwrap());
        }
        let mut moved = false;
        for talker in &mut talkers {
            moved |= talker.talk(pair.now_ns, &mut pair.stacks[talker.end]);
        }
        if moved {
            pair.poll_all();
        }
        talkers.iter().all(|talker| talker.ended && talker.closed)
    });
    let progress = talkers.each_ref().map(|talker| (talker.sent, talker.read));
    let states = [0, 1].map(|end| {
        talkers[end]
            .connection
            .and_then(|id| pair.stacks[end].tcp_state(id))
    });
    assert!(
        done,
        "not done after {} ns: sent and read {progress:?}, {states:?}",
        pair.now_ns - start_ns
    );
    let took_ns = pair.now_ns - start_ns;
    for talker in &talkers {
        pair.stacks[talker.end].tcp_close(pair.now_ns, talker.connection.unwrap());
    }
    pair.stacks[1].tcp_unlisten(pair.now_ns, listener);
    took_ns
}

/// Waits until nothing is left of any connection.
pub(crate) fn forget(pair: &mut Pair) {
    let gone = pair.run(600_000_000_000, |pair| {
        pair.stacks.iter().all(|stack| stack.tcp_connections() == 0)
    });
    let states: Vec<usize> = pair.stacks.iter().map(Stack::tcp_connections).collect();
    assert!(gone, "{states:?} connections are left");
}
