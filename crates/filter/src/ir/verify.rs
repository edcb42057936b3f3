//! Checks the invariants of a program; see the module page for the list.

use super::dominators::Dominators;
use super::{Block, Edge, Op, Operand, Program, Value, limits};

/// Which invariant a program breaks, and where.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum VerifyError {
    /// There is no entry block.
    #[error("the program has no block")]
    NoBlocks,
    /// More than a limit allows.
    #[error("the program has {found} {what}; at most {max} are allowed")]
    TooLarge {
        /// What there is too much of.
        what: &'static str,
        /// How much there is.
        found: usize,
        /// The limit.
        max: usize,
    },
    /// An edge that does not lead forward.
    #[error("{from} jumps to {to}, which is not a later block")]
    NotForward {
        /// The block it leaves.
        from: Block,
        /// Where it leads.
        to: Block,
    },
    /// An edge whose arguments do not fit its target's parameters.
    #[error("{from} passes {found} arguments to {to}, which takes {expected}")]
    ArgumentCount {
        /// The block it leaves.
        from: Block,
        /// Where it leads.
        to: Block,
        /// How many it passes.
        found: usize,
        /// How many the target takes.
        expected: usize,
    },
    /// The entry block takes parameters, which nobody could supply.
    #[error("b0 has parameters")]
    EntryParams,
    /// A use that the value's definition does not dominate.
    #[error("{block} uses {value}, which is not defined on every path to it")]
    NotDominated {
        /// Where it is used.
        block: Block,
        /// What is used.
        value: Value,
    },
    /// A value that is listed twice, or as a parameter without being one.
    #[error("{block} lists {value} twice, as the wrong kind, or out of range")]
    BadDefinition {
        /// Where it is listed.
        block: Block,
        /// What is listed.
        value: Value,
    },
}

impl Program {
    /// Checks every invariant. Cost: linear in the program, times the
    /// logarithm of its depth.
    pub fn verify(&self) -> Result<(), VerifyError> {
        self.check_sizes()?;
        self.check_edges()?;
        let dominators = self.dominators();
        let mut defined_in: Vec<Option<Block>> = vec![None; self.values.len()];
        for (index, block) in self.blocks.iter().enumerate() {
            let here = Block(index as u32);
            let params = block.params.iter().map(|&value| (value, true));
            let insts = block.insts.iter().map(|&value| (value, false));
            for (value, is_param) in params.chain(insts) {
                let bad = VerifyError::BadDefinition { block: here, value };
                let op = *self.values.get(value.index()).ok_or(bad.clone())?;
                if (op == Op::Param) != is_param || defined_in[value.index()].is_some() {
                    return Err(bad);
                }
                for operand in op.operands() {
                    check_use(operand, here, &defined_in, &dominators)?;
                }
                defined_in[value.index()] = Some(here);
            }
            for operand in block.term.operands() {
                check_use(operand, here, &defined_in, &dominators)?;
            }
        }
        Ok(())
    }

    fn check_sizes(&self) -> Result<(), VerifyError> {
        let too_large = |what, found, max| VerifyError::TooLarge { what, found, max };
        let (blocks, values) = (self.blocks.len(), self.values.len());
        if blocks == 0 {
            return Err(VerifyError::NoBlocks);
        }
        if blocks > limits::BLOCKS_MAX {
            return Err(too_large("blocks", blocks, limits::BLOCKS_MAX));
        }
        if values > limits::VALUES_MAX {
            return Err(too_large("values", values, limits::VALUES_MAX));
        }
        for block in &self.blocks {
            let params = block.params.len();
            if params > limits::BLOCK_PARAMS_MAX {
                let max = limits::BLOCK_PARAMS_MAX;
                return Err(too_large("parameters in one block", params, max));
            }
        }
        if !self.blocks[0].params.is_empty() {
            return Err(VerifyError::EntryParams);
        }
        Ok(())
    }

    fn check_edges(&self) -> Result<(), VerifyError> {
        for (index, block) in self.blocks.iter().enumerate() {
            for edge in block.term.edges() {
                self.check_edge(Block(index as u32), edge)?;
            }
        }
        Ok(())
    }

    fn check_edge(&self, from: Block, edge: &Edge) -> Result<(), VerifyError> {
        let to = edge.block;
        if to <= from || to.index() >= self.blocks.len() {
            return Err(VerifyError::NotForward { from, to });
        }
        let (found, expected) = (edge.args.len(), self.block(to).params.len());
        if found != expected {
            return Err(VerifyError::ArgumentCount {
                from,
                to,
                found,
                expected,
            });
        }
        Ok(())
    }

    /// For each block the nearest other block that every path to it passes;
    /// the entry, and a block nothing reaches, has itself.
    ///
    /// The program's edges must lead forward.
    pub fn immediate_dominators(&self) -> Vec<Block> {
        self.dominators().parents().to_vec()
    }

    fn dominators(&self) -> Dominators {
        Dominators::of(self.blocks.len(), |index| self.blocks[index].term.edges())
    }
}

fn check_use(
    operand: Operand,
    block: Block,
    defined_in: &[Option<Block>],
    dominators: &Dominators,
) -> Result<(), VerifyError> {
    let Operand::Val(value) = operand else {
        return Ok(());
    };
    let home = defined_in.get(value.index()).copied().flatten();
    if home.is_some_and(|home| dominators.dominates(home, block)) {
        Ok(())
    } else {
        Err(VerifyError::NotDominated { block, value })
    }
}
