//! Translation between an inside of IPv6 and an outside of IPv4: stateful NAT64 (RFC 6146), with
//! headers by RFC 7915 and addresses by RFC 6052.
//!
//! ```text
//!  host of IPv6 ─► 64:ff9b::192.0.2.9, port 80      ═►   203.0.113.1, port 2345 ─► 192.0.2.9, port 80
//!                  a name's address by DNS64                of the pool
//! ```
//!
//! | requirement | here |
//! |---|---|
//! | BIB and sessions (RFC 6146 §3) | those of [`nat`](super): endpoint-independent mappings, port blocks, limits, log |
//! | filtering (§3.5) | [`Filtering`](super::Filtering) |
//! | hairpinning (§3.8) | a packet to the pool in the prefix comes back to the inside |
//! | fragments (§3.4) | by the first one; also out of order; whole if UDP has no checksum (`nat64/parts.rs`) |
//! | headers (RFC 7915) | `nat64/header.rs`, `nat64/transport.rs`, `nat64/icmp.rs` |
//! | addresses (RFC 6052) | [`TranslationPrefix`]; the well-known prefix carries only global addresses |
//!
//! The packet changes its version and its length, so no entry in the kernel repeats the translation. A
//! packet to the outside has no station yet ([`UNROUTED`](crate::UNROUTED)): the base finds the way of
//! the IPv4 packet.

mod datagrams;
mod errors;
mod header;
mod icmp;
mod parts;
mod prefix;
mod transport;

pub use prefix::{PrefixError, TranslationPrefix};

use super::table::{NatCounts, Table, Tuple};
use super::{NatConfig, NatError, Pool};
use crate::batch::{Batch, Output};
use crate::flow::Direction;
use crate::fragments::Fragments;
use crate::layers::{self, ETHERNET, Layers};
use crate::packet::Packet;
use crate::stage::{RestoreError, Restored, Stage};
use datagrams::{Datagrams, First};
use errors::{error_v4, error_v6, source_route_v4, source_route_v6};
use header::{Fault, Header};
use parts::key;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use transport::Change;
use weir_wire::field::read_u16;
use weir_wire::{AddrPair, Protocol, icmp as wire_icmp, ipv4, ipv6, udp};

/// Smallest value of [`Nat64Config::mtu`], in bytes (RFC 8200 §5).
pub const MTU_MIN: usize = icmp::MTU_MIN as usize;

/// Largest value of [`Nat64Config::mtu`], in bytes.
pub const MTU_MAX: usize = 65_535;

/// ICMP errors of the stage's own in a second, at most.
const ERRORS_MAX: u32 = 100;

/// Hops that a packet of the stage's own may take.
const HOPS: u8 = 64;

const SECOND: u64 = 1_000_000_000;

/// The configuration of a NAT64.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Nat64Config {
    /// Pool, ports, limits, timeouts, forwards: `ftp` must be false.
    pub nat: NatConfig<Ipv6Addr>,
    /// The IPv6 addresses that stand for IPv4 addresses.
    pub prefix: TranslationPrefix,
    /// Longest IPv6 packet that a packet without the flag DF becomes, in bytes; a longer one is
    /// fragmented. `lowest-ipv6-mtu` of RFC 7915 §4.
    pub mtu: usize,
    /// Addresses of the box on the outside, beside the pool's: no packet of the outside comes from
    /// one of them.
    pub own: Vec<Ipv4Addr>,
}

impl Default for Nat64Config {
    fn default() -> Nat64Config {
        Nat64Config {
            nat: NatConfig::default(),
            prefix: TranslationPrefix::WELL_KNOWN,
            mtu: MTU_MIN,
            own: Vec::new(),
        }
    }
}

/// The translator, a [`Stage`].
#[derive(Debug)]
pub struct Nat64 {
    config: Nat64Config,
    pool: Pool,
    /// Those of the pool, and other addresses of the box.
    own: Pool,
    table: Table<Ipv6Addr>,
    fragments: Fragments,
    datagrams: Datagrams,
    /// The identification of the next IPv4 packet that has none of its own.
    next_id: u16,
    /// The second in which errors were sent last, and their number.
    errors: (u64, u32),
    hairpinned: u64,
    fragmented: u64,
    reassembled: u64,
    answered: u64,
}

/// Why a packet is not translated.
#[derive(Debug)]
enum Refused {
    Drop(&'static str),
    /// The sender gets this packet.
    Answer(&'static str, Vec<u8>),
    /// It is kept until the first fragment comes.
    Waits,
}

impl From<&'static str> for Refused {
    fn from(reason: &'static str) -> Refused {
        Refused::Drop(reason)
    }
}

/// Packets, from the IP header on.
type Packets = Vec<Vec<u8>>;

impl Nat64 {
    /// A translator. `seed` keys its tables, and the choice of ports: draw it at random.
    ///
    /// # Errors
    /// If the configuration is refused.
    pub fn new(config: Nat64Config, seed: u64) -> Result<Nat64, NatError> {
        config.nat.check()?;
        if !(MTU_MIN..=MTU_MAX).contains(&config.mtu) {
            return Err(NatError::Range {
                what: "mtu",
                value: config.mtu as u64,
                min: MTU_MIN as u64,
                max: MTU_MAX as u64,
            });
        }
        let inside = config.nat.forwards.iter().map(|forward| forward.inside.0);
        if let Some(address) = inside.into_iter().find(|it| config.prefix.contains(*it)) {
            return Err(NatError::InPrefix { address });
        }
        Ok(Nat64 {
            pool: Pool::new(&config.nat.pool),
            own: Pool::new(&[&config.nat.pool[..], &config.own].concat()),
            table: Table::new(&config.nat, seed),
            fragments: Fragments::new(seed),
            datagrams: Datagrams::new(seed),
            next_id: seed as u16,
            errors: (0, 0),
            hairpinned: 0,
            fragmented: 0,
            reassembled: 0,
            answered: 0,
            config,
        })
    }

    /// Numbers of what there is.
    pub fn counts(&self) -> NatCounts {
        self.table.counts()
    }

    fn id(&mut self) -> u16 {
        self.next_id = self.next_id.wrapping_add(1);
        self.next_id
    }

    /// Whether the prefix may stand for an address (RFC 6052 §3.1).
    fn may_embed(&self, address: Ipv4Addr) -> bool {
        !self.config.prefix.is_well_known()
            || prefix::is_global(address)
            || self.pool.contains(address)
    }

    /// The IPv4 address of a destination.
    fn remote(&self, address: Ipv6Addr) -> Result<Ipv4Addr, Refused> {
        let remote = self.config.prefix.extract(address);
        let remote = remote.filter(|remote| prefix::is_host(*remote));
        let remote = remote.ok_or("address")?;
        if !self.may_embed(remote) {
            return Err("non-global".into());
        }
        Ok(remote)
    }

    /// Whether the stage may answer with an error of its own now.
    fn may_answer(&mut self, now: u64) -> bool {
        let second = now / SECOND;
        if self.errors.0 != second {
            self.errors = (second, 0);
        }
        self.errors.1 += 1;
        self.errors.1 <= ERRORS_MAX
    }

    /// A packet of the inside to an address of the prefix, in IPv4, and what has waited for it.
    fn out(&mut self, now: u64, packet: &[u8]) -> Result<Packets, Refused> {
        let header = match header::v6(packet) {
            Ok(header) => header,
            Err(Fault::Malformed) => return Err("malformed".into()),
            Err(Fault::Extension) => return Err("extension".into()),
            Err(Fault::SegmentsLeft(at)) => return Err(source_route_v6(packet, at)),
        };
        let remote = self.remote(header.dst)?;
        if self.config.prefix.contains(header.src) {
            return Err("prefix".into());
        }
        let payload = header.payload(packet).ok_or("malformed")?;
        if header.protocol == Protocol::ICMPV6 {
            let (part, kind) = (header.part(), payload.first());
            match (part, kind) {
                (Some(_), _) => return Err("icmp-fragment".into()),
                (None, Some(kind)) if icmp::is_error_v6(*kind) => {
                    return Ok(vec![self.error_out(&header, remote, payload)?]);
                }
                (None, Some(kind)) if transport::is_echo(header.protocol, *kind) => {}
                _ => return Err("icmp-type".into()),
            }
        }
        if !self.config.nat.names_inside(header.src) {
            return Err("not-inside".into());
        }
        if header.part().is_some_and(|part| part.offset > 0) {
            return self.later_out(now, packet, &header);
        }
        transport::of(header.protocol).ok_or("protocol")?;
        let control = control(header.protocol, payload)?;
        let ends = transport::ends(header.protocol, payload).ok_or("malformed")?;
        if transport::lacks_checksum(header.protocol, payload) {
            // It would be valid in IPv4 alone (RFC 8200 §8.1).
            return Err("udp-no-checksum".into());
        }
        let (transport, src_port, dst_port) = ends;
        let tuple = Tuple {
            transport,
            src: (header.src, src_port),
            dst: (remote, dst_port),
        };
        let to = self.table.outward(now, tuple, control)?.to;
        if to == tuple.dst {
            // It would come back to its sender, as would each answer.
            return Err("source".into());
        }
        let mut payload = payload.to_vec();
        let change = Change {
            from: AddrPair::V6(header.src, header.dst),
            to: AddrPair::V4(to.0, remote),
            is_source: true,
            port: to.1,
        };
        transport::translate(&mut payload, header.protocol, header.len, &change);
        let id = self.id();
        let made = header.to_v4((to.0, remote), id).emit(&payload);
        let mut packets = vec![made.ok_or("too-long")?];
        if let Some(key) = key(Direction::Outward, &header) {
            for waited in self.fragments.first(now, key, to.0.into()) {
                packets.extend(self.readdressed_out(&waited, to.0));
            }
        }
        Ok(packets)
    }

    /// An error about a packet that came in: it quotes the packet as translated.
    fn error_out(
        &mut self,
        header: &Header<Ipv6Addr>,
        remote: Ipv4Addr,
        message: &[u8],
    ) -> Result<Vec<u8>, Refused> {
        let view = wire_icmp::Message::new(message).map_err(|_| "malformed")?;
        if !view.checksum_is_right(AddrPair::V6(header.src, header.dst)) {
            return Err("icmp-malformed".into());
        }
        let quoted = icmp::quoted_v6(message);
        let inner = header::v6(quoted).map_err(|_| "icmp-malformed")?;
        let error = icmp::to_v4(wire_icmp::Repr::parse(&view), inner.fragment.is_some());
        let error = error.ok_or("icmp-type")?;
        let mut payload = inner.quoted_payload(quoted).to_vec();
        if inner.part().is_some_and(|part| part.offset > 0) {
            // IPv4 has no errors about later fragments (RFC 1812 §4.3.2.7).
            return Err("icmp-fragment".into());
        }
        let ends = transport::ends(inner.protocol, &payload).ok_or("icmp-malformed")?;
        let sender = self.config.prefix.extract(inner.src);
        let sender = sender.ok_or("icmp-unmapped")?;
        let (transport, src_port, dst_port) = ends;
        let reply = Tuple {
            transport,
            src: (inner.dst, dst_port),
            dst: (sender, src_port),
        };
        let found = self.table.endpoints_outward(&reply);
        let (_, outside) = found.ok_or("icmp-unmapped")?;
        let change = Change {
            from: AddrPair::V6(inner.src, inner.dst),
            to: AddrPair::V4(sender, outside.0),
            is_source: false,
            port: outside.1,
        };
        transport::translate(&mut payload, inner.protocol, inner.len, &change);
        let quoted = inner.to_v4((sender, outside.0), 0).emit(&payload);
        let mut quoted = quoted.ok_or("icmp-malformed")?;
        quoted.truncate(icmp::ERROR_V4_MAX - ipv4::Repr::LEN - wire_icmp::Repr::LEN);
        // A router of the inside may be the sender: its address has no counterpart (RFC 6791).
        let addresses = (outside.0, remote);
        let (class, hops, id) = (header.class, header.hops, self.id());
        Ok(error_v4(error, addresses, class, hops, &quoted, id))
    }

    /// A packet of the outside to the pool, in IPv6, and what has waited for it; `None` without a
    /// mapping: it may be the base's own.
    fn inn(&mut self, now: u64, packet: &[u8]) -> Result<Option<Packets>, Refused> {
        let header = header::v4(packet).map_err(|_| "malformed")?;
        let payload = header.payload(packet).ok_or("malformed")?;
        if header.is_beyond() {
            return Err("malformed".into());
        }
        let part = header.part();
        if header.protocol == Protocol::ICMPV4 {
            match payload.first() {
                _ if part.is_some() => return Ok(None),
                Some(kind) if super::icmp::is_error(*kind) => {
                    return self.error_in(&header, payload);
                }
                Some(kind) if transport::is_echo_reply(header.protocol, *kind) => {}
                _ => return Ok(None),
            }
        }
        if transport::of(header.protocol).is_none() {
            return Ok(None);
        }
        if part.is_some_and(|part| part.offset > 0) {
            return self.later_in(now, packet, &header).map(Some);
        }
        let control = control(header.protocol, payload)?;
        let ends = transport::ends(header.protocol, payload).ok_or("malformed")?;
        let (transport, src_port, dst_port) = ends;
        // Before it begins or prolongs a session.
        if let Err(refused) = self.admit(&header, packet, payload)
            && self.table.is_mapped(transport, (header.dst, dst_port))
        {
            return Err(refused);
        }
        let tuple = Tuple {
            transport,
            src: (header.src, src_port),
            dst: (header.dst, dst_port),
        };
        let Some(found) = self.table.inward(now, tuple, control)? else {
            return Ok(None);
        };
        let to = found.to;
        let key = key(Direction::Inward, &header);
        if let Some(key) = key
            && transport::lacks_checksum(header.protocol, payload)
        {
            return self
                .gather(now, key, First { header, to }, payload)
                .map(Some);
        }
        let mut packets = self.readdressed(&header, to, payload)?;
        if let Some(key) = key {
            self.datagrams.replace(&key);
            for waited in self.fragments.first(now, key, to.0.into()) {
                packets.extend(self.readdressed_in(&waited, to.0).unwrap_or_default());
            }
        }
        Ok(Some(packets))
    }

    /// A packet of the outside, whole or its first fragment, to this host and port.
    fn readdressed(
        &mut self,
        header: &Header<Ipv4Addr>,
        to: (Ipv6Addr, u16),
        payload: &[u8],
    ) -> Result<Packets, Refused> {
        let addresses = (self.config.prefix.embed(header.src), to.0);
        let mut payload = payload.to_vec();
        let change = Change {
            from: AddrPair::V4(header.src, header.dst),
            to: AddrPair::V6(addresses.0, addresses.1),
            is_source: false,
            port: to.1,
        };
        transport::translate(&mut payload, header.protocol, header.len, &change);
        if transport::lacks_checksum(header.protocol, &payload) {
            let (src_port, dst_port) = (read_u16(&payload, 0), to.1);
            udp::Repr { src_port, dst_port }.emit(&mut payload, change.to);
        }
        self.fitting(&header.to_v6(addresses), &payload)
    }

    /// Whether a packet of the outside may be translated, if there is a mapping for it.
    fn admit(
        &mut self,
        header: &Header<Ipv4Addr>,
        packet: &[u8],
        payload: &[u8],
    ) -> Result<(), Refused> {
        if header.part().is_none()
            && transport::lacks_checksum(header.protocol, payload)
            && usize::from(read_u16(payload, 4)) != payload.len()
        {
            return Err("malformed".into());
        }
        if !self.may_embed(header.src) || !prefix::is_host(header.src) {
            return Err("non-global".into());
        }
        if header::has_source_route(packet) {
            return Err(source_route_v4(header, packet, self.id()));
        }
        Ok(())
    }

    /// The packet, or fragments of it if its sender lets it be fragmented and it is too long.
    fn fitting(&mut self, header: &Header<Ipv6Addr>, payload: &[u8]) -> Result<Packets, Refused> {
        let whole = header.emit(payload);
        if let Some(whole) = whole
            && (header.dont_fragment || whole.len() <= self.config.mtu)
        {
            return Ok(vec![whole]);
        }
        self.fragmented += 1;
        let pieces = header.emit_fragments(payload, self.config.mtu, header.id.into());
        Ok(pieces.ok_or("too-long")?)
    }

    /// An error about a packet that went out; `None` if it is about none that was translated.
    fn error_in(
        &mut self,
        header: &Header<Ipv4Addr>,
        message: &[u8],
    ) -> Result<Option<Packets>, Refused> {
        let view = wire_icmp::Message::new(message).map_err(|_| "malformed")?;
        if !view.checksum_is_right(AddrPair::V4(header.src, header.dst)) {
            return Err("icmp-malformed".into());
        }
        let quoted = icmp::quoted_v4(message);
        let inner = header::v4(quoted).map_err(|_| "icmp-malformed")?;
        let mut payload = inner.quoted_payload(quoted).to_vec();
        if inner.part().is_some_and(|part| part.offset > 0) {
            return Err("icmp-fragment".into());
        }
        let Some(ends) = transport::ends(inner.protocol, &payload) else {
            return Ok(None);
        };
        let (transport, src_port, dst_port) = ends;
        let sent = Tuple {
            transport,
            src: (inner.dst, dst_port),
            dst: (inner.src, src_port),
        };
        let Some((inside, outside)) = self.table.endpoints_inward(&sent) else {
            return Ok(None);
        };
        let error = icmp::to_v6(wire_icmp::Repr::parse(&view), inner.at + inner.len);
        let error = error.ok_or("icmp-type")?;
        let receiver = self.config.prefix.embed(inner.dst);
        let change = Change {
            from: AddrPair::V4(inner.src, inner.dst),
            to: AddrPair::V6(inside.0, receiver),
            is_source: true,
            port: inside.1,
        };
        transport::translate(&mut payload, inner.protocol, inner.len, &change);
        let quoted = inner.to_v6((inside.0, receiver)).emit(&payload);
        let mut quoted = quoted.ok_or("icmp-malformed")?;
        quoted.truncate(icmp::ERROR_V6_MAX - ipv6::Repr::LEN - wire_icmp::Repr::LEN);
        // An error must arrive, whatever address its sender has.
        let is_known = self.may_embed(header.src) && prefix::is_host(header.src);
        let src = if is_known { header.src } else { outside.0 };
        let addresses = (self.config.prefix.embed(src), inside.0);
        let made = error_v6(error, addresses, header.class, header.hops, &quoted);
        Ok(Some(vec![made]))
    }

    /// Sends what a packet of the inside has become: out, or back in.
    fn leave(&mut self, now: u64, packet: &mut Packet<'_>, made: Packets, output: &mut Output) {
        let to = made.first().and_then(|made| made.get(16..20));
        let to = to.and_then(|to| to.first_chunk::<4>().copied());
        let turns = to.is_some_and(|to| self.pool.contains(to.into()));
        if !turns {
            return replace(packet, made, layers::UNROUTED, |frame| {
                output.send(Direction::Outward, frame);
            });
        }
        self.hairpinned += 1;
        packet.consume();
        for made in made {
            match self.inn(now, &made) {
                Ok(Some(back)) => back
                    .iter()
                    .for_each(|back| output.send(Direction::Inward, frame(layers::UNROUTED, back))),
                Ok(None) => packet.drop("unmapped"),
                Err(refused) => self.refuse(now, packet, refused, Direction::Inward, output),
            }
        }
    }

    /// Drops a packet, or keeps it; `direction` is that of an answer.
    fn refuse(
        &mut self,
        now: u64,
        packet: &mut Packet<'_>,
        refused: Refused,
        direction: Direction,
        output: &mut Output,
    ) {
        packet.forfeit();
        match refused {
            Refused::Drop(reason) => packet.drop(reason),
            Refused::Waits => packet.consume(),
            Refused::Answer(reason, answer) => {
                packet.drop(reason);
                if self.may_answer(now) {
                    self.answered += 1;
                    output.send(direction, frame(layers::UNROUTED, &answer));
                }
            }
        }
    }
}

/// The flags of TCP that sessions follow; 0 of other protocols.
fn control(protocol: Protocol, payload: &[u8]) -> Result<u8, Refused> {
    match protocol {
        Protocol::TCP if payload.len() < 20 => Err("malformed".into()),
        Protocol::TCP => Ok(payload[13] & crate::packet::TCP_CONTROL),
        _ => Ok(0),
    }
}

/// The headers of a packet without VLAN tag: a translated one has none, and would be of another network
/// than the tag says.
fn untagged(packet: &Packet<'_>) -> Option<Layers> {
    let layers = packet.layers().copied();
    layers.filter(|layers| layers.ip == ETHERNET)
}

/// The frame of an IP packet, with these stations.
fn frame(stations: [u8; 12], packet: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(ETHERNET + packet.len());
    frame.extend_from_slice(&stations);
    frame.extend_from_slice(&layers::ether_type(packet).0.to_be_bytes());
    frame.extend_from_slice(packet);
    frame
}

/// The first packet takes the frame's place; `send` gets frames of the others.
fn replace(
    packet: &mut Packet<'_>,
    made: Packets,
    stations: [u8; 12],
    mut send: impl FnMut(Vec<u8>),
) {
    let mut frames = made.iter().map(|made| frame(stations, made));
    match frames.next() {
        Some(first) => packet.replace(first),
        None => packet.consume(),
    }
    frames.for_each(&mut send);
}

impl Stage for Nat64 {
    fn kind(&self) -> &'static str {
        "nat64"
    }

    fn outward(&mut self, now: u64, batch: &mut Batch<'_>, output: &mut Output) {
        self.table.expire(now);
        for packet in batch.packets() {
            let Some(layers) = untagged(packet) else {
                continue;
            };
            let Some((IpAddr::V6(src), IpAddr::V6(dst))) = packet.addresses() else {
                continue;
            };
            let prefix = self.config.prefix;
            if !prefix.contains(dst) {
                if prefix.contains(src) {
                    packet.drop("prefix");
                }
                continue;
            }
            let made = if packet.is_whole() {
                self.out(now, &packet.bytes()[layers.ip..layers.end])
            } else {
                Err("malformed".into())
            };
            match made {
                Ok(made) => self.leave(now, packet, made, output),
                Err(refused) => self.refuse(now, packet, refused, Direction::Inward, output),
            }
        }
    }

    fn inward(&mut self, now: u64, batch: &mut Batch<'_>, output: &mut Output) {
        self.table.expire(now);
        for packet in batch.packets() {
            let Some(layers) = untagged(packet) else {
                continue;
            };
            let prefix = self.config.prefix;
            match packet.addresses() {
                Some((IpAddr::V6(src), IpAddr::V6(dst)))
                    if prefix.contains(src) || prefix.contains(dst) =>
                {
                    packet.drop("prefix");
                    continue;
                }
                Some((IpAddr::V4(src), IpAddr::V4(dst))) if self.pool.contains(dst) => {
                    if self.own.contains(src) {
                        // Answers would go to the pool, turn, and be answered without end.
                        packet.forfeit();
                        packet.drop("source");
                        continue;
                    }
                }
                _ => continue,
            }
            let made = if packet.is_whole() && packet.header_is_right() {
                self.inn(now, &packet.bytes()[layers.ip..layers.end])
            } else {
                Err("malformed".into())
            };
            match made {
                // Perhaps the base's own; the next one may have a mapping.
                Ok(None) => packet.forfeit(),
                Ok(Some(made)) => {
                    let stations = packet.bytes().first_chunk().copied();
                    let stations = stations.unwrap_or(layers::UNROUTED);
                    replace(packet, made, stations, |frame| {
                        output.send(Direction::Inward, frame);
                    });
                }
                Err(refused) => self.refuse(now, packet, refused, Direction::Outward, output),
            }
        }
    }

    /// What a filter would not select would leave untranslated.
    fn filters(&self, _direction: Direction) -> bool {
        false
    }

    fn poll(&mut self, now: u64, _output: &mut Output) {
        self.table.expire(now);
        self.fragments.poll(now);
        self.datagrams.poll(now);
    }

    fn next_deadline(&self) -> Option<u64> {
        let due = [
            self.table.next_due(),
            self.fragments.next_due(),
            self.datagrams.next_due(),
        ];
        due.into_iter().flatten().min()
    }

    /// No packet that was translated makes an entry.
    fn withdrawn(&mut self) -> Option<u64> {
        self.table.withdrawn()
    }

    fn save(&self) -> Option<Vec<u8>> {
        Some(self.table.save())
    }

    fn restore(&mut self, now: u64, saved: &[u8]) -> Result<Restored, RestoreError> {
        self.table.restore(now, &self.config.nat, saved)
    }

    fn next_line(&mut self) -> Option<String> {
        self.table.next_line()
    }

    fn counters(&self, each: &mut dyn FnMut(&'static str, u64)) {
        self.counts().each(each);
        each("hairpinned", self.hairpinned);
        each("fragmented", self.fragmented);
        each("reassembled", self.reassembled);
        each(
            "fragments_expired",
            self.fragments.expired + self.datagrams.expired,
        );
        each("errors_sent", self.answered);
    }

    fn may_bypass(&self) -> bool {
        false
    }
}
