//! [`Events`]: changes of a net's addresses and routers.

use super::driver::StackDriver;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weir_stack::iface::Event;

/// The events of a net's addresses and routers, in order: see
/// [`Net::events`](super::Net::events). The iterator waits for the next event and ends with
/// the net.
pub struct Events(pub(super) Arc<StackDriver>);

impl Events {
    /// The next event; `None` if there is none within `time`.
    pub fn next_timeout(&mut self, time: Duration) -> Option<Event> {
        Some(self.next_link_timeout(time)?.1)
    }

    /// As [`Events::next_timeout`], with the number of the event's link.
    pub fn next_link_timeout(&mut self, time: Duration) -> Option<(u8, Event)> {
        self.wait(Instant::now().checked_add(time))
    }

    /// Waits for the next event and returns it with the number of its link; `None` once the
    /// net has ended.
    pub fn next_link(&mut self) -> Option<(u8, Event)> {
        self.wait(None)
    }

    fn wait(&mut self, deadline: Option<Instant>) -> Option<(u8, Event)> {
        let mut state = self.0.lock();
        loop {
            // The end of the host, which gives its addresses up, is not an event.
            if state.is_shut_down() {
                return None;
            }
            if let Some(event) = state.stack.next_link_event() {
                return Some(event);
            }
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return None;
            }
            let condition = state.event_waiters.enter();
            state = super::wait(&condition, state, left);
            state.event_waiters.leave();
        }
    }
}

impl Iterator for Events {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        Some(self.next_link()?.1)
    }
}
