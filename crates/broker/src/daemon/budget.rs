//! Budgets of the daemon's time for users, grants and new connections.

use super::client::Client;
use super::closer::Closer;
use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

/// Number of keys at which keys without debt are removed.
const KEYS_MAX: usize = 1 << 12;

/// Time spent for each key: a leaky bucket that drains at a fraction of real
/// time. A key above the limit is overdrawn until its level has fallen to the
/// limit.
pub(super) struct Budget<K> {
    burst: Duration,
    /// Divisor of real time: one part in `share` may be spent in the long run.
    share: u32,
    spent: HashMap<K, (Duration, Instant)>,
}

impl<K: Hash + Eq> Budget<K> {
    pub(super) fn new(burst: Duration, share: u32) -> Budget<K> {
        let spent = HashMap::new();
        Budget {
            burst,
            share,
            spent,
        }
    }

    /// Records work.
    pub(super) fn spend(&mut self, key: K, time: Duration, now: Instant) {
        let share = self.share;
        let left = |spent, at| remaining(spent, at, now, share);
        if self.spent.len() >= KEYS_MAX {
            self.spent
                .retain(|_, (spent, at)| !left(*spent, *at).is_zero());
        }
        let entry = self.spent.entry(key).or_insert((Duration::ZERO, now));
        *entry = (left(entry.0, entry.1) + time, now);
    }

    /// Whether more time was spent than permitted.
    pub(super) fn is_overdrawn(&self, key: &K, now: Instant) -> bool {
        let known = self.spent.get(key);
        known.is_some_and(|(spent, at)| remaining(*spent, *at, now, self.share) > self.burst)
    }
}

#[cfg(test)]
impl<K: Hash + Eq> Budget<K> {
    /// The remaining time of a key.
    pub(super) fn remaining(&self, key: &K, now: Instant) -> Duration {
        let known = self.spent.get(key);
        known.map_or(Duration::ZERO, |(spent, at)| {
            remaining(*spent, *at, now, self.share)
        })
    }
}

/// The time that users have spent, by user and by grant.
pub(super) struct Spending {
    users: Budget<u32>,
    grants: Budget<usize>,
}

impl Spending {
    pub(super) fn new() -> Spending {
        let ms = Duration::from_millis;
        Spending {
            users: Budget::new(ms(100), 4),
            grants: Budget::new(ms(200), 2),
        }
    }

    /// Records work for a user under a grant.
    pub(super) fn spend(&mut self, uid: u32, grant: usize, time: Duration) {
        let now = Instant::now();
        self.users.spend(uid, time, now);
        self.grants.spend(grant, time, now);
    }

    /// Whether a user must wait: for an overdrawn budget, or until the user's
    /// connections are closed.
    pub(super) fn is_overdrawn(&self, client: &Client, closer: &Closer, now: Instant) -> bool {
        let Some(grant) = client.grant else {
            return false;
        };
        let uid = client.owner.who.uid;
        self.users.is_overdrawn(&uid, now)
            || self.grants.is_overdrawn(&grant, now)
            || closer.len_of(uid) > 0
    }
}

fn remaining(spent: Duration, at: Instant, now: Instant, share: u32) -> Duration {
    spent.saturating_sub(now.saturating_duration_since(at) / share)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_over_its_budget_waits_and_others_do_not() {
        let ms = Duration::from_millis;
        let (mut budget, start) = (Budget::new(ms(100), 4), Instant::now());
        budget.spend(7, ms(90), start);
        assert!(!budget.is_overdrawn(&7, start));
        budget.spend(7, ms(90), start);
        assert!(budget.is_overdrawn(&7, start));
        assert!(!budget.is_overdrawn(&8, start));
        assert!(budget.is_overdrawn(&7, start + ms(300)));
        assert!(!budget.is_overdrawn(&7, start + ms(330)));
    }
}
