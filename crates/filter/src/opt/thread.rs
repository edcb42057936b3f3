//! Dominated tests and jump threading: a branch whose outcome is known where
//! it stands becomes a jump, and an edge whose facts decide its target's test
//! leads straight to where that test would send it.
//!
//! One walk down the dominator tree. A node is visited after all its
//! predecessors, so how many bytes every way into it has checked
//! (`captured`), and whether anything still leads to it, is exact for the
//! edges as they are by then.
//!
//! An edge may skip a block only with what the block may reject: loads at
//! fixed positions that lie within `captured`, or within what every way on
//! from there needs anyway (`awaited`); other operations only if they are
//! known to have been carried out.

use super::dominators::Tree;
use super::facts::{Choices, Facts};
use super::graph::{Flow, Graph, HAS_PARAM};
use super::substitute::Substitution;
use crate::ir::{Block, Edge, Op, Operand, Value};

/// Edges skip this many blocks in one pass, per block: long chains of decided
/// tests take more passes, not quadratic time.
const SKIPS_PER_NODE: usize = 8;

/// Threads every edge of a tidy graph; gives whether anything changed.
pub(crate) fn thread(graph: &mut Graph) -> bool {
    let tree = Tree::of(graph);
    let count = graph.nodes.len();
    let mut state = Threader {
        awaited: awaited(graph),
        facts: Facts::default(),
        captured: vec![u32::MAX; count],
        live: vec![false; count],
        entry: vec![None; count],
        choices: vec![Join::Nothing; count],
        escapes: escapes(graph),
        marks: Vec::new(),
        skips_left: SKIPS_PER_NODE * count + 64,
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
    state.changed
}

/// For each node, how many captured bytes every way on from it needs or
/// rejects without; `u32::MAX` where every way rejects.
pub(crate) fn awaited(graph: &Graph) -> Vec<u32> {
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

/// For each node, whether a parameter of its is used in another node.
fn escapes(graph: &Graph) -> Vec<bool> {
    let mut escapes = vec![false; graph.nodes.len()];
    let mut home = std::collections::HashMap::new();
    for (index, node) in graph.nodes.iter().enumerate() {
        home.extend(node.params.iter().map(|&param| (param, index)));
    }
    if home.is_empty() {
        return escapes;
    }
    let mut seen = vec![u32::MAX; graph.ops.len()];
    let mut stack = Vec::new();
    for (index, node) in graph.nodes.iter().enumerate() {
        stack.extend(node.effects.iter().copied());
        stack.extend(node.flow.subject());
        let args = node.flow.edges().flat_map(|edge| &edge.args);
        stack.extend(args.filter_map(|arg| arg.value()));
        while let Some(value) = stack.pop() {
            let stamp = &mut seen[value.index()];
            if !graph.has(value, HAS_PARAM) || *stamp == index as u32 {
                continue;
            }
            *stamp = index as u32;
            if let Some(&owner) = home.get(&value)
                && owner != index
            {
                escapes[owner] = true;
            }
            stack.extend(graph.op(value).operands().filter_map(Operand::value));
        }
    }
    escapes
}

struct Threader<'g> {
    graph: &'g mut Graph,
    facts: Facts,
    awaited: Vec<u32>,
    /// Captured bytes that every way into a node has checked.
    captured: Vec<u32>,
    live: Vec<bool>,
    /// The test, and its outcome, of a node's only way in.
    entry: Vec<Option<(Value, bool)>>,
    /// What the ways into a node have in common.
    choices: Vec<Join>,
    escapes: Vec<bool>,
    marks: Vec<usize>,
    skips_left: usize,
    changed: bool,
}

/// What the edges into a node that are final say of one value.
#[derive(Clone, Copy, Debug)]
enum Join {
    /// There are none yet.
    Nothing,
    /// Along each the value is one of these constants.
    OneOf(Value, Choices),
    /// Nothing in common.
    Various,
}

impl Threader<'_> {
    fn enter(&mut self, index: usize, tree: &Tree) {
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
        if let Join::OneOf(value, choices) = self.choices[index] {
            self.facts.choose(self.graph, value, choices);
        }
        for position in 0..self.graph.nodes[index].effects.len() {
            let effect = self.graph.nodes[index].effects[position];
            self.facts.carry_out(self.graph, effect, |_| {});
        }
        let node = &mut self.graph.nodes[index];
        let flow = std::mem::replace(&mut node.flow, Flow::REJECT);
        let flow = match flow {
            Flow::Return(verdict) => Flow::Return(self.verdict(index, verdict)),
            Flow::Jump(edge) => self.jump(index, edge),
            Flow::Branch {
                cond,
                then,
                otherwise,
            } => self.branch(index, cond, [then, otherwise], tree),
        };
        self.graph.nodes[index].flow = flow;
    }

    /// Ends node `index`, from which every way rejects, right away.
    fn reject(&mut self, index: usize) {
        let node = &mut self.graph.nodes[index];
        self.changed |= !node.is_reject() || node.bound > 0 || !node.effects.is_empty();
        node.reject();
    }

    /// The bytes that are known to be captured after node `index`, which ends
    /// with `subject`.
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
        let join = match self.facts.last_choice() {
            Some(value) => self.join_with(&edge, value),
            None => Join::Various,
        };
        self.arrive(&edge, captured, join);
        Flow::Jump(edge)
    }

    fn branch(&mut self, index: usize, cond: Value, edges: [Edge; 2], tree: &Tree) -> Flow {
        let mut effects = Vec::new();
        let decided = self.facts.decide(self.graph, cond);
        self.facts
            .carry_out(self.graph, cond, |effect| effects.push(effect));
        let [then, otherwise] = edges;
        if let Some(holds) = decided {
            self.keep_checks(index, cond, &effects);
            return self.jump(index, if holds { then } else { otherwise });
        }
        if then.block != otherwise.block {
            for (edge, holds) in [(&then, true), (&otherwise, false)] {
                if tree.in_edges[edge.block.index()] == 1 {
                    self.entry[edge.block.index()] = Some((cond, holds));
                }
            }
        }
        let captured = self.captured_after(index, Some(cond));
        let mut joins = [Join::Nothing; 2];
        let [then, otherwise] = [(then, true), (otherwise, false)].map(|(edge, holds)| {
            let mark = self.facts.mark();
            self.facts.assume(self.graph, cond, holds);
            let edge = self.follow(edge, captured);
            joins[usize::from(!holds)] = self.joined(&edge, cond);
            self.facts.undo_to(mark);
            edge
        });
        if then == otherwise {
            self.keep_checks(index, cond, &effects);
            return self.jump(index, then);
        }
        self.arrive(&then, captured, joins[0]);
        // Both may lead to one block, with different arguments.
        let join = match then.block == otherwise.block {
            true => Join::Various,
            false => joins[1],
        };
        self.arrive(&otherwise, captured, join);
        Flow::Branch {
            cond,
            then,
            otherwise,
        }
    }

    /// A returned value as the constant that it must be here, if one.
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
        self.keep_checks(index, value, &effects);
        Operand::Imm(constant)
    }

    /// Makes node `index` still reject what computing `cond` would have.
    fn keep_checks(&mut self, index: usize, cond: Value, effects: &[Value]) {
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

    /// Makes `edge` final: `captured` bytes are known along it.
    fn arrive(&mut self, edge: &Edge, captured: u32, join: Join) {
        let target = edge.block.index();
        self.live[target] = true;
        self.captured[target] = self.captured[target].min(captured);
        self.choices[target] = join;
    }

    /// What the edges into the target of `edge`, which a test `cond` ends in,
    /// have in common with it.
    fn joined(&self, edge: &Edge, cond: Value) -> Join {
        let value = match self.graph.op(cond) {
            Op::Test {
                a: Operand::Val(value),
                b: Operand::Imm(_),
                ..
            } if self.facts.choices(self.graph, value).is_some() => Some(value),
            _ => self.facts.last_choice(),
        };
        value.map_or(Join::Various, |value| self.join_with(edge, value))
    }

    /// As [`joined`](Self::joined), if `edge` is the first one, for `value`.
    fn join_with(&self, edge: &Edge, value: Value) -> Join {
        let (value, so_far) = match self.choices[edge.block.index()] {
            Join::Nothing => (value, None),
            Join::OneOf(value, so_far) => (value, Some(so_far)),
            Join::Various => return Join::Various,
        };
        let Some(here) = self.facts.choices(self.graph, value) else {
            return Join::Various;
        };
        let all = so_far.map_or(Some(here), |so_far| so_far.or(here));
        all.map_or(Join::Various, |all| Join::OneOf(value, all))
    }

    /// Where `edge` leads under the facts that hold along it.
    fn follow(&mut self, mut edge: Edge, captured: u32) -> Edge {
        while self.skips_left > 0 {
            let Some(next) = self.skip(&edge, captured) else {
                break;
            };
            self.skips_left -= 1;
            self.changed = true;
            edge = next;
        }
        edge
    }

    /// The edge past the block that `edge` leads to, if it can be skipped.
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
                } => match self.facts.decide(self.graph, *cond)? {
                    true => then,
                    false => otherwise,
                },
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

    /// Whether an edge along which `captured` bytes are known may go past
    /// node `index` on to `next`.
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
                let values: Vec<Value> = target.effects.iter().chain(&subject).copied().collect();
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
