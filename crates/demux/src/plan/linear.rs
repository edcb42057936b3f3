//! Bindings whose programs run one after the other, because they are few.
//!
//! A look-up costs a frame as much as some filters' native code: 15 to 20 ns
//! for each subtable that is tried, against 3 to 6 ns for a filter. So
//! filters of a *kind* (the same subtables) run directly until there are enough
//! of them to share tables, and filters of many kinds until all together cost
//! as much as the tables would. `cargo bench -p weir --bench small_plans`
//! shows where the costs cross.

use super::hash::WordHash;
use super::{BindError, Bound, Plan};
use crate::binding::Rank;
use crate::filter::{Analysis, Filter, FilterSignature};
use crate::limits::{LINEAR_MAX, LINEAR_PEAK_MAX, LINEAR_RESUME};
use crate::verdict::Delivery;
use std::collections::HashMap;

/// Filters of one kind that cost as much as a look-up in one table, and as
/// the look-ups' beginning.
const PER_SUBTABLE: u32 = 3;
/// Filters of one kind that run directly, whatever the number of its subtables.
const PER_SIGNATURE_MAX: u32 = 32;
/// Bindings that one bind moves to tables once there are too many.
const MIGRATE_PER_BIND: usize = 4;

/// The bindings that run directly.
pub(super) struct LinearList {
    /// No binding may.
    off: bool,
    /// There were too many: new bindings go to tables, and the old ones are
    /// on their way there.
    crowded: bool,
    /// There are tables for a kind of which some still run directly.
    is_split: bool,
    /// By rank.
    entries: Vec<LinearEntry>,
    kinds: HashMap<u64, Members, WordHash>,
}

/// One of them.
pub(super) struct LinearEntry {
    /// What it delivers, but for the snap length.
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

/// How many bindings have filters of one kind.
#[derive(Clone, Copy, Default)]
struct Members {
    linear: u32,
    indexed: u32,
    /// Of so many, all belong in tables.
    max: u32,
}

fn max_of(kind: FilterSignature) -> u32 {
    PER_SIGNATURE_MAX.min(1 + PER_SUBTABLE * kind.subtables)
}

impl LinearList {
    /// None yet; `hash` is for the names of kinds.
    pub(super) fn new(hash: WordHash) -> LinearList {
        LinearList {
            off: false,
            crowded: false,
            is_split: false,
            entries: Vec::new(),
            kinds: HashMap::with_hasher(hash),
        }
    }

    /// None ever.
    pub(super) fn turn_off(&mut self) {
        self.off = true;
    }

    #[cfg(test)]
    pub(super) fn kinds_hash(&self) -> &WordHash {
        self.kinds.hasher()
    }

    /// The bindings, by rank.
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

    /// A binding of which next to move to tables: one whose kind is there, or
    /// any if there are too many.
    fn misplaced(&self) -> Option<&LinearEntry> {
        if self.crowded {
            return self.entries.last();
        }
        self.entries.iter().find(|run| {
            let members = self.kinds.get(&run.filter.kind().hash);
            members.is_some_and(|members| members.indexed > 0)
        })
    }

    /// Whether some kind in tables has so few bindings that they had better
    /// run directly. Half of what brought it there, so that one binding that
    /// comes and goes does not move them to and fro.
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
    /// Enters a binding that has accept paths: to run directly, or in tables.
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

    /// Takes a binding's accept paths out again, if it has such. Its run, if
    /// it runs directly, has been removed.
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

    /// Moves bindings that no longer should run directly to tables: after a
    /// bind. Those of one kind at once, as they are few; others some at a
    /// time.
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
            // A full table: it runs directly as before.
            if !moved {
                return;
            }
        }
    }

    /// Lets the bindings of a plan that has become small run directly again:
    /// after an unbind. A plan that has ever been large keeps its tables, as
    /// finding what is left would be a pause.
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
