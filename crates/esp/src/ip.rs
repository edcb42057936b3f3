//! The headers of IP packets as policies and tunnels need them.

use std::net::IpAddr;
use weir_wire::checksum::internet_checksum;
use weir_wire::field::{read_u16, write};
use weir_wire::{Protocol, ipv4, ipv6};

/// ESP's protocol number.
pub(crate) const ESP: Protocol = Protocol(50);

/// Extension headers that are skipped, at most.
const EXTENSIONS_MAX: usize = 8;

/// A checked IP packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Headers {
    pub(crate) is_v6: bool,
    pub(crate) src: IpAddr,
    pub(crate) dst: IpAddr,
    /// The first header that is no extension header skipped here.
    pub(crate) protocol: Protocol,
    /// Where that header begins.
    pub(crate) payload: usize,
    /// Length of the packet: padding is behind it.
    pub(crate) len: usize,
    pub(crate) traffic_class: u8,
    pub(crate) fragment: Option<Fragment>,
    /// IPv4's DF; always of IPv6.
    pub(crate) dont_fragment: bool,
}

/// The place of a fragment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Fragment {
    pub(crate) id: u32,
    pub(crate) is_first: bool,
    /// Offset of its data in the whole, in bytes.
    pub(crate) offset: usize,
    /// Whether it is not the last one.
    pub(crate) more: bool,
    /// Where its data begins in the packet.
    pub(crate) data: usize,
    /// Of IPv6: where the fragment header is, and the byte that says so.
    pub(crate) header: usize,
    pub(crate) named_at: usize,
}

impl Headers {
    /// The headers of a packet; `None` if it is no whole IP packet.
    pub(crate) fn of(packet: &[u8]) -> Option<Headers> {
        match packet.first()? >> 4 {
            4 => Headers::v4(packet),
            6 => Headers::v6(packet),
            _ => None,
        }
    }

    fn v4(packet: &[u8]) -> Option<Headers> {
        let view = ipv4::Packet::new(packet).ok()?;
        let (header, len) = (view.header_len(), view.total_len());
        if len < header || len > packet.len() {
            return None;
        }
        let offset = view.fragment_offset();
        let is_fragment = offset > 0 || view.more_fragments();
        Some(Headers {
            is_v6: false,
            src: view.src().into(),
            dst: view.dst().into(),
            protocol: view.protocol(),
            payload: header,
            len,
            traffic_class: view.traffic_class(),
            fragment: is_fragment.then(|| Fragment {
                id: view.identification().into(),
                is_first: offset == 0,
                offset,
                more: view.more_fragments(),
                data: header,
                header: 0,
                named_at: 0,
            }),
            dont_fragment: view.dont_fragment(),
        })
    }

    fn v6(packet: &[u8]) -> Option<Headers> {
        let view = ipv6::Packet::new(packet).ok()?;
        let len = ipv6::Repr::LEN + view.payload_len();
        if len > packet.len() {
            return None;
        }
        let mut headers = Headers {
            is_v6: true,
            src: view.src().into(),
            dst: view.dst().into(),
            protocol: view.next_header(),
            payload: ipv6::Repr::LEN,
            len,
            traffic_class: packet[0] << 4 | packet[1] >> 4,
            fragment: None,
            dont_fragment: true,
        };
        headers.skip_extensions(&packet[..len])?;
        Some(headers)
    }

    fn skip_extensions(&mut self, packet: &[u8]) -> Option<()> {
        let mut named_at = 6;
        for _ in 0..EXTENSIONS_MAX {
            let at = self.payload;
            let len = match self.protocol {
                Protocol::IPV6_HOP_BY_HOP | Protocol::IPV6_ROUTING | Protocol::IPV6_DESTINATION => {
                    8 + usize::from(*packet.get(at + 1)?) * 8
                }
                Protocol::IPV6_FRAGMENT => {
                    let header = ipv6::FragmentRepr::parse(packet.get(at..)?).ok()?;
                    self.fragment = Some(Fragment {
                        id: header.identification,
                        is_first: header.offset == 0,
                        offset: header.offset,
                        more: header.more,
                        data: at + ipv6::FragmentRepr::LEN,
                        header: at,
                        named_at,
                    });
                    8
                }
                _ => return Some(()),
            };
            self.protocol = Protocol(*packet.get(at)?);
            self.payload = at + len;
            named_at = at;
            if self.payload > packet.len() {
                return None;
            }
            if self.fragment.is_some_and(|fragment| !fragment.is_first) {
                return Some(());
            }
        }
        None
    }

    /// Whether this is neighbour or router discovery, which never leaves its
    /// link (RFC 4861): types 133 to 137 with hop limit 255.
    pub(crate) fn is_discovery(&self, packet: &[u8]) -> bool {
        self.is_v6
            && self.protocol == Protocol::ICMPV6
            && self.payload == ipv6::Repr::LEN
            && packet[7] == 255
            && matches!(packet.get(self.payload), Some(133..=137))
    }

    /// The payload behind the last header that was skipped.
    pub(crate) fn payload<'p>(&self, packet: &'p [u8]) -> &'p [u8] {
        &packet[self.payload..self.len]
    }
}

/// Exchanges source and destination, addresses and transport ports, so that a
/// policy, which is written for what leaves, judges what enters. Checksums
/// remain right.
pub(crate) fn exchange(headers: &Headers, packet: &mut [u8]) {
    let (at, len) = if headers.is_v6 { (8, 16) } else { (12, 4) };
    let (source, destination) = packet[at..at + 2 * len].split_at_mut(len);
    source.swap_with_slice(destination);
    let has_ports = matches!(headers.protocol, Protocol::TCP | Protocol::UDP)
        || matches!(headers.protocol.0, 132 | 136);
    let is_first = headers.fragment.is_none_or(|fragment| fragment.is_first);
    if let (true, true, Some([s0, s1, d0, d1])) = (
        has_ports,
        is_first,
        packet[headers.payload..headers.len].first_chunk_mut::<4>(),
    ) {
        std::mem::swap(s0, d0);
        std::mem::swap(s1, d1);
    }
}

/// Sets the two bits of ECN (RFC 3168).
pub(crate) fn set_ecn(packet: &mut [u8], ecn: u8) {
    if packet[0] >> 4 == 6 {
        packet[1] = packet[1] & !0x30 | ecn << 4;
    } else {
        packet[1] = packet[1] & !3 | ecn;
        refresh(packet);
    }
}

/// Writes the checksum of an IPv4 header anew.
pub(crate) fn refresh(packet: &mut [u8]) {
    let header = usize::from(packet[0] & 0xf) * 4;
    write(packet, 10, &[0, 0]);
    let checksum = internet_checksum(&packet[..header]);
    write(packet, 10, &checksum.to_be_bytes());
}

/// Writes protocol and length of a packet whose payload was exchanged.
pub(crate) fn state_payload(packet: &mut [u8], protocol: Protocol) {
    let len = packet.len();
    if packet[0] >> 4 == 4 {
        packet[9] = protocol.0;
        write(packet, 2, &(len.min(0xffff) as u16).to_be_bytes());
        refresh(packet);
        return;
    }
    let payload = len - 40;
    write(packet, 4, &(payload.min(0xffff) as u16).to_be_bytes());
    // The last extension header before the payload names it.
    let (mut at, mut next) = (6, 40);
    while let 0 | 43 | 60 = packet[at]
        && next + 2 <= packet.len()
    {
        at = next;
        next += 8 + usize::from(packet[next + 1]) * 8;
    }
    packet[at] = protocol.0;
}

/// Cuts an IPv4 packet into fragments of at most `mtu` bytes each (RFC 791
/// §3.2). Options are copied to the first one, and to the others if their copy
/// bit says so; no fragment if `mtu` has no room for eight bytes.
pub(crate) fn fragments(packet: &[u8], headers: &Headers, mtu: usize) -> Vec<Vec<u8>> {
    let first_header = &packet[..headers.payload];
    let later_header = header_of_later(first_header);
    let payload = headers.payload(packet);
    let field = read_u16(packet, 6);
    let (begin, more_follow) = (usize::from(field & 0x1fff) * 8, field & 0x2000 != 0);
    let mut made = Vec::new();
    let mut at = 0;
    while at < payload.len() {
        let header = if at == 0 { first_header } else { &later_header };
        let room = mtu.saturating_sub(header.len()) & !7;
        if room == 0 {
            return Vec::new();
        }
        let end = payload.len().min(at + room);
        let more = end < payload.len() || more_follow;
        let mut fragment = Vec::with_capacity(header.len() + end - at);
        fragment.extend_from_slice(header);
        fragment.extend_from_slice(&payload[at..end]);
        let len = fragment.len() as u16;
        write(&mut fragment, 2, &len.to_be_bytes());
        let place = ((begin + at) / 8) as u16 | u16::from(more) << 13;
        write(&mut fragment, 6, &place.to_be_bytes());
        refresh(&mut fragment);
        made.push(fragment);
        at = end;
    }
    made
}

fn header_of_later(header: &[u8]) -> Vec<u8> {
    let mut made = header[..ipv4::Repr::LEN].to_vec();
    let mut options = &header[ipv4::Repr::LEN..];
    while let [kind, rest @ ..] = options {
        let len = match kind {
            0 => break,
            1 => 1,
            _ => match rest.first() {
                Some(&len) if (2..=options.len()).contains(&usize::from(len)) => len.into(),
                _ => break,
            },
        };
        if kind & 0x80 != 0 {
            made.extend_from_slice(&options[..len]);
        }
        options = &options[len..];
    }
    while !made.len().is_multiple_of(4) {
        made.push(0);
    }
    made[0] = 0x40 | (made.len() / 4) as u8;
    made
}
