//! Segmentation of GSO super-frames into the frames that go over the wire, as
//! the kernel segments them for a device without the offload (RFC 9293; the
//! kernel's generic segmentation offload).
//!
//! ```text
//!  headers │ payload, several times gso_size   ─►   headers' │ gso_size
//!                                                   headers' │ gso_size
//!                                                   headers' │ the rest
//! ```
//!
//! Supports TCP over IPv4 and IPv6, and UDP (`UDP_SEGMENT`), with or without
//! VLAN tags. Lengths, sequence numbers, the IPv4 identification (incremented
//! for each segment) and all checksums are each segment's own. FIN and PSH are
//! set in the last segment only, CWR in the first only.

use std::borrow::Cow;
use weir_demux::kernel::record::{FLAG_GSO, Record};
use weir_wire::checksum::{self, AddrPair, Sum};
use weir_wire::{Protocol, TransportHeader};

const FIN: u8 = 0x01;
const PSH: u8 = 0x08;
const CWR: u8 = 0x80;

/// The segments of one frame: see [`segments`].
#[derive(Clone, Debug)]
pub struct Segments<'a> {
    frame: &'a [u8],
    cut: Option<Cut>,
    /// Offset of the next segment's payload; `None` at the end.
    next: Option<usize>,
}

/// How a super-frame is segmented.
#[derive(Clone, Copy, Debug)]
struct Cut {
    ip: usize,
    transport: usize,
    protocol: Protocol,
    payload: usize,
    size: usize,
    addresses: AddrPair,
}

/// The frames that a delivered record represents: the segments of a
/// super-frame, each complete and with correct checksums, otherwise the frame
/// unchanged. The frame is also unchanged if a snap length truncated the
/// super-frame, or if its protocols are not supported, such as a tunnel's.
pub fn segments<'a>(record: &Record<'a>) -> Segments<'a> {
    let is_whole = record.bytes.len() == record.wire_len as usize;
    let is_super = record.flags & FLAG_GSO != 0 && is_whole;
    let cut = is_super.then(|| Cut::of(record.bytes, record.gso_size));
    let cut = cut.flatten();
    Segments {
        frame: record.bytes,
        next: Some(cut.map_or(0, |cut| cut.payload)),
        cut,
    }
}

impl<'a> Iterator for Segments<'a> {
    type Item = Cow<'a, [u8]>;

    fn next(&mut self) -> Option<Cow<'a, [u8]>> {
        let from = self.next.take()?;
        let Some(cut) = self.cut else {
            return Some(Cow::Borrowed(self.frame));
        };
        let to = self.frame.len().min(from + cut.size);
        self.next = (to < self.frame.len()).then_some(to);
        Some(Cow::Owned(cut.segment(self.frame, from, to)))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = match (self.next, self.cut) {
            (None, _) => 0,
            (Some(_), None) => 1,
            (Some(from), Some(cut)) => (self.frame.len() - from).div_ceil(cut.size),
        };
        (left, Some(left))
    }
}

impl ExactSizeIterator for Segments<'_> {}

fn word(frame: &[u8], at: usize) -> Option<u16> {
    let bytes = frame.get(at..)?.first_chunk()?;
    Some(u16::from_be_bytes(*bytes))
}

fn put_word(frame: &mut [u8], at: usize, word: u16) {
    frame[at..at + 2].copy_from_slice(&word.to_be_bytes());
}

impl Cut {
    /// `None` for a frame that needs no segmentation or cannot be segmented.
    fn of(frame: &[u8], size: u16) -> Option<Cut> {
        let found = TransportHeader::find(frame)?;
        let (header, least) = match found.protocol {
            Protocol::TCP => (usize::from(frame.get(found.start + 12)? >> 4) * 4, 20),
            Protocol::UDP => (8, 8),
            _ => return None,
        };
        let payload = found.start + header;
        let fits = header >= least && size > 0 && payload < frame.len();
        fits.then_some(Cut {
            ip: found.network,
            transport: found.start,
            protocol: found.protocol,
            payload,
            size: size.into(),
            addresses: found.addresses,
        })
    }

    fn is_v6(&self) -> bool {
        matches!(self.addresses, AddrPair::V6(..))
    }

    /// The segment with the payload from `from` to `to`.
    fn segment(&self, frame: &[u8], from: usize, to: usize) -> Vec<u8> {
        let mut segment = Vec::with_capacity(self.payload + to - from);
        segment.extend_from_slice(&frame[..self.payload]);
        segment.extend_from_slice(&frame[from..to]);
        let number = (from - self.payload) / self.size;
        self.network(&mut segment, number);
        if self.protocol == Protocol::TCP {
            let is_last = to == frame.len();
            self.tcp(&mut segment, from, number == 0, is_last);
        } else {
            self.udp(&mut segment);
        }
        segment
    }

    fn network(&self, segment: &mut [u8], number: usize) {
        let ip = self.ip;
        if self.is_v6() {
            let len = segment.len() - ip - 40;
            return put_word(segment, ip + 4, len as u16);
        }
        let len = segment.len() - ip;
        put_word(segment, ip + 2, len as u16);
        let id = word(segment, ip + 4).unwrap_or(0);
        put_word(segment, ip + 4, id.wrapping_add(number as u16));
        put_word(segment, ip + 10, 0);
        let sum = checksum::internet_checksum(&segment[ip..self.transport]);
        put_word(segment, ip + 10, sum);
    }

    fn tcp(&self, segment: &mut [u8], from: usize, is_first: bool, is_last: bool) {
        let at = self.transport;
        let header = &mut segment[at..];
        let sequence = header[4..].first_chunk().copied().unwrap_or_default();
        let sequence = u32::from_be_bytes(sequence).wrapping_add((from - self.payload) as u32);
        header[4..8].copy_from_slice(&sequence.to_be_bytes());
        if !is_last {
            header[13] &= !(FIN | PSH);
        }
        if !is_first {
            header[13] &= !CWR;
        }
        put_word(segment, at + 16, 0);
        let sum = self.sum(&segment[at..]);
        put_word(segment, at + 16, sum);
    }

    fn udp(&self, segment: &mut [u8]) {
        let at = self.transport;
        let len = segment.len() - at;
        put_word(segment, at + 4, len as u16);
        let had = word(segment, at + 6).unwrap_or(0);
        put_word(segment, at + 6, 0);
        if had == 0 && !self.is_v6() {
            return;
        }
        // A UDP checksum of zero would mean that there is none (RFC 768).
        let sum = match self.sum(&segment[at..]) {
            0 => 0xffff,
            sum => sum,
        };
        put_word(segment, at + 6, sum);
    }

    fn sum(&self, bytes: &[u8]) -> u16 {
        let pseudo = Sum::new().pseudo_header(self.addresses, self.protocol.0, bytes.len() as u32);
        pseudo.bytes(bytes).finish()
    }
}
