//! What a router has the kernel remember: by the addresses of packets, where
//! they go on.

use crate::route::{LinkId, Router};
use std::time::Duration;
use weir_tap::{FastAction, FastKey, FastPath, Tap};
use weir_wire::ethernet::Address;

/// How long an entry stays without a packet.
const AGEING: Duration = Duration::from_secs(30);

/// How often it is looked whether what was remembered holds still, where
/// nothing is known to have changed: neighbours in use are asked for.
const FOLLOW_NS: u64 = 250_000_000;

/// Keeps what the kernel remembers as true as what the router knows.
#[derive(Debug, Default)]
pub(crate) struct Follower {
    next_ns: u64,
    /// When the last of the packets that are noted went by.
    noted_at: u64,
}

impl Follower {
    /// Ends what no longer holds, and has neighbours in use asked for.
    #[inline]
    pub(crate) fn follow(&mut self, fast: &mut FastPath, router: &mut Router, now_ns: u64) {
        let changed = router.take_changed();
        if changed || now_ns >= self.next_ns {
            self.look(fast, router, now_ns, changed);
        }
    }

    #[cold]
    fn look(&mut self, fast: &mut FastPath, router: &mut Router, now_ns: u64, all: bool) {
        self.next_ns = now_ns + FOLLOW_NS;
        let (mut noted_at, mut gone) = (self.noted_at, Vec::new());
        for entry in fast.entries() {
            let FastKey::Addresses { link, src, dst, .. } = entry.key else {
                continue;
            };
            if !all && entry.used_at <= self.noted_at {
                continue;
            }
            noted_at = noted_at.max(entry.used_at);
            let onward = router.onward(now_ns, link as LinkId, src, dst);
            let now = onward.map(|onward| FastAction::Route {
                link: onward.link.into(),
                src: onward.src,
                dst: onward.dst,
                mtu: u32::try_from(onward.mtu).unwrap_or(u32::MAX),
            });
            if now != Some(entry.action) {
                gone.push(entry.key);
            }
        }
        self.noted_at = noted_at;
        gone.iter().for_each(|key| {
            fast.forget(key);
        });
    }
}

/// Has the kernel remember where a frame went that is like others: it came in
/// at `link` to `station`, and its header is as it leaves.
pub(crate) fn remember(
    tap: &mut Tap,
    (link, station): (LinkId, Address),
    (out, mtu): (LinkId, usize),
    frame: &[u8],
) {
    let (Some(fast), Some(stations)) = (tap.fast(), frame.first_chunk::<12>()) else {
        return;
    };
    let kind = weir_tap::FastKind::Addresses;
    let Some(FastKey::Addresses { src, dst, .. }) = FastKey::of(kind, link.into(), frame) else {
        return;
    };
    let key = FastKey::Addresses {
        link: link.into(),
        station,
        src,
        dst,
    };
    let [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5] = *stations;
    let action = FastAction::Route {
        link: out.into(),
        src: Address([s0, s1, s2, s3, s4, s5]),
        dst: Address([d0, d1, d2, d3, d4, d5]),
        mtu: u32::try_from(mtu).unwrap_or(u32::MAX),
    };
    fast.remember(key, action, AGEING);
}
