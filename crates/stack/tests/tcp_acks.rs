//! When received bytes are acknowledged, against a peer made of segments.

mod common;

use common::V4;
use common::peer::{ACK, FIN, Peer, S, SYN, flags};
use weir_stack::tcp::{TcpConfig, TcpId};
use weir_wire::tcp::Options;

const MS: u64 = 1_000_000;

/// The peer sends this many bytes, which are read; how many segments come back.
fn say(peer: &mut Peer, connection: TcpId, count: usize) -> usize {
    peer.tell(ACK, peer.seq, peer.ack, &vec![7; count]);
    peer.seq = peer.seq.wrapping_add(count as u32);
    assert_eq!(peer.read(connection).unwrap().len(), count);
    let heard = peer.heard();
    for (repr, payload) in &heard {
        assert!(payload.is_empty() && repr.ack == peer.seq);
    }
    heard.len()
}

#[test]
fn acknowledgments_are_quick_or_not_as_asked() {
    let mut peer = Peer::new(V4);
    let listener = peer.listen(1);
    let connection = peer.open(listener);
    // The first are, by themselves.
    assert_eq!(say(&mut peer, connection, 100), 1);
    peer.stack
        .tcp_set_quick_ack(peer.now_ns, connection, false)
        .unwrap();
    assert_eq!(peer.stack.tcp_quick_ack(connection), Some(false));
    assert_eq!(say(&mut peer, connection, 100), 0);
    // An owed acknowledgment is sent on request, and those of later segments at once.
    peer.stack
        .tcp_set_quick_ack(peer.now_ns, connection, true)
        .unwrap();
    assert_eq!(peer.heard().len(), 1);
    for _ in 0..5 {
        assert_eq!(say(&mut peer, connection, 100), 1);
    }
    // Who owes nothing sends nothing.
    peer.stack
        .tcp_set_quick_ack(peer.now_ns, connection, true)
        .unwrap();
    assert_eq!(peer.heard().len(), 0);
    // Without it, one is late, but comes.
    peer.stack
        .tcp_set_quick_ack(peer.now_ns, connection, false)
        .unwrap();
    assert_eq!(say(&mut peer, connection, 100), 0);
    peer.now_ns += S;
    assert_eq!(peer.heard().len(), 1);
}

/// The acknowledgment of a FIN goes with ours if that follows at once, and else alone,
/// a millisecond later; with the bytes before the FIN where those do not wait.
#[test]
fn a_fin_is_acknowledged_with_ours_or_soon() {
    for (bytes, closes, delay_ns) in [
        (&b""[..], true, 0),
        (b"", false, S / 1000),
        (b"last words", false, 0),
    ] {
        let mut peer = Peer::new(V4);
        let listener = peer.listen(1);
        let connection = peer.open(listener);
        peer.tell(FIN | ACK, peer.seq, peer.ack, bytes);
        if closes {
            assert_eq!(peer.heard(), []);
            peer.stack.tcp_close(peer.now_ns, connection);
        } else if delay_ns > 0 {
            peer.now_ns += delay_ns - 1;
            assert_eq!(peer.heard(), []);
            peer.now_ns += 1;
        }
        let heard = peer.heard();
        let [(repr, _)] = &heard[..] else {
            panic!("{heard:?}");
        };
        let end = peer.seq.wrapping_add(bytes.len() as u32 + 1);
        let told = if closes { flags(FIN, ACK) } else { ACK };
        assert_eq!((repr.flags, repr.ack), (told, end));
        peer.now_ns += S / 10;
        assert_eq!(peer.heard(), [], "once is enough");
    }
}

/// A writer that waits for more than all memory would keep memory that others wait
/// for.
/// The shift rounds a window up, and a peer that fills it sends more than there is room for. What it
/// acknowledges from there counts, or a full reader's own bytes would wait for ever.
#[test]
fn a_peer_acknowledges_at_the_end_of_a_window_that_was_rounded_up() {
    let config = TcpConfig {
        timestamps: false,
        ..TcpConfig::default()
    };
    let mut peer = Peer::with(V4, config);
    let listener = peer.listen(1);
    peer.options = Options {
        mss: Some(1460),
        window_scale: Some(7),
        ..Options::default()
    };
    peer.tell(SYN, peer.seq, 0, b"");
    let answer = peer.heard()[0].0;
    let shift = answer.options.window_scale.unwrap();
    assert!(shift > 0);
    (peer.seq, peer.ack) = (answer.ack, answer.seq.wrapping_add(1));
    peer.options = Options::default();
    peer.tell(ACK, peer.seq, peer.ack, b"");
    let connection = peer.stack.tcp_accept(0, listener).unwrap();
    // Nothing is read; the peer fills the window as it sees it.
    let mut edge = peer.seq.wrapping_add(answer.window.into());
    let mut acknowledged = peer.seq;
    for _ in 0..100_000 {
        let len = edge.wrapping_sub(peer.seq).min(999);
        peer.now_ns += MS;
        peer.tell(ACK, peer.seq, peer.ack, &vec![7; len as usize]);
        peer.seq = peer.seq.wrapping_add(len);
        for (heard, _) in peer.heard() {
            acknowledged = heard.ack;
            edge = heard.ack.wrapping_add(u32::from(heard.window) << shift);
        }
        if edge == acknowledged {
            break;
        }
    }
    assert_eq!(edge, acknowledged, "the window is closed");
    assert_ne!(peer.seq, acknowledged, "the last bytes were cut off");
    let bytes = b"from the reader";
    assert_eq!(peer.stack.tcp_write(connection, bytes), Ok(bytes.len()));
    let heard = peer.heard();
    assert_eq!(heard[0].1, bytes);
    peer.ack = peer.ack.wrapping_add(bytes.len() as u32);
    peer.tell(ACK, peer.seq, peer.ack, b"");
    peer.heard();
    peer.now_ns += 10 * S;
    assert!(peer.heard().iter().all(|(_, bytes)| bytes.is_empty()));
}

#[test]
fn what_there_is_no_memory_for_is_not_waited_for() {
    let mut peer = Peer::new(V4);
    peer.stack.tcp_limit_memory(64 << 10);
    let listener = peer.listen(2);
    let connection = peer.open(listener);
    peer.tell(ACK, peer.seq, peer.ack, &[7; 1000]);
    peer.heard();
    let (port, seq, ack) = (peer.port, peer.seq.wrapping_add(1000), peer.ack);
    assert!(!peer.stack.tcp_is_readable(connection, 1 << 20));
    // Another one takes most of the memory, and does not read.
    peer.port = port + 1;
    peer.open(listener);
    for number in 0..40 {
        let seq = peer.seq.wrapping_add(1000 * number);
        peer.tell(ACK, seq, peer.ack, &[7; 1000]);
        peer.heard();
    }
    (peer.port, peer.seq, peer.ack) = (port, seq, ack);
    for _ in 0..40 {
        peer.tell(ACK, peer.seq, peer.ack, &[7; 1000]);
        peer.seq = peer.seq.wrapping_add(1000);
        peer.heard();
    }
    assert!(peer.stack.tcp_is_readable(connection, 1 << 20));
    let mut read = 0;
    while let Ok(bytes) = peer.read(connection) {
        read += bytes.len();
    }
    assert!((1000..40_000).contains(&read), "{read}");
}

/// With this many bytes, with as many as the window takes, or at the end.
#[test]
fn a_connection_is_readable_with_so_many_bytes() {
    let mut peer = Peer::new(V4);
    let listener = peer.listen(1);
    let connection = peer.open(listener);
    let tell = |peer: &mut Peer, count: usize| {
        peer.tell(ACK, peer.seq, peer.ack, &vec![7; count]);
        peer.seq = peer.seq.wrapping_add(count as u32);
        peer.heard();
    };
    assert!(!peer.stack.tcp_is_readable(connection, 1));
    tell(&mut peer, 99);
    assert!(!peer.stack.tcp_is_readable(connection, 100));
    assert!(peer.stack.tcp_is_readable(connection, 99));
    // The window closes long before a gigabyte has come.
    let mut told = 99;
    while !peer.stack.tcp_is_readable(connection, 1 << 30) {
        tell(&mut peer, 1000);
        told += 1000;
        assert!(told < 16 << 20);
    }
    let mut read = 0;
    while let Ok(bytes) = peer.read(connection) {
        read += bytes.len();
    }
    assert!(read <= told && read + 1000 >= told, "{read} of {told}");
    peer.tell(FIN | ACK, peer.seq, peer.ack, b"");
    assert!(peer.stack.tcp_is_readable(connection, 1 << 30));
}
