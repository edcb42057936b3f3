//! The generator's program in the kernel, which runs for each frame.

use super::template::{Field, Order, RENEWED_BYTES, Template};
use crate::shared_words::{SHARED, load, store};
use weir_filter::backend::ebpf::{Asm, Insn, Label, Limits, Reg, helper, op};

/// The words that the program and the generator share: eight bytes each, at
/// these offsets of the map's only value.
pub(super) mod shared {
    /// Frames sent so far: the number of the next frame.
    pub(in crate::load) const SENT: usize = 0;
    /// The program sends while `SENT` is below.
    pub(in crate::load) const LIMIT: usize = 8;
    /// Due time of the frame numbered `FIRST`, on the monotonic clock in
    /// nanoseconds.
    pub(in crate::load) const START: usize = 16;
    /// The number of the first frame of this run.
    pub(in crate::load) const FIRST: usize = 24;
    /// Interval between frames in nanoseconds, times 2^16; 0: as fast as
    /// possible.
    pub(in crate::load) const INTERVAL: usize = 32;
    /// Lateness of a frame, in nanoseconds, beyond which later frames are
    /// delayed too.
    pub(in crate::load) const CREDIT: usize = 40;
    /// Nanoseconds by which frames were delayed.
    pub(in crate::load) const PUT_OFF: usize = 48;
    /// Time at which the frame numbered `FIRST` was sent; 0 before.
    pub(in crate::load) const BEGUN: usize = 56;
    /// Time at which the limit was found to be reached; 0 before.
    pub(in crate::load) const ENDED: usize = 64;
    /// The clock is read for frames whose number, counted from `FIRST`, has
    /// none of these bits.
    pub(in crate::load) const UNTIMED: usize = 72;
    /// Total size in bytes.
    pub(in crate::load) const BYTES: u32 = 80;
}

const XDP_DROP: i32 = 1;
const XDP_PASS: i32 = 2;

/// Offsets in `struct xdp_md`.
const DATA: i16 = 0;
const DATA_END: i16 = 4;

/// 2^64 divided by the golden ratio, for multiplicative hashing.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

// Fixed uses of registers.
const CONTEXT: Reg = Reg::R6;
const SENT: Reg = Reg::R8;
const FRAME: Reg = Reg::R9;

/// The destination of the generator's frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Output {
    /// The interface with that number.
    Out(u32),
    /// The program in the only slot of the second map.
    Program,
    /// The host's protocols.
    Host,
}

/// The program that sends the frames of (checked) templates in turn, each to
/// its own destination:
///
/// 1. drop the frame if the limit is reached or the frame is not due yet;
/// 2. write the frame's start, number, flow fields and time;
/// 3. redirect it to the interface, or pass it on.
///
/// Thus the kernel's loop around the program also waits, without a timer and
/// with a precision of some tens of nanoseconds.
pub(super) fn program(ways: &[(&Template, Output)]) -> Vec<Insn> {
    let mut asm = Asm::new();
    let (drop, limit) = (asm.label(), asm.label());
    asm.push(Insn::mov64(CONTEXT, Reg::R1));
    asm.extend(Insn::load_map_value(SHARED, 0, 0));
    asm.push(load(SENT, shared::SENT));
    asm.push(load(Reg::R1, shared::LIMIT));
    asm.jump(Insn::jump64(op::JGE, SENT, Reg::R1), limit);
    begin(&mut asm);
    wait(&mut asm, drop);

    asm.push(Insn::load(op::W, FRAME, CONTEXT, DATA));
    asm.push(Insn::load(op::W, Reg::R2, CONTEXT, DATA_END));
    asm.push(Insn::mov64(Reg::R1, FRAME));
    let len = ways.first().map_or(0, |(template, _)| template.frame.len());
    asm.push(Insn::alu64(op::ADD, Reg::R1, len as i32));
    asm.jump(Insn::jump64(op::JGT, Reg::R1, Reg::R2), drop);
    for (index, (template, exit)) in ways.iter().enumerate() {
        let next = asm.label();
        if index + 1 < ways.len() {
            asm.push(Insn::mov64(Reg::R1, SENT));
            modulo(&mut asm, Reg::R1, ways.len() as u32);
            asm.jump(Insn::jump64(op::JNE, Reg::R1, index as i32), next);
        }
        send(&mut asm, template, *exit, ways.len() as u32);
        asm.bind(next);
    }
    asm.bind(limit);
    asm.push(load(Reg::R1, shared::ENDED));
    asm.jump(Insn::jump64(op::JNE, Reg::R1, 0), drop);
    asm.push(Insn::call(helper::KTIME_GET_NS));
    asm.push(store(shared::ENDED, Reg::R0));
    asm.bind(drop);
    asm.push(Insn::mov32(Reg::R0, XDP_DROP));
    asm.push(Insn::exit());
    asm.finish(&Limits::default())
        .expect("a generator's program is short")
}

/// Writes and sends the frame of one of `ways` templates.
fn send(asm: &mut Asm, template: &Template, exit: Output, ways: u32) {
    renew(asm, &template.frame);
    if let Some(offset) = template.number_at {
        asm.push(Insn::mov64(Reg::R1, SENT));
        asm.push(Insn::to_be(Reg::R1, 64));
        // Eight bytes at any offset: the frame need not be aligned.
        asm.push(Insn::store(op::DW, FRAME, offset as i16, Reg::R1));
    }
    if !template.fields.is_empty() {
        flow(asm, template, ways);
        for field in &template.fields {
            write_field(asm, template, field);
        }
    }
    asm.push(Insn::alu64(op::ADD, SENT, 1));
    asm.push(store(shared::SENT, SENT));
    if let Some(offset) = template.time_at {
        asm.push(Insn::call(helper::KTIME_GET_NS));
        asm.push(Insn::store(op::DW, FRAME, offset as i16, Reg::R0));
    }
    leave(asm, exit);
}

fn leave(asm: &mut Asm, exit: Output) {
    match exit {
        Output::Out(ifindex) => {
            asm.push(Insn::mov64(Reg::R1, ifindex as i32));
            asm.push(Insn::mov64(Reg::R2, 0));
            asm.push(Insn::call(helper::REDIRECT));
        }
        Output::Program => {
            asm.push(Insn::mov64(Reg::R1, CONTEXT));
            asm.extend(Insn::load_map(Reg::R2, 1));
            asm.push(Insn::mov64(Reg::R3, 0));
            asm.push(Insn::call(helper::TAIL_CALL));
            // Only if the slot is empty: the frame is then lost.
            asm.push(Insn::mov32(Reg::R0, XDP_DROP));
        }
        Output::Host => asm.push(Insn::mov32(Reg::R0, XDP_PASS)),
    }
    asm.push(Insn::exit());
}

/// Records when the first frame is sent.
fn begin(asm: &mut Asm) {
    let begun = asm.label();
    asm.push(load(Reg::R1, shared::BEGUN));
    asm.jump(Insn::jump64(op::JNE, Reg::R1, 0), begun);
    asm.push(Insn::call(helper::KTIME_GET_NS));
    asm.push(store(shared::BEGUN, Reg::R0));
    asm.push(store(shared::START, Reg::R0));
    asm.bind(begun);
}

/// Drops a frame that is not due, and delays later frames if this one is late.
/// Frames for which the clock is not read follow the previous frame at once.
fn wait(asm: &mut Asm, drop: Label) {
    let due = asm.label();
    asm.push(load(Reg::R9, shared::INTERVAL));
    asm.jump(Insn::jump64(op::JEQ, Reg::R9, 0), due);
    asm.push(Insn::mov64(Reg::R3, SENT));
    asm.push(load(Reg::R1, shared::FIRST));
    asm.push(Insn::alu64(op::SUB, Reg::R3, Reg::R1));
    asm.push(load(Reg::R1, shared::UNTIMED));
    asm.jump(Insn::jump64(op::JSET, Reg::R3, Reg::R1), due);
    asm.push(Insn::call(helper::KTIME_GET_NS));
    asm.push(load(Reg::R1, shared::START));
    // r2 = START + (SENT - FIRST) * INTERVAL / 2^16
    asm.push(Insn::mov64(Reg::R2, SENT));
    asm.push(load(Reg::R3, shared::FIRST));
    asm.push(Insn::alu64(op::SUB, Reg::R2, Reg::R3));
    asm.push(Insn::alu64(op::MUL, Reg::R2, Reg::R9));
    asm.push(Insn::alu64(op::RSH, Reg::R2, 16));
    asm.push(Insn::alu64(op::ADD, Reg::R2, Reg::R1));
    asm.jump(Insn::jump64(op::JLT, Reg::R0, Reg::R2), drop);
    // r0 = lateness beyond the credit
    asm.push(Insn::alu64(op::SUB, Reg::R0, Reg::R2));
    asm.push(load(Reg::R3, shared::CREDIT));
    asm.jump(Insn::jump64(op::JLE, Reg::R0, Reg::R3), due);
    asm.push(Insn::alu64(op::SUB, Reg::R0, Reg::R3));
    asm.push(Insn::alu64(op::ADD, Reg::R1, Reg::R0));
    asm.push(store(shared::START, Reg::R1));
    asm.push(load(Reg::R3, shared::PUT_OFF));
    asm.push(Insn::alu64(op::ADD, Reg::R3, Reg::R0));
    asm.push(store(shared::PUT_OFF, Reg::R3));
    asm.bind(due);
}

/// Writes the first bytes of the frame.
fn renew(asm: &mut Asm, frame: &[u8]) {
    let end = frame.len().min(RENEWED_BYTES);
    // The last write may overlap the previous one.
    for offset in (0..end).step_by(8).map(|offset| offset.min(end - 8)) {
        let word = frame[offset..offset + 8].try_into();
        let word = u64::from_ne_bytes(word.expect("of eight bytes"));
        asm.extend(Insn::load64(Reg::R1, word));
        asm.push(Insn::store(op::DW, FRAME, offset as i16, Reg::R1));
    }
}

/// r5 = the flow of this frame.
fn flow(asm: &mut Asm, template: &Template, ways: u32) {
    asm.push(Insn::mov64(Reg::R5, SENT));
    if ways > 1 {
        asm.push(Insn::alu64(op::DIV, Reg::R5, ways as i32));
    }
    if template.order == Order::Scattered {
        asm.extend(Insn::load64(Reg::R1, GOLDEN));
        asm.push(Insn::alu64(op::MUL, Reg::R5, Reg::R1));
        asm.push(Insn::alu64(op::RSH, Reg::R5, 32));
    }
    modulo(asm, Reg::R5, template.flows);
}

fn modulo(asm: &mut Asm, register: Reg, modulus: u32) {
    let insn = if modulus.is_power_of_two() {
        Insn::alu64(op::AND, register, modulus as i32 - 1)
    } else {
        Insn::alu64(op::MOD, register, modulus as i32)
    };
    asm.push(insn);
}

/// Writes a field and the checksum that covers it.
fn write_field(asm: &mut Asm, template: &Template, field: &Field) {
    value(asm, field);
    asm.push(Insn::store(
        size(field),
        FRAME,
        field.offset as i16,
        Reg::R2,
    ));
    if let Some(at) = field.checksum {
        checksum(asm, template, field, at);
        asm.push(Insn::store(op::H, FRAME, at as i16, Reg::R1));
    }
}

/// Jumps to `differs` unless the received frame at r9, with its number in r8,
/// has the field values that were written to it; `template` holds the expected
/// bytes.
pub(crate) fn compare_fields(asm: &mut Asm, template: &Template, ways: u32, differs: Label) {
    if template.fields.is_empty() {
        return;
    }
    flow(asm, template, ways);
    for field in &template.fields {
        value(asm, field);
        asm.push(Insn::load(size(field), Reg::R3, FRAME, field.offset as i16));
        asm.jump(Insn::jump64(op::JNE, Reg::R3, Reg::R2), differs);
        if let Some(at) = field.checksum {
            checksum(asm, template, field, at);
            asm.push(Insn::load(op::H, Reg::R3, FRAME, at as i16));
            asm.jump(Insn::jump64(op::JNE, Reg::R3, Reg::R1), differs);
        }
    }
}

fn size(field: &Field) -> u8 {
    match field.width {
        2 => op::H,
        _ => op::W,
    }
}

/// r1 = the value of a field in flow r5; r2 = the value in network byte order.
fn value(asm: &mut Asm, field: &Field) {
    asm.push(Insn::mov64(Reg::R1, Reg::R5));
    if field.divisor > 1 {
        asm.push(Insn::alu64(op::DIV, Reg::R1, field.divisor as i32));
    }
    modulo(asm, Reg::R1, field.modulus);
    // 32 bits: a larger value wraps.
    if field.step != 1 {
        asm.push(Insn::alu32(op::MUL, Reg::R1, field.step as i32));
    }
    asm.push(Insn::alu32(op::ADD, Reg::R1, field.base as i32));
    asm.push(Insn::mov64(Reg::R2, Reg::R1));
    asm.push(Insn::to_be(Reg::R2, 8 * field.width as i32));
}

/// r1 = the checksum at that offset, in network byte order, over the field
/// whose value is in r1.
fn checksum(asm: &mut Asm, template: &Template, field: &Field, at: usize) {
    // r1 = not fold(sum of the rest + upper half + lower half), RFC 1071.
    asm.push(Insn::mov64(Reg::R2, Reg::R1));
    asm.push(Insn::alu64(op::RSH, Reg::R2, 16));
    asm.push(Insn::alu64(op::AND, Reg::R1, 0xffff));
    asm.push(Insn::alu64(op::ADD, Reg::R1, Reg::R2));
    let rest = template.sum_without(field, at);
    asm.push(Insn::alu64(op::ADD, Reg::R1, i32::from(rest)));
    for _ in 0..2 {
        asm.push(Insn::mov64(Reg::R2, Reg::R1));
        asm.push(Insn::alu64(op::RSH, Reg::R2, 16));
        asm.push(Insn::alu64(op::AND, Reg::R1, 0xffff));
        asm.push(Insn::alu64(op::ADD, Reg::R1, Reg::R2));
    }
    asm.push(Insn::alu64(op::XOR, Reg::R1, 0xffff));
    asm.push(Insn::to_be(Reg::R1, 16));
}
