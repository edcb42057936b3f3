//! Several frames at once, so that they wait for memory together.
//!
//! A table of 100,000 connections takes megabytes, so a frame of any of them
//! waits twice for memory: for a slot, and then for the entry that it names.
//! Nothing that the next frame needs depends on it. So before some frames are
//! run, their keys are hashed, all their slots are read, and then all their
//! entries; the processor has these reads under way side by side. What they
//! say is thrown away: the frames are run as ever, and find it in the cache.

use super::Plan;
use super::run::Search;
use super::shape::Shape;
use super::tree::Tree;
use crate::verdict::Verdict;
use std::hint::black_box;

/// Frames that wait together. A core has 10 to 50 reads under way at most.
const AHEAD: usize = 16;
/// Large shapes that are looked at ahead; the others cost what they cost.
const SHAPES_AHEAD_MAX: usize = 8;

/// Entries from which on a tree is walked ahead: smaller ones fit in the cache
/// that a core has to itself.
const TREE_AHEAD: usize = 2_048;
/// Nodes of a tree that a frame is led through ahead.
const STEPS_AHEAD: usize = 5;

/// Entries from which on a table is large: it takes more than a megabyte then,
/// and so does not fit in the cache that a core has to itself.
const LARGE: usize = 16_384;

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
        let mut number = 0;
        for some in frames.chunks(AHEAD) {
            for shape in self.large.iter().take(SHAPES_AHEAD_MAX) {
                if let Some(shape) = self.shapes.get(*shape) {
                    self.read_ahead(shape, some, verdict);
                }
            }
            if let Some((tree, _)) = self.index.live()
                && tree.len() >= TREE_AHEAD
            {
                self.walk_ahead(tree, some, verdict);
            }
            for &(bytes, wire_len) in some {
                self.run(bytes, wire_len, verdict);
                each(number, verdict);
                number += 1;
            }
        }
    }

    fn read_ahead(&self, shape: &Shape, frames: &[(&[u8], u32)], verdict: &mut Verdict) {
        // The reads of one step must not wait for each other, so a step has
        // no branch that depends on what it reads.
        let mut sum = 0;
        for (bytes, _) in frames {
            sum ^= u64::from(bytes.first().copied().unwrap_or(0));
        }
        let mut hashes = [None; AHEAD];
        for ((bytes, wire_len), hash) in frames.iter().zip(&mut hashes) {
            let Verdict {
                deliveries,
                scratch,
                ..
            } = &mut *verdict;
            let mut search = Search::new(self, bytes, *wire_len, &mut scratch.memo, deliveries);
            *hash = search.hash_for(shape);
        }
        let hashes = || hashes.iter().flatten();
        for hash in hashes() {
            sum ^= shape.table.read_slot(*hash);
        }
        for hash in hashes() {
            sum ^= shape.table.read_entry(*hash);
        }
        black_box(sum);
    }

    /// Walks a tree with all frames in step: each to the child of its value,
    /// or else to the rest, down to a leaf.
    fn walk_ahead(&self, tree: &Tree, frames: &[(&[u8], u32)], verdict: &mut Verdict) {
        let mut places = [tree.root(); AHEAD];
        for _ in 0..STEPS_AHEAD {
            for ((bytes, wire_len), at) in frames.iter().zip(&mut places) {
                let Verdict {
                    deliveries,
                    scratch,
                    ..
                } = &mut *verdict;
                let mut search = Search::new(self, bytes, *wire_len, &mut scratch.memo, deliveries);
                search.step(tree, at);
            }
        }
        black_box(places);
    }

    /// Brings the list of large shapes up to date with one that has changed.
    pub(super) fn note_size(&mut self, number: u32) {
        let Some(shape) = self.shapes.get_mut(number) else {
            return;
        };
        let entries = shape.table.len();
        // Half of it, so that one binding that comes and goes changes nothing.
        let is_large = entries >= LARGE || shape.is_large && entries > LARGE / 2;
        if is_large != shape.is_large {
            shape.is_large = is_large;
            self.large.retain(|other| *other != number);
            if is_large {
                self.large.push(number);
            }
        }
    }
}
