//! A router of two links and what its tests send through it.
#![allow(unreachable_pub, dead_code, reason = "each test uses its part")]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use weir_apps::router::engine::{LinkId, LinkSettings, Reason, Router, RouterConfig, Verdict};
use weir_wire::ethernet::{self, Address};
use weir_wire::{AddrPair, EtherType, Protocol, icmp, ipv4, ipv6, udp};

pub const OWN: [Address; 2] = [Address([2, 0, 0, 0, 0, 1]), Address([2, 0, 0, 0, 0, 2])];
pub const PEER: [Address; 2] = [Address([2, 0, 0, 0, 1, 1]), Address([2, 0, 0, 0, 1, 2])];
/// The peers' addresses: of either link, a configured neighbour.
pub const PEER_V4: [Ipv4Addr; 2] = [Ipv4Addr::new(192, 0, 2, 9), Ipv4Addr::new(198, 51, 100, 9)];
pub const OWN_V4: [Ipv4Addr; 2] = [Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(198, 51, 100, 1)];

pub fn v6(text: &str) -> Ipv6Addr {
    text.parse().unwrap()
}

pub fn settings() -> RouterConfig {
    let link = |number: usize, addresses: [&str; 2], mtu| LinkSettings {
        name: format!("eth{number}"),
        hardware: OWN[number],
        mtu,
        addresses: addresses.map(|text| text.parse().unwrap()).to_vec(),
    };
    let peers: [(LinkId, IpAddr, Address); 4] = [
        (0, PEER_V4[0].into(), PEER[0]),
        (1, PEER_V4[1].into(), PEER[1]),
        (0, v6("2001:db8:1::9").into(), PEER[0]),
        (1, v6("2001:db8:2::9").into(), PEER[1]),
    ];
    RouterConfig {
        links: vec![
            link(0, ["192.0.2.1/24", "2001:db8:1::1/64"], 1500),
            link(1, ["198.51.100.1/24", "2001:db8:2::1/64"], 1400),
        ],
        neighbours: peers.to_vec(),
        ..RouterConfig::default()
    }
}

pub fn router(settings: &RouterConfig) -> Router {
    Router::new(settings, 1).unwrap()
}

/// A frame from the peer of link 0 to the router.
pub fn frame(kind: EtherType, packet: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; 14];
    let header = ethernet::Repr {
        dst: OWN[0],
        src: PEER[0],
        ether_type: kind,
    };
    header.emit(&mut frame);
    frame.extend_from_slice(packet);
    frame
}

pub fn udp_v4(src: Ipv4Addr, dst: Ipv4Addr, ttl: u8, len: usize, dont_fragment: bool) -> Vec<u8> {
    let mut packet = vec![0x5a; 28 + len];
    let header = ipv4::Repr {
        src,
        dst,
        protocol: Protocol::UDP,
        ttl,
        traffic_class: 0,
        identification: 77,
        dont_fragment,
        payload_len: 8 + len,
    };
    header.emit(&mut packet);
    let ports = udp::Repr {
        src_port: 1000,
        dst_port: 2000,
    };
    ports.emit(&mut packet[20..], AddrPair::V4(src, dst));
    frame(EtherType::IPV4, &packet)
}

pub fn udp_v6(src: Ipv6Addr, dst: Ipv6Addr, hop_limit: u8, len: usize) -> Vec<u8> {
    let mut packet = vec![0x5a; 48 + len];
    let header = ipv6::Repr {
        src,
        dst,
        next_header: Protocol::UDP,
        hop_limit,
        traffic_class: 0,
        flow_label: 5,
        payload_len: 8 + len,
    };
    header.emit(&mut packet);
    let ports = udp::Repr {
        src_port: 1000,
        dst_port: 2000,
    };
    ports.emit(&mut packet[40..], AddrPair::V6(src, dst));
    frame(EtherType::IPV6, &packet)
}

/// What one frame on a link gives: the verdict with the frame as it leaves,
/// and what else the router sends.
#[derive(Debug)]
pub struct Given {
    pub verdict: Verdict,
    pub forwarded: Vec<u8>,
    pub own: Vec<(LinkId, Vec<u8>)>,
}

pub fn give(router: &mut Router, now_ns: u64, link: LinkId, mut frame: Vec<u8>) -> Given {
    let mut verdicts = Vec::new();
    router.process(now_ns, link, &mut [&mut frame[..]], &mut verdicts);
    let [verdict] = verdicts[..] else {
        panic!("one verdict for one frame: {verdicts:?}");
    };
    if let Verdict::Forward { len, .. } = verdict {
        frame.truncate(len);
    }
    Given {
        verdict,
        forwarded: frame,
        own: own(router),
    }
}

pub fn own(router: &mut Router) -> Vec<(LinkId, Vec<u8>)> {
    std::iter::from_fn(|| router.next_output()).collect()
}

/// The frame was dropped for this reason and no other.
pub fn assert_dropped(router: &Router, reason: Reason) {
    let drops: Vec<(Reason, u64)> = router.counters().drops().filter(|(_, n)| *n > 0).collect();
    assert_eq!(drops, [(reason, 1)]);
}

/// Type, code and the word of an ICMP message in a frame, whose checksums are
/// right, and what it quotes.
pub fn icmp_of(frame: &[u8]) -> (u8, u8, u32, &[u8]) {
    let payload = &frame[14..];
    let (addresses, body) = match payload[0] >> 4 {
        4 => {
            let packet = ipv4::Packet::new(payload).unwrap();
            assert!(packet.checksum_is_right());
            (AddrPair::V4(packet.src(), packet.dst()), packet.payload())
        }
        _ => {
            let packet = ipv6::Packet::new(payload).unwrap();
            (AddrPair::V6(packet.src(), packet.dst()), packet.payload())
        }
    };
    let message = icmp::Message::new(body).unwrap();
    assert!(message.checksum_is_right(addresses), "{body:02x?}");
    let first = icmp::Repr::parse(&message);
    (first.kind, first.code, first.rest, &body[8..])
}
