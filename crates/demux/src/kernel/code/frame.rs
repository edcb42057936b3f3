//! The start of the program: the frame's length, and a copy of its first
//! bytes, so that fields are read without a check for each, the same way
//! whether the frame is in one piece, and with the VLAN tag back in place.

use super::super::layout::{UNIT_BYTES, UNIT_ZERO, scratch};
use super::super::maps::{Hook, MapRole};
use super::super::record::{FLAG_EGRESS, FLAG_GSO, FLAG_VLAN, at};
use super::{CONTEXT, Coder, LEN, SCRATCH};
use weir_filter::backend::ebpf::{Insn, Reg, helper, op};

/// Bytes that are copied in any case: those of the shortest Ethernet frame
/// without its checksum, up to a whole word.
pub(super) const HEAD_MIN: u32 = 64;

/// The shortest Ethernet frame without its checksum.
const SHORTEST: i16 = 60;

/// Offsets in `struct xdp_md`.
mod xdp_md {
    pub(super) const DATA: i16 = 0;
    pub(super) const DATA_END: i16 = 4;
    pub(super) const IFINDEX: i16 = 12;
    pub(super) const QUEUE: i16 = 16;
}

/// Offsets in `struct __sk_buff`.
pub(super) mod sk_buff {
    pub(in super::super) const LEN: i16 = 0;
    pub(in super::super) const QUEUE: i16 = 12;
    pub(in super::super) const VLAN_PRESENT: i16 = 20;
    pub(in super::super) const VLAN_TCI: i16 = 24;
    pub(in super::super) const VLAN_PROTO: i16 = 28;
    pub(in super::super) const IFINDEX: i16 = 40;
    pub(in super::super) const DATA: i16 = 76;
    pub(in super::super) const DATA_END: i16 = 80;
    pub(in super::super) const DATA_META: i16 = 140;
    pub(in super::super) const GSO_SEGS: i16 = 164;
    pub(in super::super) const GSO_SIZE: i16 = 176;
}

/// Where the VLAN tag stands in a frame, and how long it is.
pub(super) const TAG_AT: i16 = 12;
pub(super) const TAG_BYTES: i16 = 4;

impl Coder<'_> {
    /// Everything before the first subtable.
    pub(super) fn frame(&mut self) {
        let pass = self.pass;
        self.mov(CONTEXT, Reg::R1);
        if self.hook == Hook::TcIngress {
            self.skip_marked(pass);
        }
        self.own_scratch();
        self.set(op::W, SCRATCH, scratch::CANDIDATES, 0);
        self.set(op::W, SCRATCH, scratch::MATCHES, 0);
        self.set(op::DW, SCRATCH, scratch::BEST, -1);
        self.set(op::DW, SCRATCH, scratch::LIMIT, -1);
        self.set(op::W, SCRATCH, scratch::SHIFT, 0);
        if self.plan.fans_out() {
            self.set(op::W, SCRATCH, scratch::FLOW, scratch::NO_FLOW);
        }
        let ready = self.asm.label();
        if self.is_tc() {
            self.get(op::W, LEN, CONTEXT, sk_buff::LEN);
            self.set(op::W, SCRATCH, scratch::LEN, LEN);
            self.set(op::W, SCRATCH, scratch::FLAGS, self.base_flags());
            self.tagged(ready);
        } else {
            self.mov(Reg::R1, CONTEXT);
            self.push(Insn::call(helper::XDP_GET_BUFF_LEN));
            self.push(Insn::mov32(LEN, Reg::R0));
            self.set(op::W, SCRATCH, scratch::LEN, LEN);
            self.set(op::W, SCRATCH, scratch::FLAGS, 0);
        }
        self.copy_head(ready);
        self.asm.bind(ready);
    }

    /// r7 = this CPU's scratch memory. The key, 0, is in a map and not on the stack: behind
    /// the first store to a place of the stack the verifier puts a barrier against speculation
    /// (`lfence`), which waits for all that the processor has begun (docs/decisions/017.md).
    pub(super) fn own_scratch(&mut self) {
        let pass = self.pass;
        self.map(Reg::R1, MapRole::Scratch);
        self.map_value(Reg::R2, MapRole::Store, UNIT_ZERO * UNIT_BYTES);
        self.push(Insn::call(helper::MAP_LOOKUP_ELEM));
        self.branch(op::JEQ, Reg::R0, 0, pass);
        self.mov(SCRATCH, Reg::R0);
    }

    fn base_flags(&self) -> i32 {
        let egress = self.hook == Hook::TcEgress;
        if egress { FLAG_EGRESS as i32 } else { 0 }
    }

    /// A frame in one piece is copied word by word; a short one, or one in
    /// several pieces, by the helper.
    fn copy_head(&mut self, ready: super::Label) {
        let (pass, slow) = (self.pass, self.asm.label());
        let (data, end) = if self.is_tc() {
            (sk_buff::DATA, sk_buff::DATA_END)
        } else {
            (xdp_md::DATA, xdp_md::DATA_END)
        };
        self.get(op::W, Reg::R2, CONTEXT, data);
        self.get(op::W, Reg::R3, CONTEXT, end);
        self.reaches(SHORTEST, slow);
        for word in 0..SHORTEST / 8 {
            self.copy(op::DW, word * 8);
        }
        self.copy(op::W, SHORTEST - 4);
        // What a short frame does not have must not be another frame's.
        self.set(op::W, SCRATCH, scratch::HEAD + SHORTEST, 0);
        self.branch(op::JEQ, LEN, i32::from(SHORTEST), ready);
        self.reaches(HEAD_MIN as i16, slow);
        self.copy(op::W, SHORTEST);
        for word in HEAD_MIN as i16 / 8..self.head as i16 / 8 {
            self.branch(op::JEQ, LEN, i32::from(word * 8), ready);
            self.reaches(word * 8 + 8, slow);
            self.copy(op::DW, word * 8);
        }
        self.asm.goto(ready);

        self.asm.bind(slow);
        self.clear_head();
        self.mov(Reg::R4, LEN);
        self.at_most(Reg::R4, self.head as i32);
        self.branch(op::JEQ, Reg::R4, 0, pass);
        self.mov(Reg::R1, CONTEXT);
        self.mov(Reg::R2, 0);
        self.mov(Reg::R3, SCRATCH);
        self.add(Reg::R3, i32::from(scratch::HEAD));
        self.push(Insn::call(self.load_helper()));
        self.branch(op::JNE, Reg::R0, 0, pass);
    }

    fn clear_head(&mut self) {
        for word in 0..HEAD_MIN as i16 / 8 {
            self.set(op::DW, SCRATCH, scratch::HEAD + word * 8, 0);
        }
    }

    /// Leaves unless the first piece (r2 to r3) has as many bytes.
    fn reaches(&mut self, bytes: i16, otherwise: super::Label) {
        self.mov(Reg::R4, Reg::R2);
        self.add(Reg::R4, i32::from(bytes));
        self.branch(op::JGT, Reg::R4, Reg::R3, otherwise);
    }

    fn copy(&mut self, size: u8, at: i16) {
        self.get(size, Reg::R1, Reg::R2, at);
        self.set(size, SCRATCH, scratch::HEAD + at, Reg::R1);
    }

    pub(super) fn at_most(&mut self, reg: Reg, most: i32) {
        let fits = self.asm.label();
        self.branch(op::JLE, reg, most, fits);
        self.mov(reg, most);
        self.asm.bind(fits);
    }

    /// An skb whose tag was taken out: the tag is put back into the copy.
    fn tagged(&mut self, ready: super::Label) {
        let (pass, plain) = (self.pass, self.asm.label());
        self.get(op::W, Reg::R1, CONTEXT, sk_buff::VLAN_PRESENT);
        self.branch(op::JEQ, Reg::R1, 0, plain);
        self.branch(op::JLT, LEN, i32::from(TAG_AT), pass);
        self.clear_head();
        self.load_head(0, 0, TAG_AT);
        self.tag_to(SCRATCH, scratch::HEAD + TAG_AT);
        self.set(op::W, SCRATCH, scratch::SHIFT, i32::from(TAG_BYTES));
        let flags = self.base_flags() | FLAG_VLAN as i32;
        self.set(op::W, SCRATCH, scratch::FLAGS, flags);
        self.mov(Reg::R4, LEN);
        self.add(LEN, i32::from(TAG_BYTES));
        self.set(op::W, SCRATCH, scratch::LEN, LEN);
        self.alu(op::SUB, Reg::R4, i32::from(TAG_AT));
        self.branch(op::JEQ, Reg::R4, 0, ready);
        self.at_most(Reg::R4, self.head as i32 - i32::from(TAG_AT + TAG_BYTES));
        self.mov(Reg::R1, CONTEXT);
        self.mov(Reg::R2, i32::from(TAG_AT));
        self.mov(Reg::R3, SCRATCH);
        self.add(Reg::R3, i32::from(scratch::HEAD + TAG_AT + TAG_BYTES));
        self.push(Insn::call(helper::SKB_LOAD_BYTES));
        self.branch(op::JNE, Reg::R0, 0, pass);
        self.asm.goto(ready);
        self.asm.bind(plain);
    }

    fn load_head(&mut self, from: i16, to: i16, bytes: i16) {
        self.mov(Reg::R1, CONTEXT);
        self.mov(Reg::R2, i32::from(from));
        self.mov(Reg::R3, SCRATCH);
        self.add(Reg::R3, i32::from(scratch::HEAD + to));
        self.mov(Reg::R4, i32::from(bytes));
        self.push(Insn::call(helper::SKB_LOAD_BYTES));
        let pass = self.pass;
        self.branch(op::JNE, Reg::R0, 0, pass);
    }

    /// Writes the tag as it stands on the wire: protocol, then control
    /// information; the context gives the first in network order.
    pub(super) fn tag_to(&mut self, base: Reg, at: i16) {
        self.get(op::W, Reg::R1, CONTEXT, sk_buff::VLAN_PROTO);
        self.set(op::H, base, at, Reg::R1);
        self.get(op::W, Reg::R1, CONTEXT, sk_buff::VLAN_TCI);
        self.push(Insn::to_be(Reg::R1, 16));
        self.set(op::H, base, at + 2, Reg::R1);
    }

    /// The frame's part of the record's header, for any receiver.
    pub(super) fn record_of_frame(&mut self) {
        let field = |at: i16| scratch::RECORD + at;
        self.reload_len();
        self.set(op::W, SCRATCH, field(at::WIRE_LEN), LEN);
        self.set(op::W, SCRATCH, field(at::GSO_SIZE), 0);
        if !self.is_tc() {
            self.get(op::W, Reg::R1, CONTEXT, xdp_md::IFINDEX);
            self.set(op::W, SCRATCH, field(at::IFINDEX), Reg::R1);
            self.get(op::W, Reg::R1, CONTEXT, xdp_md::QUEUE);
            self.set(op::W, SCRATCH, field(at::QUEUE), Reg::R1);
            return;
        }
        self.get(op::W, Reg::R1, CONTEXT, sk_buff::IFINDEX);
        self.set(op::W, SCRATCH, field(at::IFINDEX), Reg::R1);
        self.get(op::W, Reg::R1, CONTEXT, sk_buff::QUEUE);
        self.set(op::W, SCRATCH, field(at::QUEUE), Reg::R1);
        let single = self.asm.label();
        self.get(op::W, Reg::R1, CONTEXT, sk_buff::GSO_SIZE);
        self.branch(op::JEQ, Reg::R1, 0, single);
        self.set(op::H, SCRATCH, field(at::GSO_SIZE), Reg::R1);
        self.get(op::W, Reg::R1, CONTEXT, sk_buff::GSO_SEGS);
        self.set(op::H, SCRATCH, field(at::GSO_SEGS), Reg::R1);
        self.get(op::W, Reg::R1, SCRATCH, scratch::FLAGS);
        self.alu(op::OR, Reg::R1, FLAG_GSO as i32);
        self.set(op::W, SCRATCH, scratch::FLAGS, Reg::R1);
        self.asm.bind(single);
    }
}
