//! The router frame by frame.

mod common;

use common::*;
use std::net::Ipv4Addr;
use weir_apps::router::engine::{
    Hop, NeighbourUpdate, Origin, QUEUE_MAX, Reason, RouterConfig, Target, UPDATE_BURST,
    UPDATES_PER_SECOND, Verdict,
};
use weir_wire::arp::{self, Operation};
use weir_wire::ethernet::{self, Address};
use weir_wire::icmp::Echo;
use weir_wire::{AddrPair, EtherType, Protocol, checksum, ipv4, ipv6, nd};

const FAR: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 7);

#[test]
fn a_packet_is_forwarded_in_place() {
    let mut router = router(&settings());
    let mut sent = udp_v4(PEER_V4[0], PEER_V4[1], 64, 10, true);
    sent.resize(60, 0xee); // padding of Ethernet
    let given = give(&mut router, 0, 0, sent.clone());
    assert_eq!(
        given.verdict,
        Verdict::Forward {
            link: 1,
            len: 14 + 38
        }
    );
    let frame = ethernet::Frame::new(&given.forwarded).unwrap();
    assert_eq!((frame.dst(), frame.src()), (PEER[1], OWN[1]));
    let packet = ipv4::Packet::new(frame.payload()).unwrap();
    assert!(packet.checksum_is_right() && packet.ttl() == 63);
    assert_eq!(packet.payload(), &sent[34..52]);
    let counters = router.counters();
    assert_eq!((counters.forwarded_v4, counters.links[0].rx_bytes), (1, 60));
    assert_eq!(
        (counters.links[1].tx_frames, counters.links[1].tx_bytes),
        (1, 52)
    );
}

#[test]
fn an_ipv6_packet_is_forwarded_in_place() {
    let mut router = router(&settings());
    let sent = udp_v6(v6("2001:db8:1::9"), v6("2001:db8:2::9"), 2, 10);
    let given = give(&mut router, 0, 0, sent.clone());
    assert_eq!(
        given.verdict,
        Verdict::Forward {
            link: 1,
            len: sent.len()
        }
    );
    assert_eq!(given.forwarded[21], 1);
    assert_eq!(given.forwarded[22..], sent[22..]);
}

#[test]
fn an_expiry_at_the_last_hop_is_reported() {
    let mut router = router(&settings());
    let given = give(
        &mut router,
        0,
        0,
        udp_v4(PEER_V4[0], PEER_V4[1], 1, 900, true),
    );
    assert_eq!(given.verdict, Verdict::Done);
    let [(0, error)] = &given.own[..] else {
        panic!("{:?}", given.own)
    };
    assert_eq!(error.len(), 14 + 576);
    let (kind, code, _, quoted) = icmp_of(error);
    assert_eq!((kind, code, quoted[8]), (11, 0, 1), "quoted as it came");
    let packet = ipv4::Packet::new(&error[14..]).unwrap();
    assert_eq!((packet.src(), packet.dst()), (OWN_V4[0], PEER_V4[0]));
    let given = give(
        &mut router,
        0,
        0,
        udp_v6(v6("2001:db8:1::9"), v6("2001:db8:2::9"), 1, 1400),
    );
    let (kind, code, _, quoted) = icmp_of(&given.own[0].1);
    assert_eq!((kind, code, quoted.len()), (3, 0, 1280 - 48));
}

#[test]
fn what_is_too_long_is_cut_or_refused() {
    let mut router = router(&settings());
    let given = give(
        &mut router,
        0,
        0,
        udp_v4(PEER_V4[0], PEER_V4[1], 9, 1450, true),
    );
    let (kind, code, mtu, _) = icmp_of(&given.own[0].1);
    assert_eq!((kind, code, mtu), (3, 4, 1400));
    let sent = udp_v4(PEER_V4[0], PEER_V4[1], 9, 1450, false);
    let given = give(&mut router, 0, 0, sent.clone());
    let mut whole = vec![0; 1458];
    for (link, frame) in &given.own {
        let packet = ipv4::Packet::new(&frame[14..]).unwrap();
        assert!(*link == 1 && packet.checksum_is_right() && packet.total_len() <= 1400);
        let start = packet.fragment_offset();
        whole[start..start + packet.payload().len()].copy_from_slice(packet.payload());
        assert_eq!(packet.more_fragments(), start == 0);
    }
    assert_eq!((given.own.len(), &whole[..]), (2, &sent[34..]));
    let given = give(
        &mut router,
        0,
        0,
        udp_v6(v6("2001:db8:1::9"), v6("2001:db8:2::9"), 9, 1440),
    );
    let (kind, code, mtu, _) = icmp_of(&given.own[0].1);
    assert_eq!((kind, code, mtu), (2, 0, 1400));
}

#[test]
fn a_request_for_the_routers_address_is_answered() {
    let mut router = router(&settings());
    let question = arp::Repr {
        operation: Operation::REQUEST,
        sender: PEER[0],
        sender_ip: PEER_V4[0],
        target: Address::default(),
        target_ip: OWN_V4[0],
    };
    let mut asked = frame(EtherType::ARP, &[0; 46]);
    question.emit(&mut asked[14..]);
    asked[..6].fill(0xff);
    let given = give(&mut router, 0, 0, asked.clone());
    assert_eq!(given.verdict, Verdict::Forward { link: 0, len: 42 });
    let answer = arp::Repr::parse(&arp::Packet::new(&given.forwarded[14..]).unwrap());
    assert_eq!(
        (answer.operation, answer.sender, answer.sender_ip),
        (Operation::REPLY, OWN[0], OWN_V4[0])
    );
    assert_eq!(
        (answer.target, &given.forwarded[..6]),
        (PEER[0], &PEER[0].0[..])
    );
    // Not for an address of the other link.
    let other = arp::Repr {
        target_ip: OWN_V4[1],
        ..question
    };
    other.emit(&mut asked[14..]);
    assert_eq!(give(&mut router, 0, 0, asked).verdict, Verdict::Done);
    assert_dropped(&router, Reason::NotForUs);
}

#[test]
fn echo_is_answered_on_any_of_our_addresses() {
    let mut router = router(&settings());
    for own in OWN_V4 {
        let mut packet = vec![7; 20 + 8 + 33];
        let header = ipv4::Repr {
            src: PEER_V4[0],
            dst: own,
            protocol: Protocol::ICMPV4,
            ttl: 1,
            traffic_class: 0,
            identification: 1,
            dont_fragment: true,
            payload_len: 41,
        };
        header.emit(&mut packet);
        let echo = Echo {
            reply: false,
            identifier: 3,
            sequence: 4,
        };
        echo.emit(&mut packet[20..], AddrPair::V4(PEER_V4[0], own));
        let given = give(&mut router, 0, 0, frame(EtherType::IPV4, &packet));
        assert_eq!(
            given.verdict,
            Verdict::Forward {
                link: 0,
                len: 14 + 61
            }
        );
        let (kind, code, rest, body) = icmp_of(&given.forwarded);
        assert_eq!((kind, code, rest, body), (0, 0, 0x0003_0004, &[7; 33][..]));
    }
    let (peer, own) = (v6("2001:db8:1::9"), v6("2001:db8:2::1"));
    let mut packet = vec![7; 40 + 8 + 5];
    let header = ipv6::Repr {
        src: peer,
        dst: own,
        next_header: Protocol::ICMPV6,
        hop_limit: 1,
        traffic_class: 0,
        flow_label: 0,
        payload_len: 13,
    };
    header.emit(&mut packet);
    let echo = Echo {
        reply: false,
        identifier: 3,
        sequence: 4,
    };
    echo.emit(&mut packet[40..], AddrPair::V6(peer, own));
    let given = give(&mut router, 0, 0, frame(EtherType::IPV6, &packet));
    assert_eq!(icmp_of(&given.forwarded).0, 129);
    assert_eq!(router.counters().echoes, 3);
}

/// A change to a good frame, and why it is then dropped.
#[test]
fn what_may_not_pass_is_dropped_for_its_reason() {
    type Change = fn(&mut Vec<u8>);
    let cases: [(Reason, Change); 13] = [
        (Reason::Malformed, |frame| frame.truncate(30)),
        (Reason::Malformed, |frame| frame.truncate(50)),
        (Reason::Malformed, |frame| frame[14] = 0x44),
        (Reason::ChecksumWrong, |frame| frame[22] = 63),
        (Reason::OtherStation, |frame| frame[5] = 99),
        (Reason::Tagged, |frame| frame[12] = 0x81),
        (Reason::EtherTypeUnknown, |frame| frame[12] = 0x99),
        (Reason::GroupFrame, |frame| frame[..6].fill(0xff)),
        (Reason::SourceMartian, |frame| {
            readdress(frame, 12, [127, 0, 0, 1])
        }),
        (Reason::SourceMartian, |frame| {
            readdress(frame, 12, OWN_V4[1].octets())
        }),
        (Reason::DestinationMartian, |frame| {
            readdress(frame, 16, [0, 1, 2, 3])
        }),
        (Reason::Multicast, |frame| {
            readdress(frame, 16, [224, 0, 0, 5])
        }),
        (Reason::DirectedBroadcast, |frame| {
            readdress(frame, 16, [198, 51, 100, 255])
        }),
    ];
    for (reason, change) in cases {
        let mut router = router(&settings());
        let mut sent = udp_v4(PEER_V4[0], PEER_V4[1], 64, 10, true);
        change(&mut sent);
        let given = give(&mut router, 0, 0, sent);
        assert_eq!(
            (given.verdict, given.own.len()),
            (Verdict::Done, 0),
            "{reason:?}"
        );
        assert_dropped(&router, reason);
    }
}

fn readdress(frame: &mut [u8], at: usize, address: [u8; 4]) {
    frame[14 + at..18 + at].copy_from_slice(&address);
    frame[24..26].fill(0);
    let sum = checksum::internet_checksum(&frame[14..34]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
}

#[test]
fn ipv6_addresses_keep_their_scope() {
    for (src, dst, reason, told) in [
        (
            "fe80::1",
            "2001:db8:2::9",
            Reason::BeyondScope,
            Some((1, 2)),
        ),
        ("2001:db8:1::9", "fe80::1", Reason::BeyondScope, None),
        // The router's own on the other link, so another station's here.
        (
            "fe80::ff:fe00:2",
            "2001:db8:2::9",
            Reason::BeyondScope,
            Some((1, 2)),
        ),
        (
            "fe80::ff:fe00:1",
            "2001:db8:2::9",
            Reason::SourceMartian,
            None,
        ),
        ("::1", "2001:db8:2::9", Reason::SourceMartian, None),
        (
            "::ffff:192.0.2.9",
            "2001:db8:2::9",
            Reason::SourceMartian,
            None,
        ),
        ("2001:db8:1::9", "::1", Reason::DestinationMartian, None),
        ("2001:db8:1::9", "ff02::1", Reason::Multicast, None),
        (
            "2001:db8:1::9",
            "2001:db8:9::9",
            Reason::NoRoute,
            Some((1, 0)),
        ),
    ] {
        let mut router = router(&settings());
        let given = give(&mut router, 0, 0, udp_v6(v6(src), v6(dst), 9, 10));
        assert_eq!(given.verdict, Verdict::Done, "{src} > {dst}");
        assert_dropped(&router, reason);
        if src.starts_with("fe80") && told.is_some() {
            // A solicitation precedes the answer.
            assert_eq!((given.own.len(), given.own[0].0), (1, 0));
        } else {
            let error = given.own.first().map(|(_, frame)| icmp_of(frame));
            assert_eq!(
                error.map(|(kind, code, ..)| (kind, code)),
                told,
                "{src} > {dst}"
            );
        }
    }
}

#[test]
fn routes_say_where_and_why_not() {
    for (target, reason, code) in [
        (None, Reason::NoRoute, Some(0)),
        (Some(Target::Unreachable), Reason::Unreachable, Some(1)),
        (Some(Target::Prohibit), Reason::Prohibited, Some(13)),
        (Some(Target::Blackhole), Reason::Blackhole, None),
    ] {
        let mut router = router(&settings());
        if let Some(target) = target {
            let prefix = "203.0.113.0/24".parse().unwrap();
            router
                .routes_mut()
                .insert(prefix, Origin::Learned(20), target)
                .unwrap();
        }
        let given = give(&mut router, 0, 0, udp_v4(PEER_V4[0], FAR, 64, 10, true));
        assert_dropped(&router, reason);
        let told = given.own.first().map(|(_, frame)| icmp_of(frame).1);
        assert_eq!(told, code, "{reason:?}");
    }
}

/// RFC 8950: the next hop has an address of the other version; the frame keeps
/// the type of the packet.
#[test]
fn a_next_hop_may_be_of_the_other_version() {
    let mut router = router(&settings());
    let hop = |gateway| Target::Forward(Box::new([Hop { link: 1, gateway }]));
    for (to, gateway) in [
        ("203.0.113.0/24", v6("2001:db8:2::9").into()),
        ("2001:db8:9::/48", PEER_V4[1].into()),
    ] {
        let routes = router.routes_mut();
        let added = routes.insert(to.parse().unwrap(), Origin::Configured, hop(Some(gateway)));
        added.unwrap();
    }
    for (sent, ether_type) in [
        (udp_v4(PEER_V4[0], FAR, 64, 10, true), EtherType::IPV4),
        (
            udp_v6(v6("2001:db8:1::9"), v6("2001:db8:9::7"), 64, 10),
            EtherType::IPV6,
        ),
    ] {
        let given = give(&mut router, 0, 0, sent);
        let frame = ethernet::Frame::new(&given.forwarded).unwrap();
        assert_eq!((frame.dst(), frame.ether_type()), (PEER[1], ether_type));
    }
}

#[test]
fn configured_routes_come_before_learned_ones_and_low_metrics_first() {
    let mut router = router(&settings());
    let prefix = "203.0.113.0/24".parse().unwrap();
    let routes = router.routes_mut();
    let through = |link| Target::to(link, Some(PEER_V4[usize::from(link)].into()));
    let look = |routes: &weir_apps::router::engine::Routes| routes.lookup(FAR.into()).cloned();
    routes
        .insert(prefix, Origin::Learned(20), through(0))
        .unwrap();
    routes
        .insert(prefix, Origin::Learned(10), through(1))
        .unwrap();
    assert_eq!(look(routes), Some(through(1)));
    routes
        .insert(prefix, Origin::Configured, Target::Prohibit)
        .unwrap();
    assert_eq!(look(routes), Some(Target::Prohibit));
    routes.remove(prefix, Origin::Configured);
    routes.remove(prefix, Origin::Learned(10));
    assert_eq!(look(routes), Some(through(0)));
    routes.remove_learned();
    assert_eq!(look(routes), None);
}

#[test]
fn a_flow_keeps_to_one_of_several_hops_whose_link_is_up() {
    let mut router = router(&RouterConfig {
        redirects: false,
        ..settings()
    });
    let hops = [0, 1].map(|link: u16| Hop {
        link,
        gateway: Some(PEER_V4[usize::from(link)].into()),
    });
    let prefix = "203.0.113.0/24".parse().unwrap();
    let target = Target::Forward(Box::new(hops));
    router
        .routes_mut()
        .insert(prefix, Origin::Configured, target)
        .unwrap();
    let links = |router: &mut weir_apps::router::engine::Router| {
        let hosts = (0..100u8).map(|host| Ipv4Addr::new(203, 0, 113, host));
        let sent = hosts.map(|dst| give(router, 0, 0, udp_v4(PEER_V4[0], dst, 64, 10, true)));
        sent.map(|given| match given.verdict {
            Verdict::Forward { link, .. } => link,
            other => panic!("{other:?}"),
        })
        .collect::<Vec<u16>>()
    };
    let first = links(&mut router);
    assert_eq!(first, links(&mut router));
    let one = first.iter().filter(|link| **link == 1).count();
    assert!((25..75).contains(&one), "{one} of 100 over link 1");
    router.set_link_up(1, false);
    assert!(links(&mut router).iter().all(|link| *link == 0));
    router.set_link_up(0, false);
    let given = give(&mut router, 0, 0, udp_v4(PEER_V4[0], FAR, 64, 10, true));
    assert_eq!(given.verdict, Verdict::Done);
    assert_dropped(&router, Reason::LinkDown);
}

#[test]
fn a_host_on_the_same_link_is_redirected() {
    let mut router = router(&settings());
    let gateway = Ipv4Addr::new(192, 0, 2, 254);
    let prefix = "203.0.113.0/24".parse().unwrap();
    let target = Target::to(0, Some(gateway.into()));
    router
        .routes_mut()
        .insert(prefix, Origin::Configured, target)
        .unwrap();
    let given = give(&mut router, 0, 0, udp_v4(PEER_V4[0], FAR, 64, 10, true));
    let (kind, code, better, quoted) = icmp_of(&given.own[0].1);
    assert_eq!((kind, code, better), (5, 1, gateway.to_bits()));
    assert_eq!(quoted[8], 64);
    // The packet itself waits for the gateway, which is asked for.
    assert_eq!(given.verdict, Verdict::Done);
    assert_eq!(router.counters().neighbours_asked, 1);
}

/// Direct server return: a neighbour on a link in place of the way to the destination, which may be an
/// address of the router itself.
#[test]
fn a_caller_may_choose_the_neighbour() {
    let mut router = router(&RouterConfig {
        redirects: false,
        ..settings()
    });
    let gateway = Target::to(1, Some(PEER_V4[1].into()));
    let routes = router.routes_mut();
    routes
        .insert("0.0.0.0/0".parse().unwrap(), Origin::Configured, gateway)
        .unwrap();
    let mut to = |now: u64, next_hops: &[Option<Ipv4Addr>]| {
        // To an address of the router, and to one by the gateway.
        let mut frames = [OWN_V4[0], FAR].map(|dst| udp_v4(PEER_V4[0], dst, 64, 10, true));
        let plain = frames.clone();
        let mut verdicts = Vec::new();
        router.process_to(now, 0, &mut frames, next_hops, &mut verdicts);
        let alike = router.cacheable();
        let output = own(&mut router);
        // But for MAC addresses and TTL nothing changes.
        for (frame, plain) in frames.iter().zip(&plain) {
            assert_eq!(
                (&frame[12..22], &frame[26..]),
                (&plain[12..22], &plain[26..])
            );
        }
        let went = frames
            .iter()
            .zip(&verdicts)
            .map(|(frame, verdict)| match verdict {
                Verdict::Forward { link, .. } => {
                    assert_eq!(
                        (&frame[6..12], frame[22]),
                        (&OWN[usize::from(*link)].0[..], 63)
                    );
                    Some((*link, Address(frame[..6].try_into().unwrap())))
                }
                Verdict::Done => None,
            });
        (went.collect::<Vec<_>>(), alike, output)
    };
    let one = Some((0, PEER[0]));
    let (went, alike, _) = to(0, &[Some(PEER_V4[0]), Some(PEER_V4[0])]);
    assert_eq!((went, alike), (vec![one, one], 3));
    let (went, ..) = to(0, &[Some(PEER_V4[1]), None]);
    assert_eq!(went, [Some((1, PEER[1])); 2]);
    // Of an address that is behind the gateway or the router's, the sender hears; so it does of none.
    for next_hop in [Ipv4Addr::new(203, 0, 113, 77), OWN_V4[1], OWN_V4[0]] {
        let (went, _, output) = to(1_000_000_000, &[None, Some(next_hop)]);
        assert_eq!(went[1], None);
        assert_eq!(icmp_of(&output.last().unwrap().1).0, 3, "{next_hop}");
    }
    // One that has to be asked for.
    let asked = Ipv4Addr::new(198, 51, 100, 77);
    let (went, _, output) = to(1_000_000_000, &[Some(asked), Some(asked)]);
    assert_eq!(went, [None, None]);
    let (link, request) = &output[0];
    assert_eq!((*link, &request[38..42]), (1, &asked.octets()[..]));
    assert_eq!(router.counters().dropped(Reason::NoRoute), 3);
    let hop = router.next_hop(0, 0, PEER_V4[0].into(), PEER_V4[1].into());
    assert_eq!(hop.map(|hop| (hop.link, hop.dst)), Some((1, PEER[1])));
}

#[test]
fn errors_are_never_about_errors_and_bounded() {
    let mut router = router(&RouterConfig {
        icmp_per_second: 10,
        icmp_burst: 4,
        ..settings()
    });
    let mut sent = udp_v4(PEER_V4[0], FAR, 64, 10, true);
    sent[14 + 9] = 1; // ICMP …
    sent[34] = 3; // … an error
    readdress(&mut sent, 16, FAR.octets());
    assert!(give(&mut router, 0, 0, sent).own.is_empty());
    let mut piece = udp_v4(PEER_V4[0], FAR, 64, 10, false);
    piece[21] = 5; // not the first piece
    readdress(&mut piece, 16, FAR.octets());
    assert!(give(&mut router, 0, 0, piece).own.is_empty());
    let mut told = 0;
    for number in 0..1000u64 {
        let sent = udp_v4(PEER_V4[0], FAR, 64, 10, true);
        told += give(&mut router, number * 1_000_000, 0, sent).own.len();
    }
    assert_eq!(told, 4 + 9);
    assert_eq!(
        router.counters().dropped(Reason::IcmpRateLimited),
        1000 - 13
    );
}

#[test]
fn storms_fill_no_table_beyond_its_limit() {
    let max = 64;
    let mut router = router(&RouterConfig {
        neighbours_max: max,
        ..settings()
    });
    // Asking for everyone.
    for host in 20..250u8 {
        let dst = Ipv4Addr::new(198, 51, 100, host);
        give(&mut router, 0, 0, udp_v4(PEER_V4[0], dst, 64, 10, true));
    }
    assert!(router.counters().dropped(Reason::NeighbourTableFull) > 100);
    // Everyone asking for us.
    for host in 10..250u8 {
        let question = arp::Repr {
            operation: Operation::REQUEST,
            sender: Address([2, 1, 1, 1, 1, host]),
            sender_ip: Ipv4Addr::new(192, 0, 2, host),
            target: Address::default(),
            target_ip: OWN_V4[0],
        };
        let mut asked = frame(EtherType::ARP, &[0; 28]);
        question.emit(&mut asked[14..]);
        give(&mut router, 0, 0, asked);
    }
    assert!(router.neighbours() <= max, "{}", router.neighbours());
    // A configured neighbour stays.
    let given = give(
        &mut router,
        0,
        0,
        udp_v4(PEER_V4[0], PEER_V4[1], 64, 10, true),
    );
    assert!(matches!(given.verdict, Verdict::Forward { link: 1, .. }));
}

#[test]
fn the_own_queue_is_bounded() {
    let mut router = router(&RouterConfig {
        icmp_per_second: u32::MAX,
        icmp_burst: 1 << 20,
        ..settings()
    });
    let mut verdicts = Vec::new();
    for _ in 0..QUEUE_MAX + 5 {
        let mut sent = udp_v4(PEER_V4[0], FAR, 64, 10, true);
        router.process(0, 0, &mut [&mut sent[..]], &mut verdicts);
    }
    assert_eq!(own(&mut router).len(), QUEUE_MAX);
    assert_eq!(router.counters().dropped(Reason::QueueFull), 5);
}

/// A sender of packets to be fragmented crowds out neither others' frames to that
/// link nor the router's own.
#[test]
fn pieces_leave_room_for_others() {
    let mut small = settings();
    small.links[1].mtu = 68;
    small.links[0].mtu = 9000;
    let mut router = router(&small);
    let mut verdicts = Vec::new();
    for number in 0..QUEUE_MAX {
        let mut long = udp_v4(PEER_V4[0], PEER_V4[1], 64, 900 + number % 64, false);
        router.process(0, 0, &mut [&mut long[..]], &mut verdicts);
    }
    let refused = router.counters().dropped(Reason::QueueFull);
    let cut = router.counters().fragmented;
    assert_eq!(refused + cut, QUEUE_MAX as u64);
    // As many as half of the room holds, of some 20 pieces each.
    assert!((90..=QUEUE_MAX as u64 / 2 / 19).contains(&cut), "{cut}");
    for _ in 0..QUEUE_MAX / 2 {
        let mut short = udp_v4(PEER_V4[0], PEER_V4[1], 64, 1, false);
        router.process(0, 0, &mut [&mut short[..]], &mut verdicts);
    }
    let mut lost = udp_v4(PEER_V4[0], FAR, 64, 10, true);
    router.process(0, 0, &mut [&mut lost[..]], &mut verdicts);
    assert_eq!(router.counters().dropped(Reason::QueueFull), refused);
    let own = own(&mut router);
    let pieces = router.counters().fragments as usize;
    let (forwarded, error) = own.split_at(own.len() - 1);
    assert_eq!(forwarded.len(), pieces + QUEUE_MAX / 2);
    assert!(
        forwarded[pieces..]
            .iter()
            .all(|(_, frame)| frame.len() == 43)
    );
    // Each that was cut has all its pieces.
    let ends = forwarded[..pieces].iter();
    let ends = ends.filter(|(_, frame)| {
        let packet = ipv4::Packet::new(&frame[14..]).unwrap();
        !packet.more_fragments()
    });
    assert_eq!(ends.count() as u64, cut);
    assert_eq!((error[0].0, icmp_of(&error[0].1).0), (0, 3));
}

#[test]
fn a_loop_ends_by_the_hops_left() {
    let mut router = router(&RouterConfig {
        redirects: false,
        ..settings()
    });
    let prefix = "203.0.113.0/24".parse().unwrap();
    let target = Target::to(0, Some(PEER_V4[0].into()));
    router
        .routes_mut()
        .insert(prefix, Origin::Configured, target)
        .unwrap();
    let mut looping = udp_v4(Ipv4Addr::new(192, 0, 2, 33), FAR, 255, 10, true);
    let mut turns = 0;
    loop {
        let given = give(&mut router, 0, 0, looping);
        match given.verdict {
            Verdict::Forward { .. } => {}
            _ => break,
        }
        turns += 1;
        looping = given.forwarded;
        // The neighbour sends it back.
        looping[..6].copy_from_slice(&OWN[0].0);
        looping[6..12].copy_from_slice(&PEER[0].0);
    }
    assert_eq!(turns, 254);
    assert_eq!(router.counters().dropped(Reason::TtlExceeded), 1);
}

/// What a neighbour of link 0 says of itself: by ARP, by neighbour discovery.
fn words() -> [Vec<u8>; 2] {
    let reply = arp::Repr {
        operation: Operation::REPLY,
        sender: PEER[1],
        sender_ip: Ipv4Addr::new(192, 0, 2, 77),
        target: OWN[0],
        target_ip: OWN_V4[0],
    };
    let mut by_arp = frame(EtherType::ARP, &[0; 28]);
    reply.emit(&mut by_arp[14..]);
    let (src, dst) = (v6("2001:db8:1::77"), v6("2001:db8:1::1"));
    let advertisement = nd::Repr {
        kind: nd::Kind::Advertisement {
            router: true,
            solicited: true,
            replaces: false,
        },
        target: src,
        hardware: Some(PEER[1]),
    };
    let header = ipv6::Repr {
        src,
        dst,
        next_header: Protocol::ICMPV6,
        hop_limit: nd::HOP_LIMIT,
        traffic_class: 0,
        flow_label: 0,
        payload_len: advertisement.len(),
    };
    let mut packet = vec![0; ipv6::Repr::LEN + advertisement.len()];
    header.emit(&mut packet);
    advertisement.emit(&mut packet[ipv6::Repr::LEN..], AddrPair::V6(src, dst));
    [by_arp, frame(EtherType::IPV6, &packet)]
}

#[test]
fn a_host_beside_the_router_hears_its_neighbours() {
    let mut host = router(&RouterConfig {
        host: true,
        ..settings()
    });
    let mut alone = router(&settings());
    for (word, (address, replaces)) in words()
        .into_iter()
        .zip([("192.0.2.77", true), ("2001:db8:1::77", false)])
    {
        // Only the host has asked.
        let given = give(&mut host, 0, 0, word.clone());
        assert_eq!((given.verdict, given.own.len()), (Verdict::Done, 0));
        let heard = NeighbourUpdate {
            link: 0,
            address: address.parse().unwrap(),
            hardware: PEER[1],
            solicited: true,
            replaces,
            router: !replaces,
        };
        assert_eq!(host.next_ns(), Some(0), "it is to be told at once");
        assert_eq!(
            (host.next_neighbour_update(), host.next_neighbour_update()),
            (Some(heard), None)
        );
        assert_ne!(host.next_ns(), Some(0));
        give(&mut alone, 0, 0, word);
        assert_eq!(alone.next_neighbour_update(), None);
    }
    assert_eq!(host.counters().dropped(Reason::NeighbourRefused), 0);
    assert_eq!(alone.counters().dropped(Reason::NeighbourRefused), 2);
}

#[test]
fn a_host_hears_no_more_than_it_can_bear() {
    let mut router = router(&RouterConfig {
        host: true,
        ..settings()
    });
    let [word, _] = words();
    for _ in 0..10 * UPDATE_BURST {
        give(&mut router, 0, 0, word.clone());
    }
    let heard = std::iter::from_fn(|| router.next_neighbour_update()).count();
    assert_eq!(heard, UPDATE_BURST as usize);
    let second = 1_000_000_000;
    let mut heard = 0;
    for at in 0..10_000 {
        give(&mut router, second + at * 100_000, 0, word.clone());
        heard += usize::from(router.next_neighbour_update().is_some());
    }
    let most = (UPDATES_PER_SECOND + UPDATE_BURST) as usize;
    assert!((most - 1..=most).contains(&heard), "{heard}");
}
