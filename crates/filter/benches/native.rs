//! One filter over all frames of a real capture in cache, and the cost of compiling
//! native code. The contenders are libpcap's interpreter (`pcap_offline_filter` on its
//! optimised program), native code, and this crate's interpreter.
//!
//! Run with `cargo bench -p weir-filter --bench native`. Criterion measures each
//! contender separately. The table at the end takes turns, so that its ratios are valid
//! on a machine whose speed varies.

use criterion::{BenchmarkId, Criterion, Throughput};
use std::fmt::Display;
use std::hint::black_box;
use std::time::Instant;
use weir_filter::backend::native::{Arch, Code};
use weir_filter::interp::Interp;
use weir_filter::ir::{Builder, Cmp, Program, Width};
use weir_filter::lang::expr::{Context, compile};
use weir_filter::opt::optimise;
use weir_lab::oracle::{Filter, Frame, Oracle};
use weir_lab::results::{Bar, Recorder, Unit, recorder};
use weir_lab::testenv;
use weir_wire::LinkType;

const EXPRESSIONS: [&str; 7] = [
    "tcp port 5555",
    "tcp[tcpflags] & tcp-syn != 0",
    "ip host 10.0.0.1 and udp portrange 1000-2000",
    "udp port 53",
    "tcp port 80 or 443",
    "net 192.168.0.0/16 and not arp",
    "len > 1000",
];

/// Long Ethernet captures of the shared folder: mixed TCP and UDP, mostly TCP, and all
/// with VLAN tags.
const CAPTURES: [&str; 3] = ["gnutella.pcap", "netflix.pcap", "multi-user.pcap"];

/// Number of turns of each contender in the table.
const TURNS: usize = 60;

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    if Arch::host().is_none() {
        testenv::skip("no native code for this machine");
        return;
    }
    let results = recorder!();
    compile_time(&mut criterion, &results);
    if let (Some(oracle), Some(folder)) = (Oracle::load(), testenv::captures()) {
        for name in CAPTURES {
            let capture = oracle.read(&folder.join(name)).expect("a capture reads");
            assert_eq!(capture.linktype, LinkType::EN10MB);
            run_time(&mut criterion, &oracle, (name, &capture.frames), &results);
        }
    }
    criterion.final_summary();
}

/// The frames in one contiguous buffer, as a reader has them.
struct Packed {
    bytes: Vec<u8>,
    frames: Vec<(usize, usize, u32)>,
}

impl Packed {
    fn of(frames: &[Frame]) -> Packed {
        let mut packed = Packed {
            bytes: Vec::new(),
            frames: Vec::new(),
        };
        for frame in frames {
            let start = packed.bytes.len();
            packed.bytes.extend(&frame.bytes);
            let end = packed.bytes.len();
            packed.frames.push((start, end, frame.wire_len));
        }
        packed
    }

    /// Number of frames that `run` accepts.
    #[inline]
    fn accepted(&self, mut run: impl FnMut(&[u8], u32) -> u32) -> usize {
        let mut count = 0;
        for &(start, end, wire_len) in &self.frames {
            count += usize::from(run(&self.bytes[start..end], wire_len) != 0);
        }
        count
    }
}

/// The contenders for one expression.
struct Contenders<'o> {
    libpcap: Filter<'o>,
    program: Program,
    native: Code,
}

impl<'o> Contenders<'o> {
    fn of(oracle: &'o Oracle, text: &str) -> Contenders<'o> {
        let program = program(text);
        Contenders {
            libpcap: oracle.compile(text, LinkType::EN10MB, true).unwrap(),
            native: Code::compile(&program).unwrap(),
            program,
        }
    }

    fn libpcap(&self, packed: &Packed) -> usize {
        packed.accepted(|bytes, wire_len| self.libpcap.run(bytes, wire_len))
    }

    fn native(&self, packed: &Packed) -> usize {
        packed.accepted(|bytes, wire_len| self.native.run(bytes, wire_len))
    }

    fn interp(&self, packed: &Packed) -> usize {
        let mut interp = Interp::new(&self.program);
        packed.accepted(|bytes, wire_len| interp.run(bytes, wire_len))
    }
}

fn program(text: &str) -> Program {
    let mut program = compile(text, &Context::new(LinkType::EN10MB)).unwrap();
    optimise(&mut program);
    program
}

fn run_time(
    criterion: &mut Criterion,
    oracle: &Oracle,
    (capture, frames): (&str, &[Frame]),
    results: &Recorder,
) {
    let packed = Packed::of(frames);
    println!(
        "\n{capture}: {} frames, {} bytes; ns a frame, the quickest of {TURNS} turns",
        frames.len(),
        packed.bytes.len()
    );
    row([
        "",
        "libpcap",
        "native",
        "interp",
        "native/libpcap",
        "accepted",
    ]);
    for text in EXPRESSIONS {
        let contenders = Contenders::of(oracle, text);
        let accepted = contenders.libpcap(&packed);
        assert_eq!(contenders.native(&packed), accepted, "{text}");
        assert_eq!(contenders.interp(&packed), accepted, "{text}");
        let [libpcap, native, interp] = in_turns(&packed, &contenders);
        row([
            text.to_owned(),
            format!("{libpcap:.1}"),
            format!("{native:.1}"),
            format!("{interp:.1}"),
            format!("{:.3}", native / libpcap),
            accepted.to_string(),
        ]);
        let (name, ratio) = (format!("native: {text}, {capture}"), native / libpcap);
        results.record(&name, native, Unit::Nanoseconds, Bar::AtMost(10.0));
        let name = format!("{name} : libpcap");
        results.record(&name, ratio, Unit::CostOf("libpcap"), Bar::AtMost(0.5));
    }
    if capture != CAPTURES[0] {
        return;
    }
    for text in &EXPRESSIONS[..3] {
        let contenders = Contenders::of(oracle, text);
        let mut group = criterion.benchmark_group(format!("{capture}/{text}"));
        group.throughput(Throughput::Elements(frames.len() as u64));
        group.bench_function("libpcap", |b| b.iter(|| contenders.libpcap(&packed)));
        group.bench_function("native", |b| b.iter(|| contenders.native(&packed)));
        group.bench_function("interp", |b| b.iter(|| contenders.interp(&packed)));
    }
}

fn row<T: Display>(cells: [T; 6]) {
    let [text, a, b, c, d, e] = cells;
    println!("{text:46} {a:>8} {b:>8} {c:>8} {d:>15} {e:>9}");
}

/// Time for a frame, in ns, of libpcap, native code and interpreter: the fastest turn.
fn in_turns(packed: &Packed, contenders: &Contenders) -> [f64; 3] {
    let mut best = [f64::MAX; 3];
    for _ in 0..TURNS {
        let runs: [&dyn Fn() -> usize; 3] = [
            &|| contenders.libpcap(packed),
            &|| contenders.native(packed),
            &|| contenders.interp(packed),
        ];
        for (best, run) in best.iter_mut().zip(runs) {
            let start = Instant::now();
            black_box(run());
            *best = best.min(start.elapsed().as_nanos() as f64);
        }
    }
    best.map(|ns| ns / packed.frames.len() as f64)
}

/// A chain of tests, one byte each.
fn chain(blocks: u32) -> Program {
    let mut builder = Builder::new();
    let reject = builder.block();
    for n in 0..blocks {
        let byte = builder.load(Width::B1, None, n % 64);
        let next = builder.block();
        builder.branch(Cmp::Eq, byte, n % 251, reject, next);
        builder.switch_to(next);
    }
    builder.ret(1);
    builder.switch_to(reject);
    builder.ret(0);
    builder.finish()
}

/// The shortest time of one call, in µs.
fn quickest<T>(mut work: impl FnMut() -> T) -> f64 {
    let mut best = f64::MAX;
    for _ in 0..TURNS * 10 {
        let start = Instant::now();
        black_box(work());
        best = best.min(start.elapsed().as_nanos() as f64);
    }
    best / 1_000.0
}

/// Prints the time from text to native code by stage.
fn compile_table(results: &Recorder) {
    println!(
        "\nµs from text to native code, the quickest of {} turns",
        TURNS * 10
    );
    row(["", "to IR", "optimise", "native", "sum", "blocks"]);
    let context = Context::new(LinkType::EN10MB);
    for text in EXPRESSIONS {
        let plain = compile(text, &context).unwrap();
        let program = program(text);
        let front = quickest(|| compile(text, &context).unwrap());
        let copy = quickest(|| plain.clone());
        let both = quickest(|| {
            let mut program = plain.clone();
            optimise(&mut program);
            program
        });
        let native = quickest(|| Code::compile(&program).unwrap());
        row([
            text.to_owned(),
            format!("{front:.1}"),
            format!("{:.1}", both - copy),
            format!("{native:.1}"),
            format!("{:.1}", front + both - copy + native),
            program.blocks.len().to_string(),
        ]);
        let name = format!("native: {text}: from text to native code");
        let sum = front + both - copy + native;
        results.record(&name, sum, Unit::Microseconds, Bar::None);
    }
    for blocks in [20, 1_000, 100_000] {
        let program = chain(blocks);
        let native = quickest(|| Code::compile(&program).unwrap());
        let blank = String::new;
        row([
            "a chain of tests".to_owned(),
            blank(),
            blank(),
            format!("{native:.1}"),
            blank(),
            blocks.to_string(),
        ]);
        let name = format!("native: a chain of {blocks} tests: native code");
        results.record(&name, native, Unit::Microseconds, Bar::None);
    }
}

fn compile_time(criterion: &mut Criterion, results: &Recorder) {
    compile_table(results);
    let mut group = criterion.benchmark_group("compile and install");
    for text in EXPRESSIONS {
        let program = program(text);
        group.bench_function(text, |b| b.iter(|| Code::compile(&program).unwrap()));
    }
    for blocks in [20, 1_000, 100_000] {
        let program = chain(blocks);
        group.throughput(Throughput::Elements(blocks.into()));
        let id = BenchmarkId::new("chain of blocks", blocks);
        group.bench_with_input(id, &program, |b, program| {
            b.iter(|| Code::compile(program).unwrap());
        });
    }
    group.finish();
    let mut group = criterion.benchmark_group("text to native code");
    for text in EXPRESSIONS {
        group.bench_function(text, |b| {
            b.iter(|| Code::compile(&program(text)).unwrap());
        });
    }
}
