//! Load sharing (RFC 2391): connections from the outside to one address and
//! port go to one of several servers of the inside.
//!
//! A new session goes to the server that Maglev's table has for the client's
//! address and port; the session keeps it, whatever the set is later. A
//! server that *drains* keeps its sessions and gets no new ones. Servers are
//! probed by the stage itself, by a connection or by a request of HTTP
//! (`balance/probe.rs`). A server that does not answer as expected is *down*:
//! its sessions end, and clients that connect again reach another one.
//!
//! Replies come back through the box: it is the servers' way to the clients. With *direct return*
//! (`balance/direct.rs`) they do not: packets go to the servers unchanged.

mod config;
mod direct;
mod maglev;
mod probe;

pub use config::{BalanceConfig, BalanceError, SERVERS_MAX, SESSIONS_MAX, Server, WEIGHT_MAX};
pub use probe::{HTTP_RANGES_MAX, HTTP_TEXT_MAX, HttpCheck};

use crate::batch::{Batch, Output};
use crate::flow::{Direction, Endpoints};
use crate::fragments::Fragments;
use crate::packet::Packet;
use crate::reload::{RELOAD_INTERVAL, Reload};
use crate::slots::{Handle, Slots};
use crate::stage::Stage;
use ahash::RandomState;
use config::{PROBE_PORT, check};
use griddle::HashMap;
use maglev::{Candidate, Table};
use probe::{Arrived, FIN, Out, Probe, RST, Request, SYN, Step};
use siphasher::sip::SipHasher24;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::hash::Hasher;
use std::net::{IpAddr, Ipv4Addr};
use weir_wire::checksum::Sum;
use weir_wire::field::{read_u32, write};
use weir_wire::{AddrPair, Protocol, ipv4};

/// Packets after which a session is worth an entry in the kernel.
const CACHED_FROM: u8 = 3;

/// Sessions that end in one call, at most.
const EXPIRE_MAX: usize = 4096;

#[derive(Debug)]
struct Member {
    server: Server,
    /// The address that its probes come from.
    source: Ipv4Addr,
    is_up: bool,
    /// Probes in a row that disagree with `is_up`.
    doubts: u32,
    probe: Probe,
    sessions: u64,
    chosen: u64,
}

impl Member {
    /// A server that nothing is known of: it is up.
    fn new(server: Server, config: &BalanceConfig) -> Member {
        Member {
            server,
            source: config.source(server.end.0).unwrap_or(config.service.0),
            is_up: true,
            doubts: 0,
            probe: Probe::default(),
            sessions: 0,
            chosen: 0,
        }
    }
}

#[derive(Debug)]
struct Session {
    client: (Ipv4Addr, u16),
    member: u16,
    used: u64,
    due: u64,
    packets: u8,
    /// The server has sent a packet. With direct return, the client has sent another one since
    /// its first, without SYN.
    is_answered: bool,
    /// FIN of the client, of the server; RST.
    ends: u8,
    is_cached: bool,
}

/// The balancer, a [`Stage`].
#[derive(Debug)]
pub struct Balance {
    config: BalanceConfig,
    members: Vec<Member>,
    /// The members' addresses and ports, sorted.
    ends: Vec<(Ipv4Addr, u16)>,
    /// The addresses that probes come from, sorted.
    sources: Vec<Ipv4Addr>,
    table: Table,
    sessions: Slots<Session>,
    /// Grows a few places at a time, as the tables of a translator.
    by_client: HashMap<(Ipv4Addr, u16), u32, RandomState>,
    due: BinaryHeap<Reverse<(u64, Handle)>>,
    withdrawn: VecDeque<u64>,
    /// Fragmented packets on their way to a server that answers directly.
    fragments: Fragments,
    probes_begun: u64,
    /// Of the initial sequence numbers of probes.
    sequence_key: u64,
    request: Request,
    /// The time of the first probe that is due.
    probe_due: u64,
    reload: Option<Reload<Vec<Server>>>,
    /// When a new set is looked for next.
    look_at: u64,
    counts: Counts,
}

#[derive(Debug, Default)]
struct Counts {
    begun: u64,
    ended: u64,
    lost: u64,
    probes_failed: u64,
    reloads: u64,
    reloads_refused: u64,
}

impl Balance {
    /// A balancer. `seed` keys its table of sessions.
    ///
    /// # Errors
    /// If the configuration is refused.
    pub fn new(config: BalanceConfig, seed: u64) -> Result<Balance, BalanceError> {
        check(&config)?;
        let members = config.servers.iter();
        let members = members.map(|server| Member::new(*server, &config));
        let mut balance = Balance {
            members: members.collect(),
            ends: Vec::new(),
            sources: Vec::new(),
            table: Table::default(),
            sessions: Slots::default(),
            by_client: HashMap::with_hasher(RandomState::with_seeds(seed, 8, !seed, 2)),
            due: BinaryHeap::new(),
            withdrawn: VecDeque::new(),
            fragments: Fragments::new(seed),
            probes_begun: 0,
            sequence_key: seed,
            request: Request::new(config.http.as_ref(), config.probe_timeout),
            probe_due: 0,
            reload: None,
            look_at: 0,
            counts: Counts::default(),
            config,
        };
        balance.fill();
        Ok(balance)
    }

    /// Takes new sets of servers from `reload`, too: what is put there becomes the
    /// set as by [`set_servers`](Self::set_servers).
    #[must_use]
    pub fn reloaded_by(mut self, reload: Reload<Vec<Server>>) -> Balance {
        self.reload = Some(reload);
        self
    }

    fn look_for_servers(&mut self, now: u64) {
        let Some(reload) = &self.reload else { return };
        if now < self.look_at {
            return;
        }
        self.look_at = now.saturating_add(RELOAD_INTERVAL);
        match reload.take().map(|servers| self.set_servers(servers)) {
            Some(Ok(())) => self.counts.reloads += 1,
            Some(Err(_)) => self.counts.reloads_refused += 1,
            None => {}
        }
    }

    /// Replaces the set of servers. Sessions of servers that stay go on; those of
    /// others end.
    ///
    /// # Errors
    /// If the set is refused; then nothing changes.
    pub fn set_servers(&mut self, servers: Vec<Server>) -> Result<(), BalanceError> {
        let config = BalanceConfig {
            servers,
            ..self.config.clone()
        };
        check(&config)?;
        let place = |end| config.servers.iter().position(|server| server.end == end);
        let places: Vec<Option<usize>> = self
            .members
            .iter()
            .map(|member| place(member.server.end))
            .collect();
        for at in self.sessions.places() {
            let Some(session) = self.sessions.get_mut(at) else {
                continue;
            };
            match places[usize::from(session.member)] {
                Some(place) => session.member = place as u16,
                None => self.end(at),
            }
        }
        let mut before = std::mem::take(&mut self.members);
        self.members = config
            .servers
            .iter()
            .map(|server| {
                let known = before
                    .iter()
                    .position(|member| member.server.end == server.end);
                match known.map(|at| before.swap_remove(at)) {
                    Some(member) => Member {
                        server: *server,
                        ..member
                    },
                    None => Member::new(*server, &config),
                }
            })
            .collect();
        self.config = config;
        self.find_probe_due();
        self.fill();
        Ok(())
    }

    /// Sessions of each server, and how many it has been chosen for.
    pub fn shares(&self) -> impl Iterator<Item = (Server, u64, u64, bool)> {
        let members = self.members.iter();
        members.map(|member| (member.server, member.sessions, member.chosen, member.is_up))
    }

    fn fill(&mut self) {
        let ends = self.members.iter().map(|member| member.server.end);
        self.ends = ends.collect();
        self.ends.sort_unstable();
        self.sources = self.members.iter().map(|member| member.source).collect();
        self.sources.sort_unstable();
        self.sources.dedup();
        let members = (0..).zip(&self.members);
        let usable = members.filter(|(_, member)| member.is_up && !member.server.is_draining);
        let candidates = usable.map(|(number, member)| Candidate {
            number,
            end: member.server.end,
            weight: member.server.weight,
        });
        self.table = Table::new(&candidates.collect::<Vec<_>>());
    }

    fn share(
        &mut self,
        now: u64,
        packet: &mut Packet<'_>,
        output: &mut Output,
    ) -> Result<(), &'static str> {
        let Some((client, service)) = endpoints(packet, self.config.protocol) else {
            return self.share_other(now, packet);
        };
        if self.is_probed_from(service) {
            // From a server on the clients' link.
            self.probe_answered(now, client, packet, output);
            return Ok(());
        }
        if service != self.config.service {
            return Ok(());
        }
        let at = self.session(now, client, packet)?;
        self.hit(now, at, Direction::Inward, packet)
    }

    /// The session of a client's packet; a new one if it has none, or one that is over.
    fn session(
        &mut self,
        now: u64,
        client: (Ipv4Addr, u16),
        packet: &Packet<'_>,
    ) -> Result<u32, &'static str> {
        if !packet.is_whole() || !packet.header_is_right() {
            return Err("malformed");
        }
        let known = self.by_client.get(&client).copied();
        let control = packet.tcp_control();
        if let Some(at) = known.filter(|at| !self.is_over(now, *at, control)) {
            return Ok(at);
        }
        if let Some(at) = known {
            self.end(at);
        }
        self.begin(now, client)
    }

    fn answer(
        &mut self,
        now: u64,
        packet: &mut Packet<'_>,
        output: &mut Output,
    ) -> Result<(), &'static str> {
        let Some((server, client)) = endpoints(packet, self.config.protocol) else {
            return Ok(());
        };
        if self.is_probed_from(client) {
            self.probe_answered(now, server, packet, output);
            return Ok(());
        }
        if self.config.direct_return.is_some() {
            return Ok(());
        }
        let known = self.by_client.get(&client).copied();
        let Some(at) = known.filter(|at| self.server(*at) == Some(server)) else {
            if self.ends.binary_search(&server).is_ok() {
                // A session may begin, whose answers an entry would pass as they are.
                packet.forfeit();
            }
            return Ok(());
        };
        if !packet.is_whole() {
            return Err("malformed");
        }
        self.hit(now, at, Direction::Outward, packet)
    }

    /// The address and port of a session's server.
    fn server(&self, at: u32) -> Option<(Ipv4Addr, u16)> {
        let session = self.sessions.get(at)?;
        Some(self.members[usize::from(session.member)].server.end)
    }

    /// Whether servers are probed: then the probes' port is the stage's own.
    fn probes(&self) -> bool {
        self.config.probe > 0 && self.config.protocol == Protocol::TCP
    }

    /// Whether probes come from this address and port.
    fn is_probed_from(&self, end: (Ipv4Addr, u16)) -> bool {
        let is_source = || self.sources.binary_search(&end.0).is_ok();
        self.probes() && end.1 == PROBE_PORT && is_source()
    }

    fn is_over(&self, now: u64, at: u32, control: u8) -> bool {
        let Some(session) = self.sessions.get(at) else {
            return true;
        };
        let reopened = control & SYN != 0 && session.ends != 0;
        reopened || session.used.saturating_add(life(&self.config, session)) <= now
    }

    fn begin(&mut self, now: u64, client: (Ipv4Addr, u16)) -> Result<u32, &'static str> {
        if self.sessions.len() >= self.config.sessions_max as usize {
            return Err("sessions-full");
        }
        let hash = mixed(u64::from(client.0.to_bits()) << 16 | u64::from(client.1));
        let member = self.table.choose(hash).ok_or("no-server")?;
        let session = Session {
            client,
            member,
            used: now,
            due: 0,
            packets: 0,
            is_answered: false,
            ends: 0,
            is_cached: false,
        };
        let due = now.saturating_add(life(&self.config, &session));
        let handle = self.sessions.insert(Session { due, ..session });
        self.by_client.insert(client, handle.at);
        self.due.push(Reverse((due, handle)));
        let member = &mut self.members[usize::from(member)];
        member.sessions += 1;
        member.chosen += 1;
        self.counts.begun += 1;
        Ok(handle.at)
    }

    fn hit(
        &mut self,
        now: u64,
        at: u32,
        direction: Direction,
        packet: &mut Packet<'_>,
    ) -> Result<(), &'static str> {
        let (config, handle) = (&self.config, self.sessions.handle(at));
        let Some(session) = self.sessions.get_mut(at) else {
            return Err("no-session");
        };
        let is_direct = config.direct_return.is_some();
        let control = packet.tcp_control();
        let way = 1 << u8::from(direction == Direction::Outward);
        session.ends |= if control & FIN != 0 { way } else { 0 };
        session.ends |= if control & RST != 0 { 4 } else { 0 };
        session.is_answered |= match direction {
            Direction::Outward => true,
            Direction::Inward => is_direct && session.packets > 0 && control & SYN == 0,
        };
        session.used = session.used.max(now);
        session.packets = session.packets.saturating_add(1);
        let due = session.used.saturating_add(life(config, session));
        if due < session.due {
            session.due = due;
            self.due.push(Reverse((due, handle)));
        }
        let cookie = handle.cookie();
        if session.ends == 0 && session.packets >= CACHED_FROM && control == 0 {
            session.is_cached = true;
            packet.remember(cookie);
        } else {
            packet.forfeit();
            if std::mem::take(&mut session.is_cached) {
                self.withdrawn.push_back(cookie);
            }
        }
        let server = self.members[usize::from(session.member)].server.end;
        match direction {
            Direction::Inward if is_direct => _ = packet.set_next_hop(server.0),
            Direction::Inward => {
                packet.set_destination(server.0.into());
                packet.set_destination_port(server.1);
            }
            Direction::Outward => {
                let (address, port) = self.config.service;
                packet.set_source(address.into());
                packet.set_source_port(port);
            }
        }
        Ok(())
    }

    fn end(&mut self, at: u32) {
        let handle = self.sessions.handle(at);
        let Some(session) = self.sessions.remove(at) else {
            return;
        };
        self.by_client.remove(&session.client);
        if let Some(member) = self.members.get_mut(usize::from(session.member)) {
            member.sessions -= 1;
        }
        self.counts.ended += 1;
        self.withdrawn.push_back(handle.cookie());
    }

    fn expire(&mut self, now: u64) {
        for _ in 0..EXPIRE_MAX {
            let Some(&Reverse((due, handle))) = self.due.peek() else {
                return;
            };
            if due > now {
                return;
            }
            self.due.pop();
            let is_valid = |session: &&Session| session.due == due;
            let Some(session) = self.sessions.at(handle).filter(is_valid) else {
                continue;
            };
            let due = session.used.saturating_add(life(&self.config, session));
            if due <= now {
                self.end(handle.at);
            } else if let Some(session) = self.sessions.get_mut(handle.at) {
                session.due = due;
                self.due.push(Reverse((due, handle)));
            }
        }
    }

    /// Probes the servers whose time it is.
    fn probe(&mut self, now: u64, output: &mut Output) {
        if !self.probes() || now < self.probe_due {
            return;
        }
        for at in 0..self.members.len() {
            if self.members[at].probe.due() > now {
                continue;
            }
            let step = self.members[at].probe.poll(now, &self.request);
            self.take_step(at, step, output);
            if self.members[at].probe.next > now {
                continue;
            }
            let sequence = self.initial_sequence();
            let probe = &mut self.members[at].probe;
            // Not all at the same time.
            let spread = if probe.next == 0 {
                self.config.probe / 16 * (at as u64 % 16)
            } else {
                0
            };
            probe.next = now.saturating_add(self.config.probe).saturating_add(spread);
            let step = probe.begin(now, &self.request, sequence);
            self.take_step(at, step, output);
        }
        self.find_probe_due();
    }

    /// The initial sequence number of the next probe, which a server does not learn from those of
    /// its own probes: else it could answer for another server (RFC 6528).
    fn initial_sequence(&mut self) -> u32 {
        self.probes_begun += 1;
        let mut hasher = SipHasher24::new_with_keys(self.sequence_key, !self.sequence_key);
        hasher.write_u64(self.probes_begun);
        hasher.finish() as u32
    }

    fn find_probe_due(&mut self) {
        let due = self.members.iter().map(|member| member.probe.due());
        self.probe_due = due.min().unwrap_or(u64::MAX);
    }

    /// Sends what a probe has to send, and notes its result.
    fn take_step(&mut self, at: usize, step: Step, output: &mut Output) {
        if let Some(out) = step.out {
            let (to, from) = (self.members[at].server.end, self.members[at].source);
            let payload = match &self.config.http {
                Some(http) if out.has_request => http.request(),
                _ => Vec::new(),
            };
            let frame = segment(from, to, &out, &payload);
            output.send(Direction::Inward, frame);
        }
        if let Some(is_good) = step.result {
            self.judge(at, is_good);
        }
    }

    /// A segment of a server to a probe, which the stage keeps.
    fn probe_answered(
        &mut self,
        now: u64,
        server: (Ipv4Addr, u16),
        packet: &mut Packet<'_>,
        output: &mut Output,
    ) {
        // A whole header of TCP.
        let layers = packet.layers().copied();
        let Some(layers) = layers.filter(|layers| layers.has_transport) else {
            return;
        };
        if !packet.is_whole() || !packet.header_is_right() {
            packet.take();
            return;
        }
        let at = self.members.iter().position(|it| it.server.end == server);
        let bytes = &packet.bytes()[layers.payload..layers.end];
        let step = at.zip(tcp(bytes)).map(|(at, segment)| {
            let probe = &mut self.members[at].probe;
            (at, probe.arrived(now, &segment, &self.request))
        });
        packet.take();
        if let Some((at, step)) = step {
            self.take_step(at, step, output);
            self.find_probe_due();
        }
    }

    /// Notes the result of a probe.
    fn judge(&mut self, at: usize, is_good: bool) {
        self.counts.probes_failed += u64::from(!is_good);
        let (fall, rise) = (self.config.fall, self.config.rise);
        let member = &mut self.members[at];
        if member.is_up == is_good {
            member.doubts = 0;
            return;
        }
        member.doubts += 1;
        if member.doubts < if is_good { rise } else { fall } {
            return;
        }
        (member.is_up, member.doubts) = (is_good, 0);
        if !is_good {
            self.counts.lost += 1;
            for session in self.sessions.places() {
                let of_it = |session: &Session| usize::from(session.member) == at;
                if self.sessions.get(session).is_some_and(of_it) {
                    self.end(session);
                }
            }
        }
        self.fill();
    }
}

/// How long a session lives without a packet. A connection that its server has not answered
/// lives as shortly as one that has ended: SYNs of made-up clients would otherwise fill the
/// table for as long as real connections live.
fn life(config: &BalanceConfig, session: &Session) -> u64 {
    let is_half_open = config.protocol == Protocol::TCP && !session.is_answered;
    match session.ends {
        0 if !is_half_open => config.idle,
        0 => config.idle.min(config.closing),
        _ => config.closing,
    }
}

fn mixed(bits: u64) -> u64 {
    weir_wire::rng::SplitMix64::new(bits).bits()
}

/// Source and destination of a packet of a protocol over IPv4.
fn endpoints(
    packet: &Packet<'_>,
    protocol: Protocol,
) -> Option<((Ipv4Addr, u16), (Ipv4Addr, u16))> {
    let flow = packet.flow().filter(|flow| flow.protocol == protocol)?;
    let (IpAddr::V4(src), IpAddr::V4(dst)) = (flow.src, flow.dst) else {
        return None;
    };
    Some(((src, flow.src_port), (dst, flow.dst_port)))
}

/// The segment in the bytes of a TCP header, 20 at least, and its payload; `None` if the header
/// contradicts itself.
fn tcp(bytes: &[u8]) -> Option<Arrived<'_>> {
    let header = usize::from(bytes.get(12)? >> 4) * 4;
    Some(Arrived {
        flags: *bytes.get(13)?,
        sequence: read_u32(bytes, 4),
        ack: read_u32(bytes, 8),
        payload: bytes.get(header.max(20)..).filter(|_| header >= 20)?,
    })
}

/// A segment of a probe. The caller of the chain sets the MAC addresses.
fn segment(from: Ipv4Addr, to: (Ipv4Addr, u16), out: &Out, payload: &[u8]) -> Vec<u8> {
    let payload_len = 20 + payload.len();
    let mut frame = vec![0; 14 + 20 + 20];
    write(&mut frame, 0, &[0xff; 6]);
    write(&mut frame, 12, &[8, 0]);
    ipv4::Repr {
        src: from,
        dst: to.0,
        protocol: Protocol::TCP,
        ttl: 64,
        traffic_class: 0,
        identification: 0,
        dont_fragment: true,
        payload_len,
    }
    .emit(&mut frame[14..]);
    write(&mut frame, 34, &PROBE_PORT.to_be_bytes());
    write(&mut frame, 36, &to.1.to_be_bytes());
    write(&mut frame, 38, &out.sequence.to_be_bytes());
    write(&mut frame, 42, &out.ack.to_be_bytes());
    write(&mut frame, 46, &[0x50, out.flags, 4, 0]);
    frame.extend_from_slice(payload);
    let sum = Sum::new()
        .pseudo_header(AddrPair::V4(from, to.0), 6, payload_len as u32)
        .bytes(&frame[34..])
        .finish();
    write(&mut frame, 50, &sum.to_be_bytes());
    frame
}

impl Stage for Balance {
    fn kind(&self) -> &'static str {
        "balance"
    }

    fn outward(&mut self, now: u64, batch: &mut Batch<'_>, output: &mut Output) {
        self.expire(now);
        for packet in batch.packets() {
            if let Err(reason) = self.answer(now, packet, output) {
                packet.forfeit();
                packet.drop(reason);
            }
        }
    }

    fn inward(&mut self, now: u64, batch: &mut Batch<'_>, output: &mut Output) {
        self.expire(now);
        for packet in batch.packets() {
            if let Err(reason) = self.share(now, packet, output) {
                packet.forfeit();
                packet.drop(reason);
            }
        }
    }

    /// Replies have other addresses than the packets that the filter selects.
    fn filters(&self, direction: Direction) -> bool {
        direction == Direction::Inward
    }

    /// The answers to probes.
    fn turns(&self, endpoints: &Endpoints) -> bool {
        let (IpAddr::V4(dst), Some((_, port))) = (endpoints.dst, endpoints.ports) else {
            return false;
        };
        endpoints.protocol == self.config.protocol && self.is_probed_from((dst, port))
    }

    fn poll(&mut self, now: u64, output: &mut Output) {
        self.look_for_servers(now);
        self.expire(now);
        self.probe(now, output);
    }

    fn next_deadline(&self) -> Option<u64> {
        let sessions = self.due.peek().map(|Reverse((due, ..))| *due);
        let probes = self.probes().then_some(self.probe_due);
        let looks = self.reload.as_ref().map(|_| self.look_at);
        [sessions, probes, looks].into_iter().flatten().min()
    }

    fn used(&mut self, cookie: u64, _direction: Direction, used: u64) -> bool {
        let Some(session) = self.sessions.at_mut(Handle::of_cookie(cookie)) else {
            return false;
        };
        session.used = session.used.max(used);
        session.is_cached
    }

    fn withdrawn(&mut self) -> Option<u64> {
        self.withdrawn.pop_front()
    }

    fn counters(&self, each: &mut dyn FnMut(&'static str, u64)) {
        each("sessions", self.sessions.len() as u64);
        each("sessions_begun", self.counts.begun);
        each("sessions_ended", self.counts.ended);
        each("servers_lost", self.counts.lost);
        each("probes_failed", self.counts.probes_failed);
        each("reloads", self.counts.reloads);
        each("reloads_refused", self.counts.reloads_refused);
        let up = self.members.iter().filter(|member| member.is_up).count();
        each("servers_up", up as u64);
    }

    fn may_bypass(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn sequence_numbers_of_probes_do_not_follow_from_each_other() {
        let server = Server {
            end: (Ipv4Addr::new(10, 0, 0, 2), 80),
            weight: 1,
            is_draining: false,
        };
        let service = (Ipv4Addr::new(192, 0, 2, 1), 80);
        let config = BalanceConfig::new(Protocol::TCP, service, vec![server]);
        let mut balance = Balance::new(config, 7).unwrap();
        let numbers: Vec<u32> = (0..9).map(|_| balance.initial_sequence()).collect();
        let steps = numbers.windows(2).map(|two| two[1].wrapping_sub(two[0]));
        assert_eq!(steps.collect::<BTreeSet<_>>().len(), 8);
    }
}
