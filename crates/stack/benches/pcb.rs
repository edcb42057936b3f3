//! What finding a connection costs, by how many there are, against a keyed
//! Swiss table (hashbrown with aHash); and the longest pause while growing.
//!
//! ```sh
//! cargo bench -p weir-stack --bench pcb             # to a million connections
//! cargo bench -p weir-stack --bench pcb -- 10000000 # and at this many
//! cargo bench -p weir-stack --bench pcb -- pauses   # the pauses alone
//! ```
//!
//! Everything compared runs in turn, round after round, on one core, and the
//! best round of each counts: whatever else the machine does falls on all
//! alike, so the ratios are good even where the times are not. Times are of the
//! processor, so that an insert during which others ran is not a pause. Tables get large
//! pages from a thread that makes them ahead: pinned to one core, it would hardly run.

use rustix::time::{ClockId, clock_gettime};
use std::hint::black_box;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex};
use weir_lab::results::{Bar, Recorder, Unit, recorder};
use weir_lab::rng::Rng;
use weir_stack::pcb::{ChunkSource, Key, Key4, Key6, PcbId, Table, TableChunk, Weir};

const ROUNDS: usize = 11;
/// Look-ups of one round, at most.
const QUERIES: usize = 1 << 19;
/// Connections whose table no cache of a core holds.
const BEYOND_CACHE: u32 = 1_000_000;
/// Segments that a link hands over together.
const BATCH: usize = 64;

/// Nanoseconds that this thread has run.
fn ran_ns() -> f64 {
    let ran = clock_gettime(ClockId::ThreadCPUTime);
    ran.tv_sec as f64 * 1e9 + ran.tv_nsec as f64
}

/// A thread that makes the next segment when it is asked for one, as in `weir-socket`.
fn supply() -> ChunkSource {
    let (ask, asked) = sync_channel(1);
    let (give, ready) = sync_channel(1);
    std::thread::spawn(move || {
        while asked.recv().is_ok() {
            let segment = TableChunk::ready().expect("there is memory");
            if give.send(segment).is_err() {
                return;
            }
        }
    });
    let ready = Mutex::new(ready);
    Arc::new(move || {
        let segment = ready.lock().expect("nobody panics").try_recv().ok();
        let _ = ask.try_send(());
        segment
    })
}

fn table() -> Weir {
    let mut table = Weir::new(1);
    table.set_chunk_source(&supply());
    table
}

fn key4(index: u32) -> Key4 {
    let remote = Ipv4Addr::from_bits(0x0a00_0000 + index / 16);
    Key4::new(
        (Ipv4Addr::new(192, 0, 2, 1), 80),
        (remote, 32_768 + (index % 16) as u16),
    )
}

fn key6(index: u32) -> Key6 {
    let remote = Ipv6Addr::from_bits(0x2001_0db8 << 96 | u128::from(index / 16));
    Key6::new(
        (Ipv6Addr::LOCALHOST, 80),
        (remote, 32_768 + (index % 16) as u16),
    )
}

/// A contestant: its name, and what looks all queries up and sums the PCBs.
type Contestant<'c> = (&'static str, Box<dyn FnMut() -> u64 + 'c>);

/// Nanoseconds per look-up of each, best of all rounds; all find the same.
fn compare(contestants: &mut [Contestant<'_>], queries: usize) -> Vec<f64> {
    let mut best = vec![f64::INFINITY; contestants.len()];
    for _ in 0..ROUNDS {
        let mut sums = Vec::new();
        for ((_, run), best) in contestants.iter_mut().zip(&mut best) {
            let start_ns = ran_ns();
            sums.push(black_box(run()));
            let each = (ran_ns() - start_ns) / queries as f64;
            *best = best.min(each);
        }
        assert!(sums.iter().all(|&sum| sum == sums[0]), "{sums:?}");
    }
    best
}

fn batched<K>(keys: &[K], mut find: impl FnMut(&[K], &mut [Option<PcbId>])) -> u64 {
    let mut found = [None; BATCH];
    let mut sum = 0;
    for keys in keys.chunks(BATCH) {
        let found = &mut found[..keys.len()];
        find(keys, found);
        sum += found
            .iter()
            .flatten()
            .map(|pcb| u64::from(pcb.0))
            .sum::<u64>();
    }
    sum
}

fn pcb(found: Option<PcbId>) -> u64 {
    u64::from(found.expect("every query is a connection").0)
}

/// The Swiss table before each of ours, so that each begins with the caches full of the
/// other's memory: a batch right after the same look-ups one by one finds most of what it
/// needs in the third level.
fn in_turn<'c>(
    swiss: &'c impl Fn() -> u64,
    find: &'c impl Fn() -> u64,
    batch: &'c impl Fn() -> u64,
) -> [Contestant<'c>; 4] {
    [
        ("swiss", Box::new(swiss)),
        ("one by one", Box::new(find)),
        ("swiss", Box::new(swiss)),
        ("batch", Box::new(batch)),
    ]
}

fn version(count: u32, v6: bool, results: &Recorder) {
    let mut rng = Rng::new(7);
    let indices: Vec<u32> = (0..QUERIES)
        .map(|_| rng.below(count as usize) as u32)
        .collect();
    let mut table = table();
    for index in 0..count {
        let key = if v6 {
            Key::V6(key6(index))
        } else {
            Key::V4(key4(index))
        };
        table.insert(key, PcbId(index)).expect("it is new");
    }
    let table = std::cell::RefCell::new(table);
    let times = if v6 {
        let queries: Vec<Key6> = indices.iter().map(|&index| key6(index)).collect();
        let mut swiss = hashbrown::HashMap::with_hasher(ahash::RandomState::new());
        swiss.extend((0..count).map(|index| (key6(index), PcbId(index))));
        let find = || {
            let table = &mut *table.borrow_mut();
            queries.iter().map(|key| pcb(table.find6(key))).sum()
        };
        let batch = || {
            let table = &mut *table.borrow_mut();
            batched(&queries, |keys, found| table.find_batch6(keys, found))
        };
        let swiss = || queries.iter().map(|key| pcb(swiss.get(key).copied())).sum();
        compare(&mut in_turn(&swiss, &find, &batch), QUERIES)
    } else {
        let queries: Vec<Key4> = indices.iter().map(|&index| key4(index)).collect();
        let mut swiss = hashbrown::HashMap::with_hasher(ahash::RandomState::new());
        swiss.extend((0..count).map(|index| (key4(index), PcbId(index))));
        let find = || {
            let table = &mut *table.borrow_mut();
            queries.iter().map(|key| pcb(table.find4(key))).sum()
        };
        let batch = || {
            let table = &mut *table.borrow_mut();
            batched(&queries, |keys, found| table.find_batch4(keys, found))
        };
        let swiss = || queries.iter().map(|key| pcb(swiss.get(key).copied())).sum();
        compare(&mut in_turn(&swiss, &find, &batch), QUERIES)
    };
    let version = if v6 { "IPv6" } else { "IPv4" };
    let [before_find, find, before_batch, batch] = times[..] else {
        unreachable!()
    };
    let swiss = before_find.min(before_batch);
    println!(
        "{version} {count:>9} {swiss:>12.1} {find:>8.1} {batch:>8.1} {:>8.2} {:>8.2}",
        find / swiss,
        batch / swiss
    );
    let name = |what: &str| format!("pcb: {version}, {count} connections, {what}");
    let table = Unit::CostOf("a keyed Swiss table");
    results.record(&name("one by one"), find / swiss, table, Bar::AtMost(1.0));
    let bar = if count >= BEYOND_CACHE {
        Bar::AtMost(0.5)
    } else {
        Bar::None
    };
    results.record(&name("in batches"), batch / swiss, table, bar);
}

/// The longest single insert, in microseconds, of each table, and the longest
/// time that nothing took. What a table does at one insert it does in every run,
/// and what the machine does it does at another: of each insert the shortest of
/// several runs counts. A time that still stands beside nothing at all is the
/// clock's.
fn pauses(count: u32, results: &Recorder) {
    const RUNS: usize = 5;
    let mut shortest = vec![[f32::INFINITY; 3]; count as usize];
    for _ in 0..RUNS {
        let mut table = table();
        let hasher = ahash::RandomState::with_seeds(1, 2, 3, 4);
        let mut swiss = hashbrown::HashMap::with_hasher(hasher);
        for (index, shortest) in (0..count).zip(&mut shortest) {
            let start_ns = ran_ns();
            table
                .insert(Key::V4(key4(index)), PcbId(index))
                .expect("it is new");
            let middle_ns = ran_ns();
            swiss.insert(key4(index), PcbId(index));
            let end_ns = ran_ns();
            let times = [middle_ns - start_ns, end_ns - middle_ns, ran_ns() - end_ns];
            for (shortest, ns) in shortest.iter_mut().zip(times) {
                *shortest = shortest.min((ns / 1e3) as f32);
            }
        }
    }
    let longest = |which: usize| {
        let times = shortest.iter().map(|times| times[which]).zip(1..);
        times.max_by(|a, b| a.0.total_cmp(&b.0)).unwrap_or_default()
    };
    let (ours_us, at) = longest(0);
    let (swiss_us, _) = longest(1);
    let (nothing_us, _) = longest(2);
    println!("{count:>9} {swiss_us:>12.1} {ours_us:>8.1} {nothing_us:>8.1} {at:>9}");
    let name = format!("pcb: longest insert while growing to {count}");
    results.record(
        &name,
        f64::from(ours_us),
        Unit::Microseconds,
        Bar::AtMost(50.0),
    );
}

fn all_pauses(counts: &[u32], results: &Recorder) {
    println!(
        "longest insert while growing, us\nconnections  swiss+aHash     weir  nothing  weir's at"
    );
    for &count in counts {
        pauses(count, results);
    }
}

fn main() {
    let results = recorder!();
    let more = std::env::args().filter_map(|arg| arg.parse().ok());
    let counts: Vec<u32> = [1_000, 10_000, 100_000, 1_000_000]
        .into_iter()
        .chain(more)
        .collect();
    if std::env::args().any(|arg| arg == "pauses") {
        return all_pauses(&counts[2..], &results);
    }
    println!("ns a look-up, random connections; ratios to the Swiss table");
    println!("     connections  swiss+aHash     weir    batch    ratio    batch");
    for v6 in [false, true] {
        for &count in &counts {
            version(count, v6, &results);
        }
    }
    println!();
    all_pauses(&counts[2..], &results);
}
