//! The random runs of a test, as selected by environment variables.
//!
//! | variable | meaning |
//! |---|---|
//! | `WEIR_SEED=n` | only the run with this seed |
//! | `WEIR_FIRST=n` | start with this seed; 0 by default |
//! | `WEIR_RUNS=n` | number of runs |
//! | `WEIR_SECONDS=n` | start runs for this time; the number of runs is printed each minute |
//!
//! If a run panics, its seed is printed.

use std::time::{Duration, Instant};

/// Interval of progress reports of a long test.
const REPORT: Duration = Duration::from_secs(60);

/// The seeds in ascending order; `usual` of them unless a variable says otherwise.
///
/// # Panics
/// If a variable is not a number.
pub fn seeds(usual: u64) -> Seeds {
    let one = number("WEIR_SEED");
    let first = one.or_else(|| number("WEIR_FIRST")).unwrap_or(0);
    let time = number("WEIR_SECONDS").filter(|_| one.is_none());
    let usual = time.map_or(usual, |_| u64::MAX - first);
    let runs = one.map_or_else(|| number("WEIR_RUNS").unwrap_or(usual), |_| 1);
    let start = Instant::now();
    Seeds {
        first,
        next: first,
        end: first + runs,
        time: time.map(Duration::from_secs),
        start,
        reported: start,
    }
}

fn number(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    let wrong = |_| panic!("{name}={value} is not a number");
    Some(value.parse().unwrap_or_else(wrong))
}

/// The iterator of [`seeds`].
pub struct Seeds {
    first: u64,
    next: u64,
    end: u64,
    time: Option<Duration>,
    start: Instant,
    reported: Instant,
}

impl Seeds {
    fn report(&mut self) {
        self.reported = Instant::now();
        let (runs, took) = (self.next - self.first, self.start.elapsed().as_secs());
        eprintln!("{runs} runs from seed {} on in {took} s", self.first);
    }
}

impl Iterator for Seeds {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        let is_over = |time| self.start.elapsed() >= time;
        if self.next == self.end || self.time.is_some_and(is_over) {
            return None;
        }
        if self.time.is_some() && self.reported.elapsed() >= REPORT {
            self.report();
        }
        self.next += 1;
        Some(self.next - 1)
    }
}

impl Drop for Seeds {
    fn drop(&mut self) {
        if std::thread::panicking() && self.next > self.first {
            eprintln!("WEIR_SEED={} replays it", self.next - 1);
        } else if self.time.is_some() {
            self.report();
        }
    }
}
