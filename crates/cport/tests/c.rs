//! C programs, built by the system's compiler, between two hosts: one that makes each
//! call as its input says, and the example.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::{ChildStdin, ChildStdout, Stdio};
use std::sync::mpsc::channel;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use weir_broker::daemon::Daemon;
use weir_broker::engine::kernel::KernelBackend;
use weir_broker::policy::{Accounts, Policy};
use weir_broker::protocol::Listener;
use weir_broker::runtime_dir::RuntimeDir;
use weir_broker::{Port, Timeout};
use weir_lab::c;
use weir_lab::command::Command;
use weir_lab::net::{Pair, Process, Signal, unprivileged};
use weir_lab::testenv;
use weir_lab::wait::{Limited, WAIT_MAX, until};

const TAKE: u32 = 1;
const SEND: u32 = 2;
const LATENCY: u32 = 4;
/// Five seconds, as an argument: longer than anything takes that arrives.
const LONG_US: u32 = 5_000_000;

/// A temporary folder, removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let name = format!("weir-cport-{}-{name}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir(&folder).unwrap();
        Folder(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A compiled program with the static library; `None` (after `skip`) without a compiler.
fn compiled(folder: &Folder, source: &str) -> Option<PathBuf> {
    let library = c::folder_of("libweirport.a").join("libweirport.a");
    c::compiled(&folder.0, source, &[library.to_str().unwrap()])
}

/// `calls.c`, which makes a call for each line.
struct Caller {
    calls: ChildStdin,
    results: BufReader<Limited<ChildStdout>>,
    process: Process,
}

impl Caller {
    fn start(net: &Pair, mut command: Command) -> Caller {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = net.b.spawn(command).unwrap();
        let results = process.child_mut().stdout.take().unwrap();
        Caller {
            calls: process.child_mut().stdin.take().unwrap(),
            results: BufReader::new(Limited::new(results, "a result of the program")),
            process,
        }
    }

    /// Starts a call.
    fn call(&mut self, call: &str) {
        self.calls.write_all(call.as_bytes()).unwrap();
        self.calls.write_all(b"\n").unwrap();
    }

    /// The next line of results.
    #[track_caller]
    fn result(&mut self) -> String {
        let mut line = String::new();
        self.results.read_line(&mut line).unwrap();
        assert!(line.ends_with('\n'), "the program ended: {line:?}");
        line.trim_end().to_owned()
    }

    /// Makes a call; returns its result.
    #[track_caller]
    fn ask(&mut self, call: &str) -> String {
        self.call(call);
        self.result()
    }

    /// Opens a port.
    #[track_caller]
    fn open(&mut self, flags: u32, interface: &str, filter: &str) {
        let opened = self.ask(&format!("open {flags} 0 - {interface} {filter}"));
        assert_eq!(opened, "opened, link type 1");
    }

    /// The frames that arrive, until `count`.
    #[track_caller]
    fn frames(&mut self, count: usize) -> Vec<String> {
        let mut frames = Vec::new();
        while frames.len() < count {
            let left = count - frames.len();
            let result = self.ask(&format!("recv {} {LONG_US}", left.min(256)));
            let mut words = result.split(' ');
            let number: usize = words.next().unwrap().parse().expect(&result);
            assert!(number > 0, "{frames:?} of {count}");
            frames.extend(words.map(str::to_owned));
        }
        frames
    }

    /// Nothing is in the queue, and nothing arrives.
    #[track_caller]
    fn none_more(&mut self) {
        assert_eq!(self.ask("recv 1 50000"), "0");
    }

    /// Ends the program, which ends without an error.
    fn end(self) {
        let Caller {
            calls, mut process, ..
        } = self;
        drop(calls);
        let status = process.ended(WAIT_MAX).unwrap();
        assert!(status.success(), "{status:?}");
    }
}

/// Two hosts, and the program that makes calls in the second; `None` (after `skip`) without
/// root or a compiler.
fn caller(folder: &Folder) -> Option<(Pair, Caller)> {
    if !testenv::root() {
        return None;
    }
    let program = compiled(folder, "crates/cport/tests/calls.c")?;
    let net = Pair::new().unwrap();
    let caller = Caller::start(&net, Command::built(program));
    Some((net, caller))
}

/// The frames of [`Pair::send`] as the program prints them.
fn sent(count: u32) -> Vec<String> {
    (0..count)
        .map(|number| format!("46/46:{number:08x}"))
        .collect()
}

/// A port of the first host for the frames that the program sends.
fn judge(net: &Pair) -> Port {
    net.a.run(|| {
        let port = Port::on(net.eth_a.name()).in_process();
        port.filter("ether proto 0x88b5").unwrap().open().unwrap()
    })
}

#[track_caller]
fn judged(judge: &mut Port, count: usize) {
    let mut came = 0;
    let began = Instant::now();
    while came < count && began.elapsed() < WAIT_MAX {
        let frames = judge.recv_batch(Timeout::after(Duration::from_secs(1)));
        for frame in frames.unwrap() {
            assert_eq!(frame.bytes().len(), 64);
            came += 1;
        }
    }
    assert_eq!(came, count);
    let more = judge.recv_batch(Timeout::after(Duration::from_millis(50)));
    assert!(more.unwrap().is_empty());
}

#[test]
fn a_port_receives_exactly_the_frames_of_its_filter() {
    let folder = Folder::new("receives");
    let Some((net, mut caller)) = caller(&folder) else {
        return;
    };
    caller.open(0, net.eth_b.name(), "udp dst port 5000");
    net.send(4999, 3).unwrap();
    net.send(5000, 1000).unwrap();
    net.send(5001, 3).unwrap();
    assert_eq!(caller.frames(1000), sent(1000));
    caller.none_more();
    let counters = caller.ask("counters");
    assert_eq!(counters, "delivered 1000 lost 0 sent 0 refused 0");
    // Frames that stay in the queue, and one at a time.
    net.send(5000, 3).unwrap();
    assert_eq!(caller.ask(&format!("wait {LONG_US}")), "1");
    for number in 0..3 {
        let frame = caller.ask(&format!("recv 1 {LONG_US}"));
        assert_eq!(frame, format!("1 46/46:{number:08x}"));
    }
    assert_eq!(caller.ask("close"), "closed");
    caller.end();
}

#[test]
fn options_apply() {
    let folder = Folder::new("options");
    let Some((net, mut caller)) = caller(&folder) else {
        return;
    };
    let host = net.server(5000).unwrap();
    let name = net.eth_b.name();
    let flags = TAKE | LATENCY;
    let opened = caller.ask(&format!("open {flags} 42 - {name} udp dst port 5000"));
    assert_eq!(opened, "opened, link type 1");
    net.send(5000, 1).unwrap();
    // Cut behind the UDP header, whose end is the checksum.
    let frames = caller.frames(1);
    assert!(
        frames[0].starts_with("42/46:") && frames[0].ends_with('c'),
        "{frames:?}"
    );
    assert!(host.recv(&mut [0; 9]).is_err(), "taken from the host");
    assert_eq!(caller.ask("close"), "closed");
    caller.open(0, name, "udp");
    net.send(5000, 1).unwrap();
    host.recv(&mut [0; 9]).expect("copied");
    host.send_to(b"text", "10.0.0.1:9").unwrap();
    assert_eq!(caller.frames(2), ["46/46:00000000", "46/46:74657874o"]);
    caller.end();
}

#[test]
fn a_filter_changes_and_a_wrong_one_changes_nothing() {
    let folder = Folder::new("filter");
    let Some((net, mut caller)) = caller(&folder) else {
        return;
    };
    caller.open(0, net.eth_b.name(), "udp dst port 5000");
    assert_eq!(caller.ask("filter udp dst port 6000"), "0");
    net.send(6000, 2).unwrap();
    assert_eq!(caller.frames(2), sent(2));
    let refused = caller.ask("filter udp prt 7000");
    assert!(
        refused.starts_with("failed: ") && refused.contains("`prt`") && refused.contains("`port`"),
        "{refused}"
    );
    net.send(6000, 2).unwrap();
    assert_eq!(caller.frames(2), sent(2));
    // The first filter ends within moments.
    until("the old filter ends", || {
        net.send(5000, 1).unwrap();
        caller.ask("recv 256 50000") == "0"
    });
    caller.end();
}

#[test]
fn a_wait_ends_in_time_and_the_descriptor_tells_of_frames() {
    let folder = Folder::new("waits");
    let Some((net, mut caller)) = caller(&folder) else {
        return;
    };
    caller.open(0, net.eth_b.name(), "udp dst port 5000");
    for call in ["recv 1 300000", "wait 300000", "poll 300"] {
        let began = Instant::now();
        assert_eq!(caller.ask(call), "0");
        let waited = began.elapsed();
        assert!(waited >= Duration::from_millis(300), "{call}: {waited:?}");
        assert!(waited < WAIT_MAX, "{call}: {waited:?}");
    }
    assert_eq!(caller.ask("recv 1 0"), "0");
    // Each time the queue has been emptied, the next frame wakes.
    for _ in 0..20 {
        caller.call("poll 60000");
        thread::sleep(Duration::from_millis(5));
        net.send(5000, 1).unwrap();
        assert_eq!(caller.result(), "1");
        assert_eq!(caller.ask("recv 256 0"), "1 46/46:00000000");
        assert_eq!(caller.ask("recv 256 0"), "0");
    }
    // Without a limit.
    caller.call("recv 1 -1");
    thread::sleep(Duration::from_millis(700));
    net.send(5000, 1).unwrap();
    assert_eq!(caller.result(), "1 46/46:00000000");
    caller.end();
}

#[test]
fn frames_are_sent_also_while_another_thread_waits() {
    let folder = Folder::new("sends");
    let Some((net, mut caller)) = caller(&folder) else {
        return;
    };
    let mut judge = judge(&net);
    caller.open(SEND, net.eth_b.name(), "udp dst port 5000");
    assert_eq!(caller.ask("send 1"), "1");
    assert_eq!(caller.ask("send 16"), "16");
    judged(&mut judge, 17);
    caller.call("threads udp dst port 6000");
    assert_eq!(caller.result(), "sent 1");
    net.send(6000, 1).unwrap();
    assert_eq!(caller.result(), "waited 1");
    judged(&mut judge, 1);
    assert_eq!(caller.frames(1), sent(1));
    caller.end();
}

#[test]
fn what_fails_says_why() {
    let folder = Folder::new("fails");
    let Some((net, mut caller)) = caller(&folder) else {
        return;
    };
    let missing = caller.ask("open 0 0 - nosuch0 udp");
    assert!(
        missing.starts_with("failed: ") && missing.contains("nosuch0"),
        "{missing}"
    );
    let name = net.eth_b.name();
    let filter = caller.ask(&format!("open 0 0 - {name} tcp prt 80"));
    assert!(
        filter.starts_with("failed: ") && filter.contains("`prt`"),
        "{filter}"
    );
    let broker = caller.ask(&format!("open 0 0 /nonexistent/socket {name} udp"));
    assert!(
        broker.starts_with("failed: no broker listens on /nonexistent/socket"),
        "{broker}"
    );
    caller.open(0, name, "udp");
    assert_eq!(caller.ask(&format!("wrong {name}")), "all refused");
    // The port has stayed as it was.
    net.send(5000, 1).unwrap();
    assert_eq!(caller.frames(1), sent(1));
    // A wait ends with the interface, and so do later calls.
    caller.call("recv 1 -1");
    net.eth_b.delete().unwrap();
    let gone = caller.result();
    assert!(
        gone.starts_with("failed: the port on ") && gone.contains("the interface is gone"),
        "{gone}"
    );
    assert_eq!(caller.ask("recv 1 0"), gone);
    assert_eq!(caller.ask("close"), "closed");
    caller.end();
}

/// A broker in the second host, with paths for users to send by; it ends with this.
struct Broker {
    keep: PathBuf,
    stop: Option<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Broker {
    fn start(net: &Pair, folder: &Folder, policy: &str) -> Broker {
        let listener = Listener::bind(&folder.0.join("broker")).unwrap();
        let keep = folder.0.join("keep");
        let policy = Policy::parse(policy, &Accounts::default()).unwrap();
        let (stopped, stop) = rustix::pipe::pipe().unwrap();
        let (host, path) = (net.b.clone(), keep.clone());
        let (ready, is_ready) = channel();
        let thread = thread::spawn(move || {
            host.enter().unwrap();
            let keep = RuntimeDir::open(&path).unwrap();
            let kernel = KernelBackend::open().unwrap().pinned(&keep);
            let mut daemon = Daemon::new(listener, kernel, policy, Accounts::default()).unwrap();
            daemon.persist_in(keep).unwrap();
            ready.send(()).unwrap();
            daemon.run(stopped.as_fd()).unwrap();
        });
        is_ready.recv_timeout(WAIT_MAX).unwrap();
        Broker {
            keep,
            stop: Some(stop),
            thread: Some(thread),
        }
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.stop = None;
        let ended = self.thread.take().map(JoinHandle::join);
        if !thread::panicking() {
            ended.unwrap().unwrap();
        }
        let cleaned = RuntimeDir::clean(&self.keep);
        assert!(thread::panicking() || cleaned.is_ok(), "{cleaned:?}");
    }
}

#[test]
fn a_user_has_the_ports_that_the_broker_grants() {
    if !testenv::root() {
        return;
    }
    let folder = Folder::new("user");
    let Some(program) = compiled(&folder, "crates/cport/tests/calls.c") else {
        return;
    };
    let net = Pair::new().unwrap();
    let socket = folder.0.join("broker");
    let policy = "[[grant]]\nusers = ['*']\ninterfaces = ['*']\nports_max = 2\n\
                  memory_max = '4 MiB'\nfilter = 'udp dst port 5000'\n\
                  send = { ethertypes = [0x88b5] }\n";
    let broker = Broker::start(&net, &folder, policy);
    let mut caller = Caller::start(&net, unprivileged::command(&program));
    let name = net.eth_b.name();
    let open = |flags| format!("open {flags} 0 {} {name} udp", socket.display());
    let refused = caller.ask(&open(TAKE));
    assert!(refused.starts_with("failed: "), "{refused}");
    assert_eq!(caller.ask(&open(SEND)), "opened, link type 1");
    net.send(4999, 1).unwrap();
    net.send(5000, 3).unwrap();
    assert_eq!(caller.frames(3), sent(3));
    caller.none_more();
    // The frame has another source address than the interface.
    assert_eq!(caller.ask("send 1"), "1");
    until("the refused frame is counted", || {
        caller.ask("counters") == "delivered 3 lost 0 sent 0 refused 1"
    });
    caller.end();
    drop(broker);
}

#[test]
fn the_example_prints_frames_and_ends_by_a_signal() {
    if !testenv::root() {
        return;
    }
    let folder = Folder::new("example");
    let Some(program) = compiled(&folder, "examples/port_count.c") else {
        return;
    };
    let net = Pair::new().unwrap();
    let mut command = Command::built(&program);
    command.args([net.eth_b.name(), "udp dst port 5000"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = net.b.spawn(command).unwrap();
    let says = process.child_mut().stderr.take().unwrap();
    let mut line = String::new();
    let says = Limited::new(says, "`ready` of the program");
    BufReader::new(says).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    net.send(5000, 3).unwrap();
    let prints = process.child_mut().stdout.take().unwrap();
    let prints = BufReader::new(Limited::new(prints, "a frame of the program"));
    let mut prints = prints.lines().map(Result::unwrap);
    let end = |line: &str| line.split_once(' ').unwrap().1.to_owned();
    let [to, from] = [&net.eth_b, &net.eth_a].map(|device| {
        let bytes = device.mac().0.map(|byte| format!("{byte:02x}"));
        bytes.join(" ")
    });
    for _ in 0..3 {
        let line = prints.next().unwrap();
        assert_eq!(end(&line), format!("in 46 bytes: {to} {from} 08 00"));
    }
    process.signal(Signal::INT).unwrap();
    assert_eq!(prints.next().unwrap(), "3 frames, 0 lost");
    assert_eq!(prints.next(), None);
    assert!(process.ended(WAIT_MAX).unwrap().success());
    let missing = net.b.output({
        let mut command = Command::built(&program);
        command.args(["nosuch0", "udp"]);
        command
    });
    let missing = missing.unwrap();
    let said = String::from_utf8_lossy(&missing.stderr);
    assert_eq!(missing.status.code(), Some(1), "{said}");
    assert!(
        said.starts_with("open: ") && said.contains("nosuch0"),
        "{said}"
    );
    let usage = Command::built(&program).output().unwrap();
    assert_eq!(usage.status.code(), Some(2));
}

#[test]
fn a_program_links_with_both_libraries() {
    let folder = Folder::new("both");
    let libraries = c::folder_of("libweirport.so");
    let place = libraries.to_str().unwrap();
    let found = format!("-Wl,-rpath,{place}");
    let options = ["-L", place, "-lweirport", "-lweirtap", &found];
    let Some(program) = c::compiled(&folder.0, "crates/cport/tests/both.c", &options) else {
        return;
    };
    let output = Command::built(&program).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    let said: Vec<&str> = said.lines().collect();
    assert!(
        matches!(said[..], [port, tap] if port.starts_with("the port is") && tap.starts_with("a tap")),
        "{said:?}"
    );
}

/// The header declares exactly the library's functions, all with its prefix.
#[test]
fn the_header_and_the_library_name_the_same_functions() {
    let defined = c::defined(include_str!("../src/lib.rs"));
    assert_eq!(defined, c::declared("weir_port.h"));
    assert!(defined.len() > 9, "{defined:?}");
    let has_prefix = |name: &String| name.starts_with("weir_port_");
    assert!(defined.iter().all(has_prefix), "{defined:?}");
}
