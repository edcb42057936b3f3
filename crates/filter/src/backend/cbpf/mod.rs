//! The classic BPF back end: compiles a program to classic BPF instructions.
//!
//! ```text
//! Program ─► graph ─► lower:      no value contains a test, only jumps pass
//!                                 arguments
//!                 ─► select:      instructions for A, X and numbered slots
//!                 ─► scratch:     dead stores dropped, slots assigned to M[0..16]
//!                 ─► tail_merge:  equal code shared, blocks ordered
//!                 ─► layout:      distances, islands for far targets
//! ```
//!
//! The machine that runs the result must have the semantics of libpcap's `bpf_filter`.
//! There a load outside the captured bytes and a division by zero reject; a shift by 32
//! or more gives zero. Addresses from `SKF_LL_OFF` on, which the Linux
//! kernel does not treat as bytes of the frame, are outside every frame in the IR. A
//! block that loads from there becomes `ret #0`.

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

/// Maximum number of emitted instructions.
pub const EMITTED_MAX: usize = 1 << 20;

/// Maximum number of instructions for each value and block of a program. A value is
/// computed anew wherever it is needed unless a scratch word keeps it, so nested values
/// may need exponentially many instructions.
const INSNS_PER_PART_MAX: usize = 64;

/// The reason why a program cannot be compiled to classic BPF.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EmitError {
    /// More values must be kept at one time than scratch memory has words.
    #[error(
        "{needed} values must be kept at once, classic BPF has {MEM_WORDS} words of scratch \
         memory; split the filter or use another back end"
    )]
    Scratch {
        /// Words that the program needs.
        needed: usize,
    },
    /// Turning truth values into jumps needs too many blocks.
    #[error(
        "its truth values need more than {max} blocks; split the filter or \
         use another back end"
    )]
    Blocks {
        /// The limit.
        max: usize,
    },
    /// The code would exceed [`EMITTED_MAX`], or a limit proportional to the program.
    #[error(
        "the code exceeds {max} instructions, since classic BPF can keep few values; split the \
         filter or use another back end"
    )]
    TooLong {
        /// The limit that was reached.
        max: usize,
    },
}

/// Compiles `program`, which must be verified, to classic BPF instructions with the
/// same verdict on every frame. [`optimise`](crate::opt::optimise) before makes the
/// result shorter.
///
/// The result may have up to [`EMITTED_MAX`] instructions, more than the
/// [`INSNS_MAX`](crate::lang::cbpf::INSNS_MAX) that the kernel accepts. Callers that
/// attach it to a socket must check its length.
///
/// # Errors
/// If the program needs more scratch words, blocks or instructions than
/// [`EmitError`] states.
pub fn emit(program: &Program) -> Result<Vec<Insn>, EmitError> {
    let mut graph = Graph::of(program);
    graph.tidy();
    lower::lower(&mut graph)?;
    let code = |keep| select::select(&graph, keep).and_then(finish);
    match code(true) {
        Ok(insns) if !insns.iter().any(touches_scratch) => Ok(insns),
        // Code without kept values may be shorter, and needs fewer words.
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
