//! The tree over all entries of a plan, and its successor while that is built.
//!
//! A plan with few subtables tries each in turn and has no tree. A plan with
//! more subtables builds a tree, some entries with each change, and uses the
//! tree when it is complete. A tree that has grown by half since is rebuilt
//! beside the old one. The rebuild visits entries in an order unrelated to the
//! order bound, so that the first entries are a fair sample of all. The old
//! tree is freed some nodes at a time. So no change waits for more than a few
//! hundred entries: those of a leaf that is divided.

use super::Plan;
use super::hash::{WordHash, WordMix, inverse};
use super::subtable::Subtable;
use super::tree::{Bits, EntryRef, Rules, Tree};

/// Number of subtables from which on a plan has a tree.
const TREE_FROM: usize = 4;
/// Number of entries, at least, that one change adds to the next tree.
const MIGRATE_PER_BIND: usize = 48;
/// Number of fields, at most, among which the most frequent ones are sought.
const FIELDS_COUNTED: usize = 64;
/// Number of nodes of an old tree that one change frees.
const FREED: usize = 64;

/// Number of values that all subtables of a plan count.
#[derive(Default)]
pub(super) struct CountedValues {
    pub(super) count: usize,
}

/// The trees of a plan.
pub(super) struct Index {
    live: Option<Live>,
    next: Option<Build>,
    old: Option<Tree>,
    mix: WordMix,
    group_hash: WordHash,
}

/// The tree in use.
struct Live {
    tree: Tree,
    /// Large subtables, whose entries are not in the tree.
    large: Vec<u32>,
    /// Number of entries when the tree was complete.
    tuned: usize,
}

/// A tree under construction.
struct Build {
    tree: Tree,
    large: Vec<u32>,
    /// Number of bits of a slot number. The build visits binding slots in the
    /// order of their numbers times an odd number, modulo 2^bits.
    bits: u32,
    /// Number of steps of that order already done.
    done: u32,
}

/// 2^32 divided by the golden ratio, whose multiples are spread evenly (Knuth,
/// multiplicative hashing).
const STRIDE: u32 = 0x9e37_79b1;

impl Build {
    fn mask(&self) -> u32 {
        (1 << self.bits) - 1
    }

    fn place(&self, step: u32) -> u32 {
        step.wrapping_mul(STRIDE) & self.mask()
    }

    /// Whether the build has visited a binding slot. A binding in a slot added
    /// after the start inserts its own entries.
    fn has(&self, place: u32) -> bool {
        place > self.mask() || place.wrapping_mul(inverse(STRIDE)) & self.mask() < self.done
    }

    fn has_all(&self) -> bool {
        self.done > self.mask()
    }
}

impl Index {
    pub(super) fn new(mix: WordMix, group_hash: WordHash) -> Index {
        Index {
            live: None,
            next: None,
            old: None,
            mix,
            group_hash,
        }
    }

    /// The tree in use, and the large subtables to be tried besides; `None` if
    /// there is no tree.
    #[inline]
    pub(super) fn live(&self) -> Option<(&Tree, &[u32])> {
        let live = self.live.as_ref()?;
        Some((&live.tree, &live.large))
    }

    /// Adds an entry of the binding in slot `place`.
    pub(super) fn insert(&mut self, place: u32, name: EntryRef, rules: &mut Rules<'_>) {
        if let Some(live) = &mut self.live
            && !live.large.contains(&name.0)
        {
            live.tree.insert(name, rules);
        }
        if let Some(next) = &mut self.next
            && next.has(place)
            && !next.large.contains(&name.0)
        {
            next.tree.insert(name, rules);
        }
    }

    /// Removes an entry from the trees; call it before the entry leaves its
    /// subtable.
    pub(super) fn remove(&mut self, place: u32, name: EntryRef, rules: &mut Rules<'_>) {
        if let Some(live) = &mut self.live
            && !live.large.contains(&name.0)
        {
            live.tree.remove(name, rules);
        }
        if let Some(next) = &mut self.next
            && next.has(place)
            && !next.large.contains(&name.0)
        {
            next.tree.remove(name, rules);
        }
    }

    /// Forgets a removed subtable.
    pub(super) fn forget(&mut self, subtable: u32) {
        let lists = [
            self.live.as_mut().map(|live| &mut live.large),
            self.next.as_mut().map(|next| &mut next.large),
        ];
        for large in lists.into_iter().flatten() {
            large.retain(|other| *other != subtable);
        }
    }

    /// Whether a new tree would be better than the present one.
    fn is_due(&self, large: &[u32]) -> bool {
        let Some(live) = &self.live else { return true };
        let len = live.tree.len();
        let has_grown = len > live.tuned + live.tuned / 2 + 16;
        let has_shrunk = len + 64 < live.tuned / 4;
        has_grown || has_shrunk || !same(large, &live.large)
    }
}

/// Whether two lists have the same numbers, in any order.
fn same(one: &[u32], other: &[u32]) -> bool {
    one.len() == other.len() && one.iter().all(|number| other.contains(number))
}

impl Plan {
    /// Maintains the trees after a change: adds some entries to the next tree,
    /// starts a next tree, or frees some of an old one.
    pub(super) fn tend_index(&mut self) {
        if let Some(old) = &mut self.index.old
            && old.free(FREED)
        {
            self.index.old = None;
        }
        if self.order.len() < TREE_FROM {
            self.drop_trees();
        } else if self.index.next.is_some() {
            self.build();
        } else if self.index.old.is_none() && self.index.is_due(&self.large) {
            let bits = self.bindings.len().next_power_of_two().ilog2();
            let entries: usize = self.small().map(|subtable| subtable.table.len()).sum();
            // The tree is due to be rebuilt when it has grown by half.
            let capacity = 2 * entries + 64;
            let mut tree = Tree::new(capacity, self.index.mix, self.index.group_hash);
            tree.make_lanes(&self.common_fields(), &self.pool);
            self.index.next = Some(Build {
                tree,
                large: self.large.clone(),
                bits,
                done: 0,
            });
            self.build();
        }
    }

    /// The subtables whose entries are in the tree.
    fn small(&self) -> impl Iterator<Item = &Subtable> {
        let subtables = self.order.iter();
        let subtables = subtables.filter_map(|(_, number)| self.subtables.get(*number));
        subtables.filter(|subtable| !subtable.is_large)
    }

    /// The fields that most entries require, the most frequent first.
    fn common_fields(&self) -> Vec<Bits> {
        let mut counts: Vec<(Bits, usize)> = Vec::new();
        for subtable in self.small() {
            for part in &subtable.key_parts {
                let (expr, mask) = (part.expr, part.mask);
                let bits = Bits { expr, mask }.widened(&self.pool);
                match counts.iter().position(|(known, _)| *known == bits) {
                    Some(at) => counts[at].1 += subtable.table.len(),
                    None if counts.len() == FIELDS_COUNTED => {}
                    None => counts.push((bits, subtable.table.len())),
                }
            }
        }
        counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        counts.into_iter().map(|(bits, _)| bits).collect()
    }

    /// Adds some entries to the next tree.
    fn build(&mut self) {
        let Some(mut next) = self.index.next.take() else {
            return;
        };
        let mut rules = Rules {
            subtables: &self.subtables,
            residuals: &self.residuals,
            pool: &mut self.pool,
        };
        let mut left = MIGRATE_PER_BIND;
        while left > 0 && !next.has_all() {
            let place = next.place(next.done);
            next.done += 1;
            left -= 1;
            let bound = self.bindings.get(place as usize);
            let Some(bound) = bound.and_then(|place| place.bound.as_ref()) else {
                continue;
            };
            for name in &bound.entries {
                if !next.large.contains(&name.0) {
                    next.tree.insert(*name, &mut rules);
                }
                left = left.saturating_sub(1);
            }
        }
        if left == 0 || !next.tree.refine(left, &mut rules) {
            self.index.next = Some(next);
            return;
        }
        let tuned = next.tree.len();
        let live = Live {
            tree: next.tree,
            large: next.large,
            tuned,
        };
        if let Some(old) = self.index.live.replace(live) {
            self.retire(old.tree);
        }
    }

    /// Drops all trees, since the plan has few subtables again.
    fn drop_trees(&mut self) {
        if let Some(live) = self.index.live.take() {
            self.retire(live.tree);
        }
        if let Some(next) = self.index.next.take() {
            self.retire(next.tree);
        }
    }

    fn retire(&mut self, mut tree: Tree) {
        tree.release(&mut self.pool);
        if !tree.free(FREED) {
            self.index.old = Some(tree);
        }
    }
}
