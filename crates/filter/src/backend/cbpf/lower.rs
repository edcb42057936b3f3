//! Brings a graph into the form that instructions are selected from: tests
//! only as what branches compare, arguments only on jumps.

use super::EmitError;
use crate::ir::{Block, Edge, Op, Operand, Value, limits};
use crate::lang::cbpf::code::SKF_LL_OFF;
use crate::opt::graph::{Flow, Graph, HAS_TEST, Node};
use crate::opt::substitute::Substitution;
use crate::opt::{checks, merge, split};

/// Lowers a tidy graph, and leaves it tidy.
pub(super) fn lower(graph: &mut Graph) -> Result<(), EmitError> {
    reject_special_addresses(graph);
    if split::split(graph) {
        graph.tidy();
    }
    lower_tests(graph)?;
    graph.tidy();
    checks::minimise(graph);
    if merge::merge(graph) {
        graph.tidy();
    }
    split_edges(graph);
    graph.tidy();
    if graph.nodes.len() > limits::BLOCKS_MAX {
        return Err(EmitError::Blocks);
    }
    Ok(())
}

/// Addresses that the kernel gives another meaning are outside every frame:
/// blocks that load from there reject.
fn reject_special_addresses(graph: &mut Graph) {
    let mut found = false;
    for index in 0..graph.nodes.len() {
        let node = &graph.nodes[index];
        let is_special = |&effect: &Value| matches!(graph.op(effect), Op::Load { offset, .. } if offset >= SKF_LL_OFF);
        if node.bound > SKF_LL_OFF || node.effects.iter().any(is_special) {
            graph.nodes[index].reject();
            found = true;
        }
    }
    if found {
        graph.tidy();
    }
}

/// Takes every test out of the values that contain one: the block branches on
/// it, and a parameter of the block behind carries its outcome.
fn lower_tests(graph: &mut Graph) -> Result<(), EmitError> {
    let mut work: Vec<usize> = (0..graph.nodes.len()).collect();
    while let Some(index) = work.pop() {
        let Some(test) = nested_test(graph, &graph.nodes[index]) else {
            continue;
        };
        if graph.nodes.len() >= limits::BLOCKS_MAX {
            return Err(EmitError::Blocks);
        }
        let rest = behind(graph, index, test);
        work.push(rest);
    }
    Ok(())
}

/// An innermost test inside a value that node computes for other than to
/// branch on it.
fn nested_test(graph: &Graph, node: &Node) -> Option<Value> {
    let is_plain = |cond: Value| {
        let mut operands = graph.op(cond).operands().filter_map(Operand::value);
        operands.all(|operand| !graph.has(operand, HAS_TEST))
    };
    let args = node.flow.edges().flat_map(|edge| &edge.args);
    let args = args.filter_map(|arg| arg.value());
    let subject = match node.flow {
        Flow::Branch { cond, .. } if is_plain(cond) => None,
        _ => node.flow.subject(),
    };
    let mut values = node.effects.iter().copied().chain(subject).chain(args);
    let mut current = values.find(|&value| graph.has(value, HAS_TEST))?;
    loop {
        let mut inner = graph.op(current).operands().filter_map(Operand::value);
        match inner.find(|&operand| graph.has(operand, HAS_TEST)) {
            Some(next) => current = next,
            None => return Some(current),
        }
    }
}

/// Splits node `index` in two, a branch on `test` and a new node with
/// everything that contains the test; gives the new node.
fn behind(graph: &mut Graph, index: usize, test: Value) -> usize {
    let param = graph.param();
    let mut substitution = Substitution::of_test(test, param.into());
    let mut first = std::mem::replace(&mut graph.nodes[index], Node::new(Flow::REJECT));
    let flow = std::mem::replace(&mut first.flow, Flow::REJECT);
    let mut rest = Node::new(flow);
    rest.params.push(param);
    let (with_test, without) = std::mem::take(&mut first.effects)
        .into_iter()
        .partition(|&effect| graph.has(effect, HAS_TEST));
    first.effects = without;
    rest.effects = with_test;
    if substitution.apply_to(graph, &mut rest).is_none() {
        rest.reject();
    }
    let target = Block(graph.nodes.len() as u32);
    let edge = |outcome| Edge {
        block: target,
        args: vec![Operand::Imm(outcome)],
    };
    first.flow = Flow::Branch {
        cond: test,
        then: edge(1),
        otherwise: edge(0),
    };
    debug_assert!(matches!(graph.op(test), Op::Test { .. }));
    graph.nodes[index] = first;
    graph.nodes.push(rest);
    target.index()
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
