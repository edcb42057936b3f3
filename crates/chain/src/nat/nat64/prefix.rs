//! IPv4 addresses in IPv6 addresses (RFC 6052).
//!
//! ```text
//!  bits      0      32  40  48  56  64  72  80  88  96     128
//!  /32       prefix│ v4            │ 0 │ suffix
//!  /40       prefix    │ v4        │ 0 │v4 │ suffix
//!  /48       prefix        │ v4    │ 0 │ v4    │ suffix
//!  /56       prefix            │v4 │ 0 │ v4        │ suffix
//!  /64       prefix                │ 0 │ v4            │ suffix
//!  /96       prefix                │ 0   prefix        │ v4  │
//! ```

use crate::nat::inside::Inside;
use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// Lengths of prefixes, in bits (RFC 6052 §2.2).
const LENGTHS: [u8; 6] = [32, 40, 48, 56, 64, 96];

/// The octet that is 0 whatever the length.
const ZERO: usize = 8;

/// A prefix of IPv6 addresses that stand for IPv4 addresses: a `Pref64::/n`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TranslationPrefix {
    address: Ipv6Addr,
    len: u8,
}

/// The reason why a prefix is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PrefixError {
    /// It is no prefix.
    #[error("write a prefix, as in \"64:ff9b::/96\"")]
    Form,
    /// The length is none of RFC 6052.
    #[error("its length is 32, 40, 48, 56, 64 or 96 (RFC 6052 §2.2)")]
    Length,
    /// Bits behind the prefix are set.
    #[error("it has host bits: write \"{0}\"")]
    HostBits(TranslationPrefix),
    /// Bits 64 to 71 are set.
    #[error("bits 64 to 71 must be 0 (RFC 6052 §2.2)")]
    Octet,
    /// No host has such addresses.
    #[error("no host has addresses of it: take 64:ff9b::/96, or a prefix of your own network")]
    Unusable,
}

impl TranslationPrefix {
    /// The well-known prefix, 64:ff9b::/96 (RFC 6052 §2.1).
    pub const WELL_KNOWN: TranslationPrefix = TranslationPrefix {
        address: Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0),
        len: 96,
    };

    /// A prefix.
    ///
    /// # Errors
    /// If it cannot be one of RFC 6052.
    pub fn new(address: Ipv6Addr, len: u8) -> Result<TranslationPrefix, PrefixError> {
        if !LENGTHS.contains(&len) {
            return Err(PrefixError::Length);
        }
        let network = address.masked(len);
        if network.octets()[ZERO] != 0 {
            return Err(PrefixError::Octet);
        }
        if network != address {
            return Err(PrefixError::HostBits(TranslationPrefix {
                address: network,
                len,
            }));
        }
        // ::/96 has the addresses ::, ::1 and, with ::ffff:0:0/96, those of IPv4 in the API of sockets.
        let is_special = address.to_bits() >> 48 == 0 || address.is_unicast_link_local();
        if address.is_multicast() || is_special {
            return Err(PrefixError::Unusable);
        }
        Ok(TranslationPrefix { address, len })
    }

    /// The first address.
    pub fn address(&self) -> Ipv6Addr {
        self.address
    }

    /// Whether an address is in it.
    #[inline]
    pub fn contains(&self, address: Ipv6Addr) -> bool {
        address.masked(self.len) == self.address
    }

    /// Whether two prefixes have addresses in common.
    pub fn overlaps(&self, other: &TranslationPrefix) -> bool {
        self.contains(other.address) || other.contains(self.address)
    }

    /// Whether it is the well-known one, which does not stand for addresses that are not global.
    pub fn is_well_known(&self) -> bool {
        *self == TranslationPrefix::WELL_KNOWN
    }

    /// The places of the four octets.
    fn places(self) -> [usize; 4] {
        let start = usize::from(self.len / 8);
        [0, 1, 2, 3].map(|octet| {
            let at = start + octet;
            at + usize::from(start <= ZERO && at >= ZERO)
        })
    }

    /// The IPv6 address that stands for an IPv4 address.
    pub fn embed(&self, address: Ipv4Addr) -> Ipv6Addr {
        let mut octets = self.address.octets();
        for (at, octet) in self.places().into_iter().zip(address.octets()) {
            octets[at] = octet;
        }
        octets.into()
    }

    /// The IPv4 address for which an IPv6 address stands; `None` if it is not in the prefix, or bits
    /// 64 to 71 are set. A suffix does not matter (RFC 6052 §2.2).
    pub fn extract(&self, address: Ipv6Addr) -> Option<Ipv4Addr> {
        let octets = address.octets();
        let is_embedded = self.contains(address) && octets[ZERO] == 0;
        is_embedded.then(|| self.places().map(|at| octets[at]).into())
    }
}

impl fmt::Display for TranslationPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.len)
    }
}

impl FromStr for TranslationPrefix {
    type Err = PrefixError;

    fn from_str(text: &str) -> Result<TranslationPrefix, PrefixError> {
        let (address, len) = text.split_once('/').ok_or(PrefixError::Form)?;
        let address = address.parse().map_err(|_| PrefixError::Form)?;
        let len = len.parse().map_err(|_| PrefixError::Form)?;
        TranslationPrefix::new(address, len)
    }
}

/// Whether an address may be a host's: not of 0/8, 127/8, 224/4 and 240/4.
pub(super) fn is_host(address: Ipv4Addr) -> bool {
    let first = address.octets()[0];
    !matches!(first, 0 | 127 | 224..)
}

/// Whether an address is global, as RFC 6052 §3.1 means it: in no network of RFC 5735 §3 and RFC
/// 6598.
pub(super) fn is_global(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let is_special = match (a, b) {
        (10, _) | (172, 16..=31) | (192, 168) | (169, 254) | (100, 64..=127) => true,
        (198, 18 | 19) => true,
        (192, 0) => c == 0 || c == 2,
        (198, 51) => c == 100,
        (203, 0) => c == 113,
        _ => false,
    };
    is_host(address) && !is_special
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of RFC 6052 §2.4.
    #[test]
    fn addresses_are_embedded_as_the_rfc_shows() {
        let address: Ipv4Addr = "192.0.2.33".parse().unwrap();
        for (prefix, embedded) in [
            ("2001:db8::/32", "2001:db8:c000:221::"),
            ("2001:db8:100::/40", "2001:db8:1c0:2:21::"),
            ("2001:db8:122::/48", "2001:db8:122:c000:2:2100::"),
            ("2001:db8:122:300::/56", "2001:db8:122:3c0:0:221::"),
            ("2001:db8:122:344::/64", "2001:db8:122:344:c0:2:2100::"),
            ("2001:db8:122:344::/96", "2001:db8:122:344::192.0.2.33"),
            ("64:ff9b::/96", "64:ff9b::192.0.2.33"),
        ] {
            let read: TranslationPrefix = prefix.parse().unwrap();
            let embedded: Ipv6Addr = embedded.parse().unwrap();
            assert_eq!(read.embed(address), embedded, "{prefix}");
            assert_eq!(read.extract(embedded), Some(address), "{prefix}");
            assert_eq!(read.to_string(), prefix);
            let beside = Ipv6Addr::from_bits(read.address.to_bits() ^ 1 << (128 - read.len));
            assert_eq!(read.extract(beside), None);
            let mut octets = embedded.octets();
            octets[ZERO] = 1;
            assert_eq!(read.extract(octets.into()), None, "{prefix}");
        }
    }

    #[test]
    fn every_address_comes_back() {
        let mut rng = weir_wire::rng::SplitMix64::new(1);
        for len in LENGTHS {
            let prefix = TranslationPrefix::new("2001:db8::".parse().unwrap(), len).unwrap();
            for _ in 0..1000 {
                let address = Ipv4Addr::from_bits(rng.bits() as u32);
                assert_eq!(prefix.extract(prefix.embed(address)), Some(address));
            }
        }
    }

    #[test]
    fn other_prefixes_are_refused_with_the_reason() {
        let read = |text: &str| TranslationPrefix::from_str(text).unwrap_err();
        assert_eq!(read("64:ff9b::"), PrefixError::Form);
        assert_eq!(read("64:ff9b::/x"), PrefixError::Form);
        assert_eq!(read("2001:db8::/33"), PrefixError::Length);
        assert_eq!(read("2001:db8:0:0:100::/96"), PrefixError::Octet);
        assert_eq!(read("ff00::/32"), PrefixError::Unusable);
        assert_eq!(read("fe80::/64"), PrefixError::Unusable);
        assert_eq!(read("::/96"), PrefixError::Unusable);
        assert_eq!(
            read("2001:db8::1/64").to_string(),
            "it has host bits: write \"2001:db8::/64\""
        );
    }

    #[test]
    fn addresses_that_are_not_global_are_known() {
        let is = |text: &str| is_global(text.parse().unwrap());
        for text in [
            "8.8.8.8",
            "100.63.0.1",
            "172.32.0.1",
            "192.0.1.1",
            "198.51.101.1",
        ] {
            assert!(is(text), "{text}");
        }
        for text in [
            "10.0.0.1",
            "100.64.0.1",
            "127.0.0.1",
            "169.254.1.1",
            "172.16.0.1",
            "192.0.0.1",
            "192.0.2.1",
            "192.168.0.1",
            "198.19.0.1",
            "198.51.100.1",
            "203.0.113.1",
            "224.0.0.1",
            "255.255.255.255",
            "0.0.0.1",
        ] {
            assert!(!is(text), "{text}");
        }
    }
}
