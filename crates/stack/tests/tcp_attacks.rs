//! TCP against segments written by hand, of a peer or of an attacker that pretends to be one.

mod common;

use common::peer::{ACK, FIN, Peer, RST, S, SYN, flags};
use common::{HARDWARE, V4, V6, ip};
use std::net::IpAddr;
use weir_stack::iface::DropReason;
use weir_stack::tcp::{SYN_QUEUE_MAX, State, TcpError};
use weir_wire::tcp::{Flags, Options};
use weir_wire::{AddrPair, EtherType, Protocol, ethernet, icmp, ipv4};

#[test]
fn without_a_listener_only_unopened_connections_are_refused() {
    for at in [V4, V6] {
        let mut peer = Peer::new(at);
        peer.tell(SYN, 1000, 0, b"");
        let heard = peer.heard();
        assert_eq!(
            (heard[0].0.flags, heard[0].0.seq, heard[0].0.ack),
            (flags(RST, ACK), 0, 1001)
        );
        peer.tell(ACK, 1000, 77, b"data");
        let heard = peer.heard();
        assert_eq!((heard[0].0.flags, heard[0].0.seq), (RST, 77));
        peer.tell(RST, 1000, 77, b"");
        assert_eq!(peer.heard().len(), 0, "a RST is not answered");
        peer.listen(1);
        peer.tell(ACK, 1000, 77, b"");
        assert_eq!(peer.heard()[0].0.flags, RST);
        assert_eq!(peer.stack.counters().dropped(DropReason::SegmentRefused), 4);
    }
}

/// RFC 5961: an attacker that does not know the numbers neither resets nor injects.
#[test]
fn guessed_segments_do_no_harm() {
    let mut peer = Peer::new(V4);
    let listener = peer.listen(5);
    let connection = peer.open(listener);
    let (seq, ack) = (peer.seq, peer.ack);
    for (flag, at, ackno) in [
        (RST, seq + 1, 0),
        (RST, seq + 9999, 0),
        (SYN, seq + 5, 0),
        (SYN, seq, 0),
        (ACK, seq, ack + 1),
    ] {
        peer.now_ns += S;
        peer.tell(flag, at, ackno, b"");
        let heard = peer.heard();
        assert_eq!(
            (heard.len(), heard[0].0.flags, heard[0].0.ack),
            (1, ACK, seq),
            "{flag:?} {at}"
        );
    }
    // Challenges are limited; a RST outside the window says nothing at all.
    for _ in 0..100 {
        peer.tell(RST, seq + 1, 0, b"");
    }
    assert_eq!(peer.heard().len(), 0, "the last challenge was just now");
    peer.now_ns += S;
    peer.tell(RST, seq.wrapping_sub(1), 0, b"");
    peer.tell(RST, seq.wrapping_add(3_000_000), 0, b"");
    // Data with an acknowledgment far off is no data of this connection.
    peer.tell(ACK, seq, ack.wrapping_sub(50_000), b"evil");
    assert_eq!(peer.stack.tcp_state(connection), Some(State::Established));
    assert_eq!(peer.read(connection), Err(TcpError::WouldBlock));
    peer.tell(RST, seq, 0, b"");
    assert_eq!(peer.read(connection), Err(TcpError::Reset));
    assert_eq!(peer.stack.tcp_state(connection), Some(State::Closed));
    peer.stack.tcp_close(peer.now_ns, connection);
    assert_eq!(peer.stack.tcp_connections(), 0);
}

/// A flood of SYNs costs a bounded number of connections, and any client that is
/// honest gets in by a cookie, options and all.
#[test]
fn syn_floods_are_answered_with_cookies() {
    for (at, timestamps) in [(V4, None), (V4, Some((77, 0))), (V6, Some((77, 0)))] {
        let mut peer = Peer::new(at);
        let listener = peer.listen(10);
        peer.options = Options {
            mss: Some(1400),
            window_scale: Some(5),
            sack_permitted: true,
            timestamps,
            ..Options::default()
        };
        let mut answers = Vec::new();
        for number in 0..3000_u16 {
            peer.port = 1000 + number;
            peer.tell(SYN, u32::from(number), 0, b"");
            answers.extend(peer.heard());
        }
        assert_eq!(peer.stack.tcp_connections(), SYN_QUEUE_MAX);
        assert_eq!(answers.len(), 3000, "all are answered");
        let (cookie, _) = answers.last().unwrap();
        assert_eq!(cookie.flags, flags(SYN, ACK));
        assert_eq!(cookie.options.window_scale.is_some(), timestamps.is_some());
        let echo = cookie.options.timestamps.map(|(value, _)| (78, value));
        let open = cookie.seq.wrapping_add(1);
        peer.options = Options {
            timestamps: echo,
            ..Options::default()
        };
        // A wrong guess is refused.
        peer.tell(ACK, 3000, open ^ 0x10, b"");
        assert_eq!(peer.heard()[0].0.flags, RST);
        assert_eq!(
            peer.stack.tcp_accept(0, listener),
            Err(TcpError::WouldBlock)
        );
        peer.tell(ACK, 3000, open, b"hello");
        let connection = peer.stack.tcp_accept(0, listener).unwrap();
        assert_eq!(peer.read(connection).unwrap(), b"hello");
        peer.stack.tcp_write(connection, &[7; 20_000]).unwrap();
        let heard = peer.heard();
        let longest = heard
            .iter()
            .map(|(_, payload)| payload.len())
            .max()
            .unwrap();
        let options = if timestamps.is_some() { 12 } else { 0 };
        assert_eq!(longest, 1400 - options, "the segment size is remembered");
        // An old cookie is worth nothing.
        peer.now_ns += 1000 * S;
        peer.port = 1;
        peer.tell(ACK, 3000, open, b"");
        let heard = peer.heard();
        let mut to_it = heard.iter().filter(|(repr, _)| repr.dst_port == 1);
        assert_eq!(to_it.next().unwrap().0.flags, RST);
    }
}

#[test]
fn a_backlog_is_bounded_and_given_back() {
    let mut peer = Peer::new(V4);
    let listener = peer.listen(3);
    for port in 1..=10 {
        (peer.port, peer.seq) = (port, 1000);
        peer.tell(SYN, 1000, 0, b"");
        for (answer, _) in peer.heard() {
            peer.tell(ACK, 1001, answer.seq.wrapping_add(1), b"");
        }
    }
    assert_eq!(peer.stack.tcp_connections(), 3);
    assert_eq!(peer.stack.counters().dropped(DropReason::BacklogFull), 7);
    assert_eq!(peer.stack.tcp_next_opened(), Some(listener));
    assert_eq!(peer.stack.tcp_next_opened(), None);
    let first = peer.stack.tcp_accept(0, listener).unwrap();
    assert_eq!(peer.stack.tcp_ends(first).unwrap().1.port(), 1);
    peer.stack.tcp_unlisten(0, listener);
    let resets = peer
        .heard()
        .iter()
        .filter(|(repr, _)| repr.flags.contains(RST))
        .count();
    assert_eq!((resets, peer.stack.tcp_connections()), (2, 1));
    // Half-open ones end with the listener's patience.
    let listener = peer.listen(3);
    peer.port = 99;
    peer.tell(SYN, 1000, 0, b"");
    let mut answers = 0;
    while peer.stack.tcp_connections() > 1 && peer.now_ns < 1000 * S {
        answers += peer.heard().len();
        peer.now_ns += S;
    }
    assert!(
        (3..10).contains(&answers),
        "{answers} SYN-ACKs, then silence"
    );
    assert_eq!(
        peer.stack.tcp_accept(0, listener),
        Err(TcpError::WouldBlock)
    );
}

/// Bytes out of order, many and tiny, take bounded memory; all come out right.
#[test]
fn tiny_segments_out_of_order_are_harmless() {
    let mut peer = Peer::new(V4);
    let listener = peer.listen(5);
    let connection = peer.open(listener);
    let start = peer.seq;
    for offset in (1..2000).rev() {
        if offset % 2 == 1 {
            peer.tell(ACK, start + offset, peer.ack, &[offset as u8]);
        }
    }
    let heard = peer.heard();
    assert!(heard.iter().all(|(repr, _)| repr.ack == start));
    let all: Vec<u8> = (0..2000_u32).map(|offset| offset as u8).collect();
    peer.tell(ACK, start, peer.ack, &all[..1400]);
    peer.tell(ACK, start + 1400, peer.ack, &all[1400..]);
    assert_eq!(peer.read(connection).unwrap(), all);
}

/// RFC 9293 §3.8.6.1: a window that opens by an acknowledgment that is lost.
#[test]
fn closed_windows_are_probed() {
    let mut peer = Peer::new(V4);
    let listener = peer.listen(5);
    let connection = peer.open(listener);
    peer.stack.tcp_set_nodelay(connection, true).unwrap();
    let frame = peer.segment(ACK, peer.seq, peer.ack, 0, b"");
    peer.stack.receive(0, &frame);
    peer.stack.tcp_write(connection, &[1; 5000]).unwrap();
    assert_eq!(peer.heard().len(), 0, "nothing fits");
    let mut probes = 0;
    for _ in 0..600 {
        peer.now_ns += S;
        for (probe, payload) in peer.heard() {
            probes += 1;
            assert_eq!((probe.seq, payload.len()), (peer.ack.wrapping_sub(1), 0));
            let frame = peer.segment(ACK, peer.seq, peer.ack, 0, b"");
            peer.stack.receive(peer.now_ns, &frame);
        }
    }
    assert!((8..40).contains(&probes), "{probes} probes in ten minutes");
    assert_eq!(peer.stack.tcp_state(connection), Some(State::Established));
    peer.tell(ACK, peer.seq, peer.ack, b"");
    let sent: usize = peer.heard().iter().map(|(_, payload)| payload.len()).sum();
    assert_eq!(sent, 5000);
    // No host answers at all: it ends.
    let mut peer = Peer::new(V4);
    let listener = peer.listen(5);
    let connection = peer.open(listener);
    let frame = peer.segment(ACK, peer.seq, peer.ack, 0, b"");
    peer.stack.receive(0, &frame);
    peer.stack.tcp_write(connection, &[1; 5000]).unwrap();
    while peer.stack.tcp_state(connection) != Some(State::Closed) && peer.now_ns < 3600 * S {
        peer.heard();
        peer.now_ns += S;
    }
    assert_eq!(peer.read(connection), Err(TcpError::TimedOut));
}

#[test]
fn each_side_may_close_first() {
    // The peer closes first.
    let mut peer = Peer::new(V4);
    let listener = peer.listen(5);
    let connection = peer.open(listener);
    peer.tell(flags(FIN, ACK), peer.seq, peer.ack, b"bye");
    assert_eq!(peer.read(connection).unwrap(), b"bye");
    assert_eq!(peer.read(connection).unwrap(), b"");
    assert_eq!(peer.heard()[0].0.ack, peer.seq + 4);
    assert_eq!(peer.stack.tcp_state(connection), Some(State::CloseWait));
    peer.stack.tcp_write(connection, b"and good night").unwrap();
    peer.stack.tcp_close(0, connection);
    let heard = peer.heard();
    assert_eq!(heard.last().unwrap().1, b"and good night");
    assert!(heard.last().unwrap().0.flags.contains(FIN));
    peer.tell(ACK, peer.seq + 4, peer.ack + 15, b"");
    assert_eq!(
        peer.stack.tcp_connections(),
        0,
        "no TIME-WAIT for who closes last"
    );

    // We close first: TIME-WAIT, which answers a FIN that comes again.
    let mut peer = Peer::new(V4);
    let listener = peer.listen(5);
    let connection = peer.open(listener);
    peer.stack.tcp_close(0, connection);
    assert!(peer.heard()[0].0.flags.contains(FIN));
    peer.tell(flags(FIN, ACK), peer.seq, peer.ack + 1, b"");
    assert_eq!(peer.heard()[0].0.ack, peer.seq + 1);
    peer.now_ns = 50 * S;
    peer.tell(flags(FIN, ACK), peer.seq, peer.ack + 1, b"");
    assert_eq!(peer.heard()[0].0.ack, peer.seq + 1);
    peer.now_ns = 100 * S;
    peer.heard();
    assert_eq!(peer.stack.tcp_connections(), 1, "it waits anew");
    // A new connection between the same ends may take its place (RFC 6191).
    peer.seq += 5000;
    peer.ack = 0;
    peer.open(listener);
    assert_eq!(peer.stack.tcp_connections(), 1);
    // Both at once.
    let mut peer = Peer::new(V4);
    let listener = peer.listen(5);
    let connection = peer.open(listener);
    peer.stack.tcp_close(0, connection);
    peer.heard();
    peer.tell(flags(FIN, ACK), peer.seq, peer.ack, b"");
    peer.tell(ACK, peer.seq + 1, peer.ack + 1, b"");
    peer.heard();
    assert_eq!(peer.stack.tcp_connections(), 1);
    peer.now_ns = 61 * S;
    peer.heard();
    assert_eq!(peer.stack.tcp_connections(), 0);
}

/// RFC 2525 §2.17: the loss of unread bytes is signalled.
#[test]
fn unread_bytes_reset() {
    let mut peer = Peer::new(V4);
    let listener = peer.listen(5);
    let connection = peer.open(listener);
    peer.tell(ACK, peer.seq, peer.ack, b"unread");
    peer.stack.tcp_close(0, connection);
    assert!(
        peer.heard()
            .iter()
            .any(|(repr, _)| repr.flags.contains(RST))
    );
    assert_eq!(peer.stack.tcp_connections(), 0);
    let connection = {
        peer.port += 1;
        peer.open(listener)
    };
    peer.stack.tcp_close(0, connection);
    peer.heard();
    peer.tell(ACK, peer.seq, peer.ack + 1, b"late");
    assert!(
        peer.heard()
            .iter()
            .any(|(repr, _)| repr.flags.contains(RST))
    );
    assert_eq!(peer.stack.tcp_connections(), 0);
}

/// PAWS (RFC 7323 §5): an old segment whose numbers fit again is not taken.
#[test]
fn old_timestamps_are_not_believed() {
    let mut peer = Peer::new(V4);
    let listener = peer.listen(5);
    let time = |value| Options {
        timestamps: Some((value, 0)),
        ..Options::default()
    };
    peer.options = Options {
        sack_permitted: true,
        ..time(1000)
    };
    let connection = peer.open(listener);
    peer.options = time(1010);
    peer.tell(ACK, peer.seq, peer.ack, b"new");
    assert_eq!(peer.heard()[0].0.options.timestamps.unwrap().1, 1010);
    peer.options = time(1005);
    peer.tell(ACK, peer.seq + 3, peer.ack, b"old");
    assert_eq!(peer.heard()[0].0.ack, peer.seq + 3);
    peer.options = Options::default();
    peer.tell(ACK, peer.seq + 3, peer.ack, b"bare");
    peer.heard();
    peer.options = time(1011);
    peer.tell(ACK, peer.seq + 3, peer.ack, b"!");
    assert_eq!(peer.read(connection).unwrap(), b"new!");
}

/// A connection that nothing happens on is asked about, and given up.
#[test]
fn keep_alive_finds_the_dead() {
    let mut peer = Peer::new(V4);
    let listener = peer.listen(5);
    let connection = peer.open(listener);
    peer.stack
        .tcp_set_keep_alive(0, connection, Some(100 * S))
        .unwrap();
    peer.now_ns = 99 * S;
    assert_eq!(peer.heard().len(), 0);
    peer.now_ns = 101 * S;
    assert_eq!(peer.heard()[0].0.seq, peer.ack.wrapping_sub(1));
    peer.tell(ACK, peer.seq, peer.ack, b"");
    let mut probes = 0;
    while peer.stack.tcp_state(connection) == Some(State::Established) && peer.now_ns < 3600 * S {
        peer.now_ns += S;
        probes += peer.heard().len();
    }
    assert_eq!(
        (probes, peer.read(connection)),
        (9, Err(TcpError::TimedOut))
    );
}

/// RFC 3168 §6.1: marks are echoed until the sender has slowed down, and ours
/// slows down once a round trip.
#[test]
fn congestion_marks_are_echoed_and_heeded() {
    let (ece, cwr) = (Flags::ECE, Flags::CWR);
    let mut peer = Peer::new(V4);
    let listener = peer.listen(5);
    peer.tell(SYN | ece | cwr, 1000, 0, b"");
    let answer = peer.heard()[0].0;
    assert_eq!((answer.flags, peer.heard_marks), (SYN | ACK | ece, 0));
    (peer.seq, peer.ack) = (1001, answer.seq.wrapping_add(1));
    peer.tell(ACK, peer.seq, peer.ack, b"");
    let connection = peer.stack.tcp_accept(0, listener).unwrap();
    peer.marks = 3;
    peer.tell(ACK, 1001, peer.ack, b"one");
    assert_eq!(peer.heard()[0].0.flags, ACK | ece);
    peer.marks = 2;
    peer.tell(ACK, 1004, peer.ack, b"two");
    assert_eq!(peer.heard()[0].0.flags, ACK | ece, "until it is heard");
    peer.tell(ACK | cwr, 1007, peer.ack, b"three");
    assert_eq!(peer.heard()[0].0.flags, ACK);
    // Ours may be marked, and a mark halves (nearly) what is in flight.
    peer.stack.tcp_write(connection, &[0; 30_000]).unwrap();
    let before = peer.heard().len();
    assert_eq!(peer.heard_marks, 2);
    let mut end = peer.ack.wrapping_add(536 * before as u32);
    peer.tell(ACK | ece, 1012, end, b"");
    let heard = peer.heard();
    assert!(heard[0].0.flags.contains(cwr) && !heard[1].0.flags.contains(cwr));
    assert!(heard.len() < before, "{} after {before}", heard.len());
    end = end.wrapping_add(536 * heard.len() as u32);
    peer.tell(ACK, 1012, end, b"");
    assert!(peer.heard().len() >= heard.len());
}

/// RFC 1191: what was too long for the path goes again in pieces, if the
/// message quotes what is in flight.
#[test]
fn segments_follow_the_path() {
    let mut peer = Peer::new(V4);
    let listener = peer.listen(5);
    peer.options = Options {
        mss: Some(1460),
        ..Options::default()
    };
    let connection = peer.open(listener);
    peer.options = Options::default();
    peer.stack.tcp_write(connection, &[5; 2920]).unwrap();
    let heard = peer.heard();
    assert!(heard.iter().all(|(_, payload)| payload.len() == 1460));
    let too_big = |seq: u32| {
        let (us, them) = (ip(V4[0]), ip(V4[1]));
        let (IpAddr::V4(us), IpAddr::V4(them)) = (us, them) else {
            unreachable!()
        };
        let header = |src, dst, protocol, payload_len| {
            let repr = ipv4::Repr {
                src,
                dst,
                protocol,
                ttl: 64,
                traffic_class: 0,
                identification: 0,
                dont_fragment: true,
                payload_len,
            };
            let mut bytes = vec![0; ipv4::Repr::LEN];
            repr.emit(&mut bytes);
            bytes
        };
        let ports = [0, 80, 4000_u16.to_be_bytes()[0], 4000_u16.to_be_bytes()[1]];
        let mut message = [
            &[0; 8][..],
            &header(us, them, Protocol::TCP, 1480),
            &ports,
            &seq.to_be_bytes(),
        ]
        .concat();
        icmp::Repr {
            kind: 3,
            code: 4,
            rest: 1000,
        }
        .emit(&mut message, AddrPair::V4(them, us));
        let mut frame = vec![0; ethernet::Repr::LEN];
        let ether_type = EtherType::IPV4;
        ethernet::Repr {
            dst: HARDWARE[0],
            src: HARDWARE[1],
            ether_type,
        }
        .emit(&mut frame);
        [
            frame,
            header(them, us, Protocol::ICMPV4, message.len()),
            message,
        ]
        .concat()
    };
    peer.stack.receive(0, &too_big(peer.ack.wrapping_sub(1)));
    peer.stack.receive(0, &too_big(peer.ack.wrapping_add(2920)));
    assert_eq!(peer.heard().len(), 0, "not in flight, not believed");
    assert_eq!(peer.stack.counters().dropped(DropReason::IcmpUnrelated), 2);
    peer.stack.receive(0, &too_big(peer.ack));
    let heard = peer.heard();
    let lens: Vec<usize> = heard.iter().map(|(_, payload)| payload.len()).collect();
    assert_eq!(heard[0].0.seq, peer.ack);
    assert!(lens.iter().all(|len| *len <= 960), "{lens:?}");
    assert_eq!(lens.iter().sum::<usize>(), 2920);
}
