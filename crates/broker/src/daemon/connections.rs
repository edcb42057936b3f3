//! Counts of connections, by user and grant.

use super::limits;
use std::collections::HashMap;

/// Numbers of connections: all, by user, and by the grant that admits the user.
/// The superuser's connections count only among all.
#[derive(Default)]
pub(super) struct Connections {
    all: usize,
    superusers: usize,
    users: HashMap<u32, usize>,
    grants: HashMap<usize, usize>,
}

impl Connections {
    /// Whether a further connection is permitted; `closing` of the user's
    /// connections are still being closed.
    ///
    /// # Errors
    /// The exceeded limit.
    pub(super) fn check(
        &self,
        uid: u32,
        grant: Option<usize>,
        closing: usize,
    ) -> Result<(), String> {
        let full = || Err("the broker has as many connections as it can have".to_owned());
        let Some(grant) = grant else {
            return if self.superusers < limits::SUPERUSER_CONNECTIONS_MAX
                && self.all < limits::CONNECTIONS_MAX
            {
                Ok(())
            } else {
                full()
            };
        };
        let others_max = limits::CONNECTIONS_MAX - limits::SUPERUSER_CONNECTIONS_MAX;
        if self.all - self.superusers >= others_max {
            return full();
        }
        let max = limits::USER_CONNECTIONS_MAX;
        if self.users.get(&uid).copied().unwrap_or(0) + closing >= max {
            return Err(format!(
                "user {uid} has {max} connections, the most there may be"
            ));
        }
        let max = limits::GRANT_CONNECTIONS_MAX;
        if self.grants.get(&grant).copied().unwrap_or(0) >= max {
            return Err(format!(
                "the users of this grant of the policy have {max} connections, the most there \
                 may be"
            ));
        }
        Ok(())
    }

    /// Counts a new connection.
    pub(super) fn enter(&mut self, uid: u32, grant: Option<usize>) {
        self.all += 1;
        match grant {
            None => self.superusers += 1,
            Some(grant) => {
                *self.users.entry(uid).or_default() += 1;
                *self.grants.entry(grant).or_default() += 1;
            }
        }
    }

    /// Counts the end of a connection.
    pub(super) fn leave(&mut self, uid: u32, grant: Option<usize>) {
        self.all -= 1;
        match grant {
            None => self.superusers -= 1,
            Some(grant) => {
                decrement(&mut self.users, &uid);
                decrement(&mut self.grants, &grant);
            }
        }
    }
}

fn decrement<K: std::hash::Hash + Eq>(counts: &mut HashMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_users_of_one_grant_leave_room_for_others() {
        let mut connections = Connections::default();
        let mut entered = Vec::new();
        // One user, up to the user limit.
        for uid in 100_000..165_536 {
            if connections.check(uid, Some(1), 0).is_ok() {
                connections.enter(uid, Some(1));
                entered.push(uid);
            }
        }
        assert_eq!(entered.len(), limits::GRANT_CONNECTIONS_MAX);
        connections.check(7, Some(0), 0).expect("another grant");
        // All grants together leave room for the superuser.
        for grant in 2..100 {
            for uid in 0..limits::GRANT_CONNECTIONS_MAX as u32 {
                if connections.check(uid, Some(grant), 0).is_ok() {
                    connections.enter(uid, Some(grant));
                }
            }
        }
        assert!(connections.check(7, Some(0), 0).is_err());
        for _ in 0..limits::SUPERUSER_CONNECTIONS_MAX {
            connections
                .check(0, None, 0)
                .expect("the superuser's reserve");
            connections.enter(0, None);
        }
        assert!(connections.check(0, None, 0).is_err());
        for uid in entered {
            connections.leave(uid, Some(1));
        }
        connections
            .check(100_000, Some(1), 0)
            .expect("they have gone");
    }

    #[test]
    fn what_is_being_closed_counts() {
        let connections = Connections::default();
        let max = limits::USER_CONNECTIONS_MAX;
        assert!(connections.check(7, Some(0), max - 1).is_ok());
        assert!(connections.check(7, Some(0), max).is_err());
    }
}
