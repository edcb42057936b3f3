//! Frames and packets as tests write them, with right checksums.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use weir_wire::ethernet::Address;
use weir_wire::{AddrPair, EtherType, Protocol, checksum, ethernet, icmp, ipv4, ipv6, tcp};

/// Destination and source of a frame.
pub(crate) type Ends = [Address; 2];

pub(crate) fn frame([dst, src]: Ends, ether_type: EtherType, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; ethernet::Repr::LEN];
    ethernet::Repr {
        dst,
        src,
        ether_type,
    }
    .emit(&mut bytes);
    bytes.extend_from_slice(payload);
    bytes
}

pub(crate) fn v4(
    ends: Ends,
    (src, dst): (Ipv4Addr, Ipv4Addr),
    protocol: Protocol,
    ttl: u8,
    payload: &[u8],
) -> Vec<u8> {
    let mut packet = vec![0; ipv4::Repr::LEN];
    ipv4::Repr {
        src,
        dst,
        protocol,
        ttl,
        traffic_class: 0,
        identification: 1,
        dont_fragment: false,
        payload_len: payload.len(),
    }
    .emit(&mut packet);
    packet.extend_from_slice(payload);
    frame(ends, EtherType::IPV4, &packet)
}

/// Sets the traffic class of an IPv4 packet in a frame.
pub(crate) fn mark(frame: &mut [u8], traffic_class: u8) {
    let header = &mut frame[ethernet::Repr::LEN..][..ipv4::Repr::LEN];
    header[1] = traffic_class;
    header[10..12].fill(0);
    let sum = checksum::internet_checksum(header);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
}

/// With `next_header` first in its payload, which has extension headers or has
/// none.
pub(crate) fn v6(
    ends: Ends,
    (src, dst): (Ipv6Addr, Ipv6Addr),
    next_header: Protocol,
    hop_limit: u8,
    payload: &[u8],
) -> Vec<u8> {
    let mut packet = vec![0; ipv6::Repr::LEN];
    ipv6::Repr {
        src,
        dst,
        next_header,
        hop_limit,
        traffic_class: 0,
        flow_label: 0,
        payload_len: payload.len(),
    }
    .emit(&mut packet);
    packet.extend_from_slice(payload);
    frame(ends, EtherType::IPV6, &packet)
}

/// The ICMPv6 message of this type, `rest` and body, without its packet.
pub(crate) fn icmpv6_message(
    (src, dst): (Ipv6Addr, Ipv6Addr),
    kind: u8,
    rest: u32,
    body: &[u8],
) -> Vec<u8> {
    let mut message = vec![0; icmp::Repr::LEN];
    message.extend_from_slice(body);
    let code = 0;
    icmp::Repr { kind, code, rest }.emit(&mut message, AddrPair::V6(src, dst));
    message
}

pub(crate) fn icmpv6(
    ends: Ends,
    addresses: (Ipv6Addr, Ipv6Addr),
    hop_limit: u8,
    kind: u8,
    rest: u32,
    body: &[u8],
) -> Vec<u8> {
    let message = icmpv6_message(addresses, kind, rest, body);
    v6(ends, addresses, Protocol::ICMPV6, hop_limit, &message)
}

/// What makes routers look at a message about groups (RFC 2711), before it.
pub(crate) const ALERT: [u8; 8] = [58, 0, 5, 2, 0, 0, 1, 0];

/// A message about groups of IPv6, as routers send it.
pub(crate) fn mld(
    ends: Ends,
    addresses: (Ipv6Addr, Ipv6Addr),
    kind: u8,
    rest: u32,
    body: &[u8],
) -> Vec<u8> {
    let message = icmpv6_message(addresses, kind, rest, body);
    let payload = [&ALERT[..], &message].concat();
    v6(ends, addresses, Protocol::IPV6_HOP_BY_HOP, 1, &payload)
}

/// A TCP segment from any claimed source.
pub(crate) fn segment(
    ends: Ends,
    (src, dst): (SocketAddr, SocketAddr),
    repr: &tcp::Repr,
    payload: &[u8],
) -> Vec<u8> {
    let repr = tcp::Repr {
        src_port: src.port(),
        dst_port: dst.port(),
        ..*repr
    };
    let addresses = AddrPair::new(src.ip(), dst.ip()).unwrap();
    let mut segment = vec![0; repr.header_len()];
    segment.extend_from_slice(payload);
    repr.emit(&mut segment, addresses);
    match addresses {
        AddrPair::V4(src, dst) => v4(ends, (src, dst), Protocol::TCP, 64, &segment),
        AddrPair::V6(src, dst) => v6(ends, (src, dst), Protocol::TCP, 64, &segment),
    }
}
