//! [`Parker`]: where the net's thread waits while calls drive the net.
//!
//! The thread does not wait for the net's lock: consecutive calls hold it nearly always, and
//! each release would wake the thread in vain.

use super::leader::HANDOVER_TIMEOUT;
use super::wait;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// The wait of the net's thread while calls drive.
#[derive(Default)]
pub(in crate::net) struct Parker {
    unparked: Mutex<bool>,
    rouse: Condvar,
    /// When a call last polled the links.
    polled_ns: AtomicU64,
}

impl Parker {
    /// Ends the thread's wait, or its next wait if it does not wait yet.
    pub(in crate::net) fn unpark(&self) {
        let mut roused = self.unparked.lock().unwrap_or_else(PoisonError::into_inner);
        *roused = true;
        drop(roused);
        self.rouse.notify_one();
    }

    /// Records that a call has polled: a thread that waits with a time waits longer.
    pub(in crate::net) fn note_poll(&self, at_ns: u64) {
        self.polled_ns.store(at_ns, Relaxed);
    }

    /// Waits for [`Parker::unpark`]; if `left` is given, waits at first for this time and then
    /// until no call has polled for [`HANDOVER_TIMEOUT`].
    pub(in crate::net) fn wait(&self, mut left: Option<Duration>, now_ns: impl Fn() -> u64) {
        let mut roused = self.unparked.lock().unwrap_or_else(PoisonError::into_inner);
        while !*roused && left != Some(Duration::ZERO) {
            roused = wait(&self.rouse, roused, left);
            left = left.map(|_| {
                let passed_ns = now_ns().saturating_sub(self.polled_ns.load(Relaxed));
                HANDOVER_TIMEOUT.saturating_sub(Duration::from_nanos(passed_ns))
            });
        }
        *roused = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use std::thread;
    use std::time::Instant;

    #[test]
    fn the_thread_waits_as_long_as_calls_look() {
        let (place, start) = (Parker::default(), Instant::now());
        let now_ns = || start.elapsed().as_nanos() as u64;
        let looks = AtomicUsize::new(0);
        // The clock stands still while calls poll, so the last poll is always recent.
        let clock = || match looks.fetch_add(1, Relaxed) {
            0..3 => 0,
            _ => now_ns(),
        };
        place.note_poll(0);
        place.wait(Some(HANDOVER_TIMEOUT), clock);
        assert!(looks.load(Relaxed) >= 4);
        assert!(start.elapsed() >= HANDOVER_TIMEOUT);
    }

    #[test]
    fn an_earlier_unpark_ends_the_wait_at_once() {
        let place = Parker::default();
        place.unpark();
        place.wait(None, || unreachable!("it has no time"));
        thread::scope(|scope| {
            scope.spawn(|| place.wait(None, || unreachable!("it has no time")));
            place.unpark();
        });
        // The earlier wake-up was consumed.
        place.wait(Some(HANDOVER_TIMEOUT), || {
            HANDOVER_TIMEOUT.as_nanos() as u64
        });
        assert!(!*place.unparked.lock().unwrap());
    }
}
