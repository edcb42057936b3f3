//! Limits on unacknowledged data: the user timeout (RFC 9293 §3.9.1, RFC 5482,
//! `TCP_USER_TIMEOUT`), and zero-window probing of orphaned connections (RFC 6429).

use super::pcb::Pcb;
use super::recovery::LossTimer;

/// Limit, in ms, on zero-window probing of an orphaned connection (RFC 6429 §4). Without it a
/// peer that acknowledges probes and never opens its window would pin the send buffer.
const ORPHAN_PERSIST_MAX_MS: u32 = 300_000;

/// When the data of one connection began to wait.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct UserTimeout {
    /// When data was last acknowledged, or began to wait, in milliseconds of a clock that wraps.
    since_ms: u32,
    /// Whether data waits.
    pub(super) waits: bool,
}

fn ms(now_ns: u64) -> u32 {
    (now_ns / 1_000_000) as u32
}

impl Pcb {
    /// Records that new data was acknowledged.
    pub(super) fn note_ack_progress(&mut self, now_ns: u64) {
        self.user_timeout.since_ms = ms(now_ns);
    }

    /// Whether data waits to be sent or acknowledged.
    pub(super) fn waits(&self) -> bool {
        !self.scoreboard.is_empty() || self.send.wants()
    }

    /// Starts the time when data begins to wait. A loss timer beyond the limit is moved to the
    /// limit.
    pub(super) fn update_user_timeout(&mut self, now_ns: u64, waits: bool) {
        if waits && !self.user_timeout.waits {
            self.note_ack_progress(now_ns);
        }
        self.user_timeout.waits = waits;
        if let Some(left_ms) = self.user_timeout_remaining_ms(now_ns)
            && let Some((_, at_ns)) = &mut self.timers.loss
        {
            let end_ns = now_ns.saturating_add(u64::from(left_ms).max(1) * 1_000_000);
            *at_ns = (*at_ns).min(end_ns);
        }
    }

    /// Whether the limit is reached.
    pub(super) fn user_timeout_expired(&self, now_ns: u64) -> bool {
        self.user_timeout.waits && self.user_timeout_remaining_ms(now_ns) == Some(0)
    }

    fn user_timeout_remaining_ms(&self, now_ns: u64) -> Option<u32> {
        let closed = matches!(self.timers.loss, Some((LossTimer::Persist, _)));
        let abandoned = (self.user.orphaned && closed).then_some(ORPHAN_PERSIST_MAX_MS);
        let user = self.user.options.user_timeout_ms.map(|ms| ms.get());
        let limit_ms = user.or(abandoned)?;
        let waited_ms = ms(now_ns).wrapping_sub(self.user_timeout.since_ms);
        Some(limit_ms.saturating_sub(waited_ms))
    }
}
