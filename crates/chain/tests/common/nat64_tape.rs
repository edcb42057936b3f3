//! A tape of any bytes as a translator's life between IPv6 and IPv4: frames of both directions, answers
//! to what left, damage, time. Made for the fuzz target `nat64` and the test `nat64_random`.

use weir_chain::nat::nat64::{Nat64, Nat64Config};
use weir_chain::nat::{Filtering, NatConfig};
use weir_chain::{Batch, Chain, Direction, Fate, Packet, SentFrame};
use weir_wire::field::write;

/// Sessions, at most.
const SESSIONS_MAX: u64 = 40;

/// Frames that left, of which the tape answers some.
const SEEN_MAX: usize = 16;

/// Frames that come of one: fragments of the longest packet in packets of 1280 bytes, and those of
/// the fragments that have waited.
const FRAMES_MAX: usize = 128 * 55;

/// The octets of the well-known prefix: an address that damage has put beside it is another host's.
const PREFIX: [u8; 12] = [0, 0x64, 0xff, 0x9b, 0, 0, 0, 0, 0, 0, 0, 0];

/// Protocols and extension headers of IPv6.
const NEXT: [u8; 8] = [6, 17, 58, 44, 0, 43, 60, 1];

struct World {
    chain: Chain,
    now: u64,
    seen: Vec<(Direction, Vec<u8>)>,
}

impl World {
    fn pass(&mut self, direction: Direction, frame: &[u8]) {
        let mut bytes = frame.to_vec();
        let mut batch = Batch::new(vec![Packet::new(&mut bytes)]);
        self.chain.run(self.now, direction, &mut batch);
        let packet = batch.into_packets().remove(0);
        let fate = packet.fate();
        let (mut own, _) = packet.finish();
        let mut made = Vec::new();
        if fate == Fate::Pass {
            made.push((direction, own.as_mut().to_vec()));
        }
        for sent in self.chain.take_sent() {
            let SentFrame::Made(frame) = sent.frame else {
                panic!("this stage neither holds nor routes");
            };
            made.push((sent.direction, frame));
        }
        assert!(made.len() <= FRAMES_MAX, "{} frames of one", made.len());
        for (way, frame) in made {
            let is_prefix = |at: usize| frame.get(at..at + PREFIX.len()) == Some(&PREFIX[..]);
            let is_v6 = frame.len() >= 54 && frame.get(12..15) == Some(&[0x86, 0xdd, 0x60][..]);
            assert!(
                way == Direction::Inward || !is_v6 || !is_prefix(22) && !is_prefix(38),
                "the prefix is outside: {frame:02x?}"
            );
            self.seen.truncate(SEEN_MAX);
            self.seen.insert(0, (way, frame));
        }
        while self.chain.next_line().is_some() {}
        while self.chain.withdrawn().is_some() {}
    }

    fn sessions(&self) -> u64 {
        let mut sessions = 0;
        for (stage, _) in self.chain.stages() {
            stage.counters(&mut |name, value| {
                if name == "sessions" {
                    sessions = value;
                }
            });
        }
        sessions
    }
}

/// A frame of these bytes, of IPv6 to the prefix or of IPv4 to the pool.
fn frame(choice: u8, bytes: &[u8]) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    if choice & 1 == 0 {
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        frame.extend((bytes.len() as u16).to_be_bytes());
        frame.extend([NEXT[usize::from(choice >> 1 & 7)], 64]);
        let mut src = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9];
        src[15] = choice >> 4 & 3;
        frame.extend(src);
        frame.extend(PREFIX);
        let dst = match choice >> 6 {
            0 => [203, 0, 113, 1],
            1 => [10, 0, 0, 1],
            last => [9, 9, 9, last],
        };
        frame.extend(dst);
    } else {
        let fragment = [0, 0x40, 0x20, 0x01][usize::from(choice >> 4 & 3)];
        frame.extend([8, 0, 0x45, 0]);
        frame.extend((20 + bytes.len() as u16).to_be_bytes());
        frame.extend([
            0,
            7,
            fragment,
            0,
            64,
            [6, 17, 1, 58][usize::from(choice >> 1 & 3)],
            0,
            0,
        ]);
        frame.extend([9, 9, 9, choice >> 6, 203, 0, 113, 1]);
        let sum = weir_wire::checksum::internet_checksum(&frame[14..34]);
        write(&mut frame, 24, &sum.to_be_bytes());
    }
    frame.extend_from_slice(bytes);
    frame
}

/// A frame that left, as its receiver answers it: addresses and ports change places.
fn answer(frame: &[u8]) -> Vec<u8> {
    let mut back = frame.to_vec();
    let (addresses, half, ports) = match frame.get(12) {
        Some(8) => (26..34, 4, 34..38),
        _ => (22..54, 16, 54..58),
    };
    if back.len() >= ports.end {
        back[addresses].rotate_left(half);
        back[ports].rotate_left(2);
    }
    back
}

/// Runs a tape to its end, and asserts what must hold.
pub fn run(data: &[u8]) {
    let Some((options, mut tape)) = data.split_first() else {
        return;
    };
    let filtering = match options & 3 {
        0 => Filtering::EndpointIndependent,
        1 => Filtering::AddressDependent,
        _ => Filtering::AddressAndPortDependent,
    };
    let nat = Nat64::new(
        Nat64Config {
            nat: NatConfig {
                pool: vec![[203, 0, 113, 1].into()],
                block: 16,
                blocks_max: 2,
                sessions_max: SESSIONS_MAX as u32,
                filtering,
                ..NatConfig::default()
            },
            ..Nat64Config::default()
        },
        3,
    );
    let mut world = World {
        chain: Chain::new(vec![(Box::new(nat.expect("good")), None)], 1).expect("one stage"),
        now: 0,
        seen: Vec::new(),
    };
    while let [choice, len, rest @ ..] = tape {
        let (bytes, rest) = rest.split_at(usize::from(*len).min(rest.len()));
        tape = rest;
        let direction = match choice & 1 {
            0 => Direction::Outward,
            _ => Direction::Inward,
        };
        match choice >> 1 & 7 {
            7 => {
                world.now += u64::from(*len) << 28;
                world.chain.poll(world.now);
            }
            6 => world.pass(direction, bytes),
            5 => {
                let at = usize::from(*len) % world.seen.len().max(1);
                if let Some((way, left)) = world.seen.get(at).cloned() {
                    let mut back = answer(&left);
                    if let (Some(change), false) = (bytes.first(), back.is_empty()) {
                        let at = usize::from(*change) % back.len();
                        back[at] ^= bytes.get(1).unwrap_or(&0);
                    }
                    let to = match way {
                        Direction::Outward => Direction::Inward,
                        Direction::Inward => Direction::Outward,
                    };
                    world.pass(to, &back);
                }
            }
            _ => world.pass(direction, &frame(*choice, bytes)),
        }
        assert!(world.sessions() <= SESSIONS_MAX);
    }
    world.now += 10_000_000_000_000;
    world.chain.poll(world.now);
    assert_eq!(world.sessions(), 0, "a session stays");
}
