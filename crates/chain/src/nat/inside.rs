//! The addresses of the inside: IPv4 for NAT44, IPv6 for NAT64. The tables are the same.

use std::fmt;
use std::hash::Hash;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An address of the inside.
pub trait Inside: Copy + Eq + Hash + fmt::Debug + Into<IpAddr> + 'static {
    /// Bits of an address.
    const BITS: u8;
    /// The begin of a saved state.
    const MAGIC: &'static [u8; 8];

    /// The address with zeros behind the first `len` bits.
    #[must_use]
    fn masked(self, len: u8) -> Self;

    /// The bits of an IPv6 address; `None` of IPv4, whose bits are in [`short`](Self::short).
    fn long(self) -> Option<u128>;

    /// The bits of an IPv4 address; 0 of IPv6.
    fn short(self) -> u32;

    /// Appends the octets.
    fn put(self, out: &mut Vec<u8>);

    /// The address of the first octets, and the other ones; `None` if there are too few.
    fn read(bytes: &[u8]) -> Option<(Self, &[u8])>;
}

impl Inside for Ipv4Addr {
    const BITS: u8 = 32;
    const MAGIC: &'static [u8; 8] = b"weirnat1";

    #[inline]
    fn masked(self, len: u8) -> Ipv4Addr {
        let off = 32 - u32::from(len.min(32));
        let mask = u32::MAX.checked_shl(off).unwrap_or(0);
        Ipv4Addr::from_bits(self.to_bits() & mask)
    }

    #[inline]
    fn long(self) -> Option<u128> {
        None
    }

    #[inline]
    fn short(self) -> u32 {
        self.to_bits()
    }

    fn put(self, out: &mut Vec<u8>) {
        out.extend(self.octets());
    }

    fn read(bytes: &[u8]) -> Option<(Ipv4Addr, &[u8])> {
        let (first, rest) = bytes.split_first_chunk::<4>()?;
        Some(((*first).into(), rest))
    }
}

impl Inside for Ipv6Addr {
    const BITS: u8 = 128;
    const MAGIC: &'static [u8; 8] = b"weirn641";

    #[inline]
    fn masked(self, len: u8) -> Ipv6Addr {
        let off = 128 - u32::from(len.min(128));
        let mask = u128::MAX.checked_shl(off).unwrap_or(0);
        Ipv6Addr::from_bits(self.to_bits() & mask)
    }

    #[inline]
    fn long(self) -> Option<u128> {
        Some(self.to_bits())
    }

    #[inline]
    fn short(self) -> u32 {
        0
    }

    fn put(self, out: &mut Vec<u8>) {
        out.extend(self.octets());
    }

    fn read(bytes: &[u8]) -> Option<(Ipv6Addr, &[u8])> {
        let (first, rest) = bytes.split_first_chunk::<16>()?;
        Some(((*first).into(), rest))
    }
}
