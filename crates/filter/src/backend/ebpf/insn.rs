//! eBPF instructions in their 8-byte encoding (RFC 9669; the kernel's
//! `Documentation/bpf/standardization/instruction-set.rst`).

use std::fmt;

/// One of the registers r0 to r10.
///
/// r0 holds results and r1 to r5 arguments; a call destroys r0 to r5. r6 to r9
/// survive calls. r10 is the frame pointer, the read-only top of a 512-byte stack.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Reg(u8);

impl Reg {
    /// Result of a call and of the program.
    pub const R0: Reg = Reg(0);
    /// First argument; the context when a program starts.
    pub const R1: Reg = Reg(1);
    /// Second argument.
    pub const R2: Reg = Reg(2);
    /// Third argument.
    pub const R3: Reg = Reg(3);
    /// Fourth argument.
    pub const R4: Reg = Reg(4);
    /// Fifth argument.
    pub const R5: Reg = Reg(5);
    /// Preserved by calls.
    pub const R6: Reg = Reg(6);
    /// Preserved by calls.
    pub const R7: Reg = Reg(7);
    /// Preserved by calls.
    pub const R8: Reg = Reg(8);
    /// Preserved by calls.
    pub const R9: Reg = Reg(9);
    /// The frame pointer, read-only.
    pub const FP: Reg = Reg(10);

    /// The register's number, 0 to 10.
    pub fn number(self) -> u8 {
        self.0
    }

    /// Whether calls preserve the register.
    pub fn survives_calls(self) -> bool {
        self.0 >= 6
    }
}

impl fmt::Display for Reg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "r{}", self.0)
    }
}

/// Parts of an opcode: the class in the low three bits, then size and mode (loads and
/// stores), or source bit and operation (arithmetic and jumps).
pub mod op {
    use crate::ir::BinOp;

    /// Class: load a constant of 64 bits, with [`IMM`] and [`DW`].
    pub const LD: u8 = 0x00;
    /// Class: load into a register.
    pub const LDX: u8 = 0x01;
    /// Class: store a constant.
    pub const ST: u8 = 0x02;
    /// Class: store a register.
    pub const STX: u8 = 0x03;
    /// Class: 32-bit arithmetic; the upper half of the result is zero.
    pub const ALU: u8 = 0x04;
    /// Class: 64-bit compare and jump; calls and exit.
    pub const JMP: u8 = 0x05;
    /// Class: 32-bit compare and jump.
    pub const JMP32: u8 = 0x06;
    /// Class: 64-bit arithmetic.
    pub const ALU64: u8 = 0x07;

    /// Size: 4 bytes.
    pub const W: u8 = 0x00;
    /// Size: 2 bytes.
    pub const H: u8 = 0x08;
    /// Size: 1 byte.
    pub const B: u8 = 0x10;
    /// Size: 8 bytes.
    pub const DW: u8 = 0x18;
    /// Mode: register plus offset.
    pub const MEM: u8 = 0x60;
    /// Mode: a 64-bit constant, which also occupies a second instruction.
    pub const IMM: u8 = 0x00;

    /// Source: the constant.
    pub const K: u8 = 0x00;
    /// Source: the source register.
    pub const X: u8 = 0x08;

    /// `dst += src`
    pub const ADD: u8 = 0x00;
    /// `dst -= src`
    pub const SUB: u8 = 0x10;
    /// `dst *= src`
    pub const MUL: u8 = 0x20;
    /// `dst /= src`; division by zero gives 0.
    pub const DIV: u8 = 0x30;
    /// `dst |= src`
    pub const OR: u8 = 0x40;
    /// `dst &= src`
    pub const AND: u8 = 0x50;
    /// `dst <<= src`, modulo the width
    pub const LSH: u8 = 0x60;
    /// `dst >>= src`, filling with zeros
    pub const RSH: u8 = 0x70;
    /// `dst = -dst`
    pub const NEG: u8 = 0x80;
    /// `dst %= src`; modulo zero leaves `dst` unchanged.
    pub const MOD: u8 = 0x90;
    /// `dst ^= src`
    pub const XOR: u8 = 0xa0;
    /// `dst = src`
    pub const MOV: u8 = 0xb0;
    /// `dst >>= src`, filling with the sign
    pub const ARSH: u8 = 0xc0;
    /// Byte order conversion; with [`X`] to or from big-endian. The constant is the
    /// width in bits.
    pub const END: u8 = 0xd0;

    /// Unconditional jump (in [`JMP32`]: by the constant instead of the offset).
    pub const JA: u8 = 0x00;
    /// Jump if equal.
    pub const JEQ: u8 = 0x10;
    /// Jump if greater, unsigned.
    pub const JGT: u8 = 0x20;
    /// Jump if greater or equal, unsigned.
    pub const JGE: u8 = 0x30;
    /// Jump if `dst & src` is not zero.
    pub const JSET: u8 = 0x40;
    /// Jump if not equal.
    pub const JNE: u8 = 0x50;
    /// Call the helper function whose number is the constant.
    pub const CALL: u8 = 0x80;
    /// End the program; r0 is the result.
    pub const EXIT: u8 = 0x90;
    /// Jump if less, unsigned.
    pub const JLT: u8 = 0xa0;
    /// Jump if less or equal, unsigned.
    pub const JLE: u8 = 0xb0;

    /// The arithmetic operation that computes `op`.
    pub fn of(op: BinOp) -> u8 {
        match op {
            BinOp::Add => ADD,
            BinOp::Sub => SUB,
            BinOp::Mul => MUL,
            BinOp::Div => DIV,
            BinOp::Mod => MOD,
            BinOp::And => AND,
            BinOp::Or => OR,
            BinOp::Xor => XOR,
            BinOp::Shl => LSH,
            BinOp::Shr => RSH,
        }
    }
}

/// The second operand of arithmetic and comparisons.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Src {
    /// A register.
    Reg(Reg),
    /// A constant; 64-bit instructions sign-extend it.
    Imm(i32),
}

impl From<Reg> for Src {
    fn from(reg: Reg) -> Src {
        Src::Reg(reg)
    }
}

impl From<i32> for Src {
    fn from(constant: i32) -> Src {
        Src::Imm(constant)
    }
}

/// `BPF_PSEUDO_MAP_IDX` in `src` of a wide load: the constant is an index of `fd_array`.
const PSEUDO_MAP_INDEX: u8 = 5;

/// `BPF_PSEUDO_MAP_IDX_VALUE`: the address of the first value of that map.
const PSEUDO_MAP_INDEX_VALUE: u8 = 6;

/// One instruction.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Insn {
    /// Opcode, made of the parts in [`op`].
    pub code: u8,
    /// Destination register, 0 to 10.
    pub dst: u8,
    /// Source register, 0 to 10.
    pub src: u8,
    /// Offset of a memory access in bytes, or of a jump in instructions, relative to
    /// the next instruction.
    pub off: i16,
    /// Constant.
    pub imm: i32,
}

impl Insn {
    const fn new(code: u8, dst: Reg, src: Reg, off: i16, imm: i32) -> Insn {
        Insn {
            code,
            dst: dst.0,
            src: src.0,
            off,
            imm,
        }
    }

    fn with_src(code: u8, dst: Reg, src: Src, off: i16) -> Insn {
        match src {
            Src::Reg(reg) => Insn::new(code | op::X, dst, reg, off, 0),
            Src::Imm(imm) => Insn::new(code | op::K, dst, Reg::R0, off, imm),
        }
    }

    /// 32-bit arithmetic, one of the operations `op::ADD` to `op::ARSH`.
    pub fn alu32(operation: u8, dst: Reg, src: impl Into<Src>) -> Insn {
        Insn::with_src(op::ALU | operation, dst, src.into(), 0)
    }

    /// 64-bit arithmetic, one of the operations `op::ADD` to `op::ARSH`.
    pub fn alu64(operation: u8, dst: Reg, src: impl Into<Src>) -> Insn {
        Insn::with_src(op::ALU64 | operation, dst, src.into(), 0)
    }

    /// `dst = src`, with the upper half cleared.
    pub fn mov32(dst: Reg, src: impl Into<Src>) -> Insn {
        Insn::alu32(op::MOV, dst, src)
    }

    /// `dst = src`, all 64 bits, as pointers need.
    pub fn mov64(dst: Reg, src: impl Into<Src>) -> Insn {
        Insn::alu64(op::MOV, dst, src)
    }

    /// `dst = -dst`, 64 bits.
    pub fn neg64(dst: Reg) -> Insn {
        Insn::new(op::ALU64 | op::NEG, dst, Reg::R0, 0, 0)
    }

    /// Converts the low 16, 32 or 64 bits of `dst` between host and network order on a
    /// little-endian host, and clears the rest.
    pub fn to_be(dst: Reg, bits: i32) -> Insn {
        Insn::new(op::ALU | op::END | op::X, dst, Reg::R0, 0, bits)
    }

    /// `dst = *(size *)(base + offset)`; `size` is `op::B` to `op::DW`.
    pub fn load(size: u8, dst: Reg, base: Reg, offset: i16) -> Insn {
        Insn::new(op::LDX | op::MEM | size, dst, base, offset, 0)
    }

    /// `*(size *)(base + offset) = src`
    pub fn store(size: u8, base: Reg, offset: i16, src: impl Into<Src>) -> Insn {
        match src.into() {
            Src::Reg(reg) => Insn::new(op::STX | op::MEM | size, base, reg, offset, 0),
            Src::Imm(imm) => Insn::new(op::ST | op::MEM | size, base, Reg::R0, offset, imm),
        }
    }

    /// A 64-bit compare and jump; the assembler sets the offset.
    pub fn jump64(condition: u8, a: Reg, b: impl Into<Src>) -> Insn {
        Insn::with_src(op::JMP | condition, a, b.into(), 0)
    }

    /// A 32-bit compare and jump; the assembler sets the offset.
    pub fn jump32(condition: u8, a: Reg, b: impl Into<Src>) -> Insn {
        Insn::with_src(op::JMP32 | condition, a, b.into(), 0)
    }

    /// Jumps over `off` instructions.
    pub fn goto(off: i16) -> Insn {
        Insn::new(op::JMP | op::JA, Reg::R0, Reg::R0, off, 0)
    }

    /// Jumps over `off` instructions with a 32-bit offset (`gotol`, Linux 6.6).
    pub fn goto_long(off: i32) -> Insn {
        Insn::new(op::JMP32 | op::JA, Reg::R0, Reg::R0, 0, off)
    }

    /// Calls the helper function with the number `helper`.
    pub fn call(helper: i32) -> Insn {
        Insn::new(op::JMP | op::CALL, Reg::R0, Reg::R0, 0, helper)
    }

    /// `dst` = the map with index `place` in the `fd_array` of the load (Linux 5.14).
    /// Two instructions, between which no jump may lead.
    ///
    /// The program refers to maps by index, so it can be generated before the maps
    /// exist.
    pub fn load_map(dst: Reg, index: u16) -> [Insn; 2] {
        Insn::wide(dst, PSEUDO_MAP_INDEX, i32::from(index), 0)
    }

    /// `dst` = the address of byte `offset` of the value of the array map with index
    /// `place`. The map has one entry. Two instructions.
    pub fn load_map_value(dst: Reg, index: u16, offset: u32) -> [Insn; 2] {
        Insn::wide(dst, PSEUDO_MAP_INDEX_VALUE, i32::from(index), offset as i32)
    }

    /// The index of the map that this instruction refers to; `None` for other
    /// instructions.
    pub fn map_value_address(&self) -> Option<i32> {
        let wide = self.code == op::LD | op::DW | op::IMM;
        let named = matches!(self.src, PSEUDO_MAP_INDEX | PSEUDO_MAP_INDEX_VALUE);
        (wide && named).then_some(self.imm)
    }

    /// `dst = constant`, all 64 bits. Two instructions.
    pub fn load64(dst: Reg, constant: u64) -> [Insn; 2] {
        Insn::wide(dst, 0, constant as i32, (constant >> 32) as i32)
    }

    fn wide(dst: Reg, source: u8, low: i32, high: i32) -> [Insn; 2] {
        let code = op::LD | op::DW | op::IMM;
        let first = Insn::new(code, dst, Reg(source), 0, low);
        [first, Insn::new(0, Reg::R0, Reg::R0, 0, high)]
    }

    /// Calls the routine that begins `off` instructions after the next one
    /// (`BPF_PSEUDO_CALL`, Linux 4.16).
    pub fn call_routine(off: i32) -> Insn {
        Insn::new(op::JMP | op::CALL, Reg::R0, Reg(1), 0, off)
    }

    /// Ends the program.
    pub const fn exit() -> Insn {
        Insn::new(op::JMP | op::EXIT, Reg::R0, Reg::R0, 0, 0)
    }

    /// The eight bytes in little-endian order: opcode, registers, offset, constant.
    pub fn to_le_bytes(self) -> [u8; 8] {
        self.to_u64().to_le_bytes()
    }

    /// The instruction as one number, with the opcode in the lowest byte.
    pub fn to_u64(self) -> u64 {
        u64::from(self.code)
            | u64::from(self.dst & 0xf) << 8
            | u64::from(self.src & 0xf) << 12
            | u64::from(self.off as u16) << 16
            | u64::from(self.imm as u32) << 32
    }

    /// The inverse of [`to_le_bytes`](Self::to_le_bytes).
    pub fn from_le_bytes(bytes: [u8; 8]) -> Insn {
        let [code, regs, off_low, off_high, imm @ ..] = bytes;
        Insn {
            code,
            dst: regs & 0xf,
            src: regs >> 4,
            off: i16::from_le_bytes([off_low, off_high]),
            imm: i32::from_le_bytes(imm),
        }
    }
}
