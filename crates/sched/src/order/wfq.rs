//! Weighted fair queueing, packet by packet (Demers, Keshav and Shenker 1989; Parekh and
//! Gallager 1993, "PGPS").
//!
//! A fluid server (generalized processor sharing, GPS) serves all classes with frames at
//! once, each by its weight. *Virtual time* rises by the link's rate over the sum of the
//! weights of the classes that this server still has to serve. A frame's finish is the
//! virtual time at which the fluid server ends it; frames leave in the order of their
//! finishes, at most the time of one largest frame later than in the fluid server.

use crate::SECOND;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Fraction bits of virtual time, whose unit is a byte a unit of weight.
const FRACTION: u32 = 24;

#[derive(Debug)]
pub(crate) struct Wfq {
    /// Bytes per second.
    rate: u64,
    classes: Vec<Class>,
    /// Virtual time, and when it was that, in ns.
    virtual_time: u128,
    time: u64,
    /// Sum of the weights of the classes that the fluid server serves.
    weights: u64,
    /// When the fluid server ends a class: its last finish. An entry whose class got
    /// another frame since then is out of date.
    fluid: BinaryHeap<Reverse<(u128, u32)>>,
    /// Classes with frames by the finish of their first. A class has one entry.
    heads: BinaryHeap<Reverse<(u128, u32)>>,
}

#[derive(Clone, Debug)]
struct Class {
    weight: u64,
    /// Finish of the last frame.
    finish: u128,
    /// Whether the fluid server still serves it.
    is_fluid: bool,
    /// Whether it is in `heads`.
    is_waiting: bool,
}

impl Wfq {
    pub(crate) fn new(rate: u64, weights: impl Iterator<Item = u32>) -> Wfq {
        let class = |weight: u32| Class {
            weight: weight.into(),
            finish: 0,
            is_fluid: false,
            is_waiting: false,
        };
        Wfq {
            rate,
            classes: weights.map(class).collect(),
            virtual_time: 0,
            time: 0,
            weights: 0,
            fluid: BinaryHeap::new(),
            heads: BinaryHeap::new(),
        }
    }

    /// Lets the fluid server work until `now`.
    fn advance(&mut self, now: u64) {
        while let Some(&Reverse((end, index))) = self.fluid.peek() {
            let class = &mut self.classes[index as usize];
            if class.finish != end {
                // It has more to do since.
                self.fluid.pop();
                self.fluid.push(Reverse((class.finish, index)));
                continue;
            }
            // The time that the fluid server needs until this class ends, rounded up.
            let service = (end - self.virtual_time.min(end)) * u128::from(self.weights);
            let scale = u128::from(self.rate) << FRACTION;
            let needed = (service * u128::from(SECOND)).div_ceil(scale);
            if u128::from(now.saturating_sub(self.time)) < needed {
                break;
            }
            self.time += needed as u64;
            self.virtual_time = self.virtual_time.max(end);
            class.is_fluid = false;
            self.weights -= class.weight;
            self.fluid.pop();
        }
        if self.weights > 0 && now > self.time {
            let elapsed = u128::from(now - self.time);
            let service = (elapsed * u128::from(self.rate)) << FRACTION;
            self.virtual_time += service / (u128::from(SECOND) * u128::from(self.weights));
        }
        self.time = self.time.max(now);
    }

    /// The finish of a frame of `len` bytes that came `now`.
    pub(crate) fn finish(&mut self, now: u64, index: usize, len: u32) -> u128 {
        self.advance(now);
        let class = &self.classes[index];
        let begin = class.finish.max(self.virtual_time);
        begin + (u128::from(len) << FRACTION) / u128::from(class.weight)
    }

    /// The frame with this finish waits. One that was dropped instead takes nothing of
    /// its class's share.
    pub(crate) fn queued(&mut self, index: usize, finish: u128) {
        let class = &mut self.classes[index];
        class.finish = finish;
        if !class.is_fluid {
            class.is_fluid = true;
            self.weights += class.weight;
            self.fluid.push(Reverse((finish, index as u32)));
        }
    }

    /// The class's first frame has this finish.
    pub(crate) fn has_head(&mut self, index: usize, finish: u128) {
        let class = &mut self.classes[index];
        if !class.is_waiting {
            class.is_waiting = true;
            self.heads.push(Reverse((finish, index as u32)));
        }
    }

    /// The class whose turn it is; it must be announced again if it has more frames.
    pub(crate) fn next(&mut self) -> Option<usize> {
        let Reverse((_, index)) = self.heads.pop()?;
        self.classes[index as usize].is_waiting = false;
        Some(index as usize)
    }
}
