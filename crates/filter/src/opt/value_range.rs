//! Value ranges with known bits (GCC's `irange`, LLVM's `KnownBits`).

use crate::ir::{BinOp, Cmp};

/// An interval and known bits: every possible value lies in `lo..=hi`, has no bit of
/// `zeros` and has all bits of `ones`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ValueRange {
    pub(crate) lo: u32,
    pub(crate) hi: u32,
    pub(crate) zeros: u32,
    pub(crate) ones: u32,
}

impl ValueRange {
    pub(crate) const ANY: ValueRange = ValueRange {
        lo: 0,
        hi: u32::MAX,
        zeros: 0,
        ones: 0,
    };

    pub(crate) fn exactly(value: u32) -> ValueRange {
        ValueRange {
            lo: value,
            hi: value,
            zeros: !value,
            ones: value,
        }
    }

    pub(crate) fn between(lo: u32, hi: u32) -> ValueRange {
        let range = ValueRange {
            lo,
            hi,
            zeros: 0,
            ones: 0,
        };
        range.tightened().unwrap_or(ValueRange::ANY)
    }

    /// The only possible value; `None` if there are several.
    pub(crate) fn exact(self) -> Option<u32> {
        (self.lo == self.hi).then_some(self.lo)
    }

    /// Mask of the bits that may be set.
    pub(crate) fn possible(self) -> u32 {
        !self.zeros
    }

    /// Whether all possible values are 0 or 1.
    pub(crate) fn is_bool(self) -> bool {
        self.hi <= 1
    }

    /// Derives bounds from bits and bits from bounds; `None` if no value is possible.
    pub(crate) fn tightened(self) -> Option<ValueRange> {
        let lo = self.lo.max(self.ones);
        let hi = self.hi.min(!self.zeros);
        if lo > hi || self.zeros & self.ones != 0 {
            return None;
        }
        // Both bounds agree in their leading bits, so every value between does.
        let same = !u32::MAX.checked_shr((lo ^ hi).leading_zeros()).unwrap_or(0);
        Some(ValueRange {
            lo,
            hi,
            zeros: self.zeros | (!lo & same),
            ones: self.ones | (lo & same),
        })
    }

    /// The intersection; `None` if no value is possible.
    pub(crate) fn and(self, other: ValueRange) -> Option<ValueRange> {
        let both = ValueRange {
            lo: self.lo.max(other.lo),
            hi: self.hi.min(other.hi),
            zeros: self.zeros | other.zeros,
            ones: self.ones | other.ones,
        };
        both.tightened()
    }

    /// A range that contains the union.
    pub(crate) fn or(self, other: ValueRange) -> ValueRange {
        ValueRange {
            lo: self.lo.min(other.lo),
            hi: self.hi.max(other.hi),
            zeros: self.zeros & other.zeros,
            ones: self.ones & other.ones,
        }
    }

    /// The range of `a op b`.
    pub(crate) fn bin(op: BinOp, a: ValueRange, b: ValueRange) -> ValueRange {
        if let (Some(x), Some(y)) = (a.exact(), b.exact()) {
            return op.eval(x, y).map_or(ValueRange::ANY, ValueRange::exactly);
        }
        let result = match op {
            BinOp::And => ValueRange {
                lo: 0,
                hi: a.hi.min(b.hi),
                zeros: a.zeros | b.zeros,
                ones: a.ones & b.ones,
            },
            BinOp::Or => ValueRange {
                lo: a.lo.max(b.lo),
                hi: u32::MAX,
                zeros: a.zeros & b.zeros,
                ones: a.ones | b.ones,
            },
            BinOp::Xor => ValueRange {
                zeros: (a.zeros & b.zeros) | (a.ones & b.ones),
                ones: (a.zeros & b.ones) | (a.ones & b.zeros),
                ..ValueRange::ANY
            },
            BinOp::Add => ValueRange::sum(a, b),
            BinOp::Sub if a.lo >= b.hi => ValueRange::between(a.lo - b.hi, a.hi - b.lo),
            BinOp::Sub => ValueRange::ANY,
            BinOp::Mul => match a.hi.checked_mul(b.hi) {
                Some(hi) => ValueRange::between(a.lo * b.lo, hi),
                None => ValueRange::ANY,
            },
            BinOp::Div => ValueRange::between(a.lo / b.hi.max(1), a.hi / b.lo.max(1)),
            BinOp::Mod => ValueRange::between(0, a.hi.min(b.hi.saturating_sub(1))),
            BinOp::Shl => ValueRange::shl(a, b),
            BinOp::Shr => ValueRange::shr(a, b),
        };
        result.tightened().unwrap_or(ValueRange::ANY)
    }

    fn sum(a: ValueRange, b: ValueRange) -> ValueRange {
        let (lo, lo_wraps) = a.lo.overflowing_add(b.lo);
        let (hi, hi_wraps) = a.hi.overflowing_add(b.hi);
        let low_zeros = a.zeros.trailing_ones().min(b.zeros.trailing_ones());
        let zeros = low_mask(low_zeros);
        if lo_wraps == hi_wraps {
            ValueRange {
                lo,
                hi,
                zeros,
                ones: 0,
            }
        } else {
            ValueRange {
                zeros,
                ..ValueRange::ANY
            }
        }
    }

    fn shl(a: ValueRange, b: ValueRange) -> ValueRange {
        let Some(by) = b.exact() else {
            return ValueRange::ANY;
        };
        if by >= 32 {
            return ValueRange::exactly(0);
        }
        let fits = a.hi.leading_zeros() >= by;
        ValueRange {
            lo: if fits { a.lo << by } else { 0 },
            hi: if fits { a.hi << by } else { u32::MAX },
            zeros: (a.zeros << by) | low_mask(by),
            ones: a.ones << by,
        }
    }

    fn shr(a: ValueRange, b: ValueRange) -> ValueRange {
        match b.exact() {
            None => ValueRange::between(0, a.hi),
            Some(32..) => ValueRange::exactly(0),
            Some(by) => ValueRange {
                lo: a.lo >> by,
                hi: a.hi >> by,
                zeros: (a.zeros >> by) | !(u32::MAX >> by),
                ones: a.ones >> by,
            },
        }
    }

    /// The outcome of `a cmp b`, if the ranges decide it.
    pub(crate) fn test(cmp: Cmp, a: ValueRange, b: ValueRange) -> Option<bool> {
        match cmp {
            Cmp::Ne | Cmp::Le | Cmp::Clear => {
                ValueRange::test(cmp.negated(), a, b).map(|holds| !holds)
            }
            Cmp::Lt | Cmp::Ge => ValueRange::test(cmp.swapped(), b, a),
            Cmp::Eq => match (a.exact(), b.exact()) {
                (Some(x), Some(y)) => Some(x == y),
                _ => a.and(b).is_none().then_some(false),
            },
            Cmp::Gt if a.lo > b.hi => Some(true),
            Cmp::Gt => (a.hi <= b.lo).then_some(false),
            Cmp::Set if a.ones & b.ones != 0 => Some(true),
            Cmp::Set => (a.possible() & b.possible() == 0).then_some(false),
        }
    }
}

/// A mask of the `count` lowest bits.
pub(crate) fn low_mask(count: u32) -> u32 {
    !u32::MAX.checked_shl(count).unwrap_or(0)
}
