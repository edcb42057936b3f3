//! IP headers, and how one version's becomes the other's (RFC 7915 §4.1, §5.1).

use std::net::{Ipv4Addr, Ipv6Addr};
use weir_wire::ipv4::option;
use weir_wire::{Protocol, ipv4, ipv6};

/// Extension headers that are skipped, at most.
const EXTENSIONS_MAX: usize = 8;

/// Longest IPv4 packet without the flag DF, in bytes (RFC 7915 §5.1): translated once more, it fits the
/// smallest MTU of IPv6.
const UNFLAGGED_MAX: usize = 1260;

/// Longest payload of an IPv4 packet without options, in bytes.
const PAYLOAD_V4_MAX: usize = 65_535 - ipv4::Repr::LEN;

/// The fragment header of IPv6, or the fields of IPv4.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Fragment {
    pub(super) id: u32,
    pub(super) offset: usize,
    pub(super) more: bool,
}

/// An IP header, without options and other extension headers than that of fragments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Header<A> {
    pub(super) src: A,
    pub(super) dst: A,
    pub(super) class: u8,
    pub(super) hops: u8,
    pub(super) protocol: Protocol,
    /// Of IPv6, the fragment header if there is one, also in a packet that is whole; of IPv4, `None`
    /// of a whole packet.
    pub(super) fragment: Option<Fragment>,
    /// The identification of IPv4.
    pub(super) id: u16,
    /// The flag DF of IPv4.
    pub(super) dont_fragment: bool,
    /// The offset of the payload in the packet.
    pub(super) at: usize,
    /// The payload's length by the header, in bytes: a quoted packet may have less.
    pub(super) len: usize,
}

/// Why a header is not translated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fault {
    Malformed,
    /// A routing header with segments left; the offset of their number.
    SegmentsLeft(usize),
    /// Too many extension headers, or one in the fragmented part: its length would be missing in the
    /// offsets of the fragments.
    Extension,
}

impl<A> Header<A> {
    /// The part of a packet that it is; `None` of a whole one.
    pub(super) fn part(&self) -> Option<Fragment> {
        self.fragment.filter(|it| it.more || it.offset > 0)
    }

    /// The payload of the packet that has this header; `None` if it is cut short.
    pub(super) fn payload<'p>(&self, packet: &'p [u8]) -> Option<&'p [u8]> {
        packet.get(self.at..self.at + self.len)
    }

    /// As [`payload`](Self::payload), as far as it is there.
    pub(super) fn quoted_payload<'p>(&self, packet: &'p [u8]) -> &'p [u8] {
        let end = (self.at + self.len).min(packet.len());
        packet.get(self.at..end).unwrap_or_default()
    }
}

/// The header of an IPv6 packet, behind which the packet may be cut short.
pub(super) fn v6(packet: &[u8]) -> Result<Header<Ipv6Addr>, Fault> {
    let view = ipv6::Packet::new(packet).map_err(|_| Fault::Malformed)?;
    let fixed = ipv6::Repr::parse(&view);
    let mut header = Header {
        src: fixed.src,
        dst: fixed.dst,
        class: fixed.traffic_class,
        hops: fixed.hop_limit,
        protocol: fixed.next_header,
        fragment: None,
        id: 0,
        dont_fragment: false,
        at: ipv6::Repr::LEN,
        len: fixed.payload_len,
    };
    for _ in 0..=EXTENSIONS_MAX {
        let rest = packet.get(header.at..).unwrap_or_default();
        let skipped = match header.protocol {
            Protocol::IPV6_FRAGMENT if header.fragment.is_none() => {
                let read = ipv6::FragmentRepr::parse(rest).map_err(|_| Fault::Malformed)?;
                header.fragment = Some(Fragment {
                    id: read.identification,
                    offset: read.offset,
                    more: read.more,
                });
                header.protocol = read.next_header;
                ipv6::FragmentRepr::LEN
            }
            Protocol::IPV6_HOP_BY_HOP | Protocol::IPV6_ROUTING | Protocol::IPV6_DESTINATION => {
                let [next, units, _, left, ..] = rest else {
                    return Err(Fault::Malformed);
                };
                if header.part().is_some() {
                    return Err(Fault::Extension);
                }
                if header.protocol == Protocol::IPV6_ROUTING && *left > 0 {
                    return Err(Fault::SegmentsLeft(header.at + 3));
                }
                header.protocol = Protocol(*next);
                8 + usize::from(*units) * 8
            }
            _ => return Ok(header),
        };
        header.at += skipped;
        header.len = header.len.checked_sub(skipped).ok_or(Fault::Malformed)?;
    }
    Err(Fault::Extension)
}

/// The header of an IPv4 packet, behind which the packet may be cut short.
pub(super) fn v4(packet: &[u8]) -> Result<Header<Ipv4Addr>, Fault> {
    let view = ipv4::Packet::new(packet).map_err(|_| Fault::Malformed)?;
    let (offset, more) = (view.fragment_offset(), view.more_fragments());
    let id = view.identification();
    Ok(Header {
        src: view.src(),
        dst: view.dst(),
        class: view.traffic_class(),
        hops: view.ttl(),
        protocol: view.protocol(),
        fragment: (more || offset > 0).then_some(Fragment {
            id: id.into(),
            offset,
            more,
        }),
        id,
        dont_fragment: view.dont_fragment(),
        at: view.header_len(),
        len: view.total_len() - view.header_len(),
    })
}

/// Whether a packet has a source route that has not ended (RFC 7915 §4.1).
pub(super) fn has_source_route(packet: &[u8]) -> bool {
    let options = ipv4::Packet::new(packet).map_or(&[][..], |packet| packet.options());
    ipv4::Options::new(options).flatten().any(|(_, option)| {
        let is_route = matches!(
            option[0],
            option::LOOSE_SOURCE_ROUTE | option::STRICT_SOURCE_ROUTE
        );
        // The pointer counts from 1, and leads behind the option at the end.
        is_route
            && option
                .get(2)
                .is_some_and(|at| usize::from(*at) <= option.len())
    })
}

/// The protocol in the other version of IP.
pub(super) fn other(protocol: Protocol) -> Protocol {
    match protocol {
        Protocol::ICMPV6 => Protocol::ICMPV4,
        Protocol::ICMPV4 => Protocol::ICMPV6,
        same => same,
    }
}

impl Header<Ipv6Addr> {
    /// The header in IPv4, between these addresses. `id` identifies a packet that may be fragmented on
    /// its way, and has no number of its own.
    pub(super) fn to_v4(self, (src, dst): (Ipv4Addr, Ipv4Addr), id: u16) -> Header<Ipv4Addr> {
        let is_long = ipv4::Repr::LEN + self.len > UNFLAGGED_MAX;
        let dont_fragment = self.fragment.is_none() && is_long;
        Header {
            src,
            dst,
            class: self.class,
            hops: self.hops,
            protocol: other(self.protocol),
            fragment: self.part(),
            id: match self.fragment {
                Some(fragment) => fragment.id as u16,
                None if dont_fragment => 0,
                None => id,
            },
            dont_fragment,
            at: ipv4::Repr::LEN,
            len: self.len,
        }
    }

    /// The packet with this payload; `None` if its lengths fit no packet.
    pub(super) fn emit(&self, payload: &[u8]) -> Option<Vec<u8>> {
        let fragment = match self.fragment {
            Some(_) => ipv6::FragmentRepr::LEN,
            None => 0,
        };
        let payload_len = fragment + self.len;
        if payload_len > 65_535 {
            return None;
        }
        let start = ipv6::Repr::LEN + fragment;
        let mut packet = vec![0; start + payload.len()];
        let fixed = ipv6::Repr {
            src: self.src,
            dst: self.dst,
            next_header: match self.fragment {
                Some(_) => Protocol::IPV6_FRAGMENT,
                None => self.protocol,
            },
            hop_limit: self.hops,
            traffic_class: self.class,
            flow_label: 0,
            payload_len,
        };
        fixed.emit(&mut packet);
        if let Some(fragment) = self.fragment {
            let header = ipv6::FragmentRepr {
                next_header: self.protocol,
                offset: fragment.offset,
                more: fragment.more,
                identification: fragment.id,
            };
            header.emit(&mut packet[ipv6::Repr::LEN..]);
        }
        packet[start..].copy_from_slice(payload);
        Some(packet)
    }

    /// The packet with this whole payload in packets of up to `mtu` bytes; `None` if its lengths fit no
    /// packet. `id` identifies the fragments.
    pub(super) fn emit_fragments(
        &self,
        payload: &[u8],
        mtu: usize,
        id: u32,
    ) -> Option<Vec<Vec<u8>>> {
        let fragment = self.fragment.unwrap_or(Fragment {
            id,
            offset: 0,
            more: false,
        });
        let headers = ipv6::Repr::LEN + ipv6::FragmentRepr::LEN;
        let step = mtu.saturating_sub(headers).max(8) & !7;
        let count = payload.len().div_ceil(step);
        let pieces = payload.chunks(step).enumerate().map(|(number, piece)| {
            let part = Fragment {
                offset: fragment.offset + number * step,
                more: fragment.more || number + 1 < count,
                ..fragment
            };
            let header = Header {
                fragment: Some(part),
                len: piece.len(),
                ..*self
            };
            header.emit(piece)
        });
        pieces.collect()
    }
}

impl Header<Ipv4Addr> {
    /// The header in IPv6, between these addresses.
    pub(super) fn to_v6(self, (src, dst): (Ipv6Addr, Ipv6Addr)) -> Header<Ipv6Addr> {
        Header {
            src,
            dst,
            class: self.class,
            hops: self.hops,
            protocol: other(self.protocol),
            fragment: self.fragment,
            id: self.id,
            dont_fragment: self.dont_fragment,
            at: ipv6::Repr::LEN,
            len: self.len,
        }
    }

    /// Whether the fragment ends behind the longest packet.
    pub(super) fn is_beyond(&self) -> bool {
        let offset = self.fragment.map_or(0, |fragment| fragment.offset);
        offset + self.len > PAYLOAD_V4_MAX
    }

    /// The packet with this payload; `None` if it is too long for IPv4.
    pub(super) fn emit(&self, payload: &[u8]) -> Option<Vec<u8>> {
        if self.len > PAYLOAD_V4_MAX {
            return None;
        }
        let mut packet = vec![0; ipv4::Repr::LEN + payload.len()];
        let header = ipv4::Repr {
            src: self.src,
            dst: self.dst,
            protocol: self.protocol,
            ttl: self.hops,
            traffic_class: self.class,
            identification: self.id,
            dont_fragment: self.dont_fragment,
            payload_len: self.len,
        };
        let (offset, more) = self
            .fragment
            .map_or((0, false), |fragment| (fragment.offset, fragment.more));
        header.emit_fragment(&mut packet, offset, more);
        packet[ipv4::Repr::LEN..].copy_from_slice(payload);
        Some(packet)
    }
}
