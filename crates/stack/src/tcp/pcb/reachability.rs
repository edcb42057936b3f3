//! [`Reachability`]: what TCP tells neighbour discovery about the path (RFC 4861 §7.3.1,
//! RFC 9293 §3.8.3).

/// Shortest time, in nanoseconds, between reports that a peer's next hop is reachable.
const CONFIRM_INTERVAL_NS: u64 = 5_000_000_000;

/// The next report of one connection to its interface.
#[derive(Clone, Copy, Default, Debug)]
pub(in crate::tcp) struct Reachability {
    /// When an acknowledgment was last reported.
    confirmed_ns: u64,
    /// Whether sent segments arrive, as far as known; the interface has not been told yet.
    pub(in crate::tcp) hint: Option<bool>,
}

impl Reachability {
    /// Reports that the peer has acknowledged data, unless that was reported within
    /// [`CONFIRM_INTERVAL_NS`].
    #[inline]
    pub(in crate::tcp) fn confirm(&mut self, now_ns: u64) {
        if now_ns.saturating_sub(self.confirmed_ns) > CONFIRM_INTERVAL_NS {
            (self.hint, self.confirmed_ns) = (Some(true), now_ns);
        }
    }

    /// Reports that nothing arrives.
    pub(in crate::tcp) fn suspect(&mut self) {
        self.hint = Some(false);
    }
}
