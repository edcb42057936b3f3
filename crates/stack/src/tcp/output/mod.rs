//! Segments go out (RFC 9293 §3.8, §3.10.8).

pub(super) mod emit;

use super::buffer::send_buffer::Ready;
use super::info::count;
use super::input::DELAYED_ACK_NS;
use super::pcb::{Pcb, State};
use super::seq::Seq;
use crate::iface::{Header, HeaderCache, Interface, Offload};
use crate::stack::TxSink;
use emit::{Outgoing, frame_len};
use std::net::SocketAddr;
use weir_wire::tcp::{Flags, Options, Plain};

/// Segments that one connection sends before the next one's turn.
const TURN: usize = 16;
/// How long a burst that the link cuts takes to send, in nanoseconds.
const BURST_NS: u64 = 1_000_000;
/// For each so many nanoseconds of round trip a burst is half as long.
const NEAR_NS: u64 = 512_000;
/// What part of the congestion window may be written in one go.
const PARTS: usize = 8;
/// The code point of data that may be marked (RFC 3168 §5: ECT(0)).
const MARKABLE: u8 = 2;

/// What came of a connection's turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Turn {
    /// It has sent all that it may now.
    Done,
    /// It has more to send.
    More,
    /// The link takes no more.
    Full,
}

/// A segment to be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Next {
    /// Bytes, or a SYN or FIN, that were not sent before.
    New(Seq, Seq),
    /// What may be lost.
    Again(Seq, Seq),
    /// Nothing but an acknowledgment.
    Ack,
    /// An old number, which the peer answers with its window.
    Probe,
}

impl Pcb {
    /// Sends what may be sent now; `sent` counts the bytes.
    #[inline]
    pub(super) fn output(
        &mut self,
        now_ns: u64,
        host: &mut Interface,
        out: &mut dyn TxSink,
        sent: &mut usize,
    ) -> Turn {
        if self.state == State::Closed {
            return Turn::Done;
        }
        if let Some(arrives) = self.advice.take() {
            host.reachability_hint(now_ns, self.remote.ip(), arrives);
        }
        let room = self.set_path(host.path_mtu(now_ns, self.remote.ip()));
        self.restart_after_idle(now_ns);
        let mut turn = match self.has_output() {
            true => Turn::More,
            false => Turn::Done,
        };
        if turn == Turn::More {
            self.refresh_header_cache(now_ns, host);
        }
        let mut went = false;
        if turn == Turn::More {
            (turn, went) = match self.bare() {
                Some(fin) => self.send_bare(now_ns, host, out, fin),
                None => self.send_segments(now_ns, host, out, (room, sent)),
            };
        }
        let (pipe, cwnd) = (self.pipe(), self.congestion.cwnd);
        if now_ns == self.last_sent_ns || pipe >= cwnd {
            let limited = pipe + self.mss > cwnd;
            let (una, nxt) = (self.send.una, self.send.nxt);
            let outstanding = self.board.outstanding();
            self.congestion.used(una, nxt, outstanding, limited);
        }
        // A turn that comes to nothing does not put a probe off.
        if went || self.board.is_empty() || self.timers.loss.is_none() {
            self.schedule_loss(now_ns);
        }
        turn
    }

    /// Sends what there is in segments that carry `room` bytes and options; `sent`
    /// counts the bytes. Whether any was more than an acknowledgment.
    #[inline(never)]
    fn send_segments(
        &mut self,
        now_ns: u64,
        host: &mut Interface,
        out: &mut dyn TxSink,
        (room, sent): (usize, &mut usize),
    ) -> (Turn, bool) {
        let mut turn = Turn::More;
        let mut left = TURN;
        let mut went = false;
        while turn == Turn::More && left > 0 {
            let opening = match self.is_opening() && self.next_is_syn() {
                true => Some(self.next_opening()),
                false => None,
            };
            // An acknowledgment while both SYNs are under way is none.
            let is_syn = opening.is_some_and(|next| next != Some(Next::Ack));
            // Others than timestamps are rare, and not moved about.
            let mut options = None;
            if self.has_options(is_syn) {
                self.fill(options.insert(Options::default()), now_ns, is_syn);
            }
            let options_len = match &options {
                Some(options) => options.len(),
                None => self.timestamps_len(),
            };
            let most = room - options_len;
            let next = match opening {
                Some(next) => next,
                None => self.next(most, self.burst(host.offload, most, left)),
            };
            let Some(mut next) = next else {
                self.recovery.force = false;
                turn = Turn::Done;
                break;
            };
            let mut segment = self.segment(now_ns, next, is_syn);
            (segment.options, segment.options_len) = (options.as_ref(), options_len);
            let mut out_len = segment.payload_len;
            left = left.saturating_sub(match host.offload.tso4 || host.offload.tso6 {
                true => out_len.div_ceil(frame_len(most)).max(1),
                false => out_len.div_ceil(most).max(1),
            });
            match self.way() {
                Some(way) => {
                    let all = out_len;
                    // A SYN's bytes are as many as its server takes.
                    let cut_at = if is_syn { usize::MAX } else { most };
                    let Some(done) = segment.emit(way, &self.send, host, out, cut_at) else {
                        turn = Turn::Full;
                        break;
                    };
                    out_len = done;
                    if let Next::New(start, _) = next
                        && done < all
                    {
                        (next, turn) = (Next::New(start, start.plus(done)), Turn::Full);
                    }
                }
                None => segment.hold(now_ns, self.header(), &self.send, host),
            }
            *sent += out_len;
            self.sent_in_frames(now_ns, next, most);
            went |= next != Next::Ack;
            if turn == Turn::More && !self.has_output() {
                turn = Turn::Done;
            }
        }
        (turn, went)
    }

    /// Whether all there is to send is an acknowledgment, or our FIN with nothing in
    /// flight, and if so, which: true is the FIN.
    #[inline]
    fn bare(&self) -> Option<bool> {
        let asks = self.probe_window || self.recovery.force;
        if asks || self.is_opening() || self.board.lost() > 0 || self.has_options(false) {
            return None;
        }
        match self.send.wants() {
            false => self.ack_now.then_some(false),
            true => (self.send.wants_fin_alone() && self.board.is_empty()).then_some(true),
        }
    }

    /// Sends nothing but an acknowledgment, as most segments of those who only
    /// receive are, or a FIN; whether it was that.
    #[inline]
    fn send_bare(
        &mut self,
        now_ns: u64,
        host: &mut Interface,
        out: &mut dyn TxSink,
        fin: bool,
    ) -> (Turn, bool) {
        let mut flags = Flags::ACK;
        for (set, flag) in [(fin, Flags::FIN), (self.echo_mark, Flags::ECE)] {
            flags = if set { flags | flag } else { flags };
        }
        let mut segment = Outgoing {
            start: self.send.nxt,
            payload_len: 0,
            urgent: 0,
            traffic_class: self.options.traffic_class,
            options: None,
            options_len: self.timestamps_len(),
            header: Plain {
                src_port: self.local.port(),
                dst_port: self.remote.port(),
                seq: self.send.nxt.0,
                ack: self.receive.nxt.0,
                flags,
                window: self.receive.advertise(self.mss),
                timestamps: self.told_timestamps(now_ns),
            },
        };
        match self.way() {
            Some(way) => {
                let done = segment.emit(way, &self.send, host, out, usize::MAX);
                if done.is_none() {
                    return (Turn::Full, false);
                }
            }
            None => segment.hold(now_ns, self.header(), &self.send, host),
        }
        let start = self.send.nxt;
        match fin {
            true => self.sent(now_ns, Next::New(start, start.plus(1))),
            false => {
                self.count_sent(0, false);
                self.acknowledged_all();
            }
        }
        (Turn::Done, fin)
    }

    /// Whether its turn may come to anything.
    pub(super) fn wants_turn(&self) -> bool {
        self.state != State::Closed && (self.has_output() || self.advice.is_some())
    }

    /// Whether there may be something to send; if not, nothing is looked up.
    fn has_output(&self) -> bool {
        self.ack_now
            || self.probe_window
            || self.recovery.force
            || self.send.nxt == self.send.iss
            || self.board.lost() > 0
            || self.send.wants()
    }

    /// Sees to it that the way is one that holds, if there is one.
    #[inline]
    fn refresh_header_cache(&mut self, now_ns: u64, host: &mut Interface) {
        let way = self.way();
        if !way.is_some_and(|way| host.header_cache_is_valid(now_ns, way)) {
            self.find_way(now_ns, host);
        }
    }

    #[inline(never)]
    fn find_way(&mut self, now_ns: u64, host: &mut Interface) {
        let way = host.header_cache(now_ns, &self.header());
        self.headers_mut().way = way;
    }

    fn way(&self) -> Option<&HeaderCache> {
        self.headers.as_deref()?.way.as_ref()
    }

    /// The IP header of this connection's packets.
    fn header(&self) -> Header {
        self.options.header(self.addresses())
    }

    /// Bytes that one segment may carry if it is cut later: by the link, or when
    /// it is written, at most `left` then; never more than may be in the network.
    fn burst(&self, offload: Offload, most: usize, left: usize) -> usize {
        // What waits for the next hop's address is no longer than the path takes.
        if self.send.unsent() <= most || self.way().is_none() {
            return most;
        }
        let cuts = match self.local {
            SocketAddr::V4(_) => offload.tso4,
            SocketAddr::V6(_) => offload.tso6,
        };
        // A mark of ours goes with one segment alone, and each has its own urgent
        // pointer.
        if self.send_cwr || self.recovery.force || self.is_urgent() {
            return most;
        }
        let cwnd = self.congestion.cwnd;
        let room = cwnd.saturating_sub(self.pipe());
        let burst_max = match cuts {
            true => self.burst_max(most, offload.burst.max(1).into()),
            // The scoreboard cuts at full segments, and sees one of several as
            // arrived when all of it has: so no more than a small part.
            false if most == self.mss && self.way().is_some() => (left * most).min(cwnd / PARTS),
            false => return most,
        };
        (room.min(burst_max) / most * most).max(most)
    }

    /// [`Pcb::sent`] of bytes that went in one frame, or in a run of several: each is
    /// remembered by itself.
    fn sent_in_frames(&mut self, now_ns: u64, next: Next, most: usize) {
        let Next::New(mut start, end) = next else {
            return self.sent(now_ns, next);
        };
        let each = frame_len(most);
        while end.since(start) > each + 1 {
            self.sent(now_ns, Next::New(start, start.plus(each)));
            start = start.plus(each);
        }
        self.sent(now_ns, Next::New(start, end));
    }

    /// Bytes that the link cuts from one segment, or from a run of so many, at most. As
    /// Linux has it: what goes in a millisecond, the more the shorter the path, and
    /// never all of a flight at once, so that the next is asked for while one is under
    /// way.
    fn burst_max(&self, most: usize, run: usize) -> usize {
        let burst_max = run * frame_len(most);
        let cwnd = self.congestion.cwnd;
        let (gain, per) = self.congestion.pace();
        let paced = match self.rtt.srtt_ns() {
            Some(srtt_ns) => (cwnd * gain) as u64 * BURST_NS / (per * srtt_ns),
            None => 0,
        };
        let halvings = u32::try_from(self.rtt.min_ns() / NEAR_NS).unwrap_or(u32::MAX);
        let near = match self.rtt.min_ns() {
            0 => 0,
            // Runs are for those next to us.
            _ if halvings == 0 => burst_max,
            _ => frame_len(most).checked_shr(halvings).unwrap_or(0),
        };
        let least = usize::from(self.burst_min) * most;
        let burst = near.saturating_add(paced as usize).max(least);
        burst.min(burst_max).min(cwnd / 2)
    }

    /// After a pause the network is unknown again (RFC 5681 §4.1).
    fn restart_after_idle(&mut self, now_ns: u64) {
        let idle_ns = now_ns.saturating_sub(self.last_sent_ns);
        // Who asks about a closed window has not paused.
        let may = self.send.unsent() > 0 && self.send.allows(self.send.nxt.plus(1));
        if self.restarts && may && self.board.is_empty() && idle_ns > self.rtt.rto_ns() {
            self.congestion.restart();
        }
    }

    fn next(&mut self, most: usize, burst: usize) -> Option<Next> {
        let (pipe, cwnd, force) = (self.pipe(), self.congestion.cwnd, self.recovery.force);
        let fits = |len: usize| force || pipe == 0 || pipe + len <= cwnd;
        let mut waits = false;
        if self.board.lost() > 0
            && let Some(sent) = self.board.next_lost(most)
        {
            let len = sent.end.since(sent.start);
            let allowed = sent.start == self.send.una || self.send.allows(sent.end);
            if allowed && fits(len) {
                return Some(Next::Again(sent.start, sent.end));
            }
            // New bytes do not overtake those that are waited for.
            waits = allowed;
        }
        if !waits
            && !self.board.is_full()
            && let Ready::Bytes(len, fin) = self.send.ready(most, burst)
            && fits(len)
        {
            let end = self.send.nxt.plus(len + usize::from(fin));
            return Some(Next::New(self.send.nxt, end));
        }
        match (self.probe_window, self.ack_now) {
            (true, _) => Some(Next::Probe),
            (false, true) => Some(Next::Ack),
            (false, false) => None,
        }
    }

    fn next_opening(&mut self) -> Option<Next> {
        if self.send.nxt == self.send.iss {
            return Some(Next::New(self.send.iss, self.first_end()));
        }
        // Bytes behind a SYN do not go again before it has arrived.
        if let Some(sent) = self.board.next_lost(1)
            && sent.start == self.send.iss
        {
            return Some(Next::Again(sent.start, sent.end));
        }
        let answers = self.ack_now && self.state == State::SynReceived;
        answers.then_some(Next::Ack)
    }

    /// The timestamps of the next segment.
    fn told_timestamps(&self, now_ns: u64) -> Option<(u32, u32)> {
        self.timestamps
            .map(|ours| (self.clock(now_ns), ours.recent))
    }

    /// Whether the next segment has other options than timestamps.
    fn has_options(&self, is_syn: bool) -> bool {
        is_syn || (self.sack && self.receive.has_blocks()) || self.is_urgent()
    }

    /// The options of the next segment.
    #[inline(never)]
    fn fill(&mut self, options: &mut Options, now_ns: u64, is_syn: bool) {
        options.timestamps = self.told_timestamps(now_ns);
        if is_syn {
            let first = self.state == State::SynSent;
            options.mss = Some(self.mss_ours());
            options.sack_permitted = self.sack;
            // An answer scales only if it was asked to (RFC 7323 §2.2).
            let scales = first || self.scales;
            options.window_scale = scales.then_some(self.receive.scale);
            // What a network may not let through goes once.
            let once = self.listener.is_some() || self.send.nxt == self.send.iss;
            let opening = self.opening.as_ref().filter(|_| once);
            options.fast_open = opening.and_then(|opening| opening.option);
        } else if self.sack {
            let blocks = if self.timestamps.is_some() { 3 } else { 4 };
            options.sack = self.receive.sack(blocks);
        }
    }

    /// The segment that is next, with no options but timestamps.
    fn segment<'a>(&mut self, now_ns: u64, next: Next, is_syn: bool) -> Outgoing<'a> {
        let (start, end) = match next {
            Next::New(start, end) | Next::Again(start, end) => (start, end),
            Next::Ack => (self.send.nxt, self.send.nxt),
            Next::Probe => (self.send.una.minus(1), self.send.una.minus(1)),
        };
        let payload_len = self.send.payload_len(start, end);
        let fresh = matches!(next, Next::New(..)) && payload_len > 0;
        let urgent = self.urgent_pointer(start);
        Outgoing {
            start,
            payload_len,
            urgent,
            // Only new bytes may be marked (RFC 3168 §6.1.5).
            traffic_class: match self.ecn && fresh && !self.is_opening() {
                true => self.options.traffic_class | MARKABLE,
                false => self.options.traffic_class,
            },
            options: None,
            options_len: self.timestamps_len(),
            header: Plain {
                src_port: self.local.port(),
                dst_port: self.remote.port(),
                seq: start.0,
                ack: match self.state {
                    State::SynSent => 0,
                    _ => self.receive.nxt.0,
                },
                flags: self.flags(next, start, end, payload_len, is_syn),
                window: self.window_field(is_syn),
                timestamps: self.told_timestamps(now_ns),
            },
        }
    }

    fn flags(&self, next: Next, start: Seq, end: Seq, payload_len: usize, is_syn: bool) -> Flags {
        let mut flags = self.send.flags(start, end);
        let mut set = |flag: Flags, when: bool| flags = if when { flags | flag } else { flags };
        set(Flags::ACK, self.state != State::SynSent);
        match self.state {
            State::SynSent => set(Flags::ECE | Flags::CWR, self.ecn),
            State::SynReceived if is_syn => set(Flags::ECE, self.ecn),
            _ => {
                set(Flags::ECE, self.echo_mark);
                let fresh = matches!(next, Next::New(..)) && payload_len > 0;
                set(Flags::CWR, self.send_cwr && fresh);
            }
        }
        flags
    }

    fn window_field(&mut self, is_syn: bool) -> u16 {
        match is_syn {
            true => self.receive.advertise_on_syn(),
            false => self.receive.advertise(self.mss),
        }
    }

    fn count_sent(&mut self, len: usize, again: bool) {
        let segments = self.segments(len);
        let counts = &mut self.counts;
        count(&mut counts.segments_out, segments);
        if again {
            count(&mut counts.again, segments);
        }
    }

    /// A segment is out.
    fn sent(&mut self, now_ns: u64, next: Next) {
        match next {
            Next::New(start, end) => {
                if self.board.is_empty() {
                    self.recovery.since_ns = now_ns;
                }
                let len = self.send.payload_len(start, end);
                self.count_sent(len, false);
                self.board.push(start, end, now_ns);
                // A SYN's bytes are as many as fit, and wait for nobody.
                let full = len == 0 || len == self.mss || len.is_multiple_of(self.mss.max(1));
                if !full && !self.is_opening() {
                    self.send.small = end;
                }
                self.probe_window = false;
                let answers = self.counts.bytes_in > 0 && !self.is_opening();
                if len > 0 && answers && now_ns < self.last_received_ns + DELAYED_ACK_NS {
                    self.interactive = true;
                }
                self.send.nxt = end;
                self.send.crumbs = false;
                self.recovery.count_out(end.since(start));
                self.send_cwr = false;
            }
            Next::Again(start, end) => {
                if start == self.send.una {
                    self.recovery.since_ns = now_ns;
                }
                let len = self.send.payload_len(start, end);
                self.count_sent(len, true);
                self.board.sent_again(start, now_ns);
                self.recovery.count_out(end.since(start));
            }
            Next::Ack => self.count_sent(0, false),
            Next::Probe => {
                self.count_sent(0, false);
                self.probe_window = false;
            }
        }
        if matches!(next, Next::New(..) | Next::Again(..)) {
            self.recovery.force = false;
            self.last_sent_ns = now_ns;
        }
        if self.state != State::SynSent {
            self.acknowledged_all();
        }
    }

    /// A segment is out that acknowledges all that has come.
    fn acknowledged_all(&mut self) {
        self.ack_now = false;
        self.timers.ack_ns = None;
        self.acknowledged = self.receive.nxt;
    }
}
