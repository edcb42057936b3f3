//! A Pup host on a link.

use super::link::{Link, LinkError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use weir_pup::Host;
use weir_pup::bsp::Connection;
use weir_pup::services::Clock;

/// How often a node checks its link, and the time of day.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The time of day, now.
pub(super) fn clock() -> Clock {
    let unix = SystemTime::now().duration_since(UNIX_EPOCH);
    let unix = unix.map_or(0, |time| time.as_secs());
    Clock { unix }
}

/// A host and its link, driven by one thread.
#[derive(Debug)]
pub struct Node {
    /// The host.
    pub host: Host,
    link: Link,
    began: Instant,
    next_poll: Instant,
}

impl Node {
    /// A host on a link.
    pub fn new(host: Host, link: Link) -> Node {
        let now = Instant::now();
        Node {
            host,
            link,
            began: now,
            next_poll: now,
        }
    }

    /// The time of the host's timers.
    pub fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// The link.
    pub fn link(&mut self) -> &mut Link {
        &mut self.link
    }

    /// Sends what the host has to send, waits at most `timeout` for Pups, and
    /// takes them.
    ///
    /// # Errors
    /// If the link fails.
    pub fn turn(&mut self, timeout: Duration) -> Result<(), LinkError> {
        if Instant::now() >= self.next_poll {
            self.next_poll = Instant::now() + POLL_INTERVAL;
            self.link.check()?;
            self.host.set_clock(clock());
        }
        self.send()?;
        let now = self.began.elapsed();
        let due = self.host.next_timeout().unwrap_or(Duration::MAX);
        let timeout = due.saturating_sub(now).min(timeout);
        let (host, began) = (&mut self.host, self.began);
        self.link
            .receive(timeout, |pup| host.handle_bytes(began.elapsed(), pup))?;
        let now = self.began.elapsed();
        if self.host.next_timeout().is_some_and(|due| due <= now) {
            self.host.handle_timeout(now);
        }
        // Acknowledgments go at once.
        self.send()
    }

    fn send(&mut self) -> Result<(), LinkError> {
        let (host, began) = (&mut self.host, self.began);
        while self.link.queue_with(|pup| {
            let now = began.elapsed();
            let dst = host.poll_transmit(now, pup)?;
            Some(host.next_hop(now, dst))
        })? {}
        self.link.flush()
    }

    /// Asks the link's gateways for the way to a net, and waits for it at most `timeout`;
    /// without an answer the net is taken for the link's own.
    ///
    /// # Errors
    /// If the link fails.
    pub fn find_route(&mut self, net: u8, timeout: Duration) -> Result<(), LinkError> {
        self.host.ask_for_routes();
        let until = self.now() + timeout;
        while self.now() < until && !self.host.has_route(self.now(), net) {
            let left = until.saturating_sub(self.now());
            self.turn(left)?;
        }
        Ok(())
    }

    /// A connection of the host.
    pub fn connection(&mut self, number: u32) -> Option<&mut Connection> {
        self.host.connection(number)
    }
}
