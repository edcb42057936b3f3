//! The token bucket that keeps a link's rate.

use crate::SECOND;

/// A rate with a burst, as the time at which the link is free: a frame may leave when
/// that time is at most the burst's time ahead (the generic cell rate algorithm,
/// ITU-T I.371). Exact: the rest of each division is carried on.
#[derive(Clone, Debug)]
pub(crate) struct Rate {
    /// Bytes per second.
    rate: u64,
    /// The burst as time, in ns.
    burst: u64,
    /// When the link has sent all that left, in ns.
    free: u64,
    /// The remainder of `free`, in ns / `rate`.
    rest: u64,
}

impl Rate {
    pub(crate) fn new(rate: u64, burst: u64) -> Rate {
        let burst = u128::from(burst) * u128::from(SECOND) / u128::from(rate);
        Rate {
            rate,
            burst: u64::try_from(burst).unwrap_or(u64::MAX),
            free: 0,
            rest: 0,
        }
    }

    /// When the next frame may leave, in ns.
    pub(crate) fn next(&self) -> u64 {
        self.free.saturating_sub(self.burst)
    }

    /// A frame of `len` bytes leaves `now`.
    pub(crate) fn sent(&mut self, now: u64, len: u32) {
        if self.free < now {
            (self.free, self.rest) = (now, 0);
        }
        let time = u128::from(len) * u128::from(SECOND) + u128::from(self.rest);
        let rate = u128::from(self.rate);
        self.free = self.free.saturating_add((time / rate) as u64);
        self.rest = (time % rate) as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_rate_to_the_byte() {
        // A rate that divides no second evenly.
        let mut rate = Rate::new(1_234_567, 0);
        let (mut now, mut bytes) = (5, 0_u64);
        while now < 5 + 10 * SECOND {
            rate.sent(now, 1_000);
            bytes += 1_000;
            now = rate.next();
        }
        assert!((12_345_670..12_346_670).contains(&bytes), "{bytes} bytes");
    }

    #[test]
    fn a_burst_leaves_at_once_after_a_pause_and_no_more() {
        let mut rate = Rate::new(1_000_000, 10_000);
        let mut at_once = 0;
        while rate.next() <= SECOND {
            rate.sent(SECOND, 1_000);
            at_once += 1;
        }
        assert_eq!(at_once, 11, "the burst, and the frame that it begins with");
    }
}
