//! [`ReceiveBuffer`]: received data in order and out of order, the window, and selective
//! acknowledgments (RFC 9293 §3.8.6.2, RFC 2018, RFC 2883).

use super::byte_ring::{ByteRing, clamp};
use crate::tcp::seq::Seq;
use weir_wire::checksum::Sum;
use weir_wire::tcp::SackBlocks;

/// Limit on a connection's out-of-order ranges. A segment that would make a further one is
/// dropped, and the peer sends it again.
pub const OOO_RANGES_MAX: usize = 512;

/// The window in units of the bytes of one round trip: one in flight, one in which the sender
/// doubles its rate, and a reserve.
const WINDOW_RTTS: usize = 3;

/// On a path with round trips shorter than `SHORT_RTT_NS`, in nanoseconds, the window grows to at
/// most `SHORT_RTT_WINDOW` bytes: enough for 40 Gb/s, and unread bytes stay in the caches.
pub(in crate::tcp) const SHORT_RTT_NS: u64 = 200_000;
const SHORT_RTT_WINDOW: usize = 1 << 20;
/// Signs of an application that reads in bursts, for which the window may grow beyond
/// `SHORT_RTT_WINDOW`. A pause of `SLOW_READER_NS` after the window was nearly full adds
/// `SLOW_READER_STEP`, a round trip without one subtracts 1; from `SLOW_READER_THRESHOLD` on,
/// received bytes are counted over `SLOW_READER_ROUND_NS`.
const SLOW_READER_NS: u64 = 300_000;
const SLOW_READER_STEP: u8 = 32;
const SLOW_READER_THRESHOLD: u8 = 128;
const SLOW_READER_ROUND_NS: u64 = 1_000_000;

/// Out-of-order ranges with memory at first, and the most that keep their memory once all are
/// merged.
const OOO_RANGES_MIN: usize = 4;
const OOO_RANGES_KEPT: usize = 32;

/// A range of bytes that arrived out of order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct OooRange {
    start: Seq,
    end: Seq,
    /// Order of the last growth: a greater number grew later.
    recency: u32,
}

/// Memory that remains for all connections, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::tcp) struct MemoryAvailable {
    /// For bytes received in order, and for bytes to send.
    pub(in crate::tcp) bytes: usize,
    /// For bytes out of order. No application can read and free them, so that they get
    /// less.
    pub(in crate::tcp) ooo: usize,
}

/// The result of inserting a segment's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::tcp) enum Insertion {
    /// They continue the bytes in order, and no range is left out of order.
    InOrder,
    /// They continue the bytes in order, and a gap remains behind them: the sender must know at
    /// once.
    FilledHole,
    /// They are out of order, stored or dropped: a gap is before them.
    OutOfOrder,
    /// They are duplicates, or there is no memory for them now.
    Duplicate,
}

/// The receive buffer of one connection.
pub(in crate::tcp) struct ReceiveBuffer {
    /// The next expected sequence number (RCV.NXT).
    pub(in crate::tcp) nxt: Seq,
    /// The right edge of the advertised window.
    pub(in crate::tcp) rcv_adv: Seq,
    /// The shift of the advertised window (RFC 7323 §2).
    pub(in crate::tcp) scale: u8,
    /// The count of pauses that show a slow reader, and whether the window was nearly full in this
    /// round trip.
    slow_reader: u8,
    was_full: bool,
    /// The peer's initial sequence number (IRS).
    pub(in crate::tcp) irs: Seq,
    /// The sequence number of the peer's FIN, received in order or not.
    pub(in crate::tcp) fin: Option<Seq>,
    /// The readable bytes; out-of-order ranges lie behind their end.
    buffer: ByteRing,
    ooo_ranges: Vec<OooRange>,
    recency: u32,
    /// A duplicate range, to be reported once (RFC 2883).
    duplicate: Option<(Seq, Seq)>,
    /// Limit on buffered bytes: at present, and for any path.
    limit: u32,
    limit_max: u32,
    /// Limit on storage, in bytes, by the memory available to all connections: for bytes in order,
    /// and for bytes out of order.
    storage_max: u32,
    ooo_max: u32,
    /// Start of this round trip, and the bytes received in it.
    round_ns: u64,
    round_bytes: u32,
    /// The round-trip time by echoed timestamps, in microseconds; zero before the first.
    rtt_us: u32,
}

impl ReceiveBuffer {
    pub(in crate::tcp) fn new(limit: usize, limit_max: usize, scale: u8) -> ReceiveBuffer {
        ReceiveBuffer {
            nxt: Seq(0),
            rcv_adv: Seq(0),
            scale,
            slow_reader: 0,
            was_full: false,
            irs: Seq(0),
            fin: None,
            buffer: ByteRing::default(),
            ooo_ranges: Vec::new(),
            recency: 0,
            duplicate: None,
            limit: clamp(limit.min(limit_max)),
            limit_max: clamp(limit_max),
            storage_max: u32::MAX,
            ooo_max: u32::MAX,
            round_ns: 0,
            round_bytes: 0,
            rtt_us: 0,
        }
    }

    /// Starts behind the peer's SYN.
    pub(in crate::tcp) fn start(&mut self, irs: Seq) {
        self.irs = irs;
        self.nxt = irs.plus(1);
        self.rcv_adv = self.nxt;
    }

    /// The advertised window, in bytes.
    pub(in crate::tcp) fn window(&self) -> usize {
        self.rcv_adv.since(self.nxt)
    }

    /// Number of bytes that can still be received, by the window and the available memory.
    pub(in crate::tcp) fn room(&self, left: usize) -> usize {
        let storage_max = self.buffer.capacity().saturating_add(left);
        self.window().min(self.buffer.room(storage_max))
    }

    /// Stores a segment's bytes, cut to the window.
    pub(in crate::tcp) fn insert(&mut self, mut seq: Seq, mut bytes: &[u8]) -> Insertion {
        let mut told = None;
        if seq.before(self.nxt) {
            let old = self.nxt.since(seq).min(bytes.len());
            told = Some((seq, seq.plus(old)));
            self.duplicate = told;
            bytes = &bytes[old..];
            seq = self.nxt;
        }
        let room = self.rcv_adv.since(self.nxt) as isize - seq.since(self.nxt) as isize;
        bytes = &bytes[..bytes.len().min(room.max(0) as usize)];
        if let Some(fin) = self.fin {
            let before_fin = fin.since(self.nxt) as isize - seq.since(self.nxt) as isize;
            bytes = &bytes[..bytes.len().min(before_fin.max(0) as usize)];
        }
        if bytes.is_empty() || !self.has_memory(seq, bytes.len()) {
            return Insertion::Duplicate;
        }
        // Of several duplicate ranges the first is reported (RFC 2883 §4.3).
        let held = self.received_of(seq, seq.plus(bytes.len()));
        self.duplicate = told.or(held).or(self.duplicate);
        if seq == self.nxt {
            self.buffer.push(bytes);
            self.nxt = seq.plus(bytes.len());
            return match self.merge_ranges() {
                // The sender must know of a duplicate at once.
                Insertion::InOrder if told.or(held).is_some() => Insertion::FilledHole,
                taken => taken,
            };
        }
        self.insert_ooo(seq, bytes)
    }

    /// The first part of these bytes that was received before, out of order.
    fn received_of(&self, start: Seq, end: Seq) -> Option<(Seq, Seq)> {
        let at = self
            .ooo_ranges
            .partition_point(|piece| piece.end.at_most(start));
        let piece = self
            .ooo_ranges
            .get(at)
            .filter(|piece| piece.start.before(end))?;
        Some((piece.start.max(start), piece.end.min(end)))
    }

    /// Sets the limit on buffered bytes, for any path.
    pub(in crate::tcp) fn set_limit(&mut self, bytes: usize) {
        self.limit = clamp(bytes.max(1));
        self.limit_max = self.limit;
    }

    /// Chooses a window shift that expresses the whole buffer, before the SYN carries it.
    pub(in crate::tcp) fn choose_scale(&mut self) {
        self.scale = self.scale.max(crate::tcp::scale(self.limit()));
    }

    /// The present limit on buffered bytes.
    fn limit(&self) -> usize {
        self.limit as usize
    }

    /// Bytes of free storage behind the readable ones.
    #[inline]
    pub(in crate::tcp) fn spare(&self) -> usize {
        self.buffer.spare()
    }

    /// Sets the memory that this connection and all others may still take.
    #[inline]
    pub(in crate::tcp) fn set_memory(&mut self, left: MemoryAvailable) {
        let capacity = self.buffer.capacity();
        self.storage_max = clamp(capacity + left.bytes);
        self.ooo_max = clamp(capacity + left.ooo);
    }

    /// Whether there is memory for bytes within the window.
    #[inline]
    pub(in crate::tcp) fn has_memory(&self, seq: Seq, count: usize) -> bool {
        let most = if seq == self.nxt {
            self.storage_max
        } else {
            self.ooo_max
        };
        let ahead = seq.since(self.nxt) + count;
        ahead <= self.buffer.spare() || ahead <= self.buffer.room(most as usize)
    }

    /// Adapts the limit after bytes in order, as Linux' `tcp_rcv_space_adjust`: a sender of more
    /// than half the window in a round trip may be limited by the window. Unread bytes prevent
    /// growth. On a path with short round trips (`near`) the window grows to at most
    /// [`SHORT_RTT_WINDOW`], unless the reader is slow.
    pub(in crate::tcp) fn autotune(&mut self, now_ns: u64, count: usize, rtt_ns: u64, near: bool) {
        self.round_bytes = self.round_bytes.saturating_add(count as u32);
        self.was_full |= self.window() < self.limit() / 4;
        let (near, rtt_ns) = match self.slow_reader {
            SLOW_READER_THRESHOLD.. => (false, rtt_ns.max(SLOW_READER_ROUND_NS)),
            _ if near => (true, SHORT_RTT_NS),
            _ => (false, rtt_ns),
        };
        let passed_ns = now_ns.saturating_sub(self.round_ns);
        if passed_ns < rtt_ns {
            return;
        }
        self.slow_reader = if near && self.was_full && passed_ns >= SLOW_READER_NS {
            self.slow_reader.saturating_add(SLOW_READER_STEP)
        } else {
            self.slow_reader.saturating_sub(1)
        };
        let wanted = clamp(WINDOW_RTTS * self.round_bytes as usize);
        if wanted > self.limit && self.buffer.len() <= self.limit() / 2 {
            let most = if near {
                self.limit_max.min(clamp(SHORT_RTT_WINDOW))
            } else {
                self.limit_max
            };
            self.limit = self.limit.max(wanted.min(most));
        }
        (self.round_ns, self.round_bytes, self.was_full) = (now_ns, 0, false);
    }

    /// Whether the window may still grow.
    #[inline]
    pub(in crate::tcp) fn can_autotune(&self) -> bool {
        self.limit < self.limit_max
    }

    /// Records the age of an echoed timestamp that a full segment carried.
    pub(in crate::tcp) fn measured(&mut self, rtt_us: u32) {
        self.rtt_us = match self.rtt_us {
            0 => rtt_us,
            // A pause of the sender is no measurement.
            known => known - known / 8 + rtt_us.min(2 * known) / 8,
        };
    }

    /// The round-trip time by timestamps, in nanoseconds.
    pub(in crate::tcp) fn rtt_ns(&self) -> Option<u64> {
        (self.rtt_us > 0).then(|| u64::from(self.rtt_us) * 1000)
    }

    /// Whether nothing is out of order, not even a FIN.
    pub(in crate::tcp) fn is_in_order(&self) -> bool {
        self.ooo_ranges.is_empty() && self.fin.is_none_or(|fin| fin.before(self.nxt))
    }

    /// Copies the next bytes, which are within the window and followed by no out-of-order range;
    /// [`ReceiveBuffer::commit`] accepts them.
    pub(in crate::tcp) fn stage(&mut self, bytes: &[u8]) {
        self.buffer.write_behind(0, bytes);
    }

    /// [`ReceiveBuffer::stage`], and returns the sum of the bytes.
    #[inline]
    pub(in crate::tcp) fn stage_summed(&mut self, bytes: &[u8]) -> Sum {
        self.buffer.stage(bytes)
    }

    /// Accepts staged bytes.
    #[inline]
    pub(in crate::tcp) fn commit(&mut self, count: usize) -> Insertion {
        self.buffer.extend(count);
        self.nxt = self.nxt.plus(count);
        Insertion::InOrder
    }

    /// Advances over bytes that the application has received without the buffer. The buffer is
    /// empty, and nothing is out of order.
    pub(in crate::tcp) fn advance_placed(&mut self, count: usize) -> Insertion {
        assert!(
            self.readable() == 0 && self.ooo_ranges.is_empty(),
            "in order"
        );
        self.nxt = self.nxt.plus(count);
        Insertion::InOrder
    }

    /// Merges the out-of-order ranges that now continue the bytes in order.
    fn merge_ranges(&mut self) -> Insertion {
        let before = self.ooo_ranges.len();
        while let Some(piece) = self.ooo_ranges.first() {
            if self.nxt.before(piece.start) {
                break;
            }
            if self.nxt.before(piece.end) {
                self.buffer.extend(piece.end.since(self.nxt));
                self.nxt = piece.end;
            }
            self.ooo_ranges.remove(0);
        }
        if self.ooo_ranges.is_empty() {
            self.ooo_ranges.shrink_to(OOO_RANGES_KEPT);
        }
        match (before, self.ooo_ranges.len()) {
            (0, _) => Insertion::InOrder,
            _ => Insertion::FilledHole,
        }
    }

    fn insert_ooo(&mut self, start: Seq, bytes: &[u8]) -> Insertion {
        let end = start.plus(bytes.len());
        // Ranges that touch these bytes merge with them.
        let first = self
            .ooo_ranges
            .partition_point(|piece| piece.end.before(start));
        let last = self
            .ooo_ranges
            .partition_point(|piece| piece.start.at_most(end));
        if first == last && !self.has_ooo_room(start.since(self.nxt) + bytes.len()) {
            return Insertion::OutOfOrder;
        }
        if let [only] = self.ooo_ranges[first..last]
            && only.start.at_most(start)
            && end.at_most(only.end)
        {
            self.grow(first);
            return Insertion::OutOfOrder;
        }
        self.buffer.write_behind(start.since(self.nxt), bytes);
        let joined = self.ooo_ranges[first..last].iter();
        let (start, end) = joined.fold((start, end), |(start, end), piece| {
            (start.min(piece.start), end.max(piece.end))
        });
        self.ooo_ranges.drain(first..last);
        let piece = OooRange {
            start,
            end,
            recency: 0,
        };
        self.ooo_ranges.insert(first, piece);
        self.grow(first);
        Insertion::OutOfOrder
    }

    /// Whether a further range, up to `ahead` bytes behind the next expected byte, may be stored:
    /// the list of ranges takes memory, too.
    fn has_ooo_room(&mut self, ahead: usize) -> bool {
        let count = self.ooo_ranges.len();
        if count < self.ooo_ranges.capacity() {
            return true;
        }
        let more = count.max(OOO_RANGES_MIN);
        let storage = self.buffer.capacity_for(ahead) + more * size_of::<OooRange>();
        if count == OOO_RANGES_MAX || storage > self.ooo_max as usize {
            return false;
        }
        self.ooo_ranges.reserve_exact(more);
        true
    }

    fn grow(&mut self, index: usize) {
        self.recency += 1;
        self.ooo_ranges[index].recency = self.recency;
    }

    /// Records the peer's FIN at `seq`; returns whether it is the next expected number.
    pub(in crate::tcp) fn finish(&mut self, seq: Seq) -> bool {
        self.fin.get_or_insert(seq);
        self.fin == Some(self.nxt)
    }

    /// Whether the peer's FIN, and all before it, was received.
    pub(in crate::tcp) fn has_finished(&self) -> bool {
        self.fin.is_some_and(|fin| fin.before(self.nxt))
    }

    /// Number of readable bytes.
    pub(in crate::tcp) fn readable(&self) -> usize {
        self.buffer.len()
    }

    /// Whether there are out-of-order ranges.
    #[cfg(test)]
    fn has_gaps(&self) -> bool {
        !self.ooo_ranges.is_empty()
    }

    /// The readable bytes that lie together at the start.
    pub(in crate::tcp) fn front(&self) -> &[u8] {
        self.buffer.front()
    }

    /// Copies bytes from the start into `out`, as many as fit.
    pub(in crate::tcp) fn copy(&self, out: &mut [u8]) {
        self.buffer.copy(0, out);
    }

    /// Drops bytes that were read.
    pub(in crate::tcp) fn consume(&mut self, count: usize) {
        self.buffer.consume(count);
        if self.ooo_ranges.is_empty() {
            self.buffer.rewind();
        }
    }

    /// Frees unused memory; returns whether none is left.
    pub(in crate::tcp) fn release(&mut self) -> bool {
        if self.buffer.len() == 0 && self.ooo_ranges.is_empty() {
            self.buffer.release();
            self.ooo_ranges = Vec::new();
        }
        self.buffer.capacity() == 0
    }

    /// Frees all memory, with its bytes.
    pub(in crate::tcp) fn discard(&mut self) {
        if self.capacity() > 0 {
            (self.buffer, self.ooo_ranges) = (ByteRing::default(), Vec::new());
        }
    }

    /// Records a duplicate range, which the next acknowledgment reports (RFC 2883).
    pub(in crate::tcp) fn note_duplicate(&mut self, seq: Seq, len: usize) {
        let end = seq.plus(len);
        if len > 0 && end.at_most(self.nxt) {
            self.duplicate = Some((seq, end));
        }
    }

    /// Bytes of storage: of the buffer and of the list of ranges.
    pub(in crate::tcp) fn capacity(&self) -> usize {
        self.buffer.capacity() + self.ooo_ranges.capacity() * size_of::<OooRange>()
    }

    /// The right edge of the window that could be advertised now: by the free room, unless that is
    /// little more than before (RFC 9293 §3.8.6.2.2).
    fn rcv_adv_now(&self, mss: usize) -> Seq {
        let room = self.limit().saturating_sub(self.buffer.len());
        let room = room.min(self.buffer.room(self.storage_max as usize));
        let most = usize::from(u16::MAX) << self.scale;
        let edge = self.nxt.plus(room.min(most) >> self.scale << self.scale);
        let worth = mss.min(self.limit() / 2).max(1);
        if self.rcv_adv.before(edge) && edge.since(self.rcv_adv) >= worth {
            edge
        } else {
            self.rcv_adv
        }
    }

    /// Whether the window could open enough for an acknowledgment of its own: to twice its size. A
    /// peer with more than half of the window left gets the update with the next acknowledgment.
    pub(in crate::tcp) fn window_opens(&self, mss: usize) -> bool {
        let (edge, window) = (self.rcv_adv_now(mss), self.window());
        let worth = (2 * mss).min(self.limit() / 2).max(1);
        edge.since(self.rcv_adv) >= worth.max(window)
    }

    /// The window field to send; the window then counts as advertised. An advertised window never
    /// shrinks, though the shift may round it up.
    pub(in crate::tcp) fn advertise(&mut self, mss: usize) -> u16 {
        self.rcv_adv = self.rcv_adv_now(mss);
        let window = self.window().div_ceil(1 << self.scale);
        u16::try_from(window).unwrap_or(u16::MAX)
    }

    /// The window field of a SYN, which is not shifted.
    pub(in crate::tcp) fn advertise_on_syn(&mut self) -> u16 {
        let window = u16::try_from(self.limit).unwrap_or(u16::MAX);
        self.rcv_adv = self.rcv_adv.max(self.nxt.plus(window.into()));
        window
    }

    /// Whether there are ranges to acknowledge selectively.
    #[inline]
    pub(in crate::tcp) fn has_blocks(&self) -> bool {
        !self.ooo_ranges.is_empty() || self.duplicate.is_some()
    }

    /// At most `room` SACK blocks: first a duplicate range, then the out-of-order ranges, latest
    /// growth first (RFC 2018 §4, RFC 2883 §4).
    pub(in crate::tcp) fn sack(&mut self, room: usize) -> SackBlocks {
        let mut blocks = SackBlocks::default();
        let mut left = room.min(SackBlocks::MAX);
        let mut push = |(start, end): (Seq, Seq)| {
            if left > 0 && blocks.push(start.0, end.0) {
                left -= 1;
            }
        };
        if let Some(duplicate) = self.duplicate.take() {
            push(duplicate);
        }
        let mut latest = [None::<&OooRange>; SackBlocks::MAX];
        for piece in &self.ooo_ranges {
            let mut piece = Some(piece);
            for place in &mut latest {
                if piece.map(|piece| piece.recency) > place.map(|piece| piece.recency) {
                    std::mem::swap(&mut piece, place);
                }
            }
        }
        for piece in latest.into_iter().flatten() {
            push((piece.start, piece.end));
        }
        blocks
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    fn receive(limit: usize) -> ReceiveBuffer {
        let mut receive = ReceiveBuffer::new(limit, limit, 0);
        receive.start(Seq(u32::MAX - 100));
        receive.advertise(1);
        receive
    }

    fn read(receive: &mut ReceiveBuffer) -> Vec<u8> {
        let mut bytes = Vec::new();
        while receive.readable() > 0 {
            let front = receive.front().len();
            bytes.extend_from_slice(receive.front());
            receive.consume(front);
        }
        bytes
    }

    /// Bursts of two megabytes, within the window or beyond it, and then a pause.
    #[test]
    fn near_windows_stay_short_unless_the_reader_comes_late() {
        for rtt_ns in [50_000, 1_000_000] {
            let mut receive = ReceiveBuffer::new(100_000, 4 << 20, 0);
            receive.start(Seq(0));
            let mut now_ns = 1;
            let mut burst = |receive: &mut ReceiveBuffer, full: bool, pause_ns: u64| {
                receive.rcv_adv = if full {
                    receive.nxt
                } else {
                    receive.nxt.plus(receive.limit())
                };
                receive.autotune(now_ns, 1 << 20, rtt_ns, true);
                now_ns += pause_ns;
                receive.autotune(now_ns, 1 << 20, rtt_ns, true);
                now_ns += SHORT_RTT_NS;
            };
            for _ in 0..100 {
                burst(&mut receive, true, 0);
            }
            assert_eq!(receive.limit(), SHORT_RTT_WINDOW);
            // A rare pause is the machine's; frequent ones are the reader's.
            for at in 0..500 {
                burst(
                    &mut receive,
                    true,
                    if at % 50 == 0 { SLOW_READER_NS } else { 0 },
                );
                burst(&mut receive, false, SLOW_READER_NS);
            }
            assert_eq!(receive.limit(), SHORT_RTT_WINDOW);
            for _ in 0..50 {
                burst(&mut receive, true, SLOW_READER_NS);
            }
            assert_eq!(receive.limit(), 4 << 20, "{rtt_ns}");
        }
    }

    /// In any order, with overlaps and duplicates: the stream is what was sent.
    #[test]
    fn a_stream_is_put_together_whatever_the_order() {
        let mut rng = Rng::new(5);
        for _ in 0..50 {
            let mut receive = receive(5000);
            let start = receive.nxt;
            let stream: Vec<u8> = (0..4000).map(|_| rng.bits() as u8).collect();
            let mut came = Vec::new();
            while receive.nxt.since(start) < stream.len() {
                let at = rng.below(4000) as usize;
                let len = (rng.below(300) as usize).min(4000 - at);
                receive.insert(start.plus(at), &stream[at..at + len]);
                came.extend(read(&mut receive));
                receive.advertise(1);
                assert!(receive.ooo_ranges.len() <= OOO_RANGES_MAX);
                assert!(
                    receive
                        .ooo_ranges
                        .windows(2)
                        .all(|pair| pair[0].end.before(pair[1].start))
                );
            }
            assert!(came == stream && !receive.has_gaps());
        }
    }

    #[test]
    fn nothing_beyond_the_window_or_the_fin_is_taken() {
        let mut receive = receive(1000);
        let start = receive.nxt;
        assert_eq!(
            receive.insert(start.plus(900), &[1; 200]),
            Insertion::OutOfOrder
        );
        assert_eq!(
            receive.insert(start.plus(1000), &[1; 200]),
            Insertion::Duplicate
        );
        assert_eq!(receive.insert(start, &[2; 900]), Insertion::FilledHole);
        assert_eq!((receive.readable(), receive.window()), (1000, 0));
        let mut receive = self::receive(1000);
        let start = receive.nxt;
        assert!(!receive.finish(start.plus(10)));
        assert_eq!(receive.insert(start, &[1; 20]), Insertion::InOrder);
        assert_eq!(receive.readable(), 10);
        assert!(receive.finish(start.plus(99)), "the first one holds");
    }

    #[test]
    fn blocks_tell_the_latest_first() {
        let mut receive = receive(10_000);
        let start = receive.nxt;
        let block = |from: usize, to: usize| (start.plus(from).0, start.plus(to).0);
        for at in [1000, 3000, 5000, 7000, 9000] {
            receive.insert(start.plus(at), &[0; 100]);
        }
        let latest = [block(9000, 9100), block(7000, 7100), block(5000, 5100)];
        assert_eq!(receive.sack(3).as_slice(), latest);
        receive.insert(start.plus(1100), &[0; 50]);
        assert_eq!(receive.sack(3).as_slice()[0], block(1000, 1150));
        // A duplicate is reported first, and once.
        receive.insert(start.plus(3020), &[0; 10]);
        let blocks = receive.sack(4);
        assert_eq!(
            blocks.as_slice()[..2],
            [block(3020, 3030), block(3000, 3100)]
        );
        assert_eq!(receive.sack(4).as_slice()[0], block(3000, 3100));
    }

    #[test]
    fn gaps_are_bounded() {
        let mut receive = receive(60_000);
        let start = receive.nxt;
        for at in 0..1000 {
            receive.insert(start.plus(2 * at + 1), &[0]);
        }
        assert_eq!(receive.ooo_ranges.len(), OOO_RANGES_MAX);
        assert!(receive.capacity() <= 65_536);
    }

    /// RFC 9293 §3.8.6.2.2: no small updates, and the window never shrinks.
    #[test]
    fn the_window_moves_in_steps_worth_telling() {
        let mut receive = receive(10_000);
        assert_eq!(receive.window(), 10_000);
        let start = receive.nxt;
        receive.insert(start, &[0; 10_000]);
        assert_eq!(receive.advertise(1460), 0);
        receive.consume(1459);
        assert_eq!(
            (receive.window_opens(1460), receive.advertise(1460)),
            (false, 0)
        );
        receive.consume(1);
        assert_eq!(
            (receive.window_opens(1460), receive.advertise(1460)),
            (false, 1460)
        );
        receive.consume(2920);
        assert_eq!(
            (receive.window_opens(1460), receive.advertise(1460)),
            (true, 4380)
        );
        receive.scale = 7;
        let edge = receive.rcv_adv;
        let field = usize::from(receive.advertise(1460));
        assert_eq!(receive.rcv_adv, edge);
        assert!(field << 7 >= receive.window());
    }
}
