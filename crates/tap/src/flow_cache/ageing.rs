//! What is to be done for every entry, done for some each millisecond: to see
//! which have aged, to add up what they have carried, and to give back the
//! slots of those that have ended.

use super::{FlowCache, LEASE};
use weir_link::xdp::{FlowAction, FlowKey};

/// How often it is done.
const TURN_NS: u64 = 1_000_000;
/// In how many turns it is done for all, unless that is too many at once.
const TURNS: usize = 1000;
/// Cells of the kernel's counts that are read in a turn: for each CPU one, for
/// each entry.
const CELLS_MAX: usize = 1024;
/// How long the kernel may still count for an entry that was ended.
pub(super) const QUARANTINE_NS: u64 = 100_000_000;

#[derive(Debug)]
pub(super) struct Tending {
    next_ns: u64,
    /// When it was done last.
    then_ns: u64,
    /// The next slot.
    at: usize,
    /// Entries of a turn, at most.
    batch_max: usize,
}

impl Tending {
    /// To count for an entry reads so many cells.
    pub(super) fn new(cells_each: usize) -> Tending {
        Tending {
            next_ns: 0,
            then_ns: 0,
            at: 0,
            batch_max: (CELLS_MAX / cells_each.max(1)).max(1),
        }
    }

    /// How many of so many entries are due.
    fn due(&mut self, now: u64, entries: usize) -> usize {
        let turns = now.saturating_sub(self.then_ns) / TURN_NS;
        (self.next_ns, self.then_ns) = (now + TURN_NS, now);
        let turns = usize::try_from(turns).unwrap_or(TURNS).clamp(1, TURNS);
        (entries * turns).div_ceil(TURNS).min(self.batch_max)
    }
}

impl FlowCache {
    /// Does what is due. Gives the time until which entries hold if the
    /// program sleeps.
    #[inline]
    pub(crate) fn work(&mut self, now: u64) {
        self.now = now;
        let lease = now.saturating_add(LEASE.as_nanos() as u64);
        self.state.set_lease(lease);
        if now >= self.tending.next_ns {
            self.tend(now);
        }
    }

    #[cold]
    fn tend(&mut self, now: u64) {
        self.poll_features(now);
        let count = self.entries.len();
        let due = self.tending.due(now, count);
        for _ in 0..due {
            let slot = self.tending.at;
            self.tending.at = (slot + 1) % count;
            self.check_entry(slot as u32, now);
        }
        self.wake(now, self.tending.batch_max);
    }

    fn check_entry(&mut self, slot: u32, now: u64) {
        let Some(Some(entry)) = self.entries.get_mut(slot as usize) else {
            return;
        };
        if entry.is_over {
            return;
        }
        let (key, used) = (entry.key, self.kernel.last_used(slot));
        if entry.is_aged(used, now) {
            self.counts.aged += u64::from(self.end(&key).is_some());
        } else if std::mem::replace(&mut entry.seen_used, used) != used {
            self.count_entry(slot);
        }
    }

    /// Gives back slots that have rested, up to so many.
    fn wake(&mut self, now: u64, most: usize) {
        for _ in 0..most {
            let Some(&(until, slot)) = self.resting.front() else {
                return;
            };
            if until > now {
                return;
            }
            self.resting.pop_front();
            self.count_entry(slot);
            let Some(entry) = self.entries[slot as usize].take() else {
                continue;
            };
            // Unless the key is in another slot by now. One that stays in the
            // table does nothing and takes room.
            if !self.numbers.contains_key(&entry.key) {
                let _ = self.kernel.remove(&entry.key);
            }
            self.free.push(slot);
        }
    }

    /// Has `holds` look at entries, from place `at` on and `batch_max` places at
    /// most, and ends those for which it does not: it is given when a frame of
    /// each came last. Leaves in `at` where to go on; `true` when it has come
    /// round to the first.
    pub fn revalidate(
        &mut self,
        at: &mut usize,
        most: usize,
        mut holds: impl FnMut(&FlowKey, &FlowAction, u64) -> bool,
    ) -> bool {
        let end = (*at).saturating_add(most).min(self.entries.len());
        for slot in (*at).min(end)..end {
            let Some(entry) = self.entries[slot].as_ref().filter(|e| !e.is_over) else {
                continue;
            };
            let (key, used) = (entry.key, self.kernel.last_used(slot as u32));
            if !holds(&key, &entry.action, used) {
                self.forget(&key);
            }
        }
        let is_round = end == self.entries.len();
        *at = if is_round { 0 } else { end };
        is_round
    }
}
