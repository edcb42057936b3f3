//! A frame's key for each shape that may have an entry for it: most shapes
//! have nothing for most frames, and this is all they cost.
//!
//! ```text
//!  group: is the field what all shapes in it ask for?
//!    shape: guards ─► sieve ─► key ─► candidate
//! ```

use super::super::layout::{UNIT_BYTES, UNIT_WORDS, candidate, scratch, shape as words};
use super::super::maps::Part;
use super::super::shape::{Field, GuardState, Shape};
use super::super::sieve::Sieve;
use super::super::tree::{Group, Node};
use super::{Coder, KEPT, SCRATCH};
use weir_filter::backend::ebpf::{Insn, Label, Reg, op};

/// With fewer shapes a sieve costs more than it saves.
const SIEVED_MIN: usize = 4;

impl Coder<'_> {
    /// Leaves candidates for the shapes of a part of the tree; `tested` are
    /// the fields of the groups around it.
    pub(super) fn nodes<'p>(&mut self, nodes: &'p [Node], tested: &mut Vec<&'p Field>) {
        for node in nodes {
            match node {
                Node::Shape(number) => {
                    if let Some(shape) = self.plan.shapes.get(number) {
                        self.shape(shape, tested);
                    }
                }
                Node::Group(group) => self.group(group, tested),
            }
        }
    }

    fn group<'p>(&mut self, group: &'p Group, tested: &mut Vec<&'p Field>) {
        let next = self.asm.label();
        let checked = self.checked;
        self.reload_len();
        self.ask(&group.field, group.word * 8, next);
        tested.push(&group.field);
        self.nodes(&group.nodes, tested);
        tested.pop();
        self.asm.bind(next);
        self.checked = checked;
    }

    /// Leaves unless a field is as the word at byte `at` of the store asks.
    fn ask(&mut self, (expr, _): &Field, at: u32, next: Label) {
        self.eval(expr, next);
        self.map_value(Reg::R2, Part::Store, at);
        self.get(op::DW, Reg::R3, Reg::R2, 0);
        self.push(Insn::alu32(op::AND, Reg::R1, Reg::R3));
        self.alu(op::RSH, Reg::R3, 32);
        self.branch(op::JNE, Reg::R1, Reg::R3, next);
    }

    /// Leaves a candidate if the frame may have an entry in a shape.
    pub(super) fn shape(&mut self, shape: &Shape, tested: &[&Field]) {
        let next = self.asm.label();
        let checked = self.checked;
        self.reload_len();
        self.guards(shape, tested, next);
        let sieve = shape.sieve.as_ref();
        if let Some(sieve) = sieve.filter(|_| self.plan.shapes.len() >= SIEVED_MIN) {
            self.sieve(shape, sieve, next);
        }
        self.key(shape, next);
        self.candidate(shape, next);
        self.asm.bind(next);
        self.checked = checked;
    }

    /// Leaves if a field has a value that no entry has. What a guard asks for
    /// is data: none at all, once entries differ.
    fn guards(&mut self, shape: &Shape, tested: &[&Field], next: Label) {
        for (index, guard) in shape.guards.iter().enumerate() {
            let field = &shape.fields[guard.field];
            if guard.state == GuardState::Open || tested.contains(&field) {
                continue;
            }
            let at = shape.unit * UNIT_BYTES + (words::GUARDS + index as u32) * 8;
            self.ask(field, at, next);
        }
    }

    /// Leaves if no entry has the value of the sieve's field.
    fn sieve(&mut self, shape: &Shape, sieve: &Sieve, next: Label) {
        let (expr, mask) = &shape.fields[sieve.field];
        self.eval(expr, next);
        self.push(Insn::alu32(op::AND, Reg::R1, *mask as i32));
        self.push(Insn::alu32(op::MUL, Reg::R1, sieve.factor as i32));
        self.push(Insn::alu32(op::RSH, Reg::R1, sieve.shift() as i32));
        // The number of the bit; of its word, in bytes.
        self.mov(Reg::R2, Reg::R1);
        self.alu(op::RSH, Reg::R2, 6);
        self.alu(op::AND, Reg::R2, (sieve.units * UNIT_WORDS) as i32 - 1);
        self.alu(op::LSH, Reg::R2, 3);
        self.map_value(Reg::R3, Part::Store, sieve.unit * UNIT_BYTES);
        self.add(Reg::R3, Reg::R2);
        self.get(op::DW, Reg::R2, Reg::R3, 0);
        // Shifts take their distance modulo 64, on every machine.
        self.alu(op::AND, Reg::R1, 63);
        self.alu(op::RSH, Reg::R2, Reg::R1);
        self.alu(op::AND, Reg::R2, 1);
        self.branch(op::JEQ, Reg::R2, 0, next);
    }

    /// Puts the key into scratch memory.
    fn key(&mut self, shape: &Shape, next: Label) {
        for lane in 0..shape.lanes {
            let mut first = true;
            for part in shape.parts.iter().filter(|part| part.lane == lane) {
                let (expr, mask) = &shape.fields[part.field];
                self.eval(expr, next);
                self.push(Insn::alu32(op::AND, Reg::R1, *mask as i32));
                if part.shift > 0 {
                    self.alu(op::LSH, Reg::R1, part.shift as i32);
                }
                if first {
                    self.mov(KEPT, Reg::R1);
                } else {
                    self.alu(op::OR, KEPT, Reg::R1);
                }
                first = false;
            }
            self.set(op::DW, SCRATCH, scratch::KEY + 8 * lane as i16, KEPT);
        }
    }

    /// Notes the key, and the values that tests of the shape's entries use.
    fn candidate(&mut self, shape: &Shape, next: Label) {
        self.get(op::W, Reg::R1, SCRATCH, scratch::CANDIDATES);
        // It cannot be: there are as many places as shapes in a part.
        let most = scratch::CANDIDATES_MAX as i32;
        self.branch(op::JGE, Reg::R1, most, next);
        self.mov(Reg::R2, Reg::R1);
        self.add(Reg::R2, 1);
        self.set(op::W, SCRATCH, scratch::CANDIDATES, Reg::R2);
        self.mov(KEPT, Reg::R1);
        self.alu(op::MUL, KEPT, candidate::BYTES as i32);
        self.add(KEPT, SCRATCH);
        self.add(KEPT, i32::from(scratch::CANDIDATE));
        self.set(op::W, KEPT, candidate::SHAPE, shape.number as i32);
        self.set(op::W, KEPT, candidate::LANES, shape.lanes as i32);
        self.set(op::W, KEPT, candidate::UNIT, shape.unit as i32);
        self.set(op::W, KEPT, candidate::VALUES, shape.values.len() as i32);
        for lane in 0..shape.lanes as i16 {
            self.get(op::DW, Reg::R1, SCRATCH, scratch::KEY + 8 * lane);
            self.set(op::DW, KEPT, candidate::KEY + 8 * lane, Reg::R1);
        }
        let key_checked = self.checked;
        for (index, expr) in shape.values.iter().enumerate() {
            let none = self.asm.label();
            let at = candidate::VALUE + 8 * index as i16;
            self.set(op::DW, KEPT, at, 0);
            // What one value needs of the frame, another may do without.
            self.checked = key_checked;
            self.eval(expr, none);
            self.set(op::W, KEPT, at, Reg::R1);
            self.set(op::W, KEPT, at + 4, 1);
            self.asm.bind(none);
        }
    }
}
