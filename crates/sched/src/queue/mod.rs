//! The queue of a class.

mod codel;
mod fq_codel;
mod red;
mod store;

use crate::config::Discipline;
use crate::frame::{Frame, Queued};
use codel::CoDel;
use fq_codel::FqCodel;
use red::Red;
use store::Store;

/// A queue's counts of frames by outcome.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Actions {
    pub(crate) marked: u64,
    pub(crate) dropped: u64,
    pub(crate) dropped_bytes: u64,
}

impl Actions {
    /// Gives a dropped frame back.
    fn drop<T>(&mut self, queued: Queued<T>, dropped: &mut Vec<T>) {
        self.dropped += 1;
        self.dropped_bytes += u64::from(queued.len);
        dropped.push(queued.frame);
    }

    /// Marks the frame if that is wanted and possible.
    fn mark<T: Frame>(&mut self, is_ecn: bool, frame: &mut T) -> bool {
        let is_marked = is_ecn && frame.mark();
        self.marked += u64::from(is_marked);
        is_marked
    }
}

/// A class's queue, by its discipline.
#[derive(Debug)]
pub(crate) enum Queue<T> {
    Fifo(Store<T>, Actions),
    Red(Red<T>),
    CoDel(CoDel<T>),
    FqCodel(Box<FqCodel<T>>),
}

impl<T: Frame> Queue<T> {
    /// A queue for a link of `rate` bytes per second. The seed decides random drops,
    /// and which flows share a queue.
    pub(crate) fn new(discipline: &Discipline, rate: u64, seed: u64) -> Queue<T> {
        match discipline {
            Discipline::Fifo(limit) => Queue::Fifo(Store::new(*limit), Actions::default()),
            Discipline::Red(config) => Queue::Red(Red::new(config, rate, seed)),
            Discipline::CoDel(config) => Queue::CoDel(CoDel::new(config)),
            Discipline::FqCodel(config) => Queue::FqCodel(Box::new(FqCodel::new(config, seed))),
        }
    }

    /// Adds a frame; `false` if that frame was dropped. Frames dropped, this one or
    /// others, go to `dropped`.
    pub(crate) fn enqueue(&mut self, flow: u64, queued: Queued<T>, dropped: &mut Vec<T>) -> bool {
        match self {
            Queue::Fifo(store, actions) => match store.push(queued) {
                Ok(()) => true,
                Err(queued) => {
                    actions.drop(queued, dropped);
                    false
                }
            },
            Queue::Red(red) => red.enqueue(queued, dropped),
            Queue::CoDel(codel) => codel.enqueue(queued, dropped),
            Queue::FqCodel(fq) => fq.enqueue(flow, queued, dropped),
        }
    }

    /// Takes the next frame at `now`.
    pub(crate) fn dequeue(&mut self, now: u64, dropped: &mut Vec<T>) -> Option<Queued<T>> {
        match self {
            Queue::Fifo(store, _) => store.pop(),
            Queue::Red(red) => red.dequeue(now),
            Queue::CoDel(codel) => codel.dequeue(now, dropped),
            Queue::FqCodel(fq) => fq.dequeue(now, dropped),
        }
    }

    /// Drops the oldest frame, or some of the longest flow; for lack of memory.
    pub(crate) fn drop_oldest(&mut self, dropped: &mut Vec<T>) {
        let (store, actions) = match self {
            Queue::Fifo(store, actions) => (store, actions),
            Queue::Red(red) => return red.drop_oldest(dropped),
            Queue::CoDel(codel) => (&mut codel.store, &mut codel.actions),
            Queue::FqCodel(fq) => return fq.drop_from_longest(dropped),
        };
        if let Some(queued) = store.pop() {
            actions.drop(queued, dropped);
        }
    }

    /// The finish of the frame that came first; 0 with FQ-CoDel.
    pub(crate) fn head_finish(&self) -> Option<u128> {
        let head = match self {
            Queue::Fifo(store, _) => store.head(),
            Queue::Red(red) => red.head(),
            Queue::CoDel(codel) => codel.head(),
            Queue::FqCodel(fq) => return (fq.frames() > 0).then_some(0),
        };
        head.map(|queued| queued.finish)
    }

    /// Frames and bytes that wait.
    pub(crate) fn size(&self) -> (u32, u64) {
        match self {
            Queue::Fifo(store, _) => store.size(),
            Queue::Red(red) => red.size(),
            Queue::CoDel(codel) => codel.size(),
            Queue::FqCodel(fq) => (fq.frames(), fq.bytes()),
        }
    }

    pub(crate) fn actions(&self) -> Actions {
        match self {
            Queue::Fifo(_, actions) => *actions,
            Queue::Red(red) => red.actions,
            Queue::CoDel(codel) => codel.actions,
            Queue::FqCodel(fq) => fq.actions,
        }
    }
}
