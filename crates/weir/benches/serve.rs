//! `weir serve` beside nginx: requests for the time of the server's core, and
//! how long they take, at 16, 1,000 and 10,000 connections that stay open.
//!
//! ```sh
//! sudo cargo bench -p weir --bench serve           # all, in turns
//! sudo cargo bench -p weir --bench serve -- slow   # 20,000 slow clients beside one that is not
//! sudo cargo bench -p weir --bench serve -- unread # 12,000 clients that read no answer
//! ```
//!
//! wrk, in one network namespace, asks for one file of 1,024 bytes. Servers:
//!
//! ```text
//!  wrk, kernel ── veth ── kernel, nginx       one worker, sendfile, no log
//!  wrk, kernel ── veth ── weir serve          port:eth0, beside that kernel
//!  wrk, kernel ── TAP ─── weir serve          link tap0
//! ```
//!
//! Both ends of the veth leave checksums and segmentation to each other
//! ([`Offloads::VETH`]), and so does the TAP interface.
//!
//! The generator has one core and the server another. The kernel's work for a
//! frame that arrives is done on the core of the side it arrives at (RPS, by
//! `net.core.rps_default_mask`): without it a frame's sender would do that work
//! for a kernel at the other end, but not for weir. So the server's cost is all
//! that its core did, softirq included, and that is the time of both cores less
//! the generator's. On a machine that does other work too, `own` says which
//! part of it the server's threads ran.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};
use weir_lab::command::{Command, Resource};
use weir_lab::net::{Host, Lab, Offloads, Process};
use weir_lab::results::{Bar, Recorder, Unit, recorder};
use weir_lab::wait::WAIT_MAX;
use weir_lab::{affinity, processor, testenv};

const CONNECTIONS: [usize; 3] = [16, 1_000, 10_000];
const ROUNDS: usize = 3;
const ROUND_S: u64 = 6;
const FILE_LEN: usize = 1_024;
const PORT: u16 = 80;
/// Descriptors of each process.
const FILES_MAX: u64 = 20_000;
/// Room for what 10,000 connections may send at once; see docs/tutorials/sockets.md.
const TX_QUEUE_LEN: &str = "20000";
/// Slow clients, and processes that they are in, each with [`FILES_MAX`]
/// descriptors at most.
const SLOW: usize = 20_000;
const SLOW_PROCESSES: usize = 2;
const SLOW_AT_ONCE: usize = 20;
const SLOW_TIME: Duration = Duration::from_secs(20);
/// The pause of the client that is not slow; a connection of weir has 10,000
/// requests at most.
const ASK_EACH: Duration = Duration::from_millis(4);
/// How often a slow client sends another byte.
const SLOW_EACH: Duration = Duration::from_secs(4);
/// Clients that ask for the long file and read nothing, and its length.
const UNREAD: usize = 12_000;
const LONG_LEN: usize = 3 << 20;

/// Where each server is, as the generator reaches it.
const NGINX: &str = "192.0.2.2";
const WEIR_VETH: &str = "192.0.2.5";
const WEIR_TAP: &str = "198.51.100.5";

fn at(ip: &str) -> SocketAddr {
    SocketAddr::new(ip.parse::<IpAddr>().expect("a constant"), PORT)
}

/// The cores of the two sides.
#[derive(Clone, Copy)]
struct Cores {
    client: usize,
    server: usize,
}

struct World {
    client: Host,
    server: Host,
    cores: Cores,
    folder: PathBuf,
    _lab: Lab,
}

impl World {
    fn new(cores: Cores) -> World {
        let lab = Lab::new();
        let host = |name, core: usize| {
            let host = lab.host(name).expect("a namespace");
            let mask = format!("{:x}", 1_u64 << core);
            let set = host.set_sysctl("net.core.rps_default_mask", &mask);
            set.expect("a kernel with RPS");
            host.set_sysctl("net.core.somaxconn", "16384")
                .expect("a number");
            host
        };
        let client = host("client", cores.client);
        let server = host("server", cores.server);
        let range = client.set_sysctl("net.ipv4.ip_local_port_range", "1024 65535");
        range.expect("a range");
        let link = lab.link(&client, &server);
        let link = link.addresses(at("192.0.2.1").ip(), at(NGINX).ip(), 24);
        let link = link.offloads(Offloads::VETH);
        link.connect().expect("a veth pair");
        let tap = client.tap("tap0", 0).expect("a TAP interface");
        tap.up().expect("it goes up");
        tap.add_address(at("198.51.100.1").ip(), 24)
            .expect("it takes one");
        if let Some(mut ip) = testenv::program("ip") {
            ip.args(["link", "set", "tap0", "txqueuelen", TX_QUEUE_LEN]);
            let set = client.output(ip).expect("ip runs");
            assert!(set.status.success(), "{set:?}");
        }
        let folder = std::env::temp_dir().join(format!("weir-serve-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("the temporary folder can be written");
        fs::write(folder.join("file"), [b'x'; FILE_LEN]).expect("the file can be written");
        fs::write(folder.join("long"), vec![b'x'; LONG_LEN]).expect("the file can be written");
        World {
            client,
            server,
            cores,
            folder,
            _lab: lab,
        }
    }

    /// Starts a server, and waits until it takes connections.
    fn start(&self, host: &Host, mut command: Command, ip: &str) -> Process {
        command
            .limit(Resource::Nofile, FILES_MAX)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut command = std::process::Command::from(command);
        affinity::pin_command(&mut command, self.cores.server);
        let process = host.spawn(command).expect("the server starts");
        let began = Instant::now();
        while self.client.run(|| TcpStream::connect(at(ip))).is_err() {
            assert!(began.elapsed() < WAIT_MAX, "no server at {ip}");
            thread::sleep(Duration::from_millis(20));
        }
        process
    }

    fn nginx(&self) -> Process {
        let folder = self.folder.display();
        let conf = format!(
            "daemon off; master_process off; pid {folder}/pid; error_log /dev/null;\n\
             events {{ worker_connections {FILES_MAX}; }}\n\
             http {{ access_log off; sendfile on; tcp_nopush on; keepalive_requests 10000;\n\
             server {{ listen {PORT} backlog=16384; root {folder}; }} }}\n"
        );
        let path = self.folder.join("nginx.conf");
        fs::write(&path, conf).expect("the file can be written");
        let mut nginx = testenv::program("nginx").expect("it was asked for");
        nginx.arg("-c").arg(&path);
        self.start(&self.server, nginx, NGINX)
    }

    fn weir(&self, host: &Host, link: &str, ip: &str) -> Process {
        let mut weir = Command::built(env!("CARGO_BIN_EXE_weir"));
        weir.arg("serve").arg(&self.folder);
        weir.args(["--link", link, "--addr", &format!("{ip}/24")]);
        self.start(host, weir, ip)
    }

    /// What wrk measures with this many connections.
    fn run(&self, server: &Process, ip: &str, connections: usize) -> Run {
        let mut wrk = testenv::program("wrk").expect("it was asked for");
        wrk.limit(Resource::Nofile, FILES_MAX);
        let (connections, time) = (format!("-c{connections}"), format!("-d{ROUND_S}s"));
        wrk.args(["-t1", "--latency", "--timeout", "20s", &connections, &time]);
        wrk.arg(format!("http://{ip}/file"));
        let mut wrk = std::process::Command::from(wrk);
        affinity::pin_command(&mut wrk, self.cores.client);
        let before = (processor::busy(self.cores.server), ran_s(server.id()));
        let output = self.client.output(wrk).expect("wrk runs");
        let busy_s = (processor::busy(self.cores.server) - before.0).as_secs_f64();
        let own_s = ran_s(server.id()) - before.1;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let said = Said::of(&text).unwrap_or_else(|| panic!("wrk said {text}"));
        Run {
            said,
            busy_s,
            own_s,
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// What the generator says of a round.
struct Said {
    requests: f64,
    p50_ms: f64,
    p99_ms: f64,
    errors: String,
}

impl Said {
    fn of(text: &str) -> Option<Said> {
        let line = |begin: &str| {
            let mut lines = text.lines().map(str::trim);
            lines.find_map(|line| line.strip_prefix(begin).map(str::trim))
        };
        let requests = text
            .lines()
            .find_map(|line| line.split_once(" requests in "));
        let errors = ["Socket errors:", "Non-2xx or 3xx responses:"];
        let errors = errors.iter().filter_map(|begin| line(begin));
        Some(Said {
            requests: requests?.0.trim().parse().ok()?,
            p50_ms: milliseconds(line("50%")?)?,
            p99_ms: milliseconds(line("99%")?)?,
            errors: errors.collect::<Vec<_>>().join(", "),
        })
    }
}

/// `1.25ms`, `830.00us`, `1.03s`.
fn milliseconds(text: &str) -> Option<f64> {
    let unit = text.find(|c: char| c.is_ascii_alphabetic())?;
    let number: f64 = text[..unit].parse().ok()?;
    Some(match &text[unit..] {
        "us" => number / 1e3,
        "ms" => number,
        "s" => number * 1e3,
        _ => return None,
    })
}

struct Run {
    said: Said,
    /// What the server's core did, the server's threads, seconds.
    busy_s: f64,
    own_s: f64,
}

impl Run {
    /// Requests for a second of the server's core.
    fn rate(&self) -> f64 {
        self.said.requests / self.busy_s
    }

    /// The same of the server's threads.
    fn own_rate(&self) -> f64 {
        self.said.requests / self.own_s
    }
}

/// Seconds that the threads of a process ran.
fn ran_s(process: u32) -> f64 {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).expect("it runs");
    let times = tasks.filter_map(|task| {
        let text = fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<f64>().ok()
    });
    times.sum::<f64>() / 1e9
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The servers; nginx is what the others are compared with.
const NAMES: [&str; 3] = ["nginx, veth", "weir, veth", "weir, TAP"];

/// All servers in turn, round after round.
fn compare(world: &World, results: &Recorder) {
    let servers = [
        (NAMES[0], NGINX, world.nginx()),
        (
            NAMES[1],
            WEIR_VETH,
            world.weir(&world.server, "port:eth0", WEIR_VETH),
        ),
        (
            NAMES[2],
            WEIR_TAP,
            world.weir(&world.client, "tap0", WEIR_TAP),
        ),
    ];
    println!(
        "medians of {ROUNDS} rounds of {ROUND_S} s in turn\n\
         connections  server       requests/s  per core s   own s      ratio  own  p50 ms    p99 ms"
    );
    for connections in CONNECTIONS {
        let mut runs: [Vec<Run>; 3] = Default::default();
        for _ in 0..ROUNDS {
            for ((_, ip, process), runs) in servers.iter().zip(&mut runs) {
                runs.push(world.run(process, ip, connections));
            }
        }
        let of = |runs: &[Run], what: &dyn Fn(&Run) -> f64| median(runs.iter().map(what));
        let base = [of(&runs[0], &Run::rate), of(&runs[0], &Run::own_rate)];
        let nginx_p99 = of(&runs[0], &|run| run.said.p99_ms);
        for ((name, ..), runs) in servers.iter().zip(&runs) {
            let rate = [of(runs, &Run::rate), of(runs, &Run::own_rate)];
            println!(
                "{connections:>11}  {name:<12} {:>10.0} {:>11.0} {:>8.0}      {:>5.2} {:>4.2} {:>7.2} {:>9.2}  {}",
                of(runs, &|run| run.said.requests) / ROUND_S as f64,
                rate[0],
                rate[1],
                rate[0] / base[0],
                rate[1] / base[1],
                of(runs, &|run| run.said.p50_ms),
                of(runs, &|run| run.said.p99_ms),
                runs.iter()
                    .map(|run| run.said.errors.as_str())
                    .find(|errors| !errors.is_empty())
                    .unwrap_or_default(),
            );
            let named = |what: &str| format!("serve: {name}, {connections} connections, {what}");
            let p99 = of(runs, &|run| run.said.p99_ms);
            results.record(&named("p99"), p99, Unit::Milliseconds, Bar::None);
            if *name != NAMES[0] {
                let (core, own) = (
                    named("requests for a core's time"),
                    named("for its threads' time"),
                );
                let (ratio, bar) = (Unit::RateOf("nginx"), Bar::AtLeast(0.9));
                results.record(&core, rate[0] / base[0], ratio, bar);
                results.record(&own, rate[1] / base[1], ratio, Bar::None);
                let (name, ratio) = (named("p99 : nginx"), p99 / nginx_p99);
                results.record(&name, ratio, Unit::CostOf("nginx"), Bar::AtMost(1.0));
            }
        }
    }
}

/// Asks for the file again and again on one connection: how long each took.
fn ask(ip: &str, time: Duration) -> io::Result<Vec<Duration>> {
    let mut stream = TcpStream::connect(at(ip))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(WAIT_MAX))?;
    let mut block = [0; 4 * FILE_LEN];
    let (mut times, start) = (Vec::new(), Instant::now());
    while start.elapsed() < time {
        let asked = Instant::now();
        stream.write_all(b"GET /file HTTP/1.1\r\nHost: x\r\n\r\n")?;
        let mut len = 0;
        while len < FILE_LEN || !block[..len].ends_with(&[b'x'; FILE_LEN]) {
            match stream.read(&mut block[len..])? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => len += count,
            }
        }
        assert!(block.starts_with(b"HTTP/1.1 200 "), "the file is served");
        times.push(asked.elapsed());
        thread::sleep(ASK_EACH);
    }
    times.sort_unstable();
    Ok(times)
}

/// Keeps slow clients open until this process is killed: each has begun a
/// request's head, and sends a byte now and then. Those that were reset come
/// again. Writes a line when all have come, and one after each look at all: how
/// many had been reset.
fn be_slow(ip: &str) {
    let connect = || {
        let mut stream = TcpStream::connect_timeout(&at(ip), WAIT_MAX).ok()?;
        let begin = b"GET /file HTTP/1.1\r\nHost: x\r\nX: ";
        stream.write_all(begin).ok()?;
        stream.set_nonblocking(true).ok()?;
        Some(stream)
    };
    let mut streams: Vec<Option<TcpStream>> =
        (0..SLOW / SLOW_PROCESSES).map(|_| connect()).collect();
    println!("{}", streams.iter().flatten().count());
    // Evenly in time: they know nothing of each other.
    let pause = SLOW_EACH / (streams.len() / SLOW_AT_ONCE) as u32;
    loop {
        let mut again = 0;
        for (number, stream) in streams.iter_mut().enumerate() {
            if number % SLOW_AT_ONCE == 0 {
                thread::sleep(pause);
            }
            let is_open = |stream: &mut TcpStream| stream.write_all(b"x").is_ok();
            if !stream.as_mut().is_some_and(is_open) {
                *stream = connect();
                again += 1;
            }
        }
        println!("{again}");
    }
}

/// One client alone, then beside slow ones.
fn slow(world: &World, results: &Recorder) {
    let server = world.weir(&world.client, "tap0", WEIR_TAP);
    let tell = |what: &str, times: io::Result<Vec<Duration>>| {
        let times = times.unwrap_or_else(|error| panic!("{what}: {error}"));
        let part = |share: f64| {
            let at = ((times.len() - 1) as f64 * share) as usize;
            times[at].as_secs_f64() * 1e3
        };
        println!(
            "{what}: {} requests, p50 {:.2} ms, p99 {:.2} ms, longest {:.2} ms",
            times.len(),
            part(0.5),
            part(0.99),
            part(1.0)
        );
        for (name, share) in [("p50", 0.5), ("p99", 0.99)] {
            let name = format!("serve: one client {what}, {name}");
            results.record(&name, part(share), Unit::Milliseconds, Bar::None);
        }
    };
    tell("alone", world.client.run(|| ask(WEIR_TAP, SLOW_TIME)));
    let began = Instant::now();
    let start = || {
        let mut command = Command::itself();
        command.args(["--bench", "be-slow"]).stdout(Stdio::piped());
        let mut process = world.client.spawn(command).expect("it starts again");
        let output = process.child_mut().stdout.take().expect("piped");
        (process, BufReader::new(output))
    };
    let mut all: Vec<_> = (0..SLOW_PROCESSES).map(|_| start()).collect();
    let mut open = 0;
    for (_, output) in &mut all {
        let mut line = String::new();
        output.read_line(&mut line).expect("a line");
        open += line.trim().parse::<usize>().expect("a number");
    }
    println!("{open} slow clients came within {:.1?}", began.elapsed());
    let before = ran_s(server.id());
    tell("beside them", world.client.run(|| ask(WEIR_TAP, SLOW_TIME)));
    let share = (ran_s(server.id()) - before) / SLOW_TIME.as_secs_f64();
    let mut again = 0;
    for (process, mut output) in all {
        drop(process);
        let mut text = String::new();
        output.read_to_string(&mut text).expect("numbers");
        again += text
            .lines()
            .filter_map(|line| line.parse::<usize>().ok())
            .sum::<usize>();
    }
    println!(
        "{again} times a slow client was reset and came again; the server ran {share:.2} of the \
         time and had {} MB at most",
        memory_kib(server.id(), "VmHWM:") * 1024 / 1_000_000
    );
}

/// Asks for the long file, on a connection of its own.
fn ask_long(ip: &str) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect_timeout(&at(ip), WAIT_MAX)?;
    stream.set_read_timeout(Some(WAIT_MAX))?;
    stream.write_all(b"GET /long HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")?;
    Ok(stream)
}

/// How long all of the long file takes.
fn download(ip: &str) -> io::Result<Duration> {
    let (began, mut all) = (Instant::now(), Vec::new());
    ask_long(ip)?.read_to_end(&mut all)?;
    assert!(all.len() > LONG_LEN, "{} bytes", all.len());
    Ok(began.elapsed())
}

/// Keeps clients that read nothing open until this process is killed.
fn be_unread(ip: &str) {
    let streams = Vec::from_iter((0..UNREAD).map(|_| ask_long(ip)));
    println!("{}", streams.iter().flatten().count());
    loop {
        thread::sleep(WAIT_MAX);
    }
}

/// A download alone, then beside clients that read nothing.
fn unread(world: &World, results: &Recorder) {
    const RMEM: &str = "net.ipv4.tcp_rmem";
    let server = world.weir(&world.client, "tap0", WEIR_TAP);
    let tell = |what: &str, record: &str| {
        let time = world.client.run(|| download(WEIR_TAP));
        let time_ms = time.map_or_else(
            |error| panic!("{what}: {error}"),
            |time| time.as_secs_f64() * 1e3,
        );
        let resident = memory_kib(server.id(), "VmRSS:") * 1024 / 1_000_000;
        println!("{what}: 3 MiB in {time_ms:.1} ms, the server has {resident} MB");
        results.record(record, time_ms, Unit::Milliseconds, Bar::None);
    };
    tell("alone", "serve: 3 MiB alone");
    tell("alone, again", "serve: 3 MiB alone, again");
    // The clients' kernel has no room for what they do not read.
    let usual = world.client.sysctl(RMEM).expect("it is there");
    let set = |value: &str| world.client.set_sysctl(RMEM, value).expect("it is taken");
    set("2304 4096 4096");
    let began = Instant::now();
    let mut command = Command::itself();
    command
        .args(["--bench", "be-unread"])
        .stdout(Stdio::piped());
    let mut clients = world.client.spawn(command).expect("it starts again");
    let output = clients.child_mut().stdout.take().expect("piped");
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line).expect("a line");
    println!("{} came within {:.1?}", line.trim(), began.elapsed());
    set(&usual);
    tell(
        "first beside them",
        "serve: 3 MiB beside 12,000 clients that read nothing",
    );
    tell("then", "serve: 3 MiB beside them, again");
    println!(
        "at most {} MB",
        memory_kib(server.id(), "VmHWM:") * 1024 / 1_000_000
    );
}

/// A figure of a process in /proc/PID/status.
fn memory_kib(process: u32, name: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/{process}/status")).expect("it runs");
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    number.expect("Linux tells it")
}

fn main() {
    let has = |word: &str| std::env::args().any(|argument| argument == word);
    if has("be-slow") {
        return be_slow(WEIR_TAP);
    }
    if has("be-unread") {
        return be_unread(WEIR_TAP);
    }
    // `cargo test --benches` passes no --bench: there is nothing to prove.
    if !has("--bench") || !testenv::root() || !testenv::tun() {
        return;
    }
    if !testenv::programs(&["ip", "nginx", "wrk"]) {
        return;
    }
    let cores = affinity::allowed().expect("the system says which");
    let [client, server, ..] = cores[..] else {
        return testenv::skip("one core for the generator and one for the server");
    };
    let world = World::new(Cores { client, server });
    if has("slow") {
        slow(&world, &recorder!())
    } else if has("unread") {
        unread(&world, &recorder!())
    } else {
        compare(&world, &recorder!())
    }
}
