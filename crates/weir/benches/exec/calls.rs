//! Calls on descriptors that are not weir's.

use crate::Bench;
use std::collections::BTreeMap;
use std::net::IpAddr;
use weir_lab::c;
use weir_lab::results::{Bar, Unit};

const SOURCE: &str = "crates/weir/benches/exec/calls.c";
const ROUNDS: usize = 3;

pub(crate) fn compare(bench: &Bench) {
    let world = &bench.world;
    let Some(program) = c::compiled(&world.folder, SOURCE, &["-O2"]) else {
        return;
    };
    let program = program.display().to_string();
    let words = |ip: IpAddr| vec![program.clone(), ip.to_string()];
    let alike = |ip: IpAddr| [words(ip), vec!["alike".to_owned()]].concat();
    let tap = world.tap();
    // The least of each call, with the kernel's sockets, also in a process like weir's, and with weir's.
    let mut least: BTreeMap<String, [f64; 3]> = BTreeMap::new();
    for _ in 0..ROUNDS {
        let said = [
            world.run_on_kernel(&words),
            world.run_on_kernel(&alike),
            world.run_on_weir(&tap, &words),
        ];
        for (at, said) in said.into_iter().enumerate() {
            for line in said.lines() {
                let (name, ns) = line.split_once(' ').expect("a name and a number");
                let ns: f64 = ns.parse().expect("a number");
                let least = least.entry(name.to_owned()).or_insert([f64::MAX; 3]);
                least[at] = least[at].min(ns);
            }
        }
    }
    println!(
        "{:<40} {:>12} {:>12} {:>12} {:>7} {:>7}",
        "calls, ns", "kernel", "alike", "weir exec", "more", "more"
    );
    let mut most = [f64::MIN; 2];
    for (name, [kernel, alike, weir]) in &least {
        let more = [weir - kernel, weir - alike];
        println!(
            "{name:<40} {kernel:>12.1} {alike:>12.1} {weir:>12.1} {:>7.1} {:>7.1}",
            more[0], more[1]
        );
        most = [most[0].max(more[0]), most[1].max(more[1])];
    }
    let record = |name: &str, ns: f64| {
        let bar = Bar::AtMost(10.0);
        bench.results.record(name, ns, Unit::Nanoseconds, bar);
    };
    record(
        "exec: calls on other descriptors, most that one takes more",
        most[0],
    );
    record(
        "exec: calls on other descriptors, most by the library itself",
        most[1],
    );
}
