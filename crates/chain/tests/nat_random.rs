//! Random traffic through the translator, against what must always hold.

mod common;

use common::{Spec, checksums_are_right};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr};
use weir_chain::nat::log::Inverted;
use weir_chain::nat::{Filtering, Nat, NatConfig};
use weir_chain::{Batch, Chain, Composed, Direction, Fate, Flow, Outcome, Packet};
use weir_lab::rng::Rng;
use weir_lab::seeds::seeds;
use weir_wire::Protocol;
use weir_wire::field::read_u16;

const SECOND: u64 = 1_000_000_000;

type End = (Ipv4Addr, u16);

/// An end of the inside, of a transport.
type Inside = (Protocol, End);

struct World {
    chain: Chain,
    now: u64,
    entries: HashMap<(Direction, Flow), Composed>,
    lines: Vec<String>,
    /// What each translated packet was: time, transport, pool address and port, subscriber.
    translated: Vec<(u64, &'static str, End, Ipv4Addr)>,
    by_entry: usize,
}

impl World {
    /// A frame through the entry of its flow, if there is one, and through the
    /// stages, which must agree.
    fn pass(&mut self, direction: Direction, frame: &[u8]) -> Option<Vec<u8>> {
        let mut bytes = frame.to_vec();
        let mut packet = Packet::new(&mut bytes);
        let flow = packet.flow().expect("a whole packet with ports");
        let mut by_entry = None;
        let entry = self.entries.get(&(direction, flow)).copied();
        if let Some(entry) = entry
            && self.chain.used(&entry, 0)
        {
            let mut copy = frame.to_vec();
            by_entry = (entry.apply(&mut copy) != Outcome::Up).then_some(copy);
        }
        packet = Packet::new(&mut bytes);
        let mut batch = Batch::new(vec![packet]);
        self.chain.run(self.now, direction, &mut batch);
        let packet = batch.into_packets().remove(0);
        let fate = packet.fate();
        if let Some(entry) = self.chain.compose(packet.trace(), direction) {
            self.entries.insert((direction, flow), entry);
        }
        let out = (fate == Fate::Pass).then_some(bytes);
        // An entry whose session ends by this very packet's time is withdrawn first.
        let mut withdrawn = HashSet::new();
        while let Some((stage, cookie)) = self.chain.withdrawn() {
            withdrawn.insert(cookie);
            self.entries
                .retain(|_, entry| entry.cookies[stage] != cookie);
        }
        if let Some(by_entry) = by_entry
            && !entry.is_some_and(|entry| withdrawn.contains(&entry.cookies[0]))
        {
            assert_eq!(Some(&by_entry), out.as_ref(), "entry and stages agree");
            self.by_entry += 1;
        }
        while let Some((_, line)) = self.chain.next_line() {
            self.lines.push(line);
        }
        out
    }
}

fn end(frame: &[u8], address: usize, port: usize) -> End {
    let octets: [u8; 4] = frame[address..address + 4].try_into().unwrap();
    (octets.into(), read_u16(frame, port))
}

fn name(protocol: Protocol) -> &'static str {
    if protocol == Protocol::TCP {
        "tcp"
    } else {
        "udp"
    }
}

fn config(rng: &mut Rng) -> NatConfig {
    use Filtering::{AddressAndPortDependent, AddressDependent, EndpointIndependent};
    let count = 1 + rng.below(3) as u8;
    NatConfig {
        pool: (1..=count)
            .map(|last| Ipv4Addr::new(203, 0, 113, last))
            .collect(),
        block: *rng.choose(&[16, 64, 1000, 8192]),
        blocks_max: 1 + rng.below(4) as u32,
        subscriber_sessions_max: *rng.choose(&[5, 50, 1000]),
        sessions_max: *rng.choose(&[30, 1000]),
        filtering: *rng.choose(&[
            EndpointIndependent,
            AddressDependent,
            AddressAndPortDependent,
        ]),
        block_rest: *rng.choose(&[0, 120 * SECOND]),
        epoch: 1_700_000_000 * SECOND,
        ..NatConfig::default()
    }
}

fn run(seed: u64) -> (usize, usize, usize) {
    let mut rng = Rng::new(seed);
    let config = config(&mut rng);
    let filtering = config.filtering;
    let nat = Nat::new(config.clone(), seed).unwrap();
    let mut world = World {
        chain: Chain::new(vec![(Box::new(nat), None)], 1).unwrap(),
        now: 0,
        entries: HashMap::new(),
        lines: Vec::new(),
        translated: Vec::new(),
        by_entry: 0,
    };
    let hosts = 1 + rng.below(20);
    // The model: outside ends by inside ends, with the time of the last packet.
    let mut mapped: BTreeMap<Inside, (End, u64)> = BTreeMap::new();
    let mut sent: Vec<(Inside, End, End)> = Vec::new();
    let mut back = 0;
    for _ in 0..600 {
        world.now += *rng.choose(&[0, 1, SECOND, 50 * SECOND]);
        let protocol = *rng.choose(&[Protocol::UDP, Protocol::TCP]);
        let flags = *rng.choose(&[0x02, 0x10, 0x18, 0x18, 0x18, 0x11, 0x04]);
        let is_out = sent.is_empty() || rng.chance(55);
        if is_out {
            let host = Ipv4Addr::new(10, 0, 0, 1 + rng.below(hosts) as u8);
            let inside = (host, 1000 + rng.below(6) as u16);
            let remote = (
                Ipv4Addr::new(198, 51, 100, 1 + rng.below(3) as u8),
                80 + rng.below(2) as u16,
            );
            let frame = Spec {
                protocol,
                flags,
                src: (IpAddr::V4(inside.0), inside.1),
                dst: (IpAddr::V4(remote.0), remote.1),
                ..Spec::udp(("10.0.0.1", 1), ("10.0.0.2", 1))
            }
            .frame();
            let Some(out) = world.pass(Direction::Outward, &frame) else {
                continue;
            };
            assert!(checksums_are_right(&out));
            let outside = end(&out, 26, 34);
            assert!(config.pool.contains(&outside.0) && outside.1 >= 1024);
            assert_eq!(end(&out, 30, 36), remote);
            // Endpoint-independent while a session lives.
            let shortest = 240 * SECOND;
            if let Some((known, at)) = mapped.get(&(protocol, inside))
                && world.now - at < shortest
            {
                assert_eq!(*known, outside, "another mapping of {inside:?}");
            }
            // No two ends share a port within the shortest time of a session.
            for ((other_protocol, other), (known, at)) in &mapped {
                let same = *other_protocol == protocol && *known == outside && *other != inside;
                assert!(
                    !same || world.now - at >= shortest,
                    "{other:?} and {inside:?}"
                );
            }
            mapped.insert((protocol, inside), (outside, world.now));
            sent.push(((protocol, inside), outside, remote));
            world
                .translated
                .push((world.now, name(protocol), outside, inside.0));
        } else {
            let ((protocol, inside), outside, remote) = *rng.choose(&sent);
            let stranger = rng.chance(20);
            let remote = if stranger {
                (Ipv4Addr::new(192, 0, 2, 99), 7)
            } else {
                remote
            };
            let frame = Spec {
                protocol,
                flags,
                src: (IpAddr::V4(remote.0), remote.1),
                dst: (IpAddr::V4(outside.0), outside.1),
                ..Spec::udp(("10.0.0.1", 1), ("10.0.0.2", 1))
            }
            .frame();
            let Some(came) = world.pass(Direction::Inward, &frame) else {
                continue;
            };
            if came == frame {
                continue; // No mapping any more.
            }
            assert!(checksums_are_right(&came));
            assert_eq!(end(&came, 26, 34), remote);
            let to = end(&came, 30, 36);
            let recent = mapped
                .get(&(protocol, inside))
                .filter(|(known, _)| *known == outside);
            if recent.is_some_and(|(_, at)| world.now - at < 240 * SECOND) {
                assert_eq!(to, inside);
                back += 1;
            }
            assert!(!stranger || filtering == Filtering::EndpointIndependent);
            world
                .translated
                .push((world.now, name(protocol), outside, to.0));
        }
    }
    invert(&world);
    // Everything ends.
    world.now += 8000 * SECOND;
    for _ in 0..3 {
        world.chain.poll(world.now);
    }
    let (stage, _) = world.chain.stages().next().unwrap();
    stage.counters(&mut |name, value| {
        if matches!(name, "sessions" | "mappings" | "subscribers") {
            assert_eq!(value, 0, "{name}");
        }
    });
    assert_eq!(world.chain.next_deadline(), None);
    (world.translated.len(), back, world.by_entry)
}

/// The log names the subscriber of every packet.
fn invert(world: &World) {
    let mut log = Inverted::default();
    for line in &world.lines {
        log.read(line).unwrap();
    }
    let epoch = 1_700_000_000 * SECOND;
    for (now, transport, (pool, port), subscriber) in &world.translated {
        let found = log.find(epoch + now, transport, *pool, *port);
        let found = found.map(|found| found.address);
        assert_eq!(found, Some((*subscriber).into()), "{pool}:{port} at {now}");
    }
}

#[test]
fn random_traffic_keeps_the_rules() {
    let (mut translated, mut back, mut by_entry) = (0, 0, 0);
    for seed in seeds(200) {
        let (all, replies, entries) = run(seed);
        translated += all;
        back += replies;
        by_entry += entries;
    }
    println!("{translated} translated, {back} replies, {by_entry} by entries");
    if std::env::var_os("WEIR_SEED").is_none() {
        assert!(translated > 10_000 && back > 1000 && by_entry > 500);
    }
}

/// Packets of hosts that come and go, so that blocks of ports change their subscribers; returns how
/// many packets were translated, and how many blocks were given back.
fn come_and_go(seed: u64, packets: usize) -> (usize, usize) {
    const HOSTS: usize = 60;
    let mut rng = Rng::new(seed);
    let config = NatConfig {
        pool: vec![Ipv4Addr::new(203, 0, 113, 1)],
        block: 64,
        blocks_max: 4,
        block_rest: 0,
        epoch: 1_700_000_000 * SECOND,
        ..NatConfig::default()
    };
    let nat = Nat::new(config, seed).unwrap();
    let mut world = World {
        chain: Chain::new(vec![(Box::new(nat), None)], 1).unwrap(),
        now: 0,
        entries: HashMap::new(),
        lines: Vec::new(),
        translated: Vec::with_capacity(packets),
        by_entry: 0,
    };
    let frame = Spec {
        no_checksum: true,
        ..Spec::udp(("10.0.0.1", 1), ("198.51.100.1", 53))
    }
    .frame();
    while world.translated.len() < packets {
        world.now += 10_000_000;
        // Another one each 50 s, in the place of the oldest.
        let host = world.translated.len() / 5000 + rng.below(HOSTS);
        let host = Ipv4Addr::from_bits(0x0a00_0001 + host as u32);
        let mut bytes = frame.clone();
        let mut packet = Packet::new(&mut bytes);
        packet.set_source(host.into());
        packet.set_source_port(1000 + rng.below(100) as u16);
        let (mut own, _) = packet.finish();
        let mut batch = Batch::new(vec![Packet::new(own.as_mut())]);
        world.chain.run(world.now, Direction::Outward, &mut batch);
        let packet = batch.into_packets().remove(0);
        if packet.fate() == Fate::Pass {
            let outside = end(packet.bytes(), 26, 34);
            world.translated.push((world.now, "udp", outside, host));
        }
        while world.chain.withdrawn().is_some() {}
        while let Some((_, line)) = world.chain.next_line() {
            world.lines.push(line);
        }
    }
    invert(&world);
    let released = world
        .lines
        .iter()
        .filter(|line| line.contains("block-released"));
    (world.translated.len(), released.count())
}

#[test]
fn the_log_names_the_subscriber_of_a_million_packets() {
    let each = |seed| std::thread::spawn(move || come_and_go(seed, 250_000));
    let threads: Vec<_> = (0..4).map(each).collect();
    let (mut translated, mut released) = (0, 0);
    for thread in threads {
        let (packets, blocks) = thread.join().unwrap();
        translated += packets;
        released += blocks;
    }
    println!("{translated} packets, {released} blocks that were given back");
    assert!(translated >= 1_000_000 && released > 100, "{released}");
}
