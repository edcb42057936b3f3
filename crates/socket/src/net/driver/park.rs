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
    condition: Condvar,
    /// When a call last polled the links.
    polled_ns: AtomicU64,
}

impl Parker {
    /// Ends the thread's wait, or its next wait if it does not wait yet.
    pub(in crate::net) fn unpark(&self) {
        let mut unparked = self.unparked.lock().unwrap_or_else(PoisonError::into_inner);
        *unparked = true;
        drop(unparked);
        self.condition.notify_one();
    }

    /// Records that a call has polled: a thread that waits with a time waits longer.
    pub(in crate::net) fn note_poll(&self, at_ns: u64) {
        self.polled_ns.store(at_ns, Relaxed);
    }

    /// Waits for [`Parker::unpark`]; if `left` is given, waits at first for this time and then
    /// until no call has polled for [`HANDOVER_TIMEOUT`].
    pub(in crate::net) fn wait(&self, mut left: Option<Duration>, now_ns: impl Fn() -> u64) {
        let mut unparked = self.unparked.lock().unwrap_or_else(PoisonError::into_inner);
        while !*unparked && left != Some(Duration::ZERO) {
            unparked = wait(&self.condition, unparked, left);
            left = left.map(|_| {
                let passed_ns = now_ns().saturating_sub(self.polled_ns.load(Relaxed));
                HANDOVER_TIMEOUT.saturating_sub(Duration::from_nanos(passed_ns))
            });
        }
        *unparked = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use std::thread;
    use std::time::Instant;

    #[test]
    fn the_thread_waits_as_long_as_calls_poll() {
        let (parker, start) = (Parker::default(), Instant::now());
        let now_ns = || start.elapsed().as_nanos() as u64;
        let clock_reads = AtomicUsize::new(0);
        // The clock stands still while calls poll, so the last poll is always recent.
        let clock = || match clock_reads.fetch_add(1, Relaxed) {
            0..3 => 0,
            _ => now_ns(),
        };
        parker.note_poll(0);
        parker.wait(Some(HANDOVER_TIMEOUT), clock);
        assert!(clock_reads.load(Relaxed) >= 4);
        assert!(start.elapsed() >= HANDOVER_TIMEOUT);
    }

    #[test]
    fn an_earlier_unpark_ends_the_wait_at_once() {
        let parker = Parker::default();
        parker.unpark();
        parker.wait(None, || unreachable!("it has no time"));
        thread::scope(|scope| {
            scope.spawn(|| parker.wait(None, || unreachable!("it has no time")));
            parker.unpark();
        });
        // The earlier wake-up was consumed.
        parker.wait(Some(HANDOVER_TIMEOUT), || {
            HANDOVER_TIMEOUT.as_nanos() as u64
        });
        assert!(!*parker.unparked.lock().unwrap());
    }
}
