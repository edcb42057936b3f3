//! Frames that leave the links of a tap: at once, or by a link's queues.

use super::shaper::Shaper;
use std::time::Duration;
use weir_sched::Next;
use weir_tap::{Frame, LinkId, Tap, TapError};

/// Largest number of frames that were given to a link and that its device has not taken. A
/// frame in the device's queue cannot be overtaken any more.
const UNSENT_MAX: u32 = 256;

/// Interval at which a device with unsent frames is asked whether it took some.
const RETRY: Duration = Duration::from_micros(50);

/// The queues of the links that have a scheduler.
pub(crate) struct Output {
    shapers: Vec<Option<Shaper<Frame>>>,
}

impl Output {
    /// The queues of each link, by its number; a link of which there is nothing has none.
    pub(crate) fn new(mut shapers: Vec<Option<Shaper<Frame>>>) -> Output {
        if shapers.iter().all(Option::is_none) {
            shapers.clear();
        }
        Output { shapers }
    }

    /// Whether no link has a scheduler.
    pub(crate) fn is_empty(&self) -> bool {
        self.shapers.is_empty()
    }

    /// Whether frames for a link go through queues, by the links' numbers.
    pub(crate) fn has_queues(&self) -> impl Iterator<Item = bool> {
        self.shapers.iter().map(Option::is_some)
    }

    /// Sends a frame on a link, or queues it there. Returns `false` if the link does not accept
    /// it; what a queue drops is in the queue's counts.
    #[inline]
    pub(crate) fn give(
        &mut self,
        tap: &mut Tap,
        links: &[LinkId],
        link: impl Into<usize>,
        frame: Frame,
        now: u64,
    ) -> Result<bool, TapError> {
        let link = link.into();
        match self.shapers.get_mut(link) {
            Some(Some(shaper)) => {
                shaper.enqueue(now, frame);
                Ok(true)
            }
            _ => tap.give(links[link], frame),
        }
    }

    /// Gives the links what leaves their queues `now`; returns the time until the next frame does,
    /// or `None` if none waits.
    pub(crate) fn send(
        &mut self,
        tap: &mut Tap,
        links: &[LinkId],
        now: u64,
    ) -> Result<Option<Duration>, TapError> {
        let mut next: Option<Duration> = None;
        for (shaper, &link) in self.shapers.iter_mut().zip(links) {
            if let Some(shaper) = shaper.as_mut().filter(|it| it.waiting() > 0) {
                let wait = send(shaper, tap, link, now)?;
                next = [next, wait].into_iter().flatten().min();
            }
        }
        Ok(next)
    }

    /// Drops what waits, and counts it.
    pub(crate) fn flush(&mut self) {
        self.shapers.iter_mut().flatten().for_each(Shaper::flush);
    }

    pub(crate) fn shapers(&self) -> &[Option<Shaper<Frame>>] {
        &self.shapers
    }
}

/// Gives a link the frames of its queues that leave `now`; returns the time until the next one
/// does, or `None` if none waits.
fn send(
    shaper: &mut Shaper<Frame>,
    tap: &mut Tap,
    link: LinkId,
    now: u64,
) -> Result<Option<Duration>, TapError> {
    let room = UNSENT_MAX.saturating_sub(tap.unsent(link)?);
    for _ in 0..room {
        match shaper.dequeue(now) {
            Next::Frame(frame) => _ = tap.give(link, frame)?,
            Next::At(at) => return Ok(Some(Duration::from_nanos(at.saturating_sub(now)))),
            Next::Empty => return Ok(None),
        }
    }
    Ok(Some(RETRY))
}
