//! A tape of any bytes as a chain's life: frames of both directions, answers to frames that left,
//! changed frames, time, new servers. Made for the fuzz target `chain` and the test `tapes`.

use std::collections::{HashMap, HashSet};
use std::net::Ipv4Addr;
use weir_chain::balance::{Balance, BalanceConfig, HttpCheck, Server};
use weir_chain::nat::{Filtering, Forward, Nat, NatConfig, Prefix, Transport};
use weir_chain::stages::{Discard, Mark, Police};
use weir_chain::{
    Batch, Chain, Composed, Direction, Endpoints, Fate, Flow, Outcome, Packet, Reload, Sent,
    SentFrame, Stage,
};
use weir_filter::ir::Program;
use weir_filter::lang::expr::NoNames;
use weir_wire::field::{read_u16, write};
use weir_wire::{AddrPair, Protocol, checksum};

const SECOND: u64 = 1_000_000_000;

/// Sessions of each stage, at most.
const SESSIONS_MAX: u32 = 40;

/// Frames that left, of which the tape answers some.
const SEEN_MAX: usize = 32;

/// Frames that the stages send by themselves in one step, at most: to each server two, and
/// fragments that waited.
const OUTPUT_MAX: usize = 300;

const POOL: [Ipv4Addr; 2] = [Ipv4Addr::new(203, 0, 113, 1), Ipv4Addr::new(203, 0, 113, 2)];
const SERVICE: (Ipv4Addr, u16) = (Ipv4Addr::new(192, 0, 2, 1), 80);
/// The box's own address on the servers' link.
const OWN: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 200);

struct Tape<'a>(&'a [u8]);

impl Tape<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn word(&mut self) -> Option<u16> {
        Some(u16::from_be_bytes([self.byte()?, self.byte()?]))
    }

    fn take(&mut self, len: usize) -> &[u8] {
        let (first, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        first
    }
}

/// Whether servers answer clients directly, by the chain's options.
fn is_direct(options: u8) -> bool {
    options & 0x40 != 0
}

fn servers(options: u8, bits: u8) -> Vec<Server> {
    let port = if is_direct(options) { SERVICE.1 } else { 8080 };
    let all = (0..4).filter(|at| bits >> at & 1 == 1 || *at == 0);
    all.map(|at| Server {
        end: (Ipv4Addr::new(10, 1, 0, at), port),
        weight: 1 + u32::from(bits >> 6),
        is_draining: bits >> 4 & 3 == at && at > 0,
    })
    .collect()
}

fn filter(text: &str) -> Option<Program> {
    Some(weir_chain::filter::program(text, &NoNames).expect("a good filter"))
}

type Stages = Vec<(Box<dyn Stage>, Option<Program>)>;

fn chain(options: u8, reload: &Reload<Vec<Server>>) -> Chain {
    let mut stages: Stages = Vec::new();
    if options & 1 != 0 {
        stages.push((Box::new(Mark { dscp: 46 }), filter("udp dst port 53")));
    }
    if options & 2 != 0 {
        stages.push((Box::new(Discard), filter("tcp dst port 25")));
    }
    if options & 4 != 0 {
        stages.push((Box::new(Police::new(1_000_000, 20_000)), None));
    }
    let nat = NatConfig {
        pool: POOL.to_vec(),
        block: 16,
        blocks_max: 2,
        sessions_max: SESSIONS_MAX,
        subscriber_sessions_max: 20,
        filtering: match options >> 3 & 3 {
            0 => Filtering::EndpointIndependent,
            1 => Filtering::AddressDependent,
            _ => Filtering::AddressAndPortDependent,
        },
        forwards: vec![Forward {
            transport: Transport::Tcp,
            outside: (POOL[0], 8080),
            inside: (Ipv4Addr::new(10, 0, 0, 2), 80),
        }],
        ..NatConfig::default()
    };
    stages.push((Box::new(Nat::new(nat, 3).expect("good")), None));
    let http = (options & 0x20 != 0).then(|| HttpCheck {
        path: "/".into(),
        host: "h".into(),
        statuses: vec![200..=399],
    });
    let balance = BalanceConfig {
        sessions_max: SESSIONS_MAX,
        http,
        direct_return: is_direct(options).then(|| {
            vec![Prefix {
                address: OWN,
                len: 24,
            }]
        }),
        ..BalanceConfig::new(Protocol::TCP, SERVICE, servers(options, 3))
    };
    let balance = Balance::new(balance, 4).expect("good");
    stages.push((Box::new(balance.reloaded_by(reload.clone())), None));
    Chain::new(stages, 1).expect("few stages")
}

/// Whether all checksums of a frame of IPv4 that is whole and no fragment are right.
fn is_right(frame: &[u8]) -> bool {
    if frame.len() < 34 || frame[12..15] != [8, 0, 0x45] {
        return false;
    }
    let end = 14 + usize::from(read_u16(frame, 16));
    let is_fragment = read_u16(frame, 20) & 0x3fff != 0;
    if end > frame.len() || end < 42 || is_fragment {
        return false;
    }
    if checksum::internet_checksum(&frame[14..34]) != 0 {
        return false;
    }
    match frame[23] {
        17 if frame[40..42] == [0, 0] => true,
        6 | 17 => transport_sum(frame, end) == 0,
        _ => true,
    }
}

fn transport_sum(frame: &[u8], end: usize) -> u16 {
    let address = |at: usize| Ipv4Addr::new(frame[at], frame[at + 1], frame[at + 2], frame[at + 3]);
    checksum::Sum::new()
        .pseudo_header(
            AddrPair::V4(address(26), address(30)),
            frame[23],
            (end - 34) as u32,
        )
        .bytes(&frame[34..end])
        .finish()
}

/// Sets the checksums of a frame of IPv4.
fn seal(frame: &mut [u8]) {
    write(frame, 24, &[0, 0]);
    let sum = checksum::internet_checksum(&frame[14..34]);
    write(frame, 24, &sum.to_be_bytes());
    let end = frame.len();
    let at = match frame[23] {
        6 if end >= 54 => 50,
        17 if end >= 42 => 40,
        1 if end >= 42 => {
            write(frame, 36, &[0, 0]);
            let sum = checksum::internet_checksum(&frame[34..end]);
            return write(frame, 36, &sum.to_be_bytes());
        }
        _ => return,
    };
    write(frame, at, &[0, 0]);
    let sum = match transport_sum(frame, end) {
        0 if frame[23] == 17 => 0xffff,
        sum => sum,
    };
    write(frame, at, &sum.to_be_bytes());
}

fn address(byte: u8) -> Ipv4Addr {
    match byte >> 5 {
        0 | 1 => Ipv4Addr::new(10, 0, 0, byte & 3),
        2 => Ipv4Addr::new(10, 1, 0, byte & 3),
        3 => SERVICE.0,
        4 => POOL[usize::from(byte & 1)],
        _ => Ipv4Addr::new(198, 51, 100, byte & 3),
    }
}

fn port(byte: u8) -> u16 {
    match byte >> 5 {
        0 => 80,
        1 => 8080,
        2 => [21, 25, 53, 1023][usize::from(byte & 3)],
        _ => 1024 + u16::from(byte & 31),
    }
}

/// A frame of the tape's choice; most are of IPv4, with right checksums.
fn fresh(tape: &mut Tape<'_>, is_plain: bool) -> Option<Vec<u8>> {
    if !is_plain {
        let len = usize::from(tape.byte()?);
        return Some(tape.take(len).to_vec());
    }
    let [kind, src, dst, from, to, flags] = [
        tape.byte()?,
        tape.byte()?,
        tape.byte()?,
        tape.byte()?,
        tape.byte()?,
        tape.byte()?,
    ];
    let len = usize::from(tape.byte()?);
    let payload = tape.take(len).to_vec();
    let protocol = [6, 6, 17, 1][usize::from(kind & 3)];
    let header = if protocol == 6 { 20 } else { 8 };
    let mut frame = vec![0; 34 + header];
    write(
        &mut frame,
        0,
        &[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45],
    );
    let total = (20 + header + payload.len()) as u16;
    write(&mut frame, 16, &total.to_be_bytes());
    write(&mut frame, 18, &u16::from(kind >> 6).to_be_bytes());
    if kind & 0x3c == 0x3c {
        let fragment = [0x2000, 0x2001, 0x0001, 0][usize::from(kind >> 6)];
        write(&mut frame, 20, &u16::to_be_bytes(fragment));
    }
    write(&mut frame, 22, &[64, protocol]);
    write(&mut frame, 26, &address(src).octets());
    write(&mut frame, 30, &address(dst).octets());
    match protocol {
        1 => write(&mut frame, 34, &[flags % 15, 0, 0, 0, from, to]),
        6 => {
            write(&mut frame, 34, &port(from).to_be_bytes());
            write(&mut frame, 36, &port(to).to_be_bytes());
            write(&mut frame, 46, &[0x50, flags & 0x3f]);
        }
        _ => {
            write(&mut frame, 34, &port(from).to_be_bytes());
            write(&mut frame, 36, &port(to).to_be_bytes());
            write(&mut frame, 38, &(total - 20).to_be_bytes());
        }
    }
    frame.extend_from_slice(&payload);
    seal(&mut frame);
    Some(frame)
}

/// The answer to a frame: its ends change places.
fn answer(frame: &[u8], flags: u8, payload: &[u8]) -> Vec<u8> {
    let mut back = frame[..frame.len().min(54)].to_vec();
    if back.len() < 42 {
        return back;
    }
    for (a, b, len) in [(26, 30, 4), (34, 36, 2)] {
        for at in 0..len {
            back.swap(a + at, b + at);
        }
    }
    if back[23] == 6 && back.len() == 54 {
        let sequence = u32::from_be_bytes([back[38], back[39], back[40], back[41]]);
        let ack = [back[42], back[43], back[44], back[45]];
        write(&mut back, 38, &ack);
        write(&mut back, 42, &sequence.wrapping_add(1).to_be_bytes());
        write(&mut back, 46, &[0x50, flags & 0x3f]);
        back.extend_from_slice(payload);
    }
    let total = (back.len() - 14) as u16;
    write(&mut back, 16, &total.to_be_bytes());
    if back[23] == 17 {
        write(&mut back, 38, &(total - 20).to_be_bytes());
    }
    seal(&mut back);
    back
}

struct World {
    chain: Chain,
    now: u64,
    entries: HashMap<(Direction, Flow), Composed>,
    seen: Vec<(Direction, Vec<u8>)>,
}

impl World {
    fn pass(&mut self, direction: Direction, frame: &[u8]) {
        let _ = self.chain.turns(frame);
        if let Some(endpoints) = Endpoints::of(frame) {
            assert!(frame.len() >= 34, "{endpoints:?} of a short frame");
        }
        let mut bytes = frame.to_vec();
        let flow = Packet::new(&mut bytes).flow();
        let entry = flow.and_then(|flow| self.entries.get(&(direction, flow)).copied());
        let entry = entry.filter(|entry| self.chain.used(entry, 0));
        let by_entry = entry.map(|entry| {
            let mut copy = frame.to_vec();
            (entry.apply(&mut copy), copy)
        });
        let mut batch = Batch::new(vec![Packet::new(&mut bytes)]);
        self.chain.run(self.now, direction, &mut batch);
        let packet = batch.into_packets().remove(0);
        let fate = packet.fate();
        let composed = self.chain.compose(packet.trace(), direction);
        let next_hop = packet.trace().edits().next_hop;
        let (out, _) = packet.finish();
        let out = match out {
            weir_chain::Bytes::Shared(bytes) => bytes.to_vec(),
            weir_chain::Bytes::Own(bytes) => bytes,
        };
        if let Some((flow, composed)) = flow.zip(composed) {
            self.entries.insert((direction, flow), composed);
        }
        let withdrawn = self.withdraw();
        let still = |entry: &Composed| {
            let mut cookies = entry.cookies.iter().enumerate();
            !cookies.any(|(stage, cookie)| withdrawn.contains(&(stage, *cookie)))
        };
        if let Some((outcome, copy)) = by_entry
            && outcome != Outcome::Up
            && entry.as_ref().is_some_and(still)
        {
            match outcome {
                Outcome::Sent { len } => {
                    assert_eq!(fate, Fate::Pass, "the entry sends");
                    assert_eq!(copy[..len], out[..len], "entry and stages agree");
                    let entrys = entry.map(|entry| entry.edits.next_hop);
                    assert_eq!(entrys, Some(next_hop), "the neighbour");
                }
                _ => assert!(matches!(fate, Fate::Drop(_)), "the entry drops"),
            }
        }
        if fate == Fate::Pass {
            if is_right(frame) {
                assert!(
                    is_right(&out),
                    "a checksum is wrong: {frame:02x?}, {out:02x?}"
                );
            }
            self.leaves(direction, out);
        }
    }

    /// A frame behind all stages.
    fn leaves(&mut self, direction: Direction, frame: Vec<u8>) {
        if direction == Direction::Outward
            && let Some(layers) = weir_chain::Layers::of(&frame)
            && let (std::net::IpAddr::V4(src), _) = layers.addresses(&frame)
        {
            // No private address gets out.
            assert!(!src.is_private(), "{src} is outside: {frame:02x?}");
        }
        if self.seen.len() == SEEN_MAX {
            self.seen.remove(0);
        }
        self.seen.push((direction, frame));
    }

    /// Ends the entries that no longer hold.
    fn withdraw(&mut self) -> HashSet<(usize, u64)> {
        let mut withdrawn = HashSet::new();
        while let Some((stage, cookie)) = self.chain.withdrawn() {
            withdrawn.insert((stage, cookie));
            self.entries
                .retain(|_, entry| entry.cookies[stage] != cookie);
        }
        withdrawn
    }

    /// What the stages sent goes through the stages behind.
    fn take_sent(&mut self) {
        let sent = self.chain.take_sent();
        assert!(sent.len() <= OUTPUT_MAX, "{} frames at once", sent.len());
        for from in sent {
            let Sent {
                direction,
                frame: SentFrame::Made(bytes),
                ..
            } = &from
            else {
                panic!("no stage here holds or routes: {from:?}");
            };
            let mut bytes = bytes.clone();
            let mut batch = Batch::new(vec![Packet::new(&mut bytes)]);
            self.chain.resume(self.now, &from, &mut batch);
            let is_passed = batch.into_packets()[0].fate() == Fate::Pass;
            if is_passed {
                self.leaves(*direction, bytes);
            }
        }
        self.withdraw();
        while self.chain.next_line().is_some() {}
    }

    fn sessions(&self) -> u64 {
        let mut most = 0;
        for (stage, _) in self.chain.stages() {
            stage.counters(&mut |name, value| {
                if name == "sessions" {
                    most = most.max(value);
                }
            });
        }
        most
    }
}

/// Runs a tape to its end, and asserts what must hold.
pub fn run(data: &[u8]) {
    let mut tape = Tape(data);
    let Some(options) = tape.byte() else { return };
    let reload = Reload::default();
    let mut world = World {
        chain: chain(options, &reload),
        now: 0,
        entries: HashMap::new(),
        seen: Vec::new(),
    };
    while step(&mut tape, &mut world, options, &reload).is_some() {
        world.take_sent();
        assert!(world.sessions() <= u64::from(SESSIONS_MAX));
    }
    // Everything ends, but what is static.
    world.now = world.now.saturating_add(10_000 * SECOND);
    for _ in 0..3 {
        world.chain.poll(world.now);
        world.take_sent();
    }
    assert_eq!(world.sessions(), 0, "a session stays");
}

fn step(
    tape: &mut Tape<'_>,
    world: &mut World,
    options: u8,
    reload: &Reload<Vec<Server>>,
) -> Option<()> {
    let choice = tape.byte()?;
    let direction = match choice >> 7 {
        0 => Direction::Outward,
        _ => Direction::Inward,
    };
    match choice & 7 {
        0 => {
            let time = u64::from(tape.byte()?);
            world.now += match choice >> 3 & 3 {
                0 => time,
                1 => time << 20,
                2 => time * SECOND / 10,
                _ => time * 3 * SECOND,
            };
            world.chain.poll(world.now);
            let _ = world.chain.next_deadline();
        }
        1 => reload.put(servers(options, tape.byte()?)),
        2 | 3 => {
            let (at, flags) = (usize::from(tape.byte()?), tape.byte()?);
            let len = usize::from(tape.byte()?) % 64;
            let payload = tape.take(len).to_vec();
            let (direction, frame) = world.seen.get(at % world.seen.len().max(1))?;
            let back = match direction {
                Direction::Outward => Direction::Inward,
                Direction::Inward => Direction::Outward,
            };
            let frame = answer(frame, flags, &payload);
            // Several of them: a flow that is cached.
            for _ in 0..1 + (choice >> 3 & 3) {
                world.pass(back, &frame);
            }
        }
        4 => {
            let frame = fresh(tape, false)?;
            world.pass(direction, &frame);
        }
        5 => {
            let mut frame = fresh(tape, true)?;
            let at = usize::from(tape.word()?) % frame.len();
            frame[at] ^= tape.byte()? | 1;
            world.pass(direction, &frame);
        }
        _ => {
            let frame = fresh(tape, true)?;
            for _ in 0..1 + (choice >> 3 & 3) {
                world.pass(direction, &frame);
            }
        }
    }
    Some(())
}
