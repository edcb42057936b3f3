//! Predicates: tests joined by and, or, not; the form between the syntax tree and the
//! graph of the IR.
//!
//! A test executes a few operations and compares. Constants are folded when they meet
//! `and`, `or` or `not`. Tests that then cannot matter are dropped with their loads, as
//! in libpcap. Registers carry positions known only at run time, such as that behind
//! a Geneve header, from the test that computes them to later loads.

use crate::ir::{BinOp, Cmp, Width};

/// A run-time value, which lives to the end of the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::lang::expr) struct Register(pub(in crate::lang::expr) u32);

/// The result of an operation: an index into [`PredicateArena::ops`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::lang::expr) struct Temp(pub(in crate::lang::expr) u32);

/// An operand of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::lang::expr) enum Source {
    Imm(u32),
    Temp(Temp),
}

impl From<u32> for Source {
    fn from(constant: u32) -> Self {
        Source::Imm(constant)
    }
}

impl From<Temp> for Source {
    fn from(temp: Temp) -> Self {
        Source::Temp(temp)
    }
}

/// An operation of a test.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::lang::expr) enum Op {
    Load {
        width: Width,
        /// Values added to the offset: the start of a header, and an index from the
        /// text.
        base: Option<Temp>,
        index: Option<Source>,
        offset: u32,
    },
    Len,
    Bin(BinOp, Source, Source),
    /// Some bits of a value. A variant apart from `Bin`, so that a computed mask in
    /// the text never counts as equal to it.
    Mask(Temp, u32),
    Get(Register),
    Set(Register, Source),
}

/// A comparison with the operations before it.
#[derive(Clone, Copy, Debug)]
pub(in crate::lang::expr) struct Test {
    /// Range of its operations in [`PredicateArena::ops`]; unused ones are not
    /// executed.
    pub(in crate::lang::expr) ops: (u32, u32),
    /// `None` for a test that only sets registers and always holds.
    pub(in crate::lang::expr) compare: Option<(Cmp, Source, Source)>,
}

/// A predicate: a constant, or an index into [`PredicateArena::nodes`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::lang::expr) struct PredRef(pub(in crate::lang::expr) u32);

impl PredRef {
    pub(in crate::lang::expr) const TRUE: PredRef = PredRef(u32::MAX);
    pub(in crate::lang::expr) const FALSE: PredRef = PredRef(u32::MAX - 1);

    /// The truth value, if it is the same for every frame.
    pub(in crate::lang::expr) fn constant(self) -> Option<bool> {
        match self {
            PredRef::TRUE => Some(true),
            PredRef::FALSE => Some(false),
            _ => None,
        }
    }

    fn of(constant: bool) -> PredRef {
        if constant {
            PredRef::TRUE
        } else {
            PredRef::FALSE
        }
    }
}

/// A predicate composed of others, each of which is used once.
#[derive(Clone, Copy, Debug)]
pub(in crate::lang::expr) enum Node {
    Test(u32),
    Not(PredRef),
    And(PredRef, PredRef),
    Or(PredRef, PredRef),
}

/// The arena of all predicates.
#[derive(Default, Debug)]
pub(in crate::lang::expr) struct PredicateArena {
    pub(in crate::lang::expr) nodes: Vec<Node>,
    /// For each node, the test that runs first.
    pub(in crate::lang::expr) heads: Vec<u32>,
    pub(in crate::lang::expr) tests: Vec<Test>,
    pub(in crate::lang::expr) ops: Vec<Op>,
    pub(in crate::lang::expr) registers: u32,
    /// Whether libpcap does not optimise such an expression.
    pub(in crate::lang::expr) unoptimised: bool,
}

impl PredicateArena {
    fn node(&mut self, node: Node, head: u32) -> PredRef {
        self.nodes.push(node);
        self.heads.push(head);
        PredRef(self.nodes.len() as u32 - 1)
    }

    pub(in crate::lang::expr) fn head(&self, pred: PredRef) -> u32 {
        self.heads[pred.0 as usize]
    }

    pub(super) fn and(&mut self, a: PredRef, b: PredRef) -> PredRef {
        match (a.constant(), b.constant()) {
            (Some(false), _) | (_, Some(true)) => a,
            (_, Some(false)) | (Some(true), _) => b,
            (None, None) => self.node(Node::And(a, b), self.head(a)),
        }
    }

    pub(super) fn or(&mut self, a: PredRef, b: PredRef) -> PredRef {
        match (a.constant(), b.constant()) {
            (Some(true), _) | (_, Some(false)) => a,
            (_, Some(true)) | (Some(false), _) => b,
            (None, None) => self.node(Node::Or(a, b), self.head(a)),
        }
    }

    pub(super) fn not(&mut self, a: PredRef) -> PredRef {
        match a.constant() {
            Some(constant) => PredRef::of(!constant),
            None => self.node(Node::Not(a), self.head(a)),
        }
    }

    pub(super) fn register(&mut self) -> Register {
        self.registers += 1;
        Register(self.registers - 1)
    }

    pub(super) fn op(&mut self, op: Op) -> Temp {
        self.ops.push(op);
        Temp(self.ops.len() as u32 - 1)
    }

    pub(super) fn bin(&mut self, op: BinOp, a: impl Into<Source>, b: impl Into<Source>) -> Temp {
        self.op(Op::Bin(op, a.into(), b.into()))
    }

    pub(super) fn set(&mut self, register: Register, value: impl Into<Source>) {
        self.op(Op::Set(register, value.into()));
    }

    /// The index of the first operation of the next test.
    pub(super) fn begin(&self) -> u32 {
        self.ops.len() as u32
    }

    /// Creates a test of the operations since `first_op`.
    pub(super) fn test(
        &mut self,
        first_op: u32,
        cmp: Cmp,
        a: impl Into<Source>,
        b: impl Into<Source>,
    ) -> PredRef {
        self.finish_test(first_op, Some((cmp, a.into(), b.into())))
    }

    /// Creates a test that always holds, for the effects of operations since `first_op`.
    pub(super) fn effect(&mut self, first_op: u32) -> PredRef {
        self.finish_test(first_op, None)
    }

    fn finish_test(&mut self, first_op: u32, compare: Option<(Cmp, Source, Source)>) -> PredRef {
        let ops = (first_op, self.begin());
        self.tests.push(Test { ops, compare });
        let test = self.tests.len() as u32 - 1;
        self.node(Node::Test(test), test)
    }
}
