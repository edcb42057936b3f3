//! The death word: what the kernel writes when a thread ends, however it
//! ends, before anything else of it goes.
//!
//! It is a robust lock (`pthread_mutexattr_setrobust(3)`) that the thread
//! holds as long as it lives, in the page that the programs at the links
//! read. When the thread ends, the kernel sets `FUTEX_OWNER_DIED` in it: 0.1
//! ms after a `kill -9`, where closing the sockets takes 100 and more.
#![allow(unsafe_code)] // A lock of the C library in shared memory.

use super::state::{State, at};
use std::io;
use std::rc::Rc;
use std::sync::atomic::Ordering;

/// Held by the thread that made it. Dropped, it is let go: that is no death.
#[derive(Debug)]
pub struct DeathWord {
    lock: *mut libc::pthread_mutex_t,
    /// Keeps the page mapped.
    _state: Rc<State>,
}

/// Bytes for it in the page.
const ROOM: usize = at::LINKS - at::DEATH;

impl State {
    /// Takes the death word for the calling thread. The gate must be shut, and
    /// who had the word before gone.
    ///
    /// # Errors
    /// If the C library has no robust locks, or lays them out in a way that
    /// the programs at the links do not know; then death shows in the
    /// heartbeat.
    pub fn hold_death_word(self: &Rc<State>) -> io::Result<DeathWord> {
        const { assert!(size_of::<libc::pthread_mutex_t>() <= ROOM) };
        let place = self.memory().address(0, at::DEATH, ROOM);
        let lock: *mut libc::pthread_mutex_t = place.ok_or(io::ErrorKind::InvalidInput)?.cast();
        for word in (0..ROOM).step_by(8) {
            self.wide(at::DEATH + word).store(0, Ordering::Relaxed);
        }
        // SAFETY: writable memory of the right size, aligned to 128 bytes,
        // which stays mapped as long as `State` does; nobody else uses it
        // while the gate is shut. The attributes live on this stack.
        unsafe {
            let mut attributes: libc::pthread_mutexattr_t = std::mem::zeroed();
            check(libc::pthread_mutexattr_init(&raw mut attributes))?;
            let made = check(libc::pthread_mutexattr_setpshared(
                &raw mut attributes,
                libc::PTHREAD_PROCESS_SHARED,
            ))
            .and_then(|()| {
                let robust = libc::PTHREAD_MUTEX_ROBUST;
                check(libc::pthread_mutexattr_setrobust(
                    &raw mut attributes,
                    robust,
                ))
            })
            .and_then(|()| check(libc::pthread_mutex_init(lock, &raw const attributes)));
            libc::pthread_mutexattr_destroy(&raw mut attributes);
            made?;
            check(libc::pthread_mutex_lock(lock))?;
        }
        let held = DeathWord {
            lock,
            _state: Rc::clone(self),
        };
        // The kernel compares the thread's number, and sets a bit beside it.
        let thread = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        let words = [0, 4].map(|offset| self.word(at::DEATH + offset).load(Ordering::Relaxed));
        match words.contains(&thread) {
            true => Ok(held),
            false => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

impl Drop for DeathWord {
    fn drop(&mut self) {
        // SAFETY: locked by this thread, which the value cannot leave (it has
        // a raw pointer), in memory that lives longer.
        unsafe {
            libc::pthread_mutex_unlock(self.lock);
            libc::pthread_mutex_destroy(self.lock);
        }
    }
}

fn check(code: i32) -> io::Result<()> {
    match code {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(code)),
    }
}

impl State {
    /// Whether a process has the word now: one lives that had the gate open.
    pub fn is_held(&self) -> bool {
        const OWNER_DIED: u32 = 1 << 30;
        const THREAD: u32 = OWNER_DIED - 1;
        let words = [0, 4].map(|offset| self.word(at::DEATH + offset).load(Ordering::Relaxed));
        let died = words.iter().any(|word| word & OWNER_DIED != 0);
        // One of the words is the thread's number, the other a small count
        // or a kind.
        !died && words.iter().any(|word| word & THREAD > 1)
    }
}
