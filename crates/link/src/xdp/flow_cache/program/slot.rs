//! Whether an entry is valid, and whether forwarding a frame could overtake
//! earlier frames of its flow that the application still has.
//!
//! ```text
//!            no frame of a queue's    ┌──────────────────────────┐
//!            is unsettled, or none    │ begun, for this queue:   │
//!  made ──┬─ of the entry's ────────► │ goes on by itself        │
//!         │                           └──────────────────────────┘
//!         └─ else: to the application, and noted which was the last;
//!            so for ACTIVATE_WAIT: held back, and so lost, until that is settled,
//!            or HOLD_MAX has passed
//! ```
//!
//! The frames of a queue are numbered in the order in which they arrive at the
//! socket, and the application reports the number up to which its frames are
//! drained. Only one CPU at a time processes a queue.

use super::{COUNTS, CTX, ENTRY, Emit, NOW, NUMBER, place};
use crate::xdp::abi::{JSGE, JSGT, JSLE, PROCESSOR_ID, RX_QUEUE, XDP_DROP, atomic_add, atomic_or};
use crate::xdp::flow_cache::slot::{self, ACTIVATE_WAIT_NS, HOLD_MAX_NS};
use crate::xdp::gate::shared_page::{QUEUES_MAX, at};
use weir_filter::backend::ebpf::{Insn, Label, Reg, op};

const SLOT: Reg = Reg::R0;
const QUEUE: Reg = Reg::R2;
const DELIVERED: Reg = Reg::R3;
const DRAINED: Reg = Reg::R4;

impl Emit<'_> {
    /// Falls through if the frame may be forwarded; r0 is its slot.
    pub(super) fn try_forward(&mut self, state: u16) {
        let [begun, stamped] = [(); 2].map(|()| self.asm.label());
        self.push(&[
            Insn::mov64(ENTRY, SLOT),
            Insn::alu64(op::ADD, ENTRY, i32::from(slot::ACTION)),
        ]);
        // r5 is the time since the last frame. The clocks of two CPUs may
        // differ.
        let pass_to_userspace = self.pass_to_userspace;
        self.push(&[
            Insn::load(op::DW, Reg::R1, Reg::FP, NOW),
            Insn::mov64(Reg::R5, Reg::R1),
            Insn::load(op::DW, Reg::R3, SLOT, slot::LAST_USED),
            Insn::alu64(op::SUB, Reg::R5, Reg::R3),
            Insn::load(op::DW, Reg::R4, SLOT, slot::AGEING),
        ]);
        self.asm
            .jump(Insn::jump64(JSGE, Reg::R5, Reg::R4), pass_to_userspace);
        self.push(&[Insn::load(op::W, QUEUE, CTX, RX_QUEUE)]);
        self.pass_to_userspace_if(op::JGE, QUEUE, QUEUES_MAX as i32);
        self.push(&[
            Insn::load(op::DW, Reg::R4, SLOT, slot::ACTIVE_QUEUES),
            Insn::alu64(op::RSH, Reg::R4, QUEUE),
        ]);
        self.asm.jump(Insn::jump64(op::JSET, Reg::R4, 1), begun);
        self.activate(state);
        self.asm.bind(begun);
        // The coarse clock rarely changes: skip the store, to spare other CPUs'
        // caches.
        self.asm.jump(Insn::jump64(op::JEQ, Reg::R5, 0), stamped);
        self.push(&[
            Insn::load(op::DW, Reg::R1, Reg::FP, NOW),
            Insn::store(op::DW, SLOT, slot::LAST_USED, Reg::R1),
        ]);
        self.asm.bind(stamped);
        self.counts();
    }

    /// Finds the entry's counts of this CPU, and has them come from memory before they are needed.
    fn counts(&mut self) {
        let slots_log2 = self.spec.slots_log2 as i32;
        self.push(&[
            Insn::call(PROCESSOR_ID),
            Insn::alu64(op::LSH, Reg::R0, slots_log2),
            Insn::load(op::W, Reg::R1, Reg::FP, NUMBER),
            Insn::alu64(op::ADD, Reg::R0, Reg::R1),
            Insn::store(op::W, Reg::FP, NUMBER, Reg::R0),
        ]);
        self.look_up(place::COUNTS, NUMBER);
        self.pass_to_userspace_if(op::JEQ, Reg::R0, 0);
        self.push(&[
            Insn::store(op::DW, Reg::FP, COUNTS, Reg::R0),
            Insn::load(op::DW, Reg::R1, Reg::R0, slot::FRAMES),
        ]);
    }

    /// Activates the entry, or sends the frame to the application; r1 is the
    /// time, r5 the time since the last frame.
    fn activate(&mut self, state: u16) {
        let [lively, other, unsettled, begins] = [(); 4].map(|()| self.asm.label());
        // After a pause the waiting time starts again.
        self.asm
            .jump(Insn::jump64(JSLE, Reg::R5, ACTIVATE_WAIT_NS), lively);
        self.push(&[Insn::store(op::DW, SLOT, slot::SINCE, Reg::R1)]);
        self.asm.bind(lively);
        self.push(&[Insn::store(op::DW, SLOT, slot::LAST_USED, Reg::R1)]);
        self.push(&Insn::load_map_value(Reg::R1, state, 0));
        let words = at::queue(self.link, 0);
        self.push(&[
            Insn::mov64(Reg::R5, QUEUE),
            Insn::alu64(op::MUL, Reg::R5, at::QUEUE_BYTES as i32),
            Insn::alu64(op::ADD, Reg::R5, Reg::R1),
            Insn::load(op::DW, DELIVERED, Reg::R5, (words + at::DELIVERED) as i16),
            Insn::load(op::DW, DRAINED, Reg::R5, (words + at::DRAINED) as i16),
            Insn::load(op::DW, Reg::R5, SLOT, slot::LAST_QUEUE),
            Insn::mov64(Reg::R1, Reg::R5),
            Insn::alu64(op::RSH, Reg::R1, slot::QUEUE_SHIFT),
        ]);
        self.asm.jump(Insn::jump64(op::JNE, Reg::R1, QUEUE), other);
        // The entry's last frame came by this queue.
        self.push(&[
            Insn::alu64(op::LSH, Reg::R5, 64 - slot::QUEUE_SHIFT),
            Insn::alu64(op::RSH, Reg::R5, 64 - slot::QUEUE_SHIFT),
        ]);
        self.asm
            .jump(Insn::jump64(op::JLE, Reg::R5, DRAINED), begins);
        self.asm.goto(unsettled);
        // It is unknown which frame was the last by this queue.
        self.asm.bind(other);
        self.asm
            .jump(Insn::jump64(op::JEQ, DELIVERED, DRAINED), begins);
        self.asm.bind(unsettled);
        self.hold_back(state, begins);
        // The number that this frame will have.
        self.push(&[
            Insn::alu64(op::ADD, DELIVERED, 1),
            Insn::alu64(op::LSH, QUEUE, slot::QUEUE_SHIFT),
            Insn::alu64(op::OR, DELIVERED, QUEUE),
            Insn::store(op::DW, SLOT, slot::LAST_QUEUE, DELIVERED),
        ]);
        let pass_to_userspace = self.pass_to_userspace;
        self.asm.goto(pass_to_userspace);
        self.asm.bind(begins);
        self.push(&[
            Insn::mov64(Reg::R1, 1),
            Insn::alu64(op::LSH, Reg::R1, QUEUE),
            atomic_or(SLOT, slot::ACTIVE_QUEUES, Reg::R1),
            // The entry is already stamped.
            Insn::mov64(Reg::R5, 0),
        ]);
    }

    /// Drops the frame if the entry has waited too long; jumps to `begins` when
    /// the time for dropping has ended.
    fn hold_back(&mut self, state: u16, begins: Label) {
        let [patient, counted] = [(); 2].map(|()| self.asm.label());
        self.push(&[
            Insn::load(op::DW, Reg::R1, Reg::FP, NOW),
            Insn::load(op::DW, Reg::R5, SLOT, slot::SINCE),
            Insn::alu64(op::SUB, Reg::R1, Reg::R5),
        ]);
        self.asm
            .jump(Insn::jump64(JSGT, Reg::R1, HOLD_MAX_NS), begins);
        self.asm
            .jump(Insn::jump64(JSLE, Reg::R1, ACTIVATE_WAIT_NS), patient);
        self.push(&Insn::load_map_value(Reg::R5, state, 0));
        self.push(&[
            Insn::mov64(Reg::R1, 1),
            atomic_add(Reg::R5, at::HELD_BACK as i16, Reg::R1),
            Insn::load(op::DW, Reg::R3, SLOT, slot::HELD_BACK),
        ]);
        self.asm.jump(Insn::jump64(op::JNE, Reg::R3, 0), counted);
        self.push(&[atomic_add(Reg::R5, at::HELD_BACK_ENTRIES as i16, Reg::R1)]);
        self.asm.bind(counted);
        self.push(&[Insn::store(op::DW, SLOT, slot::HELD_BACK, Reg::R1)]);
        match self.decided {
            Some([_, held_back]) => self.asm.goto(held_back),
            None => self.push(&[Insn::mov64(Reg::R0, XDP_DROP), Insn::exit()]),
        }
        self.asm.bind(patient);
    }
}
