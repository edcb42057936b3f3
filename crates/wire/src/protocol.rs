//! IP protocol numbers.

use std::fmt;

/// An IP protocol number, or an IPv6 next header (the IANA registry).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Protocol(pub u8);

impl Protocol {
    /// IPv6 hop-by-hop options.
    pub const IPV6_HOP_BY_HOP: Protocol = Protocol(0);
    /// ICMP for IPv4.
    pub const ICMPV4: Protocol = Protocol(1);
    /// Internet Group Management Protocol for IPv4.
    pub const IGMP: Protocol = Protocol(2);
    /// TCP.
    pub const TCP: Protocol = Protocol(6);
    /// UDP.
    pub const UDP: Protocol = Protocol(17);
    /// An IPv6 routing header.
    pub const IPV6_ROUTING: Protocol = Protocol(43);
    /// An IPv6 fragment header.
    pub const IPV6_FRAGMENT: Protocol = Protocol(44);
    /// ICMP for IPv6.
    pub const ICMPV6: Protocol = Protocol(58);
    /// No Next Header: nothing follows the IPv6 header.
    pub const IPV6_NO_NEXT_HEADER: Protocol = Protocol(59);
    /// IPv6 destination options.
    pub const IPV6_DESTINATION: Protocol = Protocol(60);
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Protocol::ICMPV4 => f.pad("ICMP"),
            Protocol::TCP => f.pad("TCP"),
            Protocol::UDP => f.pad("UDP"),
            Protocol::ICMPV6 => f.pad("ICMPv6"),
            Protocol(number) => f.pad(&number.to_string()),
        }
    }
}
