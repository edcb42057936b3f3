//! Straightening (Muchnick): a block with one predecessor, which jumps to it, is
//! appended to the predecessor. A block parameter that receives the same argument on
//! every edge is removed.

use super::graph::{Flow, Graph, Node};
use super::substitute::Substitution;
use crate::ir::{Operand, Value};

/// Straightens a tidy graph; returns whether anything changed. Appended blocks stay
/// in the list, unreachable.
pub(crate) fn straighten(graph: &mut Graph) -> bool {
    let removed = remove_params(graph);
    join(graph) || removed
}

/// The arguments seen so far for one parameter.
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

/// For each node, the index of its first parameter in the list of all parameters;
/// and that list with the arguments passed.
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

/// Marks the parameters that no effect or subject reads, directly or through other
/// parameters. Returns whether there are any.
fn unused_params(graph: &Graph, first: &[usize], gone: &mut [bool]) -> bool {
    let mut used = vec![false; graph.ops.len()];
    let mut stack: Vec<Value> = Vec::new();
    for node in &graph.nodes {
        stack.extend(&node.effects);
        stack.extend(node.flow.subject());
    }
    // An argument is used if its parameter is. Edges lead forward, so one sweep in
    // reverse order sees each target first.
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

/// Replaces removed parameters inside the arguments themselves. An argument contains
/// only parameters of earlier blocks, which come first in the list.
fn resolve(graph: &mut Graph, pairs: &mut Vec<(Value, Operand)>) {
    let mut substitution = Substitution::of_params(std::iter::empty());
    for (param, arg) in pairs {
        // A value that rejects every frame is computed only after the node that
        // computed it first has rejected.
        *arg = substitution.apply(graph, *arg).unwrap_or(Operand::Imm(0));
        substitution.add(*param, *arg);
    }
}

/// Applies the substitution to every node. A node with a value that now rejects every
/// frame rejects.
fn substitute_all(graph: &mut Graph, substitution: &mut Substitution) {
    for index in 0..graph.nodes.len() {
        let mut node = std::mem::replace(&mut graph.nodes[index], Node::new(Flow::REJECT));
        if substitution.apply_to(graph, &mut node).is_none() {
            node.reject();
        }
        graph.nodes[index] = node;
    }
}

/// Appends each block with a single predecessor to it, if that ends with a jump.
fn join(graph: &mut Graph) -> bool {
    let mut ways_in = vec![0_u32; graph.nodes.len()];
    for edge in graph.nodes.iter().flat_map(|node| node.flow.edges()) {
        ways_in[edge.block.index()] += 1;
    }
    let mut changed = false;
    // In reverse order, so that a chain is joined in one sweep.
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
