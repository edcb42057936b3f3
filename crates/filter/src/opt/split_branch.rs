//! Truth values turned into control flow (as LLVM's CodeGenPrepare splits branch
//! conditions). A branch on `and`, `or` or `xor` of tests becomes branches on the
//! tests. A returned test becomes two returns. A test that is passed to a block that
//! branches on it becomes two edges.
//!
//! A filter in the 1987 stack language computes all tests and combines them at the
//! end. After this pass, such a filter is the same chain of branches that the other
//! languages yield.

use super::cond::Cond;
use super::graph::{Flow, Graph, HAS_TEST, Node};
use super::substitute::Substitution;
use crate::ir::{BinOp, Block, Cmp, Edge, Op, Operand, Value};

/// Largest size, in operations, of a value that is split by trying both outcomes of
/// one of its tests.
const EXPAND_SIZE_MAX: u16 = 64;

/// Splits all truth values in a graph; returns whether anything changed.
pub(crate) fn split(graph: &mut Graph) -> bool {
    if !graph.info.iter().any(|info| info.flags & HAS_TEST != 0) {
        return false;
    }
    let mut splitter = Splitter {
        work: (0..graph.nodes.len() as u32).rev().collect(),
        // Trying both outcomes may double a value for each of its tests.
        expansions: 64 + 2 * graph.nodes.len(),
        effects_kept: vec![false; graph.nodes.len()],
        changed: false,
        graph,
    };
    while let Some(index) = splitter.work.pop() {
        let room = splitter.graph.nodes.len() + 4 <= splitter.graph.nodes_max;
        if room && splitter.step(index as usize) {
            splitter.changed = true;
            splitter.work.push(index);
        }
    }
    splitter.changed
}

struct Splitter<'g> {
    graph: &'g mut Graph,
    work: Vec<u32>,
    expansions: usize,
    /// For each node, whether the effects of its subject are kept by the node itself
    /// or by a node before it.
    effects_kept: Vec<bool>,
    changed: bool,
}

/// The targets of a branch.
struct BranchTargets {
    then: Edge,
    otherwise: Edge,
}

impl Splitter<'_> {
    /// Rewrites the terminator of a node once; false if no rule applies.
    fn step(&mut self, index: usize) -> bool {
        match self.graph.nodes[index].flow.clone() {
            Flow::Branch {
                cond,
                then,
                otherwise,
            } => self.step_branch(index, cond, BranchTargets { then, otherwise }),
            Flow::Return(Operand::Val(value)) => self.step_return(index, value),
            Flow::Return(Operand::Imm(_)) => false,
            Flow::Jump(edge) => self.step_jump(index, &edge),
        }
    }

    fn step_return(&mut self, index: usize, value: Value) -> bool {
        if !self.graph.has(value, HAS_TEST) {
            return false;
        }
        if !self.graph.info(value).known.is_bool() {
            return self.expand(index, value);
        }
        self.retain_effects(index);
        let then = Edge::to(self.node(Flow::Return(Operand::Imm(1))));
        let otherwise = Edge::to(self.node(Flow::REJECT));
        let cond = self.graph.cond(Cmp::Ne, value.into(), 0.into());
        self.graph.nodes[index].flow = cond.branch(then, otherwise);
        true
    }

    /// Keeps the effects of the subject of node `index` before the subject is split.
    fn retain_effects(&mut self, index: usize) {
        if !std::mem::replace(&mut self.effects_kept[index], true) {
            self.graph.retain_subject_effects(index);
        }
    }

    /// Splits a jump that passes a truth value to a block that branches on it.
    fn step_jump(&mut self, index: usize, edge: &Edge) -> bool {
        let target = &self.graph.nodes[edge.block.index()];
        let position = edge
            .args
            .iter()
            .zip(&target.params)
            .position(|(arg, &param)| {
                arg.value().is_some_and(|arg| {
                    self.graph.has(arg, HAS_TEST)
                        && self.graph.info(arg).known.is_bool()
                        && self.depends_on(target, param)
                })
            });
        let Some(position) = position else {
            return false;
        };
        let with = |constant| {
            let mut edge = edge.clone();
            edge.args[position] = Operand::Imm(constant);
            edge
        };
        let cond = self.graph.cond(Cmp::Ne, edge.args[position], 0.into());
        self.graph.nodes[index].flow = cond.branch(with(1), with(0));
        true
    }

    /// Whether the subject of `node` contains `param`. The search visits at most 16
    /// operations, then returns false.
    fn depends_on(&self, node: &Node, param: Value) -> bool {
        let mut stack: Vec<Value> = node.flow.subject().into_iter().collect();
        for _ in 0..16 {
            let Some(value) = stack.pop() else {
                return false;
            };
            if value == param {
                return true;
            }
            stack.extend(self.graph.op(value).operands().filter_map(Operand::value));
        }
        false
    }

    fn step_branch(&mut self, index: usize, cond: Value, sides: BranchTargets) -> bool {
        let Op::Test { cmp, a, b } = self.graph.op(cond) else {
            return false;
        };
        let mixed = |operand: Operand| {
            let value = operand
                .value()
                .filter(|&value| self.graph.has(value, HAS_TEST));
            value.is_some()
        };
        if !mixed(a) && !mixed(b) {
            return false;
        }
        match (cmp, a, b) {
            (Cmp::Eq, Operand::Val(value), Operand::Imm(0)) => {
                let swapped = BranchTargets {
                    then: sides.otherwise.clone(),
                    otherwise: sides.then.clone(),
                };
                self.split_set(index, cond, value, u32::MAX, swapped)
            }
            (Cmp::Set, Operand::Val(value), Operand::Imm(mask)) => {
                self.split_set(index, cond, value, mask, sides)
            }
            (Cmp::Eq, Operand::Val(x), Operand::Val(y)) if self.are_bools(x, y) => {
                self.split_eq(index, x, y, sides);
                true
            }
            _ => self.expand(index, cond),
        }
    }

    fn are_bools(&self, x: Value, y: Value) -> bool {
        self.graph.info(x).known.is_bool() && self.graph.info(y).known.is_bool()
    }

    /// Splits a branch on `value & mask != 0`.
    fn split_set(
        &mut self,
        index: usize,
        cond: Value,
        value: Value,
        mask: u32,
        sides: BranchTargets,
    ) -> bool {
        self.retain_effects(index);
        let possible = mask & self.graph.info(value).known.possible();
        let Op::Bin { op, a, b } = self.graph.op(value) else {
            return self.expand(index, cond);
        };
        let (first, second) = match op {
            BinOp::Or => {
                let second = self.graph.cond(Cmp::Set, b, mask.into());
                let rest = self.branch(second, &sides);
                (a, (sides.then, Edge::to(rest)))
            }
            BinOp::And if possible.is_power_of_two() => {
                let second = self.graph.cond(Cmp::Set, b, possible.into());
                let rest = self.branch(second, &sides);
                (a, (Edge::to(rest), sides.otherwise))
            }
            _ => return self.expand(index, cond),
        };
        let mask = if op == BinOp::Or { mask } else { possible };
        let cond = self.graph.cond(Cmp::Set, first, mask.into());
        self.graph.nodes[index].flow = cond.branch(second.0, second.1);
        true
    }

    /// Splits a branch on the equality of two truth values.
    fn split_eq(&mut self, index: usize, x: Value, y: Value, sides: BranchTargets) {
        self.retain_effects(index);
        let swapped = BranchTargets {
            then: sides.otherwise.clone(),
            otherwise: sides.then.clone(),
        };
        let second = self.graph.cond(Cmp::Ne, y.into(), 0.into());
        let same = self.branch(second, &sides);
        let other = self.branch(second, &swapped);
        let first = self.graph.cond(Cmp::Ne, x.into(), 0.into());
        self.graph.nodes[index].flow = first.branch(Edge::to(same), Edge::to(other));
    }

    /// Branches on the innermost test inside `value`, the node's subject, and replaces
    /// the test by its outcome in both targets; false at a limit.
    fn expand(&mut self, index: usize, value: Value) -> bool {
        if self.expansions == 0 || self.graph.info(value).size > EXPAND_SIZE_MAX {
            return false;
        }
        let Some(test) = self.innermost_test(value) else {
            return false;
        };
        self.expansions -= 1;
        self.retain_effects(index);
        let [then, otherwise] = [1, 0].map(|outcome| {
            let mut substitution = Substitution::of_test(test, Operand::Imm(outcome));
            let result = substitution.apply(self.graph, value.into());
            let flow = self.replaced(index, result);
            Edge::to(self.node(flow))
        });
        self.graph.nodes[index].flow = Flow::Branch {
            cond: test,
            then,
            otherwise,
        };
        true
    }

    /// The terminator of node `index` with its subject replaced; `None` rejects.
    fn replaced(&mut self, index: usize, subject: Option<Operand>) -> Flow {
        let Some(subject) = subject else {
            return Flow::REJECT;
        };
        match self.graph.nodes[index].flow.clone() {
            Flow::Branch {
                then, otherwise, ..
            } => {
                let cond = self.graph.cond(Cmp::Ne, subject, 0.into());
                cond.branch(then, otherwise)
            }
            _ => Flow::Return(subject),
        }
    }

    /// A test strictly inside `value` that contains no other test.
    fn innermost_test(&self, value: Value) -> Option<Value> {
        let mut current = value;
        loop {
            let inner = self.graph.op(current).operands().filter_map(Operand::value);
            let Some(next) = inner
                .filter(|&operand| self.graph.has(operand, HAS_TEST))
                .last()
            else {
                let is_test = matches!(self.graph.op(current), Op::Test { .. });
                return (is_test && current != value).then_some(current);
            };
            current = next;
        }
    }

    fn branch(&mut self, cond: Cond, sides: &BranchTargets) -> Block {
        let flow = cond.branch(sides.then.clone(), sides.otherwise.clone());
        self.node(flow)
    }

    fn node(&mut self, flow: Flow) -> Block {
        self.graph.nodes.push(Node::new(flow));
        let block = Block(self.graph.nodes.len() as u32 - 1);
        self.work.push(block.0);
        self.effects_kept.push(true);
        block
    }
}
