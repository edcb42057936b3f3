//! The nodes of a tree.

use super::item::{Bits, Head};
use crate::binding::Rank;
use crate::plan::slots::{PAYLOAD_MIN, Slots};

/// The name of a node: its kind, and its number among the nodes of that kind.
/// So a frame knows the kind of a node before the node is in the cache.
///
/// ```text
///  31   30 29              0
/// ┌───────┬─────────────────┐
/// │ kind  │     number      │
/// └───────┴─────────────────┘
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NodeRef(u32);

/// The kind of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::plan) enum Kind {
    /// An inner node.
    Split = 0,
    /// A leaf of one entry.
    Item = 1,
    /// A leaf of several entries.
    List = 2,
    /// Many entries that no field distinguishes.
    Group = 3,
}

impl NodeRef {
    /// The name of no node.
    pub(crate) const NONE: NodeRef = NodeRef(u32::MAX);
    const NUMBER: u32 = (1 << 30) - 1;

    pub(super) fn new(kind: Kind, number: u32) -> NodeRef {
        debug_assert!(number < NodeRef::NUMBER - PAYLOAD_MIN);
        NodeRef((kind as u32) << 30 | number)
    }

    #[inline]
    pub(in crate::plan) fn kind(self) -> Kind {
        match self.0 >> 30 {
            0 => Kind::Split,
            1 => Kind::Item,
            2 => Kind::List,
            _ => Kind::Group,
        }
    }

    #[inline]
    pub(in crate::plan) fn number(self) -> u32 {
        self.0 & NodeRef::NUMBER
    }

    /// The payload of a slot that names the node.
    pub(super) fn payload(self) -> u32 {
        self.0 + PAYLOAD_MIN
    }
}

/// A leaf of several entries. Most frames fail the first check of most
/// entries, and read nothing else of them.
pub(in crate::plan) struct List {
    /// The rank of the first entry.
    pub(in crate::plan) best: Rank,
    /// The entries by rank.
    pub(in crate::plan) heads: Vec<Head>,
}

/// An inner node: a hash table over one field.
pub(in crate::plan) struct Split {
    pub(in crate::plan) field: Bits,
    /// The number of the whole expression among the tree's fields; `None` if
    /// there are too many fields.
    pub(in crate::plan) number: Option<u16>,
    /// Entries that do not require the whole field.
    pub(in crate::plan) rest: NodeRef,
    /// A lower bound on the ranks of the entries in the rest.
    pub(in crate::plan) rest_best: Rank,
    /// A lower bound on the ranks of the entries in the children.
    pub(in crate::plan) best: Rank,
    pub(super) slots: Slots,
}

impl Split {
    pub(super) fn new(field: Bits, number: Option<u16>) -> Split {
        Split {
            field,
            number,
            rest: NodeRef::NONE,
            rest_best: Rank::LAST,
            best: Rank::LAST,
            slots: Slots::new(),
        }
    }

    #[inline]
    pub(super) fn child(&self, hash: u32) -> NodeRef {
        let payload = self.slots.payload(hash);
        payload.map_or(NodeRef::NONE, |payload| NodeRef(payload - PAYLOAD_MIN))
    }
}
