//! Connections that only wait for their time to end have places of their own
//! number, and leave the others to those in use.

mod common;

use common::V4;
use common::peer::{ACK, FIN, Peer, RST, S, flags};
use weir_stack::tcp::{ListenerId, State};

const MAX: usize = 10;

/// How far a peer goes that the server has closed first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    /// It acknowledges, and closes: TIME-WAIT.
    Closes,
    /// It acknowledges, and says no more: FIN-WAIT-2.
    Stays,
}

/// Opens a connection from this transport port, and closes it on the server's
/// side; gives the numbers that the peer's next segment has.
fn close(peer: &mut Peer, listener: ListenerId, port: u16, end: End) -> (u32, u32) {
    (peer.port, peer.seq) = (port, 1000);
    let id = peer.open(listener);
    peer.stack.tcp_close(peer.now_ns, id);
    let heard = peer.heard();
    assert_eq!(heard[0].0.flags, flags(FIN, ACK));
    let ack = peer.ack.wrapping_add(1);
    let seq = peer.seq;
    match end {
        End::Stays => peer.tell(ACK, seq, ack, b""),
        End::Closes => peer.tell(flags(FIN, ACK), seq, ack, b""),
    }
    peer.heard();
    (seq, ack)
}

#[test]
fn those_that_wait_longest_go_first_when_too_many_wait() {
    for end in [End::Closes, End::Stays] {
        let mut peer = Peer::new(V4);
        peer.stack.tcp_limit_time_wait(0, MAX);
        let listener = peer.listen(5);
        let mut last = (0, 0);
        for number in 0..3 * MAX as u16 {
            peer.now_ns += S / 100;
            last = close(&mut peer, listener, 5000 + number, end);
            let expected = MAX.min(usize::from(number) + 1);
            assert_eq!(peer.stack.tcp_connections(), expected, "{end:?}");
        }
        assert_eq!(peer.stack.counters().waits_cut, 2 * MAX as u64);
        // The last is still there: a FIN is answered as its state says.
        peer.tell(flags(FIN, ACK), last.0, last.1, b"");
        let heard = peer.heard();
        assert_eq!((heard.len(), heard[0].0.flags), (1, ACK), "{end:?}");
        // The first is gone.
        peer.port = 5000;
        peer.tell(flags(FIN, ACK), 1001, 5, b"");
        assert_eq!(peer.heard()[0].0.flags, RST);
        // One in use has its place all the same.
        (peer.port, peer.seq) = (4000, 1000);
        let used = peer.open(listener);
        assert_eq!(peer.stack.tcp_connections(), MAX + 1);
        assert_eq!(peer.stack.tcp_state(used), Some(State::Established));
        // And those that may wait wait their time.
        peer.now_ns += 61 * S;
        peer.heard();
        assert_eq!(peer.stack.tcp_connections(), 1);
        assert_eq!(peer.stack.counters().waits_cut, 2 * MAX as u64);
    }
}

/// One whose application has it still goes as well, and has ended as it would
/// have.
#[test]
fn who_has_one_that_waits_reads_its_end() {
    let mut peer = Peer::new(V4);
    let listener = peer.listen(5);
    let id = peer.open(listener);
    peer.stack.tcp_shutdown(peer.now_ns, id).unwrap();
    peer.heard();
    let (seq, ack) = (peer.seq, peer.ack.wrapping_add(1));
    peer.tell(flags(FIN, ACK), seq, ack, b"last words");
    assert_eq!(peer.stack.tcp_state(id), Some(State::TimeWait));
    peer.stack.tcp_limit_time_wait(peer.now_ns, 0);
    assert_eq!(peer.stack.tcp_state(id), Some(State::Closed));
    assert_eq!(peer.stack.counters().waits_cut, 1);
    assert_eq!(peer.read(id).unwrap(), b"last words");
    assert_eq!(peer.read(id).unwrap(), b"");
    assert_eq!(peer.stack.tcp_error(id), None);
    peer.stack.tcp_close(peer.now_ns, id);
    assert_eq!(peer.stack.tcp_connections(), 0);
    // The limit taken back, they wait again; and lowered, all at once go.
    peer.stack.tcp_limit_time_wait(peer.now_ns, 100);
    for number in 0..50 {
        close(&mut peer, listener, 6000 + number, End::Closes);
    }
    assert_eq!(peer.stack.tcp_connections(), 50);
    peer.stack.tcp_limit_time_wait(peer.now_ns, 7);
    assert_eq!(peer.stack.tcp_connections(), 7);
}
