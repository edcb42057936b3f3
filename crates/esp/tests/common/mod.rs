//! Gateways and packets for tests.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::net::IpAddr;
use weir_esp::config::Direction;
use weir_esp::{Config, Gateway, Inward, Outward};
use weir_filter::lang::expr::NoNames;
use weir_lab::rng::Rng;
use weir_wire::checksum::AddrPair;
use weir_wire::{Protocol, ipv4, ipv6, udp};

/// A configuration that a test expects to be good.
pub(crate) fn config(text: &str) -> Config {
    Config::parse(text, &NoNames, 1500).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Hexadecimal digits of keying material, by a number.
pub(crate) fn key(number: u8, algorithm: &str) -> String {
    let len = if algorithm == "aes128gcm" { 20 } else { 36 };
    (0..len)
        .map(|at| format!("{:02x}", number.wrapping_mul(37).wrapping_add(at)))
        .collect()
}

/// How two gateways differ from the usual.
#[derive(Clone)]
pub(crate) struct Spec {
    pub(crate) algorithm: &'static str,
    pub(crate) tunnel: String,
    pub(crate) sa: String,
    pub(crate) v6: bool,
    pub(crate) policies: String,
}

impl Default for Spec {
    fn default() -> Spec {
        Spec {
            algorithm: "aes256gcm",
            tunnel: String::new(),
            sa: String::new(),
            v6: false,
            policies: String::new(),
        }
    }
}

pub(crate) const ENDS: [[&str; 2]; 2] = [
    ["192.0.2.1", "198.51.100.1"],
    ["2001:db8:1::1", "2001:db8:2::1"],
];

impl Spec {
    /// The configuration of the first (0) or second gateway (1), whose SAs have
    /// the keys `generation` and `generation + 1`.
    pub(crate) fn text(&self, which: usize, generation: u8) -> String {
        self.text_of(which, &[generation])
    }

    pub(crate) fn text_of(&self, which: usize, generations: &[u8]) -> String {
        let ends = ENDS[usize::from(self.v6)];
        let nets = ["10.1.0.0/16", "10.2.0.0/16"];
        let nets_v6 = ["2001:db8:a1::/48", "2001:db8:a2::/48"];
        let (here, there) = (which, 1 - which);
        let mut text = format!(
            "[[tunnel]]\nname = \"t\"\nlocal = \"{}\"\nremote = \"{}\"\n{}\n",
            ends[here], ends[there], self.tunnel
        );
        for generation in generations {
            for number in 0..2_u8 {
                let direction = ["out", "in"][usize::from(usize::from(number) != which)];
                text += &format!(
                    "[[sa]]\ntunnel = \"t\"\ndirection = \"{direction}\"\nspi = {}\n\
                     algorithm = \"{}\"\nkey = \"{}\"\n{}\n",
                    1000 + u32::from(generation + number),
                    self.algorithm,
                    key(generation + number, self.algorithm),
                    self.sa,
                );
            }
        }
        text += &self.policies;
        text + &format!(
            "[[policy]]\nmatch = \"(src net {} and dst net {}) or (src net {} and dst net {}) \
             or (src host {} and dst host {})\"\naction = \"protect\"\ntunnel = \"t\"\n\
             [[policy]]\nmatch = \"udp port 500\"\naction = \"bypass\"\n",
            nets[here], nets[there], nets_v6[here], nets_v6[there], ends[here], ends[there],
        )
    }

    pub(crate) fn gateways(&self) -> [Gateway; 2] {
        [0, 1]
            .map(|which| Gateway::new(&config(&self.text(which, 1)), 0, 77 + which as u64).unwrap())
    }
}

/// A UDP packet between two addresses.
pub(crate) fn packet(src: &str, dst: &str, traffic_class: u8, df: bool, payload: &[u8]) -> Vec<u8> {
    let ends: [IpAddr; 2] = [src, dst].map(|text| text.parse().unwrap());
    let len = udp::Repr::LEN + payload.len();
    let mut bytes;
    let at = match ends {
        [IpAddr::V4(src), IpAddr::V4(dst)] => {
            bytes = vec![0; ipv4::Repr::LEN + len];
            let repr = ipv4::Repr {
                src,
                dst,
                protocol: Protocol::UDP,
                ttl: 63,
                traffic_class,
                identification: 7,
                dont_fragment: df,
                payload_len: len,
            };
            repr.emit(&mut bytes);
            ipv4::Repr::LEN
        }
        [IpAddr::V6(src), IpAddr::V6(dst)] => {
            bytes = vec![0; ipv6::Repr::LEN + len];
            let repr = ipv6::Repr {
                src,
                dst,
                next_header: Protocol::UDP,
                hop_limit: 63,
                traffic_class,
                flow_label: 5,
                payload_len: len,
            };
            repr.emit(&mut bytes);
            ipv6::Repr::LEN
        }
        _ => panic!("two versions of IP"),
    };
    bytes[at + 8..].copy_from_slice(payload);
    let repr = udp::Repr {
        src_port: 4001,
        dst_port: 7,
    };
    repr.emit(&mut bytes[at..], AddrPair::new(ends[0], ends[1]).unwrap());
    bytes
}

pub(crate) fn plain(payload: &[u8]) -> Vec<u8> {
    packet("10.1.0.5", "10.2.0.6", 0, false, payload)
}

pub(crate) fn bytes(rng: &mut Rng, len: usize) -> Vec<u8> {
    (0..len).map(|_| rng.bits() as u8).collect()
}

/// What leaves, which has to be one ESP packet.
pub(crate) fn sealed(gateway: &mut Gateway, now: u64, packet: &[u8]) -> Vec<u8> {
    match gateway.outward(now, &mut packet.to_vec()) {
        Outward::Protected(mut made) if made.len() == 1 => made.remove(0),
        other => panic!("{other:?}"),
    }
}

/// What enters.
pub(crate) fn opened(gateway: &mut Gateway, now: u64, packet: &[u8]) -> Inward<Vec<u8>> {
    let mut packet = packet.to_vec();
    gateway.inward(now, &mut packet).into_owned(&packet)
}

/// The sequence number and use of the SA in a direction with this SPI.
pub(crate) fn state(gateway: &Gateway, direction: Direction, spi: u32) -> Option<(u64, u64)> {
    let mut found = None;
    gateway.sas(|_, which, sa| {
        if which == direction && sa.spi == spi {
            found = Some((sa.sequence, sa.packets));
        }
    });
    found
}

/// The seeds of a fuzz target.
pub(crate) fn fuzz_seeds(target: &str) -> Vec<Vec<u8>> {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds/");
    let folder = std::fs::read_dir(format!("{root}{target}")).expect("the folder of seeds");
    let mut paths: Vec<_> = folder.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(paths.len() >= 3, "{paths:?}");
    let read = |path| std::fs::read(path).unwrap();
    paths.into_iter().map(read).collect()
}

/// One of these inputs with bytes changed, cut out, repeated, or of another one in their place.
pub(crate) fn damaged(rng: &mut Rng, inputs: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = rng.choose(inputs).clone();
    for _ in 0..1 + rng.below(6) {
        let at = rng.below(bytes.len() + 1);
        let end = (at + rng.below(40)).min(bytes.len());
        match rng.below(8) {
            0 => drop(bytes.drain(at..end)),
            1 => {
                let again = bytes[at..end].to_vec();
                bytes.splice(at..at, again);
            }
            2 => {
                let other = rng.choose(inputs);
                let from = rng.below(other.len());
                bytes.splice(at.., other[from..].iter().copied());
            }
            _ => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = rng.word() as u8;
                }
            }
        }
    }
    bytes
}
