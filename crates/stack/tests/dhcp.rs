//! The DHCP client, against a server written by hand, in the test's time.

mod common;

use common::packet;
use common::world::{OTHER, SECOND, World, arp_from};
use common::{HARDWARE, ip};
use std::net::{IpAddr, Ipv4Addr};
use weir_stack::iface::{DadMode, DropReason, Event, RemovalReason};
use weir_stack::{Config, Stack};
use weir_wire::dhcp::MessageType;
use weir_wire::ethernet::Address;
use weir_wire::{AddrPair, Protocol, arp, dhcp, ipv4, udp};

/// The DHCP message in a frame of the stack's, with where it went.
fn asked(frame: &[u8]) -> Option<(Ipv4Addr, Vec<u8>)> {
    let packet = ipv4::Packet::new(frame.get(14..)?).ok()?;
    let datagram = udp::Datagram::new(packet.payload()).ok()?;
    let of_client = (datagram.src_port(), datagram.dst_port()) == (68, 67);
    assert_eq!(
        datagram.checksum_is_right(AddrPair::V4(packet.src(), packet.dst())),
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

const SERVER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
const GIVEN: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 50);

/// A server's answer.
fn answer(ask: &[u8], kind: MessageType, options: &[u8]) -> Vec<u8> {
    let mut message = ask[..240].to_vec();
    message[0] = 2;
    message[16..20].copy_from_slice(&GIVEN.octets());
    message.extend([
        53, 1, kind as u8, 54, 4, 192, 0, 2, 2, 1, 4, 255, 255, 255, 0,
    ]);
    message.extend(options);
    message.push(255);
    let addresses = AddrPair::V4(SERVER, Ipv4Addr::BROADCAST);
    let mut datagram = vec![0; udp::Repr::LEN];
    datagram.extend(message);
    udp::Repr {
        src_port: dhcp::SERVER_PORT,
        dst_port: dhcp::CLIENT_PORT,
    }
    .emit(&mut datagram, addresses);
    let ends = [Address::BROADCAST, OTHER];
    packet::v4(
        ends,
        (SERVER, Ipv4Addr::BROADCAST),
        Protocol::UDP,
        64,
        &datagram,
    )
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
    config.dad_mode = DadMode::Optimistic;
    config
}

/// A server cannot take an address from another link.
#[test]
fn an_address_that_another_link_has_is_declined() {
    let at = format!("{GIVEN}/24").parse().unwrap();
    let configs = [dhcp_config(), Config::new(HARDWARE[1]).address(at)];
    let mut world = World::new(&configs[0]);
    world.stack = Stack::with_links(&configs, 7).unwrap();
    world.take();
    world.poll();
    let (_, discover) = world.last_ask(MessageType::Discover);
    world.receive(&answer(&discover, MessageType::Offer, &[]));
    let (_, request) = world.last_ask(MessageType::Request);
    world.receive(&answer(&request, MessageType::Ack, &lease_of(1000)));
    let (_, decline) = world.last_ask(MessageType::Decline);
    assert_eq!(option(&decline, 50), Some(GIVEN.octets().to_vec()));
    let has = |world: &World, link: u8| {
        let mut own = world.stack.link(link).unwrap().addresses();
        own.any(|one| one == IpAddr::from(GIVEN))
    };
    assert!(!has(&world, 0) && has(&world, 1));
    assert_eq!(world.stack.lease(), None);
    let lost = Event::Lost(at, RemovalReason::OtherLink);
    assert!(world.events().contains(&lost));
    // Nothing is left of the lease: what is bound there goes by its own link.
    let bound = world.stack.udp_bind((GIVEN, 9).into()).unwrap();
    let to = (SERVER, 9).into();
    let now_ns = world.now_ns;
    world.stack.udp_send(now_ns, bound, to, b"x").unwrap();
    let mut frames = vec![Vec::new(), Vec::new()];
    world.stack.poll_links(now_ns, &mut frames);
    let counts: Vec<usize> = frames.iter().map(Vec::len).collect();
    assert_eq!(counts, [0, 1]);
}

impl World {
    /// What was asked of servers since it was last looked at.
    fn asks(&mut self) -> Vec<(Ipv4Addr, Vec<u8>)> {
        self.take()
            .iter()
            .filter_map(|frame| asked(frame))
            .collect()
    }

    fn last_ask(&mut self, kind: MessageType) -> (Ipv4Addr, Vec<u8>) {
        let ask = self.asks().pop().unwrap_or_else(|| panic!("no {kind:?}"));
        assert_eq!(option(&ask.1, 53), Some(vec![kind as u8]));
        ask
    }

    /// Until the address is leased.
    fn leased(seconds: u32) -> World {
        let mut world = World::new(&dhcp_config());
        let (to, discover) = world.last_ask(MessageType::Discover);
        assert_eq!(to, Ipv4Addr::BROADCAST);
        world.receive(&answer(&discover, MessageType::Offer, &[]));
        let (to, request) = world.last_ask(MessageType::Request);
        assert_eq!(to, Ipv4Addr::BROADCAST);
        assert_eq!(option(&request, 50), Some(GIVEN.octets().to_vec()));
        assert_eq!(option(&request, 54), Some(vec![192, 0, 2, 2]));
        assert_eq!(request[4..8], discover[4..8]);
        world.receive(&answer(&request, MessageType::Ack, &lease_of(seconds)));
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
    let server = SERVER;
    assert!(
        events.contains(&Event::Lease {
            address: GIVEN,
            server,
            seconds: 3600,
            renewed: false,
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
    let (to, renew) = world.last_ask(MessageType::Request);
    assert_eq!(to, SERVER);
    assert_eq!(
        (renew[12..16].to_vec(), option(&renew, 50)),
        (GIVEN.octets().to_vec(), None)
    );
    world.events();
    world.receive(&answer(&renew, MessageType::Ack, &lease_of(800)));
    // The change is reported; the unchanged router is not.
    let (server, seconds) = (SERVER, 800);
    let renewed = Event::Lease {
        address: GIVEN,
        server,
        seconds,
        renewed: true,
    };
    assert_eq!(world.events(), [renewed]);
    let until_ns = world.stack.lease().unwrap().until_ns;
    assert_eq!(until_ns, world.now_ns + 800 * SECOND);
    // It answers no more: all are asked, at seven eighths.
    world.pass(690 * SECOND);
    assert!(world.asks().iter().all(|(to, _)| *to == SERVER));
    world.pass(15 * SECOND);
    let (to, _) = world.last_ask(MessageType::Request);
    assert_eq!((to, world.has("192.0.2.50")), (Ipv4Addr::BROADCAST, true));
    world.pass(100 * SECOND);
    assert!(!world.has("192.0.2.50") && world.stack.lease().is_none());
    world.last_ask(MessageType::Discover);
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
        world.last_ask(MessageType::Request).1
    });
    world.receive(&answer(
        &renew,
        MessageType::Nak,
        &[56, 4, b'g', b'o', b'n', b'e'],
    ));
    assert!(!world.has("192.0.2.50"));
    let message = Some("gone".to_owned());
    let server = Some(SERVER);
    assert!(world.events().contains(&Event::Refused { server, message }));
    world.pass(2 * SECOND);
    world.last_ask(MessageType::Discover);

    let mut world = World::leased(800);
    world.pass(SECOND);
    world.take();
    world.receive(&arp_from("192.0.2.50", "192.0.2.50", arp::Operation::REPLY));
    let (_, decline) = world.last_ask(MessageType::Decline);
    assert_eq!(option(&decline, 50), Some(GIVEN.octets().to_vec()));
    assert!(!world.has("192.0.2.50"));
    // RFC 2131 §3.1: not at once.
    world.pass(9 * SECOND);
    assert_eq!(world.asks().len(), 0);
    world.pass(2 * SECOND);
    world.last_ask(MessageType::Discover);
}

#[test]
fn an_address_is_given_back() {
    let mut world = World::leased(800);
    world.know_server();
    world.take();
    world.stack.release(world.now_ns);
    world.poll();
    let (to, release) = world.last_ask(MessageType::Release);
    assert_eq!(to, SERVER);
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
    let (_, discover) = world.last_ask(MessageType::Discover);
    let mut other = discover.clone();
    other[7] ^= 1;
    world.receive(&answer(&other, MessageType::Offer, &[]));
    let mut other = discover.clone();
    other[33] ^= 1;
    world.receive(&answer(&other, MessageType::Offer, &[]));
    // Nothing was requested yet.
    world.receive(&answer(&discover, MessageType::Ack, &lease_of(100)));
    let mut cut = answer(&discover, MessageType::Offer, &[]);
    cut.truncate(100);
    world.receive(&cut);
    assert_eq!(world.asks().len(), 0);
    assert_eq!(world.stack.counters().dropped(DropReason::DhcpRefused), 3);
    world.receive(&answer(&discover, MessageType::Offer, &[]));
    world.last_ask(MessageType::Request);
}

#[test]
fn classless_routes_come_before_routers() {
    let mut world = World::new(&dhcp_config());
    let (_, discover) = world.last_ask(MessageType::Discover);
    world.receive(&answer(&discover, MessageType::Offer, &[]));
    let (_, request) = world.last_ask(MessageType::Request);
    let mut options = lease_of(100);
    options.extend([121, 12, 16, 10, 9, 192, 0, 2, 77, 0, 192, 0, 2, 78]);
    world.receive(&answer(&request, MessageType::Ack, &options));
    assert_eq!(world.hop("10.9.1.1"), Some(ip("192.0.2.77")));
    assert_eq!(world.hop("198.51.100.1"), Some(ip("192.0.2.78")));
}

/// RFC 2131 §3.1: how long is said with each address; an answer that does not,
/// or that gives it for no time, gives none.
#[test]
fn an_address_for_no_time_is_none() {
    for options in [vec![], vec![51, 4, 0, 0, 0, 0]] {
        let mut world = World::new(&dhcp_config());
        let (_, discover) = world.last_ask(MessageType::Discover);
        world.receive(&answer(&discover, MessageType::Offer, &[]));
        let (_, request) = world.last_ask(MessageType::Request);
        world.receive(&answer(&request, MessageType::Ack, &options));
        assert!(world.stack.lease().is_none() && !world.has("192.0.2.50"));
        assert_eq!(world.stack.counters().dropped(DropReason::DhcpRefused), 1);
        // And nothing keeps us from one that does.
        world.receive(&answer(&request, MessageType::Ack, &lease_of(3600)));
        assert!(world.has("192.0.2.50"));
    }
}

/// However short it is, it ends when it was said to, and asks are few.
#[test]
fn a_short_lease_is_kept_to() {
    for seconds in [1, 5, 19] {
        let mut world = World::leased(seconds);
        let until_ns = world.now_ns + u64::from(seconds) * SECOND;
        assert_eq!(world.stack.lease().unwrap().until_ns, until_ns);
        world.take();
        world.pass(u64::from(seconds) * SECOND - 1);
        assert!(world.has("192.0.2.50"));
        world.pass(1);
        assert!(!world.has("192.0.2.50") && world.stack.lease().is_none());
        assert_eq!(world.stack.resolvers().count(), 0);
        assert!(world.asks().len() <= 3);
    }
}
