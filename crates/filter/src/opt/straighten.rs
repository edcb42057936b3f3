//! Blocks with one way in joined to the block they follow, and block
//! parameters removed that every edge gives the same argument.

use super::graph::{Flow, Graph, Node};
use super::substitute::Substitution;
use crate::ir::{Operand, Value};

/// Straightens a tidy graph; gives whether anything changed. Blocks that were
/// joined to others stay behind unreachable.
pub(crate) fn straighten(graph: &mut Graph) -> bool {
    let removed = remove_params(graph);
    join(graph) || removed
}

/// What the edges seen so far pass for one parameter.
#[derive(Clone, Copy, PartialEq)]
enum Passed {
    Nothing,
    Always(Operand),
    Various,
}

fn remove_params(graph: &mut Graph) -> bool {
    if graph.nodes.iter().all(|node| node.params.is_empty()) {
        return false;
    }
    let (first, passed) = arguments(graph);
    let mut pairs: Vec<(Value, Operand)> = Vec::new();
    let mut gone = vec![false; passed.len()];
    for (node, &first) in graph.nodes.iter().zip(&first) {
        for (position, &param) in node.params.iter().enumerate() {
            if let Passed::Always(arg) = passed[first + position] {
                gone[first + position] = true;
                pairs.push((param, arg));
            }
        }
    }
    let unused = unused_params(graph, &first, &mut gone);
    if pairs.is_empty() && !unused {
        return false;
    }
    drop_positions(graph, &first, &gone);
    resolve(graph, &mut pairs);
    substitute_all(graph, &mut Substitution::of_params(pairs.into_iter()));
    true
}

/// Where each node's parameters start in one list of all, and what is passed
/// for each.
fn arguments(graph: &Graph) -> (Vec<usize>, Vec<Passed>) {
    let mut first = Vec::with_capacity(graph.nodes.len());
    let mut total = 0;
    for node in &graph.nodes {
        first.push(total);
        total += node.params.len();
    }
    let mut passed = vec![Passed::Nothing; total];
    for edge in graph.nodes.iter().flat_map(|node| node.flow.edges()) {
        for (position, &arg) in edge.args.iter().enumerate() {
            let slot = &mut passed[first[edge.block.index()] + position];
            *slot = match *slot {
                Passed::Nothing => Passed::Always(arg),
                Passed::Always(known) if known == arg => *slot,
                _ => Passed::Various,
            };
        }
    }
    (first, passed)
}

/// Marks the parameters that nothing reads, directly or through other
/// parameters.
fn unused_params(graph: &Graph, first: &[usize], gone: &mut [bool]) -> bool {
    let mut used = vec![false; graph.ops.len()];
    let mut stack: Vec<Value> = Vec::new();
    for node in &graph.nodes {
        stack.extend(&node.effects);
        stack.extend(node.flow.subject());
    }
    // Parameters become used as the arguments passed on for used ones are;
    // edges lead forward, so one backward sweep sees targets first.
    mark_used(graph, &mut stack, &mut used);
    for node in graph.nodes.iter().rev() {
        for edge in node.flow.edges() {
            let target = &graph.nodes[edge.block.index()];
            for (param, arg) in target.params.iter().zip(&edge.args) {
                if used[param.index()] {
                    stack.extend(arg.value());
                }
            }
        }
        mark_used(graph, &mut stack, &mut used);
    }
    let mut found = false;
    for (node, &first) in graph.nodes.iter().zip(first) {
        for (position, param) in node.params.iter().enumerate() {
            if !used[param.index()] {
                found = true;
                gone[first + position] = true;
            }
        }
    }
    found
}

fn mark_used(graph: &Graph, stack: &mut Vec<Value>, used: &mut [bool]) {
    while let Some(value) = stack.pop() {
        if std::mem::replace(&mut used[value.index()], true) {
            continue;
        }
        stack.extend(graph.op(value).operands().filter_map(Operand::value));
    }
}

fn drop_positions(graph: &mut Graph, first: &[usize], gone: &[bool]) {
    for (node, &first) in graph.nodes.iter_mut().zip(first) {
        let mut position = first;
        node.params.retain(|_| {
            position += 1;
            !gone[position - 1]
        });
    }
    for node in &mut graph.nodes {
        for edge in node.flow.edges_mut() {
            let mut position = first[edge.block.index()];
            edge.args.retain(|_| {
                position += 1;
                !gone[position - 1]
            });
        }
    }
}

/// Makes no argument contain a parameter that is itself replaced. Arguments
/// only contain parameters of earlier blocks, which come first in the list.
fn resolve(graph: &mut Graph, pairs: &mut Vec<(Value, Operand)>) {
    let mut substitution = Substitution::of_params(std::iter::empty());
    for (param, arg) in pairs {
        // A value that rejects every frame is only ever computed where the
        // block that computed it has rejected already.
        *arg = substitution.apply(graph, *arg).unwrap_or(Operand::Imm(0));
        substitution.add(*param, *arg);
    }
}

/// Replaces in every node; what comes to reject every frame makes its node
/// reject.
fn substitute_all(graph: &mut Graph, substitution: &mut Substitution) {
    for index in 0..graph.nodes.len() {
        let mut node = std::mem::replace(&mut graph.nodes[index], Node::new(Flow::REJECT));
        if substitution.apply_to(graph, &mut node).is_none() {
            node.reject();
        }
        graph.nodes[index] = node;
    }
}

/// Joins blocks that nothing but one jump leads to to that jump's block.
fn join(graph: &mut Graph) -> bool {
    let mut ways_in = vec![0_u32; graph.nodes.len()];
    for edge in graph.nodes.iter().flat_map(|node| node.flow.edges()) {
        ways_in[edge.block.index()] += 1;
    }
    let mut changed = false;
    // Last first, so that a chain is joined at once.
    for index in (0..graph.nodes.len()).rev() {
        let Flow::Jump(edge) = &graph.nodes[index].flow else {
            continue;
        };
        let target = edge.block.index();
        if ways_in[target] != 1 || !graph.nodes[target].params.is_empty() {
            continue;
        }
        let next = std::mem::replace(&mut graph.nodes[target], Node::new(Flow::REJECT));
        let node = &mut graph.nodes[index];
        node.flow = next.flow;
        if next.bound > node.bound {
            (node.bound, node.bound_load) = (next.bound, next.bound_load);
        }
        for effect in next.effects {
            node.add_effect(effect);
        }
        changed = true;
    }
    changed
}
