//! Speed and memory of `weir demux` on a file in the page cache: frames per
//! second on one core with 100 ports, and the peak memory for a file and for
//! one eight times as long. Then time and memory for a million ports of one
//! shape.
//!
//! Run by `cargo bench -p weir --bench demux_file`; with `-- million`, only the
//! last part. The rate is per second of the program's CPU time (user and
//! system); the rate by the clock, which includes other programs' time, is
//! beside it.

use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use std::fs::{self, File};
use std::io::{BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use weir_lab::results::{Bar, Recorder, Unit, recorder};
use weir_lab::rules;
use weir_link::mem::traffic::{Medium, Traffic};

const FRAMES: u64 = 500_000;
const LONGER: u64 = 8;
const PORTS: u16 = 100;
const RUNS: usize = 5;
/// Number of ports in the last part, and number of frames to some of them.
const MANY: u64 = 1_000_000;
const FEW_FRAMES: u64 = 1_000;
const SEED: u64 = 0x9e37_79b9_7f4a_7c15;

fn main() {
    // `cargo test --benches` passes no --bench: then only check that the bench
    // runs.
    let measuring = std::env::args().any(|argument| argument == "--bench");
    let results = recorder!().seed(SEED);
    let frames = if measuring { FRAMES } else { 1000 };
    let folder = std::env::temp_dir().join(format!("weir-demux-bench-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("the temporary folder can be made");
    let runs = if measuring { RUNS } else { 1 };
    if !std::env::args().any(|argument| argument == "million") {
        measure_frames(&folder, frames, runs, &results);
    }
    let ports = if measuring { MANY } else { 2_000 };
    measure_ports(&folder, ports, runs.min(3), &results);
    fs::remove_dir_all(&folder).expect("the temporary folder can be removed");
}

/// A million ports: elapsed time and memory.
fn measure_ports(folder: &Path, ports: u64, runs: usize, results: &Recorder) {
    let filter = |n: u64| {
        let [_, a, b, c] = (n as u32).to_be_bytes();
        format!("udp dst port {} and dst host 10.{a}.{b}.{c}", dst_port(n))
    };
    let config = write_ports(folder, "many", (0..ports).map(filter));
    let file = write_frames_to(folder, FEW_FRAMES, ports);
    let runs: Vec<Run> = (0..runs).map(|_| run(&file, &config, FEW_FRAMES)).collect();
    let least = |what: fn(&Run) -> Duration| runs.iter().map(what).min().unwrap_or_default();
    println!(
        "{ports} ports `udp dst port N and dst host H`, {FEW_FRAMES} frames: {:.1?} by the clock, \
         {:.1?} on processors (best of {}), peak memory {} MB",
        least(|run| run.clock),
        least(|run| run.cpu),
        runs.len(),
        runs.iter().map(|run| run.memory_kib).max().unwrap_or(0) * 1024 / 1_000_000,
    );
    let name = |what: &str| format!("demux_file: 1,000,000 ports of one shape, {what}");
    let memory = runs.iter().map(|run| run.memory_kib).max().unwrap_or(0);
    let memory = memory as f64 * 1024.0 / 1e6;
    let clock = least(|run| run.clock).as_secs_f64();
    results.record(&name("time"), clock, Unit::Seconds, Bar::AtMost(8.0));
    let cpu = least(|run| run.cpu).as_secs_f64();
    results.record(&name("processor time"), cpu, Unit::Seconds, Bar::None);
    results.record(&name("memory"), memory, Unit::Megabytes, Bar::AtMost(800.0));
}

fn dst_port(n: u64) -> u16 {
    (n % 60_000) as u16 + 1
}

fn measure_frames(folder: &Path, frames: u64, runs: usize, results: &Recorder) {
    let alike = (0..PORTS).map(|port| format!("udp dst port {}", 5000 + port));
    let alike = write_ports(folder, "alike", alike);
    let mixed = write_ports(folder, "mixed", rules::mixed_forms(11, PORTS.into()));
    println!("seed {SEED:#x}, {PORTS} ports, one core");
    let record = |what: &str, rate: f64, bar| {
        let name = format!("demux_file: {PORTS} ports, {what}");
        results.record(
            &name,
            rate * 1e6,
            Unit::PerSecond("frames"),
            Bar::AtLeast(bar),
        );
    };
    let memory = [frames, frames * LONGER].map(|length| {
        let file = write_frames(folder, length);
        let name = "`udp dst port N`, 64-byte frames to them";
        let (rate, memory) = measure(name, &file, &alike, length, runs);
        record(&format!("{name}, {length} frames"), rate, 5e6);
        memory as f64
    });
    let growth = memory[1] / memory[0];
    let name = format!("demux_file: {PORTS} ports, memory for a file of 8 times the length");
    let (shorter, flat) = (Unit::CostOf("the shorter file"), Bar::AtMost(1.1));
    results.record(&name, growth, shorter, flat);
    let file = write_traffic(folder, frames);
    let name = "`udp dst port N`, traffic of weir demo";
    record(name, measure(name, &file, &alike, frames, runs).0, 5e6);
    let name = "40 kinds of filters, traffic of weir demo";
    record(name, measure(name, &file, &mixed, frames, runs).0, 6e6);
}

/// Returns millions of frames per second of CPU time, and KiB of memory.
fn measure(name: &str, file: &Path, config: &Path, frames: u64, runs: usize) -> (f64, u64) {
    let (mut by_cpu, mut by_clock) = (Vec::new(), Vec::new());
    let mut memory_kib = 0;
    for _ in 0..runs {
        let run = run(file, config, frames);
        let rate = |time: Duration| frames as f64 / time.as_secs_f64() / 1e6;
        by_cpu.push(rate(run.cpu));
        by_clock.push(rate(run.clock));
        memory_kib = memory_kib.max(run.memory_kib);
    }
    by_cpu.sort_by(f64::total_cmp);
    by_clock.sort_by(f64::total_cmp);
    println!(
        "{name}\n{frames:>9} frames ({:>3} MB): {:.2} M frames/s (median of {runs}; {:.2} to {:.2}), \
         by the clock {:.2} to {:.2}, peak memory {memory_kib} KiB",
        fs::metadata(file).map_or(0, |metadata| metadata.len() >> 20),
        by_cpu[runs / 2],
        by_cpu[0],
        by_cpu[runs - 1],
        by_clock[0],
        by_clock[runs - 1],
    );
    (by_cpu[runs / 2], memory_kib)
}

fn write_ports(folder: &Path, name: &str, filters: impl IntoIterator<Item = String>) -> PathBuf {
    let path = folder.join(format!("{name}.toml"));
    let mut text = String::new();
    for (port, filter) in filters.into_iter().enumerate() {
        text += &format!("[[port]]\nname = 'p{port}'\nfilter = '{filter}'\n");
    }
    fs::write(&path, text).expect("the ports can be written");
    path
}

/// A pcap file of mixed traffic.
fn write_traffic(folder: &Path, frames: u64) -> PathBuf {
    let path = folder.join("traffic.pcap");
    let mut out = BufWriter::new(File::create(&path).expect("the capture can be made"));
    write_words(&mut out, &FILE_HEADER);
    for frame in Traffic::new(SEED, Medium::Ethernet).take(frames as usize) {
        let len = frame.bytes.len() as u32;
        let time_us = frame.time_ns / 1000;
        let (seconds, rest) = (time_us / 1_000_000, time_us % 1_000_000);
        write_words(&mut out, &[seconds as u32, rest as u32, len, len]);
        out.write_all(&frame.bytes)
            .expect("the capture can be written");
    }
    out.flush().expect("the capture can be written");
    path
}

const FILE_HEADER: [u32; 6] = [0xa1b2_c3d4, 0x0004_0002, 0, 0, 262_144, 1];

fn write_words(out: &mut impl Write, words: &[u32]) {
    for word in words {
        out.write_all(&word.to_le_bytes())
            .expect("the capture can be written");
    }
}

/// A pcap file of small UDP frames to ports evenly spread over 100 that are
/// bound and 28 that are not.
fn write_frames(folder: &Path, frames: u64) -> PathBuf {
    write_udp(&folder.join(format!("{frames}.pcap")), frames, |random| {
        (
            0x0a00_0000 | random as u32 >> 8,
            5000 + (random >> 57) as u16,
        )
    })
}

/// The same, of frames to some of this many ports.
fn write_frames_to(folder: &Path, frames: u64, ports: u64) -> PathBuf {
    write_udp(&folder.join("few.pcap"), frames, |random| {
        let n = (random >> 32) % ports;
        (0x0a00_0000 | n as u32, dst_port(n))
    })
}

/// A pcap file of small UDP frames; `to` maps a random number to address and
/// port.
fn write_udp(path: &Path, frames: u64, to: impl Fn(u64) -> (u32, u16)) -> PathBuf {
    let mut out = BufWriter::new(File::create(path).expect("the capture can be made"));
    let mut random = SEED;
    write_words(&mut out, &FILE_HEADER);
    let mut frame = [0_u8; 64];
    (frame[12], frame[14], frame[22], frame[23]) = (8, 0x45, 64, 17);
    for number in 0..frames {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let (address, port) = to(random);
        frame[26..30].copy_from_slice(&random.to_be_bytes()[..4]);
        frame[30..34].copy_from_slice(&address.to_be_bytes());
        frame[36..38].copy_from_slice(&port.to_be_bytes());
        let (seconds, rest) = (number / 1_000_000, number % 1_000_000);
        write_words(&mut out, &[seconds as u32, rest as u32, 64, 64]);
        out.write_all(&frame).unwrap();
    }
    out.flush().expect("the capture can be written");
    path.to_owned()
}

/// The cost of one run.
struct Run {
    /// CPU time.
    cpu: Duration,
    /// Elapsed time.
    clock: Duration,
    memory_kib: u64,
}

/// Runs `weir demux` once.
fn run(file: &Path, config: &Path, frames: u64) -> Run {
    let started = Instant::now();
    let mut child = Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(["demux", "--json", "-r"])
        .arg(file)
        .arg("--config")
        .arg(config)
        .stdout(Stdio::piped())
        .spawn()
        .expect("weir can be started");
    let id = child.id();
    let pid = Pid::from_child(&child);
    let mut memory_kib = 0;
    // A pipe has no room for a report of a million ports.
    let mut output = child.stdout.take().expect("piped");
    let reader = thread::spawn(move || {
        let mut text = String::new();
        output.read_to_string(&mut text).map(|_| text)
    });
    // The process has ended but was not waited for, so its times can still be
    // read.
    let ended = || {
        let how = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(pid), how).expect("the child can be asked")
    };
    while ended().is_none() {
        memory_kib = memory_kib.max(peak_memory_kib(id).unwrap_or(0));
        thread::sleep(Duration::from_micros(500));
    }
    let clock = started.elapsed();
    let cpu = cpu_time(id).expect("the kernel counts the time of its processes");
    let text = reader.join().expect("the reader ends");
    let text = text.expect("the output can be read");
    assert!(
        child.wait().expect("the child ended").success(),
        "{text:.200}"
    );
    let begins = format!("{{\"frames\":{frames},");
    assert!(text.starts_with(&begins), "{text:.200}");
    Run {
        cpu,
        clock,
        memory_kib,
    }
}

/// The CPU time of a process that has ended: of its first thread by the
/// scheduler's count or, with several threads, of all in hundredths of a
/// second.
fn cpu_time(id: u32) -> Option<Duration> {
    let text = fs::read_to_string(format!("/proc/{id}/schedstat")).ok()?;
    let first = Duration::from_nanos(text.split_whitespace().next()?.parse().ok()?);
    let text = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // After the name in brackets: utime and stime are fields 14 and 15.
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |at: usize| fields.get(at - 3)?.parse::<u64>().ok();
    let all = Duration::from_millis((ticks(14)? + ticks(15)?) * 10);
    Some(first.max(all))
}

fn peak_memory_kib(id: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{id}/status")).ok()?;
    let line = text.lines().find(|line| line.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}
