//! ICMP errors as packets.

use super::header::Header;
use super::{HOPS, Refused, icmp};
use std::net::{Ipv4Addr, Ipv6Addr};
use weir_wire::{AddrPair, Protocol, icmp as wire_icmp, ipv4, ipv6};

/// The refusal of a routing header with segments left: parameter problem, with the place of their
/// number.
pub(super) fn source_route_v6(packet: &[u8], at: usize) -> Refused {
    let Ok(view) = ipv6::Packet::new(packet) else {
        return "malformed".into();
    };
    let error = wire_icmp::Repr {
        kind: 4,
        code: 0,
        rest: at as u32,
    };
    let most = icmp::ERROR_V6_MAX - ipv6::Repr::LEN - wire_icmp::Repr::LEN;
    let quoted = &packet[..packet.len().min(most)];
    let made = error_v6(error, (view.dst(), view.src()), 0, HOPS, quoted);
    Refused::Answer("routing-header", made)
}

/// The refusal of a source route: destination unreachable, source route failed.
pub(super) fn source_route_v4(header: &Header<Ipv4Addr>, packet: &[u8], id: u16) -> Refused {
    let error = wire_icmp::Repr {
        kind: 3,
        code: 5,
        rest: 0,
    };
    let most = icmp::ERROR_V4_MAX - ipv4::Repr::LEN - wire_icmp::Repr::LEN;
    let quoted = &packet[..packet.len().min(most)];
    let made = error_v4(error, (header.dst, header.src), 0, HOPS, quoted, id);
    Refused::Answer("source-route", made)
}

/// The IPv4 packet of an ICMP error.
pub(super) fn error_v4(
    error: wire_icmp::Repr,
    (src, dst): (Ipv4Addr, Ipv4Addr),
    class: u8,
    hops: u8,
    quoted: &[u8],
    id: u16,
) -> Vec<u8> {
    let len = wire_icmp::Repr::LEN + quoted.len();
    let mut packet = vec![0; ipv4::Repr::LEN + len];
    let outer = ipv4::Repr {
        src,
        dst,
        protocol: Protocol::ICMPV4,
        ttl: hops,
        traffic_class: class,
        identification: id,
        dont_fragment: false,
        payload_len: len,
    };
    outer.emit(&mut packet);
    let message = &mut packet[ipv4::Repr::LEN..];
    message[wire_icmp::Repr::LEN..].copy_from_slice(quoted);
    error.emit(message, AddrPair::V4(src, dst));
    packet
}

/// As [`error_v4`], in IPv6.
pub(super) fn error_v6(
    error: wire_icmp::Repr,
    (src, dst): (Ipv6Addr, Ipv6Addr),
    class: u8,
    hops: u8,
    quoted: &[u8],
) -> Vec<u8> {
    let len = wire_icmp::Repr::LEN + quoted.len();
    let mut packet = vec![0; ipv6::Repr::LEN + len];
    let outer = ipv6::Repr {
        src,
        dst,
        next_header: Protocol::ICMPV6,
        hop_limit: hops,
        traffic_class: class,
        flow_label: 0,
        payload_len: len,
    };
    outer.emit(&mut packet);
    let message = &mut packet[ipv6::Repr::LEN..];
    message[wire_icmp::Repr::LEN..].copy_from_slice(quoted);
    error.emit(message, AddrPair::V6(src, dst));
    packet
}
