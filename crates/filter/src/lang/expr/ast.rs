//! What a text says, before its meaning for a link type is known.
//!
//! Nodes and arithmetic lie in post-order, in the order of the text: children
//! come before their parents, so that every pass over them is a loop, however
//! deep the text is nested, and so that a primitive which shifts offsets
//! (`vlan`, `mpls`, …) is met before all that stands behind it.

use crate::ir::{BinOp, Cmp};

use super::token::Proto;

/// Bytes of the text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Span {
    pub(super) start: u32,
    pub(super) end: u32,
}

impl Span {
    pub(super) fn new(start: usize, end: usize) -> Span {
        Span {
            start: start as u32,
            end: end as u32,
        }
    }

    pub(super) fn range(self) -> std::ops::Range<usize> {
        self.start as usize..self.end as usize
    }

    pub(super) fn of(self, text: &str) -> &str {
        &text[self.range()]
    }
}

/// Source, destination, or which of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Dir {
    /// Not said; means either.
    Default,
    Src,
    Dst,
    Or,
    And,
}

/// What an identifier names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// Not said; means a host.
    Default,
    Host,
    Net,
    Port,
    PortRange,
    Gateway,
    Proto,
    ProtoChain,
}

impl Kind {
    pub(super) fn word(self) -> &'static str {
        match self {
            Kind::Default | Kind::Host => "host",
            Kind::Net => "net",
            Kind::Port => "port",
            Kind::PortRange => "portrange",
            Kind::Gateway => "gateway",
            Kind::Proto => "proto",
            Kind::ProtoChain => "protochain",
        }
    }
}

/// The qualifiers before an identifier, or inherited from the one before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Quals {
    pub(super) proto: Option<Proto>,
    pub(super) dir: Dir,
    pub(super) kind: Kind,
}

/// An identifier. Its text is that of the node unless said otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Id {
    Num(u32),
    Name,
    Dotted,
    /// `address/bits`, the span being the address.
    DottedBits(Span, u32),
    /// `address mask mask`.
    DottedMask(Span, Span),
    Ip6,
    /// `address/bits`, the span being the address.
    Ip6Bits(Span, u32),
    Mac,
    Arcnet,
}

/// The frames that `llc` selects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LlcKind {
    Any,
    Information,
    Supervisory,
    Unnumbered,
    /// One supervisory command.
    S(u8),
    /// One unnumbered command.
    U(u8),
}

/// The test of `byte N op N`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ByteOp {
    Compare(Cmp),
    /// Non-zero after an operation.
    NonZero(BinOp),
}

/// A primitive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Prim {
    Id(Quals, Id),
    /// A protocol's name alone.
    Abbrev(Proto),
    /// A comparison of two of the arithmetic nodes; those that belong to it
    /// are `first..=right`.
    Relation {
        cmp: Cmp,
        first: u32,
        left: u32,
        right: u32,
    },
    Broadcast(Option<Proto>),
    Multicast(Option<Proto>),
    Less(u32),
    Greater(u32),
    Byte(u32, ByteOp, u32),
    Inbound,
    Outbound,
    IfIndex(u32),
    Vlan(Option<u32>),
    Mpls(Option<u32>),
    Pppoed,
    Pppoes(Option<u32>),
    Geneve(Option<u32>),
    Vxlan(Option<u32>),
    Llc(LlcKind),
}

/// One node of the predicate; numbers are indices of earlier nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Node {
    And(u32, u32),
    Or(u32, u32),
    Not(u32),
    Prim(Prim, Span),
}

/// One node of arithmetic; numbers are indices of earlier ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Arith {
    Num(u32),
    Len,
    /// `proto[index:size]`; the span is the protocol's word.
    Load {
        proto: Proto,
        index: u32,
        size: u32,
        span: Span,
    },
    Neg(u32),
    /// The span is the operator's right side.
    Bin(BinOp, u32, u32, Span),
}

/// A whole text; the last node is the root.
#[derive(Clone, Default, Debug)]
pub(super) struct Ast {
    pub(super) nodes: Vec<Node>,
    pub(super) arith: Vec<Arith>,
}
