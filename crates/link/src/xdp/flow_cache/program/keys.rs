//! Computes a frame's key and looks up its entry.

use super::{ENTRY, Emit, IP, KEY, NUMBER, TYPE, place, wire};
use crate::xdp::flow_cache::index::{CELLS, MUL_A, MUL_B, MUL_TAG};
use crate::xdp::flow_cache::key::{FlowKind, LONG, SHORT};
use crate::xdp::flow_cache::slot;
use weir_filter::backend::ebpf::{Insn, Label, Reg, op};

const HASH: Reg = Reg::R3;
/// Before there is an entry.
const TAG: Reg = ENTRY;

impl Emit<'_> {
    /// Jumps to `hit` with the slot of the frame's key of that kind in r0;
    /// falls through if there is none.
    pub(super) fn emit_find(&mut self, kind: FlowKind, hit: Label) {
        let [v6, next] = [(); 2].map(|()| self.asm.label());
        if kind == FlowKind::MacPair {
            self.mac_pair();
            return self.jump_if_found(SHORT, slot::SHORT_KEY, hit);
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
        self.jump_if_found(SHORT, slot::SHORT_KEY, hit);
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
        self.jump_if_found(LONG, slot::LONG_KEY, hit);
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

    /// Jumps to `hit` if a slot, which has its key at `at`, has the key of this many bytes.
    fn jump_if_found(&mut self, bytes: usize, at: i16, hit: Label) {
        let [found, none] = [(); 2].map(|()| self.asm.label());
        let words = bytes as i16 / 8;
        let buckets = self.spec.index.buckets as i32;
        self.hash(words);
        self.push(&[
            Insn::mov32(TAG, HASH),
            Insn::alu64(op::RSH, HASH, 32),
            Insn::alu64(op::AND, HASH, buckets - 1),
            Insn::store(op::W, Reg::FP, NUMBER, HASH),
        ]);
        self.in_bucket(found, none);
        self.push(&[
            Insn::load(op::W, Reg::R1, Reg::FP, NUMBER),
            Insn::mov64(Reg::R2, TAG),
            Insn::alu64(op::MUL, Reg::R2, MUL_TAG),
            Insn::alu64(op::XOR, Reg::R1, Reg::R2),
            Insn::alu64(op::AND, Reg::R1, buckets - 1),
            Insn::store(op::W, Reg::FP, NUMBER, Reg::R1),
        ]);
        self.in_bucket(found, none);
        self.asm.goto(none);
        self.asm.bind(found);
        self.push(&[
            Insn::alu64(op::SUB, Reg::R1, 1),
            Insn::store(op::W, Reg::FP, NUMBER, Reg::R1),
        ]);
        self.look_up(place::SLOTS, NUMBER);
        self.asm.jump(Insn::jump64(op::JEQ, Reg::R0, 0), none);
        for word in 0..words {
            self.push(&[
                Insn::load(op::DW, Reg::R1, Reg::R0, at + 8 * word),
                Insn::load(op::DW, Reg::R2, Reg::FP, KEY + 8 * word),
            ]);
            self.asm.jump(Insn::jump64(op::JNE, Reg::R1, Reg::R2), none);
        }
        self.asm.goto(hit);
        self.asm.bind(none);
    }

    /// The hash of the key: [`Geometry`](crate::xdp::flow_cache::index::Geometry) has it, too.
    fn hash(&mut self, words: i16) {
        let mix = [
            Insn::alu64(op::MUL, HASH, Reg::R2),
            Insn::mov64(Reg::R1, HASH),
            Insn::alu64(op::RSH, Reg::R1, 32),
            Insn::alu64(op::XOR, HASH, Reg::R1),
        ];
        self.push(&Insn::load64(HASH, self.spec.index.seed));
        self.push(&Insn::load64(Reg::R2, MUL_A));
        for word in 0..words {
            self.push(&[
                Insn::load(op::DW, Reg::R1, Reg::FP, KEY + 8 * word),
                Insn::alu64(op::XOR, HASH, Reg::R1),
            ]);
            self.push(&mix);
        }
        for by in [MUL_B, MUL_A] {
            self.push(&Insn::load64(Reg::R2, by));
            self.push(&mix);
        }
    }

    /// Jumps to `found` with the lower half of the bucket's cell that has the tag in r1.
    fn in_bucket(&mut self, found: Label, none: Label) {
        self.look_up(place::INDEX, NUMBER);
        self.asm.jump(Insn::jump64(op::JEQ, Reg::R0, 0), none);
        for cell in 0..CELLS as i16 {
            let next = self.asm.label();
            self.push(&[Insn::load(op::W, Reg::R2, Reg::R0, 8 * cell + 4)]);
            self.asm.jump(Insn::jump64(op::JNE, Reg::R2, TAG), next);
            self.push(&[Insn::load(op::W, Reg::R1, Reg::R0, 8 * cell)]);
            self.asm.goto(found);
            self.asm.bind(next);
        }
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
