//! A plan compared with its filters in turn, for few filters of many kinds: on
//! the traffic of `weir demo`, and on real captures.
//!
//! Run by `cargo bench -p weir --bench small_plans`. Both sides use native code
//! and reuse their memory. They run in turn in one process for several rounds,
//! and the best round of each counts.

use rustix::time::{ClockId, clock_gettime};
use std::hint::black_box;
use weir_demux::{Binding, Filter, Plan, Target, Verdict};
use weir_filter::backend::native::Code;
use weir_filter::ir::Program;
use weir_filter::lang::expr::{self, Context};
use weir_filter::opt::optimise;
use weir_lab::results::{Bar, Unit, recorder};
use weir_lab::{rules, testenv};
use weir_link::mem::traffic::{Medium, Traffic};
use weir_link::pcap::Reader;
use weir_wire::LinkType;

const ROUNDS: usize = 30;
/// Minimum duration of one part of a round, in ns.
const ROUND_NS: f64 = 1e6;
const FRAMES: usize = 4096;

/// A filter with its priority and copy flag.
struct Row {
    program: Program,
    priority: u16,
    copy: bool,
}

fn row(text: &str, priority: u16, copy: bool) -> Row {
    let mut program = expr::compile(text, &Context::new(LinkType::EN10MB)).expect(text);
    optimise(&mut program);
    Row {
        program,
        priority,
        copy,
    }
}

/// The bindings of `weir demo`; filters in other languages are replaced by
/// equivalent expressions.
fn demo() -> Vec<Row> {
    vec![
        row("", 65_535, true),
        row("tcp[tcpflags] & (tcp-syn|tcp-ack) == tcp-syn", 30, true),
        row("port 53", 20, false),
        row("tcp port 80 or 443", 10, false),
        row("tcp port 22", 10, false),
        row("icmp or icmp6", 10, false),
        row("arp", 10, false),
        row("ether[12:2] = 0x0200", 10, false),
        row("vlan", 0, false),
    ]
}

/// `count` expressions of 40 kinds.
fn diverse(count: usize) -> Vec<Row> {
    let texts = rules::mixed_forms(11, count);
    texts.iter().map(|text| row(text, 10, false)).collect()
}

/// `count` ports of one kind.
fn alike(count: usize) -> Vec<Row> {
    let texts = (0..count).map(|n| format!("udp dst port {}", 4000 + n * 7));
    texts.map(|text| row(&text, 10, false)).collect()
}

fn traffic() -> Vec<Vec<u8>> {
    let traffic = Traffic::new(1987, Medium::Ethernet).take(FRAMES);
    traffic.map(|frame| frame.bytes.to_vec()).collect()
}

/// The Ethernet frames of all real captures, some of each.
fn captured() -> Vec<Vec<u8>> {
    const OF_EACH: usize = 200;
    let mut frames = Vec::new();
    for file in testenv::capture_files() {
        let Ok(mut reader) = Reader::open(&file) else {
            continue;
        };
        for _ in 0..OF_EACH {
            match reader.next_frame() {
                Ok(Some(frame)) if frame.linktype() == LinkType::EN10MB => {
                    frames.push(frame.bytes.to_vec());
                }
                Ok(Some(_)) => {}
                _ => break,
            }
        }
    }
    frames
}

fn now() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

fn plan(rows: &[Row]) -> Plan {
    let mut plan = Plan::new(0x1234);
    for (tag, row) in (0..).zip(rows) {
        let bound = plan.bind(Binding {
            filter: Filter::new(row.program.clone()),
            priority: row.priority,
            copy: row.copy,
            target: Target::Port(tag),
            tag,
        });
        bound.expect("there is room");
    }
    plan
}

/// The filters in the order of evaluation.
fn in_turn(rows: &[Row]) -> Vec<(u32, bool, Code)> {
    let mut order: Vec<u32> = (0..rows.len() as u32).collect();
    order.sort_by_key(|&at| {
        let row = &rows[at as usize];
        (u16::MAX - row.priority, !row.copy)
    });
    let compiled = order.into_iter().map(|at| {
        let row = &rows[at as usize];
        let code = Code::compile(&row.program).expect("this machine has native code");
        (at, row.copy, code)
    });
    compiled.collect()
}

/// Nanoseconds per frame by the plan and by the filters in turn.
fn compare(rows: &[Row], frames: &[Vec<u8>]) -> (f64, f64) {
    let (plan, filters) = (plan(rows), in_turn(rows));
    let mut verdict = Verdict::new();
    let mut by_plan = |frames: &[Vec<u8>]| {
        for bytes in frames {
            plan.run(black_box(bytes), bytes.len() as u32, &mut verdict);
            black_box(verdict.deliveries());
        }
    };
    let mut found: Vec<(u32, u32)> = Vec::new();
    let mut by_filters = |frames: &[Vec<u8>]| {
        for bytes in frames {
            found.clear();
            for (port, copy, code) in &filters {
                let snap_len = code.run(black_box(bytes), bytes.len() as u32);
                if snap_len != 0 {
                    found.push((*port, snap_len));
                    if !copy {
                        break;
                    }
                }
            }
            black_box(&found);
        }
    };
    let mut best = (f64::INFINITY, f64::INFINITY);
    let time = |run: &mut dyn FnMut(&[Vec<u8>])| {
        let (start, mut times) = (now(), 0);
        while now() - start < ROUND_NS {
            run(frames);
            times += 1;
        }
        (now() - start) / f64::from(times) / frames.len() as f64
    };
    for _ in 0..ROUNDS {
        best.0 = best.0.min(time(&mut by_plan));
        best.1 = best.1.min(time(&mut by_filters));
    }
    best
}

fn main() {
    if !std::env::args().any(|arg| arg == "--bench") {
        return;
    }
    let results = recorder!();
    let mut sets = vec![("weir demo".to_owned(), demo())];
    for count in [1, 2, 3, 5, 9, 15, 20, 30, 40, 60, 100, 200] {
        sets.push((format!("{count} of many kinds"), diverse(count)));
    }
    for count in [1, 2, 3, 4, 5, 6, 8, 16, 100] {
        sets.push((format!("{count} of one kind"), alike(count)));
    }
    let clients = (0..1000).map(|client| {
        let [_, _, high, low] = u32::to_be_bytes(client);
        let text = format!("udp and src host 198.18.{high}.{low} and dst port 5060");
        row(&text, 40, false)
    });
    sets.push((
        "weir demo and 1,000 clients".to_owned(),
        demo().into_iter().chain(clients).collect(),
    ));
    for (name, frames) in [
        ("traffic of weir demo", traffic()),
        ("real captures", captured()),
    ] {
        if frames.is_empty() {
            continue;
        }
        println!(
            "\n{name}, {} frames: ns a frame, and plan : in turn",
            frames.len()
        );
        for (set, rows) in &sets {
            let (plan, filters) = compare(rows, &frames);
            println!(
                "  {set:<30} plan {plan:>8.1}   in turn {filters:>8.1}   {:.2}",
                plan / filters
            );
            let what = format!("small_plans: {set}, {name}");
            let in_turn = Unit::CostOf("native code in turn");
            results.record(&what, plan / filters, in_turn, Bar::None);
        }
    }
}
