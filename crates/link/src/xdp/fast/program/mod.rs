//! The part of a link's program that forwards by itself: a routine that finds
//! a frame's entry and does what it says.
//!
//! ```text
//!  flow? ─► addresses? ─► stations? ──► checks ─► slot ─► rewrite ─► redirect, count
//!    │          │             │           │        │
//!    └──────────┴─────────────┴───────────┴────────┴─► 0: to the application
//! ```

use super::key::{FastKind, LONG, SHORT, value};
use super::{Spec, slot};
use crate::xdp::program::ATOMIC;
use crate::xdp::state::at;
use weir_filter::backend::ebpf::{Asm, Insn, Label, Reg, helper, op};

/// `bpf_get_smp_processor_id()`. Linux 4.1.
const PROCESSOR_ID: i32 = 8;
/// `bpf_xdp_adjust_tail(xdp, delta)`. Linux 4.18.
const XDP_ADJUST_TAIL: i32 = 65;

const XDP_DROP: i32 = 1;
const XDP_REDIRECT: i32 = 4;

/// In `struct xdp_md`.
const DATA: i16 = 0;
const DATA_END: i16 = 4;

const CTX: Reg = Reg::R6;
const FRAME: Reg = Reg::R7;
const END: Reg = Reg::R8;
const ENTRY: Reg = Reg::R9;

/// On the stack.
const NOW: i16 = -8;
/// Bytes to send.
const SEND: i16 = -16;
/// Bytes of the frame.
const LEN: i16 = -24;
const NUMBER: i16 = -32;
const KEY: i16 = -32 - LONG as i16;

/// Offsets in a frame.
const TYPE: i16 = 12;
const IP: i16 = 14;

/// Places of the maps, in the program of a link.
pub(in crate::xdp) mod place {
    pub(crate) const SHORT: u16 = 3;
    pub(crate) const LONG: u16 = 4;
    pub(crate) const SLOTS: u16 = 5;
    pub(crate) const COUNTS: u16 = 6;
    pub(crate) const OUTS: u16 = 7;
}

/// Adds the routine: r1 the frame, r2 the time; gives what becomes of the
/// frame, or 0 if that is for the application to say. `state` is the place of
/// the shared page.
pub(in crate::xdp) fn routine(asm: &mut Asm, link: u32, spec: &Spec, state: u16) {
    let [up, hit] = [(); 2].map(|()| asm.label());
    let mut emit = Emit {
        asm,
        link,
        up,
        completes: spec.completes,
    };
    emit.push(&[
        Insn::mov64(CTX, Reg::R1),
        Insn::store(op::DW, Reg::FP, NOW, Reg::R2),
    ]);
    emit.find_frame();
    emit.within(IP, up);
    for kind in [FastKind::Flow, FastKind::Addresses, FastKind::Stations] {
        if spec.kinds.contains(&kind) {
            emit.look_for(kind, hit);
        }
    }
    emit.asm.goto(up);
    emit.asm.bind(hit);
    emit.check();
    emit.claim(state);
    emit.change();
    emit.send(spec.slots_log2);
    emit.asm.bind(up);
    emit.push(&[Insn::mov64(Reg::R0, 0), Insn::exit()]);
}

struct Emit<'a> {
    asm: &'a mut Asm,
    link: u32,
    up: Label,
    completes: bool,
}

/// A number in network order, as it is loaded.
fn wire(number: u16) -> i32 {
    number.to_be().into()
}

impl Emit<'_> {
    fn push(&mut self, insns: &[Insn]) {
        insns.iter().for_each(|insn| self.asm.push(*insn));
    }

    fn find_frame(&mut self) {
        self.push(&[
            Insn::load(op::W, FRAME, CTX, DATA),
            Insn::load(op::W, END, CTX, DATA_END),
        ]);
    }

    /// Goes to `label` unless the first piece has so many bytes.
    fn within(&mut self, bytes: i16, label: Label) {
        self.push(&[
            Insn::mov64(Reg::R1, FRAME),
            Insn::alu64(op::ADD, Reg::R1, i32::from(bytes)),
        ]);
        self.asm.jump(Insn::jump64(op::JGT, Reg::R1, END), label);
    }

    fn load(&mut self, size: u8, to: Reg, at: i16) {
        self.asm.push(Insn::load(size, to, FRAME, at));
    }

    fn up_if(&mut self, condition: u8, register: Reg, than: i32) {
        let up = self.up;
        self.asm.jump(Insn::jump64(condition, register, than), up);
    }

    /// Copies bytes of the frame into the key, four or two at a time.
    fn copy(&mut self, from: i16, to: i16, bytes: i16) {
        let mut done = 0;
        while done < bytes {
            let (size, step) = if bytes - done >= 4 {
                (op::W, 4)
            } else {
                (op::H, 2)
            };
            self.load(size, Reg::R1, from + done);
            let store = Insn::store(size, Reg::FP, KEY + to + done, Reg::R1);
            self.asm.push(store);
            done += step;
        }
    }

    /// The key's last or seventh bytes: link and kind.
    fn mark(&mut self, to: i16, kind: FastKind) {
        let mark = u16::from_ne_bytes([self.link as u8, kind.number()]);
        let store = Insn::store(op::H, Reg::FP, KEY + to, i32::from(mark));
        self.asm.push(store);
    }

    fn look_up(&mut self, place: u16, key: i16) {
        self.push(&Insn::load_map(Reg::R1, place));
        self.push(&[
            Insn::mov64(Reg::R2, Reg::FP),
            Insn::alu64(op::ADD, Reg::R2, i32::from(key)),
            Insn::call(helper::MAP_LOOKUP_ELEM),
        ]);
    }

    /// Goes to `hit` with r0 the entry of the frame's key of that kind, or on.
    fn look_for(&mut self, kind: FastKind, hit: Label) {
        let [v6, next] = [(); 2].map(|()| self.asm.label());
        let [short, long] = [place::SHORT, place::LONG];
        match kind {
            FastKind::Stations => {
                self.stations();
                self.found(short, hit);
            }
            FastKind::Addresses => {
                self.load(op::H, Reg::R1, TYPE);
                self.asm
                    .jump(Insn::jump64(op::JEQ, Reg::R1, wire(0x86dd)), v6);
                self.is_v4(next);
                self.copy(0, 0, 6);
                self.mark(6, kind);
                self.copy(IP + 12, 8, 8);
                self.found(short, hit);
                self.asm.goto(next);
                self.asm.bind(v6);
                self.is_v6(next);
                self.copy(0, 0, 6);
                self.mark(6, kind);
                self.copy(IP + 8, 8, 32);
                self.found(long, hit);
            }
            FastKind::Flow => {
                self.load(op::H, Reg::R1, TYPE);
                self.asm
                    .jump(Insn::jump64(op::JEQ, Reg::R1, wire(0x86dd)), v6);
                self.is_v4(next);
                self.load(op::H, Reg::R1, IP + 6);
                self.push(&[Insn::alu64(op::AND, Reg::R1, wire(0x3fff))]);
                self.asm.jump(Insn::jump64(op::JNE, Reg::R1, 0), next);
                self.ports(IP + 9, IP + 20, 8, SHORT as i16, next);
                self.copy(IP + 12, 0, 8);
                self.found(short, hit);
                self.asm.goto(next);
                self.asm.bind(v6);
                self.is_v6(next);
                self.ports(IP + 6, IP + 40, 32, LONG as i16, next);
                self.copy(IP + 8, 0, 32);
                self.found(long, hit);
            }
        }
        self.asm.bind(next);
    }

    fn found(&mut self, place: u16, hit: Label) {
        self.look_up(place, KEY);
        self.asm.jump(Insn::jump64(op::JNE, Reg::R0, 0), hit);
    }

    fn stations(&mut self) {
        let untagged = self.asm.label();
        self.copy(0, 0, 12);
        self.push(&[Insn::mov64(Reg::R2, 0)]);
        self.load(op::H, Reg::R1, TYPE);
        self.asm
            .jump(Insn::jump64(op::JNE, Reg::R1, wire(0x8100)), untagged);
        self.within(IP + 2, untagged);
        self.load(op::H, Reg::R2, IP);
        self.push(&[Insn::alu64(op::AND, Reg::R2, wire(0x0fff))]);
        self.asm.bind(untagged);
        self.push(&[Insn::store(op::H, Reg::FP, KEY + 12, Reg::R2)]);
        self.mark(14, FastKind::Stations);
    }

    /// r1 has the frame's type.
    fn is_v4(&mut self, other: Label) {
        self.asm
            .jump(Insn::jump64(op::JNE, Reg::R1, wire(0x0800)), other);
        self.within(IP + 20, other);
        self.load(op::B, Reg::R1, IP);
        self.asm.jump(Insn::jump64(op::JNE, Reg::R1, 0x45), other);
    }

    fn is_v6(&mut self, other: Label) {
        self.within(IP + 40, other);
        self.load(op::B, Reg::R1, IP);
        self.push(&[Insn::alu64(op::AND, Reg::R1, 0xf0)]);
        self.asm.jump(Insn::jump64(op::JNE, Reg::R1, 0x60), other);
    }

    /// Ports and protocol into the key, of TCP and UDP.
    fn ports(&mut self, protocol: i16, ports: i16, to: i16, key_bytes: i16, other: Label) {
        let known = self.asm.label();
        self.load(op::B, Reg::R2, protocol);
        self.asm.jump(Insn::jump64(op::JEQ, Reg::R2, 6), known);
        self.asm.jump(Insn::jump64(op::JNE, Reg::R2, 17), other);
        self.asm.bind(known);
        self.within(ports + 4, other);
        self.copy(ports, to, 4);
        self.push(&[
            Insn::store(op::B, Reg::FP, KEY + to + 4, Reg::R2),
            Insn::store(op::B, Reg::FP, KEY + to + 5, 0),
        ]);
        self.mark(key_bytes - 2, FastKind::Flow);
    }

    /// Whether the frame is one that can go on without the application; r0 is
    /// its entry.
    fn check(&mut self) {
        let [checked, routed] = [(); 2].map(|()| self.asm.label());
        self.push(&[
            Insn::mov64(ENTRY, Reg::R0),
            Insn::mov64(Reg::R1, CTX),
            Insn::call(helper::XDP_GET_BUFF_LEN),
            Insn::store(op::DW, Reg::FP, LEN, Reg::R0),
            Insn::store(op::DW, Reg::FP, SEND, Reg::R0),
            Insn::load(op::W, Reg::R1, ENTRY, value::HOW),
        ]);
        self.asm
            .jump(Insn::jump64(op::JEQ, Reg::R1, value::DROP), checked);
        if self.completes {
            self.checksum_is_whole();
            self.push(&[Insn::load(op::W, Reg::R1, ENTRY, value::HOW)]);
        }
        self.asm
            .jump(Insn::jump64(op::JNE, Reg::R1, value::ROUTE), checked);
        let v6 = self.asm.label();
        let up = self.up;
        self.load(op::H, Reg::R1, TYPE);
        self.asm
            .jump(Insn::jump64(op::JEQ, Reg::R1, wire(0x86dd)), v6);
        self.is_v4(up);
        self.header_v4();
        self.asm.goto(routed);
        self.asm.bind(v6);
        self.is_v6(up);
        self.header_v6();
        self.asm.bind(routed);
        // r1 is the packet's length.
        let [mtu, len] = [Reg::R2, Reg::R3];
        self.push(&[
            Insn::load(op::W, mtu, ENTRY, value::MTU),
            Insn::load(op::DW, len, Reg::FP, LEN),
        ]);
        self.asm.jump(Insn::jump64(op::JGT, Reg::R1, mtu), up);
        self.push(&[Insn::alu64(op::ADD, Reg::R1, i32::from(IP))]);
        self.asm.jump(Insn::jump64(op::JGT, Reg::R1, len), up);
        self.push(&[Insn::store(op::DW, Reg::FP, SEND, Reg::R1)]);
        self.asm.bind(checked);
    }

    /// Length into r1, TTL, checksum (RFC 1812 §5.2.2).
    fn header_v4(&mut self) {
        self.load(op::B, Reg::R1, IP + 8);
        self.up_if(op::JLE, Reg::R1, 1);
        self.load(op::W, Reg::R3, IP);
        for at in [4, 8, 12, 16] {
            self.load(op::W, Reg::R1, IP + at);
            self.push(&[Insn::alu64(op::ADD, Reg::R3, Reg::R1)]);
        }
        self.fold(Reg::R3);
        self.up_if(op::JNE, Reg::R3, 0xffff);
        self.load(op::H, Reg::R1, IP + 2);
        self.push(&[Insn::to_be(Reg::R1, 16)]);
        self.up_if(op::JLT, Reg::R1, 20);
    }

    fn header_v6(&mut self) {
        let short = self.asm.label();
        self.load(op::B, Reg::R1, IP + 7);
        self.up_if(op::JLE, Reg::R1, 1);
        self.load(op::H, Reg::R1, IP + 4);
        self.asm.jump(Insn::jump64(op::JNE, Reg::R1, 0), short);
        // A jumbogram (RFC 2675).
        self.load(op::B, Reg::R2, IP + 6);
        self.up_if(op::JEQ, Reg::R2, 0);
        self.asm.bind(short);
        self.push(&[Insn::to_be(Reg::R1, 16), Insn::alu64(op::ADD, Reg::R1, 40)]);
    }

    /// Folds a sum of less than 48 bits into 16, none of its ones lost.
    fn fold(&mut self, sum: Reg) {
        for _ in 0..3 {
            self.push(&[
                Insn::mov64(Reg::R1, sum),
                Insn::alu64(op::RSH, Reg::R1, 16),
                Insn::alu64(op::AND, sum, 0xffff),
                Insn::alu64(op::ADD, sum, Reg::R1),
            ]);
        }
    }

    /// A checksum that was left to the device is completed by the tap.
    fn checksum_is_whole(&mut self) {
        let [v6, compare, whole] = [(); 3].map(|()| self.asm.label());
        let up = self.up;
        self.load(op::H, Reg::R1, TYPE);
        for tag in [0x8100, 0x88a8] {
            self.up_if(op::JEQ, Reg::R1, wire(tag));
        }
        self.asm
            .jump(Insn::jump64(op::JEQ, Reg::R1, wire(0x86dd)), v6);
        self.asm
            .jump(Insn::jump64(op::JNE, Reg::R1, wire(0x0800)), whole);
        self.is_v4(up);
        self.load(op::H, Reg::R1, IP + 6);
        self.push(&[Insn::alu64(op::AND, Reg::R1, wire(0x3fff))]);
        self.asm.jump(Insn::jump64(op::JNE, Reg::R1, 0), whole);
        self.load(op::H, Reg::R3, IP + 2);
        self.push(&[
            Insn::to_be(Reg::R3, 16),
            Insn::alu64(op::SUB, Reg::R3, 20),
            Insn::to_be(Reg::R3, 16),
        ]);
        self.pseudo_sum(IP + 12, 2);
        self.load(op::B, Reg::R2, IP + 9);
        self.checksum_field(IP + 20, compare, whole);
        self.asm.bind(v6);
        self.is_v6(up);
        self.load(op::H, Reg::R3, IP + 4);
        self.pseudo_sum(IP + 8, 8);
        self.load(op::B, Reg::R2, IP + 6);
        self.checksum_field(IP + 40, compare, whole);
        self.asm.bind(compare);
        self.push(&[
            Insn::to_be(Reg::R2, 16),
            Insn::alu64(op::ADD, Reg::R3, Reg::R2),
        ]);
        self.fold(Reg::R3);
        self.asm.jump(Insn::jump64(op::JEQ, Reg::R3, Reg::R4), up);
        self.asm.bind(whole);
    }

    fn pseudo_sum(&mut self, addresses: i16, words: i16) {
        for word in 0..words {
            self.load(op::W, Reg::R1, addresses + 4 * word);
            self.push(&[Insn::alu64(op::ADD, Reg::R3, Reg::R1)]);
        }
    }

    /// r4 is the field of TCP or UDP, the protocol in r2.
    fn checksum_field(&mut self, at: i16, compare: Label, none: Label) {
        let up = self.up;
        for (protocol, field) in [(6, 16), (17, 6)] {
            let other = self.asm.label();
            self.asm
                .jump(Insn::jump64(op::JNE, Reg::R2, protocol), other);
            self.within(at + field + 2, up);
            self.load(op::H, Reg::R4, at + field);
            self.asm.goto(compare);
            self.asm.bind(other);
        }
        self.asm.goto(none);
    }

    /// Whether the entry holds still, and no frame that the application has
    /// would be overtaken.
    fn claim(&mut self, state: u16) {
        let [begun, waits] = [(); 2].map(|()| self.asm.label());
        let up = self.up;
        self.push(&[
            Insn::load(op::W, Reg::R1, ENTRY, value::SLOT),
            Insn::store(op::W, Reg::FP, NUMBER, Reg::R1),
        ]);
        self.look_up(place::SLOTS, NUMBER);
        self.up_if(op::JEQ, Reg::R0, 0);
        self.push(&[
            Insn::load(op::DW, Reg::R1, Reg::R0, slot::UNTIL),
            Insn::load(op::DW, Reg::R2, Reg::FP, NOW),
        ]);
        self.asm.jump(Insn::jump64(op::JGE, Reg::R2, Reg::R1), up);
        self.push(&[Insn::load(op::DW, Reg::R1, Reg::R0, slot::AFTER)]);
        self.asm
            .jump(Insn::jump64(op::JEQ, Reg::R1, slot::BEGUN_IMM), begun);
        self.push(&Insn::load_map_value(Reg::R2, state, 0));
        self.asm
            .jump(Insn::jump64(op::JNE, Reg::R1, slot::HELD_IMM), waits);
        self.push(&[
            Insn::mov64(Reg::R1, 1),
            Insn {
                code: op::STX | ATOMIC | op::DW,
                ..Insn::store(op::DW, Reg::R2, at::HELD as i16, Reg::R1)
            },
            Insn::mov64(Reg::R0, XDP_DROP),
            Insn::exit(),
        ]);
        self.asm.bind(waits);
        let handed = at::handed(self.link) as i16;
        self.push(&[Insn::load(op::DW, Reg::R2, Reg::R2, handed)]);
        self.asm.jump(Insn::jump64(op::JNE, Reg::R1, Reg::R2), up);
        self.push(&[Insn::store(op::DW, Reg::R0, slot::AFTER, slot::BEGUN_IMM)]);
        self.asm.bind(begun);
    }

    /// Without padding, to the next station, a hop less.
    fn change(&mut self) {
        let [whole, done, v6] = [(); 3].map(|()| self.asm.label());
        self.push(&[
            Insn::load(op::DW, Reg::R2, Reg::FP, SEND),
            Insn::load(op::DW, Reg::R1, Reg::FP, LEN),
        ]);
        self.asm
            .jump(Insn::jump64(op::JEQ, Reg::R1, Reg::R2), whole);
        self.push(&[
            Insn::alu64(op::SUB, Reg::R2, Reg::R1),
            Insn::mov64(Reg::R1, CTX),
            Insn::call(XDP_ADJUST_TAIL),
        ]);
        self.up_if(op::JNE, Reg::R0, 0);
        self.find_frame();
        self.asm.bind(whole);
        self.push(&[Insn::load(op::W, Reg::R1, ENTRY, value::HOW)]);
        self.asm
            .jump(Insn::jump64(op::JNE, Reg::R1, value::ROUTE), done);
        let up = self.up;
        self.within(IP + 20, up);
        for word in 0..3 {
            let at = value::MACS + 4 * word;
            self.push(&[
                Insn::load(op::W, Reg::R1, ENTRY, at),
                Insn::store(op::W, FRAME, 4 * word, Reg::R1),
            ]);
        }
        self.load(op::H, Reg::R1, TYPE);
        self.asm
            .jump(Insn::jump64(op::JEQ, Reg::R1, wire(0x86dd)), v6);
        self.hop_less(IP + 8);
        // RFC 1624, equation 3: the TTL is the word's high byte.
        self.load(op::H, Reg::R1, IP + 10);
        self.push(&[
            Insn::to_be(Reg::R1, 16),
            Insn::alu64(op::XOR, Reg::R1, 0xffff),
            Insn::alu64(op::ADD, Reg::R1, 0xfeff),
            Insn::mov64(Reg::R2, Reg::R1),
            Insn::alu64(op::RSH, Reg::R2, 16),
            Insn::alu64(op::AND, Reg::R1, 0xffff),
            Insn::alu64(op::ADD, Reg::R1, Reg::R2),
            Insn::alu64(op::XOR, Reg::R1, 0xffff),
            Insn::to_be(Reg::R1, 16),
            Insn::store(op::H, FRAME, IP + 10, Reg::R1),
        ]);
        self.asm.goto(done);
        self.asm.bind(v6);
        self.hop_less(IP + 7);
        self.asm.bind(done);
    }

    fn hop_less(&mut self, at: i16) {
        self.load(op::B, Reg::R1, at);
        self.push(&[
            Insn::alu64(op::SUB, Reg::R1, 1),
            Insn::store(op::B, FRAME, at, Reg::R1),
        ]);
    }

    /// Sends the frame, or drops it, and counts it in this CPU's cells.
    fn send(&mut self, slots_log2: u32) {
        let [dropped, count, done] = [(); 3].map(|()| self.asm.label());
        const VERDICT: Reg = FRAME;
        self.push(&[Insn::load(op::W, Reg::R1, ENTRY, value::HOW)]);
        self.asm
            .jump(Insn::jump64(op::JEQ, Reg::R1, value::DROP), dropped);
        self.push(&Insn::load_map(Reg::R1, place::OUTS));
        self.push(&[
            Insn::load(op::W, Reg::R2, ENTRY, value::OUT),
            Insn::mov64(Reg::R3, XDP_DROP),
            Insn::call(helper::REDIRECT_MAP),
            Insn::mov64(VERDICT, Reg::R0),
        ]);
        self.asm
            .jump(Insn::jump32(op::JNE, Reg::R0, XDP_REDIRECT), done);
        self.asm.goto(count);
        self.asm.bind(dropped);
        self.push(&[Insn::mov64(VERDICT, XDP_DROP)]);
        self.asm.bind(count);
        self.push(&[
            Insn::call(PROCESSOR_ID),
            Insn::alu64(op::LSH, Reg::R0, slots_log2 as i32),
            Insn::load(op::W, Reg::R1, Reg::FP, NUMBER),
            Insn::alu64(op::ADD, Reg::R0, Reg::R1),
            Insn::store(op::W, Reg::FP, NUMBER, Reg::R0),
        ]);
        self.look_up(place::COUNTS, NUMBER);
        self.asm.jump(Insn::jump64(op::JEQ, Reg::R0, 0), done);
        self.push(&[
            Insn::load(op::DW, Reg::R1, Reg::R0, slot::FRAMES),
            Insn::alu64(op::ADD, Reg::R1, 1),
            Insn::store(op::DW, Reg::R0, slot::FRAMES, Reg::R1),
            Insn::load(op::DW, Reg::R1, Reg::R0, slot::BYTES),
            Insn::load(op::DW, Reg::R2, Reg::FP, SEND),
            Insn::alu64(op::ADD, Reg::R1, Reg::R2),
            Insn::store(op::DW, Reg::R0, slot::BYTES, Reg::R1),
        ]);
        self.asm.bind(done);
        self.push(&[Insn::mov64(Reg::R0, VERDICT), Insn::exit()]);
    }
}
