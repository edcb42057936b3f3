//! What sockets see of addresses, neighbours and groups, by frames written by
//! hand.

mod common;

use common::ip;
use common::world::{SECOND, World, arp_from, v4_config};
use std::net::Ipv4Addr;
use weir_stack::host::Detect;
use weir_wire::{arp, ipv4};

#[test]
fn packets_for_who_never_answers_end_connections() {
    let mut world = World::new(&v4_config(Detect::Never));
    let to = "192.0.2.77:80".parse().unwrap();
    let id = world.stack.tcp_connect(world.now_ns, None, to).unwrap();
    world.pass(4 * SECOND);
    let read = world.stack.tcp_read(id, &mut [0]);
    assert_eq!(read, Err(weir_stack::tcp::TcpError::HostUnreachable));
}

#[test]
fn datagrams_go_as_far_as_their_socket_says() {
    let mut world = World::new(&v4_config(Detect::Never));
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
    let mut world = World::new(&v4_config(Detect::Never));
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
