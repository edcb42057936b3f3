//! The short way of the frames that are most: IPv4 without tags, options or fragments, TCP or UDP, of an
//! address that a session has. All fields stay in registers. The general way counts any other frame,
//! and each is counted by the same rules.
//!
//! It takes a third to a half off what the stage costs a frame (bench `meter_kernel stage`,
//! docs/decisions/018.md).

use super::super::layout::{at, kind, place};
use super::count::{BYTES, CELL, PACKETS};
use super::{At, CTX, END, Emit, FRAME, Routines, skb, stack, v4};
use crate::xdp::abi::PROCESSOR_ID;
use weir_filter::backend::ebpf::{Insn, Label, Reg, helper, op};
use weir_meter::Direction;

/// The address, then the row, then the cell.
const ADDRESS: Reg = Reg::R9;
/// The bank, when the frame is no longer read; until then [`stack::BANK`] has it.
const BANK: Reg = Reg::R7;

/// EtherType IPv4 and the first byte of a header without options, as they are loaded.
const PLAIN: i32 = 0x0045_0008;
/// Bytes of link header, IP header and ports.
const HEADERS: i32 = 38;
/// Bytes of the link header, and of IP header and ports.
const LINK: i32 = 14;
const IP_AND_PORTS: i32 = 24;

impl Emit<'_> {
    /// Counts the frame and goes to `done`, or does nothing. r1 and r2 are the same behind it.
    pub(super) fn quick(&mut self, routines: &Routines, done: Label) {
        let spec = self.spec;
        let Some(direction) = self.direction else {
            return;
        };
        if !spec.measures.is_empty() || !spec.filters.is_empty() {
            return;
        }
        let slow = self.asm.label();
        let has_length = matches!(self.hook, At::Routine | At::Process);
        self.push(&[Insn::mov64(CTX, Reg::R1)]);
        if has_length {
            self.push(&[Insn::store(op::DW, Reg::FP, stack::LENGTH, Reg::R2)]);
        }
        self.quick_fields(direction, slow);
        v4::look_up(
            self.asm,
            spec,
            (ADDRESS, stack::INDEX),
            slow,
            self.first_place,
        );
        self.push(&[
            Insn::mov64(ADDRESS, Reg::R3),
            Insn::alu64(op::SUB, ADDRESS, 1),
        ]);
        self.quick_class(slow);
        if spec.polices {
            self.push(&[
                Insn::store(op::DW, Reg::FP, stack::CLASS, Reg::R3),
                Insn::mov64(Reg::R1, ADDRESS),
                Insn::mov64(Reg::R2, BYTES),
            ]);
            self.police_row(routines);
            self.push(&[Insn::load(op::DW, Reg::R3, Reg::FP, stack::CLASS)]);
            // For a mark.
            self.set(stack::START, LINK);
            self.set(stack::FAMILY, kind::V4 as i32);
        }
        self.quick_count(direction, slow);
        self.add(routines);
        self.asm.goto(done);
        self.asm.bind(slow);
        self.push(&[Insn::mov64(Reg::R1, CTX)]);
        if has_length {
            self.push(&[Insn::load(op::DW, Reg::R2, Reg::FP, stack::LENGTH)]);
        }
    }

    /// [`ADDRESS`] and [`BYTES`] of a frame that goes the short way, and [`FRAME`].
    fn quick_fields(&mut self, direction: Direction, slow: Label) {
        let address = match direction {
            Direction::Up => 26,
            Direction::Down => 30,
        };
        self.load_frame();
        self.within(FRAME, HEADERS, slow);
        self.push(&[
            Insn::load(op::W, Reg::R2, FRAME, 12),
            Insn::alu64(op::AND, Reg::R2, 0x00ff_ffff),
        ]);
        self.jump(op::JNE, Reg::R2, PLAIN, slow);
        self.push(&[Insn::load(op::H, Reg::R2, FRAME, 20)]);
        self.jump(op::JSET, Reg::R2, super::parse::wire(0x3fff), slow);
        if self.hook == At::Tc {
            for field in [skb::GSO_SIZE, skb::VLAN_PRESENT] {
                self.push(&[Insn::load(op::W, Reg::R2, CTX, field)]);
                self.jump(op::JNE, Reg::R2, 0, slow);
            }
        }
        // The packet is as long as it says, and in the first piece.
        self.push(&[
            Insn::load(op::H, Reg::R3, FRAME, 16),
            Insn::to_be(Reg::R3, 16),
        ]);
        self.jump(op::JLT, Reg::R3, IP_AND_PORTS, slow);
        self.push(&[
            Insn::mov64(Reg::R2, FRAME),
            Insn::alu64(op::ADD, Reg::R2, Reg::R3),
            Insn::alu64(op::ADD, Reg::R2, LINK),
        ]);
        self.asm.jump(Insn::jump64(op::JGT, Reg::R2, END), slow);
        // The bank is read ahead of the look-up: a row passes to another session when no program counts
        // in the bank that its last keys were looked up in.
        //
        // Keys of the link come first; those of tags and PPPoE this frame does not have. Without IPv4
        // addresses among the keys the look-up is a line for nothing.
        self.value_of(Reg::R1, place::CONTROL);
        self.push(&[
            Insn::load(op::DW, Reg::R2, Reg::R1, at::BANK as i16),
            Insn::store(op::DW, Reg::FP, stack::BANK, Reg::R2),
            Insn::load(op::DW, Reg::R1, Reg::R1, at::KINDS as i16),
            Insn::alu64(op::AND, Reg::R1, 1 << kind::MAC | 1 << kind::V4),
        ]);
        self.jump(op::JNE, Reg::R1, 1 << kind::V4, slow);
        self.push(&[Insn::load(op::W, ADDRESS, FRAME, address)]);
        if self.spec.counts_ip {
            return self.push(&[Insn::mov64(BYTES, Reg::R3)]);
        }
        match self.hook {
            At::Xdp => self.push(&[
                Insn::mov64(Reg::R1, CTX),
                Insn::call(helper::XDP_GET_BUFF_LEN),
                Insn::mov64(BYTES, Reg::R0),
            ]),
            At::Routine | At::Process => {
                self.push(&[Insn::load(op::DW, BYTES, Reg::FP, stack::LENGTH)]);
            }
            At::Tc => self.push(&[Insn::load(op::W, BYTES, CTX, skb::LEN)]),
        }
    }

    /// r3 = the class.
    fn quick_class(&mut self, slow: Label) {
        let [tcp, listed] = [(); 2].map(|()| self.asm.label());
        self.value_of(Reg::R2, place::SERVICES);
        self.push(&[
            Insn::load(op::B, Reg::R4, FRAME, 23),
            Insn::mov64(Reg::R5, 256),
        ]);
        self.jump(op::JEQ, Reg::R4, 6, tcp);
        self.jump(op::JNE, Reg::R4, 17, slow);
        self.push(&[Insn::mov64(Reg::R5, 256 + (1 << 16))]);
        self.asm.bind(tcp);
        self.push(&[
            Insn::mov64(Reg::R1, Reg::R2),
            Insn::alu64(op::ADD, Reg::R1, Reg::R4),
            Insn::load(op::B, Reg::R3, Reg::R1, 0),
            Insn::alu64(op::ADD, Reg::R2, Reg::R5),
        ]);
        for port in [34, 36] {
            let later = self.asm.label();
            self.push(&[
                Insn::load(op::H, Reg::R1, FRAME, port),
                Insn::to_be(Reg::R1, 16),
                Insn::alu64(op::ADD, Reg::R1, Reg::R2),
                Insn::load(op::B, Reg::R1, Reg::R1, 0),
            ]);
            self.asm
                .jump(Insn::jump64(op::JGE, Reg::R1, Reg::R3), later);
            self.push(&[Insn::mov64(Reg::R3, Reg::R1)]);
            self.asm.bind(later);
        }
        self.jump(op::JNE, Reg::R3, super::classify::NONE, listed);
        self.push(&[Insn::mov64(Reg::R3, i32::from(self.spec.listed) + 3)]);
        self.asm.bind(listed);
    }

    /// Of the class r3: [`CELL`], and r0 = the total.
    fn quick_count(&mut self, direction: Direction, slow: Label) {
        let (rows, total) = (self.spec.rows() as i32, self.spec.total as i32);
        let direction = direction as i32;
        self.push(&[
            Insn::load(op::DW, BANK, Reg::FP, stack::BANK),
            Insn::alu64(op::AND, BANK, 1),
            Insn::mov64(Reg::R1, BANK),
            Insn::alu64(op::MUL, Reg::R1, self.spec.classes() as i32),
            Insn::alu64(op::ADD, Reg::R1, Reg::R3),
            Insn::alu64(op::LSH, Reg::R1, 1),
            Insn::alu64(op::ADD, Reg::R1, direction),
            Insn::alu64(op::MUL, Reg::R1, rows),
            Insn::alu64(op::ADD, Reg::R1, ADDRESS),
            Insn::store(op::DW, Reg::FP, stack::NUMBER, Reg::R1),
        ]);
        self.look_up_r1(place::CELLS, slow);
        self.push(&[
            Insn::mov64(ADDRESS, Reg::R0),
            Insn::call(PROCESSOR_ID),
            Insn::mov64(Reg::R1, Reg::R0),
        ]);
        self.look_up_r1(place::TOTALS, slow);
        self.push(&[
            Insn::alu64(op::MUL, BANK, 2 * total),
            Insn::alu64(op::ADD, Reg::R0, BANK),
            Insn::alu64(op::ADD, Reg::R0, direction * total),
            Insn::mov64(CELL, ADDRESS),
            Insn::mov64(PACKETS, 1),
        ]);
    }
}
