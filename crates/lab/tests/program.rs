//! The program generator has the properties that its users rely on.

use std::collections::HashSet;
use weir_filter::interp;
use weir_filter::ir::{Op, Term};
use weir_lab::program::{Tape, frames, program, seeded};

#[test]
fn every_tape_gives_a_verified_program() {
    for len in 0..300 {
        program(&mut Tape::new(vec![0xff; len])).verify().unwrap();
        program(&mut Tape::seeded(len as u64, len))
            .verify()
            .unwrap();
    }
}

#[test]
fn one_seed_gives_one_program() {
    assert_eq!(seeded(7), seeded(7));
    assert_ne!(seeded(7), seeded(8));
    assert_eq!(frames(7, 3), frames(7, 3));
}

#[test]
fn programs_hold_every_kind_of_operation_and_give_both_verdicts() {
    let mut ops = HashSet::new();
    let (mut params, mut accepted, mut rejected) = (0, 0, 0);
    for seed in 0..500 {
        let program = seeded(seed);
        for block in &program.blocks {
            params += block.params.len();
            if let Term::Branch { cmp, .. } = block.term {
                ops.insert(format!("br {cmp}"));
            }
            for &value in &block.insts {
                ops.insert(match program.op(value) {
                    Op::Bin { op, .. } => op.to_string(),
                    Op::Test { cmp, .. } => format!("test {cmp}"),
                    Op::Load { width, base, .. } => {
                        format!("load {width:?} {}", base.is_some())
                    }
                    other => other.to_string(),
                });
            }
        }
        for frame in frames(seed, 20) {
            match interp::run(&program, &frame.bytes, frame.wire_len) {
                0 => rejected += 1,
                _ => accepted += 1,
            }
        }
    }
    // 10 arithmetic operations, 2 × 8 comparisons, 3 × 2 loads, len.
    assert_eq!(ops.len(), 33, "{ops:?}");
    assert!(params > 500, "{params} parameters");
    assert!(
        accepted > 1_500 && rejected > 1_500,
        "{accepted}/{rejected}"
    );
}
