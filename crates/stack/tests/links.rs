//! One host on several links: what belongs to a link stays on it.

mod common;

use common::ip;
use common::packet::{self, frame};
use std::net::{IpAddr, SocketAddr};
use weir_stack::iface::{ConfigError, DropReason, Event, RemovalReason, RxMeta};
use weir_stack::tcp::{State, TcpError, TcpId};
use weir_stack::udp::{GroupError, SendError, UdpId};
use weir_stack::{Config, LINKS_MAX, Stack, TxSink, TxSinks};
use weir_wire::ethernet::Address;
use weir_wire::{AddrPair, EtherType, Protocol, ipv4, tcp, udp};

const SECOND: u64 = 1_000_000_000;

/// A hardware address on a link.
fn hardware(link: u8, host: u8) -> Address {
    Address([2, 0, 0, 0, link, host])
}

/// A host on one link, at 10.LINK.0.HOST and 2001:db8:LINK::HOST.
fn config(link: u8, host: u8) -> Config {
    Config::new(hardware(link, host))
        .address(format!("10.{link}.0.{host}/24").parse().unwrap())
        .address(format!("2001:db8:{link}::{host}/64").parse().unwrap())
}

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// A host on two links, and others, each on one of them.
struct World {
    host: Stack,
    others: Vec<(u8, Stack)>,
    now_ns: u64,
    /// What the host has sent, by link.
    sent: Vec<Vec<Vec<u8>>>,
}

impl World {
    fn new(configs: &[Config], others: Vec<(u8, Config)>) -> World {
        let made = others.iter().zip(7..);
        World {
            host: Stack::with_links(configs, 5).unwrap(),
            others: made
                .map(|((link, config), seed)| (*link, Stack::new(config, seed).unwrap()))
                .collect(),
            now_ns: 0,
            sent: vec![Vec::new(); configs.len()],
        }
    }

    /// The host is 1 on links 0 and 1, and 9 is its neighbour on each.
    fn plain() -> World {
        let others = vec![(0, config(0, 9)), (1, config(1, 9))];
        World::new(&[config(0, 1), config(1, 1)], others)
    }

    /// Carries frames until none is left.
    fn settle(&mut self) {
        loop {
            let mut frames = vec![Vec::new(); self.sent.len()];
            self.host.poll_links(self.now_ns, &mut frames);
            let mut came = Vec::new();
            for (link, other) in &mut self.others {
                for frame in &frames[usize::from(*link)] {
                    other.receive(self.now_ns, frame);
                }
                let mut back: Vec<Vec<u8>> = Vec::new();
                other.poll(self.now_ns, &mut back);
                came.extend(back.into_iter().map(|frame| (*link, frame)));
            }
            let idle = came.is_empty() && frames.iter().all(Vec::is_empty);
            for (link, frame) in came {
                self.by(link, &frame);
            }
            for (sent, frames) in self.sent.iter_mut().zip(frames) {
                sent.extend(frames);
            }
            if idle {
                return;
            }
        }
    }

    /// A frame comes to the host by a link.
    fn by(&mut self, link: u8, frame: &[u8]) {
        let received = RxMeta {
            link,
            ..RxMeta::default()
        };
        self.host.receive_with(self.now_ns, frame, received);
    }

    fn pass(&mut self, ns: u64) {
        for _ in 0..ns.div_ceil(SECOND / 10) {
            self.now_ns += SECOND / 10;
            self.settle();
        }
    }

    fn other(&mut self, at: usize) -> &mut Stack {
        &mut self.others[at].1
    }

    /// IP frames that the host has sent by each link since it was last asked.
    fn counts(&mut self) -> Vec<usize> {
        let is_ip = |frame: &Vec<u8>| matches!(frame[12..14], [8, 0] | [0x86, 0xdd]);
        let count =
            |frames: &mut Vec<Vec<u8>>| std::mem::take(frames).into_iter().filter(is_ip).count();
        self.sent.iter_mut().map(count).collect()
    }

    fn dropped(&self, link: u8, reason: DropReason) -> u64 {
        self.host.link(link).unwrap().counters().dropped(reason)
    }

    /// The host connects to the other, and each says something; both names of the
    /// connection.
    fn talk(&mut self, other: usize, to: &str) -> (TcpId, TcpId) {
        let now_ns = self.now_ns;
        let bound: SocketAddr = (IpAddr::from([0; 16]), at(to).port()).into();
        let bound = if at(to).is_ipv4() {
            (IpAddr::from([0; 4]), at(to).port()).into()
        } else {
            bound
        };
        let listener = self.other(other).tcp_listen(bound, 4).unwrap();
        let id = self.host.tcp_connect(now_ns, None, at(to)).unwrap();
        self.host.tcp_write(id, b"hello").unwrap();
        self.pass(SECOND);
        let accepted = self.other(other).tcp_accept(now_ns, listener).unwrap();
        let mut heard = [0; 8];
        let count = self.other(other).tcp_read(accepted, &mut heard).unwrap();
        assert_eq!(&heard[..count], b"hello", "{to}");
        self.other(other).tcp_write(accepted, b"well").unwrap();
        self.settle();
        let count = self.host.tcp_read(id, &mut heard).unwrap();
        assert_eq!(&heard[..count], b"well", "{to}");
        self.pass(SECOND);
        (id, accepted)
    }
}

#[test]
fn connections_go_by_the_link_of_their_peer() {
    let mut world = World::plain();
    for (link, to, from) in [
        (0, "10.0.0.9:80", "10.0.0.1"),
        (1, "10.1.0.9:80", "10.1.0.1"),
        (0, "[2001:db8::9]:80", "2001:db8:0::1"),
        (1, "[2001:db8:1::9]:80", "2001:db8:1::1"),
    ] {
        world.settle();
        world.counts();
        let (id, _) = world.talk(link, to);
        let (local, remote) = world.host.tcp_ends(id).unwrap();
        assert_eq!((local.ip(), remote), (ip(from), at(to)));
        let counts = world.counts();
        assert!(
            counts[link] >= 3 && counts[1 - link] == 0,
            "{to} {counts:?}"
        );
    }
    let fast: Vec<u64> = (0..2)
        .map(|link| world.host.link(link).unwrap().counters().segments_fast)
        .collect();
    assert!(fast[0] >= 2 && fast[1] >= 2, "{fast:?}");
    assert_eq!(world.host.counters().segments_fast, fast[0] + fast[1]);
    assert!(world.host.link(2).is_none());
}

#[test]
fn one_listener_hears_all_links() {
    let mut world = World::plain();
    let listener = world.host.tcp_listen(at("0.0.0.0:80"), 8).unwrap();
    for (other, to) in ["10.0.0.1:80", "10.1.0.1:80"].into_iter().enumerate() {
        let id = world.other(other).tcp_connect(0, None, at(to)).unwrap();
        world.settle();
        let accepted = world.host.tcp_accept(0, listener).unwrap();
        assert_eq!(world.host.tcp_ends(accepted).unwrap().0, at(to));
        world.counts();
        world.host.tcp_write(accepted, b"hello").unwrap();
        world.settle();
        assert_eq!(world.counts()[1 - other], 0);
        assert_eq!(world.other(other).tcp_read(id, &mut [0; 9]), Ok(5));
    }
}

/// The strong end system model: not even a neighbour that knows the addresses of
/// another link reaches them, by the standard path or by the fast one.
#[test]
fn what_comes_by_another_link_is_not_for_us() {
    let mut world = World::plain();
    let (id, its) = world.talk(1, "10.1.0.9:80");
    let (local, remote) = world.host.tcp_ends(id).unwrap();
    // What the peer says next, as the peer sends it and to the other link.
    world.other(1).tcp_write(its, b"more").unwrap();
    let mut frames: Vec<Vec<u8>> = Vec::new();
    let now_ns = world.now_ns;
    world.other(1).poll(now_ns, &mut frames);
    let right = frames.pop().unwrap();
    let mut wrong = right.clone();
    wrong[..6].copy_from_slice(&hardware(0, 1).0);
    world.by(0, &wrong);
    assert_eq!(
        world.host.tcp_read(id, &mut [0; 9]),
        Err(TcpError::WouldBlock)
    );
    assert_eq!(world.dropped(0, DropReason::NotOurAddress), 1);
    // A guessed reset, too.
    world.by(0, &reset(hardware(0, 1), remote, local));
    assert_eq!(world.dropped(0, DropReason::NotOurAddress), 2);
    world.by(1, &right);
    assert_eq!(world.host.tcp_read(id, &mut [0; 9]), Ok(4));
    // Nor is there a link 2.
    world.by(2, &right);
    assert_eq!(world.dropped(0, DropReason::OtherLink), 1);
}

fn reset(to: Address, src: SocketAddr, dst: SocketAddr) -> Vec<u8> {
    let addresses = AddrPair::new(src.ip(), dst.ip()).unwrap();
    let AddrPair::V4(source, target) = addresses else {
        panic!("of IPv4");
    };
    let repr = tcp::Repr {
        src_port: src.port(),
        dst_port: dst.port(),
        seq: 1,
        ack: 1,
        flags: tcp::Flags::RST,
        window: 0,
        urgent: 0,
        options: tcp::Options::default(),
    };
    let header = ipv4::Repr {
        src: source,
        dst: target,
        protocol: Protocol::TCP,
        ttl: 64,
        traffic_class: 0,
        identification: 0,
        dont_fragment: true,
        payload_len: repr.header_len(),
    };
    let mut packet = vec![0; ipv4::Repr::LEN + repr.header_len()];
    header.emit(&mut packet);
    repr.emit(&mut packet[ipv4::Repr::LEN..], addresses);
    frame([to, hardware(0, 9)], EtherType::IPV4, &packet)
}

#[test]
fn the_longest_route_of_all_links_wins_and_then_a_router_that_answers() {
    let all = "0.0.0.0/0".parse().unwrap();
    let near = "198.51.100.0/24".parse().unwrap();
    let configs = [
        config(0, 1).route(all, ip("10.0.0.9")),
        config(1, 1)
            .route(all, ip("10.1.0.9"))
            .route(near, ip("10.1.0.9")),
    ];
    // No host answers for 10.0.0.9.
    let mut world = World::new(&configs, vec![(1, config(1, 9))]);
    let source = |world: &mut World, to: &str| {
        let socket = world.host.udp_bind(at("0.0.0.0:0")).unwrap();
        world.host.udp_connect(socket, at(to)).unwrap();
        let local = world.host.udp_local(socket).unwrap().ip();
        world.host.udp_close(socket);
        local
    };
    assert_eq!(source(&mut world, "198.51.100.7:9"), ip("10.1.0.1"));
    assert_eq!(source(&mut world, "203.0.113.7:9"), ip("10.0.0.1"));
    assert_eq!(source(&mut world, "10.1.0.77:9"), ip("10.1.0.1"));
    let socket = world.host.udp_bind(at("0.0.0.0:9")).unwrap();
    let send = |world: &mut World| {
        let now_ns = world.now_ns;
        let sent = world
            .host
            .udp_send(now_ns, socket, at("203.0.113.7:9"), b"x");
        world.settle();
        sent.map(|()| world.counts())
    };
    assert_eq!(send(&mut world), Ok(vec![0, 0]));
    world.pass(4 * SECOND);
    assert_eq!(source(&mut world, "203.0.113.7:9"), ip("10.1.0.1"));
    assert_eq!(send(&mut world), Ok(vec![0, 1]));
    // Who has said from where does not change links.
    let bound = world.host.udp_bind(at("10.0.0.1:7")).unwrap();
    world
        .host
        .udp_send(world.now_ns, bound, at("10.1.0.9:9"), b"x")
        .unwrap();
    world.settle();
    assert_eq!(world.counts(), [0, 0]);
    let refused = world.host.tcp_connect(0, None, at("10.1.0.1:80"));
    assert_eq!(refused, Err(TcpError::NoRoute(at("10.1.0.1:80"))));
}

#[test]
fn zones_tell_links_apart() {
    let same = |link| config(link, 9).address("fe80::9/64".parse().unwrap());
    let mut world = World::new(
        &[config(0, 1), config(1, 1)],
        vec![(0, same(0)), (1, same(1))],
    );
    let (first, _) = world.talk(0, "[fe80::9]:80");
    let (second, _) = world.talk(1, "[fe80::9%1]:80");
    let remote = |world: &World, id| world.host.tcp_ends(id).unwrap().1;
    assert_eq!(remote(&world, first), at("[fe80::9]:80"));
    assert_eq!(remote(&world, second), at("[fe80::9%1]:80"));
    let nowhere = at("[fe80::9%2]:80");
    let error = world.host.tcp_connect(0, None, nowhere).unwrap_err();
    assert_eq!(error, TcpError::NoRoute(nowhere));
    // From an address of the one link by the other.
    let elsewhere = at("[fe80::9%1]:80");
    let local = Some(at("[2001:db8::1]:0"));
    let error = world.host.tcp_connect(0, local, elsewhere).unwrap_err();
    assert_eq!(error, TcpError::NoRoute(elsewhere));

    // Who answers a datagram answers where it came from.
    let socket = world.host.udp_bind(at("[::]:7")).unwrap();
    let to = world.host.link(1).unwrap().addresses();
    let to = to.filter(|one| matches!(one, IpAddr::V6(one) if one.is_unicast_link_local()));
    let to: SocketAddr = (to.last().unwrap(), 7).into();
    let peer = world.other(1).udp_bind(at("[fe80::9]:7")).unwrap();
    world.other(1).udp_send(0, peer, to, b"x").unwrap();
    world.settle();
    let came = world.host.udp_receive(socket).unwrap();
    assert_eq!(came.from, at("[fe80::9%1]:7"));
    let now_ns = world.now_ns;
    world
        .host
        .udp_send(now_ns, socket, came.from, b"y")
        .unwrap();
    world.settle();
    assert_eq!(world.other(1).udp_receive(peer).unwrap().bytes, b"y");
}

/// A host with the same station, and so the same link-local address, on both
/// links.
fn same_station() -> World {
    let same = || {
        let mut config = common::world::auto();
        config.hardware = common::HARDWARE[0];
        config
    };
    let world = World::new(&[same(), same()], Vec::new());
    assert_eq!(addresses(&world, 0), addresses(&world, 1));
    assert_eq!(addresses(&world, 0).len(), 1);
    world
}

fn addresses(world: &World, link: u8) -> Vec<IpAddr> {
    world.host.link(link).unwrap().addresses().collect()
}

/// What routers and servers give cannot move an address from one link to
/// another.
#[test]
fn an_address_is_of_the_link_that_has_it_first() {
    use common::world::{prefix_option, router_says};
    let mut world = same_station();
    for link in [1, 0, 0] {
        let option = prefix_option("2001:db8:5::", 0xc0, 1000, 1000);
        world.by(link, &router_says("fe80::1", 1000, &[option]));
    }
    // The first link has made itself another, and its link-local one is its own.
    let all = [0, 1].map(|link| addresses(&world, link));
    assert_eq!(all.each_ref().map(Vec::len), [2, 2]);
    let shared = all[0].iter().filter(|one| all[1].contains(one));
    assert_eq!(shared.count(), 1);
    let mut lost = 0;
    while let Some((link, event)) = world.host.next_link_event() {
        if let Event::Lost(_, why) = event {
            assert_eq!((link, why), (0, RemovalReason::OtherLink));
            lost += 1;
        }
    }
    assert_eq!(lost, 1);
}

/// Both links have the same address: a socket that has a peer keeps to its own.
#[test]
fn a_socket_with_a_peer_sends_by_its_link_though_both_have_its_address() {
    let mut world = same_station();
    world.settle();
    for link in [1, 0] {
        let socket = world.host.udp_bind(at("[::]:0")).unwrap();
        let peer = at(&format!("[fe80::9%{link}]:7"));
        world.host.udp_connect(socket, peer).unwrap();
        let before: Vec<usize> = world.sent.iter().map(Vec::len).collect();
        for to in [peer, at("[fe80::9]:7")] {
            world.host.udp_send(world.now_ns, socket, to, b"x").unwrap();
        }
        let elsewhere = at("[fe80::9%2]:7");
        let sent = world.host.udp_send(world.now_ns, socket, elsewhere, b"x");
        assert_eq!(sent, Err(SendError::NoRoute(elsewhere)));
        world.settle();
        let after = world.sent.iter().zip(before);
        // A question for the neighbour's address.
        let after: Vec<bool> = after.map(|(sent, before)| sent.len() > before).collect();
        assert_eq!(after, [link == 0, link == 1]);
        world.host.udp_close(socket);
    }
}

/// Nor does one without a peer that is at that address: the zone says by which.
#[test]
fn a_socket_at_an_address_of_both_links_sends_by_the_one_of_the_zone() {
    let mut world = same_station();
    world.settle();
    let socket = world
        .host
        .udp_bind((addresses(&world, 0)[0], 7).into())
        .unwrap();
    let options = world.host.udp_options(socket).unwrap();
    options.group_link = 1;
    for (link, to) in [
        (1, "[fe80::9%1]:7"),
        (0, "[fe80::9]:7"),
        (1, "[ff02::9]:7"),
        (1, "[ff02::9%1]:7"),
    ] {
        world.pass(SECOND);
        let before: Vec<usize> = world.sent.iter().map(Vec::len).collect();
        let sent = world.host.udp_send(world.now_ns, socket, at(to), b"x");
        assert_eq!(sent, Ok(()), "{to}");
        world.settle();
        let after = world.sent.iter().zip(before);
        let after: Vec<bool> = after.map(|(sent, before)| sent.len() > before).collect();
        assert_eq!(after, [link == 0, link == 1], "{to}");
    }
    let local = Some((addresses(&world, 0)[0], 0).into());
    let id = world
        .host
        .tcp_connect(world.now_ns, local, at("[fe80::7%1]:80"))
        .unwrap();
    assert_eq!(world.host.tcp_ends(id).unwrap().1, at("[fe80::7%1]:80"));
}

/// A link that is gone has no routes, as in a kernel: another takes over, or
/// there is none.
#[test]
fn a_link_that_is_gone_leads_nowhere() {
    let all = "0.0.0.0/0".parse().unwrap();
    let configs = [
        config(0, 1).route(all, ip("10.0.0.9")),
        config(1, 1).route(all, ip("10.1.0.9")),
    ];
    let others = vec![(0, config(0, 9)), (1, config(1, 9))];
    let mut world = World::new(&configs, others);
    let far = at("203.0.113.7:9");
    let open = world.host.udp_bind(at("0.0.0.0:7")).unwrap();
    let bound = world.host.udp_bind(at("10.0.0.1:8")).unwrap();
    let connected = world.host.udp_bind(at("0.0.0.0:9")).unwrap();
    world.host.udp_connect(connected, far).unwrap();
    let (talks, _) = world.talk(0, "10.0.0.9:80");
    world.counts();
    let send = |world: &mut World, socket: UdpId, to: SocketAddr| {
        let sent = world.host.udp_send(world.now_ns, socket, to, b"x");
        world.settle();
        sent.map(|()| world.counts())
    };
    for socket in [open, bound, connected] {
        assert_eq!(send(&mut world, socket, far), Ok(vec![1, 0]));
    }
    world.host.lose_link(0);
    world.host.lose_link(9);
    assert_eq!(send(&mut world, open, far), Ok(vec![0, 1]));
    let none = Err(SendError::NoRoute(far));
    assert_eq!(send(&mut world, bound, far), none);
    assert_eq!(send(&mut world, connected, far), none);
    let near = at("[fe80::9]:7");
    let sent = world.host.udp_send(world.now_ns, open, near, b"x");
    assert_eq!(sent, Err(SendError::NoRoute(near)));
    let id = world.host.tcp_connect(world.now_ns, None, far).unwrap();
    assert_eq!(world.host.tcp_ends(id).unwrap().0.ip(), ip("10.1.0.1"));
    let local = Some(at("10.0.0.1:0"));
    let refused = world.host.tcp_connect(world.now_ns, local, far);
    assert_eq!(refused, Err(TcpError::NoRoute(far)));
    // What is open is not reset: it times out.
    assert_eq!(world.host.tcp_state(talks), Some(State::Established));
}

/// Both links have the same address: a connection keeps to its own all the same.
#[test]
fn a_connection_is_of_one_link_though_both_have_its_address() {
    let mut world = same_station();
    let local = addresses(&world, 0)[0];
    let id = world.host.tcp_connect(0, None, at("[fe80::9]:80")).unwrap();
    let ours = world.host.tcp_ends(id).unwrap().0;
    assert_eq!(ours.ip(), local);
    let refusal = tcp::Repr {
        src_port: 80,
        dst_port: ours.port(),
        seq: 0,
        ack: 0,
        flags: tcp::Flags::RST | tcp::Flags::ACK,
        window: 0,
        urgent: 0,
        options: tcp::Options::default(),
    };
    let (IpAddr::V6(dst), src) = (local, "fe80::9".parse().unwrap()) else {
        panic!("of IPv6");
    };
    let mut packet = vec![0; 40 + refusal.header_len()];
    let header = weir_wire::ipv6::Repr {
        src,
        dst,
        next_header: Protocol::TCP,
        hop_limit: 64,
        traffic_class: 0,
        flow_label: 0,
        payload_len: refusal.header_len(),
    };
    header.emit(&mut packet);
    refusal.emit(&mut packet[40..], AddrPair::V6(src, dst));
    let frame = frame(
        [common::HARDWARE[0], hardware(1, 9)],
        EtherType::IPV6,
        &packet,
    );
    world.by(1, &frame);
    assert_eq!(world.dropped(1, DropReason::OtherLink), 1);
    assert!(world.host.tcp_ends(id).is_some());

    // Nor does a socket of UDP with a peer hear one on another link.
    let socket = world.host.udp_bind(at("[::]:0")).unwrap();
    world.host.udp_connect(socket, at("[fe80::9]:7")).unwrap();
    let repr = udp::Repr {
        src_port: 7,
        dst_port: world.host.udp_local(socket).unwrap().port(),
    };
    let mut datagram = vec![0; udp::Repr::LEN];
    repr.emit(&mut datagram, AddrPair::V6(src, dst));
    let ends = |link| [common::HARDWARE[0], hardware(link, 9)];
    let datagram = |link| packet::v6(ends(link), (src, dst), Protocol::UDP, 64, &datagram);
    // What the fast path leaves to the standard one, and what it may take.
    for count in 1..3 {
        world.by(1, &datagram(1));
        assert_eq!(world.dropped(1, DropReason::OtherLink), 1 + count);
        assert_eq!(world.host.udp_waiting(socket), count as usize - 1);
        world.by(0, &datagram(0));
        assert_eq!(world.host.udp_waiting(socket), count as usize);
    }

    // Nor is an error believed of what did not go by its link.
    let now_ns = world.now_ns;
    let to = at("[fe80::9]:7");
    world.host.udp_send(now_ns, socket, to, b"x").unwrap();
    world.settle();
    let station = [&src.octets()[..], &[2, 1], &hardware(0, 9).0].concat();
    let found = packet::icmpv6(ends(0), (src, dst), 255, 136, 0x6000_0000, &station);
    world.by(0, &found);
    world.settle();
    let sent = |protocol: Protocol| {
        let mut frames = world.sent[0].iter();
        let frame = frames.find(|frame| frame[12..14] == [0x86, 0xdd] && frame[20] == protocol.0);
        frame.expect("it went to its neighbour")[14..].to_vec()
    };
    let sent = [sent(Protocol::UDP), sent(Protocol::TCP)];
    for (link, unrelated, state) in [(1, 2, State::SynSent), (0, 0, State::Closed)] {
        for packet in &sent {
            world.by(
                link,
                &packet::icmpv6(ends(link), (src, dst), 64, 1, 0, packet),
            );
        }
        assert_eq!(world.dropped(link, DropReason::IcmpUnrelated), unrelated);
        assert_eq!(world.host.tcp_state(id), Some(state));
    }
}

#[test]
fn groups_are_a_links() {
    let mut world = World::plain();
    let group = ip("224.1.1.1");
    let to: SocketAddr = (group, 7).into();
    let socket = world.host.udp_bind(at("0.0.0.0:7")).unwrap();
    world.host.udp_join_on(socket, group, 1).unwrap();
    assert_eq!(
        world.host.udp_join_on(socket, group, 1),
        Err(GroupError::Joined(group))
    );
    assert_eq!(
        world.host.udp_join_on(socket, group, 2),
        Err(GroupError::NoLink(2))
    );
    assert_eq!(
        world.host.udp_leave(socket, group),
        Err(GroupError::NotJoined(group))
    );
    world.settle();
    let say = |world: &mut World, other: usize| {
        let socket = world.other(other).udp_bind(at("0.0.0.0:7")).unwrap();
        world.other(other).udp_send(0, socket, to, b"x").unwrap();
        world.settle();
        world.other(other).udp_close(socket);
    };
    say(&mut world, 0);
    assert_eq!(world.host.udp_receive(socket), None);
    say(&mut world, 1);
    assert_eq!(
        world.host.udp_receive(socket).unwrap().from,
        at("10.1.0.9:7")
    );

    // By the first link unless the socket says otherwise, or its address does.
    world.counts();
    let send = |world: &mut World, socket: UdpId, to: SocketAddr| -> Result<_, SendError> {
        let now_ns = world.now_ns;
        world.host.udp_send(now_ns, socket, to, b"x")?;
        world.settle();
        Ok(world.counts())
    };
    assert_eq!(send(&mut world, socket, to), Ok(vec![1, 0]));
    world.host.udp_options(socket).unwrap().group_link = 1;
    assert_eq!(send(&mut world, socket, to), Ok(vec![0, 1]));
    let all = at("255.255.255.255:7");
    assert_eq!(send(&mut world, socket, all), Ok(vec![0, 1]));
    let bound = world.host.udp_bind(at("10.1.0.1:8")).unwrap();
    assert_eq!(send(&mut world, bound, to), Ok(vec![0, 1]));
    let v6 = world.host.udp_bind(at("[::]:7")).unwrap();
    assert_eq!(send(&mut world, v6, at("[ff02::5]:7")), Ok(vec![1, 0]));
    assert_eq!(send(&mut world, v6, at("[ff02::5%1]:7")), Ok(vec![0, 1]));
    assert!(send(&mut world, v6, at("[ff02::5%9]:7")).is_err());
}

/// The second link takes frames, the first none.
#[derive(Default)]
struct Half(Vec<Vec<u8>>, Full);

#[derive(Default)]
struct Full;

impl TxSink for Full {
    fn reserve(&mut self, _: usize) -> Option<&mut [u8]> {
        None
    }
    fn submit(&mut self) {
        unreachable!("nothing was reserved")
    }
}

impl TxSinks for Half {
    fn sink(&mut self, link: u8) -> &mut dyn TxSink {
        match link {
            0 => &mut self.1,
            _ => &mut self.0,
        }
    }
}

#[test]
fn a_link_that_is_full_holds_up_no_other() {
    let mut world = World::plain();
    let (first, _) = world.talk(0, "10.0.0.9:80");
    let (second, _) = world.talk(1, "10.1.0.9:80");
    let bytes = [7; 4000];
    assert_eq!(world.host.tcp_write(first, &bytes), Ok(4000));
    assert_eq!(world.host.tcp_write(second, &bytes), Ok(4000));
    let mut half = Half::default();
    world.host.poll_links(world.now_ns, &mut half);
    let payload: usize = half.0.iter().map(|frame| frame.len() - 66).sum();
    assert_eq!(payload, 4000);
    // By `poll` alone, nothing of the second link is lost either.
    assert_eq!(world.host.tcp_write(second, &bytes), Ok(4000));
    let mut only: Vec<Vec<u8>> = Vec::new();
    world.host.poll(world.now_ns, &mut only);
    assert_eq!(
        only.iter().map(|frame| frame.len() - 66).sum::<usize>(),
        4000
    );
    let mut half = Half::default();
    world.host.poll_links(world.now_ns, &mut half);
    // Two full segments: the rest waits for acknowledgments (Nagle).
    let lens: Vec<_> = half.0.iter().map(|frame| frame.len() - 66).collect();
    assert_eq!(lens, [1448, 1448]);
}

#[test]
fn each_link_asks_its_own_servers_and_routers() {
    let mut asking = Config::new(hardware(1, 1));
    (asking.dhcp, asking.autoconf, asking.secret) = (true, true, Some(3));
    let mut world = World::new(&[config(0, 1), asking], Vec::new());
    world.pass(3 * SECOND);
    let counts = world.counts();
    assert!(counts[0] == 0 && counts[1] >= 2, "{counts:?}");
    while let Some((link, event)) = world.host.next_link_event() {
        let Event::Address(prefix, _) = event else {
            panic!("{event:?} by {link}");
        };
        let mut own = world.host.link(link).unwrap().addresses();
        assert!(own.any(|one| one == prefix.address()), "{prefix} {link}");
    }
}

#[test]
fn configurations_that_contradict_each_other_are_refused() {
    let error = |configs: &[Config]| Stack::with_links(configs, 1).err();
    assert_eq!(error(&[]), Some(ConfigError::Links(0)));
    let many = vec![Config::new(hardware(0, 1)); LINKS_MAX + 1];
    assert_eq!(error(&many), Some(ConfigError::Links(LINKS_MAX + 1)));
    assert_eq!(error(&many[..LINKS_MAX]), None);
    let twice = [
        config(0, 1),
        config(1, 1).address("10.0.0.1/8".parse().unwrap()),
    ];
    assert_eq!(error(&twice), Some(ConfigError::Twice(ip("10.0.0.1"))));
    // A gateway is on its route's own link.
    let far = config(1, 1).route("0.0.0.0/0".parse().unwrap(), ip("10.0.0.9"));
    assert_eq!(
        error(&[config(0, 1), far]),
        Some(ConfigError::Gateway(ip("10.0.0.9")))
    );
    // And another host: not ourselves, the network, or all in it.
    let by = |address: &str, gateway| {
        let all = "0.0.0.0/0".parse().unwrap();
        let config = Config::new(hardware(0, 1)).address(address.parse().unwrap());
        error(&[config.route(all, ip(gateway))])
    };
    for gateway in ["10.0.0.1", "10.0.0.0", "10.0.0.255"] {
        let wrong = Some(ConfigError::NotARouter(ip(gateway)));
        assert_eq!(by("10.0.0.1/24", gateway), wrong);
    }
    for (address, gateway) in [("10.0.0.1/16", "10.0.0.255"), ("10.0.0.1/31", "10.0.0.0")] {
        assert_eq!(by(address, gateway), None);
    }
}
