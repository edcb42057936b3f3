//! A VMTP server that executes requests one after the other.

use super::{field, filter_of, open, random, station_of};
use crate::station::{Station, StationError};
use std::path::Path;
use std::time::{Duration, Instant};
use weir_vmtp::{Entity, Incoming, Reply};
use weir_wire::ethernet::Address;

/// How often a server checks whether it shall stop.
const STOP_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// A server on a port of its own.
#[derive(Debug)]
pub struct Server {
    station: Station,
    server: weir_vmtp::Server<Address>,
    began: Instant,
}

impl Server {
    /// Opens a server on an interface, with this number on its host and as a
    /// member of these groups; through the broker at `broker`, if given.
    ///
    /// # Errors
    /// If the port is refused.
    pub fn open(
        interface: &str,
        broker: Option<&Path>,
        number: u32,
        groups: &[Entity],
    ) -> Result<Server, StationError> {
        let (mut station, entity) = open(interface, broker, number)?;
        let mut server = weir_vmtp::Server::new(entity, random());
        let mut filter = filter_of(entity);
        for group in groups.iter().chain([&Entity::MANAGERS]) {
            filter += &format!(" or {}", field(38, *group));
            server.join(*group);
        }
        station.set_filter(&filter)?;
        Ok(Server {
            station,
            server,
            began: Instant::now(),
        })
    }

    /// The server's entity.
    pub fn entity(&self) -> Entity {
        self.server.entity()
    }

    /// Sets how many packets one call receives at most; without limit by default.
    pub fn set_batch(&mut self, packets: usize) {
        self.station.set_batch(packets);
    }

    /// Executes requests by `execute`, until `stop`, which is asked several times
    /// a second, returns true.
    ///
    /// # Errors
    /// If the port fails.
    pub fn serve(
        &mut self,
        mut execute: impl FnMut(&Incoming) -> Reply,
        stop: impl Fn() -> bool,
    ) -> Result<(), StationError> {
        let mut next_poll = Instant::now();
        loop {
            let now = self.began.elapsed();
            let due = self.server.next_timeout().unwrap_or(Duration::MAX);
            let timeout = due.saturating_sub(now).min(STOP_POLL_INTERVAL);
            let (server, began) = (&mut self.server, self.began);
            self.station.receive(timeout, |from, packet| {
                server.handle(began.elapsed(), from, packet);
            })?;
            while let Some(request) = server.poll_request() {
                let reply = execute(&request);
                server.respond(began.elapsed(), &request, reply);
            }
            server.handle_timeout(began.elapsed());
            while self
                .station
                .queue_with(|frame| server.poll_transmit(frame).map(station_of))?
            {}
            self.station.flush()?;
            if Instant::now() >= next_poll {
                next_poll = Instant::now() + STOP_POLL_INTERVAL;
                self.station.check()?;
                if stop() {
                    return Ok(());
                }
            }
        }
    }
}
