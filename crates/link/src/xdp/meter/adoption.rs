//! Unattributed traffic of a key that a session gains: since when there is some.

use super::Meter;
use super::bank::{Banks, place_of};
use super::keys::SlotKey;
use super::layout::{PROBES, SLOT_BYTES, SLOTS, hash, home, probe, state};
use weir_meter::{Key, KeyKind};

impl Meter {
    /// The unknown keys that this key is, or that are addresses in this prefix, and when each was
    /// entered: nanoseconds of the monotonic clock. Those of which that was not noted are left out.
    ///
    /// For a prefix, the whole table of unknown keys is passed over.
    pub fn unknown_since(&self, key: Key) -> Vec<(Key, u64)> {
        self.banks().unknown_since(key)
    }
}

impl Banks {
    fn unknown_since(&self, key: Key) -> Vec<(Key, u64)> {
        let pages = self.geometry.unknown_pages;
        if pages == 0 {
            return Vec::new();
        }
        if key.kind() == KeyKind::Prefix {
            let slots = (0..self.geometry.unknown()).filter_map(|slot| self.entered(slot));
            return slots.filter(|(found, _)| key.contains(*found)).collect();
        }
        let wanted = SlotKey::from(key);
        let hash = hash(self.geometry.seed, wanted.words, wanted.meta);
        let (page, home) = home(hash, pages);
        let slots = (0..PROBES).map(|number| {
            let at = probe(home, number) as u32 / SLOT_BYTES;
            page as u32 * SLOTS + at
        });
        let mut entered = slots.filter_map(|slot| self.entered(slot));
        entered
            .find(|(found, _)| *found == key)
            .into_iter()
            .collect()
    }

    /// The key of a slot that is in use, and when it was entered.
    fn entered(&self, slot: u32) -> Option<(Key, u64)> {
        let (page, at) = place_of(slot);
        let word = |at| self.unknown.load_u64(page, at);
        let third = word(at + 16)?;
        if (third >> 32) as u32 != state::READY {
            return None;
        }
        let key = SlotKey {
            words: [word(at)?, word(at + 8)?],
            meta: third as u32,
        };
        let entered_ns = word(at + 24).filter(|ns| *ns > 0)?;
        Some((key.key()?, entered_ns))
    }
}
