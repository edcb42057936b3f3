//! 10,000 rules of ClassBench's kinds: the plan beside DPDK's `rte_acl`, by
//! its own test program, on the same rules and packets, one core each.
//!
//! ```sh
//! cargo bench -p weir-demux --bench acl
//! cargo bench -p weir-demux --bench acl -- RULES TRACE   # files of ClassBench's tools
//! ```
//!
//! Both run in turn, round after round, by the clock on the wall. A round is a
//! few milliseconds and the best of each counts, so that what else the machine
//! does counts little. `dpdk-test-acl` (Debian: `dpdk-dev`) classifies packets
//! that it has in memory, and so does the plan. Without it the plan runs alone.
//! How long a bind and an unbind take is measured besides, the longest too.

use std::hint::black_box;
use std::path::Path;
use std::process::Command;
use std::time::Instant;
use weir_demux::{Binding, BindingId, Filter, Plan, Target, Verdict};
use weir_filter::lang::expr::{Context, compile};
use weir_filter::opt::optimise;
use weir_lab::results::{Bar, Recorder, Unit, recorder};
use weir_lab::rules::{FiveTuple, Profile, Rule, Trace, classbench, generate};
use weir_wire::LinkType;

const RULES: usize = 10_000;
const PACKETS: usize = 16_384;
const ROUNDS: usize = 7;
/// Times that each runs all packets in a round.
const TIMES: usize = 4;
/// Times that the plan does so each time that `rte_acl` has: a process that
/// begins anew is not interrupted as often as one that has long run.
const TRIES: usize = 4;
/// Packets that each is given at once.
const BATCH: usize = 256;

/// Rules in order, and packets that they accept.
struct Set {
    name: String,
    rules: Vec<Rule>,
    tuples: Vec<FiveTuple>,
}

/// As a person writes rules: the most specific first.
fn set(profile: Profile) -> Set {
    let mut rules = generate(profile, 1, RULES);
    let wide = |ports: &weir_lab::rules::Ports| u32::from(ports.len() > 1);
    rules.sort_by_key(|rule| {
        let bits = u32::from(rule.src.len()) + u32::from(rule.dst.len());
        let ports = wide(&rule.src_ports) + wide(&rule.dst_ports);
        (u32::MAX - bits, ports, rule.protocol.is_none())
    });
    let tuples = Trace::even(&rules, 7).take(PACKETS).collect();
    let name = format!("{profile:?}");
    Set {
        name,
        rules,
        tuples,
    }
}

fn files(rules: &str, trace: &str) -> Set {
    let read = |path: &str| std::fs::read_to_string(path).expect(path);
    let tuples = classbench::read_trace(&read(trace)).expect("a trace of ClassBench's format");
    Set {
        name: rules.to_owned(),
        rules: classbench::read_rules(&read(rules)).expect("rules of ClassBench's format"),
        tuples: tuples.into_iter().take(PACKETS).collect(),
    }
}

fn micros(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e6
}

/// What all of `each` took, and the longest, in microseconds.
fn timed<T>(items: impl Iterator<Item = T>, mut each: impl FnMut(T)) -> (f64, f64) {
    let (mut sum, mut longest) = (0.0, 0.0_f64);
    for item in items {
        let start = Instant::now();
        each(item);
        let took = micros(start);
        (sum, longest) = (sum + took, longest.max(took));
    }
    (sum, longest)
}

/// A plan of the rules, and how long its making took.
fn plan(set: &Set, results: &Recorder) -> Plan {
    let context = Context::new(LinkType::EN10MB);
    let start = Instant::now();
    let filters: Vec<Filter> = (set.rules.iter())
        .map(|rule| {
            let mut program = compile(&rule.expression(), &context).expect("compiles");
            optimise(&mut program);
            Filter::new(program)
        })
        .collect();
    let count = filters.len() as f64;
    let compiled = micros(start) / count;
    println!("  compiling a rule {compiled:.1} µs");
    let mut plan = Plan::new(0x1234);
    let mut ids: Vec<BindingId> = Vec::new();
    let bind = |plan: &mut Plan, ids: &mut Vec<BindingId>| {
        timed((0..).zip(&filters), |(tag, filter)| {
            let binding = Binding {
                filter: filter.clone(),
                priority: 10,
                copy: false,
                target: Target::Port(tag),
                tag,
            };
            ids.push(plan.bind(binding).expect("room"));
        })
    };
    let (bound, bind_max) = bind(&mut plan, &mut ids);
    let (unbound, unbind_max) = timed(ids.drain(..), |id| {
        plan.unbind(id).expect("bound");
    });
    let (again, again_max) = bind(&mut plan, &mut ids);
    println!(
        "  bind {:.2} µs a rule, {bind_max:.0} at most; unbind {:.2}, {unbind_max:.0} at most; \
         bind again {:.2}, {again_max:.0} at most; {} shapes",
        bound / count,
        unbound / count,
        again / count,
        plan.subtables().count(),
    );
    let name = |what: &str| format!("acl: {}, {} rules: {what}", set.name, set.rules.len());
    let (us, none) = (Unit::Microseconds, Bar::None);
    results.record(&name("compile a rule"), compiled, us, none);
    results.record(&name("bind a rule"), bound / count, us, Bar::AtMost(50.0));
    results.record(&name("bind a rule, the longest"), bind_max, us, none);
    results.record(&name("unbind a rule"), unbound / count, us, none);
    plan
}

/// Millions of packets in a second, one at a time or in batches.
fn ours(plan: &Plan, frames: &[(&[u8], u32)], batch: bool) -> f64 {
    let mut verdict = Verdict::new();
    // What it reads is in the cache, as what `rte_acl` has just built is.
    for (bytes, wire_len) in frames {
        plan.run(bytes, *wire_len, &mut verdict);
    }
    let start = Instant::now();
    for _ in 0..TIMES {
        if batch {
            for frames in frames.chunks(BATCH) {
                plan.run_batch(frames, &mut verdict, |_, verdict| {
                    black_box(verdict.taker());
                });
            }
        } else {
            for (bytes, wire_len) in frames {
                plan.run(black_box(bytes), *wire_len, &mut verdict);
                black_box(verdict.taker());
            }
        }
    }
    (frames.len() * TIMES) as f64 / micros(start)
}

/// Each packet's rule is the first that matches it.
fn check(set: &Set, plan: &Plan, frames: &[(&[u8], u32)]) {
    let mut verdict = Verdict::new();
    for ((bytes, wire_len), tuple) in frames.iter().zip(&set.tuples) {
        plan.run(bytes, *wire_len, &mut verdict);
        let first = set.rules.iter().position(|rule| rule.matches(tuple));
        let found = verdict.taker().map(|taker| taker.tag as usize);
        assert_eq!(found, first, "{tuple:?}");
    }
}

/// What `rte_acl` does with the files: millions of packets in a second, and
/// the algorithm that it chose. `None` if the program is not there.
fn theirs(rules: &Path, trace: &Path) -> Option<(f64, &'static str)> {
    let output = Command::new("dpdk-test-acl")
        .args(["--no-huge", "--no-pci", "--no-telemetry"])
        .args(["-m", "2048", "-l", "0", "--"])
        .arg(format!("--rulesf={}", rules.display()))
        .arg(format!("--tracef={}", trace.display()))
        .arg(format!("--iter={TIMES}"))
        .arg(format!("--tracestep={BATCH}"))
        .arg("--verbose=0")
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let before = |end: &str| text.split(end).next()?.split(", ").last();
    let rate: Option<f64> = before(" pkt/sec").and_then(|rate| rate.trim().parse().ok());
    let Some(rate) = rate else {
        println!("{text}\n{}", String::from_utf8_lossy(&output.stderr));
        panic!("dpdk-test-acl printed no rate");
    };
    const NAMES: [&str; 8] = [
        "default",
        "scalar",
        "SSE",
        "AVX2",
        "NEON",
        "AltiVec",
        "AVX512x16",
        "AVX512x32",
    ];
    let chosen = text.split("  alg=").nth(1)?.lines().next()?.trim().parse();
    let name = NAMES.get(chosen.unwrap_or(0)).copied();
    Some((rate / 1e6, name.unwrap_or("unknown")))
}

fn best(rates: &[f64]) -> f64 {
    rates.iter().copied().fold(0.0, f64::max)
}

fn compare(set: &Set, folder: &Path, results: &Recorder) {
    println!(
        "\n{}: {} rules, {} packets",
        set.name,
        set.rules.len(),
        set.tuples.len()
    );
    let plan = plan(set, results);
    let frames: Vec<Vec<u8>> = set.tuples.iter().map(|tuple| tuple.frame()).collect();
    let frames: Vec<(&[u8], u32)> = frames.iter().map(|frame| (&frame[..], 64)).collect();
    check(set, &plan, &frames);
    let paths = ["rules", "trace"].map(|name| folder.join(name));
    std::fs::write(&paths[0], classbench::write_rules(&set.rules)).expect("a file in the folder");
    std::fs::write(&paths[1], classbench::write_trace(&set.tuples)).expect("a file in the folder");
    let (mut own, mut batched, mut other, mut chosen) = (vec![], vec![], vec![], "");
    for _ in 0..ROUNDS {
        if let Some((rate, name)) = theirs(&paths[0], &paths[1]) {
            other.push(rate);
            chosen = name;
        }
        for _ in 0..TRIES {
            own.push(ours(&plan, &frames, false));
            batched.push(ours(&plan, &frames, true));
        }
    }
    let (own, batched) = (best(&own), best(&batched));
    print!("  plan {own:.2} M/s, in batches {batched:.2}");
    let name = |what: &str| format!("acl: {}, {} rules: {what}", set.name, set.rules.len());
    let packets = Unit::PerSecond("packets");
    results.record(&name("one by one"), own * 1e6, packets, Bar::None);
    results.record(&name("in batches"), batched * 1e6, packets, Bar::None);
    if other.is_empty() {
        println!("; dpdk-test-acl is not installed (Debian: dpdk-dev)");
        return;
    }
    let other = best(&other);
    println!(
        "; rte_acl ({chosen}) {other:.2}; ratio {:.2}, in batches {:.2}",
        own / other,
        batched / other,
    );
    let (alone, together) = (name("one by one : rte_acl"), name("in batches : rte_acl"));
    let rte_acl = Unit::RateOf("rte_acl");
    results.record(&alone, own / other, rte_acl, Bar::None);
    results.record(&together, batched / other, rte_acl, Bar::AtLeast(1.0));
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    // `cargo test` runs benches too, to see that they run: that is too long.
    if !args.iter().any(|arg| arg == "--bench") {
        return;
    }
    let results = recorder!().seed(1);
    let folder = std::env::temp_dir().join(format!("weir-acl-{}", std::process::id()));
    std::fs::create_dir(&folder).expect("a new folder for temporary files");
    let named: Vec<&String> = args.iter().filter(|arg| !arg.starts_with('-')).collect();
    match named[..] {
        [rules, trace] => compare(&files(rules, trace), &folder, &results),
        _ => Profile::ALL
            .iter()
            .for_each(|profile| compare(&set(*profile), &folder, &results)),
    }
    std::fs::remove_dir_all(&folder).expect("the folder is still there");
}
