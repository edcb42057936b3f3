//! Many entries under one key.
//!
//! Thousands of `udp portrange` filters have one key: protocol and fragment
//! offset. Their ranges tell them apart, so a group indexes its entries by a
//! field that many of them bound: each range is cut into aligned blocks of
//! 2^level values (at most two of each level), and an entry is listed at
//! each of its blocks. A value lies in one block of each level, so a look-up
//! probes as many lists as there are levels in use.

use super::hash::WordHash;
use super::residual::Residuals;
use super::table::Entry;
use crate::binding::Rank;
use std::collections::{BTreeSet, HashMap};
use weir_filter::ir::Value;

/// Entries without an index before one is made.
const INDEX_MIN: usize = 16;
/// Indexes of one group: fields that ranges bound.
const INDEXES_MAX: usize = 4;

/// Entries in the order of their ranks.
pub(super) type Ranked = BTreeSet<(Rank, u32)>;

/// Many entries under one key.
#[derive(Clone, Debug)]
pub(super) struct Group {
    key: Box<[u64]>,
    plain: Ranked,
    indexes: Vec<RangeIndex>,
    len: usize,
}

/// Entries by a range that they test.
#[derive(Clone, Debug)]
pub(super) struct RangeIndex {
    expr: Value,
    blocks: HashMap<(u32, u32), Ranked, WordHash>,
    /// Blocks in use of each level.
    counts: [u32; 33],
}

impl Group {
    pub(super) fn new(key: &[u64]) -> Group {
        Group {
            key: key.into(),
            plain: Ranked::new(),
            indexes: Vec::new(),
            len: 0,
        }
    }

    pub(super) fn key(&self) -> &[u64] {
        &self.key
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Entries that no index holds.
    pub(super) fn plain(&self) -> &Ranked {
        &self.plain
    }

    pub(super) fn indexes(&self) -> &[RangeIndex] {
        &self.indexes
    }

    pub(super) fn insert(
        &mut self,
        index: u32,
        entry: Entry,
        residuals: &Residuals,
        entry_of: impl Fn(u32) -> Entry,
    ) {
        self.len += 1;
        if let Some((ranges, lo, hi)) = self.index_for(entry, residuals) {
            ranges.insert(lo, hi, (entry.rank, index));
            return;
        }
        self.plain.insert((entry.rank, index));
        // At powers of two only, so that looking costs a constant for each.
        if self.plain.len() >= INDEX_MIN
            && self.plain.len().is_power_of_two()
            && self.indexes.len() < INDEXES_MAX
        {
            self.make_index(residuals, entry_of);
        }
    }

    pub(super) fn remove(&mut self, index: u32, entry: Entry, residuals: &Residuals) {
        self.len -= 1;
        match self.index_for(entry, residuals) {
            Some((ranges, lo, hi)) => ranges.remove(lo, hi, (entry.rank, index)),
            None => {
                self.plain.remove(&(entry.rank, index));
            }
        }
    }

    /// The index that holds an entry, with the entry's range.
    fn index_for(
        &mut self,
        entry: Entry,
        residuals: &Residuals,
    ) -> Option<(&mut RangeIndex, u32, u32)> {
        self.indexes.iter_mut().find_map(|ranges| {
            let mut tested = residuals.ranges(entry.residual);
            let (_, lo, hi) = tested.find(|(expr, ..)| *expr == ranges.expr)?;
            Some((ranges, lo, hi))
        })
    }

    /// Makes an index on the field that most plain entries bound, if that is
    /// a quarter of them at least.
    fn make_index(&mut self, residuals: &Residuals, entry_of: impl Fn(u32) -> Entry) {
        let mut counts: HashMap<Value, usize, WordHash> = HashMap::with_hasher(WordHash::FIXED);
        let range_of = |index: u32, wanted: Option<Value>| {
            let mut tested = residuals.ranges(entry_of(index).residual);
            tested.find(|(expr, ..)| wanted.is_none_or(|wanted| wanted == *expr))
        };
        for &(_, index) in &self.plain {
            for (expr, ..) in residuals.ranges(entry_of(index).residual) {
                *counts.entry(expr).or_default() += 1;
            }
        }
        let most = counts.iter().max_by_key(|(expr, count)| (**count, **expr));
        let Some((&expr, &count)) = most else { return };
        if count * 4 < self.plain.len() {
            return;
        }
        let mut ranges = RangeIndex::new(expr);
        self.plain
            .retain(|&(rank, index)| match range_of(index, Some(expr)) {
                Some((_, lo, hi)) => {
                    ranges.insert(lo, hi, (rank, index));
                    false
                }
                None => true,
            });
        self.indexes.push(ranges);
    }
}

impl RangeIndex {
    fn new(expr: Value) -> RangeIndex {
        RangeIndex {
            expr,
            blocks: HashMap::with_hasher(WordHash::FIXED),
            counts: [0; 33],
        }
    }

    /// The expression whose ranges it holds.
    pub(super) fn expr(&self) -> Value {
        self.expr
    }

    /// The lists that hold every entry whose range contains `value`, and
    /// others' never.
    pub(super) fn lists(&self, value: u32) -> impl Iterator<Item = &Ranked> {
        let levels = (0..=32_u32).filter(|level| self.counts[*level as usize] > 0);
        levels.filter_map(move |level| {
            let block = value.checked_shr(level).unwrap_or(0);
            self.blocks.get(&(level, block))
        })
    }

    fn insert(&mut self, lo: u32, hi: u32, entry: (Rank, u32)) {
        for block in blocks(lo, hi) {
            let list = self.blocks.entry(block).or_default();
            if list.is_empty() {
                self.counts[block.0 as usize] += 1;
            }
            list.insert(entry);
        }
    }

    fn remove(&mut self, lo: u32, hi: u32, entry: (Rank, u32)) {
        for block in blocks(lo, hi) {
            if let Some(list) = self.blocks.get_mut(&block) {
                list.remove(&entry);
                if list.is_empty() {
                    self.blocks.remove(&block);
                    self.counts[block.0 as usize] -= 1;
                }
            }
        }
    }
}

/// The aligned blocks that make up `lo..=hi`: level and number.
fn blocks(lo: u32, hi: u32) -> impl Iterator<Item = (u32, u32)> {
    let (mut at, end) = (u64::from(lo), u64::from(hi) + 1);
    std::iter::from_fn(move || {
        let left = end.checked_sub(at).filter(|left| *left > 0)?;
        let level = at.trailing_zeros().min(left.ilog2()).min(32);
        let block = (level, (at >> level) as u32);
        at += 1 << level;
        Some(block)
    })
}
