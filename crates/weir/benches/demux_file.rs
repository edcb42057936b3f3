//! Speed and memory of `weir demux` on a file in the page cache: frames a
//! second on one core with 100 ports, and the peak memory for a file and for
//! one eight times as long.
//!
//! Run by `cargo bench -p weir --bench demux_file`. The rate counts what the
//! program ran, from its start to its end, in its own code and the kernel's;
//! the rate by the clock, which has other programs' time in it, is beside it.

use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use std::fs::{self, File};
use std::io::{BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use weir_lab::rules;
use weir_link::mem::traffic::{Medium, Traffic};

const FRAMES: u64 = 500_000;
const LONGER: u64 = 8;
const PORTS: u16 = 100;
const RUNS: usize = 5;
const SEED: u64 = 0x9e37_79b9_7f4a_7c15;

fn main() {
    // `cargo test --benches` passes no --bench: then only prove that it runs.
    let measuring = std::env::args().any(|argument| argument == "--bench");
    let frames = if measuring { FRAMES } else { 1000 };
    let folder = std::env::temp_dir().join(format!("weir-demux-bench-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("the temporary folder can be made");
    let alike = (0..PORTS).map(|port| format!("udp dst port {}", 5000 + port));
    let alike = write_ports(&folder, "alike", alike);
    let mixed = write_ports(&folder, "mixed", rules::shapes(11, PORTS.into()));
    let runs = if measuring { RUNS } else { 1 };
    println!("seed {SEED:#x}, {PORTS} ports, one core");
    for length in [frames, frames * LONGER] {
        let file = write_frames(&folder, length);
        measure(
            "`udp dst port N`, 64-byte frames to them",
            &file,
            &alike,
            length,
            runs,
        );
    }
    let file = write_traffic(&folder, frames);
    measure(
        "`udp dst port N`, traffic of weir demo",
        &file,
        &alike,
        frames,
        runs,
    );
    measure(
        "40 kinds of filters, traffic of weir demo",
        &file,
        &mixed,
        frames,
        runs,
    );
    fs::remove_dir_all(&folder).expect("the temporary folder can be removed");
}

fn measure(name: &str, file: &Path, config: &Path, frames: u64, runs: usize) {
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
    let path = folder.join(format!("{frames}.pcap"));
    let mut out = BufWriter::new(File::create(&path).expect("the capture can be made"));
    let mut random = SEED;
    write_words(&mut out, &FILE_HEADER);
    let mut frame = [0_u8; 64];
    (frame[12], frame[14], frame[22], frame[23]) = (8, 0x45, 64, 17);
    for number in 0..frames {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        frame[26..34].copy_from_slice(&random.to_be_bytes());
        let port = 5000 + (random >> 57) as u16;
        frame[36..38].copy_from_slice(&port.to_be_bytes());
        let (seconds, rest) = (number / 1_000_000, number % 1_000_000);
        write_words(&mut out, &[seconds as u32, rest as u32, 64, 64]);
        out.write_all(&frame).unwrap();
    }
    out.flush().expect("the capture can be written");
    path
}

/// What one run took.
struct Run {
    /// On a processor.
    cpu: Duration,
    /// From start to end.
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
    // Seen to end but not yet waited for, its times can still be read.
    let ended = || {
        let how = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(pid), how).expect("the child can be asked")
    };
    while ended().is_none() {
        memory_kib = memory_kib.max(peak_memory_kib(id).unwrap_or(0));
        std::thread::sleep(Duration::from_micros(500));
    }
    let clock = started.elapsed();
    let cpu = cpu_time(id).expect("the kernel counts the time of its processes");
    let mut text = String::new();
    let output = child.stdout.as_mut().expect("piped");
    output
        .read_to_string(&mut text)
        .expect("the output can be read");
    assert!(child.wait().expect("the child ended").success(), "{text}");
    let begins = format!("{{\"frames\":{frames},");
    assert!(text.starts_with(&begins), "{text}");
    Run {
        cpu,
        clock,
        memory_kib,
    }
}

/// The time of a process of one thread, as the scheduler counts it.
fn cpu_time(id: u32) -> Option<Duration> {
    let text = fs::read_to_string(format!("/proc/{id}/schedstat")).ok()?;
    let nanoseconds = text.split_whitespace().next()?.parse().ok()?;
    Some(Duration::from_nanos(nanoseconds))
}

fn peak_memory_kib(id: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{id}/status")).ok()?;
    let line = text.lines().find(|line| line.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}
