//! Classic BPF back end: the emitted code has the verdicts of its program.

use proptest::prelude::*;
use weir_filter::backend::cbpf::{EmitError, emit};
use weir_filter::interp::Interp;
use weir_filter::ir::Program;
use weir_filter::lang::cbpf;
use weir_filter::lang::expr::{Context, compile};
use weir_filter::opt::optimise;
use weir_lab::program::{Frame, Tape, frame, frames, program, seeded};
use weir_lab::seeds::seeds;
use weir_wire::LinkType;

/// Emits, verifies and compares a program; false if classic BPF cannot express it.
fn check(program: &Program, frames: &[Frame], what: &str) -> bool {
    let insns = match emit(program) {
        Ok(insns) => insns,
        Err(EmitError::Scratch { needed }) => {
            assert!(needed > cbpf::MEM_WORDS);
            return false;
        }
        Err(error) => panic!("{what}: {error}\n{program}"),
    };
    let listing = || cbpf::text(&insns, cbpf::Form::Listing);
    if let Err(error) = cbpf::verify(&insns) {
        panic!("{what}: {error}\n{program}\n{}", listing());
    }
    let mut interp = Interp::new(program);
    for frame in frames {
        assert_eq!(
            cbpf::run(&insns, &frame.bytes, frame.wire_len),
            interp.run(&frame.bytes, frame.wire_len),
            "{what}: {frame:?}\n{program}\n{}",
            listing()
        );
    }
    true
}

#[test]
fn seeded_programs_keep_their_verdicts() {
    let (mut emitted, mut all) = (0, 0);
    for seed in seeds(1_500) {
        all += 1;
        let mut program = seeded(seed);
        let frames = frames(seed, 40);
        emitted += u64::from(check(&program, &frames, &format!("seed {seed}")));
        optimise(&mut program);
        check(&program, &frames, &format!("seed {seed}, optimised"));
    }
    assert!(emitted * 10 > all * 9, "{emitted} of {all} expressed");
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

/// Found by `soak`: an address that becomes constant with a known truth value, and is
/// in the kernel's range of ancillary fields.
#[test]
fn addresses_that_mean_something_else_reject() {
    for (sum, offset) in [
        ("sub v1, 0xa4", 0),
        ("or v1, 0xfffff000", 2),
        ("add v1, 3", 0),
    ] {
        let text = format!(
            "filter {{\nb0:\n  v0 = load.1 [0]\n  v1 = test gt v0, 90\n  v2 = {sum}\n  \
             v3 = load.1 [v2 + {offset}]\n  br eq v3, 90, b1, b2\nb1:\n  ret 7\nb2:\n  \
             ret 1\n}}"
        );
        let mut program: Program = text.parse().unwrap();
        let frames: Vec<Frame> = (88..93)
            .map(|byte| Frame {
                bytes: vec![byte; 8],
                wire_len: 8,
            })
            .collect();
        assert!(check(&program, &frames, &text));
        optimise(&mut program);
        assert!(check(&program, &frames, &text));
    }
}

/// Found by fuzzing: a copied `ret` as an island behind a branch, after which the
/// kernel's check forgot the stores before.
#[test]
fn far_rejections_keep_what_was_stored() {
    for text in ["ip protochain 17", "ip6 protochain 17 and not port 53"] {
        let context = Context::new(LinkType::EN10MB);
        let mut program = compile(text, &context).unwrap();
        let frames = frames(1, 40);
        check(&program, &frames, text);
        optimise(&mut program);
        check(&program, &frames, text);
    }
}
