//! Instructions as text, as the kernel's verifier and `bpftool prog dump
//! xlated` print them.

use super::insn::{Insn, op};
use std::fmt;

/// Writes a whole program, a line for each instruction with its number.
///
/// ```
/// use weir_filter::backend::ebpf::{Insn, Listing, Reg};
///
/// let program = [Insn::mov32(Reg::R0, 1), Insn::exit()];
/// assert_eq!(Listing(&program).to_string(), "   0: (b4) w0 = 1\n   1: (95) exit\n");
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Listing<'a>(pub &'a [Insn]);

impl fmt::Display for Listing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, insn) in self.0.iter().enumerate() {
            writeln!(f, "{number:4}: ({:02x}) {insn}", insn.code)?;
        }
        Ok(())
    }
}

const CLASS: u8 = 0x07;
const OPERATION: u8 = 0xf0;

impl fmt::Display for Insn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.code & CLASS {
            op::ALU => self.arithmetic(f, 'w'),
            op::ALU64 => self.arithmetic(f, 'r'),
            op::JMP => self.jump(f, 'r'),
            op::JMP32 => self.jump(f, 'w'),
            op::LDX if self.is_memory() => {
                let (size, src) = (self.size(), self.src);
                write!(f, "r{} = *({size} *)(r{src} {:+})", self.dst, self.off)
            }
            op::STX if self.is_memory() => {
                let (size, src) = (self.size(), self.src);
                write!(f, "*({size} *)(r{} {:+}) = r{src}", self.dst, self.off)
            }
            op::ST if self.is_memory() => {
                let (size, imm) = (self.size(), self.imm);
                write!(f, "*({size} *)(r{} {:+}) = {imm}", self.dst, self.off)
            }
            _ => self.unknown(f),
        }
    }
}

impl Insn {
    fn is_memory(&self) -> bool {
        self.code & 0xe0 == op::MEM
    }

    fn size(&self) -> &'static str {
        match self.code & 0x18 {
            op::B => "u8",
            op::H => "u16",
            op::W => "u32",
            _ => "u64",
        }
    }

    fn unknown(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown {:#018x}", self.to_u64())
    }

    /// The second operand: `r` or `w` with its number, or the constant.
    fn operand(&self, letter: char) -> String {
        if self.code & op::X == 0 {
            self.imm.to_string()
        } else {
            format!("{letter}{}", self.src)
        }
    }

    fn arithmetic(&self, f: &mut fmt::Formatter<'_>, letter: char) -> fmt::Result {
        let dst = self.dst;
        let sign = match self.code & OPERATION {
            op::ADD => "+=",
            op::SUB => "-=",
            op::MUL => "*=",
            op::DIV => "/=",
            op::OR => "|=",
            op::AND => "&=",
            op::LSH => "<<=",
            op::RSH => ">>=",
            op::MOD => "%=",
            op::XOR => "^=",
            op::MOV => "=",
            op::ARSH => "s>>=",
            op::NEG => return write!(f, "{letter}{dst} = -{letter}{dst}"),
            op::END => return write!(f, "r{dst} = be{} r{dst}", self.imm),
            _ => return self.unknown(f),
        };
        write!(f, "{letter}{dst} {sign} {}", self.operand(letter))
    }

    fn jump(&self, f: &mut fmt::Formatter<'_>, letter: char) -> fmt::Result {
        let sign = match (self.code & OPERATION, letter) {
            (op::JA, 'r') => return write!(f, "goto pc{:+}", self.off),
            (op::JA, _) => return write!(f, "gotol pc{:+}", self.imm),
            (op::CALL, 'r') => return write!(f, "call {}", helper_name(self.imm)),
            (op::EXIT, 'r') => return write!(f, "exit"),
            (op::JEQ, _) => "==",
            (op::JNE, _) => "!=",
            (op::JGT, _) => ">",
            (op::JGE, _) => ">=",
            (op::JLT, _) => "<",
            (op::JLE, _) => "<=",
            (op::JSET, _) => "&",
            _ => return self.unknown(f),
        };
        let (a, b) = (self.dst, self.operand(letter));
        write!(f, "if {letter}{a} {sign} {b} goto pc{:+}", self.off)
    }
}

fn helper_name(number: i32) -> String {
    let name = match number {
        super::helper::SKB_LOAD_BYTES => "bpf_skb_load_bytes",
        super::helper::XDP_GET_BUFF_LEN => "bpf_xdp_get_buff_len",
        super::helper::XDP_LOAD_BYTES => "bpf_xdp_load_bytes",
        _ => return number.to_string(),
    };
    format!("{name}#{number}")
}
