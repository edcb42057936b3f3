//! Reordering of tests, so that tests of one value are adjacent and the value is
//! loaded once.
//!
//! `port 80 or 443` tests source and destination for 80, then both for 443. In a
//! chain, all branches leave to one common exit, and no other edge leads into the
//! chain. Tests of a chain may change places under these conditions:
//!
//! - A test moves up only over tests whose loads are certain to be in bounds, and
//!   only if its own loads are. Otherwise another frame would be rejected.
//! - If the exit rejects, any order is correct: the chain accepts only frames that
//!   pass every test.

use super::bounds_checks::captured_before;
use super::facts::Facts;
use super::graph::{Flow, Graph};
use crate::ir::dominators::Dominators;
use crate::ir::{Block, Edge, Op, Operand, Value};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Reorders the chains of a tidy graph; returns whether anything changed.
pub(crate) fn reorder(graph: &mut Graph) -> bool {
    let tree = graph.take_tree();
    let mut walk = Reorder {
        captured: captured_before(graph),
        in_chain: vec![false; graph.nodes.len()],
        facts: Facts::default(),
        marks: Vec::new(),
        changed: false,
        graph,
    };
    tree.walk(
        &mut walk,
        |walk, index| walk.enter(index, &tree),
        |walk, _| {
            let mark = walk
                .marks
                .pop()
                .expect("each node is entered before it is left");
            walk.facts.undo_to(mark);
        },
    );
    let changed = walk.changed;
    if !changed {
        graph.put_tree(tree);
    }
    changed
}

struct Reorder<'g> {
    graph: &'g mut Graph,
    captured: Vec<u32>,
    in_chain: Vec<bool>,
    facts: Facts,
    marks: Vec<usize>,
    changed: bool,
}

impl Reorder<'_> {
    fn enter(&mut self, index: usize, tree: &Dominators) {
        self.marks.push(self.facts.mark());
        for position in 0..self.graph.nodes[index].effects.len() {
            let effect = self.graph.nodes[index].effects[position];
            self.facts.carry_out(self.graph, effect, |_| {});
        }
        if !self.in_chain[index]
            && let Some(chain) = chain_from(self.graph, index, tree.in_edges())
        {
            for &index in &chain.nodes[..chain.nodes.len() - 1] {
                self.in_chain[index] = true;
            }
            // The value tested right before the chain, if only one edge enters it.
            let parent = tree.parents()[index].index();
            let before = match tree.in_edges()[index] {
                1 => tested(self.graph, parent),
                _ => Operand::Imm(0),
            };
            if is_interleaved(self.graph, &chain, before) {
                let captured = self.captured[index].max(self.graph.nodes[index].bound);
                let mark = self.facts.mark();
                let order = schedule(self.graph, &chain, captured, before, &mut self.facts);
                self.facts.undo_to(mark);
                self.changed |= arrange(self.graph, &chain, &order);
            }
        }
        if let Some(subject) = self.graph.nodes[index].flow.subject() {
            self.facts.carry_out(self.graph, subject, |_| {});
        }
    }
}

/// A sequence of branches with a common exit.
struct Chain {
    nodes: Vec<usize>,
    /// The edge by which each branch may leave.
    exit: Edge,
    /// The edge by which the last branch continues.
    end: Edge,
}

/// The longest chain that starts at node `index`; `None` if shorter than two.
fn chain_from(graph: &Graph, index: usize, ways_in: &[u32]) -> Option<Chain> {
    let Flow::Branch {
        then, otherwise, ..
    } = &graph.nodes[index].flow
    else {
        return None;
    };
    let chains = [(then, otherwise), (otherwise, then)];
    chains
        .into_iter()
        .find_map(|(exit, next)| follow(graph, index, exit, next, ways_in))
}

/// Whether tests of one value have tests of other values between them. `before` is
/// the value tested last before the chain.
fn is_interleaved(graph: &Graph, chain: &Chain, before: Operand) -> bool {
    // Most chains are short, and a short list is faster than a set.
    let (mut listed, mut more) = (Vec::new(), BTreeSet::new());
    let mut last = before;
    chain.nodes.iter().any(|&index| {
        let subject = tested(graph, index);
        if last != subject {
            if listed.len() < 16 {
                listed.push(last);
            } else {
                more.insert(last);
            }
            last = subject;
        }
        listed.contains(&subject) || more.contains(&subject)
    })
}

fn follow<'g>(
    graph: &'g Graph,
    index: usize,
    exit: &Edge,
    mut next: &'g Edge,
    ways_in: &[u32],
) -> Option<Chain> {
    let mut nodes = vec![index];
    while let Some(onward) = link(graph, next, exit, ways_in) {
        nodes.push(next.block.index());
        next = onward;
    }
    (nodes.len() > 1).then(|| Chain {
        nodes,
        exit: exit.clone(),
        end: next.clone(),
    })
}

/// The edge by which the target of `edge` continues, if the target belongs to the
/// chain with this `exit`; else `None`.
fn link<'g>(graph: &'g Graph, edge: &Edge, exit: &Edge, ways_in: &[u32]) -> Option<&'g Edge> {
    let index = edge.block.index();
    let node = &graph.nodes[index];
    let plain = node.params.is_empty() && node.effects.is_empty() && node.bound == 0;
    let Flow::Branch {
        then, otherwise, ..
    } = &node.flow
    else {
        return None;
    };
    if !plain || ways_in[index] != 1 {
        None
    } else if then == exit {
        Some(otherwise)
    } else {
        (otherwise == exit).then_some(then)
    }
}

/// The left operand of a node's test.
fn tested(graph: &Graph, index: usize) -> Operand {
    let cond = graph.nodes[index].flow.subject();
    match cond.map(|cond| graph.op(cond)) {
        Some(Op::Test { a, .. }) => a,
        _ => Operand::Imm(0),
    }
}

/// The tests of a chain in the new order, as positions in the old order.
fn schedule(
    graph: &Graph,
    chain: &Chain,
    captured: u32,
    before: Operand,
    facts: &mut Facts,
) -> Vec<usize> {
    let nodes = chain.nodes.iter();
    let scheduler = TestOrder {
        tests: nodes
            .filter_map(|&index| Some((graph.nodes[index].flow.subject()?, tested(graph, index))))
            .collect(),
        rejects: graph.nodes[chain.exit.block.index()].is_reject(),
        graph,
        captured,
        facts,
        limit: 0,
        free: BTreeMap::new(),
    };
    scheduler.order(before)
}

/// Rewrites a chain in the new order; false if the order is unchanged.
fn arrange(graph: &mut Graph, chain: &Chain, order: &[usize]) -> bool {
    if order.iter().enumerate().all(|(to, &from)| to == from) {
        return false;
    }
    let old: Vec<Option<(Value, bool)>> = chain
        .nodes
        .iter()
        .map(|&index| match &graph.nodes[index].flow {
            // A test, and the outcome at which the chain is left.
            Flow::Branch { cond, then, .. } => Some((*cond, *then == chain.exit)),
            _ => None,
        })
        .collect();
    for (to, &from) in order.iter().enumerate() {
        let next = match chain.nodes.get(to + 1) {
            Some(&next) => Edge::to(Block(next as u32)),
            None => chain.end.clone(),
        };
        let (cond, leaves_if) = old[from].expect("a chain is made of branches");
        let exit = chain.exit.clone();
        let (then, otherwise) = if leaves_if {
            (exit, next)
        } else {
            (next, exit)
        };
        graph.nodes[chain.nodes[to]].flow = Flow::Branch {
            cond,
            then,
            otherwise,
        };
    }
    true
}

/// Picks the next test repeatedly: one of the same value if allowed, else the first
/// in the old order. Linear time.
struct TestOrder<'g> {
    graph: &'g Graph,
    /// The tests, each with its left operand.
    tests: Vec<(Value, Operand)>,
    /// Bytes known to be captured.
    captured: u32,
    facts: &'g mut Facts,
    /// All tests before this position may run in any order.
    limit: usize,
    /// Tests before `limit` by value; some may have been picked already.
    free: BTreeMap<Operand, VecDeque<usize>>,
    /// Whether the exit rejects, so that all tests may run in any order.
    rejects: bool,
}

impl TestOrder<'_> {
    fn order(mut self, before: Operand) -> Vec<usize> {
        let count = self.tests.len();
        let mut order = Vec::with_capacity(count);
        let mut taken = vec![false; count];
        let (mut head, mut subject) = (0, before);
        self.advance();
        while order.len() < count {
            while taken.get(head) == Some(&true) {
                head += 1;
            }
            let free = self.free.get_mut(&subject);
            let next = free.and_then(VecDeque::pop_front).unwrap_or(head);
            if std::mem::replace(&mut taken[next], true) {
                // Already picked as `head`.
                continue;
            }
            order.push(next);
            let (cond, tested) = self.tests[next];
            subject = tested;
            self.captured = self.captured.max(self.graph.info(cond).bound);
            self.facts.carry_out(self.graph, cond, |_| {});
            if next == self.limit {
                self.limit += 1;
            }
            self.advance();
        }
        order
    }

    /// Extends `limit` up to the first test that may reject.
    fn advance(&mut self) {
        while let Some(&(cond, subject)) = self.tests.get(self.limit) {
            let certain = self.graph.info(cond).bound <= self.captured
                && self.facts.all_done(self.graph, cond);
            if !self.rejects && !certain {
                return;
            }
            self.free.entry(subject).or_default().push_back(self.limit);
            self.limit += 1;
        }
    }
}
