//! Closes connections, and the descriptors that clients have sent, where
//! closing may block.
//!
//! Before Linux 6.16 any client may pass descriptors, and the holder of the
//! last copy closes it. Closing may block: for a socket with `SO_LINGER` and
//! unsent data as long as its owner has set, for a file of a FUSE file system
//! as long as its owner likes. Closing a connection also closes the descriptors
//! in its queue. Therefore a connection with descriptors in its queue is closed
//! on a thread, at most one for each user: a user who blocks it delays only
//! that user's own connections. [`Access`](super::access::Access) limits how
//! many may wait.

use crate::protocol::Channel;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;

/// Largest number of threads.
const THREADS_MAX: usize = 64;
/// Connections to be closed.
#[derive(Default)]
pub(super) struct Closer {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    users: BTreeMap<u32, User>,
    threads: usize,
}

/// The connections to be closed of one user.
#[derive(Default)]
struct User {
    pending: Vec<Channel>,
    /// Number being closed by a thread.
    closing: usize,
}

impl User {
    fn len(&self) -> usize {
        self.pending.len() + self.closing
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Closer {
    /// Closes a user's connection.
    pub(super) fn close(&self, uid: u32, channel: Channel) {
        let mut state = lock(&self.state);
        let waiting = &mut state.users.entry(uid).or_default().pending;
        waiting.push(channel);
        if state.threads < THREADS_MAX && state.has_work() {
            let shared = Arc::clone(&self.state);
            let thread = Builder::new().name("weir-close".into());
            // If no thread can be started, they wait for the next call.
            state.threads += usize::from(thread.spawn(move || close_all(&shared)).is_ok());
        }
    }

    /// Number of a user's unclosed connections.
    pub(super) fn len_of(&self, uid: u32) -> usize {
        lock(&self.state).users.get(&uid).map_or(0, User::len)
    }

    /// Number of each user's unclosed connections.
    pub(super) fn lens(&self) -> BTreeMap<u32, usize> {
        let state = lock(&self.state);
        let lens = state.users.iter().map(|(uid, user)| (*uid, user.len()));
        lens.collect()
    }

    /// Whether all connections are closed.
    pub(super) fn is_idle(&self) -> bool {
        lock(&self.state).users.is_empty()
    }
}

impl State {
    fn has_work(&self) -> bool {
        self.users.values().any(User::is_ready)
    }

    /// All waiting connections of a user without a closing thread.
    fn take(&mut self) -> Option<(u32, Vec<Channel>)> {
        let (uid, user) = self.users.iter_mut().find(|(_, user)| user.is_ready())?;
        let channels = std::mem::take(&mut user.pending);
        user.closing = channels.len();
        Some((*uid, channels))
    }

    fn closed(&mut self, uid: u32) {
        if let Some(user) = self.users.get_mut(&uid) {
            user.closing -= 1;
            if user.len() == 0 {
                self.users.remove(&uid);
            }
        }
    }
}

impl User {
    fn is_ready(&self) -> bool {
        self.closing == 0 && !self.pending.is_empty()
    }
}

fn close_all(shared: &Mutex<State>) {
    let mut state = lock(shared);
    while let Some((uid, channels)) = state.take() {
        drop(state);
        for channel in channels {
            drop(channel);
            lock(shared).closed(uid);
        }
        state = lock(shared);
    }
    state.threads -= 1;
}
