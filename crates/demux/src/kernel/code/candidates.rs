//! A frame's key for each subtable that may have an entry for it: most subtables
//! have nothing for most frames, and this is all they cost.
//!
//! ```text
//!  switch: which arms does the prefilter let pass?
//!    arm: switches below, and subtables: guards ─► key ─► candidate
//! ```

use super::{CALLEE_SAVED, Coder, SCRATCH};
use crate::kernel::decision_tree::{Node, Switch};
use crate::kernel::expr::Expr;
use crate::kernel::layout::{UNIT_BYTES, candidate, entry, scratch, subtable as words};
use crate::kernel::maps::MapRole;
use crate::kernel::plan::PrefilteredArms;
use crate::kernel::prefilter::{BucketIndex, Prefilter, PrefilterKey, range_bits};
use crate::kernel::subtable::{GuardState, Subtable};
use weir_filter::backend::ebpf::{Insn, Label, Reg, op};

impl Coder<'_> {
    /// Leaves candidates for the subtables of a part of the tree, behind prefilters
    /// for what was `asked`.
    pub(super) fn nodes<'t>(&mut self, nodes: &'t [Node], asked: &mut Vec<&'t PrefilterKey>) {
        for node in nodes {
            match node {
                Node::Subtable(number) => {
                    if let Some(subtable) = self.plan.subtables.get(number) {
                        self.subtable(subtable, asked);
                    }
                }
                Node::Switch(switch) => self.switch(switch, asked),
            }
        }
    }

    /// Goes through the arms that the prefilter lets pass.
    fn switch<'t>(&mut self, switch: &'t Switch, asked: &mut Vec<&'t PrefilterKey>) {
        let prefilter = switch
            .prefilter
            .and_then(|number| self.plan.prefilters.get(number));
        let Some(PrefilteredArms { prefilter, .. }) = prefilter else {
            return switch.arms.iter().for_each(|arm| self.nodes(arm, asked));
        };
        let next = self.asm.label();
        let checked = self.checked;
        let kept = scratch::SWITCH + asked.len() as i16;
        self.prefilter(&switch.key, prefilter, next);
        self.branch(op::JEQ, Reg::R1, 0, next);
        if switch.arms.len() > 1 {
            self.set(op::B, SCRATCH, kept, Reg::R1);
        }
        let reached = self.checked;
        asked.push(&switch.key);
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

    /// r1 = the prefilter's byte for the frame.
    fn prefilter(&mut self, ask: &PrefilterKey, prefilter: &Prefilter, next: Label) {
        self.eval(ask.expr(), next);
        if let PrefilterKey::Field((_, mask)) = ask
            && !covers(*mask, ask.expr())
        {
            self.push(Insn::alu32(op::AND, Reg::R1, *mask as i32));
        }
        match prefilter.index {
            BucketIndex::Hash { factor, shift } => {
                self.push(Insn::alu32(op::MUL, Reg::R1, factor as i32));
                self.push(Insn::alu32(op::RSH, Reg::R1, shift as i32));
            }
            BucketIndex::Order { shift } => {
                self.push(Insn::alu32(op::RSH, Reg::R1, shift as i32));
                self.push(Insn::alu32(op::AND, Reg::R1, prefilter.cells() as i32 - 1));
            }
        }
        self.map_value(Reg::R2, MapRole::Store, prefilter.unit * UNIT_BYTES);
        self.add(Reg::R1, Reg::R2);
        self.get(op::B, Reg::R1, Reg::R1, 0);
    }

    /// Leaves a candidate if the frame may have an entry in a subtable.
    fn subtable(&mut self, subtable: &Subtable, asked: &[&PrefilterKey]) {
        let next = self.asm.label();
        let checked = self.checked;
        self.guards(subtable, asked, next);
        self.key(subtable, next);
        self.candidate(subtable, next);
        self.asm.bind(next);
        self.checked = checked;
    }

    /// Leaves if a field has a value that no entry has. What a guard asks for
    /// is data: none at all, once entries differ.
    fn guards(&mut self, subtable: &Subtable, asked: &[&PrefilterKey], next: Label) {
        for (index, guard) in subtable.guards.iter().enumerate() {
            let field = &subtable.signature.fields[guard.field];
            let is_asked =
                |ask: &&PrefilterKey| matches!(ask, PrefilterKey::Field(known) if known == field);
            if guard.state == GuardState::Open || asked.iter().any(is_asked) {
                continue;
            }
            let at = subtable.unit * UNIT_BYTES + (words::GUARDS + index as u32) * 8;
            self.eval(&field.0, next);
            self.map_value(Reg::R2, MapRole::Store, at);
            self.get(op::DW, Reg::R3, Reg::R2, 0);
            self.push(Insn::alu32(op::AND, Reg::R1, Reg::R3));
            self.alu(op::RSH, Reg::R3, 32);
            self.branch(op::JNE, Reg::R1, Reg::R3, next);
        }
    }

    /// Puts the key into scratch memory.
    fn key(&mut self, subtable: &Subtable, next: Label) {
        for lane in 0..subtable.lanes {
            let mut first = true;
            for part in subtable.key_parts.iter().filter(|part| part.lane == lane) {
                let (expr, mask) = &subtable.signature.fields[part.field];
                self.eval(expr, next);
                self.push(Insn::alu32(op::AND, Reg::R1, *mask as i32));
                if part.shift > 0 {
                    self.alu(op::LSH, Reg::R1, part.shift as i32);
                }
                if first {
                    self.mov(CALLEE_SAVED, Reg::R1);
                } else {
                    self.alu(op::OR, CALLEE_SAVED, Reg::R1);
                }
                first = false;
            }
            self.set(
                op::DW,
                SCRATCH,
                scratch::KEY + 8 * lane as i16,
                CALLEE_SAVED,
            );
        }
    }

    /// Notes the key, and the values that tests of the subtable's entries use.
    fn candidate(&mut self, subtable: &Subtable, next: Label) {
        self.get(op::W, Reg::R1, SCRATCH, scratch::CANDIDATES);
        // It cannot be: there are as many places as subtables in a part.
        let most = scratch::CANDIDATES_MAX as i32;
        self.branch(op::JGE, Reg::R1, most, next);
        self.mov(Reg::R2, Reg::R1);
        self.add(Reg::R2, 1);
        self.set(op::W, SCRATCH, scratch::CANDIDATES, Reg::R2);
        self.mov(CALLEE_SAVED, Reg::R1);
        self.alu(op::MUL, CALLEE_SAVED, candidate::BYTES as i32);
        self.add(CALLEE_SAVED, SCRATCH);
        self.add(CALLEE_SAVED, i32::from(scratch::CANDIDATE));
        self.set(
            op::W,
            CALLEE_SAVED,
            candidate::SUBTABLE,
            subtable.number as i32,
        );
        self.set(op::W, CALLEE_SAVED, candidate::LANES, subtable.lanes as i32);
        self.set(op::W, CALLEE_SAVED, candidate::UNIT, subtable.unit as i32);
        self.set(
            op::W,
            CALLEE_SAVED,
            candidate::VALUES,
            subtable.values.len() as i32,
        );
        let rest_key = entry::rest_key_tests(subtable.lanes);
        self.set(op::W, CALLEE_SAVED, candidate::REST_KEY, rest_key as i32);
        for lane in 0..subtable.lanes as i16 {
            self.get(op::DW, Reg::R1, SCRATCH, scratch::KEY + 8 * lane);
            self.set(op::DW, CALLEE_SAVED, candidate::KEY + 8 * lane, Reg::R1);
        }
        let key_checked = self.checked;
        for (index, expr) in subtable.values.iter().enumerate() {
            let none = self.asm.label();
            let at = candidate::VALUE + 8 * index as i16;
            self.set(op::DW, CALLEE_SAVED, at, candidate::NO_VALUE);
            // What one value needs of the frame, another may do without.
            self.checked = key_checked;
            self.eval(expr, none);
            self.push(Insn::mov32(Reg::R1, Reg::R1));
            self.set(op::DW, CALLEE_SAVED, at, Reg::R1);
            self.asm.bind(none);
        }
    }
}

/// Whether all bits that an expression can have are in the mask.
pub(super) fn covers(mask: u32, expr: &Expr) -> bool {
    let bits = range_bits(expr).unwrap_or(u32::BITS);
    mask.trailing_ones() >= bits
}
