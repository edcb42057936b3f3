//! The Internet checksum (RFC 1071) and its incremental update (RFC 1624).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A running ones' complement sum of 16-bit words in network order.
#[derive(Clone, Copy, Default, Debug)]
pub struct Sum {
    total: u64,
    /// An odd number of bytes so far: the next byte is a word's low one.
    odd: bool,
}

impl Sum {
    /// The sum of nothing.
    pub fn new() -> Sum {
        Sum::default()
    }

    /// Adds bytes, wherever they were split.
    pub fn bytes(mut self, mut bytes: &[u8]) -> Sum {
        let [first, rest @ ..] = bytes else {
            return self;
        };
        if self.odd {
            self.total += u64::from(*first);
            bytes = rest;
        }
        // 2^32 words of 32 bits fit into 64: fold once a gigabyte. Words are
        // summed as this machine has them and the sum is turned around, which
        // comes to the same (RFC 1071 §2 (B)) and keeps the loop short.
        for piece in bytes.chunks(1 << 30) {
            let (words, rest) = piece.as_chunks::<4>();
            let mut last = [0; 4];
            last[..rest.len()].copy_from_slice(rest);
            let mut sum = u64::from(u32::from_ne_bytes(last));
            for word in words {
                sum += u64::from(u32::from_ne_bytes(*word));
            }
            self.total = u64::from(fold(self.total)) + u64::from(u16::from_be(fold(sum)));
        }
        self.odd = bytes.len() % 2 == 1;
        self
    }

    /// Adds one word, between two words.
    pub fn word(mut self, word: u16) -> Sum {
        assert!(!self.odd, "a word starts where a word ended");
        self.total = u64::from(fold(self.total)) + u64::from(word);
        self
    }

    /// Adds the pseudo-header of `protocol` (RFC 9293 §3.1, RFC 8200 §8.1) for
    /// `len` bytes of transport header and payload.
    pub fn pseudo_header(self, addresses: Addresses, protocol: u8, len: u32) -> Sum {
        let sum = match addresses {
            Addresses::V4(src, dst) => self.bytes(&src.octets()).bytes(&dst.octets()),
            Addresses::V6(src, dst) => self.bytes(&src.octets()).bytes(&dst.octets()),
        };
        sum.bytes(&len.to_be_bytes()).word(u16::from(protocol))
    }

    /// The checksum field: the sum's complement.
    pub fn finish(self) -> u16 {
        !fold(self.total)
    }
}

/// Source and destination of an IP packet: what a transport's checksum covers
/// besides its own bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Addresses {
    /// Of IPv4.
    V4(Ipv4Addr, Ipv4Addr),
    /// Of IPv6.
    V6(Ipv6Addr, Ipv6Addr),
}

impl Addresses {
    /// Both of one version, or `None`.
    pub fn new(src: IpAddr, dst: IpAddr) -> Option<Addresses> {
        match (src, dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => Some(Addresses::V4(src, dst)),
            (IpAddr::V6(src), IpAddr::V6(dst)) => Some(Addresses::V6(src, dst)),
            _ => None,
        }
    }
}

/// The checksum of one piece.
pub fn of(bytes: &[u8]) -> u16 {
    Sum::new().bytes(bytes).finish()
}

/// The checksum after the word `old` became `new` (RFC 1624 §3, equation 3):
/// what a full computation gives, for data that is not all zeros.
pub fn update(checksum: u16, old: u16, new: u16) -> u16 {
    let total = u64::from(!checksum) + u64::from(!old) + u64::from(new);
    !fold(total)
}

/// Carries folded back in until 16 bits are left.
fn fold(mut total: u64) -> u16 {
    while total > 0xffff {
        total = (total & 0xffff) + (total >> 16);
    }
    total as u16
}
