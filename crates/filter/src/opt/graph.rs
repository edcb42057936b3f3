//! The optimiser's form of a program: a control-flow graph of nodes over values that
//! float, as in Click's "sea of nodes" (1995).
//!
//! A frame never changes while a filter runs. So a value that does not depend on a
//! block parameter is a function of the frame alone, the same wherever it is
//! computed. Only its effect depends on the block: a load outside the captured bytes
//! rejects. This form separates the two:
//!
//! - Values are interned expressions that belong to no block. The same load in two
//!   blocks is one value, and dominance does not matter.
//! - A node keeps the rejecting effects of its block. `bound` is the number of
//!   captured bytes that its loads at fixed positions need; `effects` are its
//!   loads at computed positions and its divisions.
//! - The subject of a node, which it compares or returns, has its checks implied. A
//!   pass that replaces the subject keeps them by
//!   [`Graph::retain_subject_effects`].
//!
//! So an edge can be redirected past a block if these effects are preserved.
//!
//! Values are [`ir::Op`](crate::ir::Op)s in canonical form: constants to the
//! right; a [`Op::Test`] is `Eq`, `Gt` or `Set` only, and the negation of test
//! `t` is `Eq t, 0`.

use super::value_range::ValueRange;
use crate::ir::dominators::Dominators;
use crate::ir::{Block, Edge, Op, Operand, Program, Term, Value, limits};
use std::collections::BTreeSet;

/// Maximum number of slots of the intern table probed for a value; then the value counts
/// as new. Bounds the cost of a program crafted to collide. A missed equal value only
/// costs optimisation.
const PROBES_MAX: usize = 32;

/// Maximum number of effects of a node searched, the latest first, for an equal one. The
/// pass `bounds_checks` drops duplicates that this search misses.
const EFFECTS_VISITED_MAX: usize = 32;

/// The absence of a value or node.
pub(crate) const NONE: u32 = u32::MAX;

/// Flag: the expression contains a block parameter.
pub(crate) const HAS_PARAM: u8 = 1;
/// Flag: the expression contains a load at a computed position, or a division that
/// may reject.
pub(crate) const HAS_EFFECT: u8 = 2;
/// Flag: the expression contains a test.
pub(crate) const HAS_TEST: u8 = 4;

/// Facts about a value that follow from its expression alone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Info {
    pub(crate) known: ValueRange,
    /// Captured bytes that the loads at fixed positions in the expression need.
    pub(crate) bound: u32,
    /// `HAS_…` bits.
    pub(crate) flags: u8,
    /// Number of operations; a shared one counts at each use. Saturates.
    pub(crate) size: u16,
}

/// The terminator of a node.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Flow {
    Jump(Edge),
    /// `cond` is an [`Op::Test`] in canonical form.
    Branch {
        cond: Value,
        then: Edge,
        otherwise: Edge,
    },
    Return(Operand),
}

impl Flow {
    pub(crate) const REJECT: Flow = Flow::Return(Operand::Imm(0));

    pub(crate) fn edges(&self) -> impl Iterator<Item = &Edge> {
        let (first, second) = match self {
            Flow::Jump(edge) => (Some(edge), None),
            Flow::Branch {
                then, otherwise, ..
            } => (Some(then), Some(otherwise)),
            Flow::Return(_) => (None, None),
        };
        first.into_iter().chain(second)
    }

    pub(crate) fn edges_mut(&mut self) -> impl Iterator<Item = &mut Edge> {
        let (first, second) = match self {
            Flow::Jump(edge) => (Some(edge), None),
            Flow::Branch {
                then, otherwise, ..
            } => (Some(then), Some(otherwise)),
            Flow::Return(_) => (None, None),
        };
        first.into_iter().chain(second)
    }

    /// The value that is compared or returned; `None` for a jump or a constant.
    pub(crate) fn subject(&self) -> Option<Value> {
        match self {
            Flow::Branch { cond, .. } => Some(*cond),
            Flow::Return(verdict) => verdict.value(),
            Flow::Jump(_) => None,
        }
    }
}

/// A node: the rejecting effects of a block, then its terminator.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) params: Vec<Value>,
    /// Values to compute here because their computation may reject; without the
    /// loads at fixed positions.
    pub(crate) effects: Vec<Value>,
    /// Captured bytes that the loads at fixed positions need here.
    pub(crate) bound: u32,
    /// A load that needs exactly `bound` bytes; meaningless if `bound` is zero.
    pub(crate) bound_load: Value,
    pub(crate) flow: Flow,
}

impl Node {
    pub(crate) fn new(flow: Flow) -> Node {
        Node {
            params: Vec::new(),
            effects: Vec::new(),
            bound: 0,
            bound_load: Value(0),
            flow,
        }
    }

    /// Adds an effect, unless a recent one is equal.
    pub(crate) fn add_effect(&mut self, effect: Value) {
        let mut known = self.effects.iter().rev().take(EFFECTS_VISITED_MAX);
        if !known.any(|&known| known == effect) {
            self.effects.push(effect);
        }
    }

    /// Makes the node reject every frame at once.
    pub(crate) fn reject(&mut self) {
        self.effects.clear();
        self.bound = 0;
        self.flow = Flow::REJECT;
    }

    /// Whether the terminator rejects every frame.
    pub(crate) fn is_reject(&self) -> bool {
        self.flow == Flow::REJECT
    }
}

/// A program in the optimiser's form.
#[derive(Clone, Debug)]
pub(crate) struct Graph {
    pub(crate) ops: Vec<Op>,
    pub(crate) info: Vec<Info>,
    pub(crate) nodes: Vec<Node>,
    /// Open addressing; each entry is a value plus one, or zero.
    table: Vec<u32>,
    /// The dominator tree, while it is valid.
    tree: Option<Dominators>,
    /// Nesting depth of the active rules that look inside a value.
    depth: u32,
    /// Maximum number of nodes that passes may create. Without the limit, shared truth
    /// values of truth values would be expanded to one node for each path.
    pub(crate) nodes_max: usize,
}

/// Maximum number of nested rules: bounds the call stack on long expressions.
const DEPTH_MAX: u32 = 32;

impl Graph {
    /// Takes the dominator tree, computed if necessary. A caller that leaves the edges
    /// unchanged may give it back by [`put_tree`](Self::put_tree).
    pub(crate) fn take_tree(&mut self) -> Dominators {
        self.tree.take().unwrap_or_else(|| {
            Dominators::of(self.nodes.len(), |index| self.nodes[index].flow.edges())
        })
    }

    /// Stores the tree for the next caller of [`take_tree`](Self::take_tree).
    pub(crate) fn put_tree(&mut self, tree: Dominators) {
        self.tree = Some(tree);
    }

    /// Enters a rule that looks inside a value; false at the limit of nesting.
    pub(crate) fn enter(&mut self) -> bool {
        let allowed = self.depth < DEPTH_MAX;
        self.depth += u32::from(allowed);
        allowed
    }

    /// Leaves a rule that [`enter`](Self::enter) entered.
    pub(crate) fn leave(&mut self) {
        self.depth -= 1;
    }

    /// Converts a verified program.
    pub(crate) fn of(program: &Program) -> Graph {
        let mut graph = Graph {
            ops: Vec::with_capacity(program.values.len() + 8),
            info: Vec::with_capacity(program.values.len() + 8),
            nodes: Vec::with_capacity(program.blocks.len() + 4),
            table: vec![0; (program.values.len() * 2 + 16).next_power_of_two()],
            tree: None,
            depth: 0,
            nodes_max: limits::BLOCKS_MAX
                .min(4 * (program.blocks.len() + program.values.len()) + 64),
        };
        let mut names = vec![Operand::Imm(0); program.values.len()];
        for block in &program.blocks {
            let node = graph.node_of(program, block, &mut names);
            graph.nodes.push(node);
        }
        graph
    }

    fn node_of(
        &mut self,
        program: &Program,
        block: &crate::ir::BasicBlock,
        names: &mut [Operand],
    ) -> Node {
        let mut node = Node::new(Flow::REJECT);
        for &param in &block.params {
            let value = self.param();
            names[param.index()] = Operand::Val(value);
            node.params.push(value);
        }
        for &inst in &block.insts {
            let Some(value) = self.rebuilt(program.op(inst), |operand| read(operand, names)) else {
                // This instruction rejects every frame, and so does the block.
                return node;
            };
            names[inst.index()] = value;
            if let (true, Some(value)) = (program.op(inst).may_reject(), value.value()) {
                self.require(&mut node, value);
            }
        }
        node.flow = self.flow_of(&block.term, names);
        node
    }

    fn flow_of(&mut self, term: &Term, names: &[Operand]) -> Flow {
        let edge = |edge: &Edge| Edge {
            block: edge.block,
            args: edge.args.iter().map(|&arg| read(arg, names)).collect(),
        };
        match term {
            Term::Return(verdict) => Flow::Return(read(*verdict, names)),
            Term::Jump(target) => Flow::Jump(edge(target)),
            Term::Branch {
                cmp,
                a,
                b,
                then,
                otherwise,
            } => {
                let cond = self.cond(*cmp, read(*a, names), read(*b, names));
                cond.branch(edge(then), edge(otherwise))
            }
        }
    }

    /// A new block parameter.
    pub(crate) fn param(&mut self) -> Value {
        self.push(Op::Param)
    }

    pub(crate) fn op(&self, value: Value) -> Op {
        self.ops[value.index()]
    }

    pub(crate) fn info(&self, value: Value) -> &Info {
        &self.info[value.index()]
    }

    pub(crate) fn has(&self, value: Value, flags: u8) -> bool {
        self.info[value.index()].flags & flags != 0
    }

    pub(crate) fn known(&self, operand: Operand) -> ValueRange {
        match operand {
            Operand::Imm(constant) => ValueRange::exactly(constant),
            Operand::Val(value) => self.info(value).known,
        }
    }

    /// Adds the effect of `value` to `node`. The effects of its operands must already
    /// be there.
    pub(crate) fn require(&self, node: &mut Node, value: Value) {
        self.require_bound(node, value);
        if self.is_effect(value) {
            node.add_effect(value);
        }
    }

    /// Raises the bound of `node` to that of the loads at fixed positions in `value`.
    pub(crate) fn require_bound(&self, node: &mut Node, value: Value) {
        let bound = self.info(value).bound;
        if bound > node.bound {
            node.bound = bound;
            node.bound_load = self.load_with_bound(value, bound);
        }
    }

    /// The operations in `value` that may reject, without loads at fixed positions.
    pub(crate) fn effects_in(&self, value: Value) -> Vec<Value> {
        let mut effects = Vec::new();
        if !self.has(value, HAS_EFFECT) {
            return effects;
        }
        let mut seen = BTreeSet::new();
        let mut stack = vec![value];
        while let Some(value) = stack.pop() {
            if !self.has(value, HAS_EFFECT) || !seen.insert(value) {
                continue;
            }
            if self.is_effect(value) {
                effects.push(value);
            }
            stack.extend(self.op(value).operands().filter_map(Operand::value));
        }
        effects
    }

    /// Adds the effects of the subject of node `index` to the node, so that the
    /// subject can be replaced.
    pub(crate) fn retain_subject_effects(&mut self, index: usize) {
        let Some(subject) = self.nodes[index].flow.subject() else {
            return;
        };
        let mut node = std::mem::replace(&mut self.nodes[index], Node::new(Flow::REJECT));
        self.require_bound(&mut node, subject);
        for effect in self.effects_in(subject) {
            self.require(&mut node, effect);
        }
        self.nodes[index] = node;
    }

    /// The load at a fixed position in `value` that needs `bound` bytes.
    fn load_with_bound(&self, mut value: Value, bound: u32) -> Value {
        // One of the operands has the bound, unless the value itself is the load.
        while let Some(inner) = self
            .op(value)
            .operands()
            .filter_map(Operand::value)
            .find(|&operand| self.info(operand).bound == bound)
        {
            value = inner;
        }
        value
    }

    /// Whether the operation itself may reject; false for a load at a fixed position.
    pub(crate) fn is_effect(&self, value: Value) -> bool {
        match self.op(value) {
            Op::Load { base, .. } => base.is_some(),
            op => op.may_reject(),
        }
    }

    /// Captured bytes that `node` needs for its bound and its subject.
    pub(crate) fn need(&self, node: &Node) -> u32 {
        let subject = node.flow.subject();
        subject.map_or(node.bound, |value| node.bound.max(self.info(value).bound))
    }

    /// Interns an operation in canonical form.
    pub(crate) fn intern(&mut self, op: Op) -> Value {
        if self.ops.len() * 2 >= self.table.len() {
            self.grow();
        }
        let mask = self.table.len() - 1;
        let start = hash(op);
        for probe in 0..PROBES_MAX {
            let slot = (start.wrapping_add(probe)) & mask;
            match self.table[slot] {
                0 => {
                    let value = self.push(op);
                    self.table[slot] = value.0 + 1;
                    return value;
                }
                entry if self.ops[entry as usize - 1] == op => return Value(entry - 1),
                _ => {}
            }
        }
        self.push(op)
    }

    /// The interned value of an operation in canonical form; `None` if not found.
    pub(crate) fn find(&self, op: Op) -> Option<Value> {
        let mask = self.table.len() - 1;
        let start = hash(op);
        for probe in 0..PROBES_MAX {
            match self.table[(start.wrapping_add(probe)) & mask] {
                0 => return None,
                entry if self.ops[entry as usize - 1] == op => return Some(Value(entry - 1)),
                _ => {}
            }
        }
        None
    }

    fn grow(&mut self) {
        let size = self.table.len() * 2;
        self.table.clear();
        self.table.resize(size, 0);
        for (index, &op) in self.ops.iter().enumerate() {
            if op == Op::Param {
                continue;
            }
            let start = hash(op);
            let free = (0..PROBES_MAX)
                .map(|probe| (start.wrapping_add(probe)) & (size - 1))
                .find(|&slot| self.table[slot] == 0);
            if let Some(slot) = free {
                self.table[slot] = index as u32 + 1;
            }
        }
    }

    fn push(&mut self, op: Op) -> Value {
        let info = self.describe(op);
        self.ops.push(op);
        self.info.push(info);
        Value(self.ops.len() as u32 - 1)
    }

    fn describe(&self, op: Op) -> Info {
        let (mut bound, mut flags, mut size) = (0_u32, 0, 1_u16);
        for operand in op.operands().filter_map(Operand::value) {
            let info = self.info(operand);
            bound = bound.max(info.bound);
            flags |= info.flags;
            size = size.saturating_add(info.size);
        }
        let known = match op {
            Op::Param | Op::Len => ValueRange::ANY,
            Op::Load { width, .. } => ValueRange::between(0, width.max_value()),
            Op::Bin { op, a, b } => ValueRange::bin(op, self.known(a), self.known(b)),
            Op::Test { .. } => ValueRange::between(0, 1),
        };
        match op {
            Op::Param => flags |= HAS_PARAM,
            Op::Test { .. } => flags |= HAS_TEST,
            Op::Load {
                base: None,
                offset,
                width,
            } => bound = offset + width.bytes(),
            _ if op.may_reject() => flags |= HAS_EFFECT,
            _ => {}
        }
        Info {
            known,
            bound,
            flags,
            size,
        }
    }

    /// Puts the reachable nodes in topological order, each `then` target near its
    /// branch, and drops the others.
    pub(crate) fn tidy(&mut self) {
        self.tree = None;
        let order = self.topological_order();
        let mut names = vec![u32::MAX; self.nodes.len()];
        for (new, &old) in order.iter().enumerate() {
            names[old as usize] = new as u32;
        }
        let sorted = order
            .iter()
            .enumerate()
            .all(|(new, &old)| new == old as usize);
        if sorted && order.len() == self.nodes.len() {
            return;
        }
        let mut nodes = Vec::with_capacity(order.len() + 4);
        for &old in &order {
            let mut node =
                std::mem::replace(&mut self.nodes[old as usize], Node::new(Flow::REJECT));
            for edge in node.flow.edges_mut() {
                edge.block = Block(names[edge.block.index()]);
            }
            nodes.push(node);
        }
        self.nodes = nodes;
    }

    /// Reverse postorder by an iterative depth-first search.
    fn topological_order(&self) -> Vec<u32> {
        let mut seen = vec![false; self.nodes.len()];
        let mut order = Vec::with_capacity(self.nodes.len());
        let mut stack = vec![(0_u32, false)];
        while let Some((index, leaving)) = stack.pop() {
            if leaving {
                order.push(index);
                continue;
            }
            if std::mem::replace(&mut seen[index as usize], true) {
                continue;
            }
            stack.push((index, true));
            for edge in self.nodes[index as usize].flow.edges() {
                if !seen[edge.block.index()] {
                    stack.push((edge.block.0, false));
                }
            }
        }
        order.reverse();
        order
    }
}

fn read(operand: Operand, names: &[Operand]) -> Operand {
    match operand {
        Operand::Val(value) => names[value.index()],
        constant => constant,
    }
}

/// Multiply-and-fold hash of an operation.
pub(crate) fn hash(op: Op) -> usize {
    let operand = |operand: Operand| match operand {
        Operand::Imm(constant) => u64::from(constant) << 1,
        Operand::Val(value) => u64::from(value.0) << 1 | 1,
    };
    let (kind, a, b) = match op {
        Op::Param => (0, 0, 0),
        Op::Len => (1, 0, 0),
        Op::Load {
            width,
            base,
            offset,
        } => {
            let base = base.map_or(0, |base| u64::from(base.0) + 1);
            (2 + width as u64, base, u64::from(offset))
        }
        Op::Bin { op, a, b } => (8 + op as u64, operand(a), operand(b)),
        Op::Test { cmp, a, b } => (24 + cmp as u64, operand(a), operand(b)),
    };
    mix(mix(kind << 48, a), b) as usize
}

/// Mixes `word` into the hash `seed`.
pub(crate) fn mix(seed: u64, word: u64) -> u64 {
    let product = u128::from(seed ^ word ^ 0x9e37_79b9_7f4a_7c15) * 0xd6e8_feb8_6659_fd93;
    (product as u64) ^ ((product >> 64) as u64)
}
