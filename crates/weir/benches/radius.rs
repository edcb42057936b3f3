//! `weir meter`'s RADIUS server: durable replies a second, how long they take, and when the packets
//! of a session that begins are its own.
//!
//! ```sh
//! sudo cargo bench -p weir --bench radius
//! ```
//!
//! The counter runs on a host of its own, in a release build, and its log is on the disk of the target
//! folder. The client is on the same host, so that the link carries metered traffic alone.
//!
//! - `closed loop`: [`WINDOW`] requests are always on their way.
//! - `5,000 a second`: a request each 200 µs, whatever the server does.
//! - `attributed`: a Start, and a datagram from the session's address each 20 µs from then on, which
//!   keeps a CPU busy: those that are counted as unattributed show how long it took.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};
use weir_lab::command::Command;
use weir_lab::net::{Pair, Process, Signal};
use weir_lab::results::{Bar, Recorder, Unit, recorder};
use weir_lab::testenv;
use weir_ledger::{Ledger, UsageQuery};
use weir_meter::OwnerKind;
use weir_meter::radius::packet::{attribute, request};

/// Requests on their way in the closed loop: 32 of each socket.
const WINDOW: usize = 256;
const SOCKETS: usize = 8;
const TIME: Duration = Duration::from_secs(10);
const RATE: u32 = 5_000;
const SESSIONS: u8 = 200;
const WAIT_MAX: Duration = Duration::from_secs(30);
const SECRET: &[u8] = b"s3cret";

struct Counter {
    net: Pair,
    folder: PathBuf,
    process: Process,
}

impl Counter {
    fn start() -> Counter {
        let net = Pair::new().expect("a network");
        net.b.own_pins().expect("file systems");
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("radius-bench");
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).expect("a folder");
        let secret = folder.join("secret");
        fs::write(&secret, SECRET).expect("a file");
        fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).expect("a mode");
        let config = folder.join("counter.toml");
        let text = "counter = \"bench\"\nperiod = \"2s\"\ncapacity = 1048576\n[[link]]\ninside = \"eth0\"\n\
                    [radius]\nlisten = \"127.0.0.1:1813\"\n[[radius.client]]\n\
                    address = \"127.0.0.1\"\nsecret_file = \"secret\"\n";
        fs::write(&config, text).expect("a file");
        let mut command = Command::built(env!("CARGO_BIN_EXE_weir"));
        command.args(["meter".as_ref(), "--config".as_ref(), config.as_os_str()]);
        command.args(["--store".as_ref(), folder.join("usage.db").as_os_str()]);
        command.stderr(Stdio::piped()).stdout(Stdio::null());
        let mut process = net.b.spawn(command).expect("weir starts");
        let errors = process.child_mut().stderr.take().expect("a pipe");
        let mut lines = BufReader::new(errors).lines();
        lines
            .find(|line| line.as_ref().is_ok_and(|line| line == "ready"))
            .expect("it is ready")
            .expect("a line");
        // Its further lines are read, so that it does not wait.
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(|it| eprintln!("{it}")));
        Counter {
            net,
            folder,
            process,
        }
    }

    fn client(&self) -> UdpSocket {
        let socket = self.net.b.run(|| UdpSocket::bind("127.0.0.1:0"));
        let socket = socket.expect("a socket");
        socket.connect("127.0.0.1:1813").expect("an address");
        socket.set_nonblocking(true).expect("a mode");
        socket
    }

    fn stop(mut self) -> Ledger {
        self.process.signal(Signal::TERM).expect("a signal");
        self.process.wait(WAIT_MAX).expect("it ends");
        Ledger::open(&self.folder.join("usage.db")).expect("a ledger")
    }
}

fn start(identifier: u8, session: u32, address: [u8; 4]) -> Vec<u8> {
    let (id, user) = (format!("{session:08x}"), format!("user{session}"));
    let attributes: [(u8, &[u8]); 6] = [
        (attribute::ACCT_STATUS_TYPE, &[0, 0, 0, 1]),
        (attribute::ACCT_SESSION_ID, id.as_bytes()),
        (attribute::USER_NAME, user.as_bytes()),
        (attribute::NAS_IDENTIFIER, b"bench"),
        (attribute::FRAMED_IP_ADDRESS, &address),
        (attribute::CLASS, b"gold"),
    ];
    request(identifier, &attributes, SECRET)
}

/// Sessions, each with an address of its own.
struct Sessions(u32);

impl Sessions {
    fn next(&mut self, identifier: u8) -> Vec<u8> {
        self.0 += 1;
        let [_, a, b, c] = self.0.to_be_bytes();
        start(identifier, self.0, [11, a, b, c])
    }
}

/// Requests of one socket that are on their way, by identifier.
struct Lane {
    socket: UdpSocket,
    sent: [Option<Instant>; 256],
    next: u8,
    waiting: usize,
}

impl Lane {
    fn new(socket: UdpSocket) -> Lane {
        Lane {
            socket,
            sent: [None; 256],
            next: 0,
            waiting: 0,
        }
    }

    /// Sends a request, unless the identifier is in use.
    fn send(&mut self, sessions: &mut Sessions) -> bool {
        let place = &mut self.sent[usize::from(self.next)];
        if place.is_some() {
            return false;
        }
        let bytes = sessions.next(self.next);
        if self.socket.send(&bytes).is_err() {
            return false;
        }
        *place = Some(Instant::now());
        self.next = self.next.wrapping_add(1);
        self.waiting += 1;
        true
    }

    fn receive(&mut self, times: &mut Vec<Duration>) {
        let mut answer = [0; 64];
        while let Ok(length) = self.socket.recv(&mut answer) {
            assert!(length >= 20, "an answer");
            if let Some(sent) = self.sent[usize::from(answer[1])].take() {
                times.push(sent.elapsed());
                self.waiting -= 1;
            }
        }
    }
}

fn part(times: &[Duration], share: f64) -> f64 {
    let at = ((times.len() - 1) as f64 * share) as usize;
    times[at].as_secs_f64() * 1e3
}

fn shown(name: &str, times: &mut [Duration], lost: usize, time: Duration, results: &Recorder) {
    times.sort_unstable();
    let rate = times.len() as f64 / time.as_secs_f64();
    let [half, most, worst] = [0.5, 0.99, 1.0].map(|share| part(times, share));
    println!(
        "{name}: {rate:.0} durable replies a second; median {half:.2} ms, p99 {most:.2}, \
         longest {worst:.2}; {lost} not answered"
    );
    results.record(
        &format!("{name}: replies"),
        rate,
        Unit::PerSecond("replies"),
        Bar::AtLeast(f64::from(RATE) * 0.99),
    );
    results.record(
        &format!("{name}: p99"),
        most,
        Unit::Milliseconds,
        Bar::AtMost(20.0),
    );
    let none = Bar::AtMost(0.0);
    results.record(&format!("{name}: lost"), lost as f64, Unit::Losses, none);
}

fn closed(counter: &Counter, sessions: &mut Sessions, results: &Recorder) {
    let mut lanes: Vec<Lane> = (0..SOCKETS).map(|_| Lane::new(counter.client())).collect();
    let mut times = Vec::new();
    let began = Instant::now();
    while began.elapsed() < TIME {
        for lane in &mut lanes {
            while lane.waiting < WINDOW / SOCKETS && lane.send(sessions) {}
            lane.receive(&mut times);
        }
        std::thread::sleep(Duration::from_micros(50));
    }
    let time = began.elapsed();
    let lost = drain(&mut lanes, &mut Vec::new());
    shown("closed loop", &mut times, lost, time, results);
}

fn paced(counter: &Counter, sessions: &mut Sessions, results: &Recorder) {
    let mut lanes: Vec<Lane> = (0..SOCKETS).map(|_| Lane::new(counter.client())).collect();
    let (mut times, mut sent) = (Vec::new(), 0_u32);
    let began = Instant::now();
    while began.elapsed() < TIME {
        let due = (began.elapsed().as_secs_f64() * f64::from(RATE)) as u32;
        while sent < due {
            let lane = &mut lanes[sent as usize % SOCKETS];
            assert!(lane.send(sessions), "an identifier that is free");
            sent += 1;
        }
        lanes.iter_mut().for_each(|lane| lane.receive(&mut times));
        std::thread::sleep(Duration::from_micros(100));
    }
    let time = began.elapsed();
    let lost = drain(&mut lanes, &mut times);
    shown("5,000 a second", &mut times, lost, time, results);
}

/// Waits for the last answers; gives how many are missing.
fn drain(lanes: &mut [Lane], times: &mut Vec<Duration>) -> usize {
    let began = Instant::now();
    loop {
        lanes.iter_mut().for_each(|lane| lane.receive(times));
        let waiting: usize = lanes.iter().map(|lane| lane.waiting).sum();
        if waiting == 0 || began.elapsed() > Duration::from_secs(5) {
            return waiting;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// For each session, when its datagrams were sent, since its Start.
fn begin_sessions(counter: &Counter) -> HashMap<String, Vec<Duration>> {
    let client = counter.client();
    let mut all = HashMap::new();
    for number in 0..SESSIONS {
        let address = [10, 0, 1, 1 + number];
        counter
            .net
            .eth_a
            .add_address(address, 24)
            .expect("an address");
        let text = address.map(|octet| octet.to_string()).join(".");
        let sender = counter.net.a.run(|| UdpSocket::bind((&*text, 0)));
        let sender = sender.expect("a socket");
        sender.connect("10.0.0.2:9").expect("an address");
        let mut sent = Vec::new();
        let began = Instant::now();
        client
            .send(&start(number, 1 << 24 | u32::from(number), address))
            .expect("a request");
        while began.elapsed() < Duration::from_millis(5) {
            sent.push(began.elapsed());
            // What the kernel says of an earlier one.
            let _ = sender.send(&[0]);
            let next = began.elapsed() + Duration::from_micros(20);
            while began.elapsed() < next {
                std::hint::spin_loop();
            }
        }
        all.insert(text, sent);
        std::thread::sleep(Duration::from_millis(20));
    }
    all
}

fn attributed(ledger: &Ledger, sent: &HashMap<String, Vec<Duration>>, results: &Recorder) {
    let rows = ledger
        .usage(&UsageQuery::default(), &jiff::tz::TimeZone::UTC)
        .expect("rows");
    let mut times: Vec<Duration> = sent
        .iter()
        .map(|(address, sent)| {
            let unattributed = rows
                .iter()
                .filter(|row| row.owner != OwnerKind::Session && row.subscriber == *address);
            let before: u64 = unattributed
                .map(|row| row.packets.iter().sum::<u64>())
                .sum();
            // The first that was counted for the session.
            sent.get(before as usize).copied().unwrap_or(Duration::MAX)
        })
        .collect();
    times.sort_unstable();
    let [half, most, worst] = [0.5, 0.9, 0.99].map(|share| part(&times, share));
    println!(
        "attributed: median {half:.3} ms after the Start was sent, 9 of 10 {most:.3}, p99 {worst:.3}"
    );
    for (name, time) in [("median", half), ("p90", most), ("p99", worst)] {
        let bar = Bar::AtMost(1.0);
        results.record(
            &format!("attributed: {name}"),
            time,
            Unit::Milliseconds,
            bar,
        );
    }
}

fn main() {
    let results = recorder!();
    if !testenv::root() {
        return;
    }
    let counter = Counter::start();
    let mut sessions = Sessions(0);
    let sent = begin_sessions(&counter);
    paced(&counter, &mut sessions, &results);
    closed(&counter, &mut sessions, &results);
    let folder = counter.folder.clone();
    attributed(&counter.stop(), &sent, &results);
    let _ = fs::remove_dir_all(folder);
}
