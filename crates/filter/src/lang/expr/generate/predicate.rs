//! The predicate as tests joined by and, or, not: between the tree of the
//! text and the graph of the IR.
//!
//! A test computes with a few operations and compares. Constants fold as soon
//! as they meet `and`, `or` or `not`, and what cannot matter then is dropped,
//! its loads included, as libpcap does. Registers carry positions that are
//! known only at run time (behind a Geneve header) from the test that finds
//! them to those that load there.

use crate::ir::{BinOp, Cmp, Width};

/// A value that a packet decides; lives until the program ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::lang::expr) struct Register(pub(in crate::lang::expr) u32);

/// The result of an operation, by its index in [`PredicateArena::ops`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::lang::expr) struct Temp(pub(in crate::lang::expr) u32);

/// What an operation reads.
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
        /// What adds to the offset: where a header begins, and an index that
        /// the text computes.
        base: Option<Temp>,
        index: Option<Source>,
        offset: u32,
    },
    Len,
    Bin(BinOp, Source, Source),
    /// Some bits of a value; apart from `Bin`, because a value that the text
    /// computes is never taken for the same.
    Mask(Temp, u32),
    Get(Register),
    Set(Register, Source),
}

/// A comparison and the operations before it.
#[derive(Clone, Copy, Debug)]
pub(in crate::lang::expr) struct Test {
    /// Where its operations begin and end in [`PredicateArena::ops`]; those that nothing
    /// reads are not run.
    pub(in crate::lang::expr) ops: (u32, u32),
    /// `None` for a test that only sets registers and always holds.
    pub(in crate::lang::expr) compare: Option<(Cmp, Source, Source)>,
}

/// A predicate: a constant, or an index in [`PredicateArena::nodes`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::lang::expr) struct PredRef(pub(in crate::lang::expr) u32);

impl PredRef {
    pub(in crate::lang::expr) const TRUE: PredRef = PredRef(u32::MAX);
    pub(in crate::lang::expr) const FALSE: PredRef = PredRef(u32::MAX - 1);

    /// Whether it holds for every frame, or for none.
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

/// How a predicate is made of others, each used once.
#[derive(Clone, Copy, Debug)]
pub(in crate::lang::expr) enum Node {
    Test(u32),
    Not(PredRef),
    And(PredRef, PredRef),
    Or(PredRef, PredRef),
}

/// All predicates so far.
#[derive(Default, Debug)]
pub(in crate::lang::expr) struct PredicateArena {
    pub(in crate::lang::expr) nodes: Vec<Node>,
    /// For each node the test that is run first.
    pub(in crate::lang::expr) heads: Vec<u32>,
    pub(in crate::lang::expr) tests: Vec<Test>,
    pub(in crate::lang::expr) ops: Vec<Op>,
    pub(in crate::lang::expr) registers: u32,
    /// Whether libpcap, too, leaves such an expression as it is.
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

    /// Where the operations of the next test begin.
    pub(super) fn begin(&self) -> u32 {
        self.ops.len() as u32
    }

    /// Makes a test of the operations since `first_op`.
    pub(super) fn test(
        &mut self,
        first_op: u32,
        cmp: Cmp,
        a: impl Into<Source>,
        b: impl Into<Source>,
    ) -> PredRef {
        self.finish_test(first_op, Some((cmp, a.into(), b.into())))
    }

    /// Makes a test that always holds of the operations since `first_op`.
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
