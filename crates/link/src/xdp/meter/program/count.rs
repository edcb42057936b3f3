//! Adds the frame to its cell and to the totals of its CPU.

use super::super::layout::{
    CARRY_BYTES, CARRY_PROBES, CARRY_SLOTS, COUNT_BYTES, HALF_FULL, MUL_A, PACKET_BITS, PAGE_BYTES,
    place,
};
use super::find::lose_track;
use super::{At, Emit, Routines, Spec, stack};
use crate::xdp::abi::{PROCESSOR_ID, atomic_add, compare_exchange, exchange, fetch_add};
use weir_filter::backend::ebpf::{Asm, EmitError, Insn, Label, Reg, helper, op};

/// The cell, then what is added.
pub(super) const CELL: Reg = Reg::R7;
pub(super) const BYTES: Reg = Reg::R8;
pub(super) const PACKETS: Reg = Reg::R9;

impl Emit<'_> {
    pub(super) fn count(&mut self, routines: &Routines) -> Result<(), EmitError> {
        let done = self.asm.label();
        let rows = self.spec.rows() as i32;
        let bytes = if self.spec.counts_ip {
            stack::IP_BYTES
        } else {
            stack::WIRE
        };
        if !self.spec.measures.is_empty() {
            // The verifier follows them once, not for each class.
            self.forget(&[stack::CLASS]);
        }
        self.push(&[
            Insn::load(op::DW, Reg::R2, Reg::FP, stack::BANK),
            Insn::alu64(op::AND, Reg::R2, 1),
            Insn::alu64(op::MUL, Reg::R2, self.spec.classes() as i32),
            Insn::load(op::DW, Reg::R1, Reg::FP, stack::CLASS),
            Insn::alu64(op::ADD, Reg::R2, Reg::R1),
            Insn::alu64(op::LSH, Reg::R2, 1),
        ]);
        self.add_direction(Reg::R2, 1);
        self.push(&[
            Insn::alu64(op::MUL, Reg::R2, rows),
            Insn::load(op::DW, Reg::R1, Reg::FP, stack::ROW),
            Insn::alu64(op::ADD, Reg::R1, Reg::R2),
            Insn::store(op::DW, Reg::FP, stack::NUMBER, Reg::R1),
            Insn::load(op::DW, BYTES, Reg::FP, bytes),
            Insn::load(op::DW, PACKETS, Reg::FP, stack::PACKETS),
        ]);
        self.look_up_r1(place::CELLS, done);
        self.push(&[
            Insn::mov64(CELL, Reg::R0),
            Insn::call(PROCESSOR_ID),
            Insn::mov64(Reg::R1, Reg::R0),
        ]);
        self.look_up_r1(place::TOTALS, done);
        let total = self.spec.total as i32;
        // A cell is any CPU's, a total one CPU's alone: programs of one CPU never interrupt one
        // another at these hooks.
        self.push(&[
            Insn::load(op::DW, Reg::R1, Reg::FP, stack::BANK),
            Insn::alu64(op::AND, Reg::R1, 1),
            Insn::alu64(op::MUL, Reg::R1, 2 * total),
            Insn::alu64(op::ADD, Reg::R0, Reg::R1),
        ]);
        self.add_direction(Reg::R0, total);
        self.add(routines);
        if !self.spec.measures.is_empty() {
            self.push(&[Insn::store(op::DW, Reg::FP, stack::CELL, CELL)]);
            self.measure(routines)?;
        }
        self.asm.bind(done);
        Ok(())
    }

    /// Adds to the total r0 and to the cell, and to what was policed of both if the frame was.
    pub(super) fn add(&mut self, routines: &Routines) {
        self.add_to_total(0);
        if self.spec.polices {
            let whole = self.asm.label();
            self.push(&[Insn::load(op::DW, Reg::R1, Reg::FP, stack::POLICED)]);
            self.jump(op::JEQ, Reg::R1, 0, whole);
            self.add_to_total(COUNT_BYTES as i16);
            self.add_to_cell(routines, 1);
            self.asm.bind(whole);
        }
        self.add_to_cell(routines, 0);
    }

    /// Adds to a word of the cell; one that is half full goes to its place in `carry`.
    fn add_to_cell(&mut self, routines: &Routines, word: i16) {
        let added = self.asm.label();
        if self.is_sum {
            self.push(&[Insn::mov64(Reg::R2, PACKETS), Insn::mov64(Reg::R3, BYTES)]);
        } else {
            self.push(&[
                Insn::mov64(Reg::R2, BYTES),
                Insn::alu64(op::LSH, Reg::R2, PACKET_BITS as i32),
                Insn::alu64(op::ADD, Reg::R2, PACKETS),
                Insn::mov64(Reg::R1, Reg::R2),
                fetch_add(CELL, 8 * word, Reg::R1),
                Insn::alu64(op::ADD, Reg::R1, Reg::R2),
            ]);
            self.unless_half_full(Reg::R1, added);
            take_cell(self.asm, CELL, 8 * word);
        }
        self.push(&[
            Insn::load(op::DW, Reg::R1, Reg::FP, stack::NUMBER),
            Insn::alu64(op::LSH, Reg::R1, 1),
            Insn::alu64(op::ADD, Reg::R1, i32::from(word)),
        ]);
        self.asm.call(routines.carry);
        self.asm.bind(added);
    }

    /// Goes to `added` unless a word of a cell is half full; r2 is lost.
    fn unless_half_full(&mut self, word: Reg, added: Label) {
        let half_full = self.asm.label();
        let bits = Insn::load64(Reg::R2, HALF_FULL);
        self.push(&bits);
        self.asm
            .jump(Insn::jump64(op::JSET, word, Reg::R2), half_full);
        self.asm.goto(added);
        self.asm.bind(half_full);
    }

    /// Adds to two words of the total r0.
    fn add_to_total(&mut self, first: i16) {
        for (at, with) in [(first, PACKETS), (first + 8, BYTES)] {
            if self.hook == At::Process {
                // One instruction: a program at a hook may come in between two.
                self.push(&[atomic_add(Reg::R0, at, with)]);
                continue;
            }
            self.push(&[
                Insn::load(op::DW, Reg::R1, Reg::R0, at),
                Insn::alu64(op::ADD, Reg::R1, with),
                Insn::store(op::DW, Reg::R0, at, Reg::R1),
            ]);
        }
    }

    /// Adds the offset of the frame's direction to a register; r1 is lost.
    fn add_direction(&mut self, to: Reg, cell: i32) {
        if let Some(direction) = self.direction {
            self.push(&[Insn::alu64(op::ADD, to, direction as i32 * cell)]);
            return;
        }
        self.push(&[
            Insn::load(op::DW, Reg::R1, Reg::FP, stack::DIRECTION),
            Insn::alu64(op::AND, Reg::R1, 1),
            Insn::alu64(op::MUL, Reg::R1, cell),
            Insn::alu64(op::ADD, to, Reg::R1),
        ]);
    }

    /// r0 = value number r1 of an array.
    pub(super) fn look_up_r1(&mut self, place: u16, none: Label) {
        self.push(&[
            Insn::store(op::W, Reg::FP, stack::INDEX, Reg::R1),
            Insn::mov64(Reg::R2, Reg::FP),
            Insn::alu64(op::ADD, Reg::R2, i32::from(stack::INDEX)),
        ]);
        let map = Insn::load_map(Reg::R1, self.first_place + place);
        self.push(&map);
        self.push(&[Insn::call(helper::MAP_LOOKUP_ELEM)]);
        self.jump(op::JEQ, Reg::R0, 0, none);
    }
}

/// Takes all of a word of a cell: r2 = its packets, r3 = its bytes.
fn take_cell(asm: &mut Asm, cell: Reg, at: i16) {
    asm.extend([
        Insn::mov64(Reg::R3, 0),
        exchange(cell, at, Reg::R3),
        Insn::mov64(Reg::R2, Reg::R3),
        Insn::alu64(op::AND, Reg::R2, (1 << PACKET_BITS) - 1),
        Insn::alu64(op::RSH, Reg::R3, PACKET_BITS as i32),
    ]);
}

/// The routine that adds r2 packets and r3 bytes to the place of word r1, which is the number of a cell
/// times two plus that of the word. A cell may have several places.
pub(super) fn emit_carry(asm: &mut Asm, spec: &Spec, carry: Label, first_place: u16) {
    let (counted, packets, bytes, home) = (Reg::R6, Reg::R7, Reg::R8, Reg::R9);
    let [add, none, out] = [(); 3].map(|()| asm.label());
    let (own, shared) = spec.carry_pages;
    let page_of_r4 = |asm: &mut Asm, none| {
        asm.extend([
            Insn::store(op::W, Reg::FP, -4, Reg::R4),
            Insn::mov64(Reg::R2, Reg::FP),
            Insn::alu64(op::ADD, Reg::R2, -4),
        ]);
        asm.extend(Insn::load_map(Reg::R1, first_place + place::CARRY));
        asm.push(Insn::call(helper::MAP_LOOKUP_ELEM));
        asm.jump(Insn::jump64(op::JEQ, Reg::R0, 0), none);
    };
    asm.bind(carry);
    asm.extend([
        Insn::mov64(counted, Reg::R1),
        Insn::alu64(op::ADD, counted, 1),
        Insn::mov64(packets, Reg::R2),
        Insn::mov64(bytes, Reg::R3),
        Insn::mov64(home, counted),
    ]);
    asm.extend(Insn::load64(Reg::R3, MUL_A));
    asm.extend([
        Insn::alu64(op::MUL, home, Reg::R3),
        Insn::alu64(op::RSH, home, 32),
    ]);
    lose_track(asm, home);
    asm.extend([
        Insn::mov64(Reg::R4, home),
        Insn::alu64(op::AND, Reg::R4, shared as i32 - 1),
        Insn::alu64(op::ADD, Reg::R4, own as i32),
        Insn::alu64(op::RSH, home, 16),
    ]);
    page_of_r4(asm, none);
    asm.push(Insn::mov64(Reg::R5, Reg::R0));
    for number in 0..CARRY_PROBES {
        let next = asm.label();
        asm.extend([
            Insn::mov64(Reg::R4, home),
            Insn::alu64(op::ADD, Reg::R4, (number * CARRY_BYTES) as i32),
            Insn::alu64(op::AND, Reg::R4, (PAGE_BYTES - CARRY_BYTES) as i32),
            Insn::mov64(Reg::R1, Reg::R5),
            Insn::alu64(op::ADD, Reg::R1, Reg::R4),
            Insn::load(op::DW, Reg::R0, Reg::R1, 0),
        ]);
        asm.jump(Insn::jump64(op::JEQ, Reg::R0, counted), add);
        asm.jump(Insn::jump64(op::JNE, Reg::R0, 0), next);
        asm.push(compare_exchange(Reg::R1, 0, counted));
        asm.jump(Insn::jump64(op::JEQ, Reg::R0, 0), add);
        asm.jump(Insn::jump64(op::JEQ, Reg::R0, counted), add);
        asm.bind(next);
    }
    asm.bind(none);
    // The overflow row's: [bank][class][direction][word].
    asm.extend([
        Insn::alu64(op::SUB, counted, 1),
        Insn::mov64(home, counted),
        Insn::alu64(op::RSH, home, 1),
        Insn::alu64(op::DIV, home, spec.rows() as i32),
        Insn::alu64(op::LSH, home, 1),
        Insn::alu64(op::AND, counted, 1),
        Insn::alu64(op::OR, home, counted),
        Insn::mov64(Reg::R4, home),
        Insn::alu64(op::RSH, Reg::R4, CARRY_SLOTS.ilog2() as i32),
    ]);
    page_of_r4(asm, out);
    asm.extend([
        Insn::alu64(op::LSH, home, CARRY_BYTES.ilog2() as i32),
        Insn::alu64(op::AND, home, (PAGE_BYTES - CARRY_BYTES) as i32),
        Insn::mov64(Reg::R1, Reg::R0),
        Insn::alu64(op::ADD, Reg::R1, home),
    ]);
    asm.bind(add);
    asm.extend([
        atomic_add(Reg::R1, 8, packets),
        atomic_add(Reg::R1, 16, bytes),
    ]);
    asm.bind(out);
    asm.extend([Insn::mov64(Reg::R0, 0), Insn::exit()]);
}
