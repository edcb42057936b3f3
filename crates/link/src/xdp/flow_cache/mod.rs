//! The flow cache: verdicts that the program at a link repeats for further frames of a key without
//! the application.
//!
//! ```text
//!  index         hash of a frame's key ─► number of a slot (index.rs)
//!  slots         u64 when a frame came last, or it was made
//!                i64 ns after which it no longer holds; the least: it has ended
//!                u64 for which queues it has begun, by bit
//!                u64 number of the last frame handed to the application
//!                    before that; its queue in the upper 8 bits
//!                u64 since when frames have come without a pause
//!                u64 whether some were held back
//!                the key, if it is short; what to do; the key, if it is long
//!  counts        for each CPU and slot: u64 frames, u64 bytes
//!  outs          number of a link ─► its interface
//! ```
//!
//! The program uses the cache only while the gate is open and the process is alive (see
//! [`program`](super::gate::program)): whatever shuts the gate also disables the cache. An entry is
//! disabled by one store to its slot.
//!
//! Of a flow among a million each map is a miss of the cache and of the TLB. The number of the slot
//! is all that the next loads wait for: key, state, action and counts come from memory together,
//! where the kernel's own hash table has them wait for one another (bench `functions -- entries`).

mod index;
mod key;
pub(super) mod program;
mod xdp_features;

pub use key::{FlowAction, FlowKey, FlowKind, Rewrite, Translation};
pub use xdp_features::{XdpFeatureEvent, XdpFeatureMonitor, supports_ndo_xmit};

use crate::bpf::{Map, MapError, MapMemory, MapSpec, possible_cpus};
use index::Index;
use key::{ACTION, Encoded, LONG, SHORT, words};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Largest number of entries of one tap.
pub const FLOW_ENTRIES_MAX: u32 = 1 << 21;

/// Longest time that a new entry waits for earlier frames of its flow to leave the application.
/// After that the program drops the flow's frames until activation cannot reorder them.
pub const ACTIVATE_WAIT: Duration = Duration::from_millis(10);

/// Layout of slots, and of the cells with their counts.
mod slot {
    /// Bytes of a slot: two cache lines, or three if keys may be long.
    pub(crate) const BYTES: usize = 128;
    pub(crate) const BYTES_LONG: usize = 192;
    pub(crate) const LAST_USED: i16 = 0;
    pub(crate) const AGEING: i16 = 8;
    pub(crate) const ACTIVE_QUEUES: i16 = 16;
    pub(crate) const LAST_QUEUE: i16 = 24;
    pub(crate) const SINCE: i16 = 32;
    pub(crate) const HELD_BACK: i16 = 40;
    pub(crate) const SHORT_KEY: i16 = 48;
    pub(crate) const ACTION: i16 = 64;
    pub(crate) const LONG_KEY: i16 = 128;

    /// The queue's position in [`LAST_QUEUE`]; an invalid queue means none.
    pub(crate) const QUEUE_SHIFT: i32 = 56;
    pub(crate) const NO_QUEUE: u64 = 0xff << QUEUE_SHIFT;
    /// A value of [`AGEING`]: the entry is disabled.
    pub(crate) const ENDED: i64 = i64::MIN;

    pub(crate) const ACTIVATE_WAIT_NS: i32 = super::ACTIVATE_WAIT.as_nanos() as i32;
    /// Time after which frames are no longer dropped, whether or not earlier frames have drained.
    pub(crate) const HOLD_MAX_NS: i32 = ACTIVATE_WAIT_NS + 100_000_000;

    /// Offsets in a cell.
    pub(crate) const FRAMES: i16 = 0;
    pub(crate) const BYTES_SENT: i16 = 8;
}

/// The flow cache's part of a link's program.
#[derive(Clone, Debug)]
pub(super) struct FlowProgramSpec {
    pub(super) kinds: Vec<FlowKind>,
    pub(super) slots_log2: u32,
    pub(super) index: index::Geometry,
    /// Whether checksums may be partial (left to the device): such frames go to the application.
    pub(super) completes: bool,
}

/// The tables that programs and process share.
#[derive(Debug)]
pub struct FlowMaps {
    kinds: Vec<FlowKind>,
    index: Index,
    slots: Map,
    slots_memory: MapMemory,
    counts: Map,
    counts_memory: MapMemory,
    devmap: Map,
    entries_log2: u32,
    cpus: usize,
}

impl FlowMaps {
    /// Creates tables for `entries` entries, rounded up to a power of two and at most
    /// [`FLOW_ENTRIES_MAX`], of these kinds of keys.
    ///
    /// # Errors
    /// Without privilege.
    pub fn new(kinds: &[FlowKind], entries: u32) -> Result<FlowMaps, MapError> {
        let entries = entries.clamp(1, FLOW_ENTRIES_MAX).next_power_of_two();
        let cpus = possible_cpus().map_err(|source| MapError::System {
            what: "count the CPUs",
            source,
        })?;
        let shared = |name, bytes, count| {
            let spec = MapSpec {
                mmapable: true,
                ..MapSpec::array(bytes, count)
            };
            Map::create(name, &spec)
        };
        let has_long = kinds.iter().any(|kind| *kind != FlowKind::MacPair);
        let bytes = if has_long {
            slot::BYTES_LONG
        } else {
            slot::BYTES
        };
        let slots = shared("weir_fast_slots", bytes as u32, entries)?;
        let cells = u32::try_from(cpus).unwrap_or(1).saturating_mul(entries);
        let counts = shared("weir_fast_count", 16, cells)?;
        Ok(FlowMaps {
            kinds: kinds.to_vec(),
            index: Index::new(entries)?,
            slots_memory: slots.map_memory(true)?,
            slots,
            counts_memory: counts.map_memory(false)?,
            counts,
            devmap: Map::create("weir_fast_outs", &MapSpec::dev_map(super::LINKS_MAX))?,
            entries_log2: entries.trailing_zeros(),
            cpus,
        })
    }

    /// Largest number of entries.
    pub fn entries_max(&self) -> u32 {
        1 << self.entries_log2
    }

    /// Number of cells to sum up for one entry: one for each CPU.
    pub fn cells_per_entry(&self) -> usize {
        self.cpus
    }

    pub(super) fn spec(&self, completes: bool) -> FlowProgramSpec {
        FlowProgramSpec {
            kinds: self.kinds.clone(),
            slots_log2: self.entries_log2,
            index: self.index.geometry(),
            completes,
        }
    }

    /// In the order in which the program refers to them.
    pub(super) fn maps(&self) -> [BorrowedFd<'_>; 4] {
        [self.index.map(), &self.slots, &self.counts, &self.devmap].map(AsFd::as_fd)
    }

    /// Sets the interface of an egress link, in the calling thread's network namespace.
    ///
    /// # Errors
    /// If there is no such interface.
    pub fn set_egress(&self, link: u32, ifindex: u32) -> Result<(), MapError> {
        self.devmap
            .update(&link.to_ne_bytes(), &ifindex.to_ne_bytes())
    }

    /// Inserts a key with its slot, which no program uses; `false` if there is no room, or if the
    /// key has addresses of two families.
    ///
    /// # Panics
    /// If `slot` is not below [`entries_max`](Self::entries_max).
    pub fn insert(&self, key: &FlowKey, slot: u32, action: &FlowAction) -> bool {
        let Some(key) = key.encode() else {
            return false;
        };
        let (at, other, bytes) = match key {
            Encoded::Short(_) => (slot::SHORT_KEY, slot::LONG_KEY, LONG),
            Encoded::Long(_) => (slot::LONG_KEY, slot::SHORT_KEY, SHORT),
        };
        if at == slot::SHORT_KEY && self.slots.value_bytes() == slot::BYTES {
            self.set_words(slot, at, words(key.bytes()));
        } else {
            // No earlier key is left beside this one.
            self.set_words(slot, other, std::iter::repeat_n(0, bytes / 8));
            self.set_words(slot, at, words(key.bytes()));
        }
        let action: [u8; ACTION] = action.encode();
        self.set_words(slot, slot::ACTION, words(&action));
        self.index.insert(key.bytes(), slot)
    }

    fn set_words(&self, slot: u32, at: i16, words: impl Iterator<Item = u64>) {
        for (at, word) in (at..).step_by(8).zip(words) {
            self.cell(slot, at).store(word, Ordering::Relaxed);
        }
    }

    /// The slot that a key has, if it has one; another key may have it.
    pub fn find(&self, key: &FlowKey) -> Option<u32> {
        self.index.slot(key.encode()?.bytes())
    }

    /// Removes a key: programs that begin from now on do not find the slot.
    pub fn remove(&self, key: &FlowKey, slot: u32) {
        if let Some(key) = key.encode() {
            self.index.remove(key.bytes(), slot);
        }
    }

    /// Removes all keys.
    pub fn remove_all(&self) {
        self.index.clear();
    }

    fn cell(&self, slot: u32, at: i16) -> &AtomicU64 {
        let cell = self.slots_memory.u64(slot as usize, at as usize);
        cell.expect("slots are numbered below what there are")
    }

    /// Enables a slot: the program forwards its frames as soon as that cannot reorder the flow, and
    /// as long as consecutive frames are less than `ageing_ns` apart; the first interval begins at
    /// `now` (`CLOCK_MONOTONIC`, ns).
    ///
    /// # Panics
    /// If `slot` is not below [`entries_max`](Self::entries_max).
    pub fn open_slot(&self, slot: u32, now: u64, ageing_ns: u64) {
        let set = |at, value| self.cell(slot, at).store(value, Ordering::SeqCst);
        set(slot::LAST_USED, now);
        set(slot::ACTIVE_QUEUES, 0);
        set(slot::LAST_QUEUE, slot::NO_QUEUE);
        set(slot::SINCE, now);
        set(slot::HELD_BACK, 0);
        // Stored last: this field makes the entry valid.
        set(slot::AGEING, ageing_ns.min(i64::MAX as u64));
    }

    /// Disables a slot: its frames go to the application.
    ///
    /// # Panics
    /// If `slot` is not below [`entries_max`](Self::entries_max).
    pub fn close_slot(&self, slot: u32) {
        let ageing = self.cell(slot, slot::AGEING);
        ageing.store(slot::ENDED as u64, Ordering::SeqCst);
    }

    /// The time of a slot's last frame, or of its opening (`CLOCK_MONOTONIC`, ns, with the
    /// precision of the coarse clock).
    ///
    /// # Panics
    /// If `slot` is not below [`entries_max`](Self::entries_max).
    pub fn last_used(&self, slot: u32) -> u64 {
        self.cell(slot, slot::LAST_USED).load(Ordering::Relaxed)
    }

    /// Frames and bytes forwarded by a slot since the tables were created.
    pub fn counted(&self, slot: u32) -> (u64, u64) {
        let cell = |cpu: usize, at: i16| {
            let index = (cpu << self.entries_log2) + slot as usize;
            self.counts_memory.load_u64(index, at as usize).unwrap_or(0)
        };
        (0..self.cpus).fold((0, 0), |(frames, bytes), cpu| {
            (
                frames + cell(cpu, slot::FRAMES),
                bytes + cell(cpu, slot::BYTES_SENT),
            )
        })
    }
}
