//! Tracks which links accept frames that an XDP program redirects to them.

use super::FlowCache;
use weir_link::xdp::{XdpFeatureEvent, XdpFeatureMonitor, supports_ndo_xmit};

/// Interval at which changes are read, in ns.
const FEATURE_POLL_NS: u64 = 10_000_000;
/// Largest number of changes read at once.
const FEATURE_EVENTS_MAX: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Drivers {
    watch: Option<XdpFeatureMonitor>,
    next_ns: u64,
}

impl Drivers {
    /// Subscribes to changes in the calling thread's network namespace.
    pub(super) fn open(&mut self) {
        if self.watch.is_none() {
            self.watch = XdpFeatureMonitor::open().ok();
        }
    }
}

impl FlowCache {
    /// Ends entries to links that no longer accept redirected frames.
    pub(super) fn poll_features(&mut self, now: u64) {
        if now < self.drivers.next_ns {
            return;
        }
        self.drivers.next_ns = now + FEATURE_POLL_NS;
        for _ in 0..FEATURE_EVENTS_MAX {
            let Some(event) = self
                .drivers
                .watch
                .as_ref()
                .and_then(XdpFeatureMonitor::next_event)
            else {
                return;
            };
            for number in 0..self.links.len() {
                let Some(link) = self.links[number].as_mut() else {
                    continue;
                };
                let now_takes = match event {
                    XdpFeatureEvent::Changed {
                        ifindex,
                        supports_ndo_xmit,
                    } if ifindex == link.ifindex => supports_ndo_xmit,
                    XdpFeatureEvent::Changed { .. } => continue,
                    XdpFeatureEvent::Missed => takes(link.ifindex),
                };
                let before = std::mem::replace(&mut link.takes, now_takes);
                if before && !now_takes {
                    let out = Some(number as u32);
                    self.counts.flushed += self.end_if(|_, action| action.link() == out);
                }
            }
        }
    }
}

pub(super) fn takes(ifindex: u32) -> bool {
    // A kernel that does not report features does not check them either: do not
    // redirect.
    supports_ndo_xmit(ifindex).unwrap_or(false)
}
