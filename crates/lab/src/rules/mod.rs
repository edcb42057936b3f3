//! Seeded sets of filter rules and matching traffic, in the manner of
//! ClassBench (Taylor and Turner, "ClassBench: a packet classification
//! benchmark", IEEE/ACM ToN 15(3), 2007).
//!
//! ClassBench draws five-tuple rules from measured distributions: the frequency
//! of each protocol, of each class of port (any, low, high, a range, exact) and
//! of each prefix length, and the nesting of prefixes. Its seed files are not
//! copied; the tables of [`Profile`] contain rounded proportions from its paper
//! for the three kinds of filter sets.

pub mod classbench;
mod generate;
mod narrow;
mod shapes;
mod trace;

pub use generate::{Profile, generate};
pub use narrow::{NARROW_FORMS, Narrow, narrow};
pub use shapes::{FORMS, mixed_forms};
pub use trace::Trace;

use crate::rng::Rng;
use std::fmt;
use std::net::Ipv4Addr;
use std::ops::RangeInclusive;

/// An IPv4 prefix; host bits are zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Prefix {
    address: u32,
    len: u8,
}

impl Prefix {
    /// The prefix of all addresses.
    pub const ANY: Prefix = Prefix { address: 0, len: 0 };

    /// The prefix of `len` bits, at most 32, that contains `address`.
    pub fn of(address: u32, len: u8) -> Prefix {
        let len = len.min(32);
        let address = address & Prefix::mask(len);
        Prefix { address, len }
    }

    fn mask(len: u8) -> u32 {
        !u32::MAX.checked_shr(u32::from(len)).unwrap_or(0)
    }

    /// The network address.
    pub fn address(self) -> u32 {
        self.address
    }

    /// The length in bits.
    #[expect(clippy::len_without_is_empty, reason = "a prefix length, not a count")]
    pub fn len(self) -> u8 {
        self.len
    }

    /// Whether the prefix contains the address.
    pub fn contains(self, address: u32) -> bool {
        address & Prefix::mask(self.len) == self.address
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", Ipv4Addr::from_bits(self.address), self.len)
    }
}

/// A range of transport ports.
pub type Ports = RangeInclusive<u16>;

/// All transport ports.
pub const ANY_PORTS: Ports = 0..=u16::MAX;

/// TCP's protocol number.
pub const TCP: u8 = 6;
/// UDP's protocol number.
pub const UDP: u8 = 17;

/// A rule on the five-tuple of IPv4 packets.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Rule {
    /// Source addresses.
    pub src: Prefix,
    /// Destination addresses.
    pub dst: Prefix,
    /// Source ports; all, unless the protocol is TCP or UDP.
    pub src_ports: Ports,
    /// Destination ports; all, unless the protocol is TCP or UDP.
    pub dst_ports: Ports,
    /// The IP protocol; `None` for any.
    pub protocol: Option<u8>,
}

/// The five-tuple of one packet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FiveTuple {
    /// Source address.
    pub src: u32,
    /// Destination address.
    pub dst: u32,
    /// Source port; only TCP and UDP have one.
    pub src_port: u16,
    /// Destination port; only TCP and UDP have one.
    pub dst_port: u16,
    /// IP protocol.
    pub protocol: u8,
}

impl Rule {
    /// Whether the rule accepts a packet (not a later fragment) of the tuple.
    pub fn matches(&self, tuple: &FiveTuple) -> bool {
        let ported = matches!(tuple.protocol, TCP | UDP);
        let ports =
            self.src_ports.contains(&tuple.src_port) && self.dst_ports.contains(&tuple.dst_port);
        self.protocol
            .is_none_or(|protocol| protocol == tuple.protocol)
            && self.src.contains(tuple.src)
            && self.dst.contains(tuple.dst)
            && (!self.has_ports() || ported && ports)
    }

    /// Whether the rule restricts ports.
    pub fn has_ports(&self) -> bool {
        self.src_ports != ANY_PORTS || self.dst_ports != ANY_PORTS
    }

    /// The rule as a pcap-filter expression.
    pub fn expression(&self) -> String {
        let mut terms = vec![match self.protocol {
            None => "ip".to_owned(),
            Some(TCP) => "ip and tcp".to_owned(),
            Some(UDP) => "ip and udp".to_owned(),
            Some(other) => format!("ip proto {other}"),
        }];
        for (direction, prefix) in [("src", self.src), ("dst", self.dst)] {
            match prefix.len {
                0 => {}
                32 => terms.push(format!(
                    "{direction} host {}",
                    Ipv4Addr::from(prefix.address)
                )),
                _ => terms.push(format!("{direction} net {prefix}")),
            }
        }
        for (direction, ports) in [("src", &self.src_ports), ("dst", &self.dst_ports)] {
            let (first, last) = (ports.start(), ports.end());
            if first == last {
                terms.push(format!("{direction} port {first}"));
            } else if *ports != ANY_PORTS {
                terms.push(format!("{direction} portrange {first}-{last}"));
            }
        }
        terms.join(" and ")
    }
}

impl FiveTuple {
    /// A random TCP or UDP tuple between the addresses of [`mixed_forms`].
    pub fn draw(rng: &mut Rng) -> FiveTuple {
        FiveTuple {
            src: 0x0a00_0000 | rng.word() >> 8,
            dst: 0x0a00_0000 | rng.word() >> 8,
            src_port: rng.word() as u16,
            dst_port: rng.word() as u16,
            protocol: *rng.choose(&[TCP, UDP]),
        }
    }

    /// An Ethernet frame with this tuple, 64 bytes long: a TCP segment, a UDP
    /// datagram, or other bytes.
    pub fn frame(&self) -> Vec<u8> {
        let mut frame = vec![0u8; 64];
        frame[..6].copy_from_slice(&[2, 0, 0, 0, 0, 2]);
        frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
        frame[12..14].copy_from_slice(&[0x08, 0x00]);
        frame[14] = 0x45;
        frame[16..18].copy_from_slice(&50u16.to_be_bytes());
        frame[22] = 64;
        frame[23] = self.protocol;
        frame[26..30].copy_from_slice(&self.src.to_be_bytes());
        frame[30..34].copy_from_slice(&self.dst.to_be_bytes());
        if matches!(self.protocol, TCP | UDP) {
            frame[34..36].copy_from_slice(&self.src_port.to_be_bytes());
            frame[36..38].copy_from_slice(&self.dst_port.to_be_bytes());
        }
        match self.protocol {
            TCP => frame[46..48].copy_from_slice(&[0x50, 0x10]),
            UDP => frame[38..40].copy_from_slice(&30u16.to_be_bytes()),
            _ => {}
        }
        frame
    }
}
