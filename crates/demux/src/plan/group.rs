//! A group: many entries under one key, indexed by the ranges that they test.
//!
//! Thousands of `udp portrange` filters have one key: protocol and fragment
//! offset. Only their ranges distinguish them, so a group indexes its entries
//! by a field that many of them bound. The index cuts each range into aligned
//! blocks of 2^level values (at most two of each level) and lists the entry at
//! each block. A value lies in one block of each level, so a look-up probes one
//! list for each level in use.
//!
//! A new index takes entries that are inserted after it. Present entries move
//! to the index a few at a time with later changes, so that no change waits for
//! all of them.

use super::hash::WordHash;
use super::residual::Residuals;
use super::table::Entry;
use crate::binding::Rank;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound::{self, Excluded, Unbounded};
use weir_filter::ir::Value;

/// Number of entries without an index before an index is made.
const INDEX_MIN: usize = 16;
/// Number of indexes of one group: fields that ranges bound.
const INDEXES_MAX: usize = 4;
/// Number of plain entries checked with each change while entries move to a new
/// index.
const MIGRATE_PER_BIND: usize = 8;

/// Entries sorted by rank.
pub(super) type Ranked<N> = BTreeSet<(Rank, N)>;

/// Many entries under one key, or many that a tree cannot distinguish; `N` is
/// the name of an entry.
#[derive(Clone)]
pub(super) struct Group<N> {
    key: Box<[u64]>,
    /// The hash of the indexes' blocks.
    hash: WordHash,
    plain: Ranked<N>,
    /// Number of plain entries that bound each expression.
    bounded: BTreeMap<Value, usize>,
    indexes: Vec<RangeIndex<N>>,
    /// Plain entries from this one on may belong in the newest index; `None` if
    /// all have been checked.
    moving: Option<Bound<(Rank, N)>>,
    len: usize,
}

/// Entries indexed by a range that they test.
#[derive(Clone)]
pub(super) struct RangeIndex<N> {
    expr: Value,
    /// A standard map, although it moves all its content when it grows: most
    /// look-ups find nothing, and that costs half of what it does in
    /// [`Slots`](super::slots::Slots).
    blocks: HashMap<Block, Ranked<N>, WordHash>,
    /// Number of blocks in use at each level.
    counts: [u32; 33],
}

/// An aligned block of values: its level, and its number among the blocks of
/// that level.
type Block = (u32, u32);

impl<N: Copy + Ord> Group<N> {
    /// A group without entries; `hash` is for its indexes.
    pub(super) fn new(key: &[u64], hash: WordHash) -> Group<N> {
        Group {
            key: key.into(),
            hash,
            plain: Ranked::new(),
            bounded: BTreeMap::new(),
            indexes: Vec::new(),
            moving: None,
            len: 0,
        }
    }

    pub(super) fn key(&self) -> &[u64] {
        &self.key
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Entries that are in no index.
    pub(super) fn plain(&self) -> &Ranked<N> {
        &self.plain
    }

    pub(super) fn indexes(&self) -> &[RangeIndex<N>] {
        &self.indexes
    }

    pub(super) fn insert(
        &mut self,
        index: N,
        entry: Entry,
        residuals: &Residuals,
        entry_of: impl Fn(N) -> Option<Entry>,
    ) {
        self.len += 1;
        match self.index_for(entry, residuals) {
            Some((ranges, lo, hi)) => ranges.insert(lo, hi, (entry.rank, index)),
            None => {
                self.plain.insert((entry.rank, index));
                for (expr, ..) in residuals.ranges(entry.residual) {
                    *self.bounded.entry(expr).or_default() += 1;
                }
                self.make_index(entry, residuals);
            }
        }
        self.migrate_some(residuals, entry_of);
    }

    pub(super) fn remove(
        &mut self,
        index: N,
        entry: Entry,
        residuals: &Residuals,
        entry_of: impl Fn(N) -> Option<Entry>,
    ) {
        self.len -= 1;
        // An entry whose index is new may not have moved to it yet.
        if self.plain.remove(&(entry.rank, index)) {
            self.discount(entry, residuals);
        } else if let Some((ranges, lo, hi)) = self.index_for(entry, residuals) {
            ranges.remove(lo, hi, (entry.rank, index));
        }
        self.migrate_some(residuals, entry_of);
    }

    /// Updates `bounded` for an entry that is no longer plain.
    fn discount(&mut self, entry: Entry, residuals: &Residuals) {
        for (expr, ..) in residuals.ranges(entry.residual) {
            if let Some(count) = self.bounded.get_mut(&expr) {
                *count -= 1;
                if *count == 0 {
                    self.bounded.remove(&expr);
                }
            }
        }
    }

    /// The index that an entry belongs in, with the entry's range: the oldest
    /// index whose expression the entry bounds. `None` if there is no such
    /// index.
    fn index_for(
        &mut self,
        entry: Entry,
        residuals: &Residuals,
    ) -> Option<(&mut RangeIndex<N>, u32, u32)> {
        self.indexes.iter_mut().find_map(|ranges| {
            let mut tested = residuals.ranges(entry.residual);
            let (_, lo, hi) = tested.find(|(expr, ..)| *expr == ranges.expr)?;
            Some((ranges, lo, hi))
        })
    }

    /// Makes an index on the expression of the new plain entry that most plain
    /// entries bound, if at least a quarter of them do. Only one index fills at
    /// a time, so that an entry is always in its index unless that is the
    /// newest.
    fn make_index(&mut self, entry: Entry, residuals: &Residuals) {
        if self.plain.len() < INDEX_MIN
            || self.indexes.len() == INDEXES_MAX
            || self.moving.is_some()
        {
            return;
        }
        let exprs = residuals.ranges(entry.residual).map(|(expr, ..)| expr);
        let counted = exprs.filter_map(|expr| Some((*self.bounded.get(&expr)?, expr)));
        if let Some((count, expr)) = counted.max()
            && count * 4 >= self.plain.len()
        {
            self.indexes.push(RangeIndex::new(expr, self.hash));
            self.moving = Some(Unbounded);
        }
    }

    /// Moves some plain entries to the newest index, if they belong there.
    fn migrate_some(&mut self, residuals: &Residuals, entry_of: impl Fn(N) -> Option<Entry>) {
        let Some(from) = self.moving else { return };
        let rest = self.plain.range((from, Unbounded));
        let some: Vec<(Rank, N)> = rest.take(MIGRATE_PER_BIND).copied().collect();
        for &(rank, index) in &some {
            let Some(entry) = entry_of(index) else {
                continue;
            };
            if let Some((ranges, lo, hi)) = self.index_for(entry, residuals) {
                ranges.insert(lo, hi, (rank, index));
                self.plain.remove(&(rank, index));
                self.discount(entry, residuals);
            }
        }
        let last = some.last().filter(|_| some.len() == MIGRATE_PER_BIND);
        self.moving = last.map(|last| Excluded(*last));
    }
}

impl<N: Copy + Ord> RangeIndex<N> {
    fn new(expr: Value, hash: WordHash) -> RangeIndex<N> {
        RangeIndex {
            expr,
            blocks: HashMap::with_hasher(hash),
            counts: [0; 33],
        }
    }

    /// The expression whose ranges the index holds.
    pub(super) fn expr(&self) -> Value {
        self.expr
    }

    /// The lists of exactly those entries whose range contains `value`.
    pub(super) fn lists(&self, value: u32) -> impl Iterator<Item = &Ranked<N>> {
        let levels = (0..=32_u32).filter(|level| self.counts[*level as usize] > 0);
        levels.filter_map(move |level| {
            let block = value.checked_shr(level).unwrap_or(0);
            self.blocks.get(&(level, block))
        })
    }

    fn insert(&mut self, lo: u32, hi: u32, entry: (Rank, N)) {
        for block in blocks(lo, hi) {
            let list = self.blocks.entry(block).or_default();
            if list.is_empty() {
                self.counts[block.0 as usize] += 1;
            }
            list.insert(entry);
        }
    }

    fn remove(&mut self, lo: u32, hi: u32, entry: (Rank, N)) {
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

/// The aligned blocks that make up `lo..=hi`.
fn blocks(lo: u32, hi: u32) -> impl Iterator<Item = Block> {
    let (mut at, end) = (u64::from(lo), u64::from(hi) + 1);
    std::iter::from_fn(move || {
        let left = end.checked_sub(at).filter(|left| *left > 0)?;
        let level = at.trailing_zeros().min(left.ilog2()).min(32);
        let block = (level, (at >> level) as u32);
        at += 1 << level;
        Some(block)
    })
}

#[cfg(test)]
mod tests {
    use super::super::table::READS;
    use crate::{Binding, BindingId, Filter, Plan, Target, Verdict};
    use weir_filter::ir::Program;

    /// Accepts if byte 0 is 7 and the two bytes from 2 on lie in `lo..=hi`, if
    /// given.
    fn filter(range: Option<(u32, u32)>) -> Filter {
        let start = "filter {\nb0:\n  v0 = load.1 [0]\n  br eq v0, 7, b1, ";
        let text = match range {
            None => format!("{start}b2\nb1:\n  ret 64\nb2:\n  ret 0\n}}"),
            Some((lo, hi)) => format!(
                "{start}b4
b1:
  v1 = load.2 [2]
  br lt v1, {lo}, b4, b2
b2:
  br gt v1, {hi}, b4, b3
b3:
  ret 64
b4:
  ret 0
}}"
            ),
        };
        Filter::new(text.parse::<Program>().expect("well formed"))
    }

    fn bind(plan: &mut Plan, filter: &Filter, priority: u16, tag: u32) -> BindingId {
        READS.set(0);
        let binding = Binding {
            filter: filter.clone(),
            priority,
            copy: true,
            target: Target::Kernel,
            tag,
        };
        let id = plan.bind(binding).expect("room");
        assert!(READS.get() <= 64, "bind {tag} read {}", READS.get());
        id
    }

    fn unbind(plan: &mut Plan, id: BindingId) {
        READS.set(0);
        plan.unbind(id).expect("bound");
        assert!(READS.get() <= 64, "unbind read {}", READS.get());
    }

    /// Number of bindings that get a frame with that value.
    fn count(plan: &Plan, value: u16, verdict: &mut Verdict) -> usize {
        let [high, low] = value.to_be_bytes();
        plan.run(&[7, 0, high, low], 4, verdict);
        verdict.deliveries().len()
    }

    #[test]
    fn an_index_is_made_late_and_no_change_waits_for_it() {
        const PLAIN: usize = 2_100;
        const RANGES: u32 = 1_000;
        let (mut plan, mut verdict) = (Plan::indexed_only(1), Verdict::new());
        let plain = filter(None);
        let mut ids: Vec<BindingId> = (0..PLAIN)
            .map(|n| bind(&mut plan, &plain, (n * 7 % 5) as u16, 0))
            .collect();
        let plain_ids = ids.split_off(10);
        let mut ranged = Vec::new();
        for n in 0..RANGES {
            let range = (n * 10, n * 10 + 14);
            // Priorities vary, so that some entries precede all others and some
            // follow.
            let id = bind(&mut plan, &filter(Some(range)), n as u16 % 9, n);
            ranged.push(id);
            // The ranges are 0..=14, 10..=24 and so on: the lower half of each
            // ten lies in two.
            let both = count(&plan, n as u16 * 10 + 3, &mut verdict);
            assert_eq!(both, PLAIN + 1 + usize::from(n > 0));
            assert_eq!(count(&plan, n as u16 * 10 + 20, &mut verdict), PLAIN);
        }
        // Some entries leave while others still move; in the end all have
        // moved.
        for id in plain_ids {
            unbind(&mut plan, id);
        }
        READS.set(0);
        assert_eq!(count(&plan, 503, &mut verdict), 10 + 2);
        assert!(READS.get() <= 16, "a frame read {} records", READS.get());
        for id in ranged.drain(..500) {
            unbind(&mut plan, id);
        }
        assert_eq!(count(&plan, 503, &mut verdict), 10);
        assert_eq!(count(&plan, 7_003, &mut verdict), 10 + 2);
        ids.append(&mut ranged);
        for id in ids {
            unbind(&mut plan, id);
        }
        assert_eq!(plan.subtables().count(), 0);
    }
}
