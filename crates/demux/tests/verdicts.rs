//! The plan gives the verdicts of its definition: each filter by the
//! interpreter, in the order of priorities.

mod common;

use common::{Reference, check, frame, random_binding, random_filter};
use proptest::prelude::*;
use weir_demux::{Filter, Plan, Verdict};
use weir_lab::program::Tape;

/// Runs a plan and the reference side by side through binds, unbinds and
/// changes, and compares them on frames in between.
fn live(mut plan: Plan, tape: &mut Tape, changes: usize, frames: usize) {
    let mut reference = Reference(Vec::new());
    let mut verdict = Verdict::new();
    for _ in 0..changes {
        match tape.below(8) {
            0 | 1 if !reference.0.is_empty() => {
                let at = tape.below(reference.0.len());
                let (id, binding) = reference.0.remove(at);
                let unbound = plan.unbind(id).expect("bound");
                assert_eq!(unbound.tag, binding.tag);
                assert!(plan.unbind(id).is_err(), "unbound twice");
            }
            2 if !reference.0.is_empty() => {
                let at = tape.below(reference.0.len());
                let (id, binding) = &mut reference.0[at];
                binding.filter = Filter::new(random_filter(tape));
                plan.change_filter(*id, binding.filter.clone())
                    .expect("bound");
            }
            3 if !reference.0.is_empty() => {
                // The same filter again, perhaps with the same priority.
                let at = tape.below(reference.0.len());
                let mut binding = random_binding(tape);
                binding.filter = reference.0[at].1.filter.clone();
                let id = plan.bind(binding.clone()).expect("room");
                reference.0.push((id, binding));
            }
            _ => {
                let binding = random_binding(tape);
                let id = plan.bind(binding.clone()).expect("room");
                reference.0.push((id, binding));
            }
        }
        assert_eq!(plan.len(), reference.0.len());
        for _ in 0..frames {
            let bytes = frame(tape);
            let wire_len = bytes.len() as u32 + u32::from(tape.byte() & 0x3f);
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
        for plan in [Plan::new(seed.into()), Plan::tabled(seed.into())] {
            live(plan, &mut Tape::seeded(seed, 20_000), 25, 3);
        }
    }
}

#[test]
fn many_bindings() {
    for seed in 0..4 {
        for plan in [Plan::new(seed.into()), Plan::tabled(seed.into())] {
            live(plan, &mut Tape::seeded(seed, 200_000), 300, 1);
        }
    }
}
