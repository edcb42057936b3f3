//! Expressions: into r1, by way of r0 to r5 and scratch memory.

use super::super::expr::Expr;
use super::super::layout::scratch;
use super::super::plan::KernelPlan;
use super::frame::HEAD_MIN;
use super::{CONTEXT, Coder, LEN, SCRATCH};
use crate::fanout;
use weir_filter::backend::ebpf::{Insn, Label, Reg, Src, op};
use weir_filter::ir::{BinOp, Cmp, Op, Operand, Value, Width};

/// An IPv4 header's most: what variable offsets mostly are.
const USUAL_BASE: u32 = 60;

/// The bits of an offset into the copy of a frame's start. With the offset in
/// the instruction, which is below [`scratch::HEAD_BYTES`] too, it stays within
/// the scratch memory.
const HEAD_MASK: i32 = scratch::HEAD_BYTES as i32 - 1;
const _: () = assert!(scratch::HEAD_BYTES.is_power_of_two());
const _: () = assert!(scratch::BYTES >= 2 * scratch::HEAD_BYTES + 4);

/// How many bytes of a frame's start are worth a copy: what the fields of all
/// subtables read, within bounds.
pub(super) fn head_bytes(plan: &KernelPlan) -> u32 {
    let fields = plan.subtables.values().flat_map(|subtable| {
        let fields = subtable.signature.fields.iter().map(|(expr, _)| expr);
        fields.chain(&subtable.values)
    });
    let ends = fields.flat_map(Expr::ops).filter_map(|op| match *op {
        Op::Load {
            width,
            base,
            offset,
        } => {
            let base = if base.is_some() { USUAL_BASE } else { 0 };
            let end = offset.checked_add(width.bytes() + base)?;
            (end <= scratch::HEAD_BYTES).then_some(end)
        }
        _ => None,
    });
    let least = if plan.fans_out() {
        fanout::HEAD_BYTES as u32
    } else {
        HEAD_MIN
    };
    ends.max().unwrap_or(0).max(least).next_multiple_of(8)
}

fn size_of(width: Width) -> (u8, i32) {
    match width {
        Width::B1 => (op::B, 8),
        Width::B2 => (op::H, 16),
        Width::B4 => (op::W, 32),
    }
}

impl Coder<'_> {
    /// r1 = the value of an expression; to `fail` if it has none.
    pub(super) fn eval(&mut self, expr: &Expr, fail: Label) {
        let root = Value(expr.ops().len() as u32 - 1);
        self.eval_op(expr, root, 0, fail);
    }

    /// `depth` values of the expression are still in scratch memory.
    fn eval_op(&mut self, expr: &Expr, name: Value, depth: u32, fail: Label) {
        match expr.ops()[name.index()] {
            Op::Len => self.push(Insn::mov32(Reg::R1, LEN)),
            Op::Load {
                width,
                base: None,
                offset,
            } => self.load_at(width, offset, fail),
            Op::Load {
                width,
                base: Some(base),
                offset,
            } => {
                self.eval_op(expr, base, depth, fail);
                self.load_behind(width, offset, fail);
            }
            Op::Bin { op, a, b } => {
                let b = self.operands(expr, a, b, depth, fail);
                self.bin(op, b, fail);
            }
            Op::Test { cmp, a, b } => {
                let b = self.operands(expr, a, b, depth, fail);
                self.test(cmp, b);
            }
            Op::Param => unreachable!("expressions have no parameters"),
        }
    }

    /// r1 = a; gives b, which may be r2.
    fn operands(&mut self, expr: &Expr, a: Operand, b: Operand, depth: u32, fail: Label) -> Src {
        match (a, b) {
            (Operand::Val(a), Operand::Imm(b)) => {
                self.eval_op(expr, a, depth, fail);
                Src::Imm(b as i32)
            }
            (Operand::Imm(a), Operand::Val(b)) => {
                self.eval_op(expr, b, depth, fail);
                self.mov(Reg::R2, Reg::R1);
                self.push(Insn::mov32(Reg::R1, a as i32));
                Src::Reg(Reg::R2)
            }
            (Operand::Val(a), Operand::Val(b)) => {
                assert!(depth < scratch::VALUES_MAX, "expressions are not that deep");
                let kept = scratch::VALUES + 8 * depth as i16;
                self.eval_op(expr, a, depth, fail);
                self.set(op::DW, SCRATCH, kept, Reg::R1);
                self.eval_op(expr, b, depth + 1, fail);
                self.mov(Reg::R2, Reg::R1);
                self.get(op::DW, Reg::R1, SCRATCH, kept);
                Src::Reg(Reg::R2)
            }
            (Operand::Imm(a), Operand::Imm(b)) => {
                self.push(Insn::mov32(Reg::R1, a as i32));
                Src::Imm(b as i32)
            }
        }
    }

    /// Sees to it that the frame has `end` bytes, once for each part of the
    /// code.
    pub(super) fn extent(&mut self, end: u32, fail: Label) {
        if end <= self.checked {
            return;
        }
        self.reload_len();
        match i32::try_from(end) {
            Ok(end) => self.branch(op::JLT, LEN, end, fail),
            // Longer than any frame.
            Err(_) => self.asm.goto(fail),
        }
        self.checked = end;
    }

    fn load_at(&mut self, width: Width, offset: u32, fail: Label) {
        let end = offset.saturating_add(width.bytes());
        self.extent(end, fail);
        if end <= self.head {
            let (size, bits) = size_of(width);
            self.get(size, Reg::R1, SCRATCH, scratch::HEAD + offset as i16);
            self.in_order(Reg::R1, bits);
        } else {
            self.push(Insn::mov32(Reg::R2, offset as i32));
            self.load_far(width, fail);
        }
    }

    /// r1 = bytes at r1 + `offset`.
    fn load_behind(&mut self, width: Width, offset: u32, fail: Label) {
        let (far, done) = (self.asm.label(), self.asm.label());
        let end = i32::try_from(offset.saturating_add(width.bytes()));
        let Ok(end) = end else {
            return self.asm.goto(fail);
        };
        self.reload_len();
        if end as u32 <= self.head {
            let (size, bits) = size_of(width);
            self.branch(op::JGT, Reg::R1, (self.head - end as u32) as i32, far);
            self.mov(Reg::R2, Reg::R1);
            self.add(Reg::R2, end);
            self.branch(op::JGT, Reg::R2, LEN, fail);
            // A CPU that mispredicts the comparison reads this CPU's scratch
            // memory all the same, and nothing beyond.
            self.alu(op::AND, Reg::R1, HEAD_MASK);
            self.add(Reg::R1, SCRATCH);
            self.get(size, Reg::R1, Reg::R1, scratch::HEAD + offset as i16);
            self.in_order(Reg::R1, bits);
            self.asm.goto(done);
        }
        self.asm.bind(far);
        self.mov(Reg::R2, Reg::R1);
        self.add(Reg::R2, end);
        self.branch(op::JGT, Reg::R2, LEN, fail);
        self.alu(op::SUB, Reg::R2, width.bytes() as i32);
        self.load_far(width, fail);
        self.asm.bind(done);
    }

    /// r1 = bytes at r2, behind the copy of the frame's start.
    fn load_far(&mut self, width: Width, fail: Label) {
        let (size, bits) = size_of(width);
        if self.is_tc() {
            self.get(op::W, Reg::R3, SCRATCH, scratch::SHIFT);
            self.alu(op::SUB, Reg::R2, Reg::R3);
        }
        self.mov(Reg::R1, CONTEXT);
        self.mov(Reg::R3, SCRATCH);
        self.add(Reg::R3, i32::from(scratch::FAR));
        self.mov(Reg::R4, width.bytes() as i32);
        self.push(Insn::call(self.load_helper()));
        self.branch(op::JNE, Reg::R0, 0, fail);
        self.get(size, Reg::R1, SCRATCH, scratch::FAR);
        self.in_order(Reg::R1, bits);
    }

    fn in_order(&mut self, reg: Reg, bits: i32) {
        if bits > 8 {
            self.push(Insn::to_be(reg, bits));
        }
    }

    /// r1 = r1 `operation` b, 32 bits.
    fn bin(&mut self, operation: BinOp, b: Src, fail: Label) {
        match (operation, b) {
            (BinOp::Div | BinOp::Mod, Src::Imm(0)) => return self.asm.goto(fail),
            (BinOp::Div | BinOp::Mod, Src::Reg(divisor)) => {
                self.asm.jump(Insn::jump32(op::JEQ, divisor, 0), fail);
            }
            (BinOp::Shl | BinOp::Shr, Src::Imm(by)) if !(0..32).contains(&by) => {
                return self.push(Insn::mov32(Reg::R1, 0));
            }
            (BinOp::Shl | BinOp::Shr, Src::Reg(by)) => {
                let near = self.asm.label();
                self.asm.jump(Insn::jump32(op::JLE, by, 31), near);
                self.push(Insn::mov32(Reg::R1, 0));
                self.push(Insn::mov32(by, 0));
                self.asm.bind(near);
            }
            // The verifier must not link a sum to what it was made of: see
            // `unlink` in the filters' back end.
            (BinOp::Add | BinOp::Sub, _) => self.push(Insn::alu32(op::OR, Reg::R1, 0)),
            _ => {}
        }
        self.push(Insn::alu32(op::of(operation), Reg::R1, b));
    }

    /// r1 = 1 if r1 `cmp` b, else 0.
    fn test(&mut self, cmp: Cmp, b: Src) {
        let (code, holds) = match cmp {
            Cmp::Eq => (op::JEQ, 1),
            Cmp::Ne => (op::JNE, 1),
            Cmp::Lt => (op::JLT, 1),
            Cmp::Le => (op::JLE, 1),
            Cmp::Gt => (op::JGT, 1),
            Cmp::Ge => (op::JGE, 1),
            Cmp::Set => (op::JSET, 1),
            Cmp::Clear => (op::JSET, 0),
        };
        let yes = self.asm.label();
        self.mov(Reg::R3, holds);
        self.asm.jump(Insn::jump32(code, Reg::R1, b), yes);
        self.mov(Reg::R3, 1 - holds);
        self.asm.bind(yes);
        self.mov(Reg::R1, Reg::R3);
    }
}
