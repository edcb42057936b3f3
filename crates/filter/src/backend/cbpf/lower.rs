//! Brings a graph into the form that instructions are selected from: tests
//! only as what branches compare, arguments only on jumps.

use super::EmitError;
use crate::ir::{Block, Cmp, Edge, Op, Operand, Value, limits};
use crate::lang::cbpf::code::SKF_LL_OFF;
use crate::opt::cond::Cond;
use crate::opt::graph::{Flow, Graph, HAS_TEST, Node};
use crate::opt::substitute::Substitution;
use crate::opt::{bounds_checks, split_branch, tail_merge};
use std::collections::BTreeSet;

/// Lowers a tidy graph, and leaves it tidy.
pub(super) fn lower(graph: &mut Graph) -> Result<(), EmitError> {
    if split_branch::split(graph) {
        graph.tidy();
    }
    lower_tests(graph)?;
    graph.tidy();
    bounds_checks::minimise(graph);
    if tail_merge::merge(graph) {
        graph.tidy();
    }
    split_edges(graph);
    graph.tidy();
    reject_special_addresses(graph);
    if graph.nodes.len() > limits::BLOCKS_MAX {
        let max = limits::BLOCKS_MAX;
        return Err(EmitError::Blocks { max });
    }
    Ok(())
}

/// Addresses that the kernel gives another meaning are outside every frame:
/// blocks that load from there reject. Some come to be only when truth values
/// are split.
fn reject_special_addresses(graph: &mut Graph) {
    let mut special = Vec::with_capacity(graph.ops.len());
    for (op, info) in graph.ops.iter().zip(&graph.info) {
        let own = matches!(op, Op::Load { offset, .. } if *offset >= SKF_LL_OFF);
        let mut operands = op.operands().filter_map(Operand::value);
        let inside = operands.any(|operand: Value| special[operand.index()]);
        special.push(own || inside || info.bound > SKF_LL_OFF);
    }
    if !special.contains(&true) {
        return;
    }
    for node in &mut graph.nodes {
        // Only jumps pass arguments by now, so these are computed for certain.
        let args = node.flow.edges().flat_map(|edge| &edge.args);
        let values = node.effects.iter().copied().chain(node.flow.subject());
        let mut values = values.chain(args.filter_map(|arg| arg.value()));
        let rejects = node.bound > SKF_LL_OFF || values.any(|value| special[value.index()]);
        drop(values);
        if rejects {
            node.reject();
        }
    }
    graph.tidy();
}

/// Takes every test out of the values that contain one: the block branches on
/// it, and a parameter of the block behind carries its outcome.
fn lower_tests(graph: &mut Graph) -> Result<(), EmitError> {
    // The same tests may be taken out in many places.
    let max = limits::BLOCKS_MAX.min(4 * graph.nodes_max);
    for index in 0..graph.nodes.len() {
        let tests = nested_tests(graph, &graph.nodes[index]);
        if graph.nodes.len() + tests.len() > max {
            return Err(EmitError::Blocks { max });
        }
        if !tests.is_empty() {
            take_out(graph, index, tests);
        }
    }
    Ok(())
}

/// The tests that a node computes for other than to branch on them, each
/// behind those that it contains.
fn nested_tests(graph: &Graph, node: &Node) -> Vec<Value> {
    let args = node.flow.edges().flat_map(|edge| &edge.args);
    let args = args.filter_map(|arg| arg.value());
    let mut stack: Vec<Value> = node.effects.iter().copied().chain(args).collect();
    let inside = |value| graph.op(value).operands().filter_map(Operand::value);
    match node.flow {
        Flow::Branch { cond, .. } => stack.extend(inside(cond)),
        _ => stack.extend(node.flow.subject()),
    }
    let mut seen = BTreeSet::new();
    let mut tests = Vec::new();
    while let Some(value) = stack.pop() {
        if graph.has(value, HAS_TEST) && seen.insert(value) {
            if matches!(graph.op(value), Op::Test { .. }) {
                tests.push(value);
            }
            stack.extend(inside(value));
        }
    }
    // Operands come before what is made of them.
    tests.sort_unstable();
    tests
}

/// Splits node `index` into a branch for each of its tests, and a new node
/// with what is made of their outcomes.
fn take_out(graph: &mut Graph, index: usize, tests: Vec<Value>) {
    let mut outcomes = Substitution::of_tests();
    let mut node = std::mem::replace(&mut graph.nodes[index], Node::new(Flow::REJECT));
    let mut rest = Node::new(std::mem::replace(&mut node.flow, Flow::REJECT));
    (rest.effects, node.effects) = std::mem::take(&mut node.effects)
        .into_iter()
        .partition(|&effect| graph.has(effect, HAS_TEST));
    let mut place = index;
    for test in tests {
        // Its own tests are parameters by now.
        let Some(outcome) = outcomes.apply(graph, test.into()) else {
            graph.nodes[place] = node;
            return;
        };
        let cond = graph.cond(Cmp::Ne, outcome, Operand::Imm(0));
        if let Cond::Always(holds) = cond {
            outcomes.add(test, Operand::Imm(holds.into()));
            continue;
        }
        let behind = graph.nodes.len();
        let edge = |outcome| Edge {
            block: Block(behind as u32),
            args: vec![Operand::Imm(outcome)],
        };
        node.flow = cond.branch(edge(1), edge(0));
        graph.nodes[place] = node;
        node = Node::new(Flow::REJECT);
        let param = graph.param();
        node.params.push(param);
        outcomes.add(test, param.into());
        graph.nodes.push(Node::new(Flow::REJECT));
        place = behind;
    }
    if outcomes.apply_to(graph, &mut rest).is_none() {
        rest.reject();
    }
    rest.params = node.params;
    for effect in node.effects {
        graph.require(&mut rest, effect);
    }
    if node.bound > rest.bound {
        (rest.bound, rest.bound_load) = (node.bound, node.bound_load);
    }
    graph.nodes[place] = rest;
}

/// Gives each edge of a branch that passes arguments a block of its own.
fn split_edges(graph: &mut Graph) {
    for index in 0..graph.nodes.len() {
        let Flow::Branch { .. } = graph.nodes[index].flow else {
            continue;
        };
        let mut flow = std::mem::replace(&mut graph.nodes[index].flow, Flow::REJECT);
        for edge in flow.edges_mut().filter(|edge| !edge.args.is_empty()) {
            let block = Block(graph.nodes.len() as u32);
            let inner = std::mem::replace(edge, Edge::to(block));
            graph.nodes.push(Node::new(Flow::Jump(inner)));
        }
        graph.nodes[index].flow = flow;
    }
}
