//! What the kernel's verifier takes for filters that users may ask for.

use super::HOOKS;
use super::bound::{binding, filter};
use super::rig::permitted;
use std::time::{Duration, Instant};
use weir_demux::kernel::{
    Hook, KernelPlan, Options, all_computed_loads, computed_loads, verifier_cost,
};
use weir_link::plan::PlanMaps;

/// The least time of two in which a plan with the filter is loaded.
fn load_time(hook: Hook, text: &str) -> Duration {
    let mut plan = KernelPlan::new(Options::default());
    drop(plan.bind(binding(filter(text), 5, true, 0, 0)).unwrap());
    plan.prepare_recompile();
    let maps = PlanMaps::new(&plan).unwrap();
    let times = (0..2).map(|_| {
        let began = Instant::now();
        drop(
            maps.load(&plan, hook)
                .unwrap_or_else(|error| panic!("{error}")),
        );
        began.elapsed()
    });
    times.min().unwrap()
}

fn nested(load: &str, loads: usize) -> String {
    format!("{}0{} = 5", load.repeat(loads + 1), "]".repeat(loads + 1))
}

fn disjoint(loads: usize) -> String {
    let arm = |at: usize| {
        let offset = 40 + at;
        format!("(ether[14:2] = {at} and ether[ether[{offset}]] = 1 and ether[6] != ether[7])")
    };
    let arms: Vec<String> = (0..loads).map(arm).collect();
    // More different values than a table's tests may have.
    let others: Vec<String> = (20..26)
        .map(|at| format!("ether[{at}] < ether[{}]", at + 10))
        .collect();
    format!("({}) and {}", arms.join(" or "), others.join(" and "))
}

/// The most costly filters that a broker accepts. On an idle machine each takes a
/// twentieth of what is allowed here.
#[test]
fn accepted_filters_are_verified_in_good_time() {
    if !permitted() {
        return;
    }
    let mut cases = vec![
        disjoint(32),
        disjoint(64),
        disjoint(96),
        nested("ether[", 30),
        nested("ether[", 40),
        nested("ether[", 47),
    ];
    for load in ["ether[", "ip[", "udp["] {
        cases.extend([3, 4, 14, 20].map(|loads| nested(load, loads)));
    }
    for text in cases {
        let one = filter(&text);
        let (cost, loads) = (verifier_cost(&one, 1 << 30), computed_loads(&one));
        let all = all_computed_loads(&one);
        for hook in HOOKS {
            let took = load_time(hook, &text);
            println!(
                "{cost:8} steps, {loads:3} loads on a path, {all:3} in all, {hook:?}: {took:?}, {}",
                &text[..text.len().min(40)]
            );
            assert!(took < Duration::from_secs(1), "{took:?}: {text}");
        }
    }
}
