//! What the RFCs ask of TCP in rare cases: ECN that is not granted (RFC 3168),
//! D-SACK (RFC 2883), small segments, urgent data and resets (RFC 9293).

mod common;

use common::peer::{ACK, FIN, Peer, RST, S, SYN, flags};
use common::{V4, V6, ip};
use std::net::SocketAddr;
use weir_stack::tcp::{State, TcpConfig, TcpError, TcpId};
use weir_wire::tcp::{Flags, Options};

const OFFER: Flags = Flags(Flags::ECE.0 | Flags::CWR.0);

/// Opens a connection to the peer; gives the SYN's number.
fn connect(peer: &mut Peer) -> (TcpId, u32) {
    let [local, remote] =
        [(0, 80), (1, peer.port)].map(|(end, port)| SocketAddr::new(ip(peer.at[end]), port));
    let id = peer.stack.tcp_connect(peer.now_ns, Some(local), remote);
    let id = id.unwrap();
    let heard = peer.heard();
    let [(syn, _)] = &heard[..] else {
        panic!("{heard:?}")
    };
    assert!(syn.flags.contains(SYN));
    (id, syn.seq)
}

/// Whether the bytes of a connection go out markable.
fn is_markable(peer: &mut Peer, id: TcpId) -> bool {
    peer.stack.tcp_write(id, b"bytes").unwrap();
    let heard = peer.heard();
    assert_eq!(heard[0].1, b"bytes");
    peer.heard_marks & 3 != 0
}

/// RFC 3168 §6.1.1.1.
#[test]
fn a_syn_that_offers_ecn_in_vain_goes_again_without() {
    for at in [V4, V6] {
        let mut peer = Peer::new(at);
        let (id, seq) = connect(&mut peer);
        let mut again = Vec::new();
        for _ in 0..29 {
            peer.now_ns += S / 10;
            again.extend(peer.heard());
        }
        assert_eq!(again.len(), 1, "once after a second, then after two more");
        assert_eq!((again[0].0.flags, again[0].0.seq), (SYN, seq));
        // Whatever the answer grants: a SYN of ours had no offer.
        let answer = flags(flags(SYN, ACK), Flags::ECE);
        peer.tell(answer, 1000, seq.wrapping_add(1), b"");
        assert_eq!(peer.heard()[0].0.flags, ACK);
        assert!(!is_markable(&mut peer, id));
    }
}

#[test]
fn a_syn_that_offers_ecn_and_is_refused_goes_once_without() {
    let mut peer = Peer::new(V4);
    let (id, seq) = connect(&mut peer);
    let reset = flags(RST, ACK);
    peer.tell(reset, 0, seq.wrapping_add(1), b"");
    let heard = peer.heard();
    assert_eq!(
        (heard.len(), heard[0].0.flags, heard[0].0.seq),
        (1, SYN, seq)
    );
    assert_eq!(peer.stack.tcp_error(id), None);
    peer.tell(reset, 0, seq.wrapping_add(1), b"");
    assert_eq!(peer.heard().len(), 0);
    assert_eq!(peer.stack.tcp_error(id), Some(TcpError::Refused));
    // Who offers nothing is refused at once.
    let config = TcpConfig {
        ecn: false,
        ..TcpConfig::default()
    };
    let mut peer = Peer::with(V4, config);
    let (id, seq) = connect(&mut peer);
    peer.tell(reset, 0, seq.wrapping_add(1), b"");
    assert_eq!(peer.stack.tcp_error(id), Some(TcpError::Refused));
}

/// RFC 3168 §6.1.1: only a connection that negotiated ECN marks what it sends.
#[test]
fn ecn_is_used_after_both_opened_at_once_only_if_both_asked() {
    for (theirs, granted) in [(SYN, false), (flags(SYN, OFFER), true)] {
        let mut peer = Peer::new(V4);
        let (id, seq) = connect(&mut peer);
        peer.tell(theirs, 1000, 0, b"");
        let heard = peer.heard();
        let answer = heard[0].0.flags;
        assert!(answer.contains(flags(SYN, ACK)));
        assert_eq!(answer.contains(Flags::ECE), granted);
        peer.tell(ACK, 1001, seq.wrapping_add(1), b"");
        assert_eq!(peer.stack.tcp_state(id), Some(State::Established));
        assert_eq!(is_markable(&mut peer, id), granted);
    }
}

/// The peer's SYN that comes again without an offer takes the offer back.
#[test]
fn a_peer_that_falls_back_is_sent_nothing_markable() {
    let mut peer = Peer::new(V4);
    let listener = peer.listen(1);
    peer.tell(flags(SYN, OFFER), 1000, 0, b"");
    assert!(peer.heard()[0].0.flags.contains(Flags::ECE));
    peer.tell(SYN, 1000, 0, b"");
    let heard = peer.heard();
    assert_eq!(heard[0].0.flags, flags(SYN, ACK));
    peer.tell(ACK, 1001, heard[0].0.seq.wrapping_add(1), b"");
    let id = peer.stack.tcp_accept(peer.now_ns, listener).unwrap();
    assert!(!is_markable(&mut peer, id));
}

/// RFC 2883 §4: bytes that come, and the blocks that are reported at last, counted
/// from the first byte.
#[test]
fn all_duplicate_ranges_are_reported() {
    type Range = (u32, u32);
    let cases: [(&str, &[Range], u32, &[Range]); 9] = [
        // §4.1: full duplicates.
        (
            "below",
            &[(0, 500), (500, 1000), (0, 500)],
            1000,
            &[(0, 500)],
        ),
        (
            "below, with a gap",
            &[(0, 500), (1000, 1500), (0, 500)],
            500,
            &[(0, 500), (1000, 1500)],
        ),
        (
            "within what waits",
            &[(0, 500), (1000, 1500), (1500, 2000), (1000, 1500)],
            500,
            &[(1000, 1500), (1000, 2000)],
        ),
        // §4.2: partial ones.
        ("its start", &[(0, 1000), (500, 1500)], 1500, &[(500, 1000)]),
        (
            "its end waits, and it fills the gap",
            &[(0, 500), (1000, 2000), (500, 1500)],
            2000,
            &[(1000, 1500)],
        ),
        (
            "its end waits, behind a gap",
            &[(0, 500), (1500, 2000), (1000, 1800)],
            500,
            &[(1500, 1800), (1000, 2000)],
        ),
        (
            "its start waits",
            &[(0, 500), (1000, 1500), (1200, 2000)],
            500,
            &[(1200, 1500), (1000, 2000)],
        ),
        // §4.3: two that are apart; the first is reported.
        (
            "two behind a gap",
            &[(0, 500), (1000, 1500), (2000, 2500), (1000, 2500)],
            500,
            &[(1000, 1500), (1000, 2500)],
        ),
        (
            "one below and one behind",
            &[(0, 500), (1000, 1500), (0, 1500)],
            1500,
            &[(0, 500)],
        ),
    ];
    for (what, came, acknowledged, told) in cases {
        let mut peer = Peer::new(V4);
        let listener = peer.listen(1);
        peer.options.sack_permitted = true;
        peer.open(listener);
        peer.options = Options::default();
        let (mut last, mut last_ack) = (Options::default(), 0);
        for &(start, end) in came {
            let bytes = vec![1; (end - start) as usize];
            peer.tell(ACK, peer.seq + start, peer.ack, &bytes);
            let heard = peer.heard();
            assert_eq!(heard.len(), 1, "{what}: acknowledged at once");
            last = heard[0].0.options;
            last_ack = heard[0].0.ack;
        }
        assert_eq!(last_ack, peer.seq + acknowledged, "{what}");
        let blocks = last.sack.as_slice().iter();
        let blocks: Vec<Range> = blocks
            .map(|(start, end)| (start - peer.seq, end - peer.seq))
            .collect();
        assert_eq!(blocks, told, "{what}");
    }
}

/// RFC 9293 §3.10.7.4: a full window accepts acknowledgments all the same, of a
/// peer that has lost bytes in it, and of one that sends bytes beyond it.
#[test]
fn a_full_window_takes_acknowledgments() {
    for lost in [false, true] {
        let mut peer = Peer::new(V4);
        let listener = peer.listen(1);
        let connection = peer.open(listener);
        peer.stack.tcp_write(connection, &[7; 50_000]).unwrap();
        let first = peer.heard();
        let (mut at, mut edge) = (peer.seq, peer.seq + u32::from(first[0].0.window));
        while at < edge {
            let count = (edge - at).min(1000);
            // Of the bytes that fill the window one segment may be lost.
            if !(lost && at == peer.seq) {
                peer.tell(ACK, at, peer.ack, &vec![1; count as usize]);
            }
            at += count;
            let heard = peer.heard();
            let edges = heard.iter().map(|(it, _)| it.ack + u32::from(it.window));
            edge = edges.fold(edge, u32::max);
        }
        let (acknowledged, payload): (u32, &[u8]) = match first.last() {
            Some((last, bytes)) => (last.seq + bytes.len() as u32, b"probe"),
            None => panic!("nothing was sent"),
        };
        let payload = if lost { b"" } else { payload };
        if lost {
            // RFC 5961 §3.2: outside of the window.
            peer.tell(RST, edge, 0, b"");
            assert_eq!(peer.heard().len(), 0);
        }
        peer.tell(ACK, edge, acknowledged, payload);
        let next = peer.heard();
        let sent = next.iter().filter(|(_, bytes)| !bytes.is_empty());
        assert!(sent.count() > 0, "lost: {lost}, {next:?}");
        assert!(next.iter().all(|(it, _)| lost || it.window == 0));
    }
}

/// RFC 9293, MUST-16 and MUST-15; Linux's TCP_MIN_SND_MSS.
#[test]
fn no_segment_is_longer_than_the_peer_takes() {
    let sizes = [
        (Some(48), 48),
        (Some(60), 60),
        (Some(87), 87),
        (Some(1000), 1000),
        (Some(0), 536),
        (None, 536),
    ];
    for (mss, most) in sizes {
        for timestamps in [None, Some((7, 0))] {
            let mut peer = Peer::new(V4);
            let listener = peer.listen(1);
            peer.options.mss = mss;
            peer.options.timestamps = timestamps;
            let id = peer.open(listener);
            peer.stack.tcp_write(id, &[1; 3000]).unwrap();
            let heard = peer.heard();
            let longest = heard.iter().map(|(repr, bytes)| {
                let options = if repr.options.timestamps.is_some() {
                    12
                } else {
                    0
                };
                bytes.len() + options
            });
            assert_eq!(longest.max(), Some(most), "{mss:?} {timestamps:?}");
        }
    }
}

/// Who takes less than a segment with all options and eight bytes is refused.
#[test]
fn a_peer_that_takes_crumbs_is_refused() {
    let mut peer = Peer::new(V4);
    peer.listen(1);
    peer.options.mss = Some(47);
    peer.tell(SYN, 1000, 0, b"");
    let heard = peer.heard();
    assert_eq!((heard.len(), heard[0].0.flags), (1, flags(RST, ACK)));
    let (id, seq) = {
        peer.port = 4001;
        let local = Some(SocketAddr::new(ip(V4[0]), 81));
        let remote = SocketAddr::new(ip(V4[1]), 4001);
        let id = peer.stack.tcp_connect(peer.now_ns, local, remote).unwrap();
        (id, peer.heard()[0].0.seq)
    };
    assert_eq!(peer.stack.tcp_error(id), None);
    let mut frame = peer.segment(flags(SYN, ACK), 1000, seq.wrapping_add(1), 100, b"");
    // To port 81 instead of 80: the checksum goes down by as much.
    let tcp = 14 + 20;
    frame[tcp + 3] += 1;
    let sum = u16::from_be_bytes([frame[tcp + 16], frame[tcp + 17]]).wrapping_sub(1);
    frame[tcp + 16..tcp + 18].copy_from_slice(&sum.to_be_bytes());
    peer.stack.receive(peer.now_ns, &frame);
    assert_eq!(peer.heard()[0].0.flags, RST);
    assert_eq!(peer.stack.tcp_error(id), Some(TcpError::Refused));
}

#[test]
fn a_syn_with_a_fin_opens_nothing() {
    let mut peer = Peer::new(V4);
    peer.listen(1);
    peer.tell(flags(SYN, FIN), 1000, 0, b"");
    assert_eq!(peer.heard().len(), 0);
    assert_eq!(peer.stack.tcp_connections(), 0);
}

/// As Linux does it: the stream has ended, and its error is there all the same.
#[test]
fn a_reset_while_both_close_is_an_error() {
    for peer_first in [true, false] {
        let mut peer = Peer::new(V4);
        let listener = peer.listen(1);
        let id = peer.open(listener);
        let (seq, ack) = (peer.seq, peer.ack);
        if peer_first {
            peer.tell(flags(FIN, ACK), seq, ack, b"");
        }
        peer.stack.tcp_shutdown(peer.now_ns, id).unwrap();
        peer.heard();
        if !peer_first {
            peer.tell(flags(FIN, ACK), seq, ack, b"");
            peer.heard();
        }
        let state = if peer_first {
            State::LastAck
        } else {
            State::Closing
        };
        assert_eq!(peer.stack.tcp_state(id), Some(state));
        peer.tell(RST, seq + 1, 0, b"");
        assert_eq!(peer.stack.tcp_error(id), Some(TcpError::Reset));
        assert_eq!(peer.read(id), Ok(Vec::new()));
        assert_eq!(peer.stack.tcp_write(id, b"x"), Err(TcpError::Reset));
    }
}

/// RFC 9293 §3.8.5, MUST-30, 31 and 62.
#[test]
fn urgent_bytes_are_pointed_at_until_they_are_acknowledged() {
    let mut peer = Peer::new(V4);
    let listener = peer.listen(1);
    peer.options.mss = Some(1000);
    let id = peer.open(listener);
    peer.options = Options::default();
    let ack = peer.ack;
    peer.stack.tcp_write(id, &[1; 1500]).unwrap();
    peer.stack.tcp_write_urgent(id, &[2; 1000]).unwrap();
    peer.stack.tcp_write(id, &[3; 1500]).unwrap();
    let pointers = |heard: &[(weir_wire::tcp::Repr, Vec<u8>)]| -> Vec<(u32, bool, u16)> {
        let told = heard.iter().map(|(repr, _)| {
            (
                repr.seq.wrapping_sub(ack),
                repr.flags.contains(Flags::URG),
                repr.urgent,
            )
        });
        told.collect()
    };
    let all = [
        (0, true, 2500),
        (1000, true, 1500),
        (2000, true, 500),
        (3000, false, 0),
    ];
    assert_eq!(pointers(&peer.heard()), all);
    // What goes again has it, too.
    peer.now_ns += 2 * S;
    assert_eq!(pointers(&peer.heard())[0], all[0]);
    peer.tell(ACK, peer.seq, ack + 4000, b"");
    peer.stack.tcp_write(id, &[4; 10]).unwrap();
    assert_eq!(pointers(&peer.heard()), [(4000, false, 0)]);
    // One byte waits for nothing.
    peer.stack.tcp_write_urgent(id, &[5]).unwrap();
    assert_eq!(pointers(&peer.heard()), [(4010, true, 1)]);
}

/// RFC 9293 §3.8.5, MUST-32 and 33: the bytes stay in order, and the application
/// learns how many are left.
#[test]
fn urgent_bytes_are_known_before_they_are_read() {
    let mut peer = Peer::new(V4);
    let listener = peer.listen(1);
    let id = peer.open(listener);
    let (seq, ack) = (peer.seq, peer.ack);
    while peer.stack.tcp_next_event().is_some() {}
    // The pointer goes before its bytes.
    peer.urgent = 8;
    peer.tell(flags(ACK, Flags::URG), seq, ack, b"hello");
    assert_eq!(peer.stack.tcp_next_event(), Some(id));
    assert_eq!(peer.stack.tcp_urgent(id), Some(8));
    assert_eq!(peer.read(id), Ok(b"hello".to_vec()));
    assert_eq!(peer.stack.tcp_urgent(id), Some(3));
    // It goes forward only.
    peer.urgent = 1;
    peer.tell(flags(ACK, Flags::URG), seq + 5, ack, b"ab");
    assert_eq!(peer.stack.tcp_urgent(id), Some(3));
    assert_eq!(peer.read(id), Ok(b"ab".to_vec()));
    assert_eq!(peer.stack.tcp_urgent(id), Some(1), "at the mark");
    peer.urgent = 0;
    peer.tell(ACK, seq + 7, ack, b"!more");
    assert_eq!(peer.stack.tcp_urgent(id), Some(1));
    assert_eq!(peer.read(id), Ok(b"!more".to_vec()));
    assert_eq!(peer.stack.tcp_urgent(id), None);
    peer.urgent = 2;
    peer.tell(flags(ACK, Flags::URG), seq + 12, ack, b"abcd");
    assert_eq!(peer.stack.tcp_urgent(id), Some(2));
}
