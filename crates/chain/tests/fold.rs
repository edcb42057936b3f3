//! The stages are the oracle of the composed entry: whatever random stages do
//! to the first frame of a flow, the entry that their edits fold to does to
//! further frames what the stages do, byte for byte, or sends them up.

mod common;

use common::{checksums_are_right, random_frame};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use weir_chain::{
    Batch, Bytes, Chain, Composed, Direction, Fate, Flow, Outcome, Output, Packet, Routed, Stage,
    filter,
};
use weir_filter::lang::expr::NoNames;
use weir_lab::captures::captures;
use weir_lab::oracle::Oracle;
use weir_lab::rng::Rng;
use weir_lab::seeds::seeds;
use weir_wire::ethernet::Address;
use weir_wire::{checksum, ipv4};

/// A stage that does the same to all packets of a flow: some edits, and
/// sometimes what no edit can express.
struct Random {
    seed: u64,
    is_wild: bool,
}

impl Random {
    fn change(&self, packet: &mut Packet<'_>) {
        let mut rng = Rng::new(self.seed ^ hash(packet.flow()));
        for _ in 0..rng.below(4) {
            self.edit(&mut rng, packet);
        }
        if self.is_wild && rng.chance(20) {
            wild(&mut rng, packet);
        }
    }

    fn edit(&self, rng: &mut Rng, packet: &mut Packet<'_>) {
        let Some((src, _)) = packet.addresses() else {
            return;
        };
        let bits = rng.bits();
        let address = match src {
            IpAddr::V4(_) => IpAddr::from(*rng.choose(&[
                (bits as u32).to_be_bytes(),
                [0xff; 4],
                [0; 4],
                [10, 0, 255, 1],
            ])),
            IpAddr::V6(_) => {
                IpAddr::from((u128::from(bits) << 64 | u128::from(!bits)).to_be_bytes())
            }
        };
        let port = *rng.choose(&[bits as u16, 0, 0xffff, 53]);
        match rng.below(9) {
            0 => _ = packet.set_source(address),
            1 => _ = packet.set_destination(address),
            2 => _ = packet.set_source_port(port),
            3 => _ = packet.set_destination_port(port),
            4 | 5 => _ = packet.set_dscp(bits as u8),
            6 => packet.set_output(bits as u16 % 3),
            7 => _ = packet.set_next_hop((bits as u32).into()),
            _ if rng.chance(10) => packet.drop("by chance"),
            _ => {}
        }
    }
}

/// Decides by what an entry's key does not have, or changes bytes by itself.
fn wild(rng: &mut Rng, packet: &mut Packet<'_>) {
    match rng.below(5) {
        0 if packet.len() > 70 => _ = packet.set_dscp(1),
        1 if packet.ttl() > Some(64) => _ = packet.set_dscp(2),
        2 if packet.dscp() > Some(20) => packet.drop("by dscp"),
        3 => packet.raw(|bytes| bytes.reverse()),
        4 => {
            let copy = packet.bytes().to_vec();
            packet.replace(copy);
        }
        _ => {}
    }
}

fn hash(flow: Option<Flow>) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    flow.hash(&mut hasher);
    hasher.finish()
}

impl Stage for Random {
    fn kind(&self) -> &'static str {
        "random"
    }

    fn outward(&mut self, _now: u64, batch: &mut Batch<'_>, _output: &mut Output) {
        batch.packets().for_each(|packet| self.change(packet));
    }

    fn inward(&mut self, _now: u64, batch: &mut Batch<'_>, _output: &mut Output) {
        batch.packets().for_each(|packet| self.change(packet));
    }
}

const FILTERS: [&str; 8] = [
    "udp",
    "tcp",
    "port 53",
    "src net 10.0.0.0/8",
    "ip[1] & 0xfc = 0x48",
    "greater 80",
    "ip6 or tcp port 80",
    "ip[8] > 100",
];

fn chain(rng: &mut Rng, is_wild: bool) -> Chain {
    let stages = (0..1 + rng.below(4)).map(|_| {
        let seed = rng.bits();
        let text = rng.chance(50).then(|| *rng.choose(&FILTERS));
        let program = text.map(|text| filter::program(text, &NoNames).unwrap());
        let stage: Box<dyn Stage> = Box::new(Random { seed, is_wild });
        (stage, program)
    });
    Chain::new(stages.collect(), 1).unwrap()
}

const MTU: u32 = 100;

/// What a router does to a packet: checks, MAC addresses, TTL, padding. `None`
/// if it does not forward it. The result is the number of bytes to send.
fn route(frame: &mut [u8], routed: Routed) -> Option<usize> {
    let stated = match frame.get(12..14)? {
        [8, 0] => {
            let packet = ipv4::Packet::new(&frame[14..]).ok()?;
            let header = &frame[14..14 + packet.header_len()];
            (checksum::internet_checksum(header) == 0).then_some(packet.total_len())?
        }
        [0x86, 0xdd] if frame.len() >= 54 && frame[14] >> 4 == 6 => {
            40 + usize::from(u16::from_be_bytes([frame[18], frame[19]]))
        }
        _ => return None,
    };
    if stated > MTU as usize || 14 + stated > frame.len() {
        return None;
    }
    let mut packet = Packet::new(&mut frame[..14 + stated]);
    let done = packet.less_ttl() && packet.set_stations(routed.src, routed.dst);
    done.then_some(14 + stated)
}

const ROUTED: Routed = Routed {
    link: 1,
    src: Address([2, 0, 0, 0, 1, 1]),
    dst: Address([2, 0, 0, 0, 1, 2]),
    mtu: MTU,
};

/// The base's decision inward: a neighbour that the stages have chosen has a station of its own.
fn routed_to(next_hop: Option<Ipv4Addr>) -> Routed {
    let Some(next_hop) = next_hop else {
        return ROUTED;
    };
    let [a, b, c, d] = next_hop.octets();
    Routed {
        dst: Address([2, 1, a, b, c, d]),
        ..ROUTED
    }
}

/// What stages and base make of a frame, `None` if nothing, and the entry.
fn through(
    chain: &mut Chain,
    direction: Direction,
    routed: bool,
    frame: &[u8],
) -> (Option<Vec<u8>>, Option<Composed>) {
    let mut bytes = frame.to_vec();
    let mut len = bytes.len();
    if routed && direction == Direction::Outward {
        match route(&mut bytes, ROUTED) {
            Some(routed) => len = routed,
            None => return (None, None),
        }
    }
    let mut batch = Batch::new(vec![Packet::new(&mut bytes[..len])]);
    chain.run(0, direction, &mut batch);
    let (out, mut trace) = batch.into_packets().remove(0).finish();
    let replaced = match out {
        Bytes::Own(bytes) => Some(bytes),
        Bytes::Shared(_) => None,
    };
    let decision = match direction {
        Direction::Outward => ROUTED,
        Direction::Inward => routed_to(trace.edits().next_hop),
    };
    if routed {
        trace.record_route(direction, decision);
    }
    let entry = chain.compose(&trace, direction);
    let fate = trace.fate();
    if let Some(replaced) = replaced {
        bytes = replaced;
        len = bytes.len();
    }
    if fate != Fate::Pass {
        return (None, entry);
    }
    if routed && direction == Direction::Inward {
        match route(&mut bytes[..len], decision) {
            Some(routed) => len = routed,
            None => return (None, None),
        }
    }
    bytes.truncate(len);
    (Some(bytes), entry)
}

/// Numbers of frames that entries sent, dropped, and sent up.
#[derive(Default, Debug)]
struct Seen {
    sent: usize,
    dropped: usize,
    up: usize,
}

/// All frames through chain and entries; the entries are of earlier frames.
fn compare(chain: &mut Chain, frames: &[Vec<u8>], routed: bool, seen: &mut Seen) {
    for direction in [Direction::Outward, Direction::Inward] {
        let mut entries: HashMap<Flow, Composed> = HashMap::new();
        for frame in frames.iter().chain(frames) {
            let (right, entry) = through(chain, direction, routed, frame);
            let flow = Packet::new(&mut frame.clone()).flow();
            if let Some(known) = flow.and_then(|flow| entries.get(&flow)) {
                let mut copy = frame.clone();
                match known.apply(&mut copy) {
                    Outcome::Sent { len } => {
                        copy.truncate(len);
                        assert_eq!(Some(copy), right, "{known:?} of {frame:02x?}");
                        seen.sent += 1;
                    }
                    Outcome::Dropped => {
                        assert_eq!(right, None, "{known:?} of {frame:02x?}");
                        seen.dropped += 1;
                    }
                    Outcome::Up => {
                        assert_eq!(&copy, frame, "a frame that goes up is unchanged");
                        seen.up += 1;
                    }
                }
            }
            if let Some(entry) = entry {
                entries.insert(entry.flow, entry);
            }
        }
    }
}

#[test]
fn an_entry_does_what_the_stages_do() {
    let mut seen = Seen::default();
    for seed in seeds(150) {
        let mut rng = Rng::new(seed);
        let mut chain = chain(&mut rng, true);
        let frames: Vec<Vec<u8>> = (0..150).map(|_| random_frame(&mut rng)).collect();
        compare(&mut chain, &frames, rng.chance(50), &mut seen);
    }
    println!("{seen:?}");
    if std::env::var_os("WEIR_SEED").is_none() {
        assert!(
            seen.sent > 5000 && seen.dropped > 100 && seen.up > 1000,
            "{seen:?}"
        );
    }
}

#[test]
fn an_entry_does_what_the_stages_do_to_captured_frames() {
    let Some(oracle) = Oracle::load() else { return };
    let captures = captures(&oracle);
    let is_there = !captures.is_empty();
    let frames: Vec<Vec<u8>> = captures
        .into_iter()
        .filter(|(_, capture)| capture.linktype == weir_wire::LinkType::EN10MB)
        .flat_map(|(_, capture)| capture.frames)
        .map(|frame| frame.bytes)
        .collect();
    let mut seen = Seen::default();
    for seed in 0..6 {
        let mut rng = Rng::new(seed);
        let mut chain = chain(&mut rng, seed % 2 == 0);
        compare(&mut chain, &frames, seed < 3, &mut seen);
    }
    println!("{} frames, {seen:?}", frames.len());
    assert!(!is_there || seen.sent > 1000, "{seen:?}");
}

/// Edits keep right checksums right.
#[test]
fn edits_keep_checksums_right() {
    for seed in seeds(100) {
        let mut rng = Rng::new(seed);
        let mut chain = chain(&mut rng, false);
        for _ in 0..100 {
            let frame = random_frame(&mut rng);
            let plain = Packet::own(frame.clone());
            let is_flow = plain.flow().is_some() && plain.is_whole();
            if !is_flow || !checksums_are_right(&frame) {
                continue;
            }
            let (out, _) = through(&mut chain, Direction::Outward, false, &frame);
            if let Some(out) = out {
                assert!(checksums_are_right(&out), "{frame:02x?} to {out:02x?}");
            }
        }
    }
}

/// What a stage does by other means than edits makes no entry.
#[test]
fn reading_beside_the_key_forfeits_caching() {
    type Touch = fn(&mut Packet<'_>);
    let touches: [(&str, Touch, bool); 9] = [
        ("flow", |packet| _ = packet.flow(), true),
        ("dscp edit", |packet| _ = packet.set_dscp(1), true),
        ("drop", |packet| packet.drop("so"), true),
        ("length", |packet| _ = packet.len(), false),
        ("ttl", |packet| _ = packet.ttl(), false),
        ("dscp", |packet| _ = packet.dscp(), false),
        ("bytes", |packet| _ = packet.bytes(), false),
        ("raw", |packet| packet.raw(|_| ()), false),
        ("hold", |packet| _ = packet.hold(), false),
    ];
    for (name, touch, is_cacheable) in touches {
        let mut frame = common::Spec::udp(("10.0.0.1", 1), ("10.0.0.2", 2)).frame();
        let mut packet = Packet::new(&mut frame);
        touch(&mut packet);
        assert_eq!(packet.trace().is_cacheable(), is_cacheable, "{name}");
    }
}
