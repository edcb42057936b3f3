//! A lock in shared memory that outlives whoever holds it.
//!
//! The word says who holds it: the process's number among those that share
//! the memory, and which holder of that number it is (its generation), so that
//! a number given anew is not taken for the one before. A process that finds
//! the lock held by one that died takes it over, and recovers what that one
//! was about.
//!
//! Nobody waits for it: who does not get it does something else.

/// A word of 32 bits in shared memory.
pub trait AtomicWord {
    /// Reads it; acquires what was written before it was.
    fn load(&self) -> u32;
    /// Writes `to` if it is `from`, and tells whether it was; acquires and
    /// releases.
    fn change(&self, from: u32, to: u32) -> bool;
    /// Writes it; releases what was written before.
    fn store(&self, value: u32);
}

/// Most processes that a lock can tell apart.
pub const OWNERS_MAX: u16 = 255;

/// Who holds a lock.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LockOwner {
    number: u16,
    generation: u32,
}

impl LockOwner {
    /// The process of that number (from 1), and which of that number; of the
    /// generation 24 bits count.
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

/// What became of a try.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum TryLock {
    /// It was free, and is ours.
    Acquired,
    /// Its holder had died, and it is ours: what was under way is to be
    /// recovered.
    OwnerDied,
    /// Another one has it.
    Busy,
}

/// Tries to take a lock. `is_alive` tells whether the process of a number
/// lives; it is asked after the word was read, so that a holder that was found
/// dead was dead while it held the lock.
#[inline]
pub fn try_lock(word: &impl AtomicWord, me: LockOwner, is_alive: impl Fn(u16) -> bool) -> TryLock {
    let found = word.load();
    let number = (found & u32::from(OWNERS_MAX)) as u16;
    let (is_dead, won) = match found {
        0 => (false, TryLock::Acquired),
        // One of our own number came before us.
        _ => (number == me.number || !is_alive(number), TryLock::OwnerDied),
    };
    if (found == 0 || is_dead) && word.change(found, me.word()) {
        return won;
    }
    TryLock::Busy
}

/// Lets it go. Only its holder may.
#[inline]
pub fn unlock(word: &impl AtomicWord) {
    word.store(0);
}
