//! Tail merging: identical blocks become one, in reverse order, so that equal tails
//! become one tail (LLVM's BranchFolding).
//!
//! Values belong to no block. So two blocks are identical if their terminators, their
//! effects and their bounds are equal. Blocks with parameters are skipped.

use super::graph::{Flow, Graph, NONE, Node, mix};
use crate::ir::{Block, Edge, Operand, Value};

/// Maximum number of slots of the hash table probed for an identical node. Bounds the
/// cost of a program crafted to collide.
const PROBES_MAX: usize = 32;

/// Merges identical nodes of a tidy graph; returns whether anything changed. Merged
/// nodes stay in the list, unreachable.
pub(crate) fn merge(graph: &mut Graph) -> bool {
    let count = graph.nodes.len();
    let mask = (count * 2).next_power_of_two() - 1;
    let mut table = vec![NONE; mask + 1];
    let mut same_as: Vec<u32> = (0..count as u32).collect();
    let mut changed = false;
    for index in (0..count).rev() {
        changed |= redirect(graph, index, &same_as);
        let node = &graph.nodes[index];
        if !node.params.is_empty() {
            continue;
        }
        let start = hash(graph, node);
        for probe in 0..PROBES_MAX {
            let slot = &mut table[start.wrapping_add(probe) & mask];
            if *slot == NONE {
                *slot = index as u32;
                break;
            }
            if same(graph, node, &graph.nodes[*slot as usize]) {
                same_as[index] = *slot;
                break;
            }
        }
    }
    changed
}

/// Redirects the edges of a node to the representatives of their targets, and turns
/// a branch with two equal edges into a jump.
fn redirect(graph: &mut Graph, index: usize, same_as: &[u32]) -> bool {
    let mut changed = false;
    for edge in graph.nodes[index].flow.edges_mut() {
        let target = same_as[edge.block.index()];
        changed |= target != edge.block.0;
        edge.block = Block(target);
    }
    let Flow::Branch {
        cond,
        then,
        otherwise,
    } = &graph.nodes[index].flow
    else {
        return changed;
    };
    if then != otherwise || has_effects(graph, *cond) {
        return changed;
    }
    let (cond, edge) = (*cond, then.clone());
    let mut node = std::mem::replace(&mut graph.nodes[index], Node::new(Flow::REJECT));
    graph.require_bound(&mut node, cond);
    node.flow = Flow::Jump(edge);
    graph.nodes[index] = node;
    true
}

/// Whether `cond` has effects. The jump threading pass drops such a test and keeps
/// its effects.
fn has_effects(graph: &Graph, cond: Value) -> bool {
    graph.has(cond, super::graph::HAS_EFFECT)
}

fn same(graph: &Graph, a: &Node, b: &Node) -> bool {
    a.flow == b.flow
        && b.params.is_empty()
        && graph.need(a) == graph.need(b)
        && same_set(&a.effects, &b.effects)
}

fn same_set(a: &[Value], b: &[Value]) -> bool {
    if a.len() != b.len() || a == b {
        return a.len() == b.len();
    }
    let [mut a, mut b] = [a.to_vec(), b.to_vec()];
    a.sort_unstable();
    b.sort_unstable();
    a == b
}

fn hash(graph: &Graph, node: &Node) -> usize {
    // The hash must not depend on the order of effects, which are a set.
    let effects = node
        .effects
        .iter()
        .map(|effect| mix(7, u64::from(effect.0)));
    let effects = effects.fold(0, u64::wrapping_add);
    let start = mix(effects, u64::from(graph.need(node)));
    let flow = match &node.flow {
        Flow::Return(verdict) => mix(mix(1 << 40, start), operand(*verdict)),
        Flow::Jump(edge) => hash_edge(mix(2 << 40, start), edge),
        Flow::Branch {
            cond,
            then,
            otherwise,
        } => {
            let start = mix(mix(3 << 40, start), u64::from(cond.0));
            hash_edge(hash_edge(start, then), otherwise)
        }
    };
    flow as usize
}

fn hash_edge(seed: u64, edge: &Edge) -> u64 {
    let start = mix(seed, u64::from(edge.block.0));
    edge.args
        .iter()
        .fold(start, |hash, &arg| mix(hash, operand(arg)))
}

fn operand(operand: Operand) -> u64 {
    match operand {
        Operand::Imm(constant) => u64::from(constant) << 1,
        Operand::Val(value) => u64::from(value.0) << 1 | 1,
    }
}
