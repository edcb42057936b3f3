//! libpcap's programs for the corpus, lifted into the IR: the same verdicts as
//! in libpcap's interpreter, before and after optimisation. weir's front end is
//! not involved, so that an error is in the lift or in a pass.
//!
//! In debug mode the frames are sampled; `--release` uses all of them.

use weir_filter::interp::Interp;
use weir_filter::lang::cbpf::{self, Form};
use weir_filter::opt;
use weir_lab::captures::{self, LINKTYPES};
use weir_lab::corpus::{self, Entry};
use weir_lab::oracle::{Filter, Frame, Oracle};
use weir_lab::rng::Rng;
use weir_wire::LinkType;

/// Approximate number of frames for each expression.
const FRAMES: usize = if cfg!(debug_assertions) { 100 } else { 3000 };

/// Frames of every capture with `linktype`, and damaged ones.
fn frames(oracle: &Oracle, linktype: LinkType) -> Vec<Frame> {
    let mut frames = Vec::new();
    for (_, capture) in captures::captures(oracle) {
        if capture.linktype == linktype {
            frames.extend(capture.frames);
        } else if capture.linktype == LinkType::EN10MB {
            let sampled = capture.frames.iter().enumerate().step_by(10);
            frames.extend(
                sampled.filter_map(|(turn, frame)| captures::relink(frame, linktype, turn)),
            );
        }
    }
    let mut rng = Rng::new(0x11f7);
    let damaged: Vec<Frame> = frames
        .iter()
        .step_by(8)
        .map(|frame| captures::damage(&mut rng, frame))
        .collect();
    frames.extend(damaged);
    frames
}

/// Number of verdicts compared; `None` for a program that cannot be lifted:
/// libpcap's loops for `protochain`, loads of scratch memory that some path
/// leaves unwritten (the kernel refuses both), and loads of packet properties
/// that only the kernel knows.
fn check(text: &str, filter: &Filter<'_>, frames: &[Frame], turn: usize) -> Option<usize> {
    let insns = filter.insns();
    for form in [Form::Listing, Form::C, Form::Decimal] {
        let written = cbpf::text(insns, form);
        let read = cbpf::parse(&written).unwrap_or_else(|error| panic!("`{text}`: {error}"));
        // A listing omits the operands that an instruction ignores, which
        // libpcap leaves arbitrary.
        assert_eq!(cbpf::text(&read, form), written, "`{text}`");
        assert!(
            form == Form::Listing || read == insns,
            "`{text}`: {written}"
        );
    }
    let program = match cbpf::lift(insns) {
        Ok(program) => program,
        Err(error) => {
            println!("`{text}`: {error}");
            return None;
        }
    };
    let mut optimised = program.clone();
    opt::optimise(&mut optimised);
    if let Err(error) = optimised.verify() {
        panic!("`{text}`: {error}\n{optimised}");
    }
    let mut plain = Interp::new(&program);
    let mut fast = Interp::new(&optimised);
    let step = frames.len().div_ceil(FRAMES).max(1);
    let mut judged = 0;
    for frame in frames.iter().skip(turn % step).step_by(step) {
        let Frame { bytes, wire_len } = frame;
        let expected = filter.run(bytes, *wire_len);
        assert_eq!(
            cbpf::run(insns, bytes, *wire_len),
            expected,
            "`{text}` run on {frame:?}"
        );
        assert_eq!(
            plain.run(bytes, *wire_len),
            expected,
            "`{text}` lifted on {frame:?}"
        );
        assert_eq!(
            fast.run(bytes, *wire_len),
            expected,
            "`{text}` optimised on {frame:?}"
        );
        judged += 1;
    }
    Some(judged)
}

#[test]
fn programs_of_libpcap_keep_their_verdicts() {
    let Some(oracle) = Oracle::load() else { return };
    let entries = corpus::entries();
    for (round, linktype) in LINKTYPES.into_iter().enumerate() {
        let frames = frames(&oracle, linktype);
        let (mut programs, mut refused, mut verdicts) = (0, 0, 0);
        for (turn, Entry { text, .. }) in entries.iter().enumerate() {
            if round > 0 && cfg!(debug_assertions) && (turn + round) % 8 != 0 {
                continue;
            }
            for optimised in [true, false] {
                if let Ok(filter) = oracle.compile(text, linktype, optimised) {
                    programs += 1;
                    match check(text, &filter, &frames, turn) {
                        Some(judged) => verdicts += judged,
                        None => refused += 1,
                    }
                }
            }
        }
        println!("{linktype}: {programs} programs, {refused} refused, {verdicts} verdicts");
        assert!(refused * 20 <= programs, "{refused} of {programs} refused");
    }
}
