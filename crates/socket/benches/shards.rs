//! What a second stack gives: a host of one, and of two, each at a TAP interface
//! of its own with a queue a stack, the kernel at the other end; both on the
//! same two cores as the kernel.
//!
//! ```sh
//! sudo cargo bench -p weir-socket --bench shards
//! ```
//!
//! Rounds take turns, so that whatever else the machine does falls on both alike,
//! and the best of each counts: connections a second that the kernel opens, each
//! accepted and closed by us, goodput of several streams each way, and datagrams of
//! several peers, each way and answered.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};
use weir_lab::net::{Host, Lab};
use weir_lab::results::{Bar, Unit, recorder};
use weir_socket::{Net, TcpListener, UdpSocket, link};
use weir_stack::Config;
use weir_wire::ethernet::Address;

const ROUNDS: usize = 7;
const ROUND: Duration = Duration::from_millis(400);
const SHARDS: [usize; 2] = [1, 2];
/// Clients at a time, and streams.
const CLIENTS: usize = 8;
const STREAMS: usize = 4;
const BLOCK: usize = 128 << 10;
/// Bytes of a datagram, and threads of ours that read.
const DATAGRAM: usize = 200;
const READERS: usize = 2;
const OURS: &str = "192.0.2.1";
const PEER: &str = "192.0.2.2";

fn at(ip: &str, port: u16) -> SocketAddr {
    SocketAddr::new(ip.parse::<IpAddr>().expect("a constant"), port)
}

struct World {
    host: Host,
    net: Net,
    _lab: Lab,
}

impl World {
    fn new(shards: usize) -> World {
        let lab = Lab::new();
        let host = lab.host("kernel").expect("a namespace");
        let queues = host.run(|| link::Tap::queues("tap0", shards));
        let queues = queues.expect("a TAP interface of several queues");
        let device = host.device("tap0").expect("it was just made");
        device.up().expect("it goes up");
        device
            .add_address(at(PEER, 0).ip(), 24)
            .expect("it takes one");
        let config = Config::new(Address([2, 0, 0, 0, 0, 1]));
        let config = config.address(format!("{OURS}/24").parse().expect("a constant"));
        let builder = Net::builder().queues(queues, &config).shards(shards);
        World {
            host,
            net: builder.start().expect("our host"),
            _lab: lab,
        }
    }

    /// Connections a second.
    fn connections(&self) -> f64 {
        let listener = TcpListener::bind(&self.net, at(OURS, 80)).expect("a place");
        let done = AtomicUsize::new(0);
        let over = AtomicBool::new(false);
        let connect = || {
            let stream = std::net::TcpStream::connect(at(OURS, 80));
            stream.and_then(|mut stream| stream.read(&mut [0]))
        };
        std::thread::scope(|scope| {
            for _ in 0..READERS {
                // Clients may be late: one that connects and is not accepted would wait for ever.
                scope.spawn(|| while listener.accept().is_ok() && !over.load(Relaxed) {});
            }
            let start = Instant::now();
            std::thread::scope(|clients| {
                for _ in 0..CLIENTS {
                    clients.spawn(|| {
                        self.host.run(|| {
                            while start.elapsed() < ROUND {
                                done.fetch_add(usize::from(connect().is_ok()), Relaxed);
                            }
                        });
                    });
                }
            });
            over.store(true, Relaxed);
            (0..READERS).for_each(|_| drop(self.host.run(connect)));
        });
        done.load(Relaxed) as f64 / ROUND.as_secs_f64()
    }

    /// Gb/s that our streams send to the kernel.
    fn sent(&self) -> f64 {
        let listener = self.host.run(|| std::net::TcpListener::bind(at(PEER, 81)));
        let listener = listener.expect("a place");
        let bytes = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..STREAMS {
                scope.spawn(|| {
                    let stream = weir_socket::TcpStream::connect(&self.net, at(PEER, 81));
                    let stream = stream.expect("it is open");
                    write(&stream);
                    let _ = stream.shutdown(Shutdown::Write);
                });
                let stream = listener.accept().expect("one comes").0;
                scope.spawn(|| read(stream, &bytes));
            }
        });
        rate(&bytes)
    }

    /// Gb/s that the kernel's streams send to us.
    fn received(&self) -> f64 {
        let listener = TcpListener::bind(&self.net, at(OURS, 82)).expect("a place");
        let bytes = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..STREAMS {
                scope.spawn(|| {
                    let stream = self.host.run(|| std::net::TcpStream::connect(at(OURS, 82)));
                    write(stream.expect("it is open"));
                });
                let stream = listener.accept().expect("one comes").0;
                scope.spawn(|| read(stream, &bytes));
            }
        });
        rate(&bytes)
    }
}

impl World {
    /// Datagrams a second that we read of those that the kernel sends.
    fn heard(&self) -> f64 {
        let socket = UdpSocket::bind(&self.net, at(OURS, 83)).expect("a place");
        let done = AtomicUsize::new(0);
        let start = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..STREAMS {
                scope.spawn(|| {
                    let peer = self.host.run(|| std::net::UdpSocket::bind(at(PEER, 0)));
                    let peer = peer.expect("a place");
                    while start.elapsed() < ROUND {
                        let _ = peer.send_to(&[1; DATAGRAM], at(OURS, 83));
                    }
                });
            }
            for _ in 0..READERS {
                let socket = socket.clone();
                socket.set_read_timeout(Some(ROUND / 4)).expect("not zero");
                let done = &done;
                scope.spawn(move || {
                    let mut out = [0; DATAGRAM];
                    while socket.recv_from(&mut out).is_ok() && start.elapsed() < ROUND {
                        done.fetch_add(1, Relaxed);
                    }
                });
            }
        });
        done.load(Relaxed) as f64 / ROUND.as_secs_f64()
    }

    /// Datagrams a second that we answer, of peers that wait for the answer.
    fn answered(&self) -> f64 {
        let socket = UdpSocket::bind(&self.net, at(OURS, 84)).expect("a place");
        let done = AtomicUsize::new(0);
        let start = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..CLIENTS {
                scope.spawn(|| {
                    let peer = self.host.run(|| std::net::UdpSocket::bind(at(PEER, 0)));
                    let peer = peer.expect("a place");
                    peer.set_read_timeout(Some(ROUND / 4)).expect("not zero");
                    let mut out = [0; DATAGRAM];
                    while start.elapsed() < ROUND {
                        let _ = peer.send_to(&[1; DATAGRAM], at(OURS, 84));
                        done.fetch_add(usize::from(peer.recv_from(&mut out).is_ok()), Relaxed);
                    }
                });
            }
            for _ in 0..READERS {
                let socket = socket.clone();
                socket.set_read_timeout(Some(ROUND / 4)).expect("not zero");
                scope.spawn(move || {
                    let mut out = [0; DATAGRAM];
                    while let Ok((len, from)) = socket.recv_from(&mut out) {
                        let _ = socket.send_to(&out[..len], from);
                    }
                });
            }
        });
        done.load(Relaxed) as f64 / ROUND.as_secs_f64()
    }

    /// Datagrams a second that we send, by one socket to several peers.
    fn said(&self) -> f64 {
        let socket = UdpSocket::bind(&self.net, at(OURS, 85)).expect("a place");
        let done = AtomicUsize::new(0);
        let start = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..STREAMS {
                let peer = self.host.run(|| std::net::UdpSocket::bind(at(PEER, 0)));
                let peer = peer.expect("a place");
                let (socket, done) = (&socket, &done);
                scope.spawn(move || {
                    let to = peer.local_addr().expect("it is bound");
                    while start.elapsed() < ROUND {
                        let sent = socket.send_to(&[1; DATAGRAM], to);
                        done.fetch_add(usize::from(sent.is_ok()), Relaxed);
                    }
                });
            }
        });
        done.load(Relaxed) as f64 / ROUND.as_secs_f64()
    }
}

fn write(mut stream: impl Write) {
    let block = vec![1; BLOCK];
    let start = Instant::now();
    while start.elapsed() < ROUND && stream.write_all(&block).is_ok() {}
}

fn read(mut stream: impl Read, bytes: &AtomicUsize) {
    let mut block = vec![0; BLOCK];
    let start = Instant::now();
    while let io::Result::Ok(count @ 1..) = stream.read(&mut block) {
        if start.elapsed() < ROUND {
            bytes.fetch_add(count, Relaxed);
        }
    }
}

fn rate(bytes: &AtomicUsize) -> f64 {
    bytes.load(Relaxed) as f64 * 8.0 / ROUND.as_nanos() as f64
}

/// What of each is recorded, as it is printed.
const RECORDED: [&str; 6] = [
    "connections opened and closed",
    "bytes sent",
    "bytes received",
    "datagrams read",
    "datagrams answered",
    "datagrams sent",
];

fn main() {
    if !weir_lab::testenv::root() {
        return;
    }
    let results = recorder!();
    let worlds = SHARDS.map(World::new);
    let mut best = [[0.0_f64; 6]; 2];
    for _ in 0..ROUNDS {
        for (world, best) in worlds.iter().zip(&mut best) {
            let run = [
                world.connections(),
                world.sent(),
                world.received(),
                world.heard(),
                world.answered(),
                world.said(),
            ];
            for (best, run) in best.iter_mut().zip(run) {
                *best = best.max(run);
            }
        }
    }
    println!(
        "{:<24}{:>10}{:>10}{:>8}",
        "best of rounds", "1 stack", "2", "ratio"
    );
    let names = [
        "connections a second",
        "Gb/s sent",
        "Gb/s received",
        "datagrams a second read",
        "… answered",
        "… sent",
    ];
    for (which, name) in names.iter().enumerate() {
        let [one, two] = best.map(|all| all[which]);
        println!("{name:<24}{one:>10.1}{two:>10.1}{:>8.2}", two / one);
        let (name, one_stack) = (
            format!("shards: 2 stacks, {}", RECORDED[which]),
            "one stack",
        );
        results.record(&name, two / one, Unit::RateOf(one_stack), Bar::None);
    }
    let handed = worlds[1].net.stats();
    let share = handed.forwarded as f64 / handed.received as f64;
    println!(
        "handed over: {:.1} % of the frames that came, {} lost",
        100.0 * share,
        handed.forwarded_lost
    );
}
