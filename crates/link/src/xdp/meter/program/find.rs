//! Whose a frame is: its keys in the order of looking up, then the table of unknown keys.

use super::super::layout::{
    MUL_A, MUL_B, PAGE_BYTES, PREFIX_LENGTHS_MAX, PROBES, SLOT_BYTES, at, kind, place, state,
};
use super::{Emit, FRAME, Routines, Spec, stack};
use crate::xdp::abi::{compare_exchange, exchange};
use weir_filter::backend::ebpf::{Asm, Insn, Label, Reg, helper, op};
use weir_meter::Direction;

/// Kinds of keys in use, a bit each.
const KINDS: Reg = Reg::R9;

/// In the routines: the key, its kind, and the offset of its first slot.
const KEY: Reg = Reg::R6;
const KEY_REST: Reg = Reg::R7;
const META: Reg = Reg::R8;
const HOME: Reg = Reg::R9;
/// The page of slots.
const PAGE: Reg = Reg::R5;

impl Emit<'_> {
    /// Stores the frame's row; goes to `other`, if it is given, unless a session has it.
    pub(super) fn attribute(&mut self, routines: &Routines, other: Option<Label>) {
        let [found, counted, overflow] = [(); 3].map(|()| self.asm.label());
        self.value_of(Reg::R1, place::CONTROL);
        self.push(&[Insn::load(op::DW, KINDS, Reg::R1, at::KINDS as i16)]);
        let unknown = self.asm.label();
        self.jump(op::JEQ, KINDS, 0, unknown);
        self.by_link(routines, found);
        self.by_address(routines, found, unknown);
        self.asm.bind(unknown);
        if let Some(other) = other {
            self.asm.goto(other);
        } else {
            if self.spec.unknown_pages > 0 {
                self.claim(routines, overflow);
                self.jump(op::JEQ, Reg::R0, 0, overflow);
                // The routine gives the slot's number plus 1.
                let first = self.spec.subscribers as i32 - 1;
                self.push(&[
                    Insn::alu64(op::ADD, Reg::R0, first),
                    Insn::store(op::DW, Reg::FP, stack::ROW, Reg::R0),
                ]);
                self.asm.goto(counted);
            }
            self.asm.bind(overflow);
            let row = (self.spec.subscribers + self.spec.unknown()) as i32;
            self.set(stack::ROW, row);
            self.asm.goto(counted);
        }
        self.asm.bind(found);
        self.push(&[
            Insn::alu64(op::SUB, Reg::R0, 1),
            Insn::store(op::DW, Reg::FP, stack::ROW, Reg::R0),
        ]);
        self.asm.bind(counted);
    }

    /// Looks up the key that r1 and r2 are.
    fn find(&mut self, routines: &Routines, meta: u32, found: Label) {
        self.push(&[Insn::mov64(Reg::R3, meta as i32)]);
        self.asm.call(routines.find);
        self.jump(op::JNE, Reg::R0, 0, found);
    }

    fn unless_used(&mut self, kind: u32, to: Label) {
        self.push(&[
            Insn::mov64(Reg::R1, KINDS),
            Insn::alu64(op::AND, Reg::R1, 1 << kind),
        ]);
        self.jump(op::JEQ, Reg::R1, 0, to);
    }

    /// PPPoE session, VLANs, MAC address.
    fn by_link(&mut self, routines: &Routines, found: Label) {
        let next = self.asm.label();
        self.unless_used(kind::PPPOE, next);
        self.push(&[Insn::load(op::DW, Reg::R1, Reg::FP, stack::PPPOE)]);
        self.jump(op::JEQ, Reg::R1, 0, next);
        self.push(&[
            Insn::alu64(op::AND, Reg::R1, 0xffff),
            Insn::mov64(Reg::R2, 0),
        ]);
        self.find(routines, kind::PPPOE, found);
        self.asm.bind(next);

        let next = self.asm.label();
        self.unless_used(kind::VLAN_PAIR, next);
        self.push(&[
            Insn::load(op::DW, Reg::R1, Reg::FP, stack::OUTER),
            Insn::load(op::DW, Reg::R2, Reg::FP, stack::INNER),
        ]);
        self.jump(op::JEQ, Reg::R2, 0, next);
        self.push(&[
            Insn::alu64(op::LSH, Reg::R2, 16),
            Insn::alu64(op::OR, Reg::R1, Reg::R2),
            Insn::mov64(Reg::R2, 0),
        ]);
        self.find(routines, kind::VLAN_PAIR, found);
        self.asm.bind(next);

        let next = self.asm.label();
        self.unless_used(kind::VLAN, next);
        self.push(&[Insn::load(op::DW, Reg::R1, Reg::FP, stack::OUTER)]);
        self.jump(op::JEQ, Reg::R1, 0, next);
        self.push(&[Insn::mov64(Reg::R2, 0)]);
        self.find(routines, kind::VLAN, found);
        self.asm.bind(next);

        let next = self.asm.label();
        self.unless_used(kind::MAC, next);
        self.within(FRAME, 14, next);
        self.mac();
        self.find(routines, kind::MAC, found);
        self.asm.bind(next);
    }

    /// r1 and r2 = the MAC address on the subscriber's side.
    fn mac(&mut self) {
        let [down, known] = [(); 2].map(|()| self.asm.label());
        match self.direction {
            Some(Direction::Up) => self.mac_at(6),
            Some(Direction::Down) => self.mac_at(0),
            None => {
                self.push(&[Insn::load(op::DW, Reg::R1, Reg::FP, stack::DIRECTION)]);
                self.jump(op::JNE, Reg::R1, Direction::Up as i32, down);
                self.mac_at(6);
                self.asm.goto(known);
                self.asm.bind(down);
                self.mac_at(0);
                self.asm.bind(known);
            }
        }
        self.push(&[
            Insn::alu64(op::LSH, Reg::R2, 32),
            Insn::alu64(op::OR, Reg::R1, Reg::R2),
            Insn::mov64(Reg::R2, 0),
        ]);
    }

    fn mac_at(&mut self, at: i16) {
        self.push(&[
            Insn::load(op::W, Reg::R1, FRAME, at),
            Insn::load(op::H, Reg::R2, FRAME, at + 4),
        ]);
    }

    fn by_address(&mut self, routines: &Routines, found: Label, unknown: Label) {
        let [v4, v6] = [(); 2].map(|()| self.asm.label());
        self.push(&[Insn::load(op::DW, Reg::R1, Reg::FP, stack::FAMILY)]);
        self.jump(op::JEQ, Reg::R1, kind::V4 as i32, v4);
        self.jump(op::JEQ, Reg::R1, kind::V6 as i32, v6);
        self.asm.goto(unknown);
        for (label, exact, prefix, family) in [
            (v4, kind::V4, kind::PREFIX_V4, 0),
            (v6, kind::V6, kind::PREFIX_V6, 1),
        ] {
            self.asm.bind(label);
            let prefixes = self.asm.label();
            self.unless_used(exact, prefixes);
            self.push(&[
                Insn::load(op::DW, Reg::R1, Reg::FP, stack::ADDRESS),
                Insn::load(op::DW, Reg::R2, Reg::FP, stack::ADDRESS_REST),
            ]);
            if exact == kind::V4 {
                self.asm.call(routines.v4);
                self.jump(op::JNE, Reg::R0, 0, found);
                self.unless_used(kind::V4_AMONG_SLOTS, prefixes);
                self.push(&[
                    Insn::load(op::DW, Reg::R1, Reg::FP, stack::ADDRESS),
                    Insn::load(op::DW, Reg::R2, Reg::FP, stack::ADDRESS_REST),
                ]);
            }
            self.find(routines, exact, found);
            self.asm.bind(prefixes);
            self.unless_used(prefix, unknown);
            self.by_prefix(routines, family, found, unknown);
        }
    }

    /// One look-up for each length in use.
    fn by_prefix(&mut self, routines: &Routines, family: usize, found: Label, unknown: Label) {
        for entry in 0..PREFIX_LENGTHS_MAX {
            self.value_of(Reg::R4, place::CONTROL);
            let fixed = family * at::FAMILY_BYTES + entry * at::PREFIX_BYTES + at::PREFIXES;
            self.push(&[
                Insn::load(op::DW, Reg::R5, Reg::R4, at::LIST as i16),
                Insn::alu64(op::AND, Reg::R5, 1),
                Insn::alu64(op::MUL, Reg::R5, at::LIST_BYTES as i32),
                Insn::alu64(op::ADD, Reg::R4, Reg::R5),
                Insn::load(op::DW, Reg::R3, Reg::R4, fixed as i16 + 16),
            ]);
            self.jump(op::JEQ, Reg::R3, 0, unknown);
            self.push(&[
                Insn::load(op::DW, Reg::R1, Reg::FP, stack::ADDRESS),
                Insn::load(op::DW, Reg::R2, Reg::R4, fixed as i16),
                Insn::alu64(op::AND, Reg::R1, Reg::R2),
                Insn::load(op::DW, Reg::R2, Reg::FP, stack::ADDRESS_REST),
                Insn::load(op::DW, Reg::R5, Reg::R4, fixed as i16 + 8),
                Insn::alu64(op::AND, Reg::R2, Reg::R5),
            ]);
            self.asm.call(routines.find);
            self.jump(op::JNE, Reg::R0, 0, found);
        }
        self.asm.goto(unknown);
    }

    /// Finds or enters the frame's address among unknown keys; its MAC address if it has none.
    fn claim(&mut self, routines: &Routines, overflow: Label) {
        let [mac, call] = [(); 2].map(|()| self.asm.label());
        self.push(&[Insn::load(op::DW, Reg::R3, Reg::FP, stack::FAMILY)]);
        self.jump(op::JEQ, Reg::R3, 0, mac);
        self.push(&[
            Insn::load(op::DW, Reg::R1, Reg::FP, stack::ADDRESS),
            Insn::load(op::DW, Reg::R2, Reg::FP, stack::ADDRESS_REST),
        ]);
        self.asm.goto(call);
        self.asm.bind(mac);
        self.within(FRAME, 14, overflow);
        self.mac();
        self.push(&[Insn::mov64(Reg::R3, kind::MAC as i32)]);
        self.asm.bind(call);
        self.asm.call(routines.claim);
    }
}

/// Begins a routine for key r1, r2 of kind r3: its page of `map` in r5, or goes to `none`.
fn begin(asm: &mut Asm, spec: &Spec, map: u16, pages: u32, none: Label) {
    asm.extend([
        Insn::mov64(KEY, Reg::R1),
        Insn::mov64(KEY_REST, Reg::R2),
        Insn::mov64(META, Reg::R3),
        Insn::mov64(HOME, Reg::R1),
    ]);
    asm.extend(Insn::load64(Reg::R3, spec.seed));
    asm.push(Insn::alu64(op::XOR, HOME, Reg::R3));
    asm.extend(Insn::load64(Reg::R3, MUL_A));
    let mix = [
        Insn::alu64(op::MUL, HOME, Reg::R3),
        Insn::mov64(Reg::R4, HOME),
        Insn::alu64(op::RSH, Reg::R4, 32),
        Insn::alu64(op::XOR, HOME, Reg::R4),
    ];
    asm.extend(mix);
    asm.push(Insn::alu64(op::ADD, HOME, KEY_REST));
    asm.extend(mix);
    asm.push(Insn::alu64(op::XOR, HOME, META));
    asm.extend(Insn::load64(Reg::R3, MUL_B));
    asm.extend(mix);
    asm.extend(Insn::load64(Reg::R3, MUL_A));
    asm.extend(mix);
    asm.push(Insn::alu64(op::RSH, HOME, 32));
    lose_track(asm, HOME);
    asm.extend([
        Insn::mov64(Reg::R4, HOME),
        Insn::alu64(op::MUL, Reg::R4, pages as i32),
        Insn::alu64(op::RSH, Reg::R4, 32),
        Insn::store(op::W, Reg::FP, -4, Reg::R4),
        Insn::mov64(Reg::R2, Reg::FP),
        Insn::alu64(op::ADD, Reg::R2, -4),
    ]);
    asm.extend(Insn::load_map(Reg::R1, map));
    asm.push(Insn::call(helper::MAP_LOOKUP_ELEM));
    asm.jump(Insn::jump64(op::JEQ, Reg::R0, 0), none);
    asm.extend([
        Insn::mov64(PAGE, Reg::R0),
        Insn::alu64(op::LSH, HOME, 6),
        Insn::alu64(op::AND, HOME, PAGE_BYTES as i32 - 64),
    ]);
}

/// Passes a number of 32 bits through four bytes of the stack that are no whole slot: what it was
/// made from does not matter to the verifier any more. It distinguishes all values that are known of
/// what an index into memory was made from, and a hash is made from all fields of a key.
pub(super) fn lose_track(asm: &mut Asm, number: Reg) {
    asm.extend([
        Insn::store(op::W, Reg::FP, -4, number),
        Insn::load(op::W, number, Reg::FP, -4),
    ]);
}

/// r4 = the offset of a probe, r1 = its slot, r3 = the slot's third word.
fn probe(asm: &mut Asm, number: u32) {
    asm.extend([
        Insn::mov64(Reg::R4, HOME),
        Insn::alu64(op::ADD, Reg::R4, (number * SLOT_BYTES) as i32),
        Insn::alu64(op::AND, Reg::R4, (PAGE_BYTES - SLOT_BYTES) as i32),
        Insn::mov64(Reg::R1, PAGE),
        Insn::alu64(op::ADD, Reg::R1, Reg::R4),
        Insn::load(op::DW, Reg::R3, Reg::R1, 16),
    ]);
}

/// Goes to `other` unless the slot has the key; then r3 is the upper half of its third word.
fn is_key(asm: &mut Asm, other: Label) {
    asm.push(Insn::load(op::DW, Reg::R2, Reg::R1, 0));
    asm.jump(Insn::jump64(op::JNE, Reg::R2, KEY), other);
    asm.push(Insn::load(op::DW, Reg::R2, Reg::R1, 8));
    asm.jump(Insn::jump64(op::JNE, Reg::R2, KEY_REST), other);
    asm.push(Insn::mov32(Reg::R2, Reg::R3));
    asm.jump(Insn::jump64(op::JNE, Reg::R2, META), other);
    asm.push(Insn::alu64(op::RSH, Reg::R3, 32));
}

/// The routine that gives the row plus 1 of a key, or 0.
pub(super) fn emit_find(asm: &mut Asm, spec: &Spec, find: Label, first_place: u16) {
    let none = asm.label();
    asm.bind(find);
    begin(asm, spec, first_place + place::SLOTS, spec.slot_pages, none);
    for number in 0..PROBES {
        let other = asm.label();
        probe(asm, number);
        asm.jump(Insn::jump64(op::JEQ, Reg::R3, 0), none);
        is_key(asm, other);
        // 0 if the key has been removed.
        asm.extend([Insn::mov64(Reg::R0, Reg::R3), Insn::exit()]);
        asm.bind(other);
    }
    // Among those that found no slot.
    asm.extend(Insn::load_map_value(
        Reg::R1,
        first_place + place::CONTROL,
        0,
    ));
    asm.push(Insn::load(op::DW, Reg::R1, Reg::R1, at::SPILLED as i16));
    asm.jump(Insn::jump64(op::JEQ, Reg::R1, 0), none);
    asm.extend([
        Insn::store(op::DW, Reg::FP, -32, KEY),
        Insn::store(op::DW, Reg::FP, -24, KEY_REST),
        Insn::store(op::DW, Reg::FP, -16, META),
        Insn::mov64(Reg::R2, Reg::FP),
        Insn::alu64(op::ADD, Reg::R2, -32),
    ]);
    asm.extend(Insn::load_map(Reg::R1, first_place + place::SPILL));
    asm.push(Insn::call(helper::MAP_LOOKUP_ELEM));
    asm.jump(Insn::jump64(op::JEQ, Reg::R0, 0), none);
    asm.extend([Insn::load(op::W, Reg::R0, Reg::R0, 0), Insn::exit()]);
    asm.bind(none);
    asm.extend([Insn::mov64(Reg::R0, 0), Insn::exit()]);
}

/// The routine that gives the slot's number plus 1 of an unknown key, which it enters if there is
/// room; 0 if there is none.
pub(super) fn emit_claim(asm: &mut Asm, spec: &Spec, claim: Label, first_place: u16) {
    let [none, got] = [(); 2].map(|()| asm.label());
    asm.bind(claim);
    let pages = spec.unknown_pages.max(1);
    begin(asm, spec, first_place + place::UNKNOWN, pages, none);
    for number in 0..PROBES {
        let [other, taken] = [(); 2].map(|()| asm.label());
        probe(asm, number);
        asm.jump(Insn::jump64(op::JNE, Reg::R3, 0), taken);
        asm.extend([
            Insn::mov64(Reg::R0, 0),
            Insn::mov64(Reg::R2, state::BUSY as i32),
            Insn::alu64(op::LSH, Reg::R2, 32),
            Insn::alu64(op::OR, Reg::R2, META),
            compare_exchange(Reg::R1, 16, Reg::R2),
        ]);
        // Another CPU was first: whatever it enters, this frame is counted as overflow.
        asm.jump(Insn::jump64(op::JNE, Reg::R0, 0), none);
        asm.extend([
            Insn::store(op::DW, Reg::R1, 0, KEY),
            Insn::store(op::DW, Reg::R1, 8, KEY_REST),
        ]);
        if spec.adopts {
            asm.extend([
                Insn::store(op::DW, Reg::FP, -16, Reg::R1),
                Insn::store(op::DW, Reg::FP, -24, Reg::R4),
                Insn::call(helper::KTIME_GET_NS),
                Insn::load(op::DW, Reg::R1, Reg::FP, -16),
                Insn::load(op::DW, Reg::R4, Reg::FP, -24),
                Insn::store(op::DW, Reg::R1, 24, Reg::R0),
            ]);
        }
        asm.extend([
            Insn::mov64(Reg::R2, state::READY as i32),
            Insn::alu64(op::LSH, Reg::R2, 32),
            Insn::alu64(op::OR, Reg::R2, META),
            exchange(Reg::R1, 16, Reg::R2),
        ]);
        asm.goto(got);
        asm.bind(taken);
        is_key(asm, other);
        asm.jump(Insn::jump64(op::JEQ, Reg::R3, state::READY as i32), got);
        asm.bind(other);
    }
    asm.bind(none);
    asm.extend([Insn::mov64(Reg::R0, 0), Insn::exit()]);
    asm.bind(got);
    asm.extend([
        Insn::load(op::W, Reg::R0, Reg::FP, -4),
        Insn::alu64(op::LSH, Reg::R0, 7),
        Insn::alu64(op::RSH, Reg::R4, 5),
        Insn::alu64(op::ADD, Reg::R0, Reg::R4),
        Insn::alu64(op::ADD, Reg::R0, 1),
        Insn::exit(),
    ]);
}
