//! Leader/Followers: whether a net's thread or a waiting call drives the stack.
//!
//! If the thread handled every frame, each frame would wake the thread, the thread would
//! wake the waiting call, and both would want the lock. Therefore a call that is about to
//! wait does the thread's work itself while no other socket has events: the call leads.
//! Between such calls neither thread nor call waits for the links; each call polls them. If
//! no call polls for [`HANDOVER_TIMEOUT`], the thread takes over. The thread takes over at
//! once if calls are [`CALL_GAP_MAX_NS`] or more apart.
//!
//! ```text
//!  from           to             when
//!  thread         between calls  calls are less than CALL_GAP_MAX_NS apart
//!  thread, between calls
//!                 a call leads   a call waits; no other socket has events
//!  a call leads   between calls  the call has what it waited for
//!  a call leads   thread         so too, with a long gap before, or events for others
//!  between calls  thread         no poll for HANDOVER_TIMEOUT; a long gap between calls;
//!                                another call waits that cannot lead
//! ```
//!
//! A call that waits for descriptors ([`Net::poll`](crate::Net::poll)) leads as well: it waits for
//! the links and for its descriptors at once. Events for other sockets do not end its lead, since
//! the kernel wakes the waiters of their descriptors. Between such calls the thread takes over
//! only after [`HANDOVER_TIMEOUT`]: calls that would block do not wake it, because an application
//! whose calls would block polls next.
//!
//! ```text
//!  from           to             when
//!  any, not led   a poll leads   a call waits for descriptors
//!  a poll leads   between polls  a descriptor is ready, or the time is over
//!  between polls  thread         no poll for HANDOVER_TIMEOUT; another call waits
//! ```
//!
//! Linux treats a device's interrupts in the same way while an application polls
//! (`SO_PREFER_BUSY_POLL`): the interrupts stay off, and a timer is the fallback.
//!
//! What this is worth, measured with and without in one run, against the kernel through a TAP
//! interface on one core: a connection that exchanges single bytes makes 74,300 round trips a
//! second, 40,800 if calls lead only while they wait (no state *between calls*). On two cores
//! it makes 21,700, 19,400 so, and 17,700 if no call leads.
//!
//! The net's lock guards this state; the thread releases the lock to poll or to park.

use super::state::Id;
use std::time::Duration;

/// Longest time that frames wait until a call or the thread polls: 1 ms.
pub(in crate::net) const HANDOVER_TIMEOUT: Duration = Duration::from_millis(1);
/// Gap between calls, in nanoseconds, from which on the thread drives the net: the frames of an
/// application with rare calls then do not wait for [`HANDOVER_TIMEOUT`]. Without it a ping of a
/// host whose application sends a datagram each 2 ms takes 1.12 times as long (median of 12
/// alternating pairs, at worst 5 times).
const CALL_GAP_MAX_NS: u64 = 500_000;
/// Shortest time, in nanoseconds, between two polls of the links by calls that are not eager.
/// Nothing on round trips of single bytes. But 10 MiB in writes of 64 bytes (`weir iperf -l 64`)
/// take 2,200 reads of the link and 870 writes to it, and 22,300 and 14,700 without: between two
/// small writes the acknowledgment of the first is found, and releases the second (Nagle).
const POLL_INTERVAL_NS: u64 = 20_000;
/// Time, in nanoseconds, without events for other sockets that is required before a call
/// leads, so that calls do not take the links from a thread that tasks and descriptors depend
/// on. Two connections that exchange single bytes, each on a thread, pay at most 2 % for it, on one
/// core and on two (medians of 12 alternating pairs).
const EXCLUSIVE_NS: u64 = 10_000_000;

/// Which side waits for the links and for timers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Leader {
    Thread,
    Call,
    /// A call that waits for descriptors.
    Poll,
    /// Calls poll the links, the last at this time, and further calls are expected soon.
    BetweenCalls {
        polled_ns: u64,
    },
}

/// The state of the net's thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Thread {
    /// Holds the lock, or is about to take it.
    Works,
    /// Waits in `poll(2)`, up to the time that was due when it began.
    Polls,
    /// Waits to take over: while a call leads (`timed` false), or for a time.
    Parked { timed: bool },
}

/// How to wake the thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::net) enum WakeVia {
    /// By the eventfd that it polls.
    Poll,
    /// By the condition of its `Parker`.
    Unpark,
}

/// Decides which side drives the net: see the module. `Name` identifies a socket.
pub(in crate::net) struct Leadership<Name = Id> {
    leader: Leader,
    thread: Thread,
    /// When a call that might wait last began, or a leading call last ended; and whether at
    /// most [`CALL_GAP_MAX_NS`] had passed since the call before, without events for other
    /// sockets.
    called_ns: u64,
    is_brief: bool,
    /// The socket of the last event for waiters other than the leader, with the time; and the
    /// last time at which that socket changed, or an event came while a call led.
    last_event: Option<(Name, u64)>,
    contended_ns: Option<u64>,
    /// The last lead was a poll's.
    is_polled: bool,
}

impl<Name: Copy + PartialEq> Leadership<Name> {
    pub(in crate::net) fn new() -> Leadership<Name> {
        Leadership {
            leader: Leader::Thread,
            thread: Thread::Works,
            called_ns: 0,
            is_brief: true,
            last_event: None,
            contended_ns: None,
            is_polled: false,
        }
    }

    /// Whether a call leads now, or a poll.
    pub(in crate::net) fn is_led(&self) -> bool {
        matches!(self.leader, Leader::Call | Leader::Poll)
    }

    /// Whether a call leads that waits for descriptors.
    pub(in crate::net) fn is_led_by_poll(&self) -> bool {
        self.leader == Leader::Poll
    }

    /// Whether neither side waits for the links, because calls follow each other.
    pub(in crate::net) fn is_between_calls(&self) -> bool {
        matches!(self.leader, Leader::BetweenCalls { .. })
    }

    /// When a call last polled the links; `None` unless calls follow each other.
    pub(in crate::net) fn polled_ns(&self) -> Option<u64> {
        match self.leader {
            Leader::BetweenCalls { polled_ns } => Some(polled_ns),
            Leader::Thread | Leader::Call | Leader::Poll => None,
        }
    }

    /// Records that the thread works, or is about to poll.
    pub(in crate::net) fn thread_works(&mut self, works: bool) {
        self.thread = if works { Thread::Works } else { Thread::Polls };
    }

    /// Asks whether the thread should drive, which returns `None`; otherwise the thread parks,
    /// for the returned time or without limit.
    pub(in crate::net) fn park(&mut self, now_ns: u64) -> Option<Option<Duration>> {
        let left = match self.leader {
            Leader::Thread => None,
            Leader::Call | Leader::Poll => Some(None),
            Leader::BetweenCalls { polled_ns } => {
                let passed = Duration::from_nanos(now_ns.saturating_sub(polled_ns));
                let left = HANDOVER_TIMEOUT.saturating_sub(passed);
                (!left.is_zero()).then_some(Some(left))
            }
        };
        match left {
            None => {
                self.leader = Leader::Thread;
                self.thread = Thread::Works;
            }
            Some(left) => {
                let timed = left.is_some();
                self.thread = Thread::Parked { timed };
            }
        }
        left
    }

    /// Makes a call that waits for socket `id` the leader. False if another call leads, or
    /// other sockets have events.
    pub(in crate::net) fn begin(&mut self, id: Name, now_ns: u64) -> bool {
        if self.is_led() || !self.is_exclusive(id, now_ns) {
            return false;
        }
        self.leader = Leader::Call;
        self.is_polled = false;
        true
    }

    /// Makes a call that waits for descriptors the leader. False if another call leads.
    pub(in crate::net) fn begin_poll(&mut self) -> bool {
        if self.is_led() {
            return false;
        }
        self.leader = Leader::Poll;
        self.is_polled = true;
        true
    }

    /// Ends a poll's lead; returns how to wake the thread, if necessary.
    pub(in crate::net) fn end_poll(&mut self, now_ns: u64) -> Option<WakeVia> {
        (self.called_ns, self.is_brief) = (now_ns, true);
        self.leader = Leader::BetweenCalls { polled_ns: now_ns };
        match self.thread {
            Thread::Parked { timed: true } => None,
            _ => self.wake_via(),
        }
    }

    /// A call of an application that polls descriptors would block: the next poll drives, or the
    /// thread after a while. Otherwise as [`Leadership::hand_over`].
    pub(in crate::net) fn would_block(&mut self) -> Option<WakeVia> {
        if self.is_polled {
            None
        } else {
            self.hand_over()
        }
    }

    /// Ends a call's lead; returns how to wake the thread, if necessary. A thread that still
    /// polls does not know of timers set since.
    pub(in crate::net) fn end(&mut self, now_ns: u64) -> Option<WakeVia> {
        let crowded = self
            .contended_ns
            .is_some_and(|at_ns| at_ns >= self.called_ns);
        self.called_ns = now_ns;
        if !self.is_brief || crowded {
            self.leader = Leader::Thread;
            return self.wake_via();
        }
        self.leader = Leader::BetweenCalls { polled_ns: now_ns };
        match self.thread {
            Thread::Parked { timed: true } => None,
            _ => self.wake_via(),
        }
    }

    /// Records a call that may wait for socket `id`. Returns whether the call should poll the
    /// links, because no call has done so recently, and how to wake the thread. Calls in
    /// quick succession take the links from the thread; after a long gap, or after events for
    /// other sockets, the thread drives as well.
    pub(in crate::net) fn should_poll(
        &mut self,
        id: Name,
        eager: bool,
        now_ns: u64,
    ) -> (bool, Option<WakeVia>) {
        let passed_ns = now_ns.saturating_sub(std::mem::replace(&mut self.called_ns, now_ns));
        let brief = passed_ns < CALL_GAP_MAX_NS && self.is_exclusive(id, now_ns);
        self.is_brief = brief;
        match self.leader {
            Leader::Call | Leader::Poll => (false, None),
            Leader::Thread if !brief => (false, None),
            Leader::Thread => {
                self.leader = Leader::BetweenCalls { polled_ns: now_ns };
                let polls = self.thread == Thread::Polls;
                (true, polls.then_some(WakeVia::Poll))
            }
            Leader::BetweenCalls { .. } if !brief => {
                self.leader = Leader::Thread;
                (true, self.wake_via())
            }
            Leader::BetweenCalls { polled_ns } => {
                let each_ns = if eager { 0 } else { POLL_INTERVAL_NS };
                let looks = now_ns.saturating_sub(polled_ns) >= each_ns;
                if looks {
                    self.leader = Leader::BetweenCalls { polled_ns: now_ns };
                }
                (looks, None)
            }
        }
    }

    /// Whether no other socket had an event within [`EXCLUSIVE_NS`].
    fn is_exclusive(&self, id: Name, now_ns: u64) -> bool {
        let is_old = |at_ns: u64| now_ns >= at_ns.saturating_add(EXCLUSIVE_NS);
        let is_others = |(news, at_ns): (Name, u64)| news != id && !is_old(at_ns);
        let crowded = self.contended_ns.is_some_and(|at_ns| !is_old(at_ns));
        !crowded && !self.last_event.is_some_and(is_others)
    }

    /// Makes the thread drive unless a call leads; returns how to wake it.
    pub(in crate::net) fn hand_over(&mut self) -> Option<WakeVia> {
        if !self.is_between_calls() {
            return None;
        }
        self.leader = Leader::Thread;
        self.wake_via()
    }

    /// Makes the thread drive, since the leading call has failed; returns how to wake it.
    pub(in crate::net) fn fail(&mut self) -> Option<WakeVia> {
        self.leader = Leader::Thread;
        self.wake_via()
    }

    fn wake_via(&self) -> Option<WakeVia> {
        match self.thread {
            Thread::Works => None,
            Thread::Polls => Some(WakeVia::Poll),
            Thread::Parked { .. } => Some(WakeVia::Unpark),
        }
    }

    /// Records an event of socket `id` for waiters other than the leader.
    pub(in crate::net) fn note_event(&mut self, id: Name, now_ns: u64) {
        // The waiters of a polling application's sockets are the kernel's.
        if self.leader == Leader::Poll {
            return;
        }
        let before = self.last_event.replace((id, now_ns));
        if self.is_led() || before.is_some_and(|(before, _)| before != id) {
            self.contended_ns = Some(now_ns);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// The thread's state: waiting at the condition (with or without a time limit), in `poll(2)`,
    /// or about to take the lock.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    enum At {
        Runs,
        Polls,
        StandsBy(Option<Duration>),
    }

    struct World {
        lead: Leadership<u64>,
        at: At,
        /// A call leads, and whether it waits for descriptors.
        is_led: bool,
        is_poll: bool,
        /// The poll began before a call led: it does not know of timers set since.
        is_stale: bool,
        /// Time of the last check for frames.
        seen_ns: u64,
        /// Time of the last poll by a call, as the thread knows it.
        polled_ns: u64,
    }

    impl World {
        fn woken(&mut self, wake: Option<WakeVia>) {
            match (wake, self.at) {
                // The thread was woken, or its time has passed, but it does not have the lock yet.
                (None, _) | (Some(_), At::Runs) => {}
                (Some(WakeVia::Poll), At::Polls) | (Some(WakeVia::Unpark), At::StandsBy(_)) => {
                    self.at = At::Runs;
                }
                (Some(wake), at) => panic!("{wake:?} while it is {at:?}"),
            }
        }

        fn begins(&mut self, id: u64, now_ns: u64) {
            if self.lead.begin(id, now_ns) {
                assert!(!self.is_led, "one leads at a time");
                self.is_led = true;
                self.is_stale |= self.at == At::Polls;
            }
        }

        fn ends(&mut self, now_ns: u64, fails: bool) {
            let wake = if fails {
                self.lead.fail()
            } else {
                self.lead.end(now_ns)
            };
            (self.is_led, self.seen_ns) = (false, now_ns);
            self.woken(wake);
        }

        fn begins_poll(&mut self) {
            if self.lead.begin_poll() {
                assert!(!self.is_led, "one leads at a time");
                (self.is_led, self.is_poll) = (true, true);
                self.is_stale |= self.at == At::Polls;
            }
        }

        fn ends_poll(&mut self, now_ns: u64) {
            let wake = self.lead.end_poll(now_ns);
            (self.is_led, self.is_poll, self.seen_ns) = (false, false, now_ns);
            self.woken(wake);
            assert_eq!(self.lead.would_block(), None, "the next poll drives");
        }

        fn looks(&mut self, id: u64, eager: bool, now_ns: u64) {
            let (looks, wake) = self.lead.should_poll(id, eager, now_ns);
            self.woken(wake);
            if looks {
                assert!(!self.is_led, "what comes is the leader's");
                self.seen_ns = now_ns;
            }
        }

        fn thread_steps(&mut self, now_ns: u64) {
            match self.at {
                At::Runs => match self.lead.park(now_ns) {
                    Some(left) => {
                        let is_over = now_ns - self.seen_ns >= HANDOVER_TIMEOUT.as_nanos() as u64;
                        assert!(self.is_led || !is_over, "it takes over");
                        assert!(self.is_led == left.is_none(), "{left:?}");
                        self.at = At::StandsBy(left);
                    }
                    None => {
                        assert!(!self.is_led, "the leader drives");
                        self.lead.thread_works(false);
                        (self.at, self.is_stale, self.seen_ns) = (At::Polls, false, now_ns);
                    }
                },
                At::Polls => {
                    self.lead.thread_works(true);
                    self.at = At::Runs;
                }
                // While calls poll, the thread keeps waiting, with a time limit as before.
                At::StandsBy(Some(_)) => {
                    if now_ns - self.polled_ns >= HANDOVER_TIMEOUT.as_nanos() as u64 {
                        self.at = At::Runs;
                    }
                }
                At::StandsBy(None) => {}
            }
        }

        fn is_served(&self) -> bool {
            match self.at {
                _ if self.is_led => true,
                At::Runs => true,
                At::Polls => !self.is_stale && self.lead.leader == Leader::Thread,
                At::StandsBy(left) => left.is_some_and(|left| left <= HANDOVER_TIMEOUT),
            }
        }
    }

    /// For any sequence of calls: unless a call leads, the thread polls with the present timers, or
    /// runs, or does so within [`HANDOVER_TIMEOUT`].
    #[test]
    fn a_driver_always_waits_for_the_links() {
        const SEED: u64 = 22;
        println!("seed {SEED}");
        let mut random = SEED;
        let mut below = |most: u64| {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % most
        };
        let mut world = World {
            lead: Leadership::new(),
            at: At::Runs,
            is_led: false,
            is_poll: false,
            is_stale: false,
            seen_ns: 1,
            polled_ns: 0,
        };
        let (mut now_ns, mut seen) = (1, HashSet::new());
        for step in 0..200_000 {
            now_ns += [0, 1_000, 30_000, 600_000, 20_000_000][below(5) as usize];
            let id = below(2);
            match below(10) {
                0 => world.begins(id, now_ns),
                1 if world.is_led && !world.is_poll => world.ends(now_ns, below(4) == 0),
                8 => world.begins_poll(),
                9 if world.is_poll => world.ends_poll(now_ns),
                2 => {
                    let wake = world.lead.hand_over();
                    world.woken(wake);
                }
                3 => world.looks(id, below(2) == 0, now_ns),
                4 if below(3) == 0 => world.lead.note_event(id, now_ns),
                _ => world.thread_steps(now_ns),
            }
            let lead = &world.lead;
            world.polled_ns = lead.polled_ns().unwrap_or(world.polled_ns);
            assert_eq!(lead.is_led(), world.is_led, "step {step}");
            assert!(
                world.is_served(),
                "step {step}: {:?}, {:?}",
                world.at,
                lead.leader
            );
            let driver = std::mem::discriminant(&lead.leader);
            seen.insert(format!("{driver:?} {:?}", lead.thread));
        }
        assert!(seen.len() >= 12, "{seen:?}");
    }

    /// Calls that are far apart, or concurrent with events of other sockets, leave the links to the
    /// thread, whether they poll or lead; calls in quick succession take the links from it.
    #[test]
    fn calls_that_are_far_apart_drive_nothing_between() {
        for crowded in [false, true] {
            let mut lead = Leadership::new();
            let mut now_ns = 20_000_000;
            lead.thread_works(false);
            assert_eq!(
                lead.should_poll(1, true, now_ns),
                (false, None),
                "the first one"
            );
            now_ns += 1000;
            assert_eq!(
                lead.should_poll(1, true, now_ns),
                (true, Some(WakeVia::Poll))
            );
            assert!(lead.is_between_calls());
            assert!(lead.begin(1, now_ns));
            lead.end(now_ns);
            assert!(lead.is_between_calls());
            if crowded {
                lead.note_event(1, now_ns);
                lead.note_event(2, now_ns);
            }
            now_ns += if crowded { 1000 } else { CALL_GAP_MAX_NS };
            assert!(lead.should_poll(1, true, now_ns).0);
            assert!(!lead.is_between_calls(), "{crowded}");
            assert_eq!(lead.begin(1, now_ns), !crowded);
            if !crowded {
                lead.end(now_ns);
                assert!(!lead.is_between_calls(), "the call before was long ago");
            }
        }
    }
}
