//! Sessions whose quotas are spent: their access servers are asked to end or change them (RFC 5176), on
//! a thread of its own. Neither counting nor an answer waits for it.
//!
//! ```text
//!  kernel's quotas ─► looked at once a second, in blocks ─► requests, sent again, answered, given up
//! ```
//!
//! The kernel has stopped the traffic by then, if the policy says so. A session is asked for once in
//! the life of the process, and again when it has had a new quota and spent that too.

use super::clock::Clock;
use super::rows::{SharedTable, locked};
use super::stop::Stop;
use crate::error::{CliError, say};
use crate::radius::Secret;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use weir_meter::SessionInfo;
use weir_meter::policy::SpentRequest;
use weir_meter::radius::accounting::SessionName;
use weir_meter::radius::packet;
use weir_meter::radius::requests::{RequestStats, Requests};

/// Between two looks at all quotas.
const SCAN_INTERVAL: Duration = Duration::from_secs(1);
/// Rows that are read at a time, while no session can begin.
const ROWS_AT_ONCE: u32 = 4096;
/// Packets that are taken from an access server at a time.
const BATCH_MAX: usize = 256;
/// Between two reports of requests without success.
const REPORT: Duration = Duration::from_mins(1);

/// An access server, or proxy, that can be asked.
#[derive(Debug)]
struct AccessServer {
    address: SocketAddr,
    socket: UdpSocket,
    requests: Requests,
}

/// The access servers that can be asked, by the names of clients.
#[derive(Debug, Default)]
pub(crate) struct AccessServers(HashMap<String, AccessServer>);

impl AccessServers {
    /// Adds the access server of a client; `seed` is a random number.
    pub(super) fn add(
        &mut self,
        client: String,
        address: SocketAddr,
        secret: Secret,
        seed: u64,
    ) -> Result<(), CliError> {
        let local: IpAddr = match address {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let socket = UdpSocket::bind((local, 0)).and_then(|socket| {
            socket.set_nonblocking(true)?;
            Ok(socket)
        });
        let socket = socket.map_err(|error| {
            CliError::run(format!("no socket for requests to {address}: {error}"))
        })?;
        let server = AccessServer {
            address,
            socket,
            requests: Requests::new(secret.into_bytes(), seed),
        };
        self.0.insert(client, server);
        Ok(())
    }

    /// Whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The quotas of a counter's sessions.
pub(super) struct Quotas {
    servers: HashMap<String, AccessServer>,
    table: SharedTable,
    clock: Clock,
    /// Rows whose quotas are spent, and the tags of their sessions, for which that is done.
    told: HashMap<u32, u64>,
    /// Sessions of no access server that can be asked.
    unsent: u64,
    began: Instant,
    reported: [u64; 3],
    reported_at: Option<Instant>,
    stats: Arc<Mutex<RequestStats>>,
}

/// A session whose quota is spent.
struct Spent {
    row: u32,
    tag: u64,
    info: SessionInfo,
    what: SpentRequest,
}

impl Quotas {
    pub(super) fn new(servers: AccessServers, table: SharedTable, clock: Clock) -> Quotas {
        Quotas {
            servers: servers.0,
            table,
            clock,
            told: HashMap::new(),
            unsent: 0,
            began: Instant::now(),
            reported: [0; 3],
            reported_at: None,
            stats: Arc::default(),
        }
    }

    /// Counts of requests so far, by outcome.
    pub(super) fn stats(&self) -> Arc<Mutex<RequestStats>> {
        self.stats.clone()
    }

    /// Looks at the quotas, and asks, until it is to stop.
    pub(super) fn run(&mut self, stop: &Stop) {
        let mut scan_due = Duration::ZERO;
        while !stop.is_requested() {
            if self.began.elapsed() >= scan_due {
                self.scan(stop);
                scan_due = self.began.elapsed() + SCAN_INTERVAL;
            }
            for server in self.servers.values_mut() {
                server.exchange(self.began.elapsed());
            }
            let stats = self.sum();
            *self.stats.lock().unwrap_or_else(PoisonError::into_inner) = stats;
            self.report(&stats);
            self.wait(stop, scan_due);
        }
    }

    fn wait(&self, stop: &Stop, scan_due: Duration) {
        let servers = self.servers.values();
        let due = servers.filter_map(|server| server.requests.next_due());
        let due = due.min().map_or(scan_due, |due| due.min(scan_due));
        let wait = due.saturating_sub(self.began.elapsed());
        let wait = Timespec::try_from(wait).unwrap_or_default();
        let mut fds = vec![PollFd::new(stop, PollFlags::IN)];
        let sockets = self.servers.values().map(|server| &server.socket);
        fds.extend(sockets.map(|socket| PollFd::new(socket, PollFlags::IN)));
        // A signal ends the wait.
        let _ = poll(&mut fds, Some(&wait));
    }

    /// Asks for the sessions whose quotas are spent. Those for which there is no room now are there
    /// the next time.
    fn scan(&mut self, stop: &Stop) {
        let mut servers = self.servers.values();
        if !servers.any(|server| server.requests.has_room()) {
            return;
        }
        let mut from = 0;
        while !stop.is_requested() {
            let table = locked(&self.table);
            let to = table.rows.rows().min(from + ROWS_AT_ONCE);
            let mut spent = Vec::new();
            for row in from..to {
                let left = table.meter.quota_left(row);
                if left.is_none_or(|left| left > 0) {
                    // Rarely there: a million rows are looked at.
                    if !self.told.is_empty() {
                        self.told.remove(&row);
                    }
                    continue;
                }
                let tag = table.meter.tag(row);
                if self.told.get(&row) == Some(&tag) {
                    continue;
                }
                if let Some((info, what)) = table.rows.spent_request(row) {
                    let (info, what) = (info.clone(), what.clone());
                    spent.push(Spent {
                        row,
                        tag,
                        info,
                        what,
                    });
                }
            }
            drop(table);
            for session in spent {
                if self.ask(&session) {
                    self.told.insert(session.row, session.tag);
                }
            }
            if to < from + ROWS_AT_ONCE {
                return;
            }
            from = to;
        }
    }

    /// Whether that is done: false if there is no room for the request now.
    fn ask(&mut self, spent: &Spent) -> bool {
        let name = SessionName::of(&spent.info.id);
        let server = name
            .as_ref()
            .and_then(|name| self.servers.get_mut(&name.client));
        let (Some(name), Some(server)) = (&name, server) else {
            self.unsent += 1;
            return true;
        };
        if !server.requests.has_room() {
            return false;
        }
        let unix_s = self.clock.now().unix_ns.div_euclid(1_000_000_000);
        let unix_s = u32::try_from(unix_s).unwrap_or(0);
        let user = &spent.info.subscriber;
        let now = self.began.elapsed();
        // One that cannot be named is counted there.
        server.requests.ask(&spent.what, name, user, now, unix_s);
        true
    }

    fn sum(&self) -> RequestStats {
        let mut sum = RequestStats {
            unsent: self.unsent,
            ..RequestStats::default()
        };
        for server in self.servers.values() {
            sum.add(&server.requests.stats());
        }
        sum
    }

    /// Says which requests had no success, at most once a minute.
    fn report(&mut self, stats: &RequestStats) {
        let failed = [stats.nak, stats.none, stats.unsent];
        let is_due = self.reported_at.is_none_or(|at| at.elapsed() >= REPORT);
        if failed == self.reported || !is_due {
            return;
        }
        let causes = self.servers.values();
        let cause = causes.filter_map(|server| {
            let cause = server.requests.last_cause()?;
            Some(format!(" (Error-Cause {cause} of {})", server.address))
        });
        let cause = cause.last().unwrap_or_default();
        say(&format!(
            "weir: sessions with spent quotas, requests to access servers so far: {} acknowledged, {} \
             refused{cause}, {} without an answer, {} not sent, since no access server is known for them",
            stats.ack, stats.nak, stats.none, stats.unsent
        ));
        self.reported = failed;
        self.reported_at = Some(Instant::now());
    }
}

impl AccessServer {
    /// Takes answers, and sends what is due.
    fn exchange(&mut self, now: Duration) {
        let mut bytes = [0; packet::LEN_MAX + 1];
        for _ in 0..BATCH_MAX {
            // An answer is proved by the secret, wherever it comes from.
            match self.socket.recv_from(&mut bytes) {
                Ok((length, _)) => self.requests.take(&bytes[..length]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        for packet in self.requests.due(now) {
            // What is lost is sent again.
            let _ = self.socket.send_to(&packet, self.address);
        }
    }
}
