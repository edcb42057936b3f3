//! Subscribers, mappings and sessions.
//!
//! ```text
//!  subscriber ─► blocks of ports of one address of the pool (paired pooling)
//!      └─► mapping: inside address and port ◄─► outside address and port
//!              └─► session: one remote address and port; the unit of timeouts
//! ```
//!
//! A mapping lives as long as it has sessions, a block as long as it has
//! mappings, a subscriber as long as it has blocks or sessions.

mod control;
mod restore;
mod tuple;

pub(super) use tuple::{Translation, Tuple};

use super::config::{Filtering, NatConfig, PrefixLimit, Timeouts, Transport};
use super::ftp::{CONTROL_PORT, Control};
use super::inside::Inside;
use super::log::{Event, Line, Subscriber as Name};
use super::ports::{BlockId, Ports};
use crate::flow::Direction;
use crate::packet::TCP_CONTROL;
use crate::slots::{Handle, Slots};
use ahash::RandomState;
use griddle::HashMap;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet, VecDeque};
use std::net::Ipv4Addr;
use tuple::{Hit, tuples};

/// Sessions that end in one call, at most.
const EXPIRE_MAX: usize = 4096;

/// Packets after which a session is worth an entry in the kernel.
const CACHED_FROM: u8 = 3;

/// Signs of a TCP connection that a session has seen.
mod seen {
    pub(super) const SYN: [u8; 2] = [1, 2];
    pub(super) const FIN: [u8; 2] = [4, 8];
    pub(super) const ANY: [u8; 2] = [16, 32];
    pub(super) const RST: u8 = 64;
}

/// TCP flags.
const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;

/// One end of a mapping.
type End<A = Ipv4Addr> = (Transport, A, u16);

#[derive(Debug)]
struct Subscriber<A> {
    /// With zeros behind the bits that name the subscriber.
    address: A,
    pool: u16,
    blocks: Vec<BlockId>,
    sessions: u32,
    /// Those that a packet from the outside began.
    inbound: u32,
    /// Its static forwards; while it has one it stays.
    forwards: u32,
    /// The limits of prefixes that have it, by number.
    limits: Box<[u16]>,
}

/// The limit of a prefix, and the sessions that count for it.
#[derive(Debug)]
struct Limit<A> {
    of: PrefixLimit<A>,
    sessions: u32,
}

#[derive(Debug)]
struct Mapping<A> {
    transport: Transport,
    inside: (A, u16),
    outside: (Ipv4Addr, u16),
    subscriber: u32,
    sessions: u32,
    is_static: bool,
    /// The address that may begin one session, whatever the filtering says: the peer of a control
    /// connection of FTP.
    expected: Option<Ipv4Addr>,
}

#[derive(Debug)]
struct Session {
    mapping: u32,
    remote: (Ipv4Addr, u16),
    used: u64,
    /// The time of its valid place in the heap of what is due.
    due: u64,
    seen: u8,
    packets: u8,
    is_inbound: bool,
    is_cached: bool,
    /// A control connection of FTP.
    is_ftp: bool,
}

/// Numbers of what there is.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct NatCounts {
    /// Subscribers with ports or sessions.
    pub subscribers: u64,
    /// Mappings.
    pub mappings: u64,
    /// Sessions.
    pub sessions: u64,
    /// Sessions that have begun.
    pub began: u64,
    /// Sessions that have ended.
    pub ended: u64,
    /// Blocks that no subscriber has, without those that rest.
    pub free_blocks: u64,
    /// Packets from the outside to the pool without a mapping.
    pub unmapped: u64,
}

impl NatCounts {
    /// Calls `each` with every number and its name in the statistics.
    pub(super) fn each(&self, each: &mut dyn FnMut(&'static str, u64)) {
        each("subscribers", self.subscribers);
        each("mappings", self.mappings);
        each("sessions", self.sessions);
        each("sessions_begun", self.began);
        each("sessions_ended", self.ended);
        each("free_blocks", self.free_blocks);
        each("unmapped", self.unmapped);
    }
}

/// All state of a translator. Its tables grow a few places at a time: while a million sessions move,
/// packets would wait for longer than the gate allows.
#[derive(Debug)]
pub(super) struct Table<A = Ipv4Addr> {
    ports: Ports,
    subscribers: Slots<Subscriber<A>>,
    mappings: Slots<Mapping<A>>,
    sessions: Slots<Session>,
    by_address: HashMap<A, u32, RandomState>,
    by_inside: HashMap<End<A>, u32, RandomState>,
    by_outside: HashMap<End, u32, RandomState>,
    outward: HashMap<Tuple<A>, u32, RandomState>,
    inward: HashMap<Tuple, u32, RandomState>,
    /// Number of sessions of a mapping with a remote address, if that filters.
    remotes: HashMap<(u32, Ipv4Addr), u32, RandomState>,
    due: BinaryHeap<Reverse<(u64, Handle)>>,
    withdrawn: VecDeque<u64>,
    /// While an earlier state is taken: the blocks that are in use.
    kept: HashSet<(u16, u16)>,
    /// Whether control connections of FTP are followed.
    has_gateway: bool,
    /// By session.
    controls: std::collections::HashMap<u32, Control>,
    /// Texts of FTP that became a mapping, and those that did not.
    pub(super) texts: [u64; 2],
    events: VecDeque<Event>,
    /// Unix time of the start, in ns, until the log has it.
    start: Option<u64>,
    /// Unix time at `now` 0, in ns.
    epoch: u64,
    timeouts: Timeouts,
    filtering: Filtering,
    subscriber_len: u8,
    blocks_max: usize,
    sessions_max: usize,
    subscriber_sessions_max: u32,
    limits: Vec<Limit<A>>,
    pub(super) counts: NatCounts,
}

impl<A: Inside> Table<A> {
    pub(super) fn new(config: &NatConfig<A>, seed: u64) -> Table<A> {
        let state = |stream: u64| RandomState::with_seeds(seed, stream, !seed, 0x6e61_7400);
        let mut table = Table {
            ports: Ports::new(config, seed),
            subscribers: Slots::default(),
            mappings: Slots::default(),
            sessions: Slots::default(),
            by_address: HashMap::with_hasher(state(1)),
            by_inside: HashMap::with_hasher(state(2)),
            by_outside: HashMap::with_hasher(state(3)),
            outward: HashMap::with_hasher(state(4)),
            inward: HashMap::with_hasher(state(5)),
            remotes: HashMap::with_hasher(state(6)),
            due: BinaryHeap::new(),
            withdrawn: VecDeque::new(),
            kept: HashSet::new(),
            has_gateway: config.ftp,
            controls: std::collections::HashMap::new(),
            texts: [0; 2],
            events: VecDeque::new(),
            start: Some(config.epoch),
            epoch: config.epoch,
            timeouts: config.timeouts,
            filtering: config.filtering,
            subscriber_len: config.subscriber_len,
            blocks_max: config.blocks_max as usize,
            sessions_max: config.sessions_max as usize,
            subscriber_sessions_max: config.subscriber_sessions_max,
            limits: config
                .limits
                .iter()
                .map(|of| Limit {
                    of: *of,
                    sessions: 0,
                })
                .collect(),
            counts: NatCounts::default(),
        };
        for forward in &config.forwards {
            table.forward(config, forward.transport, forward.outside, forward.inside);
        }
        table
    }

    fn forward(
        &mut self,
        config: &NatConfig<A>,
        transport: Transport,
        outside: (Ipv4Addr, u16),
        inside: (A, u16),
    ) {
        let pool = config.pool.iter().position(|address| *address == outside.0);
        let pool = pool.unwrap_or_default() as u16;
        let subscriber = match self.by_address.get(&self.owner_of(inside.0)) {
            Some(subscriber) => *subscriber,
            None => self.enter_subscriber(inside.0, pool),
        };
        if let Some(owner) = self.subscribers.get_mut(subscriber) {
            owner.forwards += 1;
        }
        self.enter_mapping(Mapping {
            transport,
            inside,
            outside,
            subscriber,
            sessions: 0,
            is_static: true,
            expected: None,
        });
        self.events.push_back(Event::Forward {
            at: 0,
            transport,
            subscriber: (Name::of(inside.0, A::BITS), inside.1),
            outside,
        });
    }

    /// What names the subscriber of an address.
    #[inline]
    fn owner_of(&self, address: A) -> A {
        address.masked(self.subscriber_len)
    }

    /// The subscriber of an address, for the log.
    fn name_of(&self, address: A) -> Name {
        Name::of(self.owner_of(address), self.subscriber_len)
    }

    /// Translates a packet from the inside; `control` are TCP's flags.
    #[inline]
    pub(super) fn outward(
        &mut self,
        now: u64,
        tuple: Tuple<A>,
        control: u8,
    ) -> Result<Translation, &'static str> {
        if let Some(&at) = self.outward.get(&tuple)
            && let Some(found) = self.hit(now, at, Direction::Outward, control)
        {
            return Ok(found.outward());
        }
        let mapping = self.mapping_for(now, &tuple)?;
        let at = self.begin(now, mapping, tuple.dst, Direction::Outward)?;
        let found = self.hit(now, at, Direction::Outward, control);
        Ok(found.ok_or("no-session")?.outward())
    }

    /// Translates a packet from the outside; `Ok(None)` without a mapping.
    #[inline]
    pub(super) fn inward(
        &mut self,
        now: u64,
        tuple: Tuple,
        control: u8,
    ) -> Result<Option<Translation<A>>, &'static str> {
        if let Some(&at) = self.inward.get(&tuple)
            && let Some(found) = self.hit(now, at, Direction::Inward, control)
        {
            return Ok(Some(found.inward()));
        }
        let end = (tuple.transport, tuple.dst.0, tuple.dst.1);
        let Some(&mapping) = self.by_outside.get(&end) else {
            self.counts.unmapped += 1;
            return Ok(None);
        };
        if !self.lets_in(mapping, tuple.src) {
            return Err("filtered");
        }
        let at = self.begin(now, mapping, tuple.src, Direction::Inward)?;
        if let Some(mapping) = self.mappings.get_mut(mapping) {
            mapping.expected = None;
        }
        let found = self.hit(now, at, Direction::Inward, control);
        Ok(found.map(Hit::inward))
    }

    fn lets_in(&self, at: u32, remote: (Ipv4Addr, u16)) -> bool {
        let Some(mapping) = self.mappings.get(at) else {
            return false;
        };
        let of_query = mapping.transport == Transport::Icmp;
        mapping.is_static
            || mapping.expected == Some(remote.0)
            || !of_query
                && match self.filtering {
                    Filtering::EndpointIndependent => true,
                    Filtering::AddressDependent => self.remotes.contains_key(&(at, remote.0)),
                    Filtering::AddressAndPortDependent => false,
                }
    }

    /// A packet of a known session, which lives on; `None` if its time is over.
    #[inline]
    fn hit(&mut self, now: u64, at: u32, direction: Direction, control: u8) -> Option<Hit<A>> {
        let session = self.sessions.get_mut(at)?;
        let mapping = self.mappings.get(session.mapping)?;
        if session
            .used
            .saturating_add(life(session.seen, mapping.transport, &self.timeouts))
            <= now
        {
            self.end(now, at);
            return None;
        }
        let way = usize::from(direction == Direction::Inward);
        let mut is_cacheable = true;
        if mapping.transport == Transport::Tcp {
            if control & SYN != 0 && is_ending(session.seen) {
                // The tuple is used again for another connection.
                session.seen = 0;
            }
            note(session, way, control);
            is_cacheable = is_established(session.seen);
        }
        session.used = session.used.max(now);
        let due =
            session
                .used
                .saturating_add(life(session.seen, mapping.transport, &self.timeouts));
        if due < session.due {
            // A connection that ends lives shorter than it did before.
            session.due = due;
            self.due.push(Reverse((due, self.sessions.handle(at))));
        }
        let session = self.sessions.get_mut(at)?;
        session.packets = session.packets.saturating_add(1);
        is_cacheable &= session.packets >= CACHED_FROM && control == 0 && !session.is_ftp;
        let of_ftp = session.is_ftp.then_some(at);
        if control & TCP_CONTROL != 0 && session.is_cached {
            // The kernel must not carry a connection that ends as an established one.
            session.is_cached = false;
            self.withdrawn.push_back(self.sessions.handle(at).cookie());
        } else {
            session.is_cached |= is_cacheable;
        }
        Some(Hit {
            inside: mapping.inside,
            outside: mapping.outside,
            cookie: self.sessions.handle(at).cookie(),
            is_cacheable,
            control: of_ftp,
        })
    }

    /// The mapping of a source, which is made if there is none.
    fn mapping_for(&mut self, now: u64, tuple: &Tuple<A>) -> Result<u32, &'static str> {
        let end = (tuple.transport, tuple.src.0, tuple.src.1);
        if let Some(&at) = self.by_inside.get(&end) {
            return Ok(at);
        }
        if self.sessions.len() >= self.sessions_max {
            return Err("sessions-full");
        }
        let subscriber = match self.by_address.get(&self.owner_of(tuple.src.0)) {
            Some(&subscriber) => subscriber,
            None => {
                let pool = self.ports.choose_address(now).ok_or("pool-exhausted")?;
                self.enter_subscriber(tuple.src.0, pool)
            }
        };
        match self.port_for(now, subscriber, tuple.transport, tuple.src.1) {
            Ok(outside) => Ok(self.enter_mapping(Mapping {
                transport: tuple.transport,
                inside: tuple.src,
                outside,
                subscriber,
                sessions: 0,
                is_static: false,
                expected: None,
            })),
            Err(why) => {
                self.leave_if_idle(subscriber);
                Err(why)
            }
        }
    }

    /// A port of the subscriber's blocks, or of a new block.
    fn port_for(
        &mut self,
        now: u64,
        subscriber: u32,
        transport: Transport,
        like: u16,
    ) -> Result<(Ipv4Addr, u16), &'static str> {
        let Some(owner) = self.subscribers.get_mut(subscriber) else {
            return Err("no-subscriber");
        };
        let number = transport.index();
        // The latest block is the one with room.
        for &id in owner.blocks.iter().rev() {
            if let Some(port) = self.ports.take_port(id, number, like) {
                return Ok((self.ports.address(id.pool), port));
            }
        }
        if owner.blocks.len() >= self.blocks_max {
            return Err("subscriber-blocks-full");
        }
        let id = self
            .ports
            .allocate(now, owner.pool)
            .ok_or("pool-exhausted")?;
        owner.blocks.push(id);
        let subscriber = Name::of(owner.address, self.subscriber_len);
        self.events.push_back(Event::Allocated {
            at: now,
            subscriber,
            pool: self.ports.address(id.pool),
            ports: self.ports.range(id.block),
        });
        let port = self.ports.take_port(id, number, like);
        // All of a small block may be static forwards.
        let port = port.ok_or("pool-exhausted")?;
        Ok((self.ports.address(id.pool), port))
    }

    fn enter_subscriber(&mut self, address: A, pool: u16) -> u32 {
        let address = self.owner_of(address);
        let limits = (0..).zip(&self.limits);
        let limits = limits.filter(|(_, limit)| limit.of.prefix.contains(address));
        let limits = limits.map(|(number, _)| number).collect();
        let handle = self.subscribers.insert(Subscriber {
            address,
            pool,
            blocks: Vec::new(),
            sessions: 0,
            inbound: 0,
            forwards: 0,
            limits,
        });
        self.by_address.insert(address, handle.at);
        handle.at
    }

    fn enter_mapping(&mut self, mapping: Mapping<A>) -> u32 {
        let (transport, inside, outside) = (mapping.transport, mapping.inside, mapping.outside);
        let at = self.mappings.insert(mapping).at;
        // A text of FTP may name an end that has a mapping: new sessions keep that one.
        self.by_inside
            .entry((transport, inside.0, inside.1))
            .or_insert(at);
        self.by_outside
            .insert((transport, outside.0, outside.1), at);
        at
    }

    /// Begins a session of a mapping with a remote.
    fn begin(
        &mut self,
        now: u64,
        mapping: u32,
        remote: (Ipv4Addr, u16),
        direction: Direction,
    ) -> Result<u32, &'static str> {
        let done = self.try_begin(now, mapping, remote, direction);
        if done.is_err() {
            self.end_mapping_if_idle(now, mapping);
        }
        done
    }

    fn try_begin(
        &mut self,
        now: u64,
        at: u32,
        remote: (Ipv4Addr, u16),
        direction: Direction,
    ) -> Result<u32, &'static str> {
        if self.sessions.len() >= self.sessions_max {
            return Err("sessions-full");
        }
        let mapping = self.mappings.get_mut(at).ok_or("no-mapping")?;
        let owner = self
            .subscribers
            .get_mut(mapping.subscriber)
            .ok_or("no-subscriber")?;
        let is_inbound = direction == Direction::Inward;
        if owner.sessions >= self.subscriber_sessions_max {
            return Err("subscriber-sessions-full");
        }
        // Peers outside must not use up what the subscriber needs.
        if is_inbound && owner.inbound >= self.subscriber_sessions_max.div_ceil(2) {
            return Err("subscriber-inbound-full");
        }
        for &limit in &owner.limits {
            let limit = &self.limits[usize::from(limit)];
            if limit.sessions >= limit.of.sessions_max {
                return Err("prefix-sessions-full");
            }
        }
        for &limit in &owner.limits {
            self.limits[usize::from(limit)].sessions += 1;
        }
        owner.sessions += 1;
        owner.inbound += u32::from(is_inbound);
        mapping.sessions += 1;
        let (transport, inside, outside) = (mapping.transport, mapping.inside, mapping.outside);
        let is_control = inside.1 == CONTROL_PORT || !is_inbound && remote.1 == CONTROL_PORT;
        let session = Session {
            is_ftp: self.has_gateway && transport == Transport::Tcp && is_control,
            mapping: at,
            remote,
            used: now,
            due: 0,
            seen: 0,
            packets: 0,
            is_inbound,
            is_cached: false,
        };
        let due = now.saturating_add(life(session.seen, transport, &self.timeouts));
        let session = Session { due, ..session };
        let handle = self.sessions.insert(session);
        let (out, back) = tuples(transport, inside, outside, remote);
        self.outward.insert(out, handle.at);
        self.inward.insert(back, handle.at);
        if self.filtering == Filtering::AddressDependent {
            *self.remotes.entry((at, remote.0)).or_default() += 1;
        }
        self.due.push(Reverse((due, handle)));
        self.counts.began += 1;
        Ok(handle.at)
    }

    /// Ends a session, and what has no session any more.
    fn end(&mut self, now: u64, at: u32) {
        let handle = self.sessions.handle(at);
        let Some(session) = self.sessions.remove(at) else {
            return;
        };
        self.counts.ended += 1;
        self.withdrawn.push_back(handle.cookie());
        let Some(mapping) = self.mappings.get_mut(session.mapping) else {
            return;
        };
        mapping.sessions -= 1;
        let (remote, subscriber) = (session.remote, mapping.subscriber);
        let (out, back) = tuples(mapping.transport, mapping.inside, mapping.outside, remote);
        self.outward.remove(&out);
        self.inward.remove(&back);
        if let Some(owner) = self.subscribers.get_mut(mapping.subscriber) {
            owner.sessions -= 1;
            owner.inbound -= u32::from(session.is_inbound);
            for &limit in &owner.limits {
                self.limits[usize::from(limit)].sessions -= 1;
            }
        }
        let key = (session.mapping, remote.0);
        if let Some(count) = self.remotes.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                self.remotes.remove(&key);
            }
        }
        self.end_control(now, at, subscriber);
        self.end_mapping_if_idle(now, session.mapping);
    }

    fn end_mapping_if_idle(&mut self, now: u64, at: u32) {
        let is_idle = |mapping: &Mapping<A>| mapping.sessions == 0 && !mapping.is_static;
        if !self.mappings.get(at).is_some_and(is_idle) {
            return;
        }
        let Some(mapping) = self.mappings.remove(at) else {
            return;
        };
        let (transport, inside, outside) = (mapping.transport, mapping.inside, mapping.outside);
        let of_inside = (transport, inside.0, inside.1);
        if self.by_inside.get(&of_inside) == Some(&at) {
            self.by_inside.remove(&of_inside);
        }
        self.by_outside.remove(&(transport, outside.0, outside.1));
        self.give_back(now, mapping.subscriber, transport, outside);
    }

    /// Gives a port back, and its block with the last one.
    fn give_back(
        &mut self,
        now: u64,
        subscriber: u32,
        transport: Transport,
        outside: (Ipv4Addr, u16),
    ) {
        let block = self.ports.block_of(outside.1);
        let Some(owner) = self.subscribers.get_mut(subscriber) else {
            return;
        };
        let id = BlockId {
            pool: owner.pool,
            block,
        };
        if self.ports.put_port(id, transport.index(), outside.1) {
            owner.blocks.retain(|other| *other != id);
            let name = Name::of(owner.address, self.subscriber_len);
            self.ports.release(now, id);
            self.events.push_back(Event::Released {
                at: now,
                subscriber: name,
                pool: self.ports.address(id.pool),
                ports: self.ports.range(block),
            });
        }
        self.leave_if_idle(subscriber);
    }

    fn leave_if_idle(&mut self, at: u32) {
        let is_idle = |owner: &Subscriber<A>| {
            owner.blocks.is_empty() && owner.sessions == 0 && owner.forwards == 0
        };
        let Some(owner) = self.subscribers.get(at).filter(|owner| is_idle(owner)) else {
            return;
        };
        let address = owner.address;
        self.by_address.remove(&address);
        self.subscribers.remove(at);
    }

    /// Ends the sessions whose time is over, some in each call.
    pub(super) fn expire(&mut self, now: u64) {
        for _ in 0..EXPIRE_MAX {
            let Some(&Reverse((due, handle))) = self.due.peek() else {
                return;
            };
            if due > now {
                return;
            }
            self.due.pop();
            // An earlier place in the heap may have taken over.
            let is_valid = |session: &&Session| session.due == due;
            let Some(session) = self.sessions.at(handle).filter(is_valid) else {
                continue;
            };
            let Some(mapping) = self.mappings.get(session.mapping) else {
                continue;
            };
            let life = life(session.seen, mapping.transport, &self.timeouts);
            let due = session.used.saturating_add(life);
            if due <= now {
                self.end(now, handle.at);
            } else if let Some(session) = self.sessions.get_mut(handle.at) {
                session.due = due;
                self.due.push(Reverse((due, handle)));
            }
        }
    }

    /// The next time for [`expire`](Self::expire).
    pub(super) fn next_due(&self) -> Option<u64> {
        self.due.peek().map(|Reverse((due, _))| *due)
    }

    /// The kernel last used an entry of a session at `used`; returns whether
    /// there still is such a session.
    pub(super) fn used(&mut self, cookie: u64, used: u64) -> bool {
        match self.sessions.at_mut(Handle::of_cookie(cookie)) {
            Some(session) => {
                session.used = session.used.max(used);
                session.is_cached
            }
            None => false,
        }
    }

    pub(super) fn withdrawn(&mut self) -> Option<u64> {
        self.withdrawn.pop_front()
    }

    /// Whether a port of the pool is mapped.
    pub(super) fn is_mapped(&self, transport: Transport, outside: (Ipv4Addr, u16)) -> bool {
        self.by_outside
            .contains_key(&(transport, outside.0, outside.1))
    }

    /// The endpoints of the mapping of a session that is not touched: inside, outside. `tuple` is as
    /// a packet to the outside has it.
    pub(super) fn endpoints_outward(
        &self,
        tuple: &Tuple<A>,
    ) -> Option<((A, u16), (Ipv4Addr, u16))> {
        self.endpoints(*self.outward.get(tuple)?)
    }

    /// As [`endpoints_outward`](Self::endpoints_outward), of a packet from the outside.
    pub(super) fn endpoints_inward(&self, tuple: &Tuple) -> Option<((A, u16), (Ipv4Addr, u16))> {
        self.endpoints(*self.inward.get(tuple)?)
    }

    fn endpoints(&self, session: u32) -> Option<((A, u16), (Ipv4Addr, u16))> {
        let session = self.sessions.get(session)?;
        let mapping = self.mappings.get(session.mapping)?;
        Some((mapping.inside, mapping.outside))
    }

    /// The next line of the log.
    pub(super) fn next_line(&mut self) -> Option<String> {
        if let Some(start) = self.start.take() {
            return Some(Line::start(start).json());
        }
        let event = self.events.pop_front()?;
        Some(Line::of(&event, self.epoch).json())
    }

    pub(super) fn counts(&self) -> NatCounts {
        NatCounts {
            subscribers: self.subscribers.len() as u64,
            mappings: self.mappings.len() as u64,
            sessions: self.sessions.len() as u64,
            free_blocks: self.ports.free_blocks() as u64,
            ..self.counts
        }
    }
}

/// How long a session lives without a packet.
#[inline]
fn life(seen: u8, transport: Transport, timeouts: &Timeouts) -> u64 {
    match transport {
        Transport::Udp => timeouts.udp,
        Transport::Icmp => timeouts.icmp,
        Transport::Tcp if is_established(seen) => timeouts.tcp,
        Transport::Tcp => timeouts.tcp_transitory,
    }
}

/// Notes the flags of a packet of a TCP session; `way` is 0 outward.
#[inline]
fn note(session: &mut Session, way: usize, control: u8) {
    session.seen |= seen::ANY[way];
    match control {
        // After RST the connection goes on if other packets come (RFC 7857 §2.2).
        0 => session.seen &= !seen::RST,
        _ => {
            if control & SYN != 0 {
                session.seen |= seen::SYN[way];
            }
            if control & FIN != 0 {
                session.seen |= seen::FIN[way];
            }
            if control & RST != 0 {
                session.seen |= seen::RST;
            }
        }
    }
}

/// Whether both sides have closed, or one has reset.
#[inline]
fn is_ending(seen: u8) -> bool {
    let both = seen::FIN[0] | seen::FIN[1];
    seen & seen::RST != 0 || seen & both == both
}

/// Whether both sides have opened, and the connection does not end. A connection
/// whose begin was not seen counts as opened when both sides have sent.
#[inline]
fn is_established(seen: u8) -> bool {
    let syn = seen & (seen::SYN[0] | seen::SYN[1]);
    let any = seen::ANY[0] | seen::ANY[1];
    let is_open = syn == seen::SYN[0] | seen::SYN[1] || syn == 0 && seen & any == any;
    is_open && !is_ending(seen)
}
