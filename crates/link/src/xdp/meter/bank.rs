//! Cutting a period: flip the bank, wait, read, and empty it when its records are durable.
//!
//! ```text
//!            bank 0 counts period 0        PERIOD = [0, 1]   BANK = 0
//!  cut       bank 1 counts period 1        PERIOD = [0, 1]   BANK = 1   0 < 1: bank 0 is pending
//!  settle    bank 0 emptied, then          PERIOD = [2, 1]   BANK = 1   2 > 1: it is the next
//! ```
//!
//! Each step ends with one store, so that a process that dies at any moment leaves one of these
//! states.

use super::error::MeterError;
use super::keys::SlotKey;
use super::layout::{
    CARRY_BYTES, CARRY_SLOTS, COUNT_BYTES, SLOT_BYTES, SLOTS, at, count_words, counts, state,
};
use super::maps::{Geometry, Maps};
use super::{Meter, Row};
use crate::bpf::{MapMemory, grace_period};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use weir_meter::{Direction, Key, Totals};

/// Whose traffic a cell counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CutOwner {
    /// The session of this row.
    Row(Row),
    /// An address that no session has; the MAC address of a frame without one.
    Unknown(Key),
    /// Addresses beyond the limit of unknown ones, and frames without any.
    Overflow,
}

/// A cell that is not zero.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cell {
    /// Whose traffic.
    pub owner: CutOwner,
    /// The service's number.
    pub class: u16,
    /// The direction.
    pub direction: Direction,
    /// Packets.
    pub packets: u64,
    /// Bytes, of frames or of IP packets.
    pub bytes: u64,
    /// Of these, the packets and bytes that a policy did not let pass as they were.
    pub policed: [u64; 2],
    /// The columns of the measures, in their order.
    pub more: Vec<u64>,
    /// Whether a flow found no room, so that the count of flows is a lower bound.
    pub at_least: bool,
}

/// A period that has ended: nothing is added to it.
#[derive(Debug)]
pub struct Cut<'a> {
    banks: &'a Banks,
    bank: u64,
    period: u64,
    carried: Carried,
}

/// The cells of a meter in their two banks: what one thread cuts, reads and empties while another
/// changes keys.
#[derive(Debug)]
pub struct Banks {
    pub(super) geometry: Geometry,
    control: MapMemory,
    pub(super) unknown: MapMemory,
    cells: MapMemory,
    carry: MapMemory,
    totals: MapMemory,
    pub(super) flows: Option<MapMemory>,
    /// Cuts that have begun, and those of them after which no program counts in the old bank.
    begun: AtomicU64,
    done: AtomicU64,
}

impl Meter {
    /// The banks, for a thread that cuts.
    pub fn banks(&self) -> std::sync::Arc<Banks> {
        self.banks.clone()
    }

    /// As [`Banks::cut`].
    ///
    /// # Errors
    /// As there.
    pub fn cut(&mut self) -> Result<Cut<'_>, MeterError> {
        self.banks.cut()
    }

    /// As [`Banks::pending`].
    pub fn pending(&self) -> Option<Cut<'_>> {
        self.banks.pending()
    }

    /// As [`Banks::period`].
    pub fn period(&self) -> u64 {
        self.banks.period()
    }

    /// As [`Banks::settle`].
    pub fn settle(&mut self) {
        self.banks.settle();
    }
}

impl Banks {
    pub(super) fn new(maps: &Maps, geometry: &Geometry) -> Result<Banks, MeterError> {
        let mapped = |map: &crate::bpf::Map| map.map_memory(true);
        Ok(Banks {
            geometry: geometry.clone(),
            control: mapped(&maps.control)?,
            unknown: mapped(&maps.unknown)?,
            cells: mapped(&maps.cells)?,
            carry: mapped(&maps.carry)?,
            totals: mapped(&maps.totals)?,
            flows: maps.flows.as_ref().map(mapped).transpose()?,
            begun: AtomicU64::new(0),
            done: AtomicU64::new(0),
        })
    }

    /// Notes that programs may count in a row, before one does.
    pub(super) fn use_row(&self, row: Row) {
        let word = self.control.u64(0, at::ROWS_USED);
        let word = word.expect("a word of the page");
        // 0 stands for all rows: a process that did not note them has left the meter.
        if word.load(Ordering::Relaxed) != 0 {
            word.fetch_max(u64::from(row) + 2, Ordering::Release);
        }
    }

    fn rows_used(&self) -> u32 {
        let subscribers = self.geometry.subscribers;
        let used = self.word(at::ROWS_USED).checked_sub(1);
        used.map_or(subscribers, |used| used.min(subscribers.into()) as u32)
    }

    /// Cuts of this process that have begun.
    pub(super) fn begun(&self) -> u64 {
        self.begun.load(Ordering::SeqCst)
    }

    /// Cuts of this process after which no program counts in the old bank.
    pub(super) fn done(&self) -> u64 {
        self.done.load(Ordering::Acquire)
    }

    /// Ends the current period, and begins the next. Waits until no program counts in the old one:
    /// 8 to 25 ms. One thread at a time cuts and settles.
    ///
    /// # Errors
    /// If the last period that was cut is not settled, or the kernel refuses to wait.
    pub fn cut(&self) -> Result<Cut<'_>, MeterError> {
        let (bank, period) = self.active();
        if let Some((_, period)) = self.pending_bank() {
            return Err(MeterError::Unsettled { period });
        }
        let begun = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
        self.set_word(at::BANK, bank ^ 1);
        grace_period()?;
        // Programs that compared a key which ended before the flip have ended.
        self.done.store(begun, Ordering::Release);
        Ok(Cut {
            banks: self,
            bank,
            period,
            carried: self.carried(),
        })
    }

    /// The period that was cut and is not settled, by whatever process.
    pub fn pending(&self) -> Option<Cut<'_>> {
        let (bank, period) = self.pending_bank()?;
        Some(Cut {
            banks: self,
            bank,
            period,
            carried: self.carried(),
        })
    }

    /// The period that is counted now.
    pub fn period(&self) -> u64 {
        self.active().1
    }

    /// As [`Meter::polices`].
    pub fn polices(&self) -> bool {
        self.geometry.polices
    }

    /// As [`Meter::boot_epoch`].
    pub fn boot_epoch(&self) -> u64 {
        self.word(at::BOOT_EPOCH)
    }

    /// Empties the bank of the period that was cut: its records are durable. Does nothing if there
    /// is none. The cost follows the rows in use, as that of reading does.
    pub fn settle(&self) {
        let Some((bank, period)) = self.pending_bank() else {
            return;
        };
        self.retire_unknown(bank);
        let total = self.geometry.total() as usize;
        let words = self.geometry.cell() as usize / 8;
        let empty = |column, row| {
            let cell = self.geometry.cell_at(bank, column, row);
            for word in 0..words {
                let word = self.cells.u64(cell, 8 * word).expect("a cell");
                if word.load(Ordering::Relaxed) != 0 {
                    word.store(0, Ordering::Relaxed);
                }
            }
        };
        for column in self.columns() {
            (0..self.rows_used()).for_each(|row| empty(column, row));
        }
        for row in self.rows_beside_sessions() {
            self.columns().for_each(|column| empty(column, row));
        }
        self.empty_carry(bank);
        for cpu in 0..self.totals.entries() {
            for word in 0..2 * total / 8 {
                let at = bank as usize * 2 * total + 8 * word;
                let word = self.totals.u64(cpu, at).expect("a total");
                word.store(0, Ordering::Relaxed);
            }
        }
        self.set_word(at::PERIOD + 8 * bank as usize, period + 2);
    }

    fn active(&self) -> (u64, u64) {
        let bank = self.word(at::BANK) & 1;
        (bank, self.word(at::PERIOD + 8 * bank as usize))
    }

    fn pending_bank(&self) -> Option<(u64, u64)> {
        let (bank, active) = self.active();
        let quiet = bank ^ 1;
        let period = self.word(at::PERIOD + 8 * quiet as usize);
        (period < active).then_some((quiet, period))
    }

    fn word(&self, at: usize) -> u64 {
        self.control.load_u64(0, at).expect("a word of the page")
    }

    fn set_word(&self, at: usize, value: u64) {
        let word = self.control.u64(0, at).expect("a word of the page");
        word.store(value, Ordering::SeqCst);
    }

    /// Rows that may have counts: of sessions, of unknown keys, and that of all further ones.
    fn rows_in_use(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.rows_used()).chain(self.rows_beside_sessions())
    }

    fn rows_beside_sessions(&self) -> impl Iterator<Item = u32> + '_ {
        let subscribers = self.geometry.subscribers;
        let unknown = (0..self.geometry.unknown()).filter(|slot| {
            let (page, at) = place_of(*slot);
            self.unknown.load_u64(page, at + 16) != Some(0)
        });
        let unknown = unknown.map(move |slot| subscribers + slot);
        unknown.chain([self.geometry.rows() - 1])
    }

    /// Cells of a row in a bank: for each class, up and down.
    fn columns(&self) -> std::ops::Range<usize> {
        0..2 * self.geometry.classes as usize
    }

    /// The places of `carry` that may have counts, each with what it counts: the number of the cell
    /// times two, plus that of the word.
    fn carry_places(&self) -> impl Iterator<Item = (usize, usize, u64)> + '_ {
        let geometry = &self.geometry;
        let own = geometry.carry_pages().0 as usize * CARRY_SLOTS as usize;
        let last = geometry.rows() - 1;
        (0..self.carry.entries() * CARRY_SLOTS as usize).filter_map(move |slot| {
            let place = (
                slot / CARRY_SLOTS as usize,
                slot % CARRY_SLOTS as usize * CARRY_BYTES as usize,
            );
            let counted = if slot < own {
                // [bank][class][direction][word]
                let cell = geometry.cell_at(0, slot / 2, last);
                (2 * cell + slot % 2) as u64
            } else {
                self.carry.load_u64(place.0, place.1)?.checked_sub(1)?
            };
            Some((place.0, place.1, counted))
        })
    }

    /// What was taken out of cells that were half full.
    fn carried(&self) -> Carried {
        let mut carried = HashMap::new();
        for (page, at, counted) in self.carry_places() {
            let word = |offset| self.carry.load_u64(page, at + offset).unwrap_or(0);
            let counts = [word(8), word(16)];
            if counts != [0; 2] {
                let sums = carried.entry(counted).or_insert([0; 2]);
                (sums[0], sums[1]) = (sums[0] + counts[0], sums[1] + counts[1]);
            }
        }
        carried
    }

    /// Frees the places of a bank, in which no program counts. Others may look for one.
    fn empty_carry(&self, bank: u64) {
        let cells = self.geometry.cells() / 2;
        for (page, at, counted) in self.carry_places() {
            if counted / 2 / cells == bank {
                for offset in [8, 16, 0] {
                    let word = self.carry.u64(page, at + offset).expect("a place");
                    word.store(0, Ordering::Release);
                }
            }
        }
    }

    /// Frees the slots of unknown keys without traffic, in two steps: first no program takes them,
    /// and when that has been so for a whole period, with nothing counted since, they are empty.
    fn retire_unknown(&self, bank: u64) {
        if self.geometry.unknown_pages == 0 {
            return;
        }
        let carried = self.carried();
        for slot in 0..self.geometry.unknown() {
            let (page, at) = place_of(slot);
            let word = self.unknown.u64(page, at + 16).expect("a slot");
            let third = word.load(Ordering::Acquire);
            let row = self.geometry.subscribers + slot;
            let is_idle = |bank| self.cells_of(bank, row, &carried).next().is_none();
            let meta = third & u64::from(u32::MAX);
            match (third >> 32) as u32 {
                state::READY if is_idle(bank) && is_idle(bank ^ 1) => {
                    let retiring = meta | u64::from(state::RETIRING) << 32;
                    word.store(retiring, Ordering::Release);
                }
                // The cut of this bank came after it was retired, so no program counts there.
                state::RETIRING if is_idle(bank) && is_idle(bank ^ 1) => {
                    word.store(0, Ordering::Release);
                }
                _ => {}
            }
        }
    }

    /// Cells of a row in a bank that are not zero.
    fn cells_of<'a>(
        &'a self,
        bank: u64,
        row: u32,
        carried: &'a Carried,
    ) -> impl Iterator<Item = (u16, Direction, [u64; 4])> + 'a {
        self.columns().filter_map(move |column| {
            let cell = self.geometry.cell_at(bank, column, row);
            let count = |word: usize| {
                let [packets, bytes] = counts(self.cells.load_u64(cell, 8 * word)?);
                let [more_packets, more_bytes] = if carried.is_empty() {
                    [0; 2]
                } else {
                    let counted = (2 * cell + word) as u64;
                    carried.get(&counted).copied().unwrap_or_default()
                };
                Some([packets + more_packets, bytes + more_bytes])
            };
            let [packets, bytes] = count(0)?;
            let [policed_packets, policed_bytes] = if self.geometry.polices {
                count(1)?
            } else {
                [0; 2]
            };
            let direction = if column % 2 == 0 {
                Direction::Up
            } else {
                Direction::Down
            };
            let is_used = [packets, bytes] != [0; 2];
            let counts = [packets, bytes, policed_packets, policed_bytes];
            is_used.then_some(((column / 2) as u16, direction, counts))
        })
    }

    /// The columns of a cell's measures, and whether a flow found no room.
    fn measured(&self, bank: u64, row: u32, class: u16, direction: Direction) -> (Vec<u64>, bool) {
        let (geometry, shape) = (&self.geometry, &self.geometry.shape);
        if shape.columns == 0 {
            return (Vec::new(), false);
        }
        let column = 2 * usize::from(class) + direction as usize;
        let cell = geometry.cell_at(bank, column, row);
        let word = |at: u32| {
            let word = self.cells.load_u64(cell, 8 * at as usize);
            word.unwrap_or(0)
        };
        let first = count_words(geometry.polices);
        let columns = (first..first + shape.columns).map(word).collect();
        (columns, shape.at_least > 0 && word(shape.at_least) > 0)
    }

    fn owner(&self, row: u32) -> CutOwner {
        let Some(slot) = row.checked_sub(self.geometry.subscribers) else {
            return CutOwner::Row(row);
        };
        let (page, at) = place_of(slot);
        let word = |at| self.unknown.load_u64(page, at);
        let key = |words, third: u64| SlotKey {
            words,
            meta: third as u32,
        };
        if slot >= self.geometry.unknown() {
            return CutOwner::Overflow;
        }
        let found = word(at).zip(word(at + 8)).zip(word(at + 16));
        let found = found.and_then(|((a, b), third)| key([a, b], third).key());
        found.map_or(CutOwner::Overflow, CutOwner::Unknown)
    }
}

/// Packets and bytes by what they count, as [`Banks::carry_places`] has it.
type Carried = HashMap<u64, [u64; 2]>;

/// Page and offset of a slot of an unknown key.
pub(super) fn place_of(slot: u32) -> (usize, usize) {
    let at = slot % SLOTS * SLOT_BYTES;
    ((slot / SLOTS) as usize, at as usize)
}

impl Cut<'_> {
    /// The number of the period, from 0 in each boot epoch.
    pub fn period(&self) -> u64 {
        self.period
    }

    /// All cells that are not zero, by row.
    pub fn cells(&self) -> impl Iterator<Item = Cell> + '_ {
        let banks = self.banks;
        banks.rows_in_use().flat_map(move |row| {
            let cells = banks.cells_of(self.bank, row, &self.carried);
            let with = move |(class, direction, counts): (u16, Direction, [u64; 4])| {
                let (more, at_least) = banks.measured(self.bank, row, class, direction);
                Cell {
                    owner: banks.owner(row),
                    class,
                    direction,
                    packets: counts[0],
                    bytes: counts[1],
                    policed: [counts[2], counts[3]],
                    more,
                    at_least,
                }
            };
            cells.map(with)
        })
    }

    /// The period's counts apart from the cells.
    pub fn totals(&self) -> Totals {
        self.sums(0)
    }

    /// The period's counts of policed frames, apart from the cells.
    pub fn policed(&self) -> Totals {
        if self.banks.geometry.polices {
            self.sums(COUNT_BYTES as usize)
        } else {
            Totals::default()
        }
    }

    /// The sums of all CPUs' totals, of the two words from `first` on.
    fn sums(&self, first: usize) -> Totals {
        let mut totals = Totals::default();
        let total = self.banks.geometry.total() as usize;
        for cpu in 0..self.banks.totals.entries() {
            for direction in 0..2 {
                let at = (self.bank as usize * 2 + direction) * total + first;
                let word = |offset| self.banks.totals.load_u64(cpu, at + offset).unwrap_or(0);
                totals.packets[direction] += word(0);
                totals.bytes[direction] += word(8);
            }
        }
        totals
    }
}
