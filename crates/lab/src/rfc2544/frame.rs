//! The frames sent, and the frames expected.

use crate::load::{Order, Template, Udp};
use crate::rng::Rng;
use weir_wire::ethernet::Address;
use weir_wire::{checksum, ipv4};

use std::net::Ipv4Addr;

/// The frame sizes of RFC 2544 §9.1 for Ethernet, FCS included.
pub const SIZES: [usize; 7] = [64, 128, 256, 512, 1024, 1280, 1518];

/// Minimum frame size of Ethernet, FCS included.
pub const SIZE_MIN: usize = 64;

/// Maximum frame size of Ethernet without a VLAN tag, FCS included.
pub const SIZE_MAX: usize = 1518;

/// Bytes of the FCS, which virtual links do not have.
const CHECK_SEQUENCE: usize = 4;

/// Offsets in a frame: Ethernet, IPv4 without options, UDP, then the tester's
/// fields.
const TTL_AT: usize = 22;
const IP_CHECKSUM_AT: usize = 24;
const IP: std::ops::Range<usize> = 14..34;
/// The frame's number, eight bytes.
pub(super) const NUMBER_AT: usize = 42;
/// The sending time, eight bytes; constant content in untimed trials.
pub(super) const TIME_AT: usize = 50;
/// The trial's tag, two bytes.
pub(super) const TAG_AT: usize = 58;
/// Minimum length of the tester's frames.
pub(super) const SHORTEST: usize = 60;

/// The UDP port of RFC 2544 C.2.6.4: echo.
pub(super) const DST_PORT: u16 = 7;

/// Prefix length of the destinations' networks, the most common one in the
/// Internet.
pub(super) const NETWORK_LEN: u8 = 24;

/// One direction: source, destination and the hops between.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Direction {
    /// The source MAC address.
    pub(super) src_mac: Address,
    /// The destination MAC address as sent.
    pub(super) dst_mac: Address,
    /// The destination and source MAC address as received.
    pub(super) arriving_macs: (Address, Address),
    pub(super) src: Ipv4Addr,
    pub(super) dst: Ipv4Addr,
    /// Number of destinations, from `dst` on, each in a network of its own.
    pub(super) destinations: u32,
    /// The number by which the device decrements the TTL.
    pub(super) hops: u8,
}

/// Length in memory of a frame of that size: without FCS.
pub(super) fn frame_bytes(size: usize) -> usize {
    size - CHECK_SEQUENCE
}

/// The frame that is sent, with number and tag 0; the same for the same seed.
pub(super) fn sent(way: &Direction, size: usize, seed: u64) -> Template {
    let udp = Udp {
        dst_port: DST_PORT,
        frame_bytes: frame_bytes(size),
        dst_addresses: way.destinations,
        dst_step: 1 << (32 - NETWORK_LEN),
        // Scattered, as from many senders: successive destinations are rarely
        // neighbours.
        order: Order::Scattered,
        ..Udp::new(way.src_mac, way.dst_mac, way.src, way.dst)
    };
    let mut template = Template::from(&udp);
    let mut rng = Rng::new(seed);
    for byte in &mut template.frame[TIME_AT..] {
        *byte = rng.bits() as u8;
    }
    template.number_at = Some(NUMBER_AT);
    template
}

/// The expected frame, with the changes that a router makes.
pub(super) fn expected(way: &Direction, sent: &Template) -> Template {
    let mut template = sent.clone();
    let frame = &mut template.frame;
    let (dst, src) = way.arriving_macs;
    frame[..6].copy_from_slice(&dst.0);
    frame[6..12].copy_from_slice(&src.0);
    frame[TTL_AT] -= way.hops;
    frame[IP_CHECKSUM_AT..IP_CHECKSUM_AT + 2].fill(0);
    let sum = checksum::internet_checksum(&frame[IP]);
    frame[IP_CHECKSUM_AT..IP_CHECKSUM_AT + 2].copy_from_slice(&sum.to_be_bytes());
    template
}

const _: () = assert!(NUMBER_AT == 14 + ipv4::Repr::LEN + 8 && TAG_AT + 2 == SHORTEST);

#[cfg(test)]
mod tests {
    use super::*;
    use weir_wire::ethernet;

    #[test]
    fn what_a_router_changes_is_expected_and_nothing_else() {
        let [one, two, three, four] = [1, 2, 3, 4].map(|n| Address([2, 0, 0, 0, 0, n]));
        let way = Direction {
            src_mac: one,
            dst_mac: two,
            arriving_macs: (four, three),
            src: [198, 18, 0, 2].into(),
            dst: [198, 19, 0, 2].into(),
            destinations: 1,
            hops: 1,
        };
        for size in SIZES {
            let template = sent(&way, size, 7);
            assert_eq!(template.frame.len(), size - 4);
            assert_eq!(template, sent(&way, size, 7));
            assert_ne!(
                template.frame[TIME_AT..],
                sent(&way, size, 8).frame[TIME_AT..]
            );
            let arriving = expected(&way, &template).frame;
            let frame = ethernet::Frame::new(&arriving).unwrap();
            assert_eq!((frame.dst(), frame.src()), (four, three));
            let packet = ipv4::Packet::new(frame.payload()).unwrap();
            assert!(packet.checksum_is_right());
            assert_eq!(packet.ttl(), 63);
            let same = |i: &usize| !(0..12).contains(i) && !(22..26).contains(i);
            for i in (0..arriving.len()).filter(same) {
                assert_eq!(arriving[i], template.frame[i], "byte {i}");
            }
        }
    }
}
