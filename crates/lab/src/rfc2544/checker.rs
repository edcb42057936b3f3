//! Generates the checker: a program in the kernel that counts lost, reordered,
//! duplicated and damaged frames at full rate.

use super::frame::{DST_PORT, NUMBER_AT, SHORTEST, TAG_AT, TIME_AT};
use crate::load::{Template, compare_fields};
use crate::shared_words::{SHARED, load, store};
use weir_filter::backend::ebpf::{Asm, Insn, Label, Limits, Reg, helper, op};
use weir_link::bpf::Hook;

/// The words that the program and the tester share: eight bytes each, at these
/// offsets of the first map's only value.
pub(super) mod shared {
    /// The tag of the trial's frames, as two bytes in native order.
    pub(in crate::rfc2544) const TAG: usize = 0;
    /// One more than the highest frame number of the trial.
    pub(in crate::rfc2544) const LIMIT: usize = 8;
    /// One more than the highest frame number received so far.
    pub(in crate::rfc2544) const NEXT: usize = 16;
    /// Correct frames, each counted once.
    pub(in crate::rfc2544) const GOOD: usize = 24;
    /// Duplicates of received frames.
    pub(in crate::rfc2544) const DUPLICATED: usize = 32;
    /// Correct frames received after one with a higher number (RFC 4737 §3.3).
    pub(in crate::rfc2544) const REORDERED: usize = 40;
    /// Frames of the trial with wrong bytes.
    pub(in crate::rfc2544) const CORRUPTED: usize = 48;
    /// Frames of no trial or of an earlier one.
    pub(in crate::rfc2544) const OTHER: usize = 56;
    /// Total size in bytes.
    pub(in crate::rfc2544) const BYTES: u32 = 64;
}

/// Indices of the maps: shared words, a bit for each frame number, the latency
/// of each frame number.
pub(super) const SHARED_MAP: u16 = 0;
pub(super) const SEEN_MAP: u16 = 1;
pub(super) const TIMES_MAP: u16 = 2;

const SKB_PULL_DATA: i32 = 39;

/// Offset of the length in `struct __sk_buff`.
const SKB_LEN: i16 = 0;

/// The expected frames.
#[derive(Clone, Debug)]
pub(super) struct Expected {
    /// The frame and its variable fields.
    pub(super) template: Template,
    /// Number of directions in which frames are sent in turn.
    pub(super) directions: u32,
    /// Number of bytes compared, from the first; a multiple of 4.
    pub(super) compared: usize,
    /// Whether frames contain their sending time.
    pub(super) timed: bool,
}

// Fixed uses of registers.
const CONTEXT: Reg = Reg::R6;
const NUMBER: Reg = Reg::R8;
const FRAME: Reg = Reg::R9;

/// Offsets of a frame's start and length in a hook's context.
struct Context {
    data: i16,
    data_end: i16,
    pass: i32,
    drop: i32,
}

const XDP: Context = Context {
    data: 0,
    data_end: 4,
    pass: 2,
    drop: 1,
};
const TC: Context = Context {
    data: 76,
    data_end: 80,
    pass: -1, // the next one, and then the kernel
    drop: 2,
};

/// Labels of the results of a frame.
#[derive(Clone, Copy)]
struct Ends {
    other: Label,
    corrupted: Label,
    drop: Label,
}

/// Generates the program for a hook. It consumes every frame except ARP, which
/// the kernel answers: a router resolves its neighbours.
pub(super) fn program(hook: Hook, expected: &Expected) -> Vec<Insn> {
    let context = if hook.is_xdp() { &XDP } else { &TC };
    let mut asm = Asm::new();
    let ends = Ends {
        other: asm.label(),
        corrupted: asm.label(),
        drop: asm.label(),
    };
    asm.push(Insn::mov64(CONTEXT, Reg::R1));
    asm.extend(Insn::load_map_value(SHARED, SHARED_MAP, 0));
    if !hook.is_xdp() {
        pull(&mut asm, expected.template.frame.len());
    }
    is_of_the_trial(&mut asm, context, ends);
    compare(&mut asm, context, expected, ends.corrupted);
    note(&mut asm, expected.timed, ends);
    for (label, counter) in [
        (ends.other, shared::OTHER),
        (ends.corrupted, shared::CORRUPTED),
    ] {
        asm.bind(label);
        count(&mut asm, counter);
        asm.goto(ends.drop);
    }
    asm.bind(ends.drop);
    asm.push(Insn::mov32(Reg::R0, context.drop));
    asm.push(Insn::exit());
    asm.finish(&Limits::default())
        .expect("a judge's program is short")
}

/// Makes all bytes linear: some senders leave them in separate pages.
fn pull(asm: &mut Asm, len: usize) {
    let there = asm.label();
    asm.push(Insn::load(op::W, Reg::R1, CONTEXT, TC.data));
    asm.push(Insn::load(op::W, Reg::R2, CONTEXT, TC.data_end));
    asm.push(Insn::alu64(op::ADD, Reg::R1, len as i32));
    asm.jump(Insn::jump64(op::JLE, Reg::R1, Reg::R2), there);
    asm.push(Insn::mov64(Reg::R1, CONTEXT));
    // The whole length: 0 would mean the linear part.
    asm.push(Insn::load(op::W, Reg::R2, CONTEXT, SKB_LEN));
    asm.push(Insn::call(SKB_PULL_DATA));
    asm.bind(there);
}

/// Sets FRAME and NUMBER to those of a frame of this trial; other frames end
/// here.
fn is_of_the_trial(asm: &mut Asm, context: &Context, ends: Ends) {
    const ETHER_TYPE_AT: i16 = 12;
    const DST_PORT_AT: i16 = 36;
    let not_arp = asm.label();
    asm.push(Insn::load(op::W, FRAME, CONTEXT, context.data));
    asm.push(Insn::load(op::W, Reg::R2, CONTEXT, context.data_end));
    asm.push(Insn::mov64(Reg::R1, FRAME));
    asm.push(Insn::alu64(op::ADD, Reg::R1, 14));
    asm.jump(Insn::jump64(op::JGT, Reg::R1, Reg::R2), ends.other);
    asm.push(Insn::load(op::H, Reg::R3, FRAME, ETHER_TYPE_AT));
    asm.jump(big_endian(op::JNE, Reg::R3, 0x0806), not_arp);
    count(asm, shared::OTHER);
    asm.push(Insn::mov32(Reg::R0, context.pass));
    asm.push(Insn::exit());
    asm.bind(not_arp);
    asm.jump(big_endian(op::JNE, Reg::R3, 0x0800), ends.other);
    asm.push(Insn::mov64(Reg::R1, FRAME));
    asm.push(Insn::alu64(op::ADD, Reg::R1, SHORTEST as i32));
    asm.jump(Insn::jump64(op::JGT, Reg::R1, Reg::R2), ends.other);
    asm.push(Insn::load(op::H, Reg::R3, FRAME, DST_PORT_AT));
    asm.jump(big_endian(op::JNE, Reg::R3, DST_PORT), ends.other);
    asm.push(Insn::load(op::H, Reg::R3, FRAME, TAG_AT as i16));
    asm.push(load(Reg::R4, shared::TAG));
    asm.jump(Insn::jump64(op::JNE, Reg::R3, Reg::R4), ends.other);
    asm.push(Insn::load(op::DW, NUMBER, FRAME, NUMBER_AT as i16));
    asm.push(Insn::to_be(NUMBER, 64));
    asm.push(load(Reg::R4, shared::LIMIT));
    asm.jump(Insn::jump64(op::JGE, NUMBER, Reg::R4), ends.corrupted);
}

/// Checks length and bytes: number, time and tag may have any value, and the
/// flow fields must be those of the number.
fn compare(asm: &mut Asm, context: &Context, expected: &Expected, corrupted: Label) {
    let template = &expected.template;
    let len = template.frame.len();
    asm.push(Insn::load(op::W, Reg::R2, CONTEXT, context.data_end));
    asm.push(Insn::mov64(Reg::R1, FRAME));
    asm.push(Insn::alu64(op::ADD, Reg::R1, len as i32));
    // Neither shorter nor longer; the verifier learns from the first
    // comparison.
    asm.jump(Insn::jump64(op::JGT, Reg::R1, Reg::R2), corrupted);
    asm.jump(Insn::jump64(op::JLT, Reg::R1, Reg::R2), corrupted);
    let varies = |at: usize| {
        (NUMBER_AT..NUMBER_AT + 8).contains(&at)
            || (TAG_AT..TAG_AT + 2).contains(&at)
            || expected.timed && (TIME_AT..TIME_AT + 8).contains(&at)
            || template.fields.iter().any(|field| {
                let sum = field.checksum.map(|at| at..at + 2);
                (field.offset..field.offset + field.width).contains(&at)
                    || sum.is_some_and(|sum| sum.contains(&at))
            })
    };
    let end = expected.compared.min(len);
    for at in (0..end).step_by(8).map(|at| at.min(end - 8)) {
        let bytes = &template.frame[at..at + 8];
        let mask: Vec<u8> = (at..at + 8)
            .map(|at| if varies(at) { 0 } else { 0xff })
            .collect();
        let word = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().expect("of eight bytes"));
        let (word, mask) = (word(bytes), word(&mask));
        if mask == 0 {
            continue;
        }
        asm.push(Insn::load(op::DW, Reg::R1, FRAME, at as i16));
        if mask != u64::MAX {
            asm.extend(Insn::load64(Reg::R2, mask));
            asm.push(Insn::alu64(op::AND, Reg::R1, Reg::R2));
        }
        asm.extend(Insn::load64(Reg::R2, word & mask));
        asm.jump(Insn::jump64(op::JNE, Reg::R1, Reg::R2), corrupted);
    }
    compare_fields(asm, template, expected.directions, corrupted);
}

/// Counts a correct frame with its order and latency, or a duplicate.
fn note(asm: &mut Asm, timed: bool, ends: Ends) {
    const KEY: i16 = -4;
    let (duplicate, in_order, ordered) = (asm.label(), asm.label(), asm.label());
    if timed {
        // As early as possible, since the following code takes time.
        asm.push(Insn::call(helper::KTIME_GET_NS));
        asm.push(Insn::load(op::DW, Reg::R1, FRAME, TIME_AT as i16));
        asm.push(Insn::alu64(op::SUB, Reg::R0, Reg::R1));
        // The frame is not read any more: its register holds the time.
        asm.push(Insn::mov64(FRAME, Reg::R0));
    }
    asm.push(Insn::mov64(Reg::R1, NUMBER));
    asm.push(Insn::alu64(op::RSH, Reg::R1, 6));
    look_up(asm, SEEN_MAP, KEY, ends.corrupted);
    asm.push(Insn::mov64(Reg::R2, NUMBER));
    asm.push(Insn::alu64(op::AND, Reg::R2, 63));
    asm.push(Insn::mov64(Reg::R1, 1));
    asm.push(Insn::alu64(op::LSH, Reg::R1, Reg::R2));
    asm.push(Insn::load(op::DW, Reg::R3, Reg::R0, 0));
    asm.push(Insn::mov64(Reg::R4, Reg::R3));
    asm.push(Insn::alu64(op::AND, Reg::R4, Reg::R1));
    asm.jump(Insn::jump64(op::JNE, Reg::R4, 0), duplicate);
    asm.push(Insn::alu64(op::OR, Reg::R3, Reg::R1));
    asm.push(Insn::store(op::DW, Reg::R0, 0, Reg::R3));
    count(asm, shared::GOOD);
    asm.push(load(Reg::R1, shared::NEXT));
    asm.jump(Insn::jump64(op::JGE, NUMBER, Reg::R1), in_order);
    count(asm, shared::REORDERED);
    asm.goto(ordered);
    asm.bind(in_order);
    asm.push(Insn::mov64(Reg::R1, NUMBER));
    asm.push(Insn::alu64(op::ADD, Reg::R1, 1));
    asm.push(store(shared::NEXT, Reg::R1));
    asm.bind(ordered);
    if timed {
        asm.push(Insn::mov64(Reg::R1, NUMBER));
        look_up(asm, TIMES_MAP, KEY, ends.drop);
        asm.push(Insn::store(op::DW, Reg::R0, 0, FRAME));
    }
    asm.goto(ends.drop);
    asm.bind(duplicate);
    count(asm, shared::DUPLICATED);
    asm.goto(ends.drop);
}

/// r0 = the value at index r1 of an array.
fn look_up(asm: &mut Asm, map: u16, key: i16, missing: Label) {
    asm.push(Insn::store(op::W, Reg::FP, key, Reg::R1));
    asm.extend(Insn::load_map(Reg::R1, map));
    asm.push(Insn::mov64(Reg::R2, Reg::FP));
    asm.push(Insn::alu64(op::ADD, Reg::R2, i32::from(key)));
    asm.push(Insn::call(helper::MAP_LOOKUP_ELEM));
    asm.jump(Insn::jump64(op::JEQ, Reg::R0, 0), missing);
}

/// Compares two bytes of a frame with a number in network byte order.
fn big_endian(condition: u8, register: Reg, number: u16) -> Insn {
    Insn::jump64(condition, register, i32::from(number.to_be()))
}

fn count(asm: &mut Asm, counter: usize) {
    asm.push(load(Reg::R1, counter));
    asm.push(Insn::alu64(op::ADD, Reg::R1, 1));
    asm.push(store(counter, Reg::R1));
}
