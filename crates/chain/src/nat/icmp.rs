//! ICMP errors: the packet that an error quotes is translated as the error is
//! (RFC 5508 §4).

use super::config::Transport;
use super::table::Tuple;
use crate::layers::Layers;
use crate::packet::Packet;
use std::net::Ipv4Addr;
use weir_wire::checksum;
use weir_wire::field::{array, read_u16, write};
use weir_wire::{Protocol, ipv4};

/// An address and a port.
type End = (Ipv4Addr, u16);

/// Echo request and reply, timestamp request and reply (RFC 792).
pub(super) const ECHO_REPLY: u8 = 0;
pub(super) const ECHO: u8 = 8;
pub(super) const TIMESTAMP: u8 = 13;
pub(super) const TIMESTAMP_REPLY: u8 = 14;

/// Destination unreachable, source quench, time exceeded, parameter problem.
pub(super) fn is_error(kind: u8) -> bool {
    matches!(kind, 3 | 4 | 11 | 12)
}

/// The type of an ICMP message, and its identifier.
pub(super) fn header(packet: &Packet<'_>) -> Option<(u8, u16)> {
    let layers = packet.layers().filter(|layers| layers.has_transport)?;
    let at = layers.payload;
    let bytes = packet.bytes();
    Some((bytes[at], read_u16(bytes, at + 4)))
}

/// Sets the identifier of a query or its reply; the checksum follows.
pub(super) fn set_identifier(packet: &mut Packet<'_>, id: u16) {
    let Some(layers) = packet.layers().copied() else {
        return;
    };
    packet.raw(|bytes| {
        let at = layers.payload;
        let old = read_u16(bytes, at + 4);
        let sum = checksum::update(read_u16(bytes, at + 2), old, id);
        write(bytes, at + 4, &id.to_be_bytes());
        write(bytes, at + 2, &sum.to_be_bytes());
    });
}

/// Protocol, source and destination of the packet that an ICMP error quotes; `None` if it is no
/// error, or about a packet without ports.
pub(crate) fn quoted(packet: &Packet<'_>) -> Option<(Protocol, End, End)> {
    header(packet).filter(|(kind, _)| is_error(*kind))?;
    let tuple = Quoted::of(packet)?.tuple;
    let protocol = match tuple.transport {
        Transport::Tcp => Protocol::TCP,
        Transport::Udp => Protocol::UDP,
        Transport::Icmp => return None,
    };
    Some((protocol, tuple.src, tuple.dst))
}

/// A packet as an ICMP error quotes it.
pub(super) struct Quoted {
    pub(super) tuple: Tuple,
    /// Offset of the quoted IP header in the frame.
    ip: usize,
}

impl Quoted {
    /// The packet that an error quotes; `None` if it is cut short, is not of a
    /// transport that is translated, or the error's checksum is wrong.
    pub(super) fn of(packet: &Packet<'_>) -> Option<Quoted> {
        let layers = packet.layers().filter(|layers| layers.has_transport)?;
        let frame = packet.bytes().get(..layers.end)?;
        if checksum::internet_checksum(&frame[layers.payload..]) != 0 {
            return None;
        }
        let ip = layers.payload + 8;
        let quoted = ipv4::Packet::new(&frame[ip..]).ok()?;
        if quoted.fragment_offset() > 0 {
            return None;
        }
        let rest = &frame[ip + quoted.header_len()..];
        let (transport, ports) = match quoted.protocol() {
            Protocol::TCP => (Transport::Tcp, 0),
            Protocol::UDP => (Transport::Udp, 0),
            Protocol::ICMPV4 => (Transport::Icmp, 4),
            _ => return None,
        };
        // At least the first eight bytes are quoted (RFC 792).
        let first: &[u8; 8] = rest.first_chunk()?;
        let port = |at: usize| u16::from_be_bytes([first[at], first[at + 1]]);
        let (src, dst) = match transport {
            // Of a query the identifier stands for the port of the side that asked.
            Transport::Icmp if matches!(first[0], ECHO | TIMESTAMP) => (port(ports), 0),
            Transport::Icmp if matches!(first[0], ECHO_REPLY | TIMESTAMP_REPLY) => (0, port(ports)),
            Transport::Icmp => return None,
            _ => (port(0), port(2)),
        };
        Some(Quoted {
            tuple: Tuple {
                transport,
                src: (quoted.src(), src),
                dst: (quoted.dst(), dst),
            },
            ip,
        })
    }

    /// Rewrites the source or destination of the quoted packet, and all
    /// checksums that this changes.
    pub(super) fn rewrite(&self, packet: &mut Packet<'_>, is_source: bool, to: (Ipv4Addr, u16)) {
        let Some(layers) = packet.layers().copied() else {
            return;
        };
        packet.raw(|bytes| self.rewrite_bytes(&mut bytes[..layers.end], &layers, is_source, to));
    }

    fn rewrite_bytes(
        &self,
        frame: &mut [u8],
        layers: &Layers,
        is_source: bool,
        to: (Ipv4Addr, u16),
    ) {
        let ip = self.ip;
        let payload = ip + ipv4::header_len(&frame[ip..]);
        let (address_at, port_at) = match (self.tuple.transport, is_source) {
            (Transport::Icmp, true) => (12, 4),
            (Transport::Icmp, false) => (16, 4),
            (_, true) => (12, 0),
            (_, false) => (16, 2),
        };
        let old_port = read_u16(frame, payload + port_at);
        let old = array::<4>(frame, ip + address_at);
        let new = to.0.octets();
        let word = |bytes: &[u8; 4], at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        let addresses = [0, 2].map(|at| (word(&old, at), word(&new, at)));
        follow(frame, ip + 10, &addresses);
        let port = (old_port, to.1);
        let all = [addresses[0], addresses[1], port];
        match self.tuple.transport {
            Transport::Icmp => follow(frame, payload + 2, &[port]),
            Transport::Udp if read_u16(frame, payload + 6) == 0 => {}
            Transport::Udp => {
                follow(frame, payload + 6, &all);
                if read_u16(frame, payload + 6) == 0 {
                    write(frame, payload + 6, &[0xff, 0xff]);
                }
            }
            // Often not quoted.
            Transport::Tcp if frame.len() >= payload + 18 => follow(frame, payload + 16, &all),
            Transport::Tcp => {}
        }
        write(frame, ip + address_at, &new);
        write(frame, payload + port_at, &to.1.to_be_bytes());
        // The error's own checksum covers all of it.
        let at = layers.payload;
        write(frame, at + 2, &[0, 0]);
        let sum = checksum::internet_checksum(&frame[at..]);
        write(frame, at + 2, &sum.to_be_bytes());
    }
}

/// Has the checksum at this offset follow words that change.
fn follow(frame: &mut [u8], at: usize, changes: &[(u16, u16)]) {
    let sum = read_u16(frame, at);
    let sum = changes
        .iter()
        .fold(sum, |sum, (old, new)| checksum::update(sum, *old, *new));
    write(frame, at, &sum.to_be_bytes());
}
