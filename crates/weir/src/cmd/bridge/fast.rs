//! What the bridge has the kernel remember is kept as true as what it knows
//! itself.

use weir_tap::switch::Switch;
use weir_tap::{FastKey, FastPath};

/// Follows the frames that went by without weir.
#[derive(Default)]
pub(super) struct Follower {
    /// When the last of them did that is noted.
    noted_at: u64,
}

impl Follower {
    /// Notes who sent frames, at that second, and ends what is for stations
    /// that are silent, or no longer known where they were.
    pub(super) fn follow(&mut self, fast: &mut FastPath, switch: &mut Switch, now: u32) {
        let mut noted_at = self.noted_at;
        let mut gone = Vec::new();
        for entry in fast.entries() {
            let FastKey::Stations {
                link,
                vlan,
                src,
                dst,
            } = entry.key
            else {
                continue;
            };
            let from_there = match entry.used_at > self.noted_at {
                true => switch.heard(link as u16, vlan, src, now),
                false => switch.port(vlan, src, now) == Some(link as u16),
            };
            noted_at = noted_at.max(entry.used_at);
            let to_there = switch.port(vlan, dst, now).map(u32::from) == entry.action.link();
            if !from_there || !to_there {
                gone.push(entry.key);
            }
        }
        self.noted_at = noted_at;
        gone.iter().for_each(|key| {
            fast.forget(key);
        });
    }
}
