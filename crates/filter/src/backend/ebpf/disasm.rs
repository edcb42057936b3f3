//! The disassembler: prints instructions as the kernel's verifier and `bpftool prog
//! dump xlated` do.

use super::insn::{Insn, op};
use std::fmt;

/// Prints a whole program, one numbered line for each instruction.
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
const WIDE: u8 = op::LD | op::DW | op::IMM;

impl fmt::Display for Insn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.code & CLASS {
            op::ALU => self.arithmetic(f, 'w'),
            op::ALU64 => self.arithmetic(f, 'r'),
            op::JMP => self.jump(f, 'r'),
            op::JMP32 => self.jump(f, 'w'),
            op::LD => self.wide_load(f),
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

    /// A 64-bit load: the first instruction has the lower half of the constant.
    fn wide_load(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (dst, imm) = (self.dst, self.imm);
        match (self.code, self.src) {
            (0, _) => write!(f, "upper half {imm:#x}"),
            (WIDE, 0) => write!(f, "r{dst} = {imm:#x} ll"),
            (WIDE, 5) => write!(f, "r{dst} = map[{imm}]"),
            (WIDE, 6) => write!(f, "r{dst} = value of map[{imm}]"),
            _ => self.unknown(f),
        }
    }

    /// The second operand: a register (`r` or `w` with its number), or the constant.
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
            (op::CALL, 'r') if self.src == 1 => return write!(f, "call pc{:+}", self.imm),
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
        super::helper::MAP_LOOKUP_ELEM => "bpf_map_lookup_elem",
        super::helper::TAIL_CALL => "bpf_tail_call",
        super::helper::REDIRECT => "bpf_redirect",
        super::helper::REDIRECT_MAP => "bpf_redirect_map",
        super::helper::RINGBUF_OUTPUT => "bpf_ringbuf_output",
        super::helper::RINGBUF_RESERVE => "bpf_ringbuf_reserve",
        super::helper::RINGBUF_SUBMIT => "bpf_ringbuf_submit",
        super::helper::RINGBUF_DISCARD => "bpf_ringbuf_discard",
        super::helper::SKB_LOAD_BYTES => "bpf_skb_load_bytes",
        super::helper::XDP_GET_BUFF_LEN => "bpf_xdp_get_buff_len",
        super::helper::XDP_LOAD_BYTES => "bpf_xdp_load_bytes",
        _ => return number.to_string(),
    };
    format!("{name}#{number}")
}
