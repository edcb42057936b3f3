//! Reassembly of fragments (RFC 791 §3.2, RFC 8200 §4.5), within limits.

use super::DropReason;
use weir_wire::{AddrPair, Protocol};

/// Limit on datagrams in reassembly; a further one displaces the oldest.
pub const DATAGRAMS_MAX: usize = 64;
/// Limit on the bytes of all datagrams in reassembly; further bytes displace the oldest.
pub const BYTES_MAX: usize = 1 << 20;
/// Limit on the fragments of one datagram.
pub const FRAGMENTS_MAX: usize = 128;
/// Reassembly time-out from the first fragment on, in nanoseconds.
pub const TIMEOUT_NS: u64 = 30_000_000_000;
/// Identifies the datagram of a fragment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ReassemblyKey {
    pub(super) addresses: AddrPair,
    pub(super) identification: u32,
    pub(super) protocol: Protocol,
}

impl ReassemblyKey {
    /// Largest length of the datagram behind its IP header.
    fn len_max(&self) -> usize {
        match self.addresses {
            AddrPair::V4(..) => 65_515,
            AddrPair::V6(..) => 65_535,
        }
    }
}

/// A fragment.
pub(super) struct Fragment<'a> {
    pub(super) offset: usize,
    pub(super) more: bool,
    pub(super) bytes: &'a [u8],
}

struct PartialDatagram {
    name: ReassemblyKey,
    deadline_ns: u64,
    /// Received fragments by offset, without overlaps.
    fragments: Vec<(usize, Vec<u8>)>,
    /// The total length, once the last fragment has arrived.
    len: Option<usize>,
    charged_bytes: usize,
}

/// Datagrams with some fragments received, oldest first.
#[derive(Default)]
pub(super) struct Reassembly {
    partials: Vec<PartialDatagram>,
    charged_bytes: usize,
    displaced: u64,
}

impl Reassembly {
    /// Adds a fragment; returns the datagram if it is complete.
    pub(super) fn add(
        &mut self,
        now_ns: u64,
        name: ReassemblyKey,
        piece: &Fragment<'_>,
    ) -> Result<Option<Vec<u8>>, DropReason> {
        let end = piece.offset + piece.bytes.len();
        let ragged = piece.more && !piece.bytes.len().is_multiple_of(8);
        if piece.bytes.is_empty() || ragged || end > name.len_max() {
            return Err(DropReason::FragmentMalformed);
        }
        let known = self
            .partials
            .iter()
            .position(|partial| partial.name == name);
        let index = known.unwrap_or_else(|| self.start(now_ns, name));
        match self.partials[index].add(piece) {
            Ok(0) => return Err(DropReason::FragmentDuplicate),
            Ok(added) => self.charged_bytes += added,
            Err(reason) => {
                // RFC 5722: an overlap discards the whole datagram.
                self.remove(index);
                return Err(reason);
            }
        }
        if self.partials[index].is_whole() {
            return Ok(Some(self.remove(index).join()));
        }
        while self.charged_bytes > BYTES_MAX {
            self.displace();
        }
        Ok(None)
    }

    fn start(&mut self, now_ns: u64, name: ReassemblyKey) -> usize {
        if self.partials.len() == DATAGRAMS_MAX {
            self.displace();
        }
        self.partials.push(PartialDatagram {
            name,
            deadline_ns: now_ns.saturating_add(TIMEOUT_NS),
            fragments: Vec::new(),
            len: None,
            charged_bytes: 0,
        });
        self.partials.len() - 1
    }

    fn displace(&mut self) {
        self.remove(0);
        self.displaced += 1;
    }

    /// Number of datagrams displaced by newer ones since the last call.
    pub(super) fn take_displaced(&mut self) -> u64 {
        std::mem::take(&mut self.displaced)
    }

    fn remove(&mut self, index: usize) -> PartialDatagram {
        let partial = self.partials.remove(index);
        self.charged_bytes -= partial.charged_bytes;
        partial
    }

    /// Removes datagrams at their time-out; returns their number.
    pub(super) fn expire(&mut self, now_ns: u64) -> u64 {
        let expired = self.partials.iter();
        let expired = expired
            .take_while(|partial| partial.deadline_ns <= now_ns)
            .count();
        for _ in 0..expired {
            self.remove(0);
        }
        expired as u64
    }

    /// When the next time-out is due.
    pub(super) fn next_ns(&self) -> Option<u64> {
        self.partials.first().map(|partial| partial.deadline_ns)
    }

    /// Bytes in reassembly.
    #[cfg(test)]
    pub(super) fn charged_bytes(&self) -> usize {
        self.charged_bytes
    }
}

impl PartialDatagram {
    /// Adds a fragment; returns the number of additional bytes.
    fn add(&mut self, piece: &Fragment<'_>) -> Result<usize, DropReason> {
        let (start, end) = (piece.offset, piece.offset + piece.bytes.len());
        let at = self.fragments.partition_point(|(other, _)| *other < start);
        if let Some((other, bytes)) = self.fragments.get(at)
            && *other == start
            && bytes == piece.bytes
            && (piece.more || self.len == Some(end))
        {
            return Ok(0);
        }
        let before = at.checked_sub(1).map(|before| &self.fragments[before]);
        let overlaps = before.is_some_and(|(other, bytes)| other + bytes.len() > start)
            || self
                .fragments
                .get(at)
                .is_some_and(|(other, _)| *other < end);
        let known_len = self.len;
        let beyond = known_len.is_some_and(|len| end > len || (!piece.more && end != len));
        let last = self
            .fragments
            .last()
            .map_or(0, |(other, bytes)| other + bytes.len());
        if overlaps || beyond || (!piece.more && last > end) {
            return Err(DropReason::FragmentOverlap);
        }
        if self.fragments.len() == FRAGMENTS_MAX {
            return Err(DropReason::FragmentsTooMany);
        }
        if !piece.more {
            self.len = Some(end);
        }
        self.fragments.insert(at, (start, piece.bytes.to_vec()));
        self.charged_bytes += piece.bytes.len();
        Ok(piece.bytes.len())
    }

    fn is_whole(&self) -> bool {
        self.len == Some(self.charged_bytes)
    }

    fn join(self) -> Vec<u8> {
        let mut datagram = Vec::with_capacity(self.charged_bytes);
        for (_, bytes) in &self.fragments {
            datagram.extend_from_slice(bytes);
        }
        datagram
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn name(identification: u32) -> ReassemblyKey {
        ReassemblyKey {
            addresses: AddrPair::V4(Ipv4Addr::LOCALHOST, Ipv4Addr::LOCALHOST),
            identification,
            protocol: Protocol::UDP,
        }
    }

    fn add(
        reassembly: &mut Reassembly,
        name: ReassemblyKey,
        (offset, bytes, more): (usize, &[u8], bool),
    ) -> Result<Option<Vec<u8>>, DropReason> {
        let piece = Fragment {
            offset,
            more,
            bytes,
        };
        reassembly.add(0, name, &piece)
    }

    #[test]
    fn pieces_may_come_in_any_order() {
        let bytes: Vec<u8> = (0..40).collect();
        let pieces = [
            (0, &bytes[..16], true),
            (16, &bytes[16..24], true),
            (24, &bytes[24..], false),
        ];
        for order in [
            [0, 1, 2],
            [0, 2, 1],
            [1, 0, 2],
            [1, 2, 0],
            [2, 0, 1],
            [2, 1, 0],
        ] {
            let mut reassembly = Reassembly::default();
            for index in &order[..2] {
                assert_eq!(add(&mut reassembly, name(1), pieces[*index]), Ok(None));
                let again = add(&mut reassembly, name(1), pieces[*index]);
                assert_eq!(again, Err(DropReason::FragmentDuplicate));
            }
            let whole = add(&mut reassembly, name(1), pieces[order[2]]);
            assert_eq!(whole, Ok(Some(bytes.clone())), "{order:?}");
            assert_eq!(
                (reassembly.charged_bytes(), reassembly.next_ns()),
                (0, None)
            );
        }
    }

    #[test]
    fn what_contradicts_makes_the_datagram_suspect() {
        let cases: [[(usize, usize, bool); 2]; 5] = [
            [(0, 16, true), (8, 16, true)],
            [(8, 16, true), (0, 16, true)],
            [(0, 16, false), (16, 8, true)],
            [(16, 8, true), (0, 16, false)],
            [(16, 16, false), (8, 16, false)],
        ];
        for case in cases {
            let mut reassembly = Reassembly::default();
            let [first, second] = case.map(|(offset, len, more)| (offset, vec![7; len], more));
            let added = add(&mut reassembly, name(1), (first.0, &first.1, first.2));
            // A last fragment with offset 0 is a whole datagram.
            if added == Ok(None) {
                let added = add(&mut reassembly, name(1), (second.0, &second.1, second.2));
                assert_eq!(added, Err(DropReason::FragmentOverlap), "{case:?}");
            }
            assert_eq!(reassembly.charged_bytes(), 0, "{case:?}");
        }
        let mut reassembly = Reassembly::default();
        for malformed in [
            (0, &[0; 9][..], true),
            (65_504, &[0; 16][..], true),
            (8, &[][..], false),
        ] {
            let added = add(&mut reassembly, name(1), malformed);
            assert_eq!(added, Err(DropReason::FragmentMalformed));
        }
    }

    #[test]
    fn memory_is_bounded_and_time_runs_out() {
        let mut reassembly = Reassembly::default();
        for identification in 0..500 {
            for part in 0..3 {
                let piece = (8000 * (part + 1), &[0; 8000][..], true);
                add(&mut reassembly, name(identification), piece).ok();
                assert!(reassembly.charged_bytes() <= BYTES_MAX);
                assert!(reassembly.partials.len() <= DATAGRAMS_MAX);
            }
        }
        let mut tiny = Reassembly::default();
        for part in 0..FRAGMENTS_MAX {
            assert_eq!(
                add(&mut tiny, name(1), (16 * part, &[0; 8], true)),
                Ok(None)
            );
        }
        let one_more = add(&mut tiny, name(1), (16 * FRAGMENTS_MAX, &[0; 8], true));
        assert_eq!(one_more, Err(DropReason::FragmentsTooMany));
        let waiting = reassembly.partials.len() as u64;
        assert_eq!(reassembly.expire(TIMEOUT_NS - 1), 0);
        assert_eq!(reassembly.expire(TIMEOUT_NS), waiting);
        assert_eq!(reassembly.charged_bytes(), 0);
    }
}
