//! Sizes of classic BPF programs: weir's compared with libpcap's.

use crate::corpus::{self, Entry};
use crate::oracle::Oracle;
use crate::program::Frame;
use crate::rng::Rng;
use weir_filter::backend::cbpf::emit;
use weir_filter::ir::Program;
use weir_filter::lang::cbpf::code::{
    ABS, B, H, IND, JA, JMP, LD, MISC, class, mode, op, size, takes_x,
};
use weir_filter::lang::cbpf::{Insn, lift, run, verify};
use weir_filter::lang::expr::{Context, compile};
use weir_filter::opt::optimise;

/// The programs for one expression.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Row {
    /// The expression.
    pub entry: Entry,
    /// libpcap's program, optimised by libpcap.
    pub libpcap: Vec<Insn>,
    /// libpcap's program before its optimiser.
    pub unoptimised: Vec<Insn>,
    /// weir's program; `None` if weir refuses the expression.
    pub weir: Option<Vec<Insn>>,
    /// libpcap's unoptimised program, optimised by weir; `None` if it cannot be
    /// lifted because it has a loop.
    pub lifted: Option<Vec<Insn>>,
}

impl Row {
    /// Whether the kernel refuses libpcap's program: it jumps backwards, or
    /// loads from scratch memory that was not stored to, because libpcap's
    /// optimiser removed the stores. Such programs are not comparable in
    /// length.
    pub fn is_refused(&self) -> bool {
        verify(&self.libpcap).is_err()
    }
}

/// The programs for one expression; `None` if libpcap refuses the expression.
pub fn row(oracle: &Oracle, entry: &Entry, context: &Context<'_>) -> Option<Row> {
    let link = context.linktype;
    let libpcap = oracle.compile(&entry.text, link, true).ok()?;
    let unoptimised = oracle.compile(&entry.text, link, false).ok()?;
    let unoptimised = unoptimised.insns().to_vec();
    Some(Row {
        entry: entry.clone(),
        libpcap: libpcap.insns().to_vec(),
        weir: compile(&entry.text, context).ok().and_then(optimised),
        lifted: lift(&unoptimised).ok().and_then(optimised),
        unoptimised,
    })
}

/// The programs for the whole corpus.
pub fn rows(oracle: &Oracle, context: &Context<'_>) -> Vec<Row> {
    let entries = corpus::entries();
    let rows = entries.iter();
    rows.filter_map(|entry| row(oracle, entry, context))
        .collect()
}

fn optimised(mut program: Program) -> Option<Vec<Insn>> {
    optimise(&mut program);
    emit(&program).ok()
}

/// Number of frames that [`difference`] tries.
const TRIES: usize = 60_000;

/// A frame on which two programs have different verdicts, which proves that
/// they are not equivalent. Frames are made from the constants that the
/// programs compare with, and truncated near the offsets that they load. `None`
/// only means that no difference was found.
pub fn difference(one: &[Insn], other: &[Insn], seed: u64) -> Option<Frame> {
    let mut clues = clues(one);
    clues.extend(self::clues(other));
    let mut rng = Rng::new(seed);
    (0..TRIES).find_map(|_| {
        let frame = likely_frame(&clues, &mut rng);
        let verdicts = [one, other].map(|insns| run(insns, &frame.bytes, frame.wire_len));
        (verdicts[0] != verdicts[1]).then_some(frame)
    })
}

/// An offset in the frame and a constant that its value is compared with.
#[derive(Clone, Copy)]
struct FieldConstant {
    offset: usize,
    width: usize,
    constant: u32,
}

fn clues(insns: &[Insn]) -> Vec<FieldConstant> {
    let mut clues: Vec<FieldConstant> = Vec::new();
    let mut loaded = None;
    for insn in insns {
        match class(insn.code) {
            LD if matches!(mode(insn.code), ABS | IND) => {
                // The usual IPv4 header length, if the program skips a header.
                let base = if mode(insn.code) == IND { 20 } else { 0 };
                let width = match size(insn.code) {
                    B => 1,
                    H => 2,
                    _ => 4,
                };
                let offset = (insn.k as usize).saturating_add(base);
                loaded = (offset < 400).then_some((offset, width));
            }
            JMP if op(insn.code) != JA && !takes_x(insn.code) => {
                if let Some((offset, width)) = loaded {
                    clues.push(FieldConstant {
                        offset,
                        width,
                        constant: insn.k,
                    });
                }
            }
            LD | MISC => loaded = None,
            _ => {}
        }
    }
    clues
}

fn likely_frame(clues: &[FieldConstant], rng: &mut Rng) -> Frame {
    let mut bytes = vec![0_u8; 480];
    if rng.below(2) == 0 {
        for byte in &mut bytes[..100] {
            *byte = rng.below(256) as u8;
        }
    }
    bytes[14] = 0x45;
    bytes[20..22].fill(0);
    let mut len = 120;
    for clue in clues {
        if rng.below(2) == 0 {
            continue;
        }
        let constant = match rng.below(8) {
            0 => clue.constant.wrapping_add(1),
            1 => clue.constant ^ 1 << rng.below(8 * clue.width),
            _ => clue.constant,
        };
        let end = clue.offset + clue.width;
        bytes[clue.offset..end].copy_from_slice(&constant.to_be_bytes()[4 - clue.width..]);
        if rng.below(4) == 0 {
            len = end.saturating_sub(rng.below(3));
        }
    }
    bytes.truncate(len);
    Frame {
        wire_len: bytes.len() as u32,
        bytes,
    }
}
