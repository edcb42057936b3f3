//! Liveness locks: words by which the kernel reports that a thread has ended, before it releases
//! the thread's other resources.
//!
//! Each is a robust lock (`pthread_mutexattr_setrobust(3)`), in the page that the programs at the
//! links read. A thread holds it as long as it lives. When the thread ends, the kernel sets
//! `FUTEX_OWNER_DIED` in the word: 0.1 ms after a `kill -9`, whereas closing the sockets takes 100
//! ms and more. Each process of a shared tap has one lock, numbered from 0.
//!
//! ```text
//!            take                 the thread ends
//!  vacant ────────► thread's id ──────────────────► died
//!     ▲               │    ▲                          │
//!     └───────────────┘    └──────────────────────────┘
//!          let go              take: reports its death
//! ```
#![allow(unsafe_code)] // Locks of the C library in shared memory.

use super::shared_page::{MEMBERS_MAX, SharedPage, at};
use std::io;
use std::rc::Rc;
use std::sync::atomic::Ordering;

/// The bit of a lock's word that says that its owner died.
const OWNER_DIED: u32 = 1 << 30;

/// Words from 1 up to this contain the id of a living owner.
pub(in crate::xdp) const THREADS: u32 = OWNER_DIED - 1;

/// Offset of the word that the kernel writes in the C library's lock.
pub(in crate::xdp) const LOCK_WORD: usize = if cfg!(target_env = "musl") { 4 } else { 0 };

/// A robust lock held by a living thread. Dropping the value unlocks it, which does not count as a
/// death.
#[derive(Debug)]
pub struct LivenessLock {
    lock: *mut libc::pthread_mutex_t,
    slot: u16,
    owner_died: bool,
    /// Keeps the page mapped.
    _state: Rc<SharedPage>,
}

/// The state of a liveness lock's owner.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum OwnerState {
    /// No thread holds the lock.
    None,
    /// The owner lives.
    Alive,
    /// The owner died.
    Died,
}

impl LivenessLock {
    /// The lock's number, from 0.
    pub fn slot(&self) -> u16 {
        self.slot
    }

    /// Whether the previous owner died with the lock.
    pub fn owner_died(&self) -> bool {
        self.owner_died
    }
}

impl SharedPage {
    fn liveness_lock(&self, slot: u16) -> io::Result<*mut libc::pthread_mutex_t> {
        const { assert!(size_of::<libc::pthread_mutex_t>() <= at::LIVENESS_LOCK_BYTES) };
        let inside = slot < MEMBERS_MAX;
        let place = at::liveness(slot.min(MEMBERS_MAX - 1));
        let place = self.memory().address(0, place, at::LIVENESS_LOCK_BYTES);
        let place = place
            .filter(|_| inside)
            .ok_or(io::ErrorKind::InvalidInput)?;
        Ok(place.cast())
    }

    /// Initialises all liveness locks in a new page.
    pub(in crate::xdp) fn init_liveness_locks(&self) -> io::Result<()> {
        for slot in 0..MEMBERS_MAX {
            let lock = self.liveness_lock(slot)?;
            // SAFETY: writable memory of the right size, aligned to 64 bytes, which stays mapped as
            // long as `SharedPage` does and is not shared yet. The attributes live on this stack.
            unsafe {
                let mut attributes: libc::pthread_mutexattr_t = std::mem::zeroed();
                let attributes = &raw mut attributes;
                check(libc::pthread_mutexattr_init(attributes))?;
                let shared = libc::PTHREAD_PROCESS_SHARED;
                let robust = libc::PTHREAD_MUTEX_ROBUST;
                let made = check(libc::pthread_mutexattr_setpshared(attributes, shared))
                    .and_then(|()| check(libc::pthread_mutexattr_setrobust(attributes, robust)))
                    .and_then(|()| check(libc::pthread_mutex_init(lock, attributes)));
                libc::pthread_mutexattr_destroy(attributes);
                made?;
            }
        }
        Ok(())
    }

    /// Takes a liveness lock for the calling thread; `None` if another living thread holds it.
    ///
    /// # Errors
    /// If the C library's lock layout is one that the programs at the links do not know, or if
    /// there is no such slot.
    pub fn lock_liveness(self: &Rc<SharedPage>, slot: u16) -> io::Result<Option<LivenessLock>> {
        let lock = self.liveness_lock(slot)?;
        // SAFETY: made by `init_liveness_locks` in memory that stays mapped as
        // long as `SharedPage` does.
        let owner_died = match unsafe { libc::pthread_mutex_trylock(lock) } {
            0 => false,
            libc::EBUSY => return Ok(None),
            libc::EOWNERDEAD => {
                // SAFETY: as above, and locked by this thread just now.
                check(unsafe { libc::pthread_mutex_consistent(lock) })?;
                true
            }
            code => return Err(io::Error::from_raw_os_error(code)),
        };
        let held = LivenessLock {
            lock,
            slot,
            owner_died,
            _state: Rc::clone(self),
        };
        let thread = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        if self.liveness_word(slot) & THREADS == thread {
            Ok(Some(held))
        } else {
            Err(io::ErrorKind::Unsupported.into())
        }
    }

    fn liveness_word(&self, slot: u16) -> u32 {
        let word = self.atomic_u32(at::liveness(slot) + LOCK_WORD);
        word.load(Ordering::Acquire)
    }

    /// The state of a lock's owner; [`OwnerState::None`] also for a slot without a lock.
    #[inline]
    pub fn owner_state(&self, slot: u16) -> OwnerState {
        if slot >= MEMBERS_MAX {
            return OwnerState::None;
        }
        match self.liveness_word(slot) {
            word if word & OWNER_DIED != 0 => OwnerState::Died,
            word if word & THREADS != 0 => OwnerState::Alive,
            _ => OwnerState::None,
        }
    }

    /// Whether a living thread holds one of the locks.
    pub fn is_owned(&self) -> bool {
        (0..MEMBERS_MAX).any(|slot| self.owner_state(slot) == OwnerState::Alive)
    }
}

impl Drop for LivenessLock {
    fn drop(&mut self) {
        // SAFETY: locked by this thread, which the value cannot leave (it has a raw pointer), in
        // memory that lives longer.
        unsafe { libc::pthread_mutex_unlock(self.lock) };
    }
}

fn check(code: i32) -> io::Result<()> {
    match code {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(code)),
    }
}
