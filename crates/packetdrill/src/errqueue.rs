//! The error queue of a socket (`MSG_ERRQUEUE`): completions of zero-copy
//! writes, and timestamps of transmission and acknowledgement. Also the events
//! for edge-triggered waits (`EPOLLET`).

use crate::sendmsg::Message;
use crate::simulation::{AGAIN, Inner, Simulation};
use crate::socket::{Socket, SocketPhase};
use crate::{Answer, user_memory};
use weir_stack::tcp::{State, TcpInfo};

const ORIGIN_TIMESTAMPING: u8 = 4;
const ORIGIN_ZEROCOPY: u8 = 5;
/// The data was copied in spite of `MSG_ZEROCOPY`: the only way for this kind
/// of descriptor.
const ZEROCOPY_COPIED: u8 = 1;
/// Types of timestamps: `SCM_TSTAMP_*`.
pub(crate) const SENT: u32 = 0;
pub(crate) const SCHEDULED: u32 = 1;
pub(crate) const ACKNOWLEDGED: u32 = 2;
/// Largest number of events of one socket; the oldest is discarded.
const EVENTS_MAX: usize = 4096;

/// An event in the error queue.
#[derive(Clone, Debug)]
pub(crate) enum ErrEvent {
    /// The buffers of these writes can be reused.
    ZeroCopy { first: u32, last: u32 },
    /// A byte was sent or acknowledged.
    Timestamp { of: u32, byte: u32, at_ns: u64 },
}

/// A write for which the application has requested a timestamp.
#[derive(Clone, Debug)]
pub(crate) enum TxWatch {
    Free { write: u32, end: u64 },
    Stamp { of: u32, byte: u32, end: u64 },
}

/// The state of a socket at its last check.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Seen {
    bytes_in: u64,
    state: Option<State>,
    waiting: usize,
}

impl Socket {
    fn push(&mut self, notice: ErrEvent) {
        // Successive writes share one event.
        if let (ErrEvent::ZeroCopy { first, last }, Some(ErrEvent::ZeroCopy { last: before, .. })) =
            (&notice, self.notices.back_mut())
            && before.wrapping_add(1) == *first
        {
            *before = *last;
        } else {
            self.notices.push_back(notice);
        }
        if self.notices.len() > EVENTS_MAX {
            self.notices.pop_front();
        }
        self.happened += 1;
    }

    /// Adds the events that follow from a connection's state.
    fn collect(&mut self, now_ns: u64, info: &TcpInfo) {
        let arrived = info.counts.bytes_acknowledged;
        let sent = self.written.saturating_sub(info.unsent as u64);
        let over = info.state == State::Closed;
        let watched = std::mem::take(&mut self.watched);
        for one in watched {
            let due = match &one {
                TxWatch::Free { end, .. } => over || *end <= arrived,
                TxWatch::Stamp { of, end, .. } if *of == ACKNOWLEDGED => *end <= arrived,
                TxWatch::Stamp { end, .. } => *end <= sent,
            };
            match one {
                one if !due => self.watched.push(one),
                TxWatch::Free { write, .. } => self.push(ErrEvent::ZeroCopy {
                    first: write,
                    last: write,
                }),
                TxWatch::Stamp { of, byte, .. } => self.push(ErrEvent::Timestamp {
                    of,
                    byte,
                    at_ns: now_ns,
                }),
            }
        }
    }
}

impl Simulation {
    /// The next event, as control messages.
    pub(crate) fn receive_event(&self, fd: i32, message: &Message) -> Answer {
        let mut inner = self.lock();
        let socket = inner.socket(fd)?;
        let notice = socket.notices.pop_front().ok_or(AGAIN)?;
        let control = control(&notice, socket.is_v6);
        let len = control.len().min(message.control.1);
        user_memory::give(message.control.0, &control[..len])?;
        let cut = match notice {
            ErrEvent::ZeroCopy { .. } => 0,
            // The data itself is not returned: the caller has no room for it.
            ErrEvent::Timestamp { .. } => libc::MSG_TRUNC,
        };
        message.finish(libc::MSG_ERRQUEUE | cut, len)?;
        Ok(0)
    }
}

impl Inner {
    /// Checks each socket for events.
    pub(crate) fn poll_sockets(&mut self) {
        let now_ns = self.now_ns;
        let fds: Vec<i32> = self.entries.keys().copied().collect();
        for fd in fds {
            let Ok(socket) = self.socket(fd) else {
                continue;
            };
            let stage = socket.phase;
            let mut seen = Seen::default();
            let mut info = None;
            match stage {
                SocketPhase::New(_) => {}
                SocketPhase::Listens(id) => seen.waiting = self.stack.tcp_accept_queue_len(id),
                SocketPhase::Stream(id) => {
                    info = self.stack.tcp_info(now_ns, id);
                    if let Some(info) = &info {
                        seen.bytes_in = info.counts.bytes_in;
                        seen.state = Some(info.state);
                    }
                }
            }
            let writable = match &info {
                Some(info) => self.can_write(fd, info).unwrap_or(false),
                None => false,
            };
            let Ok(socket) = self.socket(fd) else {
                continue;
            };
            if socket.seen != seen {
                socket.happened += 1;
                socket.seen = seen;
            }
            if socket.starved && writable {
                socket.happened += 1;
                socket.starved = false;
            }
            if let Some(info) = &info {
                socket.collect(now_ns, info);
            }
        }
    }
}

/// A control message, padded.
pub(crate) fn control_message(level: i32, kind: i32, data: &[u8]) -> Vec<u8> {
    const HEADER: usize = 16;
    let mut bytes = (HEADER + data.len()).to_ne_bytes().to_vec();
    bytes.extend_from_slice(&level.to_ne_bytes());
    bytes.extend_from_slice(&kind.to_ne_bytes());
    bytes.extend_from_slice(data);
    bytes.resize(bytes.len().next_multiple_of(size_of::<usize>()), 0);
    bytes
}

fn control(notice: &ErrEvent, is_v6: bool) -> Vec<u8> {
    match *notice {
        ErrEvent::ZeroCopy { first, last } => {
            extended(0, (ORIGIN_ZEROCOPY, ZEROCOPY_COPIED), (first, last), is_v6)
        }
        ErrEvent::Timestamp { of, byte, at_ns } => {
            let mut times = Vec::new();
            times.extend_from_slice(&(at_ns / 1_000_000_000).to_ne_bytes());
            times.extend_from_slice(&(at_ns % 1_000_000_000).to_ne_bytes());
            times.resize(48, 0);
            let mut bytes = control_message(libc::SOL_SOCKET, libc::SCM_TIMESTAMPING, &times);
            let error = libc::ENOMSG as u32;
            bytes.extend(extended(error, (ORIGIN_TIMESTAMPING, 0), (of, byte), is_v6));
            bytes
        }
    }
}

/// `struct sock_extended_err`, with an empty address.
fn extended(
    error: u32,
    (origin, code): (u8, u8),
    (info, data): (u32, u32),
    is_v6: bool,
) -> Vec<u8> {
    let mut bytes = error.to_ne_bytes().to_vec();
    bytes.extend_from_slice(&[origin, 0, code, 0]);
    bytes.extend_from_slice(&info.to_ne_bytes());
    bytes.extend_from_slice(&data.to_ne_bytes());
    let (level, kind, address) = if is_v6 {
        (libc::SOL_IPV6, libc::IPV6_RECVERR, 28)
    } else {
        (libc::SOL_IP, libc::IP_RECVERR, 16)
    };
    bytes.resize(bytes.len() + address, 0);
    control_message(level, kind, &bytes)
}
