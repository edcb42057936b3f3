//! Lifts instructions into the IR: registers and scratch words become values,
//! and block parameters where paths bring different ones.
//!
//! Jumps lead forward, so when a block's turn comes all paths to it are known:
//! one pass, no iteration. A parameter is made only for what is read later
//! (by a liveness pass from the end) and differs between the edges in.

use super::verify::targets;
use super::{Insn, MEM_WORDS, VerifyError, code, verify};
use crate::ir::{BasicBlock, BinOp, Block, Cmp, Edge, Op, Operand, Program, Term, Value, Width};

/// Why a program has no equivalent here.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LiftError {
    /// The kernel would refuse it.
    #[error(transparent)]
    Verify(#[from] VerifyError),
    /// It asks for a field that is not in the frame.
    #[error(
        "instruction {at} asks for `{field}`, which the kernel knows of a packet it received \
         and no link here can tell; test the frame's own bytes instead"
    )]
    Ancillary {
        /// Which instruction.
        at: usize,
        /// The field's name in the `-d` form.
        field: &'static str,
    },
    /// It loads at an address counted from a header the kernel has found.
    #[error(
        "instruction {at} loads from {k:#x}, which the kernel counts from the {header} header \
         (byte {offset} of it); count from the start of the frame instead"
    )]
    Relative {
        /// Which instruction.
        at: usize,
        /// The address.
        k: u32,
        /// Which header: `network` or `link-layer`.
        header: &'static str,
        /// The byte of that header.
        offset: u32,
    },
}

/// Turns a program into the IR, after [`verify`]. Cost: linear in the program.
pub fn lift(insns: &[Insn]) -> Result<Program, LiftError> {
    verify(insns)?;
    for (at, insn) in insns.iter().enumerate() {
        check_address(at, insn)?;
    }
    let mut lifter = Lifter::new(insns);
    for at in 0..insns.len() {
        lifter.step(at);
    }
    let mut program = lifter.program;
    program.normalise();
    Ok(program)
}

/// Refuses the addresses that mean something else than bytes of the frame.
/// Relative to `X` such an address is simply outside every frame, as in
/// libpcap.
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

/// `A`, `X` and the scratch words, in this order.
const A: usize = 0;
const X: usize = 1;
const MEM: usize = 2;
const VARS: usize = MEM + MEM_WORDS;

/// What each variable is at some point.
type State = [Operand; VARS];

/// A set of variables, a bit each.
type Vars = u32;

/// For each instruction the variables that some path from it reads before it
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

/// The variables a load reads.
fn load_reads(value: u16, k: u32) -> Vars {
    match code::mode(value) {
        code::IND => BIT_X,
        code::MEM => 1 << (MEM + k as usize),
        code::ABS if k == code::SKF_AD_ALU_XOR_X => BIT_A | BIT_X,
        _ => 0,
    }
}

/// The variables an instruction reads and those it writes.
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

/// A way into a block: which edge of which block, and what it brings.
struct Entry {
    from: Block,
    slot: usize,
    state: State,
}

struct Lifter<'i> {
    insns: &'i [Insn],
    live: Vec<Vars>,
    /// Whether an instruction starts a block.
    leader: Vec<bool>,
    /// The ways into each instruction that starts a block, so far.
    entries: Vec<Vec<Entry>>,
    program: Program,
    /// The block being filled, if a path leads here.
    open: Option<Open>,
}

struct Open {
    params: Vec<Value>,
    insts: Vec<Value>,
    state: State,
}

impl<'i> Lifter<'i> {
    fn new(insns: &'i [Insn]) -> Lifter<'i> {
        let mut leader = vec![false; insns.len()];
        for (at, insn) in insns.iter().enumerate() {
            if code::class(insn.code) == code::JMP {
                for target in targets(at, insn) {
                    leader[target] = true;
                }
            }
        }
        Lifter {
            insns,
            live: liveness(insns),
            leader,
            entries: insns.iter().map(|_| Vec::new()).collect(),
            program: Program {
                values: Vec::new(),
                blocks: Vec::new(),
            },
            open: Some(Open {
                params: Vec::new(),
                insts: Vec::new(),
                state: [Operand::Imm(0); VARS],
            }),
        }
    }

    fn step(&mut self, at: usize) {
        if self.leader[at] {
            if self.open.is_some() {
                self.end(Term::Jump(Edge::to(Block::ENTRY)), &[at]);
            }
            self.enter(at);
        }
        // What no path reaches has no block.
        if self.open.is_none() {
            return;
        }
        let insn = self.insns[at];
        match code::class(insn.code) {
            code::JMP => self.jump(at, &insn),
            code::RET => {
                let by_a = insn.code == code::RET | code::A;
                let verdict = if by_a { self.get(A) } else { insn.k.into() };
                self.end(Term::Return(verdict), &[]);
            }
            _ => self.compute(&insn),
        }
    }

    /// Opens the block at a leader, from all the ways into it.
    fn enter(&mut self, at: usize) {
        let entries = std::mem::take(&mut self.entries[at]);
        let Some(first) = entries.first() else {
            return;
        };
        let mut state = [Operand::Imm(0); VARS];
        let mut params = Vec::new();
        for var in (0..VARS).filter(|var| self.live[at] & (1 << var) != 0) {
            let shared = first.state[var];
            if entries.iter().all(|entry| entry.state[var] == shared) {
                state[var] = shared;
                continue;
            }
            let param = define(&mut self.program, Op::Param);
            params.push(param);
            state[var] = Operand::Val(param);
            for entry in &entries {
                let term = &mut self.program.blocks[entry.from.index()].term;
                if let Some(edge) = term.edges_mut().nth(entry.slot) {
                    edge.args.push(entry.state[var]);
                }
            }
        }
        let block = Block(self.program.blocks.len() as u32);
        for entry in &entries {
            let term = &mut self.program.blocks[entry.from.index()].term;
            if let Some(edge) = term.edges_mut().nth(entry.slot) {
                edge.block = block;
            }
        }
        self.open = Some(Open {
            params,
            insts: Vec::new(),
            state,
        });
    }

    /// Closes the open block; its edges lead to the blocks at `targets`, whose
    /// names they get when those are opened.
    fn end(&mut self, term: Term, targets: &[usize]) {
        let Some(open) = self.open.take() else {
            return;
        };
        let from = Block(self.program.blocks.len() as u32);
        for (slot, &target) in targets.iter().enumerate() {
            self.entries[target].push(Entry {
                from,
                slot,
                state: open.state,
            });
        }
        self.program.blocks.push(BasicBlock {
            params: open.params,
            insts: open.insts,
            term,
        });
    }

    fn jump(&mut self, at: usize, insn: &Insn) {
        let [then, otherwise] = targets(at, insn);
        if then == otherwise {
            return self.end(Term::Jump(Edge::to(Block::ENTRY)), &[then]);
        }
        let cmp = match code::op(insn.code) {
            code::JEQ => Cmp::Eq,
            code::JGT => Cmp::Gt,
            code::JGE => Cmp::Ge,
            _ => Cmp::Set,
        };
        let term = Term::Branch {
            cmp,
            a: self.get(A),
            b: self.second(insn),
            then: Edge::to(Block::ENTRY),
            otherwise: Edge::to(Block::ENTRY),
        };
        self.end(term, &[then, otherwise]);
    }

    /// Executes an instruction that does not end a block.
    fn compute(&mut self, insn: &Insn) {
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
            _ if value == code::MISC | code::TAX => self.set(X, self.get(A)),
            _ => self.set(A, self.get(X)),
        }
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
                let (a, b) = (self.get(A), self.get(X));
                self.push(Op::Bin {
                    op: BinOp::Xor,
                    a,
                    b,
                })
            }
            code::IND => match self.get(X) {
                Operand::Val(base) => self.push_load(width, Some(base), k),
                // Beyond 32 bits is outside every frame; so is the last byte.
                Operand::Imm(base) => self.push_load(width, None, k.saturating_add(base)),
            },
            code::MEM => self.get(MEM + k as usize),
            code::LEN => self.push(Op::Len),
            code::MSH => {
                let byte = self.push_load(Width::B1, None, k);
                let nibble = self.push_bin(BinOp::And, byte, Operand::Imm(0xf));
                self.push_bin(BinOp::Shl, nibble, Operand::Imm(2))
            }
            _ => self.push_load(width, None, k),
        }
    }

    fn alu(&mut self, insn: &Insn) -> Operand {
        let (a, b) = (self.get(A), self.second(insn));
        let op = match code::op(insn.code) {
            code::NEG => return self.push_bin(BinOp::Sub, Operand::Imm(0), a),
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
        self.push_bin(op, a, b)
    }

    /// The second operand of arithmetic or a comparison.
    fn second(&self, insn: &Insn) -> Operand {
        if code::takes_x(insn.code) {
            self.get(X)
        } else {
            Operand::Imm(insn.k)
        }
    }

    fn get(&self, var: usize) -> Operand {
        self.open
            .as_ref()
            .map_or(Operand::Imm(0), |open| open.state[var])
    }

    fn set(&mut self, var: usize, operand: Operand) {
        if let Some(open) = &mut self.open {
            open.state[var] = operand;
        }
    }

    fn push(&mut self, op: Op) -> Operand {
        let value = define(&mut self.program, op);
        if let Some(open) = &mut self.open {
            open.insts.push(value);
        }
        Operand::Val(value)
    }

    fn push_bin(&mut self, op: BinOp, a: Operand, b: Operand) -> Operand {
        self.push(Op::Bin { op, a, b })
    }

    fn push_load(&mut self, width: Width, base: Option<Value>, offset: u32) -> Operand {
        self.push(Op::Load {
            width,
            base,
            offset,
        })
    }
}

fn define(program: &mut Program, op: Op) -> Value {
    program.values.push(op);
    Value(program.values.len() as u32 - 1)
}
