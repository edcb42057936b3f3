//! Code generation for arithmetic, and for comparisons as values, without jumps.

use super::super::insn::{Insn, Reg, Src, op};
use super::Coder;
use crate::ir::{BinOp, Cmp, Operand, Value};

impl Coder<'_> {
    pub(super) fn bin(&mut self, dst: Value, op: BinOp, a: Operand, b: Operand) {
        let to = self.target(dst);
        let shift = matches!(op, BinOp::Shl | BinOp::Shr);
        if shift && matches!(b, Operand::Imm(32..)) {
            self.asm.push(Insn::mov32(to, 0));
            return self.write(dst, to);
        }
        let a = self.read_operand(a, to);
        self.mov32(to, a);
        if matches!(op, BinOp::Add | BinOp::Sub) {
            self.unlink(to, a);
        }
        if let (true, Operand::Val(count)) = (shift, b) {
            self.clear_if_far(to, count);
        }
        let b = self.read_operand(b, self.scratch[1]);
        self.asm.push(Insn::alu32(op::of(op), to, b));
        self.write(dst, to);
    }

    /// Makes the verifier forget that `reg` is a copy of `of`, before a sum.
    ///
    /// From Linux 6.11 on, the verifier links copies that differ by a constant, and
    /// applies the outcome of a comparison of one to all. This widens the bounds of a
    /// value whose sum wraps. The verifier then refuses a large difference as an offset
    /// of a pointer, although the sum was bounded in between (seen in 6.18).
    fn unlink(&mut self, reg: Reg, of: Src) {
        if let Src::Reg(_) = of {
            self.asm.push(Insn::alu32(op::OR, reg, 0));
        }
    }

    /// Clears `reg` if `count` is 32 or more. eBPF takes counts modulo 32. A jump would
    /// double the verifier's work.
    fn clear_if_far(&mut self, reg: Reg, count: Value) {
        let mask = self.scratch[1];
        let count = self.read(count, mask);
        if count != mask {
            self.asm.push(Insn::mov64(mask, count));
        }
        self.asm.push(Insn::alu64(op::SUB, mask, 32));
        self.asm.push(Insn::alu64(op::ARSH, mask, 63));
        self.asm.push(Insn::alu32(op::AND, reg, mask));
    }

    /// Computes a comparison as a value without a jump, from the sign of a 64-bit
    /// difference of two 32-bit numbers.
    pub(super) fn test(&mut self, dst: Value, cmp: Cmp, a: Operand, b: Operand) {
        let to = self.target(dst);
        let a = self.read_operand(a, to);
        self.mov32(to, a);
        let b = self.read_operand(b, self.scratch[1]);
        match cmp {
            Cmp::Eq | Cmp::Ne => self.asm.push(Insn::alu32(op::XOR, to, b)),
            Cmp::Set | Cmp::Clear => self.asm.push(Insn::alu32(op::AND, to, b)),
            _ => {
                self.unlink(to, a);
                self.subtract_wide(to, b);
            }
        }
        match cmp {
            Cmp::Eq | Cmp::Clear => self.asm.push(Insn::alu64(op::SUB, to, 1)),
            Cmp::Ne | Cmp::Set => self.asm.push(Insn::neg64(to)),
            _ => {}
        }
        self.asm.push(Insn::alu64(op::RSH, to, 63));
        if cmp == Cmp::Ge {
            self.asm.push(Insn::alu32(op::XOR, to, 1));
        }
        self.write(dst, to);
    }

    /// `reg -= src` in 64 bits; a constant is an unsigned 32-bit number.
    fn subtract_wide(&mut self, reg: Reg, src: Src) {
        self.asm.push(Insn::alu64(op::SUB, reg, src));
        if let Src::Imm(..0) = src {
            // The constant was sign-extended: add 2^32 to undo that.
            let half = i32::MIN;
            self.asm.push(Insn::alu64(op::ADD, reg, half));
            self.asm.push(Insn::alu64(op::ADD, reg, half));
        }
    }
}
