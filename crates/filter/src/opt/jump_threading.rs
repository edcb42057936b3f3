//! Jump threading and elimination of dominated tests. A branch with a known outcome
//! becomes a jump. An edge whose facts decide the test of its target is redirected
//! to the test's outcome.
//!
//! The pass is one walk down the dominator tree. A node is visited after all its
//! predecessors. At that time two facts are exact for the current edges: the bytes
//! that every incoming edge has checked (`captured`), and whether the node is live.
//!
//! There are three kinds of facts:
//!
//! - Tests and effects of the dominators hold in the whole subtree. They also hold
//!   on edges redirected past the node that they come from, since a redirection
//!   requires them.
//! - The facts common to all edges into a node (`joins`) hold in that node alone,
//!   and are passed on along its edges.
//! - `captured` is passed on in the same way.
//!
//! An edge may skip a block only if the block's effects are redundant. A load at a
//! fixed position must lie within `captured`, or within the bytes that every path
//! from there needs (`anticipated_bounds`). Other operations must already be done.

use super::compare_chain::CompareChains;
use super::facts::{Facts, ValueFact};
use super::graph::{Flow, Graph, NONE};
use super::substitute::Substitution;
use crate::ir::dominators::Dominators;
use crate::ir::{Block, Edge, Op, Operand, Value};

/// Maximum number of redirections of edges in one pass, per node. A long chain of decided
/// tests takes more passes instead of quadratic time.
const STEPS_PER_NODE: usize = 8;

/// One edge may use at most this fraction (1/N) of the remaining redirections, so
/// that a few long chains leave some for other edges.
const STEPS_SHARE: usize = 16;

/// Redirections that an edge may use in any case.
const STEPS_MIN: usize = 8;

/// Number of redirections of one edge between two look-ups in [`CompareChains`].
const CHAINS_REBUILD_INTERVAL: usize = 8;

/// Largest size, in operations, of a block's values for which arguments are
/// substituted; a shared operation counts at each use.
const WITH_ARGS_SIZE_MAX: usize = 512;

/// Threads every edge of a tidy graph; returns whether anything changed.
pub(crate) fn thread(graph: &mut Graph) -> bool {
    let tree = graph.take_tree();
    let count = graph.nodes.len();
    let mut state = JumpThreader {
        awaited: anticipated_bounds(graph),
        facts: Facts::default(),
        captured: vec![u32::MAX; count],
        live: vec![false; count],
        entry: vec![None; count],
        joins: vec![EdgeMeet::Nothing; count],
        escapes: escapes(graph),
        has_own: false,
        marks: Vec::new(),
        steps_left: STEPS_PER_NODE * count + 64,
        runs: None,
        changed: false,
        graph,
    };
    state.live[0] = true;
    state.captured[0] = 0;
    tree.walk(
        &mut state,
        |state, index| state.enter(index, &tree),
        |state, _| {
            let mark = state
                .marks
                .pop()
                .expect("each node is entered before it is left");
            state.facts.undo_to(mark);
        },
    );
    let changed = state.changed;
    if !changed {
        graph.put_tree(tree);
    }
    changed
}

/// For each node, the captured bytes that every path from it needs or else
/// rejects; `u32::MAX` if every path rejects.
pub(crate) fn anticipated_bounds(graph: &Graph) -> Vec<u32> {
    let mut awaited = vec![0; graph.nodes.len()];
    for (index, node) in graph.nodes.iter().enumerate().rev() {
        let ways = node.flow.edges().map(|edge| awaited[edge.block.index()]);
        let after = match node.flow {
            Flow::Return(Operand::Imm(0)) => u32::MAX,
            _ => ways.min().unwrap_or(0),
        };
        awaited[index] = after.max(graph.need(node));
    }
    awaited
}

/// For each node, whether another node uses one of its parameters.
fn escapes(graph: &Graph) -> Vec<bool> {
    if graph.nodes.iter().all(|node| node.params.is_empty()) {
        return vec![false; graph.nodes.len()];
    }
    // The node that uses each value; the number of nodes stands for several.
    let several = graph.nodes.len() as u32;
    let mut users = vec![NONE; graph.ops.len()];
    let use_in = |users: &mut [u32], value: Value, node: u32| {
        let user = &mut users[value.index()];
        *user = if *user == NONE || *user == node {
            node
        } else {
            several
        };
    };
    for (index, node) in graph.nodes.iter().enumerate() {
        let args = node.flow.edges().flat_map(|edge| &edge.args);
        let values = node.effects.iter().copied().chain(node.flow.subject());
        for value in values.chain(args.filter_map(|arg| arg.value())) {
            use_in(&mut users, value, index as u32);
        }
    }
    // Operands have lower indices than the operations that use them.
    for index in (0..graph.ops.len()).rev() {
        let user = users[index];
        if user != NONE {
            for operand in graph.ops[index].operands().filter_map(Operand::value) {
                use_in(&mut users, operand, user);
            }
        }
    }
    let is_elsewhere = |index: usize, param: &Value| {
        let user = users[param.index()];
        user != NONE && user != index as u32
    };
    let nodes = graph.nodes.iter().enumerate();
    nodes
        .map(|(index, node)| node.params.iter().any(|param| is_elsewhere(index, param)))
        .collect()
}

struct JumpThreader<'g> {
    graph: &'g mut Graph,
    facts: Facts,
    awaited: Vec<u32>,
    /// Captured bytes that every edge into a node has checked.
    captured: Vec<u32>,
    live: Vec<bool>,
    /// Test and outcome of the only edge into a node.
    entry: Vec<Option<(Value, bool)>>,
    /// Facts common to the edges into a node.
    joins: Vec<EdgeMeet>,
    escapes: Vec<bool>,
    /// Whether the visited node has facts beyond those of its dominators.
    has_own: bool,
    marks: Vec<usize>,
    steps_left: usize,
    /// Computed on first use.
    runs: Option<CompareChains>,
    changed: bool,
}

/// Facts common to the final edges into a node.
#[derive(Clone, Debug)]
enum EdgeMeet {
    /// No edge is final yet.
    Nothing,
    /// Facts that hold along each edge.
    Common(Vec<ValueFact>),
}

impl JumpThreader<'_> {
    fn enter(&mut self, index: usize, tree: &Dominators) {
        self.marks.push(self.facts.mark());
        if !self.live[index] {
            return;
        }
        if self.awaited[index] == u32::MAX {
            self.reject(index);
            return;
        }
        if let Some((cond, holds)) = self.entry[index] {
            self.facts.assume(self.graph, cond, holds);
        }
        let mark = self.facts.mark();
        if let EdgeMeet::Common(summary) =
            std::mem::replace(&mut self.joins[index], EdgeMeet::Nothing)
        {
            self.facts.add(self.graph, &summary);
        }
        self.has_own = self.facts.mark() != mark;
        self.carry_out_effects(index);
        let node = &mut self.graph.nodes[index];
        let flow = match std::mem::replace(&mut node.flow, Flow::REJECT) {
            Flow::Return(verdict) => Flow::Return(self.verdict(index, verdict)),
            Flow::Jump(edge) => self.jump(index, edge),
            Flow::Branch {
                cond,
                then,
                otherwise,
            } => self.branch(index, cond, [then, otherwise], tree),
        };
        self.graph.nodes[index].flow = flow;
        // Facts common to the edges into this node do not hold on edges redirected
        // past it, to nodes that it dominated so far.
        self.facts.undo_to(mark);
        self.carry_out_effects(index);
        if let Some(subject) = self.graph.nodes[index].flow.subject() {
            self.facts.carry_out(self.graph, subject, |_| {});
        }
    }

    fn carry_out_effects(&mut self, index: usize) {
        for &effect in &self.graph.nodes[index].effects {
            self.facts.carry_out(self.graph, effect, |_| {});
        }
    }

    /// Makes node `index`, from which every path rejects, reject at once.
    fn reject(&mut self, index: usize) {
        let node = &mut self.graph.nodes[index];
        self.changed |= !node.is_reject() || node.bound > 0 || !node.effects.is_empty();
        node.reject();
    }

    /// Captured bytes known after node `index`, whose subject is `subject`.
    fn captured_after(&self, index: usize, subject: Option<Value>) -> u32 {
        let own = self.graph.nodes[index].bound;
        let bound = subject.map_or(0, |value| self.graph.info(value).bound);
        self.captured[index].max(own).max(bound)
    }

    fn jump(&mut self, index: usize, edge: Edge) -> Flow {
        let captured = self.captured_after(index, None);
        let edge = self.follow(edge, captured);
        let target = &self.graph.nodes[edge.block.index()];
        if let Flow::Return(verdict) = target.flow
            && target.effects.is_empty()
            && target.bound <= captured
        {
            let params = target.params.clone();
            let pairs = params.into_iter().zip(edge.args.iter().copied());
            let verdict = if edge.args.is_empty() {
                Some(verdict)
            } else {
                Substitution::of_params(pairs).apply(self.graph, verdict)
            };
            self.changed = true;
            return verdict.map_or(Flow::REJECT, Flow::Return);
        }
        let join = self.joined(&edge);
        self.arrive(&edge, captured, join);
        Flow::Jump(edge)
    }

    fn branch(&mut self, index: usize, cond: Value, edges: [Edge; 2], tree: &Dominators) -> Flow {
        let mut effects = Vec::new();
        let decided = self.facts.decide(self.graph, cond);
        self.facts
            .carry_out(self.graph, cond, |effect| effects.push(effect));
        let [then, otherwise] = edges;
        if let Some(holds) = decided {
            self.retain_effects(index, cond, &effects);
            return self.jump(index, if holds { then } else { otherwise });
        }
        if then.block != otherwise.block {
            for (edge, holds) in [(&then, true), (&otherwise, false)] {
                if tree.in_edges()[edge.block.index()] == 1 {
                    self.entry[edge.block.index()] = Some((cond, holds));
                }
            }
        }
        let captured = self.captured_after(index, Some(cond));
        let [then, otherwise] = [(then, true), (otherwise, false)].map(|(edge, holds)| {
            let mark = self.facts.mark();
            self.facts.assume(self.graph, cond, holds);
            let block = edge.block;
            let edge = self.follow(edge, captured);
            self.facts.undo_to(mark);
            (block, edge)
        });
        if then.1 == otherwise.1 {
            self.retain_effects(index, cond, &effects);
            return self.jump(index, then.1);
        }
        let [(then, first), (otherwise, mut second)] =
            [(then, true), (otherwise, false)].map(|((block, edge), holds)| {
                // The only edge into a node has its facts by dominance, unless `has_own`.
                let is_own = edge.block == block && tree.in_edges()[block.index()] == 1;
                if is_own && !self.has_own {
                    return (edge, Vec::new());
                }
                let mark = self.facts.mark();
                self.facts.assume(self.graph, cond, holds);
                let join = self.joined(&edge);
                self.facts.undo_to(mark);
                (edge, join)
            });
        if then.block == otherwise.block {
            // The arguments differ, so a fact of one edge may not hold on the other.
            second.clear();
        }
        self.arrive(&then, captured, first);
        self.arrive(&otherwise, captured, second);
        Flow::Branch {
            cond,
            then,
            otherwise,
        }
    }

    /// Replaces a returned value by a constant, if the facts determine it.
    fn verdict(&mut self, index: usize, verdict: Operand) -> Operand {
        let Operand::Val(value) = verdict else {
            return verdict;
        };
        let Some(constant) = self.facts.exact(self.graph, verdict) else {
            return verdict;
        };
        let mut effects = Vec::new();
        self.facts
            .carry_out(self.graph, value, |effect| effects.push(effect));
        self.retain_effects(index, value, &effects);
        Operand::Imm(constant)
    }

    /// Adds the effects of computing `cond` to node `index`.
    fn retain_effects(&mut self, index: usize, cond: Value, effects: &[Value]) {
        self.changed = true;
        let mut node = std::mem::replace(
            &mut self.graph.nodes[index],
            super::graph::Node::new(Flow::REJECT),
        );
        self.graph.require_bound(&mut node, cond);
        for &effect in effects {
            self.graph.require(&mut node, effect);
        }
        self.graph.nodes[index] = node;
    }

    /// Makes `edge` final: `captured` bytes are known along it, and `join` holds the
    /// facts common to all edges to its target.
    fn arrive(&mut self, edge: &Edge, captured: u32, join: Vec<ValueFact>) {
        let target = edge.block.index();
        self.live[target] = true;
        self.captured[target] = self.captured[target].min(captured);
        self.joins[target] = EdgeMeet::Common(join);
    }

    /// The facts that hold here and on all earlier edges to the target of `edge`.
    fn joined(&mut self, edge: &Edge) -> Vec<ValueFact> {
        if let Flow::Return(Operand::Imm(_)) = self.graph.nodes[edge.block.index()].flow {
            return Vec::new();
        }
        match &mut self.joins[edge.block.index()] {
            EdgeMeet::Nothing => self.facts.summary(self.graph),
            EdgeMeet::Common(summary) => {
                let mut summary = std::mem::take(summary);
                self.facts.weaken(self.graph, &mut summary);
                summary
            }
        }
    }

    /// Redirects `edge` as far as the facts along it decide tests.
    fn follow(&mut self, mut edge: Edge, captured: u32) -> Edge {
        let steps_max = STEPS_MIN + self.steps_left / STEPS_SHARE;
        let mut steps = 0;
        while steps < steps_max {
            // Rarely, since the look-up costs more than a step.
            let leap = match steps % CHAINS_REBUILD_INTERVAL {
                4 => self.leap(&edge, captured),
                _ => None,
            };
            let Some(next) = leap.or_else(|| self.skip(&edge, captured)) else {
                break;
            };
            steps += 1;
            edge = next;
        }
        self.changed |= steps > 0;
        self.steps_left = self.steps_left.saturating_sub(steps);
        edge
    }

    /// Redirects `edge` past all tests of a known value, to the first that holds or to
    /// the end of the chain; `None` if the chain does not apply.
    fn leap(&mut self, edge: &Edge, captured: u32) -> Option<Edge> {
        let node = &self.graph.nodes[edge.block.index()];
        let Flow::Branch { cond, .. } = node.flow else {
            return None;
        };
        let Op::Test { a, .. } = self.graph.op(cond) else {
            return None;
        };
        let value = self.facts.exact(self.graph, a)?;
        if self.graph.need(node) > captured || !self.facts.all_done(self.graph, cond) {
            return None;
        }
        let runs = self
            .runs
            .get_or_insert_with(|| CompareChains::of(self.graph));
        let way = runs.resolve(edge.block, value)?;
        (way != *edge).then_some(way)
    }

    /// Redirects `edge` past its target block; `None` if the block must not be skipped.
    fn skip(&mut self, edge: &Edge, captured: u32) -> Option<Edge> {
        let index = edge.block.index();
        if self.escapes[index] {
            return None;
        }
        let target = &self.graph.nodes[index];
        if target.params.is_empty() {
            let next = match &target.flow {
                Flow::Return(_) => return None,
                Flow::Jump(next) => next,
                Flow::Branch {
                    cond,
                    then,
                    otherwise,
                } => {
                    if self.facts.decide(self.graph, *cond)? {
                        then
                    } else {
                        otherwise
                    }
                }
            };
            let next = next.clone();
            return self
                .may_skip(index, next.block, captured, None)
                .then_some(next);
        }
        self.skip_with_args(edge, captured)
    }

    fn skip_with_args(&mut self, edge: &Edge, captured: u32) -> Option<Edge> {
        let index = edge.block.index();
        let target = &self.graph.nodes[index];
        let values = target.effects.iter().copied().chain(target.flow.subject());
        let size: usize = values
            .map(|value| usize::from(self.graph.info(value).size))
            .sum();
        if size > WITH_ARGS_SIZE_MAX {
            return None;
        }
        let pairs = target.params.iter().copied().zip(edge.args.iter().copied());
        let mut substitution = Substitution::of_params(pairs);
        let mut next = match target.flow.clone() {
            Flow::Return(_) => return None,
            Flow::Jump(next) => next,
            Flow::Branch {
                cond,
                then,
                otherwise,
            } => {
                let holds = match substitution.apply(self.graph, cond.into())? {
                    Operand::Imm(constant) => constant != 0,
                    Operand::Val(cond) => self.facts.decide(self.graph, cond)?,
                };
                if holds { then } else { otherwise }
            }
        };
        if !self.may_skip(index, next.block, captured, Some(&mut substitution)) {
            return None;
        }
        for arg in &mut next.args {
            *arg = substitution.apply(self.graph, *arg)?;
        }
        Some(next)
    }

    /// Whether an edge with `captured` known bytes may go past node `index` to `next`.
    fn may_skip(
        &mut self,
        index: usize,
        next: Block,
        captured: u32,
        substitution: Option<&mut Substitution>,
    ) -> bool {
        if self.awaited[next.index()] == u32::MAX {
            return true;
        }
        let target = &self.graph.nodes[index];
        let need = self.graph.need(target);
        if need > captured && need > self.awaited[next.index()] {
            return false;
        }
        let subject = target.flow.subject();
        match substitution {
            None => {
                let mut values = target.effects.iter().chain(&subject);
                values.all(|&value| self.facts.all_done(self.graph, value))
            }
            Some(substitution) => {
                // Each value by itself: the arguments may fold the subject to a constant
                // although its parts have effects.
                let mut values = target.effects.clone();
                if let Some(subject) = subject {
                    values.extend(self.graph.effects_in(subject));
                    values.push(subject);
                }
                values.into_iter().all(|value| {
                    let replaced = substitution.apply(self.graph, value.into());
                    match replaced {
                        None => false,
                        Some(Operand::Imm(_)) => true,
                        Some(Operand::Val(value)) => {
                            self.graph.info(value).bound <= captured
                                && self.facts.all_done(self.graph, value)
                        }
                    }
                })
            }
        }
    }
}
