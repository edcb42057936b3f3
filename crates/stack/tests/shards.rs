//! Several stacks that are one host: whose a frame is.

mod common;

use common::packet::{self, frame};
use common::{HARDWARE, V4, V6, config, ip};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use weir_stack::rng::Rng;
use weir_stack::tcp::{State, TcpError};
use weir_stack::{Config, SHARDS_MAX, Shards, Stack, Steering};
use weir_wire::arp::Operation;
use weir_wire::{AddrPair, EtherType, Protocol, arp, ethernet, icmp, ipv4, ipv6, tcp, udp};

const SEED: u128 = 0xdea1;
/// Ours first, then the peer's.
const TO_US: packet::Ends = [HARDWARE[0], HARDWARE[1]];

fn ends(addresses: [&str; 2], ports: (u16, u16)) -> [SocketAddr; 2] {
    let [here, there] = addresses.map(ip);
    [
        SocketAddr::new(here, ports.0),
        SocketAddr::new(there, ports.1),
    ]
}

fn segment(src: SocketAddr, dst: SocketAddr, flags: tcp::Flags) -> Vec<u8> {
    let mut segment = vec![0; 20];
    let repr = tcp::Repr {
        src_port: src.port(),
        dst_port: dst.port(),
        seq: 7,
        ack: 9,
        flags,
        window: 1000,
        urgent: 0,
        options: tcp::Options::default(),
    };
    let addresses = AddrPair::new(src.ip(), dst.ip()).unwrap();
    repr.emit(&mut segment, addresses);
    segment
}

/// A packet to us with this payload, in a frame.
fn to_us(src: IpAddr, dst: IpAddr, protocol: Protocol, payload: &[u8]) -> Vec<u8> {
    match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => packet::v4(TO_US, (src, dst), protocol, 64, payload),
        (IpAddr::V6(src), IpAddr::V6(dst)) => packet::v6(TO_US, (src, dst), protocol, 64, payload),
        _ => unreachable!("of one version"),
    }
}

fn tcp_to_us([here, there]: [SocketAddr; 2]) -> Vec<u8> {
    let payload = segment(there, here, tcp::Flags::SYN);
    to_us(there.ip(), here.ip(), Protocol::TCP, &payload)
}

/// An error about what we sent from `here` to `there`, from a router.
fn error([here, there]: [SocketAddr; 2], protocol: Protocol, kind: u8) -> Vec<u8> {
    let transport = segment(here, there, tcp::Flags::ACK);
    let sent = to_us(here.ip(), there.ip(), protocol, &transport);
    let quoted = &sent[ethernet::Repr::LEN..][..48.min(sent.len() - ethernet::Repr::LEN)];
    match here.ip() {
        IpAddr::V4(_) => {
            let mut message = vec![0; icmp::Repr::LEN];
            message.extend_from_slice(quoted);
            let (code, rest) = (1, 0);
            let router = ip("192.0.2.99");
            let addresses = AddrPair::new(router, here.ip()).unwrap();
            icmp::Repr { kind, code, rest }.emit(&mut message, addresses);
            to_us(router, here.ip(), Protocol::ICMPV4, &message)
        }
        IpAddr::V6(here) => {
            let quoted = &sent[ethernet::Repr::LEN..];
            let router = "2001:db8::99".parse().unwrap();
            packet::icmpv6(TO_US, (router, here), 64, kind, 0, quoted)
        }
    }
}

#[test]
fn both_directions_and_errors_are_their_connections() {
    let shards = Shards::new(5, SEED).unwrap();
    let mut met = [0; 5];
    for port in 1000..1200 {
        for addresses in [V4, V6] {
            let ends = ends(addresses, (port, 80));
            let owner = shards.owner(ends[0], ends[1]);
            met[owner] += 1;
            let own = Steering::One(owner);
            assert_eq!(shards.steer(&tcp_to_us(ends)), own);
            let kinds: &[u8] = if ends[0].is_ipv4() {
                &[3, 11, 12]
            } else {
                &[1, 2, 3, 4]
            };
            for kind in kinds {
                assert_eq!(
                    shards.steer(&error(ends, Protocol::TCP, *kind)),
                    own,
                    "{kind}"
                );
                let own = Steering::One(shards.datagram_owner(ends[0], ends[1]));
                assert_eq!(shards.steer(&error(ends, Protocol::UDP, *kind)), own);
            }
        }
    }
    // 80 each on the average: six standard deviations are 48.
    assert!(met.iter().all(|met| (32..128).contains(met)), "{met:?}");
}

/// A datagram to us, in a frame.
fn datagram_to_us([here, there]: [SocketAddr; 2]) -> Vec<u8> {
    let mut datagram = vec![0; udp::Repr::LEN];
    let repr = udp::Repr {
        src_port: there.port(),
        dst_port: here.port(),
    };
    let addresses = AddrPair::new(there.ip(), here.ip()).unwrap();
    repr.emit(&mut datagram, addresses);
    to_us(there.ip(), here.ip(), Protocol::UDP, &datagram)
}

/// By our transport port and the peer, whichever of our addresses it is; groups
/// and what a DHCP client hears are the first's.
#[test]
fn datagrams_are_dealt_by_their_ends() {
    let shards = Shards::new(5, SEED).unwrap();
    let mut met = [0; 5];
    for port in 1000..1200 {
        for (addresses, other, group, any) in [
            (V4, "192.0.2.77", "239.1.2.3", "0.0.0.0"),
            (V6, "2001:db8::77", "ff0e::1", "::"),
        ] {
            let [here, there] = ends(addresses, (port, 80));
            let owner = shards.datagram_owner(here, there);
            met[owner] += 1;
            for local in [here.ip(), ip(other), ip(any)] {
                let local = SocketAddr::new(local, port);
                assert_eq!(shards.datagram_owner(local, there), owner);
                let came = datagram_to_us([local, there]);
                assert_eq!(shards.steer(&came), Steering::One(owner));
            }
            let group = SocketAddr::new(ip(group), port);
            assert_eq!(
                shards.steer(&datagram_to_us([group, there])),
                Steering::One(0)
            );
            assert_eq!(shards.datagram_owner(here, group), 0);
            let dhcp = SocketAddr::new(here.ip(), 68);
            let server = SocketAddr::new(there.ip(), port);
            assert_eq!(
                shards.steer(&datagram_to_us([dhcp, server])),
                Steering::One(0)
            );
        }
    }
    assert!(met.iter().all(|met| (32..128).contains(met)), "{met:?}");
}

#[test]
fn another_seed_deals_otherwise() {
    let [one, other] = [SEED, SEED + 1].map(|seed| Shards::new(4, seed).unwrap());
    let same = (1..=4000).filter(|port| {
        let [here, there] = ends(V4, (80, *port));
        one.owner(here, there) == other.owner(here, there)
    });
    // A quarter by chance; a peer that chose all for one shard of one host has hit each
    // of the other's.
    let same = same.count();
    assert!((800..1200).contains(&same), "{same}");
    let seeds: Vec<_> = (0..4).map(|number| one.seed(number)).collect();
    assert!((1..4).all(|number| !seeds[..number].contains(&seeds[number])));
    for wrong in [0, SHARDS_MAX + 1] {
        assert!(Shards::new(wrong, SEED).is_err());
    }
}

#[test]
fn neighbours_are_everybodys_and_the_rest_is_the_firsts() {
    let shards = Shards::new(3, SEED).unwrap();
    let (IpAddr::V4(here), IpAddr::V4(there)) = (ip(V4[0]), ip(V4[1])) else {
        unreachable!()
    };
    let heard = |operation, sender_ip, target_ip| {
        let mut bytes = vec![0; arp::Repr::LEN];
        let repr = arp::Repr {
            operation,
            sender: HARDWARE[1],
            sender_ip,
            target: HARDWARE[0],
            target_ip,
        };
        repr.emit(&mut bytes);
        shards.steer(&frame(TO_US, EtherType::ARP, &bytes))
    };
    assert_eq!(heard(Operation::REPLY, there, here), Steering::All);
    assert_eq!(heard(Operation::REQUEST, there, there), Steering::All);
    assert_eq!(heard(Operation::REQUEST, there, here), Steering::One(0));
    let (IpAddr::V6(here), IpAddr::V6(there)) = (ip(V6[0]), ip(V6[1])) else {
        unreachable!()
    };
    for (kind, dealt) in [
        (136, Steering::All),
        (135, Steering::One(0)),
        (134, Steering::One(0)),
        (137, Steering::One(0)),
        (128, Steering::One(0)),
    ] {
        let message = packet::icmpv6(TO_US, (there, here), 255, kind, 0, &[0; 32]);
        assert_eq!(shards.steer(&message), dealt, "type {kind}");
    }
    for protocol in [Protocol::IGMP, Protocol(99)] {
        let packet = to_us(ip(V4[1]), ip(V4[0]), protocol, &[9; 40]);
        assert_eq!(shards.steer(&packet), Steering::One(0));
    }
}

#[test]
fn whatever_comes_is_somebodys() {
    let seed = 0x5a4d5;
    println!("seed {seed}");
    let mut rng = Rng::new(seed);
    let shards = Shards::new(7, SEED).unwrap();
    let mut frames = vec![vec![]];
    for addresses in [V4, V6] {
        let ends = ends(addresses, (80, 4000));
        frames.push(tcp_to_us(ends));
        frames.push(error(ends, Protocol::TCP, 3));
    }
    for frame in frames {
        for len in 0..=frame.len() {
            let cut = &frame[..len];
            assert!(!matches!(shards.steer(cut), Steering::One(7..)));
        }
        for _ in 0..2000 {
            let mut changed = frame.clone();
            for _ in 0..3 {
                let at = rng.below(changed.len() as u32) as usize;
                if let Some(byte) = changed.get_mut(at) {
                    *byte = rng.bits() as u8;
                }
            }
            assert!(!matches!(shards.steer(&changed), Steering::One(7..)));
        }
    }
}

#[test]
fn extension_headers_are_passed_over() {
    let shards = Shards::new(64, SEED).unwrap();
    // Not the first shard's part, which has what no other has.
    let ends = (4001..5000)
        .map(|port| ends(V6, (80, port)))
        .find(|ends| shards.owner(ends[0], ends[1]) > 0)
        .unwrap();
    let (IpAddr::V6(here), IpAddr::V6(there)) = (ends[0].ip(), ends[1].ip()) else {
        unreachable!()
    };
    // Destination options: padding alone.
    let mut payload = vec![Protocol::TCP.0, 0, 1, 4, 0, 0, 0, 0];
    payload.extend(segment(ends[1], ends[0], tcp::Flags::SYN));
    let with = packet::v6(
        TO_US,
        (there, here),
        Protocol::IPV6_DESTINATION,
        64,
        &payload,
    );
    let owner = shards.owner(ends[0], ends[1]);
    assert_eq!(shards.steer(&with), Steering::One(owner));
}

/// One of several stacks at our addresses.
fn shard(shards: &Shards, number: usize) -> Stack {
    let mut stack = Stack::new(&config(0), shards.seed(number)).unwrap();
    stack.tcp_shard(shards.clone(), number);
    stack
}

#[test]
fn transport_ports_are_chosen_so_that_answers_come_back() {
    let shards = Shards::new(8, SEED).unwrap();
    for number in 0..8 {
        let mut stack = shard(&shards, number);
        for addresses in [V4, V6] {
            let remote = SocketAddr::new(ip(addresses[1]), 80);
            for _ in 0..50 {
                let id = stack.tcp_connect(0, None, remote).unwrap();
                let (local, _) = stack.tcp_ends(id).unwrap();
                assert_eq!(shards.owner(local, remote), number);
                assert_eq!(stack.tcp_owner(local, remote), Some(number));
            }
        }
        let any = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 5000);
        let [here, there] = ends(V4, (5000, 80));
        assert_eq!(stack.tcp_owner(any, there), Some(shards.owner(here, there)));
        let far = SocketAddr::new(ip("203.0.113.1"), 80);
        assert_eq!(stack.tcp_owner(any, far), None);
    }
    let alone = Stack::new(&config(0), 1).unwrap();
    let [here, there] = ends(V4, (5000, 80));
    assert_eq!(alone.tcp_owner(here, there), None);
}

/// The SYN in two fragments, as frames.
fn fragments(ends: [SocketAddr; 2]) -> [Vec<u8>; 2] {
    let payload = segment(ends[1], ends[0], tcp::Flags::SYN);
    let cut = [(0, &payload[..16], true), (16, &payload[16..], false)];
    cut.map(|(offset, bytes, more)| match (ends[1].ip(), ends[0].ip()) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let mut packet = vec![0; ipv4::Repr::LEN];
            let repr = ipv4::Repr {
                src,
                dst,
                protocol: Protocol::TCP,
                ttl: 64,
                traffic_class: 0,
                identification: 77,
                dont_fragment: false,
                payload_len: bytes.len(),
            };
            repr.emit_fragment(&mut packet, offset, more);
            packet.extend_from_slice(bytes);
            frame(TO_US, EtherType::IPV4, &packet)
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let mut header = vec![0; ipv6::FragmentRepr::LEN];
            let repr = ipv6::FragmentRepr {
                next_header: Protocol::TCP,
                offset,
                more,
                identification: 77,
            };
            repr.emit(&mut header);
            header.extend_from_slice(bytes);
            packet::v6(TO_US, (src, dst), Protocol::IPV6_FRAGMENT, 64, &header)
        }
        _ => unreachable!("of one version"),
    })
}

#[test]
fn what_is_put_together_of_fragments_is_given_on_whole() {
    let shards = Shards::new(3, SEED).unwrap();
    for addresses in [V4, V6] {
        for port in 1..40 {
            let ends = ends(addresses, (80, port));
            let owner = shards.owner(ends[0], ends[1]);
            let mut first = shard(&shards, 0);
            first.tcp_listen(ends[0], 4).unwrap();
            for piece in fragments(ends) {
                assert_eq!(shards.steer(&piece), Steering::One(0));
                first.receive(0, &piece);
            }
            let Some((other, link, whole)) = first.next_misdirected() else {
                assert_eq!((owner, first.tcp_connections()), (0, 1));
                continue;
            };
            assert_eq!((other, link, first.tcp_connections()), (owner, 0, 0));
            let mut stack = shard(&shards, owner);
            stack.tcp_listen(ends[0], 4).unwrap();
            assert_eq!(shards.steer(&whole), Steering::One(owner));
            stack.receive(0, &whole);
            assert_eq!(stack.tcp_connections(), 1, "port {port}");
        }
    }
}

#[test]
fn others_follow_the_first_in_its_addresses_and_routes() {
    let shards = Shards::new(2, SEED).unwrap();
    let all = config(0).route("0.0.0.0/0".parse().unwrap(), ip("192.0.2.254"));
    let first = Stack::new(&all, 1).unwrap();
    let bare = Config::new(HARDWARE[0]);
    let mut other = Stack::new(&bare, 2).unwrap();
    other.tcp_shard(shards, 1);
    let at = SocketAddr::new(ip(V4[0]), 80);
    let far = SocketAddr::new(ip("203.0.113.1"), 80);
    assert!(matches!(
        other.tcp_listen(at, 1),
        Err(TcpError::AddrNotAvailable(_))
    ));
    other.apply_addressing(&first.addressing());
    assert_eq!(other.addressing(), first.addressing());
    assert!(other.addresses().eq(first.addresses()));
    other.tcp_listen(at, 1).unwrap();
    let near = SocketAddr::new(ip(V4[1]), 80);
    let open = other.tcp_connect(0, None, near).unwrap();
    let routed = other.tcp_connect(0, None, far).unwrap();
    assert_eq!(other.tcp_ends(routed).unwrap().0.ip(), at.ip());
    // Without its address a connection goes nowhere, and nothing is taken.
    let mut less = all.clone();
    less.addresses.remove(0);
    less.routes.clear();
    other.apply_addressing(&Stack::new(&less, 3).unwrap().addressing());
    assert!(!other.addresses().any(|one| one == at.ip()));
    assert!(matches!(
        other.tcp_connect(0, None, far),
        Err(TcpError::NoRoute(_))
    ));
    let mut out: Vec<Vec<u8>> = Vec::new();
    other.poll(1, &mut out);
    assert_eq!(other.tcp_state(open), Some(State::SynSent));
    assert!(out.is_empty(), "{} frames", out.len());
}

#[test]
fn numbers_of_addressing_change_with_it() {
    let mut config = config(0);
    config.addresses.retain(|prefix| prefix.address().is_ipv6());
    config.dad_mode = weir_stack::iface::DadMode::Blocking;
    let mut stack = Stack::new(&config, 1).unwrap();
    let mut known = (stack.addressing_epoch(), stack.addressing());
    let mut changes = 0;
    let mut now_ns = 0;
    let mut out: Vec<Vec<u8>> = Vec::new();
    while now_ns < 10_000_000_000 {
        stack.poll(now_ns, &mut out);
        let now = (stack.addressing_epoch(), stack.addressing());
        if now.1 != known.1 {
            assert_ne!(now.0, known.0, "at {now_ns}");
            changes += 1;
        }
        known = now;
        now_ns += 100_000_000;
    }
    assert!(changes >= 1);
    let ours: Vec<_> = stack.addresses().collect();
    assert!(ours.contains(&ip(V6[0])), "{ours:?}");
}
