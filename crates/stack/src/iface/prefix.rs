//! IP addresses with a prefix length.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// An address with the length of its network's prefix, as in `192.0.2.5/24`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Prefix {
    address: IpAddr,
    len: u8,
}

/// Why a text is not a valid [`Prefix`].
#[derive(thiserror::Error, Clone, PartialEq, Eq, Debug)]
pub enum PrefixError {
    /// There is no address before the slash.
    #[error(
        "`{0}` does not start with an IP address: write one like 192.0.2.5/24 or 2001:db8::5/64"
    )]
    Address(String),
    /// The length is not a number, or exceeds the address's bits.
    #[error("`{0}` has no prefix length of at most {1} bits behind a slash")]
    Len(String, u8),
}

impl Prefix {
    /// An address with its prefix length; `None` if the length exceeds the
    /// address's bits.
    pub fn new(address: IpAddr, len: u8) -> Option<Prefix> {
        (len <= bits(address)).then_some(Prefix { address, len })
    }

    /// The complete address, including the host bits.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// The prefix's length, in bits.
    pub fn len(&self) -> u8 {
        self.len
    }

    /// Whether the prefix contains every address.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The network: the host bits are zero.
    #[must_use]
    pub fn network(&self) -> Prefix {
        let len: u32 = self.len.into();
        let address = match self.address {
            IpAddr::V4(address) => {
                let mask = u32::MAX.checked_shl(32 - len).unwrap_or(0);
                Ipv4Addr::from_bits(address.to_bits() & mask).into()
            }
            IpAddr::V6(address) => {
                let mask = u128::MAX.checked_shl(128 - len).unwrap_or(0);
                Ipv6Addr::from_bits(address.to_bits() & mask).into()
            }
        };
        Prefix { address, ..*self }
    }

    /// Whether it is an IPv4 network address, which no host has; a prefix of 31
    /// or 32 bits has none (RFC 3021).
    pub fn is_network(&self) -> bool {
        self.address.is_ipv4() && self.len < 31 && *self == self.network()
    }

    /// Whether the network contains an address.
    pub fn contains(&self, other: IpAddr) -> bool {
        self.common(other) >= Some(self.len.into())
    }

    /// Number of common leading bits of two addresses; `None` for different IP
    /// versions.
    pub(crate) fn common(&self, other: IpAddr) -> Option<u32> {
        match (self.address, other) {
            (IpAddr::V4(a), IpAddr::V4(b)) => Some((a.to_bits() ^ b.to_bits()).leading_zeros()),
            (IpAddr::V6(a), IpAddr::V6(b)) => Some((a.to_bits() ^ b.to_bits()).leading_zeros()),
            _ => None,
        }
    }

    /// Whether `other` is the broadcast address of this IPv4 network (RFC 922);
    /// a prefix of 31 or 32 bits has none (RFC 3021).
    #[inline]
    pub fn is_broadcast(&self, other: Ipv4Addr) -> bool {
        let host_bits = u32::MAX.checked_shr(self.len.into()).unwrap_or(0);
        other.to_bits() & host_bits == host_bits && self.len < 31 && self.contains(other.into())
    }
}

fn bits(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    }
}

impl FromStr for Prefix {
    type Err = PrefixError;

    fn from_str(text: &str) -> Result<Prefix, PrefixError> {
        let (address, len) = text.split_once('/').unwrap_or((text, ""));
        let address = address.parse();
        let address: IpAddr = address.map_err(|_| PrefixError::Address(text.to_owned()))?;
        let wrong = || PrefixError::Len(text.to_owned(), bits(address));
        let len = len.parse().map_err(|_| wrong())?;
        Prefix::new(address, len).ok_or_else(wrong)
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_are_read_and_compared() {
        let prefix: Prefix = "192.0.2.5/24".parse().unwrap();
        assert_eq!(prefix.to_string(), "192.0.2.5/24");
        assert!(prefix.contains("192.0.2.255".parse().unwrap()));
        assert!(!prefix.contains("192.0.3.5".parse().unwrap()));
        assert!(!prefix.contains("2001:db8::5".parse().unwrap()));
        assert!(prefix.is_broadcast("192.0.2.255".parse().unwrap()));
        assert!(!prefix.is_broadcast("192.0.2.5".parse().unwrap()));
        let all: Prefix = "::/0".parse().unwrap();
        assert!(all.contains("2001:db8::1".parse().unwrap()) && all.is_empty());
        let network = |text: &str| text.parse::<Prefix>().unwrap().network().to_string();
        assert_eq!(network("192.0.2.5/24"), "192.0.2.0/24");
        assert_eq!(network("192.0.2.5/0"), "0.0.0.0/0");
        assert_eq!(network("192.0.2.5/32"), "192.0.2.5/32");
        assert_eq!(network("2001:db8::5/33"), "2001:db8::/33");
        let is_network = |text: &str| text.parse::<Prefix>().unwrap().is_network();
        assert!(is_network("192.0.2.0/24") && !is_network("192.0.2.1/24"));
        assert!(!is_network("192.0.2.4/31") && !is_network("2001:db8::/64"));
        let pair: Prefix = "192.0.2.4/31".parse().unwrap();
        assert!(!pair.is_broadcast("192.0.2.5".parse().unwrap()));
    }

    #[test]
    fn what_is_no_prefix_says_why() {
        let error = |text: &str| text.parse::<Prefix>().unwrap_err().to_string();
        assert!(error("tap0/24").contains("`tap0/24`"));
        assert!(error("192.0.2.5/33").contains("at most 32 bits"));
        assert!(error("192.0.2.5").contains("behind a slash"));
        assert!(error("::1/x").contains("at most 128 bits"));
    }
}
