//! What tells on a link whose traffic a frame is.

use serde::{Deserialize, Serialize};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A property of frames that belongs to one subscriber at a time.
///
/// Addresses and prefixes are compared with the subscriber's side of a frame: the source of a frame
/// that comes from the subscribers' side of the link, the destination of one that goes there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Key {
    /// An IPv4 address (Framed-IP-Address, RFC 2865 §5.8).
    Ipv4(Ipv4Addr),
    /// An IPv6 address (Framed-IPv6-Address, RFC 6911 §3.1).
    Ipv6(Ipv6Addr),
    /// An IPv4 or IPv6 prefix and its length in bits; bits beyond the length are zero
    /// (Framed-Route, RFC 2865 §5.22; Framed-IPv6-Prefix, RFC 3162 §2.3; Delegated-IPv6-Prefix,
    /// RFC 4818 §3).
    Prefix(IpAddr, u8),
    /// A VLAN: the outer VLAN identifier, and the inner one of a frame with two tags (IEEE 802.1Q).
    Vlan(u16, Option<u16>),
    /// A MAC address on the subscribers' side.
    Mac([u8; 6]),
    /// A PPPoE session identifier (RFC 2516 §4).
    Pppoe(u16),
}
