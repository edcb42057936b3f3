//! [`Timers`]: the timers of one connection, of which the timer heap has only the first.

use crate::deadline::{OptDeadline, as_ns};
use crate::tcp::recovery::LossTimer;

/// Deadlines in nanoseconds. `due_ns` is at most the first of the others: code that sets an earlier
/// one updates the heap.
#[derive(Clone, Copy, Debug)]
pub(in crate::tcp) struct Timers {
    /// The timer about loss, of which only one runs.
    pub(in crate::tcp) loss: Option<(LossTimer, u64)>,
    /// When a delayed acknowledgment must be sent.
    pub(in crate::tcp) ack_ns: OptDeadline,
    /// When TIME-WAIT ends, or FIN-WAIT-2 without an application, or the linger time; otherwise
    /// when the next keep-alive probe is sent.
    pub(in crate::tcp) keepalive_or_time_wait_ns: OptDeadline,
    /// When unused buffer storage is released.
    pub(in crate::tcp) shrink_ns: OptDeadline,
    /// When the connection's entry in the timer heap is due; `u64::MAX` without an entry.
    pub(in crate::tcp) due_ns: u64,
}

impl Default for Timers {
    fn default() -> Timers {
        Timers {
            loss: None,
            ack_ns: None,
            keepalive_or_time_wait_ns: None,
            shrink_ns: None,
            due_ns: u64::MAX,
        }
    }
}

impl Timers {
    /// When the first of the timers is due; `u64::MAX` if none runs.
    #[inline]
    pub(in crate::tcp) fn next_ns(&self) -> u64 {
        // An unset deadline is zero; minus one it is the greatest value.
        let before = |when: OptDeadline| as_ns(when).unwrap_or(0).wrapping_sub(1);
        let due = before(self.ack_ns)
            .min(before(self.keepalive_or_time_wait_ns))
            .min(before(self.shrink_ns))
            .saturating_add(1);
        self.loss.map_or(due, |(_, at_ns)| at_ns.min(due))
    }

    /// Stops all timers; the entry in the heap stays until it is due or removed.
    pub(in crate::tcp) fn stop(&mut self) {
        let due_ns = self.due_ns;
        *self = Timers {
            due_ns,
            ..Timers::default()
        };
    }
}
