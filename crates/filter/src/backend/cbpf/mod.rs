//! Classic BPF from the IR.
//!
//! ```text
//! Program ─► graph ─► lower: no value contains a test, only jumps pass
//!                     arguments
//!                 ─► select: instructions for A, X and numbered slots
//!                 ─► slots:  dead stores dropped, slots put into M[0..16]
//!                 ─► tails:  equal code shared, blocks put in order
//!                 ─► layout: distances, islands for far targets
//! ```
//!
//! What runs the result must treat a load outside the captured bytes and a
//! division by zero as a rejection, and a shift by 32 or more as zero, as
//! libpcap's `bpf_filter` does. Addresses that the Linux kernel takes for
//! something other than the frame's bytes (`SKF_LL_OFF` and up) lie outside
//! every frame here and are emitted as `ret #0`.

mod cost;
mod layout;
mod lower;
mod scratch;
mod select;
mod tail_merge;

use crate::ir::Program;
use crate::lang::cbpf::code::{LD, LDX, MEM, ST, STX, class, mode};
use crate::lang::cbpf::{Insn, MEM_WORDS};
use crate::opt::graph::Graph;
use select::Code;

/// Instructions that are emitted at most.
pub const EMITTED_MAX: usize = 1 << 20;

/// Instructions for each value and block of a program, at most. A value is
/// computed anew in every place that needs it unless one of few words keeps
/// it, so values made of values may come to exponentially many.
const INSNS_PER_PART_MAX: usize = 64;

/// Why a program cannot be expressed in classic BPF.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EmitError {
    /// More values must be kept at once than scratch memory has words.
    #[error(
        "{needed} values must be kept at once, classic BPF has {MEM_WORDS} words of scratch \
         memory; split the filter or use another back end"
    )]
    Scratch {
        /// How many words it would take.
        needed: usize,
    },
    /// Turning its truth values into jumps takes too many blocks.
    #[error(
        "the truth values that it computes with need more than {max} blocks; split the filter or \
         use another back end"
    )]
    Blocks {
        /// How many are tried.
        max: usize,
    },
    /// The code would be longer than [`EMITTED_MAX`], or out of all proportion
    /// to the program.
    #[error(
        "it comes to more than {max} instructions, as classic BPF can keep few values; split the \
         filter or use another back end"
    )]
    TooLong {
        /// How many are tried.
        max: usize,
    },
}

/// Classic BPF instructions that give the verdict of `program`, which must be
/// verified, on every frame. [`optimise`](crate::opt::optimise) it first if
/// the result is to be short.
///
/// The result may be longer than the [`INSNS_MAX`](crate::lang::cbpf::INSNS_MAX)
/// that the kernel takes, up to [`EMITTED_MAX`]: check it where that matters.
///
/// # Errors
/// If the program needs more than classic BPF has, or comes to too many
/// instructions.
pub fn emit(program: &Program) -> Result<Vec<Insn>, EmitError> {
    let mut graph = Graph::of(program);
    graph.tidy();
    lower::lower(&mut graph)?;
    let code = |keep| select::select(&graph, keep).and_then(finish);
    match code(true) {
        Ok(insns) if !insns.iter().any(touches_scratch) => Ok(insns),
        // Keeping values does not always pay, and may take too many words.
        kept => match (kept, code(false)) {
            (Ok(kept), Ok(plain)) if kept.len() <= plain.len() => Ok(kept),
            (Ok(kept), Err(_)) => Ok(kept),
            (_, plain) => plain,
        },
    }
}

fn touches_scratch(insn: &Insn) -> bool {
    let is_store = matches!(class(insn.code), ST | STX);
    is_store || matches!(class(insn.code), LD | LDX) && mode(insn.code) == MEM
}

fn finish(code: Code) -> Result<Vec<Insn>, EmitError> {
    let mut code = scratch::assign(code)?;
    let order = tail_merge::share(&mut code);
    Ok(layout::layout(&code, &order))
}
