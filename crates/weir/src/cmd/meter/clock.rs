//! The clocks of a counter.

use rustix::time::{ClockId, clock_gettime};
use std::path::PathBuf;
use std::sync::Arc;
use weir_meter::period::Moment;

/// The monotonic clock, which says when periods end, and the wall clock, which names them.
#[derive(Clone, Debug, Default)]
pub(super) struct Clock {
    /// A file with the nanoseconds by which the wall clock is set, for tests: they cannot set that of
    /// the machine.
    wall_set: Option<Arc<PathBuf>>,
}

impl Clock {
    pub(super) fn new(wall_set: Option<PathBuf>) -> Clock {
        Clock {
            wall_set: wall_set.map(Arc::new),
        }
    }

    /// The time by both.
    pub(super) fn now(&self) -> Moment {
        let wall = clock_gettime(ClockId::Realtime);
        let wall_ns = wall.tv_sec.saturating_mul(1_000_000_000);
        Moment {
            monotonic_ns: monotonic_ns(),
            unix_ns: wall_ns
                .saturating_add(wall.tv_nsec)
                .saturating_add(self.set_by_ns()),
        }
    }

    fn set_by_ns(&self) -> i64 {
        let Some(file) = &self.wall_set else {
            return 0;
        };
        let text = std::fs::read_to_string(&**file).unwrap_or_default();
        text.trim().parse().unwrap_or(0)
    }
}

/// The monotonic clock.
pub(super) fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}
