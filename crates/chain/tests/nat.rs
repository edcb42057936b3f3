//! The translator, by the requirements of RFC 4787, 5382, 5508, 6888 and 7857.

mod common;

use common::{Spec, checksums_are_right, icmp};
use std::net::{IpAddr, Ipv4Addr};
use weir_chain::nat::{
    Filtering, Forward, Nat, NatConfig, NatError, Prefix, PrefixLimit, Transport,
};
use weir_chain::{Batch, Chain, Composed, Direction, Fate, Outcome, Packet, SentFrame, Stage};
use weir_wire::Protocol;
use weir_wire::field::{read_u16, write};

const SECOND: u64 = 1_000_000_000;
const POOL: &str = "203.0.113.1";
const PEER: &str = "198.51.100.7";

struct World {
    chain: Chain,
    now: u64,
    entry: Option<Composed>,
    /// What the translator sent beside the packet.
    sent: Vec<Vec<u8>>,
}

impl World {
    fn new(config: NatConfig) -> World {
        let nat = Nat::new(config, 0x5eed).unwrap();
        World {
            chain: Chain::new(vec![(Box::new(nat), None)], 1).unwrap(),
            now: 0,
            entry: None,
            sent: Vec::new(),
        }
    }

    fn usual() -> World {
        World::new(config())
    }

    fn pass(&mut self, direction: Direction, frame: &[u8]) -> Result<Vec<u8>, &'static str> {
        let mut bytes = frame.to_vec();
        let mut batch = Batch::new(vec![Packet::new(&mut bytes)]);
        self.chain.run(self.now, direction, &mut batch);
        let packet = batch.into_packets().remove(0);
        self.entry = self.chain.compose(packet.trace(), direction);
        for sent in self.chain.take_sent() {
            if let SentFrame::Made(frame) = sent.frame {
                self.sent.push(frame);
            }
        }
        match packet.fate() {
            Fate::Pass => Ok(bytes),
            Fate::Drop(reason) => Err(reason),
            Fate::Taken => Err("taken"),
            Fate::Held(_) => Err("held"),
        }
    }

    fn out(&mut self, frame: &[u8]) -> Result<Vec<u8>, &'static str> {
        self.pass(Direction::Outward, frame)
    }

    fn inn(&mut self, frame: &[u8]) -> Result<Vec<u8>, &'static str> {
        self.pass(Direction::Inward, frame)
    }

    /// The outside port of a UDP datagram from the inside.
    fn port(&mut self, src: (&str, u16), dst: (&str, u16)) -> Result<u16, &'static str> {
        let out = self.out(&Spec::udp(src, dst).frame())?;
        assert!(checksums_are_right(&out));
        Ok(read_u16(&out, 34))
    }

    fn counter(&self, name: &str) -> u64 {
        let (stage, _) = self.chain.stages().next().unwrap();
        let mut found = None;
        stage.counters(&mut |counter, value| {
            if counter == name {
                found = Some(value);
            }
        });
        found.unwrap()
    }

    fn drops(&self, reason: &str) -> u64 {
        let (_, counts) = self.chain.stages().next().unwrap();
        let drops = counts.drops.iter().find(|(name, _)| *name == reason);
        drops.map_or(0, |(_, count)| *count)
    }

    fn lines(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.chain.next_line().map(|(_, line)| line)).collect()
    }
}

fn config() -> NatConfig {
    NatConfig {
        pool: vec![POOL.parse().unwrap()],
        ..NatConfig::default()
    }
}

fn source(frame: &[u8]) -> (Ipv4Addr, u16) {
    let address: [u8; 4] = frame[26..30].try_into().unwrap();
    (address.into(), read_u16(frame, 34))
}

fn destination(frame: &[u8]) -> (Ipv4Addr, u16) {
    let address: [u8; 4] = frame[30..34].try_into().unwrap();
    (address.into(), read_u16(frame, 36))
}

fn ip(text: &str) -> Ipv4Addr {
    text.parse().unwrap()
}

#[test]
fn a_mapping_is_endpoint_independent_and_replies_come_back() {
    let mut world = World::usual();
    let first = world.port(("10.0.0.5", 4000), (PEER, 53)).unwrap();
    let second = world.port(("10.0.0.5", 4000), ("192.0.2.9", 99)).unwrap();
    assert_eq!(first, second);
    assert_ne!(world.port(("10.0.0.5", 4002), (PEER, 53)).unwrap(), first);
    assert_ne!(world.port(("10.0.0.6", 4000), (PEER, 53)).unwrap(), first);
    let back = world
        .inn(&Spec::udp((PEER, 53), (POOL, first)).frame())
        .unwrap();
    assert_eq!(destination(&back), (ip("10.0.0.5"), 4000));
    assert_eq!(source(&back), (ip(PEER), 53));
    assert!(checksums_are_right(&back));
    assert_eq!(world.counter("subscribers"), 2);
}

#[test]
fn filtering_is_what_was_chosen() {
    use Filtering::{AddressAndPortDependent, AddressDependent, EndpointIndependent};
    let cases = [
        (EndpointIndependent, true, true, true),
        (AddressDependent, true, true, false),
        (AddressAndPortDependent, true, false, false),
    ];
    for (filtering, same, other_port, other_address) in cases {
        let mut world = World::new(NatConfig {
            filtering,
            ..config()
        });
        let port = world.port(("10.0.0.5", 4000), (PEER, 53)).unwrap();
        let mut comes =
            |from: (&str, u16)| world.inn(&Spec::udp(from, (POOL, port)).frame()).is_ok();
        assert_eq!(comes((PEER, 53)), same, "{filtering:?}");
        assert_eq!(comes((PEER, 54)), other_port, "{filtering:?}");
        assert_eq!(comes(("192.0.2.200", 53)), other_address, "{filtering:?}");
        let refused = u64::from(!other_port) + u64::from(!other_address);
        assert_eq!(world.drops("filtered"), refused);
    }
}

#[test]
fn what_has_no_mapping_is_left_to_the_base() {
    let mut world = World::usual();
    let frame = Spec::udp((PEER, 53), (POOL, 5000)).frame();
    assert_eq!(world.inn(&frame).unwrap(), frame);
    assert_eq!(world.entry, None, "the next one may have a mapping");
    assert_eq!(world.counter("unmapped"), 1);
    // The router's own packets, and IPv6, are not translated.
    let own = Spec::udp((POOL, 7), (PEER, 7)).frame();
    assert_eq!(world.out(&own).unwrap(), own);
    let six = Spec::udp(("2001:db8::1", 7), ("2001:db8::2", 7)).frame();
    assert_eq!(world.out(&six).unwrap(), six);
    // A private address is never reached from outside without translation.
    let frame = Spec::udp((PEER, 53), ("10.0.0.5", 4000)).frame();
    assert_eq!(world.inn(&frame), Err("untranslated"));
    // Nor does a protocol without ports get out.
    let mut frame = Spec::udp(("10.0.0.5", 1), (PEER, 1)).frame();
    frame[23] = 47;
    assert_eq!(world.out(&frame), Err("protocol"));
}

/// A translator behind another one has a private address outside.
#[test]
fn the_pool_may_be_private() {
    let mut world = World::new(NatConfig {
        pool: vec![ip("192.168.1.2")],
        ..config()
    });
    let out = world.out(&Spec::udp(("10.0.0.5", 4000), (PEER, 53)).frame());
    let (address, port) = source(&out.unwrap());
    assert_eq!(address, ip("192.168.1.2"));
    let back = world.inn(&Spec::udp((PEER, 53), ("192.168.1.2", port)).frame());
    assert_eq!(destination(&back.unwrap()), (ip("10.0.0.5"), 4000));
    // What the router itself sends stays.
    let own = Spec::udp(("192.168.1.2", 9), (PEER, 53)).frame();
    assert_eq!(world.out(&own).unwrap(), own);
}

#[test]
fn udp_without_a_checksum_stays_so() {
    let mut world = World::usual();
    let spec = Spec {
        no_checksum: true,
        ..Spec::udp(("10.0.0.5", 4000), (PEER, 53))
    };
    let out = world.out(&spec.frame()).unwrap();
    assert_eq!(out[40..42], [0, 0]);
}

#[test]
fn udp_sessions_time_out_and_packets_keep_them() {
    let mut world = World::usual();
    let port = world.port(("10.0.0.5", 4000), (PEER, 53)).unwrap();
    let reply = Spec::udp((PEER, 53), (POOL, port)).frame();
    world.now = 299 * SECOND;
    assert!(world.inn(&reply).is_ok(), "refreshes");
    world.now += 299 * SECOND;
    world.chain.poll(world.now);
    assert_eq!(world.counter("sessions"), 1);
    world.now += SECOND;
    world.chain.poll(world.now);
    assert_eq!(world.counter("sessions"), 0);
    assert_eq!(world.counter("mappings"), 0);
    assert_eq!(world.inn(&reply).unwrap(), reply, "not translated");
    // The time of the end is that of the last packet and the timeout, even
    // without a poll.
    world.port(("10.0.0.5", 4000), (PEER, 53)).unwrap();
    assert_eq!(world.chain.next_deadline(), Some(world.now + 300 * SECOND));
}

/// The TCP segments of a connection: opened, then used.
fn open(world: &mut World, src: (&str, u16), dst: (&str, u16)) -> u16 {
    let out = world.out(&Spec::tcp(src, dst, 0x02).frame()).unwrap();
    let port = source(&out).1;
    world
        .inn(&Spec::tcp(dst, (POOL, port), 0x12).frame())
        .unwrap();
    world.out(&Spec::tcp(src, dst, 0x10).frame()).unwrap();
    port
}

#[test]
fn tcp_lives_long_when_open_and_shortly_otherwise() {
    let (src, dst) = (("10.0.0.5", 4000), (PEER, 80));
    let mut world = World::usual();
    world.out(&Spec::tcp(src, dst, 0x02).frame()).unwrap();
    assert_eq!(world.chain.next_deadline(), Some(240 * SECOND));
    world.now = 240 * SECOND;
    world.chain.poll(world.now);
    assert_eq!(world.counter("sessions"), 0, "half open");

    let port = open(&mut world, src, dst);
    let began = world.now;
    world.now = began + 7439 * SECOND;
    world.chain.poll(world.now);
    assert_eq!(world.counter("sessions"), 1, "open");
    world.out(&Spec::tcp(src, dst, 0x11).frame()).unwrap();
    world.chain.poll(world.now + 300 * SECOND);
    assert_eq!(world.counter("sessions"), 1, "half closed");
    world
        .inn(&Spec::tcp(dst, (POOL, port), 0x11).frame())
        .unwrap();
    world.chain.poll(world.now + 239 * SECOND);
    assert_eq!(world.counter("sessions"), 1, "TIME-WAIT");
    world.chain.poll(world.now + 240 * SECOND);
    assert_eq!(world.counter("sessions"), 0, "closed");
}

#[test]
fn a_reset_does_not_end_a_session_that_goes_on() {
    let (src, dst) = (("10.0.0.5", 4000), (PEER, 80));
    let mut world = World::usual();
    let port = open(&mut world, src, dst);
    world
        .inn(&Spec::tcp(dst, (POOL, port), 0x04).frame())
        .unwrap();
    world.now = 100 * SECOND;
    // The reset was forged: the connection goes on.
    world.out(&Spec::tcp(src, dst, 0x18).frame()).unwrap();
    world.chain.poll(1000 * SECOND);
    assert_eq!(world.counter("sessions"), 1);
    world.now = 1000 * SECOND;
    world
        .inn(&Spec::tcp(dst, (POOL, port), 0x04).frame())
        .unwrap();
    world.chain.poll(1240 * SECOND);
    assert_eq!(world.counter("sessions"), 0);
}

#[test]
fn many_resets_cost_no_memory_each() {
    let (src, dst) = (("10.0.0.5", 4000), (PEER, 80));
    let mut world = World::usual();
    let port = open(&mut world, src, dst);
    for _ in 0..1000 {
        world
            .inn(&Spec::tcp(dst, (POOL, port), 0x04).frame())
            .unwrap();
        world.out(&Spec::tcp(src, dst, 0x18).frame()).unwrap();
    }
    world.now = 8000 * SECOND;
    world.chain.poll(world.now);
    assert_eq!(world.counter("sessions"), 0);
    assert_eq!(world.chain.next_deadline(), None);
}

#[test]
fn the_kernel_gets_what_is_open_and_gives_it_back() {
    let (src, dst) = (("10.0.0.5", 4000), (PEER, 80));
    let mut world = World::usual();
    let port = open(&mut world, src, dst);
    let data = Spec::tcp(src, dst, 0x18).frame();
    let out = world.out(&data).unwrap();
    let entry = world.entry.expect("an open connection is cached");
    let mut copy = data.clone();
    assert_eq!(entry.apply(&mut copy), Outcome::Sent { len: copy.len() });
    assert_eq!(copy, out);
    let reply = Spec::tcp(dst, (POOL, port), 0x18).frame();
    let back = world.inn(&reply).unwrap();
    let entry_back = world.entry.expect("replies are cached");
    let mut copy = reply.clone();
    assert_eq!(
        entry_back.apply(&mut copy),
        Outcome::Sent { len: copy.len() }
    );
    assert_eq!(copy, back);
    // What begins or ends a connection goes up.
    for flags in [0x02, 0x11, 0x04] {
        let mut frame = Spec::tcp(src, dst, flags).frame();
        assert_eq!(entry.apply(&mut frame), Outcome::Up);
    }
    // The kernel's use of either direction keeps the session.
    assert!(world.chain.used(&entry, 7000 * SECOND));
    assert!(world.chain.used(&entry_back, 6000 * SECOND));
    world.now = 7440 * SECOND;
    world.chain.poll(world.now);
    assert_eq!(world.counter("sessions"), 1);
    assert_eq!(world.chain.withdrawn(), None);
    // The end of the connection ends the entries at once.
    world.out(&Spec::tcp(src, dst, 0x11).frame()).unwrap();
    assert_eq!(world.chain.withdrawn(), Some((0, entry.cookies[0])));
    assert!(!world.chain.used(&entry, world.now));
    world.now += 8000 * SECOND;
    world.chain.poll(world.now);
    assert_eq!(world.chain.withdrawn(), Some((0, entry.cookies[0])));
    assert!(!world.chain.used(&entry, world.now));
}

#[test]
fn hosts_of_the_inside_reach_each_other_by_the_pool() {
    let mut world = World::new(NatConfig {
        filtering: Filtering::EndpointIndependent,
        ..config()
    });
    let server = world.port(("10.0.0.9", 7000), (PEER, 53)).unwrap();
    let frame = Spec::udp(("10.0.0.5", 4000), (POOL, server)).frame();
    assert!(world.chain.turns(&frame));
    let out = world.out(&frame).unwrap();
    let turned = world.inn(&out).unwrap();
    assert_eq!(destination(&turned), (ip("10.0.0.9"), 7000));
    let (address, port) = source(&turned);
    assert_eq!(address, ip(POOL), "the source is the pool's, too");
    assert!(checksums_are_right(&turned));
    // And back.
    let reply = Spec::udp(("10.0.0.9", 7000), (POOL, port)).frame();
    assert!(world.chain.turns(&reply));
    let out = world.out(&reply).unwrap();
    let back = world.inn(&out).unwrap();
    assert_eq!(destination(&back), (ip("10.0.0.5"), 4000));
    assert_eq!(source(&back), (ip(POOL), server));
    // The base's own ports are not turned.
    let frame = Spec::udp(("10.0.0.5", 4000), (POOL, 53)).frame();
    assert!(!world.chain.turns(&frame));
}

#[test]
fn queries_of_icmp_are_translated() {
    let mut world = World::usual();
    let out = world
        .out(&icmp("10.0.0.5", PEER, 8, 0, 0x1234_0001, b"ping"))
        .unwrap();
    let id = read_u16(&out, 38);
    assert_eq!(source(&out).0, ip(POOL));
    assert!(checksums_are_right(&out));
    let reply = icmp(PEER, POOL, 0, 0, u32::from(id) << 16 | 1, b"ping");
    let back = world.inn(&reply).unwrap();
    assert_eq!(destination(&back).0, ip("10.0.0.5"));
    assert_eq!(read_u16(&back, 38), 0x1234);
    assert!(checksums_are_right(&back));
    // A request to the pool is the base's.
    let request = icmp(PEER, POOL, 8, 0, u32::from(id) << 16, b"ping");
    assert_eq!(world.inn(&request).unwrap(), request);
    // A reply of another address does not come in.
    let forged = icmp("192.0.2.66", POOL, 0, 0, u32::from(id) << 16, b"ping");
    assert_eq!(world.inn(&forged), Err("filtered"));
    world.chain.poll(60 * SECOND);
    assert_eq!(world.counter("sessions"), 0);
}

#[test]
fn errors_are_translated_with_what_they_quote() {
    let mut world = World::usual();
    for spec in [
        Spec::udp(("10.0.0.5", 4000), (PEER, 53)),
        Spec::tcp(("10.0.0.5", 4001), (PEER, 80), 0x02),
    ] {
        let sent = spec.frame();
        let out = world.out(&sent).unwrap();
        // A router on the way quotes all of it, or the first eight bytes of the payload.
        for quoted in [out.len() - 14, 28] {
            let error = icmp("192.0.2.254", POOL, 11, 0, 0, &out[14..14 + quoted]);
            let back = world.inn(&error).unwrap();
            assert_eq!(destination(&back).0, ip("10.0.0.5"));
            assert!(checksums_are_right(&back));
            assert_eq!(back[42..], sent[14..14 + quoted], "as it was sent");
        }
        // About a reply that came in, from the host and from a router of the inside.
        let reply = Spec {
            src: spec.dst,
            dst: (IpAddr::V4(source(&out).0), source(&out).1),
            flags: 0x12,
            ..spec.clone()
        };
        let reply = reply.frame();
        let came = world.inn(&reply).unwrap();
        for reporter in ["10.0.0.5", "10.9.9.9", "203.0.113.77"] {
            let error = icmp(reporter, PEER, 3, 3, 0, &came[14..]);
            let out = world.out(&error).unwrap();
            let public = if reporter.starts_with("203") {
                reporter
            } else {
                POOL
            };
            assert_eq!(source(&out).0, ip(public));
            assert!(checksums_are_right(&out));
            assert_eq!(out[42..], reply[14..], "as the peer sent it");
        }
    }
    // An error about nothing that was translated keeps no secret, and is dropped.
    let stranger = Spec::udp((PEER, 53), ("10.0.0.77", 9)).frame();
    let error = icmp("10.0.0.77", PEER, 3, 3, 0, &stranger[14..]);
    assert_eq!(world.out(&error), Err("icmp-unmapped"));
    let error = icmp("10.0.0.77", PEER, 3, 3, 0, &stranger[14..30]);
    assert_eq!(world.out(&error), Err("icmp-malformed"));
}

#[test]
fn an_error_does_not_prolong_a_session() {
    let mut world = World::usual();
    let out = world
        .out(&Spec::udp(("10.0.0.5", 4000), (PEER, 53)).frame())
        .unwrap();
    world.now = 200 * SECOND;
    world.inn(&icmp(PEER, POOL, 3, 3, 0, &out[14..])).unwrap();
    assert_eq!(world.chain.next_deadline(), Some(300 * SECOND));
}

/// A packet's fragments, of 24 bytes of payload each.
fn fragments(frame: &[u8]) -> Vec<Vec<u8>> {
    let pieces: Vec<&[u8]> = frame[34..].chunks(24).collect();
    let last = pieces.len() - 1;
    let piece = |(number, piece): (usize, &&[u8])| {
        let mut fragment = [&frame[..34], *piece].concat();
        let len = (20 + piece.len()) as u16;
        write(&mut fragment, 16, &len.to_be_bytes());
        let more = if number == last { 0 } else { 0x2000 };
        write(
            &mut fragment,
            20,
            &((number * 3) as u16 | more).to_be_bytes(),
        );
        write(&mut fragment, 24, &[0, 0]);
        let sum = weir_wire::checksum::internet_checksum(&fragment[14..34]);
        write(&mut fragment, 24, &sum.to_be_bytes());
        fragment
    };
    pieces.iter().enumerate().map(piece).collect()
}

/// The packet that fragments make.
fn whole(fragments: &[Vec<u8>]) -> Vec<u8> {
    let mut sorted = fragments.to_vec();
    sorted.sort_by_key(|fragment| read_u16(fragment, 20) & 0x1fff);
    let mut packet = sorted[0][..34].to_vec();
    for fragment in &sorted {
        assert_eq!(fragment[26..34], packet[26..34], "the same addresses");
        assert_eq!(weir_wire::checksum::internet_checksum(&fragment[14..34]), 0);
        packet.extend(&fragment[34..]);
    }
    let len = (packet.len() - 14) as u16;
    write(&mut packet, 16, &len.to_be_bytes());
    let protocol = packet[23];
    write(&mut packet, 20, &[0, 0, 64, protocol, 0, 0]);
    let sum = weir_wire::checksum::internet_checksum(&packet[14..34]);
    write(&mut packet, 24, &sum.to_be_bytes());
    packet
}

#[test]
fn fragments_in_any_order_are_translated() {
    let orders: [[usize; 4]; 4] = [[0, 1, 2, 3], [3, 2, 1, 0], [1, 0, 3, 2], [2, 3, 0, 1]];
    for order in orders {
        let mut world = World::usual();
        let spec = Spec {
            payload: (0..80).collect(),
            ..Spec::udp(("10.0.0.5", 4000), (PEER, 53))
        };
        let pieces = fragments(&spec.frame());
        let mut out = Vec::new();
        for at in order {
            match world.out(&pieces[at]) {
                Ok(frame) => out.push(frame),
                Err(why) => assert_eq!(why, "taken"),
            }
            assert_eq!(world.entry, None, "a fragment is not cached");
        }
        out.append(&mut world.sent);
        let packet = whole(&out);
        assert!(checksums_are_right(&packet), "{order:?}");
        let (address, port) = source(&packet);
        assert_eq!(address, ip(POOL));
        // And back.
        let reply = Spec {
            payload: (0..80).collect(),
            ..Spec::udp((PEER, 53), (POOL, port))
        };
        let pieces = fragments(&reply.frame());
        let mut back = Vec::new();
        for at in order {
            back.extend(world.inn(&pieces[at]).ok());
        }
        back.append(&mut world.sent);
        let packet = whole(&back);
        assert!(checksums_are_right(&packet), "{order:?}");
        assert_eq!(destination(&packet), (ip("10.0.0.5"), 4000));
    }
}

#[test]
fn fragments_without_a_first_one_take_bounded_memory() {
    let mut world = World::usual();
    let spec = Spec {
        payload: vec![0; 80],
        ..Spec::udp(("10.0.0.5", 4000), (PEER, 53))
    };
    let mut fragment = fragments(&spec.frame()).remove(1);
    for id in 0..1000_u16 {
        write(&mut fragment, 18, &id.to_be_bytes());
        let _ = world.out(&fragment);
    }
    // One source has its share of the places, all sources inside have theirs.
    assert_eq!(world.drops("fragments-full"), 1000 - 32);
    for host in 6..14_u8 {
        write(&mut fragment, 26, &[10, 0, 0, host]);
        for id in 0..64_u16 {
            write(&mut fragment, 18, &id.to_be_bytes());
            let _ = world.out(&fragment);
        }
    }
    let refused = (1000 - 32) + (8 * 64 - (128 - 32));
    assert_eq!(world.drops("fragments-full"), refused);
    let reply = Spec {
        payload: vec![0; 80],
        ..Spec::udp((PEER, 53), (POOL, 2000))
    };
    let _ = world.inn(&fragments(&reply.frame()).remove(1));
    assert_eq!(world.drops("fragments-full"), refused, "the outside's own");
    world.now = 2 * SECOND;
    world.chain.poll(world.now);
    assert_eq!(world.counter("fragments_expired"), 128 + 1);
    assert_eq!(world.chain.next_deadline(), None);
}

#[test]
fn a_static_forward_lets_strangers_in() {
    let mut world = World::new(NatConfig {
        forwards: vec![Forward {
            transport: Transport::Tcp,
            outside: (ip(POOL), 80),
            inside: (ip("10.0.0.80"), 8080),
        }],
        ..config()
    });
    let back = world
        .inn(&Spec::tcp((PEER, 5555), (POOL, 80), 0x02).frame())
        .unwrap();
    assert_eq!(destination(&back), (ip("10.0.0.80"), 8080));
    let reply = Spec::tcp(("10.0.0.80", 8080), (PEER, 5555), 0x12).frame();
    assert_eq!(source(&world.out(&reply).unwrap()), (ip(POOL), 80));
    world.now = 10_000 * SECOND;
    world.chain.poll(world.now);
    assert_eq!(world.counter("sessions"), 0);
    assert_eq!(world.counter("mappings"), 1, "it stays");
    assert!(
        world
            .inn(&Spec::tcp((PEER, 5556), (POOL, 80), 0x02).frame())
            .is_ok()
    );
}

/// The port of a forward is never given to a subscriber.
#[test]
fn ports_of_forwards_are_not_given_away() {
    let forwarded = 2000;
    let mut world = World::new(NatConfig {
        forwards: vec![Forward {
            transport: Transport::Udp,
            outside: (ip(POOL), forwarded),
            inside: (ip("10.0.0.80"), 53),
        }],
        ..config()
    });
    for port in 1..=3000 {
        let given = world.port(("10.0.0.5", port), (PEER, 53)).unwrap();
        assert_ne!(given, forwarded);
    }
}

#[test]
fn sixty_thousand_sessions_of_one_address_then_a_clear_refusal() {
    let mut world = World::new(NatConfig {
        block: 1000,
        blocks_max: 60,
        ..config()
    });
    let mut given = vec![false; 1 << 16];
    for port in 1..=60_000 {
        let got = world.port(("10.0.0.5", port), (PEER, 53)).unwrap();
        assert!(
            !std::mem::replace(&mut given[usize::from(got)], true),
            "{got} is given twice"
        );
    }
    assert_eq!(world.counter("sessions"), 60_000);
    assert_eq!(
        world.port(("10.0.0.5", 60_001), (PEER, 53)),
        Err("subscriber-blocks-full")
    );
    assert_eq!(world.drops("subscriber-blocks-full"), 1);
    // Another peer needs no further port.
    assert!(world.port(("10.0.0.5", 60_000), (PEER, 54)).is_ok());
    // Another subscriber has what is left.
    assert!(world.port(("10.0.0.6", 1), (PEER, 53)).is_ok());
    assert_eq!(world.lines().len(), 1 + 61, "a line a block, and the start");
}

#[test]
fn limits_of_sessions_are_refusals_that_count() {
    let mut world = World::new(NatConfig {
        subscriber_sessions_max: 4,
        sessions_max: 6,
        filtering: Filtering::EndpointIndependent,
        ..config()
    });
    let port = world.port(("10.0.0.5", 1), (PEER, 1)).unwrap();
    for peer in 2..4 {
        assert!(
            world
                .inn(&Spec::udp((PEER, peer), (POOL, port)).frame())
                .is_ok()
        );
    }
    let more = Spec::udp((PEER, 5), (POOL, port)).frame();
    assert_eq!(world.inn(&more), Err("subscriber-inbound-full"));
    assert!(
        world.port(("10.0.0.5", 1), (PEER, 9)).is_ok(),
        "the subscriber itself has room"
    );
    assert_eq!(
        world.port(("10.0.0.5", 1), (PEER, 10)),
        Err("subscriber-sessions-full")
    );
    assert_eq!(
        world.port(("10.0.0.5", 2), (PEER, 10)),
        Err("subscriber-sessions-full")
    );
    assert_eq!(
        world.counter("mappings"),
        1,
        "what was refused leaves nothing"
    );
    assert!(world.port(("10.0.0.6", 1), (PEER, 1)).is_ok());
    assert!(world.port(("10.0.0.7", 1), (PEER, 1)).is_ok());
    assert_eq!(world.port(("10.0.0.8", 1), (PEER, 1)), Err("sessions-full"));
    assert_eq!(world.counter("subscribers"), 3);
}

/// Each limit of a prefix that has a host holds; an end of a session makes room.
#[test]
fn limits_of_prefixes_are_of_all_their_hosts() {
    let limit = |address: &str, len, sessions_max| PrefixLimit {
        prefix: Prefix {
            address: address.parse().unwrap(),
            len,
        },
        sessions_max,
    };
    let limits = vec![limit("10.0.0.0", 8, 5), limit("10.0.1.0", 24, 2)];
    let mut world = World::new(NatConfig { limits, ..config() });
    assert!(world.port(("10.0.1.1", 1), (PEER, 1)).is_ok());
    assert!(world.port(("10.0.1.2", 1), (PEER, 1)).is_ok());
    let full = Err("prefix-sessions-full");
    assert_eq!(world.port(("10.0.1.3", 1), (PEER, 1)), full);
    assert_eq!(world.port(("10.0.1.1", 1), (PEER, 2)), full);
    for host in ["10.0.2.1", "10.0.2.2", "10.9.0.1"] {
        assert!(world.port((host, 1), (PEER, 1)).is_ok(), "{host}");
    }
    assert_eq!(world.port(("10.0.2.3", 1), (PEER, 1)), full);
    assert!(world.port(("192.168.0.1", 1), (PEER, 1)).is_ok());
    assert_eq!(world.counter("sessions"), 6);
    world.now += 301 * SECOND;
    world.chain.poll(world.now);
    assert_eq!(world.counter("subscribers"), 0);
    for host in ["10.0.1.3", "10.0.1.4", "10.0.2.1", "10.0.2.2", "10.0.2.3"] {
        assert!(world.port((host, 1), (PEER, 1)).is_ok(), "{host}");
    }
    assert_eq!(world.port(("10.0.1.5", 1), (PEER, 1)), full);
    for (limit, why) in [
        (
            limit("10.0.0.0", 8, 0),
            "sessions_max of a limit of 0: write 1 to",
        ),
        (limit("10.0.0.0", 33, 1), "33: write 0 to 32"),
    ] {
        let limits = vec![limit];
        let error = NatConfig { limits, ..config() }.check().unwrap_err();
        assert!(error.to_string().contains(why), "{error}");
    }
    let limits = vec![limit("10.0.0.0", 8, 1); 257];
    assert!(NatConfig { limits, ..config() }.check().is_err());
}

#[test]
fn a_pool_that_is_used_up_refuses_until_blocks_have_rested() {
    let mut world = World::new(NatConfig {
        block: 32_000,
        ..config()
    });
    for host in ["10.0.0.1", "10.0.0.2"] {
        world.port((host, 1), (PEER, 1)).unwrap();
    }
    assert_eq!(
        world.port(("10.0.0.3", 1), (PEER, 1)),
        Err("pool-exhausted")
    );
    world.now = 300 * SECOND;
    assert_eq!(
        world.port(("10.0.0.3", 1), (PEER, 1)),
        Err("pool-exhausted"),
        "they rest"
    );
    world.now = 420 * SECOND;
    assert!(world.port(("10.0.0.3", 1), (PEER, 1)).is_ok());
    assert_eq!(world.counter("subscribers"), 1);
}

#[test]
fn a_subscriber_keeps_to_one_address_of_the_pool() {
    let pool: Vec<Ipv4Addr> = (1..5)
        .map(|last| Ipv4Addr::new(203, 0, 113, last))
        .collect();
    let mut world = World::new(NatConfig {
        pool,
        block: 64,
        ..config()
    });
    let mut used = std::collections::BTreeMap::<Ipv4Addr, usize>::new();
    for host in 1..=40 {
        let host = format!("10.0.0.{host}");
        let mut first = None;
        for port in 1..100 {
            let out = world
                .out(&Spec::udp((&host, port), (PEER, 53)).frame())
                .unwrap();
            assert_eq!(*first.get_or_insert(source(&out).0), source(&out).0);
        }
        *used.entry(first.unwrap()).or_default() += 1;
    }
    assert!(used.values().all(|count| *count == 10), "spread: {used:?}");
}

#[test]
fn wrong_configurations_are_refused() {
    let base = config();
    let wrong = |change: fn(&mut NatConfig)| {
        let mut config = base.clone();
        change(&mut config);
        Nat::new(config, 1).unwrap_err().to_string()
    };
    assert!(wrong(|config| config.pool.clear()).contains("pool"));
    assert!(wrong(|config| config.pool.push(config.pool[0])).contains("twice"));
    assert!(wrong(|config| config.pool[0] = Ipv4Addr::BROADCAST).contains("host"));
    assert!(wrong(|config| config.block = 8).contains("16"));
    assert!(wrong(|config| config.block = 70_000).contains("64512"));
    assert!(matches!(
        Nat::new(
            NatConfig {
                sessions_max: 0,
                ..base.clone()
            },
            1
        ),
        Err(NatError::Range { .. })
    ));
    let forward = |outside: &str, port: u16, inside: &str| Forward {
        transport: Transport::Tcp,
        outside: (ip(outside), port),
        inside: (ip(inside), 80),
    };
    for (forwards, why) in [
        (vec![forward(PEER, 80, "10.0.0.1")], "pool"),
        (vec![forward(POOL, 0, "10.0.0.1")], "port 0"),
        (vec![forward(POOL, 80, PEER)], "inside"),
        (
            vec![forward(POOL, 80, "10.0.0.1"), forward(POOL, 80, "10.0.0.2")],
            "earlier",
        ),
    ] {
        let error = Nat::new(
            NatConfig {
                forwards,
                ..base.clone()
            },
            1,
        )
        .unwrap_err();
        assert!(error.to_string().contains(why), "{error}");
    }
}

/// A chain with a stage that may be a firewall must not fail to the wire.
#[test]
fn a_translator_may_not_be_bypassed() {
    let nat = Nat::new(config(), 1).unwrap();
    assert!(!nat.may_bypass());
    assert_eq!(nat.kind(), "nat");
    assert_eq!(Protocol::UDP.0, 17);
}
