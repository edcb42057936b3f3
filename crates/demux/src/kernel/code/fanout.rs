//! Fan-outs: the bucket of a frame's flow, as [`fanout::bucket`] finds it, and
//! the port that has it.
//!
//! A frame's flow is hashed once, when the first entry of a fan-out accepts it; or
//! each frame's at the start, where the first half looks entries up in several
//! places, or an opaque filter has a fan-out.
//! Offsets into the copy of the frame's start come from scratch memory, and are
//! masked: see `eval`.

use super::super::layout::{
    SLOT_FANOUT, SLOT_KERNEL, UNIT_BYTES, entry, fanout as buckets, scratch,
};
use super::super::maps::MapRole;
use super::resolve::in_entry;
use super::{Coder, SCRATCH};
use crate::fanout::{self, Layout};
use weir_filter::backend::ebpf::{Insn, Label, Reg, op};

/// Bits of an offset into the copy of a frame's start.
const HEAD_MASK: i32 = scratch::HEAD_BYTES as i32 - 1;

/// What a flow is hashed from, in the routine's registers: its ends, and its kind.
const ENDS: [Reg; 2] = [Reg::R3, Reg::R4];
const KIND: Reg = Reg::R5;
/// How many bytes of the frame count; its EtherType.
const HEAD_LEN: Reg = Reg::R8;
const ETHER_TYPE: Reg = Reg::R9;

/// Where the routine goes on.
#[derive(Clone, Copy)]
struct Ways {
    v4: Label,
    v6: Label,
    /// It is no IP packet.
    other: Label,
    /// At transport ports, whose offset is in r0.
    ports: Label,
    hash: Label,
}

impl Coder<'_> {
    /// If the entry at r5 is a fan-out's: on at `done` if no port has the bucket
    /// of the frame's flow. Rank r2, snap length r3 and r5 are as before.
    pub(super) fn share(&mut self, done: Label) {
        let single = self.asm.label();
        self.get(op::W, Reg::R1, Reg::R5, in_entry(entry::SLOT));
        self.set(op::W, SCRATCH, scratch::NOTED_SLOT, Reg::R1);
        self.unless_fanout(Reg::R1, single);
        self.set(op::W, SCRATCH, scratch::NOTED_SNAP, Reg::R3);
        if !self.is_hashed {
            let known = self.asm.label();
            self.get(op::W, Reg::R1, SCRATCH, scratch::FLOW);
            let is_known = Insn::jump32(op::JNE, Reg::R1, scratch::NO_FLOW);
            self.asm.jump(is_known, known);
            self.call_flow();
            self.asm.bind(known);
        }
        self.get(op::W, Reg::R0, SCRATCH, scratch::NOTED_SLOT);
        self.bucket(Reg::R0, done);
        self.get(op::W, Reg::R1, Reg::R1, 0);
        self.set(op::W, SCRATCH, scratch::NOTED_SLOT, Reg::R1);
        let is_none = Insn::jump32(op::JEQ, Reg::R1, buckets::NO_SLOT as i32);
        self.asm.jump(is_none, done);
        self.get(op::W, Reg::R5, SCRATCH, scratch::ENTRY);
        self.entry(Reg::R5, Reg::R1, done);
        self.get(op::DW, Reg::R2, Reg::R5, in_entry(entry::RANK));
        self.get(op::W, Reg::R3, SCRATCH, scratch::NOTED_SNAP);
        self.asm.bind(single);
    }

    /// Has the flow of each frame hashed, at the start of the program: the verifier
    /// follows the routine anew with each call, for some milliseconds, and there may
    /// be many places that need the flow.
    pub(super) fn hash_flow_now(&mut self) {
        self.call_flow();
        self.is_hashed = true;
    }

    fn call_flow(&mut self) {
        self.mov(Reg::R1, SCRATCH);
        let flow = self.flow;
        self.asm.call(flow);
    }

    /// Jumps unless a slot is a fan-out's.
    pub(super) fn unless_fanout(&mut self, slot: Reg, single: Label) {
        let port = Insn::jump32(op::JLT, slot, SLOT_FANOUT as i32);
        self.asm.jump(port, single);
        let kernel_or_drop = Insn::jump32(op::JGE, slot, SLOT_KERNEL as i32);
        self.asm.jump(kernel_or_drop, single);
    }

    /// r1 = the address of the frame's bucket in the fan-out whose slot is in
    /// `slot`, not r1 to r3; these are lost.
    pub(super) fn bucket(&mut self, slot: Reg, outside: Label) {
        self.push(Insn::mov32(Reg::R1, slot));
        self.push(Insn::alu32(op::AND, Reg::R1, (SLOT_FANOUT - 1) as i32));
        let last = self.plan.image.units - buckets::UNITS;
        self.branch(op::JGT, Reg::R1, last as i32, outside);
        self.alu(op::LSH, Reg::R1, UNIT_BYTES.ilog2() as i32);
        self.get(op::W, Reg::R3, SCRATCH, scratch::FLOW);
        self.alu(op::AND, Reg::R3, fanout::BUCKETS as i32 - 1);
        self.alu(op::LSH, Reg::R3, 3);
        self.add(Reg::R1, Reg::R3);
        self.map_value(Reg::R2, MapRole::Store, 0);
        self.add(Reg::R1, Reg::R2);
    }

    /// The routine that finds the bucket of the frame in the scratch memory at r1,
    /// and puts it there.
    pub(super) fn flow_routine(&mut self) {
        if !self.plan.fans_out() {
            return;
        }
        let mut label = || self.asm.label();
        let ways = Ways {
            v4: label(),
            v6: label(),
            other: label(),
            ports: label(),
            hash: label(),
        };
        let flow = self.flow;
        self.asm.bind(flow);
        self.mov(SCRATCH, Reg::R1);
        self.get(op::W, HEAD_LEN, SCRATCH, scratch::LEN);
        self.at_most(HEAD_LEN, fanout::HEAD_BYTES as i32);
        let layout = self.plan.options.layout;
        self.link_header(layout, ways);
        self.other(layout, ways);
        self.ipv4(ways);
        self.ipv6(ways);
        self.transport_ports(ways);
        self.hash_flow(ways);
    }

    fn head(&mut self, size: u8, to: Reg, base: Reg, at: usize) {
        self.get(size, to, base, scratch::HEAD + at as i16);
        let bits = match size {
            op::B => return,
            op::H => 16,
            op::W => 32,
            _ => 64,
        };
        self.push(Insn::to_be(to, bits));
    }

    /// Where the packet begins: behind VLAN tags.
    fn link_header(&mut self, layout: Layout, ways: Ways) {
        for end in ENDS {
            self.mov(end, 0);
        }
        self.mov(KIND, fanout::NO_IP as i32);
        self.mov(ETHER_TYPE, 0);
        let mut at = layout.packet_at;
        self.set(op::W, SCRATCH, scratch::PACKET_AT, at as i32);
        let Some(type_at) = layout.type_at else {
            self.branch(op::JLE, HEAD_LEN, at as i32, ways.hash);
            self.head(op::B, Reg::R1, SCRATCH, at);
            self.alu(op::RSH, Reg::R1, 4);
            self.branch(op::JEQ, Reg::R1, 4, ways.v4);
            self.branch(op::JEQ, Reg::R1, 6, ways.v6);
            return;
        };
        self.branch(op::JLT, HEAD_LEN, type_at as i32 + 2, ways.hash);
        self.head(op::H, ETHER_TYPE, SCRATCH, type_at);
        let typed = self.asm.label();
        for _ in 0..fanout::TAGS_MAX {
            let tagged = self.asm.label();
            for tag in fanout::TAGS {
                self.branch(op::JEQ, ETHER_TYPE, i32::from(tag), tagged);
            }
            self.asm.goto(typed);
            self.asm.bind(tagged);
            self.branch(op::JLT, HEAD_LEN, at as i32 + 4, ways.other);
            self.head(op::H, ETHER_TYPE, SCRATCH, at + 2);
            at += 4;
            self.set(op::W, SCRATCH, scratch::PACKET_AT, at as i32);
        }
        self.asm.bind(typed);
        self.branch(op::JEQ, ETHER_TYPE, 0x0800, ways.v4);
        self.branch(op::JEQ, ETHER_TYPE, 0x86dd, ways.v6);
    }

    /// Falls in from the link header: no IP packet.
    fn other(&mut self, layout: Layout, ways: Ways) {
        self.asm.bind(ways.other);
        if layout.has_macs {
            for (end, at) in ENDS.into_iter().zip([0, 6]) {
                self.head(op::DW, end, SCRATCH, at);
                self.alu(op::RSH, end, 16);
            }
        }
        self.alu(op::OR, KIND, ETHER_TYPE);
        self.asm.goto(ways.hash);
    }

    /// r2 = the address of the packet's header, r1 = its first byte; to `other` if
    /// the frame has less than `len` bytes of it, or it is of another version.
    fn packet(&mut self, len: i32, version: i32, other: Label) {
        self.get(op::W, Reg::R2, SCRATCH, scratch::PACKET_AT);
        self.mov(Reg::R0, Reg::R2);
        self.add(Reg::R0, len);
        self.branch(op::JGT, Reg::R0, HEAD_LEN, other);
        self.head_address(Reg::R2);
        self.head(op::B, Reg::R1, Reg::R2, 0);
        self.mov(Reg::R0, Reg::R1);
        self.alu(op::RSH, Reg::R0, 4);
        self.branch(op::JNE, Reg::R0, version, other);
    }

    /// From an offset to the address, less [`scratch::HEAD`].
    fn head_address(&mut self, offset: Reg) {
        self.alu(op::AND, offset, HEAD_MASK);
        self.add(offset, SCRATCH);
    }

    fn ipv4(&mut self, ways: Ways) {
        self.asm.bind(ways.v4);
        self.packet(20, 4, ways.other);
        self.alu(op::AND, Reg::R1, 15);
        self.alu(op::LSH, Reg::R1, 2);
        self.branch(op::JLT, Reg::R1, 20, ways.other);
        self.get(op::W, Reg::R0, SCRATCH, scratch::PACKET_AT);
        self.add(Reg::R0, Reg::R1);
        for (end, at) in ENDS.into_iter().zip([12, 16]) {
            self.head(op::W, end, Reg::R2, at);
            self.alu(op::LSH, end, 16);
        }
        self.head(op::B, KIND, Reg::R2, 9);
        self.head(op::H, Reg::R1, Reg::R2, 6);
        self.alu(op::AND, Reg::R1, i32::from(fanout::FRAGMENT));
        self.branch(op::JNE, Reg::R1, 0, ways.hash);
        self.asm.goto(ways.ports);
    }

    fn ipv6(&mut self, ways: Ways) {
        self.asm.bind(ways.v6);
        self.packet(40, 6, ways.other);
        for (end, at) in ENDS.into_iter().zip([8, 24]) {
            self.head(op::DW, end, Reg::R2, at);
            self.mix(end);
            self.head(op::DW, Reg::R1, Reg::R2, at + 8);
            self.add(end, Reg::R1);
            self.mix(end);
        }
        self.head(op::B, KIND, Reg::R2, 6);
        self.get(op::W, Reg::R0, SCRATCH, scratch::PACKET_AT);
        self.add(Reg::R0, 40);
        for _ in 0..fanout::EXTENSIONS_MAX {
            let extension = self.asm.label();
            for next in fanout::EXTENSIONS {
                self.branch(op::JEQ, KIND, i32::from(next), extension);
            }
            self.asm.goto(ways.ports);
            self.asm.bind(extension);
            self.mov(Reg::R1, Reg::R0);
            self.add(Reg::R1, 8);
            self.branch(op::JGT, Reg::R1, HEAD_LEN, ways.hash);
            self.mov(Reg::R1, Reg::R0);
            self.head_address(Reg::R1);
            self.head(op::B, KIND, Reg::R1, 0);
            self.head(op::B, Reg::R1, Reg::R1, 1);
            self.add(Reg::R1, 1);
            self.alu(op::LSH, Reg::R1, 3);
            self.add(Reg::R0, Reg::R1);
        }
        self.asm.goto(ways.ports);
    }

    /// Adds the transport ports at offset r0, if there are some.
    fn transport_ports(&mut self, ways: Ways) {
        self.asm.bind(ways.ports);
        let there = self.asm.label();
        for protocol in fanout::WITH_PORTS {
            self.branch(op::JEQ, KIND, i32::from(protocol), there);
        }
        self.asm.goto(ways.hash);
        self.asm.bind(there);
        self.mov(Reg::R1, Reg::R0);
        self.add(Reg::R1, 4);
        self.branch(op::JGT, Reg::R1, HEAD_LEN, ways.hash);
        self.head_address(Reg::R0);
        for (end, at) in ENDS.into_iter().zip([0, 2]) {
            self.head(op::H, Reg::R1, Reg::R0, at);
            self.add(end, Reg::R1);
        }
    }

    fn hash_flow(&mut self, ways: Ways) {
        self.asm.bind(ways.hash);
        for end in ENDS {
            self.mix(end);
        }
        self.constant(Reg::R1, fanout::SPREAD);
        self.alu(op::MUL, KIND, Reg::R1);
        self.mov(Reg::R0, KIND);
        for end in ENDS {
            self.add(Reg::R0, end);
        }
        self.mix(Reg::R0);
        self.alu(op::RSH, Reg::R0, fanout::BUCKET_SHIFT as i32);
        self.set(op::W, SCRATCH, scratch::FLOW, Reg::R0);
        self.mov(Reg::R0, 0);
        self.push(Insn::exit());
    }

    /// `word` with its bits distributed; r1 is lost.
    fn mix(&mut self, word: Reg) {
        self.mov(Reg::R1, word);
        self.alu(op::RSH, Reg::R1, 32);
        self.alu(op::XOR, word, Reg::R1);
        self.constant(Reg::R1, fanout::MIX);
        self.alu(op::MUL, word, Reg::R1);
        self.mov(Reg::R1, word);
        self.alu(op::RSH, Reg::R1, 32);
        self.alu(op::XOR, word, Reg::R1);
    }
}
