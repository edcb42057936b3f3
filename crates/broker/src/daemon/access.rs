//! Who may connect at all, while connections cannot be closed.
//!
//! Before Linux 6.16 a user can have the closing of a connection block (see
//! [`Closer`]), and connect again and again. Whose a connection is the daemon
//! knows once it has accepted it, and then it has it to close. So a user with
//! too many such connections is kept off the socket's file until they are
//! closed; with too many of all users, everybody but the superuser is.

use super::closer::Closer;
use super::limits;
use crate::protocol::Listener;
use std::collections::BTreeSet;

/// Who is kept off the socket.
#[derive(Default)]
pub(super) struct Access {
    excluded: BTreeSet<u32>,
    superuser_only: bool,
}

impl Access {
    /// Whether some user is kept off.
    pub(super) fn is_limited(&self) -> bool {
        self.superuser_only || !self.excluded.is_empty()
    }

    /// Goes by what is not closed yet.
    pub(super) fn update(&mut self, listener: &Listener, closer: &Closer) {
        let lens = closer.lens();
        let all: usize = lens.values().sum();
        let is_excluded = |(uid, len): (u32, usize)| {
            let is_full = len >= limits::USER_UNCLOSED_MAX;
            (is_full || self.excluded.contains(&uid)).then_some(uid)
        };
        let excluded: BTreeSet<u32> = lens.into_iter().filter_map(is_excluded).collect();
        // Where a file system has no access control lists, the other bound
        // holds.
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
