//! Layout with branches, block by block, for the dialects `weir` and `sun`.
//!
//! At the start of a block, the stack has the cells that its immediate dominator had at
//! its end. A path to the block has these cells, and perhaps more above them. So a block
//! with several predecessors starts with as many `POP`s as the deepest stack needs,
//! and each path enters among them:
//!
//! ```text
//!   path with two cells too many ─► POP
//!   path with one                ─► POP
//!   path with none               ─► the block
//! ```
//!
//! The preceding words also fall through with one of these depths, even if they end
//! the program: the dialect's rules do not know that control never continues there.
//!
//! Values that are used again stay on the stack if the dialect can copy cells. In other
//! dialects, or if the cell is too far from the top, they are recomputed. A value that
//! may reject the frame is computed where the program computes it, used or not. The
//! exception is a value that cannot reject frames of the known length, or whose frames
//! are rejected anyway.

use std::collections::BTreeSet;

use super::code::{Code, Fault};
use super::emit::{EdgeTarget, Emitter};
use super::required_len::NEVER;
use super::select32::Cells;
use super::straight_line::rejects_otherwise;
use super::test::Test;
use super::tree::Tree;
use super::{EmitError, Target, end_of, use_counts};
use crate::ir::{Block, Edge, Op, Operand, Program, Term, Value, Width};
use crate::lang::cspf::{Action, Dialect, Operator};

/// Stack depth, in cells, from which on no more values are kept: room for trees.
const COPY_DEPTH_MAX: usize = 190;

/// Stack depth, in cells, from which on unused cells are dropped.
const DEAD_CELLS_DEPTH: usize = 48;

/// Maximum number of levels of a tree of kept values.
const LEVELS_MAX: u32 = 40;

pub(super) fn emit(program: &Program, target: Target) -> Result<Vec<u16>, EmitError> {
    let maker = Emitter::new(program, target);
    let count = program.blocks.len();
    let mut layout = Layout {
        code: Code::new(target),
        can_copy_cells: target.dialect == Dialect::Weir,
        uses: use_counts(program),
        levels: levels(program),
        dominators: program.immediate_dominators(),
        cells: Vec::new(),
        cells_at_end: vec![Vec::new(); count],
        reached: vec![NEVER; count],
        branches_to: vec![Vec::new(); count],
        maker,
    };
    layout.reached[0] = 0;
    match layout.run() {
        Ok(()) => Ok(layout.code.words),
        Err(Fault::Error(error)) => Err(error),
        Err(Fault::TooFar) => Err(EmitError::TooManyCells {
            dialect: target.dialect,
        }),
    }
}

/// The levels of each value's tree.
fn levels(program: &Program) -> Vec<u32> {
    let mut levels = vec![0; program.values.len()];
    for &value in program.blocks.iter().flat_map(|block| &block.insts) {
        let operands = program.op(value).operands().filter_map(Operand::value);
        let deepest = operands.map(|operand| levels[operand.index()]).max();
        levels[value.index()] = deepest.map_or(0, |deepest| deepest % LEVELS_MAX + 1);
    }
    levels
}

struct Layout<'p> {
    maker: Emitter<'p>,
    code: Code,
    /// Whether the dialect can copy cells.
    can_copy_cells: bool,
    uses: Vec<u32>,
    levels: Vec<u32>,
    dominators: Vec<Block>,
    /// The value in each cell, if known.
    cells: Vec<Option<Value>>,
    cells_at_end: Vec<Vec<Option<Value>>>,
    /// For each block, bytes of the frame that every path to it has read.
    reached: Vec<u64>,
    /// For each block, the branches to it: index of the literal, and stack depth.
    branches_to: Vec<Vec<(usize, usize)>>,
}

impl Layout<'_> {
    fn run(&mut self) -> Result<(), Fault> {
        let program = self.maker.program;
        let blocks = (0..program.blocks.len() as u32).map(Block);
        let is_block = |block: &Block| {
            *block == Block::ENTRY || self.maker.goal(*block) == EdgeTarget::Block(*block)
        };
        let order: Vec<Block> = blocks.filter(is_block).collect();
        for (index, &here) in order.iter().enumerate() {
            let next = order.get(index + 1).copied();
            self.enter(here)?;
            let test = self.body(here)?;
            self.leave(here, test, next)?;
        }
        Ok(())
    }

    /// Brings all paths to a block to the depth of the block.
    fn enter(&mut self, here: Block) -> Result<(), EmitError> {
        if here == Block::ENTRY {
            return Ok(());
        }
        let dominator = self.dominators[here.index()];
        self.cells = self.cells_at_end[dominator.index()].clone();
        let params = &self.maker.program.block(here).params;
        self.cells.extend(params.iter().copied().map(Some));
        let ways = std::mem::take(&mut self.branches_to[here.index()]);
        let depths = ways.iter().map(|&(_, depth)| depth);
        // On some path, unused cells may have been dropped.
        let depth = depths.clone().fold(self.cells.len(), usize::min);
        self.cells.truncate(depth);
        let highest = depths.max().unwrap_or(depth);
        while self.code.depth < highest {
            self.code.inst(zero(), Operator::Nop, &[])?;
        }
        while self.code.depth > highest {
            self.code.inst(Action::Pop, Operator::Nop, &[])?;
        }
        let first = self.code.words.len();
        while self.code.depth > depth {
            self.code.inst(Action::Pop, Operator::Nop, &[])?;
        }
        for (literal, depth) in ways {
            let at = first + (highest - depth);
            self.code.words[literal] = (at - literal) as u16;
        }
        // The results of tests are dropped before they fill the stack.
        while self.cells.len() > DEAD_CELLS_DEPTH && self.cells.last() == Some(&None) {
            self.code.inst(Action::Pop, Operator::Nop, &[])?;
            self.cells.pop();
        }
        self.code.forget_top();
        Ok(())
    }

    /// Computes the values that the block must compute, and returns its test.
    fn body(&mut self, here: Block) -> Result<Option<Test>, Fault> {
        let program = self.maker.program;
        let block = program.block(here);
        let behind = self.maker.required.behind[here.index()];
        let mut reached = self.reached[here.index()];
        let long_enough = reached.max(self.maker.required.here[here.index()]);
        if !self.can_copy_cells {
            self.maker.refuse_faults(&block.insts)?;
        }
        let made = self.to_make(here);
        for &inst in &block.insts {
            if made.contains(&inst) {
                reached = reached.max(self.make(inst, long_enough)?);
            }
        }
        let test = self.test(here, self.available_cells(true), long_enough)?;
        let tested = test.as_ref().map_or(0, |test| test.tree.required_len());
        reached = reached.max(tested);
        let ends = block.insts.iter().map(|&inst| end_of(program.op(inst)));
        let farthest = block.insts.iter().zip(ends).max_by_key(|(_, end)| *end);
        if let Some((&load, Some(end))) = farthest
            && end > reached.max(behind)
        {
            if self.can_copy_cells && self.uses[load.index()] > 0 {
                self.make(load, long_enough)?;
            } else {
                let tree = self.maker.last_byte(end, long_enough)?;
                self.push(&tree, None)?;
            }
            reached = end;
        }
        for edge in block.term.edges() {
            let there = &mut self.reached[edge.block.index()];
            *there = reached.min(*there);
        }
        Ok(test)
    }

    /// The values that a block computes separately: those used again, and those that may
    /// reject and are not part of other values.
    fn to_make(&self, here: Block) -> BTreeSet<Value> {
        let program = self.maker.program;
        let block = program.block(here);
        let mut made = BTreeSet::new();
        if !self.can_copy_cells {
            return made;
        }
        let mut part: BTreeSet<Value> = match self.maker.goals(here) {
            [goal, other] if goal == other => BTreeSet::new(),
            _ => block.term.operands().filter_map(Operand::value).collect(),
        };
        for &inst in block.insts.iter().rev() {
            let op = program.op(inst);
            let is_again = self.uses[inst.index()] >= uses_worth_a_cell(op);
            let is_deep = self.levels[inst.index()] >= LEVELS_MAX;
            let is_check = rejects_otherwise(op) && !part.contains(&inst);
            if is_check || ((is_again || is_deep) && self.cells.len() < COPY_DEPTH_MAX) {
                made.insert(inst);
            }
            if made.contains(&inst) || part.contains(&inst) {
                part.extend(op.operands().filter_map(Operand::value));
            }
        }
        made
    }

    /// Pushes a value and returns the number of bytes that its computation reads.
    fn make(&mut self, value: Value, long_enough: u64) -> Result<u64, Fault> {
        let tree = self
            .maker
            .wide(self.available_cells(true), long_enough)
            .fresh(value)?;
        match self.push(&tree, Some(value)) {
            Err(Fault::TooFar) => {
                let tree = self
                    .maker
                    .wide(self.available_cells(false), long_enough)
                    .fresh(value)?;
                self.push(&tree, Some(value))?;
                Ok(tree.required_len())
            }
            pushed => pushed.map(|()| tree.required_len()),
        }
    }

    fn available_cells(&self, all: bool) -> Cells<'_> {
        let held = &self.cells;
        Cells { values: held, all }
    }

    fn push(&mut self, tree: &Tree, value: Option<Value>) -> Result<(), Fault> {
        let (len, depth) = (self.code.words.len(), self.code.depth);
        if let Err(fault) = self.code.push(tree, Operator::Nop) {
            self.code.back_to(len, depth);
            return Err(fault);
        }
        self.cells.push(value);
        Ok(())
    }

    /// The test at the end of a block, or of its verdict; `None` if both targets are equal.
    fn test(
        &self,
        here: Block,
        cells: Cells<'_>,
        long_enough: u64,
    ) -> Result<Option<Test>, EmitError> {
        if let [goal, other] = self.maker.goals(here)
            && goal == other
        {
            return Ok(None);
        }
        match &self.maker.program.block(here).term {
            Term::Branch { cmp, a, b, .. } => {
                let test = self.maker.test(*cmp, *a, *b, cells, long_enough)?;
                Ok(Some(test))
            }
            Term::Return(verdict) => {
                let test = self.maker.truth_of(*verdict, cells, long_enough)?;
                Ok(Some(test))
            }
            Term::Jump(_) => Ok(None),
        }
    }

    fn leave(&mut self, here: Block, test: Option<Test>, next: Option<Block>) -> Result<(), Fault> {
        let (len, depth) = (self.code.words.len(), self.code.depth);
        if let Term::Jump(edge) = &self.maker.program.block(here).term
            && !edge.args.is_empty()
            && let goal @ EdgeTarget::Block(_) = self.maker.goal(edge.block)
        {
            self.cells_at_end[here.index()] = self.cells.clone();
            self.pass(edge)?;
            return self.go(goal, next);
        }
        let ended = match self.terminate(here, test, next) {
            Err(Fault::TooFar) => {
                // Without copies of cells the test is longer, but always possible.
                self.code.back_to(len, depth);
                let reached = self.reached[here.index()];
                let long_enough = reached.max(self.maker.required.here[here.index()]);
                let test = self.test(here, self.available_cells(false), long_enough)?;
                self.terminate(here, test, next)
            }
            ended => ended,
        };
        ended?;
        self.cells.resize(self.code.depth, None);
        self.cells_at_end[here.index()] = std::mem::take(&mut self.cells);
        Ok(())
    }

    /// Passes the arguments of an edge: leaves the cells of the target's immediate
    /// dominator with the parameters on top. Arguments are recomputed from those cells,
    /// since cells above them are dropped. A single argument that needs a dropped cell is
    /// computed before.
    fn pass(&mut self, edge: &Edge) -> Result<(), Fault> {
        let dominator = self.dominators[edge.block.index()];
        let depth = self.cells_at_end[dominator.index()].len();
        // Unused cells may have been dropped on the way.
        while self.cells.len() < depth {
            self.code.inst(zero(), Operator::Nop, &[])?;
            self.cells.push(None);
        }
        let below = Cells {
            values: &self.cells[..depth],
            all: true,
        };
        let from_below = |&arg| self.maker.wide(below, 0).tree(arg);
        let can = edge.args.iter().all(|arg| from_below(arg).is_ok());
        if let ([arg], false) = (&edge.args[..], can) {
            self.argument(*arg)?;
            while self.code.depth > depth + 1 {
                self.drop_below()?;
            }
            return Ok(());
        }
        while self.code.depth > depth {
            self.code.inst(Action::Pop, Operator::Nop, &[])?;
        }
        self.cells.truncate(depth);
        edge.args.iter().try_for_each(|arg| self.argument(*arg))
    }

    /// Drops the cell below the top: `a b` becomes `a b^a`, then `a^b^a`.
    fn drop_below(&mut self) -> Result<(), EmitError> {
        self.code.inst(Action::Copy(1), Operator::Xor, &[])?;
        self.code.inst(Action::NoPush, Operator::Xor, &[])
    }

    fn argument(&mut self, arg: Operand) -> Result<(), Fault> {
        let tree = self.maker.wide(self.available_cells(true), 0).tree(arg)?;
        match self.push(&tree, arg.value()) {
            Err(Fault::TooFar) => {
                let tree = self.maker.wide(self.available_cells(false), 0).tree(arg)?;
                self.push(&tree, arg.value())
            }
            pushed => pushed,
        }
    }

    fn terminate(
        &mut self,
        here: Block,
        test: Option<Test>,
        next: Option<Block>,
    ) -> Result<(), Fault> {
        let goals = self.maker.goals(here);
        let test = test.unwrap_or(Test::of(Tree::Imm(1)));
        let goals = match test.constant() {
            Some(true) => [goals[0]; 2],
            Some(false) => [goals[1]; 2],
            None => goals,
        };
        match goals {
            [goal, other] if goal == other => self.go(goal, next),
            [EdgeTarget::Verdict(x), EdgeTarget::Verdict(_)] if next.is_none() => {
                let test = if x { test } else { test.not() };
                self.code.decide_last(test)
            }
            [EdgeTarget::Verdict(x), other] => {
                self.code.end_if(&test, x)?;
                self.go(other, next)
            }
            [goal, EdgeTarget::Verdict(y)] => {
                self.code.end_if(&test.not(), y)?;
                self.go(goal, next)
            }
            [EdgeTarget::Block(then), EdgeTarget::Block(otherwise)] => {
                self.fork(&test, then, otherwise, next)
            }
        }
    }

    fn fork(
        &mut self,
        test: &Test,
        then: Block,
        otherwise: Block,
        next: Option<Block>,
    ) -> Result<(), Fault> {
        let (on_true, on_zero) = if test.negated {
            (otherwise, then)
        } else {
            (then, otherwise)
        };
        self.code.push(&test.tree, Operator::Nop)?;
        // With `BRTR` first, the top cell is known where the branch is not taken.
        if next != Some(on_true) {
            self.branch(true, on_true)?;
        }
        if next != Some(on_zero) {
            self.branch(false, on_zero)?;
        }
        Ok(())
    }

    fn branch(&mut self, when: bool, to: Block) -> Result<(), EmitError> {
        self.code
            .inst(Action::Branch { when }, Operator::Nop, &[0])?;
        let literal = self.code.words.len() - 1;
        self.branches_to[to.index()].push((literal, self.code.depth));
        Ok(())
    }

    /// Continues at a block, or ends with a verdict.
    fn go(&mut self, goal: EdgeTarget, next: Option<Block>) -> Result<(), Fault> {
        match goal {
            EdgeTarget::Verdict(verdict) if next.is_none() => self.code.end_last(verdict),
            EdgeTarget::Verdict(verdict) => self.code.end(verdict),
            EdgeTarget::Block(block) if next == Some(block) => Ok(()),
            EdgeTarget::Block(block) => {
                let top = match self.code.top() {
                    Some(top) => top,
                    None => {
                        self.code.push(&Tree::Imm(1), Operator::Nop)?;
                        true
                    }
                };
                Ok(self.branch(top, block)?)
            }
        }
    }
}

/// The number of uses from which on a kept value and its copies take fewer words than
/// recomputation.
fn uses_worth_a_cell(op: Op) -> u32 {
    match op {
        // One word, as a copy.
        Op::Len => u32::MAX,
        Op::Load {
            width: Width::B2,
            base: None,
            offset,
        } if offset % 2 == 0 => u32::MAX,
        Op::Load { base: None, .. } => 3,
        _ => 2,
    }
}

fn zero() -> Action {
    Action::Constant(0)
}
