//! The doors that users know, beside the programs that they have: tcpdump by weir's libpcap and by
//! the system's, `weir top` and rustnet, and how soon a started command has its first frame.
//!
//! ```sh
//! sudo cargo bench -p weir --bench doors -- [tcpdump] [readers] [top] [start]
//! ```
//!
//! Frames of 60 bytes arrive at an interface, behind its driver, on one CPU; what is measured runs
//! on the other one.
//!
//! - `tcpdump`: the highest rate without loss of one tcpdump that writes a file, and of one that
//!   prints.
//! - `readers`: the same of [`tcpdump::READERS`] that write, each with a filter of its own; the sum.
//! - `top`: `weir top` at a million frames a second: losses, counts, and processor time; its processor
//!   time beside that of rustnet (`cargo install rustnet-monitor`), at a rate at which both lose
//!   nothing; its counts and those of `weir listen`. Without rustnet the rest is measured.
//! - `start`: from the start of a command until it has printed its first frame.

mod start;
mod tcpdump;
mod top;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use weir_lab::affinity;
use weir_lab::command::Command;
use weir_lab::load::{Generator, Udp};
use weir_lab::net::{Pair, Process, Signal};
use weir_lab::results::{Figures, Parts, recorder};
use weir_lab::testenv;
use weir_wire::ethernet::Address;

/// The CPU that sends and receives.
const SENDING: usize = 0;
/// The CPU of the measured programs.
const READING: usize = 1;
/// Longest wait for a program to start, to answer, or to end.
const WAIT_MAX: Duration = Duration::from_secs(30);
/// The source address of frames.
const SRC: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);

/// Ports for user nobody and another one, as many as the readers need.
const POLICY: &str = "[[grant]]\nusers = [65533, 65534]\ninterfaces = [\"eth0\"]\nports_max = 128\n\
                      memory_max = \"512 MiB\"\nmemory_total = \"512 MiB\"\n";

fn main() {
    if !testenv::root() {
        return;
    }
    let results = recorder!();
    let parts = Parts::of_arguments();
    // Processes and threads start on the CPU of their parent.
    affinity::pin(None, READING).expect("a second CPU");
    if parts.wants("tcpdump") && testenv::programs(&["tcpdump"]) {
        tcpdump::one(&results);
    }
    if parts.wants("readers") && testenv::programs(&["tcpdump"]) {
        tcpdump::readers(&results);
    }
    if parts.wants("top") {
        top::top(&results);
    }
    if parts.wants("start") && testenv::programs(&["script", "tcpdump"]) {
        start::start(&results);
    }
}

/// The median; 0 without any.
fn median(values: Vec<f64>) -> f64 {
    Figures::of(values).map_or(0.0, |figures| figures.median())
}

/// A network of two hosts, a folder that any user can read, and a broker at the second host.
struct Bed {
    net: Pair,
    folder: PathBuf,
    broker: Option<Process>,
}

impl Bed {
    fn new(name: &str) -> Bed {
        let folder = std::env::temp_dir().join(format!("weir-doors-{}-{name}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).expect("a mode");
        Bed {
            net: Pair::new().expect("a network"),
            folder,
            broker: None,
        }
    }

    /// A path in the folder.
    fn path(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    fn start_broker(&mut self) {
        let policy = self.path("policy.toml");
        fs::write(&policy, POLICY).expect("a file");
        let (socket, keep) = (self.path("socket"), self.path("keep"));
        let mut command = weir(&["broker", "--config", &policy, "--socket", &socket]);
        command.args(["--keep", &keep]);
        let mut broker = self.spawn(command);
        broker.until("ready");
        self.broker = Some(broker.process);
    }

    /// Starts a program at the second host, on the CPU of the measured programs.
    fn spawn(&self, mut command: Command) -> Program {
        command.stderr(Stdio::piped()).stdout(Stdio::piped());
        self.spawn_directed(command)
    }

    /// As [`Bed::spawn`], with the outputs that the command has.
    fn spawn_directed(&self, command: Command) -> Program {
        let mut command = command.into();
        affinity::pin_command(&mut command, READING);
        let mut process = self.net.b.spawn(command).expect("it starts");
        Program {
            said: process.child_mut().stderr.take().map(lines),
            printed: process.child_mut().stdout.take().map(lines),
            process,
        }
    }

    /// Frames of 60 bytes to another station, which the host's own stack drops at once.
    fn frames(&self) -> Udp {
        let other = Address([2, 9, 9, 9, 9, 9]);
        Udp::new(self.net.eth_a.mac(), other, SRC, Ipv4Addr::new(10, 8, 0, 1))
    }

    /// Make it after the receivers: it is what receives at present that frames go to.
    fn generator(&self, frames: &Udp) -> Generator {
        let generator = Generator::arriving(&self.net.eth_b, frames).expect("a generator");
        generator.on_cpu(SENDING)
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        if let Some(mut broker) = self.broker.take() {
            let _ = broker.signal(Signal::TERM);
            let _ = broker.wait(WAIT_MAX);
            let (socket, keep) = (self.path("socket"), self.path("keep"));
            let clean = weir(&["broker", "--clean", "--socket", &socket, "--keep", &keep]);
            let _ = self.net.b.output(clean);
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// The measured binary.
fn weir(arguments: &[&str]) -> Command {
    let mut command = Command::built(env!("CARGO_BIN_EXE_weir"));
    command.args(arguments);
    command
}

/// A program that runs, and the lines that it writes.
struct Program {
    process: Process,
    said: Option<Receiver<String>>,
    printed: Option<Receiver<String>>,
}

/// The lines of a pipe, which is read at once whether or not they are wanted.
fn lines(pipe: impl Read + Send + 'static) -> Receiver<String> {
    let (put, lines) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            if put.send(line).is_err() {
                return;
            }
        }
    });
    lines
}

impl Program {
    /// Waits for a line on standard error that contains these words; returns it.
    fn until(&mut self, words: &str) -> String {
        let said = self.said.as_ref().expect("it is piped");
        let mut before = String::new();
        loop {
            let line = said.recv_timeout(WAIT_MAX);
            let line = line.unwrap_or_else(|_| panic!("no `{words}` in:\n{before}"));
            if line.contains(words) {
                return line;
            }
            before += &line;
            before.push('\n');
        }
    }

    /// Interrupts it, waits for its end, and returns its last line.
    fn last_line(mut self) -> String {
        self.process.signal(Signal::INT).expect("a signal");
        let printed = self.printed.take().expect("it is piped");
        let last = printed.iter().last().unwrap_or_default();
        self.process.ended(WAIT_MAX).expect("it ends");
        last
    }

    fn id(&self) -> u32 {
        self.process.id()
    }
}

/// Processor time of a process and its threads so far.
fn processor_time(pid: u32) -> Duration {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    // The name, in parentheses, may have blanks; proc(5) numbers utime 14 and stime 15.
    let (_, rest) = text.rsplit_once(") ").expect("a name");
    let fields: Vec<&str> = rest.split(' ').collect();
    let ticks: u64 = fields[11..13]
        .iter()
        .map(|field| field.parse::<u64>().expect("a number"))
        .sum();
    Duration::from_millis(1000 * ticks / rustix::param::clock_ticks_per_second())
}

/// Waits until this holds.
fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < WAIT_MAX, "waited for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
