//! Instruction selection for dialects with cells of 16 bits and no shifts.

use super::test::Test;
use super::tree::{Tree, described};
use super::{EmitError, TREE_DEPTH_MAX, Target, WORDS_TRIED, end_of};
use crate::ir::{BinOp, Cmp, Op, Operand, Program, Value, Width};
use crate::lang::cspf::Operator;

pub(super) struct Select16<'p> {
    pub(super) program: &'p Program,
    pub(super) target: Target,
    /// Frames shorter than this are rejected later.
    pub(super) long_enough: u64,
}

/// 16 bits of a value: a tree shifted right. The tree's bits that are shifted out
/// are zero.
#[derive(Clone, PartialEq, Eq)]
struct Half {
    tree: Tree,
    shift: u32,
}

/// A value of 32 bits.
#[derive(Clone)]
struct Halves {
    high: Half,
    low: Half,
}

const ZERO: Half = Half {
    tree: Tree::Imm(0),
    shift: 0,
};

impl Half {
    fn imm(constant: u32) -> Half {
        Half {
            tree: Tree::Imm(constant & 0xffff),
            shift: 0,
        }
    }

    fn is_zero(&self) -> bool {
        self.tree == Tree::Imm(0)
    }

    /// The constant; `None` if the half is not constant.
    fn constant(&self) -> Option<u32> {
        match self.tree {
            Tree::Imm(constant) => Some(constant >> self.shift),
            _ => None,
        }
    }

    /// Both trees with a common shift, so that they compare like the values; `None` if
    /// the shifts differ and neither half is a constant that can take the other shift.
    fn aligned(self, other: Half) -> Option<(Tree, Tree, u32)> {
        if self.shift == other.shift {
            return Some((self.tree, other.tree, self.shift));
        }
        let moved = |half: &Half, shift: u32| {
            let constant = half.constant()? << shift;
            (constant <= 0xffff).then_some(Tree::Imm(constant))
        };
        if let Some(tree) = moved(&other, self.shift) {
            return Some((self.tree, tree, self.shift));
        }
        let tree = moved(&self, other.shift)?;
        Some((tree, other.tree, other.shift))
    }
}

impl Select16<'_> {
    pub(super) fn test(&self, cmp: Cmp, a: Operand, b: Operand) -> Result<Test, EmitError> {
        self.compare(cmp, a, b, 0, &mut WORDS_TRIED.clone())
    }

    fn compare(
        &self,
        cmp: Cmp,
        a: Operand,
        b: Operand,
        level: usize,
        budget: &mut usize,
    ) -> Result<Test, EmitError> {
        let a = self.operand(a, level + 1, budget)?;
        let b = self.operand(b, level + 1, budget)?;
        if a.high.is_zero() && b.high.is_zero() {
            return self.halves(cmp, a.low, b.low);
        }
        let two = |operator, first: Test, second: Test| {
            Test::of(both(operator, first.truth(), second.truth()))
        };
        let high = |cmp| self.halves(cmp, a.high.clone(), b.high.clone());
        let low = |cmp| self.halves(cmp, a.low.clone(), b.low.clone());
        Ok(match cmp {
            Cmp::Eq => two(Operator::And, high(Cmp::Eq)?, low(Cmp::Eq)?),
            Cmp::Ne => two(Operator::And, high(Cmp::Eq)?, low(Cmp::Eq)?).not(),
            Cmp::Set => two(Operator::Or, high(Cmp::Set)?, low(Cmp::Set)?),
            Cmp::Clear => two(Operator::Or, high(Cmp::Set)?, low(Cmp::Set)?).not(),
            // The high halves decide; if those are equal, the low halves do.
            Cmp::Lt | Cmp::Le | Cmp::Gt | Cmp::Ge => {
                let strict = match cmp {
                    Cmp::Lt | Cmp::Le => Cmp::Lt,
                    _ => Cmp::Gt,
                };
                let equal = two(Operator::And, high(Cmp::Eq)?, low(cmp)?);
                two(Operator::Or, high(strict)?, equal)
            }
        })
    }

    fn halves(&self, cmp: Cmp, a: Half, b: Half) -> Result<Test, EmitError> {
        if matches!(cmp, Cmp::Set | Cmp::Clear) {
            let masked = self.bits(BinOp::And, a, b)?;
            let test = Test::of(masked.tree);
            return Ok(match cmp {
                Cmp::Set => test,
                _ => test.not(),
            });
        }
        if let (Some(a), Some(b)) = (a.constant(), b.constant()) {
            return Ok(Test::of(Tree::Imm(cmp.eval(a, b).into())));
        }
        // A shifted 16-bit tree is less than a constant that exceeds 16 bits when shifted
        // back.
        let (shift, constant) = (a.shift, b.constant());
        match a.aligned(b) {
            Some((a, b, _)) => Ok(Test::new(cmp, a, b)),
            None if constant.is_some_and(|constant| constant << shift > 0xffff) => {
                Ok(Test::of(Tree::Imm(cmp.eval(0, 1).into())))
            }
            None => Err(self.target.inexpressible("a shift of a value")),
        }
    }

    /// A bitwise operation on halves.
    fn bits(&self, op: BinOp, a: Half, b: Half) -> Result<Half, EmitError> {
        let operator = match op {
            BinOp::And => Operator::And,
            BinOp::Or => Operator::Or,
            _ => Operator::Xor,
        };
        let (a, b) = match (a.constant(), b.constant()) {
            (Some(x), Some(y)) => return Ok(Half::imm(op.eval(x, y).unwrap_or(0))),
            // The bits of a mask beyond the other half are irrelevant.
            (Some(mask), None) if op == BinOp::And => (mask_for(mask, &b), b),
            (None, Some(mask)) if op == BinOp::And => {
                let mask = mask_for(mask, &a);
                (a, mask)
            }
            _ => (a, b),
        };
        if op == BinOp::And && (a.is_zero() || b.is_zero()) {
            return Ok(ZERO);
        }
        if op != BinOp::And && a.is_zero() {
            return Ok(b);
        }
        if op != BinOp::And && b.is_zero() {
            return Ok(a);
        }
        let aligned = a.aligned(b);
        let (a, b, shift) =
            aligned.ok_or_else(|| self.target.inexpressible("a shift of a value"))?;
        Ok(Half {
            tree: both(operator, a, b),
            shift,
        })
    }

    fn operand(
        &self,
        operand: Operand,
        level: usize,
        budget: &mut usize,
    ) -> Result<Halves, EmitError> {
        match operand {
            Operand::Imm(constant) => Ok(Halves {
                high: Half::imm(constant >> 16),
                low: Half::imm(constant),
            }),
            Operand::Val(value) => self.value(value, level, budget),
        }
    }

    fn value(&self, value: Value, level: usize, budget: &mut usize) -> Result<Halves, EmitError> {
        *budget = budget.checked_sub(1).ok_or(self.target.far_too_many())?;
        if level > TREE_DEPTH_MAX {
            return Err(self.target.far_too_many());
        }
        let op = self.program.op(value);
        let inexpressible = || self.target.inexpressible(described(op));
        match op {
            Op::Load {
                width,
                base: None,
                offset,
            } => self.load(op, width, offset),
            Op::Test { cmp, a, b } => {
                let tree = self.compare(cmp, a, b, level + 1, budget)?.truth();
                let low = Half { tree, shift: 0 };
                Ok(Halves { high: ZERO, low })
            }
            Op::Bin {
                op: op @ (BinOp::And | BinOp::Or | BinOp::Xor),
                a,
                b,
            } => {
                let a = self.operand(a, level + 1, budget)?;
                let b = self.operand(b, level + 1, budget)?;
                Ok(Halves {
                    high: self.bits(op, a.high, b.high)?,
                    low: self.bits(op, a.low, b.low)?,
                })
            }
            Op::Bin {
                op: BinOp::Shr,
                a,
                b: Operand::Imm(count),
            } => {
                let a = self.operand(a, level + 1, budget)?;
                shifted_right(a, count).ok_or_else(inexpressible)
            }
            Op::Bin {
                op: BinOp::Shl,
                a,
                b: Operand::Imm(count),
            } => {
                let a = self.operand(a, level + 1, budget)?;
                shifted_left(a, count).ok_or_else(inexpressible)
            }
            _ => Err(inexpressible()),
        }
    }

    fn load(&self, op: Op, width: Width, offset: u32) -> Result<Halves, EmitError> {
        let end = end_of(op).unwrap_or(0);
        let word_end = end.next_multiple_of(2);
        let is_odd = offset % 2 == 1;
        let is_exact = word_end <= end.max(self.long_enough) && end < u32::MAX.into();
        let masked = |mask, shift| Half {
            tree: Tree::bin(Operator::And, Tree::Word(offset & !1), Tree::Imm(mask)),
            shift,
        };
        let word = |at| Half {
            tree: Tree::Word(at),
            shift: 0,
        };
        let (high, low) = match (width, is_odd) {
            _ if !is_exact => return Err(self.target.inexpressible(described(op))),
            (Width::B1, false) => (ZERO, masked(0xff00, 8)),
            (Width::B1, true) => (ZERO, masked(0x00ff, 0)),
            (Width::B2, false) => (ZERO, word(offset)),
            (Width::B4, false) => (word(offset), word(offset + 2)),
            (_, true) => return Err(self.target.inexpressible(described(op))),
        };
        Ok(Halves { high, low })
    }
}

/// A mask shifted to the position of a half's tree; bits beyond 16 are dropped.
fn mask_for(mask: u32, half: &Half) -> Half {
    Half {
        tree: Tree::Imm(mask << half.shift & 0xffff),
        shift: half.shift,
    }
}

fn shifted_right(a: Halves, count: u32) -> Option<Halves> {
    let a = match count {
        0 => return Some(a),
        32.. => {
            return Some(Halves {
                high: ZERO,
                low: ZERO,
            });
        }
        16.. => Halves {
            high: ZERO,
            low: a.high,
        },
        _ => a,
    };
    let (count, Half { tree, shift }) = (count % 16, a.low);
    if count == 0 || !a.high.is_zero() {
        let low = Half { tree, shift };
        return (count == 0).then_some(Halves { high: a.high, low });
    }
    let low = match shift + count {
        16.. => ZERO,
        shift => {
            // Bits that are shifted out of a tree must be zero.
            let tree = both(Operator::And, tree, Tree::Imm(0xffff << shift & 0xffff));
            Half { tree, shift }
        }
    };
    Some(Halves { high: ZERO, low })
}

fn shifted_left(a: Halves, count: u32) -> Option<Halves> {
    let a = match count {
        32.. => {
            return Some(Halves {
                high: ZERO,
                low: ZERO,
            });
        }
        16.. => Halves {
            high: a.low,
            low: ZERO,
        },
        _ => a,
    };
    let count = count % 16;
    if count == 0 {
        return Some(a);
    }
    let Halves { high, low } = a;
    // A half is shifted left only if that undoes a shift right.
    let shift = low.shift.checked_sub(count)?;
    let low = Half { shift, ..low };
    high.is_zero().then_some(Halves { high, low })
}

/// An operator on two trees, with constants folded and masks merged.
fn both(operator: Operator, a: Tree, b: Tree) -> Tree {
    match (operator, a, b) {
        (Operator::And, Tree::Imm(a), Tree::Imm(b)) => Tree::Imm(a & b),
        (Operator::Or, Tree::Imm(a), Tree::Imm(b)) => Tree::Imm(a | b),
        (Operator::Xor, Tree::Imm(a), Tree::Imm(b)) => Tree::Imm(a ^ b),
        (Operator::And, Tree::Imm(0), _) | (Operator::And, _, Tree::Imm(0)) => Tree::Imm(0),
        (Operator::Or, Tree::Imm(0), tree) | (Operator::Or, tree, Tree::Imm(0)) => tree,
        // A known truth value beside another truth value.
        (Operator::And, Tree::Imm(1), tree) | (Operator::And, tree, Tree::Imm(1))
            if tree.is_truth() =>
        {
            tree
        }
        (Operator::Or, Tree::Imm(1), tree) | (Operator::Or, tree, Tree::Imm(1))
            if tree.is_truth() =>
        {
            Tree::Imm(1)
        }
        (Operator::And, Tree::Bin(Operator::And, tree, first), Tree::Imm(second))
            if matches!(*first, Tree::Imm(_)) =>
        {
            match *first {
                Tree::Imm(first) => both(Operator::And, *tree, Tree::Imm(first & second)),
                first => Tree::bin(Operator::And, *tree, first),
            }
        }
        (operator, a, b) => Tree::bin(operator, a, b),
    }
}
