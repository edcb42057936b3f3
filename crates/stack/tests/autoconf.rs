//! How a host comes by its addresses and routes: conflicts, routers'
//! advertisements, DHCP, groups. By frames written by hand, in the test's time.

mod common;

use common::{HARDWARE, ip};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use weir_stack::host::{
    AUTOMATIC_MAX, Detect, DropReason, Event, LEARNT_ROUTES_MAX, Lost, Origin, PREFIXES_MAX,
    REDIRECTS_MAX, ROUTERS_MAX,
};
use weir_stack::{Config, Stack};
use weir_wire::dhcp::Kind;
use weir_wire::ethernet::Address;
use weir_wire::{Addresses, EtherType, Protocol, arp, dhcp, ethernet, icmp, ipv4, ipv6, nd, udp};

const SECOND: u64 = 1_000_000_000;
const ROUTER: &str = "fe80::1";
const OTHER: Address = HARDWARE[1];

/// A stack, what it sent, and the time.
struct World {
    stack: Stack,
    now_ns: u64,
    sent: Vec<Vec<u8>>,
}

impl World {
    fn new(config: &Config) -> World {
        let mut world = World {
            stack: Stack::new(config, 7).unwrap(),
            now_ns: 5,
            sent: Vec::new(),
        };
        world.poll();
        world
    }

    fn poll(&mut self) -> Option<u64> {
        self.stack.poll(self.now_ns, &mut self.sent)
    }

    fn receive(&mut self, frame: &[u8]) {
        self.stack.receive(self.now_ns, frame);
        self.poll();
    }

    /// Lets time pass, each deadline at its time.
    fn pass(&mut self, ns: u64) {
        let end_ns = self.now_ns + ns;
        let mut polls = 0;
        while let Some(next_ns) = self.poll().filter(|next_ns| *next_ns <= end_ns) {
            self.now_ns = self.now_ns.max(next_ns);
            polls += 1;
            assert!(polls < 10_000, "time stands still at {}", self.now_ns);
        }
        self.now_ns = end_ns;
        self.poll();
    }

    fn take(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.sent)
    }

    fn has(&self, address: &str) -> bool {
        self.stack.addresses().any(|one| one == ip(address))
    }

    fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.stack.next_event()).collect()
    }

    /// The first hop of a datagram to an address, if there is one.
    fn hop(&mut self, to: &str) -> Option<IpAddr> {
        self.take();
        let any = match ip(to) {
            IpAddr::V4(_) => "0.0.0.0:0",
            IpAddr::V6(_) => "[::]:0",
        };
        let socket = self.stack.udp_bind(any.parse().unwrap()).unwrap();
        let sent = self
            .stack
            .udp_send(self.now_ns, socket, (ip(to), 9).into(), b"x");
        self.poll();
        self.stack.udp_close(socket);
        sent.ok()?;
        self.take().iter().find_map(|frame| {
            let packet = &frame[14..];
            match &frame[12..14] {
                [8, 6] => Some(
                    arp::Repr::parse(&arp::Packet::new(packet).unwrap())
                        .target_ip
                        .into(),
                ),
                [0x86, 0xdd] => neighbour(packet).map(|one| one.target.into()),
                _ => None,
            }
        })
    }
}

/// The neighbour message in a packet.
fn neighbour(packet: &[u8]) -> Option<nd::Repr> {
    let packet = ipv6::Packet::new(packet).ok()?;
    let message = icmp::Message::new(packet.payload()).ok()?;
    nd::Repr::parse(&message)?.ok()
}

fn arps(frames: &[Vec<u8>]) -> Vec<arp::Repr> {
    let arps = frames.iter().filter(|frame| frame[12..14] == [8, 6]);
    arps.map(|frame| arp::Repr::parse(&arp::Packet::new(&frame[14..]).unwrap()))
        .collect()
}

fn frame(dst: Address, ether_type: EtherType, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; ethernet::Repr::LEN];
    ethernet::Repr {
        dst,
        src: OTHER,
        ether_type,
    }
    .emit(&mut bytes);
    bytes.extend_from_slice(payload);
    bytes
}

fn arp_from(sender_ip: &str, target_ip: &str, operation: arp::Operation) -> Vec<u8> {
    let mut bytes = [0; arp::Repr::LEN];
    arp::Repr {
        operation,
        sender: OTHER,
        sender_ip: sender_ip.parse().unwrap(),
        target: Address::default(),
        target_ip: target_ip.parse().unwrap(),
    }
    .emit(&mut bytes);
    frame(Address::BROADCAST, EtherType::ARP, &bytes)
}

/// An ICMPv6 message of this type, `rest` and body.
fn icmpv6(src: &str, dst: &str, hop_limit: u8, kind: u8, rest: u32, body: &[u8]) -> Vec<u8> {
    let (src, dst): (Ipv6Addr, Ipv6Addr) = (src.parse().unwrap(), dst.parse().unwrap());
    let mut message = vec![0; 8];
    message.extend_from_slice(body);
    let code = 0;
    icmp::Repr { kind, code, rest }.emit(&mut message, Addresses::V6(src, dst));
    let mut packet = vec![0; ipv6::Repr::LEN];
    ipv6::Repr {
        src,
        dst,
        next_header: Protocol::ICMPV6,
        hop_limit,
        traffic_class: 0,
        flow_label: 0,
        payload_len: message.len(),
    }
    .emit(&mut packet);
    packet.extend(message);
    frame(HARDWARE[0], EtherType::IPV6, &packet)
}

fn solicitation(src: &str, target: Ipv6Addr) -> Vec<u8> {
    let dst = Ipv6Addr::from_bits(
        0xff02_0000_0000_0000_0000_0001_ff00_0000 | target.to_bits() & 0xff_ffff,
    );
    icmpv6(src, &dst.to_string(), 255, 135, 0, &target.octets())
}

fn advertisement_of(target: Ipv6Addr) -> Vec<u8> {
    let body = [&target.octets()[..], &[2, 1], &OTHER.0].concat();
    icmpv6(ROUTER, "ff02::1", 255, 136, 0x2000_0000, &body)
}

/// What a router advertises.
fn router_says(router: &str, lifetime_s: u16, options: &[Vec<u8>]) -> Vec<u8> {
    let body = [&[0; 8][..], &options.concat()].concat();
    let rest = 64 << 24 | u32::from(lifetime_s);
    icmpv6(router, "ff02::1", 255, 134, rest, &body)
}

fn prefix_option(prefix: &str, flags: u8, valid_s: u32, preferred_s: u32) -> Vec<u8> {
    let mut option = vec![3, 4, 64, flags];
    option.extend(valid_s.to_be_bytes());
    option.extend(preferred_s.to_be_bytes());
    option.extend([0; 4]);
    option.extend(prefix.parse::<Ipv6Addr>().unwrap().octets());
    option
}

fn auto() -> Config {
    let mut config = Config::new(HARDWARE[0]);
    config.autoconf = true;
    config.secret = Some(99);
    config
}

fn v4_config(detect: Detect) -> Config {
    let mut config = Config::new(HARDWARE[0]).address("192.0.2.1/24".parse().unwrap());
    config.detect = detect;
    config
}

fn is_lost_to_another(event: &Event) -> bool {
    matches!(event, Event::Lost(_, Lost::Duplicate(_)))
}

#[test]
fn an_address_is_probed_then_used_then_announced() {
    let mut world = World::new(&v4_config(Detect::Before));
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
        let mut world = World::new(&v4_config(Detect::Before));
        world.pass(SECOND * 3 / 2);
        world.receive(&conflict);
        world.pass(30 * SECOND);
        assert!(!world.has("192.0.2.1"));
        assert!(is_lost_to_another(&world.events()[0]));
    }
    let mut world = World::new(&v4_config(Detect::Meanwhile));
    assert!(world.has("192.0.2.1"));
    world.pass(SECOND);
    world.receive(&arp_from("192.0.2.1", "192.0.2.1", arp::Operation::REPLY));
    assert!(!world.has("192.0.2.1"));
}

/// As a kernel answers a probe: from the very address.
#[test]
fn an_answer_from_the_address_itself_is_heard() {
    for detect in [Detect::Meanwhile, Detect::Before] {
        let mut config = Config::new(HARDWARE[0]).address("2001:db8::1/64".parse().unwrap());
        config.detect = detect;
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
    let mut world = World::new(&v4_config(Detect::Meanwhile));
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
    // The two-hour rule: nobody ends an address at once. Here less is left.
    world.receive(&says(0, 1, 1));
    assert!(world.stack.addresses().any(|one| one == made));
    world.pass(1710 * SECOND);
    assert!(!world.stack.addresses().any(|one| one == made));
    assert!(world.events().contains(&Event::Lost(
        weir_stack::Prefix::new(made, 64).unwrap(),
        Lost::Over
    )));
}

#[test]
fn an_automatic_address_that_another_has_is_made_anew() {
    let mut config = auto();
    config.detect = Detect::Before;
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
            // Somebody has it, says so, or asks for it too.
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
            // The default route, told apart: one of the routers all the same.
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
    // Nobody answers for it: the other is used, and then the first again.
    world.pass(5 * SECOND);
    let second = world.hop(far).unwrap();
    assert_ne!(first, second);
    world.pass(5 * SECOND);
    assert_eq!(world.hop(far), Some(first));
    // One that says that it is no router any more is none.
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

/// The DHCP message in a frame of the stack's, with where it went.
fn asked(frame: &[u8]) -> Option<(Ipv4Addr, Vec<u8>)> {
    let packet = ipv4::Packet::new(frame.get(14..)?).ok()?;
    let datagram = udp::Datagram::new(packet.payload()).ok()?;
    let of_client = (datagram.src_port(), datagram.dst_port()) == (68, 67);
    assert_eq!(
        datagram.checksum_is_right(Addresses::V4(packet.src(), packet.dst())),
        Some(true)
    );
    of_client.then(|| (packet.dst(), datagram.payload().to_vec()))
}

/// An option of a message.
fn option(message: &[u8], wanted: u8) -> Option<Vec<u8>> {
    let mut rest = &message[240..];
    while let [code, len, after @ ..] = rest
        && *code != 255
    {
        if *code == wanted {
            return Some(after[..usize::from(*len)].to_vec());
        }
        rest = &after[usize::from(*len)..];
    }
    None
}

const GIVEN: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 50);

/// A server's answer.
fn answer(ask: &[u8], kind: Kind, options: &[u8]) -> Vec<u8> {
    let mut message = ask[..240].to_vec();
    message[0] = 2;
    message[16..20].copy_from_slice(&GIVEN.octets());
    message.extend([
        53, 1, kind as u8, 54, 4, 192, 0, 2, 2, 1, 4, 255, 255, 255, 0,
    ]);
    message.extend(options);
    message.push(255);
    let addresses = Addresses::V4("192.0.2.2".parse().unwrap(), Ipv4Addr::BROADCAST);
    let mut datagram = vec![0; udp::Repr::LEN];
    datagram.extend(message);
    udp::Repr {
        src_port: dhcp::SERVER_PORT,
        dst_port: dhcp::CLIENT_PORT,
    }
    .emit(&mut datagram, addresses);
    let mut packet = vec![0; ipv4::Repr::LEN];
    ipv4::Repr {
        src: "192.0.2.2".parse().unwrap(),
        dst: Ipv4Addr::BROADCAST,
        protocol: Protocol::UDP,
        ttl: 64,
        traffic_class: 0,
        identification: 1,
        dont_fragment: false,
        payload_len: datagram.len(),
    }
    .emit(&mut packet);
    packet.extend(datagram);
    frame(Address::BROADCAST, EtherType::IPV4, &packet)
}

fn lease_of(seconds: u32) -> Vec<u8> {
    let mut options = vec![
        3, 4, 192, 0, 2, 1, 6, 8, 9, 9, 9, 9, 8, 8, 8, 8, 26, 2, 5, 120,
    ];
    options.extend([51, 4]);
    options.extend(seconds.to_be_bytes());
    options
}

fn dhcp_config() -> Config {
    let mut config = Config::new(HARDWARE[0]);
    config.dhcp = true;
    config.detect = Detect::Meanwhile;
    config
}

impl World {
    /// What was asked of servers since it was last looked at.
    fn asks(&mut self) -> Vec<(Ipv4Addr, Vec<u8>)> {
        self.take()
            .iter()
            .filter_map(|frame| asked(frame))
            .collect()
    }

    fn last_ask(&mut self, kind: Kind) -> (Ipv4Addr, Vec<u8>) {
        let ask = self.asks().pop().unwrap_or_else(|| panic!("no {kind:?}"));
        assert_eq!(option(&ask.1, 53), Some(vec![kind as u8]));
        ask
    }

    /// Until the address is leased.
    fn leased(seconds: u32) -> World {
        let mut world = World::new(&dhcp_config());
        let (to, discover) = world.last_ask(Kind::Discover);
        assert_eq!(to, Ipv4Addr::BROADCAST);
        world.receive(&answer(&discover, Kind::Offer, &[]));
        let (to, request) = world.last_ask(Kind::Request);
        assert_eq!(to, Ipv4Addr::BROADCAST);
        assert_eq!(option(&request, 50), Some(GIVEN.octets().to_vec()));
        assert_eq!(option(&request, 54), Some(vec![192, 0, 2, 2]));
        assert_eq!(request[4..8], discover[4..8]);
        world.receive(&answer(&request, Kind::Ack, &lease_of(seconds)));
        assert!(world.has("192.0.2.50"));
        world
    }

    /// The server's hardware address is known.
    fn know_server(&mut self) {
        self.receive(&arp_from(
            "192.0.2.2",
            "192.0.2.50",
            arp::Operation::REQUEST,
        ));
    }
}

#[test]
fn a_server_gives_an_address_a_router_and_more() {
    let mut world = World::leased(3600);
    let lease = world.stack.lease().unwrap().clone();
    assert_eq!(lease.address.to_string(), "192.0.2.50/24");
    assert_eq!(lease.until_ns, world.now_ns + 3600 * SECOND);
    let resolvers: Vec<IpAddr> = world.stack.resolvers().collect();
    assert_eq!(resolvers, [ip("9.9.9.9"), ip("8.8.8.8")]);
    assert_eq!(world.hop("198.51.100.1"), Some(ip("192.0.2.1")));
    let events = world.events();
    let server = "192.0.2.2".parse().unwrap();
    assert!(
        events.contains(&Event::Lease {
            address: GIVEN,
            server,
            seconds: 3600
        }),
        "{events:?}"
    );
    // An MTU of 1400: a datagram of 1400 goes in two pieces.
    world.know_server();
    world.take();
    let socket = world.stack.udp_bind("0.0.0.0:9".parse().unwrap()).unwrap();
    let to = "192.0.2.2:9".parse().unwrap();
    world
        .stack
        .udp_send(world.now_ns, socket, to, &[0; 1400])
        .unwrap();
    world.poll();
    let sent = world.take();
    assert_eq!(sent.len(), 2, "{sent:?}");
    assert!(sent.iter().all(|frame| frame.len() <= 1414));
}

#[test]
fn asks_back_off_with_jitter() {
    let mut world = World::new(&dhcp_config());
    let mut times = Vec::new();
    for _ in 0..3000 {
        world.pass(SECOND / 10);
        let now_ns = world.now_ns;
        times.extend(world.asks().iter().map(|_| now_ns as f64 / 1e9));
    }
    let apart: Vec<f64> = times.windows(2).map(|two| two[1] - two[0]).collect();
    // RFC 2131 §4.1: 4, 8, 16, 32, 64 seconds, each a second more or less.
    for (apart, due) in apart.iter().zip([4.0, 8.0, 16.0, 32.0, 64.0, 64.0]) {
        assert!((apart - due).abs() <= 1.2, "{times:?}");
    }
    assert!(apart.len() >= 5 && apart.iter().any(|one| (one - one.round()).abs() > 0.01));
}

#[test]
fn a_lease_is_renewed_then_rebound_then_over() {
    let mut world = World::leased(800);
    world.know_server();
    world.take();
    // Half of the time: the server alone is asked.
    world.pass(401 * SECOND);
    let (to, renew) = world.last_ask(Kind::Request);
    assert_eq!(to, Ipv4Addr::new(192, 0, 2, 2));
    assert_eq!(
        (renew[12..16].to_vec(), option(&renew, 50)),
        (GIVEN.octets().to_vec(), None)
    );
    world.receive(&answer(&renew, Kind::Ack, &lease_of(800)));
    let until_ns = world.stack.lease().unwrap().until_ns;
    assert_eq!(until_ns, world.now_ns + 800 * SECOND);
    // It answers no more: all are asked, at seven eighths.
    world.pass(690 * SECOND);
    assert!(
        world
            .asks()
            .iter()
            .all(|(to, _)| *to == Ipv4Addr::new(192, 0, 2, 2))
    );
    world.pass(15 * SECOND);
    let (to, _) = world.last_ask(Kind::Request);
    assert_eq!((to, world.has("192.0.2.50")), (Ipv4Addr::BROADCAST, true));
    world.pass(100 * SECOND);
    assert!(!world.has("192.0.2.50") && world.stack.lease().is_none());
    world.last_ask(Kind::Discover);
    assert_eq!(world.hop("198.51.100.1"), None);
    assert_eq!(world.stack.addresses().count(), 0);
}

#[test]
fn a_refusal_and_a_conflict_begin_anew() {
    let mut world = World::leased(800);
    world.pass(401 * SECOND);
    world.know_server();
    let asks = world.asks();
    let renew = asks.last().map(|(_, ask)| ask.clone());
    let renew = renew.unwrap_or_else(|| {
        world.pass(61 * SECOND);
        world.last_ask(Kind::Request).1
    });
    world.receive(&answer(&renew, Kind::Nak, &[56, 4, b'g', b'o', b'n', b'e']));
    assert!(!world.has("192.0.2.50"));
    let message = Some("gone".to_owned());
    let server = Some(Ipv4Addr::new(192, 0, 2, 2));
    assert!(world.events().contains(&Event::Refused { server, message }));
    world.pass(2 * SECOND);
    world.last_ask(Kind::Discover);

    let mut world = World::leased(800);
    world.pass(SECOND);
    world.take();
    world.receive(&arp_from("192.0.2.50", "192.0.2.50", arp::Operation::REPLY));
    let (_, decline) = world.last_ask(Kind::Decline);
    assert_eq!(option(&decline, 50), Some(GIVEN.octets().to_vec()));
    assert!(!world.has("192.0.2.50"));
    // RFC 2131 §3.1: not at once.
    world.pass(9 * SECOND);
    assert_eq!(world.asks().len(), 0);
    world.pass(2 * SECOND);
    world.last_ask(Kind::Discover);
}

#[test]
fn an_address_is_given_back() {
    let mut world = World::leased(800);
    world.know_server();
    world.take();
    world.stack.release(world.now_ns);
    world.poll();
    let (to, release) = world.last_ask(Kind::Release);
    assert_eq!(to, Ipv4Addr::new(192, 0, 2, 2));
    assert_eq!(release[12..16], GIVEN.octets());
    world.pass(1000 * SECOND);
    assert_eq!(
        (world.asks().len(), world.stack.addresses().count()),
        (0, 0)
    );
}

#[test]
fn answers_to_others_and_nonsense_are_refused() {
    let mut world = World::new(&dhcp_config());
    let (_, discover) = world.last_ask(Kind::Discover);
    let mut other = discover.clone();
    other[7] ^= 1;
    world.receive(&answer(&other, Kind::Offer, &[]));
    let mut other = discover.clone();
    other[33] ^= 1;
    world.receive(&answer(&other, Kind::Offer, &[]));
    // Nothing was requested yet.
    world.receive(&answer(&discover, Kind::Ack, &lease_of(100)));
    let mut cut = answer(&discover, Kind::Offer, &[]);
    cut.truncate(100);
    world.receive(&cut);
    assert_eq!(world.asks().len(), 0);
    assert_eq!(world.stack.counters().dropped(DropReason::DhcpRefused), 3);
    world.receive(&answer(&discover, Kind::Offer, &[]));
    world.last_ask(Kind::Request);
}

#[test]
fn classless_routes_come_before_routers() {
    let mut world = World::new(&dhcp_config());
    let (_, discover) = world.last_ask(Kind::Discover);
    world.receive(&answer(&discover, Kind::Offer, &[]));
    let (_, request) = world.last_ask(Kind::Request);
    let mut options = lease_of(100);
    options.extend([121, 12, 16, 10, 9, 192, 0, 2, 77, 0, 192, 0, 2, 78]);
    world.receive(&answer(&request, Kind::Ack, &options));
    assert_eq!(world.hop("10.9.1.1"), Some(ip("192.0.2.77")));
    assert_eq!(world.hop("198.51.100.1"), Some(ip("192.0.2.78")));
}

#[test]
fn packets_for_who_never_answers_end_connections() {
    let config = Config::new(HARDWARE[0]).address("192.0.2.1/24".parse().unwrap());
    let mut world = World::new(&config);
    let to = "192.0.2.77:80".parse().unwrap();
    let id = world.stack.tcp_connect(world.now_ns, None, to).unwrap();
    world.pass(4 * SECOND);
    let read = world.stack.tcp_read(id, &mut [0]);
    assert_eq!(read, Err(weir_stack::tcp::TcpError::HostUnreachable));
}

#[test]
fn datagrams_go_as_far_as_their_socket_says() {
    let config = Config::new(HARDWARE[0]).address("192.0.2.1/24".parse().unwrap());
    let mut world = World::new(&config);
    world.receive(&arp_from("192.0.2.9", "192.0.2.1", arp::Operation::REQUEST));
    let socket = world.stack.udp_bind("0.0.0.0:9".parse().unwrap()).unwrap();
    let sent = |world: &mut World, to: &str| {
        world.take();
        let to = (ip(to), 9).into();
        world
            .stack
            .udp_send(world.now_ns, socket, to, b"x")
            .unwrap();
        world.poll();
        let frame = world.take().pop().unwrap();
        let packet = ipv4::Packet::new(&frame[14..]).unwrap();
        (packet.ttl(), packet.traffic_class())
    };
    assert_eq!(sent(&mut world, "192.0.2.9"), (64, 0));
    assert_eq!(sent(&mut world, "224.1.1.1"), (1, 0));
    let options = world.stack.udp_options(socket).unwrap();
    (
        options.hop_limit,
        options.group_hop_limit,
        options.traffic_class,
    ) = (3, 5, 0xb8);
    assert_eq!(sent(&mut world, "192.0.2.9"), (3, 0xb8));
    assert_eq!(sent(&mut world, "224.1.1.1"), (5, 0xb8));
}

#[test]
fn a_socket_hears_the_groups_it_is_in() {
    let config = Config::new(HARDWARE[0]).address("192.0.2.1/24".parse().unwrap());
    let mut world = World::new(&config);
    let socket = world.stack.udp_bind("0.0.0.0:9".parse().unwrap()).unwrap();
    let group = ip("224.1.1.1");
    let send = |world: &mut World| {
        let to = (group, 9).into();
        world
            .stack
            .udp_send(world.now_ns, socket, to, b"x")
            .unwrap();
        world.poll();
        world
            .stack
            .udp_receive(socket)
            .map(|one| (one.to, one.bytes))
    };
    assert_eq!(send(&mut world), None);
    world.stack.udp_join(socket, group).unwrap();
    assert!(world.stack.udp_join(socket, group).is_err());
    assert!(world.stack.udp_join(socket, ip("ff15::1")).is_err());
    assert!(world.stack.udp_join(socket, ip("192.0.2.9")).is_err());
    assert_eq!(send(&mut world), Some((group, b"x".to_vec())));
    world.stack.udp_options(socket).unwrap().group_loop = false;
    assert_eq!(send(&mut world), None);
    world.stack.udp_leave(socket, group).unwrap();
    assert!(world.stack.udp_leave(socket, group).is_err());
    for number in 0..30 {
        let joined = world
            .stack
            .udp_join(socket, Ipv4Addr::new(224, 2, 0, number).into());
        assert_eq!(joined.is_ok(), number < 20, "{joined:?}");
    }
    // Closing leaves all: routers are told of each, twice.
    world.pass(5 * SECOND);
    world.take();
    world.stack.udp_close(socket);
    world.pass(5 * SECOND);
    let told = world.take();
    assert!((2..=40).contains(&told.len()), "{}", told.len());
    assert!(
        told.iter()
            .all(|frame| frame[23] == 2 && frame[30..34] == [224, 0, 0, 22])
    );
}
