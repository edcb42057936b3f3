//! What a frame costs in a plan, by the number of bindings, and what a bind
//! costs.

#![allow(missing_docs, reason = "criterion's macros make undocumented items")]

#[path = "../tests/common/mod.rs"]
mod common;

use common::{filter, five_tuple, ip_frame, program};
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use std::hint::black_box;
use std::time::Duration;
use weir_demux::{Binding, Filter, Plan, Target, Verdict};

/// The `n`-th connection.
fn connection(n: u32) -> (u32, u32, u16, u16) {
    let mixed = n.wrapping_mul(0x9e37_79b9);
    (
        0x0a00_0000 | mixed >> 8,
        0xc0a8_0001,
        (mixed >> 3) as u16 | 1024,
        443,
    )
}

fn binding(n: u32) -> Binding {
    let (src, dst, src_port, dst_port) = connection(n);
    Binding {
        filter: filter(&five_tuple(6, src, dst, src_port, dst_port)),
        priority: 10,
        copy: false,
        target: Target::Port(n),
        tag: n,
    }
}

fn frame(n: u32) -> Vec<u8> {
    let (src, dst, src_port, dst_port) = connection(n);
    ip_frame(6, src, dst, (src_port, dst_port), 5)
}

fn one_shape(c: &mut Criterion) {
    let mut group = c.benchmark_group("one_shape");
    group
        .measurement_time(Duration::from_millis(1000))
        .warm_up_time(Duration::from_millis(300))
        .sample_size(20);
    for count in [1, 10, 100, 1_000, 10_000, 100_000_u32] {
        let mut plan = Plan::new(0x1234);
        for n in 0..count {
            plan.bind(binding(n)).expect("room");
        }
        let hot: Vec<Vec<u8>> = (0..count.min(64))
            .map(|n| frame(n * (count / count.min(64))))
            .collect();
        let mut verdict = Verdict::new();
        let mut at = 0;
        group.bench_function(BenchmarkId::new("hot", count), |b| {
            b.iter(|| {
                at = (at + 1) % hot.len();
                plan.run(black_box(&hot[at]), 60, &mut verdict);
                verdict.taker().expect("bound").tag
            });
        });
        // Frames from a pool that stays in the cache, so that the table's
        // misses are measured and not the frames'.
        let mut bytes = frame(0);
        let mut random = 1_u32;
        group.bench_function(BenchmarkId::new("random", count), |b| {
            b.iter(|| {
                random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let n = ((u64::from(random) * u64::from(count)) >> 32) as u32;
                let (src, _, src_port, _) = connection(n);
                bytes[26..30].copy_from_slice(&src.to_be_bytes());
                bytes[34..36].copy_from_slice(&src_port.to_be_bytes());
                plan.run(black_box(&bytes), 60, &mut verdict);
                verdict.taker().expect("bound").tag
            });
        });
    }
    group.finish();
}

fn binds(c: &mut Criterion) {
    let mut group = c.benchmark_group("bind");
    group
        .measurement_time(Duration::from_millis(1000))
        .warm_up_time(Duration::from_millis(300))
        .sample_size(20);
    let mut plan = Plan::new(0x1234);
    for n in 0..10_000 {
        plan.bind(binding(n)).expect("room");
    }
    let (src, dst, src_port, dst_port) = connection(20_000_000);
    let program = std::sync::Arc::new(program(&five_tuple(6, src, dst, src_port, dst_port)));
    group.bench_function("analyse", |b| b.iter(|| Filter::new(program.clone())));
    let new = binding(20_000_000);
    group.bench_function("bind+unbind", |b| {
        b.iter(|| {
            let id = plan.bind(new.clone()).expect("room");
            plan.unbind(id).expect("bound");
        });
    });
    group.bench_function("analyse+bind+unbind", |b| {
        b.iter(|| {
            let filter = Filter::new(program.clone());
            let id = plan
                .bind(Binding {
                    filter,
                    ..new.clone()
                })
                .expect("room");
            plan.unbind(id).expect("bound");
        });
    });
    group.finish();
}

criterion_group!(benches, one_shape, binds);
criterion_main!(benches);
