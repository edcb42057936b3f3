//! libpcap's own programs for the corpus, lifted into the IR: the same
//! verdicts as in libpcap's interpreter, before and after optimising. It needs
//! no front end of ours, so that a fault is plainly the lift's or a pass's.
//!
//! In debug mode the frames are sampled; `--release` takes them all.

use weir_filter::interp::Interp;
use weir_filter::lang::cbpf::{self, Form};
use weir_filter::opt;
use weir_lab::captures::{self, LINKTYPES};
use weir_lab::corpus::{self, Entry};
use weir_lab::oracle::{Filter, Frame, Oracle};
use weir_lab::rng::Rng;
use weir_wire::LinkType;

/// On about how many frames each expression is judged.
const FRAMES: usize = if cfg!(debug_assertions) { 100 } else { 3000 };

/// Frames of every capture under `linktype`, and damaged ones.
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

/// The verdicts compared; `None` for a program that is not liftable: libpcap's
/// loops for `protochain`, its reads of scratch memory that some path leaves
/// unwritten (the kernel refuses both), and its loads of what only the kernel
/// knows of a packet.
fn check(text: &str, filter: &Filter<'_>, frames: &[Frame], turn: usize) -> Option<usize> {
    let insns = filter.insns();
    for form in [Form::Listing, Form::C, Form::Decimal] {
        let written = cbpf::text(insns, form);
        let read = cbpf::parse(&written).unwrap_or_else(|error| panic!("`{text}`: {error}"));
        // A listing does not show the operands that an instruction ignores,
        // which libpcap leaves as they come.
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
