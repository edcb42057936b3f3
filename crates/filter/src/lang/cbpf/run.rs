//! Interpreter of classic BPF: an oracle for [`lift`](super::lift), with which it
//! shares no code.

use super::{Insn, MEM_WORDS, code};
use crate::interp;
use crate::ir::Width;

/// Runs a program on the captured `bytes` of a frame of `wire_len` bytes. Returns the
/// snap length; zero rejects the frame.
///
/// The semantics are those of libpcap's `bpf_filter`. A load outside the bytes, or at
/// an address beyond 32 bits, rejects; division by a zero `X` rejects; a shift by 32 or
/// more gives zero. A program that [`verify`](super::verify) refuses rejects every frame
/// that reaches the invalid instruction.
pub fn run(insns: &[Insn], bytes: &[u8], wire_len: u32) -> u32 {
    let mut machine = Machine {
        a: 0,
        x: 0,
        mem: [0; MEM_WORDS],
        bytes,
        wire_len,
    };
    let mut pc = 0_usize;
    while let Some(insn) = insns.get(pc) {
        match machine.step(insn) {
            Some(Step::Next(distance)) => pc = pc.saturating_add(1).saturating_add(distance),
            Some(Step::Verdict(verdict)) => return verdict,
            None => return 0,
        }
    }
    0
}

enum Step {
    /// Continue after skipping this number of instructions.
    Next(usize),
    Verdict(u32),
}

struct Machine<'b> {
    a: u32,
    x: u32,
    mem: [u32; MEM_WORDS],
    bytes: &'b [u8],
    wire_len: u32,
}

impl Machine<'_> {
    /// Executes one instruction; `None` rejects the frame.
    fn step(&mut self, insn: &Insn) -> Option<Step> {
        let Insn { code: value, k, .. } = *insn;
        match code::class(value) {
            code::LD => self.a = self.load(value, k)?,
            code::LDX => self.x = self.load(value, k)?,
            code::ST => *self.mem.get_mut(k as usize)? = self.a,
            code::STX => *self.mem.get_mut(k as usize)? = self.x,
            code::ALU => self.a = self.alu(value, k)?,
            code::JMP => return Some(Step::Next(self.jump(insn)?)),
            code::RET if value == code::RET | code::A => return Some(Step::Verdict(self.a)),
            code::RET => return Some(Step::Verdict(k)),
            _ if value == code::MISC | code::TAX => self.x = self.a,
            _ => self.a = self.x,
        }
        Some(Step::Next(0))
    }

    fn load(&self, value: u16, k: u32) -> Option<u32> {
        let width = match code::size(value) {
            code::W => Width::B4,
            code::H => Width::B2,
            _ => Width::B1,
        };
        match code::mode(value) {
            code::IMM => Some(k),
            code::ABS if k == code::SKF_AD_ALU_XOR_X => Some(self.a ^ self.x),
            code::ABS => interp::load(width, k.into(), self.bytes),
            code::IND => interp::load(width, k.checked_add(self.x)?.into(), self.bytes),
            code::MEM => self.mem.get(k as usize).copied(),
            code::LEN => Some(self.wire_len),
            code::MSH => Some((interp::load(Width::B1, k.into(), self.bytes)? & 0xf) * 4),
            _ => None,
        }
    }

    fn alu(&self, value: u16, k: u32) -> Option<u32> {
        let (a, b) = (self.a, if code::takes_x(value) { self.x } else { k });
        match code::op(value) {
            code::ADD => Some(a.wrapping_add(b)),
            code::SUB => Some(a.wrapping_sub(b)),
            code::MUL => Some(a.wrapping_mul(b)),
            code::DIV => a.checked_div(b),
            code::MOD => a.checked_rem(b),
            code::OR => Some(a | b),
            code::AND => Some(a & b),
            code::XOR => Some(a ^ b),
            code::LSH => Some(a.checked_shl(b).unwrap_or(0)),
            code::RSH => Some(a.checked_shr(b).unwrap_or(0)),
            code::NEG => Some(a.wrapping_neg()),
            _ => None,
        }
    }

    /// The number of instructions to skip; `None` for an unknown jump.
    fn jump(&self, insn: &Insn) -> Option<usize> {
        let a = self.a;
        let b = if code::takes_x(insn.code) {
            self.x
        } else {
            insn.k
        };
        let holds = match code::op(insn.code) {
            // A backward jump, read as unsigned, leads beyond the program.
            code::JA => return usize::try_from(insn.k).ok(),
            code::JEQ => a == b,
            code::JGT => a > b,
            code::JGE => a >= b,
            code::JSET => a & b != 0,
            _ => return None,
        };
        Some(usize::from(if holds { insn.jt } else { insn.jf }))
    }
}
