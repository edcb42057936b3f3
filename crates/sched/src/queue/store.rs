//! Frames in order of arrival, and their limit.

use crate::config::Limit;
use crate::frame::Queued;
use std::collections::VecDeque;

#[derive(Debug)]
pub(crate) struct Store<T> {
    frames: VecDeque<Queued<T>>,
    bytes: u64,
    limit: Limit,
}

impl<T> Store<T> {
    pub(crate) fn new(limit: Limit) -> Store<T> {
        Store {
            frames: VecDeque::new(),
            bytes: 0,
            limit,
        }
    }

    /// Adds a frame, or gives it back if the limit is reached.
    pub(crate) fn push(&mut self, queued: Queued<T>) -> Result<(), Queued<T>> {
        let bytes = self.bytes + u64::from(queued.len);
        if self.frames.len() >= self.limit.frames as usize || bytes > self.limit.bytes {
            return Err(queued);
        }
        self.bytes = bytes;
        self.frames.push_back(queued);
        Ok(())
    }

    pub(crate) fn pop(&mut self) -> Option<Queued<T>> {
        let queued = self.frames.pop_front()?;
        self.bytes -= u64::from(queued.len);
        Some(queued)
    }

    pub(crate) fn head(&self) -> Option<&Queued<T>> {
        self.frames.front()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn size(&self) -> (u32, u64) {
        (self.frames.len() as u32, self.bytes)
    }
}
