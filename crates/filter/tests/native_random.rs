//! Random verified programs: native code has the interpreter's verdict on every frame,
//! and reads no byte outside the frame.

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use weir_filter::backend::native::{Arch, Code};
use weir_filter::interp::Interp;
use weir_filter::ir::Program;
use weir_lab::guard_page::Guarded;
use weir_lab::program::{FRAME_BYTES_MAX, Frame, Tape, frame, frames, program, seeded};

/// Number of seeds; the property test below adds more programs.
const SEEDS: u64 = if cfg!(debug_assertions) {
    3_000
} else {
    30_000
};

fn check(program: &Program, frames: &[Frame], room: &mut Guarded, origin: &str) {
    let code = Code::compile(program).expect("a random program has native code");
    let mut oracle = Interp::new(program);
    for frame in frames {
        let bytes = room.at_end(&frame.bytes);
        let want = oracle.run(bytes, frame.wire_len);
        let found = code.run(bytes, frame.wire_len);
        assert_eq!(found, want, "{origin}: {frame:?}\n{program}");
    }
}

#[test]
fn seeded_programs_agree_with_the_interpreter() {
    if Arch::host().is_none() {
        return;
    }
    let mut room = Guarded::new(FRAME_BYTES_MAX);
    for seed in 0..SEEDS {
        let program = seeded(seed);
        check(
            &program,
            &frames(seed, 24),
            &mut room,
            &format!("seed {seed}"),
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(debug_assertions) { 200 } else { 2_000 },
        rng_seed: RngSeed::Fixed(0x0ddba11),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn programs_agree_with_the_interpreter(
        choices in prop::collection::vec(any::<u8>(), 0..1_500),
        frame_choices in prop::collection::vec(any::<u8>(), 0..400),
    ) {
        if Arch::host().is_some() {
            let program = program(&mut Tape::new(choices));
            let mut tape = Tape::new(frame_choices);
            let frames: Vec<Frame> = (0..8).map(|_| frame(&mut tape)).collect();
            let mut room = Guarded::new(FRAME_BYTES_MAX);
            check(&program, &frames, &mut room, "property");
        }
    }
}
