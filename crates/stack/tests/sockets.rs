//! What sockets see of addresses, neighbours and groups, by frames written by
//! hand.

mod common;

use common::world::{ROUTER, SECOND, World, arp_from, auto, prefix_option, router_says, v4_config};
use common::{Pair, V6, config, ip};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use weir_link::mem::Impairments;
use weir_stack::iface::{DadMode, DropReason};
use weir_stack::tcp::{TcpError, TcpId};
use weir_stack::udp::{SendError, UdpId};
use weir_wire::{arp, ipv4};

#[test]
fn packets_to_a_silent_neighbour_end_connections() {
    let mut world = World::new(&v4_config(DadMode::Off));
    let to = "192.0.2.77:80".parse().unwrap();
    let id = world.stack.tcp_connect(world.now_ns, None, to).unwrap();
    world.pass(4 * SECOND);
    let read = world.stack.tcp_read(id, &mut [0]);
    assert_eq!(read, Err(weir_stack::tcp::TcpError::HostUnreachable));
}

#[test]
fn datagrams_go_as_far_as_their_socket_says() {
    let mut world = World::new(&v4_config(DadMode::Off));
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
    let mut world = World::new(&v4_config(DadMode::Off));
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
    // Closing leaves all: each is reported to routers, twice.
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

/// Two hosts, of which the first has an automatic address for twenty seconds;
/// a connection and two UDP sockets between them.
struct Leased {
    pair: Pair,
    ours: IpAddr,
    tcp: [TcpId; 2],
    udp: [UdpId; 2],
}

impl Leased {
    fn new() -> Leased {
        let mut pair = Pair::with([auto(), config(1)], Impairments::default(), 9);
        let advertisement = Leased::advertisement();
        pair.stacks[0].receive(pair.now_ns, &advertisement);
        let global = |ip: &IpAddr| matches!(ip, IpAddr::V6(ip) if !ip.is_unicast_link_local());
        let ours = pair.stacks[0].addresses().find(global).unwrap();
        let at = |address: IpAddr| SocketAddr::new(address, 7);
        let theirs = at(ip(V6[1]));
        let listener = pair.stacks[1].tcp_listen(theirs, 1).unwrap();
        let now_ns = pair.now_ns;
        let client = pair.stacks[0].tcp_connect(now_ns, None, theirs).unwrap();
        let mut server = None;
        pair.run(SECOND, |pair| {
            server = pair.stacks[1].tcp_accept(pair.now_ns, listener).ok();
            server.is_some()
        });
        let udp = [at(ours), theirs].map(SocketAddr::from);
        let ids = [0, 1].map(|end| pair.stacks[end].udp_bind(udp[end]).unwrap());
        pair.stacks[0].udp_connect(ids[0], theirs).unwrap();
        let mut leased = Leased {
            pair,
            ours,
            tcp: [client, server.unwrap()],
            udp: ids,
        };
        assert_eq!(leased.exchange(), (true, true, true, true));
        leased
    }

    fn advertisement() -> Vec<u8> {
        // The network stays.
        let options = [
            prefix_option("2001:db8::", 0x40, 20, 20),
            prefix_option("2001:db8::", 0x80, 3600, 0),
        ];
        router_says(ROUTER, 1800, &options)
    }

    /// Both write, and both send a datagram: which bytes arrive within a second,
    /// ours and theirs by TCP, ours and theirs by UDP.
    fn exchange(&mut self) -> (bool, bool, bool, bool) {
        let now_ns = self.pair.now_ns;
        let stacks = &mut self.pair.stacks;
        for (stack, id) in stacks.iter_mut().zip(self.tcp) {
            stack.tcp_write(id, b"x").unwrap();
        }
        let [ours, theirs] = [self.ours, ip(V6[1])].map(|ip| SocketAddr::new(ip, 7));
        let sent = stacks[0].udp_send(now_ns, self.udp[0], theirs, b"x");
        assert!(matches!(sent, Ok(()) | Err(SendError::NoRoute(_))));
        stacks[1].udp_send(now_ns, self.udp[1], ours, b"x").unwrap();
        self.pair.run(SECOND, |_| false);
        let stacks = &mut self.pair.stacks;
        let mut read = |end: usize| match stacks[end].tcp_read(self.tcp[end], &mut [0; 9]) {
            Ok(count) => count > 0,
            Err(error) => (error != TcpError::WouldBlock) && panic!("{error}"),
        };
        let tcp = [read(1), read(0)];
        let mut came = |end: usize| stacks[end].udp_receive(self.udp[end]).is_some();
        (tcp[0], tcp[1], came(1), came(0))
    }
}

/// RFC 4862 §5.5.4: what is over is no source any more, of nothing that is open
/// neither, and nothing is taken that comes for it, on no path. Back again, it
/// goes on (RFC 2131 §4.4.5).
#[test]
fn what_is_open_stands_still_while_its_address_is_lost() {
    let mut leased = Leased::new();
    // Where the first second has left something, and the fast paths are armed.
    let fast = |leased: &Leased| {
        let counters = leased.pair.stacks[0].counters();
        counters.segments_fast + counters.datagrams_fast
    };
    assert_eq!(leased.exchange(), (true, true, true, true));
    assert!(fast(&leased) > 0);
    leased.pair.run(20 * SECOND, |_| false);
    let gone = leased.ours;
    assert!(!leased.pair.stacks[0].addresses().any(|ip| ip == gone));
    let before = fast(&leased);
    for _ in 0..3 {
        assert_eq!(leased.exchange(), (false, false, false, false));
    }
    assert_eq!(fast(&leased), before);
    let counters = leased.pair.stacks[0].counters();
    assert!(counters.dropped(DropReason::SourceLost) > 0);
    assert!(counters.dropped(DropReason::NotOurAddress) > 0);

    let now_ns = leased.pair.now_ns;
    leased.pair.stacks[0].receive(now_ns, &Leased::advertisement());
    leased.pair.run(10 * SECOND, |_| false);
    let _ = leased.exchange();
    assert_eq!(leased.exchange(), (true, true, true, true));
    assert!(fast(&leased) > before);
}
