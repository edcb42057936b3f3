//! A translator that goes on from another one's state: against the one that never stopped.

mod common;

use common::Spec;
use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr};
use weir_chain::nat::log::Inverted;
use weir_chain::nat::{Filtering, Forward, Nat, NatConfig, Transport};
use weir_chain::{Batch, Chain, Direction, Fate, Packet, RestoreError, Stage};
use weir_lab::rng::Rng;
use weir_lab::seeds::seeds;
use weir_wire::Protocol;
use weir_wire::field::read_u16;

const SECOND: u64 = 1_000_000_000;
const EPOCH: u64 = 1_700_000_000 * SECOND;

type End = (Ipv4Addr, u16);

fn config(rng: &mut Rng) -> NatConfig {
    use Filtering::{AddressAndPortDependent, AddressDependent, EndpointIndependent};
    NatConfig {
        pool: (1..=2)
            .map(|last| Ipv4Addr::new(203, 0, 113, last))
            .collect(),
        block: *rng.choose(&[16, 64, 1000]),
        blocks_max: 4,
        filtering: *rng.choose(&[
            EndpointIndependent,
            AddressDependent,
            AddressAndPortDependent,
        ]),
        forwards: vec![Forward {
            transport: Transport::Tcp,
            outside: (Ipv4Addr::new(203, 0, 113, 1), 8080),
            inside: (Ipv4Addr::new(10, 0, 0, 1), 80),
        }],
        epoch: EPOCH,
        ..NatConfig::default()
    }
}

fn chain(config: &NatConfig, seed: u64) -> Chain {
    let nat = Nat::new(config.clone(), seed).unwrap();
    Chain::new(vec![(Box::new(nat), None)], 1).unwrap()
}

fn pass(chain: &mut Chain, now: u64, direction: Direction, frame: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = frame.to_vec();
    let mut batch = Batch::new(vec![Packet::new(&mut bytes)]);
    chain.run(now, direction, &mut batch);
    let fate = batch.all()[0].fate();
    (fate == Fate::Pass).then_some(bytes)
}

fn lines(chain: &mut Chain, log: &mut Inverted) {
    while let Some((_, line)) = chain.next_line() {
        log.read(&line).unwrap();
    }
}

fn counters(chain: &Chain) -> HashMap<&'static str, u64> {
    let mut all = HashMap::new();
    let (stage, _) = chain.stages().next().unwrap();
    stage.counters(&mut |name, value| _ = all.insert(name, value));
    all
}

fn frame(protocol: Protocol, src: End, dst: End, flags: u8) -> Vec<u8> {
    Spec {
        protocol,
        flags,
        src: (IpAddr::V4(src.0), src.1),
        dst: (IpAddr::V4(dst.0), dst.1),
        ..Spec::udp(("10.0.0.1", 1), ("10.0.0.2", 1))
    }
    .frame()
}

fn end(frame: &[u8], address: usize, port: usize) -> End {
    let octets: [u8; 4] = frame[address..address + 4].try_into().unwrap();
    (octets.into(), read_u16(frame, port))
}

struct Sent {
    protocol: Protocol,
    inside: End,
    outside: End,
    remote: End,
}

fn random_outward(rng: &mut Rng) -> (Protocol, End, End, u8) {
    let protocol = *rng.choose(&[Protocol::UDP, Protocol::TCP]);
    let inside = (
        Ipv4Addr::new(10, 0, 0, 1 + rng.below(9) as u8),
        1000 + rng.below(6) as u16,
    );
    let remote = (Ipv4Addr::new(198, 51, 100, 1 + rng.below(3) as u8), 80);
    let flags = *rng.choose(&[0x02, 0x10, 0x18, 0x18, 0x11, 0x04]);
    (protocol, inside, remote, flags)
}

/// Traffic of a while; returns what left.
fn live(chain: &mut Chain, now: &mut u64, rng: &mut Rng) -> Vec<Sent> {
    let mut sent = Vec::new();
    for _ in 0..200 {
        *now += *rng.choose(&[0, 1, SECOND, 20 * SECOND]);
        let (protocol, inside, remote, flags) = random_outward(rng);
        let out = frame(protocol, inside, remote, flags);
        if let Some(out) = pass(chain, *now, Direction::Outward, &out) {
            let outside = end(&out, 26, 34);
            sent.push(Sent {
                protocol,
                inside,
                outside,
                remote,
            });
        }
        if rng.chance(50) && !sent.is_empty() {
            let one = rng.choose(&sent);
            let back = frame(one.protocol, one.remote, one.outside, 0x12);
            pass(chain, *now, Direction::Inward, &back);
        }
    }
    // From a stranger, to the forward.
    let stranger = (Ipv4Addr::new(192, 0, 2, 7), 77);
    let forward = (Ipv4Addr::new(203, 0, 113, 1), 8080);
    let syn = frame(Protocol::TCP, stranger, forward, 0x02);
    assert!(pass(chain, *now, Direction::Inward, &syn).is_some());
    sent.push(Sent {
        protocol: Protocol::TCP,
        inside: (Ipv4Addr::new(10, 0, 0, 1), 80),
        outside: forward,
        remote: stranger,
    });
    sent
}

#[test]
fn a_restart_translates_as_if_there_was_none() {
    for seed in seeds(100) {
        let mut rng = Rng::new(seed);
        let config = config(&mut rng);
        let mut before = chain(&config, seed);
        let (mut now, mut log) = (5, Inverted::default());
        let sent = live(&mut before, &mut now, &mut rng);
        lines(&mut before, &mut log);
        let saved = before.save();
        now += *rng.choose(&[0, SECOND, 100 * SECOND, 250 * SECOND]);
        let mut after = chain(&config, !seed);
        let done = after.restore(now, &saved);
        assert_eq!(done.len(), 1);
        let restored = done[0].1.unwrap();
        before.poll(now);
        let (old, new) = (counters(&before), counters(&after));
        for name in ["sessions", "mappings", "subscribers", "free_blocks"] {
            assert_eq!(old[name], new[name], "{name}, seed {seed}");
        }
        assert_eq!(restored.sessions, new["sessions"]);
        assert_eq!(
            before.next_deadline().is_some(),
            after.next_deadline().is_some()
        );
        lines(&mut after, &mut log);
        // Known sessions, in both directions, as by the one that never stopped.
        let mut known: HashMap<(Protocol, End), End> = HashMap::new();
        // The last end of the inside that had a port.
        let owner: HashMap<(Protocol, End), End> = sent
            .iter()
            .map(|one| ((one.protocol, one.outside), one.inside))
            .collect();
        for one in &sent {
            let Sent {
                protocol,
                inside,
                outside,
                remote,
            } = one;
            let way = *rng.choose(&[Direction::Outward, Direction::Inward]);
            let packet = match way {
                Direction::Outward => frame(*protocol, *inside, *remote, 0x10),
                Direction::Inward => frame(*protocol, *remote, *outside, 0x10),
            };
            let is_mapped = before.turns(&frame(*protocol, *inside, *outside, 0x10));
            let is_last = owner[&(*protocol, *outside)] == *inside;
            if way == Direction::Outward && !(is_mapped && is_last) {
                // A new mapping: the port is at random.
                continue;
            }
            let [was, is] = [&mut before, &mut after].map(|chain| pass(chain, now, way, &packet));
            assert_eq!(was, is, "{way}, seed {seed}");
            if let (Direction::Outward, Some(out)) = (way, &is) {
                let outside = end(out, 26, 34);
                known.insert((*protocol, *inside), outside);
                let of = if *protocol == Protocol::TCP {
                    "tcp"
                } else {
                    "udp"
                };
                let found = log.find(EPOCH + now, of, outside.0, outside.1);
                let found = found.map(|found| found.address);
                assert_eq!(found, Some(inside.0.into()), "the log goes on");
            }
        }
        // New mappings share no port with those that go on.
        let mut taken: HashSet<(Protocol, End)> =
            known.iter().map(|((p, _), o)| (*p, *o)).collect();
        for host in 20..60 {
            let inside = (Ipv4Addr::new(10, 0, 1, host), 7);
            let out = frame(
                Protocol::UDP,
                inside,
                (Ipv4Addr::new(198, 51, 100, 1), 80),
                0,
            );
            if let Some(out) = pass(&mut after, now, Direction::Outward, &out) {
                assert!(
                    taken.insert((Protocol::UDP, end(&out, 26, 34))),
                    "seed {seed}"
                );
            }
        }
        // And everything ends.
        after.poll(now + 10_000 * SECOND);
        after.poll(now + 20_000 * SECOND);
        let left = counters(&after);
        assert_eq!(
            (left["sessions"], left["mappings"]),
            (0, 1),
            "the forward stays"
        );
        assert_eq!(left["subscribers"], 1);
    }
}

/// A block that was given back goes on resting, and its last port is nobody's.
#[test]
fn a_block_that_rests_rests_on() {
    let config = NatConfig {
        pool: vec![Ipv4Addr::new(203, 0, 113, 1)],
        block: 64_512,
        blocks_max: 1,
        ..NatConfig::default()
    };
    let mut before = chain(&config, 1);
    let remote = (Ipv4Addr::new(198, 51, 100, 1), 80);
    let out = |last| frame(Protocol::UDP, (Ipv4Addr::new(10, 0, 0, last), 7), remote, 0);
    assert!(pass(&mut before, 0, Direction::Outward, &out(1)).is_some());
    before.poll(300 * SECOND);
    assert_eq!(counters(&before)["sessions"], 0);
    let saved = before.save();
    let mut after = chain(&config, 2);
    after.restore(310 * SECOND, &saved)[0].1.unwrap();
    assert!(pass(&mut after, 419 * SECOND, Direction::Outward, &out(2)).is_none());
    assert!(pass(&mut after, 420 * SECOND, Direction::Outward, &out(2)).is_some());
}

#[test]
fn what_the_configuration_no_longer_allows_is_left_out() {
    let mut rng = Rng::new(3);
    let config = NatConfig {
        block: 64,
        ..config(&mut rng)
    };
    let mut before = chain(&config, 1);
    let mut now = 0;
    let sent = live(&mut before, &mut now, &mut rng);
    let saved = before.save();
    // Another pool address, and no forward.
    let changed = NatConfig {
        pool: vec![config.pool[1], Ipv4Addr::new(203, 0, 113, 9)],
        forwards: Vec::new(),
        ..config.clone()
    };
    let mut after = chain(&changed, 2);
    let restored = after.restore(now, &saved)[0].1.unwrap();
    assert!(
        restored.left_out > 0 && restored.sessions > 0,
        "{restored:?}"
    );
    for one in &sent {
        let is_gone = one.outside.0 == config.pool[0];
        let mapped = after.turns(&frame(one.protocol, one.inside, one.outside, 0x10));
        assert!(!(is_gone && mapped));
    }
    // A port that is forwarded now is the forward's alone.
    let one = sent
        .iter()
        .find(|one| one.protocol == Protocol::TCP && one.outside.1 != 8080);
    let one = one.unwrap();
    let other = (Ipv4Addr::new(10, 9, 9, 9), 99);
    let changed = NatConfig {
        forwards: vec![Forward {
            transport: Transport::Tcp,
            outside: one.outside,
            inside: other,
        }],
        ..config.clone()
    };
    let mut after = chain(&changed, 2);
    after.restore(now, &saved)[0].1.unwrap();
    let back = frame(Protocol::TCP, one.remote, one.outside, 0x10);
    let back = pass(&mut after, now, Direction::Inward, &back).unwrap();
    assert_eq!(end(&back, 30, 36), other);
    // Other blocks would be others' ports.
    let changed = NatConfig {
        block: 128,
        ..config.clone()
    };
    let mut after = chain(&changed, 2);
    let refused = after.restore(now, &saved)[0].1;
    assert_eq!(refused, Err(RestoreError::Block { was: 64, is: 128 }));
    assert_eq!(counters(&after)["sessions"], 0);
}

#[test]
fn a_damaged_state_is_refused_or_does_no_harm() {
    let mut rng = Rng::new(4);
    let config = config(&mut rng);
    let mut before = chain(&config, 1);
    let mut now = 0;
    live(&mut before, &mut now, &mut rng);
    let saved = before.save();
    for len in 0..saved.len() {
        let mut after = chain(&config, 2);
        for (_, result) in after.restore(now, &saved[..len]) {
            assert_eq!(result, Err(RestoreError::Damaged), "{len} bytes");
        }
    }
    for _ in 0..300 {
        let mut damaged = saved.clone();
        for _ in 0..1 + rng.below(4) {
            let at = rng.below(damaged.len());
            damaged[at] = rng.bits() as u8;
        }
        let mut after = chain(&config, 2);
        after.restore(now, &damaged);
        let mut later = now;
        live(&mut after, &mut later, &mut rng);
        after.poll(later + 10_000 * SECOND);
        after.poll(later + 20_000 * SECOND);
        assert_eq!(counters(&after)["sessions"], 0);
    }
}

#[test]
fn a_stage_that_has_begun_refuses_an_earlier_state() {
    let mut rng = Rng::new(5);
    let config = config(&mut rng);
    let mut nat = Nat::new(config.clone(), 1).unwrap();
    let empty = nat.save().unwrap();
    assert!(nat.restore(1, &empty).is_ok());
    let mut running = chain(&config, 1);
    let mut now = 0;
    live(&mut running, &mut now, &mut rng);
    let saved = running.save();
    assert_eq!(running.restore(now, &saved)[0].1, Err(RestoreError::Late));
}
