//! Connections that only wait for their time to end have places of their own
//! number, and leave the others to those in use.

mod common;

use common::peer::{ACK, FIN, Peer, RST, S, SYN, flags};
use common::{V4, V6};
use weir_lab::seeds::seeds;
use weir_stack::rng::Rng;
use weir_stack::tcp::{ListenerId, State, TcpError, TcpId};

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
        assert_eq!(peer.stack.counters().time_wait_evicted, 2 * MAX as u64);
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
        assert_eq!(peer.stack.counters().time_wait_evicted, 2 * MAX as u64);
    }
}

/// One whose application has it still goes as well, and has ended as it would
/// have.
#[test]
fn a_holder_of_a_time_wait_connection_reads_its_end() {
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
    assert_eq!(peer.stack.counters().time_wait_evicted, 1);
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

/// A peer whose connection waits, with every option or with none: the application
/// has let it go, or has it still.
fn waiting(at: [&'static str; 2], plain: bool, let_go: bool) -> (Peer, TcpId) {
    let mut peer = Peer::new(at);
    let listener = peer.listen(5);
    if !plain {
        peer.options.mss = Some(1400);
        peer.options.window_scale = Some(7);
        peer.options.sack_permitted = true;
        peer.options.timestamps = Some((5000, 0));
    }
    let id = peer.open(listener);
    if let_go {
        peer.stack.tcp_close(peer.now_ns, id)
    } else {
        peer.stack.tcp_shutdown(peer.now_ns, id).unwrap()
    }
    assert_eq!(peer.heard()[0].0.flags, flags(FIN, ACK));
    let (seq, ack) = (peer.seq, peer.ack.wrapping_add(1));
    peer.tell(flags(FIN, ACK), seq, ack, b"");
    assert_eq!(peer.heard()[0].0.flags, ACK);
    (peer.seq, peer.ack) = (seq.wrapping_add(1), ack);
    assert_eq!(peer.stack.tcp_connections(), 1);
    (peer, id)
}

/// Whatever comes for a connection of which only a record is left is answered as if
/// all of it were still there: as one is that its application has not let go.
#[test]
fn a_record_answers_as_the_connection_would() {
    for seed in seeds(400) {
        let mut rng = Rng::new(seed);
        let at = if rng.below(2) == 0 { V4 } else { V6 };
        let plain = rng.below(2) == 0;
        let (mut whole, id) = waiting(at, plain, false);
        let (mut record, gone) = waiting(at, plain, true);
        assert_eq!(record.stack.tcp_state(gone), None);
        for _ in 0..30 {
            let kinds = [
                ACK,
                flags(FIN, ACK),
                RST,
                flags(RST, ACK),
                SYN,
                flags(SYN, ACK),
            ];
            let kind = kinds[rng.below(6) as usize];
            let seq = [0, 1, 2, 70_000, u32::MAX, u32::MAX - 1][rng.below(6) as usize];
            let ack = [0, 0, 1, u32::MAX][rng.below(4) as usize];
            let passed_ns = [0, S / 100, S / 5, 9 * S, 40 * S][rng.below(5) as usize];
            let clock = 4999 + rng.below(3);
            for peer in [&mut whole, &mut record] {
                peer.now_ns += passed_ns;
                if !plain {
                    peer.options.timestamps = Some((clock, 1));
                }
                let (seq, ack) = (peer.seq.wrapping_add(seq), peer.ack.wrapping_add(ack));
                peer.tell(kind, seq, ack, b"");
            }
            let heard = whole.heard();
            assert_eq!(heard, record.heard(), "seed {seed}: {kind:?}");
            let ended = whole.stack.tcp_state(id) != Some(State::TimeWait);
            let others = whole.stack.tcp_connections() - 1;
            assert_eq!(
                record.stack.tcp_connections(),
                others + usize::from(!ended),
                "seed {seed}: {kind:?}"
            );
            if ended {
                break;
            }
        }
    }
}

/// The ends of one that is let go are taken for as long as it waits, and challenges
/// are as rare as before.
#[test]
fn what_waits_has_its_ends() {
    let (mut peer, _) = waiting(V4, false, true);
    let local = format!("{}:80", V4[0]).parse().unwrap();
    let remote = format!("{}:4000", V4[1]).parse().unwrap();
    let connect = |peer: &mut Peer| peer.stack.tcp_connect(peer.now_ns, Some(local), remote);
    assert_eq!(connect(&mut peer), Err(TcpError::AddrInUse(local)));
    for _ in 0..5 {
        peer.tell(ACK, peer.seq - 1, peer.ack, b"");
    }
    assert_eq!(
        peer.heard().len(),
        1,
        "one challenge in a tenth of a second"
    );
    peer.tell(ACK, peer.seq - 1, peer.ack, b"");
    assert_eq!(peer.heard().len(), 0);
    assert_eq!(peer.stack.counters().challenges, 1);
    peer.now_ns += 60 * S;
    peer.heard();
    assert_eq!(peer.stack.tcp_connections(), 0);
    assert!(connect(&mut peer).is_ok());
}

/// A segment for a waiting connection, other than a FIN, does not make it wait longer,
/// whatever others do: it ends after its time, and within a second of that.
#[test]
fn what_comes_does_not_keep_it() {
    let mut peer = Peer::new(V4);
    let listener = peer.listen(5);
    let first_ns = peer.now_ns;
    let (seq, ack) = close(&mut peer, listener, 5000, End::Closes);
    let count = 66;
    for number in 1..=count {
        peer.now_ns = first_ns + u64::from(number) * 9 * S / 10;
        close(&mut peer, listener, 5000 + number, End::Closes);
        peer.port = 5000;
        peer.tell(ACK, seq.wrapping_add(1), ack, b"");
        assert_eq!(peer.heard().len(), 0);
        assert_eq!(peer.stack.tcp_connections(), usize::from(number) + 1);
    }
    peer.now_ns = first_ns + 60 * S - 1;
    peer.heard();
    assert_eq!(peer.stack.tcp_connections(), usize::from(count) + 1);
    peer.now_ns = first_ns + 61 * S;
    peer.heard();
    peer.tell(flags(FIN, ACK), seq, ack, b"");
    assert_eq!(peer.heard()[0].0.flags, RST);
}
