//! Requests in batches: read, verified, made durable, answered.

use super::Clients;
use super::dynamic::{Dynamic, DynamicStats};
use crate::error::CliError;
use serde::Serialize;
use std::fmt;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use weir_meter::radius::accounting::{Accounting, Request, RequestError};
use weir_meter::radius::packet::{self, Packet};
use weir_meter::{SessionEvent, SessionEventKind, SessionSource};

/// Requests that become durable together at most. One commit takes a few milliseconds on a disk,
/// whatever its size.
const BATCH_MAX: usize = 256;
/// Between two looks for sessions that are silent.
pub(super) const SILENCE_INTERVAL: Duration = Duration::from_secs(1);

/// Counts of packets by outcome, stable for scripts.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Stats {
    /// Requests answered.
    pub(crate) answered: u64,
    /// Of these, those that changed nothing: retransmissions, late ones, tunnels.
    pub(crate) without_event: u64,
    /// Packets of addresses that are no client's.
    pub(crate) unknown_clients: u64,
    /// Requests with an authenticator that is not of the client's secret.
    pub(crate) bad_authenticators: u64,
    /// Packets that are no Accounting-Request, or lack what RFC 2866 requires.
    pub(crate) malformed: u64,
    /// Requests not answered, since their events could not be made durable: the client sends them
    /// again.
    pub(crate) not_durable: u64,
    /// Requests not answered, since there are too many sessions.
    pub(crate) too_many_sessions: u64,
    /// Requests with a Filter-Id that names no policy.
    pub(crate) unknown_policies: u64,
    /// Disconnect-Requests and CoA-Requests, if they are listened for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) dynamic: Option<DynamicStats>,
}

/// Packets that were refused, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Refused {
    unknown_clients: u64,
    bad_authenticators: u64,
    malformed: u64,
    too_many_sessions: u64,
}

impl Stats {
    /// The sums of both.
    pub(super) fn and(&self, other: &Stats) -> Stats {
        Stats {
            answered: self.answered + other.answered,
            without_event: self.without_event + other.without_event,
            unknown_clients: self.unknown_clients + other.unknown_clients,
            bad_authenticators: self.bad_authenticators + other.bad_authenticators,
            malformed: self.malformed + other.malformed,
            not_durable: self.not_durable + other.not_durable,
            too_many_sessions: self.too_many_sessions + other.too_many_sessions,
            unknown_policies: self.unknown_policies + other.unknown_policies,
            dynamic: self.dynamic.or(other.dynamic),
        }
    }

    pub(crate) fn refused(&self) -> Refused {
        Refused {
            unknown_clients: self.unknown_clients,
            bad_authenticators: self.bad_authenticators,
            malformed: self.malformed,
            too_many_sessions: self.too_many_sessions,
        }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reasons = [
            (
                self.unknown_clients,
                "of addresses without a [[radius.client]]",
            ),
            (
                self.bad_authenticators,
                "with a wrong authenticator (compare the secrets)",
            ),
            (
                self.malformed,
                "that are no Accounting-Requests of sessions",
            ),
            (self.too_many_sessions, "beyond the limit of sessions"),
        ];
        let mut divider = "";
        for (count, reason) in reasons.iter().filter(|(count, _)| *count > 0) {
            write!(f, "{divider}{count} {reason}")?;
            divider = ", ";
        }
        Ok(())
    }
}

/// The server: a socket and the sessions.
#[derive(Debug)]
pub(crate) struct Server {
    socket: UdpSocket,
    clients: Clients,
    accounting: Accounting,
    silence: Option<Duration>,
    /// Since `began`.
    silence_due: Duration,
    /// From when the monotonic clock is read: the wall clock may be set.
    began: Instant,
    /// Replies that wait until the events of their requests are durable.
    replies: Vec<(Vec<u8>, SocketAddr)>,
    dynamic: Option<Dynamic>,
    stats: Stats,
}

impl Server {
    /// Binds the address; sessions without an event for `silence` end.
    pub(crate) fn bind(
        address: SocketAddr,
        clients: Clients,
        accounting: Accounting,
        silence: Option<Duration>,
    ) -> Result<Server, CliError> {
        let bound = UdpSocket::bind(address).and_then(|socket| {
            socket.set_nonblocking(true)?;
            // Requests that arrive while a batch is being made durable wait in the kernel.
            let _ = rustix::net::sockopt::set_socket_recv_buffer_size(&socket, 4 << 20);
            Ok(socket)
        });
        let socket = bound.map_err(|error| {
            CliError::run(format!("cannot listen for RADIUS on {address}: {error}"))
        })?;
        Ok(Server {
            socket,
            clients,
            accounting,
            silence,
            silence_due: Duration::ZERO,
            began: Instant::now(),
            replies: Vec::new(),
            dynamic: None,
            stats: Stats::default(),
        })
    }

    /// Listens for Disconnect-Requests and CoA-Requests at this address, too.
    pub(crate) fn listen_dynamic(&mut self, address: SocketAddr) -> Result<(), CliError> {
        let dynamic = Dynamic::bind(address).map_err(|error| {
            let what = "dynamic authorization";
            CliError::run(format!("cannot listen for {what} on {address}: {error}"))
        })?;
        self.dynamic = Some(dynamic);
        Ok(())
    }

    /// The sockets to wait for.
    pub(crate) fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let dynamic = self.dynamic.iter().map(|dynamic| dynamic.socket().as_fd());
        [self.socket.as_fd()].into_iter().chain(dynamic)
    }

    /// Takes up the log of events, after a restart of the program.
    pub(crate) fn restore(&mut self, event: &SessionEvent) {
        self.accounting.restore(event, self.began.elapsed());
    }

    #[cfg(test)]
    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    pub(crate) fn stats(&self) -> Stats {
        Stats {
            dynamic: self.dynamic.as_ref().map(|dynamic| dynamic.stats),
            unknown_policies: self.accounting.unknown_policies().0,
            ..self.stats
        }
    }

    /// The last name of a policy that there is not.
    pub(crate) fn unknown_policy(&self) -> &str {
        self.accounting.unknown_policies().1
    }

    /// Takes the requests that are there, at most [`BATCH_MAX`], and adds their events to the batch,
    /// in order. When these are durable, [`answer`](Self::answer) sends the replies.
    ///
    /// # Errors
    ///
    /// The system's, if the socket cannot be read.
    pub(crate) fn receive(&mut self, batch: &mut Vec<SessionEvent>) -> io::Result<()> {
        let now_ns = unix_ns();
        let mut bytes = [0; packet::LEN_MAX + 1];
        for _ in 0..BATCH_MAX {
            match self.socket.recv_from(&mut bytes) {
                Ok((length, from)) => self.take(&bytes[..length], from, now_ns, batch),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // What the network says of an earlier reply.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
                Err(error) => return Err(error),
            }
        }
        let now = self.began.elapsed();
        if let Some(dynamic) = &mut self.dynamic {
            let (clients, accounting) = (&self.clients, &mut self.accounting);
            dynamic.receive(clients, accounting, now, now_ns, batch);
        }
        self.end_silent(now_ns, now, batch);
        Ok(())
    }

    /// Answers the requests whose events are durable.
    pub(crate) fn answer(&mut self) {
        for (reply, to) in self.replies.drain(..) {
            // A reply that is lost is asked for again.
            let _ = self.socket.send_to(&reply, to);
            self.stats.answered += 1;
        }
        if let Some(dynamic) = &mut self.dynamic {
            dynamic.answer();
        }
    }

    /// The events cannot be made durable now: the clients get no reply, and send again.
    pub(crate) fn not_durable(&mut self) {
        self.stats.not_durable += self.replies.len() as u64;
        self.replies.clear();
    }

    /// Takes a packet: its events go into the batch, and its reply waits.
    fn take(&mut self, bytes: &[u8], from: SocketAddr, now_ns: i64, batch: &mut Vec<SessionEvent>) {
        let Some(client) = self.clients.of(from.ip()) else {
            self.stats.unknown_clients += 1;
            return;
        };
        let Ok(packet) = Packet::new(bytes) else {
            self.stats.malformed += 1;
            return;
        };
        if packet.verify_request(client.secret()).is_err() {
            self.stats.bad_authenticators += 1;
            return;
        }
        let (name, swapped) = (client.name(), client.is_swapped());
        let request = Request::read(&packet, &name, from.ip(), now_ns, swapped);
        let made = match &request {
            Ok(request) => self.accounting.events(request, self.began.elapsed()),
            // Tunnels and failures are no sessions; the client is to stop sending them.
            Err(RequestError::Status(Some(_))) => Ok(Vec::new()),
            Err(_) => {
                self.stats.malformed += 1;
                return;
            }
        };
        let Ok(kinds) = made else {
            self.stats.too_many_sessions += 1;
            return;
        };
        if kinds.is_empty() {
            self.stats.without_event += 1;
        }
        let happened = request.ok().filter(|request| request.has_timestamp);
        let happened = happened.map(|request| request.happened_ns);
        let events = kinds.into_iter().map(|kind| event(kind, now_ns, happened));
        batch.extend(events);
        let reply = packet.response(client.secret());
        self.replies.push((reply, from));
    }

    fn end_silent(&mut self, now_ns: i64, now: Duration, batch: &mut Vec<SessionEvent>) {
        let Some(limit) = self.silence else { return };
        if now < self.silence_due {
            return;
        }
        self.silence_due = now.saturating_add(SILENCE_INTERVAL);
        let kinds = self.accounting.silent(now, limit);
        let events = kinds.into_iter().map(|kind| event(kind, now_ns, None));
        batch.extend(events);
    }
}

pub(super) fn event(
    kind: SessionEventKind,
    received_unix_ns: i64,
    happened: Option<i64>,
) -> SessionEvent {
    SessionEvent {
        number: 0,
        received_unix_ns,
        happened_unix_ns: happened,
        source: SessionSource::Radius,
        lost: None,
        kind,
    }
}

pub(super) fn unix_ns() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    i64::try_from(now.unwrap_or_default().as_nanos()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
