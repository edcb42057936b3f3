//! How much of the daemon's time each user takes.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// What a user may take at once.
const BURST: Duration = Duration::from_millis(100);
/// What a user may take in the long run: one part in so many.
const SHARE: u32 = 4;
/// Users remembered.
const USERS_MAX: usize = 1 << 12;

/// Time spent on each user's requests: a bucket that empties at a quarter of
/// the clock's pace. A user above the brim waits, and everybody else does
/// not.
#[derive(Default)]
pub(super) struct Budget {
    users: HashMap<u32, (Duration, Instant)>,
}

impl Budget {
    /// Notes that work was done for a user.
    pub(super) fn spend(&mut self, uid: u32, time: Duration, now: Instant) {
        if self.users.len() >= USERS_MAX {
            self.users
                .retain(|_, (spent, at)| !left(*spent, *at, now).is_zero());
        }
        let entry = self.users.entry(uid).or_insert((Duration::ZERO, now));
        *entry = (left(entry.0, entry.1, now) + time, now);
    }

    /// Whether a user has to wait.
    pub(super) fn is_overdrawn(&self, uid: u32, now: Instant) -> bool {
        let user = self.users.get(&uid);
        user.is_some_and(|(spent, at)| left(*spent, *at, now) > BURST)
    }
}

fn left(spent: Duration, at: Instant, now: Instant) -> Duration {
    spent.saturating_sub(now.saturating_duration_since(at) / SHARE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_takes_too_much_waits_and_others_do_not() {
        let (mut budget, start) = (Budget::default(), Instant::now());
        let ms = Duration::from_millis;
        budget.spend(7, ms(90), start);
        assert!(!budget.is_overdrawn(7, start));
        budget.spend(7, ms(90), start);
        assert!(budget.is_overdrawn(7, start));
        assert!(!budget.is_overdrawn(8, start));
        assert!(budget.is_overdrawn(7, start + ms(300)));
        assert!(!budget.is_overdrawn(7, start + ms(330)));
    }
}
