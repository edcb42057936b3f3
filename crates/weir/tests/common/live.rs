//! Runs the binary in network namespaces.
#![allow(dead_code, reason = "each test file uses a part of it")]

use crate::common::{Folder, until_it_hears, weir};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::UdpSocket;
use std::ops::Deref;
use std::os::unix::fs::PermissionsExt;
use std::process::{ChildStderr, ChildStdout, Stdio};
use std::time::{Duration, Instant};
use weir_lab::command::Command;
use weir_lab::net::{Host, Pair, Process, Signal, traffic, unprivileged};
use weir_lab::testenv;
pub(crate) use weir_lab::wait::WAIT_MAX;
use weir_lab::wait::{self, Limited};

/// Two hosts and a link, with a device `eth0` each.
pub(crate) struct Net(Pair);

/// `None` without root.
pub(crate) fn net() -> Option<Net> {
    if !testenv::root() {
        return None;
    }
    Some(Net(Pair::new().unwrap()))
}

impl Deref for Net {
    type Target = Pair;

    fn deref(&self) -> &Pair {
        &self.0
    }
}

impl Net {
    /// Sends datagrams from a to b's port.
    pub(crate) fn send(&self, dst_port: u16, count: u32) {
        self.0.send(dst_port, count).unwrap();
    }

    /// A socket of b's kernel.
    pub(crate) fn server(&self, port: u16) -> UdpSocket {
        self.0.server(port).unwrap()
    }

    /// Starts the binary in b.
    pub(crate) fn weir(&self, arguments: &[&str]) -> Running {
        Running::start(&self.b, weir([]), arguments)
    }

    /// Starts the binary in b, as user nobody.
    pub(crate) fn weir_as_nobody(&self, arguments: &[&str]) -> Running {
        let command = unprivileged::command(env!("CARGO_BIN_EXE_weir"));
        Running::start(&self.b, command, arguments)
    }
}

/// A running `weir`, killed when it is dropped.
pub(crate) struct Running {
    process: Process,
    errors: Option<Limited<ChildStderr>>,
    said: String,
}

/// The result of a run.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ended {
    /// The last line, parsed as JSON.
    pub(crate) fn json(&self) -> Value {
        let line = self.stdout.lines().last().unwrap_or_default();
        serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

impl Running {
    /// What a command that was started with `--metrics 127.0.0.1:0` on this host shows.
    pub(crate) fn metrics(&self, host: &Host) -> String {
        let (_, at) = self.said().split_once("metrics at http://").unwrap();
        let (at, _) = at.split_once("/metrics\n").unwrap();
        host.run(|| {
            let mut client = wait::connect(at.parse().unwrap()).unwrap();
            client.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
            let mut text = String::new();
            client.read_to_string(&mut text).unwrap();
            text
        })
    }

    /// Waits until its metrics have all of these lines, or parts of them; returns them.
    pub(crate) fn until_metrics(&self, host: &Host, lines: &[&str]) -> String {
        let mut text = String::new();
        wait::until("these metrics", || {
            text = self.metrics(host);
            std::thread::sleep(Duration::from_millis(50));
            lines.iter().all(|line| text.contains(line))
        });
        text
    }

    /// Starts a command in a host.
    pub(crate) fn start(host: &Host, mut command: Command, arguments: &[&str]) -> Running {
        command
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let what = format!("a line or the end of {command:?}");
        let mut process = host.spawn(command).unwrap();
        let errors = process.child_mut().stderr.take();
        Running {
            errors: errors.map(|errors| Limited::new(errors, what)),
            process,
            said: String::new(),
        }
    }

    /// Waits until a line on standard error contains these words.
    pub(crate) fn until(mut self, words: &str) -> Running {
        let mut errors = BufReader::with_capacity(1, self.errors.take().unwrap());
        let mut line = String::new();
        while !line.contains(words) {
            line.clear();
            let read = errors.read_line(&mut line);
            self.said += &line;
            let read = read.unwrap_or_else(|error| panic!("`{words}`: {error}: {}", self.said));
            assert!(read > 0, "it never said `{words}`: {}", self.said);
        }
        self.errors = Some(errors.into_inner());
        self
    }

    pub(crate) fn signal(&self, signal: Signal) {
        if [Signal::INT, Signal::TERM].contains(&signal) {
            until_it_hears(self.id());
        }
        self.process.signal(signal).unwrap();
    }

    /// As [`Running::signal`], for a program that does not handle the signal.
    pub(crate) fn signal_at_once(&self, signal: Signal) {
        self.process.signal(signal).unwrap();
    }

    /// The next line on standard error.
    pub(crate) fn line(&mut self) -> String {
        let mut errors = BufReader::with_capacity(1, self.errors.take().unwrap());
        let mut line = String::new();
        errors.read_line(&mut line).unwrap();
        self.said += &line;
        self.errors = Some(errors.into_inner());
        line
    }

    /// Waits until a pipe without a reader has little room left: its pages are at least half full.
    pub(crate) fn until_full(mut self) -> Running {
        let stdout = self.process.child_mut().stdout.as_ref().unwrap();
        let began = Instant::now();
        while rustix::io::ioctl_fionread(stdout).unwrap() < 32_768 {
            assert!(began.elapsed() < WAIT_MAX, "it writes too little");
            std::thread::sleep(Duration::from_millis(1));
        }
        self
    }

    /// Its standard output, to be read while it runs, or dropped to close it.
    pub(crate) fn take_stdout(&mut self) -> Limited<ChildStdout> {
        let out = self.process.child_mut().stdout.take().unwrap();
        Limited::new(out, "more on standard output")
    }

    /// The lines on standard error so far.
    pub(crate) fn said(&self) -> &str {
        &self.said
    }

    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Interrupts it and waits for its end.
    pub(crate) fn stop(self) -> Ended {
        self.signal(Signal::INT);
        let ended = self.end();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        ended
    }

    /// Waits for its end.
    pub(crate) fn end(mut self) -> Ended {
        let ended = self.process.wait(WAIT_MAX).unwrap();
        let status = ended.unwrap_or_else(|| panic!("it does not end: {}", self.said));
        let mut stdout = String::new();
        if let Some(out) = self.process.child_mut().stdout.take() {
            let mut out = Limited::new(out, "the end of standard output");
            out.read_to_string(&mut stdout).unwrap();
        }
        let mut errors = self.errors.take().unwrap();
        errors.read_to_string(&mut self.said).unwrap();
        Ended {
            code: status.code(),
            stdout,
            stderr: self.said,
        }
    }
}

/// A broker of b for all users, which keeps its state in a folder; what it keeps is removed at the end.
pub(crate) struct Broker<'a> {
    net: &'a Net,
    arguments: Vec<String>,
    running: Option<Running>,
}

impl Broker<'_> {
    pub(crate) fn start<'a>(net: &'a Net, folder: &Folder) -> Broker<'a> {
        let policy =
            "[[grant]]\nusers = [\"*\"]\ninterfaces = [\"eth0\"]\nmemory_max = \"64 MiB\"\n";
        let config = folder.write("policy.toml", policy.as_bytes());
        let (socket, keep) = (folder.path("socket"), folder.path("keep"));
        let arguments = ["--config", &config, "--socket", &socket, "--keep", &keep];
        let mut broker = Broker {
            net,
            arguments: arguments.map(str::to_owned).into(),
            running: None,
        };
        broker.start_again();
        broker
    }

    fn arguments(&self) -> Vec<&str> {
        self.arguments.iter().map(String::as_str).collect()
    }

    pub(crate) fn start_again(&mut self) {
        let broker = self
            .net
            .weir(&[&["broker"][..], &self.arguments()].concat());
        self.running = Some(broker.until("listens on").until("ready"));
    }

    pub(crate) fn kill(&mut self) {
        if let Some(running) = self.running.take() {
            running.signal_at_once(Signal::KILL);
            running.end();
        }
    }
}

impl Drop for Broker<'_> {
    fn drop(&mut self) {
        self.kill();
        let clean = [&["broker", "--clean"][..], &self.arguments()[2..]].concat();
        let ended = self.net.weir(&clean).end();
        assert!(
            ended.code == Some(0) || std::thread::panicking(),
            "{ended:?}"
        );
    }
}

/// A signal that ends a command like SIGTERM: SIGHUP, unless the tests were started with SIGHUP
/// ignored (`nohup`).
pub(crate) fn hangup() -> (Signal, i32) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = u64::from_str_radix(ignored.unwrap().trim(), 16).unwrap();
    match ignored & 1 {
        0 => (Signal::HUP, 129),
        _ => (Signal::TERM, 143),
    }
}

/// A folder that user nobody can use too.
pub(crate) fn open_folder(name: &str) -> Folder {
    let folder = Folder::new(name);
    let anybody = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(folder.path(""), anybody).unwrap();
    folder
}

/// Runs ip(8) in a host. The test has asked for it.
pub(crate) fn ip(host: &Host, arguments: &[&str]) {
    let mut command = testenv::program("ip").expect("the test has asked for it");
    command.args(arguments);
    let done = host.output(command).unwrap();
    assert!(done.status.success(), "ip {arguments:?}: {done:?}");
}

/// What a program prints in a host; `None` without the program.
pub(crate) fn run(host: &Host, program: &str, arguments: &[&str]) -> Option<String> {
    let mut command = testenv::program(program)?;
    command.args(arguments);
    let done = host.output(command).unwrap();
    Some(String::from_utf8_lossy(&done.stdout).into_owned())
}

/// How many of three echo requests are answered.
pub(crate) fn pings(host: &Host, to: &str) -> usize {
    let pings = traffic::ping(host, to.parse().unwrap(), 3, Duration::from_secs(2)).unwrap();
    pings.round_trips.len()
}

/// Starts an implementation of a protocol that shares nothing with weir's: a file of `peers/`. The
/// test has asked for python3.
pub(crate) fn peer(host: &Host, file: &str, arguments: &[&str]) -> Running {
    let command = testenv::program("python3").expect("the test has asked for it");
    let path = format!("{}/tests/peers/{file}", env!("CARGO_MANIFEST_DIR"));
    Running::start(host, command, &[&[&*path], arguments].concat())
}
