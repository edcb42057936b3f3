//! Transport headers: ports, identifiers, and the checksums that cover addresses of one version of IP
//! or of the other (RFC 7915 §4.4, §4.5, §5.4).

use super::header::other;
use crate::edits;
use crate::nat::config::Transport;
use crate::nat::icmp;
use weir_wire::Protocol;
use weir_wire::checksum::AddrPair;
use weir_wire::field::{read_u16, write};

/// ICMP's and ICMPv6's types of queries, in pairs.
const ECHO: (u8, u8) = (icmp::ECHO, 128);
const ECHO_REPLY: (u8, u8) = (icmp::ECHO_REPLY, 129);

/// Whether this is a request: a host's query.
pub(super) fn is_echo(protocol: Protocol, kind: u8) -> bool {
    match protocol {
        Protocol::ICMPV4 => kind == ECHO.0,
        _ => kind == ECHO.1,
    }
}

/// Whether this is the answer to one.
pub(super) fn is_echo_reply(protocol: Protocol, kind: u8) -> bool {
    match protocol {
        Protocol::ICMPV4 => kind == ECHO_REPLY.0,
        _ => kind == ECHO_REPLY.1,
    }
}

/// The transport of a protocol of either version; `None` if it is not translated.
pub(super) fn of(protocol: Protocol) -> Option<Transport> {
    match protocol {
        Protocol::TCP => Some(Transport::Tcp),
        Protocol::UDP => Some(Transport::Udp),
        Protocol::ICMPV4 | Protocol::ICMPV6 => Some(Transport::Icmp),
        _ => None,
    }
}

/// The transport and its ports, of the first eight bytes or more of a payload. Of a query of ICMP the
/// identifier stands for the port of the side that asked. `None` if it is not translated.
pub(super) fn ends(protocol: Protocol, payload: &[u8]) -> Option<(Transport, u16, u16)> {
    let transport = of(protocol)?;
    if payload.len() < 8 {
        return None;
    }
    let id = read_u16(payload, 4);
    match transport {
        Transport::Icmp if is_echo(protocol, payload[0]) => Some((transport, id, 0)),
        Transport::Icmp if is_echo_reply(protocol, payload[0]) => Some((transport, 0, id)),
        Transport::Icmp => None,
        _ => Some((transport, read_u16(payload, 0), read_u16(payload, 2))),
    }
}

/// A translation of a transport header.
#[derive(Clone, Copy, Debug)]
pub(super) struct Change {
    pub(super) from: AddrPair,
    pub(super) to: AddrPair,
    /// The source port changes, or else the destination port.
    pub(super) is_source: bool,
    pub(super) port: u16,
}

/// What a checksum covers beside the payload: addresses, length, protocol.
fn pseudo_header(addresses: AddrPair, protocol: Protocol, len: usize) -> [u8; 40] {
    let mut bytes = [0; 40];
    if protocol == Protocol::ICMPV4 {
        return bytes;
    }
    match addresses {
        AddrPair::V4(src, dst) => {
            write(&mut bytes, 0, &src.octets());
            write(&mut bytes, 16, &dst.octets());
        }
        AddrPair::V6(src, dst) => {
            write(&mut bytes, 0, &src.octets());
            write(&mut bytes, 16, &dst.octets());
        }
    }
    write(&mut bytes, 32, &(len as u32).to_be_bytes());
    bytes[39] = protocol.0;
    bytes
}

/// Translates the header at the begin of a payload, which [`ends`] knows, and whose length is `len`,
/// though it may be cut short. A checksum of UDP that is zero stays.
pub(super) fn translate(payload: &mut [u8], protocol: Protocol, len: usize, change: &Change) {
    let before = pseudo_header(change.from, protocol, len);
    let after = pseudo_header(change.to, other(protocol), len);
    let mut delta = edits::delta(&before, &after);
    let (port_at, sum_at) = match protocol {
        Protocol::TCP => (if change.is_source { 0 } else { 2 }, 16),
        Protocol::UDP => (if change.is_source { 0 } else { 2 }, 6),
        _ => (4, 2),
    };
    if matches!(protocol, Protocol::ICMPV4 | Protocol::ICMPV6) {
        let kind = match (protocol, payload[0]) {
            (Protocol::ICMPV4, kind) if kind == ECHO.0 => ECHO.1,
            (Protocol::ICMPV4, _) => ECHO_REPLY.1,
            (_, kind) if kind == ECHO.1 => ECHO.0,
            _ => ECHO_REPLY.0,
        };
        let (old, new) = ([payload[0], payload[1]], [kind, payload[1]]);
        delta = edits::add(delta, edits::delta(&old, &new));
        payload[0] = kind;
    }
    let old = read_u16(payload, port_at).to_be_bytes();
    delta = edits::add(delta, edits::delta(&old, &change.port.to_be_bytes()));
    write(payload, port_at, &change.port.to_be_bytes());
    if payload.len() >= sum_at + 2 {
        edits::follow_transport(payload, sum_at, protocol == Protocol::UDP, delta);
    }
}

/// Whether a datagram has no checksum.
pub(super) fn lacks_checksum(protocol: Protocol, payload: &[u8]) -> bool {
    protocol == Protocol::UDP && payload.len() >= 8 && payload[6..8] == [0, 0]
}
