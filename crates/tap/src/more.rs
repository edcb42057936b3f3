//! What a tap has besides its six calls: answers that the kernel remembers,
//! and calls that only measurements make.

use crate::error::TapError;
use crate::fast::{FastPath, Links, Progress};
use crate::link::TapLink;
use crate::tap::{LinkId, Tap};
use weir_link::xdp::State;

impl Tap {
    /// Has what is to be remembered take effect: all that came was sent on.
    pub(crate) fn arm_fast(&mut self, now: u64) {
        let Some(fast) = self.fast.as_mut().filter(|fast| fast.has_waiting()) else {
            return;
        };
        if self.links.iter_mut().flatten().all(TapLink::is_sent) {
            let (links, state) = (&mut self.links, &self.state);
            fast.arm(now, &mut Handed { links, state, now });
        }
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
            self.counts.calls_rx += 1;
            let kicked = queue.socket.kick_rx();
            kicked.map_err(|source| TapError::System {
                what: "have the device receive",
                source,
            })?;
        }
        Ok(())
    }
}

/// The links, and what the kernel has handed over.
struct Handed<'a> {
    links: &'a mut [Option<TapLink>],
    state: &'a State,
    now: u64,
}

impl Links for Handed<'_> {
    fn progress(&mut self, link: u32) -> Option<Progress> {
        let handed = self.state.handed(link);
        let found = self.links.get_mut(link as usize)?.as_mut()?;
        // A ring that is not as it should be shows when it is read.
        found.progress(handed, self.now).ok()
    }

    fn arriving(&self, link: u32) -> u64 {
        let found = self.links.get(link as usize).and_then(Option::as_ref);
        found.map_or(0, |found| found.arriving(self.state.handed(link)))
    }
}
