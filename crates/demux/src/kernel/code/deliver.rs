//! Delivery of the noted ports, by rank, into their rings; and the frame's verdict.

use super::super::layout::{SLOT_DROP, SLOT_KERNEL, counter, entry, fanout, port, scratch};
use super::super::maps::{Hook, MapRole};
use super::super::record::{
    FLAG_CUT, FLAG_GSO, FLAG_SHORT, HEADER_BYTES, QUEUE_SHIFT, SHORT_FRAME_MAX, SHORT_HEADER_BYTES,
    at,
};
use super::resolve::{ATOMIC_EXCHANGE, atomic, in_entry};
use super::{CALLEE_SAVED, CONTEXT, Coder, SCRATCH};
use weir_filter::backend::ebpf::{Insn, Label, Reg, helper, op};

/// Bytes of a frame for which the kernel reserves room in one step; a longer
/// one is written in chunks.
const CLASSES: [i32; 7] = [64, 128, 256, 512, 1024, 1536, 2048];

/// Bytes of a chunk.
const CHUNK: i32 = 2048;

/// Bytes that every record has from the copy of the frame's start.
const FROM_HEAD: i32 = 16;

/// Helpers of the kernel.
const KTIME_GET_BOOT_NS: i32 = 125;
const KTIME_GET_TAI_NS: i32 = 208;
const RINGBUF_RESERVE_DYNPTR: i32 = 198;
const RINGBUF_SUBMIT_DYNPTR: i32 = 199;
const RINGBUF_DISCARD_DYNPTR: i32 = 200;
const DYNPTR_WRITE: i32 = 202;
const DYNPTR_DATA: i32 = 203;

/// Return values of programs.
const XDP_PASS: i32 = 2;
const XDP_DROP: i32 = 1;
/// On to the next program, and to the stack in the end.
const TC_NEXT: i32 = -1;
const TC_DROP: i32 = 2;

/// On the stack: a dynptr.
const DYNPTR: i16 = -24;

const FATE_TAKEN: i32 = 1;
const FATE_KERNEL: i32 = 2;

fn field(at: i16) -> i16 {
    scratch::RECORD + at
}

/// Where a delivery goes on.
#[derive(Clone, Copy)]
struct Continuations {
    /// At the next.
    next: Label,
    /// At the port whose slot is in scratch memory.
    port: Label,
    /// Where its record found no room.
    lost: Label,
    /// Where it is in the ring.
    counted: Label,
}

impl Coder<'_> {
    /// The end of the second half.
    pub(super) fn deliver(&mut self) {
        let mut label = || self.asm.label();
        let to = Continuations {
            next: label(),
            port: label(),
            lost: label(),
            counted: label(),
        };
        let [found, taker, end] = [(); 3].map(|()| self.asm.label());
        let pass = self.pass;
        self.get(op::DW, Reg::R1, SCRATCH, scratch::BEST);
        self.branch(op::JNE, Reg::R1, -1, found);
        self.get(op::W, Reg::R1, SCRATCH, scratch::MATCHES);
        self.branch(op::JEQ, Reg::R1, 0, pass);
        self.asm.bind(found);
        self.record_of_frame();
        self.sort();
        self.set(op::DW, SCRATCH, scratch::LAST, -1);
        self.set(op::W, SCRATCH, scratch::FATE, 0);
        self.set(op::W, SCRATCH, scratch::CURSOR, 0);
        self.claim();
        self.for_each_copy(to, taker);
        self.taker(to, taker, end);

        self.asm.bind(to.port);
        self.settings(to);
        self.ring(to.lost);
        self.write(to.lost, to.counted);
        self.asm.bind(to.counted);
        self.count_delivered();
        self.asm.goto(to.next);

        self.asm.bind(to.lost);
        self.lose();
        self.asm.goto(to.next);

        self.asm.bind(end);
        self.get(op::W, Reg::R1, SCRATCH, scratch::FATE);
        self.branch(op::JNE, Reg::R1, FATE_TAKEN, pass);
        let drop = match self.hook {
            Hook::Xdp => XDP_DROP,
            Hook::TcIngress => TC_DROP,
            // Frames that the host sends are never stopped: only received frames can be taken.
            Hook::TcEgress => TC_NEXT,
        };
        self.push(Insn::mov32(Reg::R0, drop));
        self.push(Insn::exit());
        self.end();
    }

    /// Where frames pass.
    pub(super) fn end(&mut self) {
        let pass = self.pass;
        self.asm.bind(pass);
        if self.hook == Hook::Xdp {
            self.set_mark();
        }
        let next = if self.is_tc() { TC_NEXT } else { XDP_PASS };
        self.push(Insn::mov32(Reg::R0, next));
        self.push(Insn::exit());
    }

    /// Sorts the copies by rank: by insertion, since they come nearly sorted,
    /// and are few mostly.
    fn sort(&mut self) {
        let [outer, inner, sorted] = [(); 3].map(|()| self.asm.label());
        let most = scratch::MATCHES_MAX as i32;
        self.get(op::W, Reg::R1, SCRATCH, scratch::MATCHES);
        self.branch(op::JLE, Reg::R1, 1, sorted);
        self.set(op::W, SCRATCH, scratch::CURSOR, 1);
        self.asm.bind(outer);
        self.round(sorted);
        self.get(op::W, Reg::R1, SCRATCH, scratch::CURSOR);
        self.get(op::W, Reg::R2, SCRATCH, scratch::MATCHES);
        self.branch(op::JGE, Reg::R1, Reg::R2, sorted);
        self.branch(op::JGE, Reg::R1, most, sorted);
        self.set(op::W, SCRATCH, scratch::PLACE, Reg::R1);
        self.add(Reg::R1, 1);
        self.set(op::W, SCRATCH, scratch::CURSOR, Reg::R1);

        self.asm.bind(inner);
        self.round(outer);
        self.get(op::W, Reg::R1, SCRATCH, scratch::PLACE);
        self.branch(op::JEQ, Reg::R1, 0, outer);
        self.branch(op::JGE, Reg::R1, most, outer);
        self.mov(Reg::R2, Reg::R1);
        self.alu(op::SUB, Reg::R2, 1);
        self.set(op::W, SCRATCH, scratch::PLACE, Reg::R2);
        self.alu(op::LSH, Reg::R2, 4);
        self.add(Reg::R2, SCRATCH);
        // The two neighbours at r2.
        let first = scratch::MATCH;
        let second = first + scratch::MATCH_BYTES as i16;
        self.get(op::DW, Reg::R3, Reg::R2, first);
        self.get(op::DW, Reg::R4, Reg::R2, second);
        self.branch(op::JLE, Reg::R3, Reg::R4, outer);
        self.set(op::DW, Reg::R2, first, Reg::R4);
        self.set(op::DW, Reg::R2, second, Reg::R3);
        self.get(op::DW, Reg::R3, Reg::R2, first + 8);
        self.get(op::DW, Reg::R4, Reg::R2, second + 8);
        self.set(op::DW, Reg::R2, first + 8, Reg::R4);
        self.set(op::DW, Reg::R2, second + 8, Reg::R3);
        self.asm.goto(inner);
        self.asm.bind(sorted);
    }

    /// Forgets a taker that is a claim: the copies behind it are delivered as
    /// those before it, and the frame passes to the kernel.
    fn claim(&mut self) {
        let none = self.asm.label();
        self.get(op::DW, Reg::R1, SCRATCH, scratch::BEST);
        self.branch(op::JEQ, Reg::R1, -1, none);
        self.get(op::W, Reg::R5, SCRATCH, scratch::TAKER);
        self.entry(Reg::R5, Reg::R1, none);
        self.get(op::W, Reg::R1, Reg::R5, in_entry(entry::SLOT));
        let other = Insn::jump32(op::JNE, Reg::R1, SLOT_KERNEL as i32);
        self.asm.jump(other, none);
        self.set(op::DW, SCRATCH, scratch::BEST, -1);
        self.asm.bind(none);
    }

    /// The next copy that comes before the taker.
    fn for_each_copy(&mut self, to: Continuations, taker: Label) {
        self.asm.bind(to.next);
        self.get(op::W, Reg::R2, SCRATCH, scratch::MATCHES);
        self.branch(op::JEQ, Reg::R2, 0, taker);
        self.round(taker);
        self.get(op::W, Reg::R1, SCRATCH, scratch::CURSOR);
        self.branch(op::JGE, Reg::R1, Reg::R2, taker);
        let most = scratch::MATCHES_MAX as i32;
        self.branch(op::JGE, Reg::R1, most, taker);
        self.mov(Reg::R2, Reg::R1);
        self.add(Reg::R2, 1);
        self.set(op::W, SCRATCH, scratch::CURSOR, Reg::R2);
        self.alu(op::LSH, Reg::R1, 4);
        self.add(Reg::R1, SCRATCH);
        self.get(op::DW, Reg::R2, Reg::R1, scratch::MATCH);
        self.get(op::DW, Reg::R3, SCRATCH, scratch::BEST);
        self.branch(op::JGT, Reg::R2, Reg::R3, taker);
        // Paths of one filter may overlap; each binding has its own rank.
        self.get(op::DW, Reg::R3, SCRATCH, scratch::LAST);
        self.branch(op::JEQ, Reg::R2, Reg::R3, to.next);
        self.set(op::DW, SCRATCH, scratch::LAST, Reg::R2);
        self.get(op::W, Reg::R4, Reg::R1, scratch::MATCH + 12);
        self.get(op::W, Reg::R5, Reg::R1, scratch::MATCH + 8);
        self.target(to);
    }

    /// Who takes the frame, behind the copies, and once.
    fn taker(&mut self, to: Continuations, taker: Label, end: Label) {
        self.asm.bind(taker);
        self.round(end);
        self.get(op::DW, Reg::R2, SCRATCH, scratch::BEST);
        self.branch(op::JEQ, Reg::R2, -1, end);
        self.set(op::DW, SCRATCH, scratch::BEST, -1);
        // Copies that come after it are none.
        self.set(op::W, SCRATCH, scratch::MATCHES, 0);
        self.get(op::W, Reg::R1, SCRATCH, scratch::FATE);
        self.alu(op::OR, Reg::R1, FATE_TAKEN);
        self.set(op::W, SCRATCH, scratch::FATE, Reg::R1);
        self.get(op::W, Reg::R4, SCRATCH, scratch::TAKER + 4);
        self.get(op::W, Reg::R5, SCRATCH, scratch::TAKER);
        self.target(to);
    }

    /// Whom the entry of unit r5 delivers to, as many bytes as r4 says: on to
    /// the port, with its slot in scratch memory, or to the next.
    fn target(&mut self, to: Continuations) {
        self.entry(Reg::R5, Reg::R1, to.next);
        self.get(op::W, CALLEE_SAVED, Reg::R5, in_entry(entry::SLOT));
        self.get(op::W, Reg::R1, Reg::R5, in_entry(entry::TAG_SNAP));
        self.set(op::W, SCRATCH, field(at::TAG), Reg::R1);
        self.set(op::W, SCRATCH, scratch::CAPTURED, Reg::R4);
        self.member(to.next);
        self.set(op::W, SCRATCH, scratch::PORT_SLOT, CALLEE_SAVED);
        let (kernel, drop) = (SLOT_KERNEL as i32, SLOT_DROP as i32);
        let jump = Insn::jump32(op::JLT, CALLEE_SAVED, kernel);
        self.asm.jump(jump, to.port);
        self.asm
            .jump(Insn::jump32(op::JEQ, CALLEE_SAVED, drop), to.next);
        self.get(op::W, Reg::R3, SCRATCH, scratch::FATE);
        self.alu(op::OR, Reg::R3, FATE_KERNEL);
        self.set(op::W, SCRATCH, scratch::FATE, Reg::R3);
        self.asm.goto(to.next);
    }

    /// In place of a fan-out's slot in r9, that of the port which has the bucket of
    /// the frame's flow, and its tag in the record.
    fn member(&mut self, none: Label) {
        if !self.plan.fans_out() {
            return;
        }
        let single = self.asm.label();
        self.unless_fanout(CALLEE_SAVED, single);
        self.bucket(CALLEE_SAVED, none);
        self.get(op::W, CALLEE_SAVED, Reg::R1, 0);
        self.get(op::W, Reg::R2, Reg::R1, 4);
        self.set(op::W, SCRATCH, field(at::TAG), Reg::R2);
        let is_none = Insn::jump32(op::JEQ, CALLEE_SAVED, fanout::NO_SLOT as i32);
        self.asm.jump(is_none, none);
        self.asm.bind(single);
    }

    /// The port's settings: its snap length, clock and wake-ups. A frame for which they require
    /// nothing is written at once.
    fn settings(&mut self, to: Continuations) {
        let [full, none_lost, stamped] = [(); 3].map(|()| self.asm.label());
        self.map(Reg::R1, MapRole::Ports);
        self.slot_key();
        self.push(Insn::call(helper::MAP_LOOKUP_ELEM));
        self.branch(op::JEQ, Reg::R0, 0, to.next);
        self.get(op::DW, Reg::R2, Reg::R0, port::SNAP);
        self.branch(op::JNE, Reg::R2, 0, full);
        self.get(op::DW, Reg::R2, Reg::R0, port::LOST);
        self.branch(op::JNE, Reg::R2, 0, full);
        self.get(op::W, Reg::R1, SCRATCH, scratch::CAPTURED);
        self.get(op::W, Reg::R2, SCRATCH, scratch::LEN);
        self.branch(op::JGT, Reg::R2, Reg::R1, full);
        self.branch(op::JGT, Reg::R2, SHORT_FRAME_MAX as i32, full);
        self.write_short(full, to);

        self.asm.bind(full);
        self.get(op::W, Reg::R1, SCRATCH, scratch::CAPTURED);
        self.get(op::W, Reg::R2, Reg::R0, port::SNAP);
        self.push(Insn::alu32(op::XOR, Reg::R2, -1));
        self.lesser(Reg::R1, Reg::R2);
        self.get(op::W, Reg::R2, SCRATCH, scratch::LEN);
        // The top bit of the difference: whether bytes are missing.
        self.mov(Reg::R3, Reg::R1);
        self.alu(op::SUB, Reg::R3, Reg::R2);
        self.alu(op::RSH, Reg::R3, 63);
        self.alu(op::LSH, Reg::R3, FLAG_CUT.ilog2() as i32);
        self.lesser(Reg::R1, Reg::R2);
        self.set(op::W, SCRATCH, field(at::CAPTURED), Reg::R1);
        self.get(op::W, Reg::R2, SCRATCH, scratch::FLAGS);
        self.alu(op::OR, Reg::R2, Reg::R3);
        self.set(op::W, SCRATCH, field(at::FLAGS), Reg::R2);
        self.get(op::W, Reg::R4, Reg::R0, port::FLAGS);
        self.mov(Reg::R2, Reg::R4);
        self.alu(op::RSH, Reg::R2, 8);
        self.set(op::W, SCRATCH, scratch::WAKE, Reg::R2);
        self.set(op::W, SCRATCH, field(at::LOST), 0);
        self.set(op::DW, SCRATCH, field(at::TIMESTAMP), 0);
        // Mostly none: no need to write the port's line then.
        self.get(op::DW, Reg::R1, Reg::R0, port::LOST);
        self.branch(op::JEQ, Reg::R1, 0, none_lost);
        self.mov(Reg::R1, 0);
        self.push(atomic(
            op::DW,
            Reg::R0,
            port::LOST,
            Reg::R1,
            ATOMIC_EXCHANGE,
        ));
        self.set(op::W, SCRATCH, field(at::LOST), Reg::R1);
        self.asm.bind(none_lost);
        self.mov(Reg::R1, Reg::R4);
        self.alu(op::AND, Reg::R1, 0xff);
        self.branch(op::JEQ, Reg::R1, 0, stamped);
        self.stamp();
        self.asm.bind(stamped);
    }

    /// `reg` = the lesser of two numbers of 32 bits, without a jump, at which
    /// the verifier would follow both ways; r5 is lost.
    fn lesser(&mut self, reg: Reg, other: Reg) {
        self.mov(Reg::R5, reg);
        self.alu(op::SUB, Reg::R5, other);
        self.mov(reg, Reg::R5);
        self.alu(op::ARSH, reg, 63);
        self.alu(op::AND, reg, Reg::R5);
        self.add(reg, other);
    }

    fn stamp(&mut self) {
        let [boot, tai, read] = [(); 3].map(|()| self.asm.label());
        self.branch(op::JEQ, Reg::R1, 2, boot);
        self.branch(op::JEQ, Reg::R1, 3, tai);
        self.push(Insn::call(helper::KTIME_GET_NS));
        self.asm.goto(read);
        self.asm.bind(boot);
        self.push(Insn::call(KTIME_GET_BOOT_NS));
        self.asm.goto(read);
        self.asm.bind(tai);
        self.push(Insn::call(KTIME_GET_TAI_NS));
        self.asm.bind(read);
        self.set(op::DW, SCRATCH, field(at::TIMESTAMP), Reg::R0);
    }

    /// r2 = the address of the slot.
    pub(super) fn slot_key(&mut self) {
        self.mov(Reg::R2, SCRATCH);
        self.add(Reg::R2, i32::from(scratch::PORT_SLOT));
    }

    /// r1 = the port's ring.
    fn find_ring(&mut self, lost: Label) {
        self.map(Reg::R1, MapRole::Rings);
        self.slot_key();
        self.push(Insn::call(helper::MAP_LOOKUP_ELEM));
        self.branch(op::JEQ, Reg::R0, 0, lost);
        self.mov(Reg::R1, Reg::R0);
    }

    /// Likewise; r9 = the bytes that are to go there.
    fn ring(&mut self, lost: Label) {
        self.find_ring(lost);
        self.get(op::W, CALLEE_SAVED, SCRATCH, field(at::CAPTURED));
        self.branch(
            op::JGT,
            CALLEE_SAVED,
            super::limits::CAPTURED_MAX as i32,
            lost,
        );
    }

    /// Writes a record with the short header, to the port whose settings are
    /// at r0; goes on at `full`, with nothing lost but r1 to r5, if that does
    /// not hold what is to be said.
    fn write_short(&mut self, full: Label, to: Continuations) {
        let lost = self.asm.label();
        self.get(op::W, CALLEE_SAVED, SCRATCH, field(at::QUEUE));
        self.branch(op::JGT, CALLEE_SAVED, i32::from(u16::MAX), full);
        self.get(op::W, Reg::R1, SCRATCH, scratch::FLAGS);
        if self.is_tc() {
            let gso = FLAG_GSO as i32;
            self.branch(op::JSET, Reg::R1, gso, full);
        }
        self.alu(op::LSH, CALLEE_SAVED, QUEUE_SHIFT as i32);
        self.alu(op::OR, CALLEE_SAVED, Reg::R1);
        self.alu(op::OR, CALLEE_SAVED, FLAG_SHORT as i32);
        self.set(op::W, SCRATCH, scratch::SHORT_FLAGS, CALLEE_SAVED);
        self.find_ring(lost);
        let header = SHORT_HEADER_BYTES as i16;
        self.mov(Reg::R2, i32::from(header) + SHORT_FRAME_MAX as i32);
        self.mov(Reg::R3, 0);
        self.push(Insn::call(helper::RINGBUF_RESERVE));
        self.branch(op::JEQ, Reg::R0, 0, lost);
        for (of, from) in [
            (at::WIRE_LEN, scratch::LEN),
            (at::SHORT_IFINDEX, field(at::IFINDEX)),
            (at::TAG, field(at::TAG)),
            (at::FLAGS, scratch::SHORT_FLAGS),
        ] {
            self.get(op::W, Reg::R1, SCRATCH, from);
            self.set(op::W, Reg::R0, of, Reg::R1);
        }
        for word in 0..SHORT_FRAME_MAX as i16 / 8 {
            self.get(op::DW, Reg::R1, SCRATCH, scratch::HEAD + word * 8);
            self.set(op::DW, Reg::R0, header + word * 8, Reg::R1);
        }
        self.mov(Reg::R1, Reg::R0);
        self.mov(Reg::R2, 0);
        self.push(Insn::call(helper::RINGBUF_SUBMIT));
        self.asm.goto(to.counted);
        self.asm.bind(lost);
        self.set(op::W, SCRATCH, field(at::LOST), 0);
        self.asm.goto(to.lost);
    }

    /// Writes the record: header and `CAPTURED` bytes (r9).
    fn write(&mut self, lost: Label, counted: Label) {
        let classes = CLASSES.map(|class| (class, self.asm.label()));
        for (class, label) in classes {
            self.branch(op::JLE, CALLEE_SAVED, class, label);
        }
        self.write_chunks(lost, counted);
        for (class, label) in classes {
            self.asm.bind(label);
            self.write_class(class, lost, counted);
        }
    }

    /// As one piece, in room for `class` bytes.
    fn write_class(&mut self, class: i32, lost: Label, counted: Label) {
        let discard = self.asm.label();
        let header = HEADER_BYTES as i16;
        self.mov(Reg::R2, i32::from(header) + class);
        self.mov(Reg::R3, 0);
        self.push(Insn::call(helper::RINGBUF_RESERVE));
        self.branch(op::JEQ, Reg::R0, 0, lost);
        self.mov(CALLEE_SAVED, Reg::R0);
        for word in 0..header / 8 {
            self.get(op::DW, Reg::R1, SCRATCH, scratch::RECORD + word * 8);
            self.set(op::DW, CALLEE_SAVED, word * 8, Reg::R1);
        }
        let from_head = if class == CLASSES[0] {
            class
        } else {
            FROM_HEAD
        };
        for word in 0..from_head as i16 / 8 {
            self.get(op::DW, Reg::R1, SCRATCH, scratch::HEAD + word * 8);
            self.set(op::DW, CALLEE_SAVED, header + word * 8, Reg::R1);
        }
        if from_head < class {
            self.mov(Reg::R3, CALLEE_SAVED);
            self.add(Reg::R3, i32::from(header) + FROM_HEAD);
            // Anew, with its bounds: on the stack they would keep paths apart
            // that are the same to what follows.
            self.get(op::W, Reg::R4, SCRATCH, field(at::CAPTURED));
            self.branch(op::JGT, Reg::R4, class, discard);
            self.branch(op::JLE, Reg::R4, FROM_HEAD, discard);
            self.alu(op::SUB, Reg::R4, FROM_HEAD);
            self.load_from_head(FROM_HEAD);
            self.branch(op::JNE, Reg::R0, 0, discard);
        }
        self.mov(Reg::R1, CALLEE_SAVED);
        self.get(op::W, Reg::R2, SCRATCH, scratch::WAKE);
        self.push(Insn::call(helper::RINGBUF_SUBMIT));
        self.asm.goto(counted);
        self.asm.bind(discard);
        self.mov(Reg::R1, CALLEE_SAVED);
        self.mov(Reg::R2, 0);
        self.push(Insn::call(helper::RINGBUF_DISCARD));
        self.asm.goto(lost);
    }

    /// Loads r4 bytes of the frame, from byte `from` on, to r3.
    fn load_from_head(&mut self, from: i32) {
        self.mov(Reg::R2, from);
        self.shift();
        self.mov(Reg::R1, CONTEXT);
        self.push(Insn::call(self.load_helper()));
    }

    /// r2 = where byte r2 of the frame stands in the skb.
    fn shift(&mut self) {
        if self.is_tc() {
            self.get(op::W, Reg::R1, SCRATCH, scratch::SHIFT);
            self.alu(op::SUB, Reg::R2, Reg::R1);
        }
    }

    /// In chunks: each is reached through a slice of its own.
    fn write_chunks(&mut self, lost: Label, counted: Label) {
        let [discard, each, some, whole, behind, done] = [(); 6].map(|()| self.asm.label());
        let header = HEADER_BYTES as i32;
        let dynptr = |coder: &mut Self, reg| {
            coder.mov(reg, Reg::FP);
            coder.add(reg, i32::from(DYNPTR));
        };
        self.mov(Reg::R2, CALLEE_SAVED);
        self.add(Reg::R2, CHUNK - 1);
        self.alu(op::AND, Reg::R2, -CHUNK);
        self.add(Reg::R2, header);
        self.mov(Reg::R3, 0);
        dynptr(self, Reg::R4);
        self.push(Insn::call(RINGBUF_RESERVE_DYNPTR));
        self.branch(op::JNE, Reg::R0, 0, discard);
        dynptr(self, Reg::R1);
        self.mov(Reg::R2, 0);
        self.mov(Reg::R3, SCRATCH);
        self.add(Reg::R3, i32::from(scratch::RECORD));
        self.mov(Reg::R4, header);
        self.mov(Reg::R5, 0);
        self.push(Insn::call(DYNPTR_WRITE));
        self.set(op::W, SCRATCH, scratch::CHUNK, 0);

        self.asm.bind(each);
        self.round(discard);
        self.get(op::W, CALLEE_SAVED, SCRATCH, scratch::CHUNK);
        self.get(op::W, Reg::R1, SCRATCH, field(at::CAPTURED));
        self.branch(op::JGE, CALLEE_SAVED, Reg::R1, done);
        self.mov(Reg::R2, CALLEE_SAVED);
        self.add(Reg::R2, CHUNK);
        self.set(op::W, SCRATCH, scratch::CHUNK, Reg::R2);
        dynptr(self, Reg::R1);
        self.mov(Reg::R2, CALLEE_SAVED);
        self.add(Reg::R2, header);
        self.mov(Reg::R3, CHUNK);
        self.push(Insn::call(DYNPTR_DATA));
        self.branch(op::JEQ, Reg::R0, 0, discard);
        self.mov(Reg::R3, Reg::R0);
        self.mov(Reg::R2, CALLEE_SAVED);
        self.branch(op::JNE, CALLEE_SAVED, 0, some);
        // The first begins with the copy, which has the tag.
        for word in 0..FROM_HEAD as i16 / 8 {
            self.get(op::DW, Reg::R1, SCRATCH, scratch::HEAD + word * 8);
            self.set(op::DW, Reg::R3, word * 8, Reg::R1);
        }
        self.add(Reg::R3, FROM_HEAD);
        self.mov(Reg::R4, CHUNK - FROM_HEAD);
        self.mov(Reg::R2, FROM_HEAD);
        self.asm.goto(behind);
        self.asm.bind(some);
        self.get(op::W, Reg::R4, SCRATCH, field(at::CAPTURED));
        self.alu(op::SUB, Reg::R4, CALLEE_SAVED);
        self.branch(op::JLE, Reg::R4, CHUNK, whole);
        self.mov(Reg::R4, CHUNK);
        self.asm.bind(whole);
        self.branch(op::JEQ, Reg::R4, 0, discard);
        self.asm.bind(behind);
        self.shift();
        self.mov(Reg::R1, CONTEXT);
        self.push(Insn::call(self.load_helper()));
        self.branch(op::JNE, Reg::R0, 0, discard);
        self.asm.goto(each);

        self.asm.bind(done);
        dynptr(self, Reg::R1);
        self.get(op::W, Reg::R2, SCRATCH, scratch::WAKE);
        self.push(Insn::call(RINGBUF_SUBMIT_DYNPTR));
        self.asm.goto(counted);
        self.asm.bind(discard);
        dynptr(self, Reg::R1);
        self.mov(Reg::R2, 0);
        self.push(Insn::call(RINGBUF_DISCARD_DYNPTR));
        self.asm.goto(lost);
    }

    fn count_delivered(&mut self) {
        let none = self.asm.label();
        self.map(Reg::R1, MapRole::Counters);
        self.slot_key();
        self.push(Insn::call(helper::MAP_LOOKUP_ELEM));
        self.branch(op::JEQ, Reg::R0, 0, none);
        self.get(op::DW, Reg::R1, Reg::R0, counter::DELIVERED);
        self.add(Reg::R1, 1);
        self.set(op::DW, Reg::R0, counter::DELIVERED, Reg::R1);
        self.get(op::DW, Reg::R1, Reg::R0, counter::BYTES);
        self.get(op::W, Reg::R2, SCRATCH, scratch::LEN);
        self.add(Reg::R1, Reg::R2);
        self.set(op::DW, Reg::R0, counter::BYTES, Reg::R1);
        self.asm.bind(none);
    }

    /// Counts a frame as lost, and returns what its record would have held
    /// of losses before.
    fn lose(&mut self) {
        let none = self.asm.label();
        self.get(op::W, Reg::R1, SCRATCH, field(at::LOST));
        self.branch(op::JEQ, Reg::R1, 0, none);
        self.map(Reg::R1, MapRole::Ports);
        self.slot_key();
        self.push(Insn::call(helper::MAP_LOOKUP_ELEM));
        self.branch(op::JEQ, Reg::R0, 0, none);
        self.get(op::W, Reg::R1, SCRATCH, field(at::LOST));
        self.push(atomic(
            op::DW,
            Reg::R0,
            port::LOST,
            Reg::R1,
            super::resolve::ATOMIC_ADD,
        ));
        self.asm.bind(none);
        self.count_lost(1);
    }
}
