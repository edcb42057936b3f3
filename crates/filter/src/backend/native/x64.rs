//! x86-64: `extern "sysv64" fn(bytes: rdi, captured: rsi, wire_len: edx) -> eax`.
//!
//! ```text
//! rdi      address of the frame       rax, rcx  scratch
//! rsi      captured bytes             rdx       length on the wire, or a value if
//! r8–r11   values                               the length is not used;
//! rsp      slots, if any                        clobbered by division
//! ```
//!
//! With division the length moves to r11. No register needs saving, so most programs
//! have no entry code. Every 32-bit operation clears the upper half of its register,
//! so values are always zero-extended.

#![expect(
    clippy::useless_conversion,
    reason = "dynasm! converts register numbers, which are what it wants already"
)]

use super::location::{Address, Location, Reg, RegSet, Src};
use super::target::{Code, Label, REJECT, Requirements, TargetAsm};
use crate::ir::{BinOp, Cmp, Width};
use dynasmrt::{DynasmApi, dynasm};

const RAX: Reg = 0;
const RCX: Reg = 1;
const RDX: Reg = 2;
const RSI: Reg = 6;
const R11: Reg = 11;

/// Code for x86-64.
#[derive(Debug)]
pub(super) struct X64 {
    code: Code,
    /// Bytes of the stack frame.
    frame: i32,
}

macro_rules! x64 {
    ($self:ident ; $($code:tt)*) => {
        dynasm!($self.code.ops ; .arch x64 ; $($code)*)
    };
}

/// Emits one instruction with any source as its second operand.
macro_rules! with_src {
    ($self:ident, $op:ident, $to:expr, $from:expr) => {
        match $from {
            Src::Imm(imm) => match i8::try_from(imm as i32) {
                Ok(short) => x64!($self; $op Rd($to), BYTE short),
                Err(_) => x64!($self; $op Rd($to), DWORD imm as i32),
            },
            Src::At(Location::Reg(reg)) => x64!($self; $op Rd($to), Rd(reg)),
            Src::At(Location::Slot(slot)) => x64!($self; $op Rd($to), [rsp + slot_offset(slot)]),
        }
    };
}

/// Emits one instruction with a position in the frame as its second operand.
macro_rules! with_frame {
    ($self:ident, $op:ident $to:ident($d:expr), $size:ident, $at:expr) => {
        match ($at.index, i8::try_from($at.offset)) {
            (None, Ok(near)) => x64!($self; $op $to($d), $size [BYTE rdi + near]),
            (None, Err(_)) => x64!($self; $op $to($d), $size [DWORD rdi + $at.offset]),
            (Some(index), Ok(near)) => {
                x64!($self; $op $to($d), $size [BYTE rdi + Rq(index) + near])
            }
            (Some(index), Err(_)) => {
                x64!($self; $op $to($d), $size [DWORD rdi + Rq(index) + $at.offset])
            }
        }
    };
}

fn slot_offset(slot: u16) -> i32 {
    i32::from(slot) * 4
}

/// A position rdi + index + offset.
struct Indexed {
    index: Option<Reg>,
    offset: i32,
}

/// A condition by its number in the encoding.
#[derive(Clone, Copy)]
struct Condition(u8);

impl X64 {
    /// The register with `place`: its own, or `scratch` after a move.
    fn in_reg(&mut self, location: Location, scratch: Reg) -> Reg {
        match location {
            Location::Reg(reg) => reg,
            Location::Slot(_) => {
                self.set(scratch, location.into());
                scratch
            }
        }
    }

    /// Sets the lower 32 bits of a register and clears the rest.
    fn set(&mut self, to: Reg, from: Src) {
        match from {
            Src::Imm(0) => x64!(self; xor Rd(to), Rd(to)),
            Src::Imm(imm) => x64!(self; mov Rd(to), DWORD imm as i32),
            Src::At(Location::Reg(reg)) if reg == to => {}
            Src::At(Location::Reg(reg)) => x64!(self; mov Rd(to), Rd(reg)),
            Src::At(Location::Slot(slot)) => x64!(self; mov Rd(to), [rsp + slot_offset(slot)]),
        }
    }

    /// Computes by `work(self, register)`, then stores the result in `to`.
    fn into(&mut self, to: Location, work: impl FnOnce(&mut X64, Reg)) {
        match to {
            Location::Reg(reg) => work(self, reg),
            Location::Slot(slot) => {
                work(self, RAX);
                x64!(self; mov [rsp + slot_offset(slot)], eax);
            }
        }
    }

    fn indexed(&mut self, at: Address) -> Indexed {
        let index = at.base.map(|base| self.in_reg(base, RCX));
        if let Ok(offset) = i32::try_from(at.offset) {
            return Indexed { index, offset };
        }
        x64!(self; mov eax, DWORD at.offset as i32);
        if let Some(index) = index {
            x64!(self; add rax, Rq(index));
        }
        Indexed {
            index: Some(RAX),
            offset: 0,
        }
    }

    fn compare(&mut self, cmp: Cmp, a: Location, b: Src) -> Condition {
        let a = self.in_reg(a, RAX);
        match (cmp, b) {
            (Cmp::Eq | Cmp::Ne, Src::Imm(0)) => x64!(self; test Rd(a), Rd(a)),
            (Cmp::Set | Cmp::Clear, Src::Imm(imm)) => x64!(self; test Rd(a), DWORD imm as i32),
            (Cmp::Set | Cmp::Clear, Src::At(b)) => {
                let b = self.in_reg(b, RCX);
                x64!(self; test Rd(a), Rd(b));
            }
            (_, Src::Imm(imm)) => match i8::try_from(imm as i32) {
                Ok(short) => self.compare_short(0x40, a, short),
                Err(_) => x64!(self; cmp Rd(a), DWORD imm as i32),
            },
            (_, Src::At(Location::Reg(reg))) => x64!(self; cmp Rd(a), Rd(reg)),
            (_, Src::At(Location::Slot(slot))) => x64!(self; cmp Rd(a), [rsp + slot_offset(slot)]),
        }
        Condition(match cmp {
            Cmp::Lt => 0x2,
            Cmp::Ge => 0x3,
            Cmp::Eq | Cmp::Clear => 0x4,
            Cmp::Ne | Cmp::Set => 0x5,
            Cmp::Le => 0x6,
            Cmp::Gt => 0x7,
        })
    }

    /// Compares with an 8-bit constant: REX (0x40, or 0x48 for 64 bits), 83 /7, the
    /// constant. dynasm has only the long form.
    fn compare_short(&mut self, rex: u8, reg: Reg, imm: i8) {
        let (high, low) = (reg >> 3, reg & 7);
        let code = [rex | high, 0x83, 0xf8 | low, imm as u8];
        self.code.ops.extend(code);
    }

    fn jump_if(&mut self, Condition(code): Condition, target: Label) {
        // dynasm has a mnemonic for each condition, but none for a variable one:
        // 0F 80+cc, then the distance.
        self.code.ops.extend([0x0f, 0x80 | code, 0, 0, 0, 0]);
        self.code.jumps_to(target);
    }

    fn leave(&mut self) {
        if self.frame > 0 {
            x64!(self; add rsp, self.frame);
        }
        x64!(self; ret);
    }

    /// `to = a op b` for operations that the processor has.
    fn two_operand(&mut self, op: BinOp, to: Reg, a: Src, b: Src) {
        // Only the left operand may be in the register of the result.
        let clash = b == Src::At(Location::Reg(to));
        let (a, b) = match (clash || matches!(a, Src::Imm(_)), op.commutes()) {
            (true, true) => (b, a),
            _ => (a, b),
        };
        let work = if b == Src::At(Location::Reg(to)) && a != b {
            RAX
        } else {
            to
        };
        self.set(work, a);
        match op {
            BinOp::Add => with_src!(self, add, work, b),
            BinOp::Sub => with_src!(self, sub, work, b),
            BinOp::And => with_src!(self, and, work, b),
            BinOp::Or => with_src!(self, or, work, b),
            BinOp::Xor => with_src!(self, xor, work, b),
            BinOp::Mul => match b {
                Src::Imm(imm) => x64!(self; imul Rd(work), Rd(work), DWORD imm as i32),
                Src::At(Location::Reg(reg)) => x64!(self; imul Rd(work), Rd(reg)),
                Src::At(Location::Slot(slot)) => {
                    x64!(self; imul Rd(work), [rsp + slot_offset(slot)]);
                }
            },
            _ => unreachable!("divisions and shifts have their own code"),
        }
        self.set(to, Location::Reg(work).into());
    }

    /// Leaves quotient or remainder in `to`.
    fn divide(&mut self, op: BinOp, to: Reg, a: Src, b: Src) {
        let divisor = match b {
            Src::At(Location::Reg(reg)) => reg,
            _ => {
                self.set(RCX, b);
                RCX
            }
        };
        self.set(RAX, a);
        x64!(self; xor edx, edx; div Rd(divisor));
        let result = if op == BinOp::Div { RAX } else { RDX };
        self.set(to, Location::Reg(result).into());
    }

    fn shift(&mut self, op: BinOp, to: Reg, a: Src, b: Src) {
        match b {
            Src::Imm(count @ 0..32) => {
                self.set(to, a);
                if op == BinOp::Shl {
                    x64!(self; shl Rd(to), BYTE count as i8);
                } else {
                    x64!(self; shr Rd(to), BYTE count as i8);
                }
            }
            Src::Imm(_) => self.set(to, Src::Imm(0)),
            Src::At(_) => {
                self.set(RCX, b);
                self.set(RAX, a);
                if op == BinOp::Shl {
                    x64!(self; shl eax, cl);
                } else {
                    x64!(self; shr eax, cl);
                }
                // The processor takes the count modulo 32. For a count below 32 the comparison
                // borrows, and the mask becomes all ones.
                x64!(self; cmp ecx, 32; sbb ecx, ecx; and eax, ecx);
                self.set(to, Location::Reg(RAX).into());
            }
        }
    }
}

impl TargetAsm for X64 {
    const SPARE: Location = Location::Reg(RCX);

    fn registers(len: bool, division: bool) -> (RegSet, Reg) {
        let values: RegSet = 0b1111 << 8;
        match (len, division) {
            (false, false) => (values | 1 << RDX, RDX),
            (true, true) => (values & !(1 << R11), R11),
            _ => (values, RDX),
        }
    }

    fn begin(needs: Requirements) -> X64 {
        let mut machine = X64 {
            code: Code::new(needs.blocks),
            // Preserves the alignment of the stack.
            frame: (needs.slots as u32 * 4).next_multiple_of(16) as i32,
        };
        if needs.len {
            // The upper half of an argument's register is undefined.
            let (_, len) = X64::registers(needs.len, needs.division);
            x64!(machine; mov Rd(len), edx);
        }
        if machine.frame > 0 {
            x64!(machine; sub rsp, machine.frame);
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
        let short = i32::try_from(extent);
        match (base, short) {
            (None, Ok(extent)) => {
                match i8::try_from(extent) {
                    Ok(extent) => self.compare_short(0x48, RSI, extent),
                    Err(_) => x64!(self; cmp rsi, DWORD extent),
                }
                return self.jump_if(Condition(0x2), REJECT);
            }
            (Some(base), Ok(extent)) => {
                let base = self.in_reg(base, RAX);
                match i8::try_from(extent) {
                    Ok(extent) => x64!(self; lea rax, [BYTE Rq(base) + extent]),
                    Err(_) => x64!(self; lea rax, [DWORD Rq(base) + extent]),
                }
            }
            (_, Err(_)) => {
                x64!(self; mov rax, QWORD extent as i64);
                if let Some(base) = base {
                    let base = self.in_reg(base, RCX);
                    x64!(self; add rax, Rq(base));
                }
            }
        }
        x64!(self; cmp rsi, rax);
        self.jump_if(Condition(0x2), REJECT);
    }

    fn load(&mut self, to: Location, width: Width, raw: bool, from: Address) {
        let at = self.indexed(from);
        self.into(to, |x, to| match width {
            Width::B1 => with_frame!(x, movzx Rd(to), BYTE, at),
            Width::B2 => {
                with_frame!(x, movzx Rd(to), WORD, at);
                if !raw {
                    x64!(x; rol Rw(to), BYTE 8);
                }
            }
            Width::B4 => {
                with_frame!(x, mov Rd(to), DWORD, at);
                if !raw {
                    x64!(x; bswap Rd(to));
                }
            }
        });
    }

    fn bin(&mut self, op: BinOp, to: Location, a: Src, b: Src) {
        self.into(to, |x, to| match op {
            BinOp::Div | BinOp::Mod => x.divide(op, to, a, b),
            BinOp::Shl | BinOp::Shr => x.shift(op, to, a, b),
            _ => x.two_operand(op, to, a, b),
        });
    }

    fn test(&mut self, cmp: Cmp, to: Location, a: Location, b: Src) {
        let Condition(code) = self.compare(cmp, a, b);
        // setcc al: 0F 90+cc, then the register.
        self.code.ops.extend([0x0f, 0x90 | code, 0xc0]);
        self.into(to, |x, to| x64!(x; movzx Rd(to), al));
    }

    fn branch(&mut self, cmp: Cmp, a: Location, b: Src, target: Label) {
        let condition = self.compare(cmp, a, b);
        self.jump_if(condition, target);
    }

    fn jump(&mut self, target: Label) {
        x64!(self; jmp DWORD 0);
        self.code.jumps_to(target);
    }

    fn mov(&mut self, to: Location, from: Src) {
        match (to, from) {
            (Location::Slot(slot), Src::Imm(imm)) => {
                x64!(self; mov DWORD [rsp + slot_offset(slot)], DWORD imm as i32);
            }
            (Location::Slot(slot), Src::At(Location::Reg(reg))) => {
                x64!(self; mov [rsp + slot_offset(slot)], Rd(reg));
            }
            _ => self.into(to, |x, to| x.set(to, from)),
        }
    }

    fn ret(&mut self, verdict: Src) {
        self.set(RAX, verdict);
        self.leave();
    }

    fn patch(bytes: &mut [u8], at: usize, target: usize) {
        let distance = (target as i64 - at as i64) as i32;
        bytes[at - 4..at].copy_from_slice(&distance.to_le_bytes());
    }
}
