//! Cost model of instruction selection: the price of each value in instructions,
//! whether computing it preserves `X`, and whether it is worth a slot.

use super::EmitError;
use super::select::SHARED_MAX;
use crate::ir::{BinOp, Op, Operand, Value, Width};
use crate::opt::graph::{Graph, HAS_PARAM};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// The absence of a slot.
const NONE: u8 = u8::MAX;

/// Cost data of each value of a graph.
#[derive(Debug)]
pub(super) struct Costs {
    preserves_x: Vec<bool>,
    slots: Vec<u8>,
    /// Bit set of the slots of parameters, which are always stored.
    params: u64,
}

impl Costs {
    /// Analyses every value. With `keep`, values that could be recomputed may also have
    /// slots.
    ///
    /// # Errors
    /// If more parameters are live at one time than there are slots.
    pub(super) fn of(graph: &Graph, keep: bool) -> Result<Costs, EmitError> {
        let mut costs = Costs {
            preserves_x: Vec::with_capacity(graph.ops.len()),
            slots: vec![NONE; graph.ops.len()],
            params: 0,
        };
        let mut price = Vec::with_capacity(graph.ops.len());
        for index in 0..graph.ops.len() {
            let value = Value(index as u32);
            let header_length = costs.header_length(graph, value).is_some();
            price.push(if header_length {
                1
            } else {
                price_of(graph, value, &price)
            });
            let keeps = !header_length && costs.leaves_x(graph.ops[index]);
            costs.preserves_x.push(keeps);
        }
        let next = costs.give_params_slots(graph)?;
        if keep {
            costs.give_slots(graph, &price, next);
        }
        Ok(costs)
    }

    /// Assigns slots to parameters by linear scan; parameters with disjoint intervals
    /// share slots. Returns the number of slots.
    fn give_params_slots(&mut self, graph: &Graph) -> Result<usize, EmitError> {
        let mut stretches = stretches(graph);
        stretches.sort_unstable();
        let (mut free, mut open, mut next) = (Vec::new(), BinaryHeap::new(), 0);
        for (first, last, param) in stretches {
            while let Some(&Reverse((end, slot))) = open.peek()
                && end < first
            {
                open.pop();
                free.push(slot);
            }
            let slot = free.pop().unwrap_or_else(|| {
                next += 1;
                next - 1
            });
            open.push(Reverse((last, slot)));
            if slot < SHARED_MAX {
                self.slots[param.index()] = slot as u8;
                self.params |= 1 << slot;
            }
        }
        if next > SHARED_MAX {
            return Err(EmitError::Scratch { needed: next });
        }
        Ok(next)
    }

    /// Assigns the remaining slots to the values for which a store and reloads save the
    /// most instructions.
    fn give_slots(&mut self, graph: &Graph, price: &[u32], next: usize) {
        if price.iter().all(|&price| price < 2) {
            return;
        }
        let uses = uses(graph);
        let gain = |index: usize| {
            let saved = u64::from(price[index] - 1) * u64::from(uses[index].saturating_sub(1));
            saved.saturating_sub(1)
        };
        let mut dear: Vec<usize> = (0..graph.ops.len())
            .filter(|&index| uses[index] > 1 && price[index] > 1)
            .filter(|&index| !matches!(graph.ops[index], Op::Param | Op::Test { .. }))
            .filter(|&index| gain(index) > 0)
            .collect();
        dear.sort_by_key(|&index| std::cmp::Reverse(gain(index)));
        for (slot, index) in (next..SHARED_MAX).zip(dear) {
            self.slots[index] = slot as u8;
        }
    }

    fn leaves_x(&self, op: Op) -> bool {
        match op {
            Op::Param | Op::Len | Op::Load { base: None, .. } => true,
            Op::Bin {
                a: Operand::Val(a),
                b: Operand::Imm(_),
                ..
            } => self.preserves_x(a),
            Op::Bin {
                op: BinOp::Sub,
                a: Operand::Imm(_),
                b: Operand::Val(b),
            } => self.preserves_x(b),
            _ => false,
        }
    }

    /// Whether computing the value in `A` preserves `X`.
    pub(super) fn preserves_x(&self, value: Value) -> bool {
        self.preserves_x[value.index()]
    }

    /// The slot of a value, if any.
    pub(super) fn slot(&self, value: Value) -> Option<u32> {
        match self.slots[value.index()] {
            NONE => None,
            slot => Some(u32::from(slot)),
        }
    }

    /// Whether the value's slot holds the value, given the bit set of slots stored.
    pub(super) fn is_reloadable(&self, value: Value, stored: u64) -> bool {
        self.slot(value)
            .is_some_and(|slot| (self.params | stored) & (1 << slot) != 0)
    }

    /// The address of a byte, if the value is four times the byte's low nibble: the
    /// operand of `MSH`.
    pub(super) fn header_length(&self, graph: &Graph, value: Value) -> Option<u32> {
        let (nibble, by) = graph.split(value, BinOp::Shl)?;
        let (byte, mask) = graph.split(nibble, BinOp::And)?;
        match graph.op(byte) {
            Op::Load {
                width: Width::B1,
                base: None,
                offset,
            } if by == 2 && mask == 0xf => Some(offset),
            _ => None,
        }
    }

    /// Whether `held`, the value in `A`, is the first operand of `subject` at some level.
    pub(super) fn is_leaf_of(
        &self,
        graph: &Graph,
        subject: Option<Value>,
        held: Option<Value>,
    ) -> bool {
        let (Some(mut value), Some(held)) = (subject, held) else {
            return false;
        };
        for _ in 0..8 {
            if value == held {
                return true;
            }
            match graph.op(value) {
                Op::Bin {
                    a: Operand::Val(a),
                    b: Operand::Imm(_),
                    ..
                }
                | Op::Test {
                    a: Operand::Val(a),
                    b: Operand::Imm(_),
                    ..
                } => value = a,
                _ => return false,
            }
        }
        false
    }
}

/// Approximate number of instructions that compute a value in `A`.
fn price_of(graph: &Graph, value: Value, price: &[u32]) -> u32 {
    let op = graph.op(value);
    let operands = op.operands().filter_map(Operand::value);
    let sum = operands.fold(0_u32, |sum, operand| {
        sum.saturating_add(price[operand.index()])
    });
    match op {
        Op::Bin {
            a: Operand::Val(_),
            b: Operand::Val(_),
            ..
        } => sum.saturating_add(2),
        _ => sum.saturating_add(1),
    }
}

/// The number of uses of each value as an operand. Operands inside a value count once,
/// however often that value is used.
fn uses(graph: &Graph) -> Vec<u32> {
    let mut uses = vec![0_u32; graph.ops.len()];
    let mut stack: Vec<Value> = Vec::new();
    for node in &graph.nodes {
        stack.extend(&node.effects);
        if node.bound > 0 {
            stack.push(node.bound_load);
        }
        stack.extend(node.flow.subject());
        let args = node.flow.edges().flat_map(|edge| &edge.args);
        stack.extend(args.filter_map(|arg| arg.value()));
        while let Some(value) = stack.pop() {
            let count = &mut uses[value.index()];
            *count += 1;
            // Each block recomputes a test from its operands.
            if *count == 1 || matches!(graph.op(value), Op::Test { .. }) {
                stack.extend(graph.op(value).operands().filter_map(Operand::value));
            }
        }
    }
    uses
}

/// The live interval of each parameter in a tidy graph: the first block that stores
/// it, and the last block that reads it.
fn stretches(graph: &Graph) -> Vec<(usize, usize, Value)> {
    let mut ranges: BTreeMap<Value, (usize, usize)> = BTreeMap::new();
    for (index, node) in graph.nodes.iter().enumerate() {
        ranges.extend(node.params.iter().map(|&param| (param, (index, index))));
    }
    if ranges.is_empty() {
        return Vec::new();
    }
    let mut seen = vec![usize::MAX; graph.ops.len()];
    let mut stack: Vec<Value> = Vec::new();
    for (index, node) in graph.nodes.iter().enumerate() {
        stack.extend(&node.effects);
        stack.extend(node.flow.subject());
        for edge in node.flow.edges() {
            stack.extend(edge.args.iter().filter_map(|arg| arg.value()));
            for param in &graph.nodes[edge.block.index()].params {
                let range = ranges.get_mut(param).expect("every parameter has a range");
                range.0 = range.0.min(index);
            }
        }
        while let Some(value) = stack.pop() {
            if !graph.has(value, HAS_PARAM) || seen[value.index()] == index {
                continue;
            }
            seen[value.index()] = index;
            if let Some(range) = ranges.get_mut(&value) {
                range.1 = range.1.max(index);
            }
            stack.extend(graph.op(value).operands().filter_map(Operand::value));
        }
    }
    let stretches = ranges.into_iter();
    stretches
        .map(|(param, (first, last))| (first, last, param))
        .collect()
}
