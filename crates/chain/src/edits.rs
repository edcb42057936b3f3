//! Edits as values, and the arithmetic of checksums (RFC 1624).
//!
//! A checksum follows a change of words `m` to `m'` by equation 3 of RFC 1624:
//! `HC' = ~(~HC + ~m + m')`. The sum of `~m + m'` over all changed words is the
//! *delta* of an edit; deltas add up. A folded sum is 0 only if all its terms
//! are 0, so the order of folding has no effect, and one composed delta gives
//! the same bytes as one edit after the other.

use std::net::{IpAddr, Ipv4Addr};
use weir_wire::ethernet::Address;
use weir_wire::field::{read_u16, write};

/// Everything that stages and base have done to a packet by edits. Of two edits
/// of one field the later counts.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Edits {
    /// The new source address.
    pub source: Option<IpAddr>,
    /// The new destination address.
    pub destination: Option<IpAddr>,
    /// The new source port.
    pub source_port: Option<u16>,
    /// The new destination port.
    pub destination_port: Option<u16>,
    /// The new DSCP; ECN stays.
    pub dscp: Option<u8>,
    /// The decrement of TTL or hop limit.
    pub ttl: u8,
    /// Inward, the neighbour to which the base sends the packet, whatever its destination.
    pub next_hop: Option<Ipv4Addr>,
    /// The new source and destination MAC address.
    pub stations: Option<(Address, Address)>,
    /// The link on which the frame leaves.
    pub output: Option<u16>,
    /// Longest packet of that link, in bytes; 0 for no limit.
    pub mtu: u32,
    /// Delta of the IPv4 header's checksum by the addresses. The delta of DSCP
    /// and TTL depends on the frame.
    pub header: u16,
    /// Delta of the checksum of TCP, UDP or ICMPv6 by addresses and ports.
    pub transport: u16,
}

/// The base's decision on a packet that it routed: MAC addresses set, TTL less
/// one, padding removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Routed {
    /// The link on which the frame leaves.
    pub link: u16,
    /// The router's MAC address there.
    pub src: Address,
    /// The next hop's MAC address.
    pub dst: Address,
    /// The link's MTU, in bytes.
    pub mtu: u32,
}

/// Folds a sum into 16 bits with end-around carry; 0 only if `sum` is.
#[inline]
fn fold(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// The sum of two deltas.
#[inline]
pub(crate) fn add(a: u16, b: u16) -> u16 {
    fold(u32::from(a) + u32::from(b))
}

/// The delta of words that change; both slices have the same even length, at
/// most 40 bytes.
#[inline]
pub(crate) fn delta(old: &[u8], new: &[u8]) -> u16 {
    let words = old.as_chunks::<2>().0.iter().zip(new.as_chunks::<2>().0);
    fold(
        words
            .map(|(old, new)| {
                u32::from(!u16::from_be_bytes(*old)) + u32::from(u16::from_be_bytes(*new))
            })
            .sum(),
    )
}

/// Adds a delta to the checksum at this offset.
#[inline]
pub(crate) fn follow(frame: &mut [u8], at: usize, delta: u16) {
    let sum = !add(!read_u16(frame, at), delta);
    write(frame, at, &sum.to_be_bytes());
}

/// Adds a delta to the checksum of a transport header. A UDP checksum of zero
/// means none, and stays; a sum of zero is sent as 0xffff (RFC 768).
#[inline]
pub(crate) fn follow_transport(frame: &mut [u8], at: usize, is_udp: bool, delta: u16) {
    if !is_udp {
        return follow(frame, at, delta);
    }
    if read_u16(frame, at) == 0 {
        return;
    }
    follow(frame, at, delta);
    if read_u16(frame, at) == 0 {
        write(frame, at, &[0xff, 0xff]);
    }
}

/// Writes the traffic class of an IP packet at offset `ip`.
pub(crate) fn set_traffic_class(frame: &mut [u8], ip: usize, is_v6: bool, class: u8) {
    if is_v6 {
        frame[ip] = 0x60 | class >> 4;
        frame[ip + 1] = frame[ip + 1] & 0x0f | class << 4;
        return;
    }
    let old = read_u16(frame, ip);
    let new = old & 0xff00 | u16::from(class);
    frame[ip + 1] = class;
    follow(
        frame,
        ip + 10,
        delta(&old.to_be_bytes(), &new.to_be_bytes()),
    );
}

/// Writes the DSCP; ECN stays.
pub(crate) fn set_dscp(frame: &mut [u8], ip: usize, is_v6: bool, dscp: u8) {
    let old = if is_v6 {
        frame[ip + 1] >> 4
    } else {
        frame[ip + 1]
    };
    set_traffic_class(frame, ip, is_v6, dscp << 2 | old & 3);
}

/// Decrements TTL or hop limit; `false` if it is 1 or 0.
pub(crate) fn less_ttl(frame: &mut [u8], ip: usize, is_v6: bool) -> bool {
    let at = ip + if is_v6 { 7 } else { 8 };
    if frame[at] <= 1 {
        return false;
    }
    let old = read_u16(frame, ip + 8);
    frame[at] -= 1;
    if !is_v6 {
        let new = read_u16(frame, ip + 8);
        follow(
            frame,
            ip + 10,
            delta(&old.to_be_bytes(), &new.to_be_bytes()),
        );
    }
    true
}
