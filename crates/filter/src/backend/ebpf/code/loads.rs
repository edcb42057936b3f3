//! Code generation for reads of the frame's bytes and of its length.

use super::Coder;
use crate::backend::ebpf::insn::{Insn, Reg, op};
use crate::backend::ebpf::lower::Step;
use crate::backend::ebpf::{Access, DIRECT_MAX, WireLen};
use crate::ir::{Value, Width};

impl Coder<'_> {
    pub(super) fn wire_len(&mut self, dst: Value) {
        let to = self.target(dst);
        match (self.fragment.wire_len, self.fragment.access) {
            (WireLen::Reg(reg), _) => self.mov32(to, reg.into()),
            (WireLen::Stack(slot), _) => self.asm.push(Insn::load(op::DW, to, Reg::FP, slot)),
            (WireLen::Span, Access::Direct { start, end }) => {
                self.asm.push(Insn::mov64(to, end));
                self.asm.push(Insn::alu64(op::SUB, to, start));
            }
            (WireLen::Span, Access::Call { .. } | Access::Routine { .. }) => {
                unreachable!("emit_fragment refuses a span without pointers")
            }
        }
        self.write(dst, to);
    }

    pub(super) fn address(&mut self, dst: Value, base: Value, max: u32) {
        let Access::Direct { start, .. } = self.fragment.access else {
            unreachable!("addresses are made for direct access only");
        };
        let to = self.target(dst);
        let from = self.read(base, to);
        self.mov32(to, from.into());
        self.short_if(Insn::jump64(op::JGT, to, max as i32), op::JLE);
        // Bounds the speculative access of a CPU that mispredicts the comparison to
        // the maximum length of a frame.
        self.asm.push(Insn::alu64(op::AND, to, DIRECT_MAX as i32));
        self.asm.push(Insn::alu64(op::ADD, to, start));
        self.write(dst, to);
    }

    /// Registers with the address, or the start of the frame, and with its end.
    fn pointer(&mut self, from: Option<Value>) -> (Reg, Reg) {
        let Access::Direct { start, end } = self.fragment.access else {
            unreachable!("pointers are used with direct access only");
        };
        let from = from.map_or(start, |address| self.read(address, self.scratch[0]));
        (from, end)
    }

    pub(super) fn guard(&mut self, from: Option<Value>, extent: u32) {
        let (from, end) = self.pointer(from);
        let probe = self.scratch[0];
        if from != probe {
            self.asm.push(Insn::mov64(probe, from));
        }
        self.asm.push(Insn::alu64(op::ADD, probe, extent as i32));
        self.short_if(Insn::jump64(op::JGT, probe, end), op::JLE);
    }

    pub(super) fn load(&mut self, dst: Value, from: Option<Value>, offset: u32, width: Width) {
        let (mut from, _) = self.pointer(from);
        let to = self.target(dst);
        let near = i16::try_from(offset).unwrap_or_else(|_| {
            // The offset of an instruction is a signed 16-bit number.
            let probe = self.scratch[0];
            if from != probe {
                self.asm.push(Insn::mov64(probe, from));
                from = probe;
            }
            self.asm.push(Insn::alu64(op::ADD, probe, offset as i32));
            0
        });
        self.load_be(to, from, near, width);
        self.write(dst, to);
    }

    fn load_be(&mut self, to: Reg, from: Reg, offset: i16, width: Width) {
        let (size, bits) = match width {
            Width::B1 => (op::B, 8),
            Width::B2 => (op::H, 16),
            Width::B4 => (op::W, 32),
        };
        self.asm.push(Insn::load(size, to, from, offset));
        if bits > 8 {
            self.asm.push(Insn::to_be(to, bits));
        }
    }

    /// Calls `helper(context, offset, buffer, length)`, which returns zero on success.
    pub(super) fn fetch(&mut self, step: Step, dst: Option<Value>) {
        let (
            Access::Call { context, .. } | Access::Routine { context, .. },
            Step::Fetch {
                base,
                offset,
                width,
                max,
                ..
            },
        ) = (self.fragment.access, step)
        else {
            unreachable!("fetches are made for access by calls only");
        };
        let buffer = self.fragment.stack_top - 8;
        // The base may be in an argument register, so it is read first.
        match base {
            None => self.asm.push(Insn::mov32(Reg::R2, offset as i32)),
            Some(base) => {
                let from = self.read(base, Reg::R2);
                self.mov32(Reg::R2, from.into());
                if let Some(max) = max {
                    self.short_if(Insn::jump64(op::JGT, Reg::R2, max as i32), op::JLE);
                }
                if offset > 0 {
                    self.asm.push(Insn::alu64(op::ADD, Reg::R2, offset as i32));
                }
            }
        }
        self.asm.push(Insn::mov64(Reg::R1, context));
        self.asm.push(Insn::mov64(Reg::R3, Reg::FP));
        self.asm
            .push(Insn::alu64(op::ADD, Reg::R3, i32::from(buffer)));
        self.asm.push(Insn::mov32(Reg::R4, width.bytes() as i32));
        match self.fragment.access {
            Access::Call { helper, .. } => self.asm.push(Insn::call(helper)),
            Access::Routine { routine, .. } => self.asm.call(routine),
            Access::Direct { .. } => unreachable!("it was compared above"),
        }
        self.short_if(Insn::jump64(op::JNE, Reg::R0, 0), op::JEQ);
        if let Some(dst) = dst {
            let to = self.target(dst);
            self.load_be(to, Reg::FP, buffer, width);
            self.write(dst, to);
        }
    }
}
