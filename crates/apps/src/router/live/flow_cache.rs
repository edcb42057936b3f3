//! What a router has the kernel remember: by the addresses of packets, where
//! they go on.

use crate::router::engine::{LinkId, Router};
use std::time::Duration;
use weir_tap::{FlowAction, FlowCache, FlowKey, Tap};
use weir_wire::ethernet::Address;

/// How long an entry stays without a packet.
const AGEING: Duration = Duration::from_secs(30);

/// How often it is looked whether what was remembered holds still, where
/// nothing is known to have changed: neighbours in use are asked for.
const REVALIDATE_NS: u64 = 250_000_000;

/// Entries that are looked at in a turn.
const REVALIDATE_BATCH: usize = 512;

/// Keeps what the kernel remembers as true as what the router knows.
#[derive(Debug, Default)]
pub(crate) struct Revalidator {
    next_ns: u64,
    /// The next entry to be looked at.
    at: usize,
    /// How often to come to the first again before all have been looked at.
    rounds: u32,
    /// Not only at those that were in use.
    is_of_all: bool,
    /// When the last of the packets came that were noted up to the round
    /// before, and in this one.
    last_used_at: u64,
    newest: u64,
}

impl Revalidator {
    /// Ends what no longer holds, and has neighbours in use asked for: some in
    /// each turn.
    #[inline]
    pub(crate) fn follow(&mut self, fast: &mut FlowCache, router: &mut Router, now_ns: u64) {
        if router.take_changed() {
            // Those behind us are to be looked at again.
            self.rounds = 1 + u32::from(self.at > 0);
            self.is_of_all = true;
        } else if !self.is_busy() && now_ns >= self.next_ns {
            self.rounds = 1;
            self.is_of_all = false;
        }
        if self.is_busy() {
            self.revalidate_some(fast, router, now_ns);
        }
    }

    /// Whether there is more to look at, at once.
    pub(crate) fn is_busy(&self) -> bool {
        self.rounds > 0
    }

    #[cold]
    fn revalidate_some(&mut self, fast: &mut FlowCache, router: &mut Router, now_ns: u64) {
        let (noted_at, is_of_all) = (self.last_used_at, self.is_of_all);
        let newest = &mut self.newest;
        let is_round = fast.revalidate(&mut self.at, REVALIDATE_BATCH, |key, action, used_at| {
            let FlowKey::IpPair { link, src, dst, .. } = *key else {
                return true;
            };
            if !is_of_all && used_at <= noted_at {
                return true;
            }
            *newest = used_at.max(*newest);
            let onward = router.next_hop(now_ns, link as LinkId, src, dst);
            onward.is_some_and(|onward| {
                let now = FlowAction::Route {
                    link: onward.link.into(),
                    src: onward.src,
                    dst: onward.dst,
                    mtu: u32::try_from(onward.mtu).unwrap_or(u32::MAX),
                };
                now == *action
            })
        });
        if is_round {
            self.rounds -= 1;
            self.last_used_at = self.newest;
            self.next_ns = now_ns + REVALIDATE_NS;
        }
    }
}

/// Has the kernel remember where a frame went that is like others: it came in
/// at `link` to `station`, and its header is as it leaves.
pub(crate) fn cache(
    tap: &mut Tap,
    (link, station): (LinkId, Address),
    (out, mtu): (LinkId, usize),
    frame: &[u8],
) {
    let (Some(fast), Some(stations)) = (tap.flow_cache(), frame.first_chunk::<12>()) else {
        return;
    };
    let kind = weir_tap::FlowKind::IpPair;
    let Some(FlowKey::IpPair { src, dst, .. }) = FlowKey::of(kind, link.into(), frame) else {
        return;
    };
    let key = FlowKey::IpPair {
        link: link.into(),
        station,
        src,
        dst,
    };
    let [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5] = *stations;
    let action = FlowAction::Route {
        link: out.into(),
        src: Address([s0, s1, s2, s3, s4, s5]),
        dst: Address([d0, d1, d2, d3, d4, d5]),
        mtu: u32::try_from(mtu).unwrap_or(u32::MAX),
    };
    fast.insert(key, action, AGEING);
}
