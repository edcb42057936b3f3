//! What an IP packet carries.

use std::fmt;

/// An IP protocol number, or an IPv6 next header (the IANA registry).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Protocol(pub u8);

impl Protocol {
    /// ICMP for IPv4.
    pub const ICMPV4: Protocol = Protocol(1);
    /// TCP.
    pub const TCP: Protocol = Protocol(6);
    /// UDP.
    pub const UDP: Protocol = Protocol(17);
    /// ICMP for IPv6.
    pub const ICMPV6: Protocol = Protocol(58);
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
