//! What a look-up and a forwarded packet cost with few routes and with full
//! tables: `cargo bench -p weir-apps --bench fib`.

use criterion::{BatchSize, Bencher, Criterion, Throughput, criterion_group, criterion_main};
use std::collections::BTreeSet;
use std::hint::black_box;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};
use weir_apps::router::engine::fib::{Fib, Key};
use weir_apps::router::engine::{LinkSettings, Origin, Router, RouterConfig, Target};
use weir_lab::results::{Bar, Recorder, Unit, recorder};
use weir_lab::rng::Rng;
use weir_stack::Prefix;
use weir_wire::ethernet::Address;
use weir_wire::{EtherType, Protocol, ethernet, ipv4};

/// Addresses that are looked up: far more than caches keep.
const KEYS: usize = 1 << 20;
const BATCH: usize = 64;

/// Lengths of prefixes and how many there are of each, as in the Internet's
/// tables of today.
const V4: [(u8, u32); 9] = [
    (24, 61),
    (23, 10),
    (22, 12),
    (21, 5),
    (20, 5),
    (19, 3),
    (18, 1),
    (17, 1),
    (16, 2),
];
const V6: [(u8, u32); 6] = [(48, 48), (44, 10), (40, 12), (36, 5), (32, 20), (29, 5)];

fn length(rng: &mut Rng, lengths: &[(u8, u32)]) -> u8 {
    let weights: Vec<u32> = lengths.iter().map(|row| row.1).collect();
    lengths[rng.weighted(&weights)].0
}

fn routes_v4(count: usize) -> Vec<(u32, u8)> {
    let mut rng = Rng::new(4);
    let mut routes = BTreeSet::new();
    while routes.len() < count {
        let len = length(&mut rng, &V4);
        // 1.0.0.0 to 223.255.255.255
        let key = rng.within(1 << 24..224 << 24);
        routes.insert((key.masked(len), len));
    }
    routes.into_iter().collect()
}

fn routes_v6(count: usize) -> Vec<(u128, u8)> {
    let mut rng = Rng::new(6);
    let mut routes = BTreeSet::new();
    while routes.len() < count {
        let len = length(&mut rng, &V6);
        let top = *rng.choose(&[0x2001u128, 0x2400, 0x2600, 0x2800, 0x2a00, 0x2c00]);
        let low = u128::from(rng.bits()) << 48;
        let spread = if top == 0x2001 { 112 } else { 116 };
        let key = (top << 112) | (low & ((1 << spread) - 1));
        routes.insert((key.masked(len), len));
    }
    routes.into_iter().collect()
}

fn fib<K: Key>(routes: &[(K, u8)]) -> Fib<K>
where
    (K, u8): prefix_trie::Prefix,
{
    let mut fib = Fib::default();
    for (number, (key, len)) in routes.iter().enumerate() {
        fib.insert(*key, *len, 1 + (number % 200) as u32);
    }
    while !fib.is_up_to_date() {
        fib.rebuild_some(1 << 16);
    }
    fib
}

/// Keys below routes, in no order.
fn keys_v4(routes: &[(u32, u8)]) -> Vec<u32> {
    let mut rng = Rng::new(44);
    let key = |_| {
        let (key, len) = *rng.choose(routes);
        key | rng.word() & !u32::MAX.masked(len)
    };
    (0..KEYS).map(key).collect()
}

fn keys_v6(routes: &[(u128, u8)]) -> Vec<u128> {
    let mut rng = Rng::new(66);
    let key = |_| {
        let (key, len) = *rng.choose(routes);
        let low = u128::from(rng.bits()) << 64 | u128::from(rng.bits());
        key | low & !u128::MAX.masked(len)
    };
    (0..KEYS).map(key).collect()
}

/// Has Criterion measure `run`, and gives the least time of a call in the
/// samples that it took.
fn least<T>(bencher: &mut Bencher<'_>, mut run: impl FnMut() -> T) -> Duration {
    let mut least = Duration::MAX;
    bencher.iter_custom(|count| {
        let start = Instant::now();
        for _ in 0..count {
            black_box(run());
        }
        let took = start.elapsed();
        least = least.min(took / u32::try_from(count).unwrap_or(u32::MAX));
        took
    });
    least
}

/// Records the time of one of `count` operations, if Criterion ran them: it
/// runs what its command line chooses.
fn record(results: &Recorder, name: &str, all: Duration, count: usize) {
    if all < Duration::MAX {
        let each = all.as_nanos() as f64 / count as f64;
        results.record(&format!("fib: {name}"), each, Unit::Nanoseconds, Bar::None);
    }
}

fn look_ups(c: &mut Criterion) {
    let results = recorder!();
    let mut group = c.benchmark_group("look-up");
    group.throughput(Throughput::Elements(KEYS as u64));
    group.sample_size(10);
    for count in [10, 1_000_000] {
        let routes = routes_v4(count);
        let (fib, keys) = (fib(&routes), keys_v4(&routes));
        println!("IPv4, {count} routes: {} KiB are read", fib.bytes() >> 10);
        let (mut at_once, mut in_turn) = (Duration::MAX, Duration::MAX);
        group.bench_function(format!("v4 {count} batched"), |b| {
            at_once = least(b, || batched(&fib, &keys)).min(at_once);
        });
        group.bench_function(format!("v4 {count} dependent"), |b| {
            let run = || {
                keys.iter()
                    .fold(0, |last, key| fib.lookup(key ^ (last >> 31)))
            };
            in_turn = least(b, run).min(in_turn);
        });
        let name = |how: &str| format!("IPv4, {count} routes, {how}");
        record(&results, &name("64 at once"), at_once, KEYS);
        record(&results, &name("each waiting for the last"), in_turn, KEYS);
    }
    for count in [10, 200_000] {
        let routes = routes_v6(count);
        let (fib, keys) = (fib(&routes), keys_v6(&routes));
        println!("IPv6, {count} routes: {} KiB are read", fib.bytes() >> 10);
        let mut at_once = Duration::MAX;
        group.bench_function(format!("v6 {count} batched"), |b| {
            at_once = least(b, || batched(&fib, &keys)).min(at_once);
        });
        let name = format!("IPv6, {count} routes, 64 at once");
        record(&results, &name, at_once, KEYS);
    }
    group.finish();
}

fn batched<K: Key>(fib: &Fib<K>, keys: &[K]) -> u32
where
    (K, u8): prefix_trie::Prefix,
{
    let mut values = [0; BATCH];
    keys.chunks(BATCH).fold(0, |sum, keys| {
        fib.lookup_batch(keys, &mut values);
        sum ^ values[0]
    })
}

fn changes(c: &mut Criterion) {
    let results = recorder!();
    let mut group = c.benchmark_group("change");
    group.sample_size(10);
    let routes = routes_v4(1_000_000);
    let mut full = fib(&routes);
    let mut rng = Rng::new(9);
    group.bench_function("v4 of 1000000, one away and back", |b| {
        b.iter_batched(
            || *rng.choose(&routes),
            |(key, len)| {
                full.remove(key, len);
                full.insert(key, len, 7);
            },
            BatchSize::SmallInput,
        );
    });
    let mut all = Duration::MAX;
    group.bench_function("v4 of 1000000, all from nothing", |b| {
        all = least(b, || fib(&routes)).min(all);
    });
    record(
        &results,
        "IPv4, a table of 1000000 made, of each",
        all,
        routes.len(),
    );
    group.finish();
}

/// Frames of 60 bytes to all those addresses through the whole core.
fn forwarding(c: &mut Criterion) {
    let results = recorder!();
    let mut group = c.benchmark_group("forward");
    group.sample_size(10);
    let count = 1 << 14;
    group.throughput(Throughput::Elements(count as u64));
    for number in [10, 1_000_000] {
        let routes = routes_v4(number);
        let keys = keys_v4(&routes);
        let mut router = router(&routes);
        let template: Vec<[u8; 60]> = keys[..count].iter().map(|key| frame(*key)).collect();
        let mut verdicts = Vec::new();
        let mut all = Duration::MAX;
        group.bench_function(format!("v4 {number} routes"), |b| {
            b.iter_batched_ref(
                || template.clone(),
                |frames| {
                    let start = Instant::now();
                    for frames in frames.chunks_mut(BATCH) {
                        router.process(0, 0, frames, &mut verdicts);
                    }
                    all = start.elapsed().min(all);
                },
                BatchSize::LargeInput,
            );
        });
        record(
            &results,
            &format!("the whole core, IPv4, {number} routes"),
            all,
            count,
        );
        assert!(router.counters().forwarded_v4 > 0);
        assert_eq!(router.counters().drops().map(|(_, n)| n).sum::<u64>(), 0);
    }
    group.finish();
}

fn router(routes: &[(u32, u8)]) -> Router {
    let link = |number: u8| LinkSettings {
        name: String::new(),
        hardware: Address([2, 0, 0, 0, 0, number]),
        mtu: 1500,
        addresses: vec![Prefix::new(Ipv4Addr::new(240, number, 0, 1).into(), 16).unwrap()],
    };
    let hop = |number: u32| Ipv4Addr::from_bits(0xf001_0100 + number);
    let settings = RouterConfig {
        links: vec![link(0), link(1)],
        neighbours: (0..200)
            .map(|number| {
                (
                    1,
                    hop(number).into(),
                    Address([2, 0, 0, 0, 1, number as u8]),
                )
            })
            .collect(),
        ..RouterConfig::default()
    };
    let mut router = Router::new(&settings, 1).unwrap();
    for (number, (key, len)) in routes.iter().enumerate() {
        let prefix = Prefix::new(Ipv4Addr::from_bits(*key).into(), *len).unwrap();
        let target = Target::to(1, Some(hop(number as u32 % 200).into()));
        router
            .routes_mut()
            .insert(prefix, Origin::Configured, target)
            .unwrap();
    }
    while router.routes_mut().rebuild_some() {}
    router
}

fn frame(dst: u32) -> [u8; 60] {
    let mut frame = [0; 60];
    let header = ethernet::Repr {
        dst: Address([2, 0, 0, 0, 0, 0]),
        src: Address([2, 0, 0, 0, 9, 9]),
        ether_type: EtherType::IPV4,
    };
    header.emit(&mut frame);
    let header = ipv4::Repr {
        src: Ipv4Addr::new(240, 0, 0, 9),
        dst: Ipv4Addr::from_bits(dst),
        protocol: Protocol::UDP,
        ttl: 64,
        traffic_class: 0,
        identification: 0,
        dont_fragment: true,
        payload_len: 26,
    };
    header.emit(&mut frame[14..]);
    frame
}

criterion_group!(benches, look_ups, changes, forwarding);
criterion_main!(benches);
