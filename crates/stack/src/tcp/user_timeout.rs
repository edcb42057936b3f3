//! How long what was written may wait for the peer: TCP_USER_TIMEOUT (RFC 9293
//! §3.9.1, RFC 5482), and closed windows of connections that nobody has any more
//! (RFC 6429).

use super::pcb::Pcb;
use super::recovery::LossTimer;

/// How long a connection without an application waits for a window that stays
/// closed, in milliseconds: whoever answers probes for ever, and takes nothing,
/// would otherwise keep it, and its bytes' memory, for ever (RFC 6429 §4).
const ABANDONED_MS: u32 = 300_000;

/// See the module.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Patience {
    /// When something was acknowledged last, or began to wait, in milliseconds
    /// of a clock that wraps.
    since_ms: u32,
    /// Whether anything waits.
    pub(super) waits: bool,
}

fn ms(now_ns: u64) -> u32 {
    (now_ns / 1_000_000) as u32
}

impl Pcb {
    /// Something new was acknowledged.
    pub(super) fn progressed(&mut self, now_ns: u64) {
        self.patience.since_ms = ms(now_ns);
    }

    /// Whether something waits to be acknowledged, or to be sent.
    pub(super) fn waits(&self) -> bool {
        !self.board.is_empty() || self.send.wants()
    }

    /// Starts to count when something begins to wait; a timer that would strike
    /// after patience is over strikes then.
    pub(super) fn wait_patiently(&mut self, now_ns: u64, waits: bool) {
        if waits && !self.patience.waits {
            self.progressed(now_ns);
        }
        self.patience.waits = waits;
        if let Some(left_ms) = self.patience_left_ms(now_ns)
            && let Some((_, at_ns)) = &mut self.timers.loss
        {
            let end_ns = now_ns.saturating_add(u64::from(left_ms).max(1) * 1_000_000);
            *at_ns = (*at_ns).min(end_ns);
        }
    }

    /// Whether the peer has had all the time that it is given.
    pub(super) fn is_out_of_patience(&self, now_ns: u64) -> bool {
        self.patience.waits && self.patience_left_ms(now_ns) == Some(0)
    }

    fn patience_left_ms(&self, now_ns: u64) -> Option<u32> {
        let closed = matches!(self.timers.loss, Some((LossTimer::Persist, _)));
        let abandoned = (self.released && closed).then_some(ABANDONED_MS);
        let user = self.options.user_timeout_ms.map(|ms| ms.get());
        let limit_ms = user.or(abandoned)?;
        let waited_ms = ms(now_ns).wrapping_sub(self.patience.since_ms);
        Some(limit_ms.saturating_sub(waited_ms))
    }
}
