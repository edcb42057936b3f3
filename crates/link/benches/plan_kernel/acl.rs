//! 10,000 rules of ClassBench's kinds: a frame each from another flow.

use super::bed::{Bed, RING_BYTES, binding, filter};
use super::runs::{Best, drain};
use super::table::{Table, ns};
use std::time::Instant;
use weir_demux::kernel::{Hook, record};
use weir_lab::results::{Bar, Recorder, Unit};
use weir_lab::rules::{FiveTuple, Ports, Profile, Rule, Trace, generate};
use weir_link::bpf::{Program, TestRun};
use weir_ring::Reader;

const RULES: usize = 10_000;
/// Flows, one after the other.
const FLOWS: usize = 16_384;
const PORTS: u32 = 4;
/// Frames of a round: fewer than the flows, so that each is another's.
const FRAMES: u32 = 16_000;
const ROUNDS: usize = 12;
/// Frames whose rule is checked.
const CHECKED: u32 = 4_096;

/// As a person writes rules: the most specific first.
fn rules(profile: Profile, count: usize) -> Vec<Rule> {
    let mut rules = generate(profile, 1, count);
    let wide = |ports: &Ports| u32::from(ports.len() > 1);
    rules.sort_by_key(|rule| {
        let bits = u32::from(rule.src.len()) + u32::from(rule.dst.len());
        let ports = wide(&rule.src_ports) + wide(&rule.dst_ports);
        (u32::MAX - bits, ports, rule.protocol.is_none())
    });
    rules
}

/// Each frame's rule is the first that matches it: by the tags in the rings.
fn check(rules: &[Rule], tuples: &[FiveTuple], driver: &Program, readers: &mut [Reader]) {
    let mut expected: Vec<Vec<u32>> = vec![Vec::new(); readers.len()];
    for tuple in &tuples[..CHECKED as usize] {
        if let Some(first) = rules.iter().position(|rule| rule.matches(tuple)) {
            expected[first % PORTS as usize].push(first as u32);
        }
    }
    let frame = tuples[0].frame();
    let mut run = TestRun::new(&frame);
    run.repeat = CHECKED;
    driver.test_run(&run, &mut []).expect("a run");
    for (reader, expected) in readers.iter_mut().zip(&expected) {
        let mut found = Vec::new();
        loop {
            let batch = reader.peek().expect("a sound ring");
            if batch.is_empty() {
                break;
            }
            found.extend(
                batch
                    .iter()
                    .map(|bytes| record::Record::parse(bytes).expect("a record").tag),
            );
        }
        assert_eq!(&found, expected);
    }
}

fn measure(profile: Profile, count: usize, table: &mut Table, results: &Recorder) {
    let rules = rules(profile, count);
    let tuples: Vec<FiveTuple> = Trace::even(&rules, 7).take(FLOWS).collect();
    let mut bed = Bed::new(Hook::Xdp, PORTS, RING_BYTES);
    let mut refused = 0;
    let start = Instant::now();
    for (tag, rule) in (0_u32..).zip(&rules) {
        refused +=
            u32::from(!bed.try_bind(binding(filter(&rule.expression()), false, tag % PORTS, tag)));
    }
    let bound = start.elapsed().as_secs_f64() * 1e6 / rules.len() as f64;
    let driver = bed.trace_driver(&tuples);
    let mut readers: Vec<Reader> = (0..bed.ports()).map(|n| bed.reader(n)).collect();
    let frame = tuples[0].frame();
    let [mut floor, mut with] = [Best::default(); 2];
    (0..ROUNDS).for_each(|_| floor.round(&driver, &frame, FRAMES, &mut []));
    let start = Instant::now();
    let insns = bed.swap();
    let load = start.elapsed().as_secs_f64() * 1e3;
    if refused == 0 {
        check(&rules, &tuples, &bed.trace_driver(&tuples), &mut readers);
    }
    (0..ROUNDS).for_each(|_| with.round(&driver, &frame, FRAMES, &mut readers));
    readers.iter_mut().for_each(drain);
    let all = with.ns(FRAMES);
    table.row(&[
        format!("{profile:?}"),
        format!("{count} ({refused} refused)"),
        bed.plan.subtables().to_string(),
        insns.to_string(),
        format!("{load:.1}"),
        format!("{bound:.1}"),
        ns(floor.ns(FRAMES)),
        ns(all),
        format!("{:.2}", 1e3 / all),
    ]);
    let name = |what: &str| format!("kernel plan: {profile:?}, {count} rules, {what}");
    let (rate, bind) = (Unit::PerSecond("frames"), Unit::Microseconds);
    let bar = if count == RULES {
        Bar::AtLeast(3e6)
    } else {
        Bar::None
    };
    results.record(&name("a flow each"), 1e9 / all, rate, bar);
    results.record(&name("bind a rule"), bound, bind, Bar::None);
}

pub(crate) fn acl(results: &Recorder) {
    let mut table = Table::new(
        "Rules of ClassBench's kinds on four ports, a frame each from another flow \
         (XDP, 64 bytes, each delivered)",
        &[
            "kind",
            "rules",
            "shapes",
            "insns",
            "load, ms",
            "bind, µs",
            "driver, ns",
            "with plan, ns",
            "M frames/s",
        ],
    );
    for profile in Profile::ALL {
        for count in [1, 100, 1_000, RULES] {
            measure(profile, count, &mut table, results);
        }
    }
    table.print();
}
