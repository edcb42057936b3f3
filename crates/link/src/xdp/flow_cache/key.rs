//! What frames an entry is for, and what becomes of them.
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

use std::net::IpAddr;
use weir_wire::ethernet::Address;

/// Bytes of the two sizes of keys.
pub(super) const SHORT: usize = 16;
pub(super) const LONG: usize = 40;

/// Bytes of an entry's value.
pub(super) const VALUE: usize = 32;

/// Offsets in a value.
pub(super) mod value {
    pub(crate) const SLOT: i16 = 0;
    pub(crate) const OUT: i16 = 4;
    pub(crate) const HOW: i16 = 8;
    pub(crate) const MTU: i16 = 12;
    pub(crate) const MACS: i16 = 16;
    /// Numbers of what is done.
    pub(crate) const DROP: i32 = 0;
    pub(crate) const FORWARD: i32 = 1;
    pub(crate) const ROUTE: i32 = 2;
}

/// What frames are alike in.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FlowKind {
    /// The stations that send and receive, and the VLAN: for a bridge.
    MacPair,
    /// The IP addresses that send and receive, in frames to one station: for a
    /// router.
    IpPair,
    /// Addresses, protocol and ports of TCP or UDP.
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

/// Frames that come in at one link and are alike.
///
/// All fields that decide are in the key: a frame that differs in any of them
/// is another key's, and comes to the application.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum FlowKey {
    /// Between two stations. The sender is part of it, so that one that was
    /// not heard there yet, or has moved, is seen by the application.
    MacPair {
        /// The link they come in at.
        link: u32,
        /// The VLAN, 0 without a tag.
        vlan: u16,
        /// Who sends.
        src: Address,
        /// To whom.
        dst: Address,
    },
    /// Between two hosts, sent to that station; both addresses of one family.
    IpPair {
        /// The link they come in at.
        link: u32,
        /// Whose frames they are: the router's station.
        station: Address,
        /// Who sends.
        src: IpAddr,
        /// To whom.
        dst: IpAddr,
    },
    /// Of a flow of TCP or UDP; both addresses of one family. Later fragments,
    /// and packets with IP options or extension headers, are none of it.
    FiveTuple {
        /// The link they come in at.
        link: u32,
        /// 6 or 17.
        protocol: u8,
        /// Who sends, from which port.
        src: (IpAddr, u16),
        /// To whom.
        dst: (IpAddr, u16),
    },
}

/// A key as the kernel's tables have it.
pub(super) enum Encoded {
    Short([u8; SHORT]),
    Long([u8; LONG]),
}

impl FlowKey {
    /// The key of a frame of an Ethernet link; `None` if it has none of that
    /// kind. It is what the kernel finds in the frame.
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
        let packet = &frame[14..];
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

    /// The link that its frames come in at.
    pub fn link(&self) -> u32 {
        match *self {
            FlowKey::MacPair { link, .. }
            | FlowKey::IpPair { link, .. }
            | FlowKey::FiveTuple { link, .. } => link,
        }
    }

    /// What its frames are alike in.
    pub fn kind(&self) -> FlowKind {
        match self {
            FlowKey::MacPair { .. } => FlowKind::MacPair,
            FlowKey::IpPair { .. } => FlowKind::IpPair,
            FlowKey::FiveTuple { .. } => FlowKind::FiveTuple,
        }
    }

    /// As the kernel's tables have it; `None` for addresses of two families.
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
                let rest = [&from[..], &to, &[protocol, 0], &end];
                match (src.0, dst.0) {
                    (IpAddr::V4(src), IpAddr::V4(dst)) => {
                        Some(short(&[&src.octets(), &dst.octets(), &rest.concat()]))
                    }
                    (IpAddr::V6(src), IpAddr::V6(dst)) => {
                        Some(long(&[&src.octets(), &dst.octets(), &rest.concat()]))
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
    let bytes = parts.concat();
    *bytes
        .first_chunk()
        .expect("the parts of a key are its size")
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

/// What becomes of the frames of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FlowAction {
    /// None goes on.
    Drop,
    /// They go out at that link as they are.
    Forward {
        /// The link's number.
        link: u32,
    },
    /// They go on as a router sends them: to the next station, the TTL or hop
    /// limit one less, without padding. Those that a router does not simply
    /// hand on come to the application: a bad header, the last hop, IP
    /// options, longer than the MTU.
    Route {
        /// The link's number.
        link: u32,
        /// The router's station on that link.
        src: Address,
        /// The next station.
        dst: Address,
        /// Bytes of the longest packet there.
        mtu: u32,
    },
}

impl FlowAction {
    /// The link that frames go out at.
    pub fn link(&self) -> Option<u32> {
        match *self {
            FlowAction::Drop => None,
            FlowAction::Forward { link } | FlowAction::Route { link, .. } => Some(link),
        }
    }

    pub(super) fn encode(&self, slot: u32) -> [u8; VALUE] {
        let mut bytes = [0; VALUE];
        let mut put = |at: i16, value: &[u8]| {
            let at = at as usize;
            bytes[at..at + value.len()].copy_from_slice(value);
        };
        put(value::SLOT, &slot.to_ne_bytes());
        put(value::OUT, &self.link().unwrap_or_default().to_ne_bytes());
        let how = match *self {
            FlowAction::Drop => value::DROP,
            FlowAction::Forward { .. } => value::FORWARD,
            FlowAction::Route { src, dst, mtu, .. } => {
                put(value::MTU, &mtu.to_ne_bytes());
                put(value::MACS, &dst.0);
                put(value::MACS + 6, &src.0);
                value::ROUTE
            }
        };
        put(value::HOW, &how.to_ne_bytes());
        bytes
    }
}
