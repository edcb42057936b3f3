//! Cost of filters in the kernel: number of instructions, generating, loading
//! (verifier and JIT compiler included), and one run, measured by
//! `BPF_PROG_TEST_RUN` over a million repetitions.
//!
//! `sudo cargo bench -p weir-link --bench bpf`; needs privilege. The time of a
//! program that only returns is the floor: a call and the loop around it.

use std::time::Instant;
use weir_filter::backend::ebpf::{Insn, Options, Reg, Target, XdpLen, emit};
use weir_filter::ir::Program as Filter;
use weir_filter::lang::expr::{Context, compile};
use weir_filter::opt::optimise;
use weir_lab::results::{Bar, Recorder, Unit, recorder};
use weir_link::bpf::{Load, Program, ProgramType, TestRun};
use weir_wire::LinkType;

const EXPRESSIONS: [&str; 7] = [
    "ip",
    "tcp port 5555",
    "tcp dst port 80 and src net 10.0.0.0/8",
    "udp port 53 or tcp port 80 or tcp port 443",
    "tcp[tcpflags] & tcp-syn != 0",
    "host 10.1.2.3 and portrange 1000-2000",
    "ip6 and udp and not port 53",
];

const TARGETS: [(&str, Target, ProgramType); 3] = [
    ("xdp", Target::Xdp(XdpLen::Linear), ProgramType::Xdp),
    ("tc", Target::Tc, ProgramType::SchedCls),
    ("socket", Target::SocketFilter, ProgramType::SocketFilter),
];

/// Number of runs whose average the kernel returns, in whole nanoseconds.
const REPEAT: u32 = 1_000_000;

/// Number of rounds, of which the smallest result counts.
const ROUNDS: usize = 5;

fn main() {
    let nothing = [Insn::mov32(Reg::R0, 0), Insn::exit()];
    if let Err(error) = Program::load(&nothing, &Load::new(ProgramType::Xdp)) {
        return eprintln!("not measured: {error}");
    }
    let results = recorder!();
    println!("target  insns  emit µs  load µs  ns/frame  filter");
    for (name, _, kind) in TARGETS {
        row(&results, (name, kind), 0.0, &nothing, "(returns at once)");
    }
    for expression in EXPRESSIONS {
        let mut filter = compile(expression, &Context::new(LinkType::EN10MB))
            .expect("the bench's expressions compile");
        optimise(&mut filter);
        all_targets(&results, &filter, expression);
    }
    let hosts: Vec<String> = (0..2_000)
        .map(|n| format!("host 10.{}.{}.{}", n % 7, n / 256, n % 256))
        .collect();
    let mut filter = compile(&hosts.join(" or "), &Context::new(LinkType::EN10MB))
        .expect("a list of hosts compiles");
    optimise(&mut filter);
    all_targets(&results, &filter, "host … or host … (2,000)");
}

fn all_targets(results: &Recorder, filter: &Filter, label: &str) {
    for (name, target, kind) in TARGETS {
        let options = Options::new(target);
        let emit_us = fastest(|| drop(emit(filter, &options)));
        let insns = emit(filter, &options).expect("the bench's filters fit");
        row(results, (name, kind), emit_us, &insns, label);
    }
}

/// The shortest time of several, in microseconds.
fn fastest(mut run: impl FnMut()) -> f64 {
    let times = (0..ROUNDS).map(|_| {
        let start = Instant::now();
        run();
        start.elapsed().as_secs_f64() * 1e6
    });
    times.fold(f64::INFINITY, f64::min)
}

fn row(
    results: &Recorder,
    (name, kind): (&str, ProgramType),
    emit_us: f64,
    insns: &[Insn],
    label: &str,
) {
    let how = Load::new(kind);
    let load_us = fastest(|| drop(Program::load(insns, &how)));
    let program = Program::load(insns, &how).expect("the verifier accepts it");
    // A test run passes the frame without its Ethernet header to a socket
    // filter.
    let header = if kind == ProgramType::SocketFilter {
        14
    } else {
        0
    };
    let bytes = [vec![0x88; header], tcp_frame()].concat();
    let mut run = TestRun::new(&bytes);
    run.repeat = REPEAT;
    let times = (0..ROUNDS).map(|_| {
        let ran = program.test_run(&run, &mut []).expect("the kernel runs it");
        ran.duration.as_nanos()
    });
    let ns = times.min().unwrap_or(0);
    let count = insns.len();
    println!("{name:6}  {count:5}  {emit_us:7.1}  {load_us:7.0}  {ns:8}  {label}");
    let named = |what: &str| format!("bpf: {label}, {name}: {what}");
    results.record(&named("a frame"), ns as f64, Unit::Nanoseconds, Bar::None);
    results.record(&named("load"), load_us, Unit::Microseconds, Bar::None);
}

/// A TCP segment from 10.1.2.3:40000 to 192.168.0.9:5555, 66 bytes.
fn tcp_frame() -> Vec<u8> {
    let mut frame = vec![0_u8; 66];
    frame[12] = 0x08;
    frame[14] = 0x45;
    frame[17] = 52;
    frame[22] = 64;
    frame[23] = 6;
    frame[26..30].copy_from_slice(&[10, 1, 2, 3]);
    frame[30..34].copy_from_slice(&[192, 168, 0, 9]);
    frame[34..36].copy_from_slice(&40_000_u16.to_be_bytes());
    frame[36..38].copy_from_slice(&5_555_u16.to_be_bytes());
    frame[46] = 0x80;
    frame[47] = 0x10;
    frame
}
