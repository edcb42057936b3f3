//! Keeps the bridge's entries in the kernel's flow cache consistent with its
//! FDB.

use weir_tap::switch::Switch;
use weir_tap::{FlowCache, FlowKey};

/// Entries checked in one call.
const REVALIDATE_BATCH: usize = 1024;

/// Tracks the frames that the kernel forwarded without weir.
#[derive(Default)]
pub(super) struct Revalidator {
    /// The next entry to check.
    at: usize,
    /// Times of the last frame noted: up to the previous round, and in this
    /// round.
    last_used_at: u64,
    newest: u64,
}

impl Revalidator {
    /// Refreshes the stations whose frames the kernel forwarded, and removes
    /// entries of stations that are silent or have moved: for some entries in
    /// each call, in rotation.
    pub(super) fn follow(&mut self, fast: &mut FlowCache, switch: &mut Switch, now: u32) {
        let (noted_at, newest) = (self.last_used_at, &mut self.newest);
        let is_round =
            fast.revalidate(&mut self.at, REVALIDATE_BATCH, |_, key, action, used_at| {
                let FlowKey::MacPair {
                    link,
                    vlan,
                    src,
                    dst,
                } = *key
                else {
                    return true;
                };
                let from_there = if used_at > noted_at {
                    switch.note_forwarded_by_kernel(link as u16, vlan, src, now)
                } else {
                    switch.port(vlan, src, now) == Some(link as u16)
                };
                *newest = used_at.max(*newest);
                let to_there = switch.port(vlan, dst, now).map(u32::from) == action.link();
                from_there && to_there
            });
        if is_round {
            self.last_used_at = self.newest;
        }
    }
}
