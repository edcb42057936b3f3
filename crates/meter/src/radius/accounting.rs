//! From Accounting-Requests to session events.
//!
//! | what arrives | rule |
//! |---|---|
//! | Start | the session begins; with the identity of one that runs, see below |
//! | Interim-Update of a session that runs | what is known of it is renewed |
//! | Interim-Update of an unknown session | the session begins, Acct-Session-Time ago |
//! | Stop | the session ends |
//! | Stop of an unknown session | noted, so that its late Start begins nothing |
//! | Start or Interim-Update after Stop | nothing, if the session of the Stop had begun by then |
//! | Accounting-On, Accounting-Off | all sessions of the access server end |
//! | a retransmission, with old or new identifier | nothing new: events are idempotent |
//! | a session without an event for the stated time | it ends |
//!
//! RADIUS identifies a session by access server and Acct-Session-Id. An access server's name counts
//! within the client that sent it, which its secret proves: no client touches another's sessions.
//! Access servers repeat Acct-Session-Ids after a reboot: a Start that is later than the running session's by more than
//! [`SAME_START_NS`], or that has another user, is another session, and ends the former.
//!
//! Times are not taken on trust: an Event-Timestamp that is more than [`TIMESTAMP_TRUSTED_NS`] from
//! the time of receipt less Acct-Delay-Time is of a clock that is wrong, and is not used. What counts
//! silence and how long an end is remembered is this machine's monotonic clock.
//!
//! A session's policy is the one that Filter-Id (RFC 2865 §5.11) names, else Class. Accounting repeats
//! the name of the Access-Accept, so a name that is repeated does not undo what a CoA-Request has
//! changed since; another name does.
//!
//! Octets are 64 bits with Acct-Input-Gigawords and Acct-Output-Gigawords (RFC 2869 §5.1, 5.2); for
//! access servers that swap directions, the caller says so. They are kept for audit alone.

use super::packet::{ACCOUNTING_REQUEST, Packet, attribute};
use crate::sessions::KEYS_MAX;
use crate::{Key, SessionEvent, SessionEventKind, SessionInfo, SessionSource};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

/// Two starts of one Acct-Session-Id within this time are the same start: Event-Timestamp has
/// seconds, and Acct-Delay-Time too.
pub const SAME_START_NS: i64 = 3_000_000_000;
/// How far Event-Timestamp may be from when the request was sent by this machine's clock: an hour.
pub const TIMESTAMP_TRUSTED_NS: i64 = 3_600_000_000_000;
/// How long the end of a session is remembered against what arrives late.
pub const ENDED_SESSION_TTL: Duration = Duration::from_mins(10);
/// Sessions that run, and ends that are remembered, at most, each.
pub const SESSIONS_MAX: usize = 2_000_000;

const SECOND_NS: i64 = 1_000_000_000;

/// The accounting part of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Acct-Status-Type.
    pub status: Status,
    /// The client that sent it, by the name that the caller gives it.
    pub client: String,
    /// The access server: NAS-Identifier, else NAS-IP-Address or NAS-IPv6-Address, else the address
    /// that the packet came from.
    pub server: String,
    /// Acct-Session-Id.
    pub session: String,
    /// User-Name.
    pub user: String,
    /// When it happened: Event-Timestamp if it is credible, else the time of receipt less
    /// Acct-Delay-Time. Unix nanoseconds.
    pub happened_ns: i64,
    /// Whether the packet said so itself, credibly.
    pub has_timestamp: bool,
    /// Acct-Session-Time, nanoseconds.
    pub lasted_ns: i64,
    /// The session's keys.
    pub keys: Vec<Key>,
    /// Filter-Id attributes.
    pub filters: Vec<String>,
    /// Class attributes.
    pub class: Vec<Vec<u8>>,
    /// Chargeable-User-Identity.
    pub chargeable_user: Option<Vec<u8>>,
    /// Octets, then packets, up then down.
    pub reported: Option<[u64; 4]>,
}

/// Acct-Status-Type (RFC 2866 §5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Start.
    Start,
    /// Stop.
    Stop,
    /// Interim-Update.
    Interim,
    /// Accounting-On or Accounting-Off.
    Restart,
}

/// Why an Accounting-Request stands for no event.
#[derive(thiserror::Error, Clone, Debug, PartialEq, Eq)]
pub enum RequestError {
    /// Another code.
    #[error("a packet of code {0}, not an Accounting-Request")]
    Code(u8),
    /// No Acct-Status-Type, or one that stands for no session: tunnels and failures.
    #[error("an Acct-Status-Type that begins or ends no session: {0:?}")]
    Status(Option<u32>),
    /// No Acct-Session-Id (RFC 2866 §5.5 requires it).
    #[error("no Acct-Session-Id")]
    Session,
    /// The table of sessions is full.
    #[error("more than {SESSIONS_MAX} sessions")]
    Full,
}

impl Request {
    /// Reads a packet that has been verified, received at this Unix time in nanoseconds from this
    /// address by this client; clients of other secrets have other names. `swapped` says that the access server counts from its own side, so that its input is
    /// what goes to the subscriber.
    ///
    /// # Errors
    ///
    /// If it is no request that stands for an event.
    pub fn read(
        packet: &Packet<'_>,
        client: &str,
        from: IpAddr,
        received_ns: i64,
        swapped: bool,
    ) -> Result<Request, RequestError> {
        if packet.code() != ACCOUNTING_REQUEST {
            return Err(RequestError::Code(packet.code()));
        }
        let status = packet.number(attribute::ACCT_STATUS_TYPE);
        let status = match status {
            Some(1) => Status::Start,
            Some(2) => Status::Stop,
            Some(3) => Status::Interim,
            Some(7 | 8) => Status::Restart,
            other => return Err(RequestError::Status(other)),
        };
        let text = |kind| packet.first(kind).map(text);
        let session = text(attribute::ACCT_SESSION_ID).unwrap_or_default();
        if session.is_empty() && status != Status::Restart {
            return Err(RequestError::Session);
        }
        let seconds = |kind| i64::from(packet.number(kind).unwrap_or(0)) * SECOND_NS;
        let sent_ns = received_ns.saturating_sub(seconds(attribute::ACCT_DELAY_TIME));
        let timestamp = packet.number(attribute::EVENT_TIMESTAMP);
        let timestamp = timestamp.map(|seconds| i64::from(seconds) * SECOND_NS);
        let timestamp = timestamp
            .filter(|time| time.saturating_sub(sent_ns).saturating_abs() <= TIMESTAMP_TRUSTED_NS);
        let happened_ns = timestamp.unwrap_or(sent_ns);
        Ok(Request {
            status,
            client: client.to_owned(),
            server: server(packet, from),
            session,
            user: text(attribute::USER_NAME).unwrap_or_default(),
            happened_ns,
            has_timestamp: timestamp.is_some(),
            lasted_ns: seconds(attribute::ACCT_SESSION_TIME),
            keys: keys(packet),
            filters: filters(packet),
            class: class(packet),
            chargeable_user: packet
                .first(attribute::CHARGEABLE_USER_IDENTITY)
                .map(<[u8]>::to_vec),
            reported: reported(packet, swapped),
        })
    }

    fn info(&self, started_ns: i64) -> SessionInfo {
        let (server, session) = (self.server_id(), escaped(&self.session));
        SessionInfo {
            id: format!("{server}{session}/{}", started_ns.div_euclid(SECOND_NS)),
            subscriber: self.user.clone(),
            keys: self.keys.clone(),
            class: self.class.clone(),
            chargeable_user: self.chargeable_user.clone(),
            reported: self.reported,
            ..SessionInfo::default()
        }
    }

    /// How identifiers of the access server's sessions begin.
    fn server_id(&self) -> String {
        let [client, server] = [&self.client, &self.server].map(|text| escaped(text));
        format!("{PREFIX}{client}/{server}/")
    }
}

/// Keeps the known properties of a session that a later request leaves out: they have not changed.
fn keep(info: &mut SessionInfo, known: &SessionInfo) {
    if info.keys.is_empty() {
        info.keys.clone_from(&known.keys);
    }
    if info.class.is_empty() {
        info.class.clone_from(&known.class);
    }
    let chargeable_user = info.chargeable_user.take();
    info.chargeable_user = chargeable_user.or_else(|| known.chargeable_user.clone());
    info.reported = info.reported.or(known.reported);
    info.policy.clone_from(&known.policy);
    info.policy_accounted.clone_from(&known.policy_accounted);
}

/// How identifiers of sessions of RADIUS begin: `radius/CLIENT/SERVER/SESSION/START`.
const PREFIX: &str = "radius/";

/// The parts of a RADIUS session's identifier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionName {
    /// The client's name.
    pub client: String,
    /// The access server.
    pub server: String,
    /// Acct-Session-Id.
    pub session: String,
}

impl SessionName {
    /// The parts of an identifier; `None` if it is no session's of RADIUS.
    pub fn of(id: &str) -> Option<SessionName> {
        Some(parts(id)?.0)
    }
}

/// The name in an identifier, and the start, Unix seconds.
fn parts(id: &str) -> Option<(SessionName, i64)> {
    let mut parts = id.strip_prefix(PREFIX)?.split('/');
    let mut next = || parts.next().map(unescaped);
    let name = SessionName {
        client: next()?,
        server: next()?,
        session: next()?,
    };
    Some((name, parts.next()?.parse().ok()?))
}

/// The text without `/`, which divides the parts of a session's identifier.
fn escaped(text: &str) -> String {
    text.replace('%', "%25").replace('/', "%2F")
}

fn unescaped(text: &str) -> String {
    text.replace("%2F", "/").replace("%25", "%")
}

fn server(packet: &Packet<'_>, from: IpAddr) -> String {
    named_server(packet).unwrap_or_else(|| from.to_string())
}

/// The access server that a packet names: NAS-Identifier, else NAS-IP-Address or NAS-IPv6-Address.
pub fn named_server(packet: &Packet<'_>) -> Option<String> {
    let name = packet.first(attribute::NAS_IDENTIFIER).map(text);
    let ipv4 = || octets::<4>(packet.first(attribute::NAS_IP_ADDRESS)?).map(Ipv4Addr::from);
    let ipv6 = || octets::<16>(packet.first(attribute::NAS_IPV6_ADDRESS)?).map(Ipv6Addr::from);
    name.filter(|name| !name.is_empty())
        .or_else(|| ipv4().map(|address| address.to_string()))
        .or_else(|| ipv6().map(|address| address.to_string()))
}

fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value).into_owned()
}

/// Class attributes, in order.
pub fn class(packet: &Packet<'_>) -> Vec<Vec<u8>> {
    let attributes = packet.attributes();
    let class = attributes.filter(|(kind, _)| *kind == attribute::CLASS);
    class.map(|(_, value)| value.to_vec()).collect()
}

/// Filter-Id attributes, in order.
pub fn filters(packet: &Packet<'_>) -> Vec<String> {
    let attributes = packet.attributes();
    let filters = attributes.filter(|(kind, _)| *kind == attribute::FILTER_ID);
    filters.map(|(_, value)| text(value)).collect()
}

fn octets<const N: usize>(value: &[u8]) -> Option<[u8; N]> {
    value.try_into().ok()
}

fn reported(packet: &Packet<'_>, swapped: bool) -> Option<[u64; 4]> {
    let number = |kind| packet.number(kind).map(u64::from);
    let octets = |low, high| number(low).map(|low| low | number(high).unwrap_or(0) << 32);
    let up = octets(
        attribute::ACCT_INPUT_OCTETS,
        attribute::ACCT_INPUT_GIGAWORDS,
    );
    let down = octets(
        attribute::ACCT_OUTPUT_OCTETS,
        attribute::ACCT_OUTPUT_GIGAWORDS,
    );
    let packets = [
        attribute::ACCT_INPUT_PACKETS,
        attribute::ACCT_OUTPUT_PACKETS,
    ];
    let [packets_up, packets_down] = packets.map(|kind| number(kind).unwrap_or(0));
    let (up, down) = (up?, down?);
    Some(if swapped {
        [down, up, packets_down, packets_up]
    } else {
        [up, down, packets_up, packets_down]
    })
}

/// The keys of a session's attributes, the first [`KEYS_MAX`] of them. Framed-IP-Address
/// 255.255.255.255 and 255.255.255.254 stand for no address (RFC 2865 §5.8). A prefix of no bits is
/// a default route, not what one session owns.
pub fn keys(packet: &Packet<'_>) -> Vec<Key> {
    let mut keys = Vec::new();
    for (kind, value) in packet.attributes() {
        let key = match kind {
            attribute::FRAMED_IP_ADDRESS => octets::<4>(value)
                .filter(|octets| !matches!(octets, [255, 255, 255, 254 | 255] | [0, 0, 0, 0]))
                .map(|octets| Key::Ipv4(octets.into())),
            attribute::FRAMED_IPV6_ADDRESS => {
                octets::<16>(value).map(|octets| Key::Ipv6(octets.into()))
            }
            attribute::FRAMED_IPV6_PREFIX | attribute::DELEGATED_IPV6_PREFIX => prefix(value),
            attribute::FRAMED_ROUTE | attribute::FRAMED_IPV6_ROUTE => route(value),
            _ => None,
        };
        keys.extend(key.filter(|key| !keys.contains(key)));
        if keys.len() == KEYS_MAX {
            break;
        }
    }
    keys
}

/// A prefix: a reserved byte, the length in bits, and the bytes of the prefix that are not zero
/// (RFC 3162 §2.3).
fn prefix(value: &[u8]) -> Option<Key> {
    let [_, length, given @ ..] = value else {
        return None;
    };
    let mut octets = [0; 16];
    octets.get_mut(..given.len())?.copy_from_slice(given);
    owned(IpAddr::from(octets), *length)
}

/// The prefix of `PREFIX GATEWAY METRIC…`; without a length it is that of a host.
fn route(value: &[u8]) -> Option<Key> {
    let text = std::str::from_utf8(value).ok()?;
    let first = text.split_whitespace().next()?;
    let (address, length) = match first.split_once('/') {
        Some((address, length)) => (address.parse().ok()?, Some(length.parse().ok()?)),
        None => (first.parse::<IpAddr>().ok()?, None),
    };
    let whole = if address.is_ipv4() { 32 } else { 128 };
    owned(address, length.unwrap_or(whole))
}

/// The key of a prefix that has bits.
fn owned(address: IpAddr, length: u8) -> Option<Key> {
    Key::prefix(address, length).filter(|_| length > 0)
}

/// An access server: the client that sends for it, and its name.
type ServerName = (String, String);
/// Access server and Acct-Session-Id.
type Identity = (ServerName, String);

#[derive(Clone, Debug)]
struct Running {
    info: SessionInfo,
    started_ns: i64,
    /// On the caller's monotonic clock.
    received_at: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Ended {
    happened_ns: i64,
    /// On the caller's monotonic clock.
    noted: Duration,
}

/// The sessions of RADIUS that run, and those that ended lately.
#[derive(Clone, Debug, Default)]
pub struct Accounting {
    running: HashMap<Identity, Running>,
    ended: HashMap<Identity, Ended>,
    /// By when they were noted, so that the oldest are forgotten first.
    ended_by_time: BTreeMap<Duration, Vec<Identity>>,
    /// The names of policies.
    policies: HashSet<String>,
    unknown_policies: u64,
    unknown_policy: String,
}

impl Accounting {
    /// Without sessions; these policies may be named.
    pub fn new(policies: impl IntoIterator<Item = String>) -> Accounting {
        Accounting {
            policies: policies.into_iter().collect(),
            ..Accounting::default()
        }
    }

    /// The first of these attributes' values, Filter-Id before Class, that is a policy's name.
    pub fn policy_of(&self, filters: &[String], class: &[Vec<u8>]) -> Option<&str> {
        let class = class.iter().filter_map(|value| str::from_utf8(value).ok());
        let mut names = filters.iter().map(String::as_str).chain(class);
        let named = names.find_map(|name| self.policies.get(name));
        named.map(String::as_str)
    }

    /// Requests whose Filter-Id attributes name no policy, and a value of the last one; without
    /// policies none, since the attribute is of filters of the access server then.
    pub fn unknown_policies(&self) -> (u64, &str) {
        (self.unknown_policies, &self.unknown_policy)
    }

    /// The policy that a request names; notes one that there is not.
    fn policy_named(&mut self, request: &Request) -> Option<String> {
        let named = self.policy_of(&request.filters, &request.class);
        let named = named.map(str::to_owned);
        if let (None, Some(filter)) = (&named, request.filters.first())
            && !self.policies.is_empty()
        {
            self.unknown_policies += 1;
            self.unknown_policy.clone_from(filter);
        }
        named
    }

    /// Number of sessions that run.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// The properties of a running session: the one of this client, access server and
    /// Acct-Session-Id.
    pub fn find(&self, client: &str, server: &str, session: &str) -> Option<&SessionInfo> {
        let server = (client.to_owned(), server.to_owned());
        let running = self.running.get(&(server, session.to_owned()))?;
        Some(&running.info)
    }

    /// Changes a session otherwise than by accounting: its policy, and its Class attributes unless
    /// there are none here. None if that changes nothing, or if no such session runs.
    pub fn change(
        &mut self,
        client: &str,
        server: &str,
        session: &str,
        policy: Option<String>,
        class: Vec<Vec<u8>>,
    ) -> Option<SessionInfo> {
        let server = (client.to_owned(), server.to_owned());
        let running = self.running.get_mut(&(server, session.to_owned()))?;
        let mut info = running.info.clone();
        info.policy = policy.or(info.policy);
        if !class.is_empty() {
            info.class = class;
        }
        if info == running.info {
            return None;
        }
        running.info.clone_from(&info);
        Some(info)
    }

    /// Ends a session otherwise than by a Stop: a late Start of it begins nothing.
    pub fn disconnect(
        &mut self,
        client: &str,
        server: &str,
        session: &str,
        happened_ns: i64,
        now: Duration,
    ) -> Option<SessionInfo> {
        let server = (client.to_owned(), server.to_owned());
        let identity = (server, session.to_owned());
        let running = self.running.remove(&identity)?;
        self.end(identity, happened_ns, now);
        Some(running.info)
    }

    /// The events that a request stands for, in order; none for one that changes nothing. The caller
    /// makes them durable before it answers. `now` is the time on a monotonic clock.
    ///
    /// # Errors
    ///
    /// If the table of sessions is full.
    pub fn events(
        &mut self,
        request: &Request,
        now: Duration,
    ) -> Result<Vec<SessionEventKind>, RequestError> {
        self.forget(now);
        let server = (request.client.clone(), request.server.clone());
        let identity = (server, request.session.clone());
        match request.status {
            Status::Restart => {
                let server = &identity.0;
                // What began after the restart goes on: the request was late.
                let ended = self.running.extract_if(|identity, running| {
                    identity.0 == *server && running.started_ns <= request.happened_ns
                });
                let ended: Vec<_> = ended.collect();
                let later = self.running.keys().any(|identity| identity.0 == *server);
                if ended.is_empty() && later {
                    return Ok(Vec::new());
                }
                if later {
                    let infos = ended
                        .into_iter()
                        .map(|(_, it)| SessionEventKind::Down(it.info));
                    return Ok(infos.collect());
                }
                Ok(vec![SessionEventKind::AllDown {
                    server: request.server_id(),
                }])
            }
            Status::Start | Status::Interim => self.up(identity, request, now),
            Status::Stop => Ok(self.down(identity, request, now)),
        }
    }

    fn up(
        &mut self,
        identity: Identity,
        request: &Request,
        now: Duration,
    ) -> Result<Vec<SessionEventKind>, RequestError> {
        let is_start = request.status == Status::Start;
        let started_ns = if is_start {
            request.happened_ns
        } else {
            request.happened_ns.saturating_sub(request.lasted_ns)
        };
        if let Some(ended) = self.ended.get(&identity) {
            // Late: of the session that has ended. A later start is another session.
            if !is_start || started_ns <= ended.happened_ns {
                return Ok(Vec::new());
            }
        }
        let mut events = Vec::new();
        let named = self.policy_named(request);
        if let Some(running) = self.running.get_mut(&identity) {
            let later = started_ns.saturating_sub(running.started_ns) > SAME_START_NS;
            let other = running.info.subscriber != request.user;
            if !(is_start && (later || other)) {
                running.received_at = now;
                let mut info = request.info(running.started_ns);
                keep(&mut info, &running.info);
                if named.is_some() && named != info.policy_accounted {
                    info.policy.clone_from(&named);
                    info.policy_accounted = named;
                }
                if info == running.info {
                    return Ok(Vec::new());
                }
                running.info = info.clone();
                return Ok(vec![SessionEventKind::Up(info)]);
            }
            if started_ns < running.started_ns {
                // The start of an earlier session with this identity, late.
                return Ok(Vec::new());
            }
            events.push(SessionEventKind::Down(running.info.clone()));
        } else if self.running.len() >= SESSIONS_MAX {
            return Err(RequestError::Full);
        }
        let mut info = request.info(started_ns);
        info.policy.clone_from(&named);
        info.policy_accounted = named;
        let running = Running {
            info: info.clone(),
            started_ns,
            received_at: now,
        };
        self.begin(identity, running);
        events.push(SessionEventKind::Up(info));
        Ok(events)
    }

    /// The session runs. An earlier end with this identity is over: later requests are of this one.
    fn begin(&mut self, identity: Identity, running: Running) {
        self.ended.remove(&identity);
        self.running.insert(identity, running);
    }

    /// Remembers an end.
    fn end(&mut self, identity: Identity, happened_ns: i64, now: Duration) {
        if self.ended.len() < SESSIONS_MAX {
            let ended = Ended {
                happened_ns,
                noted: now,
            };
            self.ended.insert(identity.clone(), ended);
            self.ended_by_time.entry(now).or_default().push(identity);
        }
    }

    fn down(
        &mut self,
        identity: Identity,
        request: &Request,
        now: Duration,
    ) -> Vec<SessionEventKind> {
        let started_ns = request.happened_ns.saturating_sub(request.lasted_ns);
        if let Some(running) = self.running.get(&identity)
            && running.started_ns > request.happened_ns.saturating_add(SAME_START_NS)
        {
            // The end of an earlier session with this identity, late.
            return Vec::new();
        }
        let running = self.running.remove(&identity);
        if running.is_none() && self.ended.contains_key(&identity) {
            return Vec::new();
        }
        self.end(identity, request.happened_ns, now);
        let info = match running {
            Some(running) => {
                let mut info = request.info(running.started_ns);
                keep(&mut info, &running.info);
                info
            }
            None => request.info(started_ns),
        };
        vec![SessionEventKind::Down(info)]
    }

    /// Takes up an event of the log, after a restart of the program, at the time `now` on the
    /// monotonic clock. While the program did not run, no event could be received: that is no silence.
    pub fn restore(&mut self, event: &SessionEvent, now: Duration) {
        let parts = |info: &SessionInfo| {
            let (name, started_s) = parts(&info.id)?;
            let started_ns = started_s.checked_mul(SECOND_NS)?;
            Some((((name.client, name.server), name.session), started_ns))
        };
        let server = |id: &str| {
            let mut parts = id.strip_prefix(PREFIX)?.split('/').map(unescaped);
            Some((parts.next()?, parts.next()?))
        };
        if event.source != SessionSource::Radius {
            return;
        }
        match &event.kind {
            SessionEventKind::Up(info) => {
                let Some((identity, started_ns)) = parts(info) else {
                    return;
                };
                let running = Running {
                    info: info.clone(),
                    started_ns,
                    received_at: now,
                };
                self.begin(identity, running);
            }
            SessionEventKind::Down(info) => {
                let Some((identity, _)) = parts(info) else {
                    return;
                };
                self.running.remove(&identity);
                let happened_ns = event.happened_unix_ns.unwrap_or(event.received_unix_ns);
                self.end(identity, happened_ns, now);
            }
            SessionEventKind::AllDown { server: id } => {
                let Some(server) = server(id) else {
                    return;
                };
                self.running.retain(|identity, _| identity.0 != server);
            }
        }
    }

    /// Ends the sessions without an event for this time.
    pub fn silent(&mut self, now: Duration, limit: Duration) -> Vec<SessionEventKind> {
        let silent = |running: &Running| now.saturating_sub(running.received_at) > limit;
        let mut ended: Vec<_> = self.running.extract_if(|_, it| silent(it)).collect();
        ended.sort_by(|(a, _), (b, _)| a.cmp(b));
        let infos = ended.into_iter().map(|(_, running)| running.info);
        infos.map(SessionEventKind::Down).collect()
    }

    /// Forgets the ends that are long past.
    fn forget(&mut self, now: Duration) {
        while let Some(oldest) = self.ended_by_time.first_entry()
            && now.saturating_sub(*oldest.key()) > ENDED_SESSION_TTL
        {
            let noted = *oldest.key();
            for identity in oldest.remove() {
                // It may have begun and ended again meanwhile.
                if self
                    .ended
                    .get(&identity)
                    .is_some_and(|it| it.noted == noted)
                {
                    self.ended.remove(&identity);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
