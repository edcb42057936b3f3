//! Adds the frame to its cell and to the totals of its CPU.

use super::super::layout::{CELL_BYTES, POLICED_CELL_BYTES, place};
use super::{Emit, stack};
use crate::xdp::abi::{PROCESSOR_ID, atomic_add};
use weir_filter::backend::ebpf::{Insn, Label, Reg, helper, op};
use weir_meter::Direction;

/// The cell, then what is added.
const CELL: Reg = Reg::R7;
const BYTES: Reg = Reg::R8;
const PACKETS: Reg = Reg::R9;

impl Emit<'_> {
    pub(super) fn count(&mut self) {
        let done = self.asm.label();
        let rows = self.spec.rows() as i32;
        let bytes = if self.spec.counts_ip {
            stack::IP_BYTES
        } else {
            stack::WIRE
        };
        self.push(&[
            Insn::load(op::DW, Reg::R1, Reg::FP, stack::BANK),
            Insn::alu64(op::MUL, Reg::R1, rows),
            Insn::load(op::DW, Reg::R2, Reg::FP, stack::ROW),
            Insn::alu64(op::ADD, Reg::R1, Reg::R2),
            Insn::load(op::DW, BYTES, Reg::FP, bytes),
            Insn::load(op::DW, PACKETS, Reg::FP, stack::PACKETS),
        ]);
        self.look_up_r1(place::CELLS, done);
        let classes = self.spec.classes() as i32;
        self.push(&[
            Insn::mov64(CELL, Reg::R0),
            Insn::load(op::DW, Reg::R1, Reg::FP, stack::CLASS),
        ]);
        self.jump(op::JGE, Reg::R1, classes, done);
        let cell = if self.spec.has_policed {
            POLICED_CELL_BYTES
        } else {
            CELL_BYTES
        };
        let direction = self.direction.unwrap_or(Direction::Up) as i32 * cell as i32;
        self.push(&[
            Insn::alu64(op::MUL, Reg::R1, 2 * cell as i32),
            Insn::alu64(op::ADD, CELL, Reg::R1),
        ]);
        self.add_direction(CELL, cell);
        self.push(&[Insn::call(PROCESSOR_ID), Insn::mov64(Reg::R1, Reg::R0)]);
        self.look_up_r1(place::TOTALS, done);
        // A cell is any CPU's, a total one CPU's alone: programs of one CPU never interrupt one
        // another at these hooks.
        self.push(&[
            atomic_add(CELL, direction as i16, PACKETS),
            atomic_add(CELL, direction as i16 + 8, BYTES),
            Insn::load(op::DW, Reg::R1, Reg::FP, stack::BANK),
            Insn::alu64(op::AND, Reg::R1, 1),
            Insn::alu64(op::MUL, Reg::R1, 2 * cell as i32),
            Insn::alu64(op::ADD, Reg::R0, Reg::R1),
        ]);
        self.add_direction(Reg::R0, cell);
        self.add_to_total(direction as i16);
        if self.spec.polices {
            self.push(&[Insn::load(op::DW, Reg::R1, Reg::FP, stack::POLICED)]);
            self.jump(op::JEQ, Reg::R1, 0, done);
            let policed = direction as i16 + CELL_BYTES as i16;
            self.push(&[
                atomic_add(CELL, policed, PACKETS),
                atomic_add(CELL, policed + 8, BYTES),
            ]);
            self.add_to_total(policed);
        }
        self.asm.bind(done);
    }

    /// Adds to two words of the total r0.
    fn add_to_total(&mut self, first: i16) {
        for (at, with) in [(first, PACKETS), (first + 8, BYTES)] {
            self.push(&[
                Insn::load(op::DW, Reg::R1, Reg::R0, at),
                Insn::alu64(op::ADD, Reg::R1, with),
                Insn::store(op::DW, Reg::R0, at, Reg::R1),
            ]);
        }
    }

    /// Adds the offset of the frame's direction, if each frame has its own, to a register; r1 is lost.
    fn add_direction(&mut self, to: Reg, cell: u32) {
        if self.direction.is_some() {
            return;
        }
        self.push(&[
            Insn::load(op::DW, Reg::R1, Reg::FP, stack::DIRECTION),
            Insn::alu64(op::AND, Reg::R1, 1),
            Insn::alu64(op::MUL, Reg::R1, cell as i32),
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
