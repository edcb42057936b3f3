//! A blocking VMTP client.

use super::{open, random, station_of};
use crate::station::{Station, StationError};
use std::path::Path;
use std::time::{Duration, Instant};
use weir_vmtp::{Entity, Event, Failure, Request, Response};
use weir_wire::ethernet::Address;

/// How often a call checks whether it shall stop.
const STOP_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Why a call fails.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The server.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// The port.
    #[error(transparent)]
    Station(#[from] StationError),
    /// The caller asked to stop.
    #[error("stopped")]
    Stopped,
}

/// A client on a port of its own.
#[derive(Debug)]
pub struct Client {
    station: Station,
    client: weir_vmtp::Client<Address>,
    began: Instant,
}

impl Client {
    /// Opens a client on an interface; through the broker at `broker`, if given.
    ///
    /// # Errors
    /// If the port is refused.
    pub fn open(interface: &str, broker: Option<&Path>) -> Result<Client, StationError> {
        let number = random();
        let (station, entity) = open(interface, broker, number as u32)?;
        Ok(Client {
            station,
            client: weir_vmtp::Client::new(entity, (number >> 32) as u32),
            began: Instant::now(),
        })
    }

    /// The client's entity.
    pub fn entity(&self) -> Entity {
        self.client.entity()
    }

    /// Sets how many packets one call receives at most; without limit by default.
    pub fn set_batch(&mut self, packets: usize) {
        self.station.set_batch(packets);
    }

    /// Sends a request and waits for its response; `stop` is asked several times
    /// a second.
    ///
    /// # Errors
    /// If there is no response, or the caller asks to stop.
    pub fn call(
        &mut self,
        request: Request,
        stop: impl Fn() -> bool,
    ) -> Result<Response, CallError> {
        let mut responses = self.call_group(request, stop)?;
        Ok(responses.swap_remove(0))
    }

    /// Sends a request and waits for its responses: one, or all that are
    /// [collected](Request::collect), which may be none.
    ///
    /// # Errors
    /// If one is wanted and there is none, or the caller asks to stop.
    pub fn call_group(
        &mut self,
        request: Request,
        stop: impl Fn() -> bool,
    ) -> Result<Vec<Response>, CallError> {
        let collects = request.collect.is_some();
        // An earlier call that was stopped.
        self.client.cancel();
        let started = self.client.call(self.began.elapsed(), request);
        started.expect("no transaction is under way");
        let mut responses = Vec::new();
        let outcome = self.wait(&mut responses, collects, stop);
        if matches!(&outcome, Err(CallError::Failed(Failure::NoAnswer(_)))) {
            self.station.check_refusals()?;
        }
        outcome.map(|()| responses)
    }

    fn wait(
        &mut self,
        responses: &mut Vec<Response>,
        collects: bool,
        stop: impl Fn() -> bool,
    ) -> Result<(), CallError> {
        let mut next_poll = Instant::now() + STOP_POLL_INTERVAL;
        loop {
            self.transmit()?;
            while let Some(event) = self.client.poll_event() {
                match event {
                    Event::Response(response) => responses.push(response),
                    Event::Collected => {}
                    Event::Failed(failure) => return Err(failure.into()),
                }
                if !collects || !self.client.is_busy() {
                    // What the response made necessary, such as an acknowledgment.
                    return Ok(self.transmit()?);
                }
            }
            let now = self.began.elapsed();
            let due = self.client.next_timeout().unwrap_or(now);
            let timeout = due.saturating_sub(now).min(STOP_POLL_INTERVAL);
            let (client, began) = (&mut self.client, self.began);
            self.station.receive(timeout, |from, packet| {
                client.handle(began.elapsed(), from, packet);
            })?;
            let now = Instant::now();
            if self
                .client
                .next_timeout()
                .is_some_and(|due| due <= began.elapsed())
            {
                self.client.handle_timeout(began.elapsed());
            }
            if now >= next_poll {
                next_poll = now + STOP_POLL_INTERVAL;
                self.station.check()?;
                if stop() {
                    return Err(CallError::Stopped);
                }
            }
        }
    }

    fn transmit(&mut self) -> Result<(), StationError> {
        let client = &mut self.client;
        while self
            .station
            .queue_with(|frame| client.poll_transmit(frame).map(station_of))?
        {}
        self.station.flush()
    }
}
