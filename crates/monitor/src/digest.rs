//! The parts of a frame that the tables need, read once: addresses, protocol, transport ports.
//!
//! VLAN tags and PPPoE session headers are passed over; of a tunnel, the outer packet counts. A
//! frame is untrusted and may end anywhere: missing fields are zero, and a frame without readable
//! addresses has [`Host::Unknown`].

use std::fmt;
use std::net::IpAddr;
use weir_wire::LinkType;
use weir_wire::ethernet::Address;

/// Largest number of VLAN tags, and of IPv6 extension headers, that are passed over.
const HEADERS_MAX: usize = 8;

/// A sender or receiver of frames.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Host {
    /// The frame, or its link type, has no address that is understood.
    Unknown,
    /// A station; its frames carry no IP.
    Mac(Address),
    /// A host of IPv4 or IPv6.
    Ip(IpAddr),
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Host::Unknown => f.pad("?"),
            Host::Mac(address) => f.pad(&address.to_string()),
            Host::Ip(address) => f.pad(&address.to_string()),
        }
    }
}

/// The protocol between two hosts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Kind {
    /// Frames of an EtherType; of 0 where there is none, as with IEEE 802.3 lengths.
    Ether(u16),
    /// Packets of an IP protocol.
    Ip(u8),
}

/// A conversation: two ends in order of their addresses, so that both directions are one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Flow {
    /// The lesser end.
    pub a: Host,
    /// The greater end.
    pub b: Host,
    /// Their protocol.
    pub kind: Kind,
    /// The transport port of `a`; 0 without one.
    pub a_port: u16,
    /// The transport port of `b`; 0 without one.
    pub b_port: u16,
}

/// The fields of a TCP header that following a connection needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TcpPart {
    /// The sequence number.
    pub seq: u32,
    /// Whether SYN is set.
    pub is_syn: bool,
    /// Whether FIN is set.
    pub is_fin: bool,
}

/// A frame's addresses and place of its payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Digest {
    /// The sender.
    pub src: Host,
    /// The receiver.
    pub dst: Host,
    /// The EtherType behind VLAN tags; 0 if there is none.
    pub ether_type: u16,
    /// The IP protocol behind extension headers; `None` without IP.
    pub ip_protocol: Option<u8>,
    /// The transport ports; 0 without them, as in a fragment that is not the first.
    pub src_port: u16,
    /// See `src_port`.
    pub dst_port: u16,
    /// TCP's fields, if it is a TCP segment with a whole header.
    pub tcp: Option<TcpPart>,
    /// Where the transport payload begins and ends in the captured bytes.
    pub payload: (usize, usize),
}

impl Digest {
    /// Reads the headers of a frame.
    pub fn of(bytes: &[u8], linktype: LinkType) -> Digest {
        let mut digest = Digest {
            src: Host::Unknown,
            dst: Host::Unknown,
            ether_type: 0,
            ip_protocol: None,
            src_port: 0,
            dst_port: 0,
            tcp: None,
            payload: (0, 0),
        };
        // What could be read until the end of the bytes stays.
        let _ = digest.link(bytes, linktype);
        digest
    }

    /// The conversation, and whether the frame goes from its `a` to its `b`.
    pub fn flow(&self) -> (Flow, bool) {
        let kind = match self.ip_protocol {
            Some(protocol) => Kind::Ip(protocol),
            None => Kind::Ether(self.ether_type),
        };
        let is_forward = (self.src, self.src_port) <= (self.dst, self.dst_port);
        let (a, a_port, b, b_port) = if is_forward {
            (self.src, self.src_port, self.dst, self.dst_port)
        } else {
            (self.dst, self.dst_port, self.src, self.src_port)
        };
        let flow = Flow {
            a,
            b,
            kind,
            a_port,
            b_port,
        };
        (flow, is_forward)
    }

    fn link(&mut self, bytes: &[u8], linktype: LinkType) -> Option<()> {
        match linktype {
            LinkType::EN10MB => {
                self.dst = Host::Mac(Address(chunk(bytes, 0)?));
                self.src = Host::Mac(Address(chunk(bytes, 6)?));
                self.tagged(bytes, 12)
            }
            LinkType::RAW | LinkType::IPV4 | LinkType::IPV6 => self.ip(bytes, 0),
            LinkType::LINUX_SLL => self.tagged(bytes, 14),
            LinkType::LINUX_SLL2 => {
                self.ether_type = half(bytes, 0)?;
                self.network(bytes, 20)
            }
            LinkType::NULL | LinkType::LOOP => self.ip(bytes, 4),
            _ => None,
        }
    }

    /// From the EtherType at `at`.
    fn tagged(&mut self, bytes: &[u8], mut at: usize) -> Option<()> {
        for _ in 0..HEADERS_MAX {
            let number = half(bytes, at)?;
            match number {
                0x8100 | 0x88a8 | 0x9100 => at += 4,
                // An IEEE 802.3 length.
                0..0x600 => return None,
                _ => {
                    self.ether_type = number;
                    return self.network(bytes, at + 2);
                }
            }
        }
        None
    }

    fn network(&mut self, bytes: &[u8], at: usize) -> Option<()> {
        match self.ether_type {
            0x0800 | 0x86dd => self.ip(bytes, at),
            // A PPPoE session frame of IPv4 or IPv6 (RFC 2516).
            0x8864 if matches!(half(bytes, at + 6)?, 0x21 | 0x57) => self.ip(bytes, at + 8),
            _ => None,
        }
    }

    fn ip(&mut self, bytes: &[u8], at: usize) -> Option<()> {
        match byte(bytes, at)? >> 4 {
            4 => self.ipv4(bytes, at),
            6 => self.ipv6(bytes, at),
            _ => None,
        }
    }

    fn ipv4(&mut self, bytes: &[u8], at: usize) -> Option<()> {
        let dst: [u8; 4] = chunk(bytes, at + 16)?;
        self.ether_type = 0x0800;
        self.src = Host::Ip(chunk::<4>(bytes, at + 12)?.into());
        self.dst = Host::Ip(dst.into());
        self.ip_protocol = byte(bytes, at + 9);
        let header_len = usize::from(byte(bytes, at)? & 0xf).max(5) * 4;
        // A super-frame's length does not fit the field.
        let end = match half(bytes, at + 2)? {
            0 => bytes.len(),
            len => bytes.len().min(at + usize::from(len)),
        };
        match half(bytes, at + 6)? & 0x1fff {
            0 => self.transport(bytes, at + header_len, end),
            _ => None,
        }
    }

    fn ipv6(&mut self, bytes: &[u8], at: usize) -> Option<()> {
        let dst: [u8; 16] = chunk(bytes, at + 24)?;
        self.ether_type = 0x86dd;
        self.src = Host::Ip(chunk::<16>(bytes, at + 8)?.into());
        self.dst = Host::Ip(dst.into());
        let end = match half(bytes, at + 4)? {
            0 => bytes.len(),
            len => bytes.len().min(at + 40 + usize::from(len)),
        };
        let (mut next, mut at) = (byte(bytes, at + 6)?, at + 40);
        self.ip_protocol = Some(next);
        for _ in 0..HEADERS_MAX {
            let len = match next {
                0 | 43 | 60 => 8 * (usize::from(byte(bytes, at + 1)?) + 1),
                44 if half(bytes, at + 2)? & 0xfff8 == 0 => 8,
                44 => {
                    // A later fragment has no transport header.
                    self.ip_protocol = byte(bytes, at);
                    return None;
                }
                51 => 4 * (usize::from(byte(bytes, at + 1)?) + 2),
                _ => break,
            };
            next = byte(bytes, at)?;
            self.ip_protocol = Some(next);
            at += len;
        }
        self.transport(bytes, at, end)
    }

    fn transport(&mut self, bytes: &[u8], at: usize, end: usize) -> Option<()> {
        let protocol = self.ip_protocol?;
        // TCP, UDP, DCCP, SCTP, UDP-Lite.
        if !matches!(protocol, 6 | 17 | 33 | 132 | 136) {
            return None;
        }
        let bytes = bytes.get(..end)?;
        let (src_port, dst_port) = (half(bytes, at)?, half(bytes, at + 2)?);
        (self.src_port, self.dst_port) = (src_port, dst_port);
        let payload = match protocol {
            6 => {
                let flags = byte(bytes, at + 13)?;
                let payload = at + usize::from(byte(bytes, at + 12)? >> 4).max(5) * 4;
                self.tcp = Some(TcpPart {
                    seq: word(bytes, at + 4)?,
                    is_syn: flags & 2 != 0,
                    is_fin: flags & 1 != 0,
                });
                payload
            }
            17 | 136 => at + 8,
            _ => return None,
        };
        self.payload = (payload.min(end), end);
        Some(())
    }
}

fn byte(bytes: &[u8], at: usize) -> Option<u8> {
    bytes.get(at).copied()
}

fn chunk<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    chunk(bytes, at).map(u16::from_be_bytes)
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    chunk(bytes, at).map(u32::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A TCP segment with `payload` in an Ethernet frame with a VLAN tag.
    pub(crate) fn segment(payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x81, 0, 0, 7, 8, 0];
        let len = (40 + payload.len()) as u16;
        bytes.extend([0x45, 0]);
        bytes.extend(len.to_be_bytes());
        bytes.extend([0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 2, 10, 0, 0, 1]);
        bytes.extend([0x30, 0x39, 0, 80, 0, 0, 0, 9, 0, 0, 0, 0, 0x50, 0x18]);
        bytes.extend([1, 0, 0, 0, 0, 0]);
        bytes.extend(payload);
        bytes
    }

    #[test]
    fn both_directions_are_one_conversation() {
        let frame = segment(b"hello");
        let digest = Digest::of(&frame, LinkType::EN10MB);
        assert_eq!(digest.src, Host::Ip([10, 0, 0, 2].into()));
        assert_eq!((digest.src_port, digest.dst_port), (12345, 80));
        assert_eq!(&frame[digest.payload.0..digest.payload.1], b"hello");
        assert_eq!(digest.tcp.map(|tcp| tcp.seq), Some(9));
        let (flow, is_forward) = digest.flow();
        assert!(!is_forward, "10.0.0.2 > 10.0.0.1");
        let back = Digest {
            src: digest.dst,
            dst: digest.src,
            src_port: 80,
            dst_port: 12345,
            ..digest
        };
        assert_eq!(back.flow(), (flow, true));
    }

    #[test]
    fn a_frame_may_end_anywhere() {
        let frame = segment(b"hello");
        for len in 0..frame.len() {
            for linktype in LinkType::NAMED {
                let digest = Digest::of(&frame[..len], linktype.0);
                assert!(digest.payload.0 <= digest.payload.1 && digest.payload.1 <= len);
            }
        }
    }

    #[test]
    fn a_later_fragment_has_no_ports() {
        let mut frame = segment(b"hello");
        frame[18 + 7] = 1;
        let digest = Digest::of(&frame, LinkType::EN10MB);
        assert_eq!((digest.ip_protocol, digest.src_port), (Some(6), 0));
        assert_eq!(digest.tcp, None);
    }
}
