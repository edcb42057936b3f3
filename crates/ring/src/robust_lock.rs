//! A lock in shared memory that survives the death of its holder, as a robust mutex of
//! pthreads does.
//!
//! The word names the holder: the process's number among those that share the memory, and the
//! number's generation, which distinguishes a reassigned number from the earlier one. A process that
//! finds a dead holder takes the lock over, and recovers what the holder has left unfinished.
//!
//! No process waits for the lock: one that does not get it does other work.

/// A 32-bit word in shared memory.
pub trait AtomicWord {
    /// Reads the word (acquire).
    fn load(&self) -> u32;
    /// Writes `to` if the word is `from`, and returns whether it was (acquire and release).
    fn change(&self, from: u32, to: u32) -> bool;
    /// Writes the word (release).
    fn store(&self, value: u32);
}

/// Limit on the processes that a lock distinguishes.
pub const OWNERS_MAX: u16 = 255;

/// The holder of a lock.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LockOwner {
    number: u16,
    generation: u32,
}

impl LockOwner {
    /// The process of this number (from 1) and generation, of which 24 bits count.
    ///
    /// # Panics
    /// For a number beyond [`OWNERS_MAX`], and for 0.
    pub fn new(number: u16, generation: u32) -> LockOwner {
        assert!(
            (1..=OWNERS_MAX).contains(&number),
            "processes count from 1 to 255"
        );
        LockOwner {
            number,
            generation: generation & 0x00ff_ffff,
        }
    }

    /// The process's number.
    pub fn number(self) -> u16 {
        self.number
    }

    fn word(self) -> u32 {
        self.generation << 8 | u32::from(self.number)
    }
}

/// The number of the process that has the lock; `None` if it is free.
#[inline]
pub fn owner(word: &impl AtomicWord) -> Option<u16> {
    match word.load() & u32::from(OWNERS_MAX) {
        0 => None,
        number => Some(number as u16),
    }
}

/// The result of an attempt to take a lock.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum TryLock {
    /// The lock was free, and is now held by the caller.
    Acquired,
    /// The holder had died, and the caller now holds the lock and must recover what the holder
    /// has left unfinished.
    OwnerDied,
    /// Another live process holds the lock.
    Busy,
}

/// Tries to take a lock. `is_alive` returns whether the process of a number lives. The call
/// comes after the word was read, so that a holder found dead was dead while it held the lock.
#[inline]
pub fn try_lock(word: &impl AtomicWord, me: LockOwner, is_alive: impl Fn(u16) -> bool) -> TryLock {
    let found = word.load();
    let number = (found & u32::from(OWNERS_MAX)) as u16;
    let (is_dead, won) = match found {
        0 => (false, TryLock::Acquired),
        // The holder's number is this process's own: an earlier process, which is dead.
        _ => (number == me.number || !is_alive(number), TryLock::OwnerDied),
    };
    if (found == 0 || is_dead) && word.change(found, me.word()) {
        return won;
    }
    TryLock::Busy
}

/// Releases the lock, which only its holder may do.
#[inline]
pub fn unlock(word: &impl AtomicWord) {
    word.store(0);
}
