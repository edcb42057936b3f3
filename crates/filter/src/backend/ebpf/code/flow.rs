//! Code generation for control flow: branches, edges with their moves, verdicts.

use super::super::asm::Label;
use super::super::insn::{Insn, Reg, Src, op};
use super::Coder;
use crate::backend::ebpf::regalloc::Location;
use crate::ir::{Block, Cmp, Edge, Operand};

impl Coder<'_> {
    pub(super) fn ret(&mut self, verdict: Operand) {
        let result = self.fragment.result;
        match verdict {
            Operand::Imm(constant) => {
                self.asm.push(Insn::mov32(result, constant as i32));
            }
            Operand::Val(value) => {
                let from = self.read(value, result);
                self.mov32(result, from.into());
                self.asm
                    .jump(Insn::jump32(op::JEQ, result, 0), self.fragment.reject);
            }
        }
        self.asm.goto(self.fragment.accept);
    }

    pub(super) fn branch(
        &mut self,
        block: Block,
        cmp: Cmp,
        (a, b): (Operand, Operand),
        then: &Edge,
        otherwise: &Edge,
    ) {
        let (cmp, a, b) = match (a, b) {
            (Operand::Imm(a), Operand::Imm(b)) => {
                let taken = if cmp.eval(a, b) { then } else { otherwise };
                return self.edge(taken);
            }
            (Operand::Imm(_), _) => (cmp.swapped(), b, a),
            _ => (cmp, a, b),
        };
        let [first, second] = self.scratch;
        let left = self.read_operand(a, first);
        let Src::Reg(mut left) = left else {
            unreachable!("a constant was put on the right");
        };
        let mut right = self.read_operand(b, second);
        // Blocks in which the comparison proves something; inequality proves nothing.
        let known_in: &[Block] = match cmp {
            Cmp::Eq => &[then.block],
            Cmp::Ne => &[otherwise.block],
            _ => &[then.block, otherwise.block],
        };
        if self.fragment.is_hidden && right != Src::Reg(first) {
            if self.is_used_in(a, known_in) {
                left = self.hide(left, first);
            }
            if let Src::Reg(known) = right
                && first != second
                && self.is_used_in(b, known_in)
            {
                right = Src::Reg(self.hide(known, second));
            }
        }
        let (mut cmp, mut to, mut fall) = match cmp {
            Cmp::Clear => (Cmp::Set, otherwise, then),
            _ => (cmp, then, otherwise),
        };
        let turn = if self.deep {
            self.height(to) < self.height(fall)
        } else {
            to.block == self.next(block) && fall.block != self.next(block)
        };
        let mut compare = (left, right);
        if turn && cmp == Cmp::Set && self.deep {
            let both = self.scratch[0];
            self.mov32(both, left.into());
            self.asm.push(Insn::alu32(op::AND, both, right));
            (cmp, compare) = (Cmp::Ne, (both, Src::Imm(0)));
        }
        if turn && cmp != Cmp::Set {
            (cmp, to, fall) = (cmp.negated(), fall, to);
        }
        let insn = Insn::jump32(condition_of(cmp), compare.0, compare.1);
        if let Some(label) = self.direct_target(to) {
            self.asm.jump(insn, label);
            self.edge(fall);
        } else {
            let label = self.asm.label();
            self.asm.jump(insn, label);
            self.edge(fall);
            self.asm.bind(label);
            self.edge(to);
        }
    }

    /// Whether the value may be used in one of `blocks` or in a later block.
    fn is_used_in(&self, operand: Operand, blocks: &[Block]) -> bool {
        let last = operand.value().map(|value| self.last_uses[value.index()]);
        let first = blocks.iter().map(|block| block.index()).min();
        last.is_some_and(|last| first.is_some_and(|first| last >= first))
    }

    /// Copies `from` so that the verifier does not recognise the copy. Facts about the
    /// copy then do not apply to `from`.
    fn hide(&mut self, from: Reg, to: Reg) -> Reg {
        self.mov32(to, from.into());
        self.asm.push(Insn::alu32(op::OR, to, 0));
        to
    }

    fn height(&self, edge: &Edge) -> u32 {
        self.heights[edge.block.index()]
    }

    /// The next block with code.
    fn next(&self, block: Block) -> Block {
        let behind = &self.lowered.blocks[block.index() + 1..];
        let gap = behind.iter().position(Option::is_some).unwrap_or(0);
        Block((block.index() + 1 + gap) as u32)
    }

    /// The label of the edge's target; `None` if the edge needs moves.
    fn direct_target(&self, edge: &Edge) -> Option<Label> {
        if self.lowered.blocks[edge.block.index()].is_none() {
            return Some(self.fragment.reject);
        }
        let idle = self.moves(edge).is_empty();
        idle.then(|| self.labels[edge.block.index()])
    }

    pub(super) fn edge(&mut self, edge: &Edge) {
        if self.lowered.blocks[edge.block.index()].is_none() {
            return self.asm.goto(self.fragment.reject);
        }
        let moves = self.moves(edge);
        self.move_all(moves);
        self.asm.goto(self.labels[edge.block.index()]);
    }

    /// The moves from the edge's arguments to the target's parameters.
    fn moves(&self, edge: &Edge) -> Vec<(Location, Origin)> {
        let params = &self.program.block(edge.block).params;
        let pairs = params.iter().zip(&edge.args).map(|(param, arg)| {
            let from = match arg {
                Operand::Imm(constant) => Origin::Imm(*constant),
                Operand::Val(value) => Origin::Location(self.location(*value)),
            };
            (self.location(*param), from)
        });
        pairs
            .filter(|(to, from)| *to != Location::Nowhere && *from != Origin::Location(*to))
            .collect()
    }

    /// Emits a parallel assignment: no location is overwritten before it is read.
    fn move_all(&mut self, mut moves: Vec<(Location, Origin)>) {
        while !moves.is_empty() {
            let safe = moves.iter().position(|(to, _)| {
                let is_read = |(_, from): &(Location, Origin)| *from == Origin::Location(*to);
                !moves.iter().any(is_read)
            });
            if let Some(index) = safe {
                let (to, from) = moves.swap_remove(index);
                self.emit_move(to, from);
                continue;
            }
            // Every target is still read by another move, so they form a cycle. A scratch
            // register breaks it.
            let (first, _) = moves[0];
            let aside = Location::Reg(self.scratch[0]);
            self.emit_move(aside, Origin::Location(first));
            for (_, from) in &mut moves {
                if *from == Origin::Location(first) {
                    *from = Origin::Location(aside);
                }
            }
        }
    }

    fn emit_move(&mut self, to: Location, from: Origin) {
        let insn = match (to, from) {
            (Location::Reg(to), Origin::Imm(constant)) => Insn::mov32(to, constant as i32),
            (Location::Reg(to), Origin::Location(Location::Reg(from))) => Insn::mov64(to, from),
            (Location::Reg(to), Origin::Location(Location::Slot(slot))) => {
                Insn::load(op::DW, to, Reg::FP, slot)
            }
            (Location::Slot(slot), Origin::Location(Location::Reg(from))) => {
                Insn::store(op::DW, Reg::FP, slot, from)
            }
            (Location::Slot(slot), from) => {
                let through = self.scratch[1];
                self.emit_move(Location::Reg(through), from);
                Insn::store(op::DW, Reg::FP, slot, through)
            }
            (Location::Nowhere, _) | (_, Origin::Location(Location::Nowhere)) => {
                unreachable!("what is moved has a location")
            }
        };
        self.asm.push(insn);
    }
}

/// The source of a move.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Origin {
    Imm(u32),
    Location(Location),
}

fn condition_of(cmp: Cmp) -> u8 {
    match cmp {
        Cmp::Eq => op::JEQ,
        Cmp::Ne => op::JNE,
        Cmp::Lt => op::JLT,
        Cmp::Le => op::JLE,
        Cmp::Gt => op::JGT,
        Cmp::Ge => op::JGE,
        Cmp::Set => op::JSET,
        Cmp::Clear => unreachable!("its edges were exchanged"),
    }
}
