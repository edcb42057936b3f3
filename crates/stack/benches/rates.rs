//! How many connections and one-byte requests a second two hosts in memory
//! manage on one core, our stack, smoltcp and lwIP in turn; and what a segment costs
//! that comes in, by how many connections are open.
//!
//! ```sh
//! cargo bench -p weir-stack --bench rates
//! cargo bench -p weir-stack --bench rates -- 1000000 # memory of that many idle connections
//! cargo bench -p weir-stack --bench rates -- requests # ours alone; or connections
//! ```
//!
//! `forgotten`, `smoltcp-requests` and `smoltcp-connections` are the others;
//! `WEIR_RUNS=n` says how many rounds of one alone, as callgrind wants them few.
//!
//! A connection is opened, closed by the client, and then by the server. Ours stay in
//! TIME-WAIT, as RFC 9293 asks. smoltcp's one socket goes on to the next connection
//! instead, and lwIP's is freed: the row "none waits" shows what that is worth.

mod common;

use common::lwip::Lwip;
use common::{Ends, Other, Out, Wire};
use smoltcp::socket::tcp;
use smoltcp::time::Instant as OtherInstant;
use std::net::SocketAddr;
use std::time::Instant;
use weir_lab::results::{Bar, Unit, recorder};
use weir_stack::tcp::{TcpConfig, TcpError, TcpId};
use weir_stack::{Config, Stack};
use weir_wire::ethernet::Address;

const ROUNDS: usize = 60;
/// Of each round.
const REQUESTS: usize = 2000;
const CONNECTIONS: usize = 500;

/// Our two hosts, and the frames between them.
struct Ours {
    stacks: [Stack; 2],
    wires: [Wire; 2],
    now_ns: u64,
}

impl Ours {
    fn new(addresses: &[&str]) -> Ours {
        let host = |number: u8, addresses: &[&str]| {
            let mut config = Config::new(Address([2, 0, 0, 0, 0, number]));
            for address in addresses {
                config = config.address(address.parse().unwrap());
            }
            let mut stack = Stack::new(&config, number.into()).unwrap();
            // A batch is written before any of it is acknowledged.
            stack.tcp_configure(TcpConfig {
                send_initial: 1 << 20,
                ..TcpConfig::default()
            });
            stack
        };
        Ours {
            stacks: [host(1, addresses), host(2, &["192.0.2.200/24"])],
            wires: Default::default(),
            now_ns: 1,
        }
    }

    /// One end receives arrived frames and sends what it may.
    fn turn(&mut self, end: usize) {
        self.now_ns += 1000;
        while let Some(frame) = self.wires[1 - end].frames.pop_front() {
            self.stacks[end].receive(self.now_ns, &frame);
            self.wires[1 - end].spare.push(frame);
        }
        let wire = &mut self.wires[end];
        let frame = Vec::new();
        self.stacks[end].poll(self.now_ns, &mut Out { wire, frame });
    }
}

fn server() -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 200], 80))
}

/// Seconds for this many one-byte requests and answers, one after another.
fn our_requests() -> f64 {
    let mut ours = Ours::new(&["192.0.2.1/24"]);
    let listener = ours.stacks[1].tcp_listen(server(), 5).unwrap();
    let client = ours.stacks[0].tcp_connect(0, None, server()).unwrap();
    let accepted = loop {
        ours.turn(0);
        ours.turn(1);
        if let Ok(accepted) = ours.stacks[1].tcp_accept(0, listener) {
            break accepted;
        }
    };
    let mut byte = [0; 1];
    let start = Instant::now();
    for _ in 0..REQUESTS {
        ours.stacks[0].tcp_write(client, &[1]).unwrap();
        ours.turn(0);
        while ours.stacks[1].tcp_read(accepted, &mut byte).is_err() {
            ours.turn(1);
        }
        ours.stacks[1].tcp_write(accepted, &byte).unwrap();
        ours.turn(1);
        while ours.stacks[0].tcp_read(client, &mut byte).is_err() {
            ours.turn(0);
        }
    }
    start.elapsed().as_secs_f64()
}

/// Seconds for this many connections, opened and closed one after another.
fn our_connections() -> f64 {
    open_and_close(Stack::tcp_close)
}

/// The same, but none waits in TIME-WAIT.
fn our_forgotten() -> f64 {
    open_and_close(Stack::tcp_abort)
}

/// `end` lets the client's go, once both sides have closed.
fn open_and_close(end: fn(&mut Stack, u64, TcpId)) -> f64 {
    let mut ours = Ours::new(&["192.0.2.1/24"]);
    let listener = ours.stacks[1].tcp_listen(server(), 5).unwrap();
    let mut byte = [0; 1];
    let start = Instant::now();
    for _ in 0..CONNECTIONS {
        let now_ns = ours.now_ns;
        let client = ours.stacks[0].tcp_connect(now_ns, None, server()).unwrap();
        let accepted = loop {
            ours.turn(0);
            ours.turn(1);
            if let Ok(accepted) = ours.stacks[1].tcp_accept(ours.now_ns, listener) {
                break accepted;
            }
        };
        ours.stacks[0].tcp_shutdown(ours.now_ns, client).unwrap();
        while ours.stacks[1].tcp_read(accepted, &mut byte) == Err(TcpError::WouldBlock) {
            ours.turn(0);
            ours.turn(1);
        }
        ours.stacks[1].tcp_close(ours.now_ns, accepted);
        ours.turn(1);
        ours.turn(0);
        end(&mut ours.stacks[0], ours.now_ns, client);
    }
    start.elapsed().as_secs_f64()
}

/// smoltcp's two hosts.
struct Others {
    client: Other,
    server: Other,
    there: Wire,
    back: Wire,
    now_us: i64,
}

impl Others {
    fn new() -> Others {
        let [mut there, mut back] = [Wire::default(), Wire::default()];
        let client = Other::new(1, &mut ends(&mut back, &mut there));
        let server = Other::new(2, &mut ends(&mut there, &mut back));
        Others {
            client,
            server,
            there,
            back,
            now_us: 1,
        }
    }

    fn turn(&mut self, end: usize) {
        self.now_us += 1;
        let now = OtherInstant::from_micros(self.now_us);
        let (there, back) = (&mut self.there, &mut self.back);
        match end {
            0 => {
                let Other {
                    interface, sockets, ..
                } = &mut self.client;
                interface.poll(now, &mut ends(back, there), sockets);
            }
            _ => {
                let Other {
                    interface, sockets, ..
                } = &mut self.server;
                interface.poll(now, &mut ends(there, back), sockets);
            }
        }
    }

    fn open(&mut self, port: u16) {
        self.server.tcp().listen(80).unwrap();
        let context = self.client.interface.context();
        let socket = self
            .client
            .sockets
            .get_mut::<tcp::Socket<'_>>(self.client.socket);
        let remote = SocketAddr::from(([192, 0, 2, 2], 80));
        socket.connect(context, remote, port).unwrap();
        while !(self.client.tcp().may_send() && self.server.tcp().may_recv()) {
            self.turn(0);
            self.turn(1);
        }
    }
}

fn ends<'a>(from: &'a mut Wire, to: &'a mut Wire) -> Ends<'a> {
    Ends { from, to }
}

fn their_requests() -> f64 {
    let mut others = Others::new();
    others.open(50_000);
    let mut byte = [0; 1];
    let start = Instant::now();
    for _ in 0..REQUESTS {
        others.client.tcp().send_slice(&[1]).unwrap();
        others.turn(0);
        while others.server.tcp().recv_slice(&mut byte) != Ok(1) {
            others.turn(1);
        }
        others.server.tcp().send_slice(&byte).unwrap();
        others.turn(1);
        while others.client.tcp().recv_slice(&mut byte) != Ok(1) {
            others.turn(0);
        }
    }
    start.elapsed().as_secs_f64()
}

fn their_connections() -> f64 {
    let mut others = Others::new();
    let start = Instant::now();
    for number in 0..CONNECTIONS {
        others.open(20_000 + number as u16);
        others.client.tcp().close();
        while others.server.tcp().may_recv() {
            others.turn(0);
            others.turn(1);
        }
        others.server.tcp().close();
        others.turn(1);
        others.turn(0);
        // A socket in TIME-WAIT connects again.
        others.turn(1);
    }
    start.elapsed().as_secs_f64()
}

const ADDRESSES: [&str; 24] = [
    "192.0.2.1/24",
    "192.0.2.2/24",
    "192.0.2.3/24",
    "192.0.2.4/24",
    "192.0.2.5/24",
    "192.0.2.6/24",
    "192.0.2.7/24",
    "192.0.2.8/24",
    "192.0.2.9/24",
    "192.0.2.10/24",
    "192.0.2.11/24",
    "192.0.2.12/24",
    "192.0.2.13/24",
    "192.0.2.14/24",
    "192.0.2.15/24",
    "192.0.2.16/24",
    "192.0.2.17/24",
    "192.0.2.18/24",
    "192.0.2.19/24",
    "192.0.2.20/24",
    "192.0.2.21/24",
    "192.0.2.22/24",
    "192.0.2.23/24",
    "192.0.2.24/24",
];

/// Opens this many connections, 200 in each `ns` nanoseconds; gives both ends of
/// each. A byte goes each way.
fn open_all(ours: &mut Ours, open: usize, each_ns: u64) -> Vec<(TcpId, TcpId)> {
    let listener = ours.stacks[1].tcp_listen(server(), 1000).unwrap();
    let mut pairs: Vec<(TcpId, TcpId)> = Vec::new();
    while pairs.len() < open {
        let count = 200.min(open - pairs.len());
        let mut clients: Vec<TcpId> = (0..count)
            .map(|index| {
                let number = pairs.len() + index;
                let at = ADDRESSES[number % ADDRESSES.len()];
                // The 16,384 dynamic transport ports are too few.
                let port = 1024 + (number / ADDRESSES.len()) as u16;
                let local = SocketAddr::new(at.trim_end_matches("/24").parse().unwrap(), port);
                let client = ours.stacks[0].tcp_connect(ours.now_ns, Some(local), server());
                client.unwrap()
            })
            .collect();
        let mut accepted = Vec::new();
        while accepted.len() < count {
            ours.turn(0);
            ours.turn(1);
            while let Ok(id) = ours.stacks[1].tcp_accept(ours.now_ns, listener) {
                accepted.push(id);
            }
        }
        // The addresses and ports pair them.
        let ends = |stack: &Stack, id: TcpId| stack.tcp_ends(id).unwrap();
        accepted.sort_by_key(|id| ends(&ours.stacks[1], *id).1);
        clients.sort_by_key(|id| ends(&ours.stacks[0], *id).0);
        for (client, accepted) in clients.iter().zip(&accepted) {
            ours.stacks[0].tcp_write(*client, &[1]).unwrap();
            ours.stacks[1].tcp_write(*accepted, &[1]).unwrap();
        }
        ours.turn(0);
        ours.turn(1);
        ours.turn(0);
        let mut byte = [0];
        for (client, accepted) in clients.iter().zip(&accepted) {
            ours.stacks[0].tcp_read(*client, &mut byte).unwrap();
            ours.stacks[1].tcp_read(*accepted, &mut byte).unwrap();
        }
        ours.now_ns += each_ns;
        for stack in &mut ours.stacks {
            while stack.tcp_next_event().is_some() {}
        }
        pairs.extend(clients.into_iter().zip(accepted));
    }
    pairs
}

/// Bytes that this process has in memory.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

/// Bytes that this many connections take, of both hosts, all idle after some
/// bytes each way.
fn memory(open: usize) -> usize {
    let before = resident();
    let mut ours = Ours::new(&ADDRESSES);
    // 200 a second: idle connections free their buffers for the others.
    let pairs = open_all(&mut ours, open / 2, 1_000_000_000);
    for _ in 0..50 {
        ours.now_ns += 100_000_000;
        ours.turn(0);
        ours.turn(1);
    }
    let used = resident() - before;
    assert_eq!(ours.stacks[1].tcp_connections(), pairs.len());
    used
}

/// Nanoseconds that a segment of 64 bytes costs the stack that takes it: all
/// of one connection, or each of another; with this many open.
fn ingress(open: usize) -> [f64; 2] {
    let mut ours = Ours::new(&ADDRESSES);
    let pairs = open_all(&mut ours, open, 0);
    const BATCH: usize = 1000;
    let mut best = [f64::MAX; 2];
    let mut random = 7_u64;
    for (scattered, best) in best.iter_mut().enumerate() {
        for _ in 0..30 {
            let mut used = Vec::new();
            for _ in 0..BATCH {
                random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                let index = (random >> 33) as usize % pairs.len();
                let (client, accepted) = pairs[if scattered == 1 { index } else { 0 }];
                ours.stacks[0].tcp_set_nodelay(client, true).unwrap();
                ours.stacks[0].tcp_write(client, &[3; 64]).unwrap();
                let wire = &mut ours.wires[0];
                let frame = Vec::new();
                ours.stacks[0].poll(ours.now_ns, &mut Out { wire, frame });
                used.push(accepted);
            }
            let frames: Vec<Vec<u8>> = ours.wires[0].frames.drain(..).collect();
            ours.now_ns += 1000;
            let start = Instant::now();
            for frame in &frames {
                ours.stacks[1].receive(ours.now_ns, frame);
            }
            let each = start.elapsed().as_nanos() as f64 / frames.len() as f64;
            *best = best.min(each);
            let mut buffer = [0; 1 << 17];
            for id in used {
                ours.stacks[1].tcp_read(id, &mut buffer).ok();
            }
            // All acknowledgments, the delayed ones too.
            for _ in 0..4 {
                ours.now_ns += 50_000_000;
                ours.turn(1);
                ours.turn(0);
            }
        }
    }
    best
}

fn main() {
    let results = recorder!();
    let mut arguments = std::env::args().skip(1);
    if let Some(open) = arguments.find_map(|argument| argument.parse::<usize>().ok()) {
        let used = memory(open);
        println!(
            "{open} idle connections: {} MB, {} bytes each",
            used >> 20,
            used / open
        );
        let name = format!("rates: {open} idle connections, memory of each");
        results.record(
            &name,
            (used / open) as f64,
            Unit::Bytes,
            Bar::AtMost(1_000.0),
        );
        let name = format!("rates: {open} idle connections, memory");
        let bar = if open == 1_000_000 {
            Bar::AtMost(2_000.0)
        } else {
            Bar::None
        };
        results.record(&name, used as f64 / 1e6, Unit::Megabytes, bar);
        return;
    }
    // One alone, for a profile.
    let alone: Option<fn() -> f64> = match std::env::args().nth(1).as_deref() {
        Some("requests") => Some(our_requests),
        Some("connections") => Some(our_connections),
        Some("forgotten") => Some(our_forgotten),
        Some("smoltcp-requests") => Some(their_requests),
        Some("smoltcp-connections") => Some(their_connections),
        _ => None,
    };
    if let Some(run) = alone {
        let runs = std::env::var("WEIR_RUNS").map_or(20 * ROUNDS, |runs| runs.parse().unwrap());
        let best = (0..runs).map(|_| run()).fold(f64::MAX, f64::min);
        println!("{best:.6} s");
        return;
    }
    let mut lwip = Lwip::start();
    if let Err(why) = &lwip {
        println!("lwIP is skipped: {why}");
    }
    let mut best = [f64::MAX; 5];
    let mut third = [f64::MAX; 2];
    for _ in 0..ROUNDS {
        let runs = [
            our_requests,
            their_requests,
            our_connections,
            their_connections,
            our_forgotten,
        ];
        for (best, run) in best.iter_mut().zip(runs) {
            *best = best.min(run());
        }
        if let Ok(lwip) = &mut lwip {
            third[0] = third[0].min(lwip.run("requests", REQUESTS));
            third[1] = third[1].min(lwip.run("connections", CONNECTIONS));
        }
    }
    for (name, count, ours, theirs, third) in [
        ("requests", REQUESTS, best[0], best[1], third[0]),
        ("connections", CONNECTIONS, best[2], best[3], third[1]),
        ("none waits", CONNECTIONS, best[4], best[3], third[1]),
    ] {
        let rate = |seconds: f64| count as f64 / seconds / 1000.0;
        println!(
            "{name:11} weir {:7.0} k/s  smoltcp {:7.0} k/s  ratio {:.2}",
            rate(ours),
            rate(theirs),
            theirs / ours
        );
        // What none does is for comparison alone.
        let bar = if name == "none waits" {
            Bar::None
        } else {
            Bar::AtLeast(1.0)
        };
        let own = count as f64 / ours;
        results.record(
            &format!("rates: {name}"),
            own,
            Unit::PerSecond("operations"),
            Bar::None,
        );
        let ratio = |peer| format!("rates: {name} : {peer}");
        results.record(
            &ratio("smoltcp"),
            theirs / ours,
            Unit::RateOf("smoltcp"),
            bar,
        );
        if lwip.is_ok() {
            println!(
                "{:11} lwIP {:7.0} k/s  ratio {:.2}",
                "",
                rate(third),
                third / ours
            );
            results.record(&ratio("lwIP"), third / ours, Unit::RateOf("lwIP"), bar);
        }
    }
    let [one, _] = ingress(1);
    println!("ingress, 1 connection       {one:6.1} ns");
    let [same, scattered] = ingress(100_000);
    println!(
        "ingress, one of 100,000     {same:6.1} ns  ratio {:.2}",
        same / one
    );
    println!(
        "ingress, any of 100,000     {scattered:6.1} ns  ratio {:.2}",
        scattered / one
    );
    results.record("ingress: 1 connection", one, Unit::Nanoseconds, Bar::None);
    let (ratio, one) = (same / one, Unit::CostOf("1 connection"));
    results.record("ingress: one of 100,000", ratio, one, Bar::AtMost(1.2));
    results.record(
        "ingress: any of 100,000",
        scattered,
        Unit::Nanoseconds,
        Bar::None,
    );
}
