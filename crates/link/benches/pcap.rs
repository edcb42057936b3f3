//! Reading and writing captures, frame by frame, from files in the page cache,
//! by this crate and by libpcap's `pcap_next_ex`.
//!
//! `cargo bench -p weir-link --bench pcap`. Times are for a whole file;
//! elements per second are frames per second.

use std::fs::File;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::Command;

use criterion::{Bencher, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use std::time::{Duration, Instant};
use weir_lab::oracle::Oracle;
use weir_lab::results::{Bar, Unit, recorder};
use weir_link::mem::traffic::{Medium, Traffic};
use weir_link::pcap::{FrameRef, Interface, Reader, Resolution, Writer};
use weir_wire::LinkType;

const FRAMES: usize = 400_000;

/// The captures of one kind of traffic, in both formats.
struct Files {
    name: &'static str,
    pcap: PathBuf,
    pcapng: PathBuf,
}

fn folder() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

/// Writes `frames` as pcap and pcapng.
fn files<'a>(name: &'static str, frames: impl Iterator<Item = &'a [u8]>) -> Files {
    let pcap = folder().join(format!("bench-{name}.pcap"));
    let pcapng = folder().join(format!("bench-{name}.pcapng"));
    let interface = Interface {
        linktype: LinkType::EN10MB,
        snaplen: 262_144,
        resolution: Resolution::NANO,
        offset_s: 0,
        name: None,
    };
    let mut writer = Writer::create(&pcapng).expect("a scratch file");
    let mut classic = Vec::new();
    for word in [0xa1b2_c3d4, 0x0004_0002, 0, 0, 262_144, 1u32] {
        classic.extend(word.to_le_bytes());
    }
    for (number, bytes) in frames.enumerate() {
        let len = bytes.len() as u32;
        let frame = FrameRef {
            bytes,
            wire_len: len,
            time_ns: Some(number as i64 * 1000),
            interface_index: 0,
            interface: &interface,
        };
        writer.write(&frame).expect("room on the disk");
        for word in [0, number as u32 % 1_000_000, len, len] {
            classic.extend(word.to_le_bytes());
        }
        classic.extend(bytes);
    }
    writer.finish().expect("room on the disk");
    std::fs::write(&pcap, classic).expect("room on the disk");
    Files { name, pcap, pcapng }
}

fn weir(path: &Path) -> u64 {
    let mut reader = Reader::open(path).expect("written above");
    let mut sum = 0;
    while let Some(frame) = reader.next_frame().expect("written above") {
        sum += black_box(frame).bytes.len() as u64;
    }
    sum
}

fn libpcap(oracle: &Oracle, path: &Path) -> u64 {
    let mut sum = 0;
    let visited = oracle.visit(path, |bytes, _| sum += black_box(bytes).len() as u64);
    visited.expect("written above");
    sum
}

/// Measures `run` with Criterion; returns the least time of a call in its
/// samples.
fn least<T>(bencher: &mut Bencher<'_>, mut run: impl FnMut() -> T) -> Duration {
    let mut least = Duration::MAX;
    bencher.iter_custom(|count| {
        let start = Instant::now();
        for _ in 0..count {
            black_box(run());
        }
        let took = start.elapsed();
        least = least.min(took / u32::try_from(count).unwrap_or(u32::MAX));
        took
    });
    least
}

fn reading(criterion: &mut Criterion) {
    let results = recorder!();
    let oracle = Oracle::load();
    let small = [0x42; 60];
    let mixed: Vec<_> = Traffic::new(1, Medium::Ethernet).take(FRAMES).collect();
    let all = [
        files("60-bytes", std::iter::repeat_n(&small[..], FRAMES)),
        files("mixed", mixed.iter().map(|frame| &frame.bytes[..])),
    ];
    for files in &all {
        let mut group = criterion.benchmark_group(format!("read/{}", files.name));
        group
            .throughput(Throughput::Elements(FRAMES as u64))
            .sample_size(20);
        for (format, path) in [("pcap", &files.pcap), ("pcapng", &files.pcapng)] {
            let (mut own, mut others) = (Duration::MAX, Duration::MAX);
            group.bench_function(BenchmarkId::new("weir", format), |b| {
                own = least(b, || weir(path)).min(own);
            });
            if let Some(oracle) = &oracle {
                group.bench_function(BenchmarkId::new("libpcap", format), |b| {
                    others = least(b, || libpcap(oracle, path)).min(others);
                });
            }
            // Criterion runs what its command line chooses.
            let name = format!("pcap: read {format}, frames of {}", files.name);
            if own < Duration::MAX {
                let rate = FRAMES as f64 / own.as_secs_f64();
                results.record(&name, rate, Unit::PerSecond("frames"), Bar::None);
            }
            if own.max(others) < Duration::MAX {
                let (name, ratio) = (
                    format!("{name} : libpcap"),
                    others.as_secs_f64() / own.as_secs_f64(),
                );
                results.record(&name, ratio, Unit::RateOf("libpcap"), Bar::None);
            }
        }
        for (tool, ending) in [("gzip", "gz"), ("zstd", "zst")] {
            let packed = files.pcap.with_extension(format!("pcap.{ending}"));
            let output = File::create(&packed).expect("a scratch file");
            let packer = Command::new(tool)
                .arg("-c")
                .arg(&files.pcap)
                .stdout(output)
                .status();
            if packer.is_ok_and(|status| status.success()) {
                group.bench_function(BenchmarkId::new("weir", format!("pcap.{ending}")), |b| {
                    b.iter(|| weir(&packed));
                });
            }
        }
        group.finish();
        let packed = ["pcap.gz", "pcap.zst"].map(|ending| files.pcap.with_extension(ending));
        for scratch in packed.iter().chain([&files.pcapng]) {
            let _ = std::fs::remove_file(scratch);
        }
    }
    let _ = std::fs::remove_file(&all[1].pcap);
}

fn writing(criterion: &mut Criterion) {
    let path = folder().join("bench-60-bytes.pcap");
    let mut group = criterion.benchmark_group("copy/60-bytes");
    group
        .throughput(Throughput::Elements(FRAMES as u64))
        .sample_size(20);
    group.bench_function("weir, pcap to pcapng in memory", |b| {
        b.iter(|| {
            let mut reader = Reader::open(&path).expect("written above");
            let mut writer = Writer::new(std::io::sink()).expect("a sink");
            while let Some(frame) = reader.next_frame().expect("written above") {
                writer.write(&frame).expect("a sink");
            }
            writer.finish().map(drop).expect("a sink");
        });
    });
    group.finish();
    let _ = std::fs::remove_file(&path);
}

criterion_group!(benches, reading, writing);
criterion_main!(benches);
