//! The link and IP layers, by frames written by hand and between two hosts.

mod common;

use common::{HARDWARE, Pair, V4, V6, config, ip};
use proptest::prelude::*;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use weir_link::mem::Impairments;
use weir_stack::Stack;
use weir_stack::iface::{Channel, DropReason, QUEUE_MAX};
use weir_stack::udp::SendError;
use weir_wire::ethernet::Address;
use weir_wire::{AddrPair, EtherType, Protocol, arp, ethernet, icmp, ipv4, ipv6, nd, udp};

fn frame(dst: Address, ether_type: EtherType, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; ethernet::Repr::LEN];
    ethernet::Repr {
        dst,
        src: HARDWARE[1],
        ether_type,
    }
    .emit(&mut bytes);
    bytes.extend_from_slice(payload);
    bytes
}

/// A packet in a frame to host 0.
fn packet(addresses: AddrPair, protocol: Protocol, hop_limit: u8, payload: &[u8]) -> Vec<u8> {
    match addresses {
        AddrPair::V4(src, dst) => {
            let mut bytes = vec![0; ipv4::Repr::LEN];
            let repr = ipv4::Repr {
                src,
                dst,
                protocol,
                ttl: hop_limit,
                traffic_class: 0,
                identification: 7,
                dont_fragment: false,
                payload_len: payload.len(),
            };
            repr.emit(&mut bytes);
            frame(HARDWARE[0], EtherType::IPV4, &[&bytes, payload].concat())
        }
        AddrPair::V6(src, dst) => {
            let mut bytes = vec![0; ipv6::Repr::LEN];
            let repr = ipv6::Repr {
                src,
                dst,
                next_header: protocol,
                hop_limit,
                traffic_class: 0,
                flow_label: 0,
                payload_len: payload.len(),
            };
            repr.emit(&mut bytes);
            frame(HARDWARE[0], EtherType::IPV6, &[&bytes, payload].concat())
        }
    }
}

fn v4() -> AddrPair {
    AddrPair::new(ip(V4[1]), ip(V4[0])).unwrap()
}

fn v6() -> AddrPair {
    AddrPair::new(ip(V6[1]), ip(V6[0])).unwrap()
}

fn back(addresses: AddrPair) -> AddrPair {
    match addresses {
        AddrPair::V4(src, dst) => AddrPair::V4(dst, src),
        AddrPair::V6(src, dst) => AddrPair::V6(dst, src),
    }
}

fn echo(addresses: AddrPair, payload: &[u8]) -> Vec<u8> {
    let mut message = [&[0; 8][..], payload].concat();
    icmp::Echo {
        reply: false,
        identifier: 1,
        sequence: 2,
    }
    .emit(&mut message, addresses);
    packet(addresses, icmp_of(addresses), 64, &message)
}

fn icmp_of(addresses: AddrPair) -> Protocol {
    match addresses {
        AddrPair::V4(..) => Protocol::ICMPV4,
        AddrPair::V6(..) => Protocol::ICMPV6,
    }
}

fn datagram(addresses: AddrPair, src_port: u16, dst_port: u16, payload: &[u8]) -> Vec<u8> {
    let mut bytes = [&[0; 8][..], payload].concat();
    udp::Repr { src_port, dst_port }.emit(&mut bytes, addresses);
    packet(addresses, Protocol::UDP, 64, &bytes)
}

fn host() -> Stack {
    Stack::new(&config(0), 1).unwrap()
}

/// A host that knows its neighbour's addresses.
fn acquainted() -> Stack {
    let mut stack = host();
    stack.receive(0, &arp_frame(arp::Operation::REQUEST, V4[1], V4[0]));
    stack.receive(0, &solicitation(v6(), 255, Some(HARDWARE[1])));
    assert_eq!(frames(&mut stack, 0).len(), 2);
    stack
}

fn frames(stack: &mut Stack, now_ns: u64) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    stack.poll(now_ns, &mut frames);
    frames
}

/// The packets that come out, questions for neighbours left out.
fn packets(stack: &mut Stack) -> Vec<Vec<u8>> {
    let packets = frames(stack, 0).into_iter().filter(|frame| {
        let asks = frame.get(14) == Some(&0x60)
            && frame.get(20) == Some(&58)
            && frame.get(54) == Some(&135);
        ethernet::Frame::new(frame).unwrap().ether_type() != EtherType::ARP && !asks
    });
    packets.map(|frame| frame[14..].to_vec()).collect()
}

fn arp_frame(operation: arp::Operation, sender: &str, target: &str) -> Vec<u8> {
    let mut bytes = [0; 46];
    let repr = arp::Repr {
        operation,
        sender: HARDWARE[1],
        sender_ip: sender.parse().unwrap(),
        target: Address::default(),
        target_ip: target.parse().unwrap(),
    };
    repr.emit(&mut bytes);
    frame(Address::BROADCAST, EtherType::ARP, &bytes)
}

fn solicitation(addresses: AddrPair, hop_limit: u8, hardware: Option<Address>) -> Vec<u8> {
    let target = V6[0].parse().unwrap();
    let repr = nd::Repr {
        kind: nd::Kind::Solicitation,
        target,
        hardware,
    };
    let mut message = vec![0; repr.len()];
    repr.emit(&mut message, addresses);
    packet(addresses, Protocol::ICMPV6, hop_limit, &message)
}

#[test]
fn a_request_for_our_address_is_answered() {
    let mut stack = host();
    // A probe (RFC 5227) says nothing about its sender, and is answered.
    for sender in [V4[1], "0.0.0.0"] {
        stack.receive(0, &arp_frame(arp::Operation::REQUEST, sender, V4[0]));
        let out = frames(&mut stack, 0);
        let ethernet = ethernet::Frame::new(&out[0]).unwrap();
        assert_eq!(
            (out.len(), ethernet.dst(), ethernet.src()),
            (1, HARDWARE[1], HARDWARE[0])
        );
        let answer = arp::Repr::parse(&arp::Packet::new(ethernet.payload()).unwrap());
        assert_eq!(
            (answer.operation, answer.sender),
            (arp::Operation::REPLY, HARDWARE[0])
        );
        assert_eq!(answer.sender_ip.to_string(), V4[0]);
        assert_eq!(answer.target_ip.to_string(), sender);
    }
    for (sender, target) in [
        (V4[1], V4[1]),
        (V4[0], V4[0]),
        ("8.8.8.8", V4[0]),
        ("192.0.2.255", V4[0]),
    ] {
        stack.receive(0, &arp_frame(arp::Operation::REQUEST, sender, target));
        assert_eq!(frames(&mut stack, 0).len(), 0, "{sender} {target}");
    }
    stack.receive(0, &arp_frame(arp::Operation::REPLY, V4[1], V4[0]));
    assert_eq!(stack.counters().dropped(DropReason::NeighbourRefused), 4);
}

#[test]
fn neighbour_solicitations_are_answered() {
    let mut stack = host();
    let node: Ipv6Addr = "ff02::1:ff00:1".parse().unwrap();
    let AddrPair::V6(peer, _) = v6() else {
        unreachable!()
    };
    let probe = AddrPair::V6(Ipv6Addr::UNSPECIFIED, node);
    for (addresses, hardware, to) in [
        (v6(), Some(HARDWARE[1]), peer),
        (AddrPair::V6(peer, node), Some(HARDWARE[1]), peer),
        (probe, None, "ff02::1".parse().unwrap()),
    ] {
        stack.receive(0, &solicitation(addresses, 255, hardware));
        let out = frames(&mut stack, 0);
        let answer = ipv6::Packet::new(&out[0][14..]).unwrap();
        assert_eq!(
            (answer.dst(), answer.src().to_string().as_str()),
            (to, V6[0])
        );
        assert_eq!(ipv6::Repr::parse(&answer).hop_limit, 255);
        let message = icmp::Message::new(answer.payload()).unwrap();
        assert!(message.checksum_is_right(AddrPair::V6(answer.src(), answer.dst())));
        let advertised = nd::Repr::parse(&message).unwrap().unwrap();
        let solicited = !to.is_multicast();
        assert_eq!(
            advertised.kind,
            nd::Kind::Advertisement {
                router: false,
                solicited,
                replaces: true
            }
        );
        assert_eq!(advertised.hardware, Some(HARDWARE[0]));
    }
    // From beyond a router, or a probe that contains an address: not believed.
    stack.receive(0, &solicitation(v6(), 254, Some(HARDWARE[1])));
    stack.receive(0, &solicitation(probe, 255, Some(HARDWARE[1])));
    assert_eq!(frames(&mut stack, 0).len(), 0);
    assert_eq!(stack.counters().dropped(DropReason::NeighbourRefused), 2);
}

#[test]
fn echo_is_answered_once_the_neighbour_is_known() {
    for addresses in [v4(), v6()] {
        let mut stack = host();
        stack.receive(0, &echo(addresses, b"are you there?"));
        assert_eq!(packets(&mut stack).len(), 0, "asks first");
        stack.receive(0, &arp_frame(arp::Operation::REPLY, V4[1], V4[0]));
        stack.receive(0, &solicitation(v6(), 255, Some(HARDWARE[1])));
        let out = packets(&mut stack);
        let message = match addresses {
            AddrPair::V4(..) => ipv4::Packet::new(&out[0]).unwrap().payload().to_vec(),
            AddrPair::V6(..) => ipv6::Packet::new(&out[0]).unwrap().payload().to_vec(),
        };
        let message = icmp::Message::new(&message).unwrap();
        assert!(message.checksum_is_right(back(addresses)));
        let reply = icmp::Echo {
            reply: true,
            identifier: 1,
            sequence: 2,
        };
        assert_eq!(icmp::Echo::parse(&message, addresses), Some(reply));
        assert_eq!(message.payload(), b"are you there?");
    }
}

#[test]
fn groups_get_no_errors_and_ipv4_broadcasts_no_echo() {
    let mut stack = acquainted();
    let AddrPair::V4(peer, _) = v4() else {
        unreachable!()
    };
    let AddrPair::V6(peer6, _) = v6() else {
        unreachable!()
    };
    let all = AddrPair::V4(peer, Ipv4Addr::new(192, 0, 2, 255));
    stack.receive(0, &echo(all, b""));
    stack.receive(0, &datagram(all, 9, 9, b""));
    stack.receive(
        0,
        &datagram(AddrPair::V6(peer6, "ff02::1".parse().unwrap()), 9, 9, b""),
    );
    assert_eq!(packets(&mut stack).len(), 0);
    // A link-layer broadcast that carries a packet for us alone is suspect.
    let mut wide = datagram(v4(), 9, 9, b"");
    wide[..6].fill(0xff);
    stack.receive(0, &wide);
    assert_eq!(packets(&mut stack).len(), 0);
    assert_eq!(stack.counters().dropped(DropReason::PortUnknown), 3);
    stack.receive(
        0,
        &echo(AddrPair::V6(peer6, "ff02::1".parse().unwrap()), b""),
    );
    let out = packets(&mut stack);
    assert_eq!(ipv6::Packet::new(&out[0]).unwrap().src().to_string(), V6[0]);
}

#[test]
fn errors_quote_the_packet_and_are_bounded() {
    for addresses in [v4(), v6()] {
        let mut stack = acquainted();
        let asked = datagram(addresses, 1000, 2000, &[7; 100]);
        stack.receive(0, &asked);
        let out = packets(&mut stack);
        let (message, longest) = match addresses {
            AddrPair::V4(..) => (ipv4::Packet::new(&out[0]).unwrap().payload().to_vec(), 576),
            AddrPair::V6(..) => (ipv6::Packet::new(&out[0]).unwrap().payload().to_vec(), 1280),
        };
        let first = icmp::Repr::parse(&icmp::Message::new(&message).unwrap());
        let port = if longest == 576 { (3, 3) } else { (1, 4) };
        assert_eq!((first.kind, first.code), port);
        assert_eq!(&message[8..], &asked[14..]);
        stack.receive(0, &datagram(addresses, 1000, 2000, &[7; 1400]));
        assert_eq!(packets(&mut stack)[0].len(), longest);
        // No error about an error.
        let error = packet(addresses, icmp_of(addresses), 64, &message);
        stack.receive(0, &error);
        assert_eq!(packets(&mut stack).len(), 0);
        for _ in 0..1000 {
            stack.receive(0, &asked);
        }
        let sent = packets(&mut stack).len() as u64;
        let limited = stack.counters().dropped(DropReason::IcmpRateLimited);
        assert!(sent < 50, "{sent}");
        assert_eq!(sent + limited, 1000);
    }
}

#[test]
fn impossible_packets_are_dropped_with_their_reason() {
    let AddrPair::V4(peer, us) = v4() else {
        unreachable!()
    };
    let from = |src| datagram(AddrPair::V4(src, us), 1, 2, b"");
    let mut options = datagram(v4(), 1, 2, b"");
    // A header of six words with a loose source route.
    options[14] = 0x46;
    let mut short = echo(v4(), b"");
    short.truncate(30);
    let mut wrong = echo(v4(), b"");
    wrong[25] ^= 1;
    let mut message = echo(v6(), b"x");
    *message.last_mut().unwrap() ^= 1;
    let mut tagged = echo(v4(), b"");
    tagged[12..14].copy_from_slice(&[0x81, 0]);
    let mut other = echo(v4(), b"");
    other[5] = 77;
    // A wrong length hides no source route.
    let [route, cut_route] = [3, 9].map(|len| {
        let mut bytes = vec![0x46, 0, 0, 24, 0, 0, 0, 0, 64, 17, 0, 0];
        bytes.extend(peer.octets().iter().chain(&us.octets()));
        bytes.extend([131, len, 4, 0]);
        let sum = weir_wire::checksum::internet_checksum(&bytes);
        bytes[10..12].copy_from_slice(&sum.to_be_bytes());
        frame(HARDWARE[0], EtherType::IPV4, &bytes)
    });
    let elsewhere = AddrPair::V4(peer, Ipv4Addr::new(192, 0, 2, 99));
    for (bytes, reason) in [
        (from(Ipv4Addr::LOCALHOST), DropReason::SourceImpossible),
        (from(Ipv4Addr::UNSPECIFIED), DropReason::SourceImpossible),
        (from(us), DropReason::SourceImpossible),
        (
            from(Ipv4Addr::new(192, 0, 2, 255)),
            DropReason::SourceImpossible,
        ),
        (
            from(Ipv4Addr::new(224, 0, 0, 1)),
            DropReason::SourceImpossible,
        ),
        (datagram(elsewhere, 1, 2, b""), DropReason::NotOurAddress),
        (route, DropReason::SourceRoute),
        (cut_route, DropReason::SourceRoute),
        (short, DropReason::Malformed),
        (wrong, DropReason::ChecksumWrong),
        (message, DropReason::ChecksumWrong),
        (tagged, DropReason::EtherTypeUnknown),
        (other, DropReason::NotOurFrame),
        (
            packet(v4(), Protocol(200), 64, b""),
            DropReason::ProtocolUnknown,
        ),
    ] {
        let mut stack = host();
        stack.receive(0, &bytes);
        let drops: Vec<_> = stack.counters().drops().collect();
        assert_eq!(drops, [(reason, 1)]);
    }
}

fn sockets(pair: &mut Pair, at: [&str; 2]) -> [(weir_stack::udp::UdpId, SocketAddr); 2] {
    [0, 1].map(|end| {
        let local = SocketAddr::new(ip(at[end]), 4000);
        (pair.stacks[end].udp_bind(local).unwrap(), local)
    })
}

#[test]
fn datagrams_of_every_length_go_through_in_fragments() {
    let disorder = Impairments {
        delay_ns: 1_000_000,
        jitter_ns: 5_000_000,
        ..Impairments::default()
    };
    for at in [V4, V6] {
        let mut pair = Pair::new(disorder, 3);
        let [(from, _), (to, there)] = sockets(&mut pair, at);
        // The first waits for the neighbour, all of it.
        for len in [65_507, 0, 1, 1452, 1472, 1473, 1480, 2960, 9000, 65_507] {
            let bytes: Vec<u8> = (0..len).map(|index| (index * 7 / 3) as u8).collect();
            pair.stacks[0]
                .udp_send(pair.now_ns, from, there, &bytes)
                .unwrap();
            let mut came = None;
            pair.run(1_000_000_000, |pair| {
                came = came.take().or_else(|| pair.stacks[1].udp_receive(to));
                came.is_some()
            });
            let came = came.unwrap_or_else(|| panic!("{len} bytes over {}", at[0]));
            assert_eq!((came.bytes, came.from.ip()), (bytes, ip(at[0])), "{len}");
        }
        let too_long = pair.stacks[0].udp_send(0, from, there, &[0; 65_528]);
        assert!(matches!(too_long, Err(SendError::TooLong(65_528, _))));
    }
}

#[test]
fn a_connected_socket_hears_its_peer_alone_and_learns_of_refusal() {
    for at in [V4, V6] {
        let mut pair = Pair::new(Impairments::default(), 5);
        let stack = &mut pair.stacks[0];
        let unspecified: IpAddr = if at == V4 {
            Ipv4Addr::UNSPECIFIED.into()
        } else {
            Ipv6Addr::UNSPECIFIED.into()
        };
        let socket = stack.udp_bind(SocketAddr::new(unspecified, 0)).unwrap();
        let peer = SocketAddr::new(ip(at[1]), 4000);
        stack.udp_connect(socket, peer).unwrap();
        let local = stack.udp_local(socket).unwrap();
        assert_eq!(local.ip(), ip(at[0]));
        let stranger = pair.stacks[1]
            .udp_bind(SocketAddr::new(ip(at[1]), 4001))
            .unwrap();
        pair.stacks[1]
            .udp_send(0, stranger, local, b"psst")
            .unwrap();
        pair.run(1_000_000, |_| false);
        assert_eq!(pair.stacks[0].udp_receive(socket), None);
        pair.stacks[0]
            .udp_send(pair.now_ns, socket, peer, b"anybody?")
            .unwrap();
        pair.run(1_000_000, |_| false);
        let refused = pair.stacks[0].udp_send(pair.now_ns, socket, peer, b"anybody?");
        assert_eq!(refused, Err(SendError::Refused(peer)));
        let there = pair.stacks[1].udp_bind(peer).unwrap();
        pair.stacks[0]
            .udp_send(pair.now_ns, socket, peer, b"anybody?")
            .unwrap();
        pair.run(1_000_000, |_| false);
        assert_eq!(pair.stacks[1].udp_receive(there).unwrap().from, local);
        pair.stacks[1]
            .udp_send(pair.now_ns, there, local, b"yes")
            .unwrap();
        pair.run(1_000_000, |_| false);
        assert_eq!(pair.stacks[0].udp_receive(socket).unwrap().bytes, b"yes");
        // What follows is as expected, by its channel or not.
        let channel = pair.stacks[0].udp_channel(socket);
        assert!(channel.is_some() && pair.stacks[1].udp_channel(there).is_none());
        for (count, by_channel) in [(1, None), (2, channel), (3, Some(Channel(1 << 63 | 99)))] {
            pair.channels[0] = by_channel;
            let long = [count; 40];
            pair.stacks[1]
                .udp_send(pair.now_ns, there, local, &long)
                .unwrap();
            pair.run(1_000_000, |_| false);
            let came = pair.stacks[0].udp_receive(socket).unwrap();
            assert_eq!((came.bytes, came.from), (long.to_vec(), peer));
            let fast = pair.stacks[0].counters().datagrams_fast;
            assert_eq!(fast, u64::from(count).min(2), "a wrong channel is no harm");
        }
        pair.stacks[0].udp_close(socket);
        assert_eq!(pair.stacks[0].udp_local(socket), None);
    }
}

#[test]
fn places_are_taken_once() {
    let mut stack = host();
    let at: SocketAddr = "192.0.2.1:53".parse().unwrap();
    let socket = stack.udp_bind(at).unwrap();
    assert!(
        stack
            .udp_bind(at)
            .unwrap_err()
            .to_string()
            .contains("192.0.2.1:53")
    );
    stack.udp_close(socket);
    assert!(stack.udp_bind(at).is_ok());
    assert!(stack.udp_bind("192.0.2.9:53".parse().unwrap()).is_err());
    let far = stack.udp_bind("0.0.0.0:0".parse().unwrap()).unwrap();
    let nowhere = stack.udp_send(0, far, "8.8.8.8:53".parse().unwrap(), b"");
    assert!(matches!(nowhere, Err(SendError::NoRoute(_))));
    let other = stack.udp_send(0, far, "[2001:db8::2]:53".parse().unwrap(), b"");
    assert!(matches!(other, Err(SendError::NoRoute(_))));
}

#[test]
fn a_narrow_path_is_believed_where_we_have_sent() {
    for addresses in [v4(), v6()] {
        let mut stack = acquainted();
        let (us, peer) = match addresses {
            AddrPair::V4(peer, us) => (IpAddr::from(us), IpAddr::from(peer)),
            AddrPair::V6(peer, us) => (us.into(), peer.into()),
        };
        let too_big = |port: u16| {
            let quoted = datagram(back(addresses), port, 2000, &[0; 40]);
            let mut message = [&[0; 8][..], &quoted[14..]].concat();
            let (kind, code) = if peer.is_ipv4() { (3, 4) } else { (2, 0) };
            icmp::Repr {
                kind,
                code,
                rest: 1300,
            }
            .emit(&mut message, addresses);
            packet(addresses, icmp_of(addresses), 64, &message)
        };
        let socket = stack.udp_bind(SocketAddr::new(us, 1000)).unwrap();
        let to = SocketAddr::new(peer, 2000);
        stack.receive(0, &too_big(1001));
        assert_eq!(stack.counters().dropped(DropReason::IcmpUnrelated), 1);
        stack.udp_send(0, socket, to, &[0; 1400]).unwrap();
        assert_eq!(packets(&mut stack).len(), 1);
        stack.receive(0, &too_big(1000));
        stack.udp_send(0, socket, to, &[0; 1400]).unwrap();
        let out = packets(&mut stack);
        assert_eq!(out.len(), 2);
        assert!(out.iter().all(|packet| packet.len() <= 1300));
    }
}

#[test]
fn floods_meet_limits() {
    let mut stack = acquainted();
    let ping = echo(v4(), &[0; 1000]);
    for _ in 0..10_000 {
        stack.receive(0, &ping);
    }
    assert_eq!(frames(&mut stack, 0).len(), QUEUE_MAX);
    let socket = stack.udp_bind("0.0.0.0:9".parse().unwrap()).unwrap();
    let empty = datagram(v4(), 9, 9, b"");
    for _ in 0..10_000 {
        stack.receive(0, &empty);
    }
    let mut held = 0;
    while stack.udp_receive(socket).is_some() {
        held += 1;
    }
    assert_eq!(held, 2048);
    assert_eq!(
        stack.counters().dropped(DropReason::SocketFull),
        10_000 - 2048
    );
}

/// A link that takes no more is tried again later, and nothing is lost.
#[test]
fn a_full_link_holds_frames_back() {
    struct Narrow(Vec<Vec<u8>>, usize);
    impl weir_stack::TxSink for Narrow {
        fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
            self.1 = self.1.checked_sub(1)?;
            weir_stack::TxSink::reserve(&mut self.0, len)
        }
        fn submit(&mut self) {}
    }
    let mut stack = acquainted();
    for _ in 0..5 {
        stack.receive(0, &echo(v4(), b"x"));
    }
    let mut out = Narrow(Vec::new(), 3);
    stack.poll(0, &mut out);
    assert_eq!(out.0.len(), 3);
    out.1 = 3;
    stack.poll(0, &mut out);
    assert_eq!((out.0.len(), stack.counters().frames_out), (5, 2 + 5));
}

proptest! {
    /// Whatever comes, nothing panics, and each frame is taken or counted.
    #[test]
    fn hostile_frames_are_harmless(seed: u64, hits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
                                   cut in any::<prop::sample::Index>(), which in 0..6_usize) {
        let mut stack = acquainted();
        stack.udp_bind("192.0.2.1:9".parse().unwrap()).unwrap();
        let mut bytes = match which {
            0 => arp_frame(arp::Operation::REQUEST, V4[1], V4[0]),
            1 => solicitation(v6(), 255, Some(HARDWARE[1])),
            2 => echo(v4(), b"payload"),
            3 => echo(v6(), b"payload"),
            4 => datagram(v4(), 9, 9, b"payload"),
            _ => datagram(v6(), 9, 9, b"payload"),
        };
        for (at, value) in hits {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if seed % 4 == 0 {
            bytes.truncate(cut.index(bytes.len()));
        }
        stack.receive(seed % 1000, &bytes);
        let next_ns = stack.poll(1000, &mut Vec::new());
        prop_assert!(next_ns.is_none_or(|next_ns| next_ns > 1000));
    }

    /// Made up from nothing but a plausible start.
    #[test]
    fn noise_is_harmless(noise in prop::collection::vec(any::<u8>(), 0..200), v4: bool) {
        let mut stack = acquainted();
        let (kind, first) = if v4 { (EtherType::IPV4, 0x45) } else { (EtherType::IPV6, 0x60) };
        let mut bytes = noise;
        if let Some(byte) = bytes.first_mut() {
            *byte = first;
        }
        stack.receive(0, &frame(HARDWARE[0], kind, &bytes));
        stack.poll(1000, &mut Vec::new());
    }
}
