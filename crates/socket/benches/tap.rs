//! One stream of TCP through a TAP interface with offload, against the
//! kernel's TCP between two namespaces over a veth pair with offloads on.
//!
//! ```sh
//! sudo cargo bench -p weir-socket --bench tap         # all, in turns
//! sudo cargo bench -p weir-socket --bench tap -- send # or `receive`, `kernels`: ten seconds
//! ```
//!
//! Everything compared is written and read by the same program in the same
//! calls of 128 KiB, one after the other, round after round, and the best round
//! of each counts: whatever else the machine does falls on all alike. Besides,
//! the processor time of all of the program's threads is printed for each kilobyte,
//! the kernel's part included: that is little moved by other work.
//! iperf3 between the same two namespaces says whether this program is a fair
//! yardstick.

use rustix::time::{ClockId, clock_gettime};
use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use weir_lab::net::{Host, Lab, Offloads};
use weir_lab::results::{Bar, Unit, recorder};
use weir_socket::{Net, link};
use weir_stack::Config;
use weir_wire::ethernet::Address;

const ROUNDS: usize = 10;
const ROUND: Duration = Duration::from_millis(600);
/// One way alone: long enough to be profiled.
const LONG: Duration = Duration::from_secs(10);
/// Not counted: the windows open.
const WARM_UP: Duration = Duration::from_millis(200);
/// What one call writes or reads, in bytes: iperf3's.
const BLOCK: usize = 128 << 10;
const PORT: u16 = 5001;
const IPERF_PORT: u16 = 5201;
/// The kernel's congestion control. Nothing is lost here, so one is as good as
/// another; but some systems have BBR, whose timers pace what is sent.
const CONGESTION: &str = "reno";
const KERNELS: [&str; 2] = ["198.51.100.1", "198.51.100.2"];
/// Our host, and the kernel's end of the TAP interface.
const OURS: &str = "192.0.2.1";
const PEER: &str = "192.0.2.2";

fn ip(text: &str) -> IpAddr {
    text.parse().expect("a constant")
}

/// Writes for as long as a round lasts.
fn send(mut stream: impl Write, time: Duration) -> io::Result<()> {
    let block = vec![1; BLOCK];
    let start = Instant::now();
    while start.elapsed() < WARM_UP + time {
        stream.write_all(&block)?;
    }
    Ok(())
}

/// Reads to the end: bytes in all, and Gb/s once warm.
fn receive(mut stream: impl Read) -> io::Result<(usize, f64)> {
    let mut block = vec![0; BLOCK];
    let start = Instant::now();
    let (mut all, mut bytes, mut warm, mut last) = (0, 0, None, start);
    loop {
        let count = stream.read(&mut block)?;
        let now = Instant::now();
        all += count;
        match warm {
            _ if count == 0 => break,
            None if now - start >= WARM_UP => warm = Some(now),
            None => {}
            Some(_) => (bytes, last) = (bytes + count, now),
        }
    }
    let time = last - warm.unwrap_or(last);
    Ok((all, bytes as f64 * 8.0 / time.as_nanos() as f64))
}

/// What a run gave: Gb/s, and nanoseconds of processor time a kilobyte.
#[derive(Clone, Copy)]
struct Run {
    rate: f64,
    cost_ns: f64,
}

impl Run {
    /// Makes it, `transfer` giving bytes in all and Gb/s once warm.
    fn of(transfer: impl FnOnce() -> io::Result<(usize, f64)>) -> Run {
        let cpu_ns = || {
            let time = clock_gettime(ClockId::ProcessCPUTime);
            time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
        };
        let start_ns = cpu_ns();
        let (bytes, rate) = transfer().expect("a run");
        let cost_ns = (cpu_ns() - start_ns) * 1e3 / bytes as f64;
        Run { rate, cost_ns }
    }
}

/// Two namespaces with a veth pair between them, one with a TAP interface that
/// our host is at the other end of.
struct World {
    hosts: [Host; 2],
    net: Net,
}

impl World {
    fn new() -> World {
        let lab = Lab::new();
        let host = |name| lab.host(name).expect("a namespace");
        let hosts = [host("a"), host("b")];
        for host in &hosts {
            let name = "net.ipv4.tcp_congestion_control";
            host.set_sysctl(name, CONGESTION).expect("it has NewReno");
        }
        let pair = lab.link(&hosts[0], &hosts[1]);
        let pair = pair.addresses(ip(KERNELS[0]), ip(KERNELS[1]), 24);
        let pair = pair.offloads(Offloads::VETH);
        pair.connect().expect("a veth pair");
        let tap = hosts[1].run(|| link::Tap::open("tap0"));
        let tap = tap.expect("a TAP interface with offload");
        let device = hosts[1].device("tap0").expect("it was just made");
        device.up().expect("it goes up");
        device.add_address(ip(PEER), 24).expect("it takes one");
        let config = Config::new(Address([2, 0, 0, 0, 0, 1]));
        let config = config.address(format!("{OURS}/24").parse().expect("a constant"));
        let net = Net::new(tap, &config).expect("our host");
        World { hosts, net }
    }

    /// The kernel on both sides.
    fn kernels(&self, time: Duration) -> io::Result<(usize, f64)> {
        let at = SocketAddr::new(ip(KERNELS[1]), PORT);
        let listener = self.hosts[1].run(|| std::net::TcpListener::bind(at))?;
        std::thread::scope(|scope| {
            let read = scope.spawn(move || receive(listener.accept()?.0));
            let stream = self.hosts[0].run(|| std::net::TcpStream::connect(at))?;
            send(stream, time)?;
            read.join().expect("the reader ends")
        })
    }

    /// iperf3 on both sides.
    fn iperf3(&self, time: Duration) -> Option<f64> {
        let iperf3 = |args: &[&str]| {
            let mut command = Command::new("iperf3");
            command.args(args).stdout(Stdio::piped());
            command
        };
        let port = IPERF_PORT.to_string();
        let serve = ["-s", "-1", "-p", port.as_str()];
        let _server = self.hosts[1].spawn(iperf3(&serve)).ok()?;
        std::thread::sleep(Duration::from_millis(300));
        let seconds = time.as_secs().max(1).to_string();
        let args = [
            "-c", KERNELS[1], "-p", &port, "-t", &seconds, "-O", "1", "-f", "m",
        ];
        let run = self.hosts[0].output(iperf3(&args)).ok()?;
        let text = String::from_utf8_lossy(&run.stdout).into_owned();
        let line = text.lines().find(|line| line.ends_with("receiver"))?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let at = words.iter().position(|word| *word == "Mbits/sec")?;
        Some(words.get(at.checked_sub(1)?)?.parse::<f64>().ok()? / 1e3)
    }

    /// Ours to the kernel's.
    fn send(&self, time: Duration) -> io::Result<(usize, f64)> {
        let at = SocketAddr::new(ip(PEER), PORT);
        let listener = self.hosts[1].run(|| std::net::TcpListener::bind(at))?;
        std::thread::scope(|scope| {
            let read = scope.spawn(move || receive(listener.accept()?.0));
            let stream = weir_socket::TcpStream::connect(&self.net, at)?;
            send(&stream, time)?;
            stream.shutdown(Shutdown::Write)?;
            read.join().expect("the reader ends")
        })
    }

    /// The kernel's to ours.
    fn receive(&self, time: Duration) -> io::Result<(usize, f64)> {
        let at = SocketAddr::new(ip(OURS), PORT);
        let listener = weir_socket::TcpListener::bind(&self.net, at)?;
        std::thread::scope(|scope| {
            let read = scope.spawn(move || receive(&listener.accept()?.0));
            let stream = self.hosts[1].run(|| std::net::TcpStream::connect(at))?;
            send(stream, time)?;
            read.join().expect("the reader ends")
        })
    }
}

fn main() {
    let only = std::env::args().find(|arg| ["send", "receive", "kernels"].contains(&arg.as_str()));
    if !weir_lab::testenv::root() {
        return;
    }
    let results = recorder!();
    let world = World::new();
    let alone = match only.as_deref() {
        Some("send") => Some(Run::of(|| world.send(LONG))),
        Some("kernels") => Some(Run::of(|| world.kernels(LONG))),
        Some(_) => Some(Run::of(|| world.receive(LONG))),
        None => None,
    };
    if let Some(Run { rate, cost_ns }) = alone {
        return println!("{rate:.1} Gb/s, {cost_ns:.0} ns a kilobyte");
    }
    let names = ["kernel to kernel", "weir to kernel", "kernel to weir"];
    let rounds: Vec<[Run; 3]> = (0..ROUNDS)
        .map(|_| {
            [
                Run::of(|| world.kernels(ROUND)),
                Run::of(|| world.send(ROUND)),
                Run::of(|| world.receive(ROUND)),
            ]
        })
        .collect();
    let best = |which: usize| {
        let runs = rounds.iter().map(|round| round[which]);
        runs.fold((0.0, f64::INFINITY), |best: (f64, f64), run| {
            (best.0.max(run.rate), best.1.min(run.cost_ns))
        })
    };
    let (rate, cost) = best(0);
    println!(
        "{:<18}{:>8}{:>8}{:>10}{:>8}",
        "best of rounds", "Gb/s", "ratio", "ns a KB", "ratio"
    );
    for (which, name) in names.iter().enumerate() {
        let (its_rate, its_cost) = best(which);
        let ratios = (its_rate / rate, its_cost / cost);
        println!(
            "{name:<18}{its_rate:>8.1}{:>8.2}{its_cost:>10.0}{:>8.2}",
            ratios.0, ratios.1
        );
        let (own, ns) = (
            format!("tap: {name}"),
            format!("tap: {name}, processor time a KB"),
        );
        results.record(&own, its_rate, Unit::GigabitsPerSecond, Bar::None);
        results.record(&ns, its_cost, Unit::Nanoseconds, Bar::None);
        if which > 0 {
            let (ratio, kernels) = (format!("{own} : {}", names[0]), Unit::RateOf(names[0]));
            results.record(&ratio, ratios.0, kernels, Bar::AtLeast(0.8));
        }
    }
    if let Some(its_rate) = world.iperf3(3 * ROUND) {
        println!("{:<18}{its_rate:>8.1}{:>8.2}", "iperf3", its_rate / rate);
        let kernels = Unit::RateOf(names[0]);
        results.record(
            "tap: iperf3 : kernel to kernel",
            its_rate / rate,
            kernels,
            Bar::None,
        );
    }
}
