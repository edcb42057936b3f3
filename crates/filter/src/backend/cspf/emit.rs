//! Analyses and helpers shared by both layouts, `layout` and `straight_line`.

use super::required_len::{NEVER, RequiredLens, needs};
use super::select16::Select16;
use super::select32::{Cells, Select32, largest};
use super::straight_line::rejects_otherwise;
use super::test::Test;
use super::tree::{Tree, described};
use super::{EmitError, Target};
use crate::ir::{Block, Cmp, Operand, Program, Term, Value, Width};
use crate::lang::cspf::Dialect;

/// The target of an edge.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum EdgeTarget {
    /// A verdict, since the target does nothing else.
    Verdict(bool),
    /// A block.
    Block(Block),
}

pub(super) struct Emitter<'p> {
    pub(super) program: &'p Program,
    pub(super) target: Target,
    pub(super) required: RequiredLens,
    pub(super) largest: Vec<u32>,
}

impl<'p> Emitter<'p> {
    pub(super) fn new(program: &'p Program, target: Target) -> Emitter<'p> {
        Emitter {
            program,
            target,
            required: needs(program),
            largest: if target.is_wide() {
                largest(program)
            } else {
                Vec::new()
            },
        }
    }

    pub(super) fn goal(&self, block: Block) -> EdgeTarget {
        let target = self.program.block(block);
        match target.term {
            _ if self.required.here[block.index()] == NEVER => EdgeTarget::Verdict(false),
            Term::Return(Operand::Imm(_)) if target.insts.is_empty() => EdgeTarget::Verdict(true),
            _ => EdgeTarget::Block(block),
        }
    }

    /// The targets of a block, if its test holds and if it fails.
    pub(super) fn goals(&self, block: Block) -> [EdgeTarget; 2] {
        match &self.program.block(block).term {
            Term::Jump(edge) => [self.goal(edge.block); 2],
            Term::Return(Operand::Imm(verdict)) => [EdgeTarget::Verdict(*verdict != 0); 2],
            Term::Return(_) => [EdgeTarget::Verdict(true), EdgeTarget::Verdict(false)],
            Term::Branch {
                then, otherwise, ..
            } => [then, otherwise].map(|edge| self.goal(edge.block)),
        }
    }

    pub(super) fn wide<'w>(&'w self, cells: Cells<'w>, long_enough: u64) -> Select32<'w> {
        Select32 {
            program: self.program,
            target: self.target,
            largest: &self.largest,
            cells,
            long_enough,
        }
    }

    /// Selects a comparison as a test. The test may be wrong for frames shorter than
    /// `long_enough`, which are rejected later.
    pub(super) fn test(
        &self,
        cmp: Cmp,
        a: Operand,
        b: Operand,
        cells: Cells<'_>,
        long_enough: u64,
    ) -> Result<Test, EmitError> {
        if self.target.is_wide() {
            return self.wide(cells, long_enough).test(cmp, a, b);
        }
        let narrow = Select16 {
            program: self.program,
            target: self.target,
            long_enough,
        };
        narrow.test(cmp, a, b)
    }

    /// A test of whether `verdict` accepts.
    pub(super) fn truth_of(
        &self,
        verdict: Operand,
        cells: Cells<'_>,
        long_enough: u64,
    ) -> Result<Test, EmitError> {
        self.test(Cmp::Ne, verdict, Operand::Imm(0), cells, long_enough)
    }

    /// A load that reads the byte ending at `end`, and no byte of a frame that ends there.
    pub(super) fn last_byte(&self, end: u64, long_enough: u64) -> Result<Tree, EmitError> {
        let at = end - 1;
        if self.target.dialect == Dialect::Weir {
            return Ok(match (u16::try_from(at), at % 2) {
                (Ok(at), 1) => Tree::Field(Width::B2, at - 1),
                (Ok(at), _) => Tree::Field(Width::B1, at),
                (Err(_), _) => {
                    // `FieldAt` takes any 32-bit offset; a larger one is outside every frame.
                    let at = Tree::Imm(u32::try_from(at).unwrap_or(u32::MAX));
                    Tree::FieldAt(Width::B1, Box::new(at))
                }
            });
        }
        match u32::try_from(at) {
            Ok(at) if at % 2 == 1 || end < long_enough => Ok(Tree::Word(at & !1)),
            _ => Err(self
                .target
                .inexpressible(format!("a load of byte {at} without the byte behind it"))),
        }
    }

    /// Refuses operations that may reject a frame of any length, in dialects that cannot
    /// express them.
    pub(super) fn refuse_faults(&self, insts: &[Value]) -> Result<(), EmitError> {
        let ops = insts.iter().map(|&inst| self.program.op(inst));
        match ops.into_iter().find(|op| rejects_otherwise(*op)) {
            Some(op) => Err(self.target.inexpressible(described(op))),
            None => Ok(()),
        }
    }
}
