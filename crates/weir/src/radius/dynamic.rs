//! Dynamic authorization (RFC 5176): Disconnect-Requests, which end sessions, and CoA-Requests, which
//! change their policies.
//!
//! | what arrives | answer |
//! |---|---|
//! | Disconnect-Request of a session that runs and came by the same client | the session ends: ACK, when that is durable |
//! | CoA-Request of such a session, with Filter-Id or Class | its policy is the one named: ACK, when that is durable |
//! | of another session | NAK, Error-Cause 503 (Session Context Not Found) |
//! | without Acct-Session-Id, or without NAS-Identifier and NAS address; CoA-Request without Filter-Id and Class | NAK, 402 (Missing Attribute) |
//! | CoA-Request whose Filter-Id names no policy | NAK, 407 (Invalid Attribute Value) |
//! | CoA-Request with Service-Type | NAK, 405 (Unsupported Service) |
//! | CoA-Request with another attribute that would change something | NAK, 401 (Unsupported Attribute) |
//! | the same packet again | the same answer |
//! | wrong or missing authenticators, Event-Timestamp beyond 300 s (RFC 5176 §6.3) | counted, no answer |
//!
//! Message-Authenticator is required: without it a request can be forged on the way (CVE-2024-3596).

use super::Clients;
use super::server::event;
use serde::Serialize;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};
use weir_meter::radius::accounting::{self, Accounting, named_server};
use weir_meter::radius::packet::{self, COA_REQUEST, DISCONNECT_REQUEST, Packet, attribute};
use weir_meter::{SessionEvent, SessionEventKind};

/// Requests that are taken at a time.
const BATCH_MAX: usize = 64;
/// Answers that are kept for packets that come again, and for how long.
const ANSWERS_MAX: usize = 1024;
const ANSWERS_TIME: Duration = Duration::from_secs(30);
/// How far Event-Timestamp may be from this machine's time, seconds.
const TIMESTAMP_S: u64 = 300;

/// Error-Cause (RFC 5176 §3.5).
const UNSUPPORTED_ATTRIBUTE: u32 = 401;
const MISSING_ATTRIBUTE: u32 = 402;
const UNSUPPORTED_SERVICE: u32 = 405;
const INVALID_VALUE: u32 = 407;
const NO_SESSION: u32 = 503;

/// The attributes of a CoA-Request: those that identify access server and session (RFC 5176 §3),
/// those that it can change, and those of the packet alone. All of a CoA-Request is applied, or
/// nothing (§2.2).
const COA_ATTRIBUTES: [u8; 23] = [
    attribute::USER_NAME,
    attribute::NAS_IP_ADDRESS,
    attribute::NAS_PORT,
    attribute::FRAMED_IP_ADDRESS,
    attribute::FILTER_ID,
    attribute::CLASS,
    attribute::CALLED_STATION_ID,
    attribute::CALLING_STATION_ID,
    attribute::NAS_IDENTIFIER,
    attribute::PROXY_STATE,
    attribute::ACCT_SESSION_ID,
    attribute::ACCT_MULTI_SESSION_ID,
    attribute::EVENT_TIMESTAMP,
    attribute::NAS_PORT_TYPE,
    attribute::MESSAGE_AUTHENTICATOR,
    attribute::NAS_PORT_ID,
    attribute::CHARGEABLE_USER_IDENTITY,
    attribute::NAS_IPV6_ADDRESS,
    attribute::FRAMED_IPV6_PREFIX,
    attribute::DELEGATED_IPV6_PREFIX,
    attribute::FRAMED_IPV6_ADDRESS,
    attribute::FRAMED_INTERFACE_ID,
    attribute::ORIGINATING_LINE_INFO,
];

/// Counts of packets by outcome, stable for scripts.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct DynamicStats {
    /// Sessions that were ended.
    pub(crate) disconnected: u64,
    /// CoA-Requests that were granted.
    pub(crate) changed: u64,
    /// Requests answered with a NAK.
    pub(crate) refused: u64,
    /// Packets of unknown clients, without proof of the secret, too old, or malformed.
    pub(crate) ignored: u64,
}

/// A packet that may come again: where from, its identifier and authenticator.
type Seen = (SocketAddr, u8, [u8; 16]);

/// The server of dynamic authorization.
#[derive(Debug)]
pub(super) struct Dynamic {
    socket: UdpSocket,
    /// Answers that wait until what they acknowledge is durable.
    replies: Vec<(Seen, Vec<u8>)>,
    answers: HashMap<Seen, Vec<u8>>,
    by_time: VecDeque<(Instant, Seen)>,
    pub(super) stats: DynamicStats,
}

impl Dynamic {
    pub(super) fn bind(address: SocketAddr) -> io::Result<Dynamic> {
        let socket = UdpSocket::bind(address)?;
        socket.set_nonblocking(true)?;
        Ok(Dynamic {
            socket,
            replies: Vec::new(),
            answers: HashMap::new(),
            by_time: VecDeque::new(),
            stats: DynamicStats::default(),
        })
    }

    pub(super) fn socket(&self) -> &UdpSocket {
        &self.socket
    }

    /// Takes the requests that are there, and adds the changes of sessions to the batch.
    pub(super) fn receive(
        &mut self,
        clients: &Clients,
        accounting: &mut Accounting,
        now: Duration,
        now_ns: i64,
        batch: &mut Vec<SessionEvent>,
    ) {
        let mut bytes = [0; packet::LEN_MAX + 1];
        for _ in 0..BATCH_MAX {
            let (length, from) = match self.socket.recv_from(&mut bytes) {
                Ok(received) => received,
                // What the network says of an earlier answer.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => continue,
                Err(_) => break,
            };
            let proved = proved(&bytes[..length], from, clients, now_ns);
            let Some((packet, client)) = proved else {
                self.stats.ignored += 1;
                continue;
            };
            let seen = (from, packet.identifier(), *packet.authenticator());
            if let Some(answer) = self.answers.get(&seen) {
                let _ = self.socket.send_to(answer, from);
                continue;
            }
            if self.replies.iter().any(|(waiting, _)| *waiting == seen) {
                continue;
            }
            let secret = client.secret();
            let is_end = packet.code() == DISCONNECT_REQUEST;
            let done = if is_end {
                disconnect(&packet, &client.name(), accounting, now, now_ns).map(Some)
            } else {
                change(&packet, &client.name(), accounting)
            };
            let reply = match done {
                Ok(kind) => {
                    batch.extend(kind.map(|kind| event(kind, now_ns, None)));
                    self.stats.disconnected += u64::from(is_end);
                    self.stats.changed += u64::from(!is_end);
                    packet.signed_response(packet.code() + 1, &[], secret)
                }
                Err(cause) => {
                    self.stats.refused += 1;
                    let cause = cause.to_be_bytes();
                    let attributes: [(u8, &[u8]); 1] = [(attribute::ERROR_CAUSE, &cause)];
                    packet.signed_response(packet.code() + 2, &attributes, secret)
                }
            };
            self.replies.push((seen, reply));
        }
    }

    /// Answers: what became of sessions is durable.
    pub(super) fn answer(&mut self) {
        let now = Instant::now();
        while let Some((at, seen)) = self.by_time.front()
            && (now.duration_since(*at) > ANSWERS_TIME || self.by_time.len() >= ANSWERS_MAX)
        {
            self.answers.remove(seen);
            self.by_time.pop_front();
        }
        for (seen, reply) in self.replies.drain(..) {
            // An answer that is lost is asked for again.
            let _ = self.socket.send_to(&reply, seen.0);
            self.answers.insert(seen, reply);
            self.by_time.push_back((now, seen));
        }
    }
}

/// The packet and the client, if it is one that counts.
fn proved<'a, 'b>(
    bytes: &'a [u8],
    from: SocketAddr,
    clients: &'b Clients,
    now_ns: i64,
) -> Option<(Packet<'a>, &'b super::Client)> {
    let client = clients.of(from.ip())?;
    let packet = Packet::new(bytes).ok()?;
    if ![DISCONNECT_REQUEST, COA_REQUEST].contains(&packet.code()) {
        return None;
    }
    packet.verify_request(client.secret()).ok()?;
    packet.verify_message(&[0; 16], client.secret()).ok()?;
    if let Some(seconds) = packet.number(attribute::EVENT_TIMESTAMP) {
        let now_s = now_ns.div_euclid(1_000_000_000);
        if now_s.abs_diff(seconds.into()) > TIMESTAMP_S {
            return None;
        }
    }
    Some((packet, client))
}

/// Access server and Acct-Session-Id of the session that a request names, if it runs and is what the
/// request says of it.
fn named_session(
    packet: &Packet<'_>,
    client: &str,
    accounting: &Accounting,
) -> Result<(String, String), u32> {
    let text = |kind| packet.first(kind).map(String::from_utf8_lossy);
    let session = text(attribute::ACCT_SESSION_ID).ok_or(MISSING_ATTRIBUTE)?;
    let server = named_server(packet).ok_or(MISSING_ATTRIBUTE)?;
    let user = text(attribute::USER_NAME);
    let found = accounting.find(client, &server, &session);
    let found = found.ok_or(NO_SESSION)?;
    let is_of_user = user.is_none_or(|user| user == found.subscriber);
    // All that identifies it has to fit (RFC 5176 §3).
    let keys = accounting::keys(packet);
    if !is_of_user || keys.iter().any(|key| !found.keys.contains(key)) {
        return Err(NO_SESSION);
    }
    Ok((server, session.into_owned()))
}

/// Ends the session that a Disconnect-Request names.
fn disconnect(
    packet: &Packet<'_>,
    client: &str,
    accounting: &mut Accounting,
    now: Duration,
    now_ns: i64,
) -> Result<SessionEventKind, u32> {
    let (server, session) = named_session(packet, client, accounting)?;
    let ended = accounting.disconnect(client, &server, &session, now_ns, now);
    ended.map(SessionEventKind::Down).ok_or(NO_SESSION)
}

/// Changes the session that a CoA-Request names; no event if it is so already.
fn change(
    packet: &Packet<'_>,
    client: &str,
    accounting: &mut Accounting,
) -> Result<Option<SessionEventKind>, u32> {
    let mut kinds = packet.attributes().map(|(kind, _)| kind);
    if packet.first(attribute::SERVICE_TYPE).is_some() {
        return Err(UNSUPPORTED_SERVICE);
    }
    if kinds.any(|kind| !COA_ATTRIBUTES.contains(&kind)) {
        return Err(UNSUPPORTED_ATTRIBUTE);
    }
    let (filters, class) = (accounting::filters(packet), accounting::class(packet));
    if filters.is_empty() && class.is_empty() {
        return Err(MISSING_ATTRIBUTE);
    }
    let (server, session) = named_session(packet, client, accounting)?;
    let policy = if filters.is_empty() {
        accounting.policy_of(&[], &class)
    } else {
        let named = accounting.policy_of(&filters, &[]);
        Some(named.ok_or(INVALID_VALUE)?)
    };
    let policy = policy.map(str::to_owned);
    let changed = accounting.change(client, &server, &session, policy, class);
    Ok(changed.map(SessionEventKind::Up))
}
