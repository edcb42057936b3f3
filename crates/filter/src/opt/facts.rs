//! What is known at a place in the graph: which tests hold, what values can
//! be, how much of the frame was captured. Facts are added going down the
//! dominator tree and taken back going up.

use super::graph::{Graph, HAS_EFFECT};
use super::value_range::{ValueRange, low_mask};
use crate::ir::{BinOp, Cmp, Op, Operand, Value};

/// How many operations a value is looked into for what its operands say.
const DEPTH_MAX: u32 = 4;

/// How many values a summary tells of at most.
const SUMMARY_MAX: usize = 6;

/// How many of the values known to be one of a few constants are looked
/// through, the latest first.
const CHOICES_VISITED_MAX: usize = 4;

/// How many constants a value is told to be one of at most.
const CHOICES_MAX: usize = 8;

/// The facts at one place.
#[derive(Debug, Default)]
pub(crate) struct Facts {
    /// Per value, narrower than what its expression says.
    known: Vec<ValueRange>,
    /// Per value: 0 unknown, 1 false, 2 true.
    truth: Vec<u8>,
    /// Per value: as the base of a load, the greatest end of a load that was
    /// carried out, less the base.
    reach: Vec<u32>,
    /// The values known to be one of a few constants.
    choices: Vec<(Value, Choices)>,
    /// The values of which more is known than their expressions say, in the
    /// order in which that came to be.
    recent: Vec<Value>,
    /// Per value: whether all it may reject was carried out, except for loads
    /// at fixed positions.
    done: Vec<bool>,
    log: Vec<Undo>,
}

#[derive(Debug)]
enum Undo {
    Known(Value, ValueRange),
    Truth(Value, u8),
    Reach(Value, u32),
    Done(Value),
    Choice,
    Recent,
}

/// What is known of one value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ValueFact {
    value: Value,
    known: ValueRange,
    choices: Option<Choices>,
}

/// A few constants, one of which a value is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Choices {
    items: [u32; CHOICES_MAX],
    count: u8,
}

impl Choices {
    /// One constant.
    fn single(constant: u32) -> Choices {
        let mut items = [0; CHOICES_MAX];
        items[0] = constant;
        Choices { items, count: 1 }
    }

    /// The constants.
    fn items(&self) -> &[u32] {
        &self.items[..usize::from(self.count)]
    }

    /// These and `others`; `None` if there are too many.
    fn or(mut self, others: Choices) -> Option<Choices> {
        for &item in others.items() {
            if !self.items().contains(&item) {
                *self.items.get_mut(usize::from(self.count))? = item;
                self.count += 1;
            }
        }
        Some(self)
    }

    fn retain(&mut self, mut wanted: impl FnMut(u32) -> bool) {
        let mut kept = 0;
        for position in 0..usize::from(self.count) {
            let item = self.items[position];
            if wanted(item) {
                self.items[kept] = item;
                kept += 1;
            }
        }
        self.count = kept as u8;
    }
}

impl Facts {
    /// Makes room for every value of `graph`.
    pub(crate) fn grow(&mut self, graph: &Graph) {
        let from = self.known.len();
        if from == graph.ops.len() {
            return;
        }
        self.known
            .extend(graph.info[from..].iter().map(|info| info.known));
        self.truth.resize(graph.ops.len(), 0);
        self.reach.resize(graph.ops.len(), 0);
        self.done.resize(graph.ops.len(), false);
    }

    /// A mark to return to.
    pub(crate) fn mark(&self) -> usize {
        self.log.len()
    }

    /// Takes back every fact since `mark`.
    pub(crate) fn undo_to(&mut self, mark: usize) {
        for undo in self.log.drain(mark..).rev() {
            match undo {
                Undo::Known(value, known) => self.known[value.index()] = known,
                Undo::Truth(value, truth) => self.truth[value.index()] = truth,
                Undo::Reach(value, reach) => self.reach[value.index()] = reach,
                Undo::Done(value) => self.done[value.index()] = false,
                Undo::Choice => {
                    self.choices.pop();
                }
                Undo::Recent => {
                    self.recent.pop();
                }
            }
        }
    }

    /// Whether canonical test `cond` is known to hold or not.
    pub(crate) fn decide(&self, graph: &Graph, cond: Value) -> Option<bool> {
        self.decide_within(graph, cond, DEPTH_MAX)
    }

    /// As [`decide`](Self::decide), its operands looked into `depth` deep.
    fn decide_within(&self, graph: &Graph, cond: Value, depth: u32) -> Option<bool> {
        match self.truth.get(cond.index()) {
            Some(1) => return Some(false),
            Some(2) => return Some(true),
            _ => {}
        }
        match graph.op(cond) {
            Op::Test {
                cmp: Cmp::Eq,
                a: Operand::Val(value),
                b: Operand::Imm(constant),
            } if let Some(choices) = self.choices(graph, value) => match choices.items() {
                [only] => Some(*only == constant),
                items => (!items.contains(&constant)).then_some(false),
            },
            Op::Test { cmp, a, b } => {
                let a = self.range(graph, a, depth);
                let b = self.range(graph, b, depth);
                ValueRange::test(cmp, a, b)
            }
            _ => None,
        }
    }

    /// The constants that `value` may be here, if they are known to be few.
    fn choices(&self, graph: &Graph, value: Value) -> Option<Choices> {
        let known = self.range(graph, value.into(), 0);
        if let Some(constant) = known.exact() {
            return Some(Choices::single(constant));
        }
        let stated = self.choices.iter().rev().take(CHOICES_VISITED_MAX);
        let (_, mut choices) = *stated.into_iter().find(|(chosen, _)| *chosen == value)?;
        choices.retain(|constant| {
            let test = graph.find(Op::Test {
                cmp: Cmp::Eq,
                a: Operand::Val(value),
                b: Operand::Imm(constant),
            });
            let excluded = test.is_some_and(|test| self.truth.get(test.index()) == Some(&1));
            !excluded && known.and(ValueRange::exactly(constant)).is_some()
        });
        (choices.count > 0).then_some(choices)
    }

    /// What is known here of the values that something became known of last.
    pub(crate) fn summary(&self, graph: &Graph) -> Vec<ValueFact> {
        let recent = self.recent.iter().rev().take(SUMMARY_MAX);
        recent.map(|&value| self.item(graph, value)).collect()
    }

    fn item(&self, graph: &Graph, value: Value) -> ValueFact {
        let choices = self.choices(graph, value);
        // Of a few constants all but one may have been excluded since.
        let known = match choices.as_ref().map(Choices::items) {
            Some(&[only]) => ValueRange::exactly(only),
            _ => self.range(graph, value.into(), 0),
        };
        ValueFact {
            value,
            known,
            choices,
        }
    }

    /// Weakens a summary to what holds here too.
    pub(crate) fn weaken(&self, graph: &Graph, summary: &mut Vec<ValueFact>) {
        summary.retain_mut(|item| {
            let here = self.item(graph, item.value);
            item.known = item.known.or(here.known);
            item.choices = match (item.choices, here.choices) {
                (Some(there), Some(here)) => there.or(here),
                _ => None,
            };
            item.choices.is_some() || item.known != graph.info(item.value).known
        });
    }

    /// Adds what a summary says.
    pub(crate) fn add(&mut self, graph: &Graph, summary: &[ValueFact]) {
        self.grow(graph);
        for item in summary {
            self.narrow(graph, item.value, item.known, DEPTH_MAX);
            if let Some(choices) = item.choices
                && choices.count > 1
            {
                self.log.push(Undo::Choice);
                self.choices.push((item.value, choices));
            }
        }
    }

    /// What `operand` can be here.
    fn range(&self, graph: &Graph, operand: Operand, depth: u32) -> ValueRange {
        let Operand::Val(value) = operand else {
            return graph.known(operand);
        };
        let own = self.known.get(value.index()).copied();
        let own = own.unwrap_or(graph.info(value).known);
        if depth == 0 || own.exact().is_some() {
            return own;
        }
        let derived = match graph.op(value) {
            Op::Bin { op, a, b } => {
                let a = self.range(graph, a, depth - 1);
                let b = self.range(graph, b, depth - 1);
                ValueRange::bin(op, a, b)
            }
            Op::Test { .. } => match self.decide_within(graph, value, depth - 1) {
                Some(holds) => ValueRange::exactly(u32::from(holds)),
                None => own,
            },
            _ => own,
        };
        own.and(derived).unwrap_or(own)
    }

    /// The value that `operand` must have here.
    pub(crate) fn exact(&self, graph: &Graph, operand: Operand) -> Option<u32> {
        self.range(graph, operand, DEPTH_MAX).exact()
    }

    /// Adds that test `cond` holds, or that it does not.
    pub(crate) fn assume(&mut self, graph: &Graph, cond: Value, holds: bool) {
        self.grow(graph);
        self.log.push(Undo::Truth(cond, self.truth[cond.index()]));
        self.truth[cond.index()] = 1 + u8::from(holds);
        let Op::Test { cmp, a, b } = graph.op(cond) else {
            return;
        };
        match (a, b) {
            (Operand::Val(a), Operand::Imm(b)) => {
                if let Some(known) = known_by(cmp, holds, self.known[a.index()], b) {
                    self.narrow(graph, a, known, DEPTH_MAX);
                }
            }
            (Operand::Val(a), Operand::Val(b)) if cmp == Cmp::Eq && holds => {
                let (in_a, in_b) = (self.known[a.index()], self.known[b.index()]);
                self.narrow(graph, a, in_b, DEPTH_MAX);
                self.narrow(graph, b, in_a, DEPTH_MAX);
            }
            _ => {}
        }
    }

    /// Adds that `value` is as `known`, and what follows for its operands.
    fn narrow(&mut self, graph: &Graph, value: Value, known: ValueRange, depth: u32) {
        let old = self.known[value.index()];
        // Nothing left means that control never gets here; any fact will do.
        let Some(new) = old.and(known) else { return };
        if new == old {
            return;
        }
        if old == graph.info(value).known {
            self.log.push(Undo::Recent);
            self.recent.push(value);
        }
        self.log.push(Undo::Known(value, old));
        self.known[value.index()] = new;
        if depth == 0 {
            return;
        }
        if let Op::Bin {
            op,
            a: Operand::Val(a),
            b: Operand::Imm(b),
        } = graph.op(value)
        {
            self.narrow(graph, a, operand_of(op, b, new), depth - 1);
        }
    }

    /// Whether everything `effect`, an operation that may reject, needs of the
    /// frame is known to be there, loads at fixed positions aside.
    pub(crate) fn is_done(&self, graph: &Graph, effect: Value) -> bool {
        if !graph.has(effect, HAS_EFFECT) {
            return true;
        }
        let stated = self.done.get(effect.index()).copied().unwrap_or(false);
        stated || self.load_is_reached(graph, effect)
    }

    fn load_is_reached(&self, graph: &Graph, effect: Value) -> bool {
        match graph.op(effect) {
            Op::Load {
                width,
                base: Some(base),
                offset,
            } => {
                let reach = self.reach.get(base.index()).copied().unwrap_or(0);
                reach >= offset.saturating_add(width.bytes())
            }
            _ => false,
        }
    }

    /// Whether everything in `value` that may reject is known to have been
    /// carried out, loads at fixed positions aside. Large values are not
    /// looked into to the end.
    pub(crate) fn all_done(&self, graph: &Graph, value: Value) -> bool {
        if self.is_done(graph, value) {
            return true;
        }
        let mut stack = vec![value];
        for _ in 0..32 {
            let Some(value) = stack.pop() else {
                return true;
            };
            if self.is_done(graph, value) {
                continue;
            }
            if graph.is_effect(value) {
                return false;
            }
            stack.extend(graph.op(value).operands().filter_map(Operand::value));
        }
        stack.is_empty()
    }

    /// Adds that everything in `value` that may reject was carried out, and
    /// calls `new` for each operation of which that was not known; operands
    /// come last.
    pub(crate) fn carry_out(&mut self, graph: &Graph, value: Value, mut new: impl FnMut(Value)) {
        if !graph.has(value, HAS_EFFECT) {
            return;
        }
        self.grow(graph);
        let mut stack = vec![value];
        while let Some(value) = stack.pop() {
            if self.is_done(graph, value) {
                continue;
            }
            self.log.push(Undo::Done(value));
            self.done[value.index()] = true;
            if graph.is_effect(value) {
                new(value);
            }
            if let Op::Load {
                width,
                base: Some(base),
                offset,
            } = graph.op(value)
            {
                self.log.push(Undo::Reach(base, self.reach[base.index()]));
                self.reach[base.index()] = offset + width.bytes();
            }
            stack.extend(graph.op(value).operands().filter_map(Operand::value));
        }
    }
}

/// What `a cmp b` holding, or not, says of `a`, of which `old` is known.
fn known_by(cmp: Cmp, holds: bool, old: ValueRange, b: u32) -> Option<ValueRange> {
    Some(match (cmp, holds) {
        (Cmp::Eq, true) => ValueRange::exactly(b),
        (Cmp::Eq, false) if old.lo == b => ValueRange::between(b.checked_add(1)?, u32::MAX),
        (Cmp::Eq, false) if old.hi == b => ValueRange::between(0, b.checked_sub(1)?),
        (Cmp::Gt, true) => ValueRange::between(b.checked_add(1)?, u32::MAX),
        (Cmp::Gt, false) => ValueRange::between(0, b),
        (Cmp::Set, true) => {
            let candidates = b & old.possible();
            let ones = if candidates.is_power_of_two() {
                candidates
            } else {
                0
            };
            // Some bit of the mask is set.
            let least = 1 << candidates.trailing_zeros().min(31);
            ValueRange {
                ones,
                lo: least,
                ..ValueRange::ANY
            }
        }
        (Cmp::Set, false) => ValueRange {
            zeros: b,
            ..ValueRange::ANY
        },
        _ => return None,
    })
}

/// What is known of `a` if `a op b` is as `result`.
fn operand_of(op: BinOp, b: u32, result: ValueRange) -> ValueRange {
    match op {
        BinOp::And => ValueRange {
            zeros: result.zeros & b,
            ones: result.ones,
            lo: result.lo,
            hi: u32::MAX,
        },
        BinOp::Or => ValueRange {
            zeros: result.zeros,
            ones: result.ones & !b,
            lo: 0,
            hi: result.hi,
        },
        BinOp::Xor => ValueRange {
            zeros: (result.zeros & !b) | (result.ones & b),
            ones: (result.ones & !b) | (result.zeros & b),
            ..ValueRange::ANY
        },
        // a = sum - b modulo 2^32, and no sum in the range lies below b.
        BinOp::Add if result.lo >= b => ValueRange::between(result.lo - b, result.hi - b),
        BinOp::Shr if b < 32 => ValueRange {
            zeros: (result.zeros & (u32::MAX >> b)) << b,
            ones: result.ones << b,
            lo: result.lo << b,
            hi: (result.hi.min(u32::MAX >> b) << b) | low_mask(b),
        },
        BinOp::Shl if b < 32 => ValueRange {
            zeros: result.zeros >> b,
            ones: result.ones >> b,
            ..ValueRange::ANY
        },
        _ => ValueRange::ANY,
    }
}
