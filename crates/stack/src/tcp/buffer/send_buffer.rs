//! [`SendBuffer`]: the bytes to send, and how many of them may be sent (RFC 9293 §3.8.6.2.1).

use super::byte_ring::{ByteRing, clamp};
use crate::tcp::recovery::rtt::{INFLIGHT_FLOOR, Rtt};
use crate::tcp::seq::Seq;
use std::collections::VecDeque;
use weir_wire::checksum::Sum;
use weir_wire::tcp::Flags;

/// Free room that a waiting writer needs: the send buffer divided by `WRITE_SPACE_DIVISOR`, or
/// `WRITE_SPACE` bytes, whichever is less. `WAKE_DIVISOR` is the part of all memory that must be
/// free before writers that wait for memory are notified.
const WRITE_SPACE_DIVISOR: usize = 4;
const WRITE_SPACE: usize = 16 << 10;
pub(in crate::tcp) const WAKE_DIVISOR: usize = 16;

/// The send buffer of one connection.
pub(in crate::tcp) struct SendBuffer {
    /// Our initial sequence number (ISS).
    pub(in crate::tcp) iss: Seq,
    /// The first unacknowledged number (SND.UNA).
    pub(in crate::tcp) una: Seq,
    /// The next number to send (SND.NXT).
    pub(in crate::tcp) nxt: Seq,
    /// The peer's window by the segment that last set it (SND.WND), and the widest ever.
    pub(in crate::tcp) wnd: usize,
    pub(in crate::tcp) wnd_max: u32,
    /// The segment that set the window (SND.WL1, SND.WL2).
    wl1: Seq,
    wl2: Seq,
    /// The shift of the peer's windows.
    pub(in crate::tcp) scale: u8,
    /// Longest segment that the peer accepts, in bytes, options included.
    pub(in crate::tcp) mss_peer: u16,
    /// The application has closed its side.
    pub(in crate::tcp) closed: bool,
    /// The window was too small for so long that any segment may be sent (RFC 9293 §3.8.6.2.1, the
    /// override time-out).
    pub(in crate::tcp) sws_override: bool,
    /// Small segments do not wait for acknowledgments (`TCP_NODELAY`).
    pub(in crate::tcp) nodelay: bool,
    /// More bytes follow at once (`MSG_MORE`): a small segment waits for them, until an
    /// acknowledgment.
    pub(in crate::tcp) msg_more: bool,
    /// The last write asks for PSH (RFC 9293 §3.9.1.2).
    pub(in crate::tcp) push: bool,
    /// End of the last small segment (Linux' `snd_sml`).
    pub(in crate::tcp) snd_sml: Seq,
    /// Small segments wait for more bytes (`TCP_CORK`).
    pub(in crate::tcp) cork: bool,
    /// Ends of records; `None` for most connections.
    records: Option<Box<Records>>,
    /// The number of the buffer's first byte.
    start: Seq,
    buffer: ByteRing,
    /// Limit on buffered bytes: at present, and for any path.
    sndbuf: u32,
    sndbuf_max: u32,
    /// The application has set the limit (`SO_SNDBUF`).
    is_sndbuf_set: bool,
    /// Number of unsent bytes from which on writes are refused (`TCP_NOTSENT_LOWAT`); 0 for no
    /// limit.
    notsent_lowat: u32,
}

/// The ends of unacknowledged records, in ascending order.
#[derive(Default)]
struct Records {
    ends: VecDeque<Seq>,
}

/// How many of the unsent bytes may be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::tcp) enum Sendable {
    /// This many bytes, and whether the FIN.
    Bytes(usize, bool),
    /// None: the peer's window is too small.
    WindowLimited,
    /// None: a small segment waits for an acknowledgment (Nagle).
    InflightLimited,
    /// Nothing is unsent.
    Nothing,
}

impl SendBuffer {
    pub(in crate::tcp) fn new(iss: Seq, limit: usize, limit_max: usize) -> SendBuffer {
        SendBuffer {
            iss,
            una: iss,
            nxt: iss,
            wnd: 0,
            wnd_max: 0,
            wl1: Seq(0),
            wl2: Seq(0),
            scale: 0,
            mss_peer: 536,
            closed: false,
            sws_override: false,
            nodelay: false,
            msg_more: false,
            push: true,
            snd_sml: iss,
            cork: false,
            records: None,
            start: iss.plus(1),
            buffer: ByteRing::default(),
            sndbuf: clamp(limit.min(limit_max)),
            sndbuf_max: clamp(limit_max),
            is_sndbuf_set: false,
            notsent_lowat: 0,
        }
    }

    /// The number of our FIN, behind the last byte.
    fn fin(&self) -> Seq {
        self.start.plus(self.buffer.len())
    }

    /// The number behind the last written byte.
    pub(in crate::tcp) fn end(&self) -> Seq {
        self.fin()
    }

    /// Whether the FIN was sent.
    pub(in crate::tcp) fn fin_sent(&self) -> bool {
        self.closed && self.fin().before(self.nxt)
    }

    /// Whether everything, the FIN included, is acknowledged.
    pub(in crate::tcp) fn fin_acknowledged(&self) -> bool {
        self.closed && self.fin().before(self.una)
    }

    /// Free room of the buffer, in bytes.
    pub(in crate::tcp) fn room(&self) -> usize {
        if self.closed {
            0
        } else {
            self.sndbuf().saturating_sub(self.buffer.len())
        }
    }

    /// Room that a waiting writer needs, if all connections may have `memory` bytes: with less, it
    /// would be woken for a few bytes at a time.
    pub(in crate::tcp) fn write_space_wanted(&self, memory: usize) -> usize {
        let part = (self.sndbuf() / WRITE_SPACE_DIVISOR).min(memory / WAKE_DIVISOR);
        part.clamp(1, WRITE_SPACE)
    }

    /// Memory that must be available to all connections before a waiting writer has room; `None` if
    /// it has room, or if its own buffer is full.
    pub(in crate::tcp) fn memory_wanted(&self, memory: usize, left: usize) -> usize {
        let wanted = self.write_space_wanted(memory).min(self.room());
        if self.stores(left) < wanted {
            self.buffer.capacity_for(wanted) - self.buffer.capacity()
        } else {
            0
        }
    }

    /// Adapts the buffer to the bytes that may be in flight, by the congestion window and the
    /// peer's widest window: one flight, and another to be sent as the first is acknowledged, up to
    /// the useful bytes in flight. A limit that the application has set stays.
    #[inline]
    pub(in crate::tcp) fn autotune(&mut self, cwnd: usize, rtt: &Rtt) {
        let limit = self.sndbuf();
        let cwnd = cwnd.min(self.wnd_max as usize);
        if 2 * cwnd > limit || limit.max(self.capacity()) > INFLIGHT_FLOOR {
            self.adapt(cwnd, rtt.inflight_max());
        }
    }

    #[inline(never)]
    fn adapt(&mut self, cwnd: usize, flight_max: usize) {
        if !self.is_sndbuf_set {
            let grown = self.sndbuf.max(self.sndbuf_max.min(clamp(2 * cwnd)));
            self.sndbuf = grown.min(clamp(flight_max));
            self.buffer.shrink(self.sndbuf());
        }
    }

    /// Number of bytes that can still be stored, by the buffer's limit and the available memory.
    fn stores(&self, left: usize) -> usize {
        let storage_max = self.capacity().saturating_add(left);
        self.room().min(self.buffer.room(storage_max))
    }

    /// Number of bytes that a write can add now.
    pub(in crate::tcp) fn takes(&self, left: usize) -> usize {
        let stores = self.stores(left);
        if self.notsent_lowat == 0 {
            return stores;
        }
        // At least a segment: otherwise only small segments would be sent.
        let unsent = self.unsent();
        match (self.notsent_lowat as usize).checked_sub(unsent) {
            Some(room @ 1..) => stores.min(room.max(self.mss_peer.into())),
            _ => 0,
        }
    }

    /// Whether a write is worthwhile, if all connections may have `memory` bytes, `left` of them
    /// free. With `TCP_NOTSENT_LOWAT` half of it must be sent: otherwise a writer would be woken
    /// for each segment.
    pub(in crate::tcp) fn is_write_worthwhile(&self, memory: usize, left: usize) -> bool {
        let few = self.notsent_lowat == 0 || 2 * self.unsent() < self.notsent_lowat as usize;
        few && self.stores(left) >= self.write_space_wanted(memory)
    }

    /// Whether enough was sent for a waiting writer.
    pub(in crate::tcp) fn has_sent_enough(&self) -> bool {
        self.notsent_lowat > 0 && 2 * self.unsent() < self.notsent_lowat as usize
    }

    /// Refuses writes while at least this many bytes are unsent; `None` for no limit.
    pub(in crate::tcp) fn set_notsent_lowat(&mut self, bytes: Option<usize>) {
        self.notsent_lowat = bytes.map_or(0, |bytes| clamp(bytes.max(1)));
    }

    /// Adds bytes to send; returns how many.
    pub(in crate::tcp) fn write(&mut self, bytes: &[u8], left: usize) -> usize {
        let taken = bytes.len().min(self.takes(left));
        self.push |= taken > 0;
        self.buffer.push(&bytes[..taken]);
        taken
    }

    /// Drops the bytes before `una`, which are acknowledged; returns how many.
    pub(in crate::tcp) fn acknowledge(&mut self, una: Seq) -> usize {
        self.una = una;
        let arrived = if self.start.before(una) {
            una.since(self.start).min(self.buffer.len())
        } else {
            0
        };
        self.buffer.consume(arrived);
        self.buffer.rewind();
        self.start = self.start.plus(arrived);
        if let Some(records) = &mut self.records {
            while records.ends.pop_front_if(|end| end.at_most(una)).is_some() {}
            if records.ends.is_empty() {
                self.records = None;
            }
        }
        arrived
    }

    /// Frees unused memory; returns whether none is left.
    pub(in crate::tcp) fn release(&mut self) -> bool {
        if self.buffer.len() == 0 {
            self.buffer.release();
        }
        self.buffer.capacity() == 0
    }

    /// Frees all memory, with its bytes.
    pub(in crate::tcp) fn discard(&mut self) {
        if self.capacity() > 0 {
            self.buffer = ByteRing::default();
        }
        self.records = None;
    }

    /// Bytes of storage.
    pub(in crate::tcp) fn capacity(&self) -> usize {
        self.buffer.capacity()
    }

    /// Updates the peer's window from a segment, unless a later one has set it (RFC 9293
    /// §3.10.7.4); returns whether it changed.
    #[inline]
    pub(in crate::tcp) fn window(&mut self, seq: Seq, ack: Seq, wnd: usize) -> bool {
        // The RFC compares sequence numbers first. A retransmitted segment has an old one: with its
        // acknowledgment and without its window, we would send beyond the window.
        let later = self.wl2.before(ack) || (self.wl2 == ack && self.wl1.at_most(seq));
        if !later {
            return false;
        }
        let changed = self.wnd != wnd;
        (self.wnd, self.wl1, self.wl2) = (wnd, seq, ack);
        self.wnd_max = self.wnd_max.max(clamp(wnd));
        changed
    }

    /// Records a later segment with the same window.
    #[inline]
    pub(in crate::tcp) fn same_window(&mut self, seq: Seq) {
        self.wl1 = seq;
    }

    /// Sets the window from the segment that opens the connection.
    pub(in crate::tcp) fn first_window(&mut self, seq: Seq, ack: Seq, wnd: usize) {
        (self.wnd, self.wnd_max, self.wl1, self.wl2) = (wnd, clamp(wnd), seq, ack);
    }

    /// Whether a number is within the window.
    pub(in crate::tcp) fn allows(&self, end: Seq) -> bool {
        end.at_most(self.una.plus(self.wnd))
    }

    /// Number of unsent bytes.
    pub(in crate::tcp) fn unsent(&self) -> usize {
        if self.nxt.before(self.fin()) {
            self.fin().since(self.nxt.max(self.start))
        } else {
            0
        }
    }

    /// Whether bytes or a FIN are unsent.
    pub(in crate::tcp) fn wants(&self) -> bool {
        let end = self.fin().plus(self.closed.into());
        self.nxt.max(self.start).before(end)
    }

    /// Whether only a FIN is unsent.
    #[inline]
    pub(in crate::tcp) fn wants_fin_alone(&self) -> bool {
        self.closed && self.nxt.max(self.start) == self.fin()
    }

    /// Number of bytes in flight.
    pub(in crate::tcp) fn unacknowledged(&self) -> usize {
        self.buffer.len() - self.unsent()
    }

    /// Sets the limit on buffered bytes.
    pub(in crate::tcp) fn set_sndbuf(&mut self, limit: usize) {
        self.sndbuf = clamp(limit.max(1));
        self.sndbuf_max = self.sndbuf;
        self.is_sndbuf_set = true;
    }

    /// The limit on buffered bytes.
    pub(in crate::tcp) fn sndbuf(&self) -> usize {
        self.sndbuf as usize
    }

    /// Whether a small segment may be sent: no other is in flight (Nagle's algorithm with
    /// Minshall's change).
    fn nagle_allows_small(&self) -> bool {
        let waits = self.una.before(self.snd_sml);
        !self.cork && !self.msg_more && (!waits || self.nodelay)
    }

    /// The unsent bytes that may be sent in segments of at most `most` bytes, of which the link
    /// cuts bursts of `burst` bytes.
    pub(in crate::tcp) fn sendable(&self, most: usize, burst: usize) -> Sendable {
        let unsent = self.unsent();
        let finish = self.closed && !self.fin_sent();
        if unsent == 0 && !finish {
            return Sendable::Nothing;
        }
        let record = self.records().find(|end| self.nxt.before(*end));
        if let Some(end) = record.map(|end| end.since(self.nxt.max(self.start)))
            && end < unsent
        {
            return self.sendable_record(end, most, burst);
        }
        let used = self.nxt.since(self.una);
        let window = self.wnd.saturating_sub(used);
        let mut len = unsent.min(burst).min(window);
        if len > most && !(len == unsent && (finish || self.nagle_allows_small())) {
            // Bytes that do not fill the last segment wait, as they would alone.
            len -= len % most;
        }
        let all = len == unsent;
        // A FIN needs no window of its own: the peer reserves none for it.
        let fin = finish && all;
        if len == 0 && !fin {
            return Sendable::WindowLimited;
        }
        let worth = len >= most || (all && (fin || self.nagle_allows_small()));
        // Silly windows (RFC 9293 §3.8.6.2.1): half the widest window is enough.
        let half_window = 2 * len >= self.wnd_max as usize && self.wnd_max > 0;
        if worth {
            Sendable::Bytes(len, fin)
        } else if (self.cork || self.msg_more) && all && !self.sws_override {
            Sendable::InflightLimited
        } else if half_window || self.sws_override {
            Sendable::Bytes(len, fin)
        } else if len < unsent.min(most) {
            Sendable::WindowLimited
        } else {
            Sendable::InflightLimited
        }
    }

    /// [`SendBuffer::sendable`], for the `left` bytes of a record followed by others: its last
    /// segment does not wait.
    fn sendable_record(&self, left: usize, most: usize, burst: usize) -> Sendable {
        let window = self.wnd.saturating_sub(self.nxt.since(self.una));
        let len = left.min(burst).min(window);
        match (len == left, len - len % most) {
            (true, _) => Sendable::Bytes(len, false),
            (false, 0) => Sendable::WindowLimited,
            (false, full) => Sendable::Bytes(full, false),
        }
    }

    /// The control bits of a segment: SYN and FIN by sequence number.
    pub(in crate::tcp) fn flags(&self, start: Seq, end: Seq) -> Flags {
        if start == end {
            return Flags::default();
        }
        let syn = start == self.iss;
        let fin = self.closed && start.at_most(self.fin()) && self.fin().before(end);
        let data_end = if fin { self.fin() } else { end };
        let push = self.is_pushed(data_end) && start.before(data_end) && !syn;
        let mut flags = Flags::default();
        for (set, flag) in [(syn, Flags::SYN), (fin, Flags::FIN), (push, Flags::PSH)] {
            flags = if set { flags | flag } else { flags };
        }
        flags
    }

    /// Whether the segment that ends at `end` carries PSH: at the end of the written bytes, unless
    /// more were announced, and at the end of a record.
    fn is_pushed(&self, end: Seq) -> bool {
        let all = end == self.fin() && (self.push || self.closed);
        all || self.records().any(|record| record == end)
    }

    /// Makes the last write the end of a record: a segment carries bytes of one record only.
    pub(in crate::tcp) fn end_record(&mut self) {
        let end = self.fin();
        if end != self.una && self.records().next_back() != Some(end) {
            let records = self.records.get_or_insert_default();
            records.ends.push_back(end);
        }
    }

    /// The ends of unacknowledged records.
    fn records(&self) -> impl DoubleEndedIterator<Item = Seq> {
        self.records
            .iter()
            .flat_map(|records| records.ends.iter().copied())
    }

    /// Number of bytes in a segment.
    pub(in crate::tcp) fn payload_len(&self, start: Seq, end: Seq) -> usize {
        let (from, to) = (start.max(self.start), end.min(self.fin()));
        if from.before(to) { to.since(from) } else { 0 }
    }

    /// Writes a segment's bytes, and returns their sum.
    #[inline]
    pub(in crate::tcp) fn payload_summed(&self, start: Seq, out: &mut [u8]) -> Sum {
        if out.is_empty() {
            return Sum::new();
        }
        let offset = start.max(self.start).since(self.start);
        self.buffer.copy_summed(offset, out)
    }

    /// A segment's bytes, as slices of the buffer.
    pub(in crate::tcp) fn slices(&self, start: Seq, len: usize) -> [&[u8]; 2] {
        match len {
            0 => [&[]; 2],
            _ => {
                let offset = start.max(self.start).since(self.start);
                self.buffer.slices(offset, len)
            }
        }
    }

    /// Copies a segment's bytes.
    pub(in crate::tcp) fn payload(&self, start: Seq, out: &mut [u8]) {
        if !out.is_empty() {
            let offset = start.max(self.start).since(self.start);
            self.buffer.copy(offset, out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn send(wnd: usize) -> SendBuffer {
        let mut send = SendBuffer::new(Seq(u32::MAX - 10), 10_000, 10_000);
        send.nxt = send.iss.plus(1);
        send.acknowledge(send.nxt);
        send.first_window(Seq(0), send.una, wnd);
        send
    }

    #[test]
    fn the_buffer_is_as_long_as_the_path_needs_unless_it_was_set() {
        let mut send = SendBuffer::new(Seq(1), 100_000, 4 << 20);
        let mut rtt = Rtt::default();
        rtt.measured(200_000);
        send.first_window(Seq(0), Seq(1), 60_000);
        for (cwnd, limit) in [(50_000, 100_000), (1 << 20, 120_000)] {
            send.autotune(cwnd, &rtt);
            assert_eq!(send.sndbuf(), limit, "the peer takes no more at once");
        }
        send.first_window(Seq(0), Seq(1), 4 << 20);
        for (cwnd, limit) in [(50_000, 120_000), (1 << 20, 2 << 20), (3 << 20, 4 << 20)] {
            send.autotune(cwnd, &rtt);
            assert_eq!(send.sndbuf(), limit);
        }
        assert_eq!(send.write(&[1; 1 << 20], usize::MAX), 1 << 20);
        rtt.measured(1000);
        send.autotune(3 << 20, &rtt);
        assert_eq!((send.sndbuf(), send.room()), (INFLIGHT_FLOOR, 0));
        assert_eq!(send.unsent(), 1 << 20, "what is in it stays");
        send.nxt = send.start.plus(1 << 20);
        send.acknowledge(send.nxt);
        send.autotune(3 << 20, &rtt);
        assert_eq!(
            send.capacity(),
            INFLIGHT_FLOOR,
            "all of it stays in the caches"
        );
        send.set_sndbuf(2 << 20);
        send.autotune(3 << 20, &rtt);
        assert_eq!(send.sndbuf(), 2 << 20);
    }

    #[test]
    fn small_segments_wait_unless_allowed_to_go() {
        let mut send = send(5000);
        assert_eq!(send.sendable(1000, 1000), Sendable::Nothing);
        send.write(&[1; 100], usize::MAX);
        assert_eq!(
            send.sendable(1000, 1000),
            Sendable::Bytes(100, false),
            "nothing is in flight"
        );
        send.nxt = send.nxt.plus(100);
        send.snd_sml = send.nxt;
        send.write(&[2; 100], usize::MAX);
        assert_eq!(send.sendable(1000, 1000), Sendable::InflightLimited);
        send.nodelay = true;
        assert_eq!(send.sendable(1000, 1000), Sendable::Bytes(100, false));
        send.nodelay = false;
        send.write(&[3; 900], usize::MAX);
        assert_eq!(send.sendable(1000, 1000), Sendable::Bytes(1000, false));
        send.acknowledge(send.nxt);
        send.nxt = send.nxt.plus(1000);
        send.write(&[4; 10], usize::MAX);
        send.closed = true;
        assert_eq!(
            send.sendable(1000, 1000),
            Sendable::Bytes(10, true),
            "the last waits for nothing"
        );
        assert_eq!(send.write(&[5], usize::MAX), 0);
    }

    #[test]
    fn silly_windows_are_not_filled() {
        let mut send = send(4000);
        send.write(&[1; 5000], usize::MAX);
        send.nxt = send.nxt.plus(3500);
        assert_eq!(send.sendable(1000, 1000), Sendable::WindowLimited);
        send.window(Seq(1), send.una, 2000);
        assert_eq!(send.sendable(1000, 1000), Sendable::WindowLimited);
        send.acknowledge(send.nxt);
        send.window(Seq(1), send.una, 0);
        assert_eq!(send.sendable(1000, 1000), Sendable::WindowLimited);
        // After the override time-out, any size.
        send.write(&[1; 900], usize::MAX);
        send.window(Seq(1), send.una, 300);
        assert_eq!(send.sendable(1000, 1000), Sendable::WindowLimited);
        send.sws_override = true;
        assert_eq!(send.sendable(1000, 1000), Sendable::Bytes(300, false));
        send.sws_override = false;
        // Half of the widest window.
        send.write(&[1; 5000], usize::MAX);
        send.window(Seq(1), send.una, 2000);
        assert_eq!(send.sendable(3000, 3000), Sendable::Bytes(2000, false));
        assert!(
            !send.window(Seq(0), send.una, 9),
            "an old segment tells nothing"
        );
        // Retransmitted bytes whose segment carries a later acknowledgment.
        send.nxt = send.nxt.plus(1);
        assert!(send.window(Seq(0), send.una.plus(1), 700));
        assert_eq!(send.wnd, 700);
    }

    #[test]
    fn segments_know_their_flags_and_bytes() {
        let mut send = SendBuffer::new(Seq(100), 1000, 1000);
        send.write(b"hello", usize::MAX);
        let syn = send.flags(Seq(100), Seq(101));
        assert_eq!((syn, send.payload_len(Seq(100), Seq(101))), (Flags::SYN, 0));
        send.nxt = Seq(106);
        send.acknowledge(Seq(103));
        send.closed = true;
        assert_eq!(send.flags(Seq(103), Seq(105)), Flags::default());
        assert_eq!(send.flags(Seq(103), Seq(106)), Flags::PSH);
        assert_eq!(send.flags(Seq(103), Seq(107)), Flags::PSH | Flags::FIN);
        assert_eq!(send.flags(Seq(106), Seq(107)), Flags::FIN);
        assert_eq!(send.flags(Seq(103), Seq(103)), Flags::default());
        assert_eq!(send.flags(Seq(107), Seq(107)), Flags::default());
        let mut bytes = [0; 3];
        assert_eq!(send.payload_len(Seq(103), Seq(107)), 3);
        send.payload(Seq(103), &mut bytes);
        assert_eq!(&bytes, b"llo");
        assert!(!send.fin_sent());
        send.nxt = Seq(107);
        assert!(send.fin_sent() && !send.fin_acknowledged());
        assert_eq!(send.acknowledge(Seq(107)), 3);
        assert!(send.fin_acknowledged());
    }
}
