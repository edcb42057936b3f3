//! Cached verdicts: an application caches its verdict on a frame for similar
//! frames, and the program in the kernel applies it without the application.
//!
//! An entry ends when the application [removes](FlowCache::forget) it, when
//! none of its frames came for its ageing time, when a link is untapped, and
//! when the gate shuts since the application died, hung or ended. No entry
//! survives a shut gate. While the application sleeps, entries stay valid for
//! [`LEASE`] without a sign of life.
//!
//! Frames stay in order. For each queue, an entry takes effect when all earlier
//! similar frames that went to the application from that queue have drained:
//! they were sent with a push, or dropped. Frames carry numbers, and after each
//! turn the application publishes for each queue the number up to which frames
//! have drained; that is the only cost of waiting entries. If frames come so
//! densely that no such moment occurs within [`ACTIVATE_WAIT`](weir_link::xdp::ACTIVATE_WAIT), the kernel holds
//! back (drops) the entry's frames until the application has sent its frames,
//! or for 0.1 s; both are counted. Order is not kept for frames that the
//! application delays itself, and for the few frames of an entry that the
//! kernel cannot send itself, see [`FlowAction::Route`](weir_link::xdp::FlowAction::Route).
//!
//! The cost of a call does not depend on the number of entries, except where
//! its documentation says so: work for all entries is done for some each
//! millisecond (`ageing.rs`).

mod ageing;
pub(crate) mod in_flight;
mod stats;
mod xdp_features;

pub use stats::{FlowCacheStats, FlowEntry, Traffic};

use crate::error::TapError;
use ageing::Tending;
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::Duration;
pub use weir_link::xdp::ACTIVATE_WAIT;
use weir_link::xdp::{FLOW_ENTRIES_MAX, FlowAction, FlowKey, FlowKind, FlowMaps, SharedPage};
use weir_wire::ethernet::Address;
use xdp_features::Drivers;

/// Time for which entries stay valid while the application sleeps without a
/// sign of life.
pub const LEASE: Duration = Duration::from_millis(200);

/// The kinds of cached verdicts, and their number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlowCacheConfig {
    /// The kinds of keys; of several kinds, flows are looked up before
    /// addresses, and those before stations. Each kind costs every frame a
    /// look-up.
    pub kinds: &'static [FlowKind],
    /// Largest number of entries, up to [`FLOW_ENTRIES_MAX`].
    pub entries_max: u32,
}

impl FlowCacheConfig {
    /// A cache of these kinds with 8,192 entries.
    pub fn of(kinds: &'static [FlowKind]) -> FlowCacheConfig {
        FlowCacheConfig {
            kinds,
            entries_max: 8192,
        }
    }
}

/// The result of inserting an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InsertOutcome {
    /// The entry exists from now on, or existed already: in this slot, below
    /// [`FlowCacheConfig::entries_max`]. Another entry has the slot only after
    /// this one has ended.
    Yes(u32),
    /// The cache is full; counted.
    Full,
    /// The driver of the outgoing link does not accept redirected frames (a
    /// veth whose other end has neither an XDP program nor GRO), or the link is
    /// not tapped; counted.
    NoNdoXmit,
    /// The tap has no flow cache of that kind.
    NotOfThisKind,
}

#[derive(Debug)]
struct Entry {
    key: FlowKey,
    action: FlowAction,
    ageing_ns: u64,
    /// The slot's counters at the start of the entry, and at the last visit.
    base: Traffic,
    seen: Traffic,
    /// The time of the entry's last frame, as of the last visit.
    seen_used: u64,
    /// The entry has ended; the kernel may still count for it.
    is_over: bool,
}

impl Entry {
    fn is_aged(&self, used: u64, now: u64) -> bool {
        now.saturating_sub(used) >= self.ageing_ns
    }
}

/// The state of a link that the cache needs.
#[derive(Clone, Copy, Debug)]
struct Out {
    ifindex: u32,
    takes: bool,
    carried_in: Traffic,
    carried_out: Traffic,
}

/// The cached verdicts of a tap.
#[derive(Debug)]
pub struct FlowCache {
    kernel: FlowMaps,
    page: Rc<SharedPage>,
    config: FlowCacheConfig,
    /// Entries by slot.
    entries: Vec<Option<Entry>>,
    /// How many are valid.
    valid: usize,
    /// Stations of entries, to find the entries of a moved station.
    stations: BTreeSet<(Address, FlowKey)>,
    free: Vec<u32>,
    /// Slots of ended entries, each with the time until which the kernel may
    /// still count in it.
    resting: VecDeque<(u64, u32)>,
    tending: Tending,
    links: Vec<Option<Out>>,
    drivers: Drivers,
    counts: FlowCacheStats,
    /// Frames and entries held back before this process.
    held_back_before: (u64, u64),
    /// Frames are in flight to the application, or that is unknown.
    has_in_flight: bool,
    now: u64,
}

impl FlowCache {
    pub(crate) fn new(
        config: FlowCacheConfig,
        page: &Rc<SharedPage>,
    ) -> Result<FlowCache, TapError> {
        let entries = config.entries_max;
        if !(1..=FLOW_ENTRIES_MAX).contains(&entries) {
            return Err(TapError::Setting {
                what: "a table of cached verdicts",
                value: entries.into(),
                range: "1 to 2097152 entries",
            });
        }
        let kernel =
            FlowMaps::new(config.kinds, entries).map_err(weir_link::xdp::GateError::from)?;
        Ok(FlowCache {
            held_back_before: (page.held_back(), page.held_back_entries()),
            page: Rc::clone(page),
            tending: Tending::new(kernel.cells_per_entry()),
            kernel,
            config,
            entries: Vec::new(),
            valid: 0,
            stations: BTreeSet::new(),
            free: (0..entries).rev().collect(),
            resting: VecDeque::new(),
            links: Vec::new(),
            drivers: Drivers::default(),
            counts: FlowCacheStats::default(),
            has_in_flight: false,
            now: crate::clock::now(),
        })
    }

    pub(crate) fn kernel(&self) -> &FlowMaps {
        &self.kernel
    }

    /// Adds a tapped link.
    pub(crate) fn add_link(&mut self, link: usize, ifindex: u32) {
        while self.links.len() <= link {
            self.links.push(None);
        }
        // Subscribed before the state is read, so that no change is missed.
        self.drivers.open();
        self.links[link] = Some(Out {
            ifindex,
            takes: xdp_features::takes(ifindex),
            carried_in: Traffic::default(),
            carried_out: Traffic::default(),
        });
    }

    /// Removes a link that is no longer tapped.
    pub(crate) fn remove_link(&mut self, link: usize) {
        let number = link as u32;
        let gone = |key: &FlowKey, action: &FlowAction| {
            key.link() == number || action.link() == Some(number)
        };
        self.counts.flushed += self.end_if(gone);
        if let Some(place) = self.links.get_mut(link) {
            *place = None;
        }
    }

    /// Applies `action` to frames of a key in the kernel, until none came for
    /// `ageing`. Replaces another entry of the key.
    pub fn insert(&mut self, key: FlowKey, action: FlowAction, ageing: Duration) -> InsertOutcome {
        if let Some((slot, known)) = self.find(&key) {
            let is_aged = known.is_aged(self.kernel.last_used(slot), self.now);
            match (known.action == action, is_aged) {
                (true, false) => return InsertOutcome::Yes(slot),
                (_, true) => self.counts.aged += u64::from(self.end(&key).is_some()),
                (false, false) => _ = self.forget(&key),
            }
        }
        if !self.config.kinds.contains(&key.kind()) {
            return InsertOutcome::NotOfThisKind;
        }
        let links = [Some(key.link()), action.link()];
        let takes = |link: u32| {
            let out = self.links.get(link as usize).copied().flatten();
            out.is_some_and(|out| out.takes || Some(link) != action.link())
        };
        if !links.into_iter().flatten().all(takes) {
            self.counts.no_ndo_xmit += 1;
            return InsertOutcome::NoNdoXmit;
        }
        let Some(slot) = self.free.pop() else {
            self.counts.full += 1;
            return InsertOutcome::Full;
        };
        // Until the slot is open, its frames still come to the application.
        if !self.kernel.insert(&key, slot, &action) {
            self.free.push(slot);
            self.counts.full += 1;
            return InsertOutcome::Full;
        }
        let ageing_ns = u64::try_from(ageing.as_nanos()).unwrap_or(u64::MAX);
        self.enter(key, action, slot, ageing_ns);
        self.kernel.open_slot(slot, self.now, ageing_ns);
        InsertOutcome::Yes(slot)
    }

    fn enter(&mut self, key: FlowKey, action: FlowAction, slot: u32, ageing_ns: u64) {
        let base = self.counted(slot);
        if let FlowKey::MacPair { src, dst, .. } = key {
            self.stations.extend([(src, key), (dst, key)]);
        }
        while self.entries.len() <= slot as usize {
            self.entries.push(None);
        }
        self.entries[slot as usize] = Some(Entry {
            key,
            action,
            ageing_ns,
            base,
            seen: base,
            seen_used: self.now,
            is_over: false,
        });
        self.valid += 1;
        self.counts.inserted += 1;
    }

    /// The valid entry of a key, and its slot.
    fn find(&self, key: &FlowKey) -> Option<(u32, &Entry)> {
        let slot = self.kernel.find(key)?;
        let entry = self.entries.get(slot as usize)?.as_ref()?;
        (entry.key == *key && !entry.is_over).then_some((slot, entry))
    }

    /// Ends an entry: later frames come to the application. Returns the entry's
    /// traffic, or `None` if there is no entry; frames in the kernel's hands at
    /// this moment still count in [`counts`](Self::counts).
    pub fn forget(&mut self, key: &FlowKey) -> Option<Traffic> {
        let slot = self.end(key)?;
        self.counts.forgotten += 1;
        self.carried(slot)
    }

    /// Ends all entries for which `which` returns `true`; returns their number.
    /// Visits all entries.
    pub fn forget_if(&mut self, which: impl Fn(&FlowKey, &FlowAction) -> bool) -> u64 {
        let count = self.end_if(which);
        self.counts.forgotten += count;
        count
    }

    /// Ends all entries to or from a moved station of a VLAN. Visits all
    /// entries of the station.
    pub fn forget_station(&mut self, vlan: u16, station: Address) -> u64 {
        let from = FlowKey::MacPair {
            link: 0,
            vlan: 0,
            src: Address([0; 6]),
            dst: Address([0; 6]),
        };
        let of_it = self.stations.range((station, from)..);
        let of_it = of_it.take_while(|(other, _)| *other == station);
        let keys: Vec<FlowKey> = of_it
            .map(|(_, key)| *key)
            .filter(|key| matches!(key, FlowKey::MacPair { vlan: v, .. } if *v == vlan))
            .collect();
        let ended = self.end_all(&keys);
        self.counts.forgotten += ended;
        ended
    }

    fn end_if(&mut self, which: impl Fn(&FlowKey, &FlowAction) -> bool) -> u64 {
        let entries = self.entries.iter().flatten();
        let keys: Vec<FlowKey> = entries
            .filter(|entry| !entry.is_over && which(&entry.key, &entry.action))
            .map(|entry| entry.key)
            .collect();
        self.end_all(&keys)
    }

    fn end_all(&mut self, keys: &[FlowKey]) -> u64 {
        keys.iter().filter(|key| self.end(key).is_some()).count() as u64
    }

    /// Ends an entry. Its slot is quarantined: programs may have found it a moment ago.
    fn end(&mut self, key: &FlowKey) -> Option<u32> {
        let (slot, _) = self.find(key)?;
        self.valid -= 1;
        self.kernel.close_slot(slot);
        self.kernel.remove(key, slot);
        if let FlowKey::MacPair { src, dst, .. } = *key {
            self.stations.remove(&(src, *key));
            self.stations.remove(&(dst, *key));
        }
        self.entries[slot as usize].as_mut()?.is_over = true;
        let until = self.now.saturating_add(ageing::QUARANTINE_NS);
        self.resting.push_back((until, slot));
        Some(slot)
    }

    /// Ends all entries, since the gate has shut.
    pub(crate) fn flush(&mut self) {
        let until = self.now.saturating_add(ageing::QUARANTINE_NS);
        for (slot, entry) in (0..).zip(&mut self.entries) {
            let Some(entry) = entry.as_mut().filter(|entry| !entry.is_over) else {
                continue;
            };
            entry.is_over = true;
            self.kernel.close_slot(slot);
            self.resting.push_back((until, slot));
        }
        self.kernel.remove_all();
        self.counts.flushed += std::mem::take(&mut self.valid) as u64;
        self.stations.clear();
    }

    /// Whether there are entries, which may wait for frames to drain.
    #[inline]
    pub(crate) fn has_entries(&self) -> bool {
        self.valid > 0
    }

    /// Records whether frames are in flight to the application.
    #[inline]
    pub(crate) fn set_pressed(&mut self, is_pressed: bool) {
        self.has_in_flight = is_pressed;
    }

    /// Whether drained frames should be checked again soon.
    pub(crate) fn is_pressed(&self) -> bool {
        self.has_in_flight
    }
}
