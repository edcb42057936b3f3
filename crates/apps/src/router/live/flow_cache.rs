//! The router's use of the flow cache: the kernel stores next hops by pairs of
//! IP addresses.

use super::chain::LiveChain;
use crate::router::engine::{LinkId, Router};
use std::time::Duration;
use weir_tap::{FlowAction, FlowCache, FlowKey, Tap};
use weir_wire::ethernet::Address;

/// Time after which an entry without packets is removed.
const AGEING: Duration = Duration::from_secs(30);

/// Interval of revalidation when no change is known, in ns; it also keeps used
/// neighbours probed.
const REVALIDATE_NS: u64 = 250_000_000;

/// Number of entries revalidated in one turn.
const REVALIDATE_BATCH: usize = 512;

/// Keeps the entries in the kernel consistent with the router's tables.
#[derive(Debug, Default)]
pub(crate) struct Revalidator {
    next_ns: u64,
    /// The next slot to check.
    at: usize,
    /// Number of passes through the table that remain to be started or
    /// finished.
    rounds: u32,
    /// The present pass checks all entries, not only those used since the last.
    is_of_all: bool,
    /// The time of the newest packet seen before the present pass, and in it.
    last_used_at: u64,
    newest: u64,
}

impl Revalidator {
    /// Removes entries that are no longer valid, and has used neighbours
    /// probed: some entries in each turn.
    #[inline]
    pub(super) fn follow(
        &mut self,
        fast: &mut FlowCache,
        router: &mut Router,
        stages: Option<&mut LiveChain>,
        now_ns: u64,
    ) {
        if router.take_changed() {
            // The entries before the present position have to be checked again.
            self.rounds = 1 + u32::from(self.at > 0);
            self.is_of_all = true;
        } else if !self.is_busy() && now_ns >= self.next_ns {
            self.rounds = 1;
            self.is_of_all = false;
        }
        if self.is_busy() {
            self.revalidate_some(fast, router, stages, now_ns);
        }
    }

    /// Whether a pass is under way.
    pub(crate) fn is_busy(&self) -> bool {
        self.rounds > 0
    }

    #[cold]
    fn revalidate_some(
        &mut self,
        fast: &mut FlowCache,
        router: &mut Router,
        mut stages: Option<&mut LiveChain>,
        now_ns: u64,
    ) {
        let (noted_at, is_of_all) = (self.last_used_at, self.is_of_all);
        let newest = &mut self.newest;
        let holds = |slot: u32, key: &FlowKey, action: &FlowAction, used_at: u64| {
            if !is_of_all && used_at <= noted_at {
                return true;
            }
            *newest = used_at.max(*newest);
            if let Some(stages) = &mut stages {
                return stages.holds(router, now_ns, slot, (action, used_at));
            }
            let FlowKey::IpPair { link, src, dst, .. } = *key else {
                return true;
            };
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
        };
        if fast.revalidate(&mut self.at, REVALIDATE_BATCH, holds) {
            self.rounds -= 1;
            self.last_used_at = self.newest;
            self.next_ns = now_ns + REVALIDATE_NS;
        }
    }
}

/// Adds a flow cache entry for a frame that is like others of its addresses.
/// The frame arrived on `link` at the hardware address `station`; its header is
/// in outgoing form.
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
