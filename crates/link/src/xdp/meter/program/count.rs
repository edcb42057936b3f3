//! Adds the frame to its cell and to the totals of its CPU.

use super::super::layout::{CELL_BYTES, place};
use super::{At, Emit, Routines, stack};
use crate::xdp::abi::{PROCESSOR_ID, atomic_add};
use weir_filter::backend::ebpf::{EmitError, Insn, Label, Reg, helper, op};

/// The cell, then what is added.
const CELL: Reg = Reg::R7;
const BYTES: Reg = Reg::R8;
const PACKETS: Reg = Reg::R9;

impl Emit<'_> {
    pub(super) fn count(&mut self, routines: &Routines) -> Result<(), EmitError> {
        let [counted, done] = [(); 2].map(|()| self.asm.label());
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
        let (cell, total) = (self.spec.cell as i32, self.spec.total as i32);
        self.push(&[
            Insn::alu64(op::MUL, Reg::R1, 2 * cell),
            Insn::alu64(op::ADD, CELL, Reg::R1),
        ]);
        self.add_direction(CELL, cell);
        self.push(&[Insn::call(PROCESSOR_ID), Insn::mov64(Reg::R1, Reg::R0)]);
        self.look_up_r1(place::TOTALS, done);
        // A cell is any CPU's, a total one CPU's alone: programs of one CPU never interrupt one
        // another at these hooks.
        self.push(&[
            atomic_add(CELL, 0, PACKETS),
            atomic_add(CELL, 8, BYTES),
            Insn::load(op::DW, Reg::R1, Reg::FP, stack::BANK),
            Insn::alu64(op::AND, Reg::R1, 1),
            Insn::alu64(op::MUL, Reg::R1, 2 * total),
            Insn::alu64(op::ADD, Reg::R0, Reg::R1),
        ]);
        self.add_direction(Reg::R0, total);
        self.add_to_total(0);
        if self.spec.polices {
            self.push(&[Insn::load(op::DW, Reg::R1, Reg::FP, stack::POLICED)]);
            self.jump(op::JEQ, Reg::R1, 0, counted);
            let policed = CELL_BYTES as i16;
            self.push(&[
                atomic_add(CELL, policed, PACKETS),
                atomic_add(CELL, policed + 8, BYTES),
            ]);
            self.add_to_total(policed);
        }
        self.asm.bind(counted);
        if !self.spec.measures.is_empty() {
            self.push(&[Insn::store(op::DW, Reg::FP, stack::CELL, CELL)]);
            self.measure(routines)?;
        }
        self.asm.bind(done);
        Ok(())
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
