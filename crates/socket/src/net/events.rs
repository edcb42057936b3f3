//! What happens to a net's addresses and routers, as it happens.

use super::driver::StackDriver;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weir_stack::iface::Event;

/// Tells what happens to a net's addresses and routers, one after the other:
/// see [`Net::events`](super::Net::events). As an iterator it waits for the
/// next, and ends with the net.
pub struct Events(pub(super) Arc<StackDriver>);

impl Events {
    /// The next event, if there is one within this time.
    pub fn next_timeout(&mut self, time: Duration) -> Option<Event> {
        Some(self.next_link_timeout(time)?.1)
    }

    /// As [`Events::next_timeout`], with the number of the link that it concerns.
    pub fn next_link_timeout(&mut self, time: Duration) -> Option<(u8, Event)> {
        self.wait(Instant::now().checked_add(time))
    }

    /// The next event, with the number of the link that it concerns; waits as
    /// the iterator does.
    pub fn next_link(&mut self) -> Option<(u8, Event)> {
        self.wait(None)
    }

    fn wait(&mut self, deadline: Option<Instant>) -> Option<(u8, Event)> {
        let mut state = self.0.lock();
        loop {
            // That a host goes gives its addresses up is no news.
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
