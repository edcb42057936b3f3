//! Every expression of the shared corpus, optimised and not: native code has the
//! interpreter's verdict on frames of every capture, complete and damaged.

use weir_filter::backend::native::{Arch, Code};
use weir_filter::interp::Interp;
use weir_filter::ir::Program;
use weir_filter::lang::expr::{Context, compile};
use weir_filter::opt::optimise;
use weir_lab::guard_page::Guarded;
use weir_lab::oracle::{Frame, Oracle};
use weir_lab::rng::Rng;
use weir_lab::{captures, corpus};
use weir_wire::LinkType;

/// Number of frames of each capture, spread over its length.
const FRAMES_PER_CAPTURE: usize = if cfg!(debug_assertions) { 6 } else { 200 };

/// Some frames of every Ethernet capture, each also in a damaged version.
fn frames(oracle: &Oracle) -> Vec<Frame> {
    let mut rng = Rng::new(7);
    let mut frames = Vec::new();
    for (_, capture) in captures::captures(oracle) {
        if capture.linktype != LinkType::EN10MB {
            continue;
        }
        let step = capture.frames.len().div_ceil(FRAMES_PER_CAPTURE).max(1);
        for frame in capture.frames.into_iter().step_by(step) {
            frames.push(captures::damage(&mut rng, &frame));
            frames.push(frame);
        }
    }
    frames
}

fn check(text: &str, program: &Program, frames: &[Frame], room: &mut Guarded) -> usize {
    let code = Code::compile(program).expect("an expression has native code");
    let mut oracle = Interp::new(program);
    let mut accepted = 0;
    for frame in frames {
        let bytes = room.at_end(&frame.bytes);
        let want = oracle.run(bytes, frame.wire_len);
        let found = code.run(bytes, frame.wire_len);
        assert_eq!(found, want, "`{text}` on {frame:?}\n{program}");
        accepted += usize::from(want != 0);
    }
    accepted
}

#[test]
fn expressions_agree_with_the_interpreter_on_real_frames() {
    let Some(oracle) = Oracle::load() else { return };
    let frames = frames(&oracle);
    if frames.is_empty() || Arch::host().is_none() {
        return;
    }
    let bytes_max = frames.iter().map(|frame| frame.bytes.len()).max();
    let mut room = Guarded::new(bytes_max.unwrap_or(0));
    let context = Context::new(LinkType::EN10MB);
    let (mut programs, mut accepted) = (0, 0);
    for entry in corpus::entries() {
        let Ok(mut program) = compile(&entry.text, &context) else {
            continue;
        };
        check(&entry.text, &program, &frames, &mut room);
        optimise(&mut program);
        accepted += check(&entry.text, &program, &frames, &mut room);
        programs += 1;
    }
    assert!(programs > 1_000, "{programs} programs");
    assert!(accepted > programs * 10, "{accepted} frames accepted");
}
