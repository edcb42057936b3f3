//! The verifier: checks the invariants that [the module page](super) lists.

use super::dominators::Dominators;
use super::{Block, Edge, Op, Operand, Program, Value, limits};

/// A broken invariant, and its location.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum VerifyError {
    /// There is no entry block.
    #[error("the program has no block")]
    NoBlocks,
    /// A count exceeds its limit.
    #[error("the program has {found} {what}; at most {max} are allowed")]
    TooLarge {
        /// The counted items.
        what: &'static str,
        /// The count.
        found: usize,
        /// The limit.
        max: usize,
    },
    /// An edge to an earlier block, to its own block or to no block.
    #[error("{from} jumps to {to}, which is not a later block")]
    NotForward {
        /// The source block.
        from: Block,
        /// The target block.
        to: Block,
    },
    /// An edge with another number of arguments than its target has parameters.
    #[error("{from} passes {found} arguments to {to}, which takes {expected}")]
    ArgumentCount {
        /// The source block.
        from: Block,
        /// The target block.
        to: Block,
        /// Number of arguments.
        found: usize,
        /// Number of parameters.
        expected: usize,
    },
    /// The entry block has parameters, although no edge can pass arguments.
    #[error("b0 has parameters")]
    EntryParams,
    /// A use of a value whose definition does not dominate the use.
    #[error("{block} uses {value}, which is not defined on every path to it")]
    NotDominated {
        /// The block of the use.
        block: Block,
        /// The value.
        value: Value,
    },
    /// A value that is listed twice, out of range, or as a parameter although it is
    /// an instruction (or the reverse).
    #[error("{block} lists {value} twice, as the wrong kind, or out of range")]
    BadDefinition {
        /// The block that lists the value.
        block: Block,
        /// The value.
        value: Value,
    },
}

impl Program {
    /// Checks every invariant. Time: linear in the program's size, times the
    /// logarithm of the dominator tree's depth.
    ///
    /// # Errors
    /// The first broken invariant.
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

    /// The immediate dominator of each block: the nearest other block on every path
    /// to it. The entry and unreachable blocks have themselves.
    ///
    /// All edges must lead forward.
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
