//! Cached verdicts: frames that the program at a link forwards by itself,
//! because the application has said what becomes of their like.
//!
//! ```text
//!  short, long   key of a frame ─► number of a slot, and what to do
//!  slots         u64 until when (CLOCK_MONOTONIC, ns; 0: no longer)
//!                u64 after how many frames handed to the application; -1:
//!                    now; -2: frames are held back
//!  counts        for each CPU and slot: u64 frames, u64 bytes
//!  outs          number of a link ─► its interface
//! ```
//!
//! The program asks for it only while the gate is open and its process alive
//! (see [`program`](super::program)): whatever shuts the gate ends it at once.
//! An entry ends with one store into its slot; what is left of it in the
//! tables does nothing.

mod driver;
mod key;
pub(super) mod program;

pub use driver::takes_redirected;
pub use key::{FastAction, FastKey, FastKind};

use crate::bpf::{Map, MapError, MapMemory, MapSpec, possible_cpus};
use key::{Encoded, LONG, SHORT, VALUE};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;

/// Most entries of one tap.
pub const FAST_ENTRIES_MAX: u32 = 1 << 16;

/// Offsets in a slot, and in the cells of its counts.
mod slot {
    pub(crate) const UNTIL: i16 = 0;
    pub(crate) const AFTER: i16 = 8;
    pub(crate) const BEGUN_IMM: i32 = -1;
    pub(crate) const HELD_IMM: i32 = -2;
    pub(crate) const FRAMES: i16 = 0;
    pub(crate) const BYTES: i16 = 8;
}

/// In a slot that has begun.
const BEGUN: u64 = slot::BEGUN_IMM as i64 as u64;
/// In one whose frames are held back.
const HELD: u64 = slot::HELD_IMM as i64 as u64;
/// In one whose frames go to the application: more than ever come.
const NEVER: u64 = HELD - 1;

/// What a link's program is made for.
#[derive(Clone, Debug)]
pub(super) struct Spec {
    pub(super) kinds: Vec<FastKind>,
    pub(super) slots_log2: u32,
    /// Checksums may have been left to the device: such frames go up.
    pub(super) completes: bool,
}

/// The tables that programs and process share.
#[derive(Debug)]
pub struct Fast {
    kinds: Vec<FastKind>,
    short: Map,
    long: Map,
    slots: Map,
    slots_memory: MapMemory,
    counts: Map,
    counts_memory: MapMemory,
    outs: Map,
    entries_log2: u32,
    cpus: usize,
}

impl Fast {
    /// Tables for so many entries, rounded up to a power of two and at most
    /// [`FAST_ENTRIES_MAX`], of these kinds.
    ///
    /// # Errors
    /// Without privilege.
    pub fn new(kinds: &[FastKind], entries: u32) -> Result<Fast, MapError> {
        let entries = entries.clamp(1, FAST_ENTRIES_MAX).next_power_of_two();
        let cpus = possible_cpus().map_err(|source| MapError::System {
            what: "count the CPUs",
            source,
        })?;
        let shared = |name, count| {
            let spec = MapSpec {
                mmapable: true,
                ..MapSpec::array(16, count)
            };
            Map::create(name, &spec)
        };
        let table = |bytes| MapSpec::hash(bytes as u32, VALUE as u32, entries);
        let slots = shared("weir_fast_slots", entries)?;
        let cells = u32::try_from(cpus).unwrap_or(1).saturating_mul(entries);
        let counts = shared("weir_fast_count", cells)?;
        Ok(Fast {
            kinds: kinds.to_vec(),
            short: Map::create("weir_fast_short", &table(SHORT))?,
            long: Map::create("weir_fast_long", &table(LONG))?,
            slots_memory: slots.map_memory(true)?,
            slots,
            counts_memory: counts.map_memory(false)?,
            counts,
            outs: Map::create("weir_fast_outs", &MapSpec::dev_map(super::LINKS_MAX))?,
            entries_log2: entries.trailing_zeros(),
            cpus,
        })
    }

    /// How many entries there can be.
    pub fn entries_max(&self) -> u32 {
        1 << self.entries_log2
    }

    pub(super) fn spec(&self, completes: bool) -> Spec {
        Spec {
            kinds: self.kinds.clone(),
            slots_log2: self.entries_log2,
            completes,
        }
    }

    /// In the order of [`program::place`].
    pub(super) fn maps(&self) -> [BorrowedFd<'_>; 5] {
        [
            &self.short,
            &self.long,
            &self.slots,
            &self.counts,
            &self.outs,
        ]
        .map(AsFd::as_fd)
    }

    /// Says which interface a link is, in the calling thread's network
    /// namespace.
    ///
    /// # Errors
    /// If there is none.
    pub fn set_out(&self, link: u32, ifindex: u32) -> Result<(), MapError> {
        self.outs
            .update(&link.to_ne_bytes(), &ifindex.to_ne_bytes())
    }

    /// Enters a key with its slot; `false` for one that has addresses of two
    /// families.
    ///
    /// # Errors
    /// If the table is full.
    pub fn insert(&self, key: &FastKey, slot: u32, action: &FastAction) -> Result<bool, MapError> {
        let value = action.encode(slot);
        match key.encode() {
            Some(Encoded::Short(key)) => self.short.update(&key, &value)?,
            Some(Encoded::Long(key)) => self.long.update(&key, &value)?,
            None => return Ok(false),
        }
        Ok(true)
    }

    /// Takes a key out of the tables, to make room.
    ///
    /// # Errors
    /// What the system says.
    pub fn remove(&self, key: &FastKey) -> Result<(), MapError> {
        match key.encode() {
            Some(Encoded::Short(key)) => self.short.delete(&key)?,
            Some(Encoded::Long(key)) => self.long.delete(&key)?,
            None => false,
        };
        Ok(())
    }

    /// Lets a slot's frames go on by themselves until that time
    /// (`CLOCK_MONOTONIC`, ns; 0: at once no longer).
    pub fn set_until(&self, slot: u32, until: u64) {
        if let Some(cell) = self.slots_memory.u64(slot as usize, slot::UNTIL as usize) {
            cell.store(until, Ordering::SeqCst);
        }
    }

    /// Has a slot, unless it has begun, begin with the first frame before
    /// which exactly so many were handed to the application: it has sent those
    /// on, so none is overtaken.
    pub fn begin_after(&self, slot: u32, handed: u64) {
        let cell = self.slots_memory.u64(slot as usize, slot::AFTER as usize);
        if let Some(cell) = cell {
            let begun = |after: u64| (after != BEGUN).then_some(handed);
            let _ = cell.fetch_update(Ordering::SeqCst, Ordering::SeqCst, begun);
        }
    }

    fn set_after(&self, slot: u32, after: u64) {
        if let Some(cell) = self.slots_memory.u64(slot as usize, slot::AFTER as usize) {
            cell.store(after, Ordering::SeqCst);
        }
    }

    /// Has a slot begin with the next frame.
    pub fn begin(&self, slot: u32) {
        self.set_after(slot, BEGUN);
    }

    /// Has a slot's frames go to the application.
    pub fn hand_over(&self, slot: u32) {
        self.set_after(slot, NEVER);
    }

    /// Has a slot's frames go nowhere, until those before them are sent.
    pub fn hold(&self, slot: u32) {
        self.set_after(slot, HELD);
    }

    /// Whether a slot has begun.
    pub fn has_begun(&self, slot: u32) -> bool {
        let after = self
            .slots_memory
            .load_u64(slot as usize, slot::AFTER as usize);
        after == Some(BEGUN)
    }

    /// Frames and bytes that went by a slot since the tables were made.
    pub fn counted(&self, slot: u32) -> (u64, u64) {
        let cell = |cpu: usize, at: i16| {
            let index = (cpu << self.entries_log2) + slot as usize;
            self.counts_memory.load_u64(index, at as usize).unwrap_or(0)
        };
        (0..self.cpus).fold((0, 0), |(frames, bytes), cpu| {
            (
                frames + cell(cpu, slot::FRAMES),
                bytes + cell(cpu, slot::BYTES),
            )
        })
    }
}
