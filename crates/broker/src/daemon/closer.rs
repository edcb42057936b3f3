//! Closes what clients have sent, and their connections, where that may block.
//!
//! Before Linux 6.16 any client may pass descriptors, and who holds the last
//! copy of one closes it: a socket with `SO_LINGER` and unsent data blocks
//! close(2) for as long as its owner has set, a file of a FUSE file system for
//! as long as its owner likes. A connection that is closed takes with it what
//! is in its queue. So a connection with descriptors in its queue is closed on
//! a thread, one for each user at most: who blocks it has only their own
//! connections wait. How many may wait is [`Access`](super::access::Access)'s
//! to see to.

use crate::protocol::Channel;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;

/// Threads at one time.
const THREADS_MAX: usize = 64;
/// What is being closed.
#[derive(Default)]
pub(super) struct Closer {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    users: BTreeMap<u32, User>,
    threads: usize,
}

/// What is being closed of one user.
#[derive(Default)]
struct User {
    pending: Vec<Channel>,
    /// In the hands of a thread.
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
            // Without a thread they wait for the next that is closed.
            state.threads += usize::from(thread.spawn(move || close_all(&shared)).is_ok());
        }
    }

    /// How many of a user's are not closed yet.
    pub(super) fn len_of(&self, uid: u32) -> usize {
        lock(&self.state).users.get(&uid).map_or(0, User::len)
    }

    /// How many of each user's are not closed yet.
    pub(super) fn lens(&self) -> BTreeMap<u32, usize> {
        let state = lock(&self.state);
        let lens = state.users.iter().map(|(uid, user)| (*uid, user.len()));
        lens.collect()
    }

    /// Whether everything is closed.
    pub(super) fn is_idle(&self) -> bool {
        lock(&self.state).users.is_empty()
    }
}

impl State {
    fn has_work(&self) -> bool {
        self.users.values().any(User::is_ready)
    }

    /// All that waits of a user whom no thread closes for.
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
