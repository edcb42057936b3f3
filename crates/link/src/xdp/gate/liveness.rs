//! The liveness locks: what the kernel writes when a thread ends, however it
//! ends, before anything else of it goes.
//!
//! Each is a robust lock (`pthread_mutexattr_setrobust(3)`) that a thread
//! holds as long as it lives, in the page that the programs at the links
//! read. When the thread ends, the kernel sets `FUTEX_OWNER_DIED` in it: 0.1
//! ms after a `kill -9`, where closing the sockets takes 100 and more. The
//! processes of a shared tap have one each, numbered from 0.
//!
//! ```text
//!            take                 the thread ends
//!  vacant ────────► thread's id ──────────────────► died
//!     ▲               │    ▲                          │
//!     └───────────────┘    └──────────────────────────┘
//!          let go              take: tells that it died
//! ```
#![allow(unsafe_code)] // Locks of the C library in shared memory.

use super::shared_page::{MEMBERS_MAX, SharedPage, at};
use std::io;
use std::rc::Rc;
use std::sync::atomic::Ordering;

/// Bits of a lock's word: its owner died.
const OWNER_DIED: u32 = 1 << 30;

/// Less than this, and not 0: the number of a thread that lives.
pub(in crate::xdp) const THREADS: u32 = OWNER_DIED - 1;

/// Where in the lock the C library has the word that the kernel writes.
pub(in crate::xdp) const LOCK_WORD: usize = if cfg!(target_env = "musl") { 4 } else { 0 };

/// A robust lock that the thread holds as long as it lives. Dropping the value
/// unlocks it, which does not count as a death.
#[derive(Debug)]
pub struct LivenessLock {
    lock: *mut libc::pthread_mutex_t,
    slot: u16,
    owner_died: bool,
    /// Keeps the page mapped.
    _state: Rc<SharedPage>,
}

/// What a liveness lock says of its owner.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum OwnerState {
    /// No thread has it.
    None,
    /// The thread that has it lives.
    Alive,
    /// The thread that had it died.
    Died,
}

impl LivenessLock {
    /// Which one, from 0.
    pub fn slot(&self) -> u16 {
        self.slot
    }

    /// Whether the thread that had it before died with it.
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

    /// Makes all liveness locks, in a new page.
    pub(in crate::xdp) fn init_liveness_locks(&self) -> io::Result<()> {
        for slot in 0..MEMBERS_MAX {
            let lock = self.liveness_lock(slot)?;
            // SAFETY: writable memory of the right size, aligned to 64 bytes,
            // which stays mapped as long as `SharedPage` does; nobody else has the
            // page yet. The attributes live on this stack.
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

    /// Takes a liveness lock for the calling thread; `None` if another that
    /// lives has it.
    ///
    /// # Errors
    /// If the C library lays its locks out in a way that the programs at the
    /// links do not know, or there is no such word.
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

    /// What a liveness lock says of its owner: `None` also for a slot without a lock.
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

    /// Whether a live thread has one of the locks.
    pub fn is_owned(&self) -> bool {
        (0..MEMBERS_MAX).any(|slot| self.owner_state(slot) == OwnerState::Alive)
    }
}

impl Drop for LivenessLock {
    fn drop(&mut self) {
        // SAFETY: locked by this thread, which the value cannot leave (it has
        // a raw pointer), in memory that lives longer.
        unsafe { libc::pthread_mutex_unlock(self.lock) };
    }
}

fn check(code: i32) -> io::Result<()> {
    match code {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(code)),
    }
}
