//! The gateway of FTP: texts in segments split, repeated and lost anywhere, between a host and a
//! peer that are TCPs in small.

mod common;

use common::{Spec, checksums_are_right};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use weir_chain::nat::{Filtering, Forward, Nat, NatConfig, Transport};
use weir_chain::{Batch, Bytes, Chain, Direction, Fate, Packet, SentFrame};
use weir_lab::rng::Rng;
use weir_lab::seeds::seeds;
use weir_wire::field::{read_u16, read_u32, write};

type End = (Ipv4Addr, u16);

const HOST: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 9);
const PEER: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 9);
const POOL: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 201);
const SYN: u8 = 2;
const ACK: u8 = 0x10;

fn chain(filtering: Filtering) -> Chain {
    let config = NatConfig {
        pool: vec![POOL],
        filtering,
        ftp: true,
        forwards: vec![Forward {
            transport: Transport::Tcp,
            outside: (POOL, 21),
            inside: (HOST, 21),
        }],
        ..NatConfig::default()
    };
    let nat = Nat::new(config, 7).unwrap();
    Chain::new(vec![(Box::new(nat), None)], 1).unwrap()
}

/// A frame through the chain, which makes no entry; with what the chain sends to the host.
fn pass(
    chain: &mut Chain,
    direction: Direction,
    mut frame: Vec<u8>,
) -> (Option<Vec<u8>>, Vec<Vec<u8>>) {
    assert!(checksums_are_right(&frame));
    let mut batch = Batch::new(vec![Packet::new(&mut frame)]);
    chain.run(0, direction, &mut batch);
    let packet = batch.into_packets().remove(0);
    assert!(
        chain.compose(packet.trace(), direction).is_none(),
        "an entry"
    );
    let fate = packet.fate();
    let (bytes, _) = packet.finish();
    let bytes = match bytes {
        Bytes::Shared(bytes) => bytes.to_vec(),
        Bytes::Own(bytes) => bytes,
    };
    let sent = chain.take_sent().into_iter();
    let sent = sent.map(|sent| match sent.frame {
        SentFrame::Made(frame) => {
            assert_eq!(sent.direction, Direction::Inward);
            assert!(checksums_are_right(&frame));
            frame
        }
        other => panic!("{other:?}"),
    });
    let sent = sent.collect();
    let out = (fate == Fate::Pass).then_some(bytes);
    if let Some(out) = &out {
        assert!(checksums_are_right(out), "{out:02x?}");
    }
    (out, sent)
}

fn segment(src: End, dst: End, flags: u8, sequence: u32, ack: u32, payload: &[u8]) -> Vec<u8> {
    let mut spec = Spec::tcp(("10.0.0.1", 1), ("10.0.0.2", 1), flags);
    (spec.src, spec.dst) = ((IpAddr::V4(src.0), src.1), (IpAddr::V4(dst.0), dst.1));
    spec.payload = payload.to_vec();
    let frame = spec.frame();
    let mut sealed = frame.clone();
    write(&mut sealed, 38, &sequence.to_be_bytes());
    write(&mut sealed, 42, &ack.to_be_bytes());
    common::seal(&mut sealed);
    sealed
}

fn end(frame: &[u8], address: usize, port: usize) -> End {
    let octets: [u8; 4] = frame[address..address + 4].try_into().unwrap();
    (octets.into(), read_u16(frame, port))
}

/// The host's side of a control connection, and the peer's.
struct World {
    chain: Chain,
    host: End,
    peer: End,
    /// The peer's view of the host.
    outside: End,
    iss: u32,
    /// What the host writes; how much is acknowledged.
    text: Vec<u8>,
    acknowledged: usize,
    /// What the peer has got, in order.
    got: Vec<u8>,
    peer_iss: u32,
}

impl World {
    fn new(filtering: Filtering, is_server: bool, text: &[u8], iss: u32) -> World {
        let mut chain = chain(filtering);
        let (host, peer) = if is_server {
            ((HOST, 21), (PEER, 4000))
        } else {
            ((HOST, 4000), (PEER, 21))
        };
        let peer_iss = 77_000;
        let outside = if is_server {
            let syn = segment(peer, (POOL, 21), SYN, peer_iss, 0, b"");
            pass(&mut chain, Direction::Inward, syn).0.unwrap();
            let syn = segment(host, peer, SYN | ACK, iss, peer_iss + 1, b"");
            let out = pass(&mut chain, Direction::Outward, syn).0.unwrap();
            end(&out, 26, 34)
        } else {
            let syn = segment(host, peer, SYN, iss, 0, b"");
            let out = pass(&mut chain, Direction::Outward, syn).0.unwrap();
            let outside = end(&out, 26, 34);
            let syn = segment(peer, outside, SYN | ACK, peer_iss, iss.wrapping_add(1), b"");
            let back = pass(&mut chain, Direction::Inward, syn).0.unwrap();
            assert_eq!(read_u32(&back, 42), iss.wrapping_add(1));
            outside
        };
        World {
            chain,
            host,
            peer,
            outside,
            iss,
            text: text.to_vec(),
            acknowledged: 0,
            got: Vec::new(),
            peer_iss,
        }
    }

    /// The host sends a part of its text; the peer answers, unless something is lost.
    fn send(&mut self, from: usize, to: usize, losses: (bool, bool)) {
        let first = self.iss.wrapping_add(1);
        let sequence = first.wrapping_add(from as u32);
        let (host, peer) = (self.host, self.peer);
        let flags = ACK | 8;
        let frame = segment(
            host,
            peer,
            flags,
            sequence,
            self.peer_iss + 1,
            &self.text[from..to],
        );
        let (out, sent) = pass(&mut self.chain, Direction::Outward, frame);
        for frame in sent {
            self.host_hears(&frame);
        }
        let Some(out) = out.filter(|_| !losses.0) else {
            return;
        };
        assert_eq!(end(&out, 26, 34), self.outside);
        let stated = 14 + usize::from(read_u16(&out, 16));
        let payload = &out[54..stated];
        let at = read_u32(&out, 38).wrapping_sub(first) as i32;
        let have = self.got.len() as i32;
        if at > have || payload.is_empty() {
            // Behind a gap, or no data: a pure acknowledgment gets no answer.
            return;
        }
        let known = (have - at) as usize;
        if let Some(new) = payload.get(known..) {
            self.got.extend_from_slice(new);
        }
        if losses.1 {
            return;
        }
        let ack = first.wrapping_add(self.got.len() as u32);
        let frame = segment(self.peer, self.outside, ACK, self.peer_iss + 1, ack, b"");
        let (back, _) = pass(&mut self.chain, Direction::Inward, frame);
        self.host_hears(&back.unwrap());
    }

    fn host_hears(&mut self, frame: &[u8]) {
        assert_eq!(
            (end(frame, 26, 34), end(frame, 30, 36)),
            (self.peer, self.host)
        );
        let ack = read_u32(frame, 42).wrapping_sub(self.iss.wrapping_add(1)) as usize;
        assert!(ack <= self.text.len(), "more is acknowledged than was sent");
        self.acknowledged = self.acknowledged.max(ack);
    }

    /// Everything to the peer: one segment at a time, as Nagle's algorithm has it.
    fn run(&mut self, rng: &mut Rng, loss: usize, piece: usize) {
        for _ in 0..20_000 {
            if self.acknowledged == self.text.len() {
                return;
            }
            let from = self.acknowledged;
            let to = (from + 1 + rng.below(piece)).min(self.text.len());
            let mut is_lost = || loss > 0 && rng.below(loss) == 0;
            let losses = (is_lost(), is_lost());
            self.send(from, to, losses);
            if rng.chance(10) && loss > 0 {
                // A repeated one, perhaps of other pieces.
                let from = rng.below(to);
                self.send(from, to, (rng.chance(30), rng.chance(30)));
            }
            if rng.chance(10) && loss > 0 && to < self.text.len() {
                // One behind a gap.
                let last = self.text.len();
                self.send(to + 1, last.max(to + 1), (false, false));
            }
        }
        panic!(
            "it does not go on: {} of {}, the peer has {:?}",
            self.acknowledged,
            self.text.len(),
            String::from_utf8_lossy(&self.got)
        );
    }

    /// The end of the inside that a connection from the peer to a port of the pool reaches.
    fn reached(&mut self, from: End, port: u16) -> Option<End> {
        let syn = segment(from, (POOL, port), SYN, 5, 0, b"");
        let back = pass_any(&mut self.chain, Direction::Inward, syn)?;
        let to = end(&back, 30, 36);
        (to.0 != POOL).then_some(to)
    }
}

fn pass_any(chain: &mut Chain, direction: Direction, mut frame: Vec<u8>) -> Option<Vec<u8>> {
    let mut batch = Batch::new(vec![Packet::new(&mut frame)]);
    chain.run(0, direction, &mut batch);
    let fate = batch.all()[0].fate();
    (fate == Fate::Pass).then_some(frame)
}

/// The address and port of a line.
fn named(line: &str) -> End {
    let numbers: String = line
        .chars()
        .map(|it| {
            if it.is_ascii_digit() || it == '.' {
                it
            } else {
                ' '
            }
        })
        .collect();
    let words = numbers.split_whitespace();
    let words: Vec<&str> = words.filter(|word| *word != ".").collect();
    match (line.get(..4), &words[..]) {
        (Some("EPRT"), ["1", address, port]) => (address.parse().unwrap(), port.parse().unwrap()),
        (Some("229 "), [_, port]) => (POOL, port.parse().unwrap()),
        (_, words) => {
            let bytes: Vec<u8> = words[words.len() - 6..]
                .iter()
                .map(|word| word.parse().unwrap())
                .collect();
            let port = u16::from_be_bytes([bytes[4], bytes[5]]);
            (Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3]), port)
        }
    }
}

/// Lines, and the port of the host that each names; `None` if it stays as it is.
const COMMANDS: [(&str, Option<u16>); 12] = [
    ("USER anonymous", None),
    ("PORT 10,0,0,9,19,136", Some(5000)),
    ("port 10,0,0,9,255,255", Some(65_535)),
    ("EPRT |1|10.0.0.9|5001|", Some(5001)),
    ("EPRT !1!10.0.0.9!65000!", Some(65_000)),
    ("EPRT |2|2001:db8::9|5002|", None),
    ("STOR PORT 10,0,0,9,1,1", None),
    ("PORTS 10,0,0,9,19,136", None),
    ("PORT", None),
    ("EPRT ", None),
    ("\u{fffd}\u{fffd}ABOR", None),
    ("", None),
];
const REPLIES: [(&str, Option<u16>); 7] = [
    ("220 ready", None),
    ("227 Entering Passive Mode (10,0,0,9,19,136).", Some(5000)),
    ("227 =10,0,0,9,19,137", Some(5001)),
    ("229 Entering Extended Passive Mode (|||5002|)", Some(5002)),
    ("227-a line of several", None),
    ("2270 10,0,0,9,19,136", None),
    ("229 nothing here", None),
];

#[test]
fn texts_become_those_of_mappings_however_they_are_split() {
    for seed in seeds(150) {
        let mut rng = Rng::new(seed);
        let is_server = rng.chance(40);
        let lines: &[(&str, Option<u16>)] = if is_server { &REPLIES } else { &COMMANDS };
        let mut written: Vec<(&str, Option<u16>)> = Vec::new();
        for _ in 0..1 + rng.below(20) {
            written.push(*rng.choose(lines));
        }
        let text: String = written
            .iter()
            .map(|(line, _)| format!("{line}\r\n"))
            .collect();
        let filtering = *rng.choose(&[
            Filtering::AddressAndPortDependent,
            Filtering::AddressDependent,
        ]);
        // Across the end of sequence numbers, too.
        let random = rng.bits() as u32;
        let iss = *rng.choose(&[1, u32::MAX - 30, random]);
        let mut world = World::new(filtering, is_server, text.as_bytes(), iss);
        let (loss, piece) = (*rng.choose(&[0, 3, 10]), *rng.choose(&[1, 5, 40, 1000]));
        world.run(&mut rng, loss, piece);
        let got = String::from_utf8(world.got.clone()).unwrap();
        let got: Vec<&str> = got.split_terminator("\r\n").collect();
        assert_eq!(got.len(), written.len(), "seed {seed}: {got:?}");
        // The last mapping of each port of the host.
        let mut named_ports: HashMap<u16, u16> = HashMap::new();
        for (line, (was, port)) in got.iter().zip(&written) {
            let Some(port) = port else {
                assert_eq!(line, was, "seed {seed}");
                continue;
            };
            let (address, outside) = named(line);
            assert_eq!(address, POOL, "{line}");
            named_ports.insert(outside, *port);
        }
        for (outside, port) in named_ports {
            let stranger = (Ipv4Addr::new(192, 0, 2, 1), 20);
            assert_eq!(world.reached(stranger, outside), None);
            let peer = (PEER, 20);
            assert_eq!(
                world.reached(peer, outside),
                Some((HOST, port)),
                "seed {seed}"
            );
            if filtering == Filtering::AddressAndPortDependent {
                assert_eq!(world.reached((PEER, 9999), outside), None, "one connection");
            }
        }
    }
}

/// What is not the host's own, or is a service's port, gets no way in.
#[test]
fn a_text_opens_the_hosts_own_high_ports_alone() {
    for line in [
        "PORT 10,0,0,8,19,136",
        "PORT 10,0,0,9,0,22",
        "EPRT |1|10.0.0.8|5000|",
        "EPRT |1|10.0.0.9|70000|",
        "PORT 10,0,0,9,19,136,7",
        "PORT 10,0,0,999,19,136",
        "PORT 1111111111111111111111111111111111111111111111,1",
    ] {
        let text = format!("{line}\r\nNOOP\r\n");
        let filtering = Filtering::AddressAndPortDependent;
        let mut world = World::new(filtering, false, text.as_bytes(), 9);
        world.run(&mut Rng::new(1), 0, 7);
        let got = String::from_utf8_lossy(&world.got).into_owned();
        assert!(got.ends_with("\r\nNOOP\r\n"), "{got}");
        let digits: String = got
            .chars()
            .map(|it| if it.is_ascii_digit() { it } else { ' ' })
            .collect();
        let words: Vec<u16> = digits
            .split_whitespace()
            .filter_map(|it| it.parse().ok())
            .collect();
        for pair in words.windows(2) {
            let port = pair[0].wrapping_mul(256).wrapping_add(pair[1]);
            for port in [port, pair[1]] {
                let found = world.reached((PEER, 20), port);
                assert!(found.is_none_or(|it| it == (HOST, 21)), "{line}: {found:?}");
            }
        }
    }
}

/// The mapping that a text made ends, if the peer never connects; so does what was reserved.
#[test]
fn nothing_stays_of_texts_without_a_connection() {
    let text = b"PORT 10,0,0,9,19,136\r\nPORT 10,0,0";
    let filtering = Filtering::AddressAndPortDependent;
    let mut world = World::new(filtering, false, text, 9);
    world.run(&mut Rng::new(1), 0, 100);
    for step in 1..4 {
        world.chain.poll(step * 10_000 * 1_000_000_000);
    }
    let mut counts = HashMap::new();
    let (stage, _) = world.chain.stages().next().unwrap();
    stage.counters(&mut |name, value| _ = counts.insert(name, value));
    assert_eq!(
        (counts["sessions"], counts["mappings"]),
        (0, 1),
        "the forward stays"
    );
    assert_eq!(counts["free_blocks"], 62, "one rests");
    assert_eq!(counts["ftp_texts"], 1);
}

/// Segments that another host has made, with numbers by chance, change nothing: an acknowledgment
/// of what was never sent would have the gateway forget a text that is sent again.
#[test]
fn forged_segments_are_dropped() {
    let text = b"PORT 10,0,0,9,19,136\r\nNOOP\r\n";
    for seed in seeds(20) {
        let mut rng = Rng::new(seed);
        let mut world = World::new(Filtering::EndpointIndependent, false, text, 9);
        let first = segment(world.host, world.peer, ACK, 10, 77_001, text);
        let before = pass(&mut world.chain, Direction::Outward, first.clone()).0;
        for _ in 0..50 {
            let far = |rng: &mut Rng| (2 << 20) + rng.below(1 << 30) as u32;
            let (sequence, ack) = match rng.below(3) {
                0 => (77_001_u32.wrapping_add(far(&mut rng)), 10),
                1 => (77_001, 10_u32.wrapping_add(far(&mut rng))),
                _ => (77_001, 10_u32.wrapping_sub(far(&mut rng))),
            };
            let flags = *rng.choose(&[ACK, ACK | SYN, 0x11, 0x14]);
            let forged = segment(world.peer, world.outside, flags, sequence, ack, b"");
            let passed = pass(&mut world.chain, Direction::Inward, forged);
            assert_eq!(passed, (None, vec![]), "seed {seed}");
        }
        let again = pass(&mut world.chain, Direction::Outward, first).0;
        assert_eq!(again, before, "seed {seed}");
        world.run(&mut rng, 0, 7);
        assert!(world.got.ends_with(b"NOOP\r\n"), "seed {seed}");
    }
}

#[test]
fn random_segments_do_no_harm() {
    let mut rng = Rng::new(5);
    let text: String = COMMANDS
        .iter()
        .map(|(line, _)| format!("{line}\r\n"))
        .collect();
    for _ in 0..300 {
        let filtering = Filtering::EndpointIndependent;
        let mut world = World::new(filtering, false, text.as_bytes(), 9);
        for _ in 0..100 {
            let len = rng.below(60);
            let at = rng.below(text.len() - 60);
            let payload = &text.as_bytes()[at..at + len];
            let flags = *rng.choose(&[ACK, ACK, 0x38, 0x11, 0x04, SYN, 0, 0x3f]);
            let sequence = 10_u32.wrapping_add(rng.below(300) as u32).wrapping_sub(20);
            let random = rng.bits() as u32;
            let ack = *rng.choose(&[77_001, 0, random]);
            let (direction, src, dst) = if rng.chance(70) {
                (Direction::Outward, world.host, world.peer)
            } else {
                (Direction::Inward, world.peer, world.outside)
            };
            let mut frame = segment(src, dst, flags, sequence, ack, payload);
            if rng.chance(20) {
                let at = 34 + rng.below(frame.len() - 34);
                frame[at] ^= 1 << rng.below(8);
            }
            pass_any(&mut world.chain, direction, frame);
            world.chain.take_sent();
        }
    }
}
