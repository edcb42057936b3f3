//! Claims: bindings that keep frames for the host.
//!
//! A claim keeps bindings of lower rank from taking, never from copying. A
//! taker ends the search for copies only if no claim can precede it. So a claim
//! costs the plan's frames the look-ups of the copies behind takers.

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

    /// Adds a binding's rank, if the binding is a claim.
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

    /// Reduces the accepting bindings, sorted by rank, to the deliveries: the
    /// copies and the first binding that takes or claims; nothing behind a
    /// taker. Returns whether that binding takes, and whether it claims.
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
