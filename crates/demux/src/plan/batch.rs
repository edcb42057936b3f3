//! Several frames at once, so that they wait for memory together.
//!
//! A table of 100,000 connections takes megabytes, so a frame of any of them
//! waits twice for memory: for a slot, and then for the entry that it names;
//! and so it does at each node of a large tree. Nothing that the next frame
//! needs depends on it. So frames go through a tree together, a node of each in
//! turn, and what a frame needs next is read while others have their turn. And
//! before frames are looked up in large subtables, their keys are hashed, all their
//! slots are read, and then all their entries. What is read ahead is thrown
//! away: each frame finds it in the cache.

use super::Plan;
use super::run::Search;
use super::subtable::Subtable;
use super::tree::{NONE, Tree};
use crate::binding::Rank;
use crate::verdict::Verdict;
use std::hint::black_box;

/// Frames that wait together. A core has 10 to 50 reads under way at most.
const PREFETCH_BATCH: usize = 16;
/// Large subtables that are looked at ahead; the others cost what they cost.
const SUBTABLES_AHEAD_MAX: usize = 8;

/// Entries from which on a table is large: it takes more than a megabyte then,
/// and so does not fit in the cache that a core has to itself.
const LARGE_TABLE_ENTRIES: usize = 16_384;

/// The frames that are searched for together.
type Searches<'s> = [Option<Search<'s>>; PREFETCH_BATCH];

impl Plan {
    /// As [`run`](Plan::run) on each of `frames` (the captured bytes, and the
    /// length on the wire), in their order; `each` is given the number of the
    /// frame and the verdict. Costs much less where tables are large.
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
            if !self.has_tables() {
                for (number, (bytes, wire_len)) in (number..).zip(some) {
                    self.run(bytes, *wire_len, verdict);
                    each(number, verdict);
                }
                continue;
            }
            let best = self.run_together(some, verdict);
            for (at, (bytes, wire_len)) in some.iter().enumerate() {
                let walk = &mut verdict.scratch.walks(some.len())[at];
                std::mem::swap(&mut verdict.deliveries, &mut walk.found);
                self.conclude(bytes, *wire_len, best[at], verdict);
                each(number + at, verdict);
            }
        }
    }

    /// Runs the tables on some frames; gives the rank of each one's taker.
    fn run_together(
        &self,
        frames: &[(&[u8], u32)],
        verdict: &mut Verdict,
    ) -> [Rank; PREFETCH_BATCH] {
        let walks = verdict.scratch.walks(frames.len());
        let mut both = frames.iter().zip(walks);
        let mut searches: Searches<'_> = std::array::from_fn(|_| {
            let (&(bytes, wire_len), walk) = both.next()?;
            Some(Search::new(self, bytes, wire_len, walk))
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
        searches.map(|search| search.map_or(Rank::LAST, Search::run_opaque))
    }

    /// Brings the list of large subtables up to date with one that has changed.
    pub(super) fn note_size(&mut self, number: u32) {
        let Some(subtable) = self.subtables.get_mut(number) else {
            return;
        };
        let entries = subtable.table.len();
        // Half of it, so that one binding that comes and goes changes nothing.
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

/// Reads what frames will find in a large subtable.
fn read_ahead(subtable: &Subtable, searches: &mut Searches<'_>) {
    // The reads of one step must not wait for each other, so a step has no
    // branch that depends on what it reads.
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

/// Leads all frames through a tree, a node of each in turn.
fn search_together(tree: &Tree, searches: &mut Searches<'_>) {
    let mut under_way: [usize; PREFETCH_BATCH] = std::array::from_fn(|at| at);
    let mut count = searches.iter().flatten().count();
    if tree.root() == NONE {
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
