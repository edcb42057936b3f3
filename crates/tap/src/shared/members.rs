//! One of several processes on a tap: the assignment of queues, and the
//! liveness of the other processes.
//!
//! A device with at least as many queues as processes gives each process its
//! own queues; otherwise all processes take from each queue, one at a time. If
//! a process does not take the frames of its queue in time, any other process
//! may.

use crate::io::queue::Queue;
use std::cell::Cell;
use std::collections::VecDeque;
use std::mem;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::rc::Rc;
use weir_link::xdp::{LivenessLock, MEMBERS_MAX, OwnerState, SharedPage};
use weir_ring::Frame;
use weir_ring::queue::Corrupt;
use weir_ring::robust_lock::LockOwner;

/// Interval of checks for dead and joining processes, in ns; a sleeping process
/// wakes up for them.
pub(crate) const MEMBER_POLL_NS: u64 = 5_000_000;

/// Longest sleep of a process, in ns.
pub(crate) const SLEEP_MAX_NS: u64 = 20_000_000;

/// Time in ns that frames may wait in a queue before other processes take them.
const STEAL_AFTER_NS: u64 = 5_000_000;

/// Time in ns that another process may hold a wanted lock, before this process
/// stops its heartbeat.
const LOCK_STALL_NS: u64 = 1_000_000;

/// Largest number of frames taken from a queue in one turn.
const BATCH: usize = 64;

/// Number of attempts to lock a queue for sending, before the frames wait for
/// the next push.
const TX_LOCK_TRIES: u32 = 10_000;

/// This process among the processes of the tap.
#[derive(Debug)]
pub(crate) struct Members {
    page: Rc<SharedPage>,
    pub(crate) me: LockOwner,
    /// The processes that were alive at the last check: bit 0 is process 1.
    alive: u32,
    pub(crate) polled_at: u64,
    /// The time of the last call, in ns.
    pub(crate) called_at: u64,
    /// The time since which another process holds a lock that this one wants
    /// for receiving.
    blocked_at: Option<u64>,
    /// The time since which another process holds a lock that this one wants
    /// for sending.
    tx_blocked_at: Cell<Option<u64>>,
    pub(crate) listener: OwnedFd,
    pub(crate) path: PathBuf,
    /// The death word, held while this process lives.
    pub(crate) liveness: Option<LivenessLock>,
}

/// The number of the process with a death word.
pub(crate) fn number(slot: u16) -> u16 {
    slot + 1
}

/// Whether the process with a number is alive.
pub(crate) fn is_alive(page: &SharedPage, number: u16) -> bool {
    let slot = number.checked_sub(1);
    slot.is_some_and(|slot| page.owner_state(slot) == OwnerState::Alive)
}

impl Members {
    pub(crate) fn new(
        page: &Rc<SharedPage>,
        me: LockOwner,
        word: LivenessLock,
        listener: OwnedFd,
        path: PathBuf,
    ) -> Members {
        let mut members = Members {
            page: Rc::clone(page),
            me,
            alive: 0,
            polled_at: 0,
            called_at: 0,
            blocked_at: None,
            tx_blocked_at: Cell::new(None),
            listener,
            path,
            liveness: Some(word),
        };
        members.count();
        members
    }

    /// The bit of this process.
    pub(crate) fn bit(&self) -> u32 {
        1 << (self.me.number() - 1)
    }

    /// Updates `alive`; returns the slots of the death words of dead processes.
    pub(crate) fn count(&mut self) -> Vec<u16> {
        self.alive = 0;
        let mut died = Vec::new();
        for slot in 0..MEMBERS_MAX {
            match self.page.owner_state(slot) {
                OwnerState::Alive => self.alive |= 1 << slot,
                OwnerState::Died => died.push(slot),
                OwnerState::None => {}
            }
        }
        died
    }

    /// Whether other processes are alive.
    pub(crate) fn has_others(&mut self) -> bool {
        self.count();
        self.alive & !self.bit() != 0
    }

    /// Whether this process may claim to be healthy: not while another process
    /// holds a wanted lock for too long.
    #[inline]
    pub(crate) fn is_healthy(&self, now: u64) -> bool {
        let blocked = [self.blocked_at, self.tx_blocked_at.get()];
        let mut blocked = blocked.into_iter().flatten();
        blocked.all(|at| now.saturating_sub(at) < LOCK_STALL_NS)
    }

    /// Records that this process wants no lock for receiving.
    #[inline]
    pub(crate) fn is_idle(&mut self) {
        self.blocked_at = None;
    }

    /// Records that another process has held a lock wanted for sending, since
    /// `now` or longer.
    pub(crate) fn cannot_send_since(&self, now: u64) {
        let since = self.tx_blocked_at.get().unwrap_or(now);
        self.tx_blocked_at.set(Some(since));
    }

    /// Records that no frame waits for a lock for sending.
    pub(crate) fn has_nothing_to_send(&self) {
        self.tx_blocked_at.set(None);
    }

    /// Whether this process serves queue `at` of `count` of a link that
    /// `holders` hold.
    #[inline]
    pub(crate) fn serves(&self, holders: u32, at: usize, count: usize) -> bool {
        serves(self.alive & holders, self.bit(), at, count)
    }

    /// Whether a queue has frames that this process may take.
    #[inline]
    pub(crate) fn is_ready(
        &self,
        queue: &mut Queue,
        holders: u32,
        at: usize,
        count: usize,
    ) -> bool {
        if !queue.inbox.is_empty() {
            return true;
        }
        let (position, is_there) = queue.ring.peek_position();
        if !is_there || self.serves(holders, at, count) {
            queue.stalled = None;
            return is_there;
        }
        match queue.stalled {
            Some((place, since)) if place == position => {
                self.called_at.saturating_sub(since) > STEAL_AFTER_NS
            }
            _ => {
                queue.stalled = Some((position, self.called_at));
                false
            }
        }
    }

    /// Takes frames from a queue into its inbox.
    #[inline]
    pub(crate) fn receive(
        &mut self,
        queue: &mut Queue,
        holders: u32,
        at: usize,
        count: usize,
    ) -> Result<(), Corrupt> {
        if !queue.inbox.is_empty() || !self.is_ready(queue, holders, at, count) {
            return Ok(());
        }
        let page = &self.page;
        if !queue.ring.lock_rx(|number| is_alive(page, number))? {
            self.blocked_at = self.blocked_at.or(Some(self.called_at));
            return Ok(());
        }
        self.blocked_at = None;
        let taken = fill(&mut queue.inbox, || queue.ring.take());
        queue.ring.release();
        let lent = queue.ring.refill();
        queue.ring.unlock_rx();
        taken.and(lent.map(|_| ()))
    }

    /// Takes back sent chunks and lends chunks, unless another process holds
    /// the lock.
    pub(crate) fn tend(&self, queue: &mut Queue) -> Result<(), Corrupt> {
        let alive = |number| is_alive(&self.page, number);
        if queue.ring.lock_tx(alive)? {
            let reaped = queue.ring.reap();
            queue.ring.unlock_tx();
            reaped?;
        }
        if queue.ring.lock_rx(alive)? {
            let lent = queue.ring.refill();
            queue.ring.unlock_rx();
            lent?;
        }
        Ok(())
    }

    /// Runs `run` with the tx side of a queue locked; `None` if another live
    /// process holds the lock.
    pub(crate) fn with_tx<T>(
        &self,
        queue: &mut Queue,
        run: impl FnOnce(&mut Queue) -> T,
    ) -> Result<Option<T>, Corrupt> {
        for attempt in 0..TX_LOCK_TRIES {
            if queue.ring.lock_tx(|number| is_alive(&self.page, number))? {
                let result = run(queue);
                queue.ring.unlock_tx();
                self.tx_blocked_at.set(None);
                return Ok(Some(result));
            }
            // The holder of the lock may need this processor.
            match attempt % 16 {
                15 => std::thread::yield_now(),
                _ => std::hint::spin_loop(),
            }
        }
        self.cannot_send_since(self.called_at);
        Ok(None)
    }

    /// As [`with_tx`](Self::with_tx), for the rx side, with one attempt.
    pub(crate) fn with_rx<T>(
        &self,
        queue: &mut Queue,
        run: impl FnOnce(&mut Queue) -> T,
    ) -> Result<Option<T>, Corrupt> {
        if !queue.ring.lock_rx(|number| is_alive(&self.page, number))? {
            return Ok(None);
        }
        let result = run(queue);
        queue.ring.unlock_rx();
        Ok(Some(result))
    }
}

/// Whether the process with bit `me` serves queue `at` of `count`, among the
/// processes `alive` that hold the link.
#[inline]
fn serves(alive: u32, me: u32, at: usize, count: usize) -> bool {
    let processes = alive.count_ones() as usize;
    if processes < 2 || count < processes {
        return true;
    }
    let before = (alive & (me - 1)).count_ones() as usize;
    at % processes == before
}

/// Fills the inbox with up to one batch.
#[inline]
fn fill(
    inbox: &mut VecDeque<Frame>,
    mut take: impl FnMut() -> Result<Option<Frame>, Corrupt>,
) -> Result<(), Corrupt> {
    while inbox.len() < BATCH {
        match take()? {
            Some(frame) => inbox.push_back(frame),
            None => break,
        }
    }
    Ok(())
}

impl Drop for Members {
    /// The end of the thread reveals a process that ends without leaving.
    fn drop(&mut self) {
        if let Some(word) = self.liveness.take() {
            mem::forget(word);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::serves;

    /// The processes that serve each of `count` queues.
    fn takers(alive: u32, count: usize) -> Vec<u32> {
        let bits = (0..16).map(|bit| 1 << bit).filter(|bit| alive & bit != 0);
        let bits: Vec<u32> = bits.collect();
        let takes = |at| {
            let ours = bits.iter().filter(|bit| serves(alive, **bit, at, count));
            ours.fold(0, |all, bit| all | bit)
        };
        (0..count).map(takes).collect()
    }

    #[test]
    fn each_has_queues_of_its_own_where_there_are_enough() {
        assert_eq!(takers(0b1, 4), [1, 1, 1, 1]);
        assert_eq!(takers(0b11, 4), [1, 2, 1, 2]);
        assert_eq!(takers(0b1010, 2), [2, 8]);
        assert_eq!(takers(0b1110, 4), [2, 4, 8, 2]);
    }

    #[test]
    fn a_link_is_divided_among_those_that_hold_it() {
        // All three are alive, and the second has untapped the link.
        assert_eq!(takers(0b111 & 0b101, 2), [1, 4]);
        assert_eq!(takers(0b111 & 0b001, 2), [1, 1]);
    }

    #[test]
    fn all_take_from_each_queue_where_there_are_not() {
        assert_eq!(takers(0b11, 1), [3]);
        assert_eq!(takers(0b111, 2), [7, 7]);
    }
}
