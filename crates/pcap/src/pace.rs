//! How long a capture lets frames gather before it looks again.
//!
//! libpcap's packet buffer timeout (`pcap_set_timeout`) lets a capture hold frames back, so that the
//! application is woken once for many of them. After frames were read, a capture pauses, without a
//! wake-up by the kernel: a wake-up costs more than a frame, on both sides. The first frame after a
//! quiet time wakes the application at once.

use std::time::Duration;

/// The first pause, which is about what a wake-up costs the two sides.
const PAUSE_MIN: Duration = Duration::from_micros(50);
/// Longest pause, with a queue that is large enough.
const PAUSE_MAX: Duration = Duration::from_millis(10);
/// Bytes of a queue a second that three million frames of 60 bytes need. They fill half of the queue
/// during a pause.
const QUEUE_RATE: u64 = 3_000_000 * 88;

/// The pauses of one capture.
#[derive(Debug)]
pub(crate) struct Pace {
    /// Size of the queue, in bytes.
    queue: u64,
    pause: Duration,
    pause_max: Duration,
    /// Bytes of the queue that were read since the last pause.
    gathered: u64,
}

impl Pace {
    /// For a queue of that many bytes, and an application that frames may be held back from for
    /// `timeout`; `None` is without limit.
    pub(crate) fn new(queue: u64, timeout: Option<Duration>) -> Pace {
        let fills = Duration::from_nanos(queue / 2 * 1_000_000_000 / QUEUE_RATE);
        let pause_max = fills.min(PAUSE_MAX);
        Pace {
            queue,
            pause: Duration::ZERO,
            pause_max: timeout.map_or(pause_max, |timeout| pause_max.min(timeout)),
            gathered: 0,
        }
    }

    /// Records that this many bytes of the queue were read.
    pub(crate) fn add(&mut self, bytes: u64) {
        self.gathered += bytes;
    }

    /// The pause that is due, now that the queue is empty: longer while pauses fill little of the
    /// queue, shorter while they fill much. `None` if nothing was read since the last pause, or for
    /// an application that wants each frame at once.
    pub(crate) fn pause(&mut self) -> Option<Duration> {
        let gathered = std::mem::take(&mut self.gathered);
        if gathered == 0 {
            self.pause = Duration::ZERO;
        } else if gathered > self.queue / 8 {
            self.pause /= 2;
        } else if gathered < self.queue / 32 {
            self.pause = (self.pause * 2).max(PAUSE_MIN).min(self.pause_max);
        }
        (!self.pause.is_zero()).then_some(self.pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUEUE: u64 = 2 << 20;
    const SECOND: Option<Duration> = Some(Duration::from_secs(1));

    /// The pauses while frames come at a rate, in bytes of the queue a second, after each of them.
    fn pauses(pace: &mut Pace, rate: f64, count: usize) -> Vec<Duration> {
        let mut pauses = vec![Duration::from_micros(10)];
        for _ in 0..count {
            let last = pauses.last().expect("there is one");
            pace.add((rate * last.as_secs_f64()) as u64);
            pauses.push(pace.pause().unwrap_or(Duration::from_micros(10)));
        }
        pauses
    }

    #[test]
    fn a_steady_rate_makes_long_pauses_that_leave_room_in_the_queue() {
        for rate in [1e6, 1e7, 1e8, 3e8, 1e9] {
            let mut pace = Pace::new(QUEUE, SECOND);
            let pauses = pauses(&mut pace, rate, 50);
            let filled: Vec<f64> = pauses
                .iter()
                .map(|pause| rate * pause.as_secs_f64() / QUEUE as f64)
                .collect();
            assert!(
                filled.iter().all(|part| *part <= 0.25),
                "{rate}: {filled:?}"
            );
            let last = *pauses.last().expect("there are some");
            let enough = filled.last().is_some_and(|part| *part >= 1.0 / 64.0);
            assert!(enough || last == pace.pause_max, "{rate}: {pauses:?}");
        }
    }

    #[test]
    fn a_quiet_capture_waits_to_be_woken() {
        let mut pace = Pace::new(QUEUE, SECOND);
        assert_eq!(pace.pause(), None);
        pace.add(100);
        assert_eq!(pace.pause(), Some(PAUSE_MIN));
        assert_eq!(pace.pause(), None, "nothing came meanwhile");
        pace.add(100);
        assert_eq!(pace.pause(), Some(PAUSE_MIN), "it begins anew");
    }

    #[test]
    fn no_pause_is_longer_than_the_application_allows_or_the_queue_has_room_for() {
        let longest = |queue, timeout| {
            let pauses = pauses(&mut Pace::new(queue, timeout), 1e6, 50);
            *pauses.iter().max().expect("there are some")
        };
        assert_eq!(
            longest(QUEUE, Some(Duration::from_millis(1))),
            Duration::from_millis(1)
        );
        assert_eq!(longest(64 << 20, None), PAUSE_MAX);
        let small = longest(64 << 10, SECOND);
        assert!(small < Duration::from_micros(130), "{small:?}");
    }
}
