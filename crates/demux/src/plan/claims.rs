//! Claims: the frames that the host keeps for itself.
//!
//! A claim bars the bindings below it from taking, never from copying. A taker
//! ends the search for copies only where no claim can come before it, so a
//! claim costs the frames of a plan the look-ups of the copies behind takers.

use crate::binding::{Rank, Target};
use crate::verdict::Delivery;
use std::collections::BTreeSet;

/// The ranks of the claims of a plan.
#[derive(Clone, Debug)]
pub(crate) struct Claims {
    ranks: BTreeSet<Rank>,
    first: Rank,
}

impl Claims {
    pub(crate) fn new() -> Claims {
        Claims {
            ranks: BTreeSet::new(),
            first: Rank::LAST,
        }
    }

    /// The rank of the first claim; [`Rank::LAST`] if there is none.
    #[inline]
    pub(crate) fn first(&self) -> Rank {
        self.first
    }

    /// Notes a binding, if it is a claim.
    pub(crate) fn insert(&mut self, rank: Rank, target: Target) {
        if rank.claims(target) {
            self.ranks.insert(rank);
            self.first = self.first.min(rank);
        }
    }

    pub(crate) fn remove(&mut self, rank: Rank) {
        if self.ranks.remove(&rank) {
            self.first = self.ranks.first().copied().unwrap_or(Rank::LAST);
        }
    }

    /// Whether an accepting binding of this rank ends the search: it takes,
    /// and no claim comes before it.
    #[inline]
    pub(super) fn end_at(&self, rank: Rank) -> bool {
        !rank.is_copy() && rank < self.first
    }

    /// Leaves what is delivered of the bindings that accepted, which stand in
    /// the order of their ranks: the copies, and the first that takes or
    /// claims; nothing behind one that takes. Returns whether it takes, and
    /// whether it claims.
    pub(super) fn resolve(found: &mut Vec<Delivery>) -> (bool, bool) {
        let Some(first) = found.iter().position(|delivery| !delivery.rank.is_copy()) else {
            return (false, false);
        };
        let Delivery { rank, target, .. } = found[first];
        if !rank.claims(target) {
            found.truncate(first + 1);
            return (true, false);
        }
        found.retain(|delivery| delivery.rank.is_copy() || delivery.rank == rank);
        (false, true)
    }
}
