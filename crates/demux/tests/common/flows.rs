//! Frames of one flow, there and back.

use weir_lab::program::Tape;

/// A frame, and one of the other direction of its flow.
pub struct BothWays {
    pub there: Vec<u8>,
    pub back: Vec<u8>,
    /// Whether it is a whole packet of TCP or UDP without extension headers.
    pub is_plain: bool,
}

/// Protocols with transport ports, and others.
const PROTOCOLS: [u8; 8] = [6, 6, 17, 17, 33, 132, 136, 1];

/// A random frame: of IPv4, IPv6 or another EtherType, with VLAN tags, options,
/// extension headers and fragments now and then; some are cut off.
pub fn both_ways(tape: &mut Tape) -> BothWays {
    let macs = [0, 1].map(|_| bytes(tape, 6));
    let mut link = Vec::new();
    for _ in 0..tape.pick(&[0, 0, 0, 1, 1, 2, 3]) {
        link.extend(tape.pick(&[[0x81, 0], [0x88, 0xa8]]));
        link.extend(bytes(tape, 2));
    }
    let (mut is_plain, rest) = match tape.below(8) {
        0 => {
            link.extend(tape.pick(&[[0x88, 0xb5], [8, 6], [8, 0], [0x86, 0xdd]]));
            let payload = bytes(tape, 50);
            (false, [payload.clone(), payload])
        }
        1..=4 => ipv4(tape, &mut link),
        _ => ipv6(tape, &mut link),
    };
    let [mut there, mut back] = [[0, 1], [1, 0]].map(|order: [usize; 2]| {
        let [first, second] = order.map(|mac| macs[mac].clone());
        [first, second, link.clone(), rest[order[0]].clone()].concat()
    });
    if tape.chance(10) {
        let len = 14 + tape.below(there.len() - 14);
        there.truncate(len);
        back.truncate(len);
        is_plain = false;
    }
    BothWays {
        there,
        back,
        is_plain: is_plain && link.len() == 2,
    }
}

fn bytes(tape: &mut Tape, count: usize) -> Vec<u8> {
    (0..count).map(|_| tape.byte()).collect()
}

/// Two ends, in both orders.
fn both<T: Clone>(a: T, b: T) -> [[T; 2]; 2] {
    [[a.clone(), b.clone()], [b, a]]
}

/// Transport headers in both directions.
fn transport(tape: &mut Tape, has_ports: bool) -> [Vec<u8>; 2] {
    let rest = bytes(tape, 20);
    let ends = both(bytes(tape, 2), bytes(tape, 2));
    ends.map(|[src, dst]| {
        if has_ports {
            [src, dst, rest.clone()].concat()
        } else {
            rest.clone()
        }
    })
}

fn ipv4(tape: &mut Tape, link: &mut Vec<u8>) -> (bool, [Vec<u8>; 2]) {
    link.extend([8, 0]);
    let words = tape.pick(&[5, 5, 5, 6, 15]);
    let protocol = tape.pick(&PROTOCOLS);
    let fragment = tape.pick(&[[0, 0], [0, 0], [0x40, 0], [0x20, 0], [0, 99]]);
    let is_fragment = !matches!(fragment, [0 | 0x40, 0]);
    let payload = transport(tape, protocol != 1 && !is_fragment);
    let options = bytes(tape, usize::from(words - 5) * 4);
    let ends = both(bytes(tape, 4), bytes(tape, 4));
    let fixed = [
        0x40 | words,
        0,
        0,
        80,
        0,
        1,
        fragment[0],
        fragment[1],
        64,
        protocol,
        0,
        0,
    ];
    let packets = [0, 1].map(|at: usize| {
        let [src, dst] = ends[at].clone();
        [
            fixed.to_vec(),
            src,
            dst,
            options.clone(),
            payload[at].clone(),
        ]
        .concat()
    });
    (matches!(protocol, 6 | 17) && !is_fragment, packets)
}

fn ipv6(tape: &mut Tape, link: &mut Vec<u8>) -> (bool, [Vec<u8>; 2]) {
    link.extend([0x86, 0xdd]);
    let protocol = tape.pick(&PROTOCOLS);
    let mut headers: Vec<u8> = Vec::new();
    for _ in 0..tape.pick(&[0, 0, 0, 1, 2, 3, 4]) {
        headers.push(tape.pick(&[0, 43, 60]));
    }
    if tape.chance(15) {
        headers.push(44);
    }
    let is_fragment = headers.last() == Some(&44);
    let mut chain = Vec::new();
    for (at, header) in headers.iter().enumerate() {
        let next = headers.get(at + 1).copied().unwrap_or(protocol);
        let eights = tape.below(2) * usize::from(*header != 44);
        chain.extend([next, eights as u8]);
        chain.extend(bytes(tape, 6 + eights * 8));
    }
    // Ports behind the extension headers that are skipped do not count.
    let has_ports = protocol != 1 && !is_fragment && headers.len() <= 3;
    let payload = transport(tape, has_ports);
    let ends = both(bytes(tape, 16), bytes(tape, 16));
    let next = headers.first().copied().unwrap_or(protocol);
    let packets = [0, 1].map(|at: usize| {
        let [src, dst] = ends[at].clone();
        let fixed = vec![0x60, 0, 0, 0, 0, 60, next, 64];
        [fixed, src, dst, chain.clone(), payload[at].clone()].concat()
    });
    (matches!(protocol, 6 | 17) && headers.is_empty(), packets)
}
