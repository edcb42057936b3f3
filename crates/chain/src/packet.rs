//! A frame on its way through the chain.
//!
//! A stage changes a packet by *edits*. An edit changes the bytes, keeps all
//! checksums right by difference (RFC 1624), and records itself, so that the
//! chain can fold the edits of all stages to one [`Composed`](crate::Composed) entry. What a
//! stage reads or writes in any other way makes the packet *uncacheable*:
//!
//! | call | next frames of the flow |
//! |---|---|
//! | addresses, ports, [`flow`](Packet::flow), [`tcp_control`](Packet::tcp_control) | may be cached: the key of the entry has these fields |
//! | an edit | may be cached: the entry repeats the edit |
//! | [`bytes`](Packet::bytes), [`dscp`](Packet::dscp), [`ttl`](Packet::ttl), [`len`](Packet::len) | are not cached: another frame may differ there |
//! | [`raw`](Packet::raw), [`replace`](Packet::replace), [`mark_ce`](Packet::mark_ce), [`hold`](Packet::hold), [`consume`](Packet::consume), [`forfeit`](Packet::forfeit) | are not cached |

use crate::edits::{Edits, Routed};
use crate::flow::{Direction, Flow};
use crate::layers::{self, ETHERNET, Fragment, Layers};
use crate::{STAGES_MAX, edits};
use std::cell::Cell;
use std::net::{IpAddr, Ipv4Addr};
use weir_wire::checksum;
use weir_wire::ethernet::Address;
use weir_wire::field::{read_u16, write};
use weir_wire::{Protocol, ipv4};

/// TCP flags that begin or end a connection: FIN, SYN, RST.
pub const TCP_CONTROL: u8 = 0x07;

/// Longest frame that a stage can make, in bytes.
pub const FRAME_MAX: usize = 65_535 + 18;

/// The outcome of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// The next stage gets it; behind the last one it is sent.
    Pass,
    /// It is dropped, for a reason that the stage names.
    Drop(&'static str),
    /// A stage keeps it until it releases this ticket, see [`Packet::hold`].
    Held(Ticket),
    /// A stage has taken its bytes, see [`Packet::take`].
    Taken,
}

/// The right to a frame that a stage holds back.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket(pub u64);

/// The bytes of a frame.
#[derive(Debug)]
pub enum Bytes<'f> {
    /// In the caller's memory.
    Shared(&'f mut [u8]),
    /// Made by a stage.
    Own(Vec<u8>),
}

impl Bytes<'_> {
    /// Number of bytes.
    pub fn len(&self) -> usize {
        match self {
            Bytes::Shared(bytes) => bytes.len(),
            Bytes::Own(bytes) => bytes.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The first `len` bytes, or all if there are fewer.
    #[must_use]
    pub fn truncated(self, len: usize) -> Self {
        match self {
            Bytes::Shared(bytes) => {
                let len = len.min(bytes.len());
                Bytes::Shared(&mut bytes[..len])
            }
            Bytes::Own(mut bytes) => {
                bytes.truncate(len);
                Bytes::Own(bytes)
            }
        }
    }
}

impl AsMut<[u8]> for Bytes<'_> {
    #[inline]
    fn as_mut(&mut self) -> &mut [u8] {
        match self {
            Bytes::Shared(bytes) => bytes,
            Bytes::Own(bytes) => bytes,
        }
    }
}

/// The edits of a packet by the stages, without its bytes: the base goes on with those.
#[derive(Clone, Debug)]
pub struct Trace {
    /// The flow of the frame as it came to the chain.
    came: Option<Flow>,
    edits: Edits,
    fate: Fate,
    cookies: [u64; STAGES_MAX],
    is_cacheable: Cell<bool>,
}

impl Trace {
    /// The outcome of the packet.
    pub fn fate(&self) -> Fate {
        self.fate
    }

    /// The edits so far.
    pub fn edits(&self) -> &Edits {
        &self.edits
    }

    /// The flow of the frame as it came to the chain; `None` if the flow cache
    /// cannot match it.
    pub fn came(&self) -> Option<&Flow> {
        self.came.as_ref()
    }

    /// Whether the entry that the edits fold to holds for all frames of the
    /// flow, as far as the stages are concerned.
    pub fn is_cacheable(&self) -> bool {
        self.is_cacheable.get() && matches!(self.fate, Fate::Pass | Fate::Drop(_))
    }

    /// Records what the base did to the bytes by itself: the router's decision
    /// is part of the entry, too. Outward the base comes before the stages.
    pub fn record_route(&mut self, direction: Direction, routed: Routed) {
        let edits = &mut self.edits;
        let (stations, output) = ((routed.src, routed.dst), routed.link);
        edits.ttl = edits.ttl.saturating_add(1);
        edits.mtu = routed.mtu;
        if direction == Direction::Inward {
            (edits.stations, edits.output) = (Some(stations), Some(output));
        } else {
            edits.stations.get_or_insert(stations);
            edits.output.get_or_insert(output);
        }
    }

    /// The cookie of each stage for the packet, 0 for none.
    pub(crate) fn cookies(&self) -> [u64; STAGES_MAX] {
        self.cookies
    }
}

/// A frame on its way through the chain; see the [module](self).
#[derive(Debug)]
pub struct Packet<'f> {
    bytes: Bytes<'f>,
    layers: Option<Layers>,
    trace: Trace,
    /// The stages that apply to the packet, by bit.
    pub(crate) applies: u32,
    /// The stage that has the packet, and the ticket that it would get.
    pub(crate) stage: u8,
    pub(crate) ticket: u64,
}

impl<'f> Packet<'f> {
    /// A packet of a frame in the caller's memory, with its Ethernet header.
    pub fn new(frame: &'f mut [u8]) -> Packet<'f> {
        Packet::of_bytes(Bytes::Shared(frame))
    }

    /// A packet of a frame that belongs to the packet.
    pub fn own(frame: Vec<u8>) -> Packet<'f> {
        Packet::of_bytes(Bytes::Own(frame))
    }

    /// A packet of a frame, wherever it is.
    pub fn of_bytes(bytes: Bytes<'f>) -> Packet<'f> {
        let mut packet = Packet {
            bytes,
            layers: None,
            trace: Trace {
                came: None,
                edits: Edits::default(),
                fate: Fate::Pass,
                cookies: [0; STAGES_MAX],
                is_cacheable: Cell::new(true),
            },
            applies: u32::MAX,
            stage: 0,
            ticket: 0,
        };
        packet.layers = Layers::of(packet.view());
        packet.trace.came = packet.flow();
        let is_plain = packet.trace.came.is_some() && packet.tcp_control() == 0;
        packet.trace.is_cacheable.set(is_plain);
        packet
    }

    #[inline]
    pub(crate) fn view(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Shared(bytes) => bytes,
            Bytes::Own(bytes) => bytes,
        }
    }

    #[inline]
    fn view_mut(&mut self) -> &mut [u8] {
        self.bytes.as_mut()
    }

    /// The bytes as they are now, which are taken out, and what the stages have done.
    pub fn take_parts(&mut self) -> (Bytes<'f>, &mut Trace) {
        let bytes = std::mem::replace(&mut self.bytes, Bytes::Own(Vec::new()));
        self.layers = None;
        (bytes, &mut self.trace)
    }

    /// The bytes as they are now, and what the stages have done.
    pub fn finish(self) -> (Bytes<'f>, Trace) {
        (self.bytes, self.trace)
    }

    /// The outcome of the packet.
    #[inline]
    pub fn fate(&self) -> Fate {
        self.trace.fate
    }

    /// The edits so far.
    pub fn trace(&self) -> &Trace {
        &self.trace
    }

    // What the key of an entry has: reading it keeps the packet cacheable.

    /// The headers; `None` if the frame is not IP.
    #[inline]
    pub fn layers(&self) -> Option<&Layers> {
        self.layers.as_ref()
    }

    /// The five-tuple as it is now, see [`Flow`].
    #[inline]
    pub fn flow(&self) -> Option<Flow> {
        self.layers.as_ref()?.flow(self.view())
    }

    /// The source and destination address.
    #[inline]
    pub fn addresses(&self) -> Option<(IpAddr, IpAddr)> {
        Some(self.layers.as_ref()?.addresses(self.view()))
    }

    /// The source and destination port of TCP or UDP; `None` of a later
    /// fragment, and if the header is cut short.
    #[inline]
    pub fn ports(&self) -> Option<(u16, u16)> {
        self.layers.as_ref()?.ports(self.view())
    }

    /// The IP protocol, or next header.
    pub fn protocol(&self) -> Option<Protocol> {
        Some(self.layers.as_ref()?.protocol)
    }

    /// The fragment of an IPv4 packet; `None` if it is whole.
    pub fn fragment(&self) -> Option<Fragment> {
        self.layers.as_ref()?.fragment
    }

    /// Those of the TCP flags FIN, SYN and RST that are set, as in
    /// [`TCP_CONTROL`]; 0 of other packets. A packet with one of them always
    /// comes to the stages.
    #[inline]
    pub fn tcp_control(&self) -> u8 {
        match &self.layers {
            Some(layers) if layers.protocol == Protocol::TCP && layers.has_transport => {
                self.view()[layers.payload + 13] & TCP_CONTROL
            }
            _ => 0,
        }
    }

    // What the key does not have: reading it forfeits caching.

    /// All bytes of the frame, from the Ethernet header on.
    pub fn bytes(&self) -> &[u8] {
        self.trace.is_cacheable.set(false);
        self.view()
    }

    /// Number of bytes of the frame.
    pub fn len(&self) -> usize {
        self.trace.is_cacheable.set(false);
        self.view().len()
    }

    /// Whether the frame has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The differentiated services code point (RFC 2474).
    pub fn dscp(&self) -> Option<u8> {
        self.trace.is_cacheable.set(false);
        Some(self.traffic_class()? >> 2)
    }

    /// The TTL or hop limit.
    pub fn ttl(&self) -> Option<u8> {
        self.trace.is_cacheable.set(false);
        let layers = self.layers.as_ref()?;
        Some(self.view()[layers.ip + if layers.is_v6 { 7 } else { 8 }])
    }

    fn traffic_class(&self) -> Option<u8> {
        let layers = self.layers.as_ref()?;
        let bytes = &self.view()[layers.ip..];
        Some(if layers.is_v6 {
            bytes[0] << 4 | bytes[1] >> 4
        } else {
            bytes[1]
        })
    }

    // Edits.

    /// Sets the source address. Returns `false` and changes nothing if the
    /// packet has no address of that family.
    #[inline]
    pub fn set_source(&mut self, address: IpAddr) -> bool {
        let done = self.set_address(address, false);
        if done {
            self.trace.edits.source = Some(address);
        }
        done
    }

    /// Sets the destination address, as [`set_source`](Self::set_source).
    #[inline]
    pub fn set_destination(&mut self, address: IpAddr) -> bool {
        let done = self.set_address(address, true);
        if done {
            self.trace.edits.destination = Some(address);
        }
        done
    }

    #[inline]
    fn set_address(&mut self, address: IpAddr, is_destination: bool) -> bool {
        let Some(layers) = self
            .layers
            .filter(|layers| layers.is_v6 == address.is_ipv6())
        else {
            return false;
        };
        let (at, len) = match (layers.is_v6, is_destination) {
            (false, false) => (12, 4),
            (false, true) => (16, 4),
            (true, false) => (8, 16),
            (true, true) => (24, 16),
        };
        let at = layers.ip + at;
        let mut octets = [0; 16];
        match address {
            IpAddr::V4(address) => octets[..4].copy_from_slice(&address.octets()),
            IpAddr::V6(address) => octets = address.octets(),
        }
        let frame = self.view_mut();
        let delta = edits::delta(&frame[at..at + len], &octets[..len]);
        frame[at..at + len].copy_from_slice(&octets[..len]);
        if !layers.is_v6 {
            edits::follow(frame, layers.ip + 10, delta);
            self.trace.edits.header = edits::add(self.trace.edits.header, delta);
        }
        self.follow_transport(&layers, delta);
        true
    }

    /// Sets the source port of TCP or UDP. Returns `false` and changes nothing
    /// if the packet has no ports.
    #[inline]
    pub fn set_source_port(&mut self, port: u16) -> bool {
        let done = self.set_port(port, 0);
        if done {
            self.trace.edits.source_port = Some(port);
        }
        done
    }

    /// Sets the destination port, as [`set_source_port`](Self::set_source_port).
    #[inline]
    pub fn set_destination_port(&mut self, port: u16) -> bool {
        let done = self.set_port(port, 2);
        if done {
            self.trace.edits.destination_port = Some(port);
        }
        done
    }

    #[inline]
    fn set_port(&mut self, port: u16, at: usize) -> bool {
        let Some(layers) = self.layers.filter(Layers::has_ports) else {
            return false;
        };
        let at = layers.payload + at;
        let frame = self.view_mut();
        let delta = edits::delta(&frame[at..at + 2], &port.to_be_bytes());
        write(frame, at, &port.to_be_bytes());
        self.follow_transport(&layers, delta);
        true
    }

    #[inline]
    fn follow_transport(&mut self, layers: &Layers, delta: u16) {
        if let Some(at) = layers.transport_checksum() {
            let is_udp = layers.protocol == Protocol::UDP;
            edits::follow_transport(self.view_mut(), at, is_udp, delta);
            self.trace.edits.transport = edits::add(self.trace.edits.transport, delta);
        }
    }

    /// Sets the differentiated services code point (RFC 2474) to the lower six
    /// bits of `dscp`; ECN stays. Returns `false` if the packet is not IP.
    pub fn set_dscp(&mut self, dscp: u8) -> bool {
        let Some(layers) = self.layers else {
            return false;
        };
        edits::set_dscp(self.view_mut(), layers.ip, layers.is_v6, dscp & 0x3f);
        self.trace.edits.dscp = Some(dscp & 0x3f);
        true
    }

    /// Decrements the TTL or hop limit. Returns `false` and changes nothing if
    /// it is 1 or 0, or the packet is not IP.
    pub fn less_ttl(&mut self) -> bool {
        let Some(layers) = self.layers else {
            return false;
        };
        let done = edits::less_ttl(self.view_mut(), layers.ip, layers.is_v6);
        self.trace.edits.ttl = self.trace.edits.ttl.saturating_add(u8::from(done));
        if !done {
            self.trace.is_cacheable.set(false);
        }
        done
    }

    /// Sets the MAC addresses of the frame.
    pub fn set_stations(&mut self, src: Address, dst: Address) -> bool {
        let frame = self.view_mut();
        if frame.len() < crate::layers::ETHERNET {
            return false;
        }
        write(frame, 0, &dst.0);
        write(frame, 6, &src.0);
        self.trace.edits.stations = Some((src, dst));
        true
    }

    /// Outward: sends the frame on this link in place of the one that the base
    /// chose; the MAC addresses are the stage's to set. Inward the base decides.
    pub fn set_output(&mut self, link: u16) {
        self.trace.edits.output = Some(link);
    }

    /// Inward: has the base send the packet to this neighbour on one of its links, whatever the
    /// destination, which stays: direct server return. Outward the base has routed the packet
    /// before. Returns `false` and changes nothing if the packet is not IPv4.
    pub fn set_next_hop(&mut self, address: Ipv4Addr) -> bool {
        let done = self.layers.is_some_and(|layers| !layers.is_v6);
        if done {
            self.trace.edits.next_hop = Some(address);
        }
        done
    }

    /// Drops the packet; the chain counts the reason, which is a few words in
    /// lower case with hyphens.
    pub fn drop(&mut self, reason: &'static str) {
        self.trace.fate = Fate::Drop(reason);
    }

    /// Remembers a number, not 0, with the entry that the packet makes: the
    /// stage gets it back in [`Stage::used`](crate::Stage::used), and ends the entry by it in
    /// [`Stage::withdrawn`](crate::Stage::withdrawn).
    pub fn remember(&mut self, cookie: u64) {
        self.trace.cookies[usize::from(self.stage)] = cookie;
    }

    // What forfeits caching.

    /// The next frames of the flow come to the stages.
    pub fn forfeit(&self) {
        self.trace.is_cacheable.set(false);
    }

    /// The bytes of the frame for change. The stage keeps checksums right.
    /// Headers are read again when the closure ends.
    pub fn raw<R>(&mut self, change: impl FnOnce(&mut [u8]) -> R) -> R {
        self.trace.is_cacheable.set(false);
        let result = change(self.view_mut());
        self.layers = Layers::of(self.view());
        result
    }

    /// Replaces the frame by another one, of any length up to [`FRAME_MAX`];
    /// a longer one is dropped.
    pub fn replace(&mut self, frame: Vec<u8>) {
        self.trace.is_cacheable.set(false);
        if frame.len() > FRAME_MAX {
            return self.drop("too-long");
        }
        self.bytes = Bytes::Own(frame);
        self.layers = Layers::of(self.view());
    }

    /// Keeps of the frame the Ethernet addresses, and the IP packet of `len` bytes that
    /// begins at `at`, behind an Ethernet header without tags. A frame in the caller's
    /// memory stays there.
    pub(crate) fn keep(&mut self, at: usize, len: usize) {
        self.trace.is_cacheable.set(false);
        let bytes = self.view_mut();
        let kind = layers::ether_type(&bytes[at..at + len]);
        if at != ETHERNET {
            bytes.copy_within(at..at + len, ETHERNET);
        }
        write(bytes, ETHERNET - 2, &kind.0.to_be_bytes());
        let (bytes, _) = self.take_parts();
        self.bytes = bytes.truncated(ETHERNET + len);
        self.layers = Layers::of(self.view());
    }

    /// Marks the packet as having met congestion (RFC 3168 §5). Returns `false`
    /// if its transport does not support that.
    pub fn mark_ce(&mut self) -> bool {
        self.trace.is_cacheable.set(false);
        let Some(class) = self.traffic_class().filter(|class| class & 3 != 0) else {
            return false;
        };
        let Some(layers) = self.layers else {
            return false;
        };
        edits::set_traffic_class(self.view_mut(), layers.ip, layers.is_v6, class | 3);
        true
    }

    /// Keeps the frame out of the batch without a copy, until the stage
    /// releases the ticket to [`Output`](crate::Output); then it goes on with
    /// the next stage. A held frame keeps its memory from others: hold
    /// a bounded number.
    pub fn hold(&mut self) -> Ticket {
        let ticket = Ticket(self.ticket);
        self.trace.fate = Fate::Held(ticket);
        ticket
    }

    /// Takes a copy of the frame out of the batch: it goes no further by itself,
    /// and is not counted as dropped.
    pub fn take(&mut self) -> Vec<u8> {
        self.trace.is_cacheable.set(false);
        self.trace.fate = Fate::Taken;
        self.view().to_vec()
    }

    /// As [`take`](Self::take), without the copy: what the frame was for is done.
    pub fn consume(&mut self) {
        self.trace.is_cacheable.set(false);
        self.trace.fate = Fate::Taken;
    }

    /// Whether the checksum of the IPv4 header is right, or the packet is IPv6.
    pub fn header_is_right(&self) -> bool {
        match &self.layers {
            Some(layers) if !layers.is_v6 => {
                let header = &self.view()[layers.ip..layers.payload];
                checksum::internet_checksum(header) == 0
            }
            Some(_) => true,
            None => false,
        }
    }

    /// Whether the frame holds the whole packet that its header states.
    pub fn is_whole(&self) -> bool {
        let Some(layers) = &self.layers else {
            return false;
        };
        let packet = &self.view()[layers.ip..];
        let stated = if layers.is_v6 {
            40 + usize::from(read_u16(packet, 4))
        } else {
            ipv4::Packet::new(packet).map_or(usize::MAX, |packet| packet.total_len())
        };
        stated <= packet.len()
    }
}
