//! Controlled delay (RFC 8289 §5).

use super::{Actions, Store};
use crate::config::CoDelConfig;
use crate::frame::{Frame, Queued};

/// A queue of at most this many bytes is never too long (RFC 8289 §5.3: MAXPACKET).
const FRAME_MAX: u64 = 1_514;

/// CoDel's state of a queue.
#[derive(Clone, Debug)]
pub(super) struct State {
    target: u64,
    interval: u64,
    is_ecn: bool,
    /// When the time in the queue will have been too long for an interval.
    first_above: Option<u64>,
    is_dropping: bool,
    drop_next: u64,
    /// Drops in this dropping state, and when the last one began.
    count: u64,
    last_count: u64,
}

impl State {
    pub(super) fn new(config: &CoDelConfig) -> State {
        State {
            target: config.target,
            interval: config.interval,
            is_ecn: config.is_ecn,
            first_above: None,
            is_dropping: false,
            drop_next: 0,
            count: 0,
            last_count: 0,
        }
    }

    fn control_law(&self, from: u64) -> u64 {
        from.saturating_add((self.interval as f64 / (self.count as f64).sqrt()) as u64)
    }

    /// Takes the head, and says whether it may be dropped.
    fn take<T>(&mut self, store: &mut Store<T>, now: u64) -> Option<(Queued<T>, bool)> {
        let Some(queued) = store.pop() else {
            self.first_above = None;
            return None;
        };
        let waited = now.saturating_sub(queued.since);
        let is_long = match self.first_above {
            _ if waited < self.target || store.bytes() <= FRAME_MAX => {
                self.first_above = None;
                false
            }
            None => {
                self.first_above = Some(now.saturating_add(self.interval));
                false
            }
            Some(first_above) => now >= first_above,
        };
        Some((queued, is_long))
    }

    /// The next frame of `store`; marks and drops as the time in the queue demands.
    pub(super) fn dequeue<T: Frame>(
        &mut self,
        store: &mut Store<T>,
        now: u64,
        actions: &mut Actions,
        dropped: &mut Vec<T>,
    ) -> Option<Queued<T>> {
        let Some((mut queued, mut is_long)) = self.take(store, now) else {
            self.is_dropping = false;
            return None;
        };
        if self.is_dropping {
            if !is_long {
                self.is_dropping = false;
            }
            while self.is_dropping && now >= self.drop_next {
                self.count += 1;
                if actions.mark(self.is_ecn, &mut queued.frame) {
                    self.drop_next = self.control_law(self.drop_next);
                    return Some(queued);
                }
                actions.drop(queued, dropped);
                let Some(next) = self.take(store, now) else {
                    self.is_dropping = false;
                    return None;
                };
                (queued, is_long) = next;
                if is_long {
                    self.drop_next = self.control_law(self.drop_next);
                } else {
                    self.is_dropping = false;
                }
            }
            return Some(queued);
        }
        if !is_long {
            return Some(queued);
        }
        let result = if actions.mark(self.is_ecn, &mut queued.frame) {
            Some(queued)
        } else {
            actions.drop(queued, dropped);
            self.take(store, now).map(|(queued, _)| queued)
        };
        self.is_dropping = true;
        // A queue that was too long a short while ago takes up its rate of drops.
        let delta = self.count.saturating_sub(self.last_count);
        let is_recent = now.saturating_sub(self.drop_next) < 16 * self.interval;
        self.count = if delta > 1 && is_recent { delta } else { 1 };
        self.drop_next = self.control_law(now);
        self.last_count = self.count;
        result
    }
}

/// One queue with CoDel.
#[derive(Debug)]
pub(crate) struct CoDel<T> {
    pub(super) store: Store<T>,
    state: State,
    pub(super) actions: Actions,
}

impl<T: Frame> CoDel<T> {
    pub(super) fn new(config: &CoDelConfig) -> CoDel<T> {
        CoDel {
            store: Store::new(config.limit),
            state: State::new(config),
            actions: Actions::default(),
        }
    }

    pub(super) fn enqueue(&mut self, queued: Queued<T>, dropped: &mut Vec<T>) -> bool {
        match self.store.push(queued) {
            Ok(()) => true,
            Err(queued) => {
                self.actions.drop(queued, dropped);
                false
            }
        }
    }

    pub(super) fn dequeue(&mut self, now: u64, dropped: &mut Vec<T>) -> Option<Queued<T>> {
        let CoDel {
            store,
            state,
            actions,
        } = self;
        state.dequeue(store, now, actions, dropped)
    }

    pub(super) fn head(&self) -> Option<&Queued<T>> {
        self.store.head()
    }

    pub(super) fn size(&self) -> (u32, u64) {
        self.store.size()
    }
}
