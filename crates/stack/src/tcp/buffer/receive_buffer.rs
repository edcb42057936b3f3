//! [`ReceiveBuffer`]: received data in order and out of order, the window, and selective
//! acknowledgments (RFC 9293 §3.8.6.2, RFC 2018, RFC 2883).

use super::byte_ring::{ByteRing, clamp};
use crate::tcp::seq::Seq;
use weir_wire::checksum::Sum;
use weir_wire::tcp::SackBlocks;

/// Limit on a connection's out-of-order ranges. A segment that would make a further one is
/// dropped, and the peer sends it again.
pub const OOO_RANGES_MAX: usize = 512;

/// The window in units of the bytes of one round trip: one that is under way, one in which the
/// sender doubles its rate, and a reserve.
const WINDOW_RTTS: usize = 3;

/// On a path with round trips shorter than this, in nanoseconds, the window grows no
/// wider than so many bytes: that is 40 Gb/s and more, and what is not read yet stays
/// in the caches.
pub(in crate::tcp) const SHORT_RTT_NS: u64 = 200_000;
const SHORT_RTT_WINDOW: usize = 1 << 20;
/// Unless, again and again, nothing came for so long after the window was nearly full:
/// who reads in bursts gets no more at once than it lets in. How much one such pause
/// counts, of which each round trip without one takes 1 off, and how much is often;
/// and for how long then is counted what comes.
const SLOW_READER_NS: u64 = 300_000;
const SLOW_READER_STEP: u8 = 32;
const SLOW_READER_THRESHOLD: u8 = 128;
const SLOW_READER_ROUND_NS: u64 = 1_000_000;

/// Pieces for which there is room at first, and is left once all are joined.
const OOO_RANGES_MIN: usize = 4;
const OOO_RANGES_KEPT: usize = 32;

/// Bytes that came out of order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct OooRange {
    start: Seq,
    end: Seq,
    /// The greater, the later it grew.
    recency: u32,
}

/// Memory that remains for all connections, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::tcp) struct MemoryAvailable {
    /// For whatever comes, or is to be sent.
    pub(in crate::tcp) bytes: usize,
    /// For bytes out of order, which nobody can read and thereby free: others
    /// are not to starve of them.
    pub(in crate::tcp) ooo: usize,
}

/// The result of inserting a segment's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::tcp) enum Insertion {
    /// They continue what was there, and all pieces are joined.
    InOrder,
    /// They continue what was there, and pieces still wait behind: the sender
    /// must know at once.
    FilledHole,
    /// They wait, or were dropped; a gap is before them.
    OutOfOrder,
    /// They were there, or there is no memory for them now.
    Duplicate,
}

/// The receive buffer of one connection.
pub(in crate::tcp) struct ReceiveBuffer {
    /// The next number expected.
    pub(in crate::tcp) nxt: Seq,
    /// The right edge of the window as the peer knows it.
    pub(in crate::tcp) rcv_adv: Seq,
    /// The window's shift.
    pub(in crate::tcp) scale: u8,
    /// How often bytes came late, and whether the window was nearly full since the
    /// round trip began.
    slow_reader: u8,
    was_full: bool,
    /// The peer's initial number.
    pub(in crate::tcp) irs: Seq,
    /// The number of the peer's FIN, once it came, in order or not.
    pub(in crate::tcp) fin: Option<Seq>,
    /// What can be read; pieces lie behind its end.
    buffer: ByteRing,
    ooo_ranges: Vec<OooRange>,
    recency: u32,
    /// A piece that came twice, to be told once.
    duplicate: Option<(Seq, Seq)>,
    /// The most bytes that wait here: now, and however long the path.
    limit: u32,
    limit_max: u32,
    /// The most bytes of storage, by the memory that is left to all: for bytes
    /// in order, and for those that wait for others.
    storage_max: u32,
    ooo_max: u32,
    /// When this round trip began, and the bytes that came in it.
    round_ns: u64,
    round_bytes: u32,
    /// How long a round trip takes by the timestamps that come back, in
    /// microseconds; zero before any has.
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

    /// The window as the peer knows it.
    pub(in crate::tcp) fn window(&self) -> usize {
        self.rcv_adv.since(self.nxt)
    }

    /// How many bytes more there is room for: by the window, and the memory that
    /// is left.
    pub(in crate::tcp) fn room(&self, left: usize) -> usize {
        let storage_max = self.buffer.capacity().saturating_add(left);
        self.window().min(self.buffer.room(storage_max))
    }

    /// Takes what a segment carries, cut to the window.
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
        // Of several parts that came before the first is told (RFC 2883 §4.3).
        let held = self.received_of(seq, seq.plus(bytes.len()));
        self.duplicate = told.or(held).or(self.duplicate);
        if seq == self.nxt {
            self.buffer.push(bytes);
            self.nxt = seq.plus(bytes.len());
            return match self.merge_ranges() {
                // The sender must know at once of what came twice.
                Insertion::InOrder if told.or(held).is_some() => Insertion::FilledHole,
                taken => taken,
            };
        }
        self.insert_ooo(seq, bytes)
    }

    /// The first part of these bytes that waits already.
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

    /// Sets the most bytes that wait here, from now on whatever the path.
    pub(in crate::tcp) fn set_limit(&mut self, bytes: usize) {
        self.limit = clamp(bytes.max(1));
        self.limit_max = self.limit;
    }

    /// Chooses a shift that tells all of the buffer, before it is told.
    pub(in crate::tcp) fn choose_scale(&mut self) {
        self.scale = self.scale.max(crate::tcp::scale(self.limit()));
    }

    /// The most bytes that wait here now.
    fn limit(&self) -> usize {
        self.limit as usize
    }

    /// Bytes for which there is storage behind those that can be read.
    #[inline]
    pub(in crate::tcp) fn spare(&self) -> usize {
        self.buffer.spare()
    }

    /// So much memory is left for it and all others.
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

    /// Bytes came in order. The window follows the path, as Linux's does: who
    /// sends more than half of it in a round trip may be held up by it. It does
    /// not while they wait to be read. On a path that is `near` it becomes no wider
    /// than is worth it there, unless bytes come late.
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

    /// Whether the window may still become wider.
    #[inline]
    pub(in crate::tcp) fn can_autotune(&self) -> bool {
        self.limit < self.limit_max
    }

    /// A full segment came back with a timestamp of ours that old.
    pub(in crate::tcp) fn measured(&mut self, rtt_us: u32) {
        self.rtt_us = match self.rtt_us {
            0 => rtt_us,
            // A sender that had paused measures nothing.
            known => known - known / 8 + rtt_us.min(2 * known) / 8,
        };
    }

    /// The round trip as the timestamps tell it, in nanoseconds.
    pub(in crate::tcp) fn rtt_ns(&self) -> Option<u64> {
        (self.rtt_us > 0).then(|| u64::from(self.rtt_us) * 1000)
    }

    /// Whether nothing waits out of order, not even a FIN.
    pub(in crate::tcp) fn is_in_order(&self) -> bool {
        self.ooo_ranges.is_empty() && self.fin.is_none_or(|fin| fin.before(self.nxt))
    }

    /// Copies the next bytes, which are within the window and behind which
    /// nothing waits; [`ReceiveBuffer::commit`] takes them.
    pub(in crate::tcp) fn stage(&mut self, bytes: &[u8]) {
        self.buffer.write_behind(0, bytes);
    }

    /// [`ReceiveBuffer::stage`], and the bytes' sum.
    #[inline]
    pub(in crate::tcp) fn stage_summed(&mut self, bytes: &[u8]) -> Sum {
        self.buffer.stage(bytes)
    }

    /// Takes bytes that were staged.
    #[inline]
    pub(in crate::tcp) fn commit(&mut self, count: usize) -> Insertion {
        self.buffer.extend(count);
        self.nxt = self.nxt.plus(count);
        Insertion::InOrder
    }

    /// The next bytes in order were read where they came from; nothing waits to be
    /// read, or behind them.
    pub(in crate::tcp) fn advance_placed(&mut self, count: usize) -> Insertion {
        assert!(
            self.readable() == 0 && self.ooo_ranges.is_empty(),
            "in order"
        );
        self.nxt = self.nxt.plus(count);
        Insertion::InOrder
    }

    /// Joins the pieces that have come to continue.
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
        // The pieces that touch these bytes become one with them.
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

    /// Whether one more piece, up to `ahead` bytes behind what is next, may be
    /// kept: what is known of it takes memory, too.
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

    /// The peer's FIN came, behind the bytes before `seq`; whether it is next.
    pub(in crate::tcp) fn finish(&mut self, seq: Seq) -> bool {
        self.fin.get_or_insert(seq);
        self.fin == Some(self.nxt)
    }

    /// Whether the peer's FIN, and all before it, was taken.
    pub(in crate::tcp) fn has_finished(&self) -> bool {
        self.fin.is_some_and(|fin| fin.before(self.nxt))
    }

    /// Bytes to be read.
    pub(in crate::tcp) fn readable(&self) -> usize {
        self.buffer.len()
    }

    /// Whether pieces wait for those before them.
    #[cfg(test)]
    fn has_gaps(&self) -> bool {
        !self.ooo_ranges.is_empty()
    }

    /// Bytes from the start that lie together.
    pub(in crate::tcp) fn front(&self) -> &[u8] {
        self.buffer.front()
    }

    /// Copies bytes from the start on, as many as `out` has room for.
    pub(in crate::tcp) fn copy(&self, out: &mut [u8]) {
        self.buffer.copy(0, out);
    }

    /// Drops what was read.
    pub(in crate::tcp) fn consume(&mut self, count: usize) {
        self.buffer.consume(count);
        if self.ooo_ranges.is_empty() {
            self.buffer.rewind();
        }
    }

    /// Gives memory back that nothing is in; whether none is left.
    pub(in crate::tcp) fn release(&mut self) -> bool {
        if self.buffer.len() == 0 && self.ooo_ranges.is_empty() {
            self.buffer.release();
            self.ooo_ranges = Vec::new();
        }
        self.buffer.capacity() == 0
    }

    /// Gives all memory back, whatever is in it.
    pub(in crate::tcp) fn discard(&mut self) {
        if self.capacity() > 0 {
            (self.buffer, self.ooo_ranges) = (ByteRing::default(), Vec::new());
        }
    }

    /// Bytes that came before come again: the peer is told so, once.
    pub(in crate::tcp) fn note_duplicate(&mut self, seq: Seq, len: usize) {
        let end = seq.plus(len);
        if len > 0 && end.at_most(self.nxt) {
            self.duplicate = Some((seq, end));
        }
    }

    /// Bytes of storage, of the buffer and of what is known of pieces.
    pub(in crate::tcp) fn capacity(&self) -> usize {
        self.buffer.capacity() + self.ooo_ranges.capacity() * size_of::<OooRange>()
    }

    /// The window's right edge as it could be now: by the room there is,
    /// unless that is little more than before (RFC 9293 §3.8.6.2.2).
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

    /// Whether the window could open so far that the peer should be told: it
    /// would be twice as wide. A peer that has more than half of it left is
    /// told with the next acknowledgment.
    pub(in crate::tcp) fn window_opens(&self, mss: usize) -> bool {
        let (edge, window) = (self.rcv_adv_now(mss), self.window());
        let worth = (2 * mss).min(self.limit() / 2).max(1);
        edge.since(self.rcv_adv) >= worth.max(window)
    }

    /// The window field to send, which the peer then knows. What was granted
    /// is never taken back, though a shift may round it up.
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

    /// Whether there is something to acknowledge selectively.
    #[inline]
    pub(in crate::tcp) fn has_blocks(&self) -> bool {
        !self.ooo_ranges.is_empty() || self.duplicate.is_some()
    }

    /// What to acknowledge selectively, in at most `room` blocks: first what
    /// came twice, then the pieces by when they grew (RFC 2018 §4, RFC 2883
    /// §4).
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

    /// Bursts of two megabytes, which the window has room for or not, and then a pause.
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
            // A pause now and then is the machine's; others are the sender's.
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

    /// Any order, overlaps and repetitions: the stream is what was sent.
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
        // What comes twice is told first, once.
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

    /// RFC 9293 §3.8.6.2.2: no crumbs, and nothing is taken back.
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
