//! Polyvariant specialisation: copies blocks until none has parameters.
//!
//! A block is copied for each distinct tuple of operands that it, or a block after it,
//! takes from outside: parameters, and values of copied blocks. Constants that become
//! known are folded.

use std::collections::{BTreeMap, BTreeSet};

use super::PARTS_MAX;
use crate::ir::{BasicBlock, Block, Cmp, Edge, Op, Operand, Program, Term, Value};

/// An equivalent program without parameters; `None` if it is too large.
pub(super) fn flatten(program: &Program) -> Option<Program> {
    if program.blocks.len() > PARTS_MAX || program.values.len() > PARTS_MAX {
        return None;
    }
    let mut copier = Specialiser {
        from: program,
        needs: needs(program)?,
        to: Program {
            values: Vec::new(),
            blocks: Vec::new(),
        },
        copies: BTreeMap::new(),
        due: Vec::new(),
    };
    copier.copy_of(Block::ENTRY, &BTreeMap::new())?;
    while let Some((source, copy, known)) = copier.due.pop() {
        copier.fill(source, copy, known)?;
    }
    copier.to.normalise();
    Some(copier.to)
}

/// An equivalent program in which only jumps pass arguments.
pub(super) fn split_edges(program: &Program) -> Program {
    let mut split = program.clone();
    for index in 0..split.blocks.len() {
        let mut new = Vec::new();
        let next = split.blocks.len() as u32;
        let term = &mut split.blocks[index].term;
        if matches!(term, Term::Jump(_)) {
            continue;
        }
        for edge in term.edges_mut().filter(|edge| !edge.args.is_empty()) {
            let there = Edge::to(Block(next + new.len() as u32));
            new.push(BasicBlock {
                params: Vec::new(),
                insts: Vec::new(),
                term: Term::Jump(std::mem::replace(edge, there)),
            });
        }
        split.blocks.extend(new);
    }
    for block in &mut split.blocks {
        let term = std::mem::replace(&mut block.term, Term::Return(Operand::Imm(0)));
        block.term = folded_term(term);
    }
    split.normalise();
    split
}

/// For each block, the values that it and the blocks after it take from outside, its
/// own parameters included; `None` if the sets are too large.
fn needs(program: &Program) -> Option<Vec<BTreeSet<Value>>> {
    let mut needs: Vec<BTreeSet<Value>> = vec![BTreeSet::new(); program.blocks.len()];
    let mut total = 0;
    for (index, block) in program.blocks.iter().enumerate().rev() {
        let mut here = BTreeSet::new();
        for edge in block.term.edges() {
            let target = edge.block.index();
            let params = &program.block(edge.block).params;
            here.extend(needs[target].iter().filter(|value| !params.contains(value)));
        }
        here.extend(block.term.operands().filter_map(Operand::value));
        for &inst in block.insts.iter().rev() {
            here.remove(&inst);
            here.extend(program.op(inst).operands().filter_map(Operand::value));
        }
        total += here.len();
        if total > 64 * PARTS_MAX {
            return None;
        }
        needs[index] = here;
    }
    Some(needs)
}

/// The operands in the copy for values of the source.
type Known = BTreeMap<Value, Operand>;

struct Specialiser<'p> {
    from: &'p Program,
    needs: Vec<BTreeSet<Value>>,
    to: Program,
    copies: BTreeMap<(Block, Vec<Operand>), Block>,
    due: Vec<(Block, Block, Known)>,
}

impl Specialiser<'_> {
    /// The copy of a block for the known operands; `None` if there are too many blocks.
    fn copy_of(&mut self, source: Block, known: &Known) -> Option<Block> {
        let needs = &self.needs[source.index()];
        let taken: Vec<_> = needs.iter().map(|value| known[value]).collect();
        let next = Block(self.to.blocks.len() as u32);
        let copy = *self.copies.entry((source, taken)).or_insert(next);
        if copy == next {
            if next.index() >= PARTS_MAX {
                return None;
            }
            let known = needs.iter().map(|value| (*value, known[value])).collect();
            self.due.push((source, copy, known));
            self.to.blocks.push(BasicBlock {
                params: Vec::new(),
                insts: Vec::new(),
                term: Term::Return(Operand::Imm(0)),
            });
        }
        Some(copy)
    }

    fn fill(&mut self, source: Block, copy: Block, mut known: Known) -> Option<()> {
        let block = self.from.block(source);
        for &inst in &block.insts {
            let op = self
                .from
                .op(inst)
                .map_operands(|operand| read(&known, operand));
            let operand = match folded(op) {
                Some(constant) => Operand::Imm(constant),
                None => {
                    let value = Value(self.to.values.len() as u32);
                    if value.index() >= PARTS_MAX {
                        return None;
                    }
                    self.to.values.push(op);
                    self.to.blocks[copy.index()].insts.push(value);
                    Operand::Val(value)
                }
            };
            known.insert(inst, operand);
        }
        let mut term = block.term.clone();
        term.map_operands(|operand| read(&known, operand));
        for edge in term.edges_mut() {
            *edge = Edge::to(self.target(edge, &known)?);
        }
        self.to.blocks[copy.index()].term = folded_term(term);
        Some(())
    }

    /// The copy that an edge leads to, past blocks that only jump.
    fn target(&mut self, edge: &Edge, known: &Known) -> Option<Block> {
        let mut edge = edge.clone();
        let mut known = known.clone();
        loop {
            let block = self.from.block(edge.block);
            known.extend(block.params.iter().copied().zip(edge.args.iter().copied()));
            match &block.term {
                Term::Jump(next) if block.insts.is_empty() => {
                    let args = next.args.iter().map(|arg| read(&known, *arg)).collect();
                    edge = Edge {
                        block: next.block,
                        args,
                    };
                }
                _ => return self.copy_of(edge.block, &known),
            }
        }
    }
}

fn read(known: &Known, operand: Operand) -> Operand {
    match operand {
        Operand::Val(value) => known[&value],
        constant => constant,
    }
}

/// The constant result of an operation; `None` if it is not constant or rejects.
fn folded(op: Op) -> Option<u32> {
    match op {
        Op::Bin {
            op,
            a: Operand::Imm(a),
            b: Operand::Imm(b),
        } => op.eval(a, b),
        Op::Test {
            cmp,
            a: Operand::Imm(a),
            b: Operand::Imm(b),
        } => Some(cmp.eval(a, b).into()),
        _ => None,
    }
}

/// Folds a branch with a known outcome to a jump, and puts a comparison's constant on
/// the right.
fn folded_term(term: Term) -> Term {
    match term {
        Term::Branch {
            cmp,
            a: Operand::Imm(a),
            b: Operand::Imm(b),
            then,
            otherwise,
        } => Term::Jump(if cmp.eval(a, b) { then } else { otherwise }),
        Term::Branch {
            then, otherwise, ..
        } if then == otherwise => Term::Jump(then),
        Term::Branch {
            cmp,
            a: a @ Operand::Imm(_),
            b,
            then,
            otherwise,
        } => Term::Branch {
            cmp: Cmp::swapped(cmp),
            a: b,
            b: a,
            then,
            otherwise,
        },
        term => term,
    }
}
