//! Tests of one value put side by side, so that it is loaded once.
//!
//! `port 80 or 443` tests source and destination for 80, then both for 443. In
//! a chain of blocks that all leave to one block when they are done, and have
//! no other way in, the tests may change places as long as none comes before
//! one that might have rejected, nor rejects before its turn: a test may move
//! up only over tests whose loads are certain to be in bounds, and only if its
//! own are. If leaving means to reject, nothing of that matters: the chain
//! accepts only what passes every test.

use super::bounds_checks::captured_before;
use super::facts::Facts;
use super::graph::{Flow, Graph};
use crate::ir::dominators::Dominators;
use crate::ir::{Block, Edge, Op, Operand, Value};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Reorders the chains of a tidy graph; gives whether anything changed.
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
            // What was tested on the way in, if there is one way.
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

/// Branches in a row that all leave to one place.
struct Chain {
    nodes: Vec<usize>,
    /// Where each of them leaves to.
    exit: Edge,
    /// Where the last one goes on to.
    end: Edge,
}

/// The longest chain that starts at node `index`.
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

/// Whether there are tests of one value with others between, `before` being
/// the value tested last before the chain.
fn is_interleaved(graph: &Graph, chain: &Chain, before: Operand) -> bool {
    // Most chains are short: a list is faster than a set until it is long.
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

/// Where the block that `edge` leads to goes on to if it belongs to the chain
/// that leaves to `exit`.
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

/// The value that a node's test needs first.
fn tested(graph: &Graph, index: usize) -> Operand {
    let cond = graph.nodes[index].flow.subject();
    match cond.map(|cond| graph.op(cond)) {
        Some(Op::Test { a, .. }) => a,
        _ => Operand::Imm(0),
    }
}

/// The tests of a chain in their new order, as positions in the old one.
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

/// Puts the tests of a chain in their new order; false if it is the old one.
fn arrange(graph: &mut Graph, chain: &Chain, order: &[usize]) -> bool {
    if order.iter().enumerate().all(|(to, &from)| to == from) {
        return false;
    }
    let old: Vec<Option<(Value, bool)>> = chain
        .nodes
        .iter()
        .map(|&index| match &graph.nodes[index].flow {
            // A test, and whether the chain is left when it holds.
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
        let (then, otherwise) = match leaves_if {
            true => (exit, next),
            false => (next, exit),
        };
        graph.nodes[chain.nodes[to]].flow = Flow::Branch {
            cond,
            then,
            otherwise,
        };
    }
    true
}

/// Picks the next test again and again: one of the same value if allowed, else
/// the first in the old order. Linear.
struct TestOrder<'g> {
    graph: &'g Graph,
    /// The tests, each with the value that it needs first.
    tests: Vec<(Value, Operand)>,
    /// Bytes known to be captured.
    captured: u32,
    facts: &'g mut Facts,
    /// Tests before this one may be done in any order.
    limit: usize,
    /// Those tests by value, with some that have been done.
    free: BTreeMap<Operand, VecDeque<usize>>,
    /// Whether all tests may be done in any order.
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
                // It was the head before.
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

    /// Frees every test up to the first that may reject.
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
