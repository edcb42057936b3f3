//! The intermediate representation of filters: a forward control-flow graph over
//! unsigned 32-bit values in SSA form, with block parameters in place of phis.
//!
//! ```text
//! filter {
//! b0:
//!   v0 = load.2 [12]            ; network order, bounds-checked
//!   br eq v0, 0x800, b1, b2
//! b1:
//!   v1 = load.1 [14]
//!   v2 = and v1, 0xf
//!   v3 = shl v2, 2
//!   v4 = load.2 [v3 + 16]
//!   br eq v4, 0x50, b3, b2
//! b2:
//!   ret 0
//! b3:
//!   ret 262144
//! }
//! ```
//!
//! Invariants, checked by [`Program::verify`]:
//! - edges lead to later blocks only, so every program ends;
//! - each value is defined once and its definition dominates every use;
//! - an edge passes as many arguments as its block has parameters;
//! - the entry block, `b0`, has no parameters and no edge leads to it;
//! - sizes stay within [`limits`].
//!
//! Semantics:
//! - a load adds base and offset without wrapping; a load with a byte outside the
//!   captured bytes rejects the frame at once;
//! - `div` and `mod` by zero reject the frame at once (as `bpf_filter(3)`);
//! - a shift by 32 or more gives zero;
//! - all other arithmetic wraps modulo 2^32; comparisons are unsigned.

mod build;
mod compose;
mod cost;
pub(crate) mod dominators;
mod text;
mod verify;

pub use build::Builder;
pub use cost::Cost;
pub use text::ParseError;
pub use verify::VerifyError;

/// Upper bounds on one program. A program within these limits takes bounded
/// memory in every pass and back end.
pub mod limits {
    /// Maximum number of blocks in one program.
    pub const BLOCKS_MAX: usize = 1 << 18;
    /// Maximum number of values (instructions and block parameters) in one program.
    pub const VALUES_MAX: usize = 1 << 20;
    /// Maximum number of parameters of one block.
    pub const BLOCK_PARAMS_MAX: usize = 64;
}

/// The snap length, in bytes, of an accepting `ret` without a requested length: it
/// keeps the whole frame. tcpdump has the same default, so programs compare equal.
pub const SNAPLEN_ALL: u32 = 262_144;

/// Identifies one SSA value: an index into [`Program::values`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Value(pub u32);

/// Identifies one block: an index into [`Program::blocks`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Block(pub u32);

impl Value {
    /// The index into [`Program::values`].
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl Block {
    /// The block where execution starts.
    pub const ENTRY: Block = Block(0);

    /// The index into [`Program::blocks`].
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// The operand of an operation: a constant or a value.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Operand {
    /// A constant.
    Imm(u32),
    /// A value defined earlier.
    Val(Value),
}

impl From<u32> for Operand {
    fn from(constant: u32) -> Self {
        Operand::Imm(constant)
    }
}

impl From<Value> for Operand {
    fn from(value: Value) -> Self {
        Operand::Val(value)
    }
}

impl Operand {
    /// The value; `None` for a constant.
    pub fn value(self) -> Option<Value> {
        match self {
            Operand::Val(value) => Some(value),
            Operand::Imm(_) => None,
        }
    }

    /// The constant; `None` for a value.
    pub fn imm(self) -> Option<u32> {
        match self {
            Operand::Imm(constant) => Some(constant),
            Operand::Val(_) => None,
        }
    }
}

/// Number of bytes that a load reads, in network order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Width {
    /// One byte.
    B1,
    /// Two bytes.
    B2,
    /// Four bytes.
    B4,
}

impl Width {
    /// The width in bytes.
    pub fn bytes(self) -> u32 {
        match self {
            Width::B1 => 1,
            Width::B2 => 2,
            Width::B4 => 4,
        }
    }

    /// The largest value that a load of this width yields.
    pub fn max_value(self) -> u32 {
        match self {
            Width::B1 => 0xff,
            Width::B2 => 0xffff,
            Width::B4 => u32::MAX,
        }
    }
}

/// An arithmetic operation with two operands.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum BinOp {
    /// Wrapping addition.
    Add,
    /// Wrapping subtraction.
    Sub,
    /// Wrapping multiplication.
    Mul,
    /// Division; by zero rejects the frame.
    Div,
    /// Remainder; by zero rejects the frame.
    Mod,
    /// Bitwise and.
    And,
    /// Bitwise or.
    Or,
    /// Bitwise exclusive or.
    Xor,
    /// Shift left; by 32 or more gives zero.
    Shl,
    /// Shift right, filling with zeros; by 32 or more gives zero.
    Shr,
}

impl BinOp {
    /// The result; `None` if the divisor is zero, which rejects the frame.
    pub fn eval(self, a: u32, b: u32) -> Option<u32> {
        Some(match self {
            BinOp::Add => a.wrapping_add(b),
            BinOp::Sub => a.wrapping_sub(b),
            BinOp::Mul => a.wrapping_mul(b),
            BinOp::Div => a.checked_div(b)?,
            BinOp::Mod => a.checked_rem(b)?,
            BinOp::And => a & b,
            BinOp::Or => a | b,
            BinOp::Xor => a ^ b,
            BinOp::Shl => a.checked_shl(b).unwrap_or(0),
            BinOp::Shr => a.checked_shr(b).unwrap_or(0),
        })
    }

    /// Whether the operands may be exchanged.
    pub fn commutes(self) -> bool {
        matches!(
            self,
            BinOp::Add | BinOp::Mul | BinOp::And | BinOp::Or | BinOp::Xor
        )
    }

    /// Whether the operation may reject the frame.
    pub fn may_reject(self) -> bool {
        matches!(self, BinOp::Div | BinOp::Mod)
    }
}

/// An unsigned comparison of two values.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Cmp {
    /// `a == b`
    Eq,
    /// `a != b`
    Ne,
    /// `a < b`
    Lt,
    /// `a <= b`
    Le,
    /// `a > b`
    Gt,
    /// `a >= b`
    Ge,
    /// `a & b != 0`
    Set,
    /// `a & b == 0`
    Clear,
}

impl Cmp {
    /// Whether the comparison holds.
    pub fn eval(self, a: u32, b: u32) -> bool {
        match self {
            Cmp::Eq => a == b,
            Cmp::Ne => a != b,
            Cmp::Lt => a < b,
            Cmp::Le => a <= b,
            Cmp::Gt => a > b,
            Cmp::Ge => a >= b,
            Cmp::Set => a & b != 0,
            Cmp::Clear => a & b == 0,
        }
    }

    /// The comparison that holds exactly when this one does not.
    pub fn negated(self) -> Cmp {
        match self {
            Cmp::Eq => Cmp::Ne,
            Cmp::Ne => Cmp::Eq,
            Cmp::Lt => Cmp::Ge,
            Cmp::Ge => Cmp::Lt,
            Cmp::Le => Cmp::Gt,
            Cmp::Gt => Cmp::Le,
            Cmp::Set => Cmp::Clear,
            Cmp::Clear => Cmp::Set,
        }
    }

    /// The comparison that holds for `(b, a)` exactly when this one does for
    /// `(a, b)`.
    pub fn swapped(self) -> Cmp {
        match self {
            Cmp::Lt => Cmp::Gt,
            Cmp::Gt => Cmp::Lt,
            Cmp::Le => Cmp::Ge,
            Cmp::Ge => Cmp::Le,
            symmetric => symmetric,
        }
    }
}

/// The operation that defines a value.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Op {
    /// A block parameter: the argument that the incoming edge passes.
    Param,
    /// The length of the frame on the wire, in bytes, which may exceed the captured
    /// bytes.
    Len,
    /// Bytes of the frame at `base + offset` in network order, zero-extended.
    Load {
        /// Number of bytes.
        width: Width,
        /// The variable part of the position, if any.
        base: Option<Value>,
        /// The constant part of the position.
        offset: u32,
    },
    /// Arithmetic.
    Bin {
        /// The operation.
        op: BinOp,
        /// Its left operand.
        a: Operand,
        /// Its right operand.
        b: Operand,
    },
    /// A comparison as a value: 1 if it holds, else 0.
    Test {
        /// The comparison.
        cmp: Cmp,
        /// Its left operand.
        a: Operand,
        /// Its right operand.
        b: Operand,
    },
}

impl Op {
    /// Whether the operation may reject the frame.
    pub fn may_reject(self) -> bool {
        match self {
            Op::Load { .. } => true,
            Op::Bin { op, b, .. } => op.may_reject() && !matches!(b, Operand::Imm(1..)),
            Op::Param | Op::Len | Op::Test { .. } => false,
        }
    }

    /// The operands in order; a load's base is one.
    pub fn operands(self) -> impl Iterator<Item = Operand> {
        let (first, second) = match self {
            Op::Param | Op::Len => (None, None),
            Op::Load { base, .. } => (base.map(Operand::Val), None),
            Op::Bin { a, b, .. } | Op::Test { a, b, .. } => (Some(a), Some(b)),
        };
        first.into_iter().chain(second)
    }

    /// The operation with each operand replaced by the result of `change`.
    ///
    /// A load's base that becomes a constant is added to the offset. A sum beyond
    /// 32 bits becomes `u32::MAX`, which is outside every frame.
    #[must_use]
    pub fn map_operands(self, mut change: impl FnMut(Operand) -> Operand) -> Op {
        match self {
            Op::Param | Op::Len => self,
            Op::Load {
                width,
                base: Some(base),
                offset,
            } => match change(Operand::Val(base)) {
                Operand::Val(base) => Op::Load {
                    width,
                    base: Some(base),
                    offset,
                },
                Operand::Imm(constant) => Op::Load {
                    width,
                    base: None,
                    offset: offset.saturating_add(constant),
                },
            },
            Op::Load { base: None, .. } => self,
            Op::Bin { op, a, b } => Op::Bin {
                op,
                a: change(a),
                b: change(b),
            },
            Op::Test { cmp, a, b } => Op::Test {
                cmp,
                a: change(a),
                b: change(b),
            },
        }
    }
}

/// A control-flow edge: the target block and the arguments for its parameters.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Edge {
    /// The target block.
    pub block: Block,
    /// The arguments, in the order of the target's parameters.
    pub args: Vec<Operand>,
}

impl Edge {
    /// An edge to a block without parameters.
    pub fn to(block: Block) -> Edge {
        Edge {
            block,
            args: Vec::new(),
        }
    }
}

/// The terminator of a block.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Term {
    /// Continue at the edge's block.
    Jump(Edge),
    /// Continue at `then` if the comparison holds, else at `otherwise`.
    Branch {
        /// The comparison.
        cmp: Cmp,
        /// Its left operand.
        a: Operand,
        /// Its right operand.
        b: Operand,
        /// Taken if the comparison holds.
        then: Edge,
        /// Taken if the comparison does not hold.
        otherwise: Edge,
    },
    /// Return the verdict: zero rejects, any other value is the snap length.
    Return(Operand),
}

impl Term {
    /// The edges that leave the block, `then` first.
    pub fn edges(&self) -> impl Iterator<Item = &Edge> {
        let (first, second) = match self {
            Term::Jump(edge) => (Some(edge), None),
            Term::Branch {
                then, otherwise, ..
            } => (Some(then), Some(otherwise)),
            Term::Return(_) => (None, None),
        };
        first.into_iter().chain(second)
    }

    /// The same edges, mutable.
    pub fn edges_mut(&mut self) -> impl Iterator<Item = &mut Edge> {
        let (first, second) = match self {
            Term::Jump(edge) => (Some(edge), None),
            Term::Branch {
                then, otherwise, ..
            } => (Some(then), Some(otherwise)),
            Term::Return(_) => (None, None),
        };
        first.into_iter().chain(second)
    }

    /// Every operand that the terminator reads: compared, returned or passed.
    pub fn operands(&self) -> impl Iterator<Item = Operand> {
        let (first, second) = match self {
            Term::Jump(_) => (None, None),
            Term::Branch { a, b, .. } => (Some(*a), Some(*b)),
            Term::Return(a) => (Some(*a), None),
        };
        let args = self.edges().flat_map(|edge| edge.args.iter().copied());
        first.into_iter().chain(second).chain(args)
    }

    /// Replaces every operand of the terminator by the result of `change`.
    pub fn map_operands(&mut self, mut change: impl FnMut(Operand) -> Operand) {
        match self {
            Term::Jump(_) => {}
            Term::Branch { a, b, .. } => {
                *a = change(*a);
                *b = change(*b);
            }
            Term::Return(a) => *a = change(*a),
        }
        for edge in self.edges_mut() {
            for arg in &mut edge.args {
                *arg = change(*arg);
            }
        }
    }
}

/// A basic block: instructions in sequence with one entry and one terminator.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BasicBlock {
    /// Block parameters, whose [`Op`] is [`Op::Param`]; each edge passes the arguments.
    pub params: Vec<Value>,
    /// Instructions: the values computed here, in order.
    pub insts: Vec<Value>,
    /// The terminator.
    pub term: Term,
}

/// A filter program: values and the blocks that compute them.
///
/// The fields are public so that passes can rewrite them; afterwards the pass calls
/// [`Program::verify`]. Values that no block lists are dead and harmless.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Program {
    /// The operation of each [`Value`].
    pub values: Vec<Op>,
    /// The contents of each [`Block`]; the first is the entry.
    pub blocks: Vec<BasicBlock>,
}

impl Program {
    /// Returns a program with the same verdict on every frame.
    pub fn constant(verdict: u32) -> Program {
        Program {
            values: Vec::new(),
            blocks: vec![BasicBlock {
                params: Vec::new(),
                insts: Vec::new(),
                term: Term::Return(Operand::Imm(verdict)),
            }],
        }
    }

    /// The operation that defines `value`.
    pub fn op(&self, value: Value) -> Op {
        self.values[value.index()]
    }

    /// The contents of `block`.
    pub fn block(&self, block: Block) -> &BasicBlock {
        &self.blocks[block.index()]
    }

    /// The program's size: the number of instructions and terminators.
    pub fn len(&self) -> usize {
        self.blocks.iter().map(|block| block.insts.len() + 1).sum()
    }

    /// Whether the program has no blocks; a verified program has at least one.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }
}
