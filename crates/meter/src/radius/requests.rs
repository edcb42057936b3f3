//! Requests of dynamic authorization to one access server (RFC 5176 §2): sent, sent again, answered,
//! given up.
//!
//! ```text
//!  ask ─► waits for its turn ─► sent ─┬─► ACK, NAK
//!                                 ▲   │
//!                                 └───┴─ no answer: again, the same bytes ─► given up
//! ```
//!
//! Times between two attempts are those of RFC 5080 §2.2.1, which RFC 5176 §2.3 asks for.

use super::accounting::SessionName;
use super::packet::{self, COA_REQUEST, DISCONNECT_REQUEST, Packet, attribute};
use crate::policy::SpentRequest;
use serde::Serialize;
use std::net::IpAddr;
use std::time::Duration;
use weir_wire::rng::SplitMix64;

/// IRT of RFC 5080 §2.2.1: from the first attempt to the second.
pub const FIRST_INTERVAL: Duration = Duration::from_secs(2);
/// MRT: between two attempts at most.
pub const INTERVAL_MAX: Duration = Duration::from_secs(16);
/// MRC: attempts at most.
pub const ATTEMPTS_MAX: u32 = 5;
/// MRD: a request is given up after so long.
pub const TIME_MAX: Duration = Duration::from_secs(30);
/// Requests without an answer at a time, at most: as many as there are identifiers.
pub const WAITING_MAX: usize = 256;
/// Bytes of an attribute's value, at most.
const VALUE_MAX: usize = 253;

/// Counts of requests by outcome, stable for scripts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RequestStats {
    /// Requests that were acknowledged.
    pub ack: u64,
    /// Requests that the access server refused.
    pub nak: u64,
    /// Requests that were given up without an answer.
    pub none: u64,
    /// Requests that were not sent: of sessions of no access server with an address, or that a packet
    /// has no room to name.
    pub unsent: u64,
    /// Packets that are no answer to a request, or are not proved by the secret.
    pub ignored: u64,
    /// Requests that wait for an answer now.
    pub waiting: u64,
}

impl RequestStats {
    /// Adds another access server's.
    pub fn add(&mut self, other: &RequestStats) {
        self.ack += other.ack;
        self.nak += other.nak;
        self.none += other.none;
        self.unsent += other.unsent;
        self.ignored += other.ignored;
        self.waiting += other.waiting;
    }
}

#[derive(Clone, Debug)]
struct Waiting {
    bytes: Vec<u8>,
    attempts: u32,
    interval: Duration,
    first: Duration,
    due: Duration,
}

/// The requests to one access server. Times are on the caller's monotonic clock.
#[derive(Clone, Debug)]
pub struct Requests {
    secret: Vec<u8>,
    /// By identifier.
    waiting: Vec<Option<Waiting>>,
    next: u8,
    random: SplitMix64,
    stats: RequestStats,
    cause: Option<u32>,
}

impl Requests {
    /// Without requests; `seed` is a random number, by which access servers are not asked in step.
    pub fn new(secret: Vec<u8>, seed: u64) -> Requests {
        Requests {
            secret,
            waiting: vec![None; WAITING_MAX],
            next: 0,
            random: SplitMix64::new(seed),
            stats: RequestStats::default(),
            cause: None,
        }
    }

    /// Counts of requests so far, by outcome.
    pub fn stats(&self) -> RequestStats {
        let waiting = self.waiting.iter().flatten().count() as u64;
        RequestStats {
            waiting,
            ..self.stats
        }
    }

    /// Error-Cause of the last refusal, if it had one.
    pub fn last_cause(&self) -> Option<u32> {
        self.cause
    }

    /// Whether there is an identifier for one more request.
    pub fn has_room(&self) -> bool {
        self.waiting.iter().any(Option::is_none)
    }

    /// Asks for a session's end, or its change, at this time and Unix time. False, and counted, if the
    /// session cannot be named in a packet, or without [room](Self::has_room).
    pub fn ask(
        &mut self,
        what: &SpentRequest,
        session: &SessionName,
        user: &str,
        now: Duration,
        unix_s: u32,
    ) -> bool {
        let identifier = (0..=255_u8)
            .map(|step| self.next.wrapping_add(step))
            .find(|identifier| self.waiting[usize::from(*identifier)].is_none());
        let built = identifier.and_then(|identifier| {
            let bytes = build(what, session, user, identifier, unix_s, &self.secret)?;
            Some((identifier, bytes))
        });
        let Some((identifier, bytes)) = built else {
            self.stats.unsent += 1;
            return false;
        };
        self.next = identifier.wrapping_add(1);
        self.waiting[usize::from(identifier)] = Some(Waiting {
            bytes,
            attempts: 0,
            interval: FIRST_INTERVAL,
            first: now,
            due: now,
        });
        true
    }

    /// The packets to send now; gives up what has been sent often or long enough.
    pub fn due(&mut self, now: Duration) -> Vec<Vec<u8>> {
        let mut packets = Vec::new();
        for slot in &mut self.waiting {
            let Some(waiting) = slot else { continue };
            if waiting.due > now {
                continue;
            }
            let is_late = now.saturating_sub(waiting.first) >= TIME_MAX;
            if waiting.attempts >= ATTEMPTS_MAX || is_late {
                self.stats.none += 1;
                *slot = None;
                continue;
            }
            waiting.attempts += 1;
            // RAND of RFC 5080: up to a tenth more or less.
            let part = (self.random.bits() % 201) as u32;
            let interval = waiting.interval * (900 + part) / 1000;
            waiting.interval = (waiting.interval * 2).min(INTERVAL_MAX);
            let end = waiting.first.saturating_add(TIME_MAX);
            waiting.due = now.saturating_add(interval).min(end.max(now));
            packets.push(waiting.bytes.clone());
        }
        packets
    }

    /// When [`due`](Self::due) has something to do next; `None` if nothing waits.
    pub fn next_due(&self) -> Option<Duration> {
        let waiting = self.waiting.iter().flatten();
        waiting.map(|waiting| waiting.due).min()
    }

    /// Takes a packet of the access server. Access servers do not all write Message-Authenticator into
    /// answers: it counts if it is there.
    pub fn take(&mut self, bytes: &[u8]) {
        match self.answer(bytes) {
            Some((slot, is_ack, cause)) => {
                self.waiting[slot] = None;
                if is_ack {
                    self.stats.ack += 1;
                } else {
                    self.stats.nak += 1;
                    self.cause = cause;
                }
            }
            None => self.stats.ignored += 1,
        }
    }

    /// Which request a packet answers, and whether it acknowledges it.
    fn answer(&self, bytes: &[u8]) -> Option<(usize, bool, Option<u32>)> {
        let answer = Packet::new(bytes).ok()?;
        let slot = usize::from(answer.identifier());
        let request = Packet::new(&self.waiting[slot].as_ref()?.bytes).ok()?;
        let is_ack = match answer.code().checked_sub(request.code())? {
            1 => true,
            2 => false,
            _ => return None,
        };
        let authenticator = request.authenticator();
        answer.verify_response(authenticator, &self.secret).ok()?;
        if answer.first(attribute::MESSAGE_AUTHENTICATOR).is_some() {
            answer.verify_message(authenticator, &self.secret).ok()?;
        }
        Some((slot, is_ack, answer.number(attribute::ERROR_CAUSE)))
    }
}

/// The packet; `None` if a name is longer than an attribute.
fn build(
    what: &SpentRequest,
    session: &SessionName,
    user: &str,
    identifier: u8,
    unix_s: u32,
    secret: &[u8],
) -> Option<Vec<u8>> {
    let time = unix_s.to_be_bytes();
    let mut attributes: Vec<(u8, &[u8])> = Vec::new();
    // As accounting named it: an address there is an address here.
    let (ipv4, ipv6);
    match session.server.parse() {
        Ok(IpAddr::V4(address)) => {
            ipv4 = address.octets();
            attributes.push((attribute::NAS_IP_ADDRESS, &ipv4));
        }
        Ok(IpAddr::V6(address)) => {
            ipv6 = address.octets();
            attributes.push((attribute::NAS_IPV6_ADDRESS, &ipv6));
        }
        Err(_) => attributes.push((attribute::NAS_IDENTIFIER, session.server.as_bytes())),
    }
    if !user.is_empty() {
        attributes.push((attribute::USER_NAME, user.as_bytes()));
    }
    attributes.push((attribute::ACCT_SESSION_ID, session.session.as_bytes()));
    attributes.push((attribute::EVENT_TIMESTAMP, &time));
    let code = match what {
        SpentRequest::Disconnect => DISCONNECT_REQUEST,
        SpentRequest::Change { filter } => {
            attributes.push((attribute::FILTER_ID, filter.as_bytes()));
            COA_REQUEST
        }
    };
    let fits = attributes
        .iter()
        .all(|(_, value)| (1..=VALUE_MAX).contains(&value.len()));
    fits.then(|| packet::signed_request(code, identifier, &attributes, secret))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &[u8] = b"s3cret";

    fn session(number: usize) -> SessionName {
        SessionName {
            client: "203.0.113.1".into(),
            server: "nas".into(),
            session: format!("s{number}"),
        }
    }

    fn ask(requests: &mut Requests, number: usize, now: Duration) -> bool {
        let what = SpentRequest::Disconnect;
        requests.ask(&what, &session(number), "alice", now, 1_700_000_000)
    }

    fn seconds(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    #[test]
    fn a_request_is_sent_again_and_given_up_by_rfc_5080() {
        for seed in 1..200 {
            let mut requests = Requests::new(SECRET.to_vec(), seed);
            assert_eq!(requests.next_due(), None);
            assert!(ask(&mut requests, 1, seconds(5.0)));
            let (mut sent, mut times) = (Vec::new(), Vec::new());
            while let Some(due) = requests.next_due() {
                for bytes in requests.due(due) {
                    sent.push(bytes);
                    times.push(due.as_secs_f64() - 5.0);
                }
            }
            // 2, 4, 8 and 16 s by turns, a tenth more or less each, and 30 s at most.
            assert!((4..=5).contains(&sent.len()), "{times:?}");
            assert!(sent.iter().all(|bytes| *bytes == sent[0]));
            for (at, interval) in times.windows(2).zip([2.0, 4.0, 8.0, 16.0]) {
                let found = at[1] - at[0];
                assert!((found / interval - 1.0).abs() <= 0.1001, "{times:?}");
            }
            let stats = requests.stats();
            assert_eq!((stats.none, stats.waiting), (1, 0));
        }
    }

    #[test]
    fn an_answer_ends_its_request_if_it_is_proved() {
        let mut requests = Requests::new(SECRET.to_vec(), 1);
        for number in 0..4 {
            assert!(ask(&mut requests, number, Duration::ZERO));
        }
        let sent = requests.due(Duration::ZERO);
        let packets: Vec<_> = sent.iter().map(|it| Packet::new(it).unwrap()).collect();
        let [ack, nak, forged, other] = &packets[..] else {
            panic!("{sent:?}")
        };
        assert_eq!(ack.verify_request(SECRET), Ok(()));
        assert_eq!(ack.verify_message(&[0; 16], SECRET), Ok(()));
        let value = |kind| ack.first(kind).unwrap();
        assert_eq!(value(attribute::NAS_IDENTIFIER), b"nas");
        assert_eq!(value(attribute::ACCT_SESSION_ID), b"s0");
        assert_eq!(value(attribute::USER_NAME), b"alice");
        assert_eq!(ack.number(attribute::EVENT_TIMESTAMP), Some(1_700_000_000));
        requests.take(&ack.signed_response(41, &[], SECRET));
        let cause: (u8, &[u8]) = (attribute::ERROR_CAUSE, &[0, 0, 1, 247]);
        requests.take(&nak.signed_response(42, &[cause], SECRET));
        assert_eq!(requests.last_cause(), Some(503));
        // Of another secret, of another kind of request, again, and no packet.
        requests.take(&forged.signed_response(41, &[], b"guess"));
        requests.take(&other.signed_response(44, &[], SECRET));
        requests.take(&ack.signed_response(41, &[], SECRET));
        requests.take(b"junk");
        let stats = requests.stats();
        assert_eq!((stats.ack, stats.nak, stats.ignored), (1, 1, 4));
        assert_eq!((stats.none, stats.waiting), (0, 2));
        // The others are given up.
        while let Some(due) = requests.next_due() {
            requests.due(due);
        }
        assert_eq!(requests.stats().none, 2);
    }

    #[test]
    fn an_answer_without_message_authenticator_counts_and_a_wrong_one_does_not() {
        let mut requests = Requests::new(SECRET.to_vec(), 1);
        assert!(ask(&mut requests, 1, Duration::ZERO));
        let sent = requests.due(Duration::ZERO);
        let request = Packet::new(&sent[0]).unwrap();
        // As `Packet::response` is built, of another code.
        let plain = |mac: &[u8]| {
            use md5::{Digest, Md5};
            let mut bytes = vec![41, request.identifier(), 0, 20 + mac.len() as u8];
            let mut hash = Md5::new();
            hash.update(&bytes);
            hash.update(request.authenticator());
            hash.update(mac);
            hash.update(SECRET);
            bytes.extend_from_slice(&hash.finalize());
            bytes.extend_from_slice(mac);
            bytes
        };
        let wrong = [&[attribute::MESSAGE_AUTHENTICATOR, 18][..], &[7; 16]].concat();
        requests.take(&plain(&wrong));
        assert_eq!((requests.stats().ack, requests.stats().ignored), (0, 1));
        requests.take(&plain(&[]));
        assert_eq!((requests.stats().ack, requests.stats().ignored), (1, 1));
    }

    #[test]
    fn there_are_as_many_requests_as_identifiers() {
        let mut requests = Requests::new(SECRET.to_vec(), 9);
        for number in 0..WAITING_MAX {
            assert!(requests.has_room());
            assert!(ask(&mut requests, number, Duration::ZERO));
        }
        assert!(!requests.has_room());
        assert!(!ask(&mut requests, 0, Duration::ZERO));
        let sent = requests.due(Duration::ZERO);
        let mut identifiers: Vec<u8> = sent.iter().map(|bytes| bytes[1]).collect();
        identifiers.sort_unstable();
        assert!(identifiers.into_iter().eq(0..=255));
        let seventh = Packet::new(&sent[7]).unwrap();
        requests.take(&seventh.signed_response(41, &[], SECRET));
        assert!(ask(&mut requests, 300, Duration::ZERO));
        assert_eq!(requests.due(Duration::ZERO)[0][1], sent[7][1]);
        assert_eq!(requests.stats().unsent, 1);
    }

    #[test]
    fn a_session_is_named_as_accounting_named_it() {
        let mut requests = Requests::new(SECRET.to_vec(), 3);
        let change = SpentRequest::Change {
            filter: "portal".into(),
        };
        for (server, kind) in [
            ("192.0.2.1", attribute::NAS_IP_ADDRESS),
            ("2001:db8::1", attribute::NAS_IPV6_ADDRESS),
            ("pop 1", attribute::NAS_IDENTIFIER),
        ] {
            let name = SessionName {
                server: server.into(),
                ..session(1)
            };
            assert!(requests.ask(&change, &name, "", Duration::ZERO, 7));
            let sent = requests.due(Duration::ZERO);
            let packet = Packet::new(&sent[0]).unwrap();
            assert_eq!(packet.code(), COA_REQUEST);
            assert!(packet.first(kind).is_some(), "{server}");
            assert_eq!(packet.first(attribute::FILTER_ID), Some(&b"portal"[..]));
            assert_eq!(packet.first(attribute::USER_NAME), None);
            requests.take(&packet.signed_response(44, &[], SECRET));
        }
        let long = "x".repeat(254);
        assert!(!requests.ask(&change, &session(1), &long, Duration::ZERO, 7));
        let stats = requests.stats();
        assert_eq!((stats.ack, stats.unsent, stats.waiting), (3, 1, 0));
    }
}
