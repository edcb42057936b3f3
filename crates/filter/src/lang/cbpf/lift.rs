//! Lifting of classic BPF to the IR: registers and scratch words become values, and
//! block parameters where paths differ.
//!
//! Jumps lead forward, so all edges into a block are known when its first instruction
//! is reached; one pass by [`SsaBuilder`] suffices. A parameter exists only for a
//! variable that is read later (a liveness pass from the end finds those) and differs
//! between the edges.

use super::verify::targets;
use super::{Insn, MEM_WORDS, VerifyError, code, verify};
use crate::ir::{BinOp, Cmp, Op, Operand, Program, Width};
use crate::lang::ssa::SsaBuilder;

/// The reason why a program cannot be lifted.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LiftError {
    /// The kernel would refuse the program.
    #[error(transparent)]
    Verify(#[from] VerifyError),
    /// A load of an ancillary field, which is not in the frame.
    #[error(
        "instruction {at} asks for `{field}`, which only the kernel knows of a packet that it \
         received; test the frame's own bytes instead"
    )]
    Ancillary {
        /// Index of the instruction.
        at: usize,
        /// The name of the field in the `-d` form.
        field: &'static str,
    },
    /// A load at an address relative to a header that the kernel has located.
    #[error(
        "instruction {at} loads from {k:#x}, which the kernel counts from the {header} header \
         (byte {offset} of it); count from the start of the frame instead"
    )]
    Relative {
        /// Index of the instruction.
        at: usize,
        /// The address.
        k: u32,
        /// The header: `network` or `link-layer`.
        header: &'static str,
        /// Byte offset in that header.
        offset: u32,
    },
}

/// Verifies a program and lifts it to the IR. Time is linear in the program.
pub fn lift(insns: &[Insn]) -> Result<Program, LiftError> {
    verify(insns)?;
    for (at, insn) in insns.iter().enumerate() {
        check_address(at, insn)?;
    }
    // Registers and scratch memory are zero at the start.
    let draft = SsaBuilder::new(vec![Operand::Imm(0); VARS]);
    Ok(Lifter { draft }.run(insns))
}

/// Refuses absolute addresses that do not denote bytes of the frame. Relative to `X`,
/// such an address is outside every frame, as in libpcap.
fn check_address(at: usize, insn: &Insn) -> Result<(), LiftError> {
    let Insn { code: value, k, .. } = *insn;
    let absolute = match code::class(value) {
        code::LD => code::mode(value) == code::ABS,
        code::LDX => code::mode(value) == code::MSH,
        _ => false,
    };
    let special = absolute && k >= code::SKF_LL_OFF;
    let is_xor = code::class(value) == code::LD && k == code::SKF_AD_ALU_XOR_X;
    if !special || is_xor {
        return Ok(());
    }
    if let Some(field) = code::ancillary_name(k) {
        return Err(LiftError::Ancillary { at, field });
    }
    let (header, base) = if k >= code::SKF_NET_OFF {
        ("network", code::SKF_NET_OFF)
    } else {
        ("link-layer", code::SKF_LL_OFF)
    };
    Err(LiftError::Relative {
        at,
        k,
        header,
        offset: k - base,
    })
}

/// Indices of the variables: `A`, `X`, then the scratch words.
const A: usize = 0;
const X: usize = 1;
const MEM: usize = 2;
const VARS: usize = MEM + MEM_WORDS;

/// A bit set of variables.
type Vars = u32;

/// For each instruction, the live variables: some path from it reads them before it
/// writes them.
fn liveness(insns: &[Insn]) -> Vec<Vars> {
    let mut live: Vec<Vars> = vec![0; insns.len()];
    for (at, insn) in insns.iter().enumerate().rev() {
        let after = match code::class(insn.code) {
            code::RET => 0,
            code::JMP => targets(at, insn)
                .iter()
                .fold(0, |live_in, &target| live_in | live[target]),
            _ => live[at + 1],
        };
        let (reads, writes) = effects(insn);
        live[at] = after & !writes | reads;
    }
    live
}

const BIT_A: Vars = 1 << A;
const BIT_X: Vars = 1 << X;

/// The variables that a load reads.
fn load_reads(value: u16, k: u32) -> Vars {
    match code::mode(value) {
        code::IND => BIT_X,
        code::MEM => 1 << (MEM + k as usize),
        code::ABS if k == code::SKF_AD_ALU_XOR_X => BIT_A | BIT_X,
        _ => 0,
    }
}

/// The variables that an instruction reads, and those that it writes.
fn effects(insn: &Insn) -> (Vars, Vars) {
    let Insn { code: value, k, .. } = *insn;
    let operand = if code::takes_x(value) { BIT_X } else { 0 };
    match code::class(value) {
        code::LD => (load_reads(value, k), BIT_A),
        code::LDX => (load_reads(value, k), BIT_X),
        code::ST => (BIT_A, 1 << (MEM + k as usize)),
        code::STX => (BIT_X, 1 << (MEM + k as usize)),
        code::ALU => (BIT_A | operand, BIT_A),
        code::JMP if code::op(value) == code::JA => (0, 0),
        code::JMP => (BIT_A | operand, 0),
        code::RET if value == code::RET | code::A => (BIT_A, 0),
        code::RET => (0, 0),
        _ if value == code::MISC | code::TAX => (BIT_A, BIT_X),
        _ => (BIT_X, BIT_A),
    }
}

/// State of the lifter; a block is identified by its first instruction.
struct Lifter {
    draft: SsaBuilder<usize>,
}

impl Lifter {
    fn run(mut self, insns: &[Insn]) -> Program {
        let live = liveness(insns);
        let leader = leaders(insns);
        for (at, insn) in insns.iter().enumerate() {
            if leader[at] {
                if self.draft.is_open() {
                    self.draft.jump(at);
                }
                let live_here = live[at];
                self.draft.enter(&at, |var| live_here & (1 << var) != 0);
            }
            // Unreachable instructions get no block.
            if self.draft.is_open() {
                self.step(at, insn);
            }
        }
        self.draft.finish()
    }

    fn step(&mut self, at: usize, insn: &Insn) {
        let Insn { code: value, k, .. } = *insn;
        match code::class(value) {
            code::LD => {
                let loaded = self.load(value, k);
                self.set(A, loaded);
            }
            code::LDX => {
                let loaded = self.load(value, k);
                self.set(X, loaded);
            }
            code::ST => self.set(MEM + k as usize, self.get(A)),
            code::STX => self.set(MEM + k as usize, self.get(X)),
            code::ALU => {
                let result = self.alu(insn);
                self.set(A, result);
            }
            code::JMP => self.jump(at, insn),
            code::RET if value == code::RET | code::A => self.draft.ret(self.get(A)),
            code::RET => self.draft.ret(k.into()),
            _ if value == code::MISC | code::TAX => self.set(X, self.get(A)),
            _ => self.set(A, self.get(X)),
        }
    }

    fn jump(&mut self, at: usize, insn: &Insn) {
        let [then, otherwise] = targets(at, insn);
        if then == otherwise {
            return self.draft.jump(then);
        }
        let cmp = match code::op(insn.code) {
            code::JEQ => Cmp::Eq,
            code::JGT => Cmp::Gt,
            code::JGE => Cmp::Ge,
            _ => Cmp::Set,
        };
        let operands = [self.get(A), self.second(insn)];
        self.draft.branch(cmp, operands, then, otherwise);
    }

    fn load(&mut self, value: u16, k: u32) -> Operand {
        let width = match code::size(value) {
            code::W => Width::B4,
            code::H => Width::B2,
            _ => Width::B1,
        };
        match code::mode(value) {
            code::IMM => Operand::Imm(k),
            code::ABS if k == code::SKF_AD_ALU_XOR_X => {
                let (a, x) = (self.get(A), self.get(X));
                self.draft.bin(BinOp::Xor, a, x)
            }
            code::IND => self.draft.load(width, self.get(X), k),
            code::MEM => self.get(MEM + k as usize),
            code::LEN => self.draft.push(Op::Len),
            code::MSH => {
                let byte = self.draft.load(Width::B1, 0, k);
                let nibble = self.draft.bin(BinOp::And, byte, 0xf);
                self.draft.bin(BinOp::Shl, nibble, 2)
            }
            _ => self.draft.load(width, 0, k),
        }
    }

    fn alu(&mut self, insn: &Insn) -> Operand {
        let (a, b) = (self.get(A), self.second(insn));
        let op = match code::op(insn.code) {
            code::NEG => return self.draft.bin(BinOp::Sub, 0, a),
            code::ADD => BinOp::Add,
            code::SUB => BinOp::Sub,
            code::MUL => BinOp::Mul,
            code::DIV => BinOp::Div,
            code::MOD => BinOp::Mod,
            code::OR => BinOp::Or,
            code::AND => BinOp::And,
            code::XOR => BinOp::Xor,
            code::LSH => BinOp::Shl,
            _ => BinOp::Shr,
        };
        self.draft.bin(op, a, b)
    }

    /// The second operand of arithmetic or of a comparison.
    fn second(&self, insn: &Insn) -> Operand {
        if code::takes_x(insn.code) {
            self.get(X)
        } else {
            Operand::Imm(insn.k)
        }
    }

    fn get(&self, var: usize) -> Operand {
        self.draft.state()[var]
    }

    fn set(&mut self, var: usize, operand: Operand) {
        self.draft.state_mut()[var] = operand;
    }
}

/// Whether a jump leads to each instruction.
fn leaders(insns: &[Insn]) -> Vec<bool> {
    let mut leaders = vec![false; insns.len()];
    for (at, insn) in insns.iter().enumerate() {
        if code::class(insn.code) == code::JMP {
            for target in targets(at, insn) {
                leaders[target] = true;
            }
        }
    }
    leaders
}
