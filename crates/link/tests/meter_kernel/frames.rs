//! Random frames, of every kind that the parser distinguishes, and keys that some of them have.

use super::oracle::prefix;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use weir_lab::rng::Rng;
use weir_meter::Key;

fn v4(rng: &mut Rng) -> Ipv4Addr {
    Ipv4Addr::new(10, rng.below(4) as u8, 0, rng.below(12) as u8)
}

fn v6(rng: &mut Rng) -> Ipv6Addr {
    let [subnet, host] = [4, 12].map(|bound| rng.below(bound) as u16);
    Ipv6Addr::new(0x2001, 0xdb8, subnet, 0, 0, 0, 0, host)
}

fn mac(rng: &mut Rng) -> [u8; 6] {
    [2, 0, 0, 0, 0, rng.below(6) as u8]
}

/// Keys of addresses and prefixes; rows from 0.
pub(crate) fn address_keys() -> Vec<(Key, u32)> {
    let mut keys = Vec::new();
    for host in 0..4 {
        keys.push(Key::Ipv4(Ipv4Addr::new(10, 0, 0, host)));
        keys.push(Key::Ipv6(Ipv6Addr::new(
            0x2001,
            0xdb8,
            0,
            0,
            0,
            0,
            0,
            host.into(),
        )));
    }
    let v4 = |text: &str, len| prefix(text.parse::<Ipv4Addr>().unwrap().into(), len);
    let v6 = |text: &str, len| prefix(IpAddr::V6(text.parse().unwrap()), len);
    keys.extend([v4("10.0.0.0", 29), v4("10.1.0.0", 16), v4("10.1.0.8", 30)]);
    keys.extend([
        v6("2001:db8:1::", 48),
        v6("2001:db8:1::8", 126),
        v6("2001:db8::", 56),
    ]);
    keys.into_iter().zip(0..).collect()
}

/// Each IPv4 address that frames have.
pub(crate) fn all_v4_keys() -> Vec<(Key, u32)> {
    let addresses = (0..4).flat_map(|net| (0..12).map(move |host| Ipv4Addr::new(10, net, 0, host)));
    addresses.map(Key::Ipv4).zip(0..).collect()
}

/// Keys of the link layer; rows from 50.
pub(crate) fn link_keys() -> Vec<(Key, u32)> {
    let keys = [
        Key::Pppoe(3),
        Key::Vlan(2, Some(1)),
        Key::Vlan(2, None),
        Key::Vlan(3, None),
        Key::Mac([2, 0, 0, 0, 0, 1]),
    ];
    keys.into_iter().zip(50..).collect()
}

/// A frame of 14 bytes or more, mostly well-formed.
pub(crate) fn frame(rng: &mut Rng) -> Vec<u8> {
    let mut frame = Vec::new();
    frame.extend(mac(rng));
    frame.extend(mac(rng));
    let tags = *rng.choose(&[0, 0, 0, 0, 1, 1, 2, 3, 4, 5]);
    for _ in 0..tags {
        let tpid: u16 = *rng.choose(&[0x8100, 0x88a8]);
        frame.extend(tpid.to_be_bytes());
        frame.extend((rng.below(5) as u16 | (rng.below(8) << 13) as u16).to_be_bytes());
    }
    let is_v6 = rng.chance(50);
    let packet = if is_v6 {
        packet_v6(rng)
    } else {
        packet_v4(rng)
    };
    if rng.chance(20) {
        frame.extend([0x88, 0x64, 0x11, if rng.chance(10) { 9 } else { 0 }]);
        frame.extend((rng.below(6) as u16).to_be_bytes());
        frame.extend((packet.len() as u16 + 2).to_be_bytes());
        let protocol: u16 = match rng.below(10) {
            0 => 0xc021,
            _ if is_v6 => 0x57,
            _ => 0x21,
        };
        frame.extend(protocol.to_be_bytes());
    } else {
        let ether_type: u16 = match rng.below(12) {
            0 => 0x0806,
            1 => rng.word() as u16,
            _ if is_v6 => 0x86dd,
            _ => 0x0800,
        };
        frame.extend(ether_type.to_be_bytes());
    }
    frame.extend(packet);
    if rng.chance(20) {
        // Ethernet's padding, and more.
        frame.resize(frame.len() + rng.below(40), 0);
    }
    if rng.chance(15) {
        let keep = 14 + rng.below(frame.len() - 13);
        frame.truncate(keep);
    }
    if rng.chance(10) {
        let at = rng.below(frame.len());
        frame[at] = rng.word() as u8;
    }
    frame
}

fn port(rng: &mut Rng) -> u16 {
    match rng.below(4) {
        0 => *rng.choose(&[53, 80, 443, 5]),
        1 => rng.below(1000) as u16,
        _ => rng.word() as u16,
    }
}

/// What a protocol carries.
fn payload(rng: &mut Rng) -> Vec<u8> {
    let mut payload = Vec::new();
    payload.extend(port(rng).to_be_bytes());
    payload.extend(port(rng).to_be_bytes());
    let len = *rng.choose(&[0, 1, 3, 4, 8, 20, 60, 200, 1200]);
    payload.resize(len, 0x5a);
    payload
}

fn protocol(rng: &mut Rng) -> u8 {
    *rng.choose(&[6, 6, 6, 17, 17, 17, 33, 132, 136, 1, 58, 47, 50, 51, 4])
}

fn packet_v4(rng: &mut Rng) -> Vec<u8> {
    let words = *rng.choose(&[5, 5, 5, 5, 6, 15, 4]);
    let payload = payload(rng);
    let len = words * 4 + payload.len();
    let stated = match rng.below(10) {
        0 => rng.below(len + 30),
        1 => rng.below(20),
        _ => len,
    } as u16;
    let fragment: u16 = *rng.choose(&[0, 0, 0x4000, 0x4000, 0x8000, 0x2000, 0x2001, 0x0100]);
    let mut packet = vec![0x40 | words as u8, 0];
    packet.extend(stated.to_be_bytes());
    packet.extend([0, 0]);
    packet.extend(fragment.to_be_bytes());
    packet.extend([64, protocol(rng), 0, 0]);
    packet.extend(v4(rng).octets());
    packet.extend(v4(rng).octets());
    packet.resize(words * 4, 1);
    packet.extend(payload);
    packet
}

fn packet_v6(rng: &mut Rng) -> Vec<u8> {
    let mut headers = Vec::new();
    let count = *rng.choose(&[0, 0, 0, 1, 2, 3, 8, 9]);
    let kinds = (0..count).map(|_| *rng.choose(&[0, 43, 60, 60, 44]));
    let mut kinds: Vec<u8> = kinds.collect();
    kinds.push(protocol(rng));
    for (kind, next) in kinds.iter().zip(&kinds[1..]) {
        if *kind == 44 {
            let offset: u16 = *rng.choose(&[0, 0, 0, 6, 1, 8]);
            headers.extend([*next, rng.word() as u8]);
            headers.extend(offset.to_be_bytes());
            headers.extend([0; 4]);
        } else {
            let units = rng.below(3);
            headers.extend([*next, units as u8]);
            headers.resize(headers.len() + 6 + 8 * units, 0);
        }
    }
    headers.extend(payload(rng));
    let stated = match rng.below(10) {
        0 => rng.below(headers.len() + 30),
        1 => 0,
        _ => headers.len(),
    } as u16;
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend(stated.to_be_bytes());
    packet.extend([kinds[0], 64]);
    packet.extend(v6(rng).octets());
    packet.extend(v6(rng).octets());
    packet.extend(headers);
    packet
}
