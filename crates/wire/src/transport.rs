//! The place of a transport header in an Ethernet frame.

use crate::ethernet;
use crate::field::read_u16;
use crate::{AddrPair, EtherType, Protocol, ipv4, ipv6};

/// Largest number of VLAN tags that are skipped.
const TAGS_MAX: usize = 2;

/// Bytes of an IPv4 header without options.
const IPV4: usize = ipv4::Repr::LEN;

/// Bytes of an IPv6 header.
const IPV6: usize = ipv6::Repr::LEN;

/// Where the headers of a frame are, and what a transport checksum needs of them.
/// Offsets are in bytes from the frame's first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransportHeader {
    /// Offset of the IP header.
    pub network: usize,
    /// Offset of the transport header.
    pub start: usize,
    /// Offset of the packet's end by the IP header, which may lie before `start` and
    /// behind the frame: it is not checked.
    pub end: usize,
    /// Protocol of the transport header.
    pub protocol: Protocol,
    /// Addresses of the IP header.
    pub addresses: AddrPair,
}

impl TransportHeader {
    /// Finds the transport header of `frame`, an Ethernet frame with at most two VLAN
    /// tags. `None` if it carries neither IPv4 nor IPv6, if an IPv4 fragment, or cut
    /// short before the transport header. IPv6 extension headers are not skipped:
    /// `protocol` is then the first one's.
    #[inline]
    pub fn find(frame: &[u8]) -> Option<TransportHeader> {
        let mut at = ethernet::Repr::LEN - 2;
        let mut kind = EtherType(half(frame, at)?);
        for _ in 0..TAGS_MAX {
            if kind.is_tag() {
                at += 4;
                kind = EtherType(half(frame, at)?);
            }
        }
        match kind {
            EtherType::IPV4 => Self::v4(frame, at + 2),
            EtherType::IPV6 => Self::v6(frame, at + 2),
            _ => None,
        }
    }

    #[inline]
    fn v4(frame: &[u8], network: usize) -> Option<TransportHeader> {
        let header: &[u8; IPV4] = frame.get(network..)?.first_chunk()?;
        let header_len = ipv4::header_len(header);
        // A fragment has no transport header, or not all that the header counts.
        let is_fragment = read_u16(header, 6) & 0x3fff != 0;
        if header[0] >> 4 != 4 || header_len < IPV4 || is_fragment {
            return None;
        }
        let [.., s0, s1, s2, s3, d0, d1, d2, d3] = *header;
        Some(TransportHeader {
            network,
            start: network + header_len,
            end: network + usize::from(read_u16(header, 2)),
            protocol: Protocol(header[9]),
            addresses: AddrPair::V4([s0, s1, s2, s3].into(), [d0, d1, d2, d3].into()),
        })
    }

    #[inline]
    fn v6(frame: &[u8], network: usize) -> Option<TransportHeader> {
        let header: &[u8; IPV6] = frame.get(network..)?.first_chunk()?;
        if header[0] >> 4 != 6 {
            return None;
        }
        let src: &[u8; 16] = header[8..].first_chunk()?;
        let dst: &[u8; 16] = header[24..].first_chunk()?;
        let start = network + IPV6;
        Some(TransportHeader {
            network,
            start,
            end: start + usize::from(read_u16(header, 4)),
            protocol: Protocol(header[6]),
            addresses: AddrPair::V6((*src).into(), (*dst).into()),
        })
    }
}

#[inline]
fn half(bytes: &[u8], at: usize) -> Option<u16> {
    bytes
        .get(at..)?
        .first_chunk()
        .copied()
        .map(u16::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame with `tags` VLAN tags, then the bytes of `packet`.
    fn frame(tags: usize, kind: u16, packet: &[u8]) -> Vec<u8> {
        let mut frame = vec![0; 12];
        for _ in 0..tags {
            frame.extend([0x81, 0, 0, 7]);
        }
        frame.extend(kind.to_be_bytes());
        frame.extend(packet);
        frame
    }

    fn v4(fragment: u16) -> Vec<u8> {
        let mut packet = vec![0x46, 0, 0, 32, 0, 0];
        packet.extend(fragment.to_be_bytes());
        packet.extend([64, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2]);
        packet.extend([0; 12]);
        packet
    }

    #[test]
    fn options_and_tags_are_skipped() {
        for tags in 0..=2 {
            let at = 14 + 4 * tags;
            let found = TransportHeader::find(&frame(tags, 0x0800, &v4(0x4000))).unwrap();
            let (src, dst) = ([192, 0, 2, 1].into(), [192, 0, 2, 2].into());
            let expected = TransportHeader {
                network: at,
                start: at + 24,
                end: at + 32,
                protocol: Protocol::UDP,
                addresses: AddrPair::V4(src, dst),
            };
            assert_eq!(found, expected, "{tags} tags");
        }
        assert_eq!(TransportHeader::find(&frame(3, 0x0800, &v4(0))), None);
    }

    #[test]
    fn fragments_and_short_frames_have_none() {
        for fragment in [1, 0x2000, 0x1fff] {
            assert_eq!(
                TransportHeader::find(&frame(0, 0x0800, &v4(fragment))),
                None
            );
        }
        let whole = frame(
            1,
            0x86dd,
            &[&[0x60, 0, 0, 0, 0, 8, 6, 64][..], &[0; 32]].concat(),
        );
        assert_eq!(TransportHeader::find(&whole).unwrap().end, 18 + 48);
        for len in 0..whole.len() {
            assert_eq!(TransportHeader::find(&whole[..len]), None, "{len} bytes");
        }
    }
}
