//! [`Reachability`]: TCP's reports on the path to neighbour discovery (RFC 4861 §7.3.1, RFC 9293
//! §3.8.3).

/// Shortest time, in milliseconds, between reports that a peer's next hop is reachable.
const CONFIRM_INTERVAL_MS: u32 = 5_000;

/// The next report of one connection to its interface.
#[derive(Clone, Copy, Default, Debug)]
pub(in crate::tcp) struct Reachability {
    /// When an acknowledgment was last reported, in milliseconds of a clock that wraps.
    confirmed_ms: u32,
    /// Whether sent segments arrive, as far as known; not yet reported to the interface.
    pub(in crate::tcp) hint: Option<bool>,
}

impl Reachability {
    /// Reports that the peer has acknowledged data, unless that was reported within
    /// [`CONFIRM_INTERVAL_MS`].
    #[inline]
    pub(in crate::tcp) fn confirm(&mut self, now_ns: u64) {
        let now_ms = (now_ns / 1_000_000) as u32;
        if now_ms.wrapping_sub(self.confirmed_ms) > CONFIRM_INTERVAL_MS {
            (self.hint, self.confirmed_ms) = (Some(true), now_ms);
        }
    }

    /// Reports that nothing arrives.
    pub(in crate::tcp) fn suspect(&mut self) {
        self.hint = Some(false);
    }
}
