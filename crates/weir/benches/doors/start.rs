//! From the start of a command until it has printed its first frame, while frames come.

use super::tcpdump::LIBRARY;
use super::{Bed, READING, WAIT_MAX, median, top, weir};
use std::io::Read;
use std::process::Stdio;
use std::time::{Duration, Instant};
use weir_lab::affinity;
use weir_lab::command::Command;
use weir_lab::load::Rate;
use weir_lab::net::unprivileged;
use weir_lab::results::{Bar, Recorder, Unit};

/// Frames a second: one comes each millisecond, whenever a command is ready.
const RATE: f64 = 1e3;
const ROUNDS: usize = 21;
/// Before each command: the kernel detaches the one before from tc's hooks, with the lock that attaching
/// needs, for two grace periods of RCU after its end.
const IDLE: Duration = Duration::from_millis(150);
const MOST_MS: f64 = 50.0;
const TOP: &str = "weir top";

/// A command, and what its output contains as soon as it has a frame.
type Started = (&'static str, fn(&Bed) -> Command, &'static str);

/// What a terminal takes to start, which is not the command's.
const TERMINAL: Started = ("script", |_| top::in_terminal("echo 10.9.0.1"), "10.9.0.1");

const COMMANDS: [Started; 4] = [
    (
        "weir listen",
        |_| weir(&["listen", "eth0", "udp"]),
        "10.9.0.1",
    ),
    (
        "weir exec --pcap -- tcpdump",
        |bed| {
            let mut command = unprivileged::command(env!("CARGO_BIN_EXE_weir"));
            let (library, socket) = (bed.path(LIBRARY), bed.path("socket"));
            command.args(["exec", "--pcap", "--pcap-library", &library]);
            command.args(["--socket", &socket, "--"]);
            command.args(["tcpdump", "-nnl", "-i", "eth0", "udp"]);
            command
        },
        "10.9.0.1",
    ),
    (
        TOP,
        |_| top::in_terminal(&format!("{} top eth0 udp", env!("CARGO_BIN_EXE_weir"))),
        "10.9.0.1",
    ),
    (
        "weir extcap --capture",
        |_| {
            let head = ["extcap", "--extcap-interface", "weir-eth0", "--capture"];
            weir(&[&head[..], &["--fifo", "/dev/stdout"]].concat())
        },
        // The addresses as the frame has them.
        "\u{0a}\u{09}\u{00}\u{01}",
    ),
];

/// Milliseconds until the output contains the words.
fn once(bed: &Bed, (name, command, words): &Started) -> f64 {
    std::thread::sleep(IDLE);
    let mut command = command(bed);
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    let mut command = command.into();
    affinity::pin_command(&mut command, READING);
    let began = Instant::now();
    let mut process = bed.net.b.spawn(command).expect("it starts");
    let mut out = process.child_mut().stdout.take().expect("it is piped");
    let (mut all, mut part) = (Vec::new(), [0; 4096]);
    let has = |all: &[u8]| {
        all.windows(words.len())
            .any(|some| some == words.as_bytes())
    };
    while !has(&all) {
        let len = out.read(&mut part).expect("a pipe is read");
        let text = String::from_utf8_lossy(&all);
        assert!(
            len > 0 && began.elapsed() < WAIT_MAX,
            "{name} has no frame: {text}"
        );
        all.extend_from_slice(&part[..len]);
    }
    began.elapsed().as_secs_f64() * 1e3
}

/// The whole part.
pub(crate) fn start(results: &Recorder) {
    let mut bed = Bed::new("start");
    bed.start_broker();
    std::fs::copy(super::tcpdump::library(), bed.path(LIBRARY)).expect("a copy");
    let frames = bed.frames();
    let mut generator = bed.generator(&frames);
    let sending = generator.start(u64::MAX, Rate::PerSecond(RATE));
    let sending = sending.expect("it sends");
    std::thread::sleep(Duration::from_millis(100));
    let mut times = COMMANDS.map(|_| Vec::new());
    let mut terminals = Vec::new();
    for _ in 0..ROUNDS {
        terminals.push(once(&bed, &TERMINAL));
        for (one, times) in COMMANDS.iter().zip(&mut times) {
            times.push(once(&bed, one));
        }
    }
    sending.stop().expect("it was sending");
    let terminal = median(terminals);
    println!("a terminal: {terminal:.1} ms, not counted below");
    for ((name, ..), times) in COMMANDS.iter().zip(times) {
        let own = if *name == TOP { terminal } else { 0.0 };
        let most = times.iter().copied().fold(0.0, f64::max) - own;
        let time = median(times) - own;
        println!("{name}: its first frame after {time:.1} ms, {most:.1} at most");
        let name = format!("doors: {name}, from start to first frame");
        results.record(&name, time, Unit::Milliseconds, Bar::AtMost(MOST_MS));
    }
}
