//! What tells on a link whose traffic a frame is.

use serde::{Deserialize, Serialize};
use std::fmt;
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

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Key::Ipv4(address) => write!(f, "{address}"),
            Key::Ipv6(address) => write!(f, "{address}"),
            Key::Prefix(address, length) => write!(f, "{address}/{length}"),
            Key::Vlan(outer, None) => write!(f, "vlan {outer}"),
            Key::Vlan(outer, Some(inner)) => write!(f, "vlan {outer}.{inner}"),
            Key::Mac([a, b, c, d, e, g]) => {
                write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
            }
            Key::Pppoe(session) => write!(f, "pppoe {session}"),
        }
    }
}
