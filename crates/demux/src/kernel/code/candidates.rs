//! A frame's key for each shape that may have an entry for it: most shapes
//! have nothing for most frames, and this is all they cost.
//!
//! ```text
//!  switch: which arms does the sieve let pass?
//!    arm: switches below, and shapes: guards ─► key ─► candidate
//! ```

use super::{Coder, KEPT, SCRATCH};
use crate::kernel::decision_tree::{Node, Switch};
use crate::kernel::expr::Expr;
use crate::kernel::layout::{UNIT_BYTES, candidate, entry, scratch, shape as words};
use crate::kernel::maps::Part;
use crate::kernel::plan::Sieved;
use crate::kernel::prefilter::{Ask, Sieve, Way, range_bits};
use crate::kernel::subtable::{GuardState, Shape};
use weir_filter::backend::ebpf::{Insn, Label, Reg, op};

impl Coder<'_> {
    /// Leaves candidates for the shapes of a part of the tree, behind sieves
    /// for what was `asked`.
    pub(super) fn nodes<'t>(&mut self, nodes: &'t [Node], asked: &mut Vec<&'t Ask>) {
        for node in nodes {
            match node {
                Node::Shape(number) => {
                    if let Some(shape) = self.plan.shapes.get(number) {
                        self.shape(shape, asked);
                    }
                }
                Node::Switch(switch) => self.switch(switch, asked),
            }
        }
    }

    /// Goes through the arms that the sieve lets pass.
    fn switch<'t>(&mut self, switch: &'t Switch, asked: &mut Vec<&'t Ask>) {
        let sieve = switch.sieve.and_then(|number| self.plan.sieves.get(number));
        let Some(Sieved { sieve, .. }) = sieve else {
            return switch.arms.iter().for_each(|arm| self.nodes(arm, asked));
        };
        let next = self.asm.label();
        let checked = self.checked;
        let kept = scratch::SWITCH + asked.len() as i16;
        self.sieve(&switch.ask, sieve, next);
        self.branch(op::JEQ, Reg::R1, 0, next);
        if switch.arms.len() > 1 {
            self.set(op::B, SCRATCH, kept, Reg::R1);
        }
        let reached = self.checked;
        asked.push(&switch.ask);
        for (number, arm) in switch.arms.iter().enumerate() {
            let behind = self.asm.label();
            if switch.arms.len() > 1 {
                self.get(op::B, Reg::R1, SCRATCH, kept);
                self.alu(op::AND, Reg::R1, 1 << number);
                self.branch(op::JEQ, Reg::R1, 0, behind);
            }
            self.nodes(arm, asked);
            self.asm.bind(behind);
            self.checked = reached;
        }
        asked.pop();
        self.asm.bind(next);
        self.checked = checked;
    }

    /// r1 = the sieve's byte for the frame.
    fn sieve(&mut self, ask: &Ask, sieve: &Sieve, next: Label) {
        self.eval(ask.expr(), next);
        if let Ask::Field((_, mask)) = ask
            && !covers(*mask, ask.expr())
        {
            self.push(Insn::alu32(op::AND, Reg::R1, *mask as i32));
        }
        match sieve.way {
            Way::Hash { factor, shift } => {
                self.push(Insn::alu32(op::MUL, Reg::R1, factor as i32));
                self.push(Insn::alu32(op::RSH, Reg::R1, shift as i32));
            }
            Way::Order { shift } => {
                self.push(Insn::alu32(op::RSH, Reg::R1, shift as i32));
                self.push(Insn::alu32(op::AND, Reg::R1, sieve.cells() as i32 - 1));
            }
        }
        self.map_value(Reg::R2, Part::Store, sieve.unit * UNIT_BYTES);
        self.add(Reg::R1, Reg::R2);
        self.get(op::B, Reg::R1, Reg::R1, 0);
    }

    /// Leaves a candidate if the frame may have an entry in a shape.
    fn shape(&mut self, shape: &Shape, asked: &[&Ask]) {
        let next = self.asm.label();
        let checked = self.checked;
        self.guards(shape, asked, next);
        self.key(shape, next);
        self.candidate(shape, next);
        self.asm.bind(next);
        self.checked = checked;
    }

    /// Leaves if a field has a value that no entry has. What a guard asks for
    /// is data: none at all, once entries differ.
    fn guards(&mut self, shape: &Shape, asked: &[&Ask], next: Label) {
        for (index, guard) in shape.guards.iter().enumerate() {
            let field = &shape.name.fields[guard.field];
            let is_asked = |ask: &&Ask| matches!(ask, Ask::Field(known) if known == field);
            if guard.state == GuardState::Open || asked.iter().any(is_asked) {
                continue;
            }
            let at = shape.unit * UNIT_BYTES + (words::GUARDS + index as u32) * 8;
            self.eval(&field.0, next);
            self.map_value(Reg::R2, Part::Store, at);
            self.get(op::DW, Reg::R3, Reg::R2, 0);
            self.push(Insn::alu32(op::AND, Reg::R1, Reg::R3));
            self.alu(op::RSH, Reg::R3, 32);
            self.branch(op::JNE, Reg::R1, Reg::R3, next);
        }
    }

    /// Puts the key into scratch memory.
    pub(super) fn key(&mut self, shape: &Shape, next: Label) {
        for lane in 0..shape.lanes {
            let mut first = true;
            for part in shape.parts.iter().filter(|part| part.lane == lane) {
                let (expr, mask) = &shape.name.fields[part.field];
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
    pub(super) fn candidate(&mut self, shape: &Shape, next: Label) {
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
        let rest_key = entry::rest_key_tests(shape.lanes);
        self.set(op::W, KEPT, candidate::REST_KEY, rest_key as i32);
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

/// Whether all bits that an expression can have are in the mask.
fn covers(mask: u32, expr: &Expr) -> bool {
    let bits = range_bits(expr).unwrap_or(u32::BITS);
    mask.trailing_ones() >= bits
}
