//! Sets of distinct expressions of tens of forms, like the filters of many
//! programs on one link.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::rng::Rng;

/// Number of forms that [`mixed_forms`] uses in turn.
pub const FORMS: usize = 40;

/// `count` expressions, of each form in turn; the same for the same seed. Two
/// expressions of one form almost certainly differ in their values.
pub fn mixed_forms(seed: u64, count: usize) -> Vec<String> {
    let mut rng = Rng::new(seed);
    (0..count)
        .map(|turn| form(&mut rng, turn % FORMS))
        .collect()
}

fn form(rng: &mut Rng, which: usize) -> String {
    match which {
        0..20 => plain(rng, which),
        _ => structured(rng, which),
    }
}

fn v4(rng: &mut Rng) -> Ipv4Addr {
    Ipv4Addr::from_bits(0x0a00_0000 | rng.word() >> 8)
}

fn v6(rng: &mut Rng) -> Ipv6Addr {
    Ipv6Addr::from_bits(0x2001_0db8 << 96 | u128::from(rng.bits()))
}

fn net(rng: &mut Rng, len: u32) -> String {
    let address = v4(rng).to_bits() >> (32 - len) << (32 - len);
    format!("{}/{len}", Ipv4Addr::from_bits(address))
}

fn port(rng: &mut Rng) -> u32 {
    rng.within(1..65536)
}

fn range(rng: &mut Rng) -> String {
    let first = rng.within(1..60000);
    format!("{first}-{}", first + rng.within(1..5000))
}

fn mac(rng: &mut Rng) -> String {
    let bytes = rng.bits().to_be_bytes();
    let pairs: Vec<String> = bytes[2..]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    pairs.join(":")
}

fn plain(rng: &mut Rng, which: usize) -> String {
    let (a, b, p, q) = (v4(rng), v4(rng), port(rng), port(rng));
    match which {
        0 => format!("tcp dst port {p}"),
        1 => format!("udp dst port {p}"),
        2 => format!("tcp port {p}"),
        3 => format!("udp port {p}"),
        4 => format!("port {p}"),
        5 => format!("host {a}"),
        6 => format!("src host {a}"),
        7 => format!("dst host {a}"),
        8 => format!("host {a} and tcp port {p}"),
        9 => format!("src host {a} and dst host {b}"),
        10 => format!(
            "ip and tcp and src host {a} and dst host {b} and src port {p} and dst port {q}"
        ),
        11 => format!(
            "ip and udp and src host {a} and dst host {b} and src port {p} and dst port {q}"
        ),
        12 => format!("dst net {}", net(rng, 24)),
        13 => format!("src net {}", net(rng, 16)),
        14 => format!("net {}", net(rng, 12)),
        15 => format!("src net {} and dst net {}", net(rng, 20), net(rng, 28)),
        16 => format!("tcp and dst net {} and dst port {p}", net(rng, 24)),
        17 => format!("udp dst portrange {}", range(rng)),
        18 => format!("tcp and dst host {a} and dst portrange {}", range(rng)),
        _ => format!("tcp portrange {}", range(rng)),
    }
}

fn structured(rng: &mut Rng, which: usize) -> String {
    let (a, p, q) = (v4(rng), port(rng), port(rng));
    let tag = rng.within(1..4095);
    match which {
        20 => format!("ether host {}", mac(rng)),
        21 => format!("ether src {}", mac(rng)),
        22 => format!("ether dst {} and ip", mac(rng)),
        23 => format!("ether proto {:#06x}", 0x600 + rng.within(0..0xf000)),
        24 => format!("vlan {tag}"),
        25 => format!("vlan {tag} and ip and tcp dst port {p}"),
        26 => format!("vlan {tag} and host {a}"),
        27 => format!("mpls {}", rng.within(16..1 << 20)),
        28 => format!("ip6 host {}", v6(rng)),
        29 => format!("ip6 and tcp dst port {p} and dst host {}", v6(rng)),
        30 => format!(
            "ip6 net {:x}::/32",
            0x2001_0000_u32 >> 16 | rng.within(0..0xfff)
        ),
        31 => format!("arp host {a}"),
        32 => format!("icmp and dst host {a}"),
        33 => format!("ip proto {} and src host {a}", rng.within(2..255)),
        34 => format!("udp port 53 and host {a}"),
        35 => format!("tcp dst port {p} and tcp[tcpflags] & (tcp-syn|tcp-ack) = tcp-syn"),
        36 => format!("udp dst port {p} and udp[8:4] = {:#x}", rng.word()),
        37 => format!("ip[1] & 0xfc = {} and dst port {p}", rng.within(0..64) << 2),
        38 => format!("host {a} and (tcp port {p} or udp port {q})"),
        _ => format!("tcp port {p} and not host {a}"),
    }
}
