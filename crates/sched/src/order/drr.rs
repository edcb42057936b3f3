//! Deficit round robin (Shreedhar and Varghese 1995), with the deficit charged after a
//! frame as RFC 8290 does: the length of the next frame need not be known.

use std::collections::VecDeque;

/// Bytes a round and unit of weight: a frame of the largest usual size.
const QUANTUM: i64 = 1_514;

#[derive(Debug)]
pub(crate) struct Drr {
    /// The classes with frames, in the order of their turns.
    active: VecDeque<u32>,
    classes: Vec<Class>,
}

#[derive(Clone, Debug)]
struct Class {
    quantum: i64,
    deficit: i64,
    is_active: bool,
}

impl Drr {
    pub(crate) fn new(weights: impl Iterator<Item = u32>) -> Drr {
        let class = |weight| Class {
            quantum: QUANTUM * i64::from(weight),
            deficit: 0,
            is_active: false,
        };
        Drr {
            active: VecDeque::new(),
            classes: weights.map(class).collect(),
        }
    }

    /// The class has frames.
    pub(crate) fn arrived(&mut self, index: usize) {
        let class = &mut self.classes[index];
        if !class.is_active {
            class.is_active = true;
            class.deficit = class.quantum;
            self.active.push_back(index as u32);
        }
    }

    /// The class whose turn it is.
    pub(crate) fn next(&mut self) -> Option<usize> {
        loop {
            let index = *self.active.front()?;
            let class = &mut self.classes[index as usize];
            if class.deficit > 0 {
                return Some(index as usize);
            }
            class.deficit += class.quantum;
            self.active.rotate_left(1);
        }
    }

    /// The class whose turn it is sent `len` bytes, or had nothing to send (0).
    pub(crate) fn sent(&mut self, len: u32, has_frames: bool) {
        let Some(&index) = self.active.front() else {
            return;
        };
        let class = &mut self.classes[index as usize];
        class.deficit -= i64::from(len);
        if !has_frames {
            class.is_active = false;
            self.active.pop_front();
        }
    }
}
