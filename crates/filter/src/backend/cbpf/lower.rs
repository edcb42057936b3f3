//! Lowering of the graph for instruction selection: tests remain only as conditions of
//! branches, and only jumps pass arguments.

use super::EmitError;
use crate::ir::{Block, Cmp, Edge, Op, Operand, Value, limits};
use crate::lang::cbpf::code::SKF_LL_OFF;
use crate::opt::cond::Cond;
use crate::opt::graph::{Flow, Graph, HAS_TEST, Node};
use crate::opt::substitute::Substitution;
use crate::opt::{bounds_checks, split_branch, tail_merge};
use std::collections::BTreeSet;

/// Lowers a tidy graph; the result is tidy.
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

/// Makes every block that loads from a special address of the kernel reject, since
/// such addresses are outside every frame. Some arise only when truth values are split.
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
        // Only jumps pass arguments at this stage, so arguments are always computed.
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

/// Extracts nested tests from values. The block branches on the test, and a parameter
/// of the next block carries the outcome.
fn lower_tests(graph: &mut Graph) -> Result<(), EmitError> {
    // The same test may be extracted in many blocks.
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

/// The tests that a node computes other than as its condition, each after the tests
/// that it contains.
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
    // Operands have lower numbers than the operations that use them.
    tests.sort_unstable();
    tests
}

/// Splits node `index` into a branch for each test, and a last node that uses their
/// outcomes.
fn take_out(graph: &mut Graph, index: usize, tests: Vec<Value>) {
    let mut outcomes = Substitution::of_tests();
    let mut node = std::mem::replace(&mut graph.nodes[index], Node::new(Flow::REJECT));
    let mut rest = Node::new(std::mem::replace(&mut node.flow, Flow::REJECT));
    (rest.effects, node.effects) = std::mem::take(&mut node.effects)
        .into_iter()
        .partition(|&effect| graph.has(effect, HAS_TEST));
    let mut place = index;
    for test in tests {
        // Tests nested in this one have been replaced by parameters.
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

/// Inserts a block on each edge of a branch that passes arguments.
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
