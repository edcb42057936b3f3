//! From tests joined by and, or, not to the graph of the IR.
//!
//! Each test becomes a block; where it goes when it holds and when it fails
//! follows from the predicates around it, handed down from the root. `not`
//! swaps the two.

use crate::ir::{Block, Builder, Cmp, Edge, Operand, Program, Term, Value};

use super::generate::{Code, Node, Op, Pred, Register, Source, Test};

/// Where a test leads: another test, or the end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Target {
    Test(u32),
    Accept,
    Reject,
}

/// A program that gives `snaplen` where the predicate holds, else zero.
pub(super) fn lower(code: &Code, root: Pred, snaplen: u32) -> Program {
    if let Some(constant) = root.constant() {
        return Program::constant(if constant { snaplen } else { 0 });
    }
    let targets = targets(code, root);
    let live = (code.registers > 0).then(|| Liveness::of(code, root));
    let mut builder = Builder::new();
    let (accept, reject) = (builder.block(), builder.block());
    let blocks = (0..code.tests.len()).map(|test| {
        let used = targets[test].is_some();
        used.then(|| builder.block())
    });
    let mut lowering = Lowering {
        code,
        blocks: blocks.collect(),
        accept,
        reject,
        live,
        values: vec![Operand::Imm(0); code.ops.len()],
        params: Vec::new(),
        builder,
    };
    lowering.make_params();
    let entry = lowering.builder.entry();
    lowering.builder.switch_to(entry);
    let head = Target::Test(code.heads[root.0 as usize]);
    let edge = lowering.edge(head, &[]);
    lowering.builder.terminate(Term::Jump(edge));
    for (index, test) in code.tests.iter().enumerate() {
        if let Some((then, otherwise)) = targets[index] {
            lowering.test(index as u32, test, then, otherwise);
        }
    }
    lowering.builder.switch_to(accept);
    lowering.builder.ret(snaplen);
    lowering.builder.switch_to(reject);
    lowering.builder.ret(0);
    lowering.builder.finish()
}

/// For each test that the root needs, where it leads.
fn targets(code: &Code, root: Pred) -> Vec<Option<(Target, Target)>> {
    let mut tests = vec![None; code.tests.len()];
    let mut nodes = vec![None; code.nodes.len()];
    nodes[root.0 as usize] = Some((Target::Accept, Target::Reject));
    // Parents come after their children.
    for index in (0..code.nodes.len()).rev() {
        let Some((then, otherwise)) = nodes[index] else {
            continue;
        };
        match code.nodes[index] {
            Node::Test(test) => tests[test as usize] = Some((then, otherwise)),
            Node::Not(a) => nodes[a.0 as usize] = Some((otherwise, then)),
            Node::And(a, b) => {
                let next = Target::Test(code.heads[b.0 as usize]);
                nodes[a.0 as usize] = Some((next, otherwise));
                nodes[b.0 as usize] = Some((then, otherwise));
            }
            Node::Or(a, b) => {
                let next = Target::Test(code.heads[b.0 as usize]);
                nodes[a.0 as usize] = Some((then, next));
                nodes[b.0 as usize] = Some((then, otherwise));
            }
        }
    }
    tests
}

/// Which registers hold something when a test begins: those set in an earlier
/// test and read in this one or a later. Tests are counted in the order in
/// which they run.
struct Liveness {
    /// For each test its place in that order.
    places: Vec<u32>,
    /// For each register the first place that sets it and the last that reads
    /// it.
    ranges: Vec<(u32, u32)>,
}

impl Liveness {
    fn of(code: &Code, root: Pred) -> Liveness {
        let mut places = vec![u32::MAX; code.tests.len()];
        let mut ranges = vec![(u32::MAX, 0); code.registers as usize];
        let mut place = 0;
        let mut stack = vec![root];
        while let Some(pred) = stack.pop() {
            match code.nodes[pred.0 as usize] {
                Node::Not(a) => stack.push(a),
                Node::And(a, b) | Node::Or(a, b) => stack.extend([b, a]),
                Node::Test(test) => {
                    places[test as usize] = place;
                    for op in ops(code, &code.tests[test as usize]) {
                        match op {
                            Op::Set(register, _) => {
                                let range = &mut ranges[register.0 as usize];
                                range.0 = range.0.min(place);
                            }
                            Op::Get(register) => ranges[register.0 as usize].1 = place,
                            _ => {}
                        }
                    }
                    place += 1;
                }
            }
        }
        Liveness { places, ranges }
    }

    /// The registers that the test takes as parameters.
    fn at(&self, test: u32) -> impl Iterator<Item = Register> {
        let place = self.places[test as usize];
        let rows = self.ranges.iter().enumerate();
        rows.filter(move |(_, (first, last))| *first < place && place <= *last)
            .map(|(index, _)| Register(index as u32))
    }
}

fn ops<'c>(code: &'c Code, test: &Test) -> &'c [Op] {
    &code.ops[test.ops.0 as usize..test.ops.1 as usize]
}

struct Lowering<'c> {
    code: &'c Code,
    /// For each test its block, if the root needs it.
    blocks: Vec<Option<Block>>,
    accept: Block,
    reject: Block,
    live: Option<Liveness>,
    /// For each operation its value.
    values: Vec<Operand>,
    /// For each test the values of the registers it takes; empty without any.
    params: Vec<Vec<(Register, Value)>>,
    builder: Builder,
}

impl Lowering<'_> {
    fn make_params(&mut self) {
        let Some(live) = &self.live else {
            return;
        };
        for (test, block) in self.blocks.iter().enumerate() {
            let mut params = Vec::new();
            if let Some(block) = block {
                for register in live.at(test as u32) {
                    params.push((register, self.builder.param(*block)));
                }
            }
            self.params.push(params);
        }
    }

    /// The way to a target, given what the registers hold. One that was never
    /// set is zero.
    fn edge(&self, target: Target, registers: &[(Register, Operand)]) -> Edge {
        let test = match target {
            Target::Accept => return Edge::to(self.accept),
            Target::Reject => return Edge::to(self.reject),
            Target::Test(test) => test as usize,
        };
        let params: &[(Register, Value)] = self.params.get(test).map_or(&[], Vec::as_slice);
        let held = |wanted: Register| {
            let row = registers.iter().rfind(|(register, _)| *register == wanted);
            row.map_or(Operand::Imm(0), |(_, value)| *value)
        };
        Edge {
            block: self.blocks[test].unwrap_or(self.reject),
            args: params.iter().map(|(register, _)| held(*register)).collect(),
        }
    }

    fn source(&self, source: Source) -> Operand {
        match source {
            Source::Imm(constant) => Operand::Imm(constant),
            Source::Temp(temp) => self.values[temp.0 as usize],
        }
    }

    fn test(&mut self, index: u32, test: &Test, then: Target, otherwise: Target) {
        let Some(block) = self.blocks[index as usize] else {
            return;
        };
        self.builder.switch_to(block);
        let mut registers: Vec<(Register, Operand)> = match self.params.get(index as usize) {
            Some(params) => params
                .iter()
                .map(|(register, value)| (*register, (*value).into()))
                .collect(),
            None => Vec::new(),
        };
        self.ops(test, &mut registers);
        let then = self.edge(then, &registers);
        let term = match test.compare {
            None => Term::Jump(then),
            Some((cmp, a, b)) => {
                let otherwise = self.edge(otherwise, &registers);
                self.branch(cmp, a, b, then, otherwise)
            }
        };
        self.builder.terminate(term);
    }

    fn branch(&self, cmp: Cmp, a: Source, b: Source, then: Edge, otherwise: Edge) -> Term {
        Term::Branch {
            cmp,
            a: self.source(a),
            b: self.source(b),
            then,
            otherwise,
        }
    }

    fn ops(&mut self, test: &Test, registers: &mut Vec<(Register, Operand)>) {
        let code = self.code;
        let begin = test.ops.0;
        let used = used_ops(ops(code, test), test);
        for (offset, op) in ops(code, test).iter().enumerate() {
            if !used.get(offset).copied().unwrap_or(true) {
                continue;
            }
            let value: Operand = match *op {
                Op::Load {
                    width,
                    base,
                    offset,
                } => match base.map(|base| self.source(base.into())) {
                    Some(Operand::Val(base)) => self.builder.load(width, Some(base), offset).into(),
                    Some(Operand::Imm(base)) => {
                        let offset = offset.saturating_add(base);
                        self.builder.load(width, None, offset).into()
                    }
                    None => self.builder.load(width, None, offset).into(),
                },
                Op::Len => self.builder.wire_len().into(),
                Op::Bin(op, a, b) => {
                    let (a, b) = (self.source(a), self.source(b));
                    self.builder.bin(op, a, b).into()
                }
                Op::Get(register) => {
                    let row = registers.iter().rfind(|(held, _)| *held == register);
                    row.map_or(Operand::Imm(0), |(_, value)| *value)
                }
                Op::Set(register, source) => {
                    let value = self.source(source);
                    registers.push((register, value));
                    continue;
                }
            };
            self.values[begin as usize + offset] = value;
        }
    }
}

/// Which operations the comparison and the registers need; empty if all.
/// What nothing needs is not loaded, so that it cannot reject a frame.
fn used_ops(ops: &[Op], test: &Test) -> Vec<bool> {
    if ops.len() <= 2 {
        return Vec::new();
    }
    let begin = test.ops.0;
    let mut used = vec![false; ops.len()];
    let mark = |source: Source, used: &mut Vec<bool>| {
        if let Source::Temp(temp) = source {
            used[(temp.0 - begin) as usize] = true;
        }
    };
    if let Some((_, a, b)) = test.compare {
        mark(a, &mut used);
        mark(b, &mut used);
    }
    for (index, op) in ops.iter().enumerate().rev() {
        if matches!(op, Op::Set(..)) {
            used[index] = true;
        }
        if !used[index] {
            continue;
        }
        match *op {
            Op::Load {
                base: Some(base), ..
            } => mark(base.into(), &mut used),
            Op::Bin(_, a, b) => {
                mark(a, &mut used);
                mark(b, &mut used);
            }
            Op::Set(_, source) => mark(source, &mut used),
            Op::Load { base: None, .. } | Op::Len | Op::Get(_) => {}
        }
    }
    used
}
