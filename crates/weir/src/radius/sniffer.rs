//! A passive listener: the exchange of an access server and a RADIUS server, as it passes on a link,
//! through a port of weir's.
//!
//! ```text
//!  Accounting-Request, proved ─► kept ─► Accounting-Response, proved ─► session event
//! ```
//!
//! A request counts when the server has answered it: one that the server refuses begins no session.
//! Both authenticators are verified, so that no other host on the link can forge either.

use super::server::{SILENCE_INTERVAL, event, unix_ns};
use super::{Clients, Stats};
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};
use weir_broker::{Port, Timeout};
use weir_meter::SessionEvent;
use weir_meter::radius::accounting::{Accounting, Request, RequestError};
use weir_meter::radius::packet::{ACCOUNTING_REQUEST, ACCOUNTING_RESPONSE, Packet};
use weir_wire::ethernet::{Frame, Tag};
use weir_wire::{EtherType, Protocol, ipv4, ipv6, udp};

/// Requests that wait for their responses, at most; the oldest is dropped for another.
const WAITING_MAX: usize = 65_536;
/// How long a request waits for its response.
const WAITING_TIME: Duration = Duration::from_secs(30);
/// VLAN tags that are skipped, at most.
const TAGS_MAX: usize = 2;
/// Frames that are taken at a time.
const BATCH_MAX: usize = 1024;

/// Client, server, identifier.
type Exchange = (SocketAddr, SocketAddr, u8);

/// The listener.
#[derive(Debug)]
pub(crate) struct Sniffer {
    port: Port,
    clients: Clients,
    accounting: Accounting,
    /// Requests without a response so far, and when they came.
    waiting: HashMap<Exchange, (Vec<u8>, Instant)>,
    by_time: VecDeque<(Exchange, Instant)>,
    silence: Option<Duration>,
    /// Since `began`.
    silence_due: Duration,
    began: Instant,
    stats: Stats,
    /// Frames that the port had no room for.
    lost: u64,
}

/// The UDP datagram of a frame: source, destination, payload. None for a fragment.
fn datagram(frame: &[u8]) -> Option<(SocketAddr, SocketAddr, &[u8])> {
    let frame = Frame::new(frame).ok()?;
    let (mut ether_type, mut bytes) = (frame.ether_type(), frame.payload());
    for _ in 0..TAGS_MAX {
        if !ether_type.is_tag() {
            break;
        }
        let tag = Tag::new(bytes).ok()?;
        (ether_type, bytes) = (tag.ether_type(), tag.payload());
    }
    let (src, dst, bytes): (IpAddr, IpAddr, &[u8]) = match ether_type {
        EtherType::IPV4 => {
            let packet = ipv4::Packet::new(bytes).ok()?;
            let is_fragment = packet.more_fragments() || packet.fragment_offset() > 0;
            if is_fragment || packet.protocol() != Protocol::UDP {
                return None;
            }
            (packet.src().into(), packet.dst().into(), packet.payload())
        }
        EtherType::IPV6 => {
            let packet = ipv6::Packet::new(bytes).ok()?;
            if packet.next_header() != Protocol::UDP {
                return None;
            }
            (packet.src().into(), packet.dst().into(), packet.payload())
        }
        _ => return None,
    };
    let datagram = udp::Datagram::new(bytes).ok()?;
    let src = SocketAddr::new(src, datagram.src_port());
    let dst = SocketAddr::new(dst, datagram.dst_port());
    Some((src, dst, datagram.payload()))
}

impl Sniffer {
    /// With a port that has the exchange's frames; sessions without an event for `silence`
    /// end.
    pub(crate) fn new(
        port: Port,
        clients: Clients,
        accounting: Accounting,
        silence: Option<Duration>,
    ) -> Sniffer {
        Sniffer {
            port,
            clients,
            accounting,
            waiting: HashMap::new(),
            by_time: VecDeque::new(),
            silence,
            silence_due: Duration::ZERO,
            began: Instant::now(),
            stats: Stats::default(),
            lost: 0,
        }
    }

    /// Takes up the log of events, after a restart of the program.
    pub(crate) fn restore(&mut self, event: &SessionEvent) {
        self.accounting.restore(event, self.began.elapsed());
    }

    /// Counts of packets by outcome; answered ones are the exchanges that were seen whole.
    pub(crate) fn stats(&self) -> Stats {
        Stats {
            unknown_policies: self.accounting.unknown_policies().0,
            ..self.stats
        }
    }

    /// The last name of a policy that there is not.
    pub(crate) fn unknown_policy(&self) -> &str {
        self.accounting.unknown_policies().1
    }

    /// Frames of the exchange that were lost before they were seen: sessions may be missing.
    pub(crate) fn lost(&self) -> u64 {
        self.lost
    }

    /// Prepares to wait for the descriptor; false if frames are there already.
    pub(crate) fn arm(&mut self) -> bool {
        self.port.arm()
    }

    /// Takes the frames that are there, and adds the events of answered requests to the batch.
    ///
    /// # Errors
    ///
    /// If the port's queue is damaged.
    pub(crate) fn receive(&mut self, batch: &mut Vec<SessionEvent>) -> Result<(), String> {
        let (now, now_ns) = (Instant::now(), unix_ns());
        let mut frames = Vec::new();
        let received = self.port.recv_batch(Timeout::NOW);
        for frame in received.map_err(|error| error.to_string())?.take(BATCH_MAX) {
            self.lost += u64::from(frame.lost_before());
            frames.push(frame.bytes().to_vec());
        }
        for frame in frames {
            if let Some((src, dst, payload)) = datagram(&frame) {
                self.take(src, dst, payload, now, now_ns, batch);
            }
        }
        while let Some((exchange, at)) = self.by_time.front()
            && now.duration_since(*at) > WAITING_TIME
        {
            self.drop_waiting(&exchange.clone(), *at);
            self.by_time.pop_front();
        }
        self.end_silent(now_ns, batch);
        Ok(())
    }

    fn drop_waiting(&mut self, exchange: &Exchange, at: Instant) {
        // It may have been sent again since.
        if self.waiting.get(exchange).is_some_and(|it| it.1 == at) {
            self.waiting.remove(exchange);
        }
    }

    fn take(
        &mut self,
        src: SocketAddr,
        dst: SocketAddr,
        bytes: &[u8],
        now: Instant,
        now_ns: i64,
        batch: &mut Vec<SessionEvent>,
    ) {
        let Ok(packet) = Packet::new(bytes) else {
            self.stats.malformed += 1;
            return;
        };
        match packet.code() {
            ACCOUNTING_REQUEST => self.take_request(src, dst, &packet, bytes, now),
            ACCOUNTING_RESPONSE => self.take_response(src, dst, &packet, now_ns, batch),
            _ => self.stats.malformed += 1,
        }
    }

    fn take_request(
        &mut self,
        client_at: SocketAddr,
        server: SocketAddr,
        packet: &Packet<'_>,
        bytes: &[u8],
        now: Instant,
    ) {
        let Some(client) = self.clients.of(client_at.ip()) else {
            self.stats.unknown_clients += 1;
            return;
        };
        if packet.verify_request(client.secret()).is_err() {
            self.stats.bad_authenticators += 1;
            return;
        }
        if self.by_time.len() >= WAITING_MAX
            && let Some((exchange, at)) = self.by_time.pop_front()
        {
            self.drop_waiting(&exchange, at);
        }
        let exchange = (client_at, server, packet.identifier());
        self.waiting.insert(exchange, (bytes.to_vec(), now));
        self.by_time.push_back((exchange, now));
    }

    fn take_response(
        &mut self,
        server: SocketAddr,
        client_at: SocketAddr,
        response: &Packet<'_>,
        now_ns: i64,
        batch: &mut Vec<SessionEvent>,
    ) {
        let exchange = (client_at, server, response.identifier());
        let (Some(client), Some((request, _))) =
            (self.clients.of(client_at.ip()), self.waiting.get(&exchange))
        else {
            // Its request was not seen, or not proved: that was counted then.
            return;
        };
        let Ok(packet) = Packet::new(request) else {
            return;
        };
        let proved = response.verify_response(packet.authenticator(), client.secret());
        if proved.is_err() {
            self.stats.bad_authenticators += 1;
            return;
        }
        self.stats.answered += 1;
        let (name, swapped) = (client.name(), client.is_swapped());
        let request = Request::read(&packet, &name, client_at.ip(), now_ns, swapped);
        let made = match &request {
            Ok(request) => self.accounting.events(request, self.began.elapsed()),
            // Tunnels and failures are no sessions.
            Err(RequestError::Status(Some(_))) => Ok(Vec::new()),
            Err(_) => {
                self.stats.malformed += 1;
                self.waiting.remove(&exchange);
                return;
            }
        };
        let happened = request.ok().filter(|request| request.has_timestamp);
        let happened = happened.map(|request| request.happened_ns);
        self.waiting.remove(&exchange);
        let Ok(kinds) = made else {
            self.stats.too_many_sessions += 1;
            return;
        };
        if kinds.is_empty() {
            self.stats.without_event += 1;
        }
        batch.extend(kinds.into_iter().map(|kind| event(kind, now_ns, happened)));
    }

    fn end_silent(&mut self, now_ns: i64, batch: &mut Vec<SessionEvent>) {
        let now = self.began.elapsed();
        let Some(limit) = self.silence else { return };
        if now < self.silence_due {
            return;
        }
        self.silence_due = now.saturating_add(SILENCE_INTERVAL);
        let kinds = self.accounting.silent(now, limit);
        batch.extend(kinds.into_iter().map(|kind| event(kind, now_ns, None)));
    }
}

impl AsFd for Sniffer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.port.as_fd()
    }
}
