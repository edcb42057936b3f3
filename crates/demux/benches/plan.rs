//! What a frame costs in a plan, by the number and kind of bindings, against
//! libpcap's filters in turn; and what a bind costs.
//!
//! ```sh
//! cargo bench -p weir-demux
//! ```
//!
//! Everything that is compared is run in turn, round after round, and the
//! best round of each counts, so that whatever else the machine does falls on
//! all alike: the ratios are good even where the times are not.

use std::hint::black_box;
use std::time::Instant;
use weir_demux::{Binding, Filter, Plan, Target, Verdict};
use weir_filter::backend::native::Code;
use weir_filter::lang::expr::{Context, compile};
use weir_filter::opt::optimise;
use weir_lab::oracle::{self, Oracle};
use weir_lab::rng::Rng;
use weir_lab::rules::{FiveTuple, Profile, Rule, TCP, Trace, UDP, generate, shapes};
use weir_wire::LinkType;

/// Rounds that each comparison runs.
const ROUNDS: usize = 15;
/// What one round of one contestant takes, about.
const ROUND_NS: f64 = 10e6;

/// One side of a comparison.
struct Contestant<'c> {
    name: String,
    /// Runs as many operations as told.
    run: Box<dyn FnMut(usize) + 'c>,
}

fn contestant<'c>(name: impl Into<String>, run: impl FnMut(usize) + 'c) -> Contestant<'c> {
    Contestant {
        name: name.into(),
        run: Box::new(run),
    }
}

/// Nanoseconds per operation of each, the best of all rounds.
fn compare(contestants: &mut [Contestant<'_>]) -> Vec<f64> {
    let time = |contestant: &mut Contestant<'_>, count: usize| {
        let start = Instant::now();
        (contestant.run)(count);
        start.elapsed().as_nanos() as f64 / count as f64
    };
    let mut counts = Vec::new();
    for contestant in contestants.iter_mut() {
        let mut count = 16;
        let mut each = time(contestant, count);
        while each * count as f64 <= ROUND_NS / 8.0 {
            count *= 2;
            each = time(contestant, count);
        }
        counts.push(((ROUND_NS / each) as usize).max(16));
    }
    let mut best = vec![f64::INFINITY; contestants.len()];
    for _ in 0..ROUNDS {
        for (at, contestant) in contestants.iter_mut().enumerate() {
            best[at] = best[at].min(time(contestant, counts[at]));
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
    let mut plan = Plan::new(0x1234);
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

fn connections(count: u32) -> Plan {
    plan((0..count).map(|n| text(connection(n))))
}

/// Runs a plan on frames, one after the other.
fn on_frames<'c>(plan: &'c Plan, frames: &'c [Vec<u8>]) -> impl FnMut(usize) + 'c {
    let (mut verdict, mut at) = (Verdict::new(), 0);
    move |count| {
        for _ in 0..count {
            at = if at + 1 < frames.len() { at + 1 } else { 0 };
            plan.run(black_box(&frames[at]), 64, &mut verdict);
            black_box(verdict.taker());
        }
    }
}

/// Runs libpcap's filters in turn up to the first that accepts.
fn in_turn<'c>(filters: &'c [oracle::Filter<'_>], frames: &'c [Vec<u8>]) -> impl FnMut(usize) + 'c {
    let mut at = 0;
    move |count| {
        for _ in 0..count {
            at = if at + 1 < frames.len() { at + 1 } else { 0 };
            let accepts = |filter: &oracle::Filter<'_>| filter.run(black_box(&frames[at]), 64) != 0;
            black_box(filters.iter().position(accepts));
        }
    }
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

fn one_shape() {
    const COUNTS: [u32; 6] = [1, 10, 100, 1_000, 10_000, 100_000];
    let plans: Vec<Plan> = COUNTS.iter().map(|count| connections(*count)).collect();
    let hot: Vec<Vec<Vec<u8>>> = COUNTS.iter().map(|count| hot_frames(*count)).collect();
    let mut contestants = Vec::new();
    for (at, count) in COUNTS.iter().enumerate() {
        let run = on_frames(&plans[at], &hot[at]);
        contestants.push(contestant(format!("{count} connections, hot keys"), run));
    }
    for (at, &count) in COUNTS.iter().enumerate() {
        // One frame rewritten, so that the table's misses are measured and
        // not the frames'.
        let (plan, mut bytes) = (&plans[at], connection(0).frame());
        let (mut verdict, mut rng) = (Verdict::new(), Rng::new(1));
        let run = move |times| {
            for _ in 0..times {
                let tuple = connection(rng.below(count as usize) as u32);
                bytes[26..30].copy_from_slice(&tuple.src.to_be_bytes());
                bytes[34..36].copy_from_slice(&tuple.src_port.to_be_bytes());
                plan.run(black_box(&bytes), 64, &mut verdict);
                black_box(verdict.taker());
            }
        };
        contestants.push(contestant(format!("{count} connections, random keys"), run));
    }
    print("One shape: connections", &mut contestants, 0);
}

fn against_libpcap(oracle: &Oracle) {
    const COUNT: u32 = 1_000;
    let plan = connections(COUNT);
    let filters = compiled(oracle, (0..COUNT).map(|n| text(connection(n))));
    let hits: Vec<Vec<u8>> = (0..COUNT)
        .map(|n| connection(n * 7 % COUNT).frame())
        .collect();
    let misses = vec![connection(COUNT + 1).frame()];
    let mut contestants = [
        contestant("plan, frames of all", on_frames(&plan, &hits)),
        contestant("libpcap in turn, frames of all", in_turn(&filters, &hits)),
        contestant("plan, frames of none", on_frames(&plan, &misses)),
        contestant(
            "libpcap in turn, frames of none",
            in_turn(&filters, &misses),
        ),
    ];
    print("1,000 connections", &mut contestants, 0);
}

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

fn rule_sets(oracle: &Oracle) {
    for profile in Profile::ALL {
        let sets = [100, 1_000, 10_000].map(|count| rules(profile, count));
        let texts = |at: usize| sets[at].iter().map(|rule| rule.expression());
        let plans: Vec<Plan> = (0..sets.len()).map(|at| plan(texts(at))).collect();
        let filters: Vec<_> = (0..sets.len())
            .map(|at| compiled(oracle, texts(at)))
            .collect();
        let traces = |is_local: bool| -> Vec<Vec<Vec<u8>>> {
            let trace = |rules| match is_local {
                true => Trace::local(rules, 7),
                false => Trace::even(rules, 7),
            };
            let frames = |rules| trace(rules).take(4096).map(|tuple| tuple.frame()).collect();
            sets.iter().map(|rules| frames(rules)).collect()
        };
        let names = ["every frame a new flow", "bursts of popular flows"];
        for (name, frames) in names.iter().zip([traces(false), traces(true)]) {
            let mut contestants = Vec::new();
            for (at, rules) in sets.iter().enumerate() {
                let (count, shapes) = (rules.len(), plans[at].shapes().count());
                let name = format!("plan, {count} rules in {shapes} shapes");
                contestants.push(contestant(name, on_frames(&plans[at], &frames[at])));
            }
            for (at, rules) in sets.iter().enumerate() {
                let name = format!("libpcap in turn, {} rules", rules.len());
                contestants.push(contestant(name, in_turn(&filters[at], &frames[at])));
            }
            let title = format!("Rules with prefixes and ranges, {profile:?}, {name}");
            let best = print(&title, &mut contestants, 0);
            let times = (0..3).map(|at| format!("{:.1}", best[at + 3] / best[at]));
            let times: Vec<_> = times.collect();
            println!("  plan faster by {} times", times.join(", "));
        }
    }
}

fn many_shapes(oracle: &Oracle) {
    let texts = shapes(3, 1_000);
    let plan = plan(texts.iter().cloned());
    let filters = compiled(oracle, texts.iter().cloned());
    let mut rng = Rng::new(5);
    let frames: Vec<Vec<u8>> = (0..1024)
        .map(|_| {
            let tuple = FiveTuple {
                src: 0x0a00_0000 | rng.word() >> 8,
                dst: 0x0a00_0000 | rng.word() >> 8,
                src_port: rng.word() as u16,
                dst_port: rng.word() as u16,
                protocol: *rng.choose(&[TCP, UDP]),
            };
            tuple.frame()
        })
        .collect();
    let name = format!("plan, {} shapes", plan.shapes().count());
    let mut contestants = [
        contestant(name, on_frames(&plan, &frames)),
        contestant("libpcap in turn", in_turn(&filters, &frames)),
    ];
    print("1,000 expressions of 40 kinds", &mut contestants, 0);
}

fn ranges() {
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
        .map(|(count, plan)| contestant(format!("{count} ranges"), on_frames(plan, &frames)))
        .collect();
    print("Ranges under one key", &mut contestants, 0);
}

fn binds() {
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
        contestant("bind and unbind", |count| {
            (0..count).for_each(|_| bind_and_unbind(ready.clone()));
        }),
        contestant("analyse, bind and unbind", |count| {
            (0..count).for_each(|_| bind_and_unbind(Filter::new(program.clone())));
        }),
        contestant("compile the expression", |count| {
            (0..count).for_each(|_| drop(black_box(compile(&new, &context))));
        }),
        contestant("optimise", |count| {
            (0..count).for_each(|_| optimise(black_box(&mut plain.clone())));
        }),
        contestant("native code", |count| {
            (0..count).for_each(|_| drop(black_box(Code::compile(&program))));
        }),
        contestant("all of it", |count| {
            for _ in 0..count {
                let mut program = compile(&new, &context).expect("compiles");
                optimise(&mut program);
                drop(black_box(Code::compile(&program)));
                bind_and_unbind(Filter::new(program));
            }
        }),
    ];
    print("One more connection to 100,000", &mut contestants, 0);
}

fn main() {
    // `cargo test` runs benches too, to see that they run: that is too long.
    if !std::env::args().any(|arg| arg == "--bench") {
        return;
    }
    binds();
    one_shape();
    ranges();
    let Some(oracle) = Oracle::load() else { return };
    against_libpcap(&oracle);
    many_shapes(&oracle);
    rule_sets(&oracle);
}
