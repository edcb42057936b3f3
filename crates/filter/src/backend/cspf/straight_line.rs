//! Layout without branches: tests in sequence, for the dialects that cannot branch.
//!
//! Each block's test either ends the program or leads to a single next block. Where it
//! leads to two, the rest becomes one expression, the truth value of `test ? then :
//! otherwise`, whose tests all run on each frame. That is exact if the shortest frame
//! that the rest can accept contains all bytes that the tests read.

use std::collections::BTreeSet;

use super::code::{Code, Fault};
use super::emit::{EdgeTarget, Emitter};
use super::required_len::{NEVER, longest};
use super::select32::Cells;
use super::test::Test;
use super::tree::Tree;
use super::{EmitError, TREE_DEPTH_MAX, Target, WORDS_TRIED};
use crate::ir::{Block, Edge, Op, Operand, Program, Term};
use crate::lang::cspf::Operator;

pub(super) fn emit(program: &Program, target: Target) -> Result<Vec<u16>, EmitError> {
    let mut chain = Chain {
        maker: Emitter::new(program, target),
        code: Code::new(target),
        reached: 0,
        budget: WORDS_TRIED,
    };
    match chain.run() {
        Ok(()) => Ok(chain.code.words),
        Err(Fault::Error(error)) => Err(error),
        Err(Fault::TooFar) => unreachable!("no cell is copied here"),
    }
}

struct Chain<'p> {
    maker: Emitter<'p>,
    code: Code,
    /// Bytes of the frame that the words so far have read.
    reached: u64,
    /// Remaining limit on the size of expressions.
    budget: usize,
}

impl Chain<'_> {
    fn run(&mut self) -> Result<(), Fault> {
        let program = self.maker.program;
        let mut here = Block::ENTRY;
        loop {
            let needs = self.maker.required.here[here.index()];
            let behind = self.maker.required.behind[here.index()];
            if needs == NEVER {
                return self.code.end_last(false);
            }
            let block = program.block(here);
            let long_enough = self.reached.max(needs);
            self.maker.refuse_faults(&block.insts)?;
            let longest = longest(program, &block.insts);
            let Term::Branch { cmp, a, b, .. } = &block.term else {
                match &block.term {
                    Term::Jump(edge) => {
                        self.touch(longest, behind, long_enough)?;
                        here = edge.block;
                        continue;
                    }
                    Term::Return(verdict) => return self.last(*verdict, longest, long_enough),
                    Term::Branch { .. } => unreachable!("taken apart above"),
                }
            };
            let goals = self.maker.goals(here);
            let test = match goals {
                [EdgeTarget::Block(_), EdgeTarget::Block(_)] => {
                    let longest = self.longest_from(here)?;
                    if longest > long_enough {
                        return Err(self.too_far(here, longest).into());
                    }
                    let test = Test::of(self.truth(here, long_enough, 0)?);
                    return self.decide(test, true, longest, long_enough);
                }
                _ => self.maker.test(*cmp, *a, *b, Cells::NONE, long_enough)?,
            };
            match goals {
                [EdgeTarget::Verdict(x), EdgeTarget::Verdict(y)] if x == y => {
                    self.touch(longest, behind, long_enough)?;
                    return self.code.end_last(x);
                }
                [EdgeTarget::Verdict(x), EdgeTarget::Verdict(_)] => {
                    return self.decide(test, x, longest, long_enough);
                }
                [EdgeTarget::Verdict(x), EdgeTarget::Block(next)] => {
                    self.end_if(&test, x, longest, behind, long_enough)?;
                    here = next;
                }
                [EdgeTarget::Block(next), EdgeTarget::Verdict(y)] => {
                    self.end_if(&test.not(), y, longest, behind, long_enough)?;
                    here = next;
                }
                [EdgeTarget::Block(_), EdgeTarget::Block(_)] => unreachable!("handled above"),
            }
        }
    }

    /// Ends with `verdict` if the test holds, else continues.
    fn end_if(
        &mut self,
        test: &Test,
        verdict: bool,
        longest: u64,
        behind: u64,
        long_enough: u64,
    ) -> Result<(), Fault> {
        self.reached = self.reached.max(test.tree.required_len());
        self.touch(longest, behind, long_enough)?;
        self.code.end_if(test, verdict)
    }

    /// Ends the program by a test, which accepts if it equals `verdict`.
    fn decide(
        &mut self,
        test: Test,
        verdict: bool,
        longest: u64,
        long_enough: u64,
    ) -> Result<(), Fault> {
        self.reached = self.reached.max(test.tree.required_len());
        self.touch(longest, 0, long_enough)?;
        let test = if verdict { test } else { test.not() };
        self.code.decide_last(test)
    }

    fn last(&mut self, verdict: Operand, longest: u64, long_enough: u64) -> Result<(), Fault> {
        match verdict {
            Operand::Imm(verdict) => {
                self.touch(longest, 0, long_enough)?;
                self.code.end_last(verdict != 0)
            }
            verdict => {
                let test = self.maker.truth_of(verdict, Cells::NONE, long_enough)?;
                self.decide(test, true, longest, long_enough)
            }
        }
    }

    /// Reads the frame up to `end`, unless words before or blocks after do.
    fn touch(&mut self, end: u64, behind: u64, long_enough: u64) -> Result<(), Fault> {
        if end > self.reached.max(behind) {
            let tree = self.maker.last_byte(end, long_enough)?;
            self.code.push(&tree, Operator::Nop)?;
            self.reached = self.reached.max(tree.required_len());
        }
        Ok(())
    }

    fn too_far(&self, here: Block, longest: u64) -> EmitError {
        let needs = self.maker.required.here[here.index()].max(self.reached);
        self.maker.target.inexpressible(format!(
            "a choice of tests, of which some read up to byte {} and others accept frames of \
             {needs} bytes",
            longest - 1
        ))
    }

    /// Bytes that the block and all blocks after it read at most.
    fn longest_from(&self, here: Block) -> Result<u64, EmitError> {
        let program = self.maker.program;
        let mut seen = BTreeSet::from([here]);
        let mut due = vec![here];
        let mut end = 0;
        while let Some(block) = due.pop() {
            let block = program.block(block);
            self.maker.refuse_faults(&block.insts)?;
            end = end.max(longest(program, &block.insts));
            let targets = block.term.edges().map(|edge| edge.block);
            due.extend(targets.filter(|target| seen.insert(*target)));
        }
        Ok(end)
    }

    /// The truth value (0 or 1) of whether the block, and those after it, accept.
    fn truth(&mut self, here: Block, long_enough: u64, level: usize) -> Result<Tree, EmitError> {
        if level > TREE_DEPTH_MAX {
            return Err(self.maker.target.far_too_many());
        }
        let block = self.maker.program.block(here);
        self.maker.refuse_faults(&block.insts)?;
        let (test, then, otherwise) = match &block.term {
            Term::Return(Operand::Imm(verdict)) => return Ok(Tree::Imm((*verdict != 0).into())),
            Term::Return(verdict) => {
                let test = self.maker.truth_of(*verdict, Cells::NONE, long_enough)?;
                return Ok(test.truth());
            }
            Term::Jump(edge) => return self.truth(edge.block, long_enough, level + 1),
            Term::Branch {
                cmp,
                a,
                b,
                then,
                otherwise,
            } => {
                let test = self.maker.test(*cmp, *a, *b, Cells::NONE, long_enough)?;
                self.charge(&test.tree)?;
                (test, then, otherwise)
            }
        };
        let mut side = |edge: &Edge| self.truth(edge.block, long_enough, level + 1);
        let (then, otherwise) = (side(then)?, side(otherwise)?);
        let tree = choice(test, then, otherwise);
        self.charge(&tree)?;
        Ok(tree)
    }

    /// Charges the size of a tree to the budget; an error if it is exhausted.
    fn charge(&mut self, part: &Tree) -> Result<(), EmitError> {
        let left = self.budget.checked_sub(part.size());
        self.budget = left.ok_or(self.maker.target.far_too_many())?;
        Ok(())
    }
}

/// The tree of `test ? then : otherwise` for truth values.
fn choice(test: Test, then: Tree, otherwise: Tree) -> Tree {
    let and = |a, b| match (a, b) {
        (Tree::Imm(0), _) | (_, Tree::Imm(0)) => Tree::Imm(0),
        (Tree::Imm(_), tree) | (tree, Tree::Imm(_)) => tree,
        (a, b) => Tree::bin(Operator::And, a, b),
    };
    let or = |a, b| match (a, b) {
        (Tree::Imm(0), tree) | (tree, Tree::Imm(0)) => tree,
        (Tree::Imm(_), _) | (_, Tree::Imm(_)) => Tree::Imm(1),
        (a, b) => Tree::bin(Operator::Or, a, b),
    };
    let (yes, no) = (test.clone().truth(), test.not().truth());
    match (&then, &otherwise) {
        (a, b) if a == b => then,
        // If one side is constant, the test is needed only once.
        (Tree::Imm(1), _) => or(yes, otherwise),
        (_, Tree::Imm(1)) => or(no, then),
        (_, Tree::Imm(0)) => and(yes, then),
        (Tree::Imm(0), _) => and(no, otherwise),
        _ => or(and(yes, then), and(no, otherwise)),
    }
}

/// Whether the operation may reject a frame of any length.
pub(super) fn rejects_otherwise(op: Op) -> bool {
    op.may_reject() && super::end_of(op).is_none()
}
