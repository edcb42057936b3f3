//! Scheduling: converts the graph back to a program (Click, "Global Code Motion,
//! Global Value Numbering", 1995). Each value is computed in the first node on a
//! path that needs it, and reused in all nodes which that node dominates.
//!
//! A large value that only nodes on different paths need is hoisted to their common
//! dominator, provided that it cannot reject there.

use super::bounds_checks::captured_after;
use super::graph::{Flow, Graph, HAS_EFFECT, NONE, Node};
use crate::ir::dominators::Dominators;
use crate::ir::{BasicBlock, Block, Cmp, Edge, Op, Operand, Program, Term, Value, limits};

/// Smallest size, in operations, of a value that is hoisted to the common dominator
/// of its uses.
const HOIST_SIZE_MIN: u16 = 3;

/// The program of a tidy graph; `None` if it would exceed `values_max` values or the
/// limits of [`limits`].
pub(crate) fn rebuild(graph: &mut Graph, values_max: usize) -> Option<Program> {
    if split_edges(graph) {
        graph.tidy();
    }
    if graph.nodes.len() > limits::BLOCKS_MAX {
        return None;
    }
    let tree = graph.take_tree();
    let hoists = hoists(graph, &tree);
    let mut state = Scheduler {
        graph,
        hoists,
        available_as: vec![NONE; graph.ops.len()],
        log: Vec::new(),
        marks: Vec::new(),
        stack: Vec::new(),
        values: Vec::with_capacity(graph.ops.len()),
        values_max: values_max.min(limits::VALUES_MAX),
        blocks: Vec::with_capacity(graph.nodes.len()),
    };
    state.blocks.resize_with(graph.nodes.len(), || BasicBlock {
        params: Vec::new(),
        insts: Vec::new(),
        term: Term::Return(Operand::Imm(0)),
    });
    tree.walk(
        &mut state,
        |state, index| state.enter(index),
        |state, _| state.leave(),
    );
    if state.values.len() > state.values_max {
        return None;
    }
    let mut program = Program {
        values: state.values,
        blocks: state.blocks,
    };
    renumber(&mut program);
    Some(program)
}

/// Splits an edge of a branch whose arguments may reject: they must not be computed
/// if the branch takes the other edge. Returns whether any edge was split.
fn split_edges(graph: &mut Graph) -> bool {
    if graph.nodes.iter().all(|node| node.params.is_empty()) {
        return false;
    }
    let captured = captured_after(graph);
    let count = graph.nodes.len();
    for (index, &captured) in captured.iter().enumerate() {
        let mut flow = graph.nodes[index].flow.clone();
        if !matches!(flow, Flow::Branch { .. }) {
            continue;
        }
        for edge in flow.edges_mut() {
            let rejects = edge
                .args
                .iter()
                .filter_map(|arg| arg.value())
                .any(|arg| graph.has(arg, HAS_EFFECT) || graph.info(arg).bound > captured);
            if rejects {
                let block = Block(graph.nodes.len() as u32);
                let inner = std::mem::replace(edge, Edge::to(block));
                graph.nodes.push(Node::new(Flow::Jump(inner)));
            }
        }
        graph.nodes[index].flow = flow;
    }
    graph.nodes.len() > count
}

/// The values to hoist, each with its node, in order of nodes.
fn hoists(graph: &Graph, tree: &Dominators) -> Vec<(u32, Value)> {
    let mut places = vec![None; graph.ops.len()];
    let needed = |places: &mut [Option<Block>], value: Value, at: Block| {
        let place = &mut places[value.index()];
        *place = Some(place.map_or(at, |known| tree.common(known, at)));
    };
    for (index, node) in graph.nodes.iter().enumerate() {
        let bound_load = (node.bound > 0).then_some(node.bound_load);
        let args = node.flow.edges().flat_map(|edge| &edge.args);
        let values = node.effects.iter().copied().chain(bound_load);
        let values = values.chain(node.flow.subject());
        for value in values.chain(args.filter_map(|arg| arg.value())) {
            needed(&mut places, value, Block(index as u32));
        }
    }
    let mut captured = Vec::new();
    let mut hoists = Vec::new();
    for index in (0..graph.ops.len()).rev() {
        let Some(at) = places[index] else {
            continue;
        };
        for operand in graph.ops[index].operands().filter_map(Operand::value) {
            needed(&mut places, operand, at);
        }
        let info = &graph.info[index];
        if info.size < HOIST_SIZE_MIN
            || info.flags & HAS_EFFECT != 0
            || matches!(graph.ops[index], Op::Test { .. })
        {
            continue;
        }
        if captured.is_empty() {
            captured = captured_after(graph);
        }
        if info.bound <= captured[at.index()] {
            hoists.push((at.0, Value(index as u32)));
        }
    }
    hoists.sort_unstable();
    hoists
}

struct Scheduler<'g> {
    graph: &'g Graph,
    hoists: Vec<(u32, Value)>,
    /// For each value of the graph, its number in the program where available, or `NONE`.
    available_as: Vec<u32>,
    /// The available values in order of definition; undone when a node is left.
    log: Vec<Value>,
    marks: Vec<usize>,
    stack: Vec<Value>,
    values: Vec<Op>,
    values_max: usize,
    blocks: Vec<BasicBlock>,
}

impl Scheduler<'_> {
    fn enter(&mut self, index: usize) {
        self.marks.push(self.log.len());
        let node = &self.graph.nodes[index];
        let mut insts = Vec::new();
        let params = node
            .params
            .iter()
            .map(|&param| self.define(param, Op::Param));
        let params = params.collect();
        if node.bound > 0 {
            self.compute(node.bound_load, &mut insts);
        }
        for &effect in &node.effects {
            self.compute(effect, &mut insts);
        }
        let from = self.hoists.partition_point(|&(at, _)| at < index as u32);
        for position in from..self.hoists.len() {
            let (at, value) = self.hoists[position];
            if at != index as u32 {
                break;
            }
            self.compute(value, &mut insts);
        }
        let term = self.term(&node.flow, &mut insts);
        self.blocks[index] = BasicBlock {
            params,
            insts,
            term,
        };
    }

    fn leave(&mut self) {
        let mark = self
            .marks
            .pop()
            .expect("each node is entered before it is left");
        for value in self.log.drain(mark..) {
            self.available_as[value.index()] = NONE;
        }
    }

    fn term(&mut self, flow: &Flow, insts: &mut Vec<Value>) -> Term {
        match flow {
            Flow::Return(verdict) => Term::Return(self.operand(*verdict, insts)),
            Flow::Jump(edge) => Term::Jump(self.edge(edge, insts)),
            Flow::Branch {
                cond,
                then,
                otherwise,
            } => {
                let (cmp, a, b) = match self.graph.op(*cond) {
                    Op::Test { cmp, a, b } => (cmp, a, b),
                    _ => (Cmp::Ne, Operand::Val(*cond), Operand::Imm(0)),
                };
                Term::Branch {
                    cmp,
                    a: self.operand(a, insts),
                    b: self.operand(b, insts),
                    then: self.edge(then, insts),
                    otherwise: self.edge(otherwise, insts),
                }
            }
        }
    }

    fn edge(&mut self, edge: &Edge, insts: &mut Vec<Value>) -> Edge {
        let args = edge.args.iter().map(|&arg| self.operand(arg, insts));
        Edge {
            block: edge.block,
            args: args.collect(),
        }
    }

    fn operand(&mut self, operand: Operand, insts: &mut Vec<Value>) -> Operand {
        match operand {
            Operand::Val(value) => {
                self.compute(value, insts);
                Operand::Val(Value(self.available_as[value.index()]))
            }
            constant => constant,
        }
    }

    /// Adds the instructions that compute `value`, unless it is available. Iterative,
    /// since expressions may be deep.
    fn compute(&mut self, value: Value, insts: &mut Vec<Value>) {
        if self.available_as[value.index()] != NONE {
            return;
        }
        self.stack.push(value);
        while let Some(&value) = self.stack.last() {
            // A program beyond its limit is discarded, so further work is useless.
            if self.available_as[value.index()] != NONE || self.values.len() > self.values_max {
                self.stack.pop();
                continue;
            }
            let op = self.op_of(value);
            let waiting = self.stack.len();
            for operand in op.operands().filter_map(Operand::value) {
                if self.available_as[operand.index()] == NONE {
                    self.stack.push(operand);
                }
            }
            if self.stack.len() == waiting {
                self.stack.pop();
                let op = op.map_operands(|operand| match operand {
                    Operand::Val(value) => Operand::Val(Value(self.available_as[value.index()])),
                    constant => constant,
                });
                let name = self.define(value, op);
                insts.push(name);
            }
        }
    }

    /// The operation that computes `value`; the negation of a test becomes one test.
    fn op_of(&self, value: Value) -> Op {
        let op = self.graph.op(value);
        if let Op::Test {
            cmp: Cmp::Eq,
            a: Operand::Val(test),
            b: Operand::Imm(0),
        } = op
            && let Op::Test { cmp, a, b } = self.graph.op(test)
        {
            return Op::Test {
                cmp: cmp.negated(),
                a,
                b,
            };
        }
        op
    }

    fn define(&mut self, value: Value, op: Op) -> Value {
        let name = Value(self.values.len() as u32);
        self.values.push(op);
        self.available_as[value.index()] = name.0;
        self.log.push(value);
        name
    }
}

/// Numbers values in the order of the blocks' lists.
fn renumber(program: &mut Program) {
    let mut names = vec![NONE; program.values.len()];
    let mut values = Vec::with_capacity(program.values.len());
    let renamed = |operand, names: &[u32]| match operand {
        Operand::Val(value) => Operand::Val(Value(names[value.index()])),
        constant => constant,
    };
    for block in &mut program.blocks {
        for value in block.params.iter_mut().chain(&mut block.insts) {
            let op = program.values[value.index()];
            names[value.index()] = values.len() as u32;
            *value = Value(values.len() as u32);
            values.push(op.map_operands(|operand| renamed(operand, &names)));
        }
        block.term.map_operands(|operand| renamed(operand, &names));
    }
    program.values = values;
}
