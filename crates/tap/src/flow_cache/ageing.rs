//! Periodic maintenance of the entries, some each millisecond: detects aged
//! entries, adds up their counters, and frees the slots of ended entries.

use super::{FlowCache, LEASE};
use weir_link::xdp::{FlowAction, FlowKey};

/// Interval of a maintenance turn, in ns.
const TURN_NS: u64 = 1_000_000;
/// Number of turns in which all entries are visited, unless a turn would exceed
/// its limit.
const TURNS: usize = 1000;
/// Number of the kernel's counter cells read in a turn; each entry has one for
/// each CPU.
const CELLS_MAX: usize = 1024;
/// Time that the kernel may still count for an ended entry, in ns.
pub(super) const QUARANTINE_NS: u64 = 100_000_000;

#[derive(Debug)]
pub(super) struct Tending {
    next_ns: u64,
    /// The time of the last turn, in ns.
    then_ns: u64,
    /// The next slot to visit.
    at: usize,
    /// Largest number of entries visited in a turn.
    batch_max: usize,
}

impl Tending {
    /// Counting for one entry reads `cells_each` cells.
    pub(super) fn new(cells_each: usize) -> Tending {
        Tending {
            next_ns: 0,
            then_ns: 0,
            at: 0,
            batch_max: (CELLS_MAX / cells_each.max(1)).max(1),
        }
    }

    /// Number of entries to visit now.
    fn due(&mut self, now: u64, entries: usize) -> usize {
        let turns = now.saturating_sub(self.then_ns) / TURN_NS;
        (self.next_ns, self.then_ns) = (now + TURN_NS, now);
        let turns = usize::try_from(turns).unwrap_or(TURNS).clamp(1, TURNS);
        (entries * turns).div_ceil(TURNS).min(self.batch_max)
    }
}

impl FlowCache {
    /// Performs the due maintenance. Extends the lease: the time until which
    /// entries are valid if the application sleeps.
    #[inline]
    pub(crate) fn work(&mut self, now: u64) {
        self.now = now;
        let lease = now.saturating_add(LEASE.as_nanos() as u64);
        self.page.set_lease(lease);
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

    /// Frees up to `most` slots whose quarantine has ended.
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
            if self.entries[slot as usize].take().is_some() {
                self.free.push(slot);
            }
        }
    }

    /// Calls `holds` for entries from slot `at` on, at most `batch_max` slots,
    /// with the slot and the time of the entry's last frame, and ends the
    /// entries for which it returns `false`. Updates `at`; returns `true` when
    /// it has wrapped to the first slot.
    pub fn revalidate(
        &mut self,
        at: &mut usize,
        most: usize,
        mut holds: impl FnMut(u32, &FlowKey, &FlowAction, u64) -> bool,
    ) -> bool {
        let end = (*at).saturating_add(most).min(self.entries.len());
        for slot in (*at).min(end)..end {
            let Some(entry) = self.entries[slot].as_ref().filter(|e| !e.is_over) else {
                continue;
            };
            let (key, used) = (entry.key, self.kernel.last_used(slot as u32));
            if !holds(slot as u32, &key, &entry.action, used) {
                self.forget(&key);
            }
        }
        let is_round = end == self.entries.len();
        *at = if is_round { 0 } else { end };
        is_round
    }
}
