//! The conditions that hold on one path, in a few normal forms and gathered for
//! each expression; contradictions are detected.

use crate::expr::Exprs;
use weir_filter::ir::{BinOp, Cmp, Op, Operand, Value};

/// A comparison that holds on a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Cond {
    pub(super) cmp: Cmp,
    pub(super) a: Operand,
    pub(super) b: Operand,
}

impl Cond {
    pub(super) fn new(cmp: Cmp, a: Operand, b: Operand) -> Cond {
        Cond { cmp, a, b }
    }

    pub(super) fn negated(self) -> Cond {
        Cond::new(self.cmp.negated(), self.a, self.b)
    }
}

/// A condition in normal form.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Atom {
    /// `expr & mask == value`
    Bits { expr: Value, mask: u32, value: u32 },
    /// `expr & mask != value`
    Differs { expr: Value, mask: u32, value: u32 },
    /// `lo <= expr <= hi`
    Range { expr: Value, lo: u32, hi: u32 },
    /// A comparison of two expressions.
    Compare { cmp: Cmp, a: Value, b: Value },
}

/// The result of reducing a condition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Simplified {
    /// The condition is constant.
    Known(bool),
    /// The condition in normal form.
    Atom(Atom),
    /// Both conditions hold.
    Both(Cond, Cond),
    /// At least one of the conditions holds.
    Either(Cond, Cond),
}

/// Reduces a condition to its normal form.
pub(super) fn reduce(exprs: &Exprs, mut cond: Cond) -> Simplified {
    loop {
        let Cond { cmp, a, b } = cond;
        let step = match (a, b) {
            (Operand::Imm(x), Operand::Imm(y)) => Step::Done(Simplified::Known(cmp.eval(x, y))),
            (Operand::Imm(_), Operand::Val(_)) => Step::Again(Cond::new(cmp.swapped(), b, a)),
            (Operand::Val(x), Operand::Val(y)) => Step::Done(compare(cmp, x, y)),
            (Operand::Val(x), Operand::Imm(c)) => with_constant(exprs, cmp, x, c),
        };
        match step {
            Step::Done(reduced) => return reduced,
            Step::Again(next) => cond = next,
        }
    }
}

enum Step {
    Done(Simplified),
    Again(Cond),
}

fn compare(cmp: Cmp, x: Value, y: Value) -> Simplified {
    let differs = |equal: bool| {
        let (expr, mask) = (x, u32::MAX);
        Simplified::Atom(if equal {
            Atom::Bits {
                expr,
                mask,
                value: 0,
            }
        } else {
            Atom::Differs {
                expr,
                mask,
                value: 0,
            }
        })
    };
    if x == y {
        return match cmp {
            Cmp::Eq | Cmp::Le | Cmp::Ge => Simplified::Known(true),
            Cmp::Ne | Cmp::Lt | Cmp::Gt => Simplified::Known(false),
            Cmp::Set => differs(false),
            Cmp::Clear => differs(true),
        };
    }
    let (cmp, a, b) = if x < y {
        (cmp, x, y)
    } else {
        (cmp.swapped(), y, x)
    };
    Simplified::Atom(Atom::Compare { cmp, a, b })
}

fn with_constant(exprs: &Exprs, cmp: Cmp, x: Value, c: u32) -> Step {
    let range = |lo, hi| range(exprs, x, lo, hi);
    match cmp {
        Cmp::Eq => bits(exprs, x, u32::MAX, c, true),
        Cmp::Ne => bits(exprs, x, u32::MAX, c, false),
        Cmp::Set => bits(exprs, x, c, 0, false),
        Cmp::Clear => bits(exprs, x, c, 0, true),
        Cmp::Lt if c == 0 => Step::Done(Simplified::Known(false)),
        Cmp::Lt => range(0, c - 1),
        Cmp::Le => range(0, c),
        Cmp::Gt if c == u32::MAX => Step::Done(Simplified::Known(false)),
        Cmp::Gt => range(c + 1, u32::MAX),
        Cmp::Ge => range(c, u32::MAX),
    }
}

fn range(exprs: &Exprs, expr: Value, lo: u32, hi: u32) -> Step {
    let max = exprs.max(expr);
    let hi = hi.min(max);
    if lo > hi {
        Step::Done(Simplified::Known(false))
    } else if lo == 0 && hi == max {
        Step::Done(Simplified::Known(true))
    } else if lo == hi {
        bits(exprs, expr, u32::MAX, lo, true)
    } else if lo == 1 && hi == max {
        bits(exprs, expr, u32::MAX, 0, false)
    } else {
        Step::Done(Simplified::Atom(Atom::Range { expr, lo, hi }))
    }
}

/// `x & mask == value` if `equal`, else its negation; moved through the
/// operations that compute `x` as far as possible.
fn bits(exprs: &Exprs, mut x: Value, mut mask: u32, mut value: u32, equal: bool) -> Step {
    loop {
        // Bits that are always zero imply nothing, unless the value has them
        // set.
        if value & !(mask & exprs.bits(x)) != 0 {
            return Step::Done(Simplified::Known(!equal));
        }
        mask &= exprs.bits(x);
        if mask == 0 {
            return Step::Done(Simplified::Known(equal));
        }
        let whole = mask == exprs.bits(x);
        match exprs.op(x) {
            Op::Bin {
                op,
                a: Operand::Val(a),
                b: Operand::Imm(c),
            } => match op {
                BinOp::And => x = a,
                BinOp::Shr => (x, mask, value) = (a, mask << c, value << c),
                BinOp::Shl => (x, mask, value) = (a, mask >> c, value >> c),
                BinOp::Xor => (x, value) = (a, value ^ (c & mask)),
                BinOp::Or if (value ^ mask) & c & mask != 0 => {
                    return Step::Done(Simplified::Known(!equal));
                }
                BinOp::Or => (x, mask, value) = (a, mask & !c, value & !c),
                BinOp::Add if whole => (x, mask, value) = (a, u32::MAX, value.wrapping_sub(c)),
                BinOp::Sub if whole => (x, mask, value) = (a, u32::MAX, value.wrapping_add(c)),
                _ => return leaf(x, mask, value, equal),
            },
            Op::Bin {
                op: BinOp::Sub,
                a: Operand::Imm(c),
                b: Operand::Val(b),
            } if whole => (x, mask, value) = (b, u32::MAX, c.wrapping_sub(value)),
            op => {
                return combined(exprs, op, mask, value, whole, equal)
                    .unwrap_or_else(|| leaf(x, mask, value, equal));
            }
        }
    }
}

fn leaf(expr: Value, mask: u32, value: u32, equal: bool) -> Step {
    Step::Done(Simplified::Atom(if equal {
        Atom::Bits { expr, mask, value }
    } else if mask.is_power_of_two() {
        // One bit that is not zero is one.
        let value = value ^ mask;
        Atom::Bits { expr, mask, value }
    } else {
        Atom::Differs { expr, mask, value }
    }))
}

/// Reduces a comparison of truth values, or of two of them combined.
fn combined(
    exprs: &Exprs,
    op: Op,
    mask: u32,
    value: u32,
    whole: bool,
    equal: bool,
) -> Option<Step> {
    match op {
        Op::Test { cmp, a, b } => {
            let inner = Cond::new(cmp, a, b);
            let holds = (value == 1) == equal;
            Some(Step::Again(if holds { inner } else { inner.negated() }))
        }
        Op::Bin {
            op,
            a: Operand::Val(a),
            b: Operand::Val(b),
        } => {
            let truths = exprs.max(a) <= 1 && exprs.max(b) <= 1;
            let some = |x| Cond::new(Cmp::Set, Operand::Val(x), Operand::Imm(mask));
            let none = |x| Cond::new(Cmp::Clear, Operand::Val(x), Operand::Imm(mask));
            let set = (value == 0) != equal;
            let equality = Cond::new(
                if equal { Cmp::Eq } else { Cmp::Ne },
                Operand::Val(a),
                Operand::Val(b),
            );
            match op {
                BinOp::And if truths && set => Some(Simplified::Both(some(a), some(b))),
                BinOp::And if truths => Some(Simplified::Either(none(a), none(b))),
                BinOp::Or if value == 0 || truths => Some(if set {
                    Simplified::Either(some(a), some(b))
                } else {
                    Simplified::Both(none(a), none(b))
                }),
                BinOp::Sub | BinOp::Xor if value == 0 && whole => {
                    return Some(Step::Again(equality));
                }
                _ => None,
            }
            .map(Step::Done)
        }
        _ => None,
    }
}

/// The constraint on one expression.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Constraint {
    pub(super) expr: Value,
    /// `expr & mask == value`.
    pub(super) mask: u32,
    pub(super) value: u32,
    /// `lo <= expr <= hi`.
    pub(super) lo: u32,
    pub(super) hi: u32,
}

/// The conjunction of all conditions on a path.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(super) struct PathCondition {
    pub(super) constraints: Vec<Constraint>,
    /// `expr & mask != value`.
    pub(super) differs: Vec<(Value, u32, u32)>,
    pub(super) compares: Vec<(Cmp, Value, Value)>,
}

impl PathCondition {
    /// Number of conditions.
    pub(super) fn len(&self) -> usize {
        self.constraints.len() + self.differs.len() + self.compares.len()
    }

    /// Adds a condition; returns `false` if it contradicts the others.
    pub(super) fn add(&mut self, exprs: &Exprs, atom: Atom) -> bool {
        match atom {
            Atom::Bits { expr, mask, value } => self.add_bits(exprs, expr, mask, value),
            Atom::Range { expr, lo, hi } => self.add_range(exprs, expr, lo, hi),
            Atom::Differs { expr, mask, value } => self.add_differs(exprs, expr, mask, value),
            Atom::Compare { cmp, a, b } => self.add_compare(cmp, a, b),
        }
    }

    fn entry(&mut self, exprs: &Exprs, expr: Value) -> usize {
        let found = self.constraints.iter().position(|known| known.expr == expr);
        found.unwrap_or_else(|| {
            if self.constraints.capacity() == 0 {
                self.constraints.reserve(8);
            }
            self.constraints.push(Constraint {
                expr,
                mask: 0,
                value: 0,
                lo: 0,
                hi: exprs.max(expr),
            });
            self.constraints.len() - 1
        })
    }

    fn add_bits(&mut self, exprs: &Exprs, expr: Value, mask: u32, value: u32) -> bool {
        if value & !exprs.bits(expr) != 0 {
            return false;
        }
        let at = self.entry(exprs, expr);
        let known = &mut self.constraints[at];
        if known.mask & mask & (known.value ^ value) != 0 {
            return false;
        }
        known.mask |= mask & exprs.bits(expr);
        known.value |= value;
        self.tighten(exprs, at)
    }

    fn add_range(&mut self, exprs: &Exprs, expr: Value, lo: u32, hi: u32) -> bool {
        let at = self.entry(exprs, expr);
        let known = &mut self.constraints[at];
        known.lo = known.lo.max(lo);
        known.hi = known.hi.min(hi);
        if known.lo > known.hi {
            return false;
        }
        if known.lo == known.hi {
            let value = known.lo;
            return self.add_bits(exprs, expr, u32::MAX, value);
        }
        self.tighten(exprs, at)
    }

    /// After a change to one constraint: checks its range against its bits, and
    /// removes the inequalities that it decides. Returns `false` on a
    /// contradiction.
    fn tighten(&mut self, exprs: &Exprs, at: usize) -> bool {
        let known = self.constraints[at];
        if known.mask == exprs.bits(known.expr) && !(known.lo..=known.hi).contains(&known.value) {
            return false;
        }
        let mut possible = true;
        self.differs.retain(|&(expr, mask, value)| {
            if expr != known.expr {
                return true;
            }
            match decide_differs(known, mask, value) {
                Some(holds) => {
                    possible &= holds;
                    false
                }
                None => true,
            }
        });
        possible
    }

    fn add_differs(&mut self, exprs: &Exprs, expr: Value, mask: u32, value: u32) -> bool {
        let mask = mask & exprs.bits(expr);
        if value & !mask != 0 {
            return true;
        }
        if let Some(known) = self.constraints.iter().find(|known| known.expr == expr)
            && let Some(holds) = decide_differs(*known, mask, value)
        {
            return holds;
        }
        if mask == 0 {
            return false;
        }
        if !self.differs.contains(&(expr, mask, value)) {
            self.differs.push((expr, mask, value));
        }
        true
    }

    fn add_compare(&mut self, cmp: Cmp, a: Value, b: Value) -> bool {
        if self.compares.contains(&(cmp.negated(), a, b)) {
            return false;
        }
        if !self.compares.contains(&(cmp, a, b)) {
            self.compares.push((cmp, a, b));
        }
        true
    }
}

/// Whether the constraint implies `expr & mask != value` (`Some(true)`) or its
/// negation (`Some(false)`); `None` if neither.
fn decide_differs(known: Constraint, mask: u32, value: u32) -> Option<bool> {
    if known.mask & mask & (known.value ^ value) != 0 {
        return Some(true);
    }
    if mask & !known.mask == 0 {
        return Some(false);
    }
    // Only a mask that covers the whole expression makes `value` its value.
    let covers = u64::from(mask) >= u64::from(known.hi) && mask.wrapping_add(1).is_power_of_two();
    let covers = covers || mask == u32::MAX;
    (covers && !(known.lo..=known.hi).contains(&value)).then_some(true)
}
