//! Adaptive polling: how long a waiting process polls for frames before it
//! sleeps. No clock.
//!
//! Polling costs processor time; sleeping costs the time until the process runs
//! again (some tens of microseconds) and two system calls. Past arrivals
//! predict the next one: if polling found the last frame, or would have found
//! it, the process polls up to the configured limit for the next one; if not,
//! it polls half as long as before, and soon not at all. So a link with a frame
//! each millisecond costs only its frames, and a busy one never sleeps.

use std::time::Duration;

/// Number of consecutive frames not found by polling after which polling stops.
const TRIES: u32 = 4;

#[derive(Clone, Copy, Debug)]
pub(crate) struct AdaptivePoll {
    idle_max: u64,
    /// Number of times that the polling time is halved at present.
    backoff_shift: u32,
}

impl AdaptivePoll {
    /// Polls for at most `most`.
    pub(crate) fn new(most: Duration) -> AdaptivePoll {
        let most = u64::try_from(most.as_nanos()).unwrap_or(u64::MAX);
        AdaptivePoll {
            idle_max: most,
            backoff_shift: 0,
        }
    }

    /// Whether to continue polling after `idle` ns without a frame.
    #[inline]
    pub(crate) fn should_poll(&self, idle: u64) -> bool {
        self.backoff_shift < TRIES && idle < self.idle_max >> self.backoff_shift
    }

    /// Records that a frame came after `idle` ns without one.
    #[inline]
    pub(crate) fn on_frame(&mut self, idle: u64) {
        self.backoff_shift = if idle < self.idle_max {
            0
        } else {
            (self.backoff_shift + 1).min(TRIES)
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spin() -> AdaptivePoll {
        AdaptivePoll::new(Duration::from_nanos(1000))
    }

    #[test]
    fn frames_that_come_seldom_are_soon_slept_for() {
        let mut spin = spin();
        for most in [1000, 500, 250, 125] {
            assert!(spin.should_poll(most - 1) && !spin.should_poll(most));
            spin.on_frame(1000);
        }
        assert!(!spin.should_poll(0));
        spin.on_frame(u64::MAX);
        assert!(!spin.should_poll(0));
    }

    #[test]
    fn one_that_comes_soon_is_looked_for_again() {
        let mut spin = spin();
        (0..9).for_each(|_| spin.on_frame(5000));
        spin.on_frame(999);
        assert!(spin.should_poll(999));
        spin.on_frame(0);
        assert!(spin.should_poll(999));
    }

    #[test]
    fn nothing_is_looked_for_where_that_is_not_wanted() {
        let mut spin = AdaptivePoll::new(Duration::ZERO);
        assert!(!spin.should_poll(0));
        spin.on_frame(0);
        assert!(!spin.should_poll(0));
    }
}
