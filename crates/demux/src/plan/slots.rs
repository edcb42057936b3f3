//! An open-addressed hash array that finds an entry by the hash of its key.
//!
//! ```text
//!  63        32 31        0
//! ┌────────────┬───────────┐   0: empty    1: removed
//! │    hash    │  payload  │   else payload ≥ 2
//! └────────────┴───────────┘
//! ```
//!
//! Linear probing starts at the hash's upper bits. The array is at most half
//! full, since a look-up that finds nothing probes up to an empty slot. The slot stores the whole hash, so a probe that passes other keys
//! touches no other memory, and growing needs no keys. Growing is spread over
//! later changes: while the old array is emptied, look-ups try both.

/// Number of slots moved with each change while the array grows.
const MIGRATE_PER_BIND: usize = 32;
const BITS_MIN: u32 = 3;
const EMPTY: u64 = 0;
const REMOVED: u64 = 1;

/// The least payload; smaller values mark empty and removed slots.
pub(super) const PAYLOAD_MIN: u32 = 2;

#[derive(Clone)]
pub(super) struct Slots {
    now: Array,
    /// Number of slots in use or removed, in `now`.
    used: usize,
    /// Number of slots in use, in both arrays.
    len: usize,
    old: Option<Old>,
}

#[derive(Clone)]
struct Old {
    array: Array,
    /// Slots before this one have moved.
    moved: usize,
}

#[derive(Clone)]
struct Array {
    slots: Vec<u64>,
    bits: u32,
}

/// The position of a slot; valid until the next change.
#[derive(Clone, Copy)]
pub(super) struct SlotRef {
    in_old: bool,
    at: usize,
}

impl Array {
    fn new(bits: u32) -> Array {
        Array {
            slots: vec![EMPTY; 1 << bits],
            bits,
        }
    }

    #[inline]
    fn start(&self, hash: u32) -> usize {
        (hash >> (32 - self.bits)) as usize
    }

    #[inline]
    fn find(&self, hash: u32, mut is: impl FnMut(u32) -> bool) -> Option<(usize, u32)> {
        let mask = self.slots.len() - 1;
        let mut at = self.start(hash);
        // Half of the slots are empty, so the loop ends.
        loop {
            let slot = self.slots[at & mask];
            if slot == EMPTY {
                return None;
            }
            let payload = slot as u32;
            if (slot >> 32) as u32 == hash && slot != REMOVED && is(payload) {
                return Some((at & mask, payload));
            }
            at += 1;
        }
    }

    /// Stores a slot; returns whether it took an empty slot.
    fn put(&mut self, slot: u64) -> bool {
        let mask = self.slots.len() - 1;
        let mut at = self.start((slot >> 32) as u32);
        while self.slots[at & mask] > REMOVED {
            at += 1;
        }
        let was_empty = self.slots[at & mask] == EMPTY;
        self.slots[at & mask] = slot;
        was_empty
    }
}

impl Slots {
    pub(super) fn new() -> Slots {
        Slots {
            now: Array::new(BITS_MIN),
            used: 0,
            len: 0,
            old: None,
        }
    }

    /// The position and payload of the first slot with `hash` for which `is`
    /// holds; `None` if there is none.
    #[inline]
    pub(super) fn find(
        &self,
        hash: u32,
        mut is: impl FnMut(u32) -> bool,
    ) -> Option<(SlotRef, u32)> {
        if let Some((at, payload)) = self.now.find(hash, &mut is) {
            return Some((SlotRef { in_old: false, at }, payload));
        }
        let old = self.old.as_ref()?;
        let (at, payload) = old.array.find(hash, is)?;
        Some((SlotRef { in_old: true, at }, payload))
    }

    /// The first slot that a look-up reads.
    #[inline]
    pub(super) fn first(&self, hash: u32) -> u64 {
        self.now.slots[self.now.start(hash)]
    }

    /// Adds a payload whose key is not present.
    pub(super) fn insert(&mut self, hash: u32, payload: u32) {
        self.migrate_some(MIGRATE_PER_BIND);
        if (self.used + 1) * 2 > self.now.slots.len() {
            self.grow();
        }
        self.used += usize::from(self.now.put(u64::from(hash) << 32 | u64::from(payload)));
        self.len += 1;
    }

    /// Changes the payload of a slot.
    pub(super) fn replace(&mut self, place: SlotRef, payload: u32) {
        let slot = self.slot_mut(place);
        *slot = *slot & !u64::from(u32::MAX) | u64::from(payload);
    }

    /// Frees a slot.
    pub(super) fn remove(&mut self, place: SlotRef) {
        *self.slot_mut(place) = REMOVED;
        self.len -= 1;
        if !place.in_old {
            self.sweep(place.at);
        }
        self.migrate_some(MIGRATE_PER_BIND);
    }

    fn slot_mut(&mut self, place: SlotRef) -> &mut u64 {
        match &mut self.old {
            Some(old) if place.in_old => &mut old.array.slots[place.at],
            _ => &mut self.now.slots[place.at],
        }
    }

    /// Empties removed slots before an empty slot: no probe needs to pass them.
    fn sweep(&mut self, mut at: usize) {
        let slots = &mut self.now.slots;
        let mask = slots.len() - 1;
        if slots[(at + 1) & mask] != EMPTY {
            return;
        }
        while slots[at & mask] == REMOVED {
            slots[at & mask] = EMPTY;
            self.used -= 1;
            at = at.wrapping_sub(1);
        }
    }

    fn grow(&mut self) {
        self.migrate_some(usize::MAX);
        // Room for twice the entries, and enough that the old array is emptied
        // (at `MIGRATE_PER_BIND` slots a change) long before this one is full.
        let wanted = (self.len * 3).max(self.now.slots.len() / 8);
        let bits = wanted.next_power_of_two().trailing_zeros().max(BITS_MIN);
        let array = std::mem::replace(&mut self.now, Array::new(bits));
        self.used = 0;
        self.old = Some(Old { array, moved: 0 });
        self.migrate_some(MIGRATE_PER_BIND);
    }

    fn migrate_some(&mut self, count: usize) {
        let Some(old) = &mut self.old else { return };
        let end = old.array.slots.len().min(old.moved.saturating_add(count));
        for slot in &mut old.array.slots[old.moved..end] {
            if *slot > REMOVED {
                self.used += usize::from(self.now.put(*slot));
                *slot = REMOVED;
            }
        }
        old.moved = end;
        if end == old.array.slots.len() {
            self.old = None;
        }
    }
}
