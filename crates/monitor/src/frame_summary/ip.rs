//! IPv4 and IPv6, up to the protocol that they carry.

use super::{byte, chunk, half, hex, icmp, multicast, routing, sctp, tcp, tunnel, udp, word};
use crate::protocol::ip_protocol_name;
use std::net::{IpAddr, SocketAddr};
use weir_wire::Protocol;

/// The summary of a packet of either version.
pub(super) fn packet(bytes: &[u8], depth: usize) -> Option<String> {
    match byte(bytes, 0)? >> 4 {
        4 => ipv4(bytes, depth),
        6 => ipv6(bytes, depth),
        _ => None,
    }
}

/// A payload with the hosts' addresses.
pub(super) struct Carried<'a> {
    pub(super) src: IpAddr,
    pub(super) dst: IpAddr,
    pub(super) protocol: Protocol,
    /// The time to live, or hop limit.
    pub(super) ttl: u8,
    /// The captured bytes.
    pub(super) bytes: &'a [u8],
    /// The length in the IP header, captured or not.
    pub(super) len: usize,
}

impl Carried<'_> {
    /// `source > destination`, with transport ports.
    pub(super) fn ends(&self) -> Option<String> {
        let (from, to) = (half(self.bytes, 0)?, half(self.bytes, 2)?);
        let (src, dst) = (
            SocketAddr::new(self.src, from),
            SocketAddr::new(self.dst, to),
        );
        Some(format!("{src} > {dst}"))
    }
}

fn ipv4(bytes: &[u8], depth: usize) -> Option<String> {
    let address = |at| Some(IpAddr::from(chunk::<4>(bytes, at)?));
    let header_len = usize::from(byte(bytes, 0)? & 0xf).max(5) * 4;
    // A super-frame's length does not fit the field; the captured length is
    // used.
    let total_len = match half(bytes, 2)? {
        0 => bytes.len(),
        len => usize::from(len),
    };
    let fragment = half(bytes, 6)?;
    let payload = bytes.get(header_len..bytes.len().min(total_len));
    let carried = Carried {
        src: address(12)?,
        dst: address(16)?,
        protocol: Protocol(byte(bytes, 9)?),
        ttl: byte(bytes, 8)?,
        bytes: payload.unwrap_or_default(),
        len: total_len.saturating_sub(header_len),
    };
    let (offset, more) = (usize::from(fragment & 0x1fff) * 8, fragment & 0x2000 != 0);
    let text = match offset {
        0 => spoken(&carried, depth),
        _ => named(&carried),
    };
    Some(text + &fragment_of(offset, more, carried.len))
}

fn ipv6(bytes: &[u8], depth: usize) -> Option<String> {
    let address = |at| Some(IpAddr::from(chunk::<16>(bytes, at)?));
    let payload_len = match half(bytes, 4)? {
        0 => bytes.len().saturating_sub(40),
        len => usize::from(len),
    };
    let mut rest = bytes.get(40..bytes.len().min(40 + payload_len))?;
    let (src, dst) = (address(8)?, address(24)?);
    let (mut next, mut len) = (byte(bytes, 6)?, payload_len);
    let mut fragment = (0, false);
    let mut extensions = String::new();
    for _ in 0..depth {
        let header_len = match Protocol(next) {
            Protocol::IPV6_HOP_BY_HOP | Protocol::IPV6_ROUTING | Protocol::IPV6_DESTINATION => {
                byte(rest, 1).map(|units| 8 * (usize::from(units) + 1))
            }
            Protocol::IPV6_FRAGMENT if fragment == (0, false) => {
                let place = half(rest, 2).unwrap_or_default();
                fragment = (usize::from(place & 0xfff8), place & 1 == 1);
                Some(8)
            }
            AH => byte(rest, 1).map(ah_len),
            _ => break,
        };
        let Some((header, behind)) =
            header_len.and_then(|header_len| rest.split_at_checked(header_len))
        else {
            break;
        };
        extensions += &match Protocol(next) {
            Protocol::IPV6_HOP_BY_HOP => ", hop-by-hop options".to_owned(),
            Protocol::IPV6_DESTINATION => ", destination options".to_owned(),
            Protocol::IPV6_ROUTING => routing_header(header),
            AH => ah(header).unwrap_or_default(),
            _ => String::new(),
        };
        next = byte(rest, 0)?;
        len = len.saturating_sub(header.len());
        rest = behind;
        if fragment.0 > 0 {
            break;
        }
    }
    let carried = Carried {
        src,
        dst,
        protocol: Protocol(next),
        ttl: byte(bytes, 7)?,
        bytes: rest,
        len,
    };
    let text = match fragment.0 {
        0 => spoken(&carried, depth),
        _ => named(&carried),
    };
    Some(text + &fragment_of(fragment.0, fragment.1, len) + &extensions)
}

/// The Authentication Header (RFC 4302).
const AH: Protocol = Protocol(51);

/// Its length has units of 4 bytes.
fn ah_len(units: u8) -> usize {
    4 * (usize::from(units) + 2)
}

/// What an Authentication Header says.
fn ah(header: &[u8]) -> Option<String> {
    let (spi, seq) = (word(header, 4)?, word(header, 8)?);
    let icv = hex(header.get(12..)?);
    Some(format!(", AH(spi={spi:#010x},seq={seq:#x},icv=0x{icv})"))
}

/// A routing header: its type, and the addresses of types 0 and 4 (RFC 8754).
fn routing_header(header: &[u8]) -> String {
    /// Largest number of addresses shown of one header.
    const ADDRESSES_MAX: usize = 16;
    let [_, len, kind, left, last, ..] = header else {
        return String::new();
    };
    let mut text = format!(", routing header (len={len}, type={kind}, segleft={left}");
    if *kind == 4 {
        let tag = half(header, 6).unwrap_or_default();
        text += &format!(", last-entry={last}, tag={tag}");
    }
    if [0, 4].contains(kind) {
        let addresses = header.get(8..).unwrap_or_default().chunks_exact(16);
        for (number, address) in addresses.take(ADDRESSES_MAX).enumerate() {
            let address = chunk::<16>(address, 0).map(std::net::Ipv6Addr::from);
            text += &address.map_or_else(String::new, |it| format!(", [{number}]{it}"));
        }
    }
    text + ")"
}

/// A fragment's position in its packet; empty for an unfragmented packet.
fn fragment_of(offset: usize, more: bool, len: usize) -> String {
    match (offset, more) {
        (0, false) => String::new(),
        (_, true) => format!(", fragment {offset}:{}+", offset + len),
        (_, false) => format!(", fragment {offset}:{}", offset + len),
    }
}

fn spoken(carried: &Carried<'_>, depth: usize) -> String {
    match carried.protocol {
        Protocol::TCP => tcp::segment(carried),
        Protocol::UDP => udp::datagram(carried, depth),
        Protocol::ICMPV4 => icmp::v4(carried),
        Protocol::ICMPV6 => icmp::v6(carried),
        Protocol::IGMP => multicast::igmp(carried),
        _ => other_protocol(carried, depth),
    }
    .unwrap_or_else(|| named(carried))
        + cut_mark(carried)
}

/// The mark of a truncated header.
fn cut_mark(carried: &Carried<'_>) -> &'static str {
    let (header_len, mark) = match carried.protocol {
        Protocol::TCP => {
            let offset = byte(carried.bytes, 12).unwrap_or_default() >> 4;
            (usize::from(offset).max(5) * 4, " [|tcp]")
        }
        Protocol::UDP => (8, " [|udp]"),
        Protocol::ICMPV4 => (8, " [|icmp]"),
        Protocol::ICMPV6 => (8, " [|icmp6]"),
        Protocol::IGMP => (8, " [|igmp]"),
        _ => return "",
    };
    let captured = carried.bytes.len();
    if captured < header_len.min(carried.len) {
        mark
    } else {
        ""
    }
}

/// The hosts and the protocol's name.
fn named(carried: &Carried<'_>) -> String {
    let Carried {
        src, dst, protocol, ..
    } = carried;
    match ip_protocol_name(protocol.0) {
        Some(name) => format!("{src} > {dst} {name}"),
        None => format!("{src} > {dst} protocol {}", protocol.0),
    }
}

/// Protocols without transport ports, and SCTP.
fn other_protocol(carried: &Carried<'_>, depth: usize) -> Option<String> {
    let Carried {
        src,
        dst,
        bytes,
        len,
        ..
    } = *carried;
    let what = match carried.protocol.0 {
        // IP in IP, 6in4.
        4 | 41 => {
            let inner = packet(bytes, depth.checked_sub(1)?)?;
            return Some(format!("{} {inner}", named(carried)));
        }
        33 => {
            let text = carried.ends()?;
            return Some(format!("{text} DCCP, length {len}"));
        }
        46 => routing::rsvp(bytes, len)?,
        47 => tunnel::gre(bytes, len, depth)?,
        50 => {
            let (spi, seq) = (word(bytes, 0)?, word(bytes, 4)?);
            format!("ESP(spi={spi:#010x},seq={seq:#x}), length {len}")
        }
        51 => return behind_ah(carried, depth),
        88 => routing::eigrp(bytes, len)?,
        89 => routing::ospf(bytes, len)?,
        97 => tunnel::etherip(bytes, len, depth)?,
        103 => multicast::pim(bytes, len)?,
        108 => format!("IPComp(cpi={:#06x}), length {len}", half(bytes, 2)?),
        112 => routing::vrrp(carried)?,
        132 => return sctp::packet(carried),
        136 => return Some(format!("{} UDP-Lite, length {len}", carried.ends()?)),
        _ => return Some(format!("{}, length {len}", named(carried))),
    };
    Some(format!("{src} > {dst} {what}"))
}

/// What an Authentication Header protects.
fn behind_ah(carried: &Carried<'_>, depth: usize) -> Option<String> {
    let header_len = ah_len(byte(carried.bytes, 1)?);
    let (header, rest) = carried.bytes.split_at_checked(header_len)?;
    let inner = Carried {
        src: carried.src,
        dst: carried.dst,
        protocol: Protocol(byte(header, 0)?),
        ttl: carried.ttl,
        bytes: rest,
        len: carried.len.saturating_sub(header_len),
    };
    Some(spoken(&inner, depth.checked_sub(1)?) + &ah(header)?)
}
