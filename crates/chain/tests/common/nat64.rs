//! A chain with a NAT64 alone, and frames for it.

#![allow(dead_code, unreachable_pub, reason = "each test uses its part")]

use super::common::Spec;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use weir_chain::nat::NatConfig;
use weir_chain::nat::nat64::{Nat64, Nat64Config};
use weir_chain::{Batch, Chain, Direction, Fate, Packet, SentFrame};
use weir_wire::field::{read_u16, write};
use weir_wire::{AddrPair, Protocol, icmp, ipv6};

pub const SECOND: u64 = 1_000_000_000;
pub const HOST: &str = "2001:db8:1::9";
pub const POOL: &str = "203.0.113.1";
/// A global address of the outside, and its address in the well-known prefix.
pub const SERVER: &str = "9.9.9.9";
pub const SERVER6: &str = "64:ff9b::9.9.9.9";

pub fn config() -> Nat64Config {
    Nat64Config {
        nat: NatConfig {
            pool: vec![POOL.parse().unwrap()],
            ..NatConfig::default()
        },
        ..Nat64Config::default()
    }
}

pub struct World {
    pub chain: Chain,
    pub now: u64,
}

/// The frames that come of one: in its direction, and those sent beside.
pub type Out = Result<(Vec<Vec<u8>>, Vec<(Direction, Vec<u8>)>), &'static str>;

impl World {
    pub fn new(config: Nat64Config) -> World {
        let nat = Nat64::new(config, 5).expect("a good configuration");
        World {
            chain: Chain::new(vec![(Box::new(nat), None)], 1).unwrap(),
            now: 0,
        }
    }

    /// A frame through the stage: what it becomes, with all frames that the stage sends.
    pub fn pass(&mut self, direction: Direction, frame: &[u8]) -> Out {
        let mut bytes = frame.to_vec();
        let mut batch = Batch::new(vec![Packet::new(&mut bytes)]);
        self.chain.run(self.now, direction, &mut batch);
        let packet = batch.into_packets().remove(0);
        assert!(
            packet.fate() != Fate::Pass || packet.trace().came().is_none() || {
                let is_same = packet.layers().map(|it| it.is_v6) == Some(frame[12] == 0x86);
                is_same || self.chain.compose(packet.trace(), direction).is_none()
            },
            "a translated packet makes no entry"
        );
        let fate = packet.fate();
        let (mut own, _) = packet.finish();
        let mut frames = Vec::new();
        let mut sent = Vec::new();
        if fate == Fate::Pass {
            frames.push(own.as_mut().to_vec());
        }
        for it in self.chain.take_sent() {
            let SentFrame::Made(frame) = it.frame else {
                panic!("{:?}", it.frame);
            };
            if it.direction == direction {
                frames.push(frame);
            } else {
                sent.push((it.direction, frame));
            }
        }
        while self.chain.withdrawn().is_some() {}
        match fate {
            Fate::Drop(reason) if sent.is_empty() => Err(reason),
            _ => Ok((frames, sent)),
        }
    }

    /// The one frame that a frame becomes.
    pub fn one(&mut self, direction: Direction, frame: &[u8]) -> Result<Vec<u8>, &'static str> {
        let (mut frames, sent) = self.pass(direction, frame)?;
        assert_eq!((frames.len(), sent.len()), (1, 0));
        Ok(frames.remove(0))
    }

    pub fn out(&mut self, frame: &[u8]) -> Result<Vec<u8>, &'static str> {
        self.one(Direction::Outward, frame)
    }

    pub fn inn(&mut self, frame: &[u8]) -> Result<Vec<u8>, &'static str> {
        self.one(Direction::Inward, frame)
    }

    pub fn counter(&self, name: &str) -> u64 {
        let mut found = None;
        let (stage, _) = self.chain.stages().next().unwrap();
        stage.counters(&mut |key, value| {
            if key == name {
                found = Some(value);
            }
        });
        found.expect("a counter of this name")
    }
}

/// An ICMPv6 message.
pub fn icmp6(src: &str, dst: &str, kind: u8, code: u8, rest: u32, payload: &[u8]) -> Vec<u8> {
    let (src, dst): (Ipv6Addr, Ipv6Addr) = (src.parse().unwrap(), dst.parse().unwrap());
    let len = 8 + payload.len();
    let mut frame = vec![0; 14 + 40 + len];
    write(
        &mut frame,
        0,
        &[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x86, 0xdd],
    );
    ipv6::Repr {
        src,
        dst,
        next_header: Protocol::ICMPV6,
        hop_limit: 64,
        traffic_class: 0,
        flow_label: 0,
        payload_len: len,
    }
    .emit(&mut frame[14..]);
    frame[62..].copy_from_slice(payload);
    icmp::Repr { kind, code, rest }.emit(&mut frame[54..], AddrPair::V6(src, dst));
    frame
}

/// Puts extension headers behind the IPv6 header, the first of type `first`.
pub fn with_extensions(frame: &[u8], first: u8, headers: &[u8]) -> Vec<u8> {
    let mut frame = [&frame[..54], headers, &frame[54..]].concat();
    let len = read_u16(&frame, 18) + headers.len() as u16;
    write(&mut frame, 18, &len.to_be_bytes());
    frame[20] = first;
    frame
}

/// Fragments of a frame of IPv6, each of up to `step` bytes.
pub fn fragments6(frame: &[u8], step: usize, id: u32) -> Vec<Vec<u8>> {
    let payload = &frame[54..];
    let count = payload.len().div_ceil(step);
    let pieces = payload.chunks(step).enumerate().map(|(number, piece)| {
        let mut header = [0; 8];
        ipv6::FragmentRepr {
            next_header: Protocol(frame[20]),
            offset: number * step,
            more: number + 1 < count,
            identification: id,
        }
        .emit(&mut header);
        let mut out = [&frame[..54], &header, piece].concat();
        write(&mut out, 18, &(8 + piece.len() as u16).to_be_bytes());
        out[20] = 44;
        out
    });
    pieces.collect()
}

/// Fragments of a frame of IPv4 without options.
pub fn fragments4(frame: &[u8], step: usize) -> Vec<Vec<u8>> {
    let payload = &frame[34..];
    let count = payload.len().div_ceil(step);
    let pieces = payload.chunks(step).enumerate().map(|(number, piece)| {
        let mut out = [&frame[..34], piece].concat();
        let more = if number + 1 < count { 0x2000 } else { 0 };
        let place = more | (number * step / 8) as u16;
        write(&mut out, 16, &(20 + piece.len() as u16).to_be_bytes());
        write(&mut out, 20, &place.to_be_bytes());
        write(&mut out, 24, &[0, 0]);
        let sum = weir_wire::checksum::internet_checksum(&out[14..34]);
        write(&mut out, 24, &sum.to_be_bytes());
        out
    });
    pieces.collect()
}

/// The packet of fragments of IPv6, which are all there, in any order.
pub fn whole6(fragments: &[Vec<u8>]) -> Vec<u8> {
    let mut fragments = fragments.to_vec();
    fragments.sort_by_key(|frame| read_u16(frame, 56) & !7);
    let mut frame = fragments[0][..54].to_vec();
    frame[20] = fragments[0][54];
    for (number, piece) in fragments.iter().enumerate() {
        assert_eq!(piece[20], 44, "a fragment header");
        assert_eq!(piece[58..62], fragments[0][58..62], "one identification");
        let place = read_u16(piece, 56);
        assert_eq!(usize::from(place & !7), frame.len() - 54, "no gap");
        assert_eq!(place & 1 == 1, number + 1 < fragments.len(), "more");
        frame.extend_from_slice(&piece[62..]);
    }
    let len = frame.len() as u16 - 54;
    write(&mut frame, 18, &len.to_be_bytes());
    frame
}

/// The packet of fragments of IPv4.
pub fn whole4(fragments: &[Vec<u8>]) -> Vec<u8> {
    let mut fragments = fragments.to_vec();
    fragments.sort_by_key(|frame| read_u16(frame, 20) & 0x1fff);
    let mut frame = fragments[0][..34].to_vec();
    for (number, piece) in fragments.iter().enumerate() {
        assert_eq!(piece[18..20], fragments[0][18..20], "one identification");
        let place = read_u16(piece, 20);
        assert_eq!(usize::from(place & 0x1fff) * 8, frame.len() - 34, "no gap");
        assert_eq!(place & 0x2000 != 0, number + 1 < fragments.len(), "more");
        frame.extend_from_slice(&piece[34..]);
    }
    let len = frame.len() as u16 - 14;
    write(&mut frame, 16, &len.to_be_bytes());
    write(&mut frame, 20, &[0, 0]);
    write(&mut frame, 24, &[0, 0]);
    let sum = weir_wire::checksum::internet_checksum(&frame[14..34]);
    write(&mut frame, 24, &sum.to_be_bytes());
    frame
}

pub fn v4(frame: &[u8], at: usize) -> Ipv4Addr {
    <[u8; 4]>::try_from(&frame[at..at + 4]).unwrap().into()
}

pub fn v6(frame: &[u8], at: usize) -> Ipv6Addr {
    <[u8; 16]>::try_from(&frame[at..at + 16]).unwrap().into()
}

/// The source port of a translated packet, and the answer to it.
pub fn answer(out: &[u8], payload: &[u8]) -> (u16, Vec<u8>) {
    let port = read_u16(out, 34);
    let back = Spec {
        protocol: Protocol(out[23]),
        src: (IpAddr::V4(v4(out, 30)), read_u16(out, 36)),
        dst: (IpAddr::V4(v4(out, 26)), port),
        payload: payload.to_vec(),
        ..Spec::udp((SERVER, 1), (POOL, 1))
    };
    (port, back.frame())
}
