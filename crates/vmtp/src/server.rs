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
//! transaction first, by a probe: an old duplicate is not executed either. So it
//! does before a transaction far ahead of the client's last (`JUMP_MAX`).
//!
//! A client is an entity *at a link address*: packets of the same entity from
//! another address have a record of their own, after a probe of their own.
//!
//! What makes room when there is none is stated in `table.rs`.

mod probe;
mod record;
mod table;

use crate::packet::{Flags, Packet, Repr, code, manager};
use crate::segment::{self, Assembly, SEGMENT_LEN_MAX};
use crate::{Destination, Drops, Entity};
use record::State;
use siphasher::sip::SipHasher13;
use std::collections::VecDeque;
use std::time::Duration;
use table::{Table, Victim};

/// How often a server asks for missing blocks, or probes, before it gives up.
const RETRIES_MAX: u8 = 5;
/// How often a client may ask for blocks of one response.
const RESENDS_MAX: u8 = 32;
/// How far a transaction may be ahead of the client's last without a probe: a
/// client has other servers in between. Chosen: farther is rare, and costs a
/// round trip.
const JUMP_MAX: i32 = 64;
/// Length of the data of a packet that waits for its client's answer to a probe,
/// at most, in bytes: two packets' on Ethernet. The client repeats a longer one.
const HELD_LEN_MAX: usize = 2048;
/// Answers of the manager that wait to be sent.
const ANSWERS_MAX: usize = 256;
/// Time between a server's retries, doubled each time.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// Limits of a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Number of clients with a record. Further clients take the place of a client
    /// of the link address that has most, or get BUSY: a client that may
    /// still repeat an executed request is forgotten for one of another address
    /// only. Default 4,096.
    pub clients: usize,
    /// Bytes of requests and responses that are kept, at least 16 KiB. The oldest
    /// responses of the link address that has most make room for further ones;
    /// their transactions stay known. Default 16 MiB.
    pub bytes: usize,
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
            bytes: 16 << 20,
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
    /// The record's number in the table.
    record: u64,
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
    table: Table<L>,
    /// Numbers of records.
    requests: VecDeque<u64>,
    sending: VecDeque<u64>,
    answers: VecDeque<(L, Repr)>,
    /// Makes the numbers of probes, from how many there were.
    nonces: SipHasher13,
    probes: u64,
    drops: Drops,
}

impl<L: Copy + Ord> Server<L> {
    /// A server. `seed` is the key of the numbers of its probes: without it a probe
    /// to another station cannot be answered.
    pub fn new(entity: Entity, seed: u64) -> Server<L> {
        Server::with_limits(entity, seed, Limits::default())
    }

    /// A server with these limits.
    ///
    /// # Panics
    /// If a limit is out of range.
    pub fn with_limits(entity: Entity, seed: u64, limits: Limits) -> Server<L> {
        assert!(limits.clients > 0, "a server has clients");
        assert!(limits.bytes >= SEGMENT_LEN_MAX, "room for a segment");
        assert!(
            (1..=32).contains(&limits.packet_blocks),
            "blocks in a packet"
        );
        Server {
            entity,
            groups: vec![Entity::MANAGERS],
            limits,
            table: Table::new(),
            requests: VecDeque::new(),
            sending: VecDeque::new(),
            answers: VecDeque::new(),
            nonces: SipHasher13::new_with_keys(seed, 0),
            probes: 0,
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
        self.table.len()
    }

    /// Bytes of segments that are kept or reserved for clients.
    pub fn kept_bytes(&self) -> usize {
        self.table.bytes()
    }

    /// Takes a packet that came from a link address.
    pub fn handle(&mut self, now: Duration, from: L, bytes: &[u8]) {
        let Ok(packet) = Packet::new(bytes) else {
            self.drops.malformed += 1;
            return;
        };
        let head = Repr::parse(&packet);
        if head.response {
            self.handle_probe_answer(now, from, &head);
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
        let Some(number) = self.table.find(head.client, from) else {
            self.meet(now, from, head, data);
            return;
        };
        let record = self.table.get_mut(number).expect("it was found");
        if let State::Probing { held, .. } = &mut record.state {
            // One packet is kept until the probe is answered.
            let is_kept = |(kept, _): &(Repr, Vec<u8>)| !record::is_newer(&head, kept);
            if data.len() <= HELD_LEN_MAX && !held.as_ref().is_some_and(is_kept) {
                *held = Some((head, data.to_vec()));
            }
            return;
        }
        let ahead = head.transaction.wrapping_sub(record.transaction) as i32;
        if ahead < 0 {
            self.drops.stale += 1;
            // A client that repeats it shall not wait in vain.
            if head.acknowledge {
                self.notify(from, &head, code::RESPONSE_DISCARDED, 0);
            }
        } else if ahead > JUMP_MAX {
            self.ask_again(number);
        } else if ahead > 0 || matches!(record.state, State::Idle) {
            self.begin(now, number, head, data);
        } else {
            record.since = now;
            self.repeat(now, number, head, data);
            self.table.settle(number);
        }
    }

    /// The first packet of a new transaction.
    fn begin(&mut self, now: Duration, number: u64, head: Repr, data: &[u8]) {
        if !self.make_byte_room(now, number) {
            self.drops.no_room += 1;
            let link = self.table.get(number).expect("it has a record").link;
            self.notify(link, &head, code::BUSY, 0);
            return;
        }
        let record = self.table.get_mut(number).expect("it has a record");
        record.transaction = head.transaction;
        record.server = head.server;
        record.since = now;
        record.state = State::Receiving {
            head,
            assembly: Assembly::new(head.segment_size as usize),
            retries: 0,
        };
        self.receive(now, number, head, data);
        self.table.settle(number);
    }

    /// Makes room for the segments of a record's next transaction; `false` if there
    /// is none.
    fn make_byte_room(&mut self, now: Duration, number: u64) -> bool {
        loop {
            let own = self.table.get(number).map_or(0, record::Record::bytes);
            if self.table.bytes() - own + SEGMENT_LEN_MAX <= self.limits.bytes {
                return true;
            }
            match self.table.byte_victim(number) {
                Some(Victim::Response(other)) => self.discard(now, other),
                Some(Victim::Record(other)) => self.table.forget(other),
                None => return false,
            }
        }
    }

    /// Another packet of the transaction that the record has.
    fn repeat(&mut self, now: Duration, number: u64, head: Repr, data: &[u8]) {
        let record = self.table.get_mut(number).expect("it has a record");
        let link = record.link;
        match &mut record.state {
            State::Receiving { .. } => self.receive(now, number, head, data),
            State::Processing { .. } => {
                self.drops.stale += 1;
                if head.acknowledge {
                    self.notify(link, &head, code::OK, u32::MAX);
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
                    self.send(number);
                }
            }
            State::Discarded => {
                self.drops.stale += 1;
                if head.acknowledge {
                    self.notify(link, &head, code::RESPONSE_DISCARDED, 0);
                }
            }
            State::Idle | State::Probing { .. } => unreachable!("handled before"),
        }
    }

    /// A packet of the request that the record receives; the caller settles the
    /// record.
    fn receive(&mut self, now: Duration, number: u64, packet: Repr, data: &[u8]) {
        let record = self.table.get_mut(number).expect("it has a record");
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
            self.table.set_deadline(number, Some(now + RETRY_INTERVAL));
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
            self.requests.push_back(number);
        }
        self.table.set_deadline(number, None);
    }

    /// Lets a record's response be sent.
    fn send(&mut self, number: u64) {
        if let Some(record) = self.table.get_mut(number)
            && !std::mem::replace(&mut record.is_sending, true)
        {
            self.sending.push_back(number);
            self.table.settle(number);
        }
    }

    fn handle_notification(&mut self, now: Duration, from: L, head: &Repr) {
        let number = self.table.find(head.client, from);
        let record = number.and_then(|number| Some((number, self.table.get_mut(number)?)));
        let current = record.filter(|(_, record)| record.transaction == head.transaction);
        let Some((number, record)) = current else {
            self.drops.stale += 1;
            return;
        };
        let asks = matches!(head.user_data[0], code::RETRY | code::RETRY_ALL);
        match &mut record.state {
            State::Responded {
                reply,
                pending,
                resends,
                ..
            } if asks && *resends < RESENDS_MAX => {
                *resends += 1;
                let received = match head.user_data[0] {
                    code::RETRY => head.message_delivery,
                    _ => 0,
                };
                *pending |= segment::all_blocks(reply.segment.len()) & !received;
                record.since = now;
                self.send(number);
                self.table.settle(number);
            }
            State::Responded { .. } | State::Discarded if asks => {
                self.notify(from, head, code::RESPONSE_DISCARDED, 0);
            }
            // The client has the response, or wants it no longer.
            State::Responded { .. } => self.discard(now, number),
            _ => self.drops.stale += 1,
        }
    }

    /// Drops the response of a record; its transaction stays known.
    fn discard(&mut self, now: Duration, number: u64) {
        if let Some(record) = self.table.get_mut(number) {
            record.state = State::Discarded;
            self.table.settle(number);
            let until = now + self.limits.remember;
            self.table.set_deadline(number, Some(until));
        }
    }

    /// NotifyVmtpClient: informs a client about its request `head`.
    fn notify(&mut self, to: L, head: &Repr, code: u32, received: u32) {
        // A notification wants no answer.
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
        while let Some(number) = self.requests.pop_front() {
            let Some(record) = self.table.get_mut(number) else {
                continue;
            };
            record.is_waiting = false;
            self.table.settle(number);
            let record = self.table.get_mut(number)?;
            // The client may have begun another transaction since.
            let State::Processing { head, segment } = &mut record.state else {
                continue;
            };
            let Some(segment) = segment.take() else {
                continue;
            };
            return Some(Incoming {
                client: record.client,
                transaction: head.transaction,
                code: head.code,
                user_data: head.user_data,
                segment,
                record: number,
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
        let (number, entity) = (request.record, self.entity);
        let Some(record) = self.table.get_mut(number) else {
            return false;
        };
        let State::Processing { head, segment } = &record.state else {
            return false;
        };
        let is_its = record.client == request.client && record.transaction == request.transaction;
        if !is_its || segment.is_some() {
            return false;
        }
        if head.flags.has(Flags::DATAGRAM) {
            self.discard(now, number);
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
        record.since = now;
        self.table.settle(number);
        let until = now + self.limits.keep_response;
        self.table.set_deadline(number, Some(until));
        self.send(number);
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
        while let Some(&number) = self.sending.front() {
            let record = self.table.get_mut(number);
            if let Some(to) = record.and_then(|record| record.emit(packet_blocks, out)) {
                return Some(Destination::Known(to));
            }
            self.sending.pop_front();
            let Some(record) = self.table.get_mut(number) else {
                continue;
            };
            record.is_sending = false;
            if let State::Responded { reply, .. } = &record.state
                && reply.idempotent
            {
                record.state = State::Idle;
            }
            self.table.settle(number);
        }
        None
    }

    /// When [`handle_timeout`](Server::handle_timeout) is due.
    pub fn next_timeout(&self) -> Option<Duration> {
        self.table.first_deadline().map(|(time, _)| time)
    }

    /// Does what is due at `now`.
    pub fn handle_timeout(&mut self, now: Duration) {
        while let Some((time, number)) = self.table.first_deadline() {
            if time > now {
                return;
            }
            self.table.set_deadline(number, None);
            self.expire(now, number);
        }
    }

    fn expire(&mut self, now: Duration, number: u64) {
        let Some(record) = self.table.get_mut(number) else {
            return;
        };
        let link = record.link;
        match &mut record.state {
            State::Probing { retries, .. } if *retries < RETRIES_MAX => {
                *retries += 1;
                let pause = RETRY_INTERVAL * (1 << *retries);
                self.table.set_deadline(number, Some(now + pause));
                self.probe(number);
            }
            State::Receiving {
                head,
                assembly,
                retries,
            } if *retries < RETRIES_MAX => {
                *retries += 1;
                let pause = RETRY_INTERVAL * (1 << *retries);
                let (head, received) = (*head, assembly.received());
                self.table.set_deadline(number, Some(now + pause));
                self.notify(link, &head, code::RETRY, received);
            }
            State::Receiving { .. } => {
                // Never executed: the client may send it again.
                record.transaction = record.transaction.wrapping_sub(1);
                self.discard(now, number);
            }
            State::Responded { .. } => self.discard(now, number),
            State::Processing { .. } => {}
            State::Probing { .. } | State::Discarded | State::Idle => self.table.forget(number),
        }
    }
}
