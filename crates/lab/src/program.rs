//! Random filter programs and frames, for differential and property tests.
//!
//! All choices are read from a [`Tape`] of bytes, so that one generator serves
//! seeded loops ([`Tape::seeded`]), proptest (a shrinking `Vec<u8>`) and
//! fuzzers (their input). Any tape gives a verified program: an exhausted tape
//! reads as zeros, and zeros select the simplest alternative.

use weir_filter::ir::{
    BasicBlock, BinOp, Block, Cmp, Edge, Op, Operand, Program, Term, Value, Width,
};
use weir_wire::rng::SplitMix64;

/// Largest number of blocks in a generated program.
pub const BLOCKS_MAX: usize = 24;

/// Largest number of captured bytes in a generated frame.
pub const FRAME_BYTES_MAX: usize = 128;

/// A finite source of choices.
#[derive(Clone, Debug)]
pub struct Tape {
    bytes: Vec<u8>,
    next: usize,
}

impl Tape {
    /// A tape of the given bytes.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Tape {
        Tape {
            bytes: bytes.into(),
            next: 0,
        }
    }

    /// `len` bytes from `seed`, by splitmix64: the same on every machine.
    pub fn seeded(seed: u64, len: usize) -> Tape {
        let mut rng = SplitMix64::new(seed);
        let mut bytes = Vec::with_capacity(len + 8);
        while bytes.len() < len {
            bytes.extend_from_slice(&rng.bits().to_le_bytes());
        }
        bytes.truncate(len);
        Tape::new(bytes)
    }

    /// The next byte, or 0 at the end of the tape.
    pub fn byte(&mut self) -> u8 {
        let byte = self.bytes.get(self.next).copied().unwrap_or(0);
        self.next += 1;
        byte
    }

    /// A 32-bit number from four bytes.
    pub fn word(&mut self) -> u32 {
        u32::from_be_bytes([self.byte(), self.byte(), self.byte(), self.byte()])
    }

    /// A number below `bound`, which is at most 256.
    pub fn below(&mut self, bound: usize) -> usize {
        usize::from(self.byte()) % bound.max(1)
    }

    /// One of `items`.
    pub fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())]
    }

    /// True with a probability of `percent` %.
    pub fn chance(&mut self, percent: usize) -> bool {
        self.below(100) >= 100 - percent
    }
}

/// A random program from one seed.
pub fn seeded(seed: u64) -> Program {
    program(&mut Tape::seeded(seed, 1_500))
}

/// A random program with many branches on a few bytes and constants, loaded
/// repeatedly: tests imply each other in many ways, which exercises jump
/// threading. [`dense_frame`] makes matching frames.
pub fn dense_program(tape: &mut Tape) -> Program {
    let count = 4 + tape.below(60);
    let mut builder = weir_filter::ir::Builder::new();
    let blocks: Vec<Block> = (1..count).map(|_| builder.block()).collect();
    for index in 0..count {
        builder.switch_to(Block(index as u32));
        // Edges lead a short distance forward, so that paths join soon and
        // often.
        let ahead = |tape: &mut Tape| {
            let ahead = blocks.get(index + tape.below(6));
            *ahead.unwrap_or(&blocks[blocks.len() - 1])
        };
        let (then, otherwise) = (ahead(tape), ahead(tape));
        if index + 3 >= count || tape.chance(2) {
            builder.ret(tape.pick(&[0, 1, 7]));
            continue;
        }
        let mut byte = builder.load(Width::B1, None, tape.below(3) as u32);
        if tape.chance(20) {
            byte = builder.bin(BinOp::And, byte, tape.pick(&[1, 2, 3]));
        }
        if tape.chance(10) {
            byte = builder.load(Width::B1, Some(byte), tape.below(3) as u32);
        }
        let cmp = tape.pick(&[Cmp::Eq, Cmp::Eq, Cmp::Ne, Cmp::Gt, Cmp::Set]);
        builder.branch(cmp, byte, tape.below(4) as u32, then, otherwise);
    }
    builder.finish()
}

/// A frame for [`dense_program`].
pub fn dense_frame(tape: &mut Tape) -> Frame {
    let len = tape.pick(&[8, 8, 8, 0, 1, 2, 3, 4]);
    let bytes: Vec<u8> = (0..len).map(|_| tape.below(5) as u8).collect();
    Frame {
        wire_len: len,
        bytes,
    }
}

const BIN_OPS: [BinOp; 10] = [
    BinOp::And,
    BinOp::Add,
    BinOp::Sub,
    BinOp::Shl,
    BinOp::Shr,
    BinOp::Or,
    BinOp::Xor,
    BinOp::Mul,
    BinOp::Div,
    BinOp::Mod,
];

const CMPS: [Cmp; 8] = [
    Cmp::Eq,
    Cmp::Ne,
    Cmp::Gt,
    Cmp::Ge,
    Cmp::Lt,
    Cmp::Le,
    Cmp::Set,
    Cmp::Clear,
];

/// Constants near which operations change their behaviour.
const CONSTANTS: [u32; 24] = [
    0,
    1,
    2,
    3,
    4,
    5,
    7,
    8,
    0xf,
    14,
    16,
    20,
    31,
    32,
    33,
    60,
    0xff,
    0x100,
    0x800,
    0x1fff,
    0xffff,
    0x7fff_ffff,
    0x8000_0000,
    u32::MAX,
];

/// A random verified program: up to [`BLOCKS_MAX`] blocks, all operations,
/// loads at constant and variable offsets (few distinct ones, so that they
/// recur), block parameters, tests as values, verdicts of several kinds.
pub fn program(tape: &mut Tape) -> Program {
    let mut generator = Generator::skeleton(tape);
    let dominators = generator.program.immediate_dominators();
    for index in 0..generator.program.blocks.len() {
        generator.fill(tape, index, &dominators);
    }
    let program = generator.program;
    program.verify().expect("generated programs are verified");
    program
}

struct Generator {
    program: Program,
    /// For each block, the values of the block and of its dominators.
    available: Vec<Vec<Value>>,
    /// The offsets and constants that this program uses.
    offsets: [u32; 4],
    constants: [u32; 4],
}

impl Generator {
    /// Blocks with edges and parameters, without arguments and instructions.
    fn skeleton(tape: &mut Tape) -> Generator {
        let count = 1 + tape.below(BLOCKS_MAX);
        let offsets = std::array::from_fn(|_| tape.below(48) as u32);
        let constants = std::array::from_fn(|_| constant(tape));
        let mut values = Vec::new();
        let mut blocks = Vec::new();
        for index in 0..count {
            let left = count - index - 1;
            let mut params = Vec::new();
            if index > 0 && tape.chance(25) {
                for _ in 0..1 + tape.below(3) {
                    params.push(Value(values.len() as u32));
                    values.push(Op::Param);
                }
            }
            blocks.push(BasicBlock {
                params,
                insts: Vec::new(),
                term: term(tape, index, left),
            });
        }
        Generator {
            program: Program { values, blocks },
            available: Vec::new(),
            offsets,
            constants,
        }
    }

    fn fill(&mut self, tape: &mut Tape, index: usize, dominators: &[Block]) {
        let dominator = dominators[index].index();
        let mut available = if dominator < index {
            self.available[dominator].clone()
        } else {
            Vec::new()
        };
        available.extend(&self.program.blocks[index].params);
        self.available.push(available);
        for _ in 0..tape.below(4) {
            let op = self.op(tape, index);
            let value = Value(self.program.values.len() as u32);
            self.program.values.push(op);
            self.program.blocks[index].insts.push(value);
            self.available[index].push(value);
        }
        self.finish_term(tape, index);
    }

    fn op(&self, tape: &mut Tape, index: usize) -> Op {
        match tape.below(16) {
            0..=5 => Op::Load {
                width: tape.pick(&[Width::B2, Width::B1, Width::B4]),
                base: None,
                offset: self.offset(tape),
            },
            6..=8 => Op::Load {
                width: tape.pick(&[Width::B2, Width::B1, Width::B4]),
                base: self.value(tape, index),
                offset: self.offset(tape),
            },
            9 => Op::Len,
            10 | 11 => Op::Test {
                cmp: tape.pick(&CMPS),
                a: self.operand(tape, index),
                b: self.operand(tape, index),
            },
            12 => Op::Bin {
                op: BinOp::And,
                a: self.operand(tape, index),
                b: Operand::Imm(tape.pick(&[0xf, 1, 3, 0xf0, 0xff, 0xffff])),
            },
            _ => Op::Bin {
                op: tape.pick(&BIN_OPS),
                a: self.operand(tape, index),
                b: self.operand(tape, index),
            },
        }
    }

    fn offset(&self, tape: &mut Tape) -> u32 {
        match tape.below(16) {
            0..=11 => tape.pick(&self.offsets),
            12..=14 => tape.below(140) as u32,
            _ => constant(tape),
        }
    }

    /// A value available in block `index`, preferring recent ones.
    fn value(&self, tape: &mut Tape, index: usize) -> Option<Value> {
        let available = &self.available[index];
        if available.is_empty() {
            return None;
        }
        let back = if tape.chance(60) {
            tape.below(available.len().min(3))
        } else {
            tape.below(available.len())
        };
        Some(available[available.len() - 1 - back])
    }

    fn operand(&self, tape: &mut Tape, index: usize) -> Operand {
        if tape.chance(80)
            && let Some(value) = self.value(tape, index)
        {
            return Operand::Val(value);
        }
        Operand::Imm(if tape.chance(70) {
            tape.pick(&self.constants)
        } else {
            constant(tape)
        })
    }

    /// Fills in the operands, return values and arguments of the terminator.
    fn finish_term(&mut self, tape: &mut Tape, index: usize) {
        let mut term = self.program.blocks[index].term.clone();
        match &mut term {
            Term::Jump(_) => {}
            Term::Branch { a, b, .. } => {
                *a = self.operand(tape, index);
                *b = if tape.chance(20) {
                    self.operand(tape, index)
                } else {
                    Operand::Imm(tape.pick(&self.constants))
                };
            }
            Term::Return(verdict) => {
                *verdict = match tape.below(6) {
                    0 | 1 => Operand::Imm(0),
                    2 | 3 => Operand::Imm(262_144),
                    _ => self.operand(tape, index),
                };
            }
        }
        for edge in term.edges_mut() {
            for _ in 0..self.program.blocks[edge.block.index()].params.len() {
                edge.args.push(self.operand(tape, index));
            }
        }
        self.program.blocks[index].term = term;
    }
}

/// A terminator of block `index`, with `left` blocks behind it.
fn term(tape: &mut Tape, index: usize, left: usize) -> Term {
    let edge = |tape: &mut Tape| {
        // Mostly to a near block, sometimes to one of the last, where paths
        // join.
        let step = match tape.below(4) {
            0..=2 => tape.below(left.min(3)),
            _ => left - 1 - tape.below(left.min(3)),
        };
        Edge::to(Block((index + 1 + step) as u32))
    };
    match tape.below(10) {
        _ if left == 0 => Term::Return(Operand::Imm(0)),
        0 => Term::Return(Operand::Imm(0)),
        1 | 2 => Term::Jump(edge(tape)),
        _ => Term::Branch {
            cmp: tape.pick(&CMPS),
            a: Operand::Imm(0),
            b: Operand::Imm(0),
            then: edge(tape),
            otherwise: edge(tape),
        },
    }
}

fn constant(tape: &mut Tape) -> u32 {
    match tape.below(8) {
        0..=5 => tape.pick(&CONSTANTS),
        6 => u32::from(tape.byte()),
        _ => tape.word(),
    }
}

/// A frame: captured bytes and wire length, which is at least as long.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Frame {
    /// The captured bytes, at most [`FRAME_BYTES_MAX`].
    pub bytes: Vec<u8>,
    /// The length on the wire.
    pub wire_len: u32,
}

/// A random frame. Many bytes are constants on which programs branch, so that
/// both sides of a test occur.
pub fn frame(tape: &mut Tape) -> Frame {
    let len = tape.below(FRAME_BYTES_MAX + 1);
    let plain = tape.below(3);
    let bytes: Vec<u8> = (0..len)
        .map(|_| match tape.below(4) {
            kind if kind < plain => 0,
            0..=2 => constant(tape) as u8,
            _ => tape.byte(),
        })
        .collect();
    // A capture file may state a wire length below the number of captured
    // bytes.
    let wire_len = match tape.below(8) {
        0..=3 => len as u32,
        4 | 5 => len as u32 + u32::from(tape.byte()),
        6 => (len as u32).saturating_add(constant(tape)),
        _ => constant(tape),
    };
    Frame { wire_len, bytes }
}

/// `count` frames from `seed`.
pub fn frames(seed: u64, count: usize) -> Vec<Frame> {
    let mut tape = Tape::seeded(seed ^ 0x00f4_a3e5, count * 400);
    (0..count).map(|_| frame(&mut tape)).collect()
}
