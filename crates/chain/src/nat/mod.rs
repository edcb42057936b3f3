//! Network address and port translation of IPv4 to IPv4 (RFC 3022).
//!
//! | requirement | here |
//! |---|---|
//! | mapping is endpoint-independent (RFC 4787 REQ-1, RFC 5382 REQ-1) | always |
//! | pooling is paired (RFC 4787 REQ-2) | a subscriber has one address of the pool |
//! | no port is overloaded (RFC 4787 REQ-3) | always; port parity is kept where possible (REQ-4) |
//! | filtering (RFC 4787 REQ-8, RFC 5382 REQ-3) | [`Filtering`] |
//! | hairpinning (RFC 4787 REQ-9, RFC 5382 REQ-8) | TCP and UDP |
//! | ICMP errors (RFC 4787 REQ-12, RFC 5508 §4) | both directions, and what they quote |
//! | fragments (RFC 4787 REQ-14) | also out of order |
//! | timeouts (RFC 4787 REQ-5, RFC 5382 REQ-5, RFC 5508 REQ-1) | [`Timeouts`]; packets of both directions refresh |
//! | TCP states (RFC 7857 §2) | RST does not end a session at once |
//! | limits of a subscriber, port blocks, log, rest of ports (RFC 6888) | [`NatConfig`], [`log`] |
//!
//! Not translated, and so dropped outward: protocols other than TCP, UDP and
//! ICMP. One application gateway changes payloads, if it is configured: FTP's
//! (`nat/ftp.rs`).
//!
//! The tables, ports, log and limits serve [`nat64`], too.

mod config;
mod ftp;
pub(crate) mod icmp;
mod inside;
pub mod log;
pub mod nat64;
mod ports;
mod state;
mod table;

pub use config::{
    BLOCK_MIN, FIRST_PORT, FORWARDS_MAX, Filtering, Forward, LIMITS_MAX, NatConfig, NatError,
    POOL_MAX, PORTS, Prefix, PrefixLimit, SESSIONS_MAX, Timeouts, Transport,
};
pub use inside::Inside;
pub use table::NatCounts;

use crate::batch::{Batch, Output};
use crate::flow::{Direction, Endpoints};
use crate::fragments::{FragmentKey, Fragments};
use crate::packet::{Bytes, Packet};
use crate::stage::{RestoreError, Restored, Stage};
use ftp::Segment;
use std::net::{IpAddr, Ipv4Addr};
use std::ops::RangeInclusive;
use table::{Table, Translation, Tuple};
use weir_wire::Protocol;

/// The translator, a [`Stage`].
#[derive(Debug)]
pub struct Nat {
    config: NatConfig,
    pool: Pool,
    table: Table,
    fragments: Fragments,
}

/// The IPv4 addresses and the protocol of a packet.
#[derive(Clone, Copy)]
struct Header {
    src: Ipv4Addr,
    dst: Ipv4Addr,
    protocol: Protocol,
}

impl Header {
    fn of(packet: &Packet<'_>) -> Option<Header> {
        match packet.addresses()? {
            (IpAddr::V4(src), IpAddr::V4(dst)) => Some(Header {
                src,
                dst,
                protocol: packet.protocol()?,
            }),
            _ => None,
        }
    }
}

/// The addresses of the pool, as ranges: a pool of neighbours is found by one comparison.
#[derive(Debug)]
struct Pool(Vec<RangeInclusive<Ipv4Addr>>);

impl Pool {
    fn new(addresses: &[Ipv4Addr]) -> Pool {
        let mut sorted = addresses.to_vec();
        sorted.sort_unstable();
        let chunks = sorted.chunk_by(|a, b| b.to_bits() - a.to_bits() <= 1);
        Pool(
            chunks
                .map(|chunk| chunk[0]..=chunk[chunk.len() - 1])
                .collect(),
        )
    }

    #[inline]
    fn contains(&self, address: Ipv4Addr) -> bool {
        let after = self.0.partition_point(|range| *range.start() <= address);
        after > 0 && address <= *self.0[after - 1].end()
    }
}

/// Why a packet is dropped.
type Refused = &'static str;

impl Nat {
    /// A translator. `seed` keys its tables, and the choice of ports: draw it at
    /// random.
    ///
    /// # Errors
    /// If the configuration is refused.
    pub fn new(config: NatConfig, seed: u64) -> Result<Nat, NatError> {
        config.check()?;
        Ok(Nat {
            pool: Pool::new(&config.pool),
            table: Table::new(&config, seed),
            fragments: Fragments::new(seed),
            config,
        })
    }

    /// Numbers of what there is.
    pub fn counts(&self) -> NatCounts {
        self.table.counts()
    }

    /// Whether an address is translated: one in `inside` that is not the pool's. A
    /// translator behind another one has a pool of private addresses.
    #[inline]
    fn is_inside(&self, address: Ipv4Addr) -> bool {
        self.config.names_inside(address) && !self.pool.contains(address)
    }

    fn out(
        &mut self,
        now: u64,
        packet: &mut Packet<'_>,
        output: &mut Output,
    ) -> Result<(), Refused> {
        let Some(header) = Header::of(packet) else {
            return Ok(());
        };
        let is_inside = self.is_inside(header.src);
        if is_inside && !packet.is_whole() {
            return Err("malformed");
        }
        if header.protocol == Protocol::ICMPV4 {
            return self.icmp_out(now, packet, header, is_inside);
        }
        if !is_inside {
            return Ok(());
        }
        if packet
            .fragment()
            .is_some_and(|fragment| fragment.offset > 0)
        {
            return self.later_fragment(now, packet, header, Direction::Outward);
        }
        let transport = transport(header.protocol).ok_or("protocol")?;
        let (src_port, dst_port) = packet.ports().ok_or("malformed")?;
        let tuple = Tuple {
            transport,
            src: (header.src, src_port),
            dst: (header.dst, dst_port),
        };
        let found = self.table.outward(now, tuple, packet.tcp_control())?;
        if packet.fragment().is_some() {
            self.first_fragment(now, packet, header, Direction::Outward, found.to.0, output);
        }
        packet.set_source(found.to.0.into());
        packet.set_source_port(found.to.1);
        remember(packet, &found);
        match found.control {
            Some(at) => self.control_out(now, packet, at, &tuple, output),
            None => Ok(()),
        }
    }

    /// A segment of the inside on a control connection of FTP.
    fn control_out(
        &mut self,
        now: u64,
        packet: &mut Packet<'_>,
        at: u32,
        tuple: &Tuple,
        output: &mut Output,
    ) -> Result<(), Refused> {
        let layers = *packet.layers().ok_or("malformed")?;
        if layers.fragment.is_some() {
            return Err("ftp-fragment");
        }
        let segment = Segment::of(packet.bytes(), &layers).ok_or("malformed")?;
        let (sequence, ack) = (segment.sequence(), segment.ack());
        if segment.flags() & ftp::SYN != 0 {
            if !segment.payload.is_empty() {
                return Err("ftp-syn-data");
            }
            self.table.begin_control(now, at, sequence);
            let frame = segment.with(ftp::plain_syn, &[]);
            packet.replace(frame);
            return Ok(());
        }
        if self.table.control(at).is_none() {
            // Its begin was not seen.
            return Ok(());
        }
        let changed = self
            .table
            .control_outward(now, at, sequence, segment.payload)
            .ok_or("ftp-order")?;
        let Some(control) = self.table.control(at) else {
            return Ok(());
        };
        if changed.is_answered {
            let frame = ftp::acknowledgment(tuple.dst, tuple.src, control);
            output.send(Direction::Inward, frame);
        }
        if changed.sequence != sequence || changed.payload != segment.payload {
            let new = ftp::renumbered(&segment, changed.sequence, ack, &changed.payload, control);
            packet.replace(new);
        }
        Ok(())
    }

    /// A segment of the outside on a control connection of FTP.
    fn control_in(&mut self, packet: &mut Packet<'_>, at: u32) -> Result<(), Refused> {
        let layers = *packet.layers().ok_or("malformed")?;
        if layers.fragment.is_some() {
            return Err("ftp-fragment");
        }
        let segment = Segment::of(packet.bytes(), &layers).ok_or("malformed")?;
        if segment.flags() & ftp::SYN != 0 {
            if !segment.payload.is_empty() {
                return Err("ftp-syn-data");
            }
            if let Some(control) = self.table.control(at) {
                if segment.has_ack() && !control.is_plausible(&segment) {
                    return Err("ftp-window");
                }
                // One without an acknowledgment may begin another connection: the host's answer says.
                if segment.has_ack() {
                    control.heard(&segment);
                }
            }
            let frame = segment.with(ftp::plain_syn, &[]);
            packet.replace(frame);
            return Ok(());
        }
        let Some(control) = self.table.control(at) else {
            return Ok(());
        };
        if !control.is_plausible(&segment) {
            return Err("ftp-window");
        }
        control.heard(&segment);
        let ack = segment.ack();
        let own = if segment.has_ack() {
            control.acknowledged(ack)
        } else {
            ack
        };
        if own != ack {
            let (sequence, payload) = (segment.sequence(), segment.payload);
            let new = ftp::renumbered(&segment, sequence, own, payload, control);
            packet.replace(new);
        }
        Ok(())
    }

    fn inn(
        &mut self,
        now: u64,
        packet: &mut Packet<'_>,
        output: &mut Output,
    ) -> Result<(), Refused> {
        let Some(header) = Header::of(packet) else {
            return Ok(());
        };
        if self.is_inside(header.dst) {
            return Err("untranslated");
        }
        if !self.pool.contains(header.dst) {
            return Ok(());
        }
        if !packet.is_whole() || !packet.header_is_right() {
            return Err("malformed");
        }
        if packet
            .fragment()
            .is_some_and(|fragment| fragment.offset > 0)
        {
            return self.later_fragment(now, packet, header, Direction::Inward);
        }
        if header.protocol == Protocol::ICMPV4 {
            return self.icmp_in(now, packet, header);
        }
        let Some(transport) = transport(header.protocol) else {
            return Ok(());
        };
        let (src_port, dst_port) = packet.ports().ok_or("malformed")?;
        let tuple = Tuple {
            transport,
            src: (header.src, src_port),
            dst: (header.dst, dst_port),
        };
        let Some(found) = self.table.inward(now, tuple, packet.tcp_control())? else {
            // Perhaps the base's own; the next one may have a mapping.
            packet.forfeit();
            return Ok(());
        };
        if packet.fragment().is_some() {
            self.first_fragment(now, packet, header, Direction::Inward, found.to.0, output);
        }
        packet.set_destination(found.to.0.into());
        packet.set_destination_port(found.to.1);
        remember(packet, &found);
        match found.control {
            Some(at) => self.control_in(packet, at),
            None => Ok(()),
        }
    }

    fn icmp_out(
        &mut self,
        now: u64,
        packet: &mut Packet<'_>,
        header: Header,
        is_inside: bool,
    ) -> Result<(), Refused> {
        let Some((kind, id)) = icmp::header(packet) else {
            // A fragment, or cut short.
            return if is_inside { Err("malformed") } else { Ok(()) };
        };
        if icmp::is_error(kind) {
            return self.error_out(packet, is_inside);
        }
        if !is_inside {
            return Ok(());
        }
        if !matches!(kind, icmp::ECHO | icmp::TIMESTAMP) || packet.fragment().is_some() {
            return Err("icmp-type");
        }
        let tuple = Tuple {
            transport: Transport::Icmp,
            src: (header.src, id),
            dst: (header.dst, 0),
        };
        let found = self.table.outward(now, tuple, 0)?;
        packet.set_source(found.to.0.into());
        icmp::set_identifier(packet, found.to.1);
        Ok(())
    }

    /// An error about a packet that came in: it quotes the packet as translated.
    fn error_out(&mut self, packet: &mut Packet<'_>, is_inside: bool) -> Result<(), Refused> {
        let Some(quoted) = icmp::Quoted::of(packet) else {
            return if is_inside {
                Err("icmp-malformed")
            } else {
                Ok(())
            };
        };
        let hidden = quoted.tuple.dst.0;
        if !is_inside && !self.is_inside(hidden) {
            return Ok(());
        }
        let reply = Tuple {
            src: quoted.tuple.dst,
            dst: quoted.tuple.src,
            ..quoted.tuple
        };
        let found = self.table.endpoints_outward(&reply);
        let (_, outside) = found.ok_or("icmp-unmapped")?;
        quoted.rewrite(packet, false, outside);
        if is_inside {
            // A router of the inside may be the sender: its address stays hidden, too.
            packet.set_source(outside.0.into());
        }
        Ok(())
    }

    fn icmp_in(
        &mut self,
        now: u64,
        packet: &mut Packet<'_>,
        header: Header,
    ) -> Result<(), Refused> {
        let Some((kind, id)) = icmp::header(packet) else {
            return Err("malformed");
        };
        if icmp::is_error(kind) {
            let Some(quoted) = icmp::Quoted::of(packet) else {
                return Err("icmp-malformed");
            };
            let sent = Tuple {
                src: quoted.tuple.dst,
                dst: quoted.tuple.src,
                ..quoted.tuple
            };
            // None: about a packet of the base's own.
            if let Some((inside, _)) = self.table.endpoints_inward(&sent) {
                quoted.rewrite(packet, true, inside);
                packet.set_destination(inside.0.into());
            }
            return Ok(());
        }
        if !matches!(kind, icmp::ECHO_REPLY | icmp::TIMESTAMP_REPLY) {
            return Ok(());
        }
        let tuple = Tuple {
            transport: Transport::Icmp,
            src: (header.src, 0),
            dst: (header.dst, id),
        };
        if let Some(found) = self.table.inward(now, tuple, 0)? {
            packet.set_destination(found.to.0.into());
            icmp::set_identifier(packet, found.to.1);
        }
        Ok(())
    }

    fn first_fragment(
        &mut self,
        now: u64,
        packet: &Packet<'_>,
        header: Header,
        direction: Direction,
        to: Ipv4Addr,
        output: &mut Output,
    ) {
        let Some(key) = fragment_key(packet, header, direction) else {
            return;
        };
        for frame in self.fragments.first(now, key, to.into()) {
            let mut waited = Packet::own(frame);
            readdress(&mut waited, direction, to.into());
            if let (Bytes::Own(frame), _) = waited.finish() {
                output.send(direction, frame);
            }
        }
    }

    fn later_fragment(
        &mut self,
        now: u64,
        packet: &mut Packet<'_>,
        header: Header,
        direction: Direction,
    ) -> Result<(), Refused> {
        let key = fragment_key(packet, header, direction).ok_or("malformed")?;
        match self.fragments.find(now, &key) {
            Some(to) => readdress(packet, direction, to),
            None if self.fragments.has_room(&key, |source| source) => {
                let frame = packet.take();
                self.fragments.wait(now, key, frame);
            }
            None => return Err("fragments-full"),
        }
        Ok(())
    }
}

fn readdress(packet: &mut Packet<'_>, direction: Direction, to: IpAddr) {
    match direction {
        Direction::Outward => packet.set_source(to),
        Direction::Inward => packet.set_destination(to),
    };
}

fn fragment_key(packet: &Packet<'_>, header: Header, direction: Direction) -> Option<FragmentKey> {
    Some(FragmentKey {
        direction,
        src: header.src.into(),
        dst: header.dst.into(),
        protocol: header.protocol.0,
        id: packet.fragment()?.id.into(),
    })
}

fn remember(packet: &mut Packet<'_>, found: &Translation) {
    if found.is_cacheable {
        packet.remember(found.cookie)
    } else {
        packet.forfeit()
    }
}

fn transport(protocol: Protocol) -> Option<Transport> {
    match protocol {
        Protocol::TCP => Some(Transport::Tcp),
        Protocol::UDP => Some(Transport::Udp),
        _ => None,
    }
}

impl Stage for Nat {
    fn kind(&self) -> &'static str {
        "nat"
    }

    fn outward(&mut self, now: u64, batch: &mut Batch<'_>, output: &mut Output) {
        self.table.expire(now);
        for packet in batch.packets() {
            if let Err(reason) = self.out(now, packet, output) {
                // A later packet may find room.
                packet.forfeit();
                packet.drop(reason);
            }
        }
    }

    fn inward(&mut self, now: u64, batch: &mut Batch<'_>, output: &mut Output) {
        self.table.expire(now);
        for packet in batch.packets() {
            if let Err(reason) = self.inn(now, packet, output) {
                packet.forfeit();
                packet.drop(reason);
            }
        }
    }

    /// Replies have other addresses than the packets that the filter selects.
    fn filters(&self, direction: Direction) -> bool {
        direction == Direction::Outward
    }

    fn turns(&self, endpoints: &Endpoints) -> bool {
        let (IpAddr::V4(src), IpAddr::V4(dst)) = (endpoints.src, endpoints.dst) else {
            return false;
        };
        self.pool.contains(dst)
            && transport(endpoints.protocol)
                .zip(endpoints.ports)
                .is_some_and(|(transport, (_, port))| self.table.is_mapped(transport, (dst, port)))
            && self.is_inside(src)
    }

    fn poll(&mut self, now: u64, _output: &mut Output) {
        self.table.expire(now);
        self.fragments.poll(now);
    }

    fn next_deadline(&self) -> Option<u64> {
        let due = [self.table.next_due(), self.fragments.next_due()];
        due.into_iter().flatten().min()
    }

    fn used(&mut self, cookie: u64, _direction: Direction, used: u64) -> bool {
        self.table.used(cookie, used)
    }

    fn withdrawn(&mut self) -> Option<u64> {
        self.table.withdrawn()
    }

    fn save(&self) -> Option<Vec<u8>> {
        Some(self.table.save())
    }

    fn restore(&mut self, now: u64, saved: &[u8]) -> Result<Restored, RestoreError> {
        self.table.restore(now, &self.config, saved)
    }

    fn next_line(&mut self) -> Option<String> {
        self.table.next_line()
    }

    fn counters(&self, each: &mut dyn FnMut(&'static str, u64)) {
        self.counts().each(each);
        each("fragments_expired", self.fragments.expired);
        each("ftp_texts", self.table.texts[0]);
        each("ftp_refused", self.table.texts[1]);
    }

    fn may_bypass(&self) -> bool {
        false
    }
}
