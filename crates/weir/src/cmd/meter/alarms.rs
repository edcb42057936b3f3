//! Faults, each reported once.

use crate::error::say;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Between two reports of sessions for which there is no room.
const REPORT: Duration = Duration::from_mins(1);

/// Present faults, by their source.
#[derive(Debug, Default)]
pub(super) struct Alarms {
    raised: BTreeMap<&'static str, String>,
    /// Sessions that were refused since the last report, and when that was.
    refused: u64,
    refused_at: Option<Instant>,
}

impl Alarms {
    /// Says why a source does not work, unless that was said last.
    pub(super) fn warn(&mut self, source: &'static str, why: &str) {
        if self.raised.get(source).map(String::as_str) != Some(why) {
            say(&format!(
                "weir: {why}; the kernel goes on counting, and nothing is lost"
            ));
            self.raised.insert(source, why.to_owned());
        }
    }

    /// Says that a source works again, if it did not.
    pub(super) fn over(&mut self, source: &'static str) {
        if self.raised.remove(source).is_some() {
            say(&format!("weir: {source}: works again"));
        }
    }

    /// Sources that do not work.
    pub(super) fn sources(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.raised.keys().copied()
    }

    /// Says why a session is not counted apart, at most once a minute.
    pub(super) fn refused(&mut self, why: &str) {
        self.refused += 1;
        if self.refused_at.is_some_and(|at| at.elapsed() < REPORT) {
            return;
        }
        let more = match self.refused {
            1 => String::new(),
            count => format!(" ({count} sessions since the last report)"),
        };
        say(&format!("weir: {why}{more}"));
        self.refused = 0;
        self.refused_at = Some(Instant::now());
    }
}
