//! What a frame costs in a plan, by the number and kind of bindings, against
//! libpcap's filters in turn; and what a bind costs.
//!
//! ```sh
//! cargo bench -p weir-demux
//! cargo bench -p weir-demux --bench plan -- one_shape many_shapes   # parts
//! ```
//!
//! Everything that is compared is run in turn, round after round, each after
//! one pass that does not count, and the best round of each counts. So whatever
//! else the machine does falls on all alike: the ratios are good even where the
//! times are not.

use rustix::time::{ClockId, clock_gettime};
use std::hint::black_box;
use weir_demux::{Binding, Filter, Plan, Target, Verdict};
use weir_filter::backend::native::Code;
use weir_filter::lang::expr::{Context, compile};
use weir_filter::opt::optimise;
use weir_lab::oracle::{self, Oracle};
use weir_lab::results::{Bar, Recorder, Unit, recorder};
use weir_lab::rng::Rng;
use weir_lab::rules::{FiveTuple, Profile, Rule, TCP, Trace, UDP, generate, narrow};
use weir_wire::LinkType;

/// Rounds that a comparison runs, unless they are long.
const ROUNDS: usize = 15;
/// What one contestant's part of a round takes, at least.
const ROUND_NS: f64 = 5e6;
/// What a comparison takes, about.
const COMPARISON_NS: f64 = 4e9;

/// One side of a comparison.
struct Contestant<'c> {
    name: String,
    /// Runs all of its work `times` times.
    run: Box<dyn FnMut(usize) + 'c>,
    /// Operations in its work.
    operations: usize,
}

fn contestant<'c>(
    name: impl Into<String>,
    operations: usize,
    run: impl FnMut(usize) + 'c,
) -> Contestant<'c> {
    Contestant {
        name: name.into(),
        run: Box::new(run),
        operations,
    }
}

/// What this thread has run, in nanoseconds: other programs' time does not
/// count.
fn now() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

/// Nanoseconds per operation of each, the best of all rounds. Each part of a
/// round is all of a contestant's work, so that no easy part is the best.
fn compare(contestants: &mut [Contestant<'_>]) -> Vec<f64> {
    let time = |contestant: &mut Contestant<'_>, times: usize| {
        let start = now();
        (contestant.run)(times);
        (now() - start) / times as f64
    };
    let once: Vec<f64> = contestants.iter_mut().map(|each| time(each, 1)).collect();
    let times: Vec<usize> = once
        .iter()
        .map(|once| 1 + (ROUND_NS / once) as usize)
        .collect();
    let round: f64 = once
        .iter()
        .zip(&times)
        .map(|(once, times)| once * *times as f64)
        .sum();
    let rounds = ((COMPARISON_NS / round) as usize).clamp(3, ROUNDS);
    let mut best = vec![f64::INFINITY; contestants.len()];
    for _ in 0..rounds {
        for (at, contestant) in contestants.iter_mut().enumerate() {
            // Each finds the caches as it leaves them itself, not as the one
            // before it did.
            if once[at] < ROUND_NS {
                (contestant.run)(1);
            }
            let each = time(contestant, times[at]) / contestant.operations as f64;
            best[at] = best[at].min(each);
        }
    }
    best
}

fn print(title: &str, contestants: &mut [Contestant<'_>], base: usize) -> Vec<f64> {
    let best = compare(contestants);
    println!("\n{title}");
    for (contestant, ns) in contestants.iter().zip(&best) {
        println!(
            "  {:<44} {ns:>10.1} ns   × {:.2}",
            contestant.name,
            ns / best[base]
        );
    }
    best
}

fn filter(text: &str) -> Filter {
    let mut program = compile(text, &Context::new(LinkType::EN10MB)).expect(text);
    optimise(&mut program);
    Filter::new(program)
}

fn taking(filter: Filter, tag: u32) -> Binding {
    Binding {
        filter,
        priority: 10,
        copy: false,
        target: Target::Port(tag),
        tag,
    }
}

fn plan(texts: impl Iterator<Item = String>) -> Plan {
    filled(Plan::new(0x1234), texts)
}

fn filled(mut plan: Plan, texts: impl Iterator<Item = String>) -> Plan {
    for (tag, text) in (0..).zip(texts) {
        plan.bind(taking(filter(&text), tag)).expect("room");
    }
    plan
}

/// The `n`-th connection.
fn connection(n: u32) -> FiveTuple {
    let mixed = n.wrapping_mul(0x9e37_79b9);
    FiveTuple {
        src: 0x0a00_0000 | mixed >> 8,
        dst: 0xc0a8_0001,
        src_port: (mixed >> 3) as u16 | 1024,
        dst_port: 443,
        protocol: TCP,
    }
}

fn text(tuple: FiveTuple) -> String {
    let (src, dst) = (
        std::net::Ipv4Addr::from(tuple.src),
        std::net::Ipv4Addr::from(tuple.dst),
    );
    format!(
        "ip and tcp and src host {src} and dst host {dst} and src port {} and dst port {}",
        tuple.src_port, tuple.dst_port
    )
}

/// A plan of connections, which are in a table even if they are few: what
/// grows with their number is to be seen.
fn connections(count: u32) -> Plan {
    filled(
        Plan::indexed_only(0x1234),
        (0..count).map(|n| text(connection(n))),
    )
}

/// A plan on frames, one after the other.
fn on_frames<'c>(name: impl Into<String>, plan: &'c Plan, frames: &'c [Vec<u8>]) -> Contestant<'c> {
    let mut verdict = Verdict::new();
    contestant(name, frames.len(), move |times| {
        for bytes in (0..times).flat_map(|_| frames) {
            plan.run(black_box(bytes), 64, &mut verdict);
            black_box(verdict.taker());
        }
    })
}

/// libpcap's filters in turn up to the first that accepts.
fn in_turn<'c>(
    name: impl Into<String>,
    filters: &'c [oracle::Filter<'_>],
    frames: &'c [Vec<u8>],
) -> Contestant<'c> {
    contestant(name, frames.len(), move |times| {
        for bytes in (0..times).flat_map(|_| frames) {
            let accepts = |filter: &oracle::Filter<'_>| filter.run(black_box(bytes), 64) != 0;
            black_box(filters.iter().position(accepts));
        }
    })
}

fn compiled(oracle: &Oracle, texts: impl Iterator<Item = String>) -> Vec<oracle::Filter<'_>> {
    let filters = texts.map(|text| oracle.compile(&text, LinkType::EN10MB, true));
    filters
        .collect::<Result<_, _>>()
        .expect("libpcap compiles these")
}

/// Sixty-four connections of many, spread evenly.
fn hot_frames(count: u32) -> Vec<Vec<u8>> {
    let hot = count.min(64);
    (0..hot)
        .map(|n| connection(n * (count / hot)).frame())
        .collect()
}

/// Frames of connections at random, one after the other or in batches.
fn random_keys(plan: &Plan, count: u32, batch: bool) -> Contestant<'_> {
    // Some frames rewritten again and again, so that what the table costs is
    // measured and not what the frames do. The first figure of one connection
    // has what is left of it: drawing keys and writing them.
    const KEYS: usize = 1 << 16;
    const BATCH: usize = 64;
    let mut frames = vec![connection(0).frame(); BATCH];
    let (mut verdict, mut rng) = (Verdict::new(), Rng::new(1));
    let name = format!(
        "{count} connections, random keys{}",
        if batch { ", in batches" } else { "" }
    );
    contestant(name, KEYS, move |times| {
        for _ in 0..times * KEYS / BATCH {
            for bytes in &mut frames {
                let tuple = connection(rng.below(count as usize) as u32);
                bytes[26..30].copy_from_slice(&tuple.src.to_be_bytes());
                bytes[34..36].copy_from_slice(&tuple.src_port.to_be_bytes());
            }
            let frames: [(&[u8], u32); BATCH] =
                std::array::from_fn(|at| (black_box(&frames[at][..]), 64));
            if batch {
                plan.run_batch(&frames, &mut verdict, |_, verdict| {
                    black_box(verdict.taker());
                });
            } else {
                for (bytes, wire_len) in frames {
                    plan.run(bytes, wire_len, &mut verdict);
                    black_box(verdict.taker());
                }
            }
        }
    })
}

fn one_shape(results: &Recorder) {
    const COUNTS: [u32; 6] = [1, 10, 100, 1_000, 10_000, 100_000];
    let plans: Vec<Plan> = COUNTS.iter().map(|count| connections(*count)).collect();
    let hot: Vec<Vec<Vec<u8>>> = COUNTS.iter().map(|count| hot_frames(*count)).collect();
    let direct = plan([text(connection(0))].into_iter());
    let mut contestants = Vec::new();
    for (at, count) in COUNTS.iter().enumerate() {
        let name = format!("{count} connections, hot keys");
        contestants.push(on_frames(name, &plans[at], &hot[at]));
    }
    for batch in [false, true] {
        let all = COUNTS.iter().zip(&plans);
        contestants.extend(all.map(|(count, plan)| random_keys(plan, *count, batch)));
    }
    // The form of a plan of few bindings by default.
    contestants.push(on_frames("1 connection, run directly", &direct, &hot[0]));
    let best = print("One shape: connections", &mut contestants, 0);
    let more = |at: usize| best[(at + 1) * COUNTS.len() - 1] - best[at * COUNTS.len()];
    println!(
        "  100,000 : 1 with hot keys × {:.2} (required: 1.5 at most); with random keys {:.0} ns \
         more in batches (required: 150 at most), {:.0} ns more one by one",
        best[COUNTS.len() - 1] / best[0],
        more(2),
        more(1),
    );
    let hot = best[COUNTS.len() - 1] / best[0];
    let name = |what: &str| format!("plan: 100,000 connections, {what}");
    let (one, ns) = (Unit::CostOf("one connection"), Unit::Nanoseconds);
    results.record(&name("hot keys"), hot, one, Bar::AtMost(1.5));
    let batches = name("random keys, in batches: more than one connection");
    results.record(&batches, more(2), ns, Bar::AtMost(150.0));
    let alone = name("random keys, one by one: more than one connection");
    results.record(&alone, more(1), ns, Bar::None);
}

fn against_libpcap(oracle: &Oracle, results: &Recorder) {
    const COUNT: u32 = 1_000;
    let plan = connections(COUNT);
    let filters = compiled(oracle, (0..COUNT).map(|n| text(connection(n))));
    let hits: Vec<Vec<u8>> = (0..COUNT)
        .map(|n| connection(n * 7 % COUNT).frame())
        .collect();
    let misses = vec![connection(COUNT + 1).frame(); 16];
    let mut contestants = [
        on_frames("plan, frames of all", &plan, &hits),
        in_turn("libpcap in turn, frames of all", &filters, &hits),
        on_frames("plan, frames of none", &plan, &misses),
        in_turn("libpcap in turn, frames of none", &filters, &misses),
    ];
    let best = print("1,000 connections", &mut contestants, 0);
    let (hits, misses) = (best[1] / best[0], best[3] / best[2]);
    println!("  plan faster by {hits:.0} and {misses:.0} times");
    let bar = Bar::AtLeast(100.0);
    results.record("plan: 1,000 connections, frames of all", hits, IN_TURN, bar);
    results.record(
        "plan: 1,000 connections, frames of none",
        misses,
        IN_TURN,
        bar,
    );
}

/// What plans are compared with.
const IN_TURN: Unit<'static> = Unit::RateOf("libpcap's filters in turn");

/// `count` rules in the order in which a person writes them, the most specific
/// first: a wide rule before those it covers would leave them without effect,
/// and would make any way of trying rules in turn look good.
fn rules(profile: Profile, count: usize) -> Vec<Rule> {
    let mut rules = generate(profile, 1, count);
    let ports =
        |rule: &Rule| u32::from(rule.src_ports.is_wide()) + u32::from(rule.dst_ports.is_wide());
    rules.sort_by_key(|rule| {
        let bits = u32::from(rule.src.len()) + u32::from(rule.dst.len());
        (u32::MAX - bits, ports(rule), rule.protocol.is_none())
    });
    rules
}

trait Wide {
    fn is_wide(&self) -> bool;
}

impl Wide for weir_lab::rules::Ports {
    fn is_wide(&self) -> bool {
        self.len() > 1
    }
}

fn rule_sets(oracle: &Oracle, results: &Recorder) {
    for profile in Profile::ALL {
        let sets = [100, 1_000, 10_000].map(|count| rules(profile, count));
        let texts = |at: usize| sets[at].iter().map(|rule| rule.expression());
        let plans: Vec<Plan> = (0..sets.len()).map(|at| plan(texts(at))).collect();
        let filters: Vec<_> = (0..sets.len())
            .map(|at| compiled(oracle, texts(at)))
            .collect();
        let traces = |is_local: bool| -> Vec<Vec<Vec<u8>>> {
            let trace = |rules| {
                if is_local {
                    Trace::local(rules, 7)
                } else {
                    Trace::even(rules, 7)
                }
            };
            let frames = |rules| trace(rules).take(2048).map(|tuple| tuple.frame()).collect();
            sets.iter().map(|rules| frames(rules)).collect()
        };
        let names = ["every frame a new flow", "bursts of popular flows"];
        for (name, frames) in names.iter().zip([traces(false), traces(true)]) {
            let mut contestants = Vec::new();
            for (at, rules) in sets.iter().enumerate() {
                let (count, shapes) = (rules.len(), plans[at].subtables().count());
                let name = format!("plan, {count} rules in {shapes} shapes");
                contestants.push(on_frames(name, &plans[at], &frames[at]));
            }
            for (at, rules) in sets.iter().enumerate() {
                let name = format!("libpcap in turn, {} rules", rules.len());
                contestants.push(in_turn(name, &filters[at], &frames[at]));
            }
            let title = format!("Rules with prefixes and ranges, {profile:?}, {name}");
            let best = print(&title, &mut contestants, 0);
            print_times(&best);
            record_times(results, &format!("rules {profile:?}, {name}"), &best);
        }
    }
}

/// Thousands of narrow expressions of 40 kinds; each frame is one that some
/// expression, drawn evenly, accepts.
fn many_shapes(oracle: &Oracle, results: &Recorder) {
    const FRAMES: usize = 2048;
    let sets = [100, 1_000, 10_000].map(|count| narrow(3, count));
    let texts = |at: usize| sets[at].iter().map(|rule| rule.expression.clone());
    let plans = [0, 1, 2].map(|at| plan(texts(at)));
    let filters = [0, 1, 2].map(|at| compiled(oracle, texts(at)));
    let mut rng = Rng::new(5);
    let frames = sets.each_ref().map(|rules| -> Vec<Vec<u8>> {
        let one = |_| rng.choose(rules).frame.clone();
        (0..FRAMES).map(one).collect()
    });
    let mut contestants = Vec::new();
    for (plan, frames) in plans.iter().zip(&frames) {
        let name = format!(
            "plan, {} filters, {} shapes",
            plan.len(),
            plan.subtables().count()
        );
        contestants.push(on_frames(name, plan, frames));
    }
    for (filters, frames) in filters.iter().zip(&frames) {
        let name = format!("libpcap in turn, {} filters", filters.len());
        contestants.push(in_turn(name, filters, frames));
    }
    let best = print("Distinct expressions of 40 kinds", &mut contestants, 0);
    print_times(&best);
    record_times(results, "expressions of 40 kinds", &best);
}

/// Sets of 100, 1,000 and 10,000: plans, then libpcap's filters in turn.
fn record_times(results: &Recorder, set: &str, best: &[f64]) {
    let (plans, others) = best.split_at(best.len() / 2);
    let bars = [Bar::None, Bar::None, Bar::AtLeast(50.0)];
    for (at, count) in ["100", "1,000", "10,000"].iter().enumerate() {
        let name = format!("plan: {count} {set}");
        results.record(&name, others[at] / plans[at], IN_TURN, bars[at]);
    }
    let name = format!("plan: 10,000 {set}: growth");
    let growth = plans[2] / plans[0];
    results.record(&name, growth, Unit::CostOf("100 of them"), Bar::None);
}

/// How much faster than the second half the first half is.
fn print_times(best: &[f64]) {
    let (plans, others) = best.split_at(best.len() / 2);
    let times: Vec<String> = (plans.iter().zip(others))
        .map(|(plan, other)| format!("{:.1}", other / plan))
        .collect();
    println!("  plan faster by {} times", times.join(", "));
}

fn ranges(results: &Recorder) {
    let plans = [1, 100, 10_000].map(|count| {
        let mut rng = Rng::new(9);
        let text = move |_| {
            let first = rng.within(1..65_000);
            format!(
                "ip and udp and dst portrange {first}-{}",
                first + rng.within(1..500)
            )
        };
        (count, plan((0..count).map(text)))
    });
    let mut rng = Rng::new(4);
    let tuple = |rng: &mut Rng| FiveTuple {
        protocol: UDP,
        dst_port: rng.word() as u16,
        ..connection(1)
    };
    let frames: Vec<Vec<u8>> = (0..1024).map(|_| tuple(&mut rng).frame()).collect();
    let mut contestants: Vec<_> = (plans.iter())
        .map(|(count, plan)| on_frames(format!("{count} ranges"), plan, &frames))
        .collect();
    let best = print("Ranges under one key", &mut contestants, 0);
    for (count, ns) in ["1 range", "100 ranges", "10,000 ranges"].iter().zip(best) {
        let name = format!("plan: {count} under one key");
        results.record(&name, ns, Unit::Nanoseconds, Bar::None);
    }
}

fn binds(results: &Recorder) {
    let mut plan = connections(100_000);
    let new = text(connection(20_000_000));
    let context = Context::new(LinkType::EN10MB);
    let plain = compile(&new, &context).expect("compiles");
    let mut program = plain.clone();
    optimise(&mut program);
    let program = std::sync::Arc::new(program);
    let ready = Filter::new(program.clone());
    let plan = std::cell::RefCell::new(&mut plan);
    let bind_and_unbind = |filter: Filter| {
        let mut plan = plan.borrow_mut();
        let id = plan.bind(taking(filter, 1)).expect("room");
        plan.unbind(id).expect("bound");
    };
    let mut contestants = [
        contestant("bind and unbind", 1, |count| {
            (0..count).for_each(|_| bind_and_unbind(ready.clone()));
        }),
        contestant("analyse, bind and unbind", 1, |count| {
            (0..count).for_each(|_| bind_and_unbind(Filter::new(program.clone())));
        }),
        contestant("compile the expression", 1, |count| {
            (0..count).for_each(|_| drop(black_box(compile(&new, &context))));
        }),
        contestant("optimise", 1, |count| {
            (0..count).for_each(|_| optimise(black_box(&mut plain.clone())));
        }),
        contestant("native code", 1, |count| {
            (0..count).for_each(|_| drop(black_box(Code::compile(&program))));
        }),
        contestant("all of it", 1, |count| {
            for _ in 0..count {
                let mut program = compile(&new, &context).expect("compiles");
                optimise(&mut program);
                drop(black_box(Code::compile(&program)));
                bind_and_unbind(Filter::new(program));
            }
        }),
    ];
    let best = print("One more connection to 100,000", &mut contestants, 0);
    let bars = [
        Bar::AtMost(2.0),
        Bar::None,
        Bar::None,
        Bar::None,
        Bar::None,
        Bar::AtMost(50.0),
    ];
    for ((one, ns), bar) in contestants.iter().zip(best).zip(bars) {
        let name = format!("plan: one more connection to 100,000: {}", one.name);
        results.record(&name, ns / 1e3, Unit::Microseconds, bar);
    }
}

type Named<F> = (&'static str, F);
type Part = fn(&Recorder);
type PartBeside = fn(&Oracle, &Recorder);

/// Runs the comparisons that the command line names, or all.
fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    // `cargo test` runs benches too, to see that they run: that is too long.
    if !wanted.iter().any(|arg| arg == "--bench") {
        return;
    }
    let names: Vec<&String> = wanted.iter().filter(|arg| !arg.starts_with('-')).collect();
    let is_wanted = |name: &str| names.is_empty() || names.iter().any(|known| *known == name);
    let results = recorder!();
    let own: [Named<Part>; 3] = [
        ("binds", binds),
        ("one_shape", one_shape),
        ("ranges", ranges),
    ];
    for (name, run) in own {
        if is_wanted(name) {
            run(&results);
        }
    }
    let Some(oracle) = Oracle::load() else { return };
    let with_libpcap: [Named<PartBeside>; 3] = [
        ("against_libpcap", against_libpcap),
        ("many_shapes", many_shapes),
        ("rule_sets", rule_sets),
    ];
    for (name, run) in with_libpcap {
        if is_wanted(name) {
            run(&oracle, &results);
        }
    }
}
