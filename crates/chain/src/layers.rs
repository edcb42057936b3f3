//! Where the headers of a frame are. A frame is parsed once, when its packet is
//! made, and again after raw access.

use crate::flow::Flow;
use std::net::IpAddr;
use weir_wire::field::{array, read_u16};
use weir_wire::{EtherType, Protocol, ethernet, ipv4, ipv6};

/// VLAN tags that are skipped, at most.
const TAGS_MAX: usize = 2;

/// Bytes of an Ethernet header without tags.
pub(crate) const ETHERNET: usize = ethernet::Repr::LEN;

/// The stations of a frame to the outside that a stage has made in another version of IP: the base
/// finds the way by the packet's destination, and sets them.
pub const UNROUTED: [u8; 12] = [0; 12];

/// The EtherType of an IP packet, by its version.
pub(crate) fn ether_type(packet: &[u8]) -> EtherType {
    match packet.first().map(|byte| byte >> 4) {
        Some(6) => EtherType::IPV6,
        _ => EtherType::IPV4,
    }
}

/// The headers of an IP packet in an Ethernet frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layers {
    /// The offset of the IP header in the frame.
    pub ip: usize,
    /// Whether the packet is IPv6.
    pub is_v6: bool,
    /// The protocol of the payload; of IPv6, the next header.
    pub protocol: Protocol,
    /// The offset of the payload, behind IPv4 options.
    pub payload: usize,
    /// The offset of the end of the packet: padding is behind it. Not beyond
    /// the frame.
    pub end: usize,
    /// Whether the frame holds a whole header of TCP (20 bytes), UDP or ICMP
    /// (8 bytes) at `payload`. Not of a later fragment.
    pub has_transport: bool,
    /// The fragment field of IPv4, if the packet is a fragment.
    pub fragment: Option<Fragment>,
}

/// A fragment of an IPv4 packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fragment {
    /// Identification, the same in all fragments of a packet.
    pub id: u16,
    /// The offset in the packet, in bytes; 0 in the first fragment.
    pub offset: usize,
    /// More fragments follow.
    pub more: bool,
}

impl Layers {
    /// The headers of a frame; `None` if it is not IP, or its IP header is cut
    /// short or contradicts itself.
    pub fn of(frame: &[u8]) -> Option<Layers> {
        let mut ip = ETHERNET;
        if frame.len() < ip {
            return None;
        }
        let mut kind = EtherType(read_u16(frame, 12));
        for _ in 0..TAGS_MAX {
            if !kind.is_tag() || frame.len() < ip + 4 {
                break;
            }
            kind = EtherType(read_u16(frame, ip + 2));
            ip += 4;
        }
        match kind {
            EtherType::IPV4 => Layers::v4(frame, ip),
            EtherType::IPV6 => Layers::v6(frame, ip),
            _ => None,
        }
    }

    fn v4(frame: &[u8], ip: usize) -> Option<Layers> {
        let packet = ipv4::Packet::new(&frame[ip..]).ok()?;
        let (offset, more) = (packet.fragment_offset(), packet.more_fragments());
        let layers = Layers {
            ip,
            is_v6: false,
            protocol: packet.protocol(),
            payload: ip + packet.header_len(),
            end: frame.len().min(ip + packet.total_len()),
            has_transport: false,
            fragment: (more || offset > 0).then(|| Fragment {
                id: packet.identification(),
                offset,
                more,
            }),
        };
        Some(layers.with_transport())
    }

    fn v6(frame: &[u8], ip: usize) -> Option<Layers> {
        ipv6::Packet::new(&frame[ip..]).ok()?;
        let payload = ip + 40;
        let layers = Layers {
            ip,
            is_v6: true,
            protocol: Protocol(frame[ip + 6]),
            payload,
            end: frame
                .len()
                .min(payload + usize::from(read_u16(frame, ip + 4))),
            has_transport: false,
            fragment: None,
        };
        Some(layers.with_transport())
    }

    fn with_transport(mut self) -> Layers {
        let needed = match self.protocol {
            Protocol::TCP => 20,
            Protocol::UDP => 8,
            Protocol::ICMPV4 if !self.is_v6 => 8,
            Protocol::ICMPV6 if self.is_v6 => 8,
            _ => return self,
        };
        let is_first = self.fragment.is_none_or(|fragment| fragment.offset == 0);
        self.has_transport = is_first && self.payload + needed <= self.end;
        self
    }

    /// Whether the packet has transport ports: TCP or UDP.
    pub fn has_ports(&self) -> bool {
        self.has_transport && matches!(self.protocol, Protocol::TCP | Protocol::UDP)
    }

    /// The source and destination port of TCP or UDP; `None` of a later fragment, and if the
    /// header is cut short.
    #[inline]
    pub fn ports(&self, frame: &[u8]) -> Option<(u16, u16)> {
        let at = self.payload;
        self.has_ports()
            .then(|| (read_u16(frame, at), read_u16(frame, at + 2)))
    }

    /// The source and destination address.
    pub fn addresses(&self, frame: &[u8]) -> (IpAddr, IpAddr) {
        if self.is_v6 {
            (
                array::<16>(frame, self.ip + 8).into(),
                array::<16>(frame, self.ip + 24).into(),
            )
        } else {
            (
                array::<4>(frame, self.ip + 12).into(),
                array::<4>(frame, self.ip + 16).into(),
            )
        }
    }

    /// The offset of the checksum of TCP, UDP or ICMPv6, which covers the
    /// addresses; `None` if the frame does not hold it.
    pub fn transport_checksum(&self) -> Option<usize> {
        let at = match self.protocol {
            Protocol::TCP => 16,
            Protocol::UDP => 6,
            Protocol::ICMPV6 => 2,
            _ => return None,
        };
        self.has_transport.then_some(self.payload + at)
    }

    /// The key of the flow; `None` if the flow cache cannot match the packet.
    pub fn flow(&self, frame: &[u8]) -> Option<Flow> {
        let plain = if self.is_v6 { 40 } else { 20 };
        let is_plain = self.ip == ETHERNET && self.payload == self.ip + plain;
        if !is_plain || self.fragment.is_some() || !self.has_ports() {
            return None;
        }
        let (src, dst) = self.addresses(frame);
        Some(Flow {
            protocol: self.protocol,
            src,
            src_port: read_u16(frame, self.payload),
            dst,
            dst_port: read_u16(frame, self.payload + 2),
        })
    }
}
