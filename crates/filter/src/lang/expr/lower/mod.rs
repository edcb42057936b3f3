//! Lowering: turns tests joined by and, or, not into a program of the IR.
//!
//! Each test becomes a block. The surrounding predicates determine its targets when the
//! test holds and when it fails; `not` swaps the two.

mod fold;
mod graph;
mod jump_threading;

use crate::ir::{BinOp, Block, Builder, Edge, Operand, Program, Term, Value};

use super::generate::{Op, PredRef, PredicateArena, Register, Source, Test};
use fold::Folded;
use graph::{Graph, Target, ops};

pub(super) use fold::fold;

/// Returns a program that returns `snaplen` if the predicate holds, else zero. `None` if
/// the predicate is evidently false for every frame.
pub(super) fn lower(code: &PredicateArena, root: PredRef, snaplen: u32) -> Option<Program> {
    let folded = Folded::of(code);
    let mut graph = Graph::of(code, root);
    jump_threading::thread(code, &mut graph);
    if !code.unoptimised {
        graph.skip_constant_root(code, &folded);
        if graph.root == Target::Reject {
            return None;
        }
    }
    match graph.root {
        Target::Accept => return Some(Program::constant(snaplen)),
        Target::Reject => return Some(Program::constant(0)),
        Target::Test(_) => {}
    }
    let live = (code.registers > 0).then(|| live_registers(code, &graph));
    let mut builder = Builder::new();
    let (accept, reject) = (builder.block(), builder.block());
    let blocks = graph
        .targets
        .iter()
        .map(|target| target.map(|_| builder.block()));
    let mut lowering = Lowering {
        code,
        folded: &folded,
        blocks: blocks.collect(),
        accept,
        reject,
        values: vec![Operand::Imm(0); code.ops.len()],
        used: Vec::new(),
        params: Vec::new(),
        builder,
    };
    lowering.make_params(live);
    lowering.emit(&graph);
    lowering.builder.switch_to(accept);
    lowering.builder.ret(snaplen);
    lowering.builder.switch_to(reject);
    lowering.builder.ret(0);
    Some(lowering.builder.finish())
}

/// For each test, the registers that are live at its start: set in an earlier test, and
/// read in this test or a later one. Positions are those of a topological order.
fn live_registers(code: &PredicateArena, graph: &Graph) -> Vec<Vec<Register>> {
    let order = reverse_postorder(graph);
    // For each register, the first position that sets it and the last that reads it.
    let mut ranges = vec![(order.len(), 0); code.registers as usize];
    for (position, &test) in order.iter().enumerate() {
        for op in ops(code, &code.tests[test as usize]) {
            match op {
                Op::Set(register, _) => {
                    let range = &mut ranges[register.0 as usize];
                    range.0 = range.0.min(position);
                }
                Op::Get(register) => ranges[register.0 as usize].1 = position,
                _ => {}
            }
        }
    }
    let mut live = vec![Vec::new(); code.tests.len()];
    for (register, &(first, last)) in ranges.iter().enumerate() {
        for &test in order.get(first + 1..=last).unwrap_or_default() {
            live[test as usize].push(Register(register as u32));
        }
    }
    live
}

fn reverse_postorder(graph: &Graph) -> Vec<u32> {
    let mut order = Vec::new();
    let mut seen = vec![false; graph.targets.len()];
    let mut stack = vec![(graph.root, false)];
    while let Some((target, leaving)) = stack.pop() {
        let Target::Test(test) = target else {
            continue;
        };
        if leaving {
            order.push(test);
        } else if !std::mem::replace(&mut seen[test as usize], true) {
            stack.push((target, true));
            if let Some((then, otherwise)) = graph.targets[test as usize] {
                stack.extend([(then, false), (otherwise, false)]);
            }
        }
    }
    order.reverse();
    order
}

struct Lowering<'c> {
    code: &'c PredicateArena,
    folded: &'c Folded,
    /// The block of each test; `None` if the test is not needed.
    blocks: Vec<Option<Block>>,
    accept: Block,
    reject: Block,
    /// The value of each operation.
    values: Vec<Operand>,
    used: Vec<bool>,
    /// The register parameters of each test; empty if there are no registers.
    params: Vec<Vec<(Register, Value)>>,
    builder: Builder,
}

impl Lowering<'_> {
    fn make_params(&mut self, live: Option<Vec<Vec<Register>>>) {
        for (block, registers) in self.blocks.iter().zip(live.unwrap_or_default()) {
            let params = block.map_or(Vec::new(), |block| {
                let registers = registers.into_iter();
                registers
                    .map(|register| (register, self.builder.param(block)))
                    .collect()
            });
            self.params.push(params);
        }
    }

    fn emit(&mut self, graph: &Graph) {
        let entry = self.builder.entry();
        self.builder.switch_to(entry);
        let edge = self.edge(graph.root, &[]);
        self.builder.terminate(Term::Jump(edge));
        for (index, test) in self.code.tests.iter().enumerate() {
            if let Some((then, otherwise)) = graph.targets[index] {
                self.test(index, test, then, otherwise);
            }
        }
    }

    /// The edge to a target with the register arguments that it takes; a register that
    /// was never set is zero.
    fn edge(&self, target: Target, registers: &[(Register, Operand)]) -> Edge {
        let test = match target {
            Target::Accept => return Edge::to(self.accept),
            Target::Reject => return Edge::to(self.reject),
            Target::Test(test) => test as usize,
        };
        let params: &[(Register, Value)] = self.params.get(test).map_or(&[], Vec::as_slice);
        let args = params
            .iter()
            .map(|(wanted, _)| register_value(registers, *wanted));
        Edge {
            block: self.blocks[test].unwrap_or(self.reject),
            args: args.collect(),
        }
    }

    fn source(&self, source: Source) -> Operand {
        match self.folded.value(source) {
            Source::Imm(constant) => Operand::Imm(constant),
            Source::Temp(temp) => self.values[temp.0 as usize],
        }
    }

    fn test(&mut self, index: usize, test: &Test, then: Target, otherwise: Target) {
        let Some(block) = self.blocks[index] else {
            return;
        };
        self.builder.switch_to(block);
        let mut registers: Vec<(Register, Operand)> = Vec::new();
        if let Some(params) = self.params.get(index) {
            registers.extend(
                params
                    .iter()
                    .map(|(register, value)| (*register, (*value).into())),
            );
        }
        self.ops(test, &mut registers);
        let then = self.edge(then, &registers);
        let term = match test.compare {
            None => Term::Jump(then),
            Some((cmp, a, b)) => Term::Branch {
                cmp,
                a: self.source(a),
                b: self.source(b),
                then,
                otherwise: self.edge(otherwise, &registers),
            },
        };
        self.builder.terminate(term);
    }

    fn ops(&mut self, test: &Test, registers: &mut Vec<(Register, Operand)>) {
        let code = self.code;
        let mut used = std::mem::take(&mut self.used);
        self.folded.used(code, test, &mut used);
        for (index, op) in ops(code, test).iter().enumerate() {
            if used[index] {
                self.values[test.ops.0 as usize + index] = self.op(op, registers);
            }
        }
        self.used = used;
    }

    fn op(&mut self, op: &Op, registers: &mut Vec<(Register, Operand)>) -> Operand {
        match *op {
            Op::Load {
                width,
                base,
                index,
                offset,
            } => {
                let base = base.map(|base| self.source(base.into()));
                let index = index.map(|index| self.source(index));
                let (base, offset) = self.load_position(base, index, offset);
                self.builder.load(width, base, offset).into()
            }
            Op::Len => self.builder.wire_len().into(),
            Op::Bin(op, a, b) => {
                let (a, b) = (self.source(a), self.source(b));
                self.builder.bin(op, a, b).into()
            }
            Op::Mask(a, mask) => {
                let a = self.source(a.into());
                self.builder.bin(BinOp::And, a, mask).into()
            }
            Op::Get(register) => register_value(registers, register),
            Op::Set(register, source) => {
                let value = self.source(source);
                registers.push((register, value));
                value
            }
        }
    }

    /// The variable and the constant part of a load's position. Constants are added
    /// modulo 2^32: `ip[-1]` is the byte before the header.
    fn load_position(
        &mut self,
        base: Option<Operand>,
        index: Option<Operand>,
        offset: u32,
    ) -> (Option<Value>, u32) {
        let mut constant = offset;
        let mut variable = None;
        for part in [base, index].into_iter().flatten() {
            match (part, variable) {
                (Operand::Imm(part), _) => constant = constant.wrapping_add(part),
                (Operand::Val(part), None) => variable = Some(part),
                (Operand::Val(part), Some(other)) => {
                    variable = Some(self.builder.bin(BinOp::Add, other, part));
                }
            }
        }
        (variable, constant)
    }
}

fn register_value(registers: &[(Register, Operand)], wanted: Register) -> Operand {
    let row = registers.iter().rfind(|(register, _)| *register == wanted);
    row.map_or(Operand::Imm(0), |(_, value)| *value)
}
