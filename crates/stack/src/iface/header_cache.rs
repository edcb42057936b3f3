//! A connection's header cache (Linux `hh_cache`): the link and IP headers of
//! its frames, written once and copied for each frame while valid.

use super::Header;
use super::neighbours::ResolvedHop;
use weir_wire::checksum::Sum;
use weir_wire::ethernet::Address;
use weir_wire::{AddrPair, ethernet, ipv4, ipv6};

/// Length of the longest headers: Ethernet and IPv6.
const LEN_MAX: usize = ethernet::Repr::LEN + ipv6::Repr::LEN;

/// The cached headers. [`HeaderCache::write`] fills in the lengths, the traffic
/// class and the checksum that depends on them.
///
/// `start` is the first field, so that loads match the stores of a copied value
/// (store forwarding).
#[derive(Clone)]
#[repr(C)]
pub(crate) struct HeaderCache {
    start: [u8; LEN_MAX],
    /// End of its validity, and the host's epoch when it was made.
    until_ns: u64,
    epoch: u32,
    len: usize,
    /// The checksum of the IPv4 header in `start`.
    header: Sum,
    /// The checksum of the pseudo-header, without the length.
    pseudo: Sum,
}

impl HeaderCache {
    pub(super) fn new(hop: ResolvedHop, src: Address, header: &Header) -> HeaderCache {
        let mut start = [0; LEN_MAX];
        let ethernet = ethernet::Repr {
            dst: hop.hardware,
            src,
            ether_type: header.ether_type(),
        };
        ethernet.emit(&mut start);
        let ip = &mut start[ethernet::Repr::LEN..];
        header.emit(ip, 0, 0);
        if let AddrPair::V4(..) = header.addresses {
            for at in [1, 2, 3, 10, 11] {
                ip[at] = 0;
            }
        }
        let header_sum = Sum::new().bytes(&ip[..header.len()]);
        HeaderCache {
            start,
            until_ns: hop.until_ns,
            epoch: hop.epoch,
            len: ethernet::Repr::LEN + header.len(),
            header: header_sum,
            pseudo: Sum::new().pseudo_header(header.addresses, header.protocol.0, 0),
        }
    }

    /// Whether the cache is valid: neighbours and routes are unchanged.
    pub(super) fn is_valid(&self, now_ns: u64, epoch: u32) -> bool {
        now_ns < self.until_ns && self.epoch == epoch
    }

    /// Number of bytes before the transport header.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Whether the headers are IPv6.
    pub(crate) fn is_v6(&self) -> bool {
        self.len == LEN_MAX
    }

    /// The checksum of the pseudo-header for a length of at most 65,535.
    pub(crate) fn pseudo(&self, len: usize) -> Sum {
        self.pseudo.word(len as u16)
    }

    /// Writes the headers of a transport header and payload of `len` bytes.
    #[inline]
    pub(crate) fn write(&self, out: &mut [u8], traffic_class: u8, len: usize) {
        // Constant lengths, so that the copy needs no call.
        const V4: usize = ethernet::Repr::LEN + ipv4::Repr::LEN;
        if self.is_v6() {
            out[..LEN_MAX].copy_from_slice(&self.start)
        } else {
            out[..V4].copy_from_slice(&self.start[..V4])
        }
        let ip = &mut out[ethernet::Repr::LEN..];
        if self.is_v6() {
            ip[0] = 0x60 | traffic_class >> 4;
            ip[1] = traffic_class << 4;
            ip[4..6].copy_from_slice(&(len as u16).to_be_bytes());
            return;
        }
        let total_len = (ipv4::Repr::LEN + len) as u16;
        let sum = self.header.word(total_len).word(traffic_class.into());
        ip[1] = traffic_class;
        ip[2..4].copy_from_slice(&total_len.to_be_bytes());
        ip[10..12].copy_from_slice(&sum.finish().to_be_bytes());
    }
}
