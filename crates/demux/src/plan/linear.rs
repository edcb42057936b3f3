//! The linear list: bindings whose programs run one after the other.
//!
//! A look-up costs a frame as much as the native code of several filters: 15 to
//! 20 ns for each subtable that is tried, against 3 to 6 ns for a filter. So
//! filters of one *kind* (the same subtables) run directly until there are
//! enough of them to share tables, and filters of many kinds until all together
//! cost as much as the tables would. `cargo bench -p weir --bench small_plans`
//! shows where the costs cross.

use super::hash::WordHash;
use super::{BindError, Bound, Plan};
use crate::binding::Rank;
use crate::filter::{Analysis, Filter, FilterSignature};
use crate::limits::{LINEAR_MAX, LINEAR_PEAK_MAX, LINEAR_RESUME};
use crate::verdict::Delivery;
use std::collections::HashMap;

/// Number of filters of one kind that cost as much as a look-up in one table,
/// or as the fixed cost of look-ups.
const PER_SUBTABLE: u32 = 3;
/// Number of filters of one kind that run directly, at most, for any number of
/// subtables.
const PER_SIGNATURE_MAX: u32 = 32;
/// Number of bindings that one bind moves to tables once there are too many.
const MIGRATE_PER_BIND: usize = 4;

/// The bindings whose programs run directly, and counts of all kinds.
pub(super) struct LinearList {
    /// No binding may run directly.
    off: bool,
    /// The list was full: new bindings go to tables, and old ones move there.
    crowded: bool,
    /// Tables hold part of a kind of which other bindings still run directly.
    is_split: bool,
    /// Sorted by rank.
    entries: Vec<LinearEntry>,
    kinds: HashMap<u64, Members, WordHash>,
}

/// A binding of the linear list.
pub(super) struct LinearEntry {
    /// The delivery, without the snap length.
    pub(super) delivery: Delivery,
    pub(super) filter: Filter,
}

impl LinearEntry {
    pub(super) fn of(bound: &Bound, index: u32) -> LinearEntry {
        LinearEntry {
            delivery: bound.delivery(index, 0),
            filter: bound.filter.clone(),
        }
    }
}

/// Number of bindings whose filters are of one kind.
#[derive(Clone, Copy, Default)]
struct Members {
    linear: u32,
    indexed: u32,
    /// The number of members at which the kind belongs in tables.
    max: u32,
}

fn max_of(kind: FilterSignature) -> u32 {
    PER_SIGNATURE_MAX.min(1 + PER_SUBTABLE * kind.subtables)
}

impl LinearList {
    /// An empty list; `hash` is for the map of kinds.
    pub(super) fn new(hash: WordHash) -> LinearList {
        LinearList {
            off: false,
            crowded: false,
            is_split: false,
            entries: Vec::new(),
            kinds: HashMap::with_hasher(hash),
        }
    }

    /// Makes the list stay empty: every binding goes to tables.
    pub(super) fn turn_off(&mut self) {
        self.off = true;
    }

    #[cfg(test)]
    pub(super) fn kinds_hash(&self) -> &WordHash {
        self.kinds.hasher()
    }

    /// The bindings, sorted by rank.
    #[inline]
    pub(super) fn entries(&self) -> &[LinearEntry] {
        &self.entries
    }

    /// Whether a new binding runs directly.
    fn takes(&mut self, filter: &Filter) -> bool {
        if self.off || self.crowded {
            return false;
        }
        let kind = filter.kind();
        let members = self.kinds.get(&kind.hash).copied().unwrap_or_default();
        if members.indexed > 0 || members.linear >= max_of(kind) {
            return false;
        }
        self.crowded = self.entries.len() >= LINEAR_MAX;
        !self.crowded && filter.make_native()
    }

    pub(super) fn insert(&mut self, run: LinearEntry) {
        let rank = run.delivery.rank;
        let at = self.entries.partition_point(|run| run.delivery.rank < rank);
        self.entries.insert(at, run);
    }

    pub(super) fn remove(&mut self, rank: Rank) {
        self.entries.retain(|run| run.delivery.rank != rank);
    }

    fn members(&mut self, kind: FilterSignature) -> &mut Members {
        let members = self.kinds.entry(kind.hash).or_default();
        members.max = max_of(kind);
        members
    }

    fn forget_if_none(&mut self, kind: FilterSignature) {
        if let Some(members) = self.kinds.get(&kind.hash)
            && members.linear + members.indexed == 0
        {
            self.kinds.remove(&kind.hash);
        }
    }

    /// The binding to move to tables next: one whose kind has bindings in
    /// tables, or any if the list is crowded. `None` if all are in the right
    /// place.
    fn misplaced(&self) -> Option<&LinearEntry> {
        if self.crowded {
            return self.entries.last();
        }
        self.entries.iter().find(|run| {
            let members = self.kinds.get(&run.filter.kind().hash);
            members.is_some_and(|members| members.indexed > 0)
        })
    }

    /// Whether some kind in tables has so few bindings that running them
    /// directly costs less. The threshold is half of the one that moved the
    /// kind to tables, so that one binding that comes and goes does not move
    /// the kind back and forth.
    fn misses(&self) -> bool {
        self.kinds.values().any(|members| members.is_missed())
    }
}

impl Members {
    fn is_missed(self) -> bool {
        self.indexed > 0 && (self.indexed + self.linear) * 2 <= self.max
    }
}

impl Plan {
    /// Enters a binding that has accept paths: in the linear list, or in
    /// tables.
    pub(super) fn enter_paths(&mut self, index: u32, bound: &mut Bound) -> Result<(), BindError> {
        let kind = bound.filter.kind();
        bound.is_linear = self.linear.takes(&bound.filter);
        if bound.is_linear {
            self.linear.members(kind).linear += 1;
            self.linear.insert(LinearEntry::of(bound, index));
            return Ok(());
        }
        self.enter_tables(index, bound)?;
        let members = self.linear.members(kind);
        members.indexed += 1;
        self.linear.is_split |= members.linear > 0;
        Ok(())
    }

    /// Removes a binding's accept paths from tables and from the counts of its
    /// kind, if it has any. The caller has removed it from the linear list.
    pub(super) fn leave_paths(&mut self, bound: &Bound) {
        if *bound.filter.analysis() == Analysis::Opaque {
            return;
        }
        let kind = bound.filter.kind();
        if bound.is_linear {
            self.linear.members(kind).linear -= 1;
        } else {
            self.drop_entries(&bound.entries);
            self.linear.members(kind).indexed -= 1;
        }
        self.linear.forget_if_none(kind);
    }

    /// After a bind: moves bindings that should no longer run directly to
    /// tables. Those of one kind move at once, as they are few; a crowded list
    /// moves some at a time.
    pub(super) fn fill_tables(&mut self) {
        let most = match (self.linear.crowded, self.linear.is_split) {
            (true, _) => MIGRATE_PER_BIND,
            (false, true) => PER_SIGNATURE_MAX as usize,
            (false, false) => return,
        };
        for _ in 0..most {
            let Some(run) = self.linear.misplaced() else {
                self.linear.is_split = false;
                return;
            };
            let index = run.delivery.binding.index;
            let Some(mut bound) = self.bindings[index as usize].bound.take() else {
                return;
            };
            let moved = self.enter_tables(index, &mut bound).is_ok();
            if moved {
                let kind = bound.filter.kind();
                bound.is_linear = false;
                self.linear.remove(bound.rank);
                let members = self.linear.members(kind);
                (members.linear, members.indexed) = (members.linear - 1, members.indexed + 1);
                self.shed_filter(&mut bound);
            }
            self.bindings[index as usize].bound = Some(bound);
            // A table is full: the binding runs directly as before.
            if !moved {
                return;
            }
        }
    }

    /// After an unbind: lets the bindings of a plan that has become small run
    /// directly again. A plan that was ever large keeps its tables, since
    /// finding the remaining bindings would be a pause.
    pub(super) fn leave_tables(&mut self) {
        if self.count > LINEAR_RESUME || self.bindings.len() > LINEAR_PEAK_MAX {
            return;
        }
        self.linear.crowded = false;
        if self.linear.off || !self.linear.misses() {
            return;
        }
        for place in 0..self.bindings.len() {
            let Some(mut bound) = self.bindings[place].bound.take() else {
                continue;
            };
            if self.is_missed(&bound) {
                let kind = bound.filter.kind();
                self.drop_entries(&std::mem::take(&mut bound.entries));
                bound.is_linear = true;
                self.linear.insert(LinearEntry::of(&bound, place as u32));
                let members = self.linear.members(kind);
                (members.linear, members.indexed) = (members.linear + 1, members.indexed - 1);
            }
            self.bindings[place].bound = Some(bound);
        }
    }

    fn is_missed(&self, bound: &Bound) -> bool {
        let members = self.linear.kinds.get(&bound.filter.kind().hash);
        !bound.is_linear
            && !bound.permanent
            && *bound.filter.analysis() != Analysis::Opaque
            && members.is_some_and(|members| members.is_missed())
            && bound.filter.make_native()
    }
}
