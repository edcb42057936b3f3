//! Instruction selection for the dialects with cells of 32 bits, `weir` and `mach`.

use super::test::Test;
use super::tree::{Tree, described};
use super::{EmitError, TREE_DEPTH_MAX, Target, WORDS_TRIED, end_of};
use crate::ir::{BinOp, Cmp, Op, Operand, Program, Value, Width};
use crate::lang::cspf::{Dialect, Operator};
use crate::opt::value_range::ValueRange;

/// Largest distance of a cell from the top, when a tree is begun, at which it is
/// copied. `PUSHSTK` reaches 31 cells, and the tree itself pushes some.
const COPY_REACH: usize = 22;

/// The cells that a tree may copy.
#[derive(Clone, Copy)]
pub(super) struct Cells<'p> {
    /// The value in each cell, from the bottom.
    pub(super) values: &'p [Option<Value>],
    /// Whether any value may be copied. If not, only parameters are, which have no other
    /// source; those are copied at any distance.
    pub(super) all: bool,
}

impl Cells<'_> {
    pub(super) const NONE: Cells<'static> = Cells {
        values: &[],
        all: false,
    };
}

pub(super) struct Select32<'p> {
    pub(super) program: &'p Program,
    pub(super) target: Target,
    /// The largest possible value of each value.
    pub(super) largest: &'p [u32],
    pub(super) cells: Cells<'p>,
    /// Frames shorter than this are rejected later.
    pub(super) long_enough: u64,
}

/// The largest possible value of each value.
pub(super) fn largest(program: &Program) -> Vec<u32> {
    let mut known = vec![ValueRange::ANY; program.values.len()];
    for value in program.blocks.iter().flat_map(|block| &block.insts) {
        let read = |operand| match operand {
            Operand::Imm(constant) => ValueRange::exactly(constant),
            Operand::Val(value) => known[value.index()],
        };
        known[value.index()] = match program.op(*value) {
            Op::Load { width, .. } => ValueRange::between(0, width.max_value()),
            Op::Bin { op, a, b } => ValueRange::bin(op, read(a), read(b)),
            Op::Test { .. } => ValueRange::between(0, 1),
            Op::Len | Op::Param => ValueRange::ANY,
        };
    }
    known.into_iter().map(|known| known.hi).collect()
}

impl Select32<'_> {
    pub(super) fn test(&self, cmp: Cmp, a: Operand, b: Operand) -> Result<Test, EmitError> {
        let mut budget = WORDS_TRIED;
        let a = self.operand(a, 0, &mut budget)?;
        let b = self.operand(b, 0, &mut budget)?;
        Ok(Test::new(cmp, a, b))
    }

    /// The tree of a value, without a copy of its own cell.
    pub(super) fn fresh(&self, value: Value) -> Result<Tree, EmitError> {
        self.op(value, 0, &mut WORDS_TRIED.clone())
    }

    /// The tree of an operand.
    pub(super) fn tree(&self, operand: Operand) -> Result<Tree, EmitError> {
        self.operand(operand, 0, &mut WORDS_TRIED.clone())
    }

    fn operand(
        &self,
        operand: Operand,
        level: usize,
        budget: &mut usize,
    ) -> Result<Tree, EmitError> {
        match operand {
            Operand::Imm(constant) => Ok(Tree::Imm(constant)),
            Operand::Val(value) => self.value(value, level, budget),
        }
    }

    fn value(&self, value: Value, level: usize, budget: &mut usize) -> Result<Tree, EmitError> {
        let Cells { values: held, all } = self.cells;
        let first = match self.program.op(value) {
            Op::Param => 0,
            _ if all => held.len().saturating_sub(COPY_REACH),
            _ => held.len(),
        };
        let cell = held[first..].iter().rposition(|cell| *cell == Some(value));
        match cell {
            Some(cell) => Ok(Tree::Cell(first + cell)),
            None => self.op(value, level, budget),
        }
    }

    fn op(&self, value: Value, level: usize, budget: &mut usize) -> Result<Tree, EmitError> {
        *budget = budget.checked_sub(1).ok_or(self.target.far_too_many())?;
        if level > TREE_DEPTH_MAX {
            return Err(self.target.far_too_many());
        }
        let op = self.program.op(value);
        Ok(match op {
            // The parameter's cell was dropped; `Layout::pass` handles that.
            Op::Param => {
                let dialect = self.target.dialect;
                return Err(EmitError::TooManyCells { dialect });
            }
            Op::Len if self.target.dialect == Dialect::Weir => Tree::Len,
            Op::Load {
                width,
                base: None,
                offset,
            } if self.target.dialect == Dialect::Weir => match u16::try_from(offset) {
                Ok(offset) => Tree::Field(width, offset),
                Err(_) => Tree::FieldAt(width, Box::new(Tree::Imm(offset))),
            },
            Op::Load {
                width,
                base: Some(base),
                offset,
            } if self.target.dialect == Dialect::Weir => {
                let tree = self.value(base, level + 1, budget)?;
                let at = self.sum(base, tree, offset);
                Tree::FieldAt(width, Box::new(at))
            }
            Op::Load {
                width,
                base: None,
                offset,
            } => self.by_words(op, width, offset)?,
            Op::Len | Op::Load { .. } => return Err(self.target.inexpressible(described(op))),
            Op::Test { cmp, a, b } => {
                let a = self.operand(a, level + 1, budget)?;
                let b = self.operand(b, level + 1, budget)?;
                Test::new(cmp, a, b).truth()
            }
            Op::Bin { op: bin, a, b } => {
                let operator = self
                    .operator(bin, a)
                    .ok_or_else(|| self.target.inexpressible(described(op)))?;
                let a = self.operand(a, level + 1, budget)?;
                let b = self.operand(b, level + 1, budget)?;
                Tree::bin(operator, a, b)
            }
        })
    }

    /// The operator of an arithmetic operation; `None` if the dialect lacks it. Mach's `RSH`
    /// is arithmetic, so it applies only to values without the sign bit.
    fn operator(&self, bin: BinOp, a: Operand) -> Option<Operator> {
        let operator = match bin {
            BinOp::Add => Operator::Add,
            BinOp::Sub => Operator::Sub,
            BinOp::Mul => Operator::Mul,
            BinOp::Div => Operator::Div,
            BinOp::Mod => Operator::Mod,
            BinOp::And => Operator::And,
            BinOp::Or => Operator::Or,
            BinOp::Xor => Operator::Xor,
            BinOp::Shl => Operator::Lsh,
            BinOp::Shr => Operator::Rsh,
        };
        let largest = match a {
            Operand::Imm(constant) => constant,
            Operand::Val(value) => self.largest[value.index()],
        };
        let dialect = self.target.dialect;
        let signed = dialect == Dialect::Mach && bin == BinOp::Shr && largest > i32::MAX as u32;
        let has = dialect.operator_code(operator).is_some() && !signed;
        has.then_some(operator)
    }

    /// `base + offset` as a byte offset; all ones, which is outside every frame, if the
    /// sum exceeds 32 bits.
    fn sum(&self, base: Value, tree: Tree, offset: u32) -> Tree {
        if offset == 0 {
            return tree;
        }
        let most = u32::MAX - offset;
        let sum = Tree::bin(Operator::Add, tree.clone(), Tree::Imm(offset));
        if self.largest[base.index()] <= most {
            return sum;
        }
        let exceeds = Tree::bin(Operator::Gt, tree, Tree::Imm(most));
        let all_ones = Tree::bin(Operator::Sub, Tree::Imm(0), exceeds);
        Tree::bin(Operator::Or, all_ones, sum)
    }

    /// A load in a dialect that reads only words.
    fn by_words(&self, op: Op, width: Width, offset: u32) -> Result<Tree, EmitError> {
        let end = end_of(op).unwrap_or(0);
        let (first, is_odd) = (offset & !1, offset % 2 == 1);
        // The words may contain one byte more at either end. Only the byte behind the
        // field matters.
        if end.next_multiple_of(2) > end.max(self.long_enough) || end >= u32::MAX.into() {
            return Err(self.target.inexpressible(described(op)));
        }
        let imm = Tree::Imm;
        let word = |n: u32| Tree::Word(first + 2 * n);
        let low = |tree| Tree::bin(Operator::And, tree, imm(0xff));
        let high = |tree| Tree::bin(Operator::Rsh, tree, imm(8));
        let up = |tree, by| Tree::bin(Operator::Lsh, tree, imm(by));
        let or = |a, b| Tree::bin(Operator::Or, a, b);
        Ok(match (width, is_odd) {
            (Width::B1, false) => high(word(0)),
            (Width::B1, true) => low(word(0)),
            (Width::B2, false) => word(0),
            (Width::B2, true) => or(up(low(word(0)), 8), high(word(1))),
            (Width::B4, false) => or(up(word(0), 16), word(1)),
            (Width::B4, true) => {
                let middle = or(up(word(0), 24), up(word(1), 8));
                or(middle, high(word(2)))
            }
        })
    }
}
