//! Who drives a net: its thread, or a call that waits.
//!
//! Where the thread does all that frames lead to, each of them wakes it, then it
//! wakes the call that waits for them, and both want the lock. So a call that is
//! about to wait, while there is news for no other socket, does what the thread
//! would do: it leads. Between such calls nobody waits for the links; each call
//! looks for what has come, and if there is none for [`WATCH`], the thread takes
//! over. It does at once where the call before came late, too.
//!
//! ```text
//!            a call waits                     it has what it waited for
//!  thread ───────────────► a call leads ◄──────────────────────────────► between calls
//!     ▲                                                                       │
//!     └──────── none for WATCH; others wait; calls are [`BRIEF`] apart ───────┘
//! ```
//!
//! So Linux does with the interrupts of a device while an application polls it
//! (`SO_PREFER_BUSY_POLL`): they stay off, and a timer stands behind.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread::Thread;
use std::time::Duration;

/// How long frames wait at most until a call or the thread sees them.
const WATCH: Duration = Duration::from_millis(1);
/// Calls that are further apart, in nanoseconds, leave the net to the thread.
const BRIEF_NS: u64 = 500_000;
/// How often a call looks for what has come, at most, in nanoseconds.
const LOOK_EACH_NS: u64 = 20_000;
/// The thread drives.
const THREAD: u64 = 0;
/// A call does.
const CALL: u64 = u64::MAX;

/// See the module.
pub(super) struct Lead {
    /// Who drives: [`THREAD`], [`CALL`], or nobody since then.
    driver: AtomicU64,
    /// When a call last drove, and whether the next one came soon, the last time.
    left_ns: AtomicU64,
    is_brief: AtomicBool,
    /// The thread sleeps until it is woken, however long a call leads.
    sleeps: AtomicBool,
    thread: OnceLock<Thread>,
}

impl Lead {
    pub(super) fn new() -> Lead {
        Lead {
            driver: AtomicU64::new(THREAD),
            left_ns: AtomicU64::new(0),
            is_brief: AtomicBool::new(true),
            sleeps: AtomicBool::new(false),
            thread: OnceLock::new(),
        }
    }

    /// The thread waits while calls lead.
    pub(super) fn stand_by(&self, now_ns: impl Fn() -> u64) {
        let _ = self.thread.set(std::thread::current());
        loop {
            match self.driver.load(SeqCst) {
                THREAD => return,
                CALL => {
                    self.sleeps.store(true, SeqCst);
                    if self.driver.load(SeqCst) == CALL {
                        std::thread::park();
                    }
                    self.sleeps.store(false, SeqCst);
                }
                since_ns => {
                    let passed = Duration::from_nanos(now_ns().saturating_sub(since_ns));
                    match WATCH.checked_sub(passed) {
                        Some(left) if !left.is_zero() => std::thread::park_timeout(left),
                        // Unless a call is faster.
                        _ => _ = self.replace(since_ns, THREAD),
                    }
                }
            }
        }
    }

    fn replace(&self, before: u64, after: u64) -> bool {
        let replaced = self.driver.compare_exchange(before, after, SeqCst, SeqCst);
        replaced.is_ok()
    }

    /// A call begins to lead, under the lock; false if another does.
    pub(super) fn begin(&self, now_ns: u64) -> bool {
        if self.driver.swap(CALL, SeqCst) == CALL {
            return false;
        }
        self.note_call(now_ns);
        true
    }

    /// A call comes: was it soon?
    fn note_call(&self, now_ns: u64) {
        let passed_ns = now_ns.saturating_sub(self.left_ns.load(SeqCst));
        self.is_brief.store(passed_ns < BRIEF_NS, SeqCst);
    }

    /// It leads no more.
    pub(super) fn end(&self, now_ns: u64) {
        let now_ns = now_ns.clamp(1, CALL - 1);
        self.left_ns.store(now_ns, SeqCst);
        let brief = self.is_brief.load(SeqCst);
        self.driver
            .store(if brief { now_ns } else { THREAD }, SeqCst);
        if self.sleeps.swap(false, SeqCst) || !brief {
            self.wake();
        }
    }

    /// Whether a call leads.
    pub(super) fn is_led(&self) -> bool {
        self.driver.load(SeqCst) == CALL
    }

    /// Whether nobody waits for the links, for calls come soon.
    pub(super) fn is_between_calls(&self) -> bool {
        !matches!(self.driver.load(SeqCst), THREAD | CALL)
    }

    /// Whether a call is to look for what has come, for nobody has for a while, or
    /// at all.
    pub(super) fn is_to_look(&self, eager: bool, now_ns: impl FnOnce() -> u64) -> bool {
        if !self.is_between_calls() {
            return false;
        }
        let since_ns = self.driver.load(SeqCst);
        let now_ns = now_ns().clamp(1, CALL - 1);
        let each_ns = if eager { 0 } else { LOOK_EACH_NS };
        if now_ns.saturating_sub(since_ns) < each_ns || !self.replace(since_ns, now_ns) {
            return false;
        }
        self.note_call(now_ns);
        self.left_ns.store(now_ns, SeqCst);
        true
    }

    /// Has the thread drive unless a call does.
    pub(super) fn hand_over(&self) {
        let since_ns = self.driver.load(SeqCst);
        if !matches!(since_ns, THREAD | CALL) && self.replace(since_ns, THREAD) {
            self.wake();
        }
    }

    fn wake(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }
}
