//! The scoreboard: segments in flight, when each was sent, and what is known of it (RFC 6675 §4,
//! RFC 8985 §5.1).

use crate::tcp::seq::Seq;
use std::collections::VecDeque;

/// Limit on the segments in flight of one connection; further ones wait for acknowledgments.
pub const SEGMENTS_MAX: usize = 16_384;

/// Segments with memory while none is in flight, so that a request needs no allocation.
const RESERVED_SEGMENTS: usize = 16;

/// A segment in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::tcp) struct Sent {
    pub(in crate::tcp) start: Seq,
    pub(in crate::tcp) end: Seq,
    /// Time of the last transmission.
    pub(in crate::tcp) sent_ns: u64,
    /// The segment was retransmitted.
    pub(in crate::tcp) retransmitted: bool,
    /// The peer has reported it as received (SACK).
    pub(in crate::tcp) sacked: bool,
    /// The segment counts as lost, and was not retransmitted since.
    pub(in crate::tcp) lost: bool,
}

impl Sent {
    fn len(&self) -> usize {
        self.end.since(self.start)
    }

    /// Whether this segment was sent after one sent at `sent_ns` that ends at `end` (RFC 8985 §6.2:
    /// RACK_sent_after).
    pub(in crate::tcp) fn is_after(&self, sent_ns: u64, end: Seq) -> bool {
        self.sent_ns > sent_ns || (self.sent_ns == sent_ns && end.before(self.end))
    }
}

/// Segments in flight, by sequence number, without gaps.
#[derive(Default)]
pub(in crate::tcp) struct Scoreboard {
    segments: VecDeque<Sent>,
    /// Length of the segments that are SACKed, and of those that are lost.
    sacked: u32,
    lost: u32,
    /// Retransmitted segments in flight.
    retrans: u32,
    /// Length of all segments.
    snd_inflight: u32,
    /// No lost segment lies before this number.
    lost_hint: Seq,
}

impl Scoreboard {
    pub(in crate::tcp) fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    pub(in crate::tcp) fn is_full(&self) -> bool {
        self.segments.len() >= SEGMENTS_MAX
    }

    /// Estimated length in the network (RFC 6675 §4: pipe).
    pub(in crate::tcp) fn pipe(&self) -> usize {
        self.snd_inflight() - self.sacked() - self.lost()
    }

    /// Length of unacknowledged segments.
    pub(in crate::tcp) fn snd_inflight(&self) -> usize {
        self.snd_inflight as usize
    }

    /// Length of lost segments that were not retransmitted yet.
    pub(in crate::tcp) fn lost(&self) -> usize {
        self.lost as usize
    }

    /// Length of SACKed segments.
    pub(in crate::tcp) fn sacked(&self) -> usize {
        self.sacked as usize
    }

    /// Number of segments in flight, as the network carries them: one that the link cuts counts as
    /// several.
    pub(in crate::tcp) fn segments(&self, mss: usize) -> usize {
        self.sum(mss, |_| true)
    }

    /// Numbers of SACKed, lost and retransmitted segments.
    pub(in crate::tcp) fn counts(&self, mss: usize) -> (usize, usize, usize) {
        let sacked = self.sum(mss, |sent| sent.sacked);
        let lost = self.sum(mss, |sent| sent.lost);
        let again = |sent: &Sent| sent.retransmitted && !sent.sacked && !sent.lost;
        (sacked, lost, self.sum(mss, again))
    }

    fn sum(&self, mss: usize, pick: impl Fn(&Sent) -> bool) -> usize {
        let picked = self.segments.iter().filter(|sent| pick(sent));
        picked.map(|sent| sent.len().div_ceil(mss.max(1))).sum()
    }

    /// Whether RACK may find a loss: a segment is SACKed or retransmitted, so that segments are not
    /// all in the order of transmission.
    pub(in crate::tcp) fn is_disordered(&self) -> bool {
        self.sacked > 0 || self.retrans > 0
    }

    pub(in crate::tcp) fn first(&self) -> Option<&Sent> {
        self.segments.front()
    }

    /// Time of transmission of the segment in flight that was sent first; `u64::MAX` if none is.
    pub(in crate::tcp) fn oldest_ns(&self) -> u64 {
        let in_flight = self.segments.iter().filter(|sent| !sent.sacked);
        in_flight.map(|sent| sent.sent_ns).min().unwrap_or(u64::MAX)
    }

    /// Adds a new segment behind the others.
    pub(in crate::tcp) fn push(&mut self, start: Seq, end: Seq, now_ns: u64) {
        self.snd_inflight += end.since(start) as u32;
        self.segments.push_back(Sent {
            start,
            end,
            sent_ns: now_ns,
            retransmitted: false,
            sacked: false,
            lost: false,
        });
    }

    /// Removes all before `una` and calls `each` for the removed segments. The rest of a segment
    /// that is acknowledged in part stays, and is returned.
    pub(in crate::tcp) fn acknowledge(
        &mut self,
        una: Seq,
        mut each: impl FnMut(&Sent),
    ) -> Option<Sent> {
        let mut partly = None;
        while let Some(first) = self.segments.front_mut() {
            if una.at_most(first.start) {
                break;
            }
            let gone = una.min(first.end).since(first.start) as u32;
            self.snd_inflight -= gone;
            self.sacked -= if first.sacked { gone } else { 0 };
            self.lost -= if first.lost { gone } else { 0 };
            if una.before(first.end) {
                first.start = una;
                partly = Some(*first);
                break;
            }
            self.retrans -= u32::from(first.retransmitted);
            each(first);
            self.segments.pop_front();
        }
        if self.segments.is_empty() && self.segments.capacity() > RESERVED_SEGMENTS {
            self.segments = VecDeque::new();
        }
        partly
    }

    /// Removes all segments.
    pub(in crate::tcp) fn clear(&mut self) {
        self.segments.clear();
        if self.segments.capacity() > RESERVED_SEGMENTS {
            self.segments = VecDeque::new();
        }
        (self.sacked, self.lost, self.retrans, self.snd_inflight) = (0, 0, 0, 0);
    }

    /// Frees unused memory: an idle connection holds none here.
    pub(in crate::tcp) fn release(&mut self) {
        if self.segments.is_empty() {
            self.segments = VecDeque::new();
        }
    }

    /// Marks the segments in a SACK block and calls `each` for them. A part of a segment does not
    /// count, unless the link has cut the segment: then each piece of `mss` bytes counts.
    pub(in crate::tcp) fn sack(
        &mut self,
        start: Seq,
        end: Seq,
        mss: usize,
        mut each: impl FnMut(&Sent),
    ) {
        self.split_at(start, mss, true);
        self.split_at(end, mss, false);
        let from = self
            .segments
            .partition_point(|sent| sent.start.before(start));
        for sent in self.segments.range_mut(from..) {
            if end.before(sent.end) {
                break;
            }
            if sent.sacked {
                continue;
            }
            let len = sent.len() as u32;
            self.lost -= if sent.lost { len } else { 0 };
            self.sacked += len;
            (sent.sacked, sent.lost) = (true, false);
            each(sent);
        }
    }

    /// Splits a segment that the link has cut, at `at` or at its next cut, up or down.
    fn split_at(&mut self, at: Seq, mss: usize, up: bool) {
        let index = self.segments.partition_point(|sent| sent.end.at_most(at));
        let Some(sent) = self.segments.get(index) else {
            return;
        };
        if sent.len() <= mss || at.at_most(sent.start) {
            return;
        }
        let offset = at.since(sent.start);
        let offset = if up {
            offset.next_multiple_of(mss)
        } else {
            offset - offset % mss
        };
        if offset > 0 {
            self.split(index, offset);
        }
    }

    /// Splits the first `mss` bytes of the first segment off.
    pub(in crate::tcp) fn split_at_first(&mut self, mss: usize) {
        if !self.segments.is_empty() {
            self.split(0, mss);
        }
    }

    /// Splits the last piece, of at most `mss` bytes, off the last segment that is not SACKed; returns
    /// where the piece starts.
    pub(in crate::tcp) fn split_at_last(&mut self, mss: usize) -> Option<Seq> {
        let index = self.segments.iter().rposition(|sent| !sent.sacked)?;
        let last = self.segments[index];
        let before = last.len().saturating_sub(1) / mss * mss;
        if before > 0 {
            self.split(index, before);
        }
        Some(last.start.plus(before))
    }

    /// Marks the segments from the first on as lost while `is_lost` holds; returns the length newly
    /// marked.
    pub(in crate::tcp) fn mark_lost(&mut self, is_lost: impl FnMut(&Sent) -> bool) -> usize {
        self.mark_lost_with(is_lost, |_| {})
    }

    /// As [`Scoreboard::mark_lost`], and calls `each` for the newly marked segments.
    pub(in crate::tcp) fn mark_lost_with(
        &mut self,
        mut is_lost: impl FnMut(&Sent) -> bool,
        mut each: impl FnMut(&Sent),
    ) -> usize {
        let before = self.lost;
        for sent in &mut self.segments {
            if sent.sacked || sent.lost || !is_lost(sent) {
                continue;
            }
            sent.lost = true;
            if self.lost == 0 || sent.start.before(self.lost_hint) {
                self.lost_hint = sent.start;
            }
            self.lost += sent.len() as u32;
            each(sent);
        }
        (self.lost - before) as usize
    }

    /// The first segment to be retransmitted, at most `len` long: a longer one is split.
    pub(in crate::tcp) fn next_lost(&mut self, len: usize) -> Option<Sent> {
        if self.lost == 0 {
            return None;
        }
        let first_lost = self.lost_hint;
        let from = self
            .segments
            .partition_point(|sent| sent.start.before(first_lost));
        let mut rest = self.segments.range(from..);
        let index = from + rest.position(|sent| sent.lost)?;
        self.split(index, len);
        self.lost_hint = self.segments[index].start;
        Some(self.segments[index])
    }

    fn split(&mut self, index: usize, len: usize) {
        let sent = self.segments[index];
        if sent.len() <= len {
            return;
        }
        let middle = sent.start.plus(len);
        self.segments[index].end = middle;
        let rest = Sent {
            start: middle,
            ..sent
        };
        self.retrans += u32::from(rest.retransmitted);
        self.segments.insert(index + 1, rest);
    }

    /// Records the retransmission of the segment that starts at `start`.
    pub(in crate::tcp) fn on_retransmit(&mut self, start: Seq, now_ns: u64) {
        let index = self
            .segments
            .partition_point(|sent| sent.start.before(start));
        let Some(sent) = self
            .segments
            .get_mut(index)
            .filter(|sent| sent.start == start)
        else {
            return;
        };
        self.lost -= if sent.lost { sent.len() as u32 } else { 0 };
        self.retrans += u32::from(!sent.retransmitted);
        (sent.lost, sent.retransmitted, sent.sent_ns) = (false, true, now_ns);
    }

    /// Forgets SACKs: the peer may have dropped what it had out of order (RFC 2018 §8).
    pub(in crate::tcp) fn forget_sacked(&mut self) {
        for sent in &mut self.segments {
            sent.sacked = false;
        }
        self.sacked = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    fn check(board: &Scoreboard) {
        let sum = |pick: fn(&Sent) -> bool| -> usize {
            board
                .segments
                .iter()
                .filter(|sent| pick(sent))
                .map(Sent::len)
                .sum()
        };
        assert_eq!(
            (board.snd_inflight(), board.sacked(), board.lost()),
            (
                sum(|_| true),
                sum(|sent| sent.sacked),
                sum(|sent| sent.lost)
            )
        );
        assert_eq!(
            board.retrans as usize,
            board
                .segments
                .iter()
                .filter(|sent| sent.retransmitted)
                .count()
        );
        assert!(
            board
                .segments
                .iter()
                .all(|sent| !(sent.sacked && sent.lost))
        );
        let ends = board.segments.iter().zip(board.segments.iter().skip(1));
        assert!(ends.clone().all(|(one, next)| one.end == next.start));
        assert_eq!(
            board.snd_inflight(),
            board.pipe() + board.sacked() + board.lost()
        );
    }

    #[test]
    fn sums_hold_whatever_happens() {
        let mut rng = Rng::new(11);
        let mut board = Scoreboard::default();
        let (mut una, mut nxt) = (Seq(u32::MAX - 5000), Seq(u32::MAX - 5000));
        for now_ns in 0..20_000 {
            let flight = nxt.since(una) as u32;
            match rng.below(9) {
                0 | 1 if board.segments.len() < 100 => {
                    let most = if rng.below(4) == 0 { 20_000 } else { 1460 };
                    let end = nxt.plus(1 + rng.below(most) as usize);
                    board.push(nxt, end, now_ns);
                    nxt = end;
                }
                2 => {
                    una = una.plus(rng.below(flight / 4 + 1) as usize);
                    let mut end = Seq(0);
                    board.acknowledge(una, |sent| end = sent.end);
                    assert!(board.first().is_none_or(|sent| sent.start == una));
                }
                3 => {
                    let start = una.plus(rng.below(flight + 1) as usize);
                    let end = start.plus(rng.below(5000) as usize);
                    board.sack(start, end.min(nxt), 1460, |sent| {
                        assert!(start.at_most(sent.start))
                    });
                }
                4 => {
                    board.mark_lost(|_| rng.below(10) == 0);
                }
                5 => {
                    if let Some(sent) = board.next_lost(1 + rng.below(1460) as usize) {
                        assert!(
                            sent.lost
                                && !board
                                    .segments
                                    .iter()
                                    .any(|other| other.lost && other.start.before(sent.start))
                        );
                        board.on_retransmit(sent.start, now_ns);
                    }
                }
                _ if rng.below(50) == 0 => board.forget_sacked(),
                6 => board.split_at_first(1460),
                7 => drop(board.split_at_last(1460)),
                _ => {}
            }
            check(&board);
        }
    }
}
