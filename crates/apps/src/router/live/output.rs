//! Frames that leave the links: at once, or by a link's scheduler.

use super::POLL_INTERVAL;
use crate::router::engine::LinkId;
use crate::shape::{self, Shaper};
use std::time::Duration;
use weir_tap::{Frame, Tap, TapError};

/// The queues of the links that have a scheduler.
pub(super) struct Output {
    shapers: Vec<Option<Shaper<Frame>>>,
    /// The time until the next frame leaves a queue, as of the last [`send`](Self::send).
    wait: Duration,
}

impl Output {
    pub(super) fn new(mut shapers: Vec<Option<Shaper<Frame>>>) -> Output {
        if shapers.iter().all(Option::is_none) {
            shapers.clear();
        }
        Output {
            shapers,
            wait: POLL_INTERVAL,
        }
    }

    /// Whether no link has a scheduler.
    pub(super) fn is_empty(&self) -> bool {
        self.shapers.is_empty()
    }

    /// Sends a frame on a link, or queues it there. Returns `false` if the link does not accept
    /// it; what a queue drops is in the queue's counts.
    #[inline]
    pub(super) fn give(
        &mut self,
        tap: &mut Tap,
        links: &[weir_tap::LinkId],
        link: LinkId,
        frame: Frame,
        now: u64,
    ) -> Result<bool, TapError> {
        match self.shapers.get_mut(usize::from(link)) {
            Some(Some(shaper)) => {
                shaper.enqueue(now, frame);
                Ok(true)
            }
            _ => tap.give(links[usize::from(link)], frame),
        }
    }

    /// Sends what leaves the queues now.
    pub(super) fn send(
        &mut self,
        tap: &mut Tap,
        links: &[weir_tap::LinkId],
        now: u64,
    ) -> Result<(), TapError> {
        self.wait = POLL_INTERVAL;
        for (shaper, &link) in self.shapers.iter_mut().zip(links) {
            if let Some(shaper) = shaper {
                let wait = shape::send(shaper, tap, link, now)?;
                self.wait = self.wait.min(wait.unwrap_or(POLL_INTERVAL));
            }
        }
        Ok(())
    }

    /// The time until the next frame leaves a queue, or [`POLL_INTERVAL`].
    pub(super) fn wait(&self) -> Duration {
        self.wait
    }

    /// Drops what waits, and counts it, at the end.
    pub(super) fn flush(&mut self) {
        self.shapers.iter_mut().flatten().for_each(Shaper::flush);
    }

    pub(super) fn shapers(&self) -> &[Option<Shaper<Frame>>] {
        &self.shapers
    }
}
