//! Sets of narrow expressions of tens of forms, each with a matching frame:
//! like the filters of many programs on one link, each for its own peers,
//! services and stations.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::{TCP, UDP};
use crate::rng::Rng;

/// Number of forms that [`narrow`] uses in turn.
pub const NARROW_FORMS: usize = 40;

const ICMP: u8 = 1;

/// An expression and a frame that it accepts.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Narrow {
    /// The expression, for Ethernet.
    pub expression: String,
    /// The frame; fields that the expression does not mention are random.
    pub frame: Vec<u8>,
}

/// `count` expressions, of each form in turn; the same for the same seed. Each
/// fixes at least 24 bits of a frame besides its protocols, so that few match
/// another's frame.
pub fn narrow(seed: u64, count: usize) -> Vec<Narrow> {
    let mut rng = Rng::new(seed);
    let one = |turn: usize| {
        let mut packet = Packet::random(&mut rng);
        let expression = match turn % NARROW_FORMS {
            which @ 0..14 => packet.exact(which),
            which @ 14..25 => packet.partial(&mut rng, which),
            which => packet.framed(&mut rng, which),
        };
        let frame = packet.frame();
        Narrow { expression, frame }
    };
    (0..count).map(one).collect()
}

/// The content behind the Ethernet header.
enum Body {
    V4,
    V6,
    Arp,
    Other(u16),
}

struct Packet {
    macs: [[u8; 6]; 2],
    vlan: Option<u32>,
    mpls: Option<u32>,
    body: Body,
    protocol: u8,
    tos: u8,
    src: Ipv4Addr,
    dst: Ipv4Addr,
    src6: Ipv6Addr,
    dst6: Ipv6Addr,
    src_port: u32,
    dst_port: u32,
    tcp_flags: u8,
    /// The first word of the UDP payload.
    payload: u32,
}

impl Packet {
    fn random(rng: &mut Rng) -> Packet {
        let v4 = |rng: &mut Rng| Ipv4Addr::from_bits(0x0a00_0000 | rng.word() >> 8);
        let v6 = |rng: &mut Rng| {
            Ipv6Addr::from_bits(0x2001_0db8 << 96 | u128::from(rng.bits()) << 32 | 1)
        };
        let mac = |rng: &mut Rng| {
            let [_, _, bytes @ ..] = (rng.bits() & 0x00ff_ffff_ffff | 2 << 40).to_be_bytes();
            bytes
        };
        let port = |rng: &mut Rng| rng.within(1_024..65_536);
        Packet {
            macs: [mac(rng), mac(rng)],
            vlan: None,
            mpls: None,
            body: Body::V4,
            protocol: *rng.choose(&[TCP, UDP]),
            tos: 0,
            src: v4(rng),
            dst: v4(rng),
            src6: v6(rng),
            dst6: v6(rng),
            src_port: port(rng),
            dst_port: port(rng),
            tcp_flags: 0x10,
            payload: rng.word(),
        }
    }

    /// Expressions with exact addresses, ports and protocols.
    fn exact(&mut self, which: usize) -> String {
        self.protocol = match which {
            0..6 => TCP,
            6..11 => UDP,
            11 => ICMP,
            _ => self.protocol,
        };
        let (a, b, p, q) = (self.src, self.dst, self.src_port, self.dst_port);
        match which {
            0 => {
                format!(
                    "ip and tcp and src host {a} and dst host {b} and src port {p} and dst port {q}"
                )
            }
            1 => format!("dst host {b} and tcp dst port {q}"),
            2 => format!("src host {a} and tcp dst port {q}"),
            3 => format!("host {b} and tcp port {q}"),
            4 => format!("tcp src port {p} and tcp dst port {q}"),
            5 => format!("dst host {b} and (tcp port {q} or udp port {p})"),
            6 => {
                format!(
                    "ip and udp and src host {a} and dst host {b} and src port {p} and dst port {q}"
                )
            }
            7 => format!("dst host {b} and udp dst port {q}"),
            8 => format!("src host {a} and udp src port {p}"),
            9 => format!("host {a} and udp port {p}"),
            10 => format!("udp src port {p} and udp dst port {q}"),
            11 => format!("icmp and src host {a} and dst host {b}"),
            12 => format!("src host {a} and dst host {b}"),
            _ => format!("host {a} and host {b}"),
        }
    }

    /// Expressions with networks, ranges, and bits of other fields.
    fn partial(&mut self, rng: &mut Rng, which: usize) -> String {
        self.protocol = match which {
            14..=18 => TCP,
            19..=21 => UDP,
            22 | 23 => 100 + rng.below(100) as u8,
            _ => self.protocol,
        };
        let (a, b, p, q) = (self.src, self.dst, self.src_port, self.dst_port);
        let range = |port: u32| format!("{}-{}", port.saturating_sub(9), port + 10);
        match which {
            14 => format!("tcp and dst net {} and dst port {q}", net(b, 24)),
            15 => format!("src net {} and tcp src port {p}", net(a, 28)),
            16 => format!("tcp and dst host {b} and dst portrange {}", range(q)),
            17 => {
                self.tcp_flags = 2;
                format!("dst host {b} and tcp[tcpflags] & (tcp-syn|tcp-ack) = tcp-syn")
            }
            18 => format!("dst host {b} and tcp and not port 22"),
            19 => format!("src net {} and udp dst portrange {}", net(a, 26), range(q)),
            20 => format!("udp dst port {q} and udp[8:4] = {:#x}", self.payload),
            21 => format!("src host {a} and udp and greater 60"),
            22 => format!("ip proto {} and src host {a}", self.protocol),
            23 => format!("ip proto {} and dst net {}", self.protocol, net(b, 24)),
            _ => format!("src net {} and dst net {}", net(a, 20), net(b, 28)),
        }
    }

    /// Expressions with MAC addresses, VLAN tags and MPLS labels, ARP and IPv6.
    fn framed(&mut self, rng: &mut Rng, which: usize) -> String {
        let (a, b, q) = (self.src, self.dst, self.dst_port);
        let [to, from] = self
            .macs
            .map(|mac| mac.map(|byte| format!("{byte:02x}")).join(":"));
        let (a6, b6) = (self.src6, self.dst6);
        let mut tagged = |packet: &mut Packet| *packet.vlan.insert(rng.within(1..4095));
        match which {
            25 => format!("ether host {to}"),
            26 => format!("ether src {from}"),
            27 => format!("ether dst {to} and ip"),
            28 => {
                self.body = Body::Arp;
                format!("ether src {from} and arp")
            }
            29 => {
                let proto = rng.within(0x900..0x7000) as u16;
                self.body = Body::Other(proto);
                format!("ether proto {proto:#06x} and ether src {from}")
            }
            30 => format!("vlan {} and host {a}", tagged(self)),
            31 => {
                self.protocol = TCP;
                let tag = tagged(self);
                format!("vlan {tag} and dst host {b} and tcp dst port {q}")
            }
            32 => format!("vlan {} and ether src {from}", tagged(self)),
            33 => {
                let label = *self.mpls.insert(rng.within(16..1 << 20));
                format!("mpls {label} and ether dst {to}")
            }
            34 => {
                self.body = Body::Arp;
                format!("arp host {a}")
            }
            35 => {
                self.body = Body::V6;
                format!("ip6 host {a6}")
            }
            36 => {
                self.body = Body::V6;
                format!("ip6 and src host {a6} and dst host {b6}")
            }
            37 => {
                (self.body, self.protocol) = (Body::V6, TCP);
                format!("ip6 and tcp dst port {q} and dst host {b6}")
            }
            38 => {
                self.body = Body::V6;
                let net = Ipv6Addr::from_bits(b6.to_bits() >> 64 << 64);
                format!("ip6 dst net {net}/64")
            }
            _ => {
                self.tos = (rng.within(1..64) << 2) as u8;
                format!("ip[1] & 0xfc = {} and dst host {b}", self.tos)
            }
        }
    }

    fn frame(&self) -> Vec<u8> {
        let mut frame = self.macs.concat();
        let ethertype = match self.body {
            Body::V4 => 0x0800_u16,
            Body::V6 => 0x86dd,
            Body::Arp => 0x0806,
            Body::Other(ethertype) => ethertype,
        };
        if let Some(tag) = self.vlan {
            frame.extend((0x8100_0000 | tag).to_be_bytes());
        }
        if let Some(label) = self.mpls {
            frame.extend(0x8847_u16.to_be_bytes());
            frame.extend((label << 12 | 1 << 8 | 64).to_be_bytes());
        } else {
            frame.extend(ethertype.to_be_bytes());
        }
        match self.body {
            Body::V4 => {
                frame.extend([0x45, self.tos, 0, 50, 0, 0, 0, 0, 64, self.protocol, 0, 0]);
                frame.extend([self.src.octets(), self.dst.octets()].concat());
                self.put_transport(&mut frame);
            }
            Body::V6 => {
                frame.extend([0x60, 0, 0, 0, 0, 30, self.protocol, 64]);
                frame.extend([self.src6.octets(), self.dst6.octets()].concat());
                self.put_transport(&mut frame);
            }
            Body::Arp => {
                frame.extend([0, 1, 8, 0, 6, 4, 0, 1]);
                frame.extend(self.macs[1].iter().chain(&self.src.octets()));
                frame.extend([0; 6].iter().chain(&self.dst.octets()));
            }
            Body::Other(_) => {}
        }
        frame.resize(frame.len().max(64), 0);
        frame
    }

    fn put_transport(&self, frame: &mut Vec<u8>) {
        let ports = (self.src_port << 16 | self.dst_port).to_be_bytes();
        match self.protocol {
            TCP => {
                frame.extend(ports);
                frame.extend([
                    0,
                    0,
                    0,
                    1,
                    0,
                    0,
                    0,
                    1,
                    0x50,
                    self.tcp_flags,
                    1,
                    0,
                    0,
                    0,
                    0,
                    0,
                ]);
            }
            UDP => {
                frame.extend(ports);
                frame.extend([0, 30, 0, 0]);
                frame.extend(self.payload.to_be_bytes());
            }
            _ => frame.extend([8, 0, 0, 0]),
        }
    }
}

fn net(address: Ipv4Addr, len: u32) -> String {
    let address = address.to_bits() >> (32 - len) << (32 - len);
    format!("{}/{len}", Ipv4Addr::from_bits(address))
}
