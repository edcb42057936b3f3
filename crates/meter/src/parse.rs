//! From a frame to the fields that attribution and classification read: the contract between the
//! engine here and the stage in the kernel, which gives the same answer for every frame.
//!
//! # Rules
//!
//! 1. **Link layer.** Ethernet II; Linux cooked captures (versions 1 and 2), BSD loopback, PPP and
//!    raw IP as their link types say. A frame whose link header is cut has no fields at all.
//! 2. **VLAN tags** (EtherTypes 0x8100 and 0x88a8): at most [`TAGS_MAX`] are skipped, and a frame
//!    with more is not IP. The VLAN is made of the first two tags; the identifier 0 (a priority tag,
//!    IEEE 802.1Q §9.6) names no VLAN and does not count as one of the two.
//! 3. **PPPoE session** (EtherType 0x8864, version and type 0x11, code 0): the session identifier,
//!    then PPP's protocol in two bytes: 0x0021 is IPv4, 0x0057 IPv6 (RFC 2516 §4). The session is
//!    known even if the PPP packet is not IP. A VLAN tag inside of PPP does not exist.
//! 4. **IPv4** if 20 bytes are captured, the version is 4 and IHL at least 5. **IPv6** if 40 bytes
//!    are captured and the version is 6. Else the frame is not IP. Both must stand directly behind
//!    the link header, tags and PPPoE: tunnels (MPLS, GRE, IP in IP, VXLAN) are not opened, and the
//!    outermost IP header counts. The header checksum is not checked.
//! 5. **IP bytes** are the length that the header states: IPv4's Total Length, or 40 and IPv6's
//!    Payload Length. They are at most the bytes of the frame on the wire behind the link header, so
//!    that a header cannot claim more than crossed the link. An IPv4 Total Length below 20, and an
//!    IPv6 Payload Length of 0 before Hop-by-Hop Options (jumbograms, RFC 2675, and super-frames of
//!    the kernel), count as all these bytes; Ethernet's padding counts in no other case.
//! 6. **Fragments.** IPv4: MF is set or the offset is not 0. IPv6: a fragment header whose M flag
//!    is set or whose offset is not 0; an atomic fragment (RFC 6946) is no fragment. The first
//!    fragment is one too, so that all fragments of a packet are alike.
//! 7. **Extension headers** of IPv6: Hop-by-Hop Options, Routing, Destination Options and Fragment
//!    are skipped, at most [`EXTENSIONS_MAX`]. Where a header is cut, or is one more, the protocol
//!    is that header's number, without ports. Authentication (51) and ESP (50) are not skipped in
//!    either version: they are protocols without ports.
//! 8. **Transport ports** of TCP, UDP, SCTP, DCCP and UDP-Lite are the first four bytes behind the IP
//!    headers, if they are captured and lie within the packet (rule 5). Otherwise, and for every
//!    other protocol, the packet has a protocol without ports.

use std::net::{Ipv4Addr, Ipv6Addr};
use weir_wire::field::{array, read_u16};
use weir_wire::{EtherType, LinkType, Protocol};

/// VLAN tags that are skipped, at most.
pub const TAGS_MAX: usize = 4;

/// Extension headers of an IPv6 packet that are skipped, at most.
pub const EXTENSIONS_MAX: usize = 8;

/// EtherType of PPPoE's session stage (RFC 2516 §4).
const PPPOE_SESSION: EtherType = EtherType(0x8864);

/// Source and destination address of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Addresses {
    /// IPv4: source, destination.
    V4(Ipv4Addr, Ipv4Addr),
    /// IPv6: source, destination.
    V6(Ipv6Addr, Ipv6Addr),
}

/// The transport of a frame, as services by protocol and port see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// No IP packet.
    NotIp,
    /// A fragment of an IP packet of this protocol (for IPv6: of the number that the fragment
    /// header states).
    Fragment(Protocol),
    /// A protocol without ports, or one whose ports are not there.
    Portless(Protocol),
    /// A protocol with its source and destination port.
    Ports(Protocol, u16, u16),
}

/// The fields of one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headers {
    /// Source address of the link, if there is an Ethernet address.
    pub src_mac: Option<[u8; 6]>,
    /// Destination address of the link, likewise.
    pub dst_mac: Option<[u8; 6]>,
    /// The VLAN: outer identifier, and the inner one of a frame with two.
    pub vlan: Option<(u16, Option<u16>)>,
    /// The PPPoE session identifier.
    pub pppoe: Option<u16>,
    /// Addresses of the IP packet.
    pub addresses: Option<Addresses>,
    /// The packet's transport.
    pub transport: Transport,
    /// Bytes of the IP packet; 0 if there is none.
    pub ip_bytes: u32,
    /// Bytes of the frame on the wire: from its link header to its end, without the frame check
    /// sequence, as captures count.
    pub wire_bytes: u32,
}

impl Headers {
    /// Reads the fields of a frame of which `bytes` are captured and which had `wire_len` bytes.
    #[inline]
    pub fn parse(bytes: &[u8], wire_len: u32, linktype: LinkType) -> Headers {
        let mut headers = Headers {
            src_mac: None,
            dst_mac: None,
            vlan: None,
            pppoe: None,
            addresses: None,
            transport: Transport::NotIp,
            ip_bytes: 0,
            wire_bytes: wire_len,
        };
        if let Some((version, start)) = headers.link(bytes, linktype) {
            let rest = wire_len.saturating_sub(start as u32);
            let packet = bytes.get(start..).unwrap_or_default();
            match version {
                Version::V4 => headers.ipv4(packet, rest),
                Version::V6 => headers.ipv6(packet, rest),
            }
        }
        headers
    }

    /// Reads the link header; returns where the IP packet starts, if the header says IP.
    #[inline]
    fn link(&mut self, bytes: &[u8], linktype: LinkType) -> Option<(Version, usize)> {
        match linktype {
            LinkType::EN10MB => {
                let header: &[u8; 14] = bytes.first_chunk()?;
                self.dst_mac = Some(array(header, 0));
                self.src_mac = Some(array(header, 6));
                self.behind_ether_type(bytes, 12, 14)
            }
            LinkType::RAW => Some((Version::of(bytes)?, 0)),
            LinkType::IPV4 => Some((Version::V4, 0)),
            LinkType::IPV6 => Some((Version::V6, 0)),
            LinkType::NULL | LinkType::LOOP => {
                let family: [u8; 4] = *bytes.first_chunk()?;
                // The capturing host's order is not known; families are small numbers.
                let family = u32::from_be_bytes(family).min(u32::from_le_bytes(family));
                match family {
                    2 => Some((Version::V4, 4)),
                    // AF_INET6 of Linux, NetBSD, FreeBSD and macOS.
                    10 | 24 | 28 | 30 => Some((Version::V6, 4)),
                    _ => None,
                }
            }
            LinkType::PPP => {
                let start = if bytes.starts_with(&[0xff, 3]) { 2 } else { 0 };
                ppp(bytes, start)
            }
            LinkType::LINUX_SLL => {
                let header: &[u8; 16] = bytes.first_chunk()?;
                if read_u16(header, 4) == 6 {
                    self.src_mac = Some(array(header, 6));
                }
                self.behind_ether_type(bytes, 14, 16)
            }
            LinkType::LINUX_SLL2 => {
                let header: &[u8; 20] = bytes.first_chunk()?;
                if header[11] == 6 {
                    self.src_mac = Some(array(header, 12));
                }
                self.behind_ether_type(bytes, 0, 20)
            }
            _ => None,
        }
    }

    /// Reads tags and PPPoE behind the EtherType at `type_at`; its payload starts at `start`.
    #[inline]
    fn behind_ether_type(
        &mut self,
        bytes: &[u8],
        type_at: usize,
        mut start: usize,
    ) -> Option<(Version, usize)> {
        let mut ether_type = EtherType(read_u16(bytes, type_at));
        let mut tags = 0;
        while ether_type.is_tag() {
            let tag: &[u8; 4] = bytes.get(start..)?.first_chunk()?;
            if tags == TAGS_MAX {
                return None;
            }
            tags += 1;
            self.add_vlan(read_u16(tag, 0) & 0xfff);
            ether_type = EtherType(read_u16(tag, 2));
            start += 4;
        }
        match ether_type {
            EtherType::IPV4 => Some((Version::V4, start)),
            EtherType::IPV6 => Some((Version::V6, start)),
            PPPOE_SESSION => {
                let header: &[u8; 6] = bytes.get(start..)?.first_chunk()?;
                if header[..2] != [0x11, 0] {
                    return None;
                }
                self.pppoe = Some(read_u16(header, 2));
                ppp(bytes, start + 6)
            }
            _ => None,
        }
    }

    fn add_vlan(&mut self, vid: u16) {
        self.vlan = match self.vlan {
            before if vid == 0 => before,
            None => Some((vid, None)),
            Some((outer, None)) => Some((outer, Some(vid))),
            both => both,
        };
    }

    #[inline]
    fn ipv4(&mut self, packet: &[u8], rest: u32) {
        let Some(header) = packet.first_chunk::<20>() else {
            return;
        };
        let header_len = weir_wire::ipv4::header_len(header);
        if header[0] >> 4 != 4 || header_len < 20 {
            return;
        }
        self.addresses = Some(Addresses::V4(
            Ipv4Addr::from(array::<4>(header, 12)),
            Ipv4Addr::from(array::<4>(header, 16)),
        ));
        let total_len = u32::from(read_u16(header, 2));
        self.ip_bytes = if total_len < 20 {
            rest
        } else {
            total_len.min(rest)
        };
        let protocol = Protocol(header[9]);
        // All but the flags that are reserved and DF: MF and the offset.
        self.transport = if read_u16(header, 6) & 0x3fff != 0 {
            Transport::Fragment(protocol)
        } else {
            self.behind_ip(packet, protocol, header_len)
        };
    }

    #[inline]
    fn ipv6(&mut self, packet: &[u8], rest: u32) {
        let Some(header) = packet.first_chunk::<40>() else {
            return;
        };
        if header[0] >> 4 != 6 {
            return;
        }
        self.addresses = Some(Addresses::V6(
            Ipv6Addr::from(array::<16>(header, 8)),
            Ipv6Addr::from(array::<16>(header, 24)),
        ));
        let payload_len = u32::from(read_u16(header, 4));
        let protocol = Protocol(header[6]);
        self.ip_bytes = if payload_len == 0 && protocol == Protocol::IPV6_HOP_BY_HOP {
            rest
        } else {
            rest.min(40 + payload_len)
        };
        self.transport = self.behind_extensions(packet, protocol);
    }

    #[inline]
    fn behind_extensions(&self, packet: &[u8], mut protocol: Protocol) -> Transport {
        let mut at = 40;
        for _ in 0..EXTENSIONS_MAX {
            let is_fragment = protocol == Protocol::IPV6_FRAGMENT;
            let is_extension = is_fragment
                || matches!(
                    protocol,
                    Protocol::IPV6_HOP_BY_HOP | Protocol::IPV6_ROUTING | Protocol::IPV6_DESTINATION
                );
            if !is_extension {
                return self.behind_ip(packet, protocol, at);
            }
            let Some(extension) = packet.get(at..).and_then(<[u8]>::first_chunk::<8>) else {
                return Transport::Portless(protocol);
            };
            let next = Protocol(extension[0]);
            if is_fragment {
                // Offset and M; the two bits between them are reserved.
                if read_u16(extension, 2) & 0xfff9 != 0 {
                    return Transport::Fragment(next);
                }
                at += 8;
            } else {
                at += (usize::from(extension[1]) + 1) * 8;
            }
            protocol = next;
        }
        if matches!(
            protocol,
            Protocol::IPV6_HOP_BY_HOP
                | Protocol::IPV6_ROUTING
                | Protocol::IPV6_DESTINATION
                | Protocol::IPV6_FRAGMENT
        ) {
            return Transport::Portless(protocol);
        }
        self.behind_ip(packet, protocol, at)
    }

    #[inline]
    fn behind_ip(&self, packet: &[u8], protocol: Protocol, at: usize) -> Transport {
        if !has_ports(protocol) || at + 4 > self.ip_bytes as usize {
            return Transport::Portless(protocol);
        }
        match packet.get(at..).and_then(<[u8]>::first_chunk::<4>) {
            Some(ports) => Transport::Ports(protocol, read_u16(ports, 0), read_u16(ports, 2)),
            None => Transport::Portless(protocol),
        }
    }
}

/// Whether a protocol's header begins with a source and a destination port: TCP, UDP, DCCP
/// (RFC 4340), SCTP (RFC 9260) and UDP-Lite (RFC 3828).
#[inline]
pub fn has_ports(protocol: Protocol) -> bool {
    matches!(protocol.0, 6 | 17 | 33 | 132 | 136)
}

/// The version of IP that a link header announces.
#[derive(Clone, Copy)]
enum Version {
    V4,
    V6,
}

impl Version {
    /// By the first nibble of a packet.
    fn of(packet: &[u8]) -> Option<Version> {
        match packet.first()? >> 4 {
            4 => Some(Version::V4),
            6 => Some(Version::V6),
            _ => None,
        }
    }
}

/// Reads PPP's protocol at `start`; returns where the IP packet starts, if it is one.
fn ppp(bytes: &[u8], start: usize) -> Option<(Version, usize)> {
    let protocol: [u8; 2] = *bytes.get(start..)?.first_chunk()?;
    match u16::from_be_bytes(protocol) {
        0x0021 => Some((Version::V4, start + 2)),
        0x0057 => Some((Version::V6, start + 2)),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
