//! The header filter of Biersack and Rütsche, "Demultiplexing on the ATM Adapter" (1996), §3.2
//! and figure 4: the expected IP and transport headers of a connection's next packet, with a
//! mask of the bits that count. A packet that the filter accepts takes the fast path; any other
//! takes the standard path, which arms the filter anew.
//!
//! ```text
//! IPv4  45 ·· len ─ │ id ── ¬DF frag │ ttl 06 sum ─ │ source ──── │ destination │
//!       ████        │       ████████ │     ██       │ ███████████ │ ███████████ │
//! TCP   ports ───── │ seq ────────── │ ack ──────── │ off flg wnd │ sum ─ urg ─ │ 01 01 08 0a
//!       ███████████ │                │              │ ██  ¬PF     │             │ ███████████
//! ```
//!
//! Changes since the paper: the DF bit is masked, since routers may fragment or not. An
//! ECN-capable packet passes, and a marked one does not (RFC 3168), which a mask cannot express
//! and a separate test decides. With timestamps, their usual layout is part of the filter
//! (RFC 7323, appendix A), and the fast path tests PAWS, lengths, sequence numbers and checksums.
//!
//! The paper's filter includes the window, and a changed window costs a visit of the standard
//! path. Receivers now change the window with nearly every acknowledgment: in a bulk transfer to
//! Linux only 4 % of the segments would pass. Therefore the window does not count, and the fast
//! path processes it. FIN does not count either: of a short connection all segments but the
//! first two pass.

use std::net::{IpAddr, SocketAddr};
use std::ops::BitOr;
use weir_wire::checksum::Sum;

/// Number of words of the longest filter: IPv6, TCP and the layout of its options.
const WORDS: usize = 8;
const BYTES: usize = 8 * WORDS;

/// A header filter: expected headers and their mask.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct HeaderFilter {
    value: [u64; WORDS],
    /// How many of the words count; none of a filter that is not armed.
    words: u8,
    v6: bool,
    layout: Layout,
}

/// The layout that the filter expects after the IP header.
#[derive(Clone, Copy, Default, Debug)]
enum Layout {
    #[default]
    Udp,
    /// TCP without options.
    TcpPlain,
    /// TCP with timestamps.
    TcpTimestamps,
}

/// Offset of the transport header.
const fn transport(v6: bool) -> usize {
    if v6 { 40 } else { 20 }
}

const fn set(bytes: &mut [u8; BYTES], mut from: usize, to: usize) {
    while from < to {
        bytes[from] = 0xff;
        from += 1;
    }
}

const fn words(bytes: &[u8; BYTES]) -> [u64; WORDS] {
    let mut words = [0; WORDS];
    let mut at = 0;
    while at < WORDS {
        let mut word = [0; 8];
        let mut byte = 0;
        while byte < 8 {
            word[byte] = bytes[8 * at + byte];
            byte += 1;
        }
        words[at] = u64::from_ne_bytes(word);
        at += 1;
    }
    words
}

/// The mask of the bits that count.
const fn mask(v6: bool, layout: Layout) -> [u64; WORDS] {
    let mut bytes = [0; BYTES];
    if v6 {
        bytes[0] = 0xf0;
        bytes[6] = 0xff;
        set(&mut bytes, 8, 40);
    } else {
        bytes[0] = 0xff;
        bytes[6] = 0xbf;
        bytes[7] = 0xff;
        bytes[9] = 0xff;
        set(&mut bytes, 12, 20);
    }
    let tcp = transport(v6);
    set(&mut bytes, tcp, tcp + 4);
    if !matches!(layout, Layout::Udp) {
        bytes[tcp + 12] = 0xff;
        // All flags but PSH and FIN.
        bytes[tcp + 13] = 0xf6;
    }
    if matches!(layout, Layout::TcpTimestamps) {
        set(&mut bytes, tcp + 20, tcp + 24);
    }
    words(&bytes)
}

const fn masks(v6: bool) -> [[u64; WORDS]; 3] {
    [
        mask(v6, Layout::Udp),
        mask(v6, Layout::TcpPlain),
        mask(v6, Layout::TcpTimestamps),
    ]
}

/// The masks by IP version and layout.
const MASKS: [[[u64; WORDS]; 3]; 2] = [masks(false), masks(true)];

const ACK: u8 = 0x10;

impl HeaderFilter {
    /// Sets the words of the IP header and the transport ports of packets from
    /// `remote` to `local`, and clears the others.
    #[inline]
    fn start(&mut self, remote: &SocketAddr, local: &SocketAddr, protocol: u8) {
        let word = u64::from_ne_bytes;
        let [a, b] = remote.port().to_be_bytes();
        let [c, d] = local.port().to_be_bytes();
        let value = &mut self.value;
        *value = [0; WORDS];
        match (remote.ip(), local.ip()) {
            (IpAddr::V4(remote), IpAddr::V4(local)) => {
                let ([e, f, g, h], [i, j, k, l]) = (remote.octets(), local.octets());
                value[0] = word([0x45, 0, 0, 0, 0, 0, 0, 0]);
                value[1] = word([0, protocol, 0, 0, e, f, g, h]);
                value[2] = word([i, j, k, l, a, b, c, d]);
            }
            (IpAddr::V6(remote), IpAddr::V6(local)) => {
                value[0] = word([0x60, 0, 0, 0, 0, 0, protocol, 0]);
                let ends = [remote.octets(), local.octets()];
                for (place, half) in value[1..5]
                    .iter_mut()
                    .zip(ends.as_flattened().as_chunks().0)
                {
                    *place = word(*half);
                }
                value[5] = word([a, b, c, d, 0, 0, 0, 0]);
            }
            _ => unreachable!("both ends are of one version"),
        }
    }

    /// Makes it one for segments of an open connection, with timestamps or without
    /// any option; where it stays, as what was just written is not moved well.
    pub(crate) fn arm_tcp(&mut self, remote: &SocketAddr, local: &SocketAddr, timestamps: bool) {
        let word = u64::from_ne_bytes;
        self.start(remote, local, 6);
        let value = &mut self.value;
        let v6 = local.is_ipv6();
        let offset = if timestamps { 0x80 } else { 0x50 };
        if v6 {
            value[6] = word([0, 0, 0, 0, offset, ACK, 0, 0]);
        } else {
            value[4] = word([offset, ACK, 0, 0, 0, 0, 0, 0]);
        }
        // Without options, what follows the checksum does not count.
        let words_without = if v6 { 7 } else { 5 };
        if timestamps {
            value[words_without] = if v6 {
                word([0, 0, 0, 0, 1, 1, 8, 10])
            } else {
                word([1, 1, 8, 10, 0, 0, 0, 0])
            };
        }
        self.words = words_without as u8 + u8::from(timestamps);
        self.v6 = v6;
        self.layout = if timestamps {
            Layout::TcpTimestamps
        } else {
            Layout::TcpPlain
        };
    }

    /// For datagrams from a connected socket's peer.
    pub(crate) fn udp(remote: SocketAddr, local: SocketAddr) -> HeaderFilter {
        let v6 = local.is_ipv6();
        let mut filter = HeaderFilter {
            value: [0; WORDS],
            words: if v6 { 6 } else { 3 },
            v6,
            layout: Layout::Udp,
        };
        filter.start(&remote, &local, 17);
        filter
    }

    /// Expects nothing any more.
    pub(crate) fn disarm(&mut self) {
        self.words = 0;
    }

    /// Whether it expects anything.
    pub(crate) fn is_armed(&self) -> bool {
        self.words > 0
    }

    /// Whether a packet is as expected.
    #[inline(always)]
    pub(crate) fn accepts(&self, packet: &[u8]) -> bool {
        let (header, _) = packet.as_chunks::<8>();
        let count = usize::from(self.words);
        if count == 0 || header.len() < count {
            return false;
        }
        let mask = &MASKS[usize::from(self.v6)][self.layout as usize];
        let differs = |(word, (value, mask)): (&[u8; 8], (&u64, &u64))| {
            (u64::from_ne_bytes(*word) ^ value) & mask
        };
        let expected = self.value.iter().zip(mask);
        let differs = match header.first_chunk::<WORDS>() {
            // Words that do not count are masked; without a count there is no loop.
            Some(header) => header
                .iter()
                .zip(expected)
                .map(differs)
                .fold(0, BitOr::bitor),
            None => header[..count]
                .iter()
                .zip(expected)
                .map(differs)
                .fold(0, BitOr::bitor),
        };
        let traffic_class = if self.v6 { packet[1] >> 4 } else { packet[1] };
        differs == 0 && traffic_class & 3 != 3
    }
}

/// Start and end of a packet's transport segment, by its headers.
#[inline]
fn ends(packet: &[u8]) -> (usize, usize) {
    let half = |at: usize| usize::from(u16::from_be_bytes([packet[at], packet[at + 1]]));
    match packet[0] >> 4 {
        4 => (transport(false), half(2)),
        _ => (transport(true), transport(true) + half(4)),
    }
}

/// The parts of an IP packet without options or extension headers, whose headers a filter has
/// accepted.
pub(crate) struct ParsedPacket<'a> {
    /// The transport header and what follows.
    pub(crate) transport: &'a [u8],
    ip: &'a [u8],
}

impl<'a> ParsedPacket<'a> {
    /// Takes a packet apart, padding behind it left out; `None` if its length
    /// is wrong.
    #[inline]
    pub(crate) fn of(packet: &'a [u8]) -> Option<ParsedPacket<'a>> {
        let (start, end) = ends(packet);
        (start <= end && end <= packet.len()).then(|| ParsedPacket {
            transport: &packet[start..end],
            ip: &packet[..start],
        })
    }

    /// As [`ParsedPacket::of`], of the headers alone: the transport payload, of this many
    /// bytes, lies elsewhere, without padding.
    #[inline]
    pub(crate) fn of_head(head: &'a [u8], payload_len: usize) -> Option<ParsedPacket<'a>> {
        let (start, end) = ends(head);
        let (ip, transport) = head.split_at_checked(start)?;
        (end == head.len() + payload_len).then_some(ParsedPacket { transport, ip })
    }

    /// Whether the IP header's checksum is right, if it has one.
    #[inline]
    pub(crate) fn header_is_right(&self) -> bool {
        match self.ip.as_chunks::<4>().0.as_array::<5>() {
            Some(header) => Sum::new().words(header).finish() == 0,
            None => self.ip.len() == transport(true),
        }
    }

    /// The hop limit (TTL) and the traffic class.
    pub(crate) fn hop_limit_and_class(&self) -> (u8, u8) {
        let ip = self.ip;
        if ip[0] >> 4 == 6 {
            (ip[7], ip[0] << 4 | ip[1] >> 4)
        } else {
            (ip[8], ip[1])
        }
    }

    /// The sum of the pseudo-header.
    #[inline]
    pub(crate) fn pseudo(&self, protocol: u8) -> Sum {
        let len = self.transport.len() as u16;
        let sum = Sum::new().word(len).word(protocol.into());
        match self.ip.as_chunks::<4>().0 {
            [_, _, _, src, dst] => sum.words(&[*src, *dst]),
            _ => sum.bytes(&self.ip[8..40]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_wire::tcp::{Flags, Options, Repr};
    use weir_wire::{AddrPair, Protocol, ipv4, ipv6};

    fn ends(v6: bool) -> (SocketAddr, SocketAddr) {
        let pair = if v6 {
            ("[2001:db8::2]:80", "[2001:db8::1]:4000")
        } else {
            ("192.0.2.2:80", "192.0.2.1:4000")
        };
        (pair.0.parse().unwrap(), pair.1.parse().unwrap())
    }

    fn packet(v6: bool, traffic_class: u8, dont_fragment: bool, tcp: Repr) -> Vec<u8> {
        let (remote, local) = ends(v6);
        let addresses = AddrPair::new(remote.ip(), local.ip()).unwrap();
        let payload_len = tcp.header_len() + 3;
        let mut bytes = vec![0; transport(v6) + payload_len];
        match addresses {
            AddrPair::V4(src, dst) => ipv4::Repr {
                src,
                dst,
                protocol: Protocol::TCP,
                ttl: 9,
                traffic_class,
                identification: 77,
                dont_fragment,
                payload_len,
            }
            .emit(&mut bytes),
            AddrPair::V6(src, dst) => ipv6::Repr {
                src,
                dst,
                next_header: Protocol::TCP,
                hop_limit: 9,
                traffic_class,
                flow_label: 0x12345,
                payload_len,
            }
            .emit(&mut bytes),
        }
        tcp.emit(&mut bytes[transport(v6)..], addresses);
        bytes
    }

    /// The fields that the paper's figure 4 checks, and those to check today.
    #[test]
    fn filters_accept_what_is_expected_and_nothing_else() {
        for (v6, timed) in [(false, false), (false, true), (true, false), (true, true)] {
            let (remote, local) = ends(v6);
            let mut filter = HeaderFilter::default();
            filter.arm_tcp(&remote, &local, timed);
            let tcp = Repr {
                src_port: 80,
                dst_port: 4000,
                seq: 5,
                ack: 6,
                flags: Flags::ACK,
                window: 500,
                urgent: 0,
                options: Options {
                    timestamps: timed.then_some((7, 8)),
                    ..Options::default()
                },
            };
            let with = |change: fn(&mut Repr)| {
                let mut tcp = tcp;
                change(&mut tcp);
                packet(v6, 0, true, tcp)
            };
            for fine in [
                packet(v6, 0, true, tcp),
                packet(v6, 0, false, tcp),
                packet(v6, 2, true, tcp),
                packet(v6, 1, true, tcp),
                packet(v6, 0xb8, true, tcp),
                with(|tcp| tcp.flags = Flags::ACK | Flags::PSH),
                with(|tcp| tcp.flags = Flags::ACK | Flags::FIN),
                with(|tcp| (tcp.seq, tcp.ack, tcp.window) = (1000, 2000, 501)),
            ] {
                assert!(filter.accepts(&fine), "{fine:x?}");
                let parts = ParsedPacket::of(&fine).unwrap();
                let sum = parts.pseudo(6).and(Sum::new().bytes(parts.transport));
                assert!(parts.header_is_right() && sum.finish() == 0);
            }
            for other in [
                packet(v6, 3, true, tcp),
                with(|tcp| tcp.src_port = 81),
                with(|tcp| tcp.dst_port = 4001),
                with(|tcp| tcp.flags = Flags::ACK | Flags::URG),
                with(|tcp| tcp.flags = Flags::ACK | Flags::ECE),
                with(|tcp| tcp.flags = Flags::RST),
                with(|tcp| tcp.flags = Flags::ACK | Flags::SYN),
                with(|tcp| _ = tcp.options.sack.push(1, 2)),
                with(|tcp| {
                    let timed = tcp.options.timestamps.is_some();
                    tcp.options.timestamps = (!timed).then_some((1, 2));
                }),
            ] {
                assert!(!filter.accepts(&other), "{other:x?}");
            }
            let mut wrong = packet(v6, 0, true, tcp);
            for at in [6, if v6 { 8 } else { 12 }, if v6 { 39 } else { 19 }] {
                wrong[at] ^= 1;
                assert!(!filter.accepts(&wrong), "byte {at}");
                wrong[at] ^= 1;
            }
            assert!(filter.accepts(&wrong) && !filter.accepts(&wrong[..39]));
            assert!(!HeaderFilter::default().accepts(&wrong));
        }
    }
}
