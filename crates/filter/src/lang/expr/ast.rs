//! The syntax tree, independent of the link type.
//!
//! Nodes and arithmetic are stored in post-order, in the order of the text. Children
//! precede their parents, so every pass is a loop, however deep the nesting is. A
//! primitive that shifts offsets (`vlan`, `mpls`, …) precedes all that follows it in
//! the text.

use crate::ir::{BinOp, Cmp};

use super::token::Proto;

/// A range of bytes of the text.
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

/// The direction qualifier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Dir {
    /// No qualifier; means source or destination.
    Default,
    Src,
    Dst,
    Or,
    And,
}

/// The kind of an identifier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// No qualifier; means a host.
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

/// The qualifiers of an identifier, written before it or inherited.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Quals {
    pub(super) proto: Option<Proto>,
    pub(super) dir: Dir,
    pub(super) kind: Kind,
}

/// An identifier. Its text is the node's span unless a span is given here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Id {
    Num(u32),
    Name,
    Dotted,
    /// `address/bits`; the span covers the address.
    DottedBits(Span, u32),
    /// `address mask mask`; the spans cover address and mask.
    DottedMask(Span, Span),
    Ip6,
    /// `address/bits`; the span covers the address.
    Ip6Bits(Span, u32),
    Mac,
    Arcnet,
}

/// The kind of frame that `llc` selects.
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

/// The operator of `byte N op N`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ByteOp {
    Compare(Cmp),
    /// The result of an operation is not zero.
    NonZero(BinOp),
}

/// A primitive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Prim {
    Id(Quals, Id),
    /// The name of a protocol alone.
    Abbrev(Proto),
    /// A comparison of two arithmetic nodes. The nodes of its operands are
    /// `first..=right`.
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

/// A node of the predicate; numbers are indices of earlier nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Node {
    And(u32, u32),
    Or(u32, u32),
    Not(u32),
    Prim(Prim, Span),
}

/// A node of arithmetic; numbers are indices of earlier nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Arith {
    Num(u32),
    Len,
    /// `proto[index:size]`; the span covers the protocol's word.
    Load {
        proto: Proto,
        index: u32,
        size: u32,
        span: Span,
    },
    Neg(u32),
    /// A binary operation; the span covers the right operand.
    Bin(BinOp, u32, u32, Span),
}

/// The tree of a whole text; the last node is the root.
#[derive(Clone, Default, Debug)]
pub(super) struct Ast {
    pub(super) nodes: Vec<Node>,
    pub(super) arith: Vec<Arith>,
}
