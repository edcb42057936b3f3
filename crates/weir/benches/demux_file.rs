//! Speed and memory of `weir demux` on a file in the page cache: frames a
//! second on one core with 100 ports, and the peak memory for a file and for
//! one eight times as long.
//!
//! Run by `cargo bench -p weir --bench demux_file`.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

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
    let config = write_ports(&folder);
    println!("seed {SEED:#x}, {PORTS} ports `udp dst port N`, one core");
    for length in [frames, frames * LONGER] {
        let file = write_frames(&folder, length);
        let mut rates = Vec::new();
        let mut memory_kib = 0;
        for _ in 0..if measuring { RUNS } else { 1 } {
            let (time, peak_kib) = run(&file, &config, length);
            rates.push(length as f64 / time.as_secs_f64() / 1e6);
            memory_kib = memory_kib.max(peak_kib);
        }
        rates.sort_by(f64::total_cmp);
        println!(
            "{length:>8} frames ({:>4} MB): {:.2} M frames/s (median of {}; {:.2} to {:.2}), peak memory {memory_kib} KiB",
            fs::metadata(&file).map_or(0, |metadata| metadata.len() >> 20),
            rates[rates.len() / 2],
            rates.len(),
            rates[0],
            rates[rates.len() - 1],
        );
    }
    fs::remove_dir_all(&folder).expect("the temporary folder can be removed");
}

fn write_ports(folder: &Path) -> PathBuf {
    let path = folder.join("ports.toml");
    let mut text = String::new();
    for port in 0..PORTS {
        text += &format!(
            "[[port]]\nname = 'p{port}'\nfilter = 'udp dst port {}'\n",
            5000 + port
        );
    }
    fs::write(&path, text).expect("the ports can be written");
    path
}

/// A pcap file of small UDP frames to ports evenly spread over 100 that are
/// bound and 28 that are not.
fn write_frames(folder: &Path, frames: u64) -> PathBuf {
    let path = folder.join(format!("{frames}.pcap"));
    let mut out = BufWriter::new(File::create(&path).expect("the capture can be made"));
    let mut random = SEED;
    let head: [u32; 6] = [0xa1b2_c3d4, 0x0004_0002, 0, 0, 262_144, 1];
    head.iter()
        .for_each(|word| out.write_all(&word.to_le_bytes()).unwrap());
    let mut frame = [0_u8; 64];
    (frame[12], frame[14], frame[22], frame[23]) = (8, 0x45, 64, 17);
    for number in 0..frames {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        frame[26..34].copy_from_slice(&random.to_be_bytes());
        let port = 5000 + (random >> 57) as u16;
        frame[36..38].copy_from_slice(&port.to_be_bytes());
        let record = [
            (number / 1_000_000) as u32,
            (number % 1_000_000) as u32,
            64,
            64,
        ];
        record
            .iter()
            .for_each(|word| out.write_all(&word.to_le_bytes()).unwrap());
        out.write_all(&frame).unwrap();
    }
    out.flush().expect("the capture can be written");
    path
}

/// Runs `weir demux` once; its time from start to end, and its peak memory.
fn run(file: &Path, config: &Path, frames: u64) -> (Duration, u64) {
    let started = Instant::now();
    let mut child = Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(["demux", "--json", "-r"])
        .arg(file)
        .arg("--config")
        .arg(config)
        .stdout(Stdio::piped())
        .spawn()
        .expect("weir can be started");
    let status = format!("/proc/{}/status", child.id());
    let mut peak_kib = 0;
    while child.try_wait().expect("the child can be asked").is_none() {
        peak_kib = peak_kib.max(peak_memory_kib(&status).unwrap_or(0));
        std::thread::sleep(Duration::from_micros(500));
    }
    let time = started.elapsed();
    let output = child.wait_with_output().expect("the output can be read");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert!(
        text.starts_with(&format!("{{\"frames\":{frames},")),
        "{text}"
    );
    (time, peak_kib)
}

fn peak_memory_kib(status: &str) -> Option<u64> {
    let text = fs::read_to_string(status).ok()?;
    let line = text.lines().find(|line| line.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}
