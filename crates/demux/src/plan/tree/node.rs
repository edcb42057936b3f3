//! The nodes of a tree.

use super::children::Children;
use super::item::{Bits, FirstCheck, LANES, LaneChecks};
use crate::binding::Rank;
use weir_filter::ir::Value;

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
        debug_assert!(number < NodeRef::NUMBER);
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

    /// The name as a word other than zero, which stands for no node.
    #[inline]
    pub(super) fn to_word(self) -> u32 {
        !self.0
    }

    #[inline]
    pub(super) fn from_word(word: u32) -> NodeRef {
        NodeRef(!word)
    }
}

/// An inner node: a hash table over one field. A frame reads this cache line,
/// and one of the children's.
#[repr(align(64))]
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
    pub(super) children: Children,
}

const _: () = assert!(size_of::<Split>() == 64);

impl Split {
    pub(super) fn new(field: Bits, number: Option<u16>) -> Split {
        Split {
            field,
            number,
            rest: NodeRef::NONE,
            rest_best: Rank::LAST,
            best: Rank::LAST,
            children: Children::new(),
        }
    }

    /// A node that no frame reads.
    pub(super) fn nothing() -> Split {
        let (expr, mask) = (Value(0), 0);
        Split::new(Bits { expr, mask }, None)
    }

    /// Whether the node has neither children nor a rest.
    pub(super) fn is_empty(&self) -> bool {
        self.rest == NodeRef::NONE && self.children.is_empty()
    }
}

/// Number of entries of a list whose checks stand in it.
pub(super) const LIST_WIDTH: usize = 8;

/// A leaf of several entries, with a check of each of the first ones: of the
/// lane that distinguishes them best, so that a frame is compared with all at
/// once; or, if no lane does, of the field that is the most selective for the
/// entry. Most frames fail the checks of most entries, and read nothing else of
/// them.
#[repr(align(64))]
pub(in crate::plan) struct List {
    lo: [u32; LIST_WIDTH],
    span: [u32; LIST_WIDTH],
    /// The numbers of the first items, by rank.
    first: [u32; LIST_WIDTH],
    /// The rank of the first entry.
    pub(in crate::plan) best: Rank,
    /// The numbers of further items, by rank.
    #[expect(
        clippy::box_collection,
        reason = "one word, so that a list is two lines"
    )]
    more: Option<Box<Vec<u32>>>,
    /// The field of each check; [`UNCHECKED`](List::UNCHECKED) for none.
    fields: [u8; LIST_WIDTH],
    /// The lane of all checks; [`UNCHECKED`](List::UNCHECKED) if they have
    /// fields of their own.
    lane: u8,
    /// Number of first items.
    count: u8,
}

const _: () = assert!(size_of::<List>() == 128);

impl List {
    const UNCHECKED: u8 = u8::MAX;

    /// A list that no frame reads.
    pub(super) fn nothing() -> List {
        List::new(&[], Rank::LAST, &[])
    }

    /// A list of items, by rank; the first has the rank `best`. `checks` has
    /// the checks of the first [`LIST_WIDTH`] items.
    pub(super) fn new(items: &[u32], best: Rank, checks: &[(&LaneChecks, FirstCheck)]) -> List {
        let (first, more) = items.split_at(items.len().min(LIST_WIDTH));
        let lane = common_lane(checks);
        let mut list = List {
            lo: [0; LIST_WIDTH],
            span: [u32::MAX; LIST_WIDTH],
            first: [0; LIST_WIDTH],
            best,
            more: (!more.is_empty()).then(|| Box::new(more.to_vec())),
            fields: [List::UNCHECKED; LIST_WIDTH],
            lane: lane.map_or(List::UNCHECKED, |lane| lane as u8),
            count: first.len() as u8,
        };
        list.first[..first.len()].copy_from_slice(first);
        for (at, (checks, first)) in checks.iter().enumerate().take(first.len()) {
            (list.lo[at], list.span[at]) = match lane {
                Some(lane) => checks.range(lane),
                None => (first.lo, first.span),
            };
            list.fields[at] = u8::try_from(first.field).unwrap_or(List::UNCHECKED);
        }
        list
    }

    /// All items, by rank.
    pub(super) fn items(&self) -> impl Iterator<Item = u32> {
        let first = &self.first[..usize::from(self.count)];
        first.iter().copied().chain(self.more())
    }

    /// The items that have no check in the list, by rank.
    #[inline]
    pub(in crate::plan) fn more(&self) -> impl Iterator<Item = u32> {
        self.more.iter().flat_map(|more| more.iter().copied())
    }

    /// The first item at a position below [`LIST_WIDTH`].
    #[inline]
    pub(in crate::plan) fn first(&self, at: u32) -> u32 {
        self.first[at as usize % LIST_WIDTH]
    }

    /// The positions of the first items that a frame passes, a bit for each;
    /// `value` returns the value of a field.
    #[inline]
    pub(in crate::plan) fn passing(&self, mut value: impl FnMut(u16) -> Option<u32>) -> u32 {
        let all = (1 << self.count) - 1;
        if self.lane == List::UNCHECKED {
            let mut passing = 0;
            for (at, field) in self.fields.iter().take(self.count.into()).enumerate() {
                let passes = *field == List::UNCHECKED
                    || value((*field).into())
                        .is_some_and(|value| value.wrapping_sub(self.lo[at]) <= self.span[at]);
                passing |= u32::from(passes) << at;
            }
            return passing;
        }
        let Some(value) = value(self.lane.into()) else {
            // Some entries may do without the lane.
            return all;
        };
        // No branch for each item, so that the compiler compares several at
        // once.
        let mut passing = 0;
        for (at, (lo, span)) in self.lo.iter().zip(&self.span).enumerate() {
            passing |= u32::from(value.wrapping_sub(*lo) <= *span) << at;
        }
        passing & all
    }
}

/// The lane in which the fewest entries accept the same frames; `None` if there
/// is no lane in which half of them do not.
fn common_lane(checks: &[(&LaneChecks, FirstCheck)]) -> Option<usize> {
    let count = checks.len();
    if count < 2 || checks.iter().any(|(_, first)| first.is_outside_lanes()) {
        return None;
    }
    let accepting = |lane: usize| {
        let ranges = checks.iter().map(|(checks, _)| checks.range(lane));
        let accept = |value: u32| {
            let accepts = |(lo, span): &(u32, u32)| value.wrapping_sub(*lo) <= *span;
            ranges.clone().filter(accepts).count()
        };
        ranges.clone().map(|(lo, _)| accept(lo)).sum::<usize>()
    };
    let (least, lane) = (0..LANES).map(|lane| (accepting(lane), lane)).min()?;
    (2 * least <= count * count).then_some(lane)
}
