//! Acknowledgments (RFC 9293 §3.10.7.4, fifth; RFC 2018 §3; RFC 7323 §4).

use super::Arrived;
use crate::tcp::info::{add, count};
use crate::tcp::pcb::{Pcb, State};
use crate::tcp::recovery::AckResult;
use crate::tcp::seq::Seq;
use weir_wire::tcp::{Flags, SackBlocks};

/// The acknowledgment information of a segment.
pub(in crate::tcp) struct AckInfo<'a> {
    pub(in crate::tcp) seq: Seq,
    pub(in crate::tcp) ack: Seq,
    /// The peer's window, in bytes.
    pub(in crate::tcp) wnd: usize,
    /// The segment has neither bytes nor a FIN.
    pub(in crate::tcp) pure_ack: bool,
    /// The peer echoes a congestion mark (ECE).
    pub(in crate::tcp) ece: bool,
    /// TSval and TSecr.
    pub(in crate::tcp) timestamps: Option<(u32, u32)>,
    pub(in crate::tcp) sack: &'a [(u32, u32)],
}

impl<'a> AckInfo<'a> {
    pub(in crate::tcp) fn from_segment(arrived: &'a Arrived<'_>, scale: u8) -> AckInfo<'a> {
        AckInfo {
            seq: arrived.seq,
            ack: Seq(arrived.repr.ack),
            wnd: usize::from(arrived.repr.window) << scale,
            pure_ack: arrived.payload.is_empty() && !arrived.has(Flags::FIN),
            ece: arrived.has(Flags::ECE),
            timestamps: arrived.repr.options.timestamps,
            sack: arrived.repr.options.sack.as_slice(),
        }
    }
}

impl Pcb {
    /// Whether an acknowledgment, known not to be beyond SND.NXT, changes nothing: nothing is in
    /// flight, nothing is unsent, and the window is the same, as while bytes only arrive.
    #[inline]
    pub(in crate::tcp) fn is_noop_ack(&mut self, seq: Seq, ack: Seq, wnd: usize) -> bool {
        self.is_current_ack(ack, wnd) && !self.send.window(seq, ack, wnd)
    }

    /// Whether an acknowledgment repeats SND.UNA, and nothing waits for one.
    #[inline]
    pub(in crate::tcp) fn is_current_ack(&self, ack: Seq, wnd: usize) -> bool {
        self.scoreboard.is_empty()
            && !self.send.wants()
            && self.recovery.retries == 0
            && self.rtt.backoff() == 0
            && ack == self.send.una
            && wnd == self.send.wnd
    }

    /// Processes an acknowledgment that is not beyond SND.NXT.
    pub(in crate::tcp) fn take_ack(&mut self, now_ns: u64, told: &AckInfo<'_>) {
        let ack = told.ack;
        let una = self.send.una;
        let flight = self.scoreboard.pipe();
        if ack.before(una) {
            self.take_old_ack(now_ns, told);
            return;
        }
        let told_window = self.send.window(told.seq, ack, told.wnd);
        let arrived_twice = self.is_dsack(told);
        let delivered = self.mark_delivered(now_ns, told);
        if una.before(ack) {
            self.send.msg_more = false;
            self.note_ack_progress(now_ns);
            let arrived = self.send.acknowledge(ack);
            add(&mut self.counts.bytes_acknowledged, arrived);
            self.forget_urgent();
            self.reachability.confirm(now_ns);
        }
        let duplicate = ack == una && !told_window && told.pure_ack && !self.scoreboard.is_empty();
        let progress = AckResult {
            delivered,
            acknowledged: ack.since(una),
            duplicate,
            dsack: arrived_twice,
            flight,
        };
        if self.ecn.enabled && told.ece {
            self.on_ecn_congestion();
        }
        self.recover(now_ns, progress);
        self.send.autotune(self.congestion.cwnd, &self.rtt);
        // A peer with a closed window that answers is alive.
        if self.send.wnd == 0 || self.scoreboard.is_empty() {
            self.recovery.retries = 0;
            if self.send.wnd > 0 {
                self.rtt.reset_backoff();
            }
        }
        if told_window && self.scoreboard.is_empty() {
            // An answered window probe restarts its timer.
            self.timers.loss = None;
        }
        self.schedule_loss(now_ns);
        self.advance_close();
    }

    /// Processes an acknowledgment that later ones have overtaken: its SACK blocks may still be
    /// new.
    fn take_old_ack(&mut self, now_ns: u64, told: &AckInfo<'_>) {
        if !self.negotiated.sack || told.sack.is_empty() {
            return;
        }
        let una = self.send.una;
        let flight = self.scoreboard.pipe();
        let delivered = self.mark_delivered(now_ns, &AckInfo { ack: una, ..*told });
        if delivered > 0 {
            self.recover(
                now_ns,
                AckResult {
                    delivered,
                    flight,
                    ..AckResult::default()
                },
            );
            self.schedule_loss(now_ns);
        }
    }

    /// Whether the first SACK block reports a duplicate (D-SACK, RFC 2883 §4).
    fn is_dsack(&mut self, told: &AckInfo<'_>) -> bool {
        let (ack, blocks) = (told.ack, told.sack);
        let Some(&(start, end)) = blocks.first().filter(|_| self.negotiated.sack) else {
            return false;
        };
        let (start, end) = (Seq(start), Seq(end));
        let within = blocks.get(1).is_some_and(|&(outer, outer_end)| {
            Seq(outer).at_most(start) && end.at_most(Seq(outer_end))
        });
        let twice = start.before(end) && (end.at_most(ack) || within);
        if twice {
            self.rack.on_dsack(ack, self.send.nxt);
        }
        twice
    }

    /// Marks segments as delivered; returns how many bytes are newly delivered.
    fn mark_delivered(&mut self, now_ns: u64, told: &AckInfo<'_>) -> usize {
        let ack = told.ack;
        if self.scoreboard.is_empty() {
            return 0;
        }
        let held = self.scoreboard.sacked();
        let outstanding = self.scoreboard.snd_inflight();
        let min_rtt_ns = self.rtt.min_ns();
        let echo = told.timestamps.map(|(_, echo)| echo);
        let echo = echo.filter(|_| self.negotiated.timestamps.is_some());
        let offset = self
            .negotiated
            .timestamps
            .map_or(0, |timestamps| timestamps.offset);
        let counts = &mut self.counts;
        let (rack, sack, mss) = (
            &mut self.rack,
            self.negotiated.sack,
            self.segment_size.mss(),
        );
        let congestion = &mut self.congestion;
        let mut latest_ns: Option<u64> = None;
        let mut again_ns: Option<u64> = None;
        let mut delivered = |sent: &crate::tcp::recovery::scoreboard::Sent| {
            if sent.retransmitted && sent.start.before(ack) {
                again_ns = again_ns.max(Some(sent.sent_ns));
            }
            if sent.sacked && sent.start.before(ack) {
                return;
            }
            let len = sent.end.since(sent.start);
            let segments = if len <= mss {
                1
            } else {
                len.div_ceil(mss.max(1))
            };
            count(&mut counts.delivered, segments);
            congestion.on_delivered(sent);
            if !sent.retransmitted {
                latest_ns = latest_ns.max(Some(sent.sent_ns));
            }
            let clock = ((sent.sent_ns / 1_000_000) as u32).wrapping_add(offset);
            // For a segment out of order, the echoed timestamp is that of the segment before the
            // gap (RFC 7323 §4.3), and no measurement.
            let in_order = sent.start.before(ack);
            let echo_is_older = in_order && echo.is_some_and(|echo| Seq(echo).before(Seq(clock)));
            if sack {
                rack.delivered(sent, now_ns, min_rtt_ns, echo_is_older);
            }
        };
        // In order of sequence numbers: segments acknowledged at once did not arrive out of order.
        let partly = self.scoreboard.acknowledge(ack, &mut delivered);
        if self.negotiated.sack && !told.sack.is_empty() {
            let mut blocks = [(Seq(0), Seq(0)); SackBlocks::MAX];
            let count = told.sack.len().min(blocks.len());
            for (block, &(start, end)) in blocks.iter_mut().zip(told.sack) {
                *block = (Seq(start), Seq(end));
            }
            let blocks = &mut blocks[..count];
            blocks.sort_unstable_by_key(|(start, _)| start.since(ack) as u32);
            for &(start, end) in blocks.iter() {
                let known = ack.before(end) && start.before(end) && end.at_most(self.send.nxt);
                if known && ack.at_most(start) {
                    self.scoreboard.sack(start, end, mss, &mut delivered);
                }
            }
        }
        // Karn's rule: a retransmitted segment gives no sample (RFC 6298 §3), nor does one that
        // waited at the peer for a retransmission. If a timestamp shows that the retransmission
        // arrived, it gives one (RFC 7323 §4.1).
        let clock = |ns: u64| Seq(((ns / 1_000_000) as u32).wrapping_add(offset));
        let measured_ns = match (again_ns, latest_ns, echo) {
            (None, Some(sent_ns), _) => Some(now_ns.saturating_sub(sent_ns)),
            (Some(sent_ns), _, Some(echo)) => {
                let told = clock(sent_ns).at_most(Seq(echo)) && Seq(echo).at_most(clock(now_ns));
                told.then(|| now_ns.saturating_sub(sent_ns))
            }
            _ => None,
        };
        if let Some(rtt_ns) = measured_ns {
            self.rtt.measured(rtt_ns);
            self.congestion.on_rtt(rtt_ns);
        }
        if let Some(sent) = partly.filter(|sent| !sent.sacked) {
            self.congestion.on_delivered(&sent);
        }
        let left = outstanding - self.scoreboard.snd_inflight() + self.scoreboard.sacked();
        let delivered = left.saturating_sub(held);
        self.congestion.count_delivered(delivered, now_ns);
        delivered
    }

    /// Our FIN is acknowledged: enters the next state.
    fn advance_close(&mut self) {
        if !self.send.fin_acknowledged() {
            return;
        }
        match self.state {
            State::FinWait1 => self.state = State::FinWait2,
            State::Closing => self.wait(),
            State::LastAck => self.end(None),
            _ => {}
        }
    }

    /// Whether a segment of the peer can acknowledge `ack` (RFC 5961 §5.2).
    pub(in crate::tcp) fn ack_is_plausible(&self, ack: Seq) -> bool {
        let widest = self.send.wnd_max;
        let oldest = self.send.una.minus(widest);
        oldest.at_most(ack) && ack.at_most(self.send.nxt)
    }
}
