//! The interpreter: the oracle for every other back end.
//!
//! The code is simple on purpose; only memory is reused between frames.

use crate::ir::{BinOp, Block, Op, Operand, Program, Term, Width};

/// Maximum number of values for which [`run`] keeps them on the stack and allocates no
/// memory.
const VALUES_ON_STACK: usize = 256;

/// Runs `program`, which must be verified, on the captured `bytes` of a frame of
/// `wire_len` bytes. Returns the snap length; zero rejects the frame.
///
/// For a large program, [`Interp`] reuses the memory for the next frame.
pub fn run(program: &Program, bytes: &[u8], wire_len: u32) -> u32 {
    let count = program.values.len();
    if count <= VALUES_ON_STACK {
        run_in(program, &mut [0; VALUES_ON_STACK], bytes, wire_len)
    } else {
        run_in(program, &mut vec![0; count], bytes, wire_len)
    }
}

/// A program with reusable memory for its values.
#[derive(Debug)]
pub struct Interp<'p> {
    program: &'p Program,
    values: Vec<u32>,
}

impl<'p> Interp<'p> {
    /// Allocates memory for `program`, which must be verified.
    pub fn new(program: &'p Program) -> Interp<'p> {
        Interp {
            program,
            values: vec![0; program.values.len()],
        }
    }

    /// Runs the program on one frame; returns the snap length, or zero to reject.
    pub fn run(&mut self, bytes: &[u8], wire_len: u32) -> u32 {
        run_in(self.program, &mut self.values, bytes, wire_len)
    }
}

/// The part of a frame that a program reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Read {
    /// The bytes of a load: the position of the first, and their number. They may lie
    /// outside the captured bytes.
    Bytes(u64, u32),
    /// The length on the wire.
    Len,
}

/// As [`run`]; calls `read` for each read before it is made. A frame that agrees in
/// everything that was read has the same verdict.
pub fn run_traced(program: &Program, bytes: &[u8], wire_len: u32, read: impl FnMut(Read)) -> u32 {
    let run = Run {
        program,
        values: &mut vec![0; program.values.len()],
        bytes,
        wire_len,
        trace: read,
    };
    run.verdict().unwrap_or(0)
}

/// Runs `program` with one slot for each value; the initial contents are ignored.
pub(super) fn run_in(program: &Program, values: &mut [u32], bytes: &[u8], wire_len: u32) -> u32 {
    let run = Run {
        program,
        values,
        bytes,
        wire_len,
        trace: |_| {},
    };
    run.verdict().unwrap_or(0)
}

/// State of one run on one frame.
struct Run<'r, T> {
    program: &'r Program,
    values: &'r mut [u32],
    bytes: &'r [u8],
    wire_len: u32,
    trace: T,
}

impl<T: FnMut(Read)> Run<'_, T> {
    /// The verdict; `None` if a load or a division rejected.
    fn verdict(mut self) -> Option<u32> {
        let mut current = Block::ENTRY;
        loop {
            let block = self.program.block(current);
            for &value in &block.insts {
                self.values[value.index()] = self.eval(self.program.op(value))?;
            }
            let edge = match &block.term {
                Term::Return(verdict) => return Some(self.read(*verdict)),
                Term::Jump(edge) => edge,
                Term::Branch {
                    cmp,
                    a,
                    b,
                    then,
                    otherwise,
                } => {
                    if cmp.eval(self.read(*a), self.read(*b)) {
                        then
                    } else {
                        otherwise
                    }
                }
            };
            // Sequential assignment is safe: edges lead forward, so no argument is a
            // parameter of the target block.
            let params = &self.program.block(edge.block).params;
            for (param, &arg) in params.iter().zip(&edge.args) {
                self.values[param.index()] = self.read(arg);
            }
            current = edge.block;
        }
    }

    fn read(&self, operand: Operand) -> u32 {
        match operand {
            Operand::Imm(constant) => constant,
            Operand::Val(value) => self.values[value.index()],
        }
    }

    fn eval(&mut self, op: Op) -> Option<u32> {
        match op {
            Op::Param => unreachable!("parameters are not instructions"),
            Op::Len => {
                (self.trace)(Read::Len);
                Some(self.wire_len)
            }
            Op::Load {
                width,
                base,
                offset,
            } => {
                let base = base.map_or(0, |base| self.values[base.index()]);
                let position = u64::from(base) + u64::from(offset);
                (self.trace)(Read::Bytes(position, width.bytes()));
                load(width, position, self.bytes)
            }
            Op::Bin { op, a, b } => BinOp::eval(op, self.read(a), self.read(b)),
            Op::Test { cmp, a, b } => Some(u32::from(cmp.eval(self.read(a), self.read(b)))),
        }
    }
}

/// Bounds-checked load in network order; `None` if a byte is outside `bytes`.
pub fn load(width: Width, position: u64, bytes: &[u8]) -> Option<u32> {
    let start = usize::try_from(position).ok()?;
    let rest = bytes.get(start..)?;
    Some(match width {
        Width::B1 => u32::from(*rest.first()?),
        Width::B2 => u32::from(u16::from_be_bytes(*rest.first_chunk()?)),
        Width::B4 => u32::from_be_bytes(*rest.first_chunk()?),
    })
}
