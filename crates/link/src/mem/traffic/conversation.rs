//! Conversations between two stations: their frames and pauses.

use std::net::{Ipv4Addr, Ipv6Addr};

use weir_wire::ethernet::Address;
use weir_wire::tcp::{Flags, Options};
use weir_wire::{AddrPair, arp, icmp, pup, tcp, udp};

use super::packet::{Ip, Wire, three_megabit};
use super::{Medium, Rng};

/// Largest payload of a TCP segment, in bytes: 1,500 less the longer headers.
const MSS: u16 = 1440;
const NAMES: [&str; 6] = [
    "www.example.com",
    "mail.example.com",
    "cdn.example.net",
    "time.example.org",
    "printer.example",
    "build.test",
];

/// One exchange between two stations.
#[derive(Debug)]
pub(super) struct Conversation {
    kind: Kind,
    medium: Medium,
    wire: Wire,
    ip: Ip,
    /// Frames generated so far, and the total.
    said: u32,
    total: u32,
}

#[derive(Debug)]
enum Kind {
    Tcp(Connection),
    Dns {
        port: u16,
        id: u16,
        name: &'static str,
    },
    Udp {
        ports: [u16; 2],
        longest: u64,
        answered: bool,
    },
    Echo {
        identifier: u16,
    },
    Arp,
    Pup {
        repr: pup::Repr,
    },
}

/// A TCP connection from the client's point of view.
#[derive(Debug)]
struct Connection {
    ports: [u16; 2],
    /// The next sequence numbers of client and server.
    next: [u32; 2],
}

/// TCP segments besides the data: three of the handshake, three of the close.
const OPENING: u32 = 3;
const CLOSING: u32 = 3;

impl Conversation {
    pub(super) fn begin(rng: &mut Rng, medium: Medium) -> Conversation {
        let client = rng.below(200) as u8 + 10;
        let server = rng.below(60) as u8 + 1;
        let vlan = [None, Some(10), Some(20), Some(30), Some(99)];
        let (kind, total) = match medium {
            Medium::Ethernet => kind(rng, client, server),
            Medium::ThreeMegabit => pup_kind(rng, client, server),
        };
        let addresses = if rng.chance(333_333) {
            v6_addresses(client, server)
        } else {
            v4_addresses(rng, client, server)
        };
        let tagged = rng.chance(200_000);
        Conversation {
            kind,
            medium,
            wire: Wire {
                src: station(client),
                dst: station(if tagged { 2 } else { 1 }),
                vlan: if tagged { rng.choose(&vlan[1..]) } else { None },
            },
            ip: Ip {
                addresses,
                identification: rng.bits() as u16,
            },
            said: 0,
            total,
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.said >= self.total
    }

    /// The next frame, and the pause after it in nanoseconds.
    pub(super) fn step(&mut self, rng: &mut Rng) -> (Vec<u8>, u64) {
        let step = self.said;
        self.said += 1;
        self.ip.identification = self.ip.identification.wrapping_add(1);
        let back = step % 2 == 1;
        let (wire, ip) = if back {
            (self.wire.reversed(), self.ip.reversed())
        } else {
            (self.wire, self.ip)
        };
        let frame = match &mut self.kind {
            Kind::Tcp(connection) => {
                let phase = if step < OPENING {
                    Phase::Open(step)
                } else if step + CLOSING < self.total {
                    Phase::Data
                } else {
                    Phase::Close(step + CLOSING - self.total)
                };
                connection.step(rng, self.wire, self.ip, phase)
            }
            Kind::Dns { port, id, name } => {
                let payload = dns(*id, name, back, ip.addresses);
                wire.udp(&ip, &between([*port, 53], back), &payload)
            }
            Kind::Udp {
                ports,
                longest,
                answered,
            } => {
                let mut payload = vec![0; 12 + rng.below(*longest) as usize];
                rng.fill(&mut payload);
                if *answered {
                    wire.udp(&ip, &between(*ports, back), &payload)
                } else {
                    self.wire.udp(&self.ip, &between(*ports, false), &payload)
                }
            }
            Kind::Echo { identifier } => {
                let echo = icmp::Echo {
                    reply: back,
                    identifier: *identifier,
                    sequence: (step / 2) as u16 + 1,
                };
                let payload: Vec<u8> = (0x10..0x48).collect();
                wire.echo(&ip, &echo, &payload)
            }
            Kind::Arp => ask_who_has(wire, self.wire, back),
            Kind::Pup { repr } => {
                repr.identifier = repr.identifier.wrapping_add(u32::from(!back));
                let turned = pup::Repr {
                    dst: repr.src,
                    src: repr.dst,
                    ..*repr
                };
                let repr = if back { turned } else { *repr };
                let mut payload = vec![0; rng.below(533) as usize];
                rng.fill(&mut payload);
                match self.medium {
                    Medium::Ethernet => wire.pup(&repr, &payload),
                    Medium::ThreeMegabit => three_megabit(&repr, &payload),
                }
            }
        };
        // A reply follows soon; the pause before the next request is longer.
        let longest_ns = if back { 20_000_000 } else { 2_000_000 };
        (frame, 1_000 + rng.below(longest_ns))
    }
}

/// The kind of a new conversation on Ethernet, and its number of frames.
fn kind(rng: &mut Rng, client: u8, server: u8) -> (Kind, u32) {
    let high = 49_152 + rng.below(16_384) as u16;
    match rng.below(100) {
        0..30 => {
            let server_port = rng.choose(&[443, 443, 443, 80, 80, 22, 25]);
            let connection = Connection {
                ports: [high, server_port],
                next: [rng.bits() as u32, rng.bits() as u32],
            };
            let data = 2 + rng.below(40) as u32;
            (Kind::Tcp(connection), OPENING + data + CLOSING)
        }
        30..55 => {
            let id = rng.bits() as u16;
            let name = rng.choose(&NAMES);
            (
                Kind::Dns {
                    port: high,
                    id,
                    name,
                },
                2,
            )
        }
        55..70 => {
            let (port, longest, answered, frames) = rng.choose(&[
                (443, 1_200, true, 30),
                (123, 48, true, 2),
                (5_004, 160, false, 40),
                (514, 200, false, 3),
            ]);
            let ports = [high, port];
            (
                Kind::Udp {
                    ports,
                    longest,
                    answered,
                },
                1 + rng.below(frames) as u32,
            )
        }
        70..80 => {
            let identifier = rng.bits() as u16;
            (Kind::Echo { identifier }, 2 * (1 + rng.below(4) as u32))
        }
        80..90 => (Kind::Arp, 2),
        _ => pup_kind(rng, client, server),
    }
}

fn pup_kind(rng: &mut Rng, client: u8, server: u8) -> (Kind, u32) {
    // Well-known Pup sockets (echo, telnet, miscellaneous services) and the
    // 1987 paper's socket 35.
    let socket = rng.choose(&[5, 1, 4, 35]);
    let repr = pup::Repr {
        control: 0,
        pup_type: rng.choose(&[1, 2, 16, 100]),
        identifier: rng.bits() as u32,
        dst: pup::Port {
            net: 3,
            host: server,
            socket,
        },
        src: pup::Port {
            net: 3,
            host: client,
            socket: rng.bits() as u32,
        },
    };
    (Kind::Pup { repr }, 2 * (1 + rng.below(6) as u32))
}

/// A station's unicast MAC address, reserved for documentation (RFC 7042
/// §2.1.4).
fn station(number: u8) -> Address {
    Address([0x00, 0x00, 0x5e, 0x00, 0x53, number])
}

fn v4_addresses(rng: &mut Rng, client: u8, server: u8) -> AddrPair {
    let net = rng.choose(&[[198, 51, 100], [203, 0, 113]]);
    let server = Ipv4Addr::new(net[0], net[1], net[2], server);
    AddrPair::V4(Ipv4Addr::new(192, 0, 2, client), server)
}

fn v6_addresses(client: u8, server: u8) -> AddrPair {
    let address = |subnet, host: u8| Ipv6Addr::new(0x2001, 0xdb8, subnet, 0, 0, 0, 0, host.into());
    AddrPair::V6(address(1, client), address(2, server))
}

fn between(ports: [u16; 2], back: bool) -> udp::Repr {
    let [src_port, dst_port] = ports;
    if back {
        udp::Repr {
            src_port: dst_port,
            dst_port: src_port,
        }
    } else {
        udp::Repr { src_port, dst_port }
    }
}

/// An ARP request or neighbour solicitation for the gateway's address, or with
/// `back` the gateway's reply.
fn ask_who_has(wire: Wire, asker: Wire, back: bool) -> Vec<u8> {
    let address = |station: Address| Ipv4Addr::new(192, 0, 2, station.0[5]);
    let request = arp::Repr {
        operation: arp::Operation::REQUEST,
        sender: asker.src,
        sender_ip: address(asker.src),
        target: Address([0; 6]),
        target_ip: address(asker.dst),
    };
    if back {
        return wire.arp(&arp::Repr {
            operation: arp::Operation::REPLY,
            sender: asker.dst,
            sender_ip: address(asker.dst),
            target: asker.src,
            target_ip: address(asker.src),
        });
    }
    let everyone = Wire {
        dst: Address::BROADCAST,
        ..wire
    };
    everyone.arp(&request)
}

/// A DNS query for an address, or its response (RFC 1035 §4, RFC 3596).
fn dns(id: u16, name: &str, answer: bool, addresses: AddrPair) -> Vec<u8> {
    let (kind, address) = match addresses {
        AddrPair::V4(..) => (1u8, vec![203, 0, 113, 80]),
        AddrPair::V6(..) => (
            28,
            Ipv6Addr::new(0x2001, 0xdb8, 2, 0, 0, 0, 0, 80)
                .octets()
                .to_vec(),
        ),
    };
    let mut message = id.to_be_bytes().to_vec();
    let flags: [u8; 2] = if answer { [0x81, 0x80] } else { [0x01, 0x00] };
    message.extend(flags);
    message.extend([0, 1, 0, u8::from(answer), 0, 0, 0, 0]);
    for label in name.split('.') {
        message.push(label.len() as u8);
        message.extend(label.as_bytes());
    }
    message.extend([0, 0, kind, 0, 1]);
    if answer {
        // The name as a compression pointer, TTL 1 hour.
        message.extend([
            0xc0,
            12,
            0,
            kind,
            0,
            1,
            0,
            0,
            0x0e,
            0x10,
            0,
            address.len() as u8,
        ]);
        message.extend(address);
    }
    message
}

/// The phase of a TCP connection.
enum Phase {
    Open(u32),
    Data,
    Close(u32),
}

impl Connection {
    fn step(&mut self, rng: &mut Rng, wire: Wire, ip: Ip, phase: Phase) -> Vec<u8> {
        let syn = Flags::SYN;
        let (from_server, flags, payload) = match phase {
            Phase::Open(0) => (false, syn, Vec::new()),
            Phase::Open(1) => (true, syn | Flags::ACK, Vec::new()),
            Phase::Open(_) => (false, Flags::ACK, Vec::new()),
            Phase::Data => {
                let from_server = rng.chance(700_000);
                (
                    from_server,
                    Flags::PSH | Flags::ACK,
                    self.payload(rng, from_server),
                )
            }
            Phase::Close(0) => (false, Flags::FIN | Flags::ACK, Vec::new()),
            Phase::Close(1) => (true, Flags::FIN | Flags::ACK, Vec::new()),
            Phase::Close(_) => (false, Flags::ACK, Vec::new()),
        };
        let side = usize::from(from_server);
        let opens = flags.contains(syn);
        let options = if opens {
            Options {
                mss: Some(MSS),
                window_scale: Some(7),
                sack_permitted: true,
                ..Options::default()
            }
        } else {
            Options::default()
        };
        let acknowledges = flags.contains(Flags::ACK);
        let repr = tcp::Repr {
            src_port: self.ports[side],
            dst_port: self.ports[1 - side],
            seq: self.next[side],
            ack: if acknowledges { self.next[1 - side] } else { 0 },
            flags,
            window: 64_240,
            urgent: 0,
            options,
        };
        let takes_number = opens || flags.contains(Flags::FIN);
        let advance = payload.len() as u32 + u32::from(takes_number);
        self.next[side] = self.next[side].wrapping_add(advance);
        if from_server {
            wire.reversed().tcp(&ip.reversed(), &repr, &payload)
        } else {
            wire.tcp(&ip, &repr, &payload)
        }
    }

    /// A payload as such a client or server might send.
    fn payload(&self, rng: &mut Rng, from_server: bool) -> Vec<u8> {
        let longest = if from_server { u64::from(MSS) - 4 } else { 400 };
        let mut noise = vec![0; 1 + rng.below(longest - 5) as usize];
        rng.fill(&mut noise);
        match (self.ports[1], from_server) {
            (80, false) => b"GET / HTTP/1.1\r\nHost: www.example.com\r\n\r\n".to_vec(),
            (25, false) => b"MAIL FROM:<alice@example.com>\r\n".to_vec(),
            (25, true) => b"250 2.1.0 Ok\r\n".to_vec(),
            (443, _) => {
                // A TLS record of application data.
                let [high, low] = (noise.len() as u16).to_be_bytes();
                [&[0x17, 3, 3, high, low], &noise[..]].concat()
            }
            _ => noise,
        }
    }
}
