//! `weir top` at a million frames a second, beside rustnet, and beside `weir listen`.

use super::{Bed, Program, WAIT_MAX, median, processor_time, wait_until, weir};
use serde_json::Value;
use std::process::Stdio;
use std::time::Duration;
use weir_lab::command::Command;
use weir_lab::load::{Rate, Sent};
use weir_lab::net::{Process, Signal};
use weir_lab::results::{Bar, Recorder, Unit};
use weir_lab::testenv;

/// The rate that the monitor must take.
const RATE: f64 = 1e6;
/// How long frames come.
const TIME: Duration = Duration::from_secs(4);
/// Rates for the comparison, the highest first.
const RATES: [f64; 6] = [1e6, 5e5, 2.5e5, 1e5, 5e4, 2e4];
/// Of the comparison with `weir listen`, which has the same CPU.
const RATE_OF_TWO: f64 = 2e5;
/// Conversations among which the frames are divided.
const FLOWS: u32 = 100;
const ROUNDS: usize = 3;
/// What both monitors count.
const FILTER: &str = "udp";
/// rustnet's time to start and to end.
const RUSTNET_TIME: Duration = Duration::from_secs(4);
const RUSTNET: &str = "rustnet";

/// What a monitor said of the frames that were sent.
#[derive(Clone, Copy, Debug)]
struct Run {
    sent: Sent,
    counted: u64,
    /// By its own words.
    lost: u64,
    processor: Duration,
}

impl Run {
    /// Frames that it has not counted.
    fn missing(&self) -> u64 {
        self.sent.frames.abs_diff(self.counted)
    }

    /// Processor time by the time in which frames came.
    fn share(&self) -> f64 {
        self.processor.as_secs_f64() / self.sent.elapsed.as_secs_f64()
    }
}

/// The number of frames that a port has, and what it lost: its own, or that of another process.
fn port(bed: &Bed, pid: u32) -> Option<(u64, u64)> {
    let output = bed.net.b.output(weir(&["ports", "--json"])).ok()?;
    let ports: Value = serde_json::from_slice(&output.stdout).ok()?;
    let mut ports = ports.as_array()?.iter();
    let port = ports.find(|port| port["pid"].as_u64() == Some(pid.into()))?;
    Some((port["delivered"].as_u64()?, port["lost"].as_u64()?))
}

fn send(bed: &Bed, rate: f64) -> Sent {
    let mut frames = bed.frames();
    frames.src_ports = FLOWS;
    let count = (rate * TIME.as_secs_f64()) as u64;
    let mut generator = bed.generator(&frames);
    let sent = generator.send(count, Rate::PerSecond(rate));
    let sent = sent.expect("it sends");
    // The monitor reads what is in its queue.
    std::thread::sleep(Duration::from_millis(300));
    sent
}

fn number(value: &Value, member: &str) -> u64 {
    let number = value[member].as_u64();
    number.unwrap_or_else(|| panic!("no {member} in {value}"))
}

/// `weir top` as JSON.
fn plain(rate: f64) -> Run {
    let bed = Bed::new("top");
    let top = bed.spawn(weir(&["top", "eth0", FILTER, "--json"]));
    wait_until("its port", || port(&bed, top.id()).is_some());
    let before = processor_time(top.id());
    let sent = send(&bed, rate);
    let processor = processor_time(top.id()) - before;
    let last = top.last_line();
    let last: Value = serde_json::from_str(&last).expect("JSON");
    Run {
        sent,
        counted: number(&last, "frames"),
        lost: number(&last, "lost"),
        processor,
    }
}

/// A program in a terminal of its own, that of script(1).
pub(super) struct InTerminal {
    /// Kept open: script(1) ends with it.
    pub(super) script: Process,
    pub(super) pid: u32,
}

/// The command that runs a program in a terminal of 120 by 40.
pub(super) fn in_terminal(program: &str) -> Command {
    let mut command = testenv::program("script").expect("it was found before");
    let line = format!("stty cols 120 rows 40; exec {program}");
    command.args(["-q", "-e", "-c", &line, "/dev/null"]);
    command
        .env("TERM", "xterm-256color")
        .env("SHELL", "/bin/sh");
    command.stdin(Stdio::piped());
    command
}

impl InTerminal {
    fn start(bed: &Bed, program: &str) -> InTerminal {
        let mut command = in_terminal(program);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let Program { process, .. } = bed.spawn_directed(command);
        let mut pid = 0;
        let children = format!("/proc/{0}/task/{0}/children", process.id());
        wait_until("script's child", || {
            let text = std::fs::read_to_string(&children).unwrap_or_default();
            let child = text
                .split_whitespace()
                .next()
                .and_then(|one| one.parse().ok());
            pid = child.unwrap_or(0);
            pid > 0
        });
        InTerminal {
            script: process,
            pid,
        }
    }

    fn end(mut self) {
        let _ = self.script.signal(Signal::TERM);
        let _ = self.script.wait(WAIT_MAX);
    }
}

/// `weir top` as its users see it. It is its port that says what it had and lost.
fn shown(rate: f64) -> Run {
    let bed = Bed::new("top");
    let program = format!("{} top eth0 {FILTER}", env!("CARGO_BIN_EXE_weir"));
    let top = InTerminal::start(&bed, &program);
    wait_until("its port", || port(&bed, top.pid).is_some());
    let before = processor_time(top.pid);
    let sent = send(&bed, rate);
    let processor = processor_time(top.pid) - before;
    let (counted, lost) = port(&bed, top.pid).expect("its port");
    top.end();
    Run {
        sent,
        counted,
        lost,
        processor,
    }
}

/// rustnet as JSON; `None` if it is not installed.
fn rustnet(rate: f64) -> Option<Run> {
    let bed = Bed::new("rustnet");
    let mut command = testenv::program(RUSTNET)?;
    let time = (TIME + RUSTNET_TIME).as_secs().to_string();
    command.args(["-i", "eth0", "-f", FILTER, "--headless"]);
    command.args(["--output", "json", "--duration", &time]);
    let mut rustnet = bed.spawn(command);
    std::thread::sleep(RUSTNET_TIME / 2);
    let before = processor_time(rustnet.id());
    let sent = send(&bed, rate);
    let processor = processor_time(rustnet.id()) - before;
    let printed = rustnet.printed.take().expect("it is piped");
    let text: String = printed.iter().collect();
    rustnet.process.ended(WAIT_MAX).expect("it ends");
    let all: Value = serde_json::from_str(&text).expect("JSON");
    let stats = &all["stats"];
    let lost = ["packets_dropped", "capture_packets_dropped"];
    Some(Run {
        sent,
        counted: number(stats, "packets_processed"),
        lost: lost.iter().map(|member| number(stats, member)).sum(),
        processor,
    })
}

/// Losses and processor time at the rate that the monitor must take.
fn at_the_rate(name: &str, run: fn(f64) -> Run, results: &Recorder) {
    let runs: Vec<Run> = (0..ROUNDS).map(|_| run(RATE)).collect();
    for run in &runs {
        println!(
            "{name}: {:.3} M frames/s, {} of {} frames missing, {} by its own count, {:.2} of a core",
            run.sent.rate() / 1e6,
            run.missing(),
            run.sent.frames,
            run.lost,
            run.share()
        );
    }
    let unsaid = runs.iter().map(|run| run.missing().abs_diff(run.lost));
    let unsaid = unsaid.max().unwrap_or(0);
    let lost = median(runs.iter().map(|run| run.missing() as f64).collect());
    let share = median(runs.iter().map(Run::share).collect());
    let none = Bar::AtMost(0.0);
    let of = |what: &str| format!("doors: {name}, 1,000,000 frames/s: {what}");
    results.record(&of("lost"), lost, Unit::Losses, none);
    results.record(&of("lost and not said"), unsaid as f64, Unit::Losses, none);
    results.record(&of("cores"), share, Unit::Index, Bar::AtMost(1.0));
}

/// Processor time at the highest rate at which both lose nothing.
fn beside_rustnet(results: &Recorder) {
    for rate in RATES {
        let mut ratios = Vec::new();
        for _ in 0..ROUNDS {
            let Some(theirs) = rustnet(rate) else {
                return println!("{RUSTNET} is not installed: cargo install rustnet-monitor");
            };
            let ours = plain(rate);
            println!(
                "{:.3} M frames/s: weir top {:.3} of a core, {} missing; rustnet {:.3}, {} missing, {} by its own count",
                rate / 1e6,
                ours.share(),
                ours.missing(),
                theirs.share(),
                theirs.missing(),
                theirs.lost
            );
            if ours.missing() + theirs.missing() + theirs.lost > 0 {
                break;
            }
            ratios.push(ours.share() / theirs.share());
        }
        if ratios.len() < ROUNDS {
            continue;
        }
        let ratio = median(ratios);
        println!("weir top : {RUSTNET}: {ratio:.2} of its processor time");
        let name = format!("doors: weir top, processor time : {RUSTNET}");
        return results.record(&name, ratio, Unit::CostOf(RUSTNET), Bar::AtMost(0.5));
    }
    println!("{RUSTNET} loses frames at each of the rates");
}

/// The counts of `weir top` and of `weir listen` of the same frames.
fn beside_listen(results: &Recorder) {
    let bed = Bed::new("top");
    let top = bed.spawn(weir(&["top", "eth0", FILTER, "--json"]));
    let arguments = ["listen", "eth0", FILTER, "--json", "--quiet"];
    let listen = bed.spawn(weir(&arguments));
    for one in [&top, &listen] {
        wait_until("its port", || port(&bed, one.id()).is_some());
    }
    let sent = send(&bed, RATE_OF_TWO);
    let [top, listen] = [top, listen].map(|one| {
        let last: Value = serde_json::from_str(&one.last_line()).expect("JSON");
        ["frames", "bytes", "lost"].map(|member| number(&last, member))
    });
    println!(
        "{} frames sent: frames, bytes and lost of weir top {top:?}, of weir listen {listen:?}",
        sent.frames
    );
    let differ: u64 = top.iter().zip(listen).map(|(a, b)| a.abs_diff(b)).sum();
    let name = "doors: weir top, counts unlike those of weir listen";
    results.record(name, differ as f64, Unit::Losses, Bar::AtMost(0.0));
}

/// The whole part.
pub(crate) fn top(results: &Recorder) {
    at_the_rate("weir top --json", plain, results);
    if testenv::programs(&["script"]) {
        at_the_rate("weir top in a terminal", shown, results);
    }
    beside_listen(results);
    beside_rustnet(results);
}
