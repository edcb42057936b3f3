//! Running a plan on a batch of frames, so that their cache misses overlap.
//!
//! A table of 100,000 connections takes megabytes, so each look-up waits for
//! memory twice: for the slot, and then for the entry that the slot names. A
//! large tree adds a wait at each node. The reads of one frame do not depend on
//! those of another frame. So the frames of a batch descend a tree together,
//! one node of each in turn, and the next node of one frame loads while other
//! frames take their turn. Before frames are looked up in large subtables,
//! their keys are hashed, all their slots are read, and then all their entries.
//! The values read ahead are discarded: the look-up then finds them in the
//! cache.

use super::Plan;
use super::run::Search;
use super::subtable::Subtable;
use super::tree::{NodeRef, Tree};
use crate::binding::Rank;
use crate::verdict::Verdict;
use std::hint::black_box;

/// Number of frames searched together. A core has at most 10 to 50 reads in
/// flight.
const PREFETCH_BATCH: usize = 16;
/// Number of large subtables that are read ahead; look-ups in the others wait.
const SUBTABLES_AHEAD_MAX: usize = 8;

/// Number of entries from which on a table is large: it then takes more than a
/// megabyte, which exceeds a core's private cache. The same holds for a tree.
const LARGE_TABLE_ENTRIES: usize = 16_384;

/// The searches of one batch.
type Searches<'s> = [Option<Search<'s>>; PREFETCH_BATCH];

impl Plan {
    /// As [`run`](Plan::run) on each of `frames` (the captured bytes, and the
    /// length on the wire), in their order; calls `each` with the number of the
    /// frame and the verdict. Costs much less than single runs where tables or
    /// the tree exceed a core's private cache.
    pub fn run_batch(
        &self,
        frames: &[(&[u8], u32)],
        verdict: &mut Verdict,
        mut each: impl FnMut(usize, &Verdict),
    ) {
        for (number, some) in (0..)
            .step_by(PREFETCH_BATCH)
            .zip(frames.chunks(PREFETCH_BATCH))
        {
            if !self.is_large() {
                for (number, (bytes, wire_len)) in (number..).zip(some) {
                    self.run(bytes, *wire_len, verdict);
                    each(number, verdict);
                }
                continue;
            }
            let best = self.run_together(some, verdict);
            for (at, (bytes, wire_len)) in some.iter().enumerate() {
                let found = &mut verdict.scratch.found(some.len())[at];
                std::mem::swap(&mut verdict.deliveries, found);
                self.conclude(bytes, *wire_len, best[at], verdict);
                each(number + at, verdict);
            }
        }
    }

    /// Whether tables or the tree exceed a core's private cache.
    fn is_large(&self) -> bool {
        let tree = self.index.live();
        !self.large.is_empty() || tree.is_some_and(|(tree, _)| tree.len() >= LARGE_TABLE_ENTRIES)
    }

    /// Runs the tables on a batch; returns the rank of each frame's taker.
    fn run_together(
        &self,
        frames: &[(&[u8], u32)],
        verdict: &mut Verdict,
    ) -> [Rank; PREFETCH_BATCH] {
        let (walks, found) = verdict.scratch.of_batch(frames.len());
        let mut all = frames.iter().zip(walks).zip(found);
        let mut searches: Searches<'_> = std::array::from_fn(|_| {
            let ((&(bytes, wire_len), walk), found) = all.next()?;
            Some(Search::new(self, bytes, wire_len, walk, found))
        });
        for subtable in self.large.iter().take(SUBTABLES_AHEAD_MAX) {
            if let Some(subtable) = self.subtables.get(*subtable) {
                read_ahead(subtable, &mut searches);
            }
        }
        match self.index.live() {
            None => {
                for search in searches.iter_mut().flatten() {
                    search.probe_in_order(&self.order);
                }
            }
            Some((tree, large)) => {
                for search in searches.iter_mut().flatten() {
                    large.iter().for_each(|subtable| search.probe(*subtable));
                    search.enter(tree);
                }
                search_together(tree, &mut searches);
            }
        }
        searches
            .each_mut()
            .map(|search| search.as_mut().map_or(Rank::LAST, Search::finish))
    }

    /// Updates the list of large subtables after a subtable has changed.
    pub(super) fn note_size(&mut self, number: u32) {
        let Some(subtable) = self.subtables.get_mut(number) else {
            return;
        };
        let entries = subtable.table.len();
        // Hysteresis of one half, so that one binding that comes and goes
        // changes nothing.
        let is_large = entries >= LARGE_TABLE_ENTRIES
            || subtable.is_large && entries > LARGE_TABLE_ENTRIES / 2;
        if is_large != subtable.is_large {
            subtable.is_large = is_large;
            self.large.retain(|other| *other != number);
            if is_large {
                self.large.push(number);
            }
        }
    }
}

/// Reads the slots and entries that frames will find in a large subtable.
fn read_ahead(subtable: &Subtable, searches: &mut Searches<'_>) {
    // The reads of one step must not wait for each other, so no branch of a
    // step depends on a value that the step reads.
    let mut sum = 0;
    for search in searches.iter().flatten() {
        sum ^= search.touch_frame();
    }
    let hash = |search: &mut Option<Search<'_>>| search.as_mut()?.hash_for(subtable);
    let hashes = searches.each_mut().map(hash);
    for hash in hashes.iter().flatten() {
        sum ^= subtable.table.read_slot(*hash);
    }
    for hash in hashes.iter().flatten() {
        sum ^= subtable.table.read_entry(*hash);
    }
    black_box(sum);
}

/// Leads all frames through a tree, one node of each in turn.
fn search_together(tree: &Tree, searches: &mut Searches<'_>) {
    let mut under_way: [usize; PREFETCH_BATCH] = std::array::from_fn(|at| at);
    let mut count = searches.iter().flatten().count();
    if tree.root() == NodeRef::NONE {
        return;
    }
    while count > 0 {
        let (mut sum, mut left) = (0, 0);
        for turn in 0..count {
            let at = under_way[turn];
            if let Some(search) = &mut searches[at] {
                search.step(tree);
                if search.has_pending() {
                    sum ^= search.touch(tree);
                    under_way[left] = at;
                    left += 1;
                }
            }
        }
        black_box(sum);
        count = left;
    }
}
