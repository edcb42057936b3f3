//! Rates over time, in a bounded number of intervals.

use crate::table::Counts;

/// Largest number of intervals.
const BUCKETS_MAX: usize = 512;
/// The shortest interval: a second, in nanoseconds.
const WIDTH_NS_MIN: i64 = 1_000_000_000;

/// Frames and bytes of each interval of time.
///
/// Intervals are a second long at first. When their number exceeds the limit, two at a time become
/// one of twice the length, so that the whole span stays visible, whatever it is.
#[derive(Clone, Debug)]
pub struct History {
    width_ns: i64,
    start_ns: Option<i64>,
    buckets: Vec<Counts>,
}

impl Default for History {
    fn default() -> History {
        History {
            width_ns: WIDTH_NS_MIN,
            start_ns: None,
            buckets: Vec::new(),
        }
    }
}

impl History {
    /// Counts a frame. A frame from before the first one counts in the first interval.
    #[inline]
    pub fn add(&mut self, time_ns: i64, bytes: u64) {
        let start = *self
            .start_ns
            .get_or_insert_with(|| time_ns.saturating_sub(time_ns.rem_euclid(WIDTH_NS_MIN)));
        let since = time_ns.saturating_sub(start).max(0);
        while since / self.width_ns >= BUCKETS_MAX as i64 {
            self.widen();
        }
        let number = (since / self.width_ns) as usize;
        if number >= self.buckets.len() {
            self.buckets.resize(number + 1, Counts::default());
        }
        self.buckets[number].add(bytes);
    }

    #[cold]
    fn widen(&mut self) {
        self.width_ns = self.width_ns.saturating_mul(2);
        let pairs = self.buckets.chunks(2);
        self.buckets = pairs
            .map(|pair| {
                pair.iter()
                    .fold(Counts::default(), |sum, one| sum.and(*one))
            })
            .collect();
    }

    /// Length of an interval, in seconds.
    pub fn width_s(&self) -> f64 {
        self.width_ns as f64 / 1e9
    }

    /// Start of the first interval, in nanoseconds since 1970; `None` before the first frame.
    pub fn start_ns(&self) -> Option<i64> {
        self.start_ns
    }

    /// The intervals so far.
    pub fn buckets(&self) -> &[Counts] {
        &self.buckets
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_span_fits_and_no_frame_is_lost() {
        let mut history = History::default();
        for time in [
            5_000_000_000,
            0,
            6_500_000_000,
            3_000_000_000_000,
            i64::MAX,
            i64::MIN,
        ] {
            history.add(time, 10);
        }
        assert!(history.buckets().len() <= BUCKETS_MAX);
        let sum = history
            .buckets()
            .iter()
            .fold(Counts::default(), |sum, one| sum.and(*one));
        assert_eq!(
            sum,
            Counts {
                frames: 6,
                bytes: 60
            }
        );
    }

    #[test]
    fn the_first_time_may_be_the_least_there_is() {
        let mut history = History::default();
        for time in [i64::MIN, i64::MAX] {
            history.add(time, 1);
        }
        let frames: u64 = history.buckets().iter().map(|one| one.frames).sum();
        assert_eq!(frames, 2);
    }

    #[test]
    fn intervals_are_seconds_at_first() {
        let mut history = History::default();
        for time in [1_900_000_000, 2_000_000_000, 2_100_000_000] {
            history.add(time, 10);
        }
        assert_eq!(history.start_ns(), Some(1_000_000_000));
        let frames: Vec<u64> = history.buckets().iter().map(|one| one.frames).collect();
        assert_eq!(frames, [1, 2]);
    }
}
