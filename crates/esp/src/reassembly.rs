//! Reassembly of ESP packets that the path has cut into fragments (RFC 4303
//! §3.4.1: before ESP; RFC 791 §3.2, RFC 8200 §4.5).
//!
//! Only fragments from a peer's address to this end's wait here. Packets whose
//! fragments overlap are dropped whole (RFC 5722, RFC 1858).

use crate::ip::{self, Fragment, Headers};
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use weir_wire::field::write;

/// Packets in fragments at a time; the oldest one gives way.
const PACKETS_MAX: usize = 256;

/// Fragments of a packet, at most.
const FRAGMENTS_MAX: usize = 64;

/// Bytes of all fragments that wait, at most.
const BYTES_MAX: usize = 4 << 20;

/// Time for which the rest of a packet is awaited, in ns (RFC 8200 §4.5 has 60 s;
/// Linux' `ipfrag_time` 30 s).
const AWAITED: u64 = 30_000_000_000;

/// Longest IP packet, in bytes.
const PACKET_MAX: usize = 65_535;

/// Congestion experienced (RFC 3168).
const CE: u8 = 3;

type Key = (IpAddr, IpAddr, u8, u32);

/// The fragments of a packet that have come.
struct Partial {
    since: u64,
    /// The headers before the data, of the first fragment.
    head: Option<Vec<u8>>,
    /// Offset and data of each, in order.
    pieces: Vec<(usize, Vec<u8>)>,
    /// Length of the whole data, once the last fragment has come.
    len: Option<usize>,
    bytes: usize,
    met_congestion: bool,
}

/// The outcome of a fragment.
#[derive(Debug)]
pub(crate) enum Reassembled {
    /// The packet.
    Whole(Vec<u8>),
    /// Others are awaited.
    Waits,
    /// The packet is dropped, for this reason.
    Drop(&'static str),
}

/// Packets in fragments.
#[derive(Default)]
pub(crate) struct Reassembly {
    partial: HashMap<Key, Partial>,
    /// The keys in the order of their first fragments.
    order: VecDeque<(Key, u64)>,
    bytes: usize,
}

impl Reassembly {
    /// Adds a fragment of a packet with these headers.
    pub(crate) fn add(
        &mut self,
        now: u64,
        headers: &Headers,
        fragment: &Fragment,
        packet: &[u8],
    ) -> Reassembled {
        self.age(now);
        while self.order.len() > PACKETS_MAX || self.bytes > BYTES_MAX {
            self.forget_oldest();
        }
        let protocol = if headers.is_v6 { 0 } else { headers.protocol.0 };
        let key = (headers.src, headers.dst, protocol, fragment.id);
        let data = &packet[fragment.data..headers.len];
        let (begin, end) = (fragment.offset, fragment.offset + data.len());
        if begin == 0 && !fragment.more {
            // It is whole, whatever else has its identification (RFC 6946).
            return joined(head(headers, fragment, packet), &[data], headers.is_v6);
        }
        if data.is_empty() || fragment.more && !data.len().is_multiple_of(8) {
            return self.forget(&key, "fragment-malformed");
        }
        let partial = self.partial.entry(key).or_insert_with(|| {
            self.order.push_back((key, now));
            Partial {
                since: now,
                head: None,
                pieces: Vec::new(),
                len: None,
                bytes: 0,
                met_congestion: false,
            }
        });
        let at = partial.pieces.partition_point(|(other, _)| *other < begin);
        if partial
            .pieces
            .get(at)
            .is_some_and(|(other, same)| *other == begin && same == data)
        {
            return Reassembled::Waits;
        }
        let overlaps = at > 0 && partial.pieces[at - 1].0 + partial.pieces[at - 1].1.len() > begin
            || partial.pieces.get(at).is_some_and(|next| next.0 < end);
        let is_behind = partial.len.is_some_and(|len| end > len);
        let last = partial
            .pieces
            .last()
            .map_or(0, |last| last.0 + last.1.len());
        let is_short = !fragment.more && (partial.len.is_some() || last > end);
        if overlaps || is_behind || is_short {
            return self.forget(&key, "fragment-overlap");
        }
        if partial.pieces.len() == FRAGMENTS_MAX || end > PACKET_MAX {
            return self.forget(&key, "fragment-limit");
        }
        partial.pieces.insert(at, (begin, data.to_vec()));
        partial.bytes += data.len();
        self.bytes += data.len();
        partial.met_congestion |= headers.traffic_class & CE == CE;
        if !fragment.more {
            partial.len = Some(end);
        }
        if begin == 0 {
            partial.head = Some(head(headers, fragment, packet));
        }
        if partial.len == Some(partial.bytes) {
            return self.whole(&key, headers.is_v6);
        }
        Reassembled::Waits
    }

    /// The packet, all of whose fragments have come.
    fn whole(&mut self, key: &Key, is_v6: bool) -> Reassembled {
        let Some(partial) = self.partial.remove(key) else {
            return Reassembled::Drop("fragment-limit");
        };
        self.bytes -= partial.bytes;
        let Some(head) = partial.head else {
            return Reassembled::Drop("fragment-malformed");
        };
        let data: Vec<&[u8]> = partial.pieces.iter().map(|(_, data)| &**data).collect();
        let mut joined = joined(head, &data, is_v6);
        if let (Reassembled::Whole(packet), true) = (&mut joined, partial.met_congestion) {
            ip::set_ecn(packet, CE);
        }
        joined
    }

    fn forget(&mut self, key: &Key, why: &'static str) -> Reassembled {
        if let Some(partial) = self.partial.remove(key) {
            self.bytes -= partial.bytes;
        }
        Reassembled::Drop(why)
    }

    /// Forgets the packet whose first fragment came first. Its key may be that of
    /// a later packet by now.
    fn forget_oldest(&mut self) {
        if let Some((key, since)) = self.order.pop_front()
            && self
                .partial
                .get(&key)
                .is_some_and(|partial| partial.since == since)
        {
            self.forget(&key, "fragment-limit");
        }
    }

    fn age(&mut self, now: u64) {
        while let Some((_, since)) = self.order.front()
            && now.saturating_sub(*since) >= AWAITED
        {
            self.forget_oldest();
        }
    }
}

/// The packet of these headers and data.
fn joined(head: Vec<u8>, data: &[&[u8]], is_v6: bool) -> Reassembled {
    let mut packet = head;
    data.iter().for_each(|data| packet.extend_from_slice(data));
    let len = packet.len();
    if len > PACKET_MAX {
        return Reassembled::Drop("fragment-limit");
    }
    if is_v6 {
        write(&mut packet, 4, &((len - 40) as u16).to_be_bytes());
    } else {
        write(&mut packet, 2, &(len as u16).to_be_bytes());
        ip::refresh(&mut packet);
    }
    Reassembled::Whole(packet)
}

/// The headers before the data as they are of the whole packet; lengths follow.
fn head(headers: &Headers, fragment: &Fragment, packet: &[u8]) -> Vec<u8> {
    if headers.is_v6 {
        let mut head = packet[..fragment.header].to_vec();
        head[fragment.named_at] = packet[fragment.header];
        return head;
    }
    let mut head = packet[..fragment.data].to_vec();
    // DF stays; neither more fragments nor an offset.
    head[6] &= 0x40;
    head[7] = 0;
    head
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A fragment of IPv6 with this place, this identification and eight bytes.
    fn fragment(place: u16, id: u32) -> Vec<u8> {
        let mut packet = vec![0; 56];
        (packet[0], packet[5], packet[6], packet[40]) = (0x60, 16, 44, 50);
        packet[42..44].copy_from_slice(&place.to_be_bytes());
        packet[44..48].copy_from_slice(&id.to_be_bytes());
        packet
    }

    fn add(reassembly: &mut Reassembly, packet: &[u8]) -> Reassembled {
        let headers = Headers::of(packet).unwrap();
        reassembly.add(0, &headers, &headers.fragment.unwrap(), packet)
    }

    /// Fragments that are whole by themselves, and those beyond the longest packet.
    #[test]
    fn a_flood_of_fragments_is_bounded() {
        let mut reassembly = Reassembly::default();
        for id in 0..100_000 {
            for place in [0, 65_528] {
                let added = add(&mut reassembly, &fragment(place, id));
                assert!(!matches!(added, Reassembled::Waits));
            }
            assert!(reassembly.order.len() <= PACKETS_MAX + 1);
            assert!(reassembly.partial.is_empty() && reassembly.bytes == 0);
        }
    }

    #[test]
    fn a_fragment_that_is_whole_leaves_others_of_its_number_alone() {
        let mut reassembly = Reassembly::default();
        assert!(matches!(
            add(&mut reassembly, &fragment(1, 7)),
            Reassembled::Waits
        ));
        let Reassembled::Whole(atomic) = add(&mut reassembly, &fragment(0, 7)) else {
            panic!("it waits")
        };
        assert_eq!((atomic.len(), atomic[5], atomic[6]), (48, 8, 50));
        let Reassembled::Whole(both) = add(&mut reassembly, &fragment(8, 7)) else {
            panic!("it waits")
        };
        assert_eq!((both.len(), both[5], both[6]), (56, 16, 50));
    }
}
