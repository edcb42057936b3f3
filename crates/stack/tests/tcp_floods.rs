//! Floods of TCP segments from strangers: memory is bounded, a connection that
//! was there goes on, newcomers get in, and all is counted.
//!
//! Each has a small form for every day, and a large one:
//! `cargo test --release -p weir-stack --test tcp_floods -- --ignored --nocapture`

mod common;

use common::packet::{Ends, segment};
use common::{HARDWARE, Pair, V4, V6, config, parse};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use weir_link::mem::Impairments;
use weir_stack::iface::NEIGHBOURS_MAX;
use weir_stack::tcp::{
    CONNECTIONS_MAX, ListenerId, OOO_RANGES_MAX, SYN_QUEUE_ALL_MAX, SYN_QUEUE_MAX, TcpConfig, TcpId,
};
use weir_wire::ethernet::Address;
use weir_wire::tcp::{Flags, Options, Repr};

const MS: u64 = 1_000_000;
const S: u64 = 1000 * MS;
/// To host 0, from the flooding host.
const ENDS: Ends = [HARDWARE[0], Address([2, 9, 9, 9, 9, 9])];
/// Bytes that the good connection writes each millisecond.
const EACH: usize = 1000;

/// A SYN as systems of today send it.
fn syn(seq: u32) -> Repr {
    Repr {
        src_port: 0,
        dst_port: 0,
        seq,
        ack: 0,
        flags: Flags::SYN,
        window: 64_000,
        urgent: 0,
        options: Options {
            mss: Some(1460),
            window_scale: Some(7),
            sack_permitted: true,
            timestamps: Some((seq, 0)),
            ..Options::default()
        },
    }
}

/// A stranger, each another one: behind a router, or on the link itself.
fn stranger(v6: bool, near: bool, number: u32) -> SocketAddr {
    let port = 1024 + (number % 50_000) as u16;
    let ip: IpAddr = match (v6, near) {
        (false, false) => Ipv4Addr::from_bits(0x0a00_0000 + number).into(),
        (false, true) => Ipv4Addr::from_bits(0xc000_0203 + number % 250).into(),
        (true, far) => {
            let net = 0x2001_0db8_u128 << 96 | u128::from(!far) << 64;
            Ipv6Addr::from_bits(net + 0x1_0000 + u128::from(number)).into()
        }
    };
    (ip, port).into()
}

/// A server, host 0, under a flood; and an honest host 1.
struct Server {
    pair: Pair,
    listener: ListenerId,
    /// Whether other clients are admitted that continue their handshake.
    strangers: Option<ListenerId>,
    good: (TcpId, TcpId),
    /// Bytes that the good connection brought.
    brought: usize,
    /// Newcomers that are opening, and how many got an answer to a question.
    opening: Vec<TcpId>,
    answered: usize,
    asked: usize,
}

impl Server {
    fn new(seed: u64) -> Server {
        // Answers to strangers leave by host 1, which forwards nothing.
        let all = |text: &str| text.parse().unwrap();
        let ours = config(0)
            .route(all("0.0.0.0/0"), V4[1].parse().unwrap())
            .route(all("::/0"), V6[1].parse().unwrap());
        let mut pair = Pair::with([ours, config(1)], Impairments::default(), seed);
        let listener = pair.stacks[0].tcp_listen(at(80), 1000).unwrap();
        let config = TcpConfig {
            receive_initial: 64 << 10,
            ..TcpConfig::default()
        };
        pair.stacks[0].tcp_configure(config);
        let client = pair.stacks[1].tcp_connect(0, None, at(80)).unwrap();
        assert!(pair.run(S, |pair| pair.stacks[0].tcp_accept_queue_len(listener) == 1));
        let accepted = pair.stacks[0].tcp_accept(pair.now_ns, listener).unwrap();
        Server {
            pair,
            listener,
            strangers: None,
            good: (client, accepted),
            brought: 0,
            opening: Vec::new(),
            answered: 0,
            asked: 0,
        }
    }

    /// A millisecond of honest life.
    fn live(&mut self) {
        let pair = &mut self.pair;
        pair.now_ns += MS;
        let _ = pair.stacks[1].tcp_write(self.good.0, &[7; EACH]);
        if (pair.now_ns / MS).is_multiple_of(20) {
            let now_ns = pair.now_ns;
            let newcomer = pair.stacks[1].tcp_connect(now_ns, None, at(80)).unwrap();
            pair.stacks[1].tcp_write(newcomer, b"?").unwrap();
            self.opening.push(newcomer);
            self.asked += 1;
        }
        for _ in 0..4 {
            pair.settle();
            let mut buffer = [0; 8 * EACH];
            while let Ok(count) = pair.stacks[0].tcp_read(self.good.1, &mut buffer) {
                self.brought += count;
            }
            while let Ok(accepted) = pair.stacks[0].tcp_accept(pair.now_ns, self.listener) {
                if pair.stacks[0].tcp_read(accepted, &mut buffer) == Ok(1) {
                    pair.stacks[0].tcp_write(accepted, b"!").unwrap();
                }
                pair.stacks[0].tcp_close(pair.now_ns, accepted);
            }
            let (stack, now_ns) = (&mut pair.stacks[1], pair.now_ns);
            let before = self.opening.len();
            self.opening.retain(|newcomer| {
                let came = stack.tcp_read(*newcomer, &mut buffer) == Ok(1);
                if came {
                    stack.tcp_close(now_ns, *newcomer);
                }
                !came
            });
            self.answered += before - self.opening.len();
        }
    }

    /// Opens a stranger's connection; gives the server's end, and the number
    /// and the acknowledgment that the stranger's next segment has. It has no
    /// timestamps, so that no state is needed for them.
    fn admit(&mut self, from: SocketAddr, window: u16, mss: u16) -> (TcpId, u32, u32) {
        let pair = &mut self.pair;
        let listener = match pair.stacks[0].tcp_listen(at(81), 10_000) {
            Ok(listener) => *self.strangers.insert(listener),
            Err(_) => self.strangers.unwrap(),
        };
        let mut first = syn(1000);
        first.window = window;
        first.options = Options {
            mss: Some(mss),
            sack_permitted: true,
            ..Options::default()
        };
        pair.kept = Some(Vec::new());
        let now_ns = pair.now_ns;
        pair.stacks[0].receive(now_ns, &segment(ENDS, (from, at(81)), &first, b""));
        pair.settle();
        let sent = pair.kept.take().unwrap();
        let mut answers = sent.iter().filter_map(|(_, frame)| parse(frame));
        let (answer, _) = answers
            .find(|(repr, _)| (repr.src_port, repr.dst_port) == (81, from.port()))
            .unwrap();
        assert!(answer.flags.contains(Flags::SYN));
        let ack = Repr {
            seq: 1001,
            ack: answer.seq.wrapping_add(1),
            flags: Flags::ACK,
            options: Options::default(),
            ..first
        };
        pair.stacks[0].receive(now_ns, &segment(ENDS, (from, at(81)), &ack, b""));
        let accepted = pair.stacks[0].tcp_accept(now_ns, listener).unwrap();
        (accepted, ack.seq, ack.ack)
    }

    /// A stranger's segment to its connection.
    fn tell(&mut self, from: SocketAddr, (seq, ack, window): (u32, u32, u16), payload: &[u8]) {
        let repr = Repr {
            seq,
            ack,
            window,
            flags: Flags::ACK,
            options: Options::default(),
            ..syn(0)
        };
        let frame = segment(ENDS, (from, at(81)), &repr, payload);
        self.pair.stacks[0].receive(self.pair.now_ns, &frame);
    }

    /// Old and new clients were served as without a flood.
    fn assert_served(&self, milliseconds: usize) {
        assert!(
            self.brought >= milliseconds * EACH * 9 / 10,
            "{} bytes in {milliseconds} ms",
            self.brought
        );
        let (answered, asked) = (self.answered, self.asked);
        assert!(answered + 2 >= asked, "{answered} of {asked} newcomers");
    }

    fn counters(&self) -> weir_stack::iface::Counters {
        self.pair.stacks[0].counters()
    }
}

fn at(port: u16) -> SocketAddr {
    SocketAddr::new(V4[0].parse().unwrap(), port)
}

/// The same, of the other version.
fn at6(port: u16) -> SocketAddr {
    SocketAddr::new(V6[0].parse().unwrap(), port)
}

/// This many SYNs each millisecond, from attackers of either kind.
fn syn_flood(milliseconds: usize, each: u32, v6: bool, near: bool) {
    let mut server = Server::new(11);
    let six = v6.then(|| server.pair.stacks[0].tcp_listen(at6(80), 1000).unwrap());
    let mut number = 0;
    for _ in 0..milliseconds {
        let now_ns = server.pair.now_ns;
        for _ in 0..each {
            number += 1;
            let to = if v6 { at6(80) } else { at(80) };
            let ends = (stranger(v6, near, number), to);
            let frame = segment(ENDS, ends, &syn(number.wrapping_mul(77)), b"");
            server.pair.stacks[0].receive(now_ns, &frame);
        }
        server.live();
        let stack = &server.pair.stacks[0];
        // One connection of the server's is not half open, newcomers pass by, and
        // stay a minute in TIME-WAIT.
        let most = SYN_QUEUE_MAX * (1 + usize::from(v6)) + server.asked + 1;
        assert!(
            stack.tcp_connections() <= most,
            "{}",
            stack.tcp_connections()
        );
    }
    server.assert_served(milliseconds);
    let counters = server.counters();
    let given = counters.cookies_out;
    assert!(
        given >= u64::from(number) - 2 * SYN_QUEUE_MAX as u64,
        "{given} cookies for {number} SYNs"
    );
    if !v6 {
        assert!(counters.cookies_back > 0, "newcomers came by cookies");
    }
    assert!(six.is_none_or(|six| server.pair.stacks[0].tcp_accept_queue_len(six) == 0));
}

#[test]
fn syn_floods_from_afar_keep_no_client_out() {
    for v6 in [false, true] {
        syn_flood(60, 40, v6, false);
    }
}

/// From addresses on the link that no host has: each is solicited, and the answers to
/// others wait for none of them.
#[test]
fn syn_floods_from_the_link_keep_no_client_out() {
    for v6 in [false, true] {
        syn_flood(60, 40, v6, true);
    }
    // More strangers than a link has neighbours.
    const { assert!(60 * 40 > 4 * NEIGHBOURS_MAX) };
}

#[test]
#[ignore = "a million SYNs: with --release"]
fn a_million_syns_keep_no_client_out() {
    for (v6, near) in [(false, false), (true, true)] {
        syn_flood(5000, 200, v6, near);
    }
}

/// Half-open connections to many listeners: as many as may be, and no more.
fn half_open(listeners: u16, each: u32) {
    let before = resident();
    let mut server = Server::new(12);
    for port in 0..listeners {
        server.pair.stacks[0]
            .tcp_listen(at(1000 + port), 10)
            .unwrap();
    }
    let all = u32::from(listeners) * each;
    let most = SYN_QUEUE_ALL_MAX.min(usize::from(listeners) * SYN_QUEUE_MAX.min(each as usize));
    let batch = (all / 100).max(1);
    let mut at_once = 0;
    for number in 0..all {
        let to = at(1000 + (number % u32::from(listeners)) as u16);
        let frame = segment(
            ENDS,
            (stranger(false, false, number), to),
            &syn(number),
            b"",
        );
        server.pair.stacks[0].receive(server.pair.now_ns, &frame);
        if number % batch == 0 {
            server.live();
        }
        at_once = at_once.max(server.pair.stacks[0].tcp_half_open());
    }
    assert_eq!(at_once, most);
    assert!(server.pair.stacks[0].tcp_connections() <= most + 200);
    assert!(most + 200 < CONNECTIONS_MAX, "others have places");
    let grown = resident().saturating_sub(before);
    println!(
        "{most} half-open connections, {all} SYNs: {} MB, {} bytes each",
        grown >> 20,
        grown / most
    );
    // Newcomers come by cookies, too, once there is no other place.
    let counters = server.counters();
    let cookies = counters.cookies_out - counters.cookies_back;
    assert_eq!(cookies, u64::from(all) - most as u64);
    server.assert_served(server.asked.max(1) * 20 * 9 / 10);
    // No host answers: they are removed, with their memory.
    // What is sent again goes as fast as the stack lets it.
    let gone = server
        .pair
        .run(300 * S, |pair| pair.stacks[0].tcp_half_open() == 0);
    assert!(gone, "{} stay", server.pair.stacks[0].tcp_half_open());
    assert!(server.pair.stacks[0].tcp_connections() < 200);
}

/// Bytes that this process has in memory.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

#[test]
fn half_open_connections_to_many_listeners_go_by_themselves() {
    half_open(3, SYN_QUEUE_MAX as u32 + 200);
}

#[test]
#[ignore = "a million connections, below 2 GB: with --release"]
fn a_million_half_open_connections() {
    let listeners = SYN_QUEUE_ALL_MAX.div_ceil(SYN_QUEUE_MAX) as u16 + 20;
    half_open(listeners, SYN_QUEUE_MAX as u32);
}

/// Strangers leave a gap before each byte they send: what is known of the gaps
/// is memory too.
fn out_of_order(connections: u32, limit: usize) {
    let mut server = Server::new(13);
    server.pair.stacks[0].tcp_limit_memory(limit);
    let mut milliseconds = 0;
    let mut most = 0;
    for number in 0..connections {
        let from = stranger(false, false, number);
        let (_, seq, ack) = server.admit(from, 64_000, 1460);
        for piece in 0..OOO_RANGES_MAX as u32 + 20 {
            server.tell(from, (seq + 1 + 2 * piece, ack, 64_000), b"x");
        }
        if number % 4 == 0 {
            server.live();
            milliseconds += 1;
        }
        let held = server.pair.stacks[0].tcp_memory();
        assert!(held <= limit, "{held} of {limit} bytes");
        most = most.max(held);
    }
    server.assert_served(milliseconds);
    // It is the limit that was met, by what a connection may keep.
    assert!(most > limit / 2, "{most} of {limit} bytes");
    let each = 2048 + OOO_RANGES_MAX * 12;
    assert!(connections as usize * each > limit);
    println!("{connections} connections out of order: {most} of {limit} bytes");
}

#[test]
fn gaps_without_end_leave_memory_to_others() {
    out_of_order(100, 512 << 10);
}

#[test]
#[ignore = "200,000 connections with gaps: with --release"]
fn gaps_of_many_connections_leave_memory_to_others() {
    let before = resident();
    out_of_order(200_000, 256 << 20);
    // The buffers are within the limit, and the connections beside them.
    let grown = resident().saturating_sub(before);
    println!("{} MB in all", grown >> 20);
    assert!(grown < (256 << 20) + 200_000 * 2048, "{grown} bytes");
}

/// A byte in each segment: it costs the receiver a byte of its buffer, and not
/// more than an acknowledgment.
#[test]
fn tiny_segments_take_no_more_than_their_window() {
    let mut server = Server::new(14);
    let from = stranger(false, false, 1);
    let (id, seq, ack) = server.admit(from, 64_000, 1460);
    let before = server.counters().frames_out;
    let count = 20_000;
    for number in 0..count {
        server.tell(from, (seq + number, ack, 64_000), b"x");
        if number % 200 == 0 {
            server.live();
        }
    }
    server.assert_served(100);
    let held = server.pair.stacks[0].tcp_memory();
    assert!(held < 1 << 20, "{held} bytes");
    let answers = server.counters().frames_out - before;
    assert!(answers < 2 * u64::from(count), "{answers} frames");
    let mut read = vec![0; 100_000];
    assert_eq!(
        server.pair.stacks[0].tcp_read(id, &mut read),
        Ok(count as usize)
    );
}

/// Who takes a byte at a time is sent no more segments than it acknowledges, and
/// a client with the shortest segments that there may be is served all the same.
#[test]
fn tiny_windows_and_sizes_draw_no_more_than_documented() {
    for (mss, window) in [(48, 60_000), (1460, 1)] {
        let mut server = Server::new(15);
        let from = stranger(false, false, 1);
        let (id, seq, first) = server.admit(from, window, mss);
        let mut ack = first;
        let (mut segments, mut told) = (0_u32, 0_u32);
        for _ in 0..200 {
            while server.pair.stacks[0].tcp_write(id, &[9; 10_000]).is_ok() {}
            server.pair.kept = Some(Vec::new());
            server.live();
            let kept = server.pair.kept.take().unwrap();
            for (repr, len) in kept.iter().filter_map(|(_, frame)| parse(frame)) {
                if repr.src_port == 81 && len > 0 {
                    segments += 1;
                    let end = repr.seq.wrapping_add(len as u32);
                    if end.wrapping_sub(ack) < 1 << 31 {
                        ack = end;
                    }
                }
            }
            // Again and again, as if there were events.
            for _ in 0..5 {
                server.tell(from, (seq, ack, window), b"");
                told += 1;
            }
        }
        server.assert_served(200);
        // It is served, if slowly.
        assert!(segments > 50, "{segments} segments");
        assert!(window > 1 || segments <= told, "{segments} for {told}");
        let bytes = ack.wrapping_sub(first) as usize;
        assert!(
            window == 1 || bytes / segments as usize >= 36,
            "{bytes} bytes in {segments} segments"
        );
    }
}
