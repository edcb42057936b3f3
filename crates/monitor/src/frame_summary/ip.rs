//! IPv4 and IPv6, up to the protocol that they carry.

use super::{byte, chunk, half, icmp, tcp, udp, word};
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
            // The Authentication Header's length has units of 4 bytes (RFC
            // 4302).
            Protocol(51) => byte(rest, 1).map(|units| 4 * (usize::from(units) + 2)),
            _ => break,
        };
        let Some(behind) = header_len.and_then(|header_len| rest.get(header_len..)) else {
            break;
        };
        next = byte(rest, 0)?;
        len = len.saturating_sub(rest.len() - behind.len());
        rest = behind;
        if fragment.0 > 0 {
            break;
        }
    }
    let carried = Carried {
        src,
        dst,
        protocol: Protocol(next),
        bytes: rest,
        len,
    };
    let text = match fragment.0 {
        0 => spoken(&carried, depth),
        _ => named(&carried),
    };
    Some(text + &fragment_of(fragment.0, fragment.1, len))
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
        Protocol::IGMP => icmp::igmp(carried),
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
    let name = match protocol.0 {
        2 => "IGMP",
        4 | 41 => "IP in IP",
        47 => "GRE",
        50 => "ESP",
        51 => "AH",
        59 => "no next header",
        89 => "OSPF",
        103 => "PIM",
        112 => "VRRP",
        132 => "SCTP",
        136 => "UDP-Lite",
        _ => return format!("{src} > {dst} {protocol}"),
    };
    format!("{src} > {dst} {name}")
}

/// Protocols of which a few fields are shown.
fn other_protocol(carried: &Carried<'_>, depth: usize) -> Option<String> {
    let (bytes, len) = (carried.bytes, carried.len);
    let more = match carried.protocol.0 {
        // Tunnels: IP in IP, 6in4, GRE (RFC 2784, RFC 2890).
        4 | 41 => {
            return Some(format!(
                "{} {}",
                named(carried),
                packet(bytes, depth.checked_sub(1)?)?
            ));
        }
        47 => {
            let flags = half(bytes, 0)?;
            let options = [0x8000, 0x2000, 0x1000].map(|flag| usize::from(flags & flag != 0));
            let start = 4 + 4 * options.iter().sum::<usize>();
            let inner = match half(bytes, 2)? {
                0x0800 | 0x86dd => packet(bytes.get(start..)?, depth.checked_sub(1)?),
                0x6558 => super::of_ethernet(bytes.get(start..)?, depth.checked_sub(1)?),
                protocol => Some(format!("type {protocol:#06x}")),
            };
            return Some(format!("{} {}", named(carried), inner?));
        }
        50 => format!("(spi={:#010x},seq={:#x})", word(bytes, 0)?, word(bytes, 4)?),
        51 => format!("(spi={:#010x},seq={:#x})", word(bytes, 4)?, word(bytes, 8)?),
        132 | 136 => {
            let name = named(carried);
            let name = name.rsplit(' ').next().unwrap_or_default();
            return Some(format!("{} {name}, length {len}", carried.ends()?));
        }
        _ => String::new(),
    };
    Some(format!("{}{more}, length {len}", named(carried)))
}
