//! FQ-CoDel: deficit round robin among flows, each with CoDel (RFC 8290 §4).

use super::codel::State;
use super::{Actions, Store};
use crate::config::{FqCodelConfig, Limit};
use crate::frame::{Frame, Queued};
use std::collections::VecDeque;
use weir_wire::rng::SplitMix64;

/// Largest number of frames dropped at once from the longest queue (RFC 8290 §4.1).
const BATCH: u32 = 64;

#[derive(Debug)]
struct Flow<T> {
    store: Store<T>,
    codel: State,
    deficit: i64,
    /// Whether it is in one of the lists.
    is_listed: bool,
}

#[derive(Debug)]
pub(crate) struct FqCodel<T> {
    flows: Vec<Flow<T>>,
    /// Bytes of each flow's queue, side by side: a full queue looks for the longest for each frame
    /// that comes, and peers choose how many flows there are.
    backlogs: Vec<u64>,
    /// Flows that have just begun to send, and the others that do; by index.
    new: VecDeque<u32>,
    old: VecDeque<u32>,
    limit: Limit,
    quantum: i64,
    seed: u64,
    frames: u32,
    bytes: u64,
    pub(super) actions: Actions,
}

impl<T: Frame> FqCodel<T> {
    pub(super) fn new(config: &FqCodelConfig, seed: u64) -> FqCodel<T> {
        let flow = || Flow {
            store: Store::new(Limit {
                frames: u32::MAX,
                bytes: u64::MAX,
            }),
            codel: State::new(&config.codel),
            deficit: 0,
            is_listed: false,
        };
        FqCodel {
            flows: (0..config.flows).map(|_| flow()).collect(),
            backlogs: vec![0; config.flows as usize],
            new: VecDeque::new(),
            old: VecDeque::new(),
            limit: config.codel.limit,
            quantum: config.quantum.into(),
            seed,
            frames: 0,
            bytes: 0,
            actions: Actions::default(),
        }
    }

    pub(super) fn frames(&self) -> u32 {
        self.frames
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn enqueue(&mut self, flow: u64, queued: Queued<T>, dropped: &mut Vec<T>) -> bool {
        if self.frames == 0 {
            // The link, which has sent all, found nothing in them.
            for index in self.new.drain(..).chain(self.old.drain(..)) {
                self.flows[index as usize].is_listed = false;
            }
        }
        // Peers cannot choose flows that share a queue: they do not know the seed.
        let hash = SplitMix64::new(flow ^ self.seed).bits();
        let index = (hash % self.flows.len() as u64) as u32;
        let flow = &mut self.flows[index as usize];
        self.frames += 1;
        self.bytes += u64::from(queued.len);
        if let Err(queued) = flow.store.push(queued) {
            // A flow's own limit is the largest number there is.
            self.frames -= 1;
            self.bytes -= u64::from(queued.len);
            self.actions.drop(queued, dropped);
            return false;
        }
        self.backlogs[index as usize] = flow.store.bytes();
        if !flow.is_listed {
            flow.is_listed = true;
            flow.deficit = self.quantum;
            self.new.push_back(index);
        }
        if self.frames <= self.limit.frames && self.bytes <= self.limit.bytes {
            return true;
        }
        self.drop_from_longest(dropped);
        !self.flows[index as usize].store.is_empty()
    }

    /// Drops half of the longest queue, from its head.
    pub(super) fn drop_from_longest(&mut self, dropped: &mut Vec<T>) {
        let longest = self.backlogs.iter().enumerate();
        let longest = longest.max_by_key(|(_, bytes)| **bytes);
        let Some((index, _)) = longest else {
            return;
        };
        let store = &mut self.flows[index].store;
        let (frames, _) = store.size();
        for _ in 0..frames.div_ceil(2).min(BATCH) {
            if let Some(queued) = store.pop() {
                self.frames -= 1;
                self.bytes -= u64::from(queued.len);
                self.actions.drop(queued, dropped);
            }
        }
        self.backlogs[index] = store.bytes();
    }

    pub(super) fn dequeue(&mut self, now: u64, dropped: &mut Vec<T>) -> Option<Queued<T>> {
        loop {
            let is_new = !self.new.is_empty();
            let list = if is_new { &mut self.new } else { &mut self.old };
            let index = list.pop_front()?;
            let flow = &mut self.flows[index as usize];
            if flow.deficit <= 0 {
                flow.deficit += self.quantum;
                self.old.push_back(index);
                continue;
            }
            let before = flow.store.size();
            let queued = flow
                .codel
                .dequeue(&mut flow.store, now, &mut self.actions, dropped);
            let after = flow.store.size();
            self.frames -= before.0 - after.0;
            self.bytes -= before.1 - after.1;
            self.backlogs[index as usize] = after.1;
            let Some(queued) = queued else {
                // A new flow that is empty waits a round, so that it is not always new (RFC 8290 §4.2).
                if is_new {
                    self.old.push_back(index);
                } else {
                    flow.is_listed = false;
                }
                continue;
            };
            flow.deficit -= i64::from(queued.len);
            let list = if is_new { &mut self.new } else { &mut self.old };
            list.push_front(index);
            return Some(queued);
        }
    }
}
