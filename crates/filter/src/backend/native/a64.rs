//! aarch64: `extern "C" fn(bytes: x0, captured: x1, wire_len: w2) -> w0`
//! (AAPCS64).
//!
//! ```text
//! x0       address of the frame        w3–w14    values
//! x1       captured bytes              w15–w17   scratch
//! w2       the length on the wire      sp        slots, if any
//! ```
//!
//! No register needs saving, so most programs have no entry code. Every 32-bit
//! operation clears the upper half of its register, so values are always
//! zero-extended.

#![expect(
    clippy::useless_conversion,
    reason = "dynasm! converts register numbers, which are what it wants already"
)]

use super::location::{Address, Location, Reg, RegSet, Src};
use super::target::{Code, Label, REJECT, Requirements, TargetAsm};
use crate::ir::{BinOp, Cmp, Width};
use dynasmrt::aarch64::encode_logical_immediate_32bit as logical;
use dynasmrt::{DynasmApi, dynasm};

const LEN: Reg = 2;
/// The first scratch register.
const S0: Reg = 16;
/// The second scratch register.
const S1: Reg = 17;
/// The third scratch register.
const S2: Reg = 15;
/// The zero register.
const ZERO: Reg = 31;

/// Code for aarch64.
#[derive(Debug)]
pub(super) struct A64 {
    code: Code,
    /// Bytes of the stack frame.
    frame: u32,
    /// Whether the code may exceed the range of conditional jumps, 1 MiB either way.
    far: bool,
}

macro_rules! a64 {
    ($self:ident ; $($code:tt)*) => {
        dynasm!($self.code.ops ; .arch aarch64 ; $($code)*)
    };
}

fn slot_offset(slot: u16) -> u32 {
    u32::from(slot) * 4
}

/// A condition by its number in the encoding; the lowest bit negates it.
#[derive(Clone, Copy)]
struct Condition(u32);

const LO: Condition = Condition(3);
const HI: Condition = Condition(8);

impl Condition {
    fn of(cmp: Cmp) -> Condition {
        match cmp {
            Cmp::Eq | Cmp::Clear => Condition(0),
            Cmp::Ne | Cmp::Set => Condition(1),
            Cmp::Ge => Condition(2),
            Cmp::Lt => LO,
            Cmp::Gt => HI,
            Cmp::Le => Condition(9),
        }
    }
}

impl A64 {
    /// The register with `from`: its own, or `scratch` after a move.
    fn in_reg(&mut self, from: Src, scratch: Reg) -> Reg {
        match from {
            Src::Imm(0) => ZERO,
            Src::Imm(_) | Src::At(Location::Slot(_)) => {
                self.set(scratch, from);
                scratch
            }
            Src::At(Location::Reg(reg)) => reg,
        }
    }

    /// Sets the lower 32 bits of a register and clears the rest.
    fn set(&mut self, to: Reg, from: Src) {
        match from {
            Src::Imm(imm) => self.set_imm(to, imm),
            Src::At(Location::Reg(reg)) if reg == to => {}
            Src::At(Location::Reg(reg)) => a64!(self; mov W(to), W(reg)),
            Src::At(Location::Slot(slot)) => a64!(self; ldr W(to), [sp, slot_offset(slot)]),
        }
    }

    fn set_imm(&mut self, to: Reg, imm: u32) {
        let (low, high) = (imm & 0xffff, imm >> 16);
        if high == 0 {
            a64!(self; movz W(to), low);
        } else if low == 0 {
            a64!(self; movz W(to), high, lsl 16);
        } else if high == 0xffff {
            a64!(self; movn W(to), !low & 0xffff);
        } else if logical(imm).is_some() {
            a64!(self; orr WSP(to), wzr, imm);
        } else {
            a64!(self; movz W(to), low; movk W(to), high, lsl 16);
        }
    }

    /// Sets all 64 bits of a register.
    fn set_wide(&mut self, to: Reg, imm: u64) {
        self.set_imm(to, imm as u32);
        if imm > u64::from(u32::MAX) {
            // Only extents come here; they exceed 32 bits by at most three.
            a64!(self; movk X(to), (imm >> 32) as u32, lsl 32);
        }
    }

    /// Computes by `work(self, register)`, then stores the result in `to`.
    fn into(&mut self, to: Location, work: impl FnOnce(&mut A64, Reg)) {
        match to {
            Location::Reg(reg) => work(self, reg),
            Location::Slot(slot) => {
                work(self, S0);
                a64!(self; str W(S0), [sp, slot_offset(slot)]);
            }
        }
    }

    fn compare(&mut self, cmp: Cmp, a: Location, b: Src) -> Condition {
        let a = self.in_reg(a.into(), S0);
        let bits = matches!(cmp, Cmp::Set | Cmp::Clear);
        match b {
            Src::Imm(imm) if bits && logical(imm).is_some() => a64!(self; tst W(a), imm),
            Src::Imm(imm @ 0..=4095) if !bits => a64!(self; cmp WSP(a), imm),
            _ => {
                let b = self.in_reg(b, S1);
                if bits {
                    a64!(self; tst W(a), W(b));
                } else {
                    a64!(self; cmp W(a), W(b));
                }
            }
        }
        Condition::of(cmp)
    }

    fn jump_if(&mut self, Condition(code): Condition, target: Label) {
        if self.far {
            // b.not-cc over the next instruction, which is the jump.
            self.code.ops.push_u32(0x5400_0040 | (code ^ 1));
            return self.jump(target);
        }
        // b.cc: the offset is filled in by `patch`.
        self.code.jumps_to(target);
        self.code.ops.push_u32(0x5400_0000 | code);
    }

    fn add(&mut self, to: Reg, a: Src, imm: u32) -> bool {
        let negative = imm.wrapping_neg();
        if imm > 4095 && negative > 4095 {
            return false;
        }
        let a = self.in_reg(a, S0);
        if imm <= 4095 {
            a64!(self; add WSP(to), WSP(a), imm);
        } else {
            a64!(self; sub WSP(to), WSP(a), negative);
        }
        true
    }

    fn shift(&mut self, op: BinOp, to: Reg, a: Src, b: Src) {
        match (op, b) {
            (_, Src::Imm(32..)) => self.set_imm(to, 0),
            (BinOp::Shl, Src::Imm(count)) => {
                let a = self.in_reg(a, S0);
                a64!(self; lsl W(to), W(a), count);
            }
            (_, Src::Imm(count)) => {
                let a = self.in_reg(a, S0);
                a64!(self; lsr W(to), W(a), count);
            }
            (_, Src::At(_)) => {
                let (a, b) = (self.in_reg(a, S0), self.in_reg(b, S1));
                // The processor takes the count modulo 32.
                a64!(self; cmp WSP(b), 32);
                if op == BinOp::Shl {
                    a64!(self; lsl W(S0), W(a), W(b));
                } else {
                    a64!(self; lsr W(S0), W(a), W(b));
                }
                a64!(self; csel W(to), W(S0), wzr, lo);
            }
        }
    }

    /// Encodes operations with an immediate operand; false if `imm` has no encoding.
    fn with_imm(&mut self, op: BinOp, to: Reg, a: Src, imm: u32) -> bool {
        match op {
            BinOp::Add => return self.add(to, a, imm),
            BinOp::Sub => return self.add(to, a, imm.wrapping_neg()),
            BinOp::And | BinOp::Or | BinOp::Xor if logical(imm).is_some() => {}
            _ => return false,
        }
        let a = self.in_reg(a, S0);
        match op {
            BinOp::And => a64!(self; and WSP(to), W(a), imm),
            BinOp::Or => a64!(self; orr WSP(to), W(a), imm),
            _ => a64!(self; eor WSP(to), W(a), imm),
        }
        true
    }

    /// Loads from the checked position `start + offset`; 32-bit loads zero-extend.
    fn load_at(&mut self, to: Reg, width: Width, start: Reg, offset: u32) {
        let size = width.bytes();
        if offset.is_multiple_of(size) && offset / size <= 4095 {
            match width {
                Width::B1 => a64!(self; ldrb W(to), [XSP(start), offset]),
                Width::B2 => a64!(self; ldrh W(to), [XSP(start), offset]),
                Width::B4 => a64!(self; ldr W(to), [XSP(start), offset]),
            }
        } else if let near @ 0..=255 = offset as i32 {
            match width {
                Width::B1 => a64!(self; ldurb W(to), [XSP(start), near]),
                Width::B2 => a64!(self; ldurh W(to), [XSP(start), near]),
                Width::B4 => a64!(self; ldur W(to), [XSP(start), near]),
            }
        } else {
            self.set_imm(S1, offset);
            match width {
                Width::B1 => a64!(self; ldrb W(to), [XSP(start), X(S1)]),
                Width::B2 => a64!(self; ldrh W(to), [XSP(start), X(S1)]),
                Width::B4 => a64!(self; ldr W(to), [XSP(start), X(S1)]),
            }
        }
    }

    fn arithmetic(&mut self, op: BinOp, to: Reg, a: Src, b: Src) {
        let (a, b) = match a {
            Src::Imm(_) if op.commutes() => (b, a),
            _ => (a, b),
        };
        if let Src::Imm(imm) = b
            && self.with_imm(op, to, a, imm)
        {
            return;
        }
        let (a, b) = (self.in_reg(a, S0), self.in_reg(b, S1));
        match op {
            BinOp::Add => a64!(self; add W(to), W(a), W(b)),
            BinOp::Sub => a64!(self; sub W(to), W(a), W(b)),
            BinOp::And => a64!(self; and W(to), W(a), W(b)),
            BinOp::Or => a64!(self; orr W(to), W(a), W(b)),
            BinOp::Xor => a64!(self; eor W(to), W(a), W(b)),
            BinOp::Mul => a64!(self; mul W(to), W(a), W(b)),
            BinOp::Div => a64!(self; udiv W(to), W(a), W(b)),
            BinOp::Mod => {
                // a - a / b * b
                a64!(self; udiv W(S2), W(a), W(b); msub W(to), W(S2), W(b), W(a));
            }
            BinOp::Shl | BinOp::Shr => unreachable!("shifts have their own code"),
        }
    }
}

impl TargetAsm for A64 {
    const SPARE: Location = Location::Reg(S1);

    fn registers(_len: bool, _division: bool) -> (RegSet, Reg) {
        // w3 to w14.
        (0x7ff8, LEN)
    }

    fn begin(needs: Requirements) -> A64 {
        let mut machine = A64 {
            code: Code::new(needs.blocks),
            // The stack pointer stays a multiple of 16.
            frame: (needs.slots as u32 * 4).next_multiple_of(16),
            far: needs.far,
        };
        if needs.len {
            // The upper half of an argument's register is undefined.
            a64!(machine; mov W(LEN), W(LEN));
        }
        if machine.frame > 0 {
            a64!(machine; sub sp, sp, machine.frame);
        }
        machine
    }

    fn code(&mut self) -> &mut Code {
        &mut self.code
    }

    fn into_code(self) -> Code {
        self.code
    }

    fn check(&mut self, base: Option<Location>, extent: u64) {
        let short = u32::try_from(extent).ok().filter(|&extent| extent <= 4095);
        let base = base.map(|base| self.in_reg(base.into(), S0));
        match (base, short) {
            (None, Some(extent)) => a64!(self; cmp x1, extent),
            (None, None) => {
                self.set_wide(S1, extent);
                a64!(self; cmp x1, X(S1));
            }
            (Some(base), Some(extent)) => {
                a64!(self; add XSP(S0), XSP(base), extent; cmp x1, X(S0));
            }
            (Some(base), None) => {
                self.set_wide(S1, extent);
                a64!(self; add X(S0), X(base), X(S1); cmp x1, X(S0));
            }
        }
        self.jump_if(LO, REJECT);
    }

    fn load(&mut self, to: Location, width: Width, raw: bool, from: Address) {
        let start = match from.base {
            None => 0,
            Some(base) => {
                let base = self.in_reg(base.into(), S0);
                a64!(self; add X(S0), x0, X(base));
                S0
            }
        };
        self.into(to, |a, to| {
            a.load_at(to, width, start, from.offset);
            match width {
                Width::B2 if !raw => a64!(a; rev16 W(to), W(to)),
                Width::B4 if !raw => a64!(a; rev W(to), W(to)),
                _ => {}
            }
        });
    }

    fn bin(&mut self, op: BinOp, to: Location, a: Src, b: Src) {
        self.into(to, |m, to| match op {
            BinOp::Shl | BinOp::Shr => m.shift(op, to, a, b),
            _ => m.arithmetic(op, to, a, b),
        });
    }

    fn test(&mut self, cmp: Cmp, to: Location, a: Location, b: Src) {
        let Condition(code) = self.compare(cmp, a, b);
        // cset, which is csinc of zero with the condition negated.
        self.into(to, |m, to| {
            let inverted = (code ^ 1) << 12;
            m.code.ops.push_u32(0x1a9f_07e0 | inverted | u32::from(to));
        });
    }

    fn branch(&mut self, cmp: Cmp, a: Location, b: Src, target: Label) {
        let condition = self.compare(cmp, a, b);
        self.jump_if(condition, target);
    }

    fn jump(&mut self, target: Label) {
        self.code.jumps_to(target);
        a64!(self; b 0);
    }

    fn mov(&mut self, to: Location, from: Src) {
        match (to, from) {
            (Location::Slot(slot), Src::Imm(_) | Src::At(Location::Reg(_))) => {
                let from = self.in_reg(from, S0);
                a64!(self; str W(from), [sp, slot_offset(slot)]);
            }
            _ => self.into(to, |m, to| m.set(to, from)),
        }
    }

    fn ret(&mut self, verdict: Src) {
        self.set(0, verdict);
        if self.frame > 0 {
            a64!(self; add sp, sp, self.frame);
        }
        a64!(self; ret);
    }

    fn patch(bytes: &mut [u8], at: usize, target: usize) {
        let Some(bytes) = bytes[at..].first_chunk_mut() else {
            unreachable!("jumps lie inside the code")
        };
        let jump = u32::from_le_bytes(*bytes);
        // Conditional jumps have 19 bits at bit 5, others 26 bits at bit 0;
        // both count instructions.
        let (bits, at_bit) = if jump >> 24 == 0x54 { (19, 5) } else { (26, 0) };
        let distance = (target as i64 - at as i64) / 4;
        assert!(
            (-1 << (bits - 1)..1 << (bits - 1)).contains(&distance),
            "a jump over {distance} instructions does not reach"
        );
        let offset = (distance as u32 & ((1 << bits) - 1)) << at_bit;
        *bytes = (jump | offset).to_le_bytes();
    }
}
