//! Output: chooses the next segment of a connection (RFC 9293 §3.8, §3.10.8).

pub(super) mod emit;

use super::buffer::send_buffer::Sendable;
use super::info::count;
use super::pcb::{DELAYED_ACK_NS, Pcb, State};
use super::recovery::congestion::Transmit;
use super::seq::Seq;
use crate::iface::{Header, HeaderCache, Interface, Offload};
use crate::stack::TxSink;
use emit::{TxSegment, frame_len};
use std::net::SocketAddr;
use weir_wire::tcp::{Flags, Options, Plain};

/// Number of segments that one connection sends before the next connection's turn.
const OUTPUT_QUANTUM: usize = 16;
/// Longest sending time of a burst that the link segments, in nanoseconds.
const GSO_MAX_NS: u64 = 1_000_000;
/// Round-trip time, in nanoseconds, for each of which a burst is halved.
const SHORT_RTT_NS: u64 = 512_000;
/// A burst is at most this fraction of the congestion window: 1/8.
const CWND_DIVISOR: usize = 8;
/// The ECN codepoint of ECN-capable data (RFC 3168 §5: ECT(0)).
const ECT0: u8 = 2;

/// The result of a connection's turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum OutputStatus {
    /// The connection has sent all that it may now.
    Done,
    /// The connection has more to send.
    MoreToSend,
    /// The link is full.
    DeviceFull,
}

/// A segment to be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum NextSegment {
    /// Bytes, or a SYN or FIN, that were not sent before.
    New(Seq, Seq),
    /// Bytes that may be lost.
    Retransmit(Seq, Seq),
    /// An acknowledgment alone.
    PureAck,
    /// An old sequence number, which the peer answers with its window.
    WindowProbe,
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
    ) -> OutputStatus {
        if self.state == State::Closed {
            return OutputStatus::Done;
        }
        if let Some(arrives) = self.reachability.hint.take() {
            host.reachability_hint(now_ns, self.pair.remote.ip(), arrives);
        }
        let room = self.set_path(host.path_mtu(now_ns, self.pair.remote.ip()));
        self.restart_after_idle(now_ns);
        let mut turn = if self.has_output() {
            OutputStatus::MoreToSend
        } else {
            OutputStatus::Done
        };
        if turn == OutputStatus::MoreToSend {
            self.refresh_header_cache(now_ns, host);
        }
        let mut went = false;
        if turn == OutputStatus::MoreToSend
            && self.congestion.is_rate_based()
            && self.send.unsent() > 0
        {
            let (inflight, srtt_ns) = (self.pipe(), self.rtt.srtt_ns().unwrap_or(0));
            self.congestion.before_send(now_ns, inflight, srtt_ns);
        }
        if turn == OutputStatus::MoreToSend {
            (turn, went) = match self.pure_ack() {
                Some(fin) => self.send_pure_ack(now_ns, host, out, fin),
                None => self.send_segments(now_ns, host, out, (room, sent)),
            };
        }
        let (pipe, cwnd) = (self.pipe(), self.congestion.cwnd);
        if now_ns == self.activity.last_sent_ns || pipe >= cwnd {
            let limited = pipe + self.segment_size.mss() > cwnd;
            let (una, nxt) = (self.send.una, self.send.nxt);
            let outstanding = self.scoreboard.snd_inflight();
            self.congestion.on_transmit(una, nxt, outstanding, limited);
        }
        if self.congestion.is_rate_based() {
            self.end_paced_turn(now_ns, pipe);
        }
        // A turn in which nothing was sent does not delay a probe.
        if went || self.scoreboard.is_empty() || self.timers.loss.is_none() {
            self.schedule_loss(now_ns);
        }
        turn
    }

    /// Ends a turn of an algorithm that paces: sets the time of the next turn, and notes whether
    /// the application is the limit.
    fn end_paced_turn(&mut self, now_ns: u64, pipe: usize) {
        let has_data = self.send.wants() || self.scoreboard.lost() > 0;
        let wake_ns = match self.congestion.pacing_budget(now_ns) {
            Err(at_ns) if has_data => at_ns,
            _ => u64::MAX,
        };
        self.congestion.wait_until(wake_ns);
        let is_empty = self.send.unsent() == 0 && self.scoreboard.lost() == 0;
        if is_empty && pipe < self.congestion.cwnd {
            self.congestion.on_ran_out();
        }
    }

    /// Sends in segments with `room` bytes for payload and options; `sent` counts the bytes.
    /// Returns whether anything but an acknowledgment was sent.
    #[inline(never)]
    fn send_segments(
        &mut self,
        now_ns: u64,
        host: &mut Interface,
        out: &mut dyn TxSink,
        (room, sent): (usize, &mut usize),
    ) -> (OutputStatus, bool) {
        let mut turn = OutputStatus::MoreToSend;
        let mut left = OUTPUT_QUANTUM;
        let mut went = false;
        while turn == OutputStatus::MoreToSend && left > 0 {
            let opening = if self.is_opening() && self.next_is_syn() {
                Some(self.next_opening())
            } else {
                None
            };
            // No acknowledgment is sent during a simultaneous open.
            let is_syn = opening.is_some_and(|next| next != Some(NextSegment::PureAck));
            // Options other than timestamps are rare: they stay in one place.
            let mut options = None;
            if self.has_options(is_syn) {
                self.fill(options.insert(Options::default()), now_ns, is_syn);
            }
            let options_len = match &options {
                Some(options) => options.len(),
                None => self.negotiated.timestamps_len(),
            };
            let most = room - options_len;
            let next = match opening {
                Some(next) => next,
                None => {
                    let budget = self.congestion.pacing_budget(now_ns).unwrap_or(0);
                    let burst = self
                        .gso_size(host.offload, most, left)
                        .min(budget.max(most));
                    self.next(most, burst / most * most, budget > 0)
                }
            };
            let Some(mut next) = next else {
                self.recovery.force_retransmit = false;
                turn = OutputStatus::Done;
                break;
            };
            let mut segment = self.segment(now_ns, next, is_syn);
            (segment.options, segment.options_len) = (options.as_ref(), options_len);
            let mut out_len = segment.payload_len;
            left = left.saturating_sub(if host.offload.tso4 || host.offload.tso6 {
                out_len.div_ceil(frame_len(most)).max(1)
            } else {
                out_len.div_ceil(most).max(1)
            });
            match self.header_cache() {
                Some(way) => {
                    let all = out_len;
                    // A SYN's bytes (TFO) are as many as the server accepts.
                    let cut_at = if is_syn { usize::MAX } else { most };
                    let Some(done) = segment.emit(way, &self.send, host, out, cut_at) else {
                        turn = OutputStatus::DeviceFull;
                        break;
                    };
                    out_len = done;
                    if let NextSegment::New(start, _) = next
                        && done < all
                    {
                        (next, turn) = (
                            NextSegment::New(start, start.plus(done)),
                            OutputStatus::DeviceFull,
                        );
                    }
                }
                None => segment.enqueue_unresolved(now_ns, self.header(), &self.send, host),
            }
            *sent += out_len;
            self.sent_in_frames(now_ns, next, most);
            went |= next != NextSegment::PureAck;
            if turn == OutputStatus::MoreToSend && !self.has_output() {
                turn = OutputStatus::Done;
            }
        }
        (turn, went)
    }

    /// `Some` if only an acknowledgment is to be sent (false), or our FIN with nothing in flight
    /// (true).
    #[inline]
    fn pure_ack(&self) -> Option<bool> {
        let asks = self.ack.probe_window || self.recovery.force_retransmit;
        if asks || self.is_opening() || self.scoreboard.lost() > 0 || self.has_options(false) {
            return None;
        }
        if self.send.wants() {
            (self.send.wants_fin_alone() && self.scoreboard.is_empty()).then_some(true)
        } else {
            self.ack.now.then_some(false)
        }
    }

    /// Sends an acknowledgment alone, the usual segment of a receiver, or a FIN; returns whether it
    /// was one of them.
    #[inline]
    fn send_pure_ack(
        &mut self,
        now_ns: u64,
        host: &mut Interface,
        out: &mut dyn TxSink,
        fin: bool,
    ) -> (OutputStatus, bool) {
        let mut flags = Flags::ACK;
        for (set, flag) in [(fin, Flags::FIN), (self.ecn.send_ece, Flags::ECE)] {
            flags = if set { flags | flag } else { flags };
        }
        let mut segment = TxSegment {
            start: self.send.nxt,
            payload_len: 0,
            urgent: 0,
            traffic_class: self.user.options.traffic_class,
            options: None,
            options_len: self.negotiated.timestamps_len(),
            header: Plain {
                src_port: self.pair.local.port(),
                dst_port: self.pair.remote.port(),
                seq: self.send.nxt.0,
                ack: self.receive.nxt.0,
                flags,
                window: self.receive.advertise(self.segment_size.mss()),
                timestamps: self.negotiated.timestamp_option(now_ns),
            },
        };
        match self.header_cache() {
            Some(way) => {
                let done = segment.emit(way, &self.send, host, out, usize::MAX);
                if done.is_none() {
                    return (OutputStatus::DeviceFull, false);
                }
            }
            None => segment.enqueue_unresolved(now_ns, self.header(), &self.send, host),
        }
        let start = self.send.nxt;
        if fin {
            self.sent(now_ns, NextSegment::New(start, start.plus(1)))
        } else {
            self.count_transmit(0, false);
            self.acknowledged_all();
        }
        (OutputStatus::Done, fin)
    }

    /// Whether a turn may send something. Data that waits for the pacing rate needs no turn: a
    /// timer gives it one, as Linux' `sk_pacing_timer`.
    pub(super) fn wants_output(&self) -> bool {
        let is_paced = self.congestion.wake_ns() != u64::MAX;
        self.state != State::Closed
            && (self.has_urgent_output()
                || self.reachability.hint.is_some()
                || !is_paced && self.has_data_output())
    }

    /// Whether there may be something to send.
    fn has_output(&self) -> bool {
        self.has_urgent_output() || self.has_data_output()
    }

    /// Whether there may be something to send that does not wait for the pacing rate.
    fn has_urgent_output(&self) -> bool {
        self.ack.now
            || self.ack.probe_window
            || self.recovery.force_retransmit
            || self.send.nxt == self.send.iss
    }

    /// Whether there may be new or lost data to send.
    fn has_data_output(&self) -> bool {
        self.scoreboard.lost() > 0 || self.send.wants()
    }

    /// Refreshes the header cache unless it is valid.
    #[inline]
    fn refresh_header_cache(&mut self, now_ns: u64, host: &mut Interface) {
        let way = self.header_cache();
        if !way.is_some_and(|way| host.header_cache_is_valid(now_ns, way)) {
            self.find_header_cache(now_ns, host);
        }
    }

    #[inline(never)]
    fn find_header_cache(&mut self, now_ns: u64, host: &mut Interface) {
        let way = host.header_cache(now_ns, &self.header());
        self.headers_mut().cached = way;
    }

    fn header_cache(&self) -> Option<&HeaderCache> {
        self.headers.as_deref()?.cached.as_ref()
    }

    /// The IP header of this connection's packets.
    fn header(&self) -> Header {
        self.user.options.header(self.pair.addresses())
    }

    /// Bytes of one segment that the link cuts, or that is cut when it is written; at most `left`
    /// segments then, and at most what the congestion window allows.
    fn gso_size(&self, offload: Offload, most: usize, left: usize) -> usize {
        // A segment that waits for the next hop's address is no longer than the path's MTU allows.
        if self.send.unsent() <= most || self.header_cache().is_none() {
            return most;
        }
        let cuts = match self.pair.local {
            SocketAddr::V4(_) => offload.tso4,
            SocketAddr::V6(_) => offload.tso6,
        };
        // CWR belongs to one segment alone, and each segment has its own urgent pointer.
        if self.ecn.send_cwr || self.recovery.force_retransmit || self.is_urgent() {
            return most;
        }
        let cwnd = self.congestion.cwnd;
        let room = cwnd.saturating_sub(self.pipe());
        let burst_max = if cuts {
            self.gso_size_max(most, offload.burst.max(1).into())
        } else if most == self.segment_size.mss() && self.header_cache().is_some() {
            // The scoreboard cuts at full segments, and counts one of several as arrived only
            // when all have: therefore at most a small part of the window.
            (left * most).min(cwnd / CWND_DIVISOR)
        } else {
            return most;
        };
        (room.min(burst_max) / most * most).max(most)
    }

    /// [`Pcb::sent`], for bytes sent in one frame or in a burst of several: each frame is an entry
    /// of the scoreboard.
    fn sent_in_frames(&mut self, now_ns: u64, next: NextSegment, most: usize) {
        let NextSegment::New(mut start, end) = next else {
            return self.sent(now_ns, next);
        };
        let each = frame_len(most);
        while end.since(start) > each + 1 {
            self.sent(now_ns, NextSegment::New(start, start.plus(each)));
            start = start.plus(each);
        }
        self.sent(now_ns, NextSegment::New(start, end));
    }

    /// Limit on the bytes of one segment that the link cuts, or of a burst of `run` segments. As
    /// Linux' `tcp_tso_autosize`: the bytes of one millisecond, more on shorter paths, and only a
    /// part of the window, so that the next part is acknowledged while one is in flight.
    fn gso_size_max(&self, most: usize, run: usize) -> usize {
        let burst_max = run * frame_len(most);
        let cwnd = self.congestion.cwnd;
        let paced = self.congestion.paced_bytes(GSO_MAX_NS, self.rtt.srtt_ns());
        let halvings = u32::try_from(self.rtt.min_ns() / SHORT_RTT_NS).unwrap_or(u32::MAX);
        let near = match self.rtt.min_ns() {
            0 => 0,
            // Bursts are for paths with a short RTT.
            _ if halvings == 0 => burst_max,
            _ => frame_len(most).checked_shr(halvings).unwrap_or(0),
        };
        let least = usize::from(self.limits.min_tso_segs) * most;
        let burst = near.saturating_add(paced as usize).max(least);
        burst.min(burst_max).min(cwnd / 2)
    }

    /// After an idle time the state of the network is unknown again (RFC 5681 §4.1).
    fn restart_after_idle(&mut self, now_ns: u64) {
        let idle_ns = now_ns.saturating_sub(self.activity.last_sent_ns);
        // A connection that probes a closed window is not idle.
        let may = self.send.unsent() > 0 && self.send.allows(self.send.nxt.plus(1));
        if self.limits.slow_start_after_idle
            && may
            && self.scoreboard.is_empty()
            && idle_ns > self.rtt.rto_ns()
        {
            self.congestion.on_idle();
        }
    }

    /// Chooses the next segment; `paced` says whether the pacing rate allows data now.
    fn next(&mut self, most: usize, burst: usize, paced: bool) -> Option<NextSegment> {
        let (pipe, cwnd, force) = (
            self.pipe(),
            self.congestion.cwnd,
            self.recovery.force_retransmit,
        );
        let fits = |len: usize| force || (paced && (pipe == 0 || pipe + len <= cwnd));
        let mut waits = false;
        if self.scoreboard.lost() > 0
            && let Some(sent) = self.scoreboard.next_lost(most)
        {
            let len = sent.end.since(sent.start);
            let allowed = sent.start == self.send.una || self.send.allows(sent.end);
            if allowed && fits(len) {
                return Some(NextSegment::Retransmit(sent.start, sent.end));
            }
            // New bytes do not overtake bytes that a record waits for.
            waits = allowed;
        }
        if !waits
            && !self.scoreboard.is_full()
            && let Sendable::Bytes(len, fin) = self.send.sendable(most, burst)
            && fits(len)
        {
            let end = self.send.nxt.plus(len + usize::from(fin));
            return Some(NextSegment::New(self.send.nxt, end));
        }
        match (self.ack.probe_window, self.ack.now) {
            (true, _) => Some(NextSegment::WindowProbe),
            (false, true) => Some(NextSegment::PureAck),
            (false, false) => None,
        }
    }

    fn next_opening(&mut self) -> Option<NextSegment> {
        if self.send.nxt == self.send.iss {
            return Some(NextSegment::New(self.send.iss, self.first_end()));
        }
        // Bytes of a SYN are retransmitted only after the SYN is acknowledged.
        if let Some(sent) = self.scoreboard.next_lost(1)
            && sent.start == self.send.iss
        {
            return Some(NextSegment::Retransmit(sent.start, sent.end));
        }
        let answers = self.ack.now && self.state == State::SynReceived;
        answers.then_some(NextSegment::PureAck)
    }

    /// Whether the next segment has options other than timestamps.
    fn has_options(&self, is_syn: bool) -> bool {
        is_syn || (self.negotiated.sack && self.receive.has_blocks()) || self.is_urgent()
    }

    /// The options of the next segment.
    #[inline(never)]
    fn fill(&mut self, options: &mut Options, now_ns: u64, is_syn: bool) {
        options.timestamps = self.negotiated.timestamp_option(now_ns);
        if is_syn {
            let first = self.state == State::SynSent;
            options.mss = Some(self.segment_size.advertised);
            options.sack_permitted = self.negotiated.sack;
            // A SYN-ACK scales windows only if the SYN did (RFC 7323 §2.2).
            let scales = first || self.negotiated.window_scaling;
            options.window_scale = scales.then_some(self.receive.scale);
            // Options that a middlebox may drop are sent once.
            let once = self.opening.listener.is_some() || self.send.nxt == self.send.iss;
            let opening = self.opening.tfo.as_ref().filter(|_| once);
            options.fast_open = opening.and_then(|opening| opening.option);
        } else if self.negotiated.sack {
            let blocks = if self.negotiated.timestamps.is_some() {
                3
            } else {
                4
            };
            options.sack = self.receive.sack(blocks);
        }
    }

    /// The next segment, with timestamps as its only option.
    fn segment<'a>(&mut self, now_ns: u64, next: NextSegment, is_syn: bool) -> TxSegment<'a> {
        let (start, end) = match next {
            NextSegment::New(start, end) | NextSegment::Retransmit(start, end) => (start, end),
            NextSegment::PureAck => (self.send.nxt, self.send.nxt),
            NextSegment::WindowProbe => (self.send.una.minus(1), self.send.una.minus(1)),
        };
        let payload_len = self.send.payload_len(start, end);
        let fresh = matches!(next, NextSegment::New(..)) && payload_len > 0;
        let urgent = self.urgent_pointer(start);
        TxSegment {
            start,
            payload_len,
            urgent,
            // Only new bytes may be ECN-capable (RFC 3168 §6.1.5).
            traffic_class: if self.ecn.enabled && fresh && !self.is_opening() {
                self.user.options.traffic_class | ECT0
            } else {
                self.user.options.traffic_class
            },
            options: None,
            options_len: self.negotiated.timestamps_len(),
            header: Plain {
                src_port: self.pair.local.port(),
                dst_port: self.pair.remote.port(),
                seq: start.0,
                ack: match self.state {
                    State::SynSent => 0,
                    _ => self.receive.nxt.0,
                },
                flags: self.flags(next, start, end, payload_len, is_syn),
                window: self.window_field(is_syn),
                timestamps: self.negotiated.timestamp_option(now_ns),
            },
        }
    }

    fn flags(
        &self,
        next: NextSegment,
        start: Seq,
        end: Seq,
        payload_len: usize,
        is_syn: bool,
    ) -> Flags {
        let mut flags = self.send.flags(start, end);
        let mut set = |flag: Flags, when: bool| flags = if when { flags | flag } else { flags };
        set(Flags::ACK, self.state != State::SynSent);
        match self.state {
            State::SynSent => set(Flags::ECE | Flags::CWR, self.ecn.enabled),
            State::SynReceived if is_syn => set(Flags::ECE, self.ecn.enabled),
            _ => {
                set(Flags::ECE, self.ecn.send_ece);
                let fresh = matches!(next, NextSegment::New(..)) && payload_len > 0;
                set(Flags::CWR, self.ecn.send_cwr && fresh);
            }
        }
        flags
    }

    fn window_field(&mut self, is_syn: bool) -> u16 {
        if is_syn {
            self.receive.advertise_on_syn()
        } else {
            self.receive.advertise(self.segment_size.mss())
        }
    }

    fn count_transmit(&mut self, len: usize, again: bool) {
        let segments = self.segment_size.segments(len);
        let counts = &mut self.counts;
        count(&mut counts.segments_out, segments);
        if again {
            count(&mut counts.retransmitted, segments);
        }
    }

    /// Accounts for a sent segment.
    fn sent(&mut self, now_ns: u64, next: NextSegment) {
        match next {
            NextSegment::New(start, end) => {
                if self.scoreboard.is_empty() {
                    self.recovery.since_ns = now_ns;
                }
                let len = self.send.payload_len(start, end);
                self.count_transmit(len, false);
                let is_first = self.scoreboard.is_empty();
                self.scoreboard.push(start, end, now_ns);
                self.count_paced(now_ns, end.since(start), is_first);
                // The bytes of a SYN are as many as fit: they do not wait.
                let full = len == 0
                    || len == self.segment_size.mss()
                    || len.is_multiple_of(self.segment_size.mss().max(1));
                if !full && !self.is_opening() {
                    self.send.snd_sml = end;
                }
                self.ack.probe_window = false;
                let answers = self.counts.bytes_in > 0 && !self.is_opening();
                if len > 0 && answers && now_ns < self.activity.last_received_ns + DELAYED_ACK_NS {
                    self.ack.pingpong = true;
                }
                self.send.nxt = end;
                self.send.sws_override = false;
                self.recovery.on_transmit(end.since(start));
                self.ecn.send_cwr = false;
            }
            NextSegment::Retransmit(start, end) => {
                if start == self.send.una {
                    self.recovery.since_ns = now_ns;
                }
                let len = self.send.payload_len(start, end);
                self.count_transmit(len, true);
                self.scoreboard.on_retransmit(start, now_ns);
                self.count_paced(now_ns, end.since(start), false);
                self.recovery.on_transmit(end.since(start));
            }
            NextSegment::PureAck => self.count_transmit(0, false),
            NextSegment::WindowProbe => {
                self.count_transmit(0, false);
                self.ack.probe_window = false;
            }
        }
        if matches!(next, NextSegment::New(..) | NextSegment::Retransmit(..)) {
            self.recovery.force_retransmit = false;
            self.activity.last_sent_ns = now_ns;
        }
        if self.state != State::SynSent {
            self.acknowledged_all();
        }
    }

    /// Informs the congestion control of a sent segment.
    #[inline]
    fn count_paced(&mut self, now_ns: u64, bytes: usize, is_first: bool) {
        if !self.congestion.is_rate_based() {
            return;
        }
        let sent = Transmit {
            now_ns,
            bytes,
            inflight: self.pipe(),
            is_first,
        };
        let board = &self.scoreboard;
        self.congestion.on_sent(&sent, || board.oldest_ns());
    }

    /// Accounts for a segment that acknowledges everything received.
    fn acknowledged_all(&mut self) {
        self.ack.now = false;
        self.timers.ack_ns = None;
        self.ack.last_sent = self.receive.nxt;
    }
}
