//! All orders in which processes can meet at a lock whose holder may die at any step: the lock
//! never has two holders, and what it guards is never incomplete when another process sees it.
//!
//! `cargo test -p weir-ring --test loom_lock` (seconds).

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use loom::thread;
use weir_ring::robust_lock::{AtomicWord, LockOwner, TryLock, try_lock, unlock};

/// What the lock guards: two numbers that are equal, written one by one.
struct Shared {
    lock: AtomicU32,
    first: AtomicU32,
    second: AtomicU32,
    /// By number.
    dead: [AtomicBool; 3],
    /// How the lock is let go; less than release must fail.
    release: Ordering,
}

struct Cell<'a>(&'a Shared);

impl AtomicWord for Cell<'_> {
    fn load(&self) -> u32 {
        self.0.lock.load(Ordering::Acquire)
    }
    fn change(&self, from: u32, to: u32) -> bool {
        let (success, failure) = (Ordering::AcqRel, Ordering::Relaxed);
        let changed = self.0.lock.compare_exchange(from, to, success, failure);
        changed.is_ok()
    }
    fn store(&self, value: u32) {
        self.0.lock.store(value, self.0.release);
    }
}

/// Adds one to both numbers under the lock, and dies after that many steps;
/// returns whether it came to the end.
fn adds(shared: &Shared, number: u16, generation: u32, steps: u32) -> bool {
    let is_alive = |number: u16| !shared.dead[usize::from(number)].load(Ordering::Acquire);
    let me = LockOwner::new(number, generation);
    let mut left = steps;
    let mut dies = || {
        let dead = left == 0;
        left = left.saturating_sub(1);
        if dead {
            // The kernel writes so when the process is gone.
            shared.dead[usize::from(number)].store(true, Ordering::Release);
        }
        dead
    };
    let tried = try_lock(&Cell(shared), me, is_alive);
    if tried == TryLock::Busy {
        return false;
    }
    let (first, second) = (
        shared.first.load(Ordering::Relaxed),
        shared.second.load(Ordering::Relaxed),
    );
    match tried {
        TryLock::OwnerDied => {
            assert!(first == second || first == second + 1, "{first} {second}");
            shared.second.store(first, Ordering::Relaxed);
        }
        _ => assert_eq!(first, second, "half done under a free lock"),
    }
    if dies() {
        return false;
    }
    shared.first.store(first + 1, Ordering::Relaxed);
    if dies() {
        return false;
    }
    shared.second.store(first + 1, Ordering::Relaxed);
    if dies() {
        return false;
    }
    unlock(&Cell(shared));
    true
}

fn all_orders(release: Ordering, steps: u32) {
    loom::model(move || {
        let shared = Arc::new(Shared {
            lock: AtomicU32::new(0),
            first: AtomicU32::new(0),
            second: AtomicU32::new(0),
            dead: [const { false }; 3].map(AtomicBool::new),
            release,
        });
        let other = Arc::clone(&shared);
        let dying = thread::spawn(move || adds(&other, 1, 7, steps));
        let mut done = u32::from(adds(&shared, 2, 1, u32::MAX));
        done += u32::from(dying.join().unwrap());
        // Whatever happened, a third gets it.
        assert!(adds(&shared, 2, 1, u32::MAX), "the lock is stuck");
        done += 1;
        let both = [&shared.first, &shared.second].map(|n| n.load(Ordering::Relaxed));
        assert_eq!(both[0], both[1]);
        assert!(both[0] == done || both[0] == done + 1, "{both:?} {done}");
    });
}

#[test]
fn the_lock_outlives_a_death_at_any_step() {
    for steps in 0..=3 {
        all_orders(Ordering::Release, steps);
    }
}

#[test]
#[should_panic]
fn the_model_sees_a_lock_that_is_let_go_too_early() {
    all_orders(Ordering::Relaxed, u32::MAX);
}

/// A reassigned number is not taken for the earlier one: a process that has found the earlier
/// holder dead does not take the lock from the later one.
#[test]
fn a_lock_is_not_taken_from_the_next_of_the_same_number() {
    struct Late<'a>(&'a std::cell::Cell<u32>);
    impl AtomicWord for Late<'_> {
        fn load(&self) -> u32 {
            self.0.get()
        }
        fn change(&self, from: u32, to: u32) -> bool {
            let is_so = self.0.get() == from;
            if is_so {
                self.0.set(to);
            }
            is_so
        }
        fn store(&self, value: u32) {
            self.0.set(value);
        }
    }
    let word = std::cell::Cell::new(0);
    let lock = Late(&word);
    let alive = |_| true;
    assert_eq!(
        try_lock(&lock, LockOwner::new(1, 1), alive),
        TryLock::Acquired
    );
    let tried = try_lock(&lock, LockOwner::new(2, 1), |number| {
        assert_eq!(number, 1);
        // Meanwhile its number is reclaimed and given anew.
        unlock(&lock);
        assert_eq!(
            try_lock(&lock, LockOwner::new(1, 2), alive),
            TryLock::Acquired
        );
        false
    });
    assert_eq!(tried, TryLock::Busy);
    assert_eq!(word.get() & 255, 1);
    // A process of our own number had the lock before us: no other can have it.
    assert_eq!(
        try_lock(&lock, LockOwner::new(1, 3), alive),
        TryLock::OwnerDied
    );
}
