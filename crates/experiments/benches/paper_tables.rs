//! What finding a connection costs in the papers' tables and in weir's, by how many there
//! are.
//!
//! ```sh
//! cargo bench -p weir-experiments --bench paper_tables
//! ```
//!
//! All tables run in turn, round after round, and the best round of each counts, by the
//! processor's time of this thread.

use rustix::time::{ClockId, clock_gettime};
use std::net::Ipv4Addr;
use std::num::NonZeroU32;
use weir_experiments::pcb::{Bsd, Mtf, Sequent};
use weir_lab::results::{Bar, Recorder, Unit, recorder};
use weir_lab::rng::Rng;
use weir_stack::pcb::{Key, Key4, PcbId, Table, Weir};

const ROUNDS: usize = 11;
const QUERIES: usize = 2000;

/// Nanoseconds that this thread has run.
fn ran_ns() -> f64 {
    let ran = clock_gettime(ClockId::ThreadCPUTime);
    ran.tv_sec as f64 * 1e9 + ran.tv_nsec as f64
}

fn key(index: u32) -> Key {
    let remote = Ipv4Addr::from_bits(0x0a00_0000 + index / 16);
    Key::V4(Key4::new(
        (Ipv4Addr::new(192, 0, 2, 1), 80),
        (remote, 32_768 + (index % 16) as u16),
    ))
}

fn tables() -> [(&'static str, Box<dyn Table>); 5] {
    let chains = |n| NonZeroU32::new(n).expect("not zero");
    [
        ("bsd", Box::new(Bsd::new())),
        ("mtf", Box::new(Mtf::new())),
        ("sequent(19)", Box::new(Sequent::new(chains(19), 1))),
        ("sequent(100)", Box::new(Sequent::new(chains(100), 1))),
        ("weir", Box::new(Weir::new(1))),
    ]
}

fn look_ups(count: u32, results: &Recorder) {
    let mut rng = Rng::new(7);
    let queries: Vec<u32> = (0..QUERIES)
        .map(|_| rng.below(count as usize) as u32)
        .collect();
    let keys: Vec<Key> = queries.iter().map(|&index| key(index)).collect();
    let expected: u64 = queries.iter().map(|&index| u64::from(index)).sum();
    let mut tables = tables();
    for (_, table) in &mut tables {
        for index in 0..count {
            let inserted = table.insert(key(index), PcbId(index));
            inserted.expect("it is new");
        }
    }
    let mut best = [f64::INFINITY; 5];
    for _ in 0..ROUNDS {
        for ((name, table), best) in tables.iter_mut().zip(&mut best) {
            let start_ns = ran_ns();
            let found = keys.iter().map(|key| table.find(key));
            let sum: u64 = found.flatten().map(|pcb| u64::from(pcb.0)).sum();
            *best = best.min((ran_ns() - start_ns) / QUERIES as f64);
            assert_eq!(sum, expected, "{name} finds all");
        }
    }
    for ((name, _), ns) in tables.iter().zip(best) {
        println!("{name:>14} {count:>6} {ns:>10.1}");
        let name = format!("pcb: table {name}, {count} connections");
        results.record(&name, ns, Unit::Nanoseconds, Bar::None);
    }
}

fn main() {
    let results = recorder!();
    println!("ns a look-up, random connections");
    for count in [1_000, 2_000, 10_000] {
        look_ups(count, &results);
    }
}
