//! Frames for the tests, and whether their checksums are right.

#![allow(dead_code, unreachable_pub, reason = "each test uses its part")]

use std::net::{IpAddr, Ipv4Addr};
use weir_lab::rng::Rng;
use weir_wire::checksum::Sum;
use weir_wire::field::{read_u16, write};
use weir_wire::{AddrPair, Protocol, checksum, ipv4, ipv6};

/// A packet to build a frame of.
#[derive(Clone, Debug)]
pub struct Spec {
    pub protocol: Protocol,
    pub src: (IpAddr, u16),
    pub dst: (IpAddr, u16),
    pub flags: u8,
    pub ttl: u8,
    pub class: u8,
    pub payload: Vec<u8>,
    /// UDP over IPv4 without a checksum.
    pub no_checksum: bool,
}

impl Spec {
    pub fn udp(src: (&str, u16), dst: (&str, u16)) -> Spec {
        let address = |text: &str| text.parse().unwrap();
        Spec {
            protocol: Protocol::UDP,
            src: (address(src.0), src.1),
            dst: (address(dst.0), dst.1),
            flags: 0x10,
            ttl: 64,
            class: 0,
            payload: b"payload".to_vec(),
            no_checksum: false,
        }
    }

    pub fn tcp(src: (&str, u16), dst: (&str, u16), flags: u8) -> Spec {
        Spec {
            protocol: Protocol::TCP,
            flags,
            ..Spec::udp(src, dst)
        }
    }

    pub fn is_v6(&self) -> bool {
        self.src.0.is_ipv6()
    }

    /// The whole Ethernet frame.
    pub fn frame(&self) -> Vec<u8> {
        let header = match self.protocol {
            Protocol::TCP => 20,
            _ => 8,
        };
        let len = header + self.payload.len();
        let ip = if self.is_v6() { 40 } else { 20 };
        let mut frame = vec![0; 14 + ip + len];
        write(&mut frame, 0, &[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]);
        let kind: u16 = if self.is_v6() { 0x86dd } else { 0x0800 };
        write(&mut frame, 12, &kind.to_be_bytes());
        match (self.src.0, self.dst.0) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => ipv4::Repr {
                src,
                dst,
                protocol: self.protocol,
                ttl: self.ttl,
                traffic_class: self.class,
                identification: 7,
                dont_fragment: self.class & 1 == 0,
                payload_len: len,
            }
            .emit(&mut frame[14..]),
            (IpAddr::V6(src), IpAddr::V6(dst)) => ipv6::Repr {
                src,
                dst,
                next_header: self.protocol,
                hop_limit: self.ttl,
                traffic_class: self.class,
                flow_label: 0x12345,
                payload_len: len,
            }
            .emit(&mut frame[14..]),
            _ => panic!("two families"),
        }
        let at = 14 + ip;
        write(&mut frame, at, &self.src.1.to_be_bytes());
        write(&mut frame, at + 2, &self.dst.1.to_be_bytes());
        match self.protocol {
            Protocol::TCP => {
                write(
                    &mut frame,
                    at + 4,
                    &[0, 0, 0, 1, 0, 0, 0, 2, 0x50, self.flags],
                );
                write(&mut frame, at + 14, &[0xff, 0xff]);
            }
            _ => write(&mut frame, at + 4, &(len as u16).to_be_bytes()),
        }
        let start = at + header;
        frame[start..].copy_from_slice(&self.payload);
        if !self.no_checksum {
            set_transport_checksum(&mut frame, at);
        }
        frame
    }
}

/// An ICMP message over IPv4; `rest` are bytes 4 to 7.
pub fn icmp(src: &str, dst: &str, kind: u8, code: u8, rest: u32, payload: &[u8]) -> Vec<u8> {
    let len = 8 + payload.len();
    let mut frame = vec![0; 14 + 20 + len];
    write(&mut frame, 0, &[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0]);
    ipv4::Repr {
        src: src.parse().unwrap(),
        dst: dst.parse().unwrap(),
        protocol: Protocol::ICMPV4,
        ttl: 64,
        traffic_class: 0,
        identification: 9,
        dont_fragment: false,
        payload_len: len,
    }
    .emit(&mut frame[14..]);
    write(&mut frame, 34, &[kind, code, 0, 0]);
    write(&mut frame, 38, &rest.to_be_bytes());
    frame[42..].copy_from_slice(payload);
    let sum = checksum::internet_checksum(&frame[34..]);
    write(&mut frame, 36, &sum.to_be_bytes());
    frame
}

fn addresses(frame: &[u8]) -> AddrPair {
    let array = |at: usize| <[u8; 16]>::try_from(&frame[at..at + 16]).unwrap();
    let v4 = |at: usize| Ipv4Addr::new(frame[at], frame[at + 1], frame[at + 2], frame[at + 3]);
    match read_u16(frame, 12) {
        0x0800 => AddrPair::V4(v4(26), v4(30)),
        _ => AddrPair::V6(array(22).into(), array(38).into()),
    }
}

/// Sum of the transport header at `at` and its payload, with the pseudo-header.
fn transport_sum(frame: &[u8], at: usize, end: usize) -> u16 {
    let protocol = if at == 34 { frame[23] } else { frame[20] };
    Sum::new()
        .pseudo_header(addresses(frame), protocol, (end - at) as u32)
        .bytes(&frame[at..end])
        .finish()
}

fn set_transport_checksum(frame: &mut [u8], at: usize) {
    let protocol = if at == 34 { frame[23] } else { frame[20] };
    let field = at + if protocol == 6 { 16 } else { 6 };
    write(frame, field, &[0, 0]);
    let sum = match transport_sum(frame, at, frame.len()) {
        0 if protocol == 17 => 0xffff,
        sum => sum,
    };
    write(frame, field, &sum.to_be_bytes());
}

/// Sets the checksum of TCP or UDP of a frame of IPv4 without options.
pub fn seal(frame: &mut [u8]) {
    set_transport_checksum(frame, 34);
}

/// Whether all checksums of a whole, untagged TCP, UDP or ICMP packet are right.
pub fn checksums_are_right(frame: &[u8]) -> bool {
    if read_u16(frame, 12) == 0x0800 {
        let end = 14 + usize::from(read_u16(frame, 16));
        let header = checksum::internet_checksum(&frame[14..34]) == 0;
        let rest = match frame[23] {
            1 => checksum::internet_checksum(&frame[34..end]) == 0,
            17 if frame[40..42] == [0, 0] => true,
            _ => transport_sum(frame, 34, end) == 0,
        };
        header && rest
    } else {
        let end = 54 + usize::from(read_u16(frame, 18));
        transport_sum(frame, 54, end) == 0
    }
}

/// A random packet of few flows, and the frame with some damage now and then.
pub fn random_frame(rng: &mut Rng) -> Vec<u8> {
    let v6 = rng.chance(30);
    let host = |rng: &mut Rng, base: u8| -> IpAddr {
        let last = rng.below(3) as u8;
        if v6 {
            IpAddr::from([
                0x20, 1, 0xd, 0xb8, base, 0, 0, 0, 0xff, 0xff, 0, 0, 0, 0, 0, last,
            ])
        } else {
            Ipv4Addr::new(10 + base, 0, 255, last).into()
        }
    };
    let ports = [53, 80, 0xffff, 0];
    let spec = Spec {
        protocol: *rng.choose(&[Protocol::UDP, Protocol::UDP, Protocol::TCP, Protocol(132)]),
        src: (host(rng, 0), *rng.choose(&ports)),
        dst: (host(rng, 1), *rng.choose(&ports)),
        flags: *rng.choose(&[0x10, 0x18, 0x10, 0x10, 0x02, 0x11, 0x04]),
        ttl: *rng.choose(&[64, 64, 64, 255, 2, 1, 0]),
        class: rng.below(256) as u8,
        payload: (0..rng.below(60)).map(|_| rng.bits() as u8).collect(),
        no_checksum: !v6 && rng.chance(20),
    };
    let mut frame = spec.frame();
    if rng.chance(10) {
        frame.resize(frame.len() + 1 + rng.below(20), 0xee);
    }
    if rng.chance(15) {
        let at = 12 + rng.below(frame.len() - 12);
        frame[at] ^= 1 << rng.below(8);
    }
    if rng.chance(5) {
        frame.truncate(rng.below(frame.len()));
    }
    frame
}
