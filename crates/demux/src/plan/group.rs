//! Many entries under one key.
//!
//! Thousands of `udp portrange` filters have one key: protocol and fragment
//! offset. Their ranges tell them apart, so a group indexes its entries by a
//! field that many of them bound: each range is cut into aligned blocks of
//! 2^level values (at most two of each level), and an entry is listed at
//! each of its blocks. A value lies in one block of each level, so a look-up
//! probes as many lists as there are levels in use.
//!
//! An index is made of entries to come. Those there are move to it some with
//! each later change, so that none waits for all of them.

use super::hash::WordHash;
use super::residual::Residuals;
use super::table::Entry;
use crate::binding::Rank;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound::{self, Excluded, Unbounded};
use weir_filter::ir::Value;

/// Entries without an index before one is made.
const INDEX_MIN: usize = 16;
/// Indexes of one group: fields that ranges bound.
const INDEXES_MAX: usize = 4;
/// Plain entries looked at with each change while they move to a new index.
const MIGRATE_PER_BIND: usize = 8;

/// Entries in the order of their ranks.
pub(super) type Ranked<N> = BTreeSet<(Rank, N)>;

/// Many entries under one key, or that a tree cannot tell apart; `N` names an
/// entry.
#[derive(Clone)]
pub(super) struct Group<N> {
    key: Box<[u64]>,
    /// For the blocks of its indexes.
    hash: WordHash,
    plain: Ranked<N>,
    /// How many plain entries bound each expression.
    bounded: BTreeMap<Value, usize>,
    indexes: Vec<RangeIndex<N>>,
    /// Plain entries from here on may belong in the newest index.
    moving: Option<Bound<(Rank, N)>>,
    len: usize,
}

/// Entries by a range that they test.
#[derive(Clone)]
pub(super) struct RangeIndex<N> {
    expr: Value,
    /// A standard map, though it moves all that it holds when it grows: most
    /// look-ups find nothing, and that costs half of what it does in
    /// [`Slots`](super::slots::Slots).
    blocks: HashMap<Block, Ranked<N>, WordHash>,
    /// Blocks in use of each level.
    counts: [u32; 33],
}

/// An aligned block of values: its level, and its number among those.
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

    /// Entries that no index holds.
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
        // One whose index is new may not have moved there yet.
        if self.plain.remove(&(entry.rank, index)) {
            self.discount(entry, residuals);
        } else if let Some((ranges, lo, hi)) = self.index_for(entry, residuals) {
            ranges.remove(lo, hi, (entry.rank, index));
        }
        self.migrate_some(residuals, entry_of);
    }

    /// An entry that was plain is so no more.
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
    /// of those whose expression it bounds.
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

    /// Makes an index on the expression of a new plain entry that most others
    /// bound, if that is a quarter of them at least. One at a time, so that an
    /// entry whose index is not the newest is in it.
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

    /// The expression whose ranges it holds.
    pub(super) fn expr(&self) -> Value {
        self.expr
    }

    /// The lists that hold every entry whose range contains `value`, and
    /// others' never.
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

    /// Byte 0 is 7, and the two bytes from 2 on lie in `lo..=hi`, if given.
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

    /// How many bindings get a frame with that value.
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
            // Some before all others, some after.
            let id = bind(&mut plan, &filter(Some(range)), n as u16 % 9, n);
            ranged.push(id);
            // 0..=14, 10..=24: the upper half of ten lies in the one before too.
            let both = count(&plan, n as u16 * 10 + 3, &mut verdict);
            assert_eq!(both, PLAIN + 1 + usize::from(n > 0));
            assert_eq!(count(&plan, n as u16 * 10 + 20, &mut verdict), PLAIN);
        }
        // Some go while others still move; in the end all have moved.
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
