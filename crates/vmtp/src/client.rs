//! A client: one message transaction at a time (RFC 1045 §2.3, §5).
//!
//! ```text
//!            call                    first packet of the response
//!   Idle ──────────► AwaitingResponse ─────────► ReceivingResponse
//!    ▲                │  ▲ time-out: the request     │  ▲ time-out: NotifyVmtpServer
//!    │                └──┘ again, with APG           └──┘ RETRY, with the delivery mask
//!    └────────────────┴──────────────────────────────┘
//!            an event: response, failure, or the end of a group's responses
//! ```

use crate::packet::{Flags, Packet, Repr, code, manager};
use crate::rtt::Rtt;
use crate::segment::{self, Assembly, SEGMENT_LEN_MAX};
use crate::{Destination, Drops, Entity};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Retries before a transaction fails: the largest count that the header holds.
pub const RETRIES_MAX: u8 = 7;
/// Servers of a group whose responses a client collects.
pub const RESPONDERS_MAX: usize = 64;
/// Responses of at most 16 KiB each that a client puts together at a time, where one
/// is enough: a response whose packets stop does not keep the others out.
pub const PARTIALS_MAX: usize = 4;
/// Servers whose link address and round-trip time a client remembers.
pub const SERVERS_MAX: usize = 64;
/// Answers to managers that wait to be sent.
const ANSWERS_MAX: usize = 16;
/// Largest number of blocks in a packet, by default: what Ethernet's MTU allows.
const PACKET_BLOCKS: usize = 2;
/// Time limit of a transaction, whatever its server says meanwhile, unless responses are
/// collected. A server must remember the transaction for longer:
/// [`Limits::remember`](crate::server::Limits::remember).
pub const CALL_TIME_MAX: Duration = Duration::from_secs(30);
/// How long a client waits for a server that has said that it is at work.
const WORKING: Duration = Duration::from_millis(500);

/// A request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// The server, or a group of servers.
    pub server: Entity,
    /// The request code, 24 bits; its meaning is the application's.
    pub code: u32,
    /// Three words for the server.
    pub user_data: [u32; 3],
    /// Data for the server, at most [`SEGMENT_LEN_MAX`] bytes.
    pub segment: Vec<u8>,
    /// For a group: collect the responses of several servers for this time.
    /// `None` takes the first response.
    pub collect: Option<Duration>,
    /// Whether the request goes to the server's manager: see
    /// [`Request::probe`].
    pub probe: bool,
}

impl Request {
    /// A request without data.
    pub fn new(server: Entity, code: u32) -> Request {
        Request {
            server,
            code,
            user_data: [0; 3],
            segment: Vec::new(),
            collect: None,
            probe: false,
        }
    }

    /// A probe: whether an entity is there, which its host's manager answers.
    pub fn probe(entity: Entity) -> Request {
        Request {
            probe: true,
            ..Request::new(entity, manager::PROBE)
        }
    }
}

/// A response.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Response {
    /// The server that responds; of a group, one of its members.
    pub server: Entity,
    /// The response code; 0 is OK, others are the application's or those of
    /// [`code`].
    pub code: u32,
    /// Three words of the server.
    pub user_data: [u32; 3],
    /// Data of the server.
    pub segment: Vec<u8>,
}

/// Why a transaction failed.
#[derive(thiserror::Error, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// No response in time; the server may have executed the request.
    #[error("{0} does not answer")]
    NoAnswer(Entity),
    /// The server's manager refused.
    #[error("{server} refuses: {}", named(*code))]
    Refused {
        /// The server.
        server: Entity,
        /// The reason, one of [`code`].
        code: u32,
    },
}

fn named(number: u32) -> String {
    code::name(number).map_or_else(|| format!("code {number}"), str::to_owned)
}

/// An event of a client for its application.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A response. It ends the transaction, unless responses are collected.
    Response(Response),
    /// The time to collect responses is over; the transaction has ended.
    Collected,
    /// The transaction has ended without a response.
    Failed(Failure),
}

/// A call was refused: the client has a transaction under way.
#[derive(thiserror::Error, Clone, Copy, PartialEq, Eq, Debug)]
#[error("the client has a transaction under way already")]
pub struct Busy;

/// A client's state of a server.
#[derive(Clone, Copy, Debug)]
struct Known<L> {
    link: L,
    rtt: Rtt,
    /// The transaction that last used the entry.
    used: u32,
}

/// A response that is not complete yet.
#[derive(Debug)]
struct Partial {
    head: Repr,
    assembly: Assembly,
    /// The call's count of growths when the response last grew.
    grown: u64,
}

#[derive(Debug)]
struct Call<L> {
    request: Request,
    /// Blocks of the request to send; `first` also if there are none.
    pending: u32,
    first: bool,
    retries: u8,
    began: Duration,
    /// The time of the only sending so far; `None` after another.
    sent_once: Option<Duration>,
    deadline: Duration,
    /// When responses are no longer collected.
    collect_until: Option<Duration>,
    /// By server and link address: packets of two stations make no response.
    partial: BTreeMap<(Entity, L), Partial>,
    /// How often responses grew.
    growths: u64,
    /// The same at the two last time-outs, the older one first.
    growths_before: [u64; 2],
    /// Servers whose response is complete, of a group that is collected.
    responded: Vec<Entity>,
}

/// A client, with `L` as the type of link addresses.
#[derive(Debug)]
pub struct Client<L> {
    entity: Entity,
    transaction: u32,
    packet_blocks: usize,
    call: Option<Call<L>>,
    known: BTreeMap<Entity, Known<L>>,
    answers: VecDeque<(L, Repr)>,
    events: VecDeque<Event>,
    drops: Drops,
}

impl<L: Copy + Ord> Call<L> {
    /// Makes room for one more response that is not complete; `false` if there is
    /// none. Where one is enough, the response that grew least recently goes.
    fn make_room(&mut self) -> bool {
        if self.collect_until.is_some() {
            return self.partial.len() < RESPONDERS_MAX - self.responded.len();
        }
        if self.partial.len() >= PARTIALS_MAX {
            let age = |(_, partial): &(&(Entity, L), &Partial)| partial.grown;
            let oldest = self.partial.iter().min_by_key(age).map(|(key, _)| *key);
            oldest.map(|key| self.partial.remove(&key));
        }
        true
    }

    /// When something is due. The time limit holds however often packets put the deadline
    /// off.
    fn due(&self) -> Duration {
        match self.collect_until {
            Some(until) => until.min(self.deadline),
            None => self.deadline.min(self.began + CALL_TIME_MAX),
        }
    }
}

impl<L: Copy + Ord> Client<L> {
    /// A client whose first transaction is `transaction`. A process that reuses
    /// the entity of an earlier one must not reuse its transactions: begin with
    /// a random number.
    pub fn new(entity: Entity, transaction: u32) -> Client<L> {
        Client {
            entity,
            transaction: transaction.wrapping_sub(1),
            packet_blocks: PACKET_BLOCKS,
            call: None,
            known: BTreeMap::new(),
            answers: VecDeque::new(),
            events: VecDeque::new(),
            drops: Drops::default(),
        }
    }

    /// Sets the number of blocks in a packet, 1 to 32; 2 by default, which fit
    /// into Ethernet's MTU of 1,500 bytes.
    #[must_use]
    pub fn packet_blocks(mut self, blocks: usize) -> Client<L> {
        assert!((1..=32).contains(&blocks), "{blocks} blocks in a packet");
        self.packet_blocks = blocks;
        self
    }

    /// The client's entity.
    pub fn entity(&self) -> Entity {
        self.entity
    }

    /// Counts of dropped packets.
    pub fn drops(&self) -> Drops {
        self.drops
    }

    /// Whether a transaction is under way.
    pub fn is_busy(&self) -> bool {
        self.call.is_some()
    }

    /// Starts a transaction; returns its number.
    ///
    /// # Errors
    /// If one is under way.
    ///
    /// # Panics
    /// If the segment is longer than [`SEGMENT_LEN_MAX`].
    pub fn call(&mut self, now: Duration, request: Request) -> Result<u32, Busy> {
        assert!(
            request.segment.len() <= SEGMENT_LEN_MAX,
            "a segment's length"
        );
        if self.call.is_some() {
            return Err(Busy);
        }
        self.transaction = self.transaction.wrapping_add(1);
        let rtt = self.rtt(request.server);
        self.call = Some(Call {
            pending: segment::all_blocks(request.segment.len()),
            first: true,
            retries: 0,
            began: now,
            sent_once: Some(now),
            deadline: now + rtt.timeout(0),
            collect_until: request.collect.map(|time| now + time),
            partial: BTreeMap::new(),
            growths: 0,
            growths_before: [0; 2],
            responded: Vec::new(),
            request,
        });
        Ok(self.transaction)
    }

    /// Gives up the transaction; the server may execute the request.
    pub fn cancel(&mut self) {
        self.call = None;
    }

    fn rtt(&self, server: Entity) -> Rtt {
        self.known
            .get(&server)
            .map_or_else(Rtt::default, |known| known.rtt)
    }

    /// Takes a packet that came from a link address.
    pub fn handle(&mut self, now: Duration, from: L, bytes: &[u8]) {
        let Ok(packet) = Packet::new(bytes) else {
            self.drops.malformed += 1;
            return;
        };
        let head = Repr::parse(&packet);
        if head.response {
            if head.client != self.entity {
                self.drops.not_ours += 1;
                return;
            }
            self.handle_response(now, from, head, packet.data());
        } else if !head.flags.has(Flags::PUBLIC) {
            self.drops.not_ours += 1;
        } else if head.code == manager::NOTIFY_CLIENT && head.client == self.entity {
            self.handle_notification(now, &head);
        } else if head.code == manager::PROBE && head.server == self.entity {
            self.answer_probe(from, &head);
        } else {
            self.drops.not_ours += 1;
        }
    }

    fn handle_response(&mut self, now: Duration, from: L, head: Repr, data: &[u8]) {
        let (transaction, entity) = (self.transaction, self.entity);
        let is_current = |call: &&mut Call<L>| {
            let server = call.request.server;
            head.transaction == transaction && (server.is_group() || server == head.server)
        };
        let Some(call) = self.call.as_mut().filter(is_current) else {
            self.drops.stale += 1;
            // Its sender would otherwise send the rest again and again.
            if head.acknowledge {
                self.answer(
                    from,
                    notification(entity, &head, code::RESPONSE_DISCARDED, 0),
                );
            }
            return;
        };
        if call.responded.contains(&head.server) {
            self.drops.stale += 1;
            return;
        }
        let key = (head.server, from);
        let is_first = call.partial.is_empty();
        if !call.partial.contains_key(&key) && !call.make_room() {
            self.drops.no_room += 1;
            return;
        }
        let partial = call.partial.entry(key).or_insert_with(|| Partial {
            head,
            assembly: Assembly::new(head.segment_size as usize),
            grown: 0,
        });
        if partial.assembly.segment_len() != head.segment_size as usize {
            self.drops.malformed += 1;
            return;
        }
        let before = partial.assembly.received();
        partial.assembly.add(head.delivery, data);
        let has_grown = partial.assembly.received() != before;
        if has_grown {
            call.growths += 1;
            partial.grown = call.growths;
        }
        if !partial.assembly.is_complete() {
            let rtt = self.known.get(&call.request.server);
            let gap = rtt.map_or_else(Rtt::default, |known| known.rtt).gap();
            if is_first && call.collect_until.is_none() {
                call.retries = 0;
                call.pending = 0;
            }
            if has_grown {
                call.deadline = now + gap * (1 << call.retries);
            }
            return;
        }
        let sample = call.sent_once.map(|sent| now.saturating_sub(sent));
        let partial = call.partial.remove(&key).expect("it is there");
        match call.collect_until {
            Some(_) => {
                call.responded.push(head.server);
                call.partial.retain(|(server, _), _| *server != head.server);
            }
            None => self.call = None,
        }
        self.learn(head.server, from, sample);
        if head.acknowledge {
            self.answer(from, notification(entity, &head, code::OK, u32::MAX));
        }
        self.events.push_back(Event::Response(Response {
            server: head.server,
            code: partial.head.code,
            user_data: partial.head.user_data,
            segment: partial.assembly.into_bytes(),
        }));
    }

    /// Remembers a server's link address, and its round-trip time.
    fn learn(&mut self, server: Entity, link: L, sample: Option<Duration>) {
        let used = self.transaction;
        if !self.known.contains_key(&server) && self.known.len() >= SERVERS_MAX {
            let age = |(_, known): &(&Entity, &Known<L>)| used.wrapping_sub(known.used);
            let oldest = self.known.iter().max_by_key(age).map(|(entity, _)| *entity);
            oldest.map(|entity| self.known.remove(&entity));
        }
        let known = self.known.entry(server).or_insert(Known {
            link,
            rtt: Rtt::default(),
            used,
        });
        (known.link, known.used) = (link, used);
        if let Some(time) = sample {
            known.rtt.sample(time);
        }
    }

    fn handle_notification(&mut self, now: Duration, head: &Repr) {
        let transaction = self.transaction;
        let is_current = |call: &&mut Call<L>| {
            let server = call.request.server;
            let known = server.is_group() || server == head.server;
            let gone = head.user_data[0] == code::RESPONSE_DISCARDED;
            // A member of a group does not speak for the one that responds.
            let waits = call.partial.is_empty() || server.is_group();
            head.transaction == transaction && known && (gone || waits)
        };
        let Some(call) = self.call.as_mut().filter(is_current) else {
            self.drops.stale += 1;
            return;
        };
        let all = segment::all_blocks(call.request.segment.len());
        let rtt = self.known.get(&call.request.server);
        let rtt = rtt.map_or_else(Rtt::default, |known| known.rtt);
        call.sent_once = None;
        match head.user_data[0] {
            code::OK => {
                call.retries = 0;
                call.deadline = now + WORKING;
            }
            code::RETRY => {
                call.pending |= all & !head.message_delivery;
                call.deadline = now + rtt.timeout(call.retries);
            }
            code::RETRY_ALL => {
                (call.pending, call.first) = (all, true);
                call.deadline = now + rtt.timeout(call.retries);
            }
            code::BUSY => call.deadline = now + WORKING,
            // A member of a group does not speak for the others.
            _ if call.request.server.is_group() => {}
            refusal => {
                let server = call.request.server;
                self.call = None;
                self.events.push_back(Event::Failed(Failure::Refused {
                    server,
                    code: refusal,
                }));
            }
        }
    }

    /// Reports this client's transaction to a server.
    fn answer_probe(&mut self, from: L, head: &Repr) {
        let state = u32::from(self.call.is_some());
        let answer = Repr {
            response: true,
            acknowledge: false,
            multicast: false,
            retransmit_count: 0,
            delivery: 0,
            flags: Flags::PUBLIC.with(Flags::CO_RESIDENT).with(Flags::DATAGRAM),
            code: code::OK,
            co_resident: self.entity,
            user_data: [self.transaction, state, 0],
            message_delivery: 0,
            segment_size: 0,
            ..*head
        };
        self.answer(from, answer);
    }

    fn answer(&mut self, to: L, answer: Repr) {
        if self.answers.len() < ANSWERS_MAX {
            self.answers.push_back((to, answer));
        } else {
            self.drops.no_room += 1;
        }
    }

    /// The next packet to send, appended to `out`, and where to; `None` if there
    /// is none now.
    pub fn poll_transmit(&mut self, out: &mut Vec<u8>) -> Option<Destination<L>> {
        if let Some((to, answer)) = self.answers.pop_front() {
            answer.emit(&[], out);
            return Some(Destination::Known(to));
        }
        let (client, transaction) = (self.entity, self.transaction);
        let call = self.call.as_mut()?;
        if !call.first && call.pending == 0 {
            return None;
        }
        let request = &call.request;
        let delivery = segment::first_blocks(call.pending, self.packet_blocks);
        call.pending &= !delivery;
        call.first = false;
        let mut flags = Flags::default();
        let mut co_resident = Entity::NONE;
        if !request.segment.is_empty() {
            flags = flags.with(Flags::SEGMENT);
        }
        if request.collect.is_some() {
            flags = flags.with(Flags::MULTIPLE);
        }
        if request.probe {
            flags = flags.with(Flags::PUBLIC).with(Flags::CO_RESIDENT);
            co_resident = request.server;
        }
        let head = Repr {
            client,
            multicast: request.server.is_group(),
            // After the last packet of a repeated group, the server reports what it has.
            acknowledge: call.retries > 0 && call.pending == 0,
            retransmit_count: call.retries,
            response: false,
            transaction,
            delivery,
            server: request.server,
            flags,
            code: request.code,
            co_resident,
            user_data: request.user_data,
            message_delivery: 0,
            segment_size: request.segment.len() as u32,
        };
        head.emit(&request.segment, out);
        Some(match self.known.get(&request.server) {
            Some(known) => Destination::Known(known.link),
            None => Destination::Group(request.server.host_group()),
        })
    }

    /// When [`handle_timeout`](Client::handle_timeout) is due.
    pub fn next_timeout(&self) -> Option<Duration> {
        self.call.as_ref().map(Call::due)
    }

    /// Does what is due at `now`.
    pub fn handle_timeout(&mut self, now: Duration) {
        let rtt = self.call.as_ref().map(|call| self.rtt(call.request.server));
        let (Some(call), Some(rtt)) = (&mut self.call, rtt) else {
            return;
        };
        if call.collect_until.is_some_and(|until| until <= now) {
            self.call = None;
            self.events.push_back(Event::Collected);
            return;
        }
        if call.due() > now {
            return;
        }
        call.sent_once = None;
        let server = call.request.server;
        let collects = call.collect_until.is_some();
        if call.retries >= RETRIES_MAX && collects {
            call.deadline = Duration::MAX;
            return;
        }
        if call.retries >= RETRIES_MAX || !collects && now >= call.began + CALL_TIME_MAX {
            // The server may have moved.
            self.known.remove(&server);
            self.call = None;
            self.events
                .push_back(Event::Failed(Failure::NoAnswer(server)));
            return;
        }
        call.retries += 1;
        call.deadline = now + rtt.timeout(call.retries);
        // A server keeps no response to an idempotent request: it executes it again.
        // A response that has not grown in two time-outs is given up; in one, a
        // single packet may have been lost.
        let [before, _] = call.growths_before;
        call.growths_before = [call.growths_before[1], call.growths];
        let count = call.partial.len();
        call.partial.retain(|_, partial| {
            let is_idempotent = partial.head.flags.has(Flags::DATAGRAM);
            !is_idempotent && partial.grown > before
        });
        // The sender of a part may be no member of the group.
        let is_doubtful = server.is_group() && !collects;
        if call.partial.is_empty() || call.partial.len() < count || is_doubtful {
            // The first packet alone asks the server what it has.
            call.pending |= segment::first_blocks(
                segment::all_blocks(call.request.segment.len()),
                self.packet_blocks,
            );
            call.first = true;
        }
        if call.partial.is_empty() {
            return;
        }
        call.deadline = now + rtt.gap() * (1 << call.retries);
        let entity = self.entity;
        let asks: Vec<_> = call
            .partial
            .iter()
            .map(|((_, link), partial)| {
                let mask = partial.assembly.received();
                (
                    *link,
                    notification(entity, &partial.head, code::RETRY, mask),
                )
            })
            .collect();
        for (to, ask) in asks {
            self.answer(to, ask);
        }
    }

    /// The next event; `None` if there is none now.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }
}

/// NotifyVmtpServer: informs a server about its response `head`.
fn notification(client: Entity, head: &Repr, code: u32, received: u32) -> Repr {
    Repr {
        client,
        transaction: head.transaction,
        server: head.server,
        flags: Flags::PUBLIC.with(Flags::CO_RESIDENT).with(Flags::DATAGRAM),
        code: manager::NOTIFY_SERVER,
        co_resident: head.server,
        user_data: [code, 0, 0],
        message_delivery: received,
        ..Repr::default()
    }
}
