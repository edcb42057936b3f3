//! [`SendBuffer`]: the bytes to send, and how many of them may be sent (RFC 9293 §3.8.6.2.1).

use super::byte_ring::{ByteRing, clamp};
use crate::tcp::recovery::rtt::{INFLIGHT_FLOOR, Rtt};
use crate::tcp::seq::Seq;
use std::collections::VecDeque;
use weir_wire::checksum::Sum;
use weir_wire::tcp::Flags;

/// A writer waits until a part so large of what may wait to be sent is free,
/// or this many bytes, or what part of the memory is free again when those are
/// told that waited for it.
const WRITE_SPACE_DIVISOR: usize = 4;
const WRITE_SPACE: usize = 16 << 10;
pub(in crate::tcp) const WAKE_DIVISOR: usize = 16;

/// The send buffer of one connection.
pub(in crate::tcp) struct SendBuffer {
    /// Our initial number.
    pub(in crate::tcp) iss: Seq,
    /// The first number not acknowledged.
    pub(in crate::tcp) una: Seq,
    /// The next number to be sent.
    pub(in crate::tcp) nxt: Seq,
    /// The window by the last segment that told it, and the widest ever.
    pub(in crate::tcp) wnd: usize,
    pub(in crate::tcp) wnd_max: u32,
    /// Which segment told it.
    wl1: Seq,
    wl2: Seq,
    /// The shift of the peer's windows.
    pub(in crate::tcp) scale: u8,
    /// The most bytes that the peer takes in a segment, options included.
    pub(in crate::tcp) mss_peer: u16,
    /// The application has written all.
    pub(in crate::tcp) closed: bool,
    /// The window was too small for so long that whatever fits goes (RFC 9293
    /// §3.8.6.2.1, the override time-out).
    pub(in crate::tcp) sws_override: bool,
    /// Small segments do not wait for acknowledgments.
    pub(in crate::tcp) nodelay: bool,
    /// More bytes follow at once: those that are there wait for them, until
    /// something is acknowledged.
    pub(in crate::tcp) msg_more: bool,
    /// What was written last is to be read at once (RFC 9293 §3.9.1.2, PUSH).
    pub(in crate::tcp) push: bool,
    /// Where the last segment ended that was not full.
    pub(in crate::tcp) snd_sml: Seq,
    /// Small segments wait for more bytes.
    pub(in crate::tcp) cork: bool,
    /// Few connections have any.
    records: Option<Box<Records>>,
    /// The number of the buffer's first byte.
    start: Seq,
    buffer: ByteRing,
    /// The most bytes that wait here: now, and however long the path.
    sndbuf: u32,
    sndbuf_max: u32,
    /// The application says how many.
    is_sndbuf_set: bool,
    /// No more is taken while so many bytes are not sent yet; 0 for no such limit.
    notsent_lowat: u32,
}

/// The ends of records that are not acknowledged, in ascending order.
#[derive(Default)]
struct Records {
    ends: VecDeque<Seq>,
}

/// How many of the unsent bytes may be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::tcp) enum Sendable {
    /// This much, perhaps with the FIN.
    Bytes(usize, bool),
    /// There is something, but the window is too small for it.
    WindowLimited,
    /// There is little, and it waits for what is in flight (Nagle).
    InflightLimited,
    /// Nothing is left.
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

    /// The number of our FIN, which follows the last byte.
    fn fin(&self) -> Seq {
        self.start.plus(self.buffer.len())
    }

    /// The number behind the last byte that was written.
    pub(in crate::tcp) fn end(&self) -> Seq {
        self.fin()
    }

    /// Whether the FIN was sent.
    pub(in crate::tcp) fn fin_sent(&self) -> bool {
        self.closed && self.fin().before(self.nxt)
    }

    /// Whether all, the FIN included, has arrived.
    pub(in crate::tcp) fn fin_acknowledged(&self) -> bool {
        self.closed && self.fin().before(self.una)
    }

    /// How many bytes more the buffer takes.
    pub(in crate::tcp) fn room(&self) -> usize {
        if self.closed {
            0
        } else {
            self.sndbuf().saturating_sub(self.buffer.len())
        }
    }

    /// How much room a writer waits for, if all may have `memory` bytes: one
    /// that is told of less would come for a few bytes at a time.
    pub(in crate::tcp) fn write_space_wanted(&self, memory: usize) -> usize {
        let part = (self.sndbuf() / WRITE_SPACE_DIVISOR).min(memory / WAKE_DIVISOR);
        part.clamp(1, WRITE_SPACE)
    }

    /// The storage that must be left to all before a writer has the room that it
    /// waits for; none if it has, or if its own buffer is what is full.
    pub(in crate::tcp) fn memory_wanted(&self, memory: usize, left: usize) -> usize {
        let wanted = self.write_space_wanted(memory).min(self.room());
        if self.stores(left) < wanted {
            self.buffer.capacity_for(wanted) - self.buffer.capacity()
        } else {
            0
        }
    }

    /// The buffer follows what may be in flight, by the congestion window and the
    /// widest window of the peer: a flight of it, and another to be sent as that
    /// is acknowledged; but holds no more than is worth to be in flight. One that
    /// was set stays.
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

    /// How many bytes more there is room for: by the buffer's limit, and the
    /// memory that is left.
    fn stores(&self, left: usize) -> usize {
        let storage_max = self.capacity().saturating_add(left);
        self.room().min(self.buffer.room(storage_max))
    }

    /// How many bytes more are taken now.
    pub(in crate::tcp) fn takes(&self, left: usize) -> usize {
        let stores = self.stores(left);
        if self.notsent_lowat == 0 {
            return stores;
        }
        // A segment at least: crumbs would be all that went.
        let unsent = self.unsent();
        match (self.notsent_lowat as usize).checked_sub(unsent) {
            Some(room @ 1..) => stores.min(room.max(self.mss_peer.into())),
            _ => 0,
        }
    }

    /// Whether a writer is to come, if all may have `memory` bytes, of which `left`
    /// are. With a limit of what is not sent half of that must have gone: who is
    /// told of less would come for each segment.
    pub(in crate::tcp) fn is_write_worthwhile(&self, memory: usize, left: usize) -> bool {
        let few = self.notsent_lowat == 0 || 2 * self.unsent() < self.notsent_lowat as usize;
        few && self.stores(left) >= self.write_space_wanted(memory)
    }

    /// Whether what was sent may be what a writer waited for.
    pub(in crate::tcp) fn has_sent_enough(&self) -> bool {
        self.notsent_lowat > 0 && 2 * self.unsent() < self.notsent_lowat as usize
    }

    /// Takes no more while so many bytes are not sent yet; `None` for no such
    /// limit.
    pub(in crate::tcp) fn set_notsent_lowat(&mut self, bytes: Option<usize>) {
        self.notsent_lowat = bytes.map_or(0, |bytes| clamp(bytes.max(1)));
    }

    /// Takes bytes to be sent; gives how many.
    pub(in crate::tcp) fn write(&mut self, bytes: &[u8], left: usize) -> usize {
        let taken = bytes.len().min(self.takes(left));
        self.push |= taken > 0;
        self.buffer.push(&bytes[..taken]);
        taken
    }

    /// What is before `una` has arrived; gives how many bytes that were.
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

    /// Gives memory back that nothing is in; whether none is left.
    pub(in crate::tcp) fn release(&mut self) -> bool {
        if self.buffer.len() == 0 {
            self.buffer.release();
        }
        self.buffer.capacity() == 0
    }

    /// Gives all memory back, whatever is in it.
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

    /// The peer's window by a segment, unless a later one told it (RFC 9293
    /// §3.10.7.4); whether it is another than before.
    #[inline]
    pub(in crate::tcp) fn window(&mut self, seq: Seq, ack: Seq, wnd: usize) -> bool {
        // The RFC goes by the number first; but a segment sent again has an old one, and
        // who took its acknowledgment without its window would send beyond that.
        let later = self.wl2.before(ack) || (self.wl2 == ack && self.wl1.at_most(seq));
        if !later {
            return false;
        }
        let changed = self.wnd != wnd;
        (self.wnd, self.wl1, self.wl2) = (wnd, seq, ack);
        self.wnd_max = self.wnd_max.max(clamp(wnd));
        changed
    }

    /// A later segment tells the same as the one before.
    #[inline]
    pub(in crate::tcp) fn same_window(&mut self, seq: Seq) {
        self.wl1 = seq;
    }

    /// The window of the segment that opens the connection.
    pub(in crate::tcp) fn first_window(&mut self, seq: Seq, ack: Seq, wnd: usize) {
        (self.wnd, self.wnd_max, self.wl1, self.wl2) = (wnd, clamp(wnd), seq, ack);
    }

    /// Whether a number is within the window.
    pub(in crate::tcp) fn allows(&self, end: Seq) -> bool {
        end.at_most(self.una.plus(self.wnd))
    }

    /// Bytes not sent yet.
    pub(in crate::tcp) fn unsent(&self) -> usize {
        if self.nxt.before(self.fin()) {
            self.fin().since(self.nxt.max(self.start))
        } else {
            0
        }
    }

    /// Whether bytes, or a FIN, wait to be sent.
    pub(in crate::tcp) fn wants(&self) -> bool {
        let end = self.fin().plus(self.closed.into());
        self.nxt.max(self.start).before(end)
    }

    /// Whether all that waits to be sent is a FIN.
    #[inline]
    pub(in crate::tcp) fn wants_fin_alone(&self) -> bool {
        self.closed && self.nxt.max(self.start) == self.fin()
    }

    /// Bytes sent and not acknowledged.
    pub(in crate::tcp) fn unacknowledged(&self) -> usize {
        self.buffer.len() - self.unsent()
    }

    /// Sets the most bytes that wait here.
    pub(in crate::tcp) fn set_sndbuf(&mut self, limit: usize) {
        self.sndbuf = clamp(limit.max(1));
        self.sndbuf_max = self.sndbuf;
        self.is_sndbuf_set = true;
    }

    /// The most bytes that wait here.
    pub(in crate::tcp) fn sndbuf(&self) -> usize {
        self.sndbuf as usize
    }

    /// Whether a segment may go that is not full: no other such one is in
    /// flight (Nagle's algorithm as Minshall has it).
    fn nagle_allows_small(&self) -> bool {
        let waits = self.una.before(self.snd_sml);
        !self.cork && !self.msg_more && (!waits || self.nodelay)
    }

    /// What may be sent of what was not, in segments of at most `most` bytes,
    /// of which the link cuts so many from one that they carry `burst`.
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
            // What does not fill the last of them waits as it would alone.
            len -= len % most;
        }
        let all = len == unsent;
        // A FIN needs no window of its own: the peer has none for it either.
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

    /// [`SendBuffer::sendable`], of the `left` bytes of a record behind which others wait:
    /// its last segment waits for nothing.
    fn sendable_record(&self, left: usize, most: usize, burst: usize) -> Sendable {
        let window = self.wnd.saturating_sub(self.nxt.since(self.una));
        let len = left.min(burst).min(window);
        match (len == left, len - len % most) {
            (true, _) => Sendable::Bytes(len, false),
            (false, 0) => Sendable::WindowLimited,
            (false, full) => Sendable::Bytes(full, false),
        }
    }

    /// The control bits of a segment: SYN and FIN by their numbers.
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

    /// Whether what ends here is to be read at once: all that was written, unless
    /// more was announced, and a record.
    fn is_pushed(&self, end: Seq) -> bool {
        let all = end == self.fin() && (self.push || self.closed);
        all || self.records().any(|record| record == end)
    }

    /// What was written last ends a record: no segment carries more than it.
    pub(in crate::tcp) fn end_record(&mut self) {
        let end = self.fin();
        if end != self.una && self.records().next_back() != Some(end) {
            let records = self.records.get_or_insert_default();
            records.ends.push_back(end);
        }
    }

    /// Where records end that are not acknowledged.
    fn records(&self) -> impl DoubleEndedIterator<Item = Seq> {
        self.records
            .iter()
            .flat_map(|records| records.ends.iter().copied())
    }

    /// How many bytes a segment carries.
    pub(in crate::tcp) fn payload_len(&self, start: Seq, end: Seq) -> usize {
        let (from, to) = (start.max(self.start), end.min(self.fin()));
        if from.before(to) { to.since(from) } else { 0 }
    }

    /// The bytes that a segment carries, and their sum.
    #[inline]
    pub(in crate::tcp) fn payload_summed(&self, start: Seq, out: &mut [u8]) -> Sum {
        if out.is_empty() {
            return Sum::new();
        }
        let offset = start.max(self.start).since(self.start);
        self.buffer.copy_summed(offset, out)
    }

    /// The bytes that a segment carries, where they lie.
    pub(in crate::tcp) fn slices(&self, start: Seq, len: usize) -> [&[u8]; 2] {
        match len {
            0 => [&[]; 2],
            _ => {
                let offset = start.max(self.start).since(self.start);
                self.buffer.slices(offset, len)
            }
        }
    }

    /// The bytes that a segment carries.
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
        // After a while, whatever fits.
        send.write(&[1; 900], usize::MAX);
        send.window(Seq(1), send.una, 300);
        assert_eq!(send.sendable(1000, 1000), Sendable::WindowLimited);
        send.sws_override = true;
        assert_eq!(send.sendable(1000, 1000), Sendable::Bytes(300, false));
        send.sws_override = false;
        // Half of the widest window there was.
        send.write(&[1; 5000], usize::MAX);
        send.window(Seq(1), send.una, 2000);
        assert_eq!(send.sendable(3000, 3000), Sendable::Bytes(2000, false));
        assert!(
            !send.window(Seq(0), send.una, 9),
            "an old segment tells nothing"
        );
        // Bytes sent again, that tell a later acknowledgment.
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
