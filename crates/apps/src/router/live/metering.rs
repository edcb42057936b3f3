//! The count of frames that come to the stages from the outside: with the addresses to which the
//! stages translate them, and so for the subscriber whose they are.

use std::cell::Cell;
use weir_link::bpf::TestRunError;
use weir_link::xdp::{HandedFrames, ProcessCounter};

/// Time without a frame of the outside after which those that came and were not counted are lost: far
/// longer than a processor can stand still between noting a frame and putting it into a ring.
const QUIET_NS: u64 = 1_000_000_000;

/// Counts the frames of the outside link.
pub(super) struct OutsideMeter {
    counter: ProcessCounter,
    /// Frames that the kernel did not count for the process.
    refused: Cell<u64>,
    /// Since when no frame came or was counted, and those until then.
    quiet: Option<(u64, HandedFrames)>,
}

impl OutsideMeter {
    pub(super) fn new(counter: ProcessCounter) -> OutsideMeter {
        OutsideMeter {
            counter,
            refused: Cell::new(0),
            quiet: None,
        }
    }

    /// Counts a frame as it is now, which had `came_bytes` bytes when it came. What the kernel
    /// refuses to count now is settled later, without a subscriber.
    #[inline]
    pub(super) fn count(&self, frame: &[u8], came_bytes: usize) {
        if self.counter.count(frame, came_bytes).is_err() {
            self.refused.set(self.refused.get() + 1);
        }
    }

    /// Number of frames that the kernel did not count for the process.
    pub(super) fn refused(&self) -> u64 {
        self.refused.get()
    }

    /// Counts frames that were lost on their way here, when none is in hand: `now_ns` is a time
    /// after which every ring was looked at.
    pub(super) fn settle_lost(&mut self, now_ns: u64) {
        let frames = self.counter.handed();
        if frames.are_counted() {
            self.quiet = None;
            return;
        }
        match self.quiet {
            Some((since, before)) if before == frames => {
                if now_ns >= since + QUIET_NS && self.counter.settle(frames).is_err() {
                    self.refused.set(self.refused.get() + 1);
                    self.quiet = None;
                }
            }
            _ => self.quiet = Some((now_ns, frames)),
        }
    }

    /// Counts all frames that came and were not counted: no process takes them any more.
    pub(super) fn settle_all(&self) -> Result<(), TestRunError> {
        let frames = self.counter.handed();
        if frames.are_counted() {
            return Ok(());
        }
        self.counter.settle(frames)
    }
}
