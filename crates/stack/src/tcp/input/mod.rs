//! Input: one segment arrives at one connection (RFC 9293 §3.10.7, RFC 5961, RFC 7323 §5).

pub(super) mod ack;
pub(super) mod fast_path;
pub(super) mod train;

use super::TcpError;
use super::buffer::receive_buffer::{Insertion, SHORT_RTT_NS};
use super::info::{add, count};
use super::pcb::{Pcb, QUICKACKS_MAX, State, Timestamps};
use super::recovery::rtt::RTO_MIN_NS;
use super::seq::Seq;
use crate::deadline::{as_ns, from_ns};
use ack::AckInfo;
use weir_wire::tcp::{Flags, Options, Repr};

/// A segment with a correct checksum.
pub(super) struct Arrived<'a> {
    pub(super) repr: &'a Repr,
    pub(super) seq: Seq,
    pub(super) payload: &'a [u8],
    /// The network has marked the packet (CE).
    pub(super) ce: bool,
}

/// The work that remains after a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Effect {
    Nothing,
    /// The segment was not accepted: it may be forged, or a duplicate.
    Unexpected,
    /// The connection is now open.
    Opened,
    /// A RST answers the segment, as without a connection.
    SendRst,
    /// A new connection replaces this one (RFC 6191).
    ReuseTimeWait,
}

/// Longest delay, in nanoseconds, of the acknowledgment of a FIN, so that this side's FIN goes
/// with it. An application that learns of the end mostly closes at once; a peer of one that
/// does not waits no longer than this.
const FIN_ACK_NS: u64 = 1_000_000;
/// Round-trip time, in nanoseconds, that is assumed before it is measured.
const RTT_UNKNOWN_NS: u64 = 100_000_000;
/// Least MSS, in bytes, that a peer may ask for (Linux's `TCP_MIN_SND_MSS`): all options and
/// eight bytes. A peer with a smaller MSS would cause a hundred segments for each one that
/// other peers get (CVE-2019-11479), and larger segments than it accepts must not be sent
/// (RFC 9293, MUST-16). Therefore its SYN is refused.
pub(super) const PEER_MSS_MIN: u16 = 48;

/// The MSS of a peer's SYN; without one, or if it is zero, the default that every host accepts
/// (RFC 9293 §3.7.1).
pub(super) fn peer_mss(options: &Options) -> u16 {
    options.mss.filter(|mss| *mss > 0).unwrap_or(536)
}

impl Arrived<'_> {
    pub(super) fn has(&self, flag: Flags) -> bool {
        self.repr.flags.contains(flag)
    }

    /// Length in sequence numbers.
    pub(super) fn len(&self) -> usize {
        self.payload.len() + usize::from(self.has(Flags::SYN)) + usize::from(self.has(Flags::FIN))
    }

    /// The number of the first byte, or of the FIN if there is no byte.
    pub(super) fn data_seq(&self) -> Seq {
        self.seq.plus(self.has(Flags::SYN).into())
    }
}

impl Pcb {
    pub(super) fn arrives(&mut self, now_ns: u64, arrived: &Arrived<'_>) -> Effect {
        self.count_in(now_ns, arrived.payload.len());
        match self.state {
            State::Closed => Effect::SendRst,
            State::SynSent => self.arrives_syn_sent(now_ns, arrived),
            _ => self.arrives_synchronised(now_ns, arrived),
        }
    }

    /// RFC 9293 §3.10.7.3.
    fn arrives_syn_sent(&mut self, now_ns: u64, arrived: &Arrived<'_>) -> Effect {
        let ack = Seq(arrived.repr.ack);
        let has_ack = arrived.has(Flags::ACK);
        if has_ack && (ack.at_most(self.send.iss) || self.send.nxt.before(ack)) {
            return if arrived.has(Flags::RST) {
                Effect::Nothing
            } else {
                Effect::SendRst
            };
        }
        if arrived.has(Flags::RST) {
            if has_ack && self.ecn.give_up() {
                // A middlebox may have refused the offer, not the connection (RFC
                // 3168 §6.1.1.1): the SYN goes once more without it.
                self.recovery.force_retransmit |= self.scoreboard.mark_lost(|_| true) > 0;
            } else if has_ack {
                self.end(Some(TcpError::Refused));
            }
            return Effect::Nothing;
        }
        // An echo of a timestamp that we have not sent answers another SYN (RFC 7323 §3.2).
        if has_ack
            && !self
                .negotiated
                .is_echo_of_syn(now_ns, arrived.repr.options.timestamps)
        {
            return Effect::SendRst;
        }
        if !arrived.has(Flags::SYN) {
            return Effect::Nothing;
        }
        if peer_mss(&arrived.repr.options) < PEER_MSS_MIN {
            self.end(Some(TcpError::Refused));
            return Effect::SendRst;
        }
        self.negotiate(now_ns, arrived);
        self.activity.last_segment_ns = now_ns;
        if !has_ack {
            // Simultaneous open (RFC 9293 §3.5, figure 8): our SYN is sent again, with an
            // acknowledgment.
            self.state = State::SynReceived;
            self.ecn.enabled &= arrived.has(Flags::ECE | Flags::CWR);
            self.scoreboard.mark_lost(|_| true);
            self.recovery.force_retransmit = true;
            return Effect::Nothing;
        }
        let ecn = arrived.has(Flags::ECE) && !arrived.has(Flags::CWR);
        self.ecn.enabled &= ecn;
        // The window of a SYN is not shifted.
        self.open(now_ns, arrived.seq, ack, arrived.repr.window.into());
        self.end_opening(arrived);
        self.ack.now = true;
        // The application has already written: answers will be awaited, not acknowledged at once.
        self.ack.pingpong = self.send.unsent() > 0;
        if !arrived.payload.is_empty() {
            // The window that our SYN advertised.
            self.receive.advertise_on_syn();
            self.take_text(now_ns, arrived);
        }
        Effect::Opened
    }

    /// Adopts the offers of the peer's SYN.
    pub(super) fn negotiate(&mut self, now_ns: u64, arrived: &Arrived<'_>) {
        let options = &arrived.repr.options;
        self.receive.start(arrived.seq);
        self.ack.last_sent = self.receive.nxt;
        self.send.mss_peer = peer_mss(options);
        match options.window_scale {
            Some(scale) => self.send.scale = scale.min(14),
            None => (self.receive.scale, self.negotiated.window_scaling) = (0, false),
        }
        self.negotiated.sack &= options.sack_permitted;
        self.negotiated.timestamps = match (options.timestamps, self.negotiated.timestamps) {
            (Some((value, _)), Some(ours)) => Some(Timestamps::new(ours.offset, value, now_ns)),
            _ => None,
        };
    }

    /// Opens the connection: `ack` acknowledges our SYN, in a segment that begins at `seq` with
    /// window `wnd`.
    pub(super) fn open(&mut self, now_ns: u64, seq: Seq, ack: Seq, wnd: usize) {
        self.state = State::Established;
        self.activity.last_received_ns = now_ns;
        self.send.first_window(seq, ack, wnd);
        let mut sent_once_ns = None;
        if let Some(first) = self.scoreboard.first().filter(|first| !first.retransmitted) {
            sent_once_ns = Some(first.sent_ns);
        }
        self.scoreboard.acknowledge(ack, |_| {});
        if let Some(sent_ns) = sent_once_ns {
            self.rtt.measured(now_ns.saturating_sub(sent_ns));
        }
        let arrived_early = self.send.acknowledge(ack);
        add(&mut self.counts.bytes_acknowledged, arrived_early);
        count(&mut self.counts.delivered, 1);
        self.recovery = super::recovery::Recovery::new();
        (self.timers.loss, self.user_timeout.waits) = (None, false);
        self.send.autotune(self.congestion.cwnd, &self.rtt);
        self.start_keep_alive(now_ns);
        if self.send.closed {
            self.state = State::FinWait1;
        }
    }

    /// RFC 9293 §3.10.7.4.
    fn arrives_synchronised(&mut self, now_ns: u64, arrived: &Arrived<'_>) -> Effect {
        if self.state == State::TimeWait && self.reuses_time_wait(arrived) {
            return Effect::ReuseTimeWait;
        }
        if self.is_old_duplicate(now_ns, arrived) {
            if !arrived.has(Flags::RST) {
                self.ack_out_of_window(now_ns, arrived);
            }
            return Effect::Unexpected;
        }
        if self.state == State::SynReceived && arrived.has(Flags::SYN) && !arrived.has(Flags::RST) {
            self.process_second_syn(arrived);
        }
        if self.state == State::SynReceived && self.is_first_syn(arrived) {
            // Our answer was lost.
            self.recovery.force_retransmit |= self.scoreboard.mark_lost(|_| true) > 0;
            return Effect::Nothing;
        }
        if !self.is_in_window(arrived) {
            if !arrived.has(Flags::RST) {
                self.ack_out_of_window(now_ns, arrived);
            }
            return Effect::Unexpected;
        }
        if arrived.has(Flags::RST) && arrived.seq == self.receive.nxt {
            self.reset();
            return Effect::Nothing;
        }
        if arrived.has(Flags::RST) || arrived.has(Flags::SYN) {
            // RFC 5961 §3.2: only RCV.NXT itself resets; §4.2: no SYN does.
            self.ack.challenge(now_ns);
            return Effect::Unexpected;
        }
        if !arrived.has(Flags::ACK) {
            return Effect::Nothing;
        }
        let ack = Seq(arrived.repr.ack);
        let mut effect = Effect::Nothing;
        if self.state == State::SynReceived {
            if ack.at_most(self.send.una) || self.send.nxt.before(ack) {
                return Effect::SendRst;
            }
            let wnd = usize::from(arrived.repr.window) << self.send.scale;
            self.open(now_ns, arrived.seq, ack, wnd);
            self.end_opening(arrived);
            effect = Effect::Opened;
        }
        if !self.ack_is_plausible(ack) {
            self.ack.challenge(now_ns);
            return Effect::Unexpected;
        }
        self.note_segment(now_ns);
        self.note_timestamp(now_ns, arrived.seq, arrived.repr.options.timestamps);
        self.take_ack(now_ns, &AckInfo::from_segment(arrived, self.send.scale));
        let end = arrived.data_seq().plus(arrived.payload.len());
        if self.refuses_data() && !arrived.payload.is_empty() && self.receive.nxt.before(end) {
            // No application will read it, and the peer should know (RFC 2525 §2.17).
            self.end((!self.user.orphaned).then_some(TcpError::Reset));
            return Effect::SendRst;
        }
        self.take_urgent(arrived);
        self.take_text(now_ns, arrived);
        effect
    }

    /// Whether a SYN in TIME-WAIT starts a connection that cannot be confused
    /// with the old one (RFC 6191 §2).
    fn reuses_time_wait(&self, arrived: &Arrived<'_>) -> bool {
        if !arrived.has(Flags::SYN) || arrived.has(Flags::ACK) || arrived.has(Flags::RST) {
            return false;
        }
        match (self.negotiated.timestamps, arrived.repr.options.timestamps) {
            (Some(ours), Some((value, _))) if value != ours.recent => {
                Seq(ours.recent).before(Seq(value))
            }
            _ => self.receive.nxt.before(arrived.seq),
        }
    }

    /// Whether no application will read data that arrives: it has closed the connection, or shut both
    /// directions down (RFC 9293 §3.6.1).
    #[inline]
    pub(super) fn refuses_data(&self) -> bool {
        let is_shut =
            || self.user.read_shut && matches!(self.state, State::FinWait1 | State::FinWait2);
        self.user.orphaned || is_shut()
    }

    /// Records an acceptable segment. After a long silence of the peer, whose congestion window
    /// is then small again, acknowledgments are not delayed.
    #[inline]
    pub(super) fn note_segment(&mut self, now_ns: u64) {
        let silent_ns = self.activity.note_segment(now_ns);
        if silent_ns > RTO_MIN_NS && silent_ns > self.rtt.rto_ns() {
            self.ack.quick = QUICKACKS_MAX;
        }
    }

    /// PAWS (RFC 7323 §5.3).
    fn is_old_duplicate(&self, now_ns: u64, arrived: &Arrived<'_>) -> bool {
        let timestamps = arrived.repr.options.timestamps;
        !arrived.has(Flags::RST) && self.negotiated.is_old(now_ns, timestamps)
    }

    /// Updates TS.Recent from a segment that begins at `seq` (RFC 7323 §4.3).
    #[inline]
    pub(super) fn note_timestamp(&mut self, now_ns: u64, seq: Seq, timestamps: Option<(u32, u32)>) {
        let begins = (seq, self.ack.last_sent);
        self.negotiated.note_timestamp(now_ns, begins, timestamps);
    }

    /// Processes a retransmitted SYN of the peer, with an acknowledgment or without: one that does
    /// not agree to ECN revokes an earlier agreement (RFC 3168 §6.1.1).
    fn process_second_syn(&mut self, arrived: &Arrived<'_>) {
        let agrees = if arrived.has(Flags::ACK) {
            arrived.has(Flags::ECE) && !arrived.has(Flags::CWR)
        } else {
            arrived.has(Flags::ECE | Flags::CWR)
        };
        if arrived.seq == self.receive.irs && !agrees {
            self.ecn.enabled = false;
        }
    }

    /// Whether this is the SYN that the connection began with.
    fn is_first_syn(&self, arrived: &Arrived<'_>) -> bool {
        let syn = arrived.has(Flags::SYN) && !arrived.has(Flags::ACK) && !arrived.has(Flags::RST);
        syn && arrived.seq == self.receive.irs
    }

    /// RFC 9293 §3.10.7.4, first: whether a part of the segment is in the window.
    fn is_in_window(&self, arrived: &Arrived<'_>) -> bool {
        let (seq, nxt, edge) = (arrived.seq, self.receive.nxt, self.receive.rcv_adv);
        let inside = |number: Seq| nxt.at_most(number) && number.before(edge);
        match (arrived.len(), self.receive.window()) {
            // A peer that has filled the window acknowledges at its end, though bytes before may be
            // lost: as in Linux, this counts, or nothing that is sent to such a peer would be
            // acknowledged. The end is where the peer sees it: the shift rounds the window up. A RST
            // must be inside (RFC 5961 §3.2).
            (0, _) => {
                let seen = edge.plus((1 << self.receive.scale) - 1);
                let acknowledges = !arrived.has(Flags::RST) && nxt.at_most(seq);
                inside(seq) || seq == nxt || acknowledges && seq.at_most(seen)
            }
            // A closed window accepts acknowledgments and RSTs at RCV.NXT; bytes are cut off.
            (_, 0) => seq == nxt,
            (len, _) => {
                let last = seq.plus(len - 1);
                inside(seq) || inside(last) || (seq.before(nxt) && nxt.at_most(last))
            }
        }
    }

    /// Acknowledges a segment outside of the window with our present numbers.
    fn ack_out_of_window(&mut self, now_ns: u64, arrived: &Arrived<'_>) {
        // Two hosts must not answer each other for ever: a segment with bytes is answered, since
        // their number is finite; a SYN is answered now and then (RFC 5961 §4.2).
        if arrived.len() > 0 && !arrived.has(Flags::SYN) {
            // The last acknowledged segment comes again: its timestamp is echoed, or the sender
            // would measure from its first transmission. A sender that knows the segment's end
            // knows the window, too.
            if arrived.seq.plus(arrived.len()) == self.receive.nxt {
                self.note_timestamp(now_ns, arrived.seq, arrived.repr.options.timestamps);
            }
            // A retransmission shows that our acknowledgment was lost.
            self.receive
                .note_duplicate(arrived.data_seq(), arrived.payload.len());
            self.ack.now = true;
            // A retransmitted FIN restarts TIME-WAIT.
            if self.state == State::TimeWait {
                self.timers.keepalive_or_time_wait_ns = None;
            }
        } else {
            self.ack.challenge(now_ns);
        }
    }

    fn reset(&mut self) {
        let error = match self.state {
            State::SynReceived if !self.is_early() => TcpError::Refused,
            State::TimeWait => return self.end(None),
            // All bytes that the peer wanted to send have arrived.
            State::CloseWait => TcpError::WriteClosed,
            _ => TcpError::Reset,
        };
        self.end(Some(error));
    }

    fn take_text(&mut self, now_ns: u64, arrived: &Arrived<'_>) {
        let receives = matches!(
            self.state,
            State::Established | State::FinWait1 | State::FinWait2
        );
        if !receives {
            // The peer has sent its FIN: nothing follows.
            self.ack.now |= arrived.len() > 0;
            return;
        }
        self.ecn.note_segment(arrived.has(Flags::CWR), arrived.ce);
        if !arrived.payload.is_empty() {
            let before = self.receive.nxt;
            let taken = self.receive.insert(arrived.data_seq(), arrived.payload);
            let more = self.receive.nxt.since(before);
            self.received(now_ns, more, arrived.repr.options.timestamps);
            self.schedule_ack(now_ns, taken);
        }
        if arrived.has(Flags::FIN) {
            self.take_fin(now_ns, arrived.data_seq().plus(arrived.payload.len()));
        } else {
            self.ack.now |= self.end_if_all_came();
        }
    }

    /// Accounts for bytes received in order; the window may grow.
    #[inline]
    pub(super) fn received(&mut self, now_ns: u64, count: usize, timestamps: Option<(u32, u32)>) {
        add(&mut self.counts.bytes_in, count);
        self.forget_urgent();
        if self.receive.can_autotune() {
            self.autotune_receive(now_ns, count, timestamps);
        }
    }

    fn autotune_receive(&mut self, now_ns: u64, count: usize, timestamps: Option<(u32, u32)>) {
        if let (Some(_), Some((_, echo))) = (self.negotiated.timestamps, timestamps)
            && count >= self.segment_size.received.into()
        {
            let age_ms = self.negotiated.clock(now_ns).wrapping_sub(echo);
            self.receive.measured(1000 * age_ms.clamp(1, 60_000));
        }
        // Timestamps have a resolution of milliseconds. Shorter paths are measured by our own
        // segments, which are in flight while a peer only sends; otherwise timestamps are better.
        let (told_ns, ours_ns) = (self.receive.rtt_ns(), self.rtt.srtt_ns());
        let is_near = ours_ns.is_some_and(|ns| ns < SHORT_RTT_NS);
        let near = is_near && told_ns.is_none_or(|ns| ns <= 2_000_000);
        let rtt_ns = told_ns.or(ours_ns).unwrap_or(RTT_UNKNOWN_NS);
        self.receive.autotune(now_ns, count, rtt_ns, near);
    }

    /// Acknowledges received data, at once or later: see `AckState::schedule`.
    #[inline]
    pub(super) fn schedule_ack(&mut self, now_ns: u64, taken: Insertion) {
        let ahead = (self.receive.nxt, self.segment_size.mss());
        self.ack
            .schedule(now_ns, taken, ahead, &mut self.timers.ack_ns);
    }

    /// Processes the peer's FIN behind the bytes before `fin` (RFC 9293 §3.10.7.4, eighth).
    #[inline]
    pub(super) fn take_fin(&mut self, now_ns: u64, fin: Seq) {
        let opens = self.state == State::Established;
        // A FIN beyond the window comes again.
        if fin.at_most(self.receive.rcv_adv) {
            self.receive.finish(fin);
        }
        if self.end_if_all_came() && opens && !self.ack.now {
            let by_ns = as_ns(self.timers.ack_ns).unwrap_or(u64::MAX);
            self.timers.ack_ns = from_ns(by_ns.min(now_ns + FIN_ACK_NS));
        } else {
            self.ack.now = true;
        }
    }

    /// Accepts the peer's FIN once all before it has arrived; returns whether that is now.
    fn end_if_all_came(&mut self) -> bool {
        if self.receive.fin != Some(self.receive.nxt) {
            return false;
        }
        self.receive.nxt = self.receive.nxt.plus(1);
        self.receive.rcv_adv = self.receive.rcv_adv.max(self.receive.nxt);
        match self.state {
            State::Established => self.state = State::CloseWait,
            State::FinWait1 => self.state = State::Closing,
            State::FinWait2 => self.wait(),
            _ => {}
        }
        true
    }

    /// Both sides have closed: starts TIME-WAIT, and ends all other timers.
    pub(super) fn wait(&mut self) {
        self.state = State::TimeWait;
        self.timers.keepalive_or_time_wait_ns = None;
    }
}
