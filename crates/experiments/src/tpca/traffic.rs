//! Who sends when: the segments that reach the server, in order.

use super::{RATE_PER_S, Settings, THINK_MEAN_S};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use weir_stack::rng::Rng;

/// The behaviour of users.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Workload {
    /// TPC/A (§2): think times from a truncated exponential distribution.
    Tpca,
    /// Think times of exactly 10 s, as terminals that are polled have (§3.2).
    Fixed,
    /// TPC/A with software that sends three segments at once for each that is
    /// needed (§3.3): the pitfall of the hit ratio.
    Tripled,
    /// No transactions: bulk transfers in trains of 32 segments (§1).
    Trains,
}

/// Segments of a train.
const TRAIN: u32 = 32;
/// Copies of a segment that inefficient software sends.
const TRIPLE: u32 = 3;

/// A segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Arrival {
    pub(super) user: u32,
    /// It enters a transaction; otherwise it acknowledges a response.
    pub(super) entry: bool,
    /// It is one that the equations are about.
    pub(super) counts: bool,
}

/// Users who enter transactions whether or not the response has come, at
/// random and each as likely as any other: what §3 assumes.
///
/// The equations are about a user who thinks, enters, waits and acknowledges.
/// So an entry counts if its user has acknowledged all responses, and an
/// acknowledgment if its user has not entered another transaction meanwhile.
pub(super) struct Model {
    rng: Rng,
    users: u32,
    response_s: f64,
    next_entry_s: f64,
    /// Acknowledgments to come: when, and by whom.
    due: VecDeque<(f64, u32)>,
    /// For each user, transactions waiting for a response, and whether they
    /// overlap.
    waiting: Vec<(u32, bool)>,
}

impl Model {
    pub(super) fn new(settings: &Settings) -> Model {
        Model {
            rng: Rng::new(settings.seed),
            users: settings.users,
            response_s: settings.response_s,
            next_entry_s: 0.0,
            due: VecDeque::new(),
            waiting: vec![(0, false); settings.users as usize],
        }
    }
}

impl Iterator for Model {
    type Item = Arrival;

    fn next(&mut self) -> Option<Arrival> {
        if let Some(&(due_s, user)) = self.due.front()
            && due_s <= self.next_entry_s
        {
            self.due.pop_front();
            let (count, overlap) = &mut self.waiting[user as usize];
            let counts = !*overlap;
            *count -= 1;
            *overlap &= *count > 0;
            return Some(Arrival {
                user,
                entry: false,
                counts,
            });
        }
        let user = self.rng.below(self.users);
        let now_s = self.next_entry_s;
        self.due.push_back((now_s + self.response_s, user));
        let between_s = 1.0 / (RATE_PER_S * f64::from(self.users));
        self.next_entry_s += self.rng.exponential(between_s);
        let (count, overlap) = &mut self.waiting[user as usize];
        let counts = *count == 0;
        *overlap |= *count > 0;
        *count += 1;
        Some(Arrival {
            user,
            entry: true,
            counts,
        })
    }
}

/// Users as they are: each thinks, enters, waits, acknowledges, and thinks
/// again.
pub(super) struct Users {
    rng: Rng,
    response_ns: u64,
    workload: Workload,
    /// The next arrivals, in nanoseconds: user, and whether it is an entry.
    next: BinaryHeap<Reverse<(u64, u32, bool)>>,
    /// A repeated arrival, and how often it is repeated.
    again: (Arrival, u32),
}

/// Seconds in whole nanoseconds.
fn nanoseconds(seconds: f64) -> u64 {
    (seconds * 1e9) as u64
}

impl Users {
    pub(super) fn new(settings: &Settings, workload: Workload) -> Users {
        let mut rng = Rng::new(settings.seed);
        // At first each user is somewhere in a cycle.
        let cycle_s = THINK_MEAN_S + settings.response_s;
        let start = |user| Reverse((nanoseconds(rng.unit() * cycle_s), user, true));
        let next = (0..settings.users).map(start).collect();
        Users {
            next,
            rng,
            response_ns: nanoseconds(settings.response_s),
            workload,
            again: (
                Arrival {
                    user: 0,
                    entry: true,
                    counts: true,
                },
                0,
            ),
        }
    }

    fn think_ns(&mut self) -> u64 {
        if self.workload == Workload::Fixed {
            return nanoseconds(THINK_MEAN_S);
        }
        // §2: truncated at ten times the mean.
        loop {
            let think_s = self.rng.exponential(THINK_MEAN_S);
            if think_s <= 10.0 * THINK_MEAN_S {
                return nanoseconds(think_s);
            }
        }
    }

    fn transact(&mut self) -> Option<Arrival> {
        let mut earliest = self.next.peek_mut()?;
        let Reverse((now_ns, user, entry)) = *earliest;
        if entry {
            *earliest = Reverse((now_ns + self.response_ns, user, false));
            drop(earliest);
        } else {
            drop(earliest);
            self.next.pop();
            let think_ns = self.think_ns();
            self.next.push(Reverse((now_ns + think_ns, user, true)));
        }
        Some(Arrival {
            user,
            entry,
            counts: true,
        })
    }
}

impl Iterator for Users {
    type Item = Arrival;

    fn next(&mut self) -> Option<Arrival> {
        if self.again.1 > 0 {
            self.again.1 -= 1;
            return Some(self.again.0);
        }
        let (arrival, again) = match self.workload {
            Workload::Tpca | Workload::Fixed => (self.transact()?, 0),
            Workload::Tripled => (self.transact()?, TRIPLE - 1),
            Workload::Trains => {
                let user = self.rng.below(self.next.len() as u32);
                let arrival = Arrival {
                    user,
                    entry: true,
                    counts: true,
                };
                (arrival, TRAIN - 1)
            }
        };
        self.again = (arrival, again);
        Some(arrival)
    }
}
