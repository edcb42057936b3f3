//! Conditions in canonical form: `Eq`, `Gt` and `Set` only, constants to the right,
//! invertible operations removed from the compared value.

use super::graph::Graph;
use super::value_range::{ValueRange, low_mask};
use crate::ir::{BinOp, Cmp, Op, Operand, Value};

/// A comparison in canonical form.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Cond {
    /// The comparison always holds (true) or never holds (false).
    Always(bool),
    /// The comparison holds if and only if the test yields this truth value.
    If(Value, bool),
}

impl Cond {
    fn negated(self) -> Cond {
        match self {
            Cond::Always(holds) => Cond::Always(!holds),
            Cond::If(test, holds) => Cond::If(test, !holds),
        }
    }
}

impl Graph {
    /// The canonical form of `a cmp b`.
    pub(crate) fn cond(&mut self, cmp: Cmp, a: Operand, b: Operand) -> Cond {
        if let Some(holds) = ValueRange::test(cmp, self.known(a), self.known(b)) {
            return Cond::Always(holds);
        }
        match (a, b) {
            (Operand::Imm(x), Operand::Imm(y)) => Cond::Always(cmp.eval(x, y)),
            (Operand::Imm(_), Operand::Val(_)) => self.cond(cmp.swapped(), b, a),
            (Operand::Val(x), Operand::Imm(y)) => self.cond_imm(cmp, x, y),
            (Operand::Val(x), Operand::Val(y)) => self.cond_values(cmp, x, y),
        }
    }

    fn raw_cond(&mut self, cmp: Cmp, a: Value, b: impl Into<Operand>) -> Cond {
        let (a, b) = (Operand::Val(a), b.into());
        Cond::If(self.intern(Op::Test { cmp, a, b }), true)
    }

    fn cond_values(&mut self, cmp: Cmp, x: Value, y: Value) -> Cond {
        match cmp {
            Cmp::Eq | Cmp::Le | Cmp::Ge if x == y => Cond::Always(true),
            Cmp::Ne | Cmp::Lt | Cmp::Gt if x == y => Cond::Always(false),
            Cmp::Set | Cmp::Clear if x == y => {
                let zero = self.cond_imm(Cmp::Eq, x, 0);
                if cmp == Cmp::Set {
                    zero.negated()
                } else {
                    zero
                }
            }
            Cmp::Ne | Cmp::Le | Cmp::Clear => self.cond_values(cmp.negated(), x, y).negated(),
            Cmp::Lt => self.raw_cond(Cmp::Gt, y, x),
            Cmp::Ge => self.raw_cond(Cmp::Gt, y, x).negated(),
            Cmp::Gt => self.raw_cond(Cmp::Gt, x, y),
            Cmp::Eq | Cmp::Set => self.raw_cond(cmp, x.min(y), x.max(y)),
        }
    }

    /// The canonical form of `x cmp y` with a constant `y`.
    fn cond_imm(&mut self, cmp: Cmp, x: Value, y: u32) -> Cond {
        let known = self.info(x).known;
        match ValueRange::test(cmp, known, ValueRange::exactly(y)) {
            Some(holds) => Cond::Always(holds),
            None if !self.enter() => self.plain_cond(cmp, x, y),
            None => {
                let cond = self.cond_of(cmp, x, y);
                self.leave();
                cond
            }
        }
    }

    fn cond_of(&mut self, cmp: Cmp, x: Value, y: u32) -> Cond {
        match cmp {
            Cmp::Eq => self.eq_imm(x, y),
            Cmp::Gt => self.gt_imm(x, y),
            // The comparison is undecided, so `y` is neither 0 nor above the range of `x`.
            Cmp::Ge => self.cond_imm(Cmp::Gt, x, y - 1),
            Cmp::Lt => self.cond_imm(Cmp::Gt, x, y - 1).negated(),
            Cmp::Set => self.set_imm(x, y),
            Cmp::Ne | Cmp::Le | Cmp::Clear => self.cond_imm(cmp.negated(), x, y).negated(),
        }
    }

    /// As [`cond_of`](Self::cond_of), without looking inside `x`.
    fn plain_cond(&mut self, cmp: Cmp, x: Value, y: u32) -> Cond {
        match cmp {
            Cmp::Eq | Cmp::Gt | Cmp::Set => self.raw_cond(cmp, x, y),
            Cmp::Ne | Cmp::Le | Cmp::Clear => self.raw_cond(cmp.negated(), x, y).negated(),
            Cmp::Ge => self.raw_cond(Cmp::Gt, x, y - 1),
            Cmp::Lt => self.raw_cond(Cmp::Gt, x, y - 1).negated(),
        }
    }

    fn eq_imm(&mut self, x: Value, y: u32) -> Cond {
        let known = self.info(x).known;
        match self.op(x) {
            Op::Test { cmp, a, b } if y == 0 => self.cond(cmp, a, b).negated(),
            Op::Test { cmp, a, b } => self.cond(cmp, a, b),
            _ if y == 1 && known.is_bool() => self.cond_imm(Cmp::Eq, x, 0).negated(),
            Op::Bin {
                op,
                a: Operand::Val(a),
                b: Operand::Imm(b),
            } => self.eq_of_bin(x, op, a, b, y),
            Op::Bin {
                op: BinOp::Sub,
                a: Operand::Imm(a),
                b: Operand::Val(b),
            } => self.cond_imm(Cmp::Eq, b, a.wrapping_sub(y)),
            Op::Bin {
                op: BinOp::Sub | BinOp::Xor,
                a,
                b,
            } if y == 0 => self.cond(Cmp::Eq, a, b),
            _ => self.raw_cond(Cmp::Eq, x, y),
        }
    }

    /// The canonical form of `x == y`, where `x` is `a op b`.
    fn eq_of_bin(&mut self, x: Value, op: BinOp, a: Value, b: u32, y: u32) -> Cond {
        let known = self.info(a).known;
        match op {
            BinOp::Add => self.cond_imm(Cmp::Eq, a, y.wrapping_sub(b)),
            BinOp::Xor => self.cond_imm(Cmp::Eq, a, y ^ b),
            BinOp::And if y == 0 => self.cond_imm(Cmp::Set, a, b).negated(),
            BinOp::And if y == b && b.is_power_of_two() => self.cond_imm(Cmp::Set, a, b),
            // The top of the range: the leading bits of `a` are all set.
            BinOp::And if y == b && b | free_bits(b) == known.hi && known.hi & b == b => {
                self.cond_imm(Cmp::Gt, a, b - 1)
            }
            // All bits of `b` are set in `y`; otherwise the range of `x` decides.
            BinOp::Or => self.masked_eq(a, !b, y & !b),
            BinOp::Shl if known.hi.leading_zeros() >= b => self.cond_imm(Cmp::Eq, a, y >> b),
            BinOp::Shl => self.masked_eq(a, u32::MAX >> b, y >> b),
            BinOp::Shr => self.masked_eq(a, !low_mask(b), y << b),
            _ => self.raw_cond(Cmp::Eq, x, y),
        }
    }

    fn masked_eq(&mut self, a: Value, mask: u32, y: u32) -> Cond {
        let masked = self.and_imm(a, mask);
        self.cond(Cmp::Eq, masked, Operand::Imm(y))
    }

    fn gt_imm(&mut self, x: Value, y: u32) -> Cond {
        let known = self.info(x).known;
        if y == known.lo {
            return self.cond_imm(Cmp::Eq, x, y).negated();
        }
        if y == known.hi - 1 {
            return self.cond_imm(Cmp::Eq, x, known.hi);
        }
        if let Some((a, by)) = self.split(x, BinOp::Shr) {
            // The comparison is undecided, so `y` is below the end of the range of `x`
            // and the shift does not overflow.
            return self.cond_imm(Cmp::Gt, a, (y << by) | low_mask(by));
        }
        if let Some((a, by)) = self.split(x, BinOp::Shl)
            && self.info(a).known.hi.leading_zeros() >= by
        {
            return self.cond_imm(Cmp::Gt, a, y >> by);
        }
        if let Some((a, plus)) = self.split(x, BinOp::Add) {
            let inner = self.info(a).known;
            if inner.hi.checked_add(plus).is_some() && y >= plus {
                return self.cond_imm(Cmp::Gt, a, y - plus);
            }
            let minus = plus.wrapping_neg();
            if inner.lo >= minus
                && let Some(sum) = y.checked_add(minus)
            {
                return self.cond_imm(Cmp::Gt, a, sum);
            }
        }
        self.raw_cond(Cmp::Gt, x, y)
    }

    fn set_imm(&mut self, x: Value, y: u32) -> Cond {
        let known = self.info(x).known;
        let mask = y & known.possible();
        if mask == known.possible() {
            return self.cond_imm(Cmp::Eq, x, 0).negated();
        }
        if let Some((a, other)) = self.split(x, BinOp::And) {
            return self.cond_imm(Cmp::Set, a, mask & other);
        }
        if let Some((a, by)) = self.split(x, BinOp::Shl) {
            return self.cond_imm(Cmp::Set, a, mask >> by);
        }
        if let Some((a, by)) = self.split(x, BinOp::Shr) {
            return self.cond_imm(Cmp::Set, a, mask << by);
        }
        if let Some((a, other)) = self.split(x, BinOp::Or) {
            // Otherwise the range of `x` would decide the comparison.
            debug_assert_eq!(mask & other, 0);
            return self.cond_imm(Cmp::Set, a, mask);
        }
        self.raw_cond(Cmp::Set, x, mask)
    }
}

/// A mask of the bits below the lowest bit of `mask`.
fn free_bits(mask: u32) -> u32 {
    low_mask(mask.trailing_zeros())
}
