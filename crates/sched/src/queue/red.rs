//! Random early detection (Floyd and Jacobson 1993, figure 2).

use super::{Actions, Store};
use crate::SECOND;
use crate::config::RedConfig;
use crate::frame::{Frame, Queued};
use weir_wire::rng::SplitMix64;

/// A frame whose time on the link is the unit in which an idle queue's average decays:
/// `s` in the paper.
const TYPICAL: u64 = 1_000;

#[derive(Debug)]
pub(crate) struct Red<T> {
    store: Store<T>,
    config: RedConfig,
    rng: SplitMix64,
    /// Average size of the queue in bytes.
    average: f64,
    /// Frames since the last mark or drop, by §7 of the paper: none yet at the first.
    /// (Its figure 2 begins with 1, which gives slightly more marks than §7 derives.)
    count: u64,
    /// Since when the queue is empty, in ns; `None` while it is not.
    idle: Option<u64>,
    /// Time of a typical frame on the link, in ns.
    typical: f64,
    pub(super) actions: Actions,
}

impl<T: Frame> Red<T> {
    pub(super) fn new(config: &RedConfig, rate: u64, seed: u64) -> Red<T> {
        Red {
            store: Store::new(config.limit),
            config: *config,
            rng: SplitMix64::new(seed),
            average: 0.0,
            count: 0,
            idle: Some(0),
            typical: (TYPICAL * SECOND) as f64 / rate as f64,
            actions: Actions::default(),
        }
    }

    pub(super) fn enqueue(&mut self, mut queued: Queued<T>, dropped: &mut Vec<T>) -> bool {
        self.update_average(queued.since);
        let is_full = self.average >= self.config.max as f64;
        let is_chosen = is_full || self.is_chosen();
        if is_full {
            self.count = 0;
        }
        // From the upper threshold on, marks no longer help (RFC 3168 §7).
        let is_marked =
            is_chosen && !is_full && self.actions.mark(self.config.is_ecn, &mut queued.frame);
        if is_chosen && !is_marked {
            self.actions.drop(queued, dropped);
            return false;
        }
        match self.store.push(queued) {
            Ok(()) => {
                self.idle = None;
                true
            }
            Err(queued) => {
                self.actions.drop(queued, dropped);
                false
            }
        }
    }

    pub(super) fn dequeue(&mut self, now: u64) -> Option<Queued<T>> {
        let queued = self.store.pop()?;
        if self.store.is_empty() {
            self.idle = Some(now);
        }
        Some(queued)
    }

    /// Drops the oldest frame. The average takes notice with the next frame that comes.
    pub(super) fn drop_oldest(&mut self, dropped: &mut Vec<T>) {
        let Some(queued) = self.store.pop() else {
            return;
        };
        if self.store.is_empty() {
            self.idle = Some(queued.since);
        }
        self.actions.drop(queued, dropped);
    }

    fn update_average(&mut self, now: u64) {
        let weight = self.config.weight;
        match self.idle {
            None => self.average += weight * (self.store.bytes() as f64 - self.average),
            Some(since) => {
                let frames = now.saturating_sub(since) as f64 / self.typical;
                self.average *= (1.0 - weight).powf(frames);
                // Not twice for the same time, if the frame is not queued.
                self.idle = Some(now);
            }
        }
    }

    /// Whether the arriving frame is to be marked or dropped.
    fn is_chosen(&mut self) -> bool {
        let (min, max) = (self.config.min as f64, self.config.max as f64);
        if self.average < min {
            self.count = 0;
            return false;
        }
        let base = self.config.probability * (self.average - min) / (max - min);
        // Spreads the marks evenly: p_a of the paper.
        let left = 1.0 - self.count as f64 * base;
        let probability = if left > base { base / left } else { 1.0 };
        let is_chosen = self.random() < probability;
        self.count = if is_chosen { 0 } else { self.count + 1 };
        is_chosen
    }

    /// A number in [0, 1).
    fn random(&mut self) -> f64 {
        (self.rng.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    pub(super) fn head(&self) -> Option<&Queued<T>> {
        self.store.head()
    }

    pub(super) fn size(&self) -> (u32, u64) {
        self.store.size()
    }
}
