//! The times of several round trips, summed up.

use serde_json::{Value, json};
use std::time::Duration;

/// Least, median and greatest time, in microseconds; 0 without any.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct RoundTrips {
    min: f64,
    median: f64,
    max: f64,
}

impl RoundTrips {
    pub(crate) fn of(times: &[Duration]) -> RoundTrips {
        let mut sorted = times.to_vec();
        sorted.sort_unstable();
        let us = |time: Option<&Duration>| time.map_or(0.0, |time| time.as_secs_f64() * 1e6);
        RoundTrips {
            min: us(sorted.first()),
            median: us(sorted.get(sorted.len() / 2)),
            max: us(sorted.last()),
        }
    }

    pub(crate) fn json(&self) -> Value {
        json!({"min": self.min, "median": self.median, "max": self.max})
    }

    pub(crate) fn text(&self) -> String {
        let RoundTrips { min, median, max } = self;
        format!("microseconds: min {min:.1}, median {median:.1}, max {max:.1}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_summed_up() {
        let times = [30, 10, 20].map(Duration::from_micros);
        let said = RoundTrips::of(&times).text();
        assert_eq!(said, "microseconds: min 10.0, median 20.0, max 30.0");
        let nothing = RoundTrips::of(&[]).json();
        assert_eq!(nothing, json!({"min": 0.0, "median": 0.0, "max": 0.0}));
    }
}
