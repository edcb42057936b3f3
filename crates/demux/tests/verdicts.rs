//! The plan gives the verdicts of its definition: each filter by the
//! interpreter, in the order of priorities.

mod common;

use common::{Reference, check, frame, random_binding, step, wire_len};
use proptest::prelude::*;
use weir_demux::{Plan, Verdict};
use weir_lab::program::Tape;

/// Runs a plan and the reference side by side through binds, unbinds and
/// changes, and compares them on frames in between.
fn live(mut plan: Plan, tape: &mut Tape, changes: usize, frames: usize) {
    let mut reference = Reference(Vec::new());
    let mut verdict = Verdict::new();
    for _ in 0..changes {
        step(&mut plan, &mut reference, tape, 1, random_binding);
        for _ in 0..frames {
            let bytes = frame(tape);
            let wire_len = wire_len(tape, bytes.len());
            check(&plan, &reference, &mut verdict, &bytes, wire_len);
        }
        let random = weir_lab::program::frame(tape);
        check(
            &plan,
            &reference,
            &mut verdict,
            &random.bytes,
            random.wire_len,
        );
    }
    let bytes = frame(tape);
    for len in 0..bytes.len() {
        check(
            &plan,
            &reference,
            &mut verdict,
            &bytes[..len],
            bytes.len() as u32,
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn as_each_filter_in_turn(seed in any::<u64>()) {
        for plan in [Plan::new(seed.into()), Plan::indexed_only(seed.into())] {
            live(plan, &mut Tape::seeded(seed, 20_000), 25, 3);
        }
    }
}

#[test]
fn many_bindings() {
    for seed in 0..4 {
        for plan in [Plan::new(seed.into()), Plan::indexed_only(seed.into())] {
            live(plan, &mut Tape::seeded(seed, 200_000), 300, 1);
        }
    }
}
