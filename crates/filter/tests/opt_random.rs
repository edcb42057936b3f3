//! Random programs: the optimised program has the verdicts of the original.
//!
//! The variables of `weir_lab::seeds` select the seeds. For a long search:
//!
//! ```text
//! WEIR_FIRST=1 WEIR_RUNS=1000000 cargo test --release -p weir-filter --test opt_random
//! ```
//!
//! takes some minutes on two cores. The smallest program of each bug found becomes a
//! file in `filetests/`.

use proptest::prelude::*;
use weir_filter::interp::Interp;
use weir_filter::ir::Program;
use weir_filter::opt::{Pass, optimise};
use weir_lab::program::{Frame, Tape, dense_frame, dense_program, frame, frames, program, seeded};
use weir_lab::seeds::seeds;

fn assert_same(before: &Program, after: &Program, frames: &[Frame], what: &str) {
    if let Err(error) = after.verify() {
        panic!("{what}: {error}\n{before}\n{after}");
    }
    let (mut left, mut right) = (Interp::new(before), Interp::new(after));
    for frame in frames {
        let expected = left.run(&frame.bytes, frame.wire_len);
        let found = right.run(&frame.bytes, frame.wire_len);
        assert_eq!(
            found, expected,
            "{what}: {frame:?}\nbefore {before}\nafter {after}"
        );
    }
}

fn check(before: &Program, frames: &[Frame], what: &str) {
    let mut current = before.clone();
    for pass in Pass::ALL {
        let input = current.clone();
        pass.run(&mut current);
        assert_same(&input, &current, frames, &format!("{what}, {pass:?}"));
    }
    let mut optimised = before.clone();
    optimise(&mut optimised);
    assert_same(before, &optimised, frames, what);
    let mut again = optimised.clone();
    optimise(&mut again);
    assert_same(&optimised, &again, frames, &format!("{what}, again"));
}

#[test]
fn seeded_programs_keep_their_verdicts() {
    for seed in seeds(1_500) {
        check(&seeded(seed), &frames(seed, 40), &format!("seed {seed}"));
    }
}

#[test]
fn programs_of_dense_tests_keep_their_verdicts() {
    for seed in seeds(375) {
        let mut tape = Tape::seeded(seed, 2_000);
        let program = dense_program(&mut tape);
        let mut tape = Tape::seeded(!seed, 2_000);
        let frames: Vec<Frame> = (0..150).map(|_| dense_frame(&mut tape)).collect();
        check(&program, &frames, &format!("dense seed {seed}"));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn any_program_keeps_its_verdicts(
        code in prop::collection::vec(any::<u8>(), 0..600),
        data in prop::collection::vec(any::<u8>(), 0..900),
    ) {
        let mut data = Tape::new(data);
        let frames: Vec<Frame> = (0..8).map(|_| frame(&mut data)).collect();
        check(&program(&mut Tape::new(code)), &frames, "proptest");
    }
}
