//! A subtable: the entries whose keys are values of the same fields ("tuple" of
//! tuple space search, Srinivasan 1999).

use super::hash::{Secret, WordHash};
use super::index::CountedValues;
use super::pool::{Pool, Read};
use super::residual::Residuals;
use super::stream;
use super::table::{Entry, Table};
use crate::binding::Rank;
use crate::filter::Field;
use crate::limits::{COUNTED_VALUES_MAX, LISTED_MAX};
use std::collections::HashMap;
use weir_filter::ir::Value;

/// Number of words of the longest key.
pub(super) const LANES_MAX: usize = crate::limits::FIELDS_MAX / 2;

/// The entries whose keys are values of the same fields.
pub(super) struct Subtable {
    /// The subtable's fields, in the order of their names: its identity.
    pub(super) fields: Box<[Field]>,
    /// The same fields in the order in which a frame is tested: guards first.
    pub(super) key_parts: Vec<KeyPart>,
    pub(super) lanes: usize,
    pub(super) table: Table,
    /// A lower bound on the ranks of the entries.
    pub(super) best: Rank,
    /// The subtable is in the plan's list of large subtables.
    pub(super) is_large: bool,
    min_rank: MinRankScan,
    census: Vec<ValueCounts>,
}

/// The position of a field in the key.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeyPart {
    pub(super) read: Read,
    pub(super) expr: Value,
    pub(super) mask: u32,
    /// The index of the key word.
    pub(super) lane: u32,
    /// The bit position in that word.
    pub(super) shift: u32,
    /// A guard: the value that all entries have in the field. A value of more
    /// than 32 bits ([`ANY`]) if they differ.
    pub(super) guard: u64,
    /// The index in [`Subtable::fields`].
    pub(super) field: u32,
}

/// The field has no guard.
pub(super) const ANY: u64 = u64::MAX;

/// Number of records scanned with each removal.
const SCANS_PER_REMOVAL: usize = 4;

/// The scan for the least rank, spread over removals: one scan of all records
/// would be a pause, and records stay allocated when entries leave.
struct MinRankScan {
    /// Records before this one have been scanned.
    next: usize,
    /// A lower bound on the ranks of the scanned entries and of entries
    /// inserted since.
    best: Rank,
}

impl MinRankScan {
    const START: MinRankScan = MinRankScan {
        next: 0,
        best: Rank::LAST,
    };
}

/// The distinct values of one field, each with the number of entries that have
/// it.
enum ValueCounts {
    Counted(HashMap<u32, u32, WordHash>),
    /// The field exceeds [`COUNTED_VALUES_MAX`], or all counts of the plan
    /// exceed their limit; this stays so as long as the subtable exists.
    Many,
}

impl Subtable {
    /// Makes a subtable without entries; `number` selects its stream of the
    /// secret.
    pub(super) fn new(fields: &[Field], pool: &Pool, secret: Secret, number: u64) -> Subtable {
        let (parts, lanes) = packed(fields, pool);
        let hash = secret.key_hash(number, lanes);
        let group_hash = secret.word_hash(number | stream::GROUPS);
        let counted = || ValueCounts::Counted(HashMap::with_hasher(secret.word_hash(number)));
        Subtable {
            fields: fields.into(),
            key_parts: parts,
            lanes,
            table: Table::new(hash, lanes, group_hash),
            best: Rank::LAST,
            is_large: false,
            min_rank: MinRankScan::START,
            census: fields.iter().map(|_| counted()).collect(),
        }
    }

    /// The key made of `values`, one for each of the fields.
    pub(super) fn key(&self, values: &[u32]) -> [u64; LANES_MAX] {
        let mut key = [0; LANES_MAX];
        for part in &self.key_parts {
            let value = u64::from(values[part.field as usize]);
            key[part.lane as usize] |= value << part.shift;
        }
        key
    }

    /// The values in a key, one for each of the fields.
    pub(super) fn values(&self, key: &[u64]) -> Vec<u32> {
        let mut values = vec![0; self.fields.len()];
        for part in &self.key_parts {
            let value = (key[part.lane as usize] >> part.shift) as u32;
            values[part.field as usize] = value & part.mask;
        }
        values
    }

    /// The value that an entry has in the field of a key part.
    pub(super) fn value(&self, part: &KeyPart, index: u32) -> u32 {
        let word = self.table.key_word(index, part.lane as usize);
        (word >> part.shift) as u32 & part.mask
    }

    pub(super) fn insert(
        &mut self,
        values: &[u32],
        entry: Entry,
        residuals: &Residuals,
        listed: &mut CountedValues,
    ) -> u32 {
        let key = self.key(values);
        let index = self.table.insert(&key[..self.lanes], entry, residuals);
        self.best = self.best.min(entry.rank);
        self.min_rank.best = self.min_rank.best.min(entry.rank);
        for (field, &value) in values.iter().enumerate() {
            self.count(field, value, listed);
        }
        index
    }

    pub(super) fn remove(&mut self, index: u32, residuals: &Residuals, listed: &mut CountedValues) {
        let values = self.values(&self.table.key(index));
        self.table.remove(index, residuals);
        for (field, &value) in values.iter().enumerate() {
            self.discount(field, value, listed);
        }
        self.scan_on();
    }

    /// Scans a few more records. Once all have been scanned, raises `best` to
    /// the least rank seen: every present entry was present when its record was
    /// scanned, or was inserted since.
    fn scan_on(&mut self) {
        for _ in 0..SCANS_PER_REMOVAL {
            if self.min_rank.next == self.table.records() {
                self.best = self.min_rank.best;
                self.min_rank = MinRankScan::START;
                return;
            }
            let rank = self.table.rank(self.min_rank.next);
            self.min_rank.best = self.min_rank.best.min(rank);
            self.min_rank.next += 1;
        }
    }

    fn count(&mut self, field: usize, value: u32, listed: &mut CountedValues) {
        let ValueCounts::Counted(counts) = &mut self.census[field] else {
            return;
        };
        let count = counts.entry(value).or_default();
        *count += 1;
        if *count > 1 {
            return;
        }
        if counts.len() > COUNTED_VALUES_MAX || listed.count == LISTED_MAX {
            listed.count -= counts.len() - 1;
            self.census[field] = ValueCounts::Many;
        } else {
            listed.count += 1;
        }
        self.set_guard(field);
    }

    fn discount(&mut self, field: usize, value: u32, listed: &mut CountedValues) {
        let ValueCounts::Counted(counts) = &mut self.census[field] else {
            return;
        };
        if let Some(count) = counts.get_mut(&value) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&value);
                listed.count -= 1;
                self.set_guard(field);
            }
        }
    }

    fn set_guard(&mut self, field: usize) {
        let only = match &self.census[field] {
            ValueCounts::Counted(counts) if counts.len() == 1 => counts.keys().next(),
            _ => None,
        };
        let guard = only.map_or(ANY, |value| u64::from(*value));
        let found = (self.key_parts.iter_mut()).find(|part| part.field as usize == field);
        if let Some(part) = found
            && part.guard != guard
        {
            let regroup = (part.guard == ANY) != (guard == ANY);
            part.guard = guard;
            if regroup {
                self.key_parts
                    .sort_by_key(|part| (part.guard == ANY, part.field));
            }
        }
    }

    /// Number of values that the subtable counts.
    pub(super) fn listed(&self) -> usize {
        let counted = |field| self.distinct(field).unwrap_or(0);
        (0..self.fields.len()).map(counted).sum()
    }

    /// Number of distinct values of a field; `None` if they are too many to
    /// count.
    pub(super) fn distinct(&self, field: usize) -> Option<usize> {
        match &self.census[field] {
            ValueCounts::Counted(counts) => Some(counts.len()),
            ValueCounts::Many => None,
        }
    }
}

/// Assigns each field its position in the key: whole bytes, wide fields first,
/// so that no field straddles a word.
fn packed(fields: &[Field], pool: &Pool) -> (Vec<KeyPart>, usize) {
    let width = |field: &Field| match 32 - field.mask.leading_zeros() {
        0..=8 => 8,
        9..=16 => 16,
        _ => 32,
    };
    let mut by_width: Vec<usize> = (0..fields.len()).collect();
    by_width.sort_by_key(|index| std::cmp::Reverse(width(&fields[*index])));
    let mut bit = 0;
    let mut parts: Vec<KeyPart> = Vec::with_capacity(fields.len());
    for index in by_width {
        let field = fields[index];
        parts.push(KeyPart {
            read: *pool.read(field.expr),
            expr: field.expr,
            mask: field.mask,
            lane: bit / 64,
            shift: bit % 64,
            guard: ANY,
            field: index as u32,
        });
        bit += width(&field);
    }
    parts.sort_by_key(|part| part.field);
    (parts, bit.div_ceil(64) as usize)
}

#[cfg(test)]
mod tests {
    use crate::plan::table::READS;
    use crate::{Binding, BindingId, Filter, Plan, Target};
    use weir_filter::ir::Program;

    /// Accepts a frame whose first two bytes are `n`.
    fn binding(n: u32, priority: u16) -> Binding {
        let text = format!(
            "filter {{
b0:
  v0 = load.2 [0]
  br eq v0, {n}, b1, b2
b1:
  ret 64
b2:
  ret 0
}}"
        );
        Binding {
            filter: Filter::new(text.parse::<Program>().expect("well formed")),
            priority,
            copy: false,
            target: Target::Kernel,
            tag: n,
        }
    }

    /// Unbinds; returns the number of records read.
    fn unbind(plan: &mut Plan, id: BindingId) -> usize {
        READS.set(0);
        plan.unbind(id).expect("bound");
        READS.get()
    }

    #[test]
    fn a_table_that_was_large_makes_no_unbind_slow() {
        const COUNT: u32 = 3_000;
        let mut plan = Plan::indexed_only(1);
        let bind = |plan: &mut Plan, n| plan.bind(binding(n, 5)).expect("room");
        let ids: Vec<BindingId> = (0..COUNT).map(|n| bind(&mut plan, n)).collect();
        for id in &ids[10..] {
            assert!(unbind(&mut plan, *id) <= 16);
        }
        for n in 0..200 {
            let id = bind(&mut plan, 10_000 + n);
            assert!(unbind(&mut plan, id) <= 16);
        }
    }

    #[test]
    fn the_best_rank_is_never_too_late_and_in_time_exact() {
        const COUNT: u32 = 100;
        let mut plan = Plan::indexed_only(1);
        let priority = |n: u32| (n * 7919 % 101) as u16;
        let best = |plan: &Plan| plan.subtables().next().expect("one").best().priority();
        let greatest = |ids: &[(u32, BindingId)]| {
            let priorities = ids.iter().map(|(n, _)| priority(*n));
            priorities.max().expect("some are bound")
        };
        let mut ids: Vec<(u32, BindingId)> = Vec::new();
        for n in 0..COUNT {
            let id = plan.bind(binding(n, priority(n))).expect("room");
            ids.push((n, id));
        }
        // The greatest priorities leave first, while other bindings come and
        // go.
        ids.sort_by_key(|(n, _)| priority(*n));
        for n in COUNT..COUNT + 190 {
            let (_, id) = ids.pop().expect("some are bound");
            plan.unbind(id).expect("bound");
            assert!(best(&plan) >= greatest(&ids));
            if n.is_multiple_of(2) {
                let id = plan.bind(binding(n, priority(n))).expect("room");
                ids.insert(0, (n, id));
            }
            assert!(best(&plan) >= greatest(&ids));
        }
        for n in 1_000..1_100 {
            let id = plan.bind(binding(n, 0)).expect("room");
            plan.unbind(id).expect("bound");
        }
        assert_eq!(best(&plan), greatest(&ids));
    }
}
