//! Frames for tests of filters: real captures, the same frames with other link
//! types, and damaged frames.

use weir_wire::LinkType;

use crate::oracle::{Capture, Frame, Oracle};
use crate::rng::Rng;
use crate::testenv;

/// A capture file's name, and its content as libpcap reads it.
pub type NamedCapture = (String, Capture);

/// Every capture of [`testenv::capture_files`], read by libpcap, so that weir's
/// own reader is not part of the oracle. Of a file that libpcap cannot read
/// completely, the frames before the damage are kept.
pub fn captures(oracle: &Oracle) -> Vec<NamedCapture> {
    let files = testenv::capture_files();
    let read = |path: &std::path::PathBuf| {
        let name = path.file_name()?.to_string_lossy().into_owned();
        Some((name, oracle.read(path).ok()?))
    };
    files.iter().filter_map(read).collect()
}

/// The link types that [`relink`] supports.
pub const LINKTYPES: [LinkType; 10] = [
    LinkType::EN10MB,
    LinkType::RAW,
    LinkType::IPV4,
    LinkType::IPV6,
    LinkType::LINUX_SLL,
    LinkType::LINUX_SLL2,
    LinkType::NULL,
    LinkType::LOOP,
    LinkType::PPP,
    LinkType::EN3MB,
];

const ETHERTYPE_IP: u16 = 0x0800;
const ETHERTYPE_IP6: u16 = 0x86dd;
const ETHERTYPE_MPLS: u16 = 0x8847;

/// Converts an Ethernet frame to `linktype`; `None` if that link type cannot
/// carry the packet. `turn` selects among the variants of a link type (byte
/// orders, framings, directions).
pub fn relink(frame: &Frame, linktype: LinkType, turn: usize) -> Option<Frame> {
    let ether = Ether::of(&frame.bytes)?;
    let (header, payload) = match linktype {
        LinkType::EN10MB => return Some(frame.clone()),
        LinkType::RAW => (Vec::new(), ether.untagged().ip()?),
        LinkType::IPV4 => (Vec::new(), ether.untagged().of_type(ETHERTYPE_IP)?),
        LinkType::IPV6 => (Vec::new(), ether.untagged().of_type(ETHERTYPE_IP6)?),
        LinkType::LINUX_SLL => (ether.cooked(turn), ether.payload),
        LinkType::LINUX_SLL2 => (ether.cooked2(turn), ether.payload),
        LinkType::NULL => {
            let ether = ether.untagged();
            (ether.family(turn)?.to_le_bytes().to_vec(), ether.payload)
        }
        LinkType::LOOP => {
            let ether = ether.untagged();
            (ether.family(turn)?.to_be_bytes().to_vec(), ether.payload)
        }
        LinkType::PPP => {
            let ether = ether.untagged();
            (ether.ppp(turn)?, ether.payload)
        }
        LinkType::EN3MB => (ether.experimental(), ether.payload),
        _ => return None,
    };
    let removed = frame.bytes.len() - payload.len();
    let wire_len = (frame.wire_len as usize)
        .saturating_sub(removed)
        .saturating_add(header.len());
    Some(Frame {
        bytes: [header.as_slice(), payload].concat(),
        wire_len: u32::try_from(wire_len).ok()?,
    })
}

/// A parsed Ethernet frame.
struct Ether<'a> {
    destination: &'a [u8],
    source: &'a [u8],
    /// The EtherType, or the length of an 802.3 frame.
    kind: u16,
    payload: &'a [u8],
}

impl<'a> Ether<'a> {
    fn of(bytes: &'a [u8]) -> Option<Ether<'a>> {
        let (header, payload) = bytes.split_at_checked(14)?;
        Some(Ether {
            destination: &header[..6],
            source: &header[6..12],
            kind: u16::from_be_bytes([header[12], header[13]]),
            payload,
        })
    }

    /// Without its VLAN tags, which raw link types do not carry.
    fn untagged(&self) -> Ether<'a> {
        let (mut kind, mut payload) = (self.kind, self.payload);
        while matches!(kind, 0x8100 | 0x88a8 | 0x9100) && payload.len() >= 4 {
            kind = u16::from_be_bytes([payload[2], payload[3]]);
            payload = &payload[4..];
        }
        Ether {
            kind,
            payload,
            ..*self
        }
    }

    fn of_type(&self, kind: u16) -> Option<&'a [u8]> {
        (self.kind == kind).then_some(self.payload)
    }

    fn ip(&self) -> Option<&'a [u8]> {
        self.of_type(ETHERTYPE_IP)
            .or_else(|| self.of_type(ETHERTYPE_IP6))
    }

    /// The protocol field of cooked headers: an EtherType, or 4 for 802.2 LLC.
    fn protocol(&self) -> [u8; 2] {
        let protocol = if self.kind <= 1500 { 4 } else { self.kind };
        protocol.to_be_bytes()
    }

    /// The packet type of a cooked header: to this host, broadcast, multicast
    /// or outgoing.
    fn packet_type(&self, turn: usize) -> u8 {
        match self.destination {
            [0xff, ..] => 1,
            [first, ..] if first & 1 == 1 => 2,
            _ if turn % 3 == 1 => 4,
            _ if turn % 3 == 2 => 3,
            _ => 0,
        }
    }

    fn cooked(&self, turn: usize) -> Vec<u8> {
        let mut header = vec![0, self.packet_type(turn), 0, 1, 0, 6];
        header.extend(self.source);
        header.extend([0, 0]);
        header.extend(self.protocol());
        header
    }

    fn cooked2(&self, turn: usize) -> Vec<u8> {
        let interface = 1 + (turn % 3) as u8;
        let mut header = self.protocol().to_vec();
        header.extend([0, 0, 0, 0, 0, interface, 0, 1, self.packet_type(turn), 6]);
        header.extend(self.source);
        header.extend([0, 0]);
        header
    }

    /// The address family in either byte order; the number for IPv6 depends on
    /// the system.
    fn family(&self, turn: usize) -> Option<u32> {
        let family = match self.kind {
            ETHERTYPE_IP => 2,
            ETHERTYPE_IP6 => [10, 24, 28, 30][turn % 4],
            _ if turn.is_multiple_of(5) => u32::from(self.kind),
            _ => return None,
        };
        Some(if turn % 8 == 7 {
            u32::swap_bytes(family)
        } else {
            family
        })
    }

    /// A PPP header with or without address and control bytes.
    fn ppp(&self, turn: usize) -> Option<Vec<u8>> {
        let protocol = match self.kind {
            ETHERTYPE_IP => 0x0021u16,
            ETHERTYPE_IP6 => 0x0057,
            ETHERTYPE_MPLS => 0x0281,
            0x0806 => 0xc021,
            _ => return None,
        };
        let mut header = if turn % 4 == 3 {
            Vec::new()
        } else {
            vec![0xff, 0x03]
        };
        header.extend(protocol.to_be_bytes());
        Some(header)
    }

    /// A 3 Mb/s Ethernet header: the last byte of each address, and that
    /// network's type for IP.
    fn experimental(&self) -> Vec<u8> {
        let kind = match self.kind {
            ETHERTYPE_IP => 0x0201u16,
            other => other,
        };
        let mut header = vec![self.destination[5], self.source[5]];
        header.extend(kind.to_be_bytes());
        header
    }
}

/// A damaged copy: truncated, with bits flipped, or with a header field set to
/// an extreme value.
pub fn damage(rng: &mut Rng, frame: &Frame) -> Frame {
    let mut bytes = frame.bytes.clone();
    let mut wire_len = frame.wire_len;
    if bytes.is_empty() {
        return frame.clone();
    }
    // The first bytes hold the headers, where damage has effects.
    let near = bytes.len().min(64);
    match rng.below(4) {
        0 => bytes.truncate(rng.below(near + 1)),
        1 => (0..1 + rng.below(4)).for_each(|_| bytes[rng.below(near)] ^= 1 << rng.below(8)),
        2 => bytes[rng.below(near)] = *rng.choose(&[0, 1, 0x40, 0x4f, 0x60, 0x7f, 0x80, 0xff]),
        _ => wire_len = *rng.choose(&[0, 1, 60, 64, 1514, 65535, u32::MAX]),
    }
    Frame { bytes, wire_len }
}
