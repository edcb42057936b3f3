//! How a host comes by its addresses and routes: conflicts, and routers'
//! advertisements. By frames written by hand, in the test's time.

mod common;

use common::world::{
    OTHER, ROUTER, SECOND, World, advertisement_of, arp_from, arps, auto, icmpv6, neighbour,
    prefix_option, router_says, solicitation, v4_config,
};
use common::{HARDWARE, ip, packet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use weir_stack::Config;
use weir_stack::iface::{
    AUTOMATIC_MAX, DadMode, DropReason, Event, LEARNT_ROUTES_MAX, Origin, PREFIXES_MAX,
    REDIRECTS_MAX, ROUTERS_MAX, RemovalReason,
};
use weir_wire::{Protocol, arp};

fn is_lost_to_another(event: &Event) -> bool {
    matches!(event, Event::Lost(_, RemovalReason::Duplicate(_)))
}

#[test]
fn an_address_is_probed_then_used_then_announced() {
    let mut world = World::new(&v4_config(DadMode::Blocking));
    assert!(!world.has("192.0.2.1"));
    world.receive(&arp_from("192.0.2.9", "192.0.2.1", arp::Operation::REQUEST));
    let mut probes = Vec::new();
    // RFC 5227 §1.1: at most 1 + 2 + 2 + 2 seconds.
    for _ in 0..70 {
        world.pass(SECOND / 10);
        for probe in arps(&world.take()) {
            probes.push((world.now_ns, probe));
        }
    }
    assert!(world.has("192.0.2.1"));
    let ours: Ipv4Addr = "192.0.2.1".parse().unwrap();
    let of = |probing: bool| {
        let all = probes.iter().copied();
        let some = all.filter(|(_, one)| one.sender_ip.is_unspecified() == probing);
        some.collect::<Vec<(u64, arp::Repr)>>()
    };
    let (asks, told) = (of(true), of(false));
    assert_eq!((asks.len(), told[0].1.sender_ip), (3, ours));
    assert!(probes.iter().all(|(_, one)| one.target_ip == ours));
    for pair in asks.windows(2) {
        let apart = pair[1].0 - pair[0].0;
        assert!(
            (SECOND * 9 / 10..SECOND * 21 / 10).contains(&apart),
            "{apart}"
        );
    }
    world.pass(3 * SECOND);
    assert_eq!(world.stack.poll(world.now_ns, &mut Vec::new()), None);
    assert_eq!(
        world.events(),
        [Event::Address(
            "192.0.2.1/24".parse().unwrap(),
            Origin::Configured
        )]
    );
}

#[test]
fn an_address_that_another_has_is_not_used() {
    // It has it; or asks for it at the same time; or answers.
    for conflict in [
        arp_from("192.0.2.1", "192.0.2.9", arp::Operation::REQUEST),
        arp_from("0.0.0.0", "192.0.2.1", arp::Operation::REQUEST),
        arp_from("192.0.2.1", "0.0.0.0", arp::Operation::REPLY),
    ] {
        let mut world = World::new(&v4_config(DadMode::Blocking));
        world.pass(SECOND * 3 / 2);
        world.receive(&conflict);
        world.pass(30 * SECOND);
        assert!(!world.has("192.0.2.1"));
        assert!(is_lost_to_another(&world.events()[0]));
    }
    let mut world = World::new(&v4_config(DadMode::Optimistic));
    assert!(world.has("192.0.2.1"));
    world.pass(SECOND);
    world.receive(&arp_from("192.0.2.1", "192.0.2.1", arp::Operation::REPLY));
    assert!(!world.has("192.0.2.1"));
}

/// As a kernel answers a probe: from the very address.
#[test]
fn an_answer_from_the_address_itself_is_heard() {
    for detect in [DadMode::Optimistic, DadMode::Blocking] {
        let mut config = Config::new(HARDWARE[0]).address("2001:db8::1/64".parse().unwrap());
        config.dad_mode = detect;
        let mut world = World::new(&config);
        world.pass(SECOND / 2);
        let target: Ipv6Addr = "2001:db8::1".parse().unwrap();
        let body = [&target.octets()[..], &[2, 1], &OTHER.0].concat();
        world.receive(&icmpv6(
            "2001:db8::1",
            "ff02::1",
            255,
            136,
            0x2000_0000,
            &body,
        ));
        assert!(!world.has("2001:db8::1"), "{detect:?}");
        assert!(world.events().iter().any(is_lost_to_another));
    }
}

#[test]
fn an_address_that_is_ours_is_defended_now_and_then() {
    let mut world = World::new(&v4_config(DadMode::Optimistic));
    world.pass(20 * SECOND);
    world.take();
    let mut told = 0;
    for _ in 0..250 {
        world.receive(&arp_from("192.0.2.1", "192.0.2.9", arp::Operation::REQUEST));
        world.pass(SECOND / 10);
        told += arps(&world.take()).len();
    }
    // In 25 seconds, each ten.
    assert_eq!((told, world.has("192.0.2.1")), (3, true));
}

#[test]
fn automatic_addresses_come_and_go_with_what_routers_say() {
    let mut world = World::new(&auto());
    let solicited = |frames: &[Vec<u8>]| {
        let asks = frames.iter().filter(|frame| frame.get(54) == Some(&133));
        asks.count()
    };
    assert_eq!(solicited(&world.take()), 1);
    // Less and less often: after about 4, 12, 28 and 60 seconds.
    world.pass(45 * SECOND);
    assert_eq!(solicited(&world.take()), 3);
    let says = |lifetime_s, valid_s, preferred_s| {
        let prefix = prefix_option("2001:db8:1::", 0xc0, valid_s, preferred_s);
        router_says(ROUTER, lifetime_s, &[vec![1, 1, 2, 0, 0, 0, 0, 2], prefix])
    };
    world.receive(&says(1800, 3600, 1800));
    world.pass(200 * SECOND);
    assert_eq!(solicited(&world.take()), 0);
    let network: weir_stack::Prefix = "2001:db8:1::/64".parse().unwrap();
    let made: Vec<IpAddr> = world
        .stack
        .addresses()
        .filter(|one| network.contains(*one))
        .collect();
    let &[made] = &made[..] else {
        panic!("{made:?}")
    };
    let events = world.events();
    assert!(events.contains(&Event::Router(ip(ROUTER))), "{events:?}");
    // The same secret gives the same address, another another.
    let mut again = World::new(&auto());
    again.receive(&says(1800, 3600, 1800));
    assert!(again.stack.addresses().any(|one| one == made));
    let mut other = auto();
    other.secret = Some(100);
    let mut other = World::new(&other);
    other.receive(&says(1800, 3600, 1800));
    assert!(!other.stack.addresses().any(|one| one == made));
    // On the link, and beyond it.
    assert_eq!(world.hop("2001:db8:1::9"), Some(ip("2001:db8:1::9")));
    assert_eq!(world.hop("2001:db8:2::9"), None, "the router is known");
    world.pass(1700 * SECOND);
    // The router's time is over, its network's is not.
    let nowhere = world.stack.udp_bind("[::]:5".parse().unwrap()).unwrap();
    let to = "[2001:db8:2::9]:9".parse().unwrap();
    assert!(
        world
            .stack
            .udp_send(world.now_ns, nowhere, to, b"x")
            .is_err()
    );
    // The two-hour rule: no advertisement ends an address at once. Here the remaining time is less.
    world.receive(&says(0, 1, 1));
    assert!(world.stack.addresses().any(|one| one == made));
    world.pass(1710 * SECOND);
    assert!(!world.stack.addresses().any(|one| one == made));
    assert!(world.events().contains(&Event::Lost(
        weir_stack::Prefix::new(made, 64).unwrap(),
        RemovalReason::Expired
    )));
}

#[test]
fn an_automatic_address_that_another_has_is_made_anew() {
    let mut config = auto();
    config.dad_mode = DadMode::Blocking;
    let mut world = World::new(&config);
    let mut targets = Vec::new();
    for _ in 0..200 {
        world.pass(SECOND / 10);
        for frame in world.take() {
            let Some(probe) = neighbour(&frame[14..]) else {
                continue;
            };
            if targets.contains(&probe.target) {
                continue;
            }
            targets.push(probe.target);
            // Another host has it, says so, or asks for it too.
            match targets.len() % 2 {
                0 => world.receive(&advertisement_of(probe.target)),
                _ => world.receive(&solicitation("::", probe.target)),
            }
        }
    }
    // The first and three more (RFC 7217: IDGEN_RETRIES).
    assert_eq!(targets.len(), 4, "{targets:?}");
    assert_eq!(world.stack.addresses().count(), 0);
    assert!(world.events().iter().all(is_lost_to_another));
}

#[test]
fn routers_from_afar_and_forgers_are_not_believed() {
    let mut world = World::new(&auto());
    let prefix = prefix_option("2001:db8:1::", 0xc0, 3600, 1800);
    let body = [&[0; 8][..], &prefix].concat();
    for (src, hop_limit, body) in [
        ("2001:db8::1", 255, &body[..]),
        (ROUTER, 254, &body),
        (ROUTER, 255, &body[..12]),
        (ROUTER, 255, &[0; 9]),
        (ROUTER, 255, &[0; 10]),
    ] {
        world.receive(&icmpv6(src, "ff02::1", hop_limit, 134, 1800, body));
    }
    assert_eq!(
        (world.stack.addresses().count(), world.events().len()),
        (1, 1)
    );
    // The two-hour rule.
    world.receive(&router_says(ROUTER, 1800, &[prefix]));
    world.receive(&router_says(
        ROUTER,
        1800,
        &[prefix_option("2001:db8:1::", 0xc0, 7201, 1)],
    ));
    world.receive(&router_says(
        ROUTER,
        1800,
        &[prefix_option("2001:db8:1::", 0xc0, 0, 0)],
    ));
    world.pass(7000 * SECOND);
    assert_eq!(world.stack.addresses().count(), 2);
    // No address of 60 bits, nor in the link's own network, nor for a time
    // that contradicts itself.
    let mut narrow = prefix_option("2001:db8:3::", 0xc0, 3600, 1800);
    narrow[2] = 60;
    for other in [
        narrow,
        prefix_option("fe80::", 0xc0, 3600, 1800),
        prefix_option("ff02::", 0xc0, 3600, 1800),
        prefix_option("2001:db8:4::", 0xc0, 3600, 3601),
    ] {
        world.receive(&router_says(ROUTER, 1800, &[other]));
    }
    assert_eq!(world.stack.addresses().count(), 2);
}

#[test]
fn floods_of_advertisements_are_bounded() {
    let mut world = World::new(&auto());
    for number in 0..2000_u32 {
        let prefix = format!("2001:db8:{:x}::", number + 1);
        let router = format!("fe80::{:x}", number + 1);
        let mut route = vec![24, 2, 64, 0, 0, 0, 255, 255];
        route.extend(&prefix_option(&prefix, 0, 0, 0)[16..24]);
        let resolver = [
            &[25, 3, 0, 0, 0, 0, 255, 255][..],
            &prefix_option(&prefix, 0, 0, 0)[16..],
        ];
        let options = [
            vec![1, 1, 2, 9, 9, 9, 0, number as u8],
            prefix_option(&prefix, 0xc0, 86_400, 86_400),
            // The default route, with routers distinguished: one of them all the same.
            vec![24, 1, 0, 0, 0, 0, 255, 255],
            route,
            resolver.concat(),
        ];
        world.receive(&router_says(&router, 1800, &options));
        world.receive(&icmpv6(
            &router,
            "fe80::ff:fe00:1",
            255,
            137,
            0,
            &[[7; 16], [8; 16]].concat(),
        ));
    }
    assert_eq!(world.stack.addresses().count(), 1 + AUTOMATIC_MAX);
    assert_eq!(world.stack.resolvers().count(), 8);
    let refused = world.stack.counters().dropped(DropReason::LearntTooMuch);
    let limits = AUTOMATIC_MAX + PREFIXES_MAX + ROUTERS_MAX + LEARNT_ROUTES_MAX;
    assert_eq!(refused, 4 * 2000 - limits as u64);
    // The first router is still used.
    assert_eq!(world.hop("2001:db8:ffff::1"), Some(ip("fe80::1")));
}

#[test]
fn routers_that_do_not_answer_are_gone_round() {
    let mut world = World::new(&auto());
    for router in ["fe80::1", "fe80::2"] {
        world.receive(&router_says(
            router,
            1800,
            &[prefix_option("2001:db8:1::", 0xc0, 3600, 1800)],
        ));
    }
    let far = "2001:db8:2::9";
    let first = world.hop(far).unwrap();
    assert_eq!(world.hop(far), None, "it is asked for already");
    // No host answers for it: the other is used, and then the first again.
    world.pass(5 * SECOND);
    let second = world.hop(far).unwrap();
    assert_ne!(first, second);
    world.pass(5 * SECOND);
    assert_eq!(world.hop(far), Some(first));
    // An advertisement with lifetime 0 ends a router.
    let IpAddr::V6(one) = first else { panic!() };
    world.receive(&advertisement_of(one));
    world.pass(5 * SECOND);
    assert_eq!(world.hop(far), Some(second));
}

#[test]
fn redirects_of_the_router_in_use_are_followed() {
    let mut world = World::new(&auto());
    let prefix = prefix_option("2001:db8:1::", 0xc0, 3600, 1800);
    world.receive(&router_says(
        ROUTER,
        1800,
        &[vec![1, 1, 2, 0, 0, 0, 0, 2], prefix],
    ));
    let ours = world.stack.addresses().next().unwrap().to_string();
    let redirect = |router: &str, target: &str, destination: &str| {
        let both = [target, destination].map(|one| one.parse::<Ipv6Addr>().unwrap().octets());
        icmpv6(router, &ours, 255, 137, 0, &both.concat())
    };
    let far = "2001:db8:2::9";
    for forged in [
        redirect("fe80::66", "fe80::7", far),
        redirect(ROUTER, "2001:db8:1::7", far),
        redirect(ROUTER, "fe80::7", "ff02::5"),
        redirect(ROUTER, "fe80::7", "2001:db8:1::9"),
        redirect(ROUTER, &ours, far),
    ] {
        world.receive(&forged);
        assert_eq!(world.hop(far), None, "it goes to the router that is known");
    }
    assert_eq!(world.stack.counters().dropped(DropReason::RouterRefused), 5);
    world.receive(&redirect(ROUTER, "fe80::7", far));
    assert_eq!(world.hop(far), Some(ip("fe80::7")));
    world.receive(&redirect(ROUTER, "2001:db8:2::a", "2001:db8:2::a"));
    assert_eq!(world.hop("2001:db8:2::a"), Some(ip("2001:db8:2::a")));
    for number in 0..1000 {
        let destination = format!("2001:db8:3::{number:x}");
        world.receive(&redirect(ROUTER, "fe80::7", &destination));
    }
    let refused = world.stack.counters().dropped(DropReason::LearntTooMuch);
    assert_eq!(refused, 1002 - REDIRECTS_MAX as u64);
    // They end.
    world.pass(601 * SECOND);
    assert_eq!(world.hop(far), Some(ip(ROUTER)));
}

#[test]
fn resolvers_end_with_their_time() {
    let mut world = World::new(&auto());
    let resolver: Ipv6Addr = "2001:db8::53".parse().unwrap();
    let option = [&[25, 3, 0, 0, 0, 0, 0, 30][..], &resolver.octets()].concat();
    world.receive(&router_says(ROUTER, 1800, &[option]));
    world.pass(29 * SECOND);
    assert!(world.stack.resolvers().eq([IpAddr::from(resolver)]));
    world.pass(2 * SECOND);
    assert_eq!(world.stack.resolvers().count(), 0);
}

/// RFC 6980 §5: not from fragments, and be it a single one.
#[test]
fn neighbour_discovery_is_not_believed_from_fragments() {
    let mut world = World::new(&auto());
    world.pass(10 * SECOND);
    world.take();
    let ours = world.stack.addresses().next().unwrap();
    let IpAddr::V6(ours) = ours else { panic!() };
    let from: Ipv6Addr = ROUTER.parse().unwrap();
    let body = [&ours.octets()[..], &[1, 1], &OTHER.0].concat();
    let addresses = (from, ours);
    let message = packet::icmpv6_message(addresses, 135, 0, &body);
    assert_eq!(message.len(), 32);
    let ends = [HARDWARE[0], OTHER];
    let in_pieces = |places: &[std::ops::Range<usize>]| {
        let piece = |place: &std::ops::Range<usize>| {
            let more = u8::from(place.end < message.len());
            let header = [58, 0, 0, place.start as u8 | more, 0, 0, 0, 9];
            let payload = [&header[..], &message[place.clone()]].concat();
            packet::v6(ends, addresses, Protocol::IPV6_FRAGMENT, 255, &payload)
        };
        places.iter().map(piece).collect::<Vec<_>>()
    };
    let refused = |world: &World| world.stack.counters().dropped(DropReason::NeighbourRefused);
    for (number, ends) in [&[0, 32][..], &[0, 16, 32]].into_iter().enumerate() {
        let places: Vec<_> = ends.windows(2).map(|two| two[0]..two[1]).collect();
        for frame in in_pieces(&places) {
            world.receive(&frame);
        }
        assert_eq!(world.take().len(), 0);
        assert_eq!(refused(&world), number as u64 + 1);
    }
    // Whole it is answered.
    world.receive(&packet::icmpv6(ends, addresses, 255, 135, 0, &body));
    assert_eq!(world.take().len(), 1);
}

/// RFC 2710 §3, RFC 3810 §6.2.
#[test]
fn group_queries_without_router_alert_are_refused() {
    let mut world = World::new(&auto());
    let socket = world.stack.udp_bind("[::]:5".parse().unwrap()).unwrap();
    world.stack.udp_join(socket, ip("ff15::5")).unwrap();
    world.pass(30 * SECOND);
    world.take();
    world.receive(&icmpv6(ROUTER, "ff02::1", 1, 130, 0, &[0; 20]));
    world.pass(SECOND);
    assert_eq!(world.take().len(), 0);
    assert_eq!(world.stack.counters().dropped(DropReason::GroupRefused), 1);
    let addresses = (ROUTER.parse().unwrap(), "ff02::1".parse().unwrap());
    let ends = [HARDWARE[0], OTHER];
    // Of no version's length (RFC 3810 §8.1).
    for len in 17..20 {
        world.receive(&packet::mld(ends, addresses, 130, 0, &vec![0; len]));
    }
    world.pass(SECOND);
    assert_eq!(world.take().len(), 0);
    assert_eq!(world.stack.counters().dropped(DropReason::Malformed), 3);
    world.receive(&packet::mld(ends, addresses, 130, 0, &[0; 20]));
    world.pass(SECOND);
    assert_eq!(world.take().len(), 1);
}
