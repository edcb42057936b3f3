//! The scheduler of a link.

use crate::config::{Config, ConfigError, Order};
use crate::frame::{Frame, Queued};
use crate::order::{Drr, Priority, Turn, Wfq};
use crate::queue::Queue;
use crate::rate::Rate;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The frame that leaves next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Next<T> {
    /// This frame, now.
    Frame(T),
    /// A frame, but not before this time in ns.
    At(u64),
    /// Nothing waits.
    Empty,
}

/// Counts of a class's frames by outcome.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ClassCounts {
    /// Frames that left.
    pub frames: u64,
    /// Bytes of those.
    pub bytes: u64,
    /// Frames that were marked, which left or still wait.
    pub marked: u64,
    /// Frames that were dropped.
    pub dropped: u64,
    /// Bytes of those.
    pub dropped_bytes: u64,
    /// Frames that wait.
    pub waiting: u32,
    /// Bytes of those.
    pub waiting_bytes: u64,
}

/// Classes of frames that share a link, see the [crate's page](crate).
#[derive(Debug)]
pub struct Scheduler<T> {
    classes: Vec<Class<T>>,
    turn: Turn,
    rate: Rate,
    frames: u64,
    /// Classes that have reached their ceilings, by the time at which each may send again.
    parked: BinaryHeap<Reverse<(u64, u32)>>,
}

#[derive(Debug)]
struct Class<T> {
    queue: Queue<T>,
    ceiling: Option<Rate>,
    is_parked: bool,
    frames: u64,
    bytes: u64,
}

impl<T: Frame> Scheduler<T> {
    /// A scheduler without frames. The seed decides RED's choices and which flows
    /// share a queue: peers must not know it.
    ///
    /// # Errors
    /// If [`Config::check`] refuses the configuration.
    pub fn new(config: &Config, seed: u64) -> Result<Scheduler<T>, ConfigError> {
        config.check()?;
        let weights = || config.classes.iter().map(|class| class.weight);
        let class = |(index, class): (usize, &crate::Class)| Class {
            queue: Queue::new(
                &class.discipline,
                config.rate,
                seed.wrapping_add(index as u64),
            ),
            ceiling: class
                .ceiling
                .map(|ceiling| Rate::new(ceiling.rate, ceiling.burst)),
            is_parked: false,
            frames: 0,
            bytes: 0,
        };
        Ok(Scheduler {
            turn: match config.order {
                Order::Priority => Turn::Priority(Priority::new(config.classes.len())),
                Order::Drr => Turn::Drr(Drr::new(weights())),
                Order::Wfq => Turn::Wfq(Wfq::new(config.rate, weights())),
            },
            classes: config.classes.iter().enumerate().map(class).collect(),
            rate: Rate::new(config.rate, config.burst),
            frames: 0,
            parked: BinaryHeap::new(),
        })
    }

    /// Adds a frame that came at `now` to a class. Frames with the same `flow` keep
    /// their order; it is any number, such as a hash of addresses and ports. Returns
    /// whether the frame waits; if not, or if others were dropped for it, they are
    /// added to `dropped`.
    ///
    /// # Panics
    /// If there is no such class.
    pub fn enqueue(
        &mut self,
        now: u64,
        class: usize,
        flow: u64,
        frame: T,
        dropped: &mut Vec<T>,
    ) -> bool {
        let queue = &mut self.classes[class].queue;
        let len = frame.wire_len().max(1);
        let (before, already) = (queue.size().0, dropped.len());
        let finish = match &mut self.turn {
            Turn::Wfq(wfq) => wfq.finish(now, class, len),
            _ => 0,
        };
        let queued = Queued {
            frame,
            len,
            since: now,
            finish,
        };
        let is_queued = queue.enqueue(flow, queued, dropped);
        let after = queue.size().0;
        debug_assert_eq!(after + (dropped.len() - already) as u32, before + 1);
        self.frames = self.frames + u64::from(after) - u64::from(before);
        if let (Turn::Wfq(wfq), true) = (&mut self.turn, is_queued) {
            wfq.queued(class, finish);
        }
        self.announce(class);
        is_queued
    }

    /// Lets the order among classes know whether a class has frames.
    fn announce(&mut self, class: usize) {
        if self.classes[class].is_parked {
            return;
        }
        let head = self.classes[class].queue.head_finish();
        match (&mut self.turn, head) {
            (Turn::Priority(priority), head) => priority.set(class, head.is_some()),
            (Turn::Drr(drr), Some(_)) => drr.arrived(class),
            (Turn::Wfq(wfq), Some(finish)) => wfq.has_head(class, finish),
            (Turn::Drr(_) | Turn::Wfq(_), None) => {}
        }
    }

    /// Takes the frame that leaves at `now`. Frames that the queues drop instead are
    /// added to `dropped`.
    pub fn dequeue(&mut self, now: u64, dropped: &mut Vec<T>) -> Next<T> {
        if self.frames == 0 {
            return Next::Empty;
        }
        let at = self.rate.next();
        if now < at {
            return Next::At(at);
        }
        self.unpark(now);
        while let Some(index) = self.next_class() {
            let class = &mut self.classes[index];
            if let Some(at) = class.ceiling.as_ref().map(Rate::next)
                && now < at
            {
                self.park(index, at);
                continue;
            }
            let before = class.queue.size().0;
            let queued = class.queue.dequeue(now, dropped);
            let after = class.queue.size().0;
            self.frames -= u64::from(before - after);
            let len = queued.as_ref().map_or(0, |queued| queued.len);
            if queued.is_some() {
                class.frames += 1;
                class.bytes += u64::from(len);
            }
            match &mut self.turn {
                Turn::Drr(drr) => drr.sent(len, after > 0),
                Turn::Priority(_) | Turn::Wfq(_) => self.announce(index),
            }
            if let Some(queued) = queued {
                self.rate.sent(now, len);
                if let Some(ceiling) = &mut self.classes[index].ceiling {
                    ceiling.sent(now, len);
                }
                return Next::Frame(queued.frame);
            }
        }
        match self.parked.peek() {
            Some(&Reverse((at, _))) if self.frames > 0 => Next::At(at),
            _ => Next::Empty,
        }
    }

    /// Takes a class, whose turn it is, out of the order until its ceiling lets it send.
    fn park(&mut self, index: usize, at: u64) {
        self.classes[index].is_parked = true;
        self.parked.push(Reverse((at, index as u32)));
        match &mut self.turn {
            Turn::Priority(priority) => priority.set(index, false),
            Turn::Drr(drr) => drr.sent(0, false),
            // The class has left the order with its turn.
            Turn::Wfq(_) => {}
        }
    }

    /// Puts the classes back whose ceilings let them send.
    fn unpark(&mut self, now: u64) {
        while let Some(&Reverse((at, index))) = self.parked.peek()
            && at <= now
        {
            self.parked.pop();
            self.classes[index as usize].is_parked = false;
            self.announce(index as usize);
        }
    }

    /// Drops from the class with the most bytes, for a caller that lacks memory: the oldest
    /// frame, or of FQ-CoDel up to 64 frames of the flow with the most bytes. They are added
    /// to `dropped`. Returns `false` if nothing waits. Looks at each class.
    pub fn drop_from_longest(&mut self, dropped: &mut Vec<T>) -> bool {
        let classes = self.classes.iter().enumerate();
        let longest = classes.max_by_key(|(_, class)| class.queue.size().1);
        let Some((index, class)) = longest else {
            return false;
        };
        let before = class.queue.size().0;
        if before == 0 {
            return false;
        }
        let queue = &mut self.classes[index].queue;
        queue.drop_oldest(dropped);
        self.frames -= u64::from(before - queue.size().0);
        self.announce(index);
        true
    }

    fn next_class(&mut self) -> Option<usize> {
        match &mut self.turn {
            Turn::Priority(priority) => priority.next(),
            Turn::Drr(drr) => drr.next(),
            Turn::Wfq(wfq) => wfq.next(),
        }
    }

    /// Frames that wait in all classes.
    pub fn waiting(&self) -> u64 {
        self.frames
    }

    /// Number of classes.
    pub fn classes(&self) -> usize {
        self.classes.len()
    }

    /// Counts of a class's frames by outcome.
    ///
    /// # Panics
    /// If there is no such class.
    pub fn counts(&self, class: usize) -> ClassCounts {
        let class = &self.classes[class];
        let actions = class.queue.actions();
        let (waiting, waiting_bytes) = class.queue.size();
        ClassCounts {
            frames: class.frames,
            bytes: class.bytes,
            marked: actions.marked,
            dropped: actions.dropped,
            dropped_bytes: actions.dropped_bytes,
            waiting,
            waiting_bytes,
        }
    }

    /// Takes all frames that wait, in no order that matters: for the end.
    pub fn drain(&mut self, frames: &mut Vec<T>) {
        for index in 0..self.classes.len() {
            while self.classes[index].queue.size().0 > 0 {
                let mut dropped = Vec::new();
                // So early that no discipline finds that a frame has waited.
                let queued = self.classes[index].queue.dequeue(0, &mut dropped);
                frames.extend(queued.map(|queued| queued.frame));
                frames.append(&mut dropped);
            }
            self.announce(index);
        }
        self.frames = 0;
    }
}
