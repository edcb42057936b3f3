//! Values in canonical form: constant folding, algebraic identities, strength
//! reduction, narrower loads.
//!
//! Every rule holds for all 32-bit operands. No rule adds or drops an effect: the
//! node that computed a dropped operand keeps the operand's effects.

use super::cond::Cond;
use super::graph::{Flow, Graph};
use super::value_range::low_mask;
use crate::ir::{BinOp, Cmp, Edge, Op, Operand, Value, Width};

impl Graph {
    /// The canonical form of `op` with operands replaced by `change`; `None` if the
    /// result rejects every frame.
    pub(crate) fn rebuilt(
        &mut self,
        op: Op,
        change: impl FnMut(Operand) -> Operand,
    ) -> Option<Operand> {
        match op.map_operands(change) {
            Op::Param => None,
            Op::Len => Some(Operand::Val(self.intern(Op::Len))),
            Op::Load {
                width,
                base,
                offset,
            } => self.load(width, base, offset).map(Operand::Val),
            Op::Bin { op, a, b } => self.bin(op, a, b),
            Op::Test { cmp, a, b } => Some(self.test(cmp, a, b)),
        }
    }

    /// The canonical form of a load; `None` if the load is outside every frame.
    pub(crate) fn load(&mut self, width: Width, base: Option<Value>, offset: u32) -> Option<Value> {
        // A frame has at most 2^32 - 1 bytes, so its last position is 2^32 - 2.
        offset.checked_add(width.bytes())?;
        if let Some(value) = base
            && let Op::Bin {
                op: BinOp::Add,
                a: Operand::Val(inner),
                b: Operand::Imm(constant),
            } = self.op(value)
            // Neither the base nor the position may wrap.
            && self.info(inner).known.hi.checked_add(constant).is_some()
            && let Some(sum) = offset.checked_add(constant)
        {
            return self.load(width, Some(inner), sum);
        }
        Some(self.intern(Op::Load {
            width,
            base,
            offset,
        }))
    }

    /// The canonical form of a comparison as a value.
    pub(crate) fn test(&mut self, cmp: Cmp, a: Operand, b: Operand) -> Operand {
        match self.cond(cmp, a, b) {
            Cond::Always(holds) => Operand::Imm(u32::from(holds)),
            Cond::If(test, true) => Operand::Val(test),
            Cond::If(test, false) => Operand::Val(self.intern(Op::Test {
                cmp: Cmp::Eq,
                a: Operand::Val(test),
                b: Operand::Imm(0),
            })),
        }
    }

    /// The canonical form of arithmetic; `None` if it rejects every frame.
    pub(crate) fn bin(&mut self, op: BinOp, a: Operand, b: Operand) -> Option<Operand> {
        match (a, b) {
            (Operand::Imm(x), Operand::Imm(y)) => op.eval(x, y).map(Operand::Imm),
            (Operand::Imm(_), Operand::Val(_)) if op.commutes() => self.bin(op, b, a),
            (Operand::Val(x), Operand::Imm(y)) => self.bin_imm(op, x, y),
            (Operand::Val(x), Operand::Val(y)) if x == y => self.bin_same(op, x),
            _ => Some(self.bin_values(op, a, b)),
        }
    }

    fn raw(&mut self, op: BinOp, a: impl Into<Operand>, b: impl Into<Operand>) -> Operand {
        let (a, b) = (a.into(), b.into());
        Operand::Val(self.intern(Op::Bin { op, a, b }))
    }

    /// Two values, or a constant and a value, in this order.
    fn bin_values(&mut self, op: BinOp, a: Operand, b: Operand) -> Operand {
        let known = super::value_range::ValueRange::bin(op, self.known(a), self.known(b));
        if let Some(constant) = known.exact()
            && !op.may_reject()
        {
            return Operand::Imm(constant);
        }
        if op.commutes() && b < a {
            return self.raw(op, b, a);
        }
        self.raw(op, a, b)
    }

    fn bin_same(&mut self, op: BinOp, x: Value) -> Option<Operand> {
        Some(match op {
            BinOp::And | BinOp::Or => Operand::Val(x),
            BinOp::Xor | BinOp::Sub => Operand::Imm(0),
            BinOp::Add => self.shl_imm(x, 1),
            _ => self.raw(op, x, x),
        })
    }

    fn bin_imm(&mut self, op: BinOp, x: Value, y: u32) -> Option<Operand> {
        let same = Operand::Val(x);
        Some(match op {
            BinOp::Add => self.add_imm(x, y),
            BinOp::Sub => self.add_imm(x, y.wrapping_neg()),
            BinOp::Mul if y.is_power_of_two() => self.shl_imm(x, y.trailing_zeros()),
            BinOp::Mul if y == 0 => Operand::Imm(0),
            BinOp::Mul => self.raw(op, x, y),
            BinOp::Div | BinOp::Mod if y == 0 => return None,
            BinOp::Div if y.is_power_of_two() => self.shr_imm(x, y.trailing_zeros()),
            BinOp::Div if self.info(x).known.hi < y => Operand::Imm(0),
            BinOp::Mod if y.is_power_of_two() => self.and_imm(x, y - 1),
            BinOp::Mod if self.info(x).known.hi < y => same,
            BinOp::Div | BinOp::Mod => self.raw(op, x, y),
            BinOp::And => self.and_imm(x, y),
            BinOp::Or => self.or_imm(x, y),
            BinOp::Xor => self.xor_imm(x, y),
            BinOp::Shl => self.shl_imm(x, y),
            BinOp::Shr => self.shr_imm(x, y),
        })
    }

    /// The operands of `x`, if `x` is `wanted` with a constant to the right.
    pub(crate) fn split(&self, x: Value, wanted: BinOp) -> Option<(Value, u32)> {
        match self.op(x) {
            Op::Bin {
                op,
                a: Operand::Val(a),
                b: Operand::Imm(b),
            } if op == wanted => Some((a, b)),
            _ => None,
        }
    }

    fn add_imm(&mut self, x: Value, y: u32) -> Operand {
        let (x, y) = match self.split(x, BinOp::Add) {
            Some((inner, constant)) => (inner, y.wrapping_add(constant)),
            None => (x, y),
        };
        match y {
            0 => Operand::Val(x),
            _ => self.raw(BinOp::Add, x, y),
        }
    }

    fn or_imm(&mut self, x: Value, y: u32) -> Operand {
        let (x, y) = match self.split(x, BinOp::Or) {
            Some((inner, constant)) => (inner, y | constant),
            None => (x, y),
        };
        let known = self.info(x).known;
        if known.possible() & !y == 0 {
            return Operand::Imm(y);
        }
        if y & !known.ones == 0 {
            return Operand::Val(x);
        }
        self.raw(BinOp::Or, x, y)
    }

    fn xor_imm(&mut self, x: Value, y: u32) -> Operand {
        let (x, y) = match self.split(x, BinOp::Xor) {
            Some((inner, constant)) => (inner, y ^ constant),
            None => (x, y),
        };
        match y {
            0 => Operand::Val(x),
            // The negated truth value.
            1 if self.info(x).known.is_bool() => self.test(Cmp::Eq, x.into(), 0.into()),
            _ => self.raw(BinOp::Xor, x, y),
        }
    }

    pub(crate) fn and_imm(&mut self, x: Value, mask: u32) -> Operand {
        let known = self.info(x).known;
        let mask = mask & known.possible();
        if mask & !known.ones == 0 {
            return Operand::Imm(mask);
        }
        if mask == known.possible() {
            return Operand::Val(x);
        }
        if !self.enter() {
            return self.raw(BinOp::And, x, mask);
        }
        let result = self.and_of(x, mask);
        self.leave();
        result
    }

    /// `x & mask`, where the mask clears possible bits and keeps unknown ones.
    fn and_of(&mut self, x: Value, mask: u32) -> Operand {
        if let Some((inner, other)) = self.split(x, BinOp::And) {
            return self.and_imm(inner, mask & other);
        }
        if let Some((inner, by)) = self.split(x, BinOp::Shl) {
            return match self.and_imm(inner, mask >> by) {
                Operand::Val(inner) => self.shl_imm(inner, by),
                Operand::Imm(constant) => Operand::Imm(constant << by),
            };
        }
        match self.narrower(x, mask) {
            Some(load) if mask == self.info(load).known.hi => Operand::Val(load),
            Some(load) => self.raw(BinOp::And, load, mask),
            None => self.raw(BinOp::And, x, mask),
        }
    }

    /// The load of only the low bytes of load `x` that `mask` covers; `None` if `x` is
    /// not a load, or is not wider. The narrow load ends where `x` ends, so both
    /// reject the same frames; its offset must not exceed 32 bits.
    fn narrower(&mut self, x: Value, mask: u32) -> Option<Value> {
        let Op::Load {
            width,
            base,
            offset,
        } = self.op(x)
        else {
            return None;
        };
        let narrow = match mask {
            0..=0xff => Width::B1,
            0x100..=0xffff => Width::B2,
            _ => return None,
        };
        if narrow >= width {
            return None;
        }
        let skipped = width.bytes() - narrow.bytes();
        let value = self.load(narrow, base, offset.checked_add(skipped)?)?;
        Some(value)
    }

    fn shl_imm(&mut self, x: Value, by: u32) -> Operand {
        let (inner, total) = match self.split(x, BinOp::Shl) {
            Some((inner, first)) => (inner, first.saturating_add(by)),
            None => (x, by),
        };
        if total >= 32 {
            return Operand::Imm(0);
        }
        if total == 0 {
            return Operand::Val(inner);
        }
        if let Some((inner, right)) = self.split(x, BinOp::Shr)
            && right == by
        {
            return self.and_imm(inner, !low_mask(by));
        }
        self.raw(BinOp::Shl, inner, total)
    }

    fn shr_imm(&mut self, x: Value, by: u32) -> Operand {
        let (x, total) = match self.split(x, BinOp::Shr) {
            Some((inner, first)) => (inner, first.saturating_add(by)),
            None => (x, by),
        };
        match total {
            0 => Operand::Val(x),
            _ if self.info(x).known.hi.checked_shr(total).unwrap_or(0) == 0 => Operand::Imm(0),
            _ => self.raw(BinOp::Shr, x, total),
        }
    }
}

impl Cond {
    /// The terminator that goes to `then` if the condition holds.
    pub(crate) fn branch(self, then: Edge, otherwise: Edge) -> Flow {
        match self {
            Cond::Always(true) => Flow::Jump(then),
            Cond::Always(false) => Flow::Jump(otherwise),
            Cond::If(cond, true) => Flow::Branch {
                cond,
                then,
                otherwise,
            },
            Cond::If(cond, false) => Flow::Branch {
                cond,
                then: otherwise,
                otherwise: then,
            },
        }
    }
}
