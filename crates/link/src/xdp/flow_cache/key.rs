//! Keys and actions of the flow cache.
//!
//! ```text
//!  16 bytes, in network order but for what is ours
//!  stations      dst MAC 6 │ src MAC 6 │ VLAN 2 │ link 1 │ kind 1
//!  addresses     dst MAC 6 │ link 1 │ kind 1 │ src 4 │ dst 4
//!  flow          src 4 │ dst 4 │ ports 4 │ protocol 1 │ 0 │ link 1 │ kind 1
//!  40 bytes
//!  addresses     dst MAC 6 │ link 1 │ kind 1 │ src 16 │ dst 16
//!  flow          src 16 │ dst 16 │ ports 4 │ protocol 1 │ 0 │ link 1 │ kind 1
//! ```

use std::net::{IpAddr, Ipv4Addr};
use weir_wire::ethernet::{self, Address};

/// Bytes of short and long keys.
pub(super) const SHORT: usize = 16;
pub(super) const LONG: usize = 40;

/// Bytes of an action: a cache line.
pub(super) const ACTION: usize = 64;

/// Offsets in an action.
pub(super) mod value {
    pub(crate) const OUT: i16 = 0;
    pub(crate) const HOW: i16 = 4;
    pub(crate) const MTU: i16 = 8;
    pub(crate) const MACS: i16 = 12;
    /// Of a rewrite: the MAC address that the frames come to, six bytes.
    pub(crate) const STATION: i16 = 24;
    /// The DSCP, shifted as in the header, or [`NO_DSCP`].
    pub(crate) const DSCP: i16 = 30;
    /// Whether addresses and ports are translated.
    pub(crate) const TRANSLATES: i16 = 31;
    /// Source and destination address, source and destination port.
    pub(crate) const ADDRESSES: i16 = 32;
    pub(crate) const PORTS: i16 = 40;
    /// Deltas of the checksums of header and transport, as numbers.
    pub(crate) const HEADER: i16 = 44;
    pub(crate) const TRANSPORT: i16 = 48;
    /// The lower two bits are those of ECN.
    pub(crate) const NO_DSCP: i32 = 0xff;
    /// Numbers of the actions. From [`REWRITE`] on, TCP segments that begin or
    /// end a connection go to the application.
    pub(crate) const DROP: i32 = 0;
    pub(crate) const FORWARD: i32 = 1;
    pub(crate) const ROUTE: i32 = 2;
    pub(crate) const REWRITE: i32 = 3;
    pub(crate) const DROP_FLOW: i32 = 4;
}

/// The fields that a key consists of.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FlowKind {
    /// Source and destination MAC address and VLAN: for a bridge.
    MacPair,
    /// Source and destination IP address and the destination MAC address: for a
    /// router.
    IpPair,
    /// IP addresses, protocol and transport ports of TCP or UDP.
    FiveTuple,
}

impl FlowKind {
    pub(super) fn number(self) -> u8 {
        match self {
            FlowKind::MacPair => 1,
            FlowKind::IpPair => 2,
            FlowKind::FiveTuple => 3,
        }
    }
}

/// The key of a set of frames that arrive at one link.
///
/// The key contains all fields that decide the verdict: a frame that differs in
/// any of them has another key, and goes to the application.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum FlowKey {
    /// Frames between two stations. The key contains the source, so that the
    /// application sees a station that is new on the link or has moved.
    MacPair {
        /// The ingress link's number.
        link: u32,
        /// The VLAN id; 0 without a tag.
        vlan: u16,
        /// The source MAC address.
        src: Address,
        /// The destination MAC address.
        dst: Address,
    },
    /// Packets between two hosts, with a given destination MAC address; both IP
    /// addresses of one family.
    IpPair {
        /// The ingress link's number.
        link: u32,
        /// The destination MAC address: the router's.
        station: Address,
        /// The source address.
        src: IpAddr,
        /// The destination address.
        dst: IpAddr,
    },
    /// Packets of a TCP or UDP flow; both addresses of one family. Later
    /// fragments, and packets with IP options or extension headers, do not
    /// match.
    FiveTuple {
        /// The ingress link's number.
        link: u32,
        /// The IP protocol, 6 or 17.
        protocol: u8,
        /// The source address and transport port.
        src: (IpAddr, u16),
        /// The destination address and transport port.
        dst: (IpAddr, u16),
    },
}

/// A key in the format of the kernel's tables.
#[derive(Clone, Copy)]
pub(super) enum Encoded {
    Short([u8; SHORT]),
    Long([u8; LONG]),
}

impl Encoded {
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Encoded::Short(key) => key,
            Encoded::Long(key) => key,
        }
    }
}

/// The words of bytes, as a program loads them.
pub(super) fn words(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    let (words, _) = bytes.as_chunks();
    words.iter().map(|word| u64::from_ne_bytes(*word))
}

impl FlowKey {
    /// The key of an Ethernet frame, as the kernel computes it; `None` if the
    /// frame has no key of that kind.
    pub fn of(kind: FlowKind, link: u32, frame: &[u8]) -> Option<FlowKey> {
        let header: &[u8; 14] = frame.first_chunk()?;
        let [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, t0, t1] = *header;
        let dst_station = Address([d0, d1, d2, d3, d4, d5]);
        if kind == FlowKind::MacPair {
            let tag = frame.get(14..16).filter(|_| [t0, t1] == [0x81, 0x00]);
            let vlan = tag.map_or(0, |tag| u16::from_be_bytes([tag[0] & 0xf, tag[1]]));
            return Some(FlowKey::MacPair {
                link,
                vlan,
                src: Address([s0, s1, s2, s3, s4, s5]),
                dst: dst_station,
            });
        }
        let packet = &frame[ethernet::Repr::LEN..];
        let (src, dst, protocol, ports) = match [t0, t1] {
            [0x08, 0x00] => v4(packet)?,
            [0x86, 0xdd] => v6(packet)?,
            _ => return None,
        };
        if kind == FlowKind::IpPair {
            return Some(FlowKey::IpPair {
                link,
                station: dst_station,
                src,
                dst,
            });
        }
        let [a, b, c, d] = *ports
            .filter(|_| matches!(protocol, 6 | 17))?
            .first_chunk()?;
        Some(FlowKey::FiveTuple {
            link,
            protocol,
            src: (src, u16::from_be_bytes([a, b])),
            dst: (dst, u16::from_be_bytes([c, d])),
        })
    }

    /// The ingress link's number.
    pub fn link(&self) -> u32 {
        match *self {
            FlowKey::MacPair { link, .. }
            | FlowKey::IpPair { link, .. }
            | FlowKey::FiveTuple { link, .. } => link,
        }
    }

    /// The kind of the key.
    pub fn kind(&self) -> FlowKind {
        match self {
            FlowKey::MacPair { .. } => FlowKind::MacPair,
            FlowKey::IpPair { .. } => FlowKind::IpPair,
            FlowKey::FiveTuple { .. } => FlowKind::FiveTuple,
        }
    }

    /// The key in the format of the kernel's tables; `None` for addresses of
    /// two families.
    pub(super) fn encode(&self) -> Option<Encoded> {
        let end = [self.link() as u8, self.kind().number()];
        match *self {
            FlowKey::MacPair { vlan, src, dst, .. } => {
                let vlan = vlan.to_be_bytes();
                Some(short(&[&dst.0, &src.0, &vlan, &end]))
            }
            FlowKey::IpPair {
                station, src, dst, ..
            } => match (src, dst) {
                (IpAddr::V4(src), IpAddr::V4(dst)) => {
                    Some(short(&[&station.0, &end, &src.octets(), &dst.octets()]))
                }
                (IpAddr::V6(src), IpAddr::V6(dst)) => {
                    Some(long(&[&station.0, &end, &src.octets(), &dst.octets()]))
                }
                _ => None,
            },
            FlowKey::FiveTuple {
                protocol, src, dst, ..
            } => {
                let (from, to) = (src.1.to_be_bytes(), dst.1.to_be_bytes());
                let rest: [u8; 8] = joined(&[&from, &to, &[protocol, 0], &end]);
                match (src.0, dst.0) {
                    (IpAddr::V4(src), IpAddr::V4(dst)) => {
                        Some(short(&[&src.octets(), &dst.octets(), &rest]))
                    }
                    (IpAddr::V6(src), IpAddr::V6(dst)) => {
                        Some(long(&[&src.octets(), &dst.octets(), &rest]))
                    }
                    _ => None,
                }
            }
        }
    }
}

fn short(parts: &[&[u8]]) -> Encoded {
    Encoded::Short(joined(parts))
}

fn long(parts: &[&[u8]]) -> Encoded {
    Encoded::Long(joined(parts))
}

fn joined<const N: usize>(parts: &[&[u8]]) -> [u8; N] {
    let (mut bytes, mut at) = ([0; N], 0);
    for part in parts {
        // The parts of a key are its size.
        bytes[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    }
    bytes
}

type Parts<'a> = (IpAddr, IpAddr, u8, Option<&'a [u8]>);

fn v4(packet: &[u8]) -> Option<Parts<'_>> {
    let header: &[u8; 20] = packet.first_chunk()?;
    if header[0] != 0x45 {
        return None;
    }
    let address = |at: usize| <[u8; 4]>::try_from(&header[at..at + 4]).ok();
    let fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3fff;
    let ports = (fragment == 0).then(|| packet.get(20..24)).flatten();
    Some((address(12)?.into(), address(16)?.into(), header[9], ports))
}

fn v6(packet: &[u8]) -> Option<Parts<'_>> {
    let header: &[u8; 40] = packet.first_chunk()?;
    if header[0] >> 4 != 6 {
        return None;
    }
    let address = |at: usize| <[u8; 16]>::try_from(&header[at..at + 16]).ok();
    Some((
        address(8)?.into(),
        address(24)?.into(),
        header[6],
        packet.get(40..44),
    ))
}

/// The action for frames of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FlowAction {
    /// Drop the frame.
    Drop,
    /// Send the frame unchanged on a link.
    Forward {
        /// The egress link's number.
        link: u32,
    },
    /// Send the frame as a router does: to the next hop's MAC address, with the
    /// TTL or hop limit decremented, without padding. Packets that need more
    /// than that go to the application: bad header, expiring TTL, IP options,
    /// longer than the MTU.
    Route {
        /// The egress link's number.
        link: u32,
        /// The router's MAC address on that link.
        src: Address,
        /// The next hop's MAC address.
        dst: Address,
        /// The link's MTU, in bytes.
        mtu: u32,
    },
    /// As [`FlowAction::Route`], and rewrites headers: for keys of the kind
    /// [`FlowKind::FiveTuple`] alone. TCP segments with SYN, FIN or RST go to
    /// the application.
    Rewrite(Rewrite),
    /// As [`FlowAction::Drop`], but TCP segments with SYN, FIN or RST go to the
    /// application: for keys of the kind [`FlowKind::FiveTuple`] alone.
    DropFlow,
}

/// The changes of [`FlowAction::Rewrite`] to a frame.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Rewrite {
    /// The egress link's number.
    pub link: u32,
    /// The destination MAC address of the frames: those to another go to the
    /// application.
    pub station: Address,
    /// The router's MAC address on the egress link.
    pub src: Address,
    /// The next hop's MAC address.
    pub dst: Address,
    /// The egress link's MTU, in bytes.
    pub mtu: u32,
    /// The new DSCP; ECN stays.
    pub dscp: Option<u8>,
    /// New addresses and ports.
    pub translation: Option<Translation>,
}

/// New IPv4 addresses and ports of a flow, and how its checksums change (RFC
/// 1624): the sum of `~m + m'` over all 16-bit words `m` that become `m'`,
/// folded.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Translation {
    /// Source address and port.
    pub src: (Ipv4Addr, u16),
    /// Destination address and port.
    pub dst: (Ipv4Addr, u16),
    /// The change of the IPv4 header's checksum.
    pub header: u16,
    /// The change of the checksum of TCP or UDP.
    pub transport: u16,
}

impl FlowAction {
    /// The egress link's number; `None` for [`FlowAction::Drop`].
    pub fn link(&self) -> Option<u32> {
        match *self {
            FlowAction::Drop | FlowAction::DropFlow => None,
            FlowAction::Forward { link }
            | FlowAction::Route { link, .. }
            | FlowAction::Rewrite(Rewrite { link, .. }) => Some(link),
        }
    }

    pub(super) fn encode(&self) -> [u8; ACTION] {
        let mut bytes = [0; ACTION];
        let mut put = |at: i16, value: &[u8]| {
            let at = at as usize;
            bytes[at..at + value.len()].copy_from_slice(value);
        };
        put(value::OUT, &self.link().unwrap_or_default().to_ne_bytes());
        let how = match *self {
            FlowAction::Drop => value::DROP,
            FlowAction::DropFlow => value::DROP_FLOW,
            FlowAction::Forward { .. } => value::FORWARD,
            FlowAction::Route { src, dst, mtu, .. } => {
                put(value::MTU, &mtu.to_ne_bytes());
                put(value::MACS, &dst.0);
                put(value::MACS + 6, &src.0);
                value::ROUTE
            }
            FlowAction::Rewrite(rewrite) => {
                put(value::MTU, &rewrite.mtu.to_ne_bytes());
                put(value::MACS, &rewrite.dst.0);
                put(value::MACS + 6, &rewrite.src.0);
                put(value::STATION, &rewrite.station.0);
                let dscp = rewrite.dscp.map(|dscp| dscp << 2);
                put(value::DSCP, &[dscp.unwrap_or(value::NO_DSCP as u8)]);
                if let Some(to) = &rewrite.translation {
                    put(value::TRANSLATES, &[1]);
                    put(value::ADDRESSES, &to.src.0.octets());
                    put(value::ADDRESSES + 4, &to.dst.0.octets());
                    put(value::PORTS, &to.src.1.to_be_bytes());
                    put(value::PORTS + 2, &to.dst.1.to_be_bytes());
                    put(value::HEADER, &u32::from(to.header).to_ne_bytes());
                    put(value::TRANSPORT, &u32::from(to.transport).to_ne_bytes());
                }
                value::REWRITE
            }
        };
        put(value::HOW, &how.to_ne_bytes());
        bytes
    }
}
