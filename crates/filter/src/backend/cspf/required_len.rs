//! How long a frame must be for a program to accept it.

use super::end_of;
use crate::ir::{Operand, Program, Term, Value};

/// What no frame is as long as.
pub(super) const NEVER: u64 = u64::MAX;

/// For each block the length that a frame must have lest it be rejected there
/// or behind: by loads at constant places alone.
pub(super) struct RequiredLens {
    /// The block's own loads, and what is behind it.
    pub(super) here: Vec<u64>,
    /// What is behind it alone.
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

/// The end of the load that reads farthest, of those at constant places.
pub(super) fn longest(program: &Program, insts: &[Value]) -> u64 {
    let ends = insts.iter().filter_map(|&inst| end_of(program.op(inst)));
    ends.max().unwrap_or(0)
}
