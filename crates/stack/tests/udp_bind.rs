//! Several UDP sockets bound to one address and port (`SO_REUSEPORT`, `SO_REUSEADDR`): which of them receives.

mod common;

use common::HARDWARE;
use common::packet;
use common::world::{OTHER, World, v4_config};
use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use weir_stack::iface::{DadMode, DropReason};
use weir_stack::udp::{BindError, DATAGRAM_COST, UdpBind, UdpId};
use weir_wire::ethernet::Address;
use weir_wire::{AddrPair, Protocol, udp};

const OURS: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const GROUP: Ipv4Addr = Ipv4Addr::new(224, 1, 1, 1);
const ALL: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 255);
const SHARED: UdpBind = UdpBind {
    both_versions: false,
    shared: true,
    reuse_address: false,
};
const REUSED: UdpBind = UdpBind {
    both_versions: false,
    shared: false,
    reuse_address: true,
};

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// A peer by number.
fn peer(number: u16) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 100 + (number % 50) as u8], 1000 + number))
}

/// A datagram from a peer comes to port 9 of `dst`.
fn hear(world: &mut World, from: SocketAddr, dst: Ipv4Addr) {
    let SocketAddr::V4(src) = from else {
        unreachable!("peers are of IPv4")
    };
    let mut datagram = vec![0; udp::Repr::LEN];
    datagram.extend_from_slice(b"x");
    let repr = udp::Repr {
        src_port: from.port(),
        dst_port: 9,
    };
    repr.emit(&mut datagram, AddrPair::V4(*src.ip(), dst));
    let to = match dst {
        OURS => HARDWARE[0],
        ALL => Address::BROADCAST,
        _ => Address([1, 0, 0x5e, 1, 1, 1]),
    };
    let addresses = (*src.ip(), dst);
    let frame = packet::v4([to, OTHER], addresses, Protocol::UDP, 64, &datagram);
    world.receive(&frame);
}

/// The sockets that have received datagrams since, and their senders.
fn heard(world: &mut World, sockets: &[UdpId]) -> Vec<(usize, SocketAddr)> {
    let mut all = Vec::new();
    for (number, socket) in sockets.iter().enumerate() {
        while let Some(datagram) = world.stack.udp_receive(*socket) {
            all.push((number, datagram.from));
        }
    }
    all
}

fn world(count: usize) -> (World, Vec<UdpId>) {
    let mut world = World::new(&v4_config(DadMode::Off));
    let bind = |_| world.stack.udp_bind_with(at("0.0.0.0:9"), SHARED).unwrap();
    let sockets = (0..count).map(bind).collect();
    (world, sockets)
}

#[test]
fn peers_are_spread_and_each_stays_with_one_socket() {
    let (mut world, mut sockets) = world(4);
    let mut where_heard = HashMap::new();
    let mut met = [0; 4];
    for round in 0..3 {
        for number in 0..400 {
            hear(&mut world, peer(number), OURS);
            let [(socket, from)] = heard(&mut world, &sockets)[..] else {
                panic!("peer {number} is heard by one")
            };
            assert_eq!(from, peer(number));
            let first = *where_heard.entry(number).or_insert(socket);
            assert_eq!(first, socket, "peer {number}, round {round}");
            met[socket] += 1;
        }
    }
    // 300 each on the average, in threes.
    assert!(met.iter().all(|met| (150..450).contains(met)), "{met:?}");
    // Who is left hears all, whichever goes.
    while let Some(gone) = sockets.pop() {
        world.stack.udp_close(gone);
        for number in 0..20 {
            hear(&mut world, peer(number), OURS);
        }
        let expected = if sockets.is_empty() { 0 } else { 20 };
        assert_eq!(heard(&mut world, &sockets).len(), expected);
    }
    assert!(world.stack.udp_bind(at("0.0.0.0:9")).is_ok());
}

/// As in Linux.
#[test]
fn of_those_that_reuse_an_address_the_last_receives() {
    let (mut world, _) = world(0);
    let bind = |world: &mut World, how| world.stack.udp_bind_with(at("0.0.0.0:9"), how);
    let mut sockets: Vec<UdpId> = (0..3).map(|_| bind(&mut world, REUSED).unwrap()).collect();
    assert!(bind(&mut world, UdpBind::default()).is_err());
    assert!(bind(&mut world, SHARED).is_err());
    let heard_by = |world: &mut World, sockets: &[UdpId]| {
        for number in 0..20 {
            hear(world, peer(number), OURS);
        }
        let heard = heard(world, sockets);
        assert_eq!(heard.len(), 20);
        assert!(heard.iter().all(|(socket, _)| *socket == heard[0].0));
        heard[0].0
    };
    assert_eq!(heard_by(&mut world, &sockets), 2);
    world.stack.udp_close(sockets.pop().unwrap());
    assert_eq!(heard_by(&mut world, &sockets), 1);
    world.stack.udp_close(sockets.remove(0));
    let both = UdpBind {
        shared: true,
        ..REUSED
    };
    sockets.push(bind(&mut world, both).unwrap());
    assert_eq!(heard_by(&mut world, &sockets), 1);
    hear(&mut world, peer(1), ALL);
    assert_eq!(heard(&mut world, &sockets).len(), 2);
    // A connected one has its peer's datagrams alone.
    world.stack.udp_connect(sockets[1], peer(7)).unwrap();
    hear(&mut world, peer(7), OURS);
    hear(&mut world, peer(8), OURS);
    let expected = [(0, peer(8)), (1, peer(7))];
    assert_eq!(heard(&mut world, &sockets), expected);
    // What a closed socket lacked counts no more.
    world.stack.udp_close(sockets.remove(0));
    assert!(bind(&mut world, SHARED).is_ok());
    assert!(bind(&mut world, REUSED).is_err());
}

#[test]
fn all_must_share_and_the_same_place() {
    let (mut world, _sockets) = world(1);
    let taken = |world: &mut World, place: &str, how| {
        let bound = world.stack.udp_bind_with(at(place), how);
        matches!(bound, Err(BindError::InUse(_)))
    };
    let alone = UdpBind::default();
    let both = UdpBind {
        both_versions: true,
        ..SHARED
    };
    assert!(taken(&mut world, "0.0.0.0:9", alone));
    assert!(taken(&mut world, "[::]:9", both));
    assert!(!taken(&mut world, "0.0.0.0:9", SHARED));
    assert!(!taken(&mut world, "0.0.0.0:10", alone));
    assert!(taken(&mut world, "0.0.0.0:10", SHARED));
    assert!(!taken(&mut world, "[::]:11", both));
    assert!(!taken(&mut world, "[::]:11", both));
    assert!(taken(&mut world, "0.0.0.0:11", SHARED));
}

#[test]
fn groups_and_all_stations_are_heard_by_each() {
    let (mut world, sockets) = world(3);
    world.stack.udp_join(sockets[1], GROUP.into()).unwrap();
    for dst in [GROUP, ALL] {
        hear(&mut world, peer(1), dst);
        let all: Vec<_> = (0..3).map(|socket| (socket, peer(1))).collect();
        assert_eq!(heard(&mut world, &sockets), all, "{dst}");
    }
    // What we send to the group ourselves, too.
    let sent = world
        .stack
        .udp_send(world.now_ns, sockets[2], (GROUP, 9).into(), b"x");
    sent.unwrap();
    let ours = (OURS, 9).into();
    assert_eq!(
        heard(&mut world, &sockets),
        [(0, ours), (1, ours), (2, ours)]
    );
}

/// As servers do that have a socket for each client: it is bound where the one is
/// that hears newcomers, and connected.
#[test]
fn a_connected_socket_receives_from_its_peer_and_leaves_the_rest() {
    let (mut world, sockets) = world(2);
    world.stack.udp_connect(sockets[1], peer(1)).unwrap();
    for number in 0..20 {
        hear(&mut world, peer(number), OURS);
    }
    let all = heard(&mut world, &sockets);
    assert_eq!(all.len(), 20);
    for (socket, from) in all {
        assert_eq!(socket, usize::from(from == peer(1)), "{from}");
    }
    // A datagram to all stations is not from a connected peer.
    hear(&mut world, peer(1), ALL);
    assert_eq!(heard(&mut world, &sockets), [(0, peer(1))]);
    world.stack.udp_close(sockets[1]);
    hear(&mut world, peer(1), OURS);
    assert_eq!(heard(&mut world, &sockets), [(0, peer(1))]);
}

#[test]
fn a_connected_socket_keeps_its_place_and_refuses_strangers() {
    let (mut world, sockets) = world(1);
    world.stack.udp_connect(sockets[0], peer(1)).unwrap();
    hear(&mut world, peer(2), OURS);
    assert_eq!(heard(&mut world, &sockets), []);
    let drops: Vec<_> = world.stack.counters().drops().collect();
    assert_eq!(drops, [(DropReason::PortUnknown, 1)]);
    let here = SocketAddr::from((OURS, 9));
    assert_eq!(
        world.stack.udp_bind(here),
        Err(BindError::InUse(here)),
        "it does not share"
    );
    let other = world.stack.udp_bind_with(here, SHARED).unwrap();
    hear(&mut world, peer(2), OURS);
    assert_eq!(
        heard(&mut world, &[sockets[0], other]),
        [(1, peer(2))],
        "it does"
    );
    // To another peer, it hears that one, and the first is a stranger.
    world.stack.udp_connect(sockets[0], peer(3)).unwrap();
    for number in [1, 3] {
        hear(&mut world, peer(number), OURS);
    }
    assert_eq!(
        heard(&mut world, &[sockets[0], other]),
        [(0, peer(3)), (1, peer(1))]
    );
    world.stack.udp_close(sockets[0]);
    world.stack.udp_close(other);
    assert!(world.stack.udp_bind(here).is_ok());
}

#[test]
fn a_connection_that_is_undone_leaves_a_socket_as_it_was() {
    let (mut world, sockets) = world(1);
    let restore = |world: &mut World, before| world.stack.udp_restore(sockets[0], before);
    let open = world.stack.udp_connect(sockets[0], peer(1)).unwrap();
    let first = world.stack.udp_connect(sockets[0], peer(2)).unwrap();
    restore(&mut world, first).unwrap();
    for number in [1, 2] {
        hear(&mut world, peer(number), OURS);
    }
    assert_eq!(heard(&mut world, &sockets), [(0, peer(1))]);
    restore(&mut world, open).unwrap();
    assert_eq!(world.stack.udp_local(sockets[0]), Some(at("0.0.0.0:9")));
    for number in [1, 2] {
        hear(&mut world, peer(number), OURS);
    }
    assert_eq!(heard(&mut world, &sockets), [(0, peer(1)), (0, peer(2))]);
    // Another has its peer meanwhile.
    let other = world.stack.udp_bind_with(at("0.0.0.0:9"), SHARED).unwrap();
    world.stack.udp_connect(other, peer(1)).unwrap();
    let here = SocketAddr::from((OURS, 9));
    assert_eq!(restore(&mut world, first), Err(BindError::InUse(here)));
    world.stack.udp_close(sockets[0]);
    assert_eq!(restore(&mut world, open), Err(BindError::Closed));
}

#[test]
fn a_socket_that_loses_its_peer_hears_all_again_or_keeps_it() {
    let (mut world, sockets) = world(1);
    let socket = sockets[0];
    world.stack.udp_connect(socket, peer(1)).unwrap();
    hear(&mut world, peer(1), OURS);
    world.stack.udp_disconnect(socket).unwrap();
    hear(&mut world, peer(2), OURS);
    let both = [(0, peer(1)), (0, peer(2))];
    assert_eq!(heard(&mut world, &sockets), both, "what waited stays");
    // Another socket takes the address that a connected one leaves: there is no way back.
    let any = at("0.0.0.0:10");
    let first = world.stack.udp_bind(any).unwrap();
    world.stack.udp_connect(first, peer(1)).unwrap();
    let second = world.stack.udp_bind(any).unwrap();
    let refused = world.stack.udp_disconnect(first);
    assert_eq!(refused, Err(BindError::InUse(any)));
    let here = SocketAddr::from((OURS, 10));
    assert_eq!(world.stack.udp_local(first), Some(here));
    world.stack.udp_close(second);
    world.stack.udp_disconnect(first).unwrap();
    assert_eq!(world.stack.udp_local(first), Some(any));
}

#[test]
fn the_queue_of_a_socket_takes_as_many_bytes_as_were_set() {
    let (mut world, sockets) = world(1);
    let options = world.stack.udp_options(sockets[0]).unwrap();
    options.queue_bytes = 3 * (DATAGRAM_COST + 1);
    for number in 0..5 {
        hear(&mut world, peer(number), OURS);
    }
    assert_eq!(heard(&mut world, &sockets).len(), 3);
    let drops: Vec<_> = world.stack.counters().drops().collect();
    assert_eq!(drops, [(DropReason::SocketFull, 2)]);
}
