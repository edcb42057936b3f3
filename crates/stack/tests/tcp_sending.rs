//! What goes out when, against a peer made of segments: probes, records, what
//! is pushed, and how a connection opens.

mod common;

use common::peer::{ACK, Peer, S, SYN, flags};
use common::{V4, V6, ip};
use std::net::SocketAddr;
use weir_stack::tcp::{State, TcpConfig, TcpError, TcpId};
use weir_wire::tcp::{Flags, Options, Repr};

const MS: u64 = 1_000_000;
const RST: Flags = Flags::RST;
const PSH: Flags = Flags::PSH;

/// A connection with SACK, segments of 1000 bytes and a round trip of 1 ms.
fn open(peer: &mut Peer) -> TcpId {
    peer.options = Options {
        mss: Some(1000),
        sack_permitted: true,
        ..Options::default()
    };
    let listener = peer.listen(10);
    peer.tell(SYN, peer.seq, 0, b"");
    let answer = peer.heard()[0].0;
    (peer.seq, peer.ack) = (answer.ack, answer.seq.wrapping_add(1));
    peer.now_ns += MS;
    peer.options = Options::default();
    peer.tell(ACK, peer.seq, peer.ack, b"");
    peer.stack.tcp_accept(peer.now_ns, listener).unwrap()
}

/// A connection that has sent this many bytes, as far as the first window goes:
/// ten segments; a round trip ago.
fn sent(bytes: usize) -> (Peer, TcpId) {
    let mut peer = Peer::new(V4);
    let connection = open(&mut peer);
    peer.stack.tcp_write(connection, &vec![7; bytes]).unwrap();
    assert_eq!(peer.heard().len(), 10);
    peer.now_ns += MS;
    (peer, connection)
}

/// Where segments start and end, from the first byte of the stream on, and
/// whether they are pushed.
fn places(peer: &Peer, heard: &[(Repr, Vec<u8>)]) -> Vec<(u32, usize, bool)> {
    let place = |(repr, payload): &(Repr, Vec<u8>)| {
        let at = repr.seq.wrapping_sub(peer.ack);
        (at, payload.len(), repr.flags.contains(PSH))
    };
    heard.iter().map(place).collect()
}

/// The peer acknowledges this many bytes of the stream, and has others.
fn acknowledge(peer: &mut Peer, count: u32, has: &[(u32, u32)]) {
    let mut options = Options::default();
    for (start, end) in has {
        let at = |offset: u32| peer.ack.wrapping_add(offset);
        assert!(options.sack.push(at(*start), at(*end)));
    }
    let before = std::mem::replace(&mut peer.options, options);
    peer.tell(ACK, peer.seq, peer.ack.wrapping_add(count), b"");
    peer.options = before;
}

/// Goes on until segments come; returns them, and after how long.
fn next_segments(peer: &mut Peer) -> (Vec<(Repr, Vec<u8>)>, u64) {
    let begun_ns = peer.now_ns;
    loop {
        let mut frames: Vec<Vec<u8>> = Vec::new();
        let next_ns = peer.stack.poll(peer.now_ns, &mut frames).unwrap();
        let segments: Vec<_> = frames.iter().filter_map(|frame| peer.hear(frame)).collect();
        if !segments.is_empty() {
            return (segments, peer.now_ns - begun_ns);
        }
        peer.now_ns = peer.now_ns.max(next_ns);
    }
}

/// RFC 8985 §7.2: after two round trips without an answer a segment more is
/// sent, also while others wait for the window.
#[test]
fn a_probe_is_not_put_off_by_what_waits() {
    let (mut peer, _) = sent(20_000);
    // The window is 10,000 bytes.
    acknowledge(&mut peer, 1000, &[]);
    assert_eq!(peer.heard().len(), 1);
    let (_, waited_ns) = next_segments(&mut peer);
    assert!((MS..10 * MS).contains(&waited_ns), "{waited_ns} ns");
}

/// One acknowledgment may cover the repaired hole and all behind it. If it is
/// lost, a segment of new bytes asks for another, long before the time-out.
#[test]
fn a_recovery_that_hears_nothing_probes() {
    let (mut peer, _) = sent(20_000);
    peer.window = 20_000;
    acknowledge(&mut peer, 0, &[(1000, 4000)]);
    let heard = peer.heard();
    assert_eq!(places(&peer, &heard)[0].0, 0, "the hole is filled");
    let sent_to = places(&peer, &heard).iter().map(|it| it.0).max();
    let sent_to = sent_to.unwrap().max(9000) + 1000;
    let (probe, waited_ns) = next_segments(&mut peer);
    assert!((MS..10 * MS).contains(&waited_ns), "{waited_ns} ns");
    assert_eq!(places(&peer, &probe)[0].0, sent_to, "new bytes");
    assert_eq!(probe.len(), 1);
    peer.now_ns += MS;
    acknowledge(&mut peer, sent_to + 1000, &[]);
    let further = peer.heard();
    let mut further = places(&peer, &further).into_iter();
    assert!(further.all(|(at, ..)| at > sent_to), "nothing goes again");
}

/// Without new bytes the hole goes again, if the repair was lost, and the window
/// is reduced once.
#[test]
fn a_recovery_without_new_bytes_probes_by_the_hole() {
    let (mut peer, connection) = sent(10_000);
    acknowledge(&mut peer, 0, &[(1000, 10_000)]);
    let heard = peer.heard();
    assert_eq!(places(&peer, &heard), [(0, 1000, false)]);
    let (probe, waited_ns) = next_segments(&mut peer);
    assert!((MS..10 * MS).contains(&waited_ns), "{waited_ns} ns");
    assert_eq!(places(&peer, &probe), [(0, 1000, false)]);
    peer.now_ns += MS;
    acknowledge(&mut peer, 10_000, &[]);
    let reduced = peer.stack.tcp_info(peer.now_ns, connection).unwrap().cwnd;
    peer.stack.tcp_write(connection, &[7; 1000]).unwrap();
    assert_eq!(peer.heard().len(), 1);
    peer.now_ns += MS;
    acknowledge(&mut peer, 11_000, &[]);
    let info = peer.stack.tcp_info(peer.now_ns, connection).unwrap();
    assert!(info.cwnd >= reduced, "{} of {reduced}", info.cwnd);
}

#[test]
fn what_is_announced_to_go_on_is_not_pushed() {
    let mut peer = Peer::new(V4);
    let connection = open(&mut peer);
    peer.stack.tcp_write(connection, &[7; 1000]).unwrap();
    peer.stack.tcp_set_more(connection, true).unwrap();
    let heard = peer.heard();
    assert_eq!(places(&peer, &heard), [(0, 1000, false)]);
    peer.stack.tcp_write(connection, &[7; 500]).unwrap();
    peer.stack.tcp_set_more(connection, false).unwrap();
    let heard = peer.heard();
    assert_eq!(places(&peer, &heard), [(1000, 500, true)]);
}

/// No segment carries bytes of two records, whatever lies behind.
#[test]
fn records_are_kept_apart() {
    let mut peer = Peer::new(V4);
    let connection = open(&mut peer);
    peer.stack.tcp_set_nodelay(connection, true).unwrap();
    for len in [1500, 300, 2500] {
        peer.stack.tcp_write(connection, &vec![7; len]).unwrap();
        peer.stack.tcp_end_record(connection).unwrap();
    }
    let heard = peer.heard();
    let expected = [
        (0, 1000, false),
        (1000, 500, true),
        (1500, 300, true),
        (1800, 1000, false),
        (2800, 1000, false),
        (3800, 500, true),
    ];
    assert_eq!(places(&peer, &heard), expected);
    // As they were, when they go again.
    peer.now_ns += MS;
    acknowledge(&mut peer, 1000, &[(1800, 4300)]);
    let again = peer.heard();
    assert_eq!(
        places(&peer, &again),
        [(1000, 500, true), (1500, 300, true)]
    );
    acknowledge(&mut peer, 4300, &[]);
    peer.stack.tcp_write(connection, &[7; 1000]).unwrap();
    let heard = peer.heard();
    assert_eq!(places(&peer, &heard), [(4300, 1000, true)]);
}

/// The SACK blocks of an overtaken acknowledgment are new all the same.
#[test]
fn overtaken_acknowledgments_tell_what_has_arrived() {
    let (mut peer, connection) = sent(10_000);
    acknowledge(&mut peer, 2000, &[]);
    peer.heard();
    let sacked = |peer: &Peer| peer.stack.tcp_info(peer.now_ns, connection).unwrap().sacked;
    acknowledge(&mut peer, 1000, &[(5000, 7000)]);
    assert_eq!(sacked(&peer), 2);
    // An acknowledgment of nothing new, or of unsent bytes, changes nothing.
    acknowledge(&mut peer, 1000, &[(5000, 7000), (90_000, 91_000)]);
    assert_eq!(sacked(&peer), 2);
}

fn connecting(peer: &mut Peer) -> (TcpId, Repr) {
    let at = |end: usize, port| SocketAddr::new(ip(V4[end]), port);
    peer.now_ns = S;
    let local = Some(at(0, 80));
    let connection = peer
        .stack
        .tcp_connect(peer.now_ns, local, at(1, peer.port))
        .unwrap();
    let syn = peer.heard()[0].0;
    (connection, syn)
}

/// RFC 7323 §3.2: an answer that echoes what we have not sent is another's.
#[test]
fn answers_to_other_syns_are_refused() {
    for wrong in [1, u32::MAX] {
        let mut peer = Peer::new(V4);
        let (connection, syn) = connecting(&mut peer);
        let (value, _) = syn.options.timestamps.unwrap();
        let answer = |peer: &mut Peer, echo: u32| {
            peer.options.timestamps = Some((9, echo));
            peer.tell(flags(SYN, ACK), 700, syn.seq.wrapping_add(1), b"");
            peer.heard()[0].0.flags
        };
        assert_eq!(answer(&mut peer, value.wrapping_add(wrong)), RST);
        assert_eq!(peer.stack.tcp_state(connection), Some(State::SynSent));
        assert_eq!(answer(&mut peer, value), ACK);
        assert_eq!(peer.stack.tcp_state(connection), Some(State::Established));
        let nothing = peer.stack.tcp_read(connection, &mut [0]);
        assert_eq!(nothing, Err(TcpError::WouldBlock));
    }
}

/// An acknowledgment while both open at once has no options of a SYN.
#[test]
fn acknowledgments_between_syns_are_bare() {
    let mut peer = Peer::new(V4);
    let (connection, syn) = connecting(&mut peer);
    peer.options.mss = Some(1000);
    peer.tell(SYN, 700, 0, b"");
    let answers = peer.heard();
    assert!(answers[0].0.flags.contains(flags(SYN, ACK)));
    assert_eq!(peer.stack.tcp_state(connection), Some(State::SynReceived));
    // From beyond the window: the answer has our present numbers.
    peer.options = Options::default();
    peer.tell(ACK, 700_000, syn.seq.wrapping_add(1), b"far");
    let heard = peer.heard();
    let told = &heard.last().unwrap().0;
    assert_eq!((told.flags, told.options.mss), (ACK, None));
    assert!(!told.options.sack_permitted);
}

/// Not knowing a neighbour for a while is a passing fault (RFC 1122 §4.2.3.9):
/// the peer may already hold the connection for open.
#[test]
fn a_half_open_connection_outlives_questions_without_answers() {
    for at in [V4, V6] {
        let mut peer = Peer::new(at);
        peer.listen(10);
        peer.tell(SYN, peer.seq, 0, b"");
        while peer.now_ns < 10 * S {
            let mut unanswered: Vec<Vec<u8>> = Vec::new();
            peer.stack.poll(peer.now_ns, &mut unanswered);
            peer.now_ns += 100 * MS;
        }
        let answered = (0..600).any(|_| {
            peer.now_ns += 100 * MS;
            let heard = peer.heard();
            heard.iter().any(|(repr, _)| repr.flags == SYN | ACK)
        });
        assert!(answered, "{at:?}");
    }
}

/// RFC 9293 §3.8.3 (MUST-21): R2 is the application's to say.
#[test]
fn time_outs_are_outlived_as_often_as_configured() {
    for (retries, later) in [(0, None), (15, None), (40, None), (15, Some(3))] {
        let config = TcpConfig {
            retries,
            tail_loss_probe: false,
            ..TcpConfig::default()
        };
        let mut peer = Peer::with(V4, config);
        let connection = open(&mut peer);
        if let Some(retries) = later {
            peer.stack.tcp_set_retries(connection, retries).unwrap();
        }
        peer.stack.tcp_write(connection, b"hello").unwrap();
        let mut sent = 0;
        while peer.read(connection) == Err(TcpError::WouldBlock) {
            sent += peer.heard().len();
            peer.now_ns += 100 * MS;
            assert!(peer.now_ns < 3000 * S, "{sent} times");
        }
        assert_eq!(peer.read(connection), Err(TcpError::TimedOut));
        assert_eq!(sent, 1 + usize::from(later.unwrap_or(retries)));
    }
}
