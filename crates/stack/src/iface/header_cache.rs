//! The way of a connection's packets: what all their frames start with is
//! written once, and copied for each. A connection keeps it while it holds.

use super::Header;
use super::neighbours::ResolvedHop;
use weir_wire::checksum::Sum;
use weir_wire::ethernet::Address;
use weir_wire::{AddrPair, ethernet, ipv4, ipv6};

/// Bytes of the longest start: Ethernet and IPv6.
const LEN_MAX: usize = ethernet::Repr::LEN + ipv6::Repr::LEN;

/// See the module. Lengths, the traffic class and the checksum that depends
/// on them are left to [`HeaderCache::write`].
///
/// `start` is first, so that it is read in the pieces in which a copy was written.
#[derive(Clone)]
#[repr(C)]
pub(crate) struct HeaderCache {
    start: [u8; LEN_MAX],
    /// Until when it holds by itself, and of what the host knew.
    until_ns: u64,
    epoch: u32,
    len: usize,
    /// The sum of the IPv4 header as it stands in `start`.
    header: Sum,
    /// The sum of the pseudo-header without its length.
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

    /// Whether it holds: neighbours are as they were when it was made.
    pub(super) fn is_valid(&self, now_ns: u64, epoch: u32) -> bool {
        now_ns < self.until_ns && self.epoch == epoch
    }

    /// Bytes before the transport header.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Whether it is of IPv6.
    pub(crate) fn is_v6(&self) -> bool {
        self.len == LEN_MAX
    }

    /// The sum of the pseudo-header of so many bytes, at most 65,535.
    pub(crate) fn pseudo(&self, len: usize) -> Sum {
        self.pseudo.word(len as u16)
    }

    /// Writes what comes before a transport header and payload of `len` bytes.
    #[inline]
    pub(crate) fn write(&self, out: &mut [u8], traffic_class: u8, len: usize) {
        // Of known lengths, so that no call is made to copy so little.
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
