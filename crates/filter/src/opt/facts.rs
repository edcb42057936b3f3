//! Dataflow facts at a node of the graph: outcomes of tests, ranges of values, and
//! effects already carried out. A walk down the dominator tree adds facts; the way
//! up undoes them.

use super::graph::{Graph, HAS_EFFECT};
use super::value_range::{ValueRange, low_mask};
use crate::ir::{BinOp, Cmp, Op, Operand, Value};

/// Nesting depth, in operations, to which facts of operands are combined.
const DEPTH_MAX: u32 = 4;

/// Maximum number of values in a summary.
const SUMMARY_MAX: usize = 6;

/// Maximum number of entries of [`Facts::choices`] searched, the latest first.
const CHOICES_VISITED_MAX: usize = 4;

/// Maximum number of constants in one [`Choices`].
const CHOICES_MAX: usize = 8;

/// The facts at one node.
#[derive(Debug, Default)]
pub(crate) struct Facts {
    /// Range of each value, at least as narrow as its expression implies.
    known: Vec<ValueRange>,
    /// Outcome of each test: 0 unknown, 1 false, 2 true.
    truth: Vec<u8>,
    /// For each value used as the base of a load: the greatest `offset + width` of a
    /// load that was carried out.
    reach: Vec<u32>,
    /// The values known to equal one of a few constants.
    choices: Vec<(Value, Choices)>,
    /// The values with a narrower range than their expressions imply, in the order of
    /// discovery.
    recent: Vec<Value>,
    /// For each value: whether its effects were carried out. Loads at fixed positions
    /// do not count.
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

/// The facts about one value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ValueFact {
    value: Value,
    known: ValueRange,
    choices: Option<Choices>,
}

/// A set of constants, one of which a value equals.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Choices {
    items: [u32; CHOICES_MAX],
    count: u8,
}

impl Choices {
    /// The set with one constant.
    fn single(constant: u32) -> Choices {
        let mut items = [0; CHOICES_MAX];
        items[0] = constant;
        Choices { items, count: 1 }
    }

    /// The constants.
    fn items(&self) -> &[u32] {
        &self.items[..usize::from(self.count)]
    }

    /// The union; `None` if it has more than [`CHOICES_MAX`] constants.
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
    /// Extends the tables to every value of `graph`.
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

    /// The present position in the log, for [`undo_to`](Self::undo_to).
    pub(crate) fn mark(&self) -> usize {
        self.log.len()
    }

    /// Undoes every fact since `mark`.
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

    /// The outcome of the canonical test `cond`, if the facts decide it.
    pub(crate) fn decide(&self, graph: &Graph, cond: Value) -> Option<bool> {
        self.decide_within(graph, cond, DEPTH_MAX)
    }

    /// [`decide`](Self::decide) with operands examined to `depth` operations.
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

    /// The constants that `value` may equal here; `None` if they are not known to be few.
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

    /// The facts about the values that were narrowed last.
    pub(crate) fn summary(&self, graph: &Graph) -> Vec<ValueFact> {
        let recent = self.recent.iter().rev().take(SUMMARY_MAX);
        recent.map(|&value| self.item(graph, value)).collect()
    }

    fn item(&self, graph: &Graph, value: Value) -> ValueFact {
        let choices = self.choices(graph, value);
        // Meanwhile all constants but one may have been excluded.
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

    /// Weakens a summary to the facts that also hold here.
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

    /// Adds the facts of a summary.
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

    /// The range of `operand` here.
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

    /// The constant that `operand` equals here; `None` if undecided.
    pub(crate) fn exact(&self, graph: &Graph, operand: Operand) -> Option<u32> {
        self.range(graph, operand, DEPTH_MAX).exact()
    }

    /// Adds the outcome of test `cond`.
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

    /// Narrows `value` to `known`, and its operand accordingly.
    fn narrow(&mut self, graph: &Graph, value: Value, known: ValueRange, depth: u32) {
        let old = self.known[value.index()];
        // An empty range means that control never gets here; any fact is correct.
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

    /// Whether the operation `effect` is known not to reject. Loads at fixed positions
    /// are not checked.
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

    /// Whether all effects in `value` were carried out, without loads at fixed
    /// positions. The search visits at most 32 operations, then returns false.
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

    /// Adds that all effects in `value` were carried out. Calls `new` for each one that
    /// was not known before, an operation before its operands.
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

/// The range of `a` that follows from the outcome of `a cmp b`; `old` is the range so
/// far. `None` if nothing follows.
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
            // At least the lowest bit of the mask may be set.
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

/// The range of `a` that follows if `a op b` has the range `result`.
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
        // a = sum - b modulo 2^32, and all sums in the range are at least b.
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
