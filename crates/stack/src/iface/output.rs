//! Output: from the packets of UDP, TCP and ICMP to frames.

use super::pmtu::{MTU_V4_MIN, MTU_V6_MIN};
use super::{DropReason, HeaderCache, Interface};
use crate::stack::TxSink;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use weir_wire::ethernet::Address;
use weir_wire::{AddrPair, EtherType, Protocol, ethernet, ipv4, ipv6};

/// Limit on frames that wait to be sent; further ones are dropped.
pub const QUEUE_MAX: usize = 1024;

/// Default hop limit of sent packets (RFC 1700).
pub const HOP_LIMIT: u8 = 64;

/// An IP header, of either version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    pub(crate) addresses: AddrPair,
    pub(crate) protocol: Protocol,
    pub(crate) hop_limit: u8,
    pub(crate) traffic_class: u8,
    /// Whether fragmentation is forbidden.
    pub(crate) dont_fragment: bool,
}

impl Header {
    pub(crate) fn new(addresses: AddrPair, protocol: Protocol) -> Header {
        Header {
            addresses,
            protocol,
            hop_limit: HOP_LIMIT,
            traffic_class: 0,
            dont_fragment: false,
        }
    }

    fn src(&self) -> IpAddr {
        match self.addresses {
            AddrPair::V4(src, _) => src.into(),
            AddrPair::V6(src, _) => src.into(),
        }
    }

    fn dst(&self) -> IpAddr {
        match self.addresses {
            AddrPair::V4(_, dst) => dst.into(),
            AddrPair::V6(_, dst) => dst.into(),
        }
    }

    /// The header's length, in bytes.
    pub(crate) fn len(&self) -> usize {
        match self.addresses {
            AddrPair::V4(..) => ipv4::Repr::LEN,
            AddrPair::V6(..) => ipv6::Repr::LEN,
        }
    }

    pub(super) fn ether_type(&self) -> EtherType {
        match self.addresses {
            AddrPair::V4(..) => EtherType::IPV4,
            AddrPair::V6(..) => EtherType::IPV6,
        }
    }

    /// Writes the header of a whole packet.
    pub(super) fn emit(&self, out: &mut [u8], payload_len: usize, identification: u16) {
        match self.addresses {
            AddrPair::V4(src, dst) => self.v4(src, dst, payload_len, identification).emit(out),
            AddrPair::V6(src, dst) => {
                self.v6(src, dst, self.protocol, payload_len).emit(out);
            }
        }
    }

    fn v4(
        &self,
        src: Ipv4Addr,
        dst: Ipv4Addr,
        payload_len: usize,
        identification: u16,
    ) -> ipv4::Repr {
        ipv4::Repr {
            src,
            dst,
            protocol: self.protocol,
            ttl: self.hop_limit,
            traffic_class: self.traffic_class,
            identification,
            dont_fragment: self.dont_fragment,
            payload_len,
        }
    }

    fn v6(
        &self,
        src: Ipv6Addr,
        dst: Ipv6Addr,
        next_header: Protocol,
        payload_len: usize,
    ) -> ipv6::Repr {
        ipv6::Repr {
            src,
            dst,
            next_header,
            hop_limit: self.hop_limit,
            traffic_class: self.traffic_class,
            flow_label: 0,
            payload_len,
        }
    }
}

impl Interface {
    /// The MTU of the path to an address.
    pub(crate) fn path_mtu(&self, now_ns: u64, to: IpAddr) -> usize {
        self.paths.mtu(now_ns, to, self.mtu_to(to))
    }

    /// The MTU for an address on the link, in bytes.
    fn mtu_to(&self, to: IpAddr) -> usize {
        self.interface_mtu[usize::from(to.is_ipv6())]
    }

    /// Sets the link's IPv6 MTU from a router advertisement, at most the configured one (RFC 4861
    /// §6.3.4).
    pub(super) fn set_mtu_v6(&mut self, mtu: usize) {
        if (MTU_V6_MIN..=self.mtu).contains(&mtu) {
            self.interface_mtu[1] = mtu;
        }
    }

    /// Sets the link's IPv4 MTU from a DHCP server.
    pub(super) fn set_mtu_v4(&mut self, mtu: usize) {
        if (MTU_V4_MIN..=self.mtu).contains(&mtu) {
            self.interface_mtu[0] = mtu;
        }
    }

    /// Lowers the MTU of a path; returns the MTU in use.
    pub(crate) fn update_pmtu(&mut self, now_ns: u64, to: IpAddr, mtu: usize) -> Option<usize> {
        self.paths.update(now_ns, to, mtu, self.mtu_to(to))
    }

    /// The link's MTU, in bytes.
    pub(crate) fn mtu(&self) -> usize {
        self.mtu
    }

    /// The header cache for packets with this header, if the next hop's address is known; otherwise
    /// it is resolved when [`Interface::enqueue_unresolved`] is called. `None` for a source address
    /// that was lost. The last result is kept, since a peer often opens several connections in
    /// succession.
    pub(crate) fn header_cache(&mut self, now_ns: u64, header: &Header) -> Option<HeaderCache> {
        if let Some((before, way)) = &self.latest_header_cache
            && before == header
            && self.header_cache_is_valid(now_ns, way)
        {
            return Some(way.clone());
        }
        let way = self.find_header_cache(now_ns, header)?;
        self.latest_header_cache = Some((*header, way.clone()));
        Some(way)
    }

    fn find_header_cache(&mut self, now_ns: u64, header: &Header) -> Option<HeaderCache> {
        if !self.may_come_from(header.src()) {
            return None;
        }
        let hop = if self.is_hairpin(header.dst()) {
            self.neighbours.own_hop(now_ns, self.hardware)
        } else {
            let next_hop = self.routes.next_hop(header.dst())?;
            self.neighbours.hop(now_ns, next_hop)?
        };
        Some(HeaderCache::new(hop, self.hardware, header))
    }

    /// Whether the link returns packets to this address, since it is the host's own.
    pub(crate) fn is_hairpin(&self, dst: IpAddr) -> bool {
        self.hairpin && self.routes.is_ours(dst)
    }

    /// Whether packets may have this source: not an address that was lost (RFC 4862 §5.5.4, RFC
    /// 2131 §4.4.5). The unspecified address is permitted.
    fn may_come_from(&self, src: IpAddr) -> bool {
        src.is_unspecified() || self.routes.is_ours(src)
    }

    /// Whether a header cache is still valid: addresses, routes and neighbours are unchanged.
    pub(crate) fn header_cache_is_valid(&self, now_ns: u64, way: &HeaderCache) -> bool {
        way.is_valid(now_ns, self.neighbours.epoch())
    }

    /// Reports from a transport protocol whether packets to an address arrive.
    pub(crate) fn reachability_hint(&mut self, now_ns: u64, to: IpAddr, arrives: bool) {
        let Some(next_hop) = self.routes.next_hop(to) else {
            return;
        };
        if arrives {
            self.neighbours.confirm(now_ns, next_hop);
        } else {
            self.neighbours.suspect(now_ns, next_hop);
            self.send_solicits(now_ns);
        }
    }

    /// Queues an unfragmentable packet until the next hop's address is resolved; `fill` writes its
    /// payload of `len` bytes.
    pub(crate) fn enqueue_unresolved(
        &mut self,
        now_ns: u64,
        header: &Header,
        len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) {
        if !self.may_come_from(header.src()) {
            self.counters.drop(DropReason::SourceLost);
            return;
        }
        let Some(next_hop) = self.routes.next_hop(header.dst()) else {
            self.counters.drop(DropReason::NoRoute);
            return;
        };
        self.send_solicits(now_ns);
        if header.len() + len > self.mtu {
            // Queued frames are sent unsegmented, so the checksum must be complete.
            self.counters.drop(DropReason::NeighbourUnresolved);
            return;
        }
        let start = ethernet::Repr::LEN;
        let mut frame = vec![0; start + header.len() + len];
        header.emit(&mut frame[start..], len, 0);
        fill(&mut frame[start + header.len()..]);
        let dropped = self.neighbours.enqueue_unresolved(next_hop, frame);
        self.counters
            .drop_many(DropReason::NeighbourUnresolved, dropped);
    }

    /// Number of frames that still fit into the queue.
    pub(crate) fn queue_room(&self) -> usize {
        QUEUE_MAX - self.queue.len()
    }

    /// Whether frames are queued.
    pub(crate) fn has_frames(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Passes queued frames to the link, as far as it accepts them.
    pub(crate) fn flush(&mut self, out: &mut dyn TxSink) {
        while let Some(frame) = self.queue.front() {
            let Some(room) = out.reserve(frame.len()) else {
                break;
            };
            room.copy_from_slice(frame);
            out.submit();
            self.queue.pop_front();
            self.counters.frames_out += 1;
        }
    }

    /// Sends a packet, fragmented if necessary, at once or when the next hop's address is resolved.
    /// A packet that cannot be sent is dropped and counted.
    pub(crate) fn send(&mut self, now_ns: u64, header: &Header, payload: &[u8]) {
        if !self.may_come_from(header.src()) {
            self.counters.drop(DropReason::SourceLost);
            return;
        }
        let mtu = self.path_mtu(now_ns, header.dst());
        if header.len() + payload.len() <= mtu {
            let identification = self.identification(header);
            let frame = self.frame_with(header, payload, identification);
            self.dispatch(now_ns, header, frame);
        } else if !header.dont_fragment {
            self.send_fragments(now_ns, header, payload, mtu);
        } else {
            self.counters.drop(DropReason::Malformed);
        }
    }

    /// Sends a packet to a known MAC address.
    pub(super) fn send_to_hardware(&mut self, header: &Header, to: Address, payload: &[u8]) {
        let frame = self.frame_with(header, payload, 0);
        self.queue_frame(to, header.ether_type(), frame);
    }

    /// The identification of a datagram that may be fragmented; one that may not needs none (RFC
    /// 6864 §4).
    fn identification(&mut self, header: &Header) -> u16 {
        if header.dont_fragment {
            0
        } else {
            self.rng.bits() as u16
        }
    }

    fn frame_with(&self, header: &Header, payload: &[u8], identification: u16) -> Vec<u8> {
        let start = ethernet::Repr::LEN;
        let mut frame = vec![0; start + header.len()];
        header.emit(&mut frame[start..], payload.len(), identification);
        frame.extend_from_slice(payload);
        frame
    }

    fn send_fragments(&mut self, now_ns: u64, header: &Header, payload: &[u8], mtu: usize) {
        let identification = self.rng.bits() as u32;
        let head_len = match header.addresses {
            AddrPair::V4(..) => ipv4::Repr::LEN,
            AddrPair::V6(..) => ipv6::Repr::LEN + ipv6::FragmentRepr::LEN,
        };
        let piece_len = (mtu - head_len) / 8 * 8;
        let start = ethernet::Repr::LEN;
        for (index, piece) in payload.chunks(piece_len).enumerate() {
            let offset = index * piece_len;
            let more = offset + piece.len() < payload.len();
            let mut frame = vec![0; start + head_len];
            let out = &mut frame[start..];
            match header.addresses {
                AddrPair::V4(src, dst) => {
                    let repr = header.v4(src, dst, piece.len(), identification as u16);
                    repr.emit_fragment(out, offset, more);
                }
                AddrPair::V6(src, dst) => {
                    let len = ipv6::FragmentRepr::LEN + piece.len();
                    header.v6(src, dst, Protocol::IPV6_FRAGMENT, len).emit(out);
                    let fragment = ipv6::FragmentRepr {
                        next_header: header.protocol,
                        offset,
                        more,
                        identification,
                    };
                    fragment.emit(&mut out[ipv6::Repr::LEN..]);
                }
            }
            frame.extend_from_slice(piece);
            self.dispatch(now_ns, header, frame);
        }
    }

    /// Queues a frame without its Ethernet header for the next hop, or lets it
    /// wait for the next hop's address.
    fn dispatch(&mut self, now_ns: u64, header: &Header, frame: Vec<u8>) {
        let dst = header.dst();
        let ether_type = header.ether_type();
        if let Some(group) = self.group_hardware(dst) {
            self.queue_frame(group, ether_type, frame);
            return;
        }
        if self.is_hairpin(dst) {
            self.queue_frame(self.hardware, ether_type, frame);
            return;
        }
        let Some(next_hop) = self.routes.next_hop(dst) else {
            self.counters.drop(DropReason::NoRoute);
            return;
        };
        match self.neighbours.resolve(now_ns, next_hop) {
            Some(hardware) => self.queue_frame(hardware, ether_type, frame),
            None => {
                let dropped = self.neighbours.enqueue_unresolved(next_hop, frame);
                self.counters
                    .drop_many(DropReason::NeighbourUnresolved, dropped);
            }
        }
        self.send_solicits(now_ns);
    }

    /// The MAC address of a multicast or broadcast address (RFC 1112 §6.4, RFC 2464 §7).
    pub(super) fn group_hardware(&self, dst: IpAddr) -> Option<Address> {
        match dst {
            _ if self.routes.is_broadcast(dst) => Some(Address::BROADCAST),
            IpAddr::V4(dst) if dst.is_multicast() => {
                let [_, b, c, d] = dst.octets();
                Some(Address([1, 0, 0x5e, b & 0x7f, c, d]))
            }
            IpAddr::V6(dst) if dst.is_multicast() => {
                let [.., a, b, c, d] = dst.octets();
                Some(Address([0x33, 0x33, a, b, c, d]))
            }
            _ => None,
        }
    }

    /// Sends the pending solicitations.
    pub(super) fn send_solicits(&mut self, now_ns: u64) {
        if !self.neighbours.has_solicits() {
            return;
        }
        for (ip, known) in self.neighbours.take_solicits() {
            match ip {
                IpAddr::V4(ip) => self.send_arp_request(ip, known),
                IpAddr::V6(ip) => self.ask_nd(now_ns, ip, known),
            }
        }
    }

    /// Sends the frames that waited for a neighbour's address.
    pub(super) fn release(&mut self, hardware: Address, waited: Vec<Vec<u8>>) {
        for frame in waited {
            let (ether_type, src) = source(&frame[ethernet::Repr::LEN..]);
            // The source address may have been lost meanwhile.
            if self.may_come_from(src) {
                self.queue_frame(hardware, ether_type, frame)
            } else {
                self.counters.drop(DropReason::SourceLost)
            }
        }
    }

    /// Queues a frame, with its Ethernet header written.
    pub(super) fn queue_frame(&mut self, dst: Address, ether_type: EtherType, mut frame: Vec<u8>) {
        if self.queue_room() == 0 {
            self.counters.drop(DropReason::QueueFull);
            return;
        }
        let header = ethernet::Repr {
            dst,
            src: self.hardware,
            ether_type,
        };
        header.emit(&mut frame);
        self.queue.push_back(frame);
    }
}

/// The EtherType and the source address of a packet to be sent.
fn source(packet: &[u8]) -> (EtherType, IpAddr) {
    match packet[0] >> 4 {
        4 => {
            let octets: [u8; 4] = packet[12..16].try_into().expect("4 of 4");
            (EtherType::IPV4, octets.into())
        }
        _ => {
            let octets: [u8; 16] = packet[8..24].try_into().expect("16 of 16");
            (EtherType::IPV6, octets.into())
        }
    }
}
