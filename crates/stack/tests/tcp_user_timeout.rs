//! How long TCP waits for a peer, and for how much: `TCP_USER_TIMEOUT`,
//! `SO_RCVBUF`, and windows that stay closed for an orphan.

mod common;

use common::V4;
use common::peer::{ACK, Peer, S, SYN};
use std::num::NonZeroU32;
use weir_stack::tcp::{State, TcpConfig, TcpError, TcpId, TcpOptions};
use weir_wire::tcp::Options;

const MS: u64 = 1_000_000;

fn patience(ms: u32) -> TcpOptions {
    TcpOptions {
        user_timeout_ms: NonZeroU32::new(ms),
        ..TcpOptions::default()
    }
}

fn buffer(bytes: u32) -> TcpOptions {
    TcpOptions {
        receive_buffer: NonZeroU32::new(bytes),
        ..TcpOptions::default()
    }
}

/// Lets time pass until the connection is over, so long at most; gives when.
/// With `window`, whatever comes is answered so that nothing is acknowledged and
/// the window stays like that.
fn over_ms(peer: &mut Peer, id: TcpId, for_s: u64, window: Option<u16>) -> Option<u64> {
    let (start_ns, end_ns) = (peer.now_ns, peer.now_ns + for_s * S);
    while peer.now_ns < end_ns {
        peer.now_ns += 10 * MS;
        let heard = peer.heard().len();
        if let Some(window) = window.filter(|_| heard > 0) {
            let frame = peer.segment(ACK, peer.seq, peer.ack, window, b"");
            peer.stack.receive(peer.now_ns, &frame);
        }
        if matches!(peer.stack.tcp_state(id), Some(State::Closed) | None) {
            return Some((peer.now_ns - start_ns) / MS);
        }
    }
    None
}

#[test]
fn bytes_without_an_acknowledgment_wait_as_long_as_the_user_says() {
    // Set before the bytes are written, and after they have waited for a while.
    for late in [false, true] {
        let mut peer = Peer::new(V4);
        let listener = peer.listen(5);
        let id = peer.open(listener);
        if !late {
            peer.stack.tcp_set_options(id, patience(3000)).unwrap();
        }
        peer.stack.tcp_write(id, b"anybody?").unwrap();
        peer.heard();
        if late {
            assert_eq!(over_ms(&mut peer, id, 2, None), None);
            peer.stack.tcp_set_options(id, patience(3000)).unwrap();
        }
        let over = over_ms(&mut peer, id, 60, None).unwrap();
        let waited = over + if late { 2000 } else { 0 };
        assert!((3000..3050).contains(&waited), "{waited} ms");
        assert_eq!(peer.read(id), Err(TcpError::TimedOut));
    }
}

/// Each acknowledgment of something new starts the time anew; one that says
/// nothing new does not.
#[test]
fn progress_is_what_counts() {
    let mut peer = Peer::new(V4);
    let listener = peer.listen(5);
    let id = peer.open(listener);
    peer.stack.tcp_set_options(id, patience(2000)).unwrap();
    peer.stack.tcp_write(id, &[1; 8 * 536]).unwrap();
    for _ in 0..7 {
        assert_eq!(over_ms(&mut peer, id, 1, None), None);
        peer.ack = peer.ack.wrapping_add(536);
        peer.tell(ACK, peer.seq, peer.ack, b"");
    }
    let over = over_ms(&mut peer, id, 60, Some(10_000)).unwrap();
    assert!((1990..2050).contains(&over), "{over} ms");
}

#[test]
fn closed_windows_and_syns_wait_as_long() {
    let mut peer = Peer::new(V4);
    let listener = peer.listen(5);
    let id = peer.open(listener);
    let frame = peer.segment(ACK, peer.seq, peer.ack, 0, b"");
    peer.stack.receive(peer.now_ns, &frame);
    peer.stack.tcp_set_options(id, patience(5000)).unwrap();
    peer.stack.tcp_write(id, &[1; 100]).unwrap();
    peer.heard();
    let over = over_ms(&mut peer, id, 60, Some(0)).unwrap();
    assert!((5000..5050).contains(&over), "{over} ms");
    assert_eq!(peer.read(id), Err(TcpError::TimedOut));

    let mut peer = Peer::new(V4);
    let far = "192.0.2.2:9".parse().unwrap();
    let id = peer.stack.tcp_connect(0, None, far).unwrap();
    peer.stack.tcp_set_options(id, patience(4000)).unwrap();
    let over = over_ms(&mut peer, id, 60, None).unwrap();
    assert!((4000..4050).contains(&over), "{over} ms");
    assert_eq!(peer.read(id), Err(TcpError::TimedOut));
}

/// An idle peer that is asked whether it is there is given up by this time
/// instead of by a number of probes; and a listener's connections have it.
#[test]
fn keep_alive_and_listeners_have_it_too() {
    let mut peer = Peer::new(V4);
    let listener = peer.listen(5);
    peer.stack
        .tcp_set_listener_options(listener, patience(150_000))
        .unwrap();
    let id = peer.open(listener);
    assert_eq!(peer.stack.tcp_options(id), Some(patience(150_000)));
    peer.stack.tcp_set_keep_alive(0, id, Some(100 * S)).unwrap();
    let over = over_ms(&mut peer, id, 3600, None).unwrap();
    assert!(
        (174_000..176_000).contains(&over),
        "{over} ms: at the second question"
    );
    assert_eq!(peer.read(id), Err(TcpError::TimedOut));
}

/// A silent peer is given up after this many probes at this interval; with a user timeout the number does not
/// count, however many they are.
#[test]
fn keep_alive_probes_have_an_interval_and_a_number() {
    for (patience_ms, expected_ms) in [(None, 14_000..14_200), (Some(400_000), 400_000..402_000)] {
        let mut peer = Peer::new(V4);
        let listener = peer.listen(5);
        let id = peer.open(listener);
        if let Some(ms) = patience_ms {
            peer.stack.tcp_set_options(id, patience(ms)).unwrap();
        }
        peer.stack.tcp_set_keep_alive_probes(id, 1, 4).unwrap();
        peer.stack.tcp_set_keep_alive(0, id, Some(10 * S)).unwrap();
        let over = over_ms(&mut peer, id, 3600, None).unwrap();
        assert!(expected_ms.contains(&over), "{over} ms");
        assert_eq!(peer.read(id), Err(TcpError::TimedOut));
    }
}

/// A peer that answers all probes and never opens its window pins nothing that
/// its application has let go (RFC 6429); and for a connection with an application, all.
#[test]
fn an_orphan_does_not_wait_for_a_closed_window() {
    for closed in [false, true] {
        let mut peer = Peer::new(V4);
        let listener = peer.listen(5);
        let id = peer.open(listener);
        let frame = peer.segment(ACK, peer.seq, peer.ack, 0, b"");
        peer.stack.receive(peer.now_ns, &frame);
        peer.stack.tcp_write(id, &[1; 100_000]).unwrap();
        peer.heard();
        if closed {
            peer.stack.tcp_close(peer.now_ns, id);
        }
        let start_ns = peer.now_ns;
        let mut over_s = None;
        while over_s.is_none() && peer.now_ns < start_ns + 1200 * S {
            peer.now_ns += 100 * MS;
            if !peer.heard().is_empty() {
                let frame = peer.segment(ACK, peer.seq, peer.ack, 0, b"");
                peer.stack.receive(peer.now_ns, &frame);
            }
            over_s = (peer.stack.tcp_connections() == 0).then(|| (peer.now_ns - start_ns) / S);
        }
        assert_eq!(over_s.is_some(), closed);
        assert!(
            over_s.is_none_or(|over_s| (300..310).contains(&over_s)),
            "{over_s:?} s"
        );
        assert_eq!(peer.stack.tcp_memory() == 0, closed);
    }
}

/// The window is what was asked for, whatever the path and the configuration,
/// from the SYN on; and what was granted stays granted.
#[test]
fn the_receive_buffer_is_the_window() {
    for (bytes, scales, told) in [
        (20_000, true, 20_000),
        (16 << 20, true, 16 << 20),
        (3000, false, 3000),
    ] {
        let config = TcpConfig {
            timestamps: false,
            ..TcpConfig::default()
        };
        let mut peer = Peer::with(V4, config);
        let listener = peer.listen(5);
        peer.stack
            .tcp_set_listener_options(listener, buffer(bytes))
            .unwrap();
        peer.options = Options {
            mss: Some(1460),
            window_scale: scales.then_some(7),
            ..Options::default()
        };
        peer.tell(SYN, peer.seq, 0, b"");
        let answer = peer.heard()[0].0;
        let shift = answer.options.window_scale.unwrap_or(0);
        assert_eq!(usize::from(answer.window), (bytes as usize).min(65_535));
        (peer.seq, peer.ack) = (answer.ack, answer.seq.wrapping_add(1));
        peer.options = Options::default();
        peer.tell(ACK, peer.seq, peer.ack, b"");
        let id = peer.stack.tcp_accept(0, listener).unwrap();
        // All that comes is read: the window stays.
        let (mut window, mut edge) = (0, 0);
        for _ in 0..50 {
            peer.now_ns += MS;
            peer.tell(ACK, peer.seq, peer.ack, &[7; 1000]);
            peer.seq = peer.seq.wrapping_add(1000);
            assert_eq!(peer.read(id).map(|read| read.len()), Ok(1000));
            for (heard, _) in peer.heard() {
                window = usize::from(heard.window) << shift;
                edge = heard.ack.wrapping_add(window as u32);
            }
        }
        let crumbs = 1 << shift;
        assert!(
            (told - 2920.min(told / 2)..told + crumbs).contains(&window),
            "{window} of {told}"
        );
        // It may be made smaller: what was granted still comes.
        peer.stack.tcp_set_options(id, buffer(1000)).unwrap();
        let mut came = 0;
        let granted = edge.wrapping_sub(peer.seq) as usize;
        while came + 1000 <= granted {
            peer.tell(ACK, peer.seq, peer.ack, &[7; 1000]);
            peer.seq = peer.seq.wrapping_add(1000);
            came += 1000;
            if came > 100_000 {
                break;
            }
        }
        let mut read = 0;
        while let Ok(bytes) = peer.read(id) {
            read += bytes.len();
        }
        assert_eq!(read, came);
    }
}
