//! Following a connection: the bytes of both directions, in order, as far as the frames have them.
//!
//! A segment that comes late waits for what is before it; bytes that are there twice are taken from
//! the first segment that had them; missing bytes are reported. Fragmented IP
//! packets are not put together.

use crate::digest::{Digest, Flow};
use std::collections::BTreeMap;

/// Largest number of bytes of one followed connection.
const BYTES_MAX: usize = 16 << 20;
/// Largest number of segments that wait for earlier ones, in each direction. Beyond it, what is
/// missing is taken as lost.
const WAITING_MAX: usize = 4_096;

/// Which end of the [`Flow`] sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// `a`.
    A,
    /// `b`.
    B,
}

/// Bytes, or that there are none.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Content {
    /// Bytes that were sent.
    Bytes(Vec<u8>),
    /// This many bytes were not in the frames.
    Missing(u32),
}

/// A part of a followed connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Chunk {
    /// The sender.
    pub side: Side,
    /// The sent bytes.
    pub content: Content,
}

/// One direction of a TCP connection.
#[derive(Default, Debug)]
struct Direction {
    /// The next sequence number in order; `None` before the first segment.
    next: Option<u32>,
    /// Segments by their distance from `base`.
    waiting: BTreeMap<u64, Vec<u8>>,
    /// Bytes in order so far: extends the sequence number to 64 bits.
    at: u64,
}

/// A connection that is followed.
#[derive(Debug)]
pub struct Follow {
    flow: Flow,
    directions: [Direction; 2],
    chunks: Vec<Chunk>,
    bytes: usize,
    is_cut: bool,
}

impl Follow {
    /// Follows a conversation of TCP or UDP.
    pub fn new(flow: Flow) -> Follow {
        Follow {
            flow,
            directions: [Direction::default(), Direction::default()],
            chunks: Vec::new(),
            bytes: 0,
            is_cut: false,
        }
    }

    /// Takes a frame, whose digest it is; one of another conversation is ignored. Returns whether it
    /// was the conversation's.
    pub fn frame(&mut self, bytes: &[u8], digest: &Digest) -> bool {
        let (flow, is_forward) = digest.flow();
        if flow != self.flow {
            return false;
        }
        let side = if is_forward { Side::A } else { Side::B };
        let (start, end) = digest.payload;
        let payload = &bytes[start..end];
        match digest.tcp {
            Some(tcp) if tcp.is_syn => {
                // A new connection of the same ports begins.
                let direction = &self.directions[side as usize];
                if direction.next.is_some() && direction.next != Some(tcp.seq.wrapping_add(1)) {
                    self.give_up(side);
                }
                let first = tcp.seq.wrapping_add(1);
                let direction = &mut self.directions[side as usize];
                direction.next = Some(first);
                self.segment(side, first, payload);
            }
            Some(tcp) => self.segment(side, tcp.seq, payload),
            None if !payload.is_empty() => self.put(side, payload),
            None => {}
        }
        true
    }

    fn segment(&mut self, side: Side, seq: u32, payload: &[u8]) {
        if payload.is_empty() {
            return;
        }
        let direction = &mut self.directions[side as usize];
        let next = *direction.next.get_or_insert(seq);
        // A distance of half the number space or more lies in the past.
        let ahead = seq.wrapping_sub(next);
        if ahead as i32 >= 0 {
            let place = direction.at + u64::from(ahead);
            let kept = direction.waiting.entry(place).or_default();
            if kept.len() < payload.len() {
                let had = kept.len();
                kept.extend_from_slice(&payload[had..]);
            }
        } else {
            let known = next.wrapping_sub(seq) as usize;
            if let Some(rest) = payload.get(known..).filter(|rest| !rest.is_empty()) {
                let rest = rest.to_vec();
                direction.waiting.entry(direction.at).or_insert(rest);
            }
        }
        self.in_order(side);
        while self.directions[side as usize].waiting.len() > WAITING_MAX {
            self.skip_hole(side);
        }
    }

    /// Puts out what is in order now.
    fn in_order(&mut self, side: Side) {
        loop {
            let direction = &mut self.directions[side as usize];
            let Some(entry) = direction
                .waiting
                .first_entry()
                .filter(|one| *one.key() <= direction.at)
            else {
                return;
            };
            let known = (direction.at - entry.key()) as usize;
            let bytes = entry.remove();
            if let Some(fresh) = bytes.get(known..).filter(|fresh| !fresh.is_empty()) {
                direction.at += fresh.len() as u64;
                direction.next = direction
                    .next
                    .map(|next| next.wrapping_add(fresh.len() as u32));
                let fresh = fresh.to_vec();
                self.put(side, &fresh);
            }
        }
    }

    /// Takes what lies before the first waiting segment as lost.
    fn skip_hole(&mut self, side: Side) {
        let direction = &mut self.directions[side as usize];
        let Some((&place, _)) = direction.waiting.first_key_value() else {
            return;
        };
        let missing = u32::try_from(place - direction.at).unwrap_or(u32::MAX);
        direction.at = place;
        direction.next = direction.next.map(|next| next.wrapping_add(missing));
        self.chunks.push(Chunk {
            side,
            content: Content::Missing(missing),
        });
        self.in_order(side);
    }

    fn give_up(&mut self, side: Side) {
        while !self.directions[side as usize].waiting.is_empty() {
            self.skip_hole(side);
        }
    }

    fn put(&mut self, side: Side, bytes: &[u8]) {
        let room = BYTES_MAX - self.bytes;
        self.is_cut |= bytes.len() > room;
        let bytes = &bytes[..bytes.len().min(room)];
        self.bytes += bytes.len();
        if bytes.is_empty() {
            return;
        }
        match self.chunks.last_mut() {
            Some(Chunk {
                side: last,
                content: Content::Bytes(before),
            }) if *last == side => before.extend_from_slice(bytes),
            _ => self.chunks.push(Chunk {
                side,
                content: Content::Bytes(bytes.to_vec()),
            }),
        }
    }

    /// The connection's parts, in the order in which they became complete; and whether the limit of
    /// 16 MiB cut them.
    pub fn finish(mut self) -> (Vec<Chunk>, bool) {
        self.give_up(Side::A);
        self.give_up(Side::B);
        (self.chunks, self.is_cut)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::{Host, TcpPart};

    fn digest(is_forward: bool, seq: u32, is_syn: bool, len: usize) -> Digest {
        let (a, b) = (
            Host::Ip([10, 0, 0, 1].into()),
            Host::Ip([10, 0, 0, 2].into()),
        );
        let (src, dst) = if is_forward { (a, b) } else { (b, a) };
        Digest {
            src,
            dst,
            ether_type: 0x0800,
            ip_protocol: Some(6),
            src_port: 80,
            dst_port: 80,
            tcp: Some(TcpPart {
                seq,
                is_syn,
                is_fin: false,
            }),
            payload: (0, len),
        }
    }

    /// The text of both directions, with the number of missing bytes in brackets.
    fn run(segments: &[(bool, u32, bool, &str)]) -> (String, String) {
        let mut follow = Follow::new(digest(true, 0, false, 0).flow().0);
        for (is_forward, seq, is_syn, text) in segments {
            let digest = digest(*is_forward, *seq, *is_syn, text.len());
            assert!(follow.frame(text.as_bytes(), &digest));
        }
        let mut sides = (String::new(), String::new());
        for chunk in follow.finish().0 {
            let side = match chunk.side {
                Side::A => &mut sides.0,
                Side::B => &mut sides.1,
            };
            *side += &match chunk.content {
                Content::Bytes(bytes) => String::from_utf8(bytes).expect("ASCII"),
                Content::Missing(count) => format!("[{count}]"),
            };
        }
        sides
    }

    #[test]
    fn segments_are_put_in_order_and_counted_once() {
        let last = u32::MAX;
        let (there, back) = run(&[
            (true, last - 1, true, ""),
            (false, 7, true, ""),
            // Over the end of the number space, out of order, twice, overlapping.
            (true, 2, false, "def"),
            (true, last, false, "abc"),
            (true, last, false, "XYZ"),
            (false, 8, false, "hello"),
            (true, 4, false, "fgh"),
            (true, 1, false, "ZZZZZZi"),
        ]);
        assert_eq!((there.as_str(), back.as_str()), ("abcdefghi", "hello"));
    }

    #[test]
    fn missing_bytes_are_reported() {
        let (there, _) = run(&[(true, 10, false, "abc"), (true, 20, false, "def")]);
        assert_eq!(there, "abc[7]def");
    }

    #[test]
    fn a_late_start_follows_from_the_first_segment() {
        let (there, _) = run(&[
            (true, 100, false, "abc"),
            (true, 90, false, "old"),
            (true, 103, false, "d"),
        ]);
        assert_eq!(there, "abcd");
    }

    #[test]
    fn a_second_connection_of_the_same_ports_follows() {
        let (there, _) = run(&[
            (true, 0, true, ""),
            (true, 1, false, "one"),
            (true, 50_000, true, ""),
            (true, 50_001, false, "two"),
        ]);
        assert_eq!(there, "onetwo");
    }

    #[test]
    fn memory_is_bounded() {
        let mut follow = Follow::new(digest(true, 0, false, 0).flow().0);
        let payload = vec![1; 1000];
        // Nothing is ever in order: one byte is missing before each.
        for number in 0..30_000_u32 {
            follow.frame(&payload, &digest(true, number * 1001, false, 1000));
            assert!(follow.directions[0].waiting.len() <= WAITING_MAX);
        }
        let (chunks, is_cut) = follow.finish();
        assert!(is_cut);
        let bytes: usize = chunks
            .iter()
            .map(|chunk| match &chunk.content {
                Content::Bytes(bytes) => bytes.len(),
                Content::Missing(_) => 0,
            })
            .sum();
        assert_eq!(bytes, BYTES_MAX);
    }
}
