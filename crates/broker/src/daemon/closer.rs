//! Closes what clients have sent, and their connections, where that may block.
//!
//! Before Linux 6.16 any client may pass descriptors, and who holds the last
//! copy of one closes it: a socket with `SO_LINGER` and unsent data blocks
//! close(2) for as long as its owner has set, a file of a FUSE file system for
//! as long as its owner likes. A connection that is closed takes with it what
//! is in its queue. So both are closed on threads of their own, one for each
//! user at most: who blocks it has only their own descriptors wait.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;

/// Threads at one time.
const THREADS_MAX: usize = 64;
/// Descriptors that wait, from which on no user but the superuser is read.
const WAITING_MAX: usize = 1 << 14;

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
    waiting: Vec<OwnedFd>,
    /// In the hands of a thread.
    closing: usize,
}

impl User {
    fn len(&self) -> usize {
        self.waiting.len() + self.closing
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Closer {
    /// Closes descriptors that a user has sent, or their connection.
    pub(super) fn close(&self, uid: u32, fds: impl IntoIterator<Item = OwnedFd>) {
        let mut state = lock(&self.state);
        let waiting = &mut state.users.entry(uid).or_default().waiting;
        waiting.extend(fds);
        if state.threads < THREADS_MAX && state.has_work() {
            let shared = Arc::clone(&self.state);
            let thread = Builder::new().name("weir-close".into());
            // Without a thread they wait for the next that is closed.
            state.threads += usize::from(thread.spawn(move || close_all(&shared)).is_ok());
        }
    }

    /// Whether there is something of a user's that is not closed yet, or too
    /// much altogether.
    pub(super) fn is_busy(&self, uid: u32) -> bool {
        let state = lock(&self.state);
        let all: usize = state.users.values().map(User::len).sum();
        all > WAITING_MAX || state.users.get(&uid).is_some_and(|user| user.len() > 0)
    }

    /// How many are not closed yet.
    pub(super) fn len_of(&self, uid: u32) -> usize {
        lock(&self.state).users.get(&uid).map_or(0, User::len)
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
    fn take(&mut self) -> Option<(u32, Vec<OwnedFd>)> {
        let (uid, user) = self.users.iter_mut().find(|(_, user)| user.is_ready())?;
        let fds = std::mem::take(&mut user.waiting);
        user.closing = fds.len();
        Some((*uid, fds))
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
        self.closing == 0 && !self.waiting.is_empty()
    }
}

fn close_all(shared: &Mutex<State>) {
    let mut state = lock(shared);
    while let Some((uid, fds)) = state.take() {
        drop(state);
        for fd in fds {
            drop(fd);
            lock(shared).closed(uid);
        }
        state = lock(shared);
    }
    state.threads -= 1;
}
