//! The times of several round trips, summed up.

use serde_json::{Value, json};
use std::time::Duration;

/// Least, median and greatest time, in microseconds; `None` without any.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct RoundTrips(Option<[f64; 3]>);

impl RoundTrips {
    pub(crate) fn of(times: &[Duration]) -> RoundTrips {
        let mut sorted = times.to_vec();
        sorted.sort_unstable();
        // Nanoseconds, as they were measured.
        let us = |time: &Duration| time.as_nanos() as f64 / 1e3;
        let median = sorted.get(sorted.len() / 2);
        let all = sorted.first().zip(median).zip(sorted.last());
        RoundTrips(all.map(|((min, median), max)| [us(min), us(median), us(max)]))
    }

    pub(crate) fn json(&self) -> Value {
        match self.0 {
            Some([min, median, max]) => json!({"min": min, "median": median, "max": max}),
            None => Value::Null,
        }
    }

    pub(crate) fn text(&self) -> String {
        match self.0 {
            Some([min, median, max]) => {
                format!("microseconds: min {min:.1}, median {median:.1}, max {max:.1}")
            }
            None => "no time was measured".to_owned(),
        }
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
        assert_eq!(nothing, Value::Null);
    }
}
