//! Completes TCP and UDP checksums that were left to the device (checksum
//! offload).
//!
//! A virtual device (a veth) passes on frames that no wire has carried, whose
//! TCP and UDP checksums were left to a card that does not exist: the field
//! then contains only the sum of the pseudo-header (`CHECKSUM_PARTIAL`). The
//! kernel records that in the socket buffer, which AF_XDP does not pass on; a
//! receiver would drop the frame.
//!
//! A field with that sum is completed. One frame in 65,536 has the sum as its
//! correct checksum; completing it yields the same value.

use weir_ring::Frame;
use weir_wire::checksum::{AddrPair, Sum};
use weir_wire::{EtherType, Protocol};

/// Largest number of VLAN tags that are skipped.
const TAGS_MAX: usize = 2;

/// Bytes of the Ethernet header.
const ETHERNET: usize = weir_wire::ethernet::Repr::LEN;

/// The position of the checksum, the range that it covers, and the sum of the
/// pseudo-header.
struct PartialChecksum {
    field: usize,
    start: usize,
    end: usize,
    is_udp: bool,
}

/// Completes the TCP or UDP checksum of a frame, if it was left to the device;
/// returns whether it was.
#[inline]
pub(crate) fn complete(frame: &mut Frame) -> bool {
    let Some(left) = find(frame.bytes(), frame.len()) else {
        return false;
    };
    finish(frame, &left);
    true
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    let bytes = bytes.get(at..at + 2)?;
    Some(u16::from_be_bytes([bytes[0], bytes[1]]))
}

/// Finds a partial checksum; the headers lie in the first fragment.
#[inline]
fn find(bytes: &[u8], len: usize) -> Option<PartialChecksum> {
    let mut at = ETHERNET - 2;
    let mut kind = EtherType(half(bytes, at)?);
    for _ in 0..TAGS_MAX {
        if kind.is_tag() {
            at += 4;
            kind = EtherType(half(bytes, at)?);
        }
    }
    let ip = at + 2;
    let (addresses, protocol, start, end) = match kind {
        EtherType::IPV4 => v4(bytes, ip)?,
        EtherType::IPV6 => v6(bytes, ip)?,
        _ => return None,
    };
    let (field, is_udp) = match protocol {
        Protocol::TCP => (start + 16, false),
        Protocol::UDP => (start + 6, true),
        _ => return None,
    };
    let found = half(bytes, field)?;
    if end > len || field + 2 > end || (is_udp && found == 0) {
        return None;
    }
    let covered = u32::try_from(end - start).ok()?;
    let pseudo = !Sum::new()
        .pseudo_header(addresses, protocol.0, covered)
        .finish();
    (found == pseudo).then_some(PartialChecksum {
        field,
        start,
        end,
        is_udp,
    })
}

type Found = (AddrPair, Protocol, usize, usize);

fn v4(bytes: &[u8], ip: usize) -> Option<Found> {
    let header = bytes.get(ip..ip + 20)?;
    let header_len = weir_wire::ipv4::header_len(header);
    let total = usize::from(half(header, 2)?);
    let fragment = half(header, 6)? & 0x3fff;
    if header[0] >> 4 != 4 || header_len < 20 || total < header_len || fragment != 0 {
        return None;
    }
    let address = |at: usize| <[u8; 4]>::try_from(&header[at..at + 4]).ok();
    let addresses = AddrPair::V4(address(12)?.into(), address(16)?.into());
    Some((addresses, Protocol(header[9]), ip + header_len, ip + total))
}

fn v6(bytes: &[u8], ip: usize) -> Option<Found> {
    let header = bytes.get(ip..ip + 40)?;
    if header[0] >> 4 != 6 {
        return None;
    }
    let len = usize::from(half(header, 4)?);
    let address = |at: usize| <[u8; 16]>::try_from(&header[at..at + 16]).ok();
    let addresses = AddrPair::V6(address(8)?.into(), address(24)?.into());
    Some((addresses, Protocol(header[6]), ip + 40, ip + 40 + len))
}

fn finish(frame: &mut Frame, left: &PartialChecksum) {
    let mut sum = Sum::new();
    let mut before = 0;
    for index in 0..frame.frags() {
        let Some(piece) = frame.frag(index) else {
            break;
        };
        let start = left.start.saturating_sub(before).min(piece.len());
        let end = left.end.saturating_sub(before).min(piece.len());
        sum = sum.bytes(&piece[start..end]);
        before += piece.len();
    }
    let checksum = match sum.finish() {
        0 if left.is_udp => 0xffff,
        checksum => checksum,
    };
    let field = frame.bytes_mut().get_mut(left.field..left.field + 2);
    if let Some(field) = field {
        field.copy_from_slice(&checksum.to_be_bytes());
    }
}
