//! The table of keys, as the process writes it.

use super::error::MeterError;
use super::layout::{
    LINE_BYTES, PREFIX_LENGTHS_MAX, PROBES, SLOT_BYTES, SLOTS, V4_SLOTS, at, hash, home, home_v4,
    kind, probe, probe_v4,
};
use super::{Meter, Row};
use crate::bpf::grace_period;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::Ordering;
use weir_meter::Key;

/// A key as slots have it: two words, and kind and length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SlotKey {
    pub(super) words: [u64; 2],
    pub(super) meta: u32,
}

/// An IPv6 address, as it is loaded from a frame.
fn words(address: Ipv6Addr) -> [u64; 2] {
    let octets = address.octets();
    let word = |at: usize| u64::from_ne_bytes(octets[at..at + 8].try_into().expect("8 bytes"));
    [word(0), word(8)]
}

fn word(address: Ipv4Addr) -> u64 {
    u32::from_ne_bytes(address.octets()).into()
}

fn word_of_mac(mac: [u8; 6]) -> u64 {
    let [a, b, c, d, e, f] = mac;
    u64::from(u32::from_ne_bytes([a, b, c, d])) | u64::from(u16::from_ne_bytes([e, f])) << 32
}

impl From<Key> for SlotKey {
    fn from(key: Key) -> SlotKey {
        let (words, meta) = match key {
            Key::Ipv4(address) => ([word(address), 0], kind::V4),
            Key::Ipv6(address) => (words(address), kind::V6),
            Key::Prefix(IpAddr::V4(address), len) => {
                ([word(address), 0], kind::PREFIX_V4 | u32::from(len) << 8)
            }
            Key::Prefix(IpAddr::V6(address), len) => {
                (words(address), kind::PREFIX_V6 | u32::from(len) << 8)
            }
            Key::Vlan(outer, None) => ([outer.into(), 0], kind::VLAN),
            Key::Vlan(outer, Some(inner)) => (
                [u64::from(outer) | u64::from(inner) << 16, 0],
                kind::VLAN_PAIR,
            ),
            Key::Mac(mac) => ([word_of_mac(mac), 0], kind::MAC),
            Key::Pppoe(session) => ([session.into(), 0], kind::PPPOE),
        };
        SlotKey { words, meta }
    }
}

impl SlotKey {
    pub(super) fn key(self) -> Option<Key> {
        let [first, second] = self.words;
        let v4 = Ipv4Addr::from((first as u32).to_ne_bytes());
        let v6 = || {
            let mut octets = [0; 16];
            octets[..8].copy_from_slice(&first.to_ne_bytes());
            octets[8..].copy_from_slice(&second.to_ne_bytes());
            Ipv6Addr::from(octets)
        };
        let len = (self.meta >> 8) as u8;
        Some(match self.meta & 0xff {
            kind::V4 => Key::Ipv4(v4),
            kind::V6 => Key::Ipv6(v6()),
            kind::PREFIX_V4 => Key::Prefix(v4.into(), len),
            kind::PREFIX_V6 => Key::Prefix(v6().into(), len),
            kind::VLAN => Key::Vlan(first as u16, None),
            kind::VLAN_PAIR => Key::Vlan(first as u16, Some((first >> 16) as u16)),
            kind::PPPOE => Key::Pppoe(first as u16),
            kind::MAC => {
                let mut mac = [0; 6];
                mac[..4].copy_from_slice(&(first as u32).to_ne_bytes());
                mac[4..].copy_from_slice(&((first >> 32) as u16).to_ne_bytes());
                Key::Mac(mac)
            }
            _ => return None,
        })
    }

    fn bytes(self) -> [u8; 24] {
        let mut bytes = [0; 24];
        bytes[..8].copy_from_slice(&self.words[0].to_ne_bytes());
        bytes[8..16].copy_from_slice(&self.words[1].to_ne_bytes());
        bytes[16..].copy_from_slice(&u64::from(self.meta).to_ne_bytes());
        bytes
    }
}

/// Where a key is, or may go.
enum KeySlot {
    /// A slot of `v4`.
    V4(usize, usize),
    /// One that it may take.
    VacantV4(usize, usize),
    Slot(usize, usize),
    Spill(Row),
    /// A slot that it may take.
    Vacant(usize, usize),
    /// Its page has no slot for it.
    None,
}

impl Meter {
    /// Gives a key to a row; returns the row that had it before, which has lost it by the same
    /// store. A key's first frame is counted for it as soon as this returns.
    ///
    /// The first key of a prefix length takes about 20 ms, any other less than a microsecond.
    ///
    /// # Errors
    /// If there is no such row, or no room for the key.
    pub fn insert(&mut self, key: Key, row: Row) -> Result<Option<Row>, MeterError> {
        let subscribers = self.geometry.subscribers;
        if row >= subscribers {
            return Err(MeterError::NoSuchRow { row, subscribers });
        }
        self.free_ended();
        self.banks.use_row(row);
        let slot_key = SlotKey::from(key);
        let third = u64::from(slot_key.meta) | u64::from(row + 1) << 32;
        match self.place(slot_key)? {
            KeySlot::V4(line, at) => {
                let word = self.v4.u64(line, at).expect("a slot");
                let before = word.swap(v4_slot(slot_key, row), Ordering::AcqRel);
                return Ok(row_of_slot(before));
            }
            KeySlot::VacantV4(line, at) => {
                self.begin_to_use(key, slot_key.meta)?;
                let word = self.v4.u64(line, at).expect("a slot");
                word.store(v4_slot(slot_key, row), Ordering::Release);
            }
            KeySlot::Slot(page, at) => {
                if !self.has_row(page, at) {
                    self.begin_among_slots(key, slot_key.meta)?;
                }
                let word = self.slots.u64(page, at + 16).expect("a slot");
                let before = (word.swap(third, Ordering::AcqRel) >> 32) as u32;
                if before == 0 {
                    self.limbo.remove(&(page, at));
                    self.free.remove(&(page, at));
                }
                return Ok(before.checked_sub(1));
            }
            KeySlot::Spill(before) => {
                let value = u64::from(row + 1).to_ne_bytes();
                self.maps.spill.update(&slot_key.bytes(), &value)?;
                return Ok(Some(before));
            }
            KeySlot::Vacant(page, at) => {
                self.begin_among_slots(key, slot_key.meta)?;
                self.free.remove(&(page, at));
                for (number, value) in slot_key.words.into_iter().chain([third]).enumerate() {
                    let word = self.slots.u64(page, at + 8 * number).expect("a slot");
                    word.store(value, Ordering::Release);
                }
            }
            KeySlot::None => {
                let value = u64::from(row + 1).to_ne_bytes();
                let spilled = self.maps.spill.update(&slot_key.bytes(), &value);
                spilled.map_err(|error| match error {
                    crate::bpf::MapError::Full { .. } => MeterError::Full {
                        key,
                        keys: self.geometry.keys(),
                    },
                    error => error.into(),
                })?;
                self.begin_among_slots(key, slot_key.meta)?;
                self.spilled += 1;
                self.set_word(at::SPILLED, self.spilled);
            }
        }
        Ok(None)
    }

    /// Ends a key; returns the row that had it.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn remove(&mut self, key: Key) -> Result<Option<Row>, MeterError> {
        let slot_key = SlotKey::from(key);
        let row = match self.place(slot_key)? {
            KeySlot::V4(line, at) => {
                let word = self.v4.u64(line, at).expect("a slot");
                let row = row_of_slot(word.swap(0, Ordering::AcqRel));
                self.end_use(slot_key.meta)?;
                return Ok(row);
            }
            KeySlot::Slot(page, at) => {
                let word = self.slots.u64(page, at + 16).expect("a slot");
                let before = word.swap(slot_key.meta.into(), Ordering::AcqRel) >> 32;
                let Some(row) = (before as u32).checked_sub(1) else {
                    return Ok(None);
                };
                self.limbo.insert((page, at), self.banks.begun());
                row
            }
            KeySlot::Spill(row) => {
                self.maps.spill.delete(&slot_key.bytes())?;
                self.spilled -= 1;
                self.set_word(at::SPILLED, self.spilled);
                row
            }
            KeySlot::VacantV4(..) | KeySlot::Vacant(..) | KeySlot::None => return Ok(None),
        };
        if slot_key.meta == kind::V4 {
            self.end_use(kind::V4_AMONG_SLOTS)?;
        }
        self.end_use(slot_key.meta)?;
        Ok(Some(row))
    }

    /// Slots of keys that ended before the last cut began may be used again.
    fn free_ended(&mut self) {
        let done = self.banks.done();
        if std::mem::replace(&mut self.freed_at, done) != done {
            let ended = self.limbo.extract_if(|_, begun| *begun < done);
            self.free.extend(ended.map(|(place, _)| place));
        }
    }

    /// The row that has exactly this key.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn row_of(&self, key: Key) -> Result<Option<Row>, MeterError> {
        Ok(match self.place(key.into())? {
            KeySlot::V4(line, at) => row_of_slot(self.v4.load_u64(line, at).unwrap_or(0)),
            KeySlot::Slot(page, at) => {
                let third = self.slots.load_u64(page, at + 16).unwrap_or(0);
                ((third >> 32) as u32).checked_sub(1)
            }
            KeySlot::Spill(row) => Some(row),
            KeySlot::VacantV4(..) | KeySlot::Vacant(..) | KeySlot::None => None,
        })
    }

    /// All keys, each with its row.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn keys(&self) -> Result<Vec<(Key, Row)>, MeterError> {
        let mut keys = Vec::new();
        for slot in self.v4_slots() {
            let address = Ipv4Addr::from((slot as u32).to_ne_bytes());
            keys.extend(row_of_slot(slot).map(|row| (Key::Ipv4(address), row)));
        }
        for (_, _, key, row) in self.slots_in_use() {
            keys.extend(key.key().zip(row));
        }
        let (spilled, rows) = self.maps.spill.entries()?;
        for (bytes, row) in spilled.chunks_exact(24).zip(rows.chunks_exact(8)) {
            let word = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("8"));
            let key = SlotKey {
                words: [word(0), word(8)],
                meta: word(16) as u32,
            };
            let row = u32::from_ne_bytes(row[..4].try_into().expect("4 bytes"));
            keys.extend(key.key().zip(row.checked_sub(1)));
        }
        Ok(keys)
    }

    /// Slots of `v4` that are not empty.
    fn v4_slots(&self) -> impl Iterator<Item = u64> + '_ {
        let slots = (0..self.v4.entries()).flat_map(|line| {
            (0..LINE_BYTES as usize)
                .step_by(8)
                .map(move |at| (line, at))
        });
        let slots = slots.filter_map(|(line, at)| self.v4.load_u64(line, at));
        slots.filter(|slot| *slot != 0)
    }

    /// Slots that are not empty: page, offset, key, and the row unless the key has ended.
    fn slots_in_use(&self) -> impl Iterator<Item = (usize, usize, SlotKey, Option<Row>)> + '_ {
        let slots = (0..self.slots.entries())
            .flat_map(|page| (0..SLOTS).map(move |slot| (page, (slot * SLOT_BYTES) as usize)));
        slots.filter_map(|(page, at)| {
            let word = |at| self.slots.load_u64(page, at).unwrap_or(0);
            let third = word(at + 16);
            let key = SlotKey {
                words: [word(at), word(at + 8)],
                meta: third as u32,
            };
            (third != 0).then_some((page, at, key, ((third >> 32) as u32).checked_sub(1)))
        })
    }

    /// Counts what an earlier process has left.
    pub(super) fn survey(&mut self) -> Result<(), MeterError> {
        let mut used = std::collections::HashMap::new();
        let mut free = std::collections::HashSet::new();
        let mut use_one = |meta| {
            *used.entry(meta).or_insert(0) += 1;
            if meta == kind::V4 {
                *used.entry(kind::V4_AMONG_SLOTS).or_insert(0) += 1;
            }
        };
        for (page, at, key, row) in self.slots_in_use() {
            match row {
                Some(_) => use_one(key.meta),
                None => _ = free.insert((page, at)),
            }
        }
        if self.word(at::SPILLED) > 0 {
            let (keys, _) = self.maps.spill.entries()?;
            self.spilled = (keys.len() / 24) as u64;
            for key in keys.chunks_exact(24) {
                let meta = u32::from_ne_bytes(key[16..20].try_into().expect("4 bytes"));
                use_one(meta);
            }
        }
        let v4 = self.v4_slots().count() as u32;
        if v4 > 0 {
            *used.entry(kind::V4).or_insert(0) += v4;
        }
        self.used = used;
        self.free = free;
        Ok(())
    }

    fn place(&self, key: SlotKey) -> Result<KeySlot, MeterError> {
        // An empty slot looks like that of address 0.
        if key.meta != kind::V4 || key.words[0] == 0 {
            return self.place_among_slots(key);
        }
        let lines = self.geometry.v4_lines();
        let (line, first) = home_v4(self.geometry.seed, key.words[0], lines);
        let mut vacant = None;
        for number in 0..V4_SLOTS {
            let at = probe_v4(first, number);
            match self.v4.load_u64(line, at).unwrap_or(0) {
                0 => vacant = vacant.or(Some(KeySlot::VacantV4(line, at))),
                slot if slot as u32 == key.words[0] as u32 => return Ok(KeySlot::V4(line, at)),
                _ => {}
            }
        }
        let may_be_elsewhere = self.used.contains_key(&kind::V4_AMONG_SLOTS);
        match vacant {
            Some(vacant) if may_be_elsewhere => match self.place_among_slots(key)? {
                KeySlot::Slot(page, at) if self.has_row(page, at) => Ok(KeySlot::Slot(page, at)),
                KeySlot::Spill(row) => Ok(KeySlot::Spill(row)),
                _ => Ok(vacant),
            },
            Some(vacant) => Ok(vacant),
            None => self.place_among_slots(key),
        }
    }

    /// Whether the key of a slot has not ended.
    fn has_row(&self, page: usize, at: usize) -> bool {
        self.slots.load_u64(page, at + 16).unwrap_or(0) >> 32 != 0
    }

    fn place_among_slots(&self, key: SlotKey) -> Result<KeySlot, MeterError> {
        let hash = hash(self.geometry.seed, key.words, key.meta);
        let (page, first) = home(hash, self.geometry.slot_pages);
        let mut vacant = None;
        let mut may_be_spilled = true;
        for number in 0..PROBES {
            let at = probe(first, number);
            let word = |at| self.slots.load_u64(page, at).unwrap_or(0);
            let third = word(at + 16);
            if third == 0 {
                vacant = vacant.or(Some((page, at)));
                may_be_spilled = false;
                break;
            }
            if third as u32 == key.meta && [word(at), word(at + 8)] == key.words {
                return Ok(KeySlot::Slot(page, at));
            }
            if self.free.contains(&(page, at)) {
                vacant = vacant.or(Some((page, at)));
            }
        }
        if may_be_spilled && self.spilled > 0 {
            let found = self.maps.spill.lookup(&key.bytes())?;
            if let Some(value) = found {
                let row = u32::from_ne_bytes(value[..4].try_into().expect("4 bytes"));
                return Ok(KeySlot::Spill(row.saturating_sub(1)));
            }
        }
        Ok(vacant.map_or(KeySlot::None, |(page, at)| KeySlot::Vacant(page, at)))
    }

    /// As [`begin_to_use`](Self::begin_to_use), of a key that is among `slots` or spilled.
    fn begin_among_slots(&mut self, key: Key, meta: u32) -> Result<(), MeterError> {
        if meta == kind::V4 {
            self.begin_to_use(key, kind::V4_AMONG_SLOTS)?;
        }
        self.begin_to_use(key, meta)
    }

    /// Has the stage look up keys of this kind, before the first one is entered.
    fn begin_to_use(&mut self, key: Key, meta: u32) -> Result<(), MeterError> {
        if let Some(count) = self.used.get_mut(&meta) {
            *count += 1;
            return Ok(());
        }
        if matches!(key, Key::Prefix(..)) {
            let family = meta & 0xff;
            let lengths = self.used.keys().filter(|meta| **meta & 0xff == family);
            if lengths.count() == PREFIX_LENGTHS_MAX {
                return Err(MeterError::Lengths { key });
            }
        }
        self.used.insert(meta, 1);
        self.use_kinds()
    }

    fn end_use(&mut self, meta: u32) -> Result<(), MeterError> {
        let Some(count) = self.used.get_mut(&meta) else {
            return Ok(());
        };
        *count -= 1;
        if *count == 0 {
            self.used.remove(&meta);
            self.use_kinds()?;
        }
        Ok(())
    }

    /// Informs the stage which kinds and prefix lengths are in use: the list that is not in force is
    /// written, then put in force by one store.
    fn use_kinds(&mut self) -> Result<(), MeterError> {
        let mut metas: Vec<u32> = self.used.keys().copied().collect();
        let bits = metas.iter().fold(0, |bits, meta| bits | 1 << (meta & 0xff));
        metas.retain(|meta| meta & 0xff >= kind::PREFIX_V4);
        metas.sort_unstable_by(|a, b| b.cmp(a));
        let list = (self.word(at::LIST) + 1) & 1;
        let mut changed = false;
        for (family, of) in [kind::PREFIX_V4, kind::PREFIX_V6].into_iter().enumerate() {
            let lengths = metas.iter().filter(|meta| **meta & 0xff == of);
            let mut entries: Vec<[u64; 3]> = lengths.map(|meta| entry(*meta)).collect();
            entries.resize(PREFIX_LENGTHS_MAX, [0; 3]);
            let base = |list: u64| {
                at::PREFIXES + list as usize * at::LIST_BYTES + family * at::FAMILY_BYTES
            };
            for (number, entry) in entries.into_iter().enumerate() {
                for (word, value) in entry.into_iter().enumerate() {
                    let place = number * at::PREFIX_BYTES + 8 * word;
                    changed |= self.word(base(list ^ 1) + place) != value;
                    self.set_word(base(list) + place, value);
                }
            }
        }
        if changed {
            self.set_word(at::LIST, list);
            // The other list is written at the next change: no program reads it then.
            grace_period()?;
        }
        self.set_word(at::KINDS, bits);
        Ok(())
    }
}

/// A slot of `v4`.
fn v4_slot(key: SlotKey, row: Row) -> u64 {
    key.words[0] | u64::from(row + 1) << 32
}

fn row_of_slot(slot: u64) -> Option<Row> {
    ((slot >> 32) as u32).checked_sub(1)
}

/// The value, the mask and the kind of address of a prefix or an address, as words of an address are
/// loaded.
pub(super) fn masked(key: Key) -> Option<([u64; 2], [u64; 2], u32)> {
    let SlotKey { words, meta } = key.into();
    let (family, whole) = match meta & 0xff {
        kind::V4 | kind::PREFIX_V4 => (kind::V4, kind::PREFIX_V4 | (32 << 8)),
        kind::V6 | kind::PREFIX_V6 => (kind::V6, kind::PREFIX_V6 | (128 << 8)),
        _ => return None,
    };
    let is_prefix = meta & 0xff == kind::PREFIX_V4 || meta & 0xff == kind::PREFIX_V6;
    let [first, second, _] = entry(if is_prefix { meta } else { whole });
    Some((words, [first, second], family))
}

/// An entry of the list of prefix lengths: two masks, as words of an address are loaded, and the
/// kind with the length.
fn entry(meta: u32) -> [u64; 3] {
    let len = meta >> 8;
    if meta & 0xff == kind::PREFIX_V4 {
        let mask = u32::MAX.checked_shl(32 - len).unwrap_or(0);
        return [word(Ipv4Addr::from_bits(mask)), 0, meta.into()];
    }
    let mask = u128::MAX.checked_shl(128 - len).unwrap_or(0);
    let [first, second] = words(Ipv6Addr::from_bits(mask));
    [first, second, meta.into()]
}
