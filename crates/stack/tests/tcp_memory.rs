//! TCP's buffers: they grow with the path, and all of them share a limit.

mod common;

use common::peer::{ACK, Peer, SYN};
use common::stream::exchange;
use common::{Pair, V4};
use std::cell::Cell;
use std::net::SocketAddr;
use weir_link::mem::Impairments;
use weir_stack::Stack;
use weir_stack::tcp::{Algorithm, SYN_QUEUE_MAX, TcpConfig, TcpError, TcpId};

const MS: u64 = 1_000_000;
const S: u64 = 1000 * MS;

/// Connections that begin with 128 KB each way.
fn small() -> TcpConfig {
    TcpConfig {
        receive_initial: 128 << 10,
        send_initial: 128 << 10,
        ..TcpConfig::default()
    }
}

fn server() -> SocketAddr {
    SocketAddr::new(common::ip(V4[1]), 80)
}

fn link(delay_ns: u64, rate_bits_per_s: u64) -> Impairments {
    Impairments {
        delay_ns,
        rate_bits_per_s: Some(rate_bits_per_s),
        queue_frames_max: 4000,
        ..Impairments::default()
    }
}

/// A path that holds 1.25 MB at once is filled from a window of 128 KB on, with
/// timestamps and without; a window that stays as it begins fills a tenth.
#[test]
fn windows_grow_with_the_path() {
    let rate = 100_000_000;
    let share = |config: &TcpConfig, bytes: usize| {
        let mut pair = Pair::new(link(50 * MS, rate), 5);
        for stack in &mut pair.stacks {
            stack.tcp_configure(config.clone());
        }
        let took_ns = exchange(&mut pair, V4, [bytes, 0], 1 << 20, 100 * S);
        bytes as f64 * 8e9 / (rate as f64 * took_ns as f64)
    };
    let grows = small();
    let plain = TcpConfig {
        timestamps: false,
        ..grows.clone()
    };
    let stays = TcpConfig {
        receive_buffer: grows.receive_initial,
        ..grows.clone()
    };
    let shares = [
        share(&grows, 12_000_000),
        share(&plain, 12_000_000),
        share(&stays, 3_000_000),
    ];
    println!("{shares:?}");
    assert!(
        shares[0] > 0.35 && shares[1] > 0.35 && shares[2] < 0.12,
        "{shares:?}"
    );
}

/// On a path that holds little, the window stays as it begins.
#[test]
fn windows_do_not_grow_for_nothing() {
    let mut pair = Pair::new(link(MS, 2_000_000), 6);
    for stack in &mut pair.stacks {
        stack.tcp_configure(small());
    }
    let (client, accepted) = open(&mut pair, 1).pop().unwrap();
    pair.stacks[0].tcp_write(client, &[1; 100_000]).unwrap();
    let mut buffer = vec![0; 1 << 20];
    let mut read = 0;
    let done = pair.run(10 * S, |pair| {
        read += pair.stacks[1].tcp_read(accepted, &mut buffer).unwrap_or(0);
        pair.poll_all();
        read == 100_000
    });
    assert!(done);
    let info = pair.stacks[1].tcp_info(pair.now_ns, accepted).unwrap();
    assert!(info.rcv_wnd <= small().receive_initial, "{}", info.rcv_wnd);
}

fn open(pair: &mut Pair, count: usize) -> Vec<(TcpId, TcpId)> {
    let listener = pair.stacks[1].tcp_listen(server(), count).unwrap();
    let mut pairs = Vec::new();
    for _ in 0..count {
        let client = pair.stacks[0]
            .tcp_connect(pair.now_ns, None, server())
            .unwrap();
        let mut accepted = None;
        pair.run(10 * S, |pair| {
            accepted = pair.stacks[1].tcp_accept(pair.now_ns, listener).ok();
            accepted.is_some()
        });
        pairs.push((client, accepted.unwrap()));
    }
    pairs
}

/// Forty connections want to send 100 KB each over stacks that may hold 256 KB:
/// neither ever holds more, and all of it arrives once it is read.
#[test]
fn memory_is_bounded_and_shared() {
    const EACH: usize = 100_000;
    const LIMIT: usize = 256 << 10;
    let mut pair = Pair::new(link(MS, 1_000_000_000), 7);
    let pairs = open(&mut pair, 40);
    for stack in &mut pair.stacks {
        stack.tcp_limit_memory(LIMIT);
    }
    let mut written = vec![0; pairs.len()];
    let mut read = vec![0; pairs.len()];
    let mut buffer = vec![0; 1 << 16];
    let mut refused = 0;
    let mut due: Vec<usize> = (0..pairs.len()).collect();
    let reads = Cell::new(false);
    let mut turn = |pair: &mut Pair| {
        while let Some(id) = pair.stacks[0].tcp_next_event() {
            due.extend(pairs.iter().position(|(client, _)| *client == id));
        }
        // Only notified writers try again.
        for at in due.drain(..) {
            while written[at] < EACH {
                match pair.stacks[0]
                    .tcp_write(pairs[at].0, &buffer[..EACH - written[at].max(EACH - 1000)])
                {
                    Ok(count) => written[at] += count,
                    Err(TcpError::WouldBlock) => {
                        refused += 1;
                        break;
                    }
                    Err(error) => panic!("{error}"),
                }
            }
        }
        if reads.get() {
            for (at, (_, accepted)) in pairs.iter().enumerate() {
                while let Ok(count) = pair.stacks[1].tcp_read(*accepted, &mut buffer) {
                    read[at] += count;
                }
            }
        }
        for stack in &pair.stacks {
            assert!(stack.tcp_memory() <= LIMIT, "{} bytes", stack.tcp_memory());
        }
        pair.poll_all();
        read.iter().all(|read| *read == EACH)
    };
    // No application reads: all is full before long.
    pair.run(20 * S, &mut turn);
    let full = pair.stacks.each_ref().map(|stack| stack.tcp_memory());
    assert!(full.iter().all(|held| *held > LIMIT / 2), "{full:?}");
    reads.set(true);
    let done = pair.run(2000 * S, &mut turn);
    assert!(done, "at {} s", pair.now_ns / S);
    assert!(refused > 0);
}

/// A stranger opens many connections and leaves a gap in each: what lies behind
/// the gaps, which cannot be read, leaves a part of the memory to others.
#[test]
fn bytes_out_of_order_leave_memory_to_others() {
    const LIMIT: usize = 1 << 20;
    let mut peer = Peer::new(V4);
    peer.stack.tcp_limit_memory(LIMIT);
    let listener = peer.listen(100);
    for port in 1..40 {
        (peer.port, peer.seq) = (port, 1000);
        peer.open(listener);
        let (far, ack) = (peer.seq.wrapping_add(60_000), peer.ack);
        peer.tell(ACK, far, ack, b"far away");
        peer.heard();
    }
    let held = peer.stack.tcp_memory();
    assert!(
        (LIMIT / 2..=LIMIT * 3 / 4).contains(&held),
        "{held} of {LIMIT} bytes"
    );
    // Others are served: 100 KB in segments in order, each read at once.
    peer.port = 4000;
    let served = peer.open(listener);
    for _ in 0..100 {
        peer.tell(ACK, peer.seq, peer.ack, &[7; 1000]);
        assert_eq!(peer.read(served).map(|bytes| bytes.len()), Ok(1000));
        peer.seq = peer.seq.wrapping_add(1000);
        peer.heard();
    }
    assert!(peer.stack.tcp_memory() <= LIMIT);
}

/// What a connection brings along that a SYN cookie opens is bounded too.
#[test]
fn bytes_behind_a_cookie_are_within_the_limit() {
    let mut peer = Peer::new(V4);
    let listener = peer.listen(10);
    let mut cookie = 0;
    for port in 0..=SYN_QUEUE_MAX as u16 {
        peer.port = 1000 + port;
        peer.tell(SYN, 1000, 0, b"");
        cookie = peer.heard()[0].0.seq;
    }
    peer.stack.tcp_limit_memory(0);
    peer.tell(ACK, 1001, cookie.wrapping_add(1), b"hello");
    assert_eq!(peer.stack.tcp_accept_queue_len(listener), 1);
    assert_eq!(peer.stack.tcp_memory(), 0);
    // It comes again, when there is memory.
    peer.stack.tcp_limit_memory(1 << 20);
    let connection = peer.stack.tcp_accept(0, listener).unwrap();
    peer.tell(ACK, 1001, cookie.wrapping_add(1), b"hello");
    assert_eq!(peer.read(connection).unwrap(), b"hello");
}

/// A writer that asks for room without any enters the waiters, and is notified
/// when there is.
#[test]
fn there_is_no_room_without_memory() {
    const LIMIT: usize = 64 << 10;
    let mut pair = Pair::new(link(MS, 1_000_000_000), 7);
    let pairs = open(&mut pair, 2);
    let [(one, reads), (two, _)] = pairs[..] else {
        panic!()
    };
    pair.stacks[0].tcp_limit_memory(LIMIT);
    while pair.stacks[0].tcp_write(one, &[1; 2048]).is_ok() {}
    while pair.stacks[0].tcp_next_event().is_some() {}
    assert_eq!(pair.stacks[0].tcp_write_room(two), 0);
    // The first is read, and gives its storage back.
    let mut buffer = vec![0; LIMIT];
    let told = pair.run(100 * S, |pair| {
        while pair.stacks[1].tcp_read(reads, &mut buffer).is_ok() {}
        pair.poll_all();
        let stack = &mut pair.stacks[0];
        let named = std::iter::from_fn(|| stack.tcp_next_event()).any(|id| id == two);
        // It may be named for another reason before.
        named && stack.tcp_write_room(two) > 0
    });
    assert!(told);
    assert!(pair.stacks[0].tcp_write(two, &[1; 100]).is_ok());
}

/// Who waits for more room than the memory that is left has, though that is
/// some, is notified when there is as much; and not before, however often memory
/// comes and goes.
#[test]
fn a_sender_short_of_memory_is_notified_when_there_is_room() {
    let mut pair = Pair::new(link(MS, 1_000_000_000), 7);
    // Unread data stays with its sender.
    pair.stacks[1].tcp_configure(TcpConfig {
        receive_initial: 4096,
        receive_buffer: 4096,
        ..TcpConfig::default()
    });
    let pairs = open(&mut pair, 3);
    pair.run(5 * S, |_| false);
    let [(one, reads), (two, _), (three, reads_three)] = pairs[..] else {
        panic!()
    };
    // 3 KiB are left, and 7 without the third: less than the 8 that it takes to
    // have a sixteenth of all.
    let stack = &mut pair.stacks[0];
    stack.tcp_limit_memory(71 << 10);
    assert_eq!(stack.tcp_write(one, &[1; 64 << 10]), Ok(64 << 10));
    assert_eq!(stack.tcp_write(three, &[1; 4 << 10]), Ok(4 << 10));
    let told = |stack: &mut Stack| {
        let all: Vec<_> = std::iter::from_fn(|| stack.tcp_next_event()).collect();
        all.contains(&two)
    };
    told(stack);
    let room = stack.tcp_write_room(two);
    assert_eq!(room, 2048);
    assert!(!stack.tcp_is_writable(two));
    // It is idle: only memory can be an event for it. The third's bytes
    // are read and its memory given back, time after time.
    let mut buffer = vec![0; 64 << 10];
    for _ in 0..10 {
        let freed = pair.run(3 * S, |pair| {
            while pair.stacks[1].tcp_read(reads_three, &mut buffer).is_ok() {}
            pair.poll_all();
            assert!(!told(&mut pair.stacks[0]), "told in vain");
            pair.stacks[0].tcp_memory() == 64 << 10
        });
        assert!(freed);
        pair.stacks[0].tcp_write(three, &[1; 4 << 10]).unwrap();
    }
    let told = pair.run(100 * S, |pair| {
        while pair.stacks[1].tcp_read(reads, &mut buffer).is_ok() {}
        pair.poll_all();
        told(&mut pair.stacks[0])
    });
    assert!(told);
    assert!(pair.stacks[0].tcp_is_writable(two));
}

/// BBR keeps a sample of each time at which segments in flight were sent: they count, and are given
/// back with the connection.
#[test]
fn samples_of_the_delivery_rate_count() {
    const BYTES: usize = 4 << 20;
    let most = |congestion| {
        let mut pair = Pair::new(link(50 * MS, 100_000_000), 5);
        for stack in &mut pair.stacks {
            stack.tcp_configure(TcpConfig {
                congestion,
                send_initial: 2 << 20,
                send_buffer: 2 << 20,
                ..TcpConfig::default()
            });
        }
        let (client, accepted) = open(&mut pair, 1).pop().unwrap();
        let (mut written, mut read, mut most) = (0, 0, 0);
        let mut buffer = vec![0; 1 << 20];
        let done = pair.run(60 * S, |pair| {
            let rest = (BYTES - written).min(buffer.len());
            written += pair.stacks[0]
                .tcp_write(client, &buffer[..rest])
                .unwrap_or(0);
            read += pair.stacks[1].tcp_read(accepted, &mut buffer).unwrap_or(0);
            pair.poll_all();
            most = most.max(pair.stacks[0].tcp_memory());
            read == BYTES
        });
        assert!(done);
        let now_ns = pair.now_ns;
        for (stack, id) in pair.stacks.iter_mut().zip([client, accepted]) {
            stack.tcp_abort(now_ns, id);
        }
        pair.run(S, |_| false);
        assert_eq!(pair.stacks[0].tcp_memory(), 0);
        most
    };
    let [cubic, bbr] = [Algorithm::Cubic, Algorithm::Bbr].map(most);
    // Some hundred instants in flight.
    assert!(bbr > cubic + 5_000, "{bbr} bytes, {cubic} by CUBIC");
}
