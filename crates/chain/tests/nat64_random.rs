//! Random packets and captures through the translator between IPv6 and IPv4, and back: checksums stay
//! as right or wrong as they were, and scapy makes the same packets.

#![allow(unreachable_pub, reason = "shared with the fuzz target")]

mod common;
#[path = "common/nat64_tape.rs"]
mod tape;
#[path = "common/nat64.rs"]
mod world;

use common::{Spec, checksums_are_right};
use serde_json::json;
use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::Stdio;
use weir_chain::nat::Filtering;
use weir_chain::{Direction, Packet};
use weir_lab::captures::captures;
use weir_lab::oracle::Oracle;
use weir_lab::rng::Rng;
use weir_lab::seeds::seeds;
use weir_lab::testenv;
use weir_wire::Protocol;
use weir_wire::field::{read_u16, write};
use world::*;

/// A packet of the inside, whole and with right checksums.
fn random(rng: &mut Rng) -> Vec<u8> {
    let host = format!("2001:db8:{:x}::{:x}", rng.below(3), 1 + rng.below(4));
    let server = format!("64:ff9b::9.9.{}.{}", rng.below(256), 1 + rng.below(255));
    let payload: Vec<u8> = (0..rng.below(1500)).map(|_| rng.bits() as u8).collect();
    if rng.chance(30) {
        return icmp6(&host, &server, 128, 0, rng.word(), &payload);
    }
    Spec {
        protocol: *rng.choose(&[Protocol::TCP, Protocol::UDP]),
        flags: *rng.choose(&[0x02, 0x10, 0x18, 0x11, 0x04]),
        ttl: rng.bits() as u8,
        class: rng.bits() as u8,
        payload,
        ..Spec::udp((&host, rng.bits() as u16), (&server, rng.bits() as u16))
    }
    .frame()
}

/// A packet that left, as its receiver sends it back: addresses and ports change places, which keeps
/// all sums; an echo request becomes a reply.
fn turned(out: &[u8]) -> Vec<u8> {
    let mut back = out.to_vec();
    back[26..34].rotate_left(4);
    match back[23] {
        1 => {
            let sum = weir_wire::checksum::update(read_u16(&back, 36), 0x0800, 0);
            write(&mut back, 36, &sum.to_be_bytes());
            back[34] = 0;
        }
        _ => back[34..38].rotate_left(2),
    }
    back
}

/// The pairs of frames before and after, of some thousand packets out and back.
fn pairs(seed: u64, count: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut rng = Rng::new(seed);
    let mut world = World::new(weir_chain::nat::nat64::Nat64Config {
        mtu: 9000,
        ..config()
    });
    let mut pairs = Vec::new();
    for _ in 0..count {
        let frame = random(&mut rng);
        let out = world.out(&frame).unwrap();
        assert!(checksums_are_right(&out), "{frame:02x?} to {out:02x?}");
        let back = turned(&out);
        let inn = world.inn(&back).unwrap();
        assert!(checksums_are_right(&inn), "{back:02x?} to {inn:02x?}");
        // The way there and back is that of an untranslated packet.
        let mut expected = frame.clone();
        expected[22..54].rotate_left(16);
        match frame[20] {
            58 => expected[54] = 129,
            _ => expected[54..58].rotate_left(2),
        }
        write(
            &mut expected,
            14,
            &[0x60 | frame[14] & 0xf, frame[15] & 0xf0, 0, 0],
        );
        assert_eq!(inn[14..56], expected[14..56], "{frame:02x?}");
        let sum = match frame[20] {
            6 => 70,
            17 => 60,
            _ => 56,
        };
        write(&mut expected, sum, &inn[sum..sum + 2]);
        assert_eq!(inn[54..], expected[54..], "{frame:02x?}");
        world.now += rng.below(50_000_000) as u64;
        pairs.push((frame, out));
        pairs.push((back, inn));
    }
    pairs
}

#[test]
fn random_packets_come_back_as_they_were() {
    for seed in seeds(6) {
        pairs(seed, 500);
    }
}

/// What the fuzz target `nat64` does, for a moment.
#[test]
fn any_life_is_survived() {
    for seed in seeds(60) {
        let mut rng = Rng::new(seed);
        let len = 200 + rng.below(4000);
        let bytes: Vec<u8> = (0..len)
            .map(|_| {
                if rng.chance(30) {
                    *rng.choose(&[0, 8, 20, 44])
                } else {
                    rng.bits() as u8
                }
            })
            .collect();
        tape::run(&bytes);
    }
}

/// Each bit that is damaged on the way makes a checksum wrong, whatever was translated.
#[test]
fn damage_is_not_covered_up() {
    for seed in seeds(3) {
        let mut rng = Rng::new(seed);
        let mut world = World::new(config());
        for _ in 0..300 {
            let mut frame = random(&mut rng);
            let at = frame.len() - 1;
            if at < 75 {
                continue;
            }
            frame[at] ^= 1 << rng.below(8);
            let out = world.out(&frame).unwrap();
            assert!(!checksums_are_right(&out), "{frame:02x?} to {out:02x?}");
        }
    }
}

/// Packets of captures, with addresses of the test's own.
#[test]
fn packets_of_captures_keep_their_checksums() {
    let Some(oracle) = Oracle::load() else {
        return;
    };
    let mut config = config();
    config.nat.filtering = Filtering::EndpointIndependent;
    config.mtu = 65_535;
    let mut world = World::new(config);
    let open = |world: &mut World, protocol| {
        let spec = Spec {
            protocol,
            flags: 2,
            ..Spec::udp((HOST, 5000), (SERVER6, 53))
        };
        read_u16(&world.out(&spec.frame()).unwrap(), 34)
    };
    let ports = [Protocol::UDP, Protocol::TCP].map(|protocol| open(&mut world, protocol));
    // Those that were translated, outward and inward.
    let mut counts = [0; 2];
    let (pool, server): (IpAddr, IpAddr) = (POOL.parse().unwrap(), SERVER.parse().unwrap());
    let (host6, server6): (IpAddr, IpAddr) = (HOST.parse().unwrap(), SERVER6.parse().unwrap());
    for (_, capture) in captures(&oracle) {
        for frame in capture.frames.iter().take(2000) {
            let mut bytes = frame.bytes.clone();
            let mut packet = Packet::new(&mut bytes);
            let Some(flow) = packet.flow().filter(|_| packet.is_whole()) else {
                continue;
            };
            let is_right = checksums_are_right(&frame.bytes);
            let direction = if flow.src.is_ipv6() {
                packet.set_source(host6);
                packet.set_destination(server6);
                Direction::Outward
            } else {
                packet.set_source(server);
                packet.set_destination(pool);
                let port = ports[usize::from(flow.protocol == Protocol::TCP)];
                packet.set_destination_port(port);
                Direction::Inward
            };
            drop(packet);
            if let Ok((made, _)) = world.pass(direction, &bytes)
                && made.len() == 1
                && made[0][12..14] != bytes[12..14]
            {
                counts[usize::from(direction == Direction::Inward)] += 1;
                assert_eq!(checksums_are_right(&made[0]), is_right, "{bytes:02x?}");
            }
        }
    }
    assert!(
        testenv::captures().is_none() || counts[0] > 50 && counts[1] > 500,
        "{counts:?}"
    );
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Has a script of scapy's judge as many lines.
fn judged(script: &str, lines: &[String]) {
    let Some(mut python) = testenv::python(&["scapy.layers.inet6"]) else {
        return;
    };
    let name = format!("{script}-{}.json", std::process::id());
    let input = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::write(&input, lines.join("\n")).unwrap();
    let script = format!("{}/tests/oracle/{script}.py", env!("CARGO_MANIFEST_DIR"));
    let done = python
        .arg(script)
        .stdin(Stdio::from(fs::File::open(&input).unwrap()))
        .output()
        .unwrap();
    fs::remove_file(&input).unwrap();
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(
        done.status.success() && said.trim() == lines.len().to_string(),
        "{said} {}",
        String::from_utf8_lossy(&done.stderr)
    );
}

/// Another implementation of headers and checksums is of the same opinion on each byte.
#[test]
fn scapy_makes_the_same_packets() {
    let lines: Vec<String> = pairs(1, 150)
        .iter()
        .map(|(before, after)| json!({"before": hex(before), "after": hex(after)}).to_string())
        .collect();
    judged("scapy_nat64", &lines);
}

/// The fragments of a packet before, in any order, and what they become.
type Group = (Vec<Vec<u8>>, Vec<Vec<u8>>);

/// Packets in fragments out and back, some of the latter without checksum.
fn groups(seed: u64, count: usize) -> Vec<Group> {
    let mut rng = Rng::new(seed);
    let mut config = config();
    config.mtu = *rng.choose(&[1280, 1400, 1500]);
    let mut world = World::new(config);
    let mut groups = Vec::new();
    while groups.len() < 2 * count {
        let frame = random(&mut rng);
        if frame[20] == 58 || frame.len() < 54 + 100 {
            continue;
        }
        // Up to 30 fragments: as many wait for the first one.
        let least = (frame.len() / 30).next_multiple_of(8).max(24);
        let step = |rng: &mut Rng| least + 8 * rng.below(160);
        let parts = fragments6(&frame, step(&mut rng), rng.word());
        let out = all(&mut world, &mut rng, Direction::Outward, &parts);
        // A fragment header also of a packet that is whole.
        let whole = if parts.len() > 1 {
            whole4(&out)
        } else {
            out[0].clone()
        };
        assert!(checksums_are_right(&whole), "{parts:02x?} to {out:02x?}");
        groups.push((parts, out));
        let mut back = turned(&whole);
        let is_summed = back[23] != 17 || rng.chance(50);
        if !is_summed {
            write(&mut back, 40, &[0, 0]);
        }
        write(&mut back, 18, &rng.word().to_be_bytes()[..2]);
        let parts = fragments4(&back, step(&mut rng));
        let inn = all(&mut world, &mut rng, Direction::Inward, &parts);
        let whole = match inn[0][20] {
            44 => whole6(&inn),
            _ => inn[0].clone(),
        };
        assert!(checksums_are_right(&whole), "{parts:02x?} to {inn:02x?}");
        groups.push((parts, inn));
    }
    groups
}

/// All frames that these become in any order.
fn all(world: &mut World, rng: &mut Rng, direction: Direction, parts: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut order: Vec<&Vec<u8>> = parts.iter().collect();
    for at in (1..order.len()).rev() {
        order.swap(at, rng.below(at + 1));
    }
    let mut made = Vec::new();
    for part in order {
        made.extend(world.pass(direction, part).unwrap().0);
    }
    world.now += rng.below(50_000_000) as u64;
    made
}

#[test]
fn random_fragments_keep_their_checksums() {
    for seed in seeds(20) {
        groups(seed, 100);
    }
}

/// scapy puts the fragments of both sides together, translates the packet, and knows each header.
#[test]
fn scapy_makes_the_same_fragments() {
    let lines: Vec<String> = groups(1, 150)
        .iter()
        .map(|(before, after)| {
            let hex = |frames: &[Vec<u8>]| frames.iter().map(|it| hex(it)).collect::<Vec<_>>();
            json!({"before": hex(before), "after": hex(after)}).to_string()
        })
        .collect();
    judged("scapy_nat64_fragments", &lines);
}
