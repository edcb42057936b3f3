//! Adoption: a session that begins a little later owns traffic that was unattributed until then:
//! the records of the present period, not yet made.

use super::clock::monotonic_ns;
use std::collections::HashMap;
use weir_link::xdp::Meter;
use weir_meter::Key;
use weir_meter::sessions::Slot;

/// The sessions that adopt unattributed traffic, by key: the number of a period, and the session;
/// `None` if the session has lost the key again.
pub(super) struct Adoption {
    /// How old such traffic may be; 0: none is adopted.
    older_ns: u64,
    adopted: HashMap<Key, (u64, Option<Slot>)>,
}

impl Adoption {
    pub(super) fn new(older_ns: u64) -> Adoption {
        Adoption {
            older_ns,
            adopted: HashMap::new(),
        }
    }

    /// A session has gained a key, in the kernel, too.
    pub(super) fn begin(&mut self, meter: &Meter, key: Key, slot: Slot) {
        if self.older_ns == 0 {
            return;
        }
        let (period, now_ns) = (meter.period(), monotonic_ns());
        for (found, since_ns) in meter.unknown_since(key) {
            let is_recent = now_ns.saturating_sub(since_ns) <= self.older_ns;
            // What was adopted, or had an owner in between, stays as it is.
            let is_free = self.adopted.get(&found).is_none_or(|it| it.0 < period);
            if is_recent && is_free {
                self.adopted.insert(found, (period, Some(slot)));
            }
        }
    }

    /// The key belongs to no session any more: traffic from now on is unattributed, and is counted
    /// with what was adopted, so that none of it is adopted.
    pub(super) fn end(&mut self, key: &Key) {
        for (found, (_, slot)) in &mut self.adopted {
            if key.contains(*found) {
                *slot = None;
            }
        }
    }

    /// Who adopts the traffic of a key in a period.
    pub(super) fn of(&self, key: &Key, period: u64) -> Option<Slot> {
        let (adopted_in, slot) = self.adopted.get(key)?;
        slot.filter(|_| *adopted_in == period)
    }

    /// The records of all periods before this one are durable.
    pub(super) fn forget_before(&mut self, period: u64) {
        self.adopted
            .retain(|_, (adopted_in, _)| *adopted_in >= period);
    }
}
