//! Counters of cached verdicts: the kernel counts for each entry, and this
//! module adds up the counts.

use super::FlowCache;
use weir_link::xdp::{FlowAction, FlowKey};

/// A number of frames and of their bytes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Traffic {
    /// Number of frames.
    pub frames: u64,
    /// Number of bytes.
    pub bytes: u64,
}

impl std::ops::AddAssign for Traffic {
    fn add_assign(&mut self, more: Traffic) {
        self.frames += more.frames;
        self.bytes += more.bytes;
    }
}

impl std::ops::Sub for Traffic {
    type Output = Traffic;

    fn sub(self, before: Traffic) -> Traffic {
        Traffic {
            frames: self.frames - before.frames,
            bytes: self.bytes - before.bytes,
        }
    }
}

/// The counters of a flow cache.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct FlowCacheStats {
    /// Number of present entries.
    pub entries: u64,
    /// Number of entries inserted.
    pub inserted: u64,
    /// Number of entries that the application ended.
    pub forgotten: u64,
    /// Number of entries that aged out.
    pub aged: u64,
    /// Number of entries ended since the gate had shut, or a link was gone.
    pub flushed: u64,
    /// Number of entries refused for lack of room.
    pub full: u64,
    /// Number of entries refused because of the driver.
    pub no_ndo_xmit: u64,
    /// Number of entries whose frames were held back before the entry took
    /// effect.
    pub held_back: u64,
    /// Number of frames that were held back, and so lost.
    pub held_back_frames: u64,
    /// The traffic of all entries.
    pub traffic: Traffic,
}

/// An entry, as the application sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlowEntry {
    /// The key that its frames share.
    pub key: FlowKey,
    /// The action on its frames.
    pub action: FlowAction,
    /// The traffic of the entry.
    pub traffic: Traffic,
    /// The time of the entry's last frame, or of its insertion
    /// (`CLOCK_MONOTONIC`, ns, with the precision of the kernel's ticks).
    pub used_at: u64,
}

impl FlowCache {
    pub(super) fn counted(&self, slot: u32) -> Traffic {
        let (frames, bytes) = self.kernel.counted(slot);
        Traffic { frames, bytes }
    }

    /// The traffic of an entry since it was inserted.
    pub(super) fn carried(&self, slot: u32) -> Option<Traffic> {
        let entry = self.entries.get(slot as usize)?.as_ref()?;
        Some(self.counted(slot) - entry.base)
    }

    /// Adds the traffic of an entry since its last visit to the totals.
    pub(super) fn count_entry(&mut self, slot: u32) {
        let counted = self.counted(slot);
        let Some(Some(entry)) = self.entries.get_mut(slot as usize) else {
            return;
        };
        let more = counted - std::mem::replace(&mut entry.seen, counted);
        let (link, out) = (entry.key.link(), entry.action.link());
        self.counts.traffic += more;
        if let Some(Some(link)) = self.links.get_mut(link as usize) {
            link.carried_in += more;
        }
        let out = out.and_then(|out| self.links.get_mut(out as usize));
        if let Some(Some(link)) = out {
            link.carried_out += more;
        }
    }

    /// Brings the totals exactly up to date; without this call they lag a
    /// second or two. Visits all entries.
    pub fn tally(&mut self) {
        (0..self.entries.len() as u32).for_each(|slot| self.count_entry(slot));
    }

    /// One entry; `None` if there is none with this key.
    pub fn entry(&self, key: &FlowKey) -> Option<FlowEntry> {
        let (slot, entry) = self.find(key)?;
        Some(FlowEntry {
            key: *key,
            action: entry.action,
            traffic: self.carried(slot)?,
            used_at: self.kernel.last_used(slot),
        })
    }

    /// The counters of the cache; see [`tally`](Self::tally).
    pub fn counts(&self) -> FlowCacheStats {
        let (frames, entries) = self.held_back_before;
        FlowCacheStats {
            entries: self.valid as u64,
            held_back: self.page.held_back_entries() - entries,
            held_back_frames: self.page.held_back() - frames,
            ..self.counts
        }
    }

    /// The cached traffic that arrived on a link, and that went out on it, past
    /// the application; see [`tally`](Self::tally).
    pub fn link_carried(&self, link: usize) -> (Traffic, Traffic) {
        let found = self.links.get(link).copied().flatten();
        found.map_or_else(Default::default, |found| {
            (found.carried_in, found.carried_out)
        })
    }

    /// Whether a link accepts redirected frames.
    pub fn takes(&self, link: usize) -> bool {
        let out = self.links.get(link).copied().flatten();
        out.is_some_and(|out| out.takes)
    }
}
