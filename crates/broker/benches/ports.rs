//! The cost of opening a port, changing its filter, sending by it and closing many: in the process
//! itself and through a broker, as root and as user nobody, while frames arrive.
//!
//! ```sh
//! sudo cargo bench -p weir-broker --bench ports
//! ```
//!
//! Two namespaces and a veth; 100,000 frames a second flow, and a tenth of
//! them is delivered to a port that is read. The threads that are measured, and
//! the broker's, take real-time priority, so that other programs matter little.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use weir_broker::daemon::Daemon;
use weir_broker::engine::kernel::KernelBackend;
use weir_broker::policy::{Accounts, Policy};
use weir_broker::protocol::Listener;
use weir_broker::runtime_dir::RuntimeDir;
use weir_broker::{Builder, Bytes, Port, Timeout};
use weir_lab::affinity::set_realtime;
use weir_lab::load::{Generator, Rate, Udp};
use weir_lab::net::{Offloads, Pair, unprivileged};
use weir_lab::results::{Bar, Recorder, Unit, recorder};
use weir_lab::testenv;

type Failed = Box<dyn std::error::Error + Send + Sync>;

const POLICY: &str = "[[grant]]\nusers = ['*']\ninterfaces = ['*']\npriority_max = 9\n\
                      ports_max = 2000\nmemory_max = '4 GiB'\ntake = true\n\
                      send = { ethertypes = [0x88b5] }\n";

fn main() {
    if !testenv::root() {
        return;
    }
    if let Err(error) = measure(&recorder!()) {
        println!("not measured: {error}");
    }
}

/// Who opens ports.
#[derive(Clone, Copy)]
enum OpenVia<'a> {
    InProcess,
    Broker(&'a Path),
}

impl OpenVia<'_> {
    fn on(self, interface: &str) -> Builder {
        let port = Port::on(interface);
        match self {
            OpenVia::InProcess => port.in_process(),
            OpenVia::Broker(socket) => port.broker(socket),
        }
    }

    fn name(self) -> &'static str {
        match self {
            OpenVia::InProcess => "in-process",
            OpenVia::Broker(_) => "by the broker, as nobody",
        }
    }
}

fn measure(results: &Recorder) -> Result<(), Failed> {
    let net = Pair::new()?;
    let flows = Udp {
        dst_ports: 10,
        ..Udp::new(
            net.eth_a.mac(),
            net.eth_b.mac(),
            [10, 0, 0, 1].into(),
            [10, 0, 0, 2].into(),
        )
    };
    let flows_dst_port = flows.dst_port;
    // So that it takes redirected frames, with nothing at XDP.
    let gro = Offloads {
        generic_receive: true,
        ..Offloads::VETH
    };
    net.eth_b.set_offloads(gro)?;
    let mut generator = Generator::new(&net.eth_a, &flows)?;
    let folder = PathBuf::from(format!("/run/weir-bench-{}", std::process::id()));
    let socket = folder.with_extension("sock");
    let (stopped, stop) = rustix::pipe::pipe()?;
    let done = AtomicBool::new(false);
    let result = std::thread::scope(|scope| {
        let (ready, is_ready) = std::sync::mpsc::channel();
        let (host, folder, socket, done) = (&net.b, &folder, &socket, &done);
        let broker = scope.spawn(move || -> Result<(), Failed> {
            host.enter()?;
            set_realtime(None, true)?;
            let keep = RuntimeDir::open(folder)?;
            let fabric = KernelBackend::open()?.pinned(&keep);
            let policy = Policy::parse(POLICY, &Accounts::default())?;
            let listener = Listener::bind(socket)?;
            let mut daemon = Daemon::new(listener, fabric, policy, Accounts::default())?;
            daemon.persist_in(keep)?;
            ready.send(())?;
            Ok(daemon.run(stopped.as_fd())?)
        });
        is_ready.recv()?;
        let sending = generator.start(u64::MAX / 2, Rate::PerSecond(100_000.0))?;
        let mut result = Ok(());
        for way in [OpenVia::InProcess, OpenVia::Broker(socket)] {
            done.store(false, Ordering::Relaxed);
            let name = net.eth_b.name();
            let reader = net.b.run(|| {
                let filter = format!("udp dst port {flows_dst_port}");
                let port = way.on(name).filter(&filter)?.queue(Bytes(8 << 20));
                port.open()
            })?;
            let reading = scope.spawn(move || read(reader, done));
            // User nobody may not raise its priority: a busy machine affects it.
            result = net.b.run(|| -> Result<(), Failed> {
                set_realtime(None, true)?;
                match way {
                    OpenVia::InProcess => all(results, way, name),
                    OpenVia::Broker(_) => unprivileged::run(|| all(results, way, name)),
                }
            });
            done.store(true, Ordering::Relaxed);
            let (frames, lost) = reading.join().map_err(|_| "the reader's thread")??;
            println!("  ({frames} frames were read meanwhile, {lost} lost)");
            if result.is_err() {
                break;
            }
        }
        let sent = sending.stop()?;
        println!("\n{:.0} frames a second were sent", sent.rate());
        drop(stop);
        broker.join().map_err(|_| "the broker's thread")??;
        result
    });
    let _ = std::fs::remove_file(&socket);
    net.b.run(|| RuntimeDir::clean(&folder))?;
    std::fs::remove_dir(&folder)?;
    result
}

fn read(mut port: Port, done: &AtomicBool) -> Result<(u64, u64), Failed> {
    let (mut frames, mut lost) = (0, 0);
    while !done.load(Ordering::Relaxed) {
        for frame in port.recv_batch(Timeout::after(Duration::from_millis(20)))? {
            frames += 1;
            lost += u64::from(frame.lost_before());
        }
    }
    Ok((frames, lost))
}

fn all(results: &Recorder, way: OpenVia<'_>, interface: &str) -> Result<(), Failed> {
    println!("\n{}, µs: least, median, 99 of 100, most", way.name());
    let report = |what: &str, times: &mut [Duration], bar| {
        let median = report(what, times, bar);
        let name = format!("ports: {what}, {}", way.name());
        results.record(&name, median, Unit::Microseconds, bar);
    };
    opens(&report, way, interface)?;
    changes(&report, way, interface)?;
    sends(&report, way, interface)?;
    closes(&report, way, interface)
}

/// Prints times of an operation and what is required of their median, and
/// records them.
type Report<'a> = &'a dyn Fn(&str, &mut [Duration], Bar);

fn opens(report: Report<'_>, way: OpenVia<'_>, interface: &str) -> Result<(), Failed> {
    let open = |number: usize| {
        let filter = format!("udp dst port {}", 20_000 + number);
        let port = way.on(interface).filter(&filter)?;
        port.queue(Bytes(1 << 20)).open()
    };
    let mut kept = vec![open(0)?];
    let mut times = Vec::new();
    for number in 1..=30 {
        // Programs open ports with pauses between.
        std::thread::sleep(Duration::from_millis(40));
        let began = Instant::now();
        kept.push(open(number)?);
        times.push(began.elapsed());
    }
    report("open a port of 1 MiB", &mut times, Bar::AtMost(2000.0));
    let began = Instant::now();
    for number in 31..=50 {
        kept.push(open(number)?);
    }
    report("20 in a row, each", &mut [began.elapsed() / 20], Bar::None);
    let mut times = Vec::new();
    for port in kept {
        let began = Instant::now();
        drop(port);
        times.push(began.elapsed());
    }
    report("close one", &mut times, Bar::None);
    Ok(())
}

fn changes(report: Report<'_>, way: OpenVia<'_>, interface: &str) -> Result<(), Failed> {
    let mut port = way.on(interface).filter("udp dst port 30000")?.open()?;
    for (what, filter, count, bar) in [
        (
            "change the filter, known shape",
            "udp dst port",
            2000,
            match way {
                OpenVia::InProcess => 20.0,
                OpenVia::Broker(_) => 100.0,
            },
        ),
        ("change the filter, a new shape", "", 16, 5000.0),
    ] {
        let mut times = Vec::new();
        let filter_is_new = filter.is_empty();
        for number in 0..count {
            let filter = match filter {
                "" => format!("ip[{}] = 7 and udp src port {number}", 8 + number % 8),
                known => format!("{known} {}", 30_001 + number),
            };
            let began = Instant::now();
            port.set_filter(&filter)?;
            times.push(began.elapsed());
            // As changes come: not one upon the other.
            if number % 100 == 99 || filter_is_new {
                std::thread::sleep(Duration::from_millis(40));
            }
        }
        report(what, &mut times, Bar::AtMost(bar));
    }
    Ok(())
}

fn sends(report: Report<'_>, way: OpenVia<'_>, interface: &str) -> Result<(), Failed> {
    let mut port = way.on(interface).filter("ether proto 0x88b5")?.open()?;
    let own = port.status()?.address;
    let own = own.split(':').map(|byte| u8::from_str_radix(byte, 16));
    let mut frame = vec![0xff; 6];
    frame.extend(own.collect::<Result<Vec<u8>, _>>()?);
    frame.extend([0x88, 0xb5]);
    frame.resize(60, 0);
    let mut times = Vec::new();
    let began = Instant::now();
    port.send_batch(&[&frame])?;
    times.push(began.elapsed());
    report("send the first frame", &mut times, Bar::None);
    for (what, frames) in [("send one", 1), ("send 64 at once, each", 64)] {
        let batch = vec![frame.as_slice(); frames];
        let mut times = Vec::new();
        for _ in 0..2000 {
            let began = Instant::now();
            port.send_batch(&batch)?;
            times.push(began.elapsed() / frames as u32);
        }
        report(what, &mut times, Bar::None);
    }
    Ok(())
}

fn closes(report: Report<'_>, way: OpenVia<'_>, interface: &str) -> Result<(), Failed> {
    const PORTS: usize = 1000;
    let open = |number| {
        let filter = format!("udp dst port {}", 40_000 + number);
        let port = way.on(interface).filter(&filter)?;
        port.queue(Bytes(1 << 16)).open()
    };
    // The limit on a user's connections.
    let count = match way {
        OpenVia::InProcess => PORTS,
        OpenVia::Broker(_) => 60,
    };
    let ports: Vec<Port> = (0..count).map(open).collect::<Result<_, _>>()?;
    let began = Instant::now();
    drop(ports);
    let what = format!("close {count} ports");
    report(&what, &mut [began.elapsed()], Bar::AtMost(1e6));
    Ok(())
}

/// Gives the median, in microseconds.
fn report(what: &str, times: &mut [Duration], bar: Bar) -> f64 {
    times.sort();
    let at = |place: usize| times[place.min(times.len() - 1)].as_secs_f64() * 1e6;
    let bar = match bar {
        Bar::AtMost(bar) | Bar::AtLeast(bar) => format!("   (bar {bar})"),
        Bar::None => String::new(),
    };
    println!(
        "  {what:32} {:9.1} {:9.1} {:9.1} {:9.1}{bar}",
        at(0),
        at(times.len() / 2),
        at(times.len() * 99 / 100),
        at(times.len())
    );
    at(times.len() / 2)
}
