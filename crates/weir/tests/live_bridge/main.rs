//! `weir bridge` between two hosts, and the link when the bridge dies, hangs, ends, and restarts.

mod broker;
#[path = "../common/mod.rs"]
mod common;
mod filters;
#[path = "../common/live.rs"]
mod live;
mod moved;
mod storms;

use common::{Folder, weir};
use live::{Ended, Running, WAIT_MAX};
use rustix::process::{Pid, kill_process};
use serde_json::Value;
use std::net::UdpSocket;
use std::ops::Deref;
use std::os::unix::net::UnixDatagram;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use weir_lab::load::{Rate, Sending, Sent, Sink};
use weir_lab::net::{Host, Linear, Offloads, Signal};
use weir_lab::testenv;
use weir_link::bpf::Hook;

struct Net(Linear);

impl Deref for Net {
    type Target = Linear;

    fn deref(&self) -> &Linear {
        &self.0
    }
}

fn net() -> Option<Net> {
    if !testenv::root() {
        return None;
    }
    let line = Linear::new(Offloads::OFF).unwrap();
    Some(Net(line.with_addresses().unwrap()))
}

impl Net {
    fn bridge(&self, options: &[&str]) -> Running {
        let arguments = [&["bridge", "left", "right"], options].concat();
        Running::start(&self.middle, weir([]), &arguments)
    }

    /// The same with its interfaces in the reverse order.
    fn bridge_reversed(&self, options: &[&str]) -> Running {
        let arguments = [&["bridge", "right", "left"], options].concat();
        Running::start(&self.middle, weir([]), &arguments)
    }

    /// Removes what an earlier bridge has left.
    fn clean(&self) -> Ended {
        self.bridge(&["--clean"]).end()
    }

    /// Whether `a` reaches `b`.
    fn pings(&self) -> bool {
        self.0.pings().unwrap()
    }

    /// Each device has [`ONE_QUEUE`].
    fn set_one_queue(&self) {
        for device in [&self.eth_a, &self.left, &self.right, &self.eth_b] {
            device.set_offloads(ONE_QUEUE).unwrap();
        }
    }

    fn is_promiscuous(&self) -> bool {
        self.middle
            .device("left")
            .unwrap()
            .is_promiscuous()
            .unwrap()
    }

    /// Sends for a while, and calls `act` in the middle.
    fn send_and(&self, count: u64, rate: f64, act: impl FnOnce(&Sending<'_>)) -> Sent {
        let mut generator = self.generator().unwrap();
        let sending = generator.start(count, Rate::PerSecond(rate)).unwrap();
        while sending.sent() < count / 3 {
            std::thread::sleep(Duration::from_millis(1));
        }
        act(&sending);
        sending.wait().unwrap()
    }
}

/// As a device with one receive queue instead of one for each CPU; it also accepts redirected
/// frames.
const ONE_QUEUE: Offloads = Offloads {
    generic_receive: true,
    ..Offloads::OFF
};

/// Removes everything that a test leaves.
struct Cleaned<'a>(&'a Net);

impl Drop for Cleaned<'_> {
    fn drop(&mut self) {
        self.0.clean();
    }
}

#[test]
fn it_bridges_and_leaves_everything_as_it_was() {
    let Some(net) = net() else { return };
    let folder = Folder::new("bridge");
    let json = folder.path("stats.json");
    assert!(!net.pings(), "nothing joins them yet");
    let bridge = net
        .bridge(&["--stats", "--stats-json", &json, "--hang-ms", "10000"])
        .until("ready");
    assert!(net.pings());
    assert_eq!(net.attached(), [true, true]);
    bridge.signal(Signal::TERM);
    let ended = bridge.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(
        ended.stderr.contains("left by copy at XDP native"),
        "{ended:?}"
    );
    assert!(
        ended
            .stderr
            .contains("each frame: 2 copies by the kernel, 0 by weir"),
        "{ended:?}"
    );
    assert_eq!(net.attached(), [false, false]);
    assert!(!net.is_promiscuous());
    let stats: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    assert!(
        stats["links"][0]["rx_frames"].as_u64().unwrap() >= 3,
        "{stats}"
    );
    assert_eq!(stats["calls_rx"], 0, "{stats}");
    assert_eq!(stats["stations"], 2, "{stats}");
    assert!(!net.pings());
}

/// The output of a program in a host; `None` (after a skip) if it is not installed.
fn says(host: &Host, line: &str) -> Option<String> {
    let mut words = line.split_whitespace();
    let mut command = testenv::program(words.next().unwrap())?;
    command.args(words);
    let done = host.output(command).unwrap();
    Some(String::from_utf8_lossy(&done.stdout).into_owned())
}

#[test]
fn tools_of_users_go_through_it() {
    let Some(net) = net() else { return };
    let _bridge = net.bridge(&["--hang-ms", "10000"]).until("ready");
    if let Some(trace) = says(&net.a, "traceroute -n -q 1 -w 5 10.9.0.2") {
        let hops: Vec<&str> = trace.lines().skip(1).collect();
        assert!(hops.len() == 1 && hops[0].contains("10.9.0.2"), "{trace}");
    }
    let Some(mut server) = testenv::program("iperf3") else {
        return;
    };
    server
        .args(["-s", "-1"])
        .stdout(std::process::Stdio::null());
    let _server = net.b.spawn(server).unwrap();
    let began = Instant::now();
    loop {
        let said = says(&net.a, "iperf3 -c 10.9.0.2 -t 1 -J").unwrap();
        let report: Value = serde_json::from_str(&said).unwrap();
        if report["end"]["sum_received"]["bits_per_second"].as_f64() > Some(1e6) {
            break;
        }
        // The server may not have started yet.
        assert!(began.elapsed() < WAIT_MAX, "{said}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn killed_the_links_stay_joined_until_cleaned() {
    let Some(net) = net() else { return };
    let _cleaned = Cleaned(&net);
    let bridge = net
        .bridge(&["--bypass", "wire", "--hang-ms", "10000"])
        .until("ready");
    assert!(net.pings());
    bridge.signal(Signal::KILL);
    assert!(net.pings(), "joined in the kernel");
    assert_eq!(bridge.end().code, None);
    assert_eq!(net.attached(), [true, true]);
    assert!(net.is_promiscuous());
    // The next one takes over, and leaves the selected state on a signal.
    let bridge = net
        .bridge(&["--bypass", "wire", "--hang-ms", "10000"])
        .until("ready");
    assert!(net.pings());
    bridge.signal(Signal::INT);
    let ended = bridge.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(net.pings(), "joined in the kernel");
    assert_eq!(net.clean().code, Some(0));
    assert_eq!(net.attached(), [false, false]);
    assert!(!net.is_promiscuous());
    assert!(!net.pings());
    let again = net.clean();
    assert!(
        again.stderr.contains("nothing is left at left, right"),
        "{again:?}"
    );
}

/// Its program at XDP sees frames before a port at tc.
#[test]
fn what_looks_beside_it_names_its_program() {
    let Some(net) = net() else { return };
    let _cleaned = Cleaned(&net);
    let bridge = net.bridge(&["--hang-ms", "10000"]).until("ready");
    for beside in [
        &["listen", "left", "--for", "0"][..],
        &["top", "left", "--once", "--for", "0.2"],
    ] {
        let ended = Running::start(&net.middle, weir([]), beside).end();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let said = "at XDP, before this port, which does not get the frames that the program takes";
        assert!(ended.stderr.contains("left has the program"), "{ended:?}");
        assert!(ended.stderr.contains(said), "{ended:?}");
    }
    // Frames pass on the link, of which a port at tc sees none.
    let listen = ["listen", "left", "icmp", "--json"];
    let listen = Running::start(&net.middle, weir([]), &listen).until("weir: port");
    assert!(net.pings());
    listen.signal(Signal::TERM);
    let ended = listen.end();
    assert_eq!(ended.json()["frames"], 0, "{ended:?}");
    let said = "left has the program `weir_tap` at XDP, before this port";
    assert!(ended.stderr.contains(said), "{ended:?}");
    bridge.signal(Signal::INT);
    assert_eq!(bridge.end().code, Some(0));
}

/// What is plugged in at neither end says nothing by itself.
#[test]
fn why_nothing_passes_is_said() {
    let Some(net) = net() else { return };
    let _cleaned = Cleaned(&net);
    net.eth_a.down().unwrap();
    let commands = [
        &["bridge", "left", "right", "--hang-ms", "10000"][..],
        &[
            "shape",
            "left",
            "right",
            "--rate",
            "100M",
            "--hang-ms",
            "10000",
        ],
    ];
    for command in commands {
        let running = Running::start(&net.middle, weir([]), command).until("ready");
        let running = running.until("left has no carrier: nothing passes until the device");
        assert!(
            !running.said().contains("right has no"),
            "{}",
            running.said()
        );
        running.signal(Signal::INT);
        assert_eq!(running.end().code, Some(0));
        net.clean();
    }
    net.left.down().unwrap();
    let bridge = net
        .bridge(&["--hang-ms", "10000"])
        .until("left is down: nothing passes until");
    let bridge = bridge.until("ready");
    bridge.signal(Signal::INT);
    assert_eq!(bridge.end().code, Some(0));
}

/// A bridge without persistent state belongs to its process, and is not removed by --clean.
#[test]
fn what_a_running_bridge_has_is_not_cleaned() {
    let Some(net) = net() else { return };
    for bypass in ["kernel", "wire"] {
        let bridge = net
            .bridge(&["--bypass", bypass, "--hang-ms", "10000"])
            .until("ready");
        let refused = net.clean();
        assert_eq!(refused.code, Some(1), "{bypass}: {refused:?}");
        assert!(
            refused.stderr.contains("tapped by"),
            "{bypass}: {refused:?}"
        );
        assert_eq!(net.attached(), [true, true]);
        bridge.signal(Signal::INT);
        assert_eq!(bridge.end().code, Some(0));
        let _ = net.clean();
        assert_eq!(net.attached(), [false, false]);
    }
    let again = net.clean();
    assert_eq!(again.code, Some(0), "{again:?}");
    assert!(
        again.stderr.contains("nothing is left at left, right"),
        "{again:?}"
    );
}

/// Flow cache entries end with their bridge; the next one does not find them.
#[test]
fn killed_nothing_it_had_remembered_is_served() {
    let Some(net) = net() else { return };
    let _cleaned = Cleaned(&net);
    net.set_one_queue();
    let folder = Folder::new("bridge-fast");
    let json = folder.path("stats.json");
    let read = || -> Option<Value> {
        let stats = std::fs::read_to_string(&json).ok()?;
        serde_json::from_str(&stats).ok()
    };
    let went_by = || read()?["fast"]["frames"].as_u64();
    let options = [
        "--bypass",
        "drop",
        "--hang-ms",
        "10000",
        "--stats-json",
        &json,
    ];
    let remembering = [&options[..], &["--flow-cache", "on"]].concat();
    let bridge = net.bridge(&remembering).until("ready");
    assert!(net.pings());
    // On a busy machine the first of them may take long.
    let began = Instant::now();
    while went_by() < Some(400) {
        assert!(began.elapsed() < WAIT_MAX, "{:?}", read());
        net.generator()
            .unwrap()
            .send(500, Rate::PerSecond(2_000.0))
            .unwrap();
    }
    let sink = Sink::new(&net.eth_b, Hook::XdpNative).unwrap();
    bridge.signal(Signal::KILL);
    assert_eq!(bridge.end().code, None);
    let before = sink.counted().unwrap().frames;
    net.generator()
        .unwrap()
        .send(500, Rate::PerSecond(5_000.0))
        .unwrap();
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(sink.counted().unwrap().frames, before, "none passes");
    // The next bridge sees every frame.
    std::fs::remove_file(&json).unwrap();
    let bridge = net.bridge(&options).until("ready");
    let sent = net
        .generator()
        .unwrap()
        .send(500, Rate::PerSecond(5_000.0))
        .unwrap();
    let seen = |stats: &Value| {
        let counts = ["rx_frames", "rx_full", "rx_dropped"];
        let counts = counts.map(|what| stats["links"][0][what].as_u64().unwrap());
        counts.iter().sum::<u64>() + sent.dropped
    };
    let began = Instant::now();
    while read().is_none_or(|stats| seen(&stats) < 500) {
        assert!(began.elapsed() < WAIT_MAX, "{:?}", read());
        std::thread::sleep(Duration::from_millis(20));
    }
    bridge.signal(Signal::TERM);
    let ended = bridge.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let stats = read().unwrap();
    assert!(stats["fast"].is_null(), "{stats}");
}

#[test]
fn the_order_of_the_interfaces_makes_no_difference() {
    let Some(net) = net() else { return };
    let _cleaned = Cleaned(&net);
    let options = ["--bypass", "wire", "--hang-ms", "10000"];
    let bridge = net.bridge(&options).until("ready");
    // A running bridge stays, in whatever order its interfaces are named.
    let other = net.bridge_reversed(&options).end();
    assert_eq!(other.code, Some(1), "{other:?}");
    assert_eq!(net.attached(), [true, true]);
    assert!(net.pings());
    bridge.signal(Signal::KILL);
    assert_eq!(bridge.end().code, None);
    // A stopped bridge is taken over, with its settings.
    let bridge = net.bridge_reversed(&options).until("ready");
    assert!(net.pings());
    bridge.signal(Signal::TERM);
    let ended = bridge.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(net.clean().code, Some(0));
    assert_eq!(net.attached(), [false, false]);
    assert!(!net.is_promiscuous());
}

/// The loss caused by a kill, in frames.
#[derive(Debug)]
struct Killed {
    /// Sent before the kill, and not received.
    under_way: u64,
    /// Sent until the kernel had ended the process, which may be delayed by other load.
    until_dead: u64,
    /// Lost in total, including frames sent much later.
    lost: u64,
}

/// Kills a bridge while frames arrive at that rate.
fn kill_at(net: &Net, options: &[&str], rate: f64) -> Killed {
    const BEFORE: u64 = 10_000;
    const AFTER: u64 = 20_000;
    let _cleaned = Cleaned(net);
    // Counts at tc, where the frames of both directions arrive.
    let sink = Sink::new(&net.eth_b, Hook::TcIngress).unwrap();
    let dropped = || net.right.counters().unwrap().tx_dropped;
    let before = dropped();
    let bridge = net.bridge(options).until("ready");
    let mut generator = net.generator().unwrap();
    let sending = generator.start(u64::MAX, Rate::PerSecond(rate)).unwrap();
    let until = |sent: u64| {
        while sending.sent() < sent {
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    until(BEFORE);
    // Frames counted first were not sent later.
    let (came, at_kill) = (sink.counted().unwrap().frames, sending.sent());
    bridge.signal(Signal::KILL);
    // The kernel sets the liveness word before it frees the memory.
    while has_memory(bridge.id()) {
        // The kernel may need this CPU to end the process.
        std::thread::sleep(Duration::from_micros(20));
    }
    let at_death = sending.sent();
    until(at_death + AFTER);
    let sent = sending.stop().unwrap();
    assert_eq!(bridge.end().code, None);
    let arrived = || sink.counted().unwrap().frames + sent.dropped + dropped() - before;
    let began = Instant::now();
    while arrived() + at_death - came < sent.frames && began.elapsed() < WAIT_MAX {
        std::thread::sleep(Duration::from_millis(1));
    }
    // The last frames may still be in flight, in one batch.
    std::thread::sleep(Duration::from_millis(20));
    let killed = Killed {
        under_way: at_kill - came.min(at_kill),
        until_dead: at_death - at_kill,
        lost: sent.frames.saturating_sub(arrived()),
    };
    println!("{rate} a second: {killed:?}; {sent:?}");
    killed
}

/// Whether a process still has memory: it is freed early in its end.
fn has_memory(process: u32) -> bool {
    let pages = std::fs::read_to_string(format!("/proc/{process}/statm"));
    pages.is_ok_and(|pages| !pages.starts_with("0 "))
}

#[test]
fn killed_at_speed_it_loses_what_was_in_the_rings_at_most() {
    let Some(net) = net() else { return };
    let options = ["--bypass", "wire", "--hang-ms", "10000"];
    let killed = kill_at(&net, &options, 100_000.0);
    assert!(
        killed.lost <= killed.under_way + killed.until_dead,
        "{killed:?}"
    );
}

#[test]
fn hung_it_is_passed_by_and_comes_back_in_order() {
    let Some(net) = net() else { return };
    const FRAMES: u64 = 9_000;
    // Otherwise frames from another CPU could overtake on b itself.
    net.eth_b.set_offloads(ONE_QUEUE).unwrap();
    let folder = Folder::new("bridge-hung");
    let json = folder.path("stats.json");
    let _cleaned = Cleaned(&net);
    let socket = net.b.run(|| UdpSocket::bind("10.9.0.2:5000")).unwrap();
    socket
        .set_read_timeout(Some(Duration::from_millis(200)))
        .unwrap();
    // Enough room for all, since the reader may be preempted.
    rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, 64 << 20).unwrap();
    let options = ["--bypass", "wire", "--hang-ms", "50", "--stats-json", &json];
    let bridge = net.bridge(&options).until("ready");
    let (mut numbers, over) = (Vec::new(), AtomicBool::new(false));
    let sent = std::thread::scope(|scope| {
        let (numbers, over) = (&mut numbers, &over);
        scope.spawn(move || {
            let mut datagram = [0; 64];
            loop {
                let was_over = over.load(Ordering::Acquire);
                match socket.recv(&mut datagram) {
                    Ok(len) => {
                        assert!(len >= 8);
                        numbers.push(u64::from_be_bytes(datagram[..8].try_into().unwrap()));
                    }
                    Err(_) if was_over => break,
                    Err(_) => {}
                }
            }
        });
        let sent = net.send_and(FRAMES, 10_000.0, |sending| {
            // As long as 2,000 frames take, or longer.
            bridge.signal(Signal::STOP);
            let until = sending.sent() + 2_000;
            while sending.sent() < until {
                std::thread::sleep(Duration::from_millis(1));
            }
            bridge.signal(Signal::CONT);
        });
        bridge.signal(Signal::TERM);
        assert_eq!(bridge.end().code, Some(0));
        // The frames that it sent have arrived.
        over.store(true, Ordering::Release);
        sent
    });
    let stats: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let left = &stats["links"][0];
    println!("{} arrived of {sent:?}: {stats}", numbers.len());
    assert!(stats["hung"].as_u64().unwrap() >= 1, "{stats}");
    assert!(left["bypassed"].as_u64().unwrap() > 0, "{stats}");
    let turned: Vec<_> = numbers
        .windows(2)
        .filter(|pair| pair[0] >= pair[1])
        .collect();
    let mut once = numbers.clone();
    once.sort_unstable();
    assert!(once.windows(2).all(|pair| pair[0] < pair[1]), "each once");
    let count = |link: usize, what: &str| stats["links"][link][what].as_u64().unwrap();
    // A frame in the sending system call when the machine paused it.
    let late = count(0, "late") + count(1, "late");
    println!("turned: {turned:?}, {late} late");
    assert!(turned.len() as u64 <= late, "in order: {turned:?}, {stats}");
    let seen = ["rx_frames", "bypassed", "stale", "rx_full", "rx_dropped"];
    let seen = seen.map(|what| count(0, what));
    assert_eq!(seen.iter().sum::<u64>() + sent.dropped, FRAMES, "{stats}");
    let lost = ["stale", "no_room"].map(|what| count(0, what) + count(1, what));
    let by_device = net.right.counters().unwrap().tx_dropped;
    let missing = FRAMES - sent.dropped - numbers.len() as u64;
    let before = count(0, "rx_full") + count(0, "rx_dropped");
    let known = lost.iter().sum::<u64>() + before + by_device;
    assert_eq!(missing, known, "{stats}");
}

/// Of the frames that arrive while the bridge is stopped, only those within the hang limit and 2 ms
/// more do not take the bypass, whatever the load: the limit counts from the last heartbeat.
#[test]
fn hung_it_is_passed_by_within_its_limit() {
    let Some(net) = net() else { return };
    const PER_MS: u64 = 100;
    let sink = Sink::new(&net.eth_b, Hook::TcIngress).unwrap();
    for limit_ms in [10, 1] {
        let _cleaned = Cleaned(&net);
        let options = ["--bypass", "wire", "--hang-ms", &limit_ms.to_string()];
        let bridge = net.bridge(&options).until("ready");
        let mut generator = net.generator().unwrap();
        let rate = Rate::PerSecond(1e3 * PER_MS as f64);
        let sending = generator.start(u64::MAX, rate).unwrap();
        let until = |sent: u64| {
            while sending.sent() < sent {
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        until(100 * PER_MS);
        // Frames counted first were not sent later.
        let (came, sent) = (sink.counted().unwrap().frames, sending.sent());
        bridge.signal(Signal::STOP);
        until(sent + 100 * PER_MS);
        let (sent, came) = (sending.sent() - sent, sink.counted().unwrap().frames - came);
        let missing_ms = sent.saturating_sub(came) as f64 / PER_MS as f64;
        println!("limit {limit_ms} ms: {missing_ms:.2} ms of {sent} frames did not pass");
        assert!(missing_ms <= (limit_ms + 2) as f64, "{missing_ms} ms");
        bridge.signal(Signal::KILL);
        sending.stop().unwrap();
        bridge.end();
    }
}

/// On a machine without other load; otherwise even the end of the process is delayed: `cargo test
/// --release -p weir --test live_bridge -- --ignored --nocapture killed`
#[test]
#[ignore = "measures a millisecond: the machine must be quiet"]
fn killed_it_is_passed_by_within_a_millisecond() {
    let Some(net) = net() else { return };
    const PER_MS: u64 = 100;
    for _ in 0..10 {
        let options = ["--bypass", "wire"];
        let killed = kill_at(&net, &options, 1e3 * PER_MS as f64);
        let lost = killed.lost.saturating_sub(killed.under_way);
        println!("passed by after {:.2} ms", lost as f64 / PER_MS as f64);
        assert!(lost <= PER_MS, "{killed:?}");
    }
}

#[test]
fn restarted_after_a_death_and_after_a_hang() {
    let Some(net) = net() else { return };
    let _cleaned = Cleaned(&net);
    let options = ["--bypass", "wire", "--hang-ms", "1000", "--restart"];
    let mut bridge = net.bridge(&options).until("ready");
    let worker = |parent: u32| {
        let children = format!("/proc/{parent}/task/{parent}/children");
        let children = std::fs::read_to_string(children).unwrap();
        let child = children.split_whitespace().next()?;
        Pid::from_raw(child.parse().ok()?)
    };
    for signal in [Signal::KILL, Signal::STOP] {
        let before = worker(bridge.id()).unwrap();
        kill_process(before, signal).unwrap();
        bridge = bridge.until("starting anew");
        assert!(net.pings(), "joined, by whom ever");
        // Not earlier: a bridge stopped while it starts would block the process that starts it.
        bridge = bridge.until("ready");
        assert_ne!(worker(bridge.id()), Some(before));
        assert!(net.pings());
    }
    bridge.signal(Signal::TERM);
    let ended = bridge.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stderr.contains("hung, and was ended"), "{ended:?}");
    // Early failures cause increasing pauses.
    let pauses = ["anew in 100 ms", "anew in 200 ms"];
    let told = pauses.map(|pause| ended.stderr.contains(pause));
    assert_eq!(told, [true; 2], "{ended:?}");
}

/// A run whose statistics could not be written fails, whatever its options.
#[test]
fn statistics_that_were_not_written_are_a_failure() {
    let Some(net) = net() else { return };
    for restart in [&[][..], &["--restart"]] {
        let folder = Folder::new("bridge-unwritten");
        let json = folder.path("stats.json");
        let options = ["--hang-ms", "10000", "--stats-json", &json];
        let bridge = net.bridge(&[&options, restart].concat()).until("ready");
        // The process may be writing.
        while std::fs::metadata(folder.path("")).is_ok() {
            let _ = std::fs::remove_dir_all(folder.path(""));
        }
        bridge.signal(Signal::TERM);
        let ended = bridge.end();
        assert_eq!(ended.code, Some(1), "{ended:?}");
        let said = format!("cannot write {json}: No such file");
        assert!(ended.stderr.contains(&said), "{ended:?}");
        assert_eq!(net.attached(), [false, false]);
    }
}

/// timeout(1) sends two.
#[test]
fn two_signals_at_once_are_one() {
    let Some(net) = net() else { return };
    let options = ["--hang-ms", "10000", "--stats-json", "-"];
    let bridge = net.bridge(&options).until("ready");
    for signal in [Signal::STOP, Signal::TERM, Signal::INT, Signal::CONT] {
        bridge.signal(signal);
    }
    let ended = bridge.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(ended.json()["links"][1]["name"], "right", "{ended:?}");
}

#[test]
fn it_sends_heartbeats_to_the_watchdog() {
    let Some(net) = net() else { return };
    let folder = Folder::new("bridge-life");
    let (path, watchdog) = (folder.path("notify"), folder.write("watchdog", b""));
    let manager = UnixDatagram::bind(&path).unwrap();
    manager
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    let hear = || {
        let mut sign = [0; 256];
        let len = manager.recv(&mut sign).unwrap();
        String::from_utf8_lossy(&sign[..len]).into_owned()
    };
    let mut command = weir([]);
    command.env("NOTIFY_SOCKET", &path);
    command.env("WATCHDOG_USEC", "300000");
    let arguments = ["bridge", "left", "right", "--hang-ms", "10000"];
    let arguments = [&arguments[..], &["--watchdog", &watchdog]].concat();
    let bridge = Running::start(&net.middle, command, &arguments).until("ready");
    assert!(hear().starts_with("READY=1\n"));
    assert_eq!([hear(), hear()], ["WATCHDOG=1\n"; 2]);
    bridge.signal(Signal::TERM);
    assert_eq!(bridge.end().code, Some(0));
    let last = std::iter::from_fn(|| Some(hear())).find(|sign| sign != "WATCHDOG=1\n");
    assert_eq!(last.as_deref(), Some("STOPPING=1\n"));
    // Fed, and stopped with the magic character of watchdog(8).
    let fed = std::fs::read(&watchdog).unwrap();
    assert!(fed.len() >= 3 && fed.ends_with(b"\0V"), "{fed:?}");
}

#[test]
fn what_it_refuses() {
    let Some(net) = net() else { return };
    let refused = |options: &[&str], says: &str| {
        let ended = net.bridge(options).end();
        assert_eq!(ended.code, Some(2), "{ended:?}");
        assert!(ended.stderr.contains(says), "{says}: {ended:?}");
    };
    refused(&["--bypass", "none"], "wire, kernel or drop");
    refused(&["--hang-ms", "0"], "1..=60000");
    refused(&["--vlan-a", "9-3"], "not a list of VLANs");
    refused(&["--ring", "100"], "a power of two");
    refused(&["--busy-poll-us", "9999999999"], "0..=1000000000");
    refused(&["--spin-us", "9999999999"], "0..=1000000000");
    refused(&["--age", "-1"], "invalid value '-1' for '--age <SECONDS>'");
    let ended = net.bridge(&["--watchdog", "/nowhere/watchdog"]).end();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(
        ended.stderr.contains("cannot open the watchdog"),
        "{ended:?}"
    );
    let same = ["bridge", "left", "left"];
    let ended = Running::start(&net.middle, weir([]), &same).end();
    assert_eq!(ended.code, Some(2), "{ended:?}");
    // While a bridge runs, another is refused, persistent or not.
    let bridge = net.bridge(&["--hang-ms", "10000"]).until("ready");
    for bypass in ["kernel", "drop"] {
        let second = net.bridge(&["--bypass", bypass]).end();
        assert_eq!(second.code, Some(1), "{second:?}");
        let says = format!("to `left`, by process {} (`weir`): end it", bridge.id());
        assert!(second.stderr.contains(&says), "{second:?}");
    }
    bridge.signal(Signal::TERM);
    bridge.end();
    let bridge = net
        .bridge(&["--bypass", "drop", "--hang-ms", "10000"])
        .until("ready");
    let _cleaned = Cleaned(&net);
    for options in [&["--bypass", "drop"][..], &["--clean"]] {
        let second = net.bridge(options).end();
        assert_eq!(second.code, Some(1), "{second:?}");
        let says = format!("tapped by process {} (`weir`): end it first", bridge.id());
        assert!(second.stderr.contains(&says), "{second:?}");
        assert!(second.stderr.contains("`left`, `right` are"), "{second:?}");
    }
    assert!(net.pings());
    bridge.signal(Signal::KILL);
    bridge.end();
    assert!(!net.pings(), "none passes");
}
