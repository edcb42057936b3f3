//! Before new programs are made: what is of no use any more goes, and what
//! programs look at first is made anew where it no longer fits.

use super::image::Write;
use super::layout::scratch;
use super::plan::{KernelPlan, Placed, Retired};
use super::prefilter::Span;
use super::subtable::Subtable;

impl KernelPlan {
    /// Drops subtables without entries and filters unbound, and orders the rest;
    /// do so before making new programs, and then make the
    /// [`pending`](Self::pending) writes. What is dropped is kept until the
    /// change is settled.
    pub fn prepare_recompile(&mut self) {
        self.epoch += 1;
        let empty = self
            .subtables
            .values()
            .filter(|subtable| subtable.entries == 0);
        let empty: Vec<u32> = empty.map(|subtable| subtable.number).collect();
        for number in empty {
            if let Some(subtable) = self.subtables.remove(&number) {
                self.names.remove(&subtable.signature);
                self.retire_units(subtable.unit, Subtable::units(&subtable.signature.fields));
            }
        }
        let mut dead = Vec::new();
        self.opaque.retain(|whole| {
            if whole.dead {
                dead.push(whole.entry);
            }
            !whole.dead
        });
        for entry in dead {
            self.retired.push_back((self.epoch, Retired::Entry(entry)));
        }
        self.prune();
        self.choose_splits();
        self.build_trees(scratch::CANDIDATES_MAX as usize);
        self.image.write_once();
    }

    /// Writes that no change has given yet: new programs rely on them. They
    /// come once more with the next change, which does no harm: no word is
    /// among them twice.
    pub fn pending(&self) -> &[Write] {
        self.image.writes()
    }

    /// Looks at all entries, and the ranges they ask for.
    pub(super) fn for_each_entry(&self, mut look: impl FnMut(&KernelPlan, u32, Option<Span>)) {
        let placed = self.bindings.iter().filter_map(|(_, bound)| bound.as_ref());
        let placed = placed.flat_map(|bound| &bound.entries);
        let retired = self
            .retired
            .iter()
            .filter_map(|(_, retired)| match retired {
                Retired::Placed(placed) => Some(placed),
                Retired::Units(..) | Retired::Entry(_) => None,
            });
        for placed in placed.chain(retired) {
            if let Placed::Entry { entry, span, .. } = placed {
                look(self, *entry, *span);
            }
        }
    }
}
