//! Counting in the kernel, per subscriber and service, ahead of everything that can fail.
//!
//! ```text
//!  frame ─► stage: row ─► class ─► cell += packets, bytes ─► gate ─► flow cache ─► application
//!                │                      ▲ bank 0 │ bank 1      └► bypass, host
//!                └ slots: key ─► row    └─ this process: cut() flips the bank, waits until no program
//!                                          counts in the old one, reads it; settle() empties it
//! ```
//!
//! A [`Meter`] is the maps: table of keys, cells, totals. A [`MeterStage`] is what counts in them:
//! part of the program of a [`Gate`](crate::xdp::Gate)'s link, or of a program of its own at tc
//! ([`MeterTap`]). Each frame is counted once, in one cell, and in the totals of its direction; in
//! one bank the sum of the cells is the totals.
//!
//! # Who changes what
//!
//! The stage adds to cells and totals, and enters unknown keys. The process writes slots, by plain
//! stores in the mapped table, without a system call:
//!
//! - **New key.** Key first, then the slot's third word, which makes it valid: one store. An IPv4 address
//!   and its row are one word, for which all of this is one store.
//! - **Another row.** One store of the third word: each frame belongs to the old row or to the new.
//! - **End.** One store of the third word, without a row. The slot is used for another key only
//!   after the next cut: until then a program may still compare the old key.
//!
//! A frame that a process translates is counted when its way is decided ([`Meter::translated_stage`]):
//! then it has the subscriber's address. What the program gives to the process uncounted it notes, so
//! that what a killed process had in hand is counted, too, as unattributed.
//!
//! A row's policy is words of its own: meters and quota that the stage changes, and limits that the
//! process writes. Rates and quotas go on when the process has died, as they were last.
//!
//! A counter that the stage adds to is never cleared. A bank is emptied by [`Meter::settle`] after a
//! cut, when no program counts in it, and the caller's records of it are durable; a process that
//! dies in between finds the same bank again ([`Meter::pending`]), with the number of its period.

mod adoption;
mod bank;
mod error;
mod keys;
mod layout;
mod maps;
mod measures;
mod policy;
mod process;
pub(super) mod program;
mod stage;

pub use bank::{Banks, Cell, Cut, CutOwner};
pub use error::MeterError;
pub use layout::PREFIX_LENGTHS_MAX;
pub use maps::{MeterSpec, SUBSCRIBERS_MAX};
pub use process::{HandedFrames, ProcessCounter};
pub(super) use stage::is_metered;
pub use stage::{MIRROR_PREFIXES_MAX, MeterStage, MeterTap, MirrorUp};

use crate::bpf::{MapMemory, PinFolder, grace_period};
use maps::{Geometry, Maps};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The row of a subscriber's session: the caller's number below [`MeterSpec::subscribers`].
pub type Row = u32;

/// Counters in the kernel, and the table of keys.
#[derive(Debug)]
pub struct Meter {
    maps: Arc<Maps>,
    geometry: Geometry,
    filters: Vec<(u16, weir_filter::ir::Program)>,
    measures: Vec<measures::Measured>,
    adopts: bool,
    banks: Arc<Banks>,
    control: MapMemory,
    slots: MapMemory,
    v4: MapMemory,
    policies: MapMemory,
    leases: MapMemory,
    tags: MapMemory,
    /// Keys by kind, or by prefix length: how many.
    used: HashMap<u32, u32>,
    /// Slots of keys that ended, by page and offset, which may be used for other keys.
    free: std::collections::HashSet<(usize, usize)>,
    /// Those that may not be used yet, with the number of cuts that had begun when they ended.
    limbo: HashMap<(usize, usize), u64>,
    /// Cuts that were done when `limbo` was last looked through.
    freed_at: u64,
    spilled: u64,
}

/// A meter that was opened where an earlier process may have left one.
#[derive(Debug)]
pub struct OpenedMeter {
    /// The meter.
    pub meter: Meter,
    /// Whether an earlier process has left it; its keys and counts are there.
    pub is_adopted: bool,
    /// The meters that were there before, with other services or sizes, the oldest first: their
    /// counts are to be read. Each stays pinned until [`Meter::forget`].
    pub previous: Vec<PreviousMeter>,
}

/// A meter that was replaced by one of other services or sizes.
#[derive(Debug)]
pub struct PreviousMeter {
    /// The meter.
    pub meter: Meter,
    name: String,
}

impl Meter {
    /// Makes a meter that goes with this value and the programs that use it.
    ///
    /// # Errors
    /// See [`MeterError`].
    pub fn create(spec: &MeterSpec<'_>) -> Result<Meter, MeterError> {
        let geometry = Geometry::new(spec)?;
        let maps = Maps::create(&geometry, spec.services)?;
        Meter::new(maps, geometry, spec)
    }

    /// Takes over the meter that is pinned in `folder`, or makes and pins one. The caller holds the
    /// folder's [lock](PinFolder::lock_alone).
    ///
    /// A meter whose services, sizes or unit are not those of `spec` is replaced, and given beside. It
    /// stays pinned in a folder of its own, so that a process that dies before it has read the counts
    /// loses nothing.
    ///
    /// # Errors
    /// See [`MeterError`]; [`MeterError::OtherVersion`] if this program cannot read what is there.
    pub fn open(folder: &PinFolder, spec: &MeterSpec<'_>) -> Result<OpenedMeter, MeterError> {
        let geometry = Geometry::new(spec)?;
        let left = Maps::open(folder)?;
        let epoch = match &left {
            Some((maps, _)) => Some(maps.boot_epoch()?),
            None => None,
        };
        let mut previous = Vec::new();
        for (name, maps, found) in maps::replaced(folder, epoch)? {
            let meter = Meter::new(maps, found, spec)?;
            previous.push(PreviousMeter { meter, name });
        }
        if let Some((maps, found)) = left {
            if found.is_like(&geometry) {
                let meter = Meter::new(maps, found, spec)?;
                // Whatever the earlier process was doing.
                grace_period()?;
                return Ok(OpenedMeter {
                    meter,
                    is_adopted: true,
                    previous,
                });
            }
            let name = maps::replace(folder, &maps)?;
            let meter = Meter::new(maps, found, spec)?;
            previous.push(PreviousMeter { meter, name });
        }
        let maps = Maps::create(&geometry, spec.services)?;
        maps.pin(folder)?;
        Ok(OpenedMeter {
            meter: Meter::new(maps, geometry, spec)?,
            is_adopted: false,
            previous,
        })
    }

    /// Removes the pins of a meter that was replaced: its counts have been read.
    ///
    /// # Errors
    /// When a pin cannot be removed.
    pub fn forget(folder: &PinFolder, previous: PreviousMeter) -> Result<(), MeterError> {
        maps::forget(folder, &previous.name)
    }

    fn new(maps: Maps, geometry: Geometry, spec: &MeterSpec<'_>) -> Result<Meter, MeterError> {
        let mapped = |map: &crate::bpf::Map| map.map_memory(true);
        let mut meter = Meter {
            banks: Arc::new(Banks::new(&maps, &geometry)?),
            control: mapped(&maps.control)?,
            slots: mapped(&maps.slots)?,
            v4: mapped(&maps.v4)?,
            policies: mapped(&maps.policies)?,
            leases: mapped(&maps.leases)?,
            tags: mapped(&maps.tags)?,
            maps: Arc::new(maps),
            filters: maps::filters(spec)?,
            measures: measures::compile(spec)?,
            adopts: spec.adopts,
            geometry,
            used: HashMap::new(),
            free: std::collections::HashSet::new(),
            limbo: HashMap::new(),
            freed_at: 0,
            spilled: 0,
        };
        meter.survey()?;
        Ok(meter)
    }

    /// A random number that was made with the counters: a new one after a restart of the machine.
    pub fn boot_epoch(&self) -> u64 {
        self.word(layout::at::BOOT_EPOCH)
    }

    /// When the counters were made: nanoseconds of the monotonic clock, and of Unix time. Zeros if the
    /// process that made them did not say.
    pub fn made(&self) -> (u64, i64) {
        let unix_ns = self.word(layout::at::MADE + 8);
        (self.word(layout::at::MADE), unix_ns.cast_signed())
    }

    /// How many rows of sessions there are.
    pub fn subscribers(&self) -> u32 {
        self.geometry.subscribers
    }

    /// Classes of a row.
    pub fn classes(&self) -> u16 {
        self.geometry.classes as u16
    }

    /// Columns of the measures of a cell.
    pub fn measure_columns(&self) -> usize {
        self.geometry.shape.columns as usize
    }

    /// Whether the classes and the unit of bytes of another meter are those of this one.
    pub fn means_the_same(&self, other: &Meter) -> bool {
        self.geometry.meaning == other.geometry.meaning
    }

    /// Whether the measures of another meter are those of this one.
    pub fn measures_the_same(&self, other: &Meter) -> bool {
        self.geometry.shape.meaning == other.geometry.shape.meaning
    }

    /// Bytes of all maps, which are allocated when the meter is made.
    pub fn memory_bytes(&self) -> u64 {
        self.geometry.memory_bytes()
    }

    /// As [`memory_bytes`](Self::memory_bytes), of a meter that is not made.
    ///
    /// # Errors
    /// If it cannot have these sizes.
    pub fn memory_bytes_of(spec: &MeterSpec<'_>) -> Result<u64, MeterError> {
        Ok(Geometry::new(spec)?.memory_bytes())
    }

    /// Notes a number of the caller's for a row, for the process that takes the meter over.
    pub fn set_tag(&self, row: Row, tag: u64) {
        if let Some(word) = self.tags.u64(row as usize, 0) {
            word.store(tag, Ordering::Release);
        }
    }

    /// The tag of a row, or 0.
    pub fn tag(&self, row: Row) -> u64 {
        self.tags.load_u64(row as usize, 0).unwrap_or(0)
    }

    fn word(&self, at: usize) -> u64 {
        self.control.load_u64(0, at).expect("a word of the page")
    }

    fn set_word(&self, at: usize, value: u64) {
        let word = self.control.u64(0, at).expect("a word of the page");
        word.store(value, Ordering::SeqCst);
    }
}
