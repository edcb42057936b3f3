//! The frames that are sent, and what is expected of those that arrive.

use crate::load::{Order, Template, Udp};
use crate::rng::Rng;
use weir_wire::ethernet::Address;
use weir_wire::{checksum, ipv4};

use std::net::Ipv4Addr;

/// The frame sizes of RFC 2544 §9.1 for Ethernet, check sequence included.
pub const SIZES: [usize; 7] = [64, 128, 256, 512, 1024, 1280, 1518];

/// The shortest frame of Ethernet, its check sequence included.
pub const SIZE_MIN: usize = 64;

/// The longest frame of Ethernet without a VLAN tag, its check sequence
/// included.
pub const SIZE_MAX: usize = 1518;

/// The check sequence that a wire would carry, and virtual links do not.
const CHECK_SEQUENCE: usize = 4;

/// Offsets in a frame: Ethernet, IPv4 without options, UDP, then ours.
const TTL_AT: usize = 22;
const IP_CHECKSUM_AT: usize = 24;
const IP: std::ops::Range<usize> = 14..34;
/// The number of the frame, eight bytes.
pub(super) const NUMBER_AT: usize = 42;
/// When it was sent, eight bytes; content like any other where nobody asks.
pub(super) const TIME_AT: usize = 50;
/// Which trial it belongs to, two bytes.
pub(super) const TAG_AT: usize = 58;
/// What all of ours have at least.
pub(super) const SHORTEST: usize = 60;

/// The UDP port of RFC 2544 C.2.6.4: echo.
pub(super) const DST_PORT: u16 = 7;

/// The networks of destinations: as most of the Internet's are.
pub(super) const NETWORK_LEN: u8 = 24;

/// One direction: from where to where, and what lies between.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Direction {
    /// Who sends.
    pub(super) src_mac: Address,
    /// The station that the sender names.
    pub(super) dst_mac: Address,
    /// The stations of the frame that arrives.
    pub(super) arriving_macs: (Address, Address),
    pub(super) src: Ipv4Addr,
    pub(super) dst: Ipv4Addr,
    /// How many destinations, from `dst` on, each in a network of its own.
    pub(super) destinations: u32,
    /// By how much the device lowers the TTL.
    pub(super) hops: u8,
}

/// The bytes of a frame of that size in memory, where no wire needs a check
/// sequence.
pub(super) fn frame_bytes(size: usize) -> usize {
    size - CHECK_SEQUENCE
}

/// The frame that is sent, its number and tag zero: the same for a seed.
pub(super) fn sent(way: &Direction, size: usize, seed: u64) -> Template {
    let udp = Udp {
        dst_port: DST_PORT,
        frame_bytes: frame_bytes(size),
        dst_addresses: way.destinations,
        dst_step: 1 << (32 - NETWORK_LEN),
        // As they come from many senders: next to none where the last was.
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

/// The frame that is to arrive: what a router changes is changed.
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
