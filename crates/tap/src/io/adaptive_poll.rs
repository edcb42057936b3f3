//! How long a process that waits looks for frames before it sleeps. No clock.
//!
//! To look costs the processor, to sleep the time until the process runs again
//! (some tens of microseconds) and a call of the kernel on either side. Whether
//! a frame comes while one looks is not known; but frames come as they have come
//! before: where the last one was found by looking, or would have been, the next
//! one is looked for as long as the configuration allows, and where not, for half
//! as long as before, and soon not at all. So a link with a frame each
//! millisecond costs what its frames cost, and a busy one never sleeps.

use std::time::Duration;

/// After so many frames in turn that were not found by looking, none is looked
/// for.
const TRIES: u32 = 4;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Spin {
    most: u64,
    /// How often that is halved now.
    halved: u32,
}

impl Spin {
    /// For so long at most.
    pub(crate) fn new(most: Duration) -> Spin {
        let most = u64::try_from(most.as_nanos()).unwrap_or(u64::MAX);
        Spin { most, halved: 0 }
    }

    /// Whether to look once more, after so many nanoseconds without a frame.
    #[inline]
    pub(crate) fn goes_on(&self, idle: u64) -> bool {
        self.halved < TRIES && idle < self.most >> self.halved
    }

    /// A frame has come after so many nanoseconds without one.
    #[inline]
    pub(crate) fn came(&mut self, idle: u64) {
        self.halved = match idle < self.most {
            true => 0,
            false => (self.halved + 1).min(TRIES),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spin() -> Spin {
        Spin::new(Duration::from_nanos(1000))
    }

    #[test]
    fn frames_that_come_seldom_are_soon_slept_for() {
        let mut spin = spin();
        for most in [1000, 500, 250, 125] {
            assert!(spin.goes_on(most - 1) && !spin.goes_on(most));
            spin.came(1000);
        }
        assert!(!spin.goes_on(0));
        spin.came(u64::MAX);
        assert!(!spin.goes_on(0));
    }

    #[test]
    fn one_that_comes_soon_is_looked_for_again() {
        let mut spin = spin();
        (0..9).for_each(|_| spin.came(5000));
        spin.came(999);
        assert!(spin.goes_on(999));
        spin.came(0);
        assert!(spin.goes_on(999));
    }

    #[test]
    fn nothing_is_looked_for_where_that_is_not_wanted() {
        let mut spin = Spin::new(Duration::ZERO);
        assert!(!spin.goes_on(0));
        spin.came(0);
        assert!(!spin.goes_on(0));
    }
}
