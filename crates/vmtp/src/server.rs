//! A server: requests of many clients, each executed once (RFC 1045 §2.5, §5).
//!
//! A server keeps a record of each client:
//!
//! ```text
//!   Probing ──► Receiving ──► Processing ──► Responded ──► Discarded ──► gone
//!   unknown      packets of    the appli-     response      only the
//!   client:      the request   cation has     kept for      transaction's
//!   ask for its                the request    repetition    number is left
//!   transaction
//! ```
//!
//! A record says which transaction was the client's last, so a duplicate is
//! never executed. It stays for longer than packets live in the network, and
//! than clients repeat them. Of a client without a record the server asks the
//! transaction first, by a probe: an old duplicate is not executed either.

mod record;

use crate::packet::{Flags, Packet, Repr, code, manager};
use crate::segment::{self, Assembly, SEGMENT_LEN_MAX};
use crate::{Destination, Drops, Entity};
use record::{Record, State};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// How often a server asks for missing blocks, or probes, before it gives up.
const RETRIES_MAX: u8 = 5;
/// How often a client may ask for blocks of one response.
const RESENDS_MAX: u8 = 32;
/// Answers of the manager that wait to be sent.
const ANSWERS_MAX: usize = 256;
/// Time between a server's retries, doubled each time.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// Limits of a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Number of clients with a record; each has at most one segment of 16 KiB.
    /// Further clients are told BUSY. Default 4,096.
    pub clients: usize,
    /// Time that a response is kept for. Default 10 s.
    pub keep_response: Duration,
    /// Time that a transaction's number is remembered for, after its response is
    /// gone; must exceed the clients' [time limit](crate::client::CALL_TIME_MAX)
    /// and the time that packets live. Default 60 s.
    pub remember: Duration,
    /// Number of blocks in a packet, 1 to 32. Default 2, which fit into Ethernet's
    /// MTU of 1,500 bytes.
    pub packet_blocks: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            clients: 4096,
            keep_response: Duration::from_secs(10),
            remember: Duration::from_secs(60),
            packet_blocks: 2,
        }
    }
}

/// A request that the application shall execute.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Incoming {
    /// The client.
    pub client: Entity,
    /// The client's transaction.
    pub transaction: u32,
    /// The request code.
    pub code: u32,
    /// Three words of the client.
    pub user_data: [u32; 3],
    /// Data of the client.
    pub segment: Vec<u8>,
}

/// The application's answer to a request.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Reply {
    /// The response code; 0 is OK.
    pub code: u32,
    /// Three words for the client.
    pub user_data: [u32; 3],
    /// Data for the client, at most [`SEGMENT_LEN_MAX`] bytes.
    pub segment: Vec<u8>,
    /// Whether the request may be executed again: the server then keeps no
    /// response, and executes a repeated request.
    pub idempotent: bool,
}

/// A server, with `L` as the type of link addresses.
#[derive(Debug)]
pub struct Server<L> {
    entity: Entity,
    groups: Vec<Entity>,
    limits: Limits,
    records: BTreeMap<Entity, Record<L>>,
    /// The deadline of each record that has one.
    deadlines: BTreeSet<(Duration, Entity)>,
    /// Records that may be forgotten early, oldest first.
    forgettable: BTreeSet<(Duration, Entity)>,
    requests: VecDeque<Entity>,
    sending: VecDeque<Entity>,
    answers: VecDeque<(L, Repr)>,
    next_nonce: u32,
    drops: Drops,
}

impl<L: Copy> Server<L> {
    /// A server. `seed` is the number of its first probe.
    pub fn new(entity: Entity, seed: u32) -> Server<L> {
        Server::with_limits(entity, seed, Limits::default())
    }

    /// A server with these limits.
    ///
    /// # Panics
    /// If a limit is out of range.
    pub fn with_limits(entity: Entity, seed: u32, limits: Limits) -> Server<L> {
        assert!(limits.clients > 0, "a server has clients");
        assert!(
            (1..=32).contains(&limits.packet_blocks),
            "blocks in a packet"
        );
        Server {
            entity,
            groups: vec![Entity::MANAGERS],
            limits,
            records: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            forgettable: BTreeSet::new(),
            requests: VecDeque::new(),
            sending: VecDeque::new(),
            answers: VecDeque::new(),
            next_nonce: seed,
            drops: Drops::default(),
        }
    }

    /// Makes the server a member of a group.
    pub fn join(&mut self, group: Entity) {
        self.groups.push(group);
    }

    /// The server's entity.
    pub fn entity(&self) -> Entity {
        self.entity
    }

    /// Counts of dropped packets.
    pub fn drops(&self) -> Drops {
        self.drops
    }

    /// Number of clients with a record.
    pub fn clients(&self) -> usize {
        self.records.len()
    }

    /// Takes a packet that came from a link address.
    pub fn handle(&mut self, now: Duration, from: L, bytes: &[u8]) {
        let Ok(packet) = Packet::new(bytes) else {
            self.drops.malformed += 1;
            return;
        };
        let head = Repr::parse(&packet);
        if head.response {
            self.handle_probe_answer(now, &head);
            return;
        }
        let is_group = self.groups.contains(&head.server);
        if head.server != self.entity && !is_group {
            self.drops.not_ours += 1;
            // Who is asked for by the right host and the wrong number shall know.
            let is_here = !head.server.is_group() && head.server.host() == self.entity.host();
            if is_here && !head.flags.has(Flags::DATAGRAM) {
                self.notify(from, &head, code::NONEXISTENT_ENTITY, 0);
            }
            return;
        }
        if head.flags.has(Flags::PUBLIC) {
            match head.code {
                manager::NOTIFY_SERVER => self.handle_notification(now, from, &head),
                manager::PROBE => self.answer_probe(from, &head),
                _ if is_group => self.drops.not_ours += 1,
                _ => self.notify(from, &head, code::VMTP_ERROR, 0),
            }
            return;
        }
        if head.server == Entity::MANAGERS {
            self.drops.not_ours += 1;
            return;
        }
        self.handle_request(now, from, head, packet.data());
    }

    fn handle_request(&mut self, now: Duration, from: L, head: Repr, data: &[u8]) {
        let Some(record) = self.records.get_mut(&head.client) else {
            self.meet(now, from, head, data);
            return;
        };
        record.link = from;
        if let State::Probing { held, .. } = &mut record.state {
            // One packet is kept until the probe is answered.
            if held
                .as_ref()
                .is_none_or(|(kept, _)| record::is_newer(&head, kept))
            {
                *held = Some((head, data.to_vec()));
            }
            return;
        }
        let ahead = head.transaction.wrapping_sub(record.transaction) as i32;
        if ahead < 0 {
            self.drops.stale += 1;
        } else if ahead > 0 || matches!(record.state, State::Idle) {
            self.begin(now, head, data);
        } else {
            self.repeat(now, from, head, data);
        }
    }

    /// A packet of a client without a record: probes the client.
    fn meet(&mut self, now: Duration, from: L, head: Repr, data: &[u8]) {
        if !self.make_room() {
            self.drops.no_room += 1;
            self.notify(from, &head, code::BUSY, 0);
            return;
        }
        let nonce = self.next_nonce;
        self.next_nonce = nonce.wrapping_add(1);
        self.records.insert(
            head.client,
            Record {
                link: from,
                server: head.server,
                transaction: 0,
                state: State::Probing {
                    nonce,
                    retries: 0,
                    held: Some((head, data.to_vec())),
                },
                is_sending: false,
                is_waiting: false,
                deadline: None,
                forgettable: None,
            },
        );
        self.set_deadline(head.client, Some(now + RETRY_INTERVAL));
        self.set_forgettable(head.client, Some(now));
        self.probe(from, head.client, nonce);
    }

    /// Forgets a record if there is no room for another; `false` if none may be
    /// forgotten.
    fn make_room(&mut self) -> bool {
        if self.records.len() < self.limits.clients {
            return true;
        }
        match self.forgettable.first() {
            Some(&(_, client)) => {
                self.forget(client);
                true
            }
            None => false,
        }
    }

    fn forget(&mut self, client: Entity) {
        self.set_deadline(client, None);
        self.set_forgettable(client, None);
        self.records.remove(&client);
    }

    fn probe(&mut self, to: L, client: Entity, nonce: u32) {
        let probe = Repr {
            client: self.entity,
            multicast: false,
            acknowledge: false,
            retransmit_count: 0,
            response: false,
            transaction: nonce,
            delivery: 0,
            server: client,
            flags: Flags::PUBLIC.with(Flags::CO_RESIDENT),
            code: manager::PROBE,
            co_resident: client,
            user_data: [0; 3],
            message_delivery: 0,
            segment_size: 0,
        };
        self.answer(to, probe);
    }

    fn handle_probe_answer(&mut self, now: Duration, head: &Repr) {
        let record = self.records.get_mut(&head.server);
        let Some(record) = record.filter(|_| head.client == self.entity) else {
            self.drops.not_ours += 1;
            return;
        };
        let State::Probing { nonce, held, .. } = &mut record.state else {
            self.drops.stale += 1;
            return;
        };
        if *nonce != head.transaction {
            self.drops.stale += 1;
            return;
        }
        let (client, held) = (head.server, held.take());
        // Every transaction before the client's present one is over, and so is that
        // one unless the client awaits the response.
        let awaits = u32::from(head.user_data[1] != 0);
        record.transaction = head.user_data[0].wrapping_sub(awaits);
        record.state = State::Discarded;
        self.set_forgettable(client, None);
        self.set_deadline(client, Some(now + self.limits.remember));
        if let Some((head, data)) = held {
            let link = self.records[&client].link;
            // The other packets were dropped: the client shall send them again at once.
            let asked = Repr {
                acknowledge: true,
                ..head
            };
            self.handle_request(now, link, asked, &data);
        }
    }

    /// The first packet of a new transaction.
    fn begin(&mut self, now: Duration, head: Repr, data: &[u8]) {
        let client = head.client;
        let record = self.records.get_mut(&client).expect("it has a record");
        record.transaction = head.transaction;
        record.server = head.server;
        record.state = State::Receiving {
            head,
            assembly: Assembly::new(head.segment_size as usize),
            retries: 0,
        };
        self.set_forgettable(client, None);
        self.receive(now, head, data);
    }

    /// Another packet of the transaction that the record has.
    fn repeat(&mut self, now: Duration, from: L, head: Repr, data: &[u8]) {
        let record = self.records.get_mut(&head.client).expect("it has a record");
        match &mut record.state {
            State::Receiving { .. } => self.receive(now, head, data),
            State::Processing { .. } => {
                self.drops.stale += 1;
                if head.acknowledge {
                    self.notify(from, &head, code::OK, u32::MAX);
                }
            }
            State::Responded {
                reply,
                pending,
                first,
                resends,
                ..
            } => {
                self.drops.stale += 1;
                // Only packets that ask for an answer get one: a client repeats
                // its request with APG.
                if head.acknowledge && *resends < RESENDS_MAX && !*first {
                    *resends += 1;
                    *pending = segment::all_blocks(reply.segment.len());
                    *first = true;
                    self.send(head.client);
                }
            }
            State::Discarded => {
                self.drops.stale += 1;
                if head.acknowledge {
                    self.notify(from, &head, code::RESPONSE_DISCARDED, 0);
                }
            }
            State::Idle | State::Probing { .. } => unreachable!("handled before"),
        }
    }

    /// A packet of the request that the record receives.
    fn receive(&mut self, now: Duration, packet: Repr, data: &[u8]) {
        let client = packet.client;
        let record = self.records.get_mut(&client).expect("it has a record");
        let link = record.link;
        let State::Receiving { head, assembly, .. } = &mut record.state else {
            unreachable!("the caller has checked");
        };
        if assembly.segment_len() != packet.segment_size as usize || head.code != packet.code {
            self.drops.malformed += 1;
            return;
        }
        assembly.add(packet.delivery, data);
        if !assembly.is_complete() {
            let received = assembly.received();
            self.set_deadline(client, Some(now + RETRY_INTERVAL));
            // A client that repeats does not know what has arrived.
            if packet.acknowledge {
                self.notify(link, &packet, code::RETRY, received);
            }
            return;
        }
        let head = *head;
        let segment = std::mem::replace(assembly, Assembly::new(0)).into_bytes();
        record.state = State::Processing {
            head,
            segment: Some(segment),
        };
        if !std::mem::replace(&mut record.is_waiting, true) {
            self.requests.push_back(client);
        }
        self.set_deadline(client, None);
    }

    /// Lets a record's response be sent.
    fn send(&mut self, client: Entity) {
        if let Some(record) = self.records.get_mut(&client)
            && !std::mem::replace(&mut record.is_sending, true)
        {
            self.sending.push_back(client);
        }
    }

    fn handle_notification(&mut self, now: Duration, from: L, head: &Repr) {
        let record = self.records.get_mut(&head.client);
        let current = record.filter(|record| record.transaction == head.transaction);
        let asks = matches!(head.user_data[0], code::RETRY | code::RETRY_ALL);
        match current.map(|record| &mut record.state) {
            Some(State::Responded {
                reply,
                pending,
                resends,
                ..
            }) if asks && *resends < RESENDS_MAX => {
                *resends += 1;
                let received = match head.user_data[0] {
                    code::RETRY => head.message_delivery,
                    _ => 0,
                };
                *pending |= segment::all_blocks(reply.segment.len()) & !received;
                self.send(head.client);
            }
            Some(State::Responded { .. } | State::Discarded) if asks => {
                self.notify(from, head, code::RESPONSE_DISCARDED, 0);
            }
            // The client has the response, or wants it no longer.
            Some(State::Responded { .. }) => self.discard(now, head.client),
            _ => self.drops.stale += 1,
        }
    }

    /// Drops the response of a record; its transaction stays known.
    fn discard(&mut self, now: Duration, client: Entity) {
        if let Some(record) = self.records.get_mut(&client) {
            record.state = State::Discarded;
            self.set_deadline(client, Some(now + self.limits.remember));
        }
    }

    fn answer_probe(&mut self, from: L, head: &Repr) {
        let record = self.records.get(&head.client);
        let last = record.map_or(0, |record| record.transaction);
        let answer = Repr {
            multicast: false,
            acknowledge: false,
            response: true,
            delivery: 0,
            server: self.entity,
            flags: Flags::PUBLIC.with(Flags::CO_RESIDENT).with(Flags::DATAGRAM),
            code: code::OK,
            co_resident: self.entity,
            user_data: [last, 0, 0],
            message_delivery: 0,
            segment_size: 0,
            ..*head
        };
        self.answer(from, answer);
    }

    /// NotifyVmtpClient: tells a client about its request `head`.
    fn notify(&mut self, to: L, head: &Repr, code: u32, received: u32) {
        // Nobody asks for an answer to a notification.
        let notification = Repr {
            multicast: false,
            acknowledge: false,
            retransmit_count: 0,
            delivery: 0,
            server: if head.server.is_group() {
                self.entity
            } else {
                head.server
            },
            flags: Flags::PUBLIC.with(Flags::CO_RESIDENT).with(Flags::DATAGRAM),
            code: manager::NOTIFY_CLIENT,
            co_resident: head.client,
            user_data: [code, 0, 0],
            message_delivery: received,
            segment_size: 0,
            ..*head
        };
        self.answer(to, notification);
    }

    fn answer(&mut self, to: L, answer: Repr) {
        if self.answers.len() < ANSWERS_MAX {
            self.answers.push_back((to, answer));
        } else {
            self.drops.no_room += 1;
        }
    }

    /// The next request to execute; `None` if there is none now.
    pub fn poll_request(&mut self) -> Option<Incoming> {
        while let Some(client) = self.requests.pop_front() {
            let Some(record) = self.records.get_mut(&client) else {
                continue;
            };
            record.is_waiting = false;
            // The client may have begun another transaction since.
            let State::Processing { head, segment } = &mut record.state else {
                continue;
            };
            let Some(segment) = segment.take() else {
                continue;
            };
            return Some(Incoming {
                client,
                transaction: head.transaction,
                code: head.code,
                user_data: head.user_data,
                segment,
            });
        }
        None
    }

    /// Answers a request of [`poll_request`](Server::poll_request). Returns
    /// `false` if its client has given it up.
    ///
    /// # Panics
    /// If the segment is longer than [`SEGMENT_LEN_MAX`].
    pub fn respond(&mut self, now: Duration, request: &Incoming, reply: Reply) -> bool {
        assert!(reply.segment.len() <= SEGMENT_LEN_MAX, "a segment's length");
        let (client, entity) = (request.client, self.entity);
        let Some(record) = self.records.get_mut(&client) else {
            return false;
        };
        let State::Processing { head, segment } = &record.state else {
            return false;
        };
        if record.transaction != request.transaction || segment.is_some() {
            return false;
        }
        if head.flags.has(Flags::DATAGRAM) {
            self.discard(now, client);
            return true;
        }
        // The server itself answers, also for its group.
        record.server = entity;
        record.state = State::Responded {
            pending: segment::all_blocks(reply.segment.len()),
            first: true,
            resends: 0,
            reply,
        };
        self.set_deadline(client, Some(now + self.limits.keep_response));
        self.send(client);
        true
    }

    /// The next packet to send, appended to `out`, and where to; `None` if there
    /// is none now.
    pub fn poll_transmit(&mut self, out: &mut Vec<u8>) -> Option<Destination<L>> {
        if let Some((to, answer)) = self.answers.pop_front() {
            answer.emit(&[], out);
            return Some(Destination::Known(to));
        }
        let packet_blocks = self.limits.packet_blocks;
        while let Some(&client) = self.sending.front() {
            let record = self.records.get_mut(&client);
            if let Some(to) = record.and_then(|record| record.emit(client, packet_blocks, out)) {
                return Some(Destination::Known(to));
            }
            self.sending.pop_front();
            let Some(record) = self.records.get_mut(&client) else {
                continue;
            };
            record.is_sending = false;
            if let State::Responded { reply, .. } = &record.state
                && reply.idempotent
            {
                record.state = State::Idle;
                let since = record.deadline.unwrap_or_default();
                self.set_forgettable(client, Some(since));
            }
        }
        None
    }

    /// When [`handle_timeout`](Server::handle_timeout) is due.
    pub fn next_timeout(&self) -> Option<Duration> {
        self.deadlines.first().map(|(time, _)| *time)
    }

    /// Does what is due at `now`.
    pub fn handle_timeout(&mut self, now: Duration) {
        while let Some(&(time, client)) = self.deadlines.first() {
            if time > now {
                return;
            }
            self.set_deadline(client, None);
            self.expire(now, client);
        }
    }

    fn expire(&mut self, now: Duration, client: Entity) {
        let Some(record) = self.records.get_mut(&client) else {
            return;
        };
        let link = record.link;
        match &mut record.state {
            State::Probing { nonce, retries, .. } if *retries < RETRIES_MAX => {
                *retries += 1;
                let (nonce, pause) = (*nonce, RETRY_INTERVAL * (1 << *retries));
                self.set_deadline(client, Some(now + pause));
                self.probe(link, client, nonce);
            }
            State::Receiving {
                head,
                assembly,
                retries,
            } if *retries < RETRIES_MAX => {
                *retries += 1;
                let pause = RETRY_INTERVAL * (1 << *retries);
                let (head, received) = (*head, assembly.received());
                self.set_deadline(client, Some(now + pause));
                self.notify(link, &head, code::RETRY, received);
            }
            State::Receiving { .. } => {
                // Never executed: the client may send it again.
                record.transaction = record.transaction.wrapping_sub(1);
                self.discard(now, client);
            }
            State::Responded { .. } => self.discard(now, client),
            State::Processing { .. } => {}
            State::Probing { .. } | State::Discarded | State::Idle => self.forget(client),
        }
    }

    fn set_deadline(&mut self, client: Entity, deadline: Option<Duration>) {
        let Some(record) = self.records.get_mut(&client) else {
            return;
        };
        if let Some(old) = record.deadline.take() {
            self.deadlines.remove(&(old, client));
        }
        record.deadline = deadline;
        self.deadlines.extend(deadline.map(|time| (time, client)));
    }

    fn set_forgettable(&mut self, client: Entity, since: Option<Duration>) {
        let Some(record) = self.records.get_mut(&client) else {
            return;
        };
        if let Some(old) = record.forgettable.take() {
            self.forgettable.remove(&(old, client));
        }
        record.forgettable = since;
        self.forgettable.extend(since.map(|time| (time, client)));
    }
}
