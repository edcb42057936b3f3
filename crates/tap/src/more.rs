//! What a tap has besides its six calls: answers that the kernel remembers,
//! and calls that only measurements make.

use crate::error::TapError;
use crate::fast::FastPath;
use crate::link::TapLink;
use crate::tap::{LinkId, Tap};

impl Tap {
    /// Says which frames are settled: those that were taken, once all has
    /// been sent.
    #[inline]
    pub(crate) fn settle(&mut self, now: u64) {
        let Some(fast) = self.fast.as_mut().filter(|fast| fast.has_entries()) else {
            return;
        };
        let is_sent = self.links.iter_mut().flatten().all(TapLink::is_sent);
        let mut is_pressed = !is_sent;
        for (link, number) in self.links.iter_mut().zip(0..).filter(|_| is_sent) {
            let queues = link.iter_mut().flat_map(|link| &mut link.queues);
            for (queue, at) in queues.zip(0..) {
                is_pressed |= queue.settle(&self.state, (number, at), now);
            }
        }
        fast.set_pressed(is_pressed);
    }

    /// Answers that the kernel remembers, if [`Config::fast`](crate::Config::fast) says so.
    #[inline]
    pub fn fast(&mut self) -> Option<&mut FastPath> {
        self.fast.as_mut()
    }

    /// The same, to read.
    pub fn fast_counts(&self) -> Option<&FastPath> {
        self.fast.as_ref()
    }

    /// See [`Config::calls_each`](crate::Config::calls_each).
    pub(crate) fn calls_each(&self) -> bool {
        self.config.calls_each
    }

    /// Has the kernel look for frames of a queue, whether that is of use or
    /// not.
    pub(crate) fn call_rx(&mut self, link: LinkId, queue: usize) -> Result<(), TapError> {
        let link = self.links.get(link.0).and_then(Option::as_ref);
        if let Some(queue) = link.and_then(|link| link.queues.get(queue)) {
            queue.kick_rx(&mut self.counts)?;
        }
        Ok(())
    }
}
