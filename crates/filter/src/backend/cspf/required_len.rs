//! Required length: the length of frame that a program needs to accept it.

use super::end_of;
use crate::ir::{Operand, Program, Term, Value};

/// A length that no frame has.
pub(super) const NEVER: u64 = u64::MAX;

/// For each block, the length below which a frame is rejected there or later. Only
/// loads at constant offsets count.
pub(super) struct RequiredLens {
    /// For the block's own loads and the blocks after it.
    pub(super) here: Vec<u64>,
    /// For the blocks after it alone.
    pub(super) behind: Vec<u64>,
}

pub(super) fn needs(program: &Program) -> RequiredLens {
    let count = program.blocks.len();
    let mut needs = RequiredLens {
        here: vec![0; count],
        behind: vec![0; count],
    };
    for (index, block) in program.blocks.iter().enumerate().rev() {
        let behind = match &block.term {
            Term::Return(Operand::Imm(0)) => NEVER,
            Term::Return(_) => 0,
            term => {
                let targets = term.edges().map(|edge| needs.here[edge.block.index()]);
                targets.min().unwrap_or(0)
            }
        };
        needs.behind[index] = behind;
        needs.here[index] = behind.max(longest(program, &block.insts));
    }
    needs
}

/// The largest end of a load at a constant offset.
pub(super) fn longest(program: &Program, insts: &[Value]) -> u64 {
    let ends = insts.iter().filter_map(|&inst| end_of(program.op(inst)));
    ends.max().unwrap_or(0)
}
