//! Cached verdicts: an application says of a frame "and the same for its
//! like, until I say otherwise", and the program in the kernel forwards them
//! by itself.
//!
//! An entry ends when it is [forgotten](FlowCache::forget), when none of its
//! frames came for as long as its ageing, when a link is untapped, and when
//! the gate shuts: the program died, hung or ended. Nothing is served that
//! was remembered before. While the program sleeps, entries hold for
//! [`LEASE`] without a sign of it.
//!
//! Frames stay in order: an entry takes effect, for a queue, with the first
//! frame that finds all of its like settled which the application was given
//! from that queue: sent with a push, or gone. Frames carry numbers, and after
//! each turn the application says for each queue up to which they are settled:
//! that is all that entries cost while they wait. Where frames come so thickly
//! that there is no such moment within [`ACTIVATE_WAIT`], more than the program can
//! take, those of the entry are held back, and so lost, until the program has
//! sent what it has, or for 0.1 s; both are counted. Not kept in order are
//! frames that the application keeps back itself, and those few of an entry
//! that the kernel cannot send by itself, see [`FlowAction::Route`].
//!
//! No call takes longer for there being many entries, but for those that say
//! so: what is to be done for all of them is done for some each millisecond
//! (`ageing.rs`).

mod ageing;
pub(crate) mod in_flight;
mod stats;
mod xdp_features;

pub use stats::{FlowCacheStats, FlowEntry, Traffic};

use crate::error::TapError;
use ageing::Tending;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;
pub use weir_link::xdp::ACTIVATE_WAIT;
use weir_link::xdp::{FLOW_ENTRIES_MAX, FlowAction, FlowKey, FlowKind, FlowMaps, SharedPage};
use weir_wire::ethernet::Address;
use xdp_features::Drivers;

/// How long entries hold while the program sleeps and gives no sign.
pub const LEASE: Duration = Duration::from_millis(200);

/// What cached verdicts are for, and how many there may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlowCacheConfig {
    /// What frames of an entry are alike in; of several kinds, flows come
    /// before addresses, and those before stations. Each costs every frame a
    /// look-up.
    pub kinds: &'static [FlowKind],
    /// Most entries, up to [`FLOW_ENTRIES_MAX`].
    pub entries_max: u32,
}

impl FlowCacheConfig {
    /// For these kinds, 8,192 entries.
    pub fn of(kinds: &'static [FlowKind]) -> FlowCacheConfig {
        FlowCacheConfig {
            kinds,
            entries_max: 8192,
        }
    }
}

/// What became of an answer that was to be remembered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InsertOutcome {
    /// It is from now on, or was already.
    Yes,
    /// There is no room; counted.
    Full,
    /// The driver of the link that frames are to go out at takes none that
    /// are redirected (a veth whose other end has neither a program at XDP nor
    /// GRO), or the link is not tapped; counted.
    NoNdoXmit,
    /// The tap has no cached verdicts of that kind.
    NotOfThisKind,
}

#[derive(Debug)]
struct Entry {
    key: FlowKey,
    action: FlowAction,
    ageing_ns: u64,
    /// What the slot had counted before, and when it was looked at last.
    base: Traffic,
    seen: Traffic,
    /// When it was looked at, its last frame had come at that time.
    seen_used: u64,
    /// It has ended; the kernel may still count for it.
    is_over: bool,
}

impl Entry {
    fn is_aged(&self, used: u64, now: u64) -> bool {
        now.saturating_sub(used) >= self.ageing_ns
    }
}

/// A link, as far as it matters here.
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
    state: Rc<SharedPage>,
    config: FlowCacheConfig,
    /// The slots of those that hold.
    numbers: HashMap<FlowKey, u32>,
    /// By their slots.
    entries: Vec<Option<Entry>>,
    /// Stations of entries, to find those of one that has moved.
    stations: BTreeSet<(Address, FlowKey)>,
    free: Vec<u32>,
    /// Slots that have ended: until when the kernel may still count in them.
    resting: VecDeque<(u64, u32)>,
    tending: Tending,
    links: Vec<Option<Out>>,
    drivers: Drivers,
    counts: FlowCacheStats,
    /// Frames and entries held back before us.
    held_back_before: (u64, u64),
    /// Frames are under way to the application, or it is not known.
    has_in_flight: bool,
    now: u64,
}

impl FlowCache {
    pub(crate) fn new(
        config: FlowCacheConfig,
        state: &Rc<SharedPage>,
    ) -> Result<FlowCache, TapError> {
        let entries = config.entries_max;
        if !(1..=FLOW_ENTRIES_MAX).contains(&entries) {
            return Err(TapError::Setting {
                what: "a table of cached verdicts",
                value: entries.into(),
                range: "1 to 65536 entries",
            });
        }
        let kernel =
            FlowMaps::new(config.kinds, entries).map_err(weir_link::xdp::GateError::from)?;
        Ok(FlowCache {
            held_back_before: (state.held_back(), state.held_back_entries()),
            state: Rc::clone(state),
            tending: Tending::new(kernel.cells_per_entry()),
            kernel,
            config,
            numbers: HashMap::new(),
            entries: Vec::new(),
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

    /// A link is tapped.
    pub(crate) fn add_link(&mut self, link: usize, ifindex: u32) {
        while self.links.len() <= link {
            self.links.push(None);
        }
        // Heard of from before it is asked: no change is missed.
        self.drivers.open();
        self.links[link] = Some(Out {
            ifindex,
            takes: xdp_features::takes(ifindex),
            carried_in: Traffic::default(),
            carried_out: Traffic::default(),
        });
    }

    /// A link is no longer tapped.
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

    /// Has frames of a key go on by themselves, until none came for so long.
    /// What was remembered of the key before, is replaced where it differs.
    pub fn insert(&mut self, key: FlowKey, action: FlowAction, ageing: Duration) -> InsertOutcome {
        if let Some(&slot) = self.numbers.get(&key)
            && let Some(known) = &self.entries[slot as usize]
        {
            let is_aged = known.is_aged(self.kernel.last_used(slot), self.now);
            match (known.action == action, is_aged) {
                (true, false) => return InsertOutcome::Yes,
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
        // Before the slot is open its frames still come to the application.
        match self.kernel.insert(&key, slot, &action) {
            Ok(true) => {}
            Ok(false) | Err(_) => {
                self.free.push(slot);
                self.counts.full += 1;
                return InsertOutcome::Full;
            }
        }
        let ageing_ns = u64::try_from(ageing.as_nanos()).unwrap_or(u64::MAX);
        self.enter(key, action, slot, ageing_ns);
        self.kernel.open_slot(slot, self.now, ageing_ns);
        InsertOutcome::Yes
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
        self.numbers.insert(key, slot);
        self.counts.inserted += 1;
    }

    /// Ends an entry: frames that come from now on are the application's.
    /// Tells what went by it; what is in the kernel's hands at this instant
    /// still counts in [`counts`](Self::counts).
    pub fn forget(&mut self, key: &FlowKey) -> Option<Traffic> {
        let slot = self.end(key)?;
        self.counts.forgotten += 1;
        self.carried(slot)
    }

    /// Ends all entries for which `which` holds; how many. It looks at all of
    /// them.
    pub fn forget_if(&mut self, which: impl Fn(&FlowKey, &FlowAction) -> bool) -> u64 {
        let count = self.end_if(which);
        self.counts.forgotten += count;
        count
    }

    /// Ends all entries to or from a station of a VLAN: it has moved. It looks
    /// at all that the station has.
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

    /// Ends an entry; its slot rests, and is taken out of the tables then.
    fn end(&mut self, key: &FlowKey) -> Option<u32> {
        let slot = self.numbers.remove(key)?;
        self.kernel.close_slot(slot);
        if let FlowKey::MacPair { src, dst, .. } = *key {
            self.stations.remove(&(src, *key));
            self.stations.remove(&(dst, *key));
        }
        self.entries[slot as usize].as_mut()?.is_over = true;
        let until = self.now.saturating_add(ageing::QUARANTINE_NS);
        self.resting.push_back((until, slot));
        Some(slot)
    }

    /// The gate has shut: nothing remembered holds any more.
    pub(crate) fn flush(&mut self) {
        self.counts.flushed += self.end_if(|_, _| true);
    }

    /// Whether there are entries that may wait for frames to be settled.
    #[inline]
    pub(crate) fn has_entries(&self) -> bool {
        !self.numbers.is_empty()
    }

    /// Notes whether frames are under way to the application.
    #[inline]
    pub(crate) fn set_pressed(&mut self, is_pressed: bool) {
        self.has_in_flight = is_pressed;
    }

    /// Whether it is soon to be looked again which frames are settled.
    pub(crate) fn is_pressed(&self) -> bool {
        self.has_in_flight
    }
}
