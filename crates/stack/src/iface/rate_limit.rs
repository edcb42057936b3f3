//! The rate limit on messages that other hosts can make this host send.

use crate::rng::Rng;

/// Number of messages that may be sent at once.
const BURST: u64 = 50;
/// Messages per second (RFC 4443 §2.4 (f), RFC 1812 §4.3.2.8).
const PER_SECOND: u64 = 1000;
const NS_PER_MESSAGE: u64 = 1_000_000_000 / PER_SECOND;

/// A token bucket. At random moments the bucket loses an additional token, so that no host can
/// count exactly how many tokens others have used (Man et al., "DNS Cache Poisoning Attack
/// Reloaded", 2020).
pub(super) struct RateLimit {
    /// Accumulated time, at most that of `BURST` messages.
    saved_ns: u64,
    filled_ns: u64,
    rng: Rng,
}

impl RateLimit {
    pub(super) fn new(seed: u64) -> RateLimit {
        RateLimit {
            saved_ns: BURST * NS_PER_MESSAGE,
            filled_ns: 0,
            rng: Rng::new(seed),
        }
    }

    /// Whether a further message may be sent.
    pub(super) fn allows(&mut self, now_ns: u64) -> bool {
        let passed = now_ns.saturating_sub(self.filled_ns);
        self.filled_ns = self.filled_ns.max(now_ns);
        self.saved_ns = self
            .saved_ns
            .saturating_add(passed)
            .min(BURST * NS_PER_MESSAGE);
        let tokens = 1 + u64::from(self.rng.below(3) == 0);
        let allowed = self.saved_ns >= NS_PER_MESSAGE;
        if allowed {
            self.saved_ns = self.saved_ns.saturating_sub(tokens * NS_PER_MESSAGE);
        }
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bursts_are_bounded_and_time_refills() {
        let mut limit = RateLimit::new(7);
        let burst = (0..1000).filter(|_| limit.allows(0)).count() as u64;
        assert!((BURST / 2..=BURST).contains(&burst), "{burst}");
        assert!(!limit.allows(NS_PER_MESSAGE - 1));
        let second = (1..=10_000)
            .filter(|tick| limit.allows(tick * 100_000))
            .count() as u64;
        assert!((PER_SECOND / 2..=PER_SECOND).contains(&second), "{second}");
    }

    #[test]
    fn time_that_goes_back_gives_nothing() {
        let mut limit = RateLimit::new(7);
        while limit.allows(5_000_000_000) {}
        assert!(!limit.allows(0));
        assert!(!limit.allows(5_000_000_000));
    }
}
