//! A rate limit for packets that untrusted input triggers (RFC 1812 §4.3.2.8,
//! RFC 4443 §2.4 (f)).

/// A token bucket.
#[derive(Debug)]
pub(super) struct RateLimit {
    ns_per_message: u64,
    saved_max_ns: u64,
    saved_ns: u64,
    filled_ns: u64,
}

impl RateLimit {
    /// A bucket for `per_second` messages per second and bursts of `burst`; 0
    /// per second for none.
    pub(super) fn new(per_second: u32, burst: u32) -> RateLimit {
        let ns_per_message = 1_000_000_000_u64
            .checked_div(per_second.into())
            .unwrap_or(u64::MAX)
            .max(1);
        let saved_max_ns = match per_second {
            0 => 0,
            _ => ns_per_message.saturating_mul(burst.max(1).into()),
        };
        RateLimit {
            ns_per_message,
            saved_max_ns,
            saved_ns: saved_max_ns,
            filled_ns: 0,
        }
    }

    /// Takes a token; returns whether one more message may be sent.
    pub(super) fn allows(&mut self, now_ns: u64) -> bool {
        let passed = now_ns.saturating_sub(self.filled_ns);
        self.filled_ns = self.filled_ns.max(now_ns);
        self.saved_ns = self.saved_ns.saturating_add(passed).min(self.saved_max_ns);
        let allowed = self.saved_ns >= self.ns_per_message;
        if allowed {
            self.saved_ns -= self.ns_per_message;
        }
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bursts_are_bounded_and_time_refills() {
        let mut limit = RateLimit::new(1000, 50);
        assert_eq!((0..1000).filter(|_| limit.allows(0)).count(), 50);
        assert!(!limit.allows(999_999));
        assert!(limit.allows(1_000_000) && !limit.allows(1_000_000));
        let second = (1..=10_000).filter(|tick| limit.allows(1_000_000 + tick * 100_000));
        assert_eq!(second.count(), 1000);
        assert!(!limit.allows(0), "time that goes back gives nothing");
    }

    #[test]
    fn none_a_second_is_none_at_all() {
        let mut limit = RateLimit::new(0, 50);
        assert!(!limit.allows(0) && !limit.allows(u64::MAX));
    }
}
