//! The retransmission time-out, estimated as RFC 6298 does it.

use std::time::Duration;

/// Least time-out. Linux's least RTO for TCP is 200 ms; a VMTP server answers at
/// once, so that scheduling delays are all that must fit.
const LEAST: Duration = Duration::from_millis(10);
/// Largest time-out.
const MOST: Duration = Duration::from_secs(1);
/// Time-out before the first sample.
const FIRST: Duration = Duration::from_millis(100);

/// Smoothed round-trip time of one server.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Rtt {
    /// Smoothed time and its variation; `None` before the first sample.
    smoothed: Option<(Duration, Duration)>,
}

impl Rtt {
    /// Takes the time from the only sending of a request to its response.
    pub(crate) fn sample(&mut self, time: Duration) {
        self.smoothed = Some(match self.smoothed {
            None => (time, time / 2),
            Some((smoothed, variation)) => {
                let difference = smoothed.abs_diff(time);
                (
                    smoothed * 7 / 8 + time / 8,
                    variation * 3 / 4 + difference / 4,
                )
            }
        });
    }

    /// The time-out of the sending after `retries` others.
    pub(crate) fn timeout(&self, retries: u8) -> Duration {
        let base = match self.smoothed {
            None => FIRST,
            Some((smoothed, variation)) => smoothed + variation * 4,
        };
        (base.max(LEAST) * (1 << retries.min(8))).min(MOST)
    }

    /// How long to wait for the missing packets of a group.
    pub(crate) fn gap(&self) -> Duration {
        self.timeout(0) / 4
    }
}
