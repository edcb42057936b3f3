//! Helpers shared by the tests and the fuzz target `views`.

#![allow(unreachable_pub, reason = "a module of each test")]

use weir_wire::pup::{self, ThreeMegabit};
use weir_wire::*;

pub const V4: AddrPair = AddrPair::V4(std::net::Ipv4Addr::LOCALHOST, std::net::Ipv4Addr::LOCALHOST);
pub const V6: AddrPair = AddrPair::V6(std::net::Ipv6Addr::LOCALHOST, std::net::Ipv6Addr::LOCALHOST);

/// Parses `bytes` as every header, and reads every field.
pub fn read_all(bytes: &[u8]) {
    if let Ok(frame) = ethernet::Frame::new(bytes) {
        let _ = (
            ethernet::Repr::parse(&frame),
            frame.payload(),
            frame.dst().to_string(),
        );
    }
    if let Ok(tag) = ethernet::Tag::new(bytes) {
        let _ = (ethernet::TagRepr::parse(&tag), tag.payload());
    }
    if let Ok(packet) = arp::Packet::new(bytes) {
        let _ = arp::Repr::parse(&packet);
    }
    if let Ok(packet) = ipv4::Packet::new(bytes) {
        let _ = (
            ipv4::Repr::parse(&packet),
            packet.payload(),
            packet.options(),
        );
        let _ = packet.checksum_is_right();
    }
    if let Ok(packet) = ipv6::Packet::new(bytes) {
        let _ = (ipv6::Repr::parse(&packet), packet.payload());
    }
    if let Ok(packet) = pup::Packet::new(bytes) {
        let _ = (
            pup::Repr::parse(&packet),
            packet.payload(),
            packet.checksum_is_right(),
        );
    }
    let _ = ThreeMegabit::parse(bytes);
    for addresses in [V4, V6] {
        if let Ok(datagram) = udp::Datagram::new(bytes) {
            let _ = (udp::Repr::parse(&datagram), datagram.payload());
            let _ = datagram.checksum_is_right(addresses);
        }
        if let Ok(segment) = tcp::Segment::new(bytes) {
            let _ = (tcp::Repr::parse(&segment), segment.payload());
            let _ = segment.checksum_is_right(addresses);
        }
        if let Ok(message) = icmp::Message::new(bytes) {
            let _ = (icmp::Echo::parse(&message, addresses), message.payload());
            let _ = message.checksum_is_right(addresses);
        }
    }
}
