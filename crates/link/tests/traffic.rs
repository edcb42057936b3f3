//! Generated traffic: repeatable, in order, and valid to the last bit.

mod support;

use std::collections::HashMap;

use weir_lab::testenv;
use weir_link::mem::traffic::{Generated, Medium, Traffic};
use weir_link::pcap::{FrameRef, Interface, Resolution, Writer};
use weir_wire::pup::{self, ThreeMegabit};
use weir_wire::tcp::Flags;
use weir_wire::{AddrPair, EtherType, Protocol, arp, ethernet, icmp, ipv4, ipv6, tcp, udp};

const COUNT: usize = 10_000;

fn generate(seed: u64, medium: Medium) -> Vec<Generated> {
    Traffic::new(seed, medium).take(COUNT).collect()
}

#[test]
fn a_seed_gives_the_same_traffic_in_order_of_time() {
    for medium in [Medium::Ethernet, Medium::ThreeMegabit] {
        let once = generate(1, medium);
        assert!(once == generate(1, medium));
        assert!(once != generate(2, medium));
        assert!(once.is_sorted_by_key(|frame| frame.time_ns));
    }
}

/// A frame's network layer and, for IP, its transport.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Carried {
    Arp,
    Pup,
    Tcp,
    Udp(u16),
    Echo,
}

/// Parses a frame completely, with all possible checks.
fn dissect(bytes: &[u8]) -> (Option<u16>, Option<AddrPair>, Carried, &[u8]) {
    let frame = ethernet::Frame::new(bytes).unwrap();
    assert!(bytes.len() >= 60 && bytes.len() <= 1518, "{}", bytes.len());
    let (mut ether_type, mut payload, mut vlan) = (frame.ether_type(), frame.payload(), None);
    if ether_type.is_tag() {
        let tag = ethernet::Tag::new(payload).unwrap();
        vlan = Some(ethernet::TagRepr::parse(&tag).vlan);
        (ether_type, payload) = (tag.ether_type(), tag.payload());
    }
    let (addresses, protocol, payload) = match ether_type {
        EtherType::ARP => {
            arp::Packet::new(payload).unwrap();
            return (vlan, None, Carried::Arp, payload);
        }
        EtherType::PUP => {
            let packet = pup::Packet::new(payload).unwrap();
            assert_eq!(packet.checksum_is_right(), Some(true));
            return (vlan, None, Carried::Pup, payload);
        }
        EtherType::IPV4 => {
            let packet = ipv4::Packet::new(payload).unwrap();
            assert!(packet.checksum_is_right());
            let addresses = AddrPair::V4(packet.src(), packet.dst());
            (addresses, packet.protocol(), packet.payload())
        }
        EtherType::IPV6 => {
            let packet = ipv6::Packet::new(payload).unwrap();
            let addresses = AddrPair::V6(packet.src(), packet.dst());
            (addresses, packet.next_header(), packet.payload())
        }
        other => panic!("{other:?}"),
    };
    let carried = match protocol {
        Protocol::TCP => {
            assert!(
                tcp::Segment::new(payload)
                    .unwrap()
                    .checksum_is_right(addresses)
            );
            Carried::Tcp
        }
        Protocol::UDP => {
            let datagram = udp::Datagram::new(payload).unwrap();
            assert_eq!(datagram.checksum_is_right(addresses), Some(true));
            Carried::Udp(datagram.src_port().min(datagram.dst_port()))
        }
        _ => {
            let message = icmp::Message::new(payload).unwrap();
            assert!(message.checksum_is_right(addresses));
            assert!(icmp::Echo::parse(&message, addresses).is_some());
            Carried::Echo
        }
    };
    (vlan, Some(addresses), carried, payload)
}

#[test]
fn every_frame_is_right_and_the_mix_is_a_mix() {
    let mut kinds: HashMap<Carried, usize> = HashMap::new();
    let (mut tagged, mut v4, mut v6) = (0, 0, 0);
    for frame in generate(3, Medium::Ethernet) {
        let (vlan, addresses, carried, _) = dissect(&frame.bytes);
        *kinds.entry(carried).or_default() += 1;
        tagged += usize::from(vlan.is_some());
        v4 += usize::from(matches!(addresses, Some(AddrPair::V4(..))));
        v6 += usize::from(matches!(addresses, Some(AddrPair::V6(..))));
    }
    for kind in [
        Carried::Arp,
        Carried::Pup,
        Carried::Tcp,
        Carried::Echo,
        Carried::Udp(53),
        Carried::Udp(443),
    ] {
        assert!(
            kinds.get(&kind).is_some_and(|count| *count > COUNT / 200),
            "{kind:?}: {kinds:?}"
        );
    }
    assert!(tagged > COUNT / 10 && tagged < COUNT / 3, "{tagged}");
    assert!(v4 > v6 && v6 > COUNT / 5, "{v4} {v6}");
}

#[test]
fn connections_open_talk_and_close_in_order() {
    // The next sequence number expected in each direction.
    let mut next: HashMap<(String, u16, u16), u32> = HashMap::new();
    let (mut opened, mut closed) = (0, 0);
    for frame in generate(4, Medium::Ethernet) {
        let (_, addresses, carried, payload) = dissect(&frame.bytes);
        if carried != Carried::Tcp {
            continue;
        }
        let segment = tcp::Segment::new(payload).unwrap();
        let (src, dst) = match addresses.unwrap() {
            AddrPair::V4(src, dst) => (src.to_string(), dst.to_string()),
            AddrPair::V6(src, dst) => (src.to_string(), dst.to_string()),
        };
        let forth = (
            format!("{src} {dst}"),
            segment.src_port(),
            segment.dst_port(),
        );
        let back = (
            format!("{dst} {src}"),
            segment.dst_port(),
            segment.src_port(),
        );
        let flags = segment.flags();
        if flags == Flags::SYN {
            next.remove(&back);
            opened += 1;
        } else {
            assert_eq!(
                Some(&segment.ack()),
                next.get(&back),
                "acknowledges all it got"
            );
        }
        if !flags.contains(Flags::SYN) {
            assert_eq!(Some(&segment.seq()), next.get(&forth), "leaves no hole");
        }
        let numbered = flags.contains(Flags::SYN) || flags.contains(Flags::FIN);
        closed += usize::from(flags.contains(Flags::FIN));
        let after = segment
            .seq()
            .wrapping_add(segment.payload().len() as u32 + u32::from(numbered));
        next.insert(forth, after);
    }
    assert!(opened > 60, "{opened}");
    assert!(
        closed > 2 * (opened - 48) && closed <= 2 * opened,
        "{opened} {closed}"
    );
}

#[test]
fn the_three_megabit_ethernet_carries_pups() {
    for frame in generate(5, Medium::ThreeMegabit) {
        let (header, payload) = ThreeMegabit::parse(&frame.bytes).unwrap();
        assert_eq!(header.frame_type, ThreeMegabit::PUP);
        let packet = pup::Packet::new(payload).unwrap();
        assert_eq!(packet.checksum_is_right(), Some(true));
        assert!(packet.payload().len() <= 532, "Pup's own limit");
        let repr = pup::Repr::parse(&packet);
        assert_eq!((repr.dst.host, repr.src.host), (header.dst, header.src));
    }
}

/// tshark verifies every checksum.
#[test]
fn tshark_finds_no_wrong_checksum() {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let path = folder.join(format!("{}-traffic.pcapng", std::process::id()));
    let interface = Interface {
        linktype: Medium::Ethernet.linktype(),
        snaplen: 262_144,
        resolution: Resolution::NANO,
        offset_s: 0,
        name: None,
    };
    let mut writer = Writer::create(&path).unwrap();
    for frame in Traffic::new(6, Medium::Ethernet).take(3000) {
        let lent = FrameRef {
            bytes: &frame.bytes,
            wire_len: frame.bytes.len() as u32,
            time_ns: Some(frame.time_ns as i64),
            interface_index: 0,
            interface: &interface,
        };
        writer.write(&lent).unwrap();
    }
    writer.finish().unwrap();
    let Some(mut tshark) = testenv::program("tshark") else {
        return;
    };
    for protocol in ["ip", "tcp", "udp"] {
        tshark.args(["-o", &format!("{protocol}.check_checksum:TRUE")]);
    }
    let statuses = ["ip", "tcp", "udp", "icmp", "icmpv6"];
    let bad: Vec<String> = statuses
        .iter()
        .map(|name| format!("{name}.checksum.status == 0"))
        .collect();
    let shown = format!(
        "{} || dns && _ws.malformed || tcp.analysis.flags",
        bad.join(" || ")
    );
    let output = tshark.args(["-Y", &shown, "-r"]).arg(&path).output();
    let output = output.unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert_eq!(String::from_utf8_lossy(&output.stdout), "");
    std::fs::remove_file(&path).unwrap();
}
