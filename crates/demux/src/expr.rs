//! Pure expressions over a frame, hash-consed: equal expressions have one name.
//!
//! An expression is an [`ir::Op`](weir_filter::ir::Op) whose operands are
//! constants or names of other expressions; there are no parameters. As in the
//! IR, a load outside the frame or a division by zero has no value.

use crate::limits;
use std::fmt;
use weir_filter::ir::{BinOp, Op, Operand, Value};

/// The expressions of one filter; each follows the expressions that it uses.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Exprs {
    ops: Vec<Op>,
    known_bits: Vec<KnownBits>,
}

/// Bounds on an expression's value, valid on every frame where it has a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct KnownBits {
    /// Bits that may be set.
    bits: u32,
    /// An upper bound.
    max: u32,
    /// Number of operations from this expression to its deepest leaf.
    depth: u8,
}

/// The reason why an expression was not made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ExprError {
    /// It divides by the constant zero: it has no value on any frame.
    NoValue,
    /// The filter has too many expressions, or the expression is too deep.
    Limit,
}

impl Exprs {
    pub(crate) fn with_capacity(capacity: usize) -> Exprs {
        Exprs {
            ops: Vec::with_capacity(capacity),
            known_bits: Vec::with_capacity(capacity),
        }
    }

    /// The operation that computes `expr`.
    pub fn op(&self, expr: Value) -> Op {
        self.ops[expr.index()]
    }

    /// All operations; each follows the operations that it uses.
    pub(crate) fn ops(&self) -> impl Iterator<Item = Op> {
        self.ops.iter().copied()
    }

    /// The number of expressions.
    pub fn len(&self) -> usize {
        self.ops.len()
    }

    /// Whether there are no expressions.
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// The bits of `expr` that may be set.
    pub fn bits(&self, expr: Value) -> u32 {
        self.known_bits[expr.index()].bits
    }

    /// An upper bound on `expr`.
    pub fn max(&self, expr: Value) -> u32 {
        self.known_bits[expr.index()].max
    }

    fn operand_bits(&self, operand: Operand) -> KnownBits {
        match operand {
            Operand::Imm(constant) => KnownBits {
                bits: constant,
                max: constant,
                depth: 0,
            },
            Operand::Val(expr) => self.known_bits[expr.index()],
        }
    }

    /// The name of `op`, added if it is new, or the value of `op` if that is
    /// constant.
    pub(crate) fn intern(&mut self, op: Op) -> Result<Operand, ExprError> {
        let op = match self.simplified(op)? {
            Folded::Is(operand) => return Ok(operand),
            Folded::Op(op) => op,
        };
        // A filter has a few dozen expressions at most: a linear search costs
        // less than hashing.
        if let Some(index) = self.ops.iter().position(|known| *known == op) {
            return Ok(Operand::Val(Value(index as u32)));
        }
        let facts = self.known_bits_of(op);
        if self.ops.len() == limits::FILTER_EXPRS_MAX
            || usize::from(facts.depth) > limits::EXPR_DEPTH_MAX
        {
            return Err(ExprError::Limit);
        }
        self.ops.push(op);
        self.known_bits.push(facts);
        Ok(Operand::Val(Value(self.ops.len() as u32 - 1)))
    }

    fn simplified(&mut self, op: Op) -> Result<Folded, ExprError> {
        match op {
            Op::Load {
                width,
                base: Some(base),
                offset,
            } => Ok(Folded::Op(self.load_from(width, base, offset))),
            Op::Bin { op, a, b } => self.simplified_bin(op, a, b),
            Op::Test { cmp, a, b } => Ok(match (a, b) {
                (Operand::Imm(x), Operand::Imm(y)) => {
                    Folded::Is(Operand::Imm(u32::from(cmp.eval(x, y))))
                }
                (Operand::Imm(_), Operand::Val(_)) => Folded::Op(Op::Test {
                    cmp: cmp.swapped(),
                    a: b,
                    b: a,
                }),
                _ => Folded::Op(op),
            }),
            Op::Len | Op::Load { .. } | Op::Param => Ok(Folded::Op(op)),
        }
    }

    /// Folds the constant of a base that is a sum into the load's offset, if
    /// the sum cannot wrap, so that all loads behind one header share their
    /// base.
    fn load_from(&self, width: weir_filter::ir::Width, base: Value, offset: u32) -> Op {
        if let Op::Bin {
            op: BinOp::Add,
            a: Operand::Val(inner),
            b: Operand::Imm(constant),
        } = self.op(base)
            && self.max(inner).checked_add(constant).is_some()
            && let Some(offset) = offset.checked_add(constant)
        {
            return Op::Load {
                width,
                base: Some(inner),
                offset,
            };
        }
        Op::Load {
            width,
            base: Some(base),
            offset,
        }
    }

    fn simplified_bin(&mut self, op: BinOp, a: Operand, b: Operand) -> Result<Folded, ExprError> {
        if let (Operand::Imm(x), Operand::Imm(y)) = (a, b) {
            let value = op.eval(x, y).ok_or(ExprError::NoValue)?;
            return Ok(Folded::Is(Operand::Imm(value)));
        }
        let (a, b) = if op.commutes() && in_order(b, a) {
            (b, a)
        } else {
            (a, b)
        };
        let (Operand::Val(x), Operand::Imm(c)) = (a, b) else {
            return Ok(Folded::Op(Op::Bin { op, a, b }));
        };
        Ok(match (op, c) {
            (BinOp::Div | BinOp::Mod, 0) => return Err(ExprError::NoValue),
            (BinOp::And, _) => self.masked(x, c),
            (BinOp::Mul, 0) | (BinOp::Shl | BinOp::Shr, 32..) => Folded::Is(Operand::Imm(0)),
            (BinOp::Mul | BinOp::Div, 1) => Folded::Is(a),
            (BinOp::Add | BinOp::Sub | BinOp::Or | BinOp::Xor | BinOp::Shl | BinOp::Shr, 0) => {
                Folded::Is(a)
            }
            (BinOp::Mul, c) if c.is_power_of_two() => Folded::Op(Op::Bin {
                op: BinOp::Shl,
                a,
                b: Operand::Imm(c.trailing_zeros()),
            }),
            _ => Folded::Op(Op::Bin { op, a, b }),
        })
    }

    fn masked(&self, x: Value, mask: u32) -> Folded {
        let (x, mask) = match self.op(x) {
            Op::Bin {
                op: BinOp::And,
                a: Operand::Val(inner),
                b: Operand::Imm(inner_mask),
            } => (inner, mask & inner_mask),
            _ => (x, mask),
        };
        let kept = self.bits(x) & mask;
        if kept == 0 {
            Folded::Is(Operand::Imm(0))
        } else if kept == self.bits(x) {
            Folded::Is(Operand::Val(x))
        } else {
            Folded::Op(Op::Bin {
                op: BinOp::And,
                a: Operand::Val(x),
                b: Operand::Imm(kept),
            })
        }
    }

    fn known_bits_of(&self, op: Op) -> KnownBits {
        let depth = op
            .operands()
            .map(|operand| self.operand_bits(operand).depth + 1)
            .max()
            .unwrap_or(0);
        let (bits, max) = match op {
            Op::Load { width, .. } => (width.max_value(), width.max_value()),
            Op::Len | Op::Param => (u32::MAX, u32::MAX),
            Op::Test { .. } => (1, 1),
            Op::Bin { op, a, b } => self.bin_bounds(op, a, b),
        };
        let max = max.min(bits);
        KnownBits {
            bits: bits & filled(max),
            max,
            depth,
        }
    }

    fn bin_bounds(&self, op: BinOp, a: Operand, b: Operand) -> (u32, u32) {
        let (x, y) = (self.operand_bits(a), self.operand_bits(b));
        match (op, b) {
            (BinOp::And, _) => (x.bits & y.bits, x.max.min(y.max)),
            (BinOp::Or | BinOp::Xor, _) => (x.bits | y.bits, u32::MAX),
            (BinOp::Shl, Operand::Imm(by)) => (
                x.bits.checked_shl(by).unwrap_or(0),
                u32::try_from(u64::from(x.max) << by.min(32)).unwrap_or(u32::MAX),
            ),
            (BinOp::Shr, Operand::Imm(by)) => (
                x.bits.checked_shr(by).unwrap_or(0),
                x.max.checked_shr(by).unwrap_or(0),
            ),
            (BinOp::Add, _) => (u32::MAX, x.max.saturating_add(y.max)),
            (BinOp::Mul, _) => (u32::MAX, x.max.saturating_mul(y.max)),
            (BinOp::Div, Operand::Imm(by @ 1..)) => (u32::MAX, x.max / by),
            (BinOp::Mod, Operand::Imm(by @ 1..)) => (u32::MAX, x.max.min(by - 1)),
            (BinOp::Div | BinOp::Mod | BinOp::Shr, _) => (u32::MAX, x.max),
            (BinOp::Shl | BinOp::Sub, _) => (u32::MAX, u32::MAX),
        }
    }
}

enum Folded {
    Is(Operand),
    Op(Op),
}

/// Whether the operands of a commutative operation are in canonical order:
/// values by name, constants last.
fn in_order(a: Operand, b: Operand) -> bool {
    match (a, b) {
        (Operand::Val(_), Operand::Imm(_)) => true,
        (Operand::Val(a), Operand::Val(b)) => a < b,
        _ => false,
    }
}

/// A mask of all bits up to the highest bit set in `max`.
fn filled(max: u32) -> u32 {
    u32::MAX.checked_shr(max.leading_zeros()).unwrap_or(0)
}

/// Writes an expression as a formula: `load.2 [12]`, `load.2 [((load.1 [14]
/// & 0xf) << 2) + 16]`.
pub(crate) struct Formula<F>(pub(crate) Operand, pub(crate) F);

impl<F: Fn(Value) -> Op + Copy> fmt::Display for Formula<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Formula(operand, op_of) = self;
        let expr = match operand {
            Operand::Imm(_) => return operand.fmt(f),
            Operand::Val(expr) => *expr,
        };
        let sub = |operand| Formula(operand, *op_of);
        match op_of(expr) {
            Op::Param => f.write_str("?"),
            Op::Len => f.write_str("len"),
            Op::Load {
                width,
                base,
                offset,
            } => {
                write!(f, "load.{} [", width.bytes())?;
                match base {
                    None => write!(f, "{offset}]"),
                    Some(base) => write!(f, "{} + {offset}]", sub(Operand::Val(base))),
                }
            }
            Op::Bin { op, a, b } => write!(f, "({} {} {})", sub(a), sign(op), sub(b)),
            Op::Test { cmp, a, b } => write!(f, "({} {cmp} {})", sub(a), sub(b)),
        }
    }
}

fn sign(op: BinOp) -> &'static str {
    match op {
        BinOp::Add => "+",
        BinOp::Sub => "-",
        BinOp::Mul => "*",
        BinOp::Div => "/",
        BinOp::Mod => "%",
        BinOp::And => "&",
        BinOp::Or => "|",
        BinOp::Xor => "^",
        BinOp::Shl => "<<",
        BinOp::Shr => ">>",
    }
}
