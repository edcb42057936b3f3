//! Elimination of redundant checks (HotSpot's range-check elimination). A check is
//! redundant if every incoming path has made it, or if every outgoing path makes it
//! or rejects. The subject of a node implies its own checks.
//!
//! Two checks must not justify each other's removal. So the pass first removes all
//! checks implied by later ones, in reverse order, then checks implied by the
//! remaining earlier ones.

use super::facts::Facts;
use super::graph::{Flow, Graph, HAS_EFFECT};
use crate::ir::{BinOp, Op, Operand, Value};

/// Removes redundant checks of a tidy graph; returns whether anything changed.
pub(crate) fn minimise(graph: &mut Graph) -> bool {
    let dropped = drop_anticipated(graph);
    let known = drop_captured(graph);
    minimise_effects(graph) || dropped || known
}

fn subject_bound(graph: &Graph, index: usize) -> u32 {
    let subject = graph.nodes[index].flow.subject();
    subject.map_or(0, |value| graph.info(value).bound)
}

fn drop_anticipated(graph: &mut Graph) -> bool {
    let mut changed = false;
    let mut awaited = vec![0; graph.nodes.len()];
    for index in (0..graph.nodes.len()).rev() {
        let own = subject_bound(graph, index);
        let node = &mut graph.nodes[index];
        let ways = node.flow.edges().map(|edge| awaited[edge.block.index()]);
        let after = match node.flow {
            Flow::Return(Operand::Imm(0)) => u32::MAX,
            _ => ways.min().unwrap_or(0),
        };
        let later = after.max(own);
        if node.bound > 0 && node.bound <= later {
            // Dropping a bound that the subject implies is no change.
            changed |= node.bound > own;
            node.bound = 0;
        }
        awaited[index] = later.max(node.bound);
    }
    changed
}

fn drop_captured(graph: &mut Graph) -> bool {
    let mut changed = false;
    let mut captured = vec![u32::MAX; graph.nodes.len()];
    captured[0] = 0;
    for index in 0..graph.nodes.len() {
        let own = subject_bound(graph, index);
        let node = &mut graph.nodes[index];
        if node.bound > 0 && node.bound <= captured[index] {
            node.bound = 0;
            changed = true;
        }
        let after = captured[index].max(node.bound).max(own);
        for edge in graph.nodes[index].flow.edges() {
            let target = &mut captured[edge.block.index()];
            *target = (*target).min(after);
        }
    }
    changed
}

/// For each node of a tidy graph, the bytes known to be captured at its start.
pub(crate) fn captured_before(graph: &Graph) -> Vec<u32> {
    let mut captured = vec![u32::MAX; graph.nodes.len()];
    captured[0] = 0;
    for (index, node) in graph.nodes.iter().enumerate() {
        let after = captured[index].max(graph.need(node));
        for edge in node.flow.edges() {
            let target = &mut captured[edge.block.index()];
            *target = (*target).min(after);
        }
    }
    captured
}

/// For each node of a tidy graph, the bytes known to be captured at its end.
pub(crate) fn captured_after(graph: &Graph) -> Vec<u32> {
    let mut captured = captured_before(graph);
    for (captured, node) in captured.iter_mut().zip(&graph.nodes) {
        *captured = (*captured).max(graph.need(node));
    }
    captured
}

fn minimise_effects(graph: &mut Graph) -> bool {
    if graph.nodes.iter().all(|node| node.effects.is_empty()) {
        return false;
    }
    let sunk = sink(graph);
    drop_done(graph) || sunk
}

/// Moves effects down to the only successor that does not reject anyway, and drops
/// effects that the subject implies.
fn sink(graph: &mut Graph) -> bool {
    let mut ways_in = vec![0_u32; graph.nodes.len()];
    for edge in graph.nodes.iter().flat_map(|node| node.flow.edges()) {
        ways_in[edge.block.index()] += 1;
    }
    let mut changed = false;
    for index in 0..graph.nodes.len() {
        if graph.nodes[index].effects.is_empty() {
            continue;
        }
        let mut effects = std::mem::take(&mut graph.nodes[index].effects);
        if let Some(subject) = graph.nodes[index].flow.subject() {
            effects.retain(|&effect| !covers(graph, subject, effect));
        }
        if graph.nodes[index].is_reject() {
            effects.clear();
            changed = true;
        }
        match only_way_on(graph, index) {
            Some(target) if ways_in[target] == 1 && !effects.is_empty() => {
                // Effects now listed twice are dropped when `index` reaches the target.
                graph.nodes[target].effects.extend(effects);
                changed = true;
            }
            _ => graph.nodes[index].effects = effects,
        }
    }
    changed
}

/// The only successor of node `index` that does not reject every frame; `None` if
/// there are none or two.
fn only_way_on(graph: &Graph, index: usize) -> Option<usize> {
    let mut ways = graph.nodes[index].flow.edges();
    let mut ways = ways
        .by_ref()
        .map(|edge| edge.block.index())
        .filter(|&target| !graph.nodes[target].is_reject());
    let only = ways.next()?;
    ways.next().is_none().then_some(only)
}

/// Whether computing `value` implies `effect`. The search visits at most 32
/// operations, then returns false.
fn covers(graph: &Graph, value: Value, effect: Value) -> bool {
    let mut stack = vec![value];
    for _ in 0..32 {
        let Some(value) = stack.pop() else {
            return false;
        };
        if !graph.has(value, HAS_EFFECT) {
            continue;
        }
        if value == effect || reaches(graph, value, effect) {
            return true;
        }
        stack.extend(graph.op(value).operands().filter_map(Operand::value));
    }
    false
}

/// Whether both load from one computed base and `value` ends no earlier, or both
/// divide the same operands.
fn reaches(graph: &Graph, value: Value, effect: Value) -> bool {
    match (graph.op(value), graph.op(effect)) {
        (
            Op::Load {
                width,
                base: Some(base),
                offset,
            },
            Op::Load {
                width: effect_width,
                base: Some(effect_base),
                offset: effect_offset,
            },
        ) => base == effect_base && offset + width.bytes() >= effect_offset + effect_width.bytes(),
        (
            Op::Bin {
                op: BinOp::Div | BinOp::Mod,
                a,
                b,
            },
            Op::Bin {
                op: BinOp::Div | BinOp::Mod,
                a: effect_a,
                b: effect_b,
            },
        ) => a == effect_a && b == effect_b,
        _ => false,
    }
}

/// Sort key of effects: the end of a load relative to its base.
fn end(graph: &Graph, effect: Value) -> (u32, Value) {
    match graph.op(effect) {
        Op::Load { width, offset, .. } => (offset + width.bytes(), effect),
        _ => (0, effect),
    }
}

/// Drops the effects that a dominating node has carried out.
fn drop_done(graph: &mut Graph) -> bool {
    struct State<'g> {
        graph: &'g mut Graph,
        facts: Facts,
        marks: Vec<usize>,
        changed: bool,
    }
    let tree = graph.take_tree();
    let mut state = State {
        graph,
        facts: Facts::default(),
        marks: Vec::new(),
        changed: false,
    };
    tree.walk(
        &mut state,
        |state, index| {
            state.marks.push(state.facts.mark());
            let mut effects = std::mem::take(&mut state.graph.nodes[index].effects);
            // Farthest first, since a load implies the nearer loads from the same base.
            effects.sort_unstable_by_key(|&effect| std::cmp::Reverse(end(state.graph, effect)));
            let before = effects.len();
            effects.retain(|&effect| {
                let done = state.facts.is_done(state.graph, effect);
                state.facts.carry_out(state.graph, effect, |_| {});
                !done
            });
            state.changed |= effects.len() < before;
            if let Some(subject) = state.graph.nodes[index].flow.subject() {
                state.facts.carry_out(state.graph, subject, |_| {});
            }
            state.graph.nodes[index].effects = effects;
        },
        |state, _| {
            let mark = state
                .marks
                .pop()
                .expect("each node is entered before it is left");
            state.facts.undo_to(mark);
        },
    );
    let changed = state.changed;
    // No edge has changed.
    graph.put_tree(tree);
    changed
}
