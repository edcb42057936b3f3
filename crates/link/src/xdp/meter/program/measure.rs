//! The measures of a frame: the rules of [`weir_meter::measure`], and the table of flows.
//!
//! Counts and state of a measure are words of the frame's cell, which [`count`](super::count) has
//! found. Several CPUs may count in one cell.

use super::super::layout::{
    FLOW_BYTES, FLOW_PROBES, FLOW_SLOTS, FLOW_WORDS, HOME_SHIFT, MUL_A, PAGE_BYTES, at, flow, place,
};
use super::super::measures::Measured;
use super::find::lose_track;
use super::{Emit, Routines, Spec, stack, transport};
use crate::xdp::abi::{atomic_add, compare_exchange, exchange};
use weir_filter::backend::ebpf::{Asm, EmitError, Insn, Label, Reg, helper, op};
use weir_filter::ir::Program as Filter;
use weir_meter::measure::Gaps;

/// Results of the routine of flows.
mod found {
    pub(super) const KNOWN: i32 = 0;
    pub(super) const NEW: i32 = 1;
    /// It may be new, and there is no room to record that.
    pub(super) const NO_ROOM: i32 = 2;
}

/// Attempts to enter a slot of time while other CPUs do.
const ATTEMPTS: usize = 2;

impl Emit<'_> {
    /// Counts the frame in the words of its cell.
    pub(super) fn measure(&mut self, routines: &Routines) -> Result<(), EmitError> {
        let spec = self.spec;
        let has_time = |it: &Measured| !matches!(it, Measured::Accepted { .. });
        if spec.measures.iter().any(has_time) {
            self.push(&[
                Insn::call(helper::KTIME_GET_NS),
                Insn::store(op::DW, Reg::FP, stack::NOW, Reg::R0),
            ]);
        }
        for measure in &spec.measures {
            match measure {
                Measured::Accepted { filter, column } => self.accepted(filter, *column)?,
                Measured::Active {
                    slot_ms,
                    column,
                    slot,
                } => self.active(*slot_ms, *column, *slot),
                Measured::Gaps { columns, last } => self.gaps(*columns, *last),
                Measured::Flows { column, at_least } => self.flows(routines, *column, *at_least),
            }
        }
        Ok(())
    }

    /// r3 = the cell.
    fn cell(&mut self) {
        self.push(&[Insn::load(op::DW, Reg::R3, Reg::FP, stack::CELL)]);
    }

    fn accepted(&mut self, filter: &Filter, column: i16) -> Result<(), EmitError> {
        let [accept, reject] = [(); 2].map(|()| self.asm.label());
        self.load_frame();
        self.filter(filter, accept, reject)?;
        self.asm.bind(accept);
        self.cell();
        self.push(&[
            Insn::load(op::DW, Reg::R2, Reg::FP, stack::PACKETS),
            atomic_add(Reg::R3, column, Reg::R2),
        ]);
        self.asm.bind(reject);
        Ok(())
    }

    /// Adds the slot's length if this is the first packet in it, of all CPUs.
    fn active(&mut self, slot_ms: i32, column: i16, state: i16) {
        let [first, done] = [(); 2].map(|()| self.asm.label());
        self.cell();
        // From 1: 0 stands for none.
        self.push(&[Insn::load(op::DW, Reg::R1, Reg::FP, stack::NOW)]);
        let slot_ns = Insn::load64(Reg::R2, slot_ms as u64 * 1_000_000);
        self.push(&slot_ns);
        self.push(&[
            Insn::alu64(op::DIV, Reg::R1, Reg::R2),
            Insn::alu64(op::ADD, Reg::R1, 1),
        ]);
        for _ in 0..ATTEMPTS {
            self.push(&[
                Insn::load(op::DW, Reg::R0, Reg::R3, state),
                Insn::mov64(Reg::R4, Reg::R0),
            ]);
            self.asm.jump(Insn::jump64(op::JGE, Reg::R0, Reg::R1), done);
            self.push(&[compare_exchange(Reg::R3, state, Reg::R1)]);
            self.asm
                .jump(Insn::jump64(op::JEQ, Reg::R0, Reg::R4), first);
        }
        self.asm.goto(done);
        self.asm.bind(first);
        self.push(&[
            Insn::mov64(Reg::R4, slot_ms),
            atomic_add(Reg::R3, column, Reg::R4),
        ]);
        self.asm.bind(done);
    }

    /// Counts the time since the packet before; the time between the segments of a super-frame does not count.
    fn gaps(&mut self, columns: i16, last: i16) {
        let [ordered, whole, counted, capped] = [(); 4].map(|()| self.asm.label());
        self.cell();
        self.push(&[
            Insn::load(op::DW, Reg::R1, Reg::FP, stack::PACKETS),
            Insn::alu64(op::SUB, Reg::R1, 1),
        ]);
        self.jump(op::JEQ, Reg::R1, 0, whole);
        self.push(&[atomic_add(Reg::R3, columns, Reg::R1)]);
        self.asm.bind(whole);
        self.push(&[
            Insn::load(op::DW, Reg::R4, Reg::FP, stack::NOW),
            Insn::mov64(Reg::R1, Reg::R4),
            exchange(Reg::R3, last, Reg::R1),
        ]);
        self.jump(op::JEQ, Reg::R1, 0, counted);
        // Another CPU's clock may be a little ahead.
        self.asm
            .jump(Insn::jump64(op::JGE, Reg::R4, Reg::R1), ordered);
        self.push(&[Insn::mov64(Reg::R4, Reg::R1)]);
        self.asm.bind(ordered);
        self.push(&[
            Insn::alu64(op::SUB, Reg::R4, Reg::R1),
            Insn::alu64(op::DIV, Reg::R4, 1000),
        ]);
        self.bits_of_r4();
        self.cell();
        self.jump(op::JLE, Reg::R5, Gaps::BUCKETS as i32 - 1, capped);
        self.push(&[Insn::mov64(Reg::R5, Gaps::BUCKETS as i32 - 1)]);
        self.asm.bind(capped);
        self.push(&[
            Insn::alu64(op::LSH, Reg::R5, 3),
            Insn::alu64(op::ADD, Reg::R3, Reg::R5),
            Insn::mov64(Reg::R1, 1),
            atomic_add(Reg::R3, columns, Reg::R1),
        ]);
        self.asm.bind(counted);
    }

    /// r5 = how many bits r4 has: 0 of 0, else its binary logarithm plus 1. r1 and r4 are lost.
    fn bits_of_r4(&mut self) {
        let known = self.asm.label();
        self.push(&[Insn::mov64(Reg::R5, 0)]);
        self.jump(op::JEQ, Reg::R4, 0, known);
        self.push(&[Insn::mov64(Reg::R5, 1)]);
        for bits in [32, 16, 8, 4, 2, 1] {
            let less = self.asm.label();
            self.push(&[
                Insn::mov64(Reg::R1, Reg::R4),
                Insn::alu64(op::RSH, Reg::R1, bits),
            ]);
            self.jump(op::JEQ, Reg::R1, 0, less);
            self.push(&[
                Insn::mov64(Reg::R4, Reg::R1),
                Insn::alu64(op::ADD, Reg::R5, bits),
            ]);
            self.asm.bind(less);
        }
        self.asm.bind(known);
        // A number that the verifier does not know: it would follow the rest for each.
        self.value_of(Reg::R1, place::CONTROL);
        self.push(&[
            Insn::load(op::DW, Reg::R1, Reg::R1, at::ZERO as i16),
            Insn::alu64(op::ADD, Reg::R5, Reg::R1),
        ]);
    }

    /// Counts the frame's flow if it begins.
    fn flows(&mut self, routines: &Routines, column: i16, at_least: i16) {
        let [no_room, done] = [(); 2].map(|()| self.asm.label());
        self.push(&[Insn::load(op::DW, Reg::R1, Reg::FP, stack::FAMILY)]);
        self.jump(op::JEQ, Reg::R1, 0, done);
        self.flow_key();
        self.push(&[
            Insn::mov64(Reg::R1, Reg::FP),
            Insn::alu64(op::ADD, Reg::R1, i32::from(stack::FLOW)),
            Insn::load(op::DW, Reg::R2, Reg::FP, stack::NOW),
        ]);
        self.asm.call(routines.flow);
        self.cell();
        self.push(&[Insn::mov64(Reg::R1, 1)]);
        self.jump(op::JEQ, Reg::R0, found::KNOWN, done);
        self.jump(op::JEQ, Reg::R0, found::NO_ROOM, no_room);
        self.push(&[atomic_add(Reg::R3, column, Reg::R1)]);
        self.asm.goto(done);
        self.asm.bind(no_room);
        self.push(&[Insn::store(op::DW, Reg::R3, at_least, Reg::R1)]);
        self.asm.bind(done);
    }

    /// Stores what the packets of the frame's flow have in common: addresses; what the packet
    /// carries, ports, family and direction; VLANs and PPPoE session.
    fn flow_key(&mut self) {
        let word = |number: i16| stack::FLOW + 8 * number;
        for (number, field) in [
            (0, stack::ADDRESS),
            (1, stack::ADDRESS_REST),
            (2, stack::OTHER),
            (3, stack::OTHER_REST),
        ] {
            self.push(&[
                Insn::load(op::DW, Reg::R1, Reg::FP, field),
                Insn::store(op::DW, Reg::FP, word(number), Reg::R1),
            ]);
        }
        let [ports, portless, carried] = [(); 3].map(|()| self.asm.label());
        // The ports of another kind of packet mean nothing, nor does the protocol's field.
        self.push(&[Insn::load(op::DW, Reg::R1, Reg::FP, stack::TRANSPORT)]);
        self.jump(op::JEQ, Reg::R1, transport::PORTS, ports);
        self.jump(op::JEQ, Reg::R1, transport::PORTLESS, portless);
        self.push(&[
            Insn::load(op::DW, Reg::R2, Reg::FP, stack::FRAGMENT),
            Insn::alu64(op::LSH, Reg::R2, 8),
            Insn::alu64(op::OR, Reg::R1, Reg::R2),
        ]);
        self.asm.goto(carried);
        self.asm.bind(ports);
        for (field, shift) in [(stack::SRC_PORT, 16), (stack::DST_PORT, 32)] {
            self.push(&[
                Insn::load(op::DW, Reg::R2, Reg::FP, field),
                Insn::alu64(op::LSH, Reg::R2, shift),
                Insn::alu64(op::OR, Reg::R1, Reg::R2),
            ]);
        }
        self.asm.bind(portless);
        self.push(&[
            Insn::load(op::DW, Reg::R2, Reg::FP, stack::PROTOCOL),
            Insn::alu64(op::LSH, Reg::R2, 8),
            Insn::alu64(op::OR, Reg::R1, Reg::R2),
        ]);
        self.asm.bind(carried);
        self.push(&[
            Insn::load(op::DW, Reg::R2, Reg::FP, stack::FAMILY),
            Insn::alu64(op::LSH, Reg::R2, 48),
            Insn::alu64(op::OR, Reg::R1, Reg::R2),
        ]);
        match self.direction {
            Some(direction) => self.push(&[Insn::mov64(Reg::R2, direction as i32)]),
            None => self.push(&[Insn::load(op::DW, Reg::R2, Reg::FP, stack::DIRECTION)]),
        }
        self.push(&[
            Insn::alu64(op::LSH, Reg::R2, 56),
            Insn::alu64(op::OR, Reg::R1, Reg::R2),
            Insn::store(op::DW, Reg::FP, word(4), Reg::R1),
            Insn::load(op::DW, Reg::R1, Reg::FP, stack::OUTER),
        ]);
        for (field, shift) in [(stack::INNER, 16), (stack::PPPOE, 32)] {
            self.push(&[
                Insn::load(op::DW, Reg::R2, Reg::FP, field),
                Insn::alu64(op::LSH, Reg::R2, shift),
                Insn::alu64(op::OR, Reg::R1, Reg::R2),
            ]);
        }
        self.push(&[Insn::store(op::DW, Reg::FP, word(5), Reg::R1)]);
    }
}

/// In the routine: the flow's words, its page, the time, and the offset of its first slot.
const WORDS: Reg = Reg::R6;
const PAGE: Reg = Reg::R7;
const NOW: Reg = Reg::R8;
const HOME: Reg = Reg::R9;
/// The offset of the first free slot plus 1, or 0.
const FREE: Reg = Reg::R5;

/// The routine that finds or enters the flow whose words are at r1, at time r2.
///
/// All places of a flow are looked at before it is entered in the first that is free, so that a place
/// that becomes free does not hide it. What another CPU is entering may be the same flow: it is not
/// counted then, and the count is a lower bound.
pub(super) fn emit_flow(asm: &mut Asm, spec: &Spec, routine: Label, first_place: u16) {
    if !spec.has_flows() {
        return;
    }
    let [known, new, no_room] = [(); 3].map(|()| asm.label());
    asm.bind(routine);
    asm.extend([Insn::mov64(WORDS, Reg::R1), Insn::mov64(NOW, Reg::R2)]);
    hash(asm, spec, first_place, no_room);
    asm.push(Insn::mov64(FREE, 0));
    for number in 0..FLOW_PROBES {
        probe(asm, spec, number, [known, new, no_room]);
    }
    // It is not there.
    asm.jump(Insn::jump64(op::JEQ, FREE, 0), no_room);
    asm.extend([
        Insn::alu64(op::SUB, FREE, 1),
        Insn::alu64(op::AND, FREE, (PAGE_BYTES - FLOW_BYTES) as i32),
        Insn::mov64(Reg::R1, PAGE),
        Insn::alu64(op::ADD, Reg::R1, FREE),
        Insn::mov64(Reg::R0, 0),
        Insn::mov64(Reg::R2, flow::BUSY as i32),
        compare_exchange(Reg::R1, flow::LAST as i16, Reg::R2),
    ]);
    asm.jump(Insn::jump64(op::JNE, Reg::R0, 0), no_room);
    for word in 0..FLOW_WORDS as i16 {
        asm.extend([
            Insn::load(op::DW, Reg::R2, WORDS, 8 * word),
            Insn::store(op::DW, Reg::R1, 8 * word, Reg::R2),
        ]);
    }
    asm.push(exchange(Reg::R1, flow::LAST as i16, NOW));
    for (label, says) in [
        (new, found::NEW),
        (known, found::KNOWN),
        (no_room, found::NO_ROOM),
    ] {
        asm.bind(label);
        asm.extend([Insn::mov64(Reg::R0, says), Insn::exit()]);
    }
}

/// Finds the page and the offset of the first slot.
fn hash(asm: &mut Asm, spec: &Spec, first_place: u16, none: Label) {
    asm.extend(Insn::load64(HOME, spec.seed));
    asm.extend(Insn::load64(Reg::R4, MUL_A));
    for word in 0..FLOW_WORDS as i16 {
        asm.extend([
            Insn::load(op::DW, Reg::R3, WORDS, 8 * word),
            Insn::alu64(op::XOR, HOME, Reg::R3),
            Insn::alu64(op::MUL, HOME, Reg::R4),
            Insn::mov64(Reg::R3, HOME),
            Insn::alu64(op::RSH, Reg::R3, 32),
            Insn::alu64(op::XOR, HOME, Reg::R3),
        ]);
    }
    asm.extend([
        Insn::alu64(op::MUL, HOME, Reg::R4),
        Insn::alu64(op::RSH, HOME, 32),
    ]);
    lose_track(asm, HOME);
    asm.extend([
        Insn::mov64(Reg::R4, HOME),
        Insn::alu64(op::AND, Reg::R4, spec.flow_pages as i32 - 1),
        Insn::store(op::W, Reg::FP, -4, Reg::R4),
        Insn::mov64(Reg::R2, Reg::FP),
        Insn::alu64(op::ADD, Reg::R2, -4),
    ]);
    asm.extend(Insn::load_map(Reg::R1, first_place + place::FLOWS));
    asm.push(Insn::call(helper::MAP_LOOKUP_ELEM));
    asm.jump(Insn::jump64(op::JEQ, Reg::R0, 0), none);
    asm.extend([
        Insn::mov64(PAGE, Reg::R0),
        Insn::alu64(op::RSH, HOME, HOME_SHIFT as i32 - 32),
        Insn::alu64(op::MUL, HOME, FLOW_BYTES as i32),
    ]);
}

/// Looks at a slot.
fn probe(asm: &mut Asm, spec: &Spec, number: u32, [known, new, no_room]: [Label; 3]) {
    let [used, next] = [(); 2].map(|()| asm.label());
    asm.extend([
        Insn::mov64(Reg::R4, HOME),
        Insn::alu64(op::ADD, Reg::R4, (number * FLOW_BYTES) as i32),
        Insn::alu64(op::AND, Reg::R4, (PAGE_BYTES - FLOW_BYTES) as i32),
        Insn::mov64(Reg::R1, PAGE),
        Insn::alu64(op::ADD, Reg::R1, Reg::R4),
        Insn::load(op::DW, Reg::R3, Reg::R1, flow::LAST as i16),
    ]);
    asm.jump(Insn::jump64(op::JNE, Reg::R3, 0), used);
    asm.jump(Insn::jump64(op::JNE, FREE, 0), next);
    asm.extend([Insn::mov64(FREE, Reg::R4), Insn::alu64(op::ADD, FREE, 1)]);
    asm.goto(next);
    asm.bind(used);
    asm.jump(Insn::jump64(op::JEQ, Reg::R3, flow::BUSY as i32), no_room);
    for word in 0..FLOW_WORDS as i16 {
        asm.extend([
            Insn::load(op::DW, Reg::R2, WORDS, 8 * word),
            Insn::load(op::DW, Reg::R0, Reg::R1, 8 * word),
        ]);
        asm.jump(Insn::jump64(op::JNE, Reg::R0, Reg::R2), next);
    }
    let retiring = flow::RETIRING as i32;
    asm.jump(Insn::jump64(op::JEQ, Reg::R3, retiring), next);
    asm.extend([
        Insn::mov64(Reg::R0, Reg::R3),
        compare_exchange(Reg::R1, flow::LAST as i16, NOW),
    ]);
    // The process has just begun to free it.
    asm.jump(Insn::jump64(op::JEQ, Reg::R0, retiring), next);
    // Another CPU has just had a packet of it.
    asm.jump(Insn::jump64(op::JNE, Reg::R0, Reg::R3), known);
    asm.jump(Insn::jump64(op::JGE, Reg::R3, NOW), known);
    asm.extend([
        Insn::mov64(Reg::R2, NOW),
        Insn::alu64(op::SUB, Reg::R2, Reg::R3),
    ]);
    asm.extend(Insn::load64(Reg::R4, spec.flow_idle_ns));
    asm.jump(Insn::jump64(op::JLT, Reg::R2, Reg::R4), known);
    asm.goto(new);
    asm.bind(next);
}

const _: () = assert!(FLOW_SLOTS == 64 && HOME_SHIFT == 58);
