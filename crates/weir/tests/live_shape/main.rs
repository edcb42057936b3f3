//! `weir shape` between two hosts: rate, shares, delay, order, and its ends.

#[path = "../common/mod.rs"]
mod common;
mod htb;
#[path = "../common/live.rs"]
mod live;
mod router;

use common::{Folder, weir};
use live::{Ended, Running, WAIT_MAX, ip};
use serde_json::Value;
use std::collections::HashMap;
use std::net::{SocketAddr, UdpSocket};
use std::ops::Deref;
use std::time::{Duration, Instant};
use weir_lab::net::{Host, Linear, Offloads, Signal, traffic};
use weir_lab::testenv;

/// Bits per second of the shaped links.
const RATE: f64 = 20e6;

/// Payload bytes of a datagram, and bytes of its frame.
const PAYLOAD: usize = 1_400;
const FRAME: usize = PAYLOAD + 42;

/// Port of the receiver.
const PORT: u16 = 5_001;

struct Net(Linear);

impl Deref for Net {
    type Target = Linear;

    fn deref(&self) -> &Linear {
        &self.0
    }
}

/// Two hosts, the first with a second address.
fn net() -> Option<Net> {
    if !testenv::root() || !testenv::programs(&["ip"]) {
        return None;
    }
    let line = Linear::new(Offloads::OFF)
        .unwrap()
        .with_addresses()
        .unwrap();
    ip(&line.a, &["address", "add", "10.9.0.3/24", "dev", "eth0"]);
    Some(Net(line))
}

impl Net {
    fn shape(&self, options: &[&str]) -> Running {
        // A busy machine must not count as a hung process.
        let base = ["shape", "left", "right", "--hang-ms", "10000"];
        Running::start(&self.middle, weir([]), &[&base[..], options].concat())
    }

    fn clean(&self) -> Ended {
        let arguments = ["shape", "left", "right", "--clean"];
        Running::start(&self.middle, weir([]), &arguments).end()
    }

    fn receiver(&self) -> UdpSocket {
        let socket = self.b.run(|| UdpSocket::bind(("10.9.0.2", PORT)).unwrap());
        prepare(&socket);
        socket
    }
}

fn prepare(socket: &UdpSocket) {
    socket.set_read_timeout(Some(WAIT_MAX)).unwrap();
    // So much that a receiver that is late loses nothing.
    rustix::net::sockopt::set_socket_recv_buffer_size_force(socket, 64 << 20).unwrap();
}

/// Removes everything that a test leaves.
struct Cleaned<'a>(&'a Net);

impl Drop for Cleaned<'_> {
    fn drop(&mut self) {
        self.0.clean();
    }
}

/// A sender of numbered datagrams.
struct Source {
    from: &'static str,
    to: &'static str,
    port: u16,
    /// Datagrams per second.
    rate: f64,
}

/// Sends for a time; returns the number of datagrams of each source.
fn send(host: &Host, sources: &[Source], time: Duration) -> Vec<u64> {
    let mut sockets = Vec::new();
    for source in sources {
        let at = (source.from, source.port);
        sockets.push(host.run(|| UdpSocket::bind(at).unwrap()));
    }
    let began = Instant::now();
    let mut sent = vec![0_u64; sources.len()];
    let mut payload = [0; PAYLOAD];
    while began.elapsed() < time {
        let due = |source: &Source| (began.elapsed().as_secs_f64() * source.rate) as u64;
        for ((socket, source), sent) in sockets.iter().zip(sources).zip(&mut sent) {
            while *sent < due(source) {
                payload[..8].copy_from_slice(&sent.to_be_bytes());
                // What the socket has no room for is sent later.
                let to = (source.to, PORT);
                if socket.send_to(&payload, to).is_err() {
                    break;
                }
                *sent += 1;
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    sent
}

/// Datagrams of about two seconds.
const EARLY: u64 = 3_500;

/// The received frames of a sender.
#[derive(Default, Debug)]
struct Got {
    frames: u64,
    /// Of the first [`EARLY`] datagrams of all.
    early: u64,
    last: Option<u64>,
    reordered: u64,
}

/// Receives until nothing arrives any more; returns the frames of each sender, and the time from
/// the first datagram to the last.
fn receive(socket: &UdpSocket) -> (HashMap<SocketAddr, Got>, Duration) {
    let mut got: HashMap<SocketAddr, Got> = HashMap::new();
    let mut buffer = [0; 2_048];
    let mut ends: Option<(Instant, Instant)> = None;
    let mut all = 0;
    while let Ok((len, from)) = socket.recv_from(&mut buffer) {
        let now = Instant::now();
        ends = Some((ends.map_or(now, |(first, _)| first), now));
        assert_eq!(len, PAYLOAD);
        let number = u64::from_be_bytes(buffer[..8].try_into().unwrap());
        let of_it = got.entry(from).or_default();
        all += 1;
        of_it.frames += 1;
        of_it.early += u64::from(all <= EARLY);
        of_it.reordered += u64::from(of_it.last.is_some_and(|last| number <= last));
        of_it.last = of_it.last.max(Some(number));
        socket
            .set_read_timeout(Some(Duration::from_secs(2)))
            .unwrap();
    }
    let (first, last) = ends.expect("something comes");
    (got, last - first)
}

/// Flows each of which fills the link.
fn sources(flows: u16) -> Vec<Source> {
    let source = |flow| Source {
        from: "10.9.0.1",
        to: "10.9.0.2",
        port: 6_000 + flow,
        rate: full(),
    };
    (0..flows).map(source).collect()
}

/// Sends and receives at the same time.
fn carry(net: &Net, sources: &[Source], time: Duration) -> (HashMap<SocketAddr, Got>, Duration) {
    let socket = net.receiver();
    let receiving = std::thread::spawn(move || receive(&socket));
    let sent = send(&net.a, sources, time);
    assert!(sent.iter().all(|count| *count > 100), "{sent:?}");
    receiving.join().unwrap()
}

fn report(path: &str) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Frames a second that fill the link.
fn full() -> f64 {
    RATE / 8.0 / FRAME as f64
}

#[test]
fn the_rate_is_kept_and_no_flow_is_reordered() {
    let Some(net) = net() else { return };
    let folder = Folder::new("shape-rate");
    let json = folder.path("stats.json");
    let running = net
        .shape(&["--rate", "20M", "--restore", "--stats-json", &json])
        .until("ready");
    assert!(net.pings().unwrap());
    let sources: Vec<Source> = (0..4)
        .map(|flow| Source {
            from: "10.9.0.1",
            to: "10.9.0.2",
            port: 6_000 + flow,
            rate: full() * 0.75,
        })
        .collect();
    let (got, time) = carry(&net, &sources, Duration::from_secs(3));
    assert_eq!(got.len(), 4, "{got:?}");
    let frames: u64 = got.values().map(|of_it| of_it.frames).sum();
    let rate = (frames * FRAME as u64 * 8) as f64 / time.as_secs_f64();
    // The burst, and that the machine stops the process now and then.
    assert!(
        (0.8..1.1).contains(&(rate / RATE)),
        "{rate} b/s in {time:?}"
    );
    for (from, of_it) in &got {
        assert_eq!(of_it.reordered, 0, "{from}: {got:?}");
    }
    let ended = running.stop();
    assert!(ended.stderr.contains("left by copy"), "{ended:?}");
    assert_eq!(net.attached(), [false, false], "restored");
    let report = report(&json);
    let class = &report["links"][1]["classes"][0];
    let number = |key: &str| class[key].as_u64().unwrap();
    assert!(number("dropped") > 0, "{report}");
    // Each frame received at one link left at the other, or is counted.
    let [left, right] = [0, 1].map(|link| report["links"][link].clone());
    let came = left["rx_frames"].as_u64().unwrap() - left["not_passed"].as_u64().unwrap();
    let gone = number("frames") + number("dropped") + right["flushed"].as_u64().unwrap();
    assert_eq!(came, gone, "{report}");
    assert_eq!(right["tx_frames"].as_u64().unwrap(), number("frames"));
}

#[test]
fn sources_get_equal_shares_whatever_they_send() {
    let Some(net) = net() else { return };
    let running = net
        .shape(&["--rate", "20M", "--by", "source", "--restore"])
        .until("ready");
    let source = |from, port, rate| Source {
        from,
        to: "10.9.0.2",
        port,
        rate,
    };
    let mut sources = vec![source("10.9.0.3", 6_000, full())];
    // One address with several flows sends three times as much.
    sources.extend((0..6).map(|flow| source("10.9.0.1", 7_000 + flow, full() / 2.0)));
    let (got, _) = carry(&net, &sources, Duration::from_secs(3));
    let of = |address: &str| -> u64 {
        let of_it = got
            .iter()
            .filter(|(from, _)| from.ip().to_string() == address);
        // Later, one of them has stopped.
        of_it.map(|(_, got)| got.early).sum()
    };
    let [one, many] = ["10.9.0.3", "10.9.0.1"].map(of);
    let share = one as f64 / (one + many) as f64;
    assert!((0.4..0.6).contains(&share), "{one} and {many} frames");
    running.stop();
}

/// Round trips while a flow fills the link, sorted.
fn loaded(net: &Net, options: &[&str]) -> Vec<Duration> {
    let options = [&["--rate", "20M", "--restore"], options].concat();
    let running = net.shape(&options).until("ready");
    let socket = net.receiver();
    let receiving = std::thread::spawn(move || receive(&socket));
    let mut times = std::thread::scope(|scope| {
        let bulk = scope.spawn(|| {
            let source = Source {
                from: "10.9.0.1",
                to: "10.9.0.2",
                port: 6_000,
                rate: full() * 1.5,
            };
            send(&net.a, &[source], Duration::from_secs(6))
        });
        // A queue of 1,000 frames fills in 1.2 s.
        std::thread::sleep(Duration::from_secs(2));
        let to = [10, 9, 0, 2].into();
        let pings = traffic::ping(&net.a, to, 8, Duration::from_secs(1)).unwrap();
        bulk.join().unwrap();
        pings.round_trips
    });
    receiving.join().unwrap();
    running.stop();
    assert!(!times.is_empty(), "{options:?}: no reply");
    times.sort_unstable();
    times
}

#[test]
fn a_sparse_flow_waits_far_less_than_behind_a_fifo() {
    let Some(net) = net() else { return };
    let fifo = loaded(&net, &["--queue", "fifo"]);
    let fair = loaded(&net, &[]);
    // The full FIFO takes 577 ms, of which one request at least shows the most; a sparse flow
    // waits for a frame of 0.6 ms.
    let (most, median) = (fifo[fifo.len() - 1], fair[fair.len() / 2]);
    assert!(median < most / 4, "{fair:?} against {fifo:?}");
}

#[test]
fn sigterm_counts_what_waits_and_the_links_stay_joined() {
    let Some(net) = net() else { return };
    let _cleaned = Cleaned(&net);
    let folder = Folder::new("shape-end");
    let json = folder.path("stats.json");
    let options = ["--rate", "1M", "--queue", "fifo", "--stats-json", &json];
    let running = net.shape(&options).until("ready");
    assert!(net.pings().unwrap());
    let source = Source {
        from: "10.9.0.1",
        to: "10.9.0.2",
        port: 6_000,
        rate: 1_000.0,
    };
    send(&net.a, &[source], Duration::from_millis(500));
    running.signal(Signal::TERM);
    let ended = running.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(net.pings().unwrap(), "joined in the kernel");
    let report = report(&json);
    let right = &report["links"][1];
    let flushed = right["flushed"].as_u64().unwrap();
    let class = &right["classes"][0];
    assert!(flushed > 100, "{report}");
    assert_eq!(class["waiting"], 0, "{report}");
    let left = &report["links"][0];
    let came = left["rx_frames"].as_u64().unwrap() - left["not_passed"].as_u64().unwrap();
    let gone = class["frames"].as_u64().unwrap() + class["dropped"].as_u64().unwrap() + flushed;
    assert_eq!(came, gone, "{report}");
    assert_eq!(net.clean().code, Some(0));
    assert_eq!(net.attached(), [false, false]);
}

#[test]
fn killed_the_links_stay_joined_until_cleaned() {
    let Some(net) = net() else { return };
    let _cleaned = Cleaned(&net);
    let running = net.shape(&["--rate", "20M"]).until("ready");
    assert!(net.pings().unwrap());
    running.signal(Signal::KILL);
    running.end();
    assert!(net.pings().unwrap(), "joined in the kernel");
    // The next one takes over.
    let running = net.shape(&["--rate", "20M", "--restore"]).until("ready");
    assert!(net.pings().unwrap());
    running.stop();
    assert_eq!(net.attached(), [false, false]);
}

/// In a hang the kernel forwards arriving frames: queued frames are behind them, and are not sent.
#[test]
fn what_waited_through_a_hang_is_not_sent_late() {
    let Some(net) = net() else { return };
    let _cleaned = Cleaned(&net);
    let folder = Folder::new("shape-hang");
    let json = folder.path("stats.json");
    let options = [
        "--rate",
        "1M",
        "--queue",
        "fifo",
        "--hang-ms",
        "200",
        "--stats-json",
        &json,
    ];
    let arguments = [&["shape", "left", "right"][..], &options].concat();
    let running = Running::start(&net.middle, weir([]), &arguments).until("ready");
    assert!(net.pings().unwrap());
    let socket = net.receiver();
    let sender = net.a.run(|| UdpSocket::bind("10.9.0.1:6000").unwrap());
    let send = |numbers: std::ops::Range<u64>| {
        let mut payload = [0; PAYLOAD];
        for number in numbers {
            payload[..8].copy_from_slice(&number.to_be_bytes());
            sender.send_to(&payload, ("10.9.0.2", PORT)).unwrap();
            std::thread::sleep(Duration::from_millis(2));
        }
    };
    // Three seconds of the link's time.
    send(0..300);
    running.signal_at_once(Signal::STOP);
    send(300..600);
    running.signal_at_once(Signal::CONT);
    send(600..650);
    let (got, _) = receive(&socket);
    let of_it = got.values().next().unwrap();
    assert_eq!(of_it.reordered, 0, "{got:?}");
    assert!(of_it.frames > 100, "by the bypass: {got:?}");
    running.signal(Signal::TERM);
    let ended = running.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let report = report(&json);
    assert!(report["hung"].as_u64() > Some(0), "{report}");
    let flushed = report["links"][1]["flushed"].as_u64().unwrap();
    assert!(flushed > 100, "{report}");
}

/// Classes of a file: one above the other, and one with a rate of its own.
#[test]
fn classes_have_priorities_and_rates() {
    let Some(net) = net() else { return };
    let folder = Folder::new("shape-classes");
    let file = folder.write(
        "shape.toml",
        b"links = [\"left\", \"right\"]\n\
          [[scheduler]]\nlink = \"right\"\nrate = \"20M\"\norder = \"priority\"\n\
          [[scheduler.class]]\nname = \"first\"\nmatch = \"udp src port 6000\"\nqueue = \"fifo\"\n\
          rate = \"4M\"\n\
          [[scheduler.class]]\nname = \"rest\"\n\
          [[scheduler.class]]\nname = \"last\"\nmatch = \"udp src port 6001\"\nqueue = \"red\"\n",
    );
    let json = folder.path("stats.json");
    let checked = ["shape", "--config", &file, "--check"];
    let checked = Running::start(&net.middle, weir([]), &checked).end();
    assert_eq!((checked.code, checked.stderr.as_str()), (Some(0), ""));
    assert!(checked.stdout.contains("good"), "{checked:?}");
    let arguments = [
        "shape",
        "--config",
        &file,
        "--hang-ms",
        "10000",
        "--restore",
        "--stats-json",
        &json,
    ];
    let running = Running::start(&net.middle, weir([]), &arguments).until("ready");
    let (got, time) = carry(&net, &sources(3), Duration::from_secs(3));
    let rate = |port: u16| {
        let of_it = got.iter().find(|(from, _)| from.port() == port);
        let frames = of_it.map_or(0, |(_, got)| got.frames);
        (frames * FRAME as u64 * 8) as f64 / time.as_secs_f64()
    };
    let [first, last, rest] = [6_000, 6_001, 6_002].map(rate);
    assert!((0.15..0.25).contains(&(first / RATE)), "{first}, {got:?}");
    // The rest fills the link, and the last gets what is left at the end.
    assert!(rest > 2.0 * last, "{rest} and {last}, {got:?}");
    running.stop();
    let report = report(&json);
    assert_eq!(report["links"][0]["classes"], Value::Array(vec![]));
    let names = report["links"][1]["classes"].as_array().unwrap();
    let names: Vec<&str> = names.iter().filter_map(|it| it["name"].as_str()).collect();
    assert_eq!(names, ["first", "rest", "last"]);
}

#[test]
fn the_short_command_prints_its_configuration() {
    let folder = Folder::new("shape-print");
    let options = ["shape", "a0", "b0", "--rate", "100M", "--rate-a", "20M"];
    let mut command = weir([]);
    command.args(options).args(["--by", "inside", "--print"]);
    let printed = common::stdout(&command.output().unwrap());
    let expected = "links = [\"a0\", \"b0\"]\n\n\
         [[scheduler]]\nlink = \"a0\"\nrate = \"20M\"\n\n\
         [[scheduler.class]]\nqueue = \"fq-codel\"\nby = \"destination\"\n\n\
         [[scheduler]]\nlink = \"b0\"\nrate = \"100M\"\n\n\
         [[scheduler.class]]\nqueue = \"fq-codel\"\nby = \"source\"\n";
    assert_eq!(printed, expected);
    // The file is accepted; the interfaces are not there.
    let file = folder.write("shape.toml", printed.as_bytes());
    let checked = weir(["shape", "--config", &file, "--check"])
        .output()
        .unwrap();
    assert_eq!(checked.status.code(), Some(1), "{checked:?}");
    let said = String::from_utf8(checked.stderr).unwrap();
    assert!(said.contains("there is no interface `a0`"), "{said}");
}

#[test]
fn bad_values_are_named_with_the_remedy() {
    for (options, words) in [
        (&["--rate", "fast"][..], &["'fast'", "100M"][..]),
        (&["--rate", "7k"], &["7k", "8k"]),
        (&["--rate", "1M", "--by", "colour"], &["colour", "source"]),
        (
            &["--rate", "1M", "--queue", "red", "--by", "source"],
            &["by", "red", "fq-codel"],
        ),
        (&["--rate", "1M", "--burst", "9T"], &["9T", "125k"]),
        (
            &["--rate", "1M", "--ring", "1000", "--check"],
            &["1000", "power of two"],
        ),
        (
            &["--rate", "1M", "--ring", "65536", "--config", "x"],
            &["--config"],
        ),
        (&[], &["--rate"]),
    ] {
        let mut command = weir(["shape", "a0", "b0"]);
        let done = command.args(options).output().unwrap();
        let said = String::from_utf8(done.stderr).unwrap();
        assert_eq!(done.status.code(), Some(2), "{options:?}: {said}");
        for word in words {
            assert!(said.contains(word), "{options:?}: no `{word}` in {said}");
        }
    }
}
