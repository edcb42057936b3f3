//! What cached verdicts have done: counted by the kernel for each entry, and
//! added up here.

use super::FlowCache;
use weir_link::xdp::{FlowAction, FlowKey};

/// Frames and bytes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Traffic {
    /// Frames.
    pub frames: u64,
    /// Their bytes.
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

/// What has become of cached verdicts.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct FlowCacheStats {
    /// Entries there are now.
    pub entries: u64,
    /// Entries made.
    pub inserted: u64,
    /// Entries ended because the application said so.
    pub forgotten: u64,
    /// Entries ended for want of frames.
    pub aged: u64,
    /// Entries ended because the gate had shut, or a link was gone.
    pub flushed: u64,
    /// Entries not made for want of room.
    pub full: u64,
    /// Entries not made because of the driver.
    pub no_ndo_xmit: u64,
    /// Entries whose frames were held back before they took effect.
    pub held_back: u64,
    /// Frames that were held back, and so lost.
    pub held_back_frames: u64,
    /// What went by all of them.
    pub traffic: Traffic,
}

/// An entry, as an application sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlowEntry {
    /// What its frames are alike in.
    pub key: FlowKey,
    /// What becomes of them.
    pub action: FlowAction,
    /// What went by it.
    pub traffic: Traffic,
    /// When a frame of it came last, or it was made (`CLOCK_MONOTONIC`, ns, as
    /// exactly as the kernel's ticks).
    pub used_at: u64,
}

impl FlowCache {
    pub(super) fn counted(&self, slot: u32) -> Traffic {
        let (frames, bytes) = self.kernel.counted(slot);
        Traffic { frames, bytes }
    }

    /// What an entry has carried since it was made.
    pub(super) fn carried(&self, slot: u32) -> Option<Traffic> {
        let entry = self.entries.get(slot as usize)?.as_ref()?;
        Some(self.counted(slot) - entry.base)
    }

    /// Adds what an entry has carried since it was looked at last.
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

    /// Adds up what went by until now, exactly; by itself that is done within
    /// a second or two. It looks at all entries.
    pub fn tally(&mut self) {
        (0..self.entries.len() as u32).for_each(|slot| self.count_entry(slot));
    }

    /// One entry.
    pub fn entry(&self, key: &FlowKey) -> Option<FlowEntry> {
        let slot = *self.numbers.get(key)?;
        let entry = self.entries[slot as usize].as_ref()?;
        Some(FlowEntry {
            key: *key,
            action: entry.action,
            traffic: self.carried(slot)?,
            used_at: self.kernel.last_used(slot),
        })
    }

    /// What has become of all; see [`tally`](Self::tally).
    pub fn counts(&self) -> FlowCacheStats {
        let (frames, entries) = self.held_back_before;
        FlowCacheStats {
            entries: self.numbers.len() as u64,
            held_back: self.state.held_back_entries() - entries,
            held_back_frames: self.state.held_back() - frames,
            ..self.counts
        }
    }

    /// What came in at a link and what went out there, past the application;
    /// see [`tally`](Self::tally).
    pub fn link_carried(&self, link: usize) -> (Traffic, Traffic) {
        let found = self.links.get(link).copied().flatten();
        found.map_or_else(Default::default, |found| {
            (found.carried_in, found.carried_out)
        })
    }

    /// Whether a link takes frames that go on by themselves.
    pub fn takes(&self, link: usize) -> bool {
        let out = self.links.get(link).copied().flatten();
        out.is_some_and(|out| out.takes)
    }
}
