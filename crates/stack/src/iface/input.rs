//! Input: from a frame to the packet for UDP, TCP or ICMP.

use super::address::AddrState;
use super::reassembly::{Fragment, ReassemblyKey};
use super::{DropReason, Interface, ext_header};
use std::net::IpAddr;
use weir_wire::{AddrPair, EtherType, Protocol, ethernet, ipv4, ipv6};

/// A complete datagram for this host.
pub(crate) struct Incoming<'a> {
    /// The link's number.
    pub(crate) link: u8,
    /// Source and destination.
    pub(crate) addresses: AddrPair,
    pub(crate) protocol: Protocol,
    /// Differentiated services and ECN bits.
    pub(crate) traffic_class: u8,
    /// The received hop limit (TTL).
    pub(crate) hop_limit: u8,
    /// Whether it was a group's or broadcast packet, by its frame's or its own
    /// destination.
    pub(crate) to_group: bool,
    /// Whether it arrived in fragments, including an atomic fragment.
    pub(crate) fragmented: bool,
    /// Whether it had a router alert for multicast membership.
    pub(crate) alert: bool,
    /// Whether the link vouches for the transport checksum.
    pub(crate) checksum_ok: bool,
    /// The TCP connection, as the link's channel indicates.
    pub(crate) connection: Option<crate::slab::Handle>,
    /// The complete packet including the header, for ICMP errors to quote.
    pub(crate) packet: &'a [u8],
    /// The transport header and payload.
    pub(crate) payload: &'a [u8],
}

/// The result of a packet.
pub(crate) enum Input<'a> {
    /// A datagram for the transport layer.
    Datagram(Incoming<'a>),
    /// The last missing fragment: the reassembled packet.
    Whole(Vec<u8>),
    /// A fragment; others are missing.
    Partial,
}

impl<'a> Incoming<'a> {
    pub(crate) fn src(&self) -> IpAddr {
        match self.addresses {
            AddrPair::V4(src, _) => src.into(),
            AddrPair::V6(src, _) => src.into(),
        }
    }

    pub(crate) fn dst(&self) -> IpAddr {
        match self.addresses {
            AddrPair::V4(_, dst) => dst.into(),
            AddrPair::V6(_, dst) => dst.into(),
        }
    }
}

impl Interface {
    /// Receives a frame; returns its packet, and whether the frame was to a
    /// group. ARP is handled here.
    pub(crate) fn frame<'a>(
        &mut self,
        now_ns: u64,
        bytes: &'a [u8],
    ) -> Result<Option<(&'a [u8], bool)>, DropReason> {
        self.counters.frames_in += 1;
        let frame = ethernet::Frame::new(bytes).map_err(|_| DropReason::Malformed)?;
        let to_group = frame.dst().is_multicast();
        if frame.dst() != self.hardware && !to_group {
            return Err(DropReason::NotOurFrame);
        }
        match frame.ether_type() {
            EtherType::ARP => self.arp(now_ns, frame.payload()).map(|()| None),
            EtherType::IPV4 | EtherType::IPV6 => Ok(Some((frame.payload(), to_group))),
            _ => Err(DropReason::EtherTypeUnknown),
        }
    }

    /// The IP packet in a unicast frame to this host; `None` for another frame.
    #[inline]
    pub(crate) fn plain<'a>(&self, frame: &'a [u8]) -> Option<&'a [u8]> {
        let (header, packet) = frame.split_at_checked(ethernet::Repr::LEN)?;
        let is_ip = matches!(header[12..], [0x08, 0x00] | [0x86, 0xdd]);
        (is_ip && header[..6] == self.hardware.0 && packet.len() >= 28).then_some(packet)
    }

    /// Receives an IP packet, possibly followed by padding.
    pub(crate) fn packet<'a>(
        &mut self,
        now_ns: u64,
        bytes: &'a [u8],
        to_group: bool,
    ) -> Result<Input<'a>, DropReason> {
        match bytes.first().map(|first| first >> 4) {
            Some(4) => self.packet_v4(now_ns, bytes, to_group),
            Some(6) => self.packet_v6(now_ns, bytes, to_group),
            _ => Err(DropReason::Malformed),
        }
    }

    fn packet_v4<'a>(
        &mut self,
        now_ns: u64,
        bytes: &'a [u8],
        to_group: bool,
    ) -> Result<Input<'a>, DropReason> {
        let packet = ipv4::Packet::new(bytes).map_err(|_| DropReason::Malformed)?;
        let whole = bytes
            .get(..packet.total_len())
            .ok_or(DropReason::Malformed)?;
        if !packet.checksum_is_right() {
            return Err(DropReason::ChecksumWrong);
        }
        let (src, dst) = (packet.src(), packet.dst());
        let to_group = self.check_destination(dst.into())? || to_group;
        // No reply can be sent to the unspecified address, but a host without
        // an address may send membership messages from it (RFC 3376 §4.2.13).
        let without = src.is_unspecified() && packet.protocol() != Protocol::IGMP;
        if without || src.is_broadcast() {
            return Err(DropReason::SourceImpossible);
        }
        self.check_source(src.into())?;
        if packet.header_len() > ipv4::Repr::LEN && has_source_route(packet.options()) {
            return Err(DropReason::SourceRoute);
        }
        if packet.more_fragments() || packet.fragment_offset() > 0 {
            return self.fragment_v4(now_ns, &packet);
        }
        Ok(Input::Datagram(Incoming {
            link: self.link,
            addresses: AddrPair::V4(src, dst),
            protocol: packet.protocol(),
            traffic_class: packet.traffic_class(),
            hop_limit: packet.ttl(),
            to_group,
            fragmented: false,
            alert: false,
            checksum_ok: false,
            connection: None,
            packet: whole,
            payload: packet.payload(),
        }))
    }

    fn fragment_v4(
        &mut self,
        now_ns: u64,
        packet: &ipv4::Packet<'_>,
    ) -> Result<Input<'static>, DropReason> {
        let (src, dst, protocol) = (packet.src(), packet.dst(), packet.protocol());
        let name = ReassemblyKey {
            addresses: AddrPair::V4(src, dst),
            identification: packet.identification().into(),
            protocol,
        };
        let piece = Fragment {
            offset: packet.fragment_offset(),
            more: packet.more_fragments(),
            bytes: packet.payload(),
        };
        let header = |payload_len| ipv4::Repr {
            src,
            dst,
            protocol,
            ttl: packet.ttl(),
            traffic_class: packet.traffic_class(),
            identification: packet.identification(),
            dont_fragment: false,
            payload_len,
        };
        let Some(payload) = self.reassemble(now_ns, name, &piece)? else {
            return Ok(Input::Partial);
        };
        let mut whole = vec![0; ipv4::Repr::LEN];
        header(payload.len()).emit(&mut whole);
        whole.extend(payload);
        Ok(Input::Whole(whole))
    }

    fn packet_v6<'a>(
        &mut self,
        now_ns: u64,
        bytes: &'a [u8],
        to_group: bool,
    ) -> Result<Input<'a>, DropReason> {
        let packet = ipv6::Packet::new(bytes).map_err(|_| DropReason::Malformed)?;
        let len = ipv6::Repr::LEN + packet.payload_len();
        let whole = bytes.get(..len).ok_or(DropReason::Malformed)?;
        let header = ipv6::Repr::parse(&packet);
        let to_group = self.check_destination(header.dst.into())? || to_group;
        self.check_source(header.src.into())?;
        let mut incoming = Incoming {
            link: self.link,
            addresses: AddrPair::V6(header.src, header.dst),
            protocol: header.next_header,
            traffic_class: header.traffic_class,
            hop_limit: header.hop_limit,
            to_group,
            fragmented: false,
            alert: false,
            checksum_ok: false,
            connection: None,
            packet: whole,
            payload: packet.payload(),
        };
        let found = match ext_header::walk(header.next_header, packet.payload()) {
            Ok(found) => found,
            Err(refused) => {
                if let Some(problem) = refused.problem {
                    self.send_error(now_ns, &incoming, problem);
                }
                return Err(refused.reason);
            }
        };
        (incoming.protocol, incoming.payload) = (found.protocol, found.payload);
        (incoming.fragmented, incoming.alert) = (found.atomic, found.alert);
        if let Some(fragment) = found.fragment {
            return self.fragment_v6(now_ns, header, fragment, found.payload);
        }
        // Only neighbour discovery uses the unspecified source address (RFC
        // 4861 §4.3).
        if header.src.is_unspecified() && found.protocol != Protocol::ICMPV6 {
            return Err(DropReason::SourceImpossible);
        }
        Ok(Input::Datagram(incoming))
    }

    fn fragment_v6(
        &mut self,
        now_ns: u64,
        mut header: ipv6::Repr,
        fragment: ipv6::FragmentRepr,
        bytes: &[u8],
    ) -> Result<Input<'static>, DropReason> {
        let name = ReassemblyKey {
            addresses: AddrPair::V6(header.src, header.dst),
            identification: fragment.identification,
            protocol: fragment.next_header,
        };
        let piece = Fragment {
            offset: fragment.offset,
            more: fragment.more,
            bytes,
        };
        let Some(payload) = self.reassemble(now_ns, name, &piece)? else {
            return Ok(Input::Partial);
        };
        header.next_header = fragment.next_header;
        header.payload_len = payload.len();
        let mut whole = vec![0; ipv6::Repr::LEN];
        header.emit(&mut whole);
        whole.extend(payload);
        Ok(Input::Whole(whole))
    }

    fn reassemble(
        &mut self,
        now_ns: u64,
        name: ReassemblyKey,
        piece: &Fragment<'_>,
    ) -> Result<Option<Vec<u8>>, DropReason> {
        let datagram = self.reassembly.add(now_ns, name, piece);
        let displaced = self.reassembly.take_displaced();
        self.counters
            .drop_many(DropReason::ReassemblyFull, displaced);
        datagram
    }

    /// Whether a packet to this address is to a group or broadcast; an error if
    /// it is not for this host.
    fn check_destination(&self, dst: IpAddr) -> Result<bool, DropReason> {
        match dst {
            _ if self.routes.is_ours(dst) => Ok(false),
            _ if self.routes.is_broadcast(dst) || self.is_in(dst) => Ok(true),
            _ => Err(DropReason::NotOurAddress),
        }
    }

    fn check_source(&self, src: IpAddr) -> Result<(), DropReason> {
        if self.looped && self.routes.is_ours(src) {
            return Ok(());
        }
        // A packet from a tentative address of this host shows a duplicate.
        let impossible = src.is_multicast()
            || src.is_loopback()
            || self.addr_state(src) == Some(AddrState::Assigned)
            || self.routes.is_broadcast(src);
        if impossible {
            Err(DropReason::SourceImpossible)
        } else {
            Ok(())
        }
    }
}

/// Whether IPv4 options contain a loose or strict source route (RFC 791 §3.1), also
/// one of a wrong length. Options behind one of a wrong length count as none.
fn has_source_route(options: &[u8]) -> bool {
    use ipv4::option::{LOOSE_SOURCE_ROUTE, STRICT_SOURCE_ROUTE};
    ipv4::Options::new(options).any(|found| {
        let (Ok((at, _)) | Err(at)) = found;
        matches!(options[at], LOOSE_SOURCE_ROUTE | STRICT_SOURCE_ROUTE)
    })
}
