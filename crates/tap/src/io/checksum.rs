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
use weir_wire::checksum::Sum;
use weir_wire::{Protocol, TransportHeader};

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

/// Finds a partial checksum; the headers lie in the first fragment.
#[inline]
fn find(bytes: &[u8], len: usize) -> Option<PartialChecksum> {
    let TransportHeader {
        start,
        end,
        protocol,
        addresses,
        ..
    } = TransportHeader::find(bytes)?;
    let (field, is_udp) = match protocol {
        Protocol::TCP => (start + 16, false),
        Protocol::UDP => (start + 6, true),
        _ => return None,
    };
    let found = u16::from_be_bytes(*bytes.get(field..)?.first_chunk()?);
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
