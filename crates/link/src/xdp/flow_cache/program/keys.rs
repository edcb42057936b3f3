//! Computes a frame's key and looks up its entry.

use super::{Emit, IP, KEY, TYPE, place, wire};
use crate::xdp::flow_cache::key::FlowKind;
use weir_filter::backend::ebpf::{Insn, Label, Reg, op};

impl Emit<'_> {
    /// Jumps to `hit` with the entry of the frame's key of that kind in r0;
    /// falls through if there is none.
    pub(super) fn emit_find(&mut self, kind: FlowKind, hit: Label) {
        let [v6, next] = [(); 2].map(|()| self.asm.label());
        if kind == FlowKind::MacPair {
            self.mac_pair();
            return self.jump_if_found(place::SHORT, hit);
        }
        self.branch_on_ethertype(v6, next);
        match kind {
            FlowKind::FiveTuple => {
                self.not_fragment_v4(next);
                self.ports(IP + 9, IP + 20, 8, next);
                self.copy(IP + 12, 0, 8);
            }
            _ => {
                self.mac_fields(kind);
                self.copy(IP + 12, 8, 8);
            }
        }
        self.jump_if_found(place::SHORT, hit);
        self.asm.goto(next);
        self.asm.bind(v6);
        self.is_v6(next);
        match kind {
            FlowKind::FiveTuple => {
                self.ports(IP + 6, IP + 40, 32, next);
                self.copy(IP + 8, 0, 32);
            }
            _ => {
                self.mac_fields(kind);
                self.copy(IP + 8, 8, 32);
            }
        }
        self.jump_if_found(place::LONG, hit);
        self.asm.bind(next);
    }

    /// Copies bytes of the frame into the key, eight at a time.
    fn copy(&mut self, from: i16, to: i16, bytes: i16) {
        for at in (0..bytes).step_by(8) {
            self.load(op::DW, Reg::R1, from + at);
            let store = Insn::store(op::DW, Reg::FP, KEY + to + at, Reg::R1);
            self.asm.push(store);
        }
    }

    /// Writes the eight bytes of a key that identify its kind: four of r1, two
    /// of r2, link and kind. One store, since the look-up reads them at once.
    fn mark(&mut self, to: i16, kind: FlowKind) {
        let mark = i32::from_le_bytes([0, 0, self.link as u8, kind.number()]);
        self.push(&[
            Insn::alu64(op::OR, Reg::R2, mark),
            Insn::alu64(op::LSH, Reg::R2, 32),
            Insn::alu64(op::OR, Reg::R1, Reg::R2),
            Insn::store(op::DW, Reg::FP, KEY + to, Reg::R1),
        ]);
    }

    /// Copies the destination MAC address and writes the kind.
    fn mac_fields(&mut self, kind: FlowKind) {
        self.load(op::W, Reg::R1, 0);
        self.load(op::H, Reg::R2, 4);
        self.mark(0, kind);
    }

    /// Jumps to `other` if the packet is a fragment.
    pub(super) fn not_fragment_v4(&mut self, other: Label) {
        self.load(op::H, Reg::R1, IP + 6);
        self.push(&[Insn::alu64(op::AND, Reg::R1, wire(0x3fff))]);
        self.asm.jump(Insn::jump64(op::JNE, Reg::R1, 0), other);
    }

    /// Jumps to `hit` if the key has an entry.
    fn jump_if_found(&mut self, place: u16, hit: Label) {
        self.look_up(place, KEY);
        self.asm.jump(Insn::jump64(op::JNE, Reg::R0, 0), hit);
    }

    fn mac_pair(&mut self) {
        let untagged = self.asm.label();
        self.copy(0, 0, 8);
        self.push(&[Insn::mov64(Reg::R2, 0)]);
        self.load(op::H, Reg::R1, TYPE);
        self.asm
            .jump(Insn::jump64(op::JNE, Reg::R1, wire(0x8100)), untagged);
        self.within(IP + 2, untagged);
        self.load(op::H, Reg::R2, IP);
        self.push(&[Insn::alu64(op::AND, Reg::R2, wire(0x0fff))]);
        self.asm.bind(untagged);
        self.load(op::W, Reg::R1, 8);
        self.mark(8, FlowKind::MacPair);
    }

    /// Copies ports and protocol of TCP and UDP into the key.
    fn ports(&mut self, protocol: i16, ports: i16, to: i16, other: Label) {
        let known = self.asm.label();
        self.load(op::B, Reg::R2, protocol);
        self.asm.jump(Insn::jump64(op::JEQ, Reg::R2, 6), known);
        self.asm.jump(Insn::jump64(op::JNE, Reg::R2, 17), other);
        self.asm.bind(known);
        self.within(ports + 4, other);
        self.load(op::W, Reg::R1, ports);
        self.mark(to, FlowKind::FiveTuple);
    }
}
