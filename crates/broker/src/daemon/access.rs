//! Access to the daemon's socket file, while connections remain to be closed.
//!
//! Before Linux 6.16 a user can make the closing of a connection block (see
//! [`Closer`]), and connect repeatedly. The daemon learns a connection's user
//! only after accepting it, and must then close it. Therefore a user with too
//! many unclosed connections loses access to the socket file until they are
//! closed; with too many of all users, all users but the superuser do.

use super::closer::Closer;
use super::limits;
use crate::protocol::Listener;
use std::collections::BTreeSet;

/// The users without access to the socket.
#[derive(Default)]
pub(super) struct Access {
    excluded: BTreeSet<u32>,
    superuser_only: bool,
}

impl Access {
    /// Whether a user is excluded.
    pub(super) fn is_limited(&self) -> bool {
        self.superuser_only || !self.excluded.is_empty()
    }

    /// Updates the access from the numbers of unclosed connections.
    pub(super) fn update(&mut self, listener: &Listener, closer: &Closer) {
        let lens = closer.lens();
        let all: usize = lens.values().sum();
        let is_excluded = |(uid, len): (u32, usize)| {
            let is_full = len >= limits::USER_UNCLOSED_MAX;
            (is_full || self.excluded.contains(&uid)).then_some(uid)
        };
        let excluded: BTreeSet<u32> = lens.into_iter().filter_map(is_excluded).collect();
        // If the file system lacks access control lists, the limit for all
        // users applies.
        if excluded != self.excluded {
            let _ = listener.exclude(excluded.iter().copied());
            self.excluded = excluded;
        }
        let superuser_only = all >= limits::UNCLOSED_MAX;
        if superuser_only != self.superuser_only
            && listener.admit_superuser_only(superuser_only).is_ok()
        {
            self.superuser_only = superuser_only;
        }
    }
}
