//! Loss recovery: fast recovery with proportional rate reduction (RFC 9937), tail loss probes (RFC
//! 8985 §7), the retransmission time-out.

pub(super) mod congestion;
pub(super) mod rack;
pub(super) mod rtt;
pub(super) mod scoreboard;

use super::pcb::{Pcb, State};
use super::seq::Seq;
use crate::deadline::{OptDeadline, as_ns, from_ns};
use congestion::Ack;
use rack::RackInput;
use scoreboard::Sent;

/// Time-outs in a row after which the network layer is informed that nothing arrives (RFC 9293
/// §3.8.3: R1), at each time-out.
const REACHABILITY_SUSPECT_RETRIES: u32 = 3;
/// Longest delay of a peer's acknowledgment, in nanoseconds (RFC 8985 §7.2: WCDelAckT).
const WC_DEL_ACK_NS: u64 = 200_000_000;
/// Duplicate acknowledgments that indicate a loss, without SACK (RFC 5681 §3.2).
const DUP_THRESH: u32 = 3;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// No loss is known.
    Open,
    /// A loss is being repaired (fast recovery).
    Recovery,
    /// The retransmission time-out has expired.
    Loss,
}

/// The state of loss recovery of one connection.
#[derive(Clone, Debug)]
pub(super) struct Recovery {
    pub(super) phase: Phase,
    /// The recovery ends once all before this number is acknowledged (RFC 6582: recover).
    recovery_point: Seq,
    /// Bytes delivered and sent since the recovery began, and in flight at its beginning (RFC
    /// 9937).
    prr_delivered: u32,
    prr_out: u32,
    recover_fs: u32,
    /// One segment is sent whatever the window is.
    pub(super) force_retransmit: bool,
    /// End of a tail loss probe; whether the probe carries retransmitted bytes.
    probe: Option<(Seq, bool)>,
    /// Number of duplicate acknowledgments, without SACK.
    duplicates: u32,
    /// A part of the flight was acknowledged in this recovery.
    partial: bool,
    /// The window was reduced for ECN marks up to this number.
    cwr_until: Option<Seq>,
    /// Number of time-outs in a row.
    pub(super) retries: u32,
    /// When the retransmission timer was started.
    pub(super) since_ns: u64,
    /// When the reordering window ends.
    reorder_ns: OptDeadline,
}

/// The loss timer that runs; at most one does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LossTimer {
    /// The retransmission time-out.
    Timeout,
    /// A tail loss probe.
    Probe,
    /// The reordering window.
    Reorder,
    /// A probe of a closed window.
    Persist,
}

/// The result of an acknowledgment.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct AckResult {
    /// Bytes delivered, cumulatively or selectively.
    pub(super) delivered: usize,
    /// Sequence numbers acknowledged cumulatively.
    pub(super) acknowledged: usize,
    /// A duplicate acknowledgment without other information.
    pub(super) duplicate: bool,
    /// The acknowledgment reports a duplicate (D-SACK).
    pub(super) dsack: bool,
    /// Sequence numbers in flight before the acknowledgment.
    pub(super) flight: usize,
}

impl Recovery {
    pub(super) fn new() -> Recovery {
        Recovery {
            phase: Phase::Open,
            recovery_point: Seq(0),
            prr_delivered: 0,
            prr_out: 0,
            recover_fs: 0,
            force_retransmit: false,
            probe: None,
            duplicates: 0,
            partial: false,
            cwr_until: None,
            retries: 0,
            since_ns: 0,
            reorder_ns: None,
        }
    }
}

impl Recovery {
    /// Accounts for sent sequence numbers.
    pub(super) fn on_transmit(&mut self, count: usize) {
        self.prr_out = self.prr_out.saturating_add(count as u32);
    }

    /// Whether neither recovery nor a probe is in progress.
    pub(super) fn is_open(&self) -> bool {
        self.phase == Phase::Open && self.duplicates == 0 && self.probe.is_none()
    }

    /// Whether the peer has indicated a loss without SACK.
    pub(super) fn has_duplicates(&self) -> bool {
        self.duplicates > 0
    }
}

impl Pcb {
    /// Whether the window was reduced for an ECN mark in this round trip.
    pub(super) fn is_cwr(&self) -> bool {
        let marked = self.recovery.cwr_until;
        marked.is_some_and(|marked| self.send.una.before(marked))
    }

    /// Estimated bytes in the network (RFC 6675 §4: pipe).
    pub(super) fn pipe(&self) -> usize {
        let arrived = self.recovery.duplicates as usize * self.segment_size.mss();
        self.scoreboard.pipe().saturating_sub(arrived)
    }

    fn rack_input(&self, now_ns: u64) -> RackInput {
        RackInput {
            now_ns,
            srtt_ns: self.rtt.srtt_ns().unwrap_or(0),
            min_rtt_ns: self.rtt.min_ns(),
            in_recovery: self.recovery.phase != Phase::Open,
            mss: self.segment_size.mss(),
        }
    }

    /// Processes an acknowledgment: detects losses and sets the congestion window.
    pub(super) fn recover(&mut self, now_ns: u64, progress: AckResult) {
        self.end_probe(progress);
        if progress.acknowledged > 0 {
            // Without SACK one loss is repaired in each round trip; many at once are left to the
            // time-out (RFC 6582 §4, "impatient").
            let partial = self.recovery.phase == Phase::Recovery
                && self.send.una.before(self.recovery.recovery_point);
            if self.negotiated.sack
                || !partial
                || !std::mem::replace(&mut self.recovery.partial, true)
            {
                self.recovery.since_ns = now_ns;
            }
            self.recovery.retries = 0;
        }
        let grown = self.grown_by(progress);
        let lost = if self.negotiated.sack {
            self.detect_loss(now_ns)
        } else {
            self.count_duplicates(progress)
        };
        let repaired = self.recovery.recovery_point.at_most(self.send.una);
        if self.congestion.is_rate_based() {
            return self.follow_model(now_ns, progress, (lost, repaired));
        }
        match self.recovery.phase {
            Phase::Open if lost > 0 => self.enter_recovery(progress),
            Phase::Open => self.grow(now_ns, grown),
            Phase::Recovery if repaired => {
                self.congestion.on_recovery_end();
                self.exit_recovery();
            }
            Phase::Recovery => self.reduce_proportionally(progress, lost > 0),
            Phase::Loss if repaired => {
                self.grow(now_ns, grown);
                self.exit_recovery();
            }
            Phase::Loss => self.grow(now_ns, grown),
        }
    }

    /// [`Pcb::recover`], for an algorithm that sets the window itself: the algorithm learns when a
    /// recovery begins and ends, and of every acknowledgment.
    fn follow_model(&mut self, now_ns: u64, progress: AckResult, (lost, repaired): (usize, bool)) {
        match self.recovery.phase {
            Phase::Open if lost > 0 => self.enter_recovery(progress),
            Phase::Recovery | Phase::Loss if repaired => {
                self.congestion.on_recovery_end();
                self.exit_recovery();
            }
            _ => {}
        }
        let ack = self.ack(now_ns, progress.delivered);
        self.congestion.on_ack(&ack);
    }

    /// An acknowledgment for the congestion control; the window may grow by `bytes`.
    fn ack(&self, now_ns: u64, bytes: usize) -> Ack {
        Ack {
            now_ns,
            bytes,
            srtt_ns: self.rtt.srtt_ns().unwrap_or(0),
            min_rtt_ns: self.rtt.min_ns(),
            inflight: self.pipe(),
            sack: self.negotiated.sack,
            in_recovery: self.recovery.phase != Phase::Open,
        }
    }

    fn exit_recovery(&mut self) {
        self.recovery.phase = Phase::Open;
        self.recovery.duplicates = 0;
        self.rack.recovered();
    }

    /// Grows the window, if the window was the limit (after RFC 7661).
    fn grow(&mut self, now_ns: u64, bytes: usize) {
        if !self.congestion.is_in_use() {
            self.congestion.shift_epoch();
        } else if bytes > 0 {
            let ack = self.ack(now_ns, bytes);
            self.congestion.on_ack(&ack);
        }
    }

    /// Bytes by which an acknowledgment lets the window grow: bytes newly known to have left the
    /// network.
    fn grown_by(&self, progress: AckResult) -> usize {
        let mss = self.segment_size.mss();
        let counted_before = if !self.negotiated.sack {
            self.recovery.duplicates as usize * mss
        } else if self.rack.reordering_bytes() > DUP_THRESH as usize * mss {
            // The path reorders segments as a rule: all that arrives counts.
            0
        } else {
            progress.acknowledged.saturating_sub(progress.delivered)
        };
        match progress.acknowledged {
            0 => 0,
            acknowledged => acknowledged.saturating_sub(counted_before).max(1),
        }
    }

    fn detect_loss(&mut self, now_ns: u64) -> usize {
        let view = self.rack_input(now_ns);
        let congestion = &mut self.congestion;
        let each = |sent: &Sent| congestion.on_lost(sent);
        let (lost, next_ns) = self.rack.detect_loss(&mut self.scoreboard, view, each);
        self.recovery.reorder_ns = next_ns.and_then(from_ns);
        lost
    }

    /// NewReno (RFC 6582), for peers without SACK.
    fn count_duplicates(&mut self, progress: AckResult) -> usize {
        if progress.acknowledged > 0 {
            let partial = self.recovery.phase == Phase::Recovery
                && self.send.una.before(self.recovery.recovery_point);
            let segments = progress
                .acknowledged
                .div_ceil(self.segment_size.mss().max(1)) as u32;
            self.recovery.duplicates = if partial {
                self.recovery
                    .duplicates
                    .saturating_sub(segments.saturating_sub(1))
            } else {
                0
            };
            return if partial { self.mark_first_lost() } else { 0 };
        }
        if progress.duplicate && self.recovery.phase != Phase::Loss {
            let most = self
                .scoreboard
                .snd_inflight()
                .div_ceil(self.segment_size.mss().max(1)) as u32;
            self.recovery.duplicates = (self.recovery.duplicates + 1).min(most);
            let third = self.recovery.duplicates == DUP_THRESH;
            if third && self.recovery.phase == Phase::Open {
                return self.mark_first_lost();
            }
        }
        0
    }

    fn mark_first_lost(&mut self) -> usize {
        self.scoreboard.split_at_first(self.segment_size.mss());
        let first = self.scoreboard.first().map(|sent| sent.start);
        let congestion = &mut self.congestion;
        let is_lost = |sent: &Sent| Some(sent.start) == first;
        let each = |sent: &Sent| congestion.on_lost(sent);
        self.scoreboard.mark_lost_with(is_lost, each)
    }

    /// Enters fast recovery. The acknowledgment that showed the loss counts as delivered (RFC 9937
    /// §6); one segment is sent in any case.
    fn enter_recovery(&mut self, progress: AckResult) {
        let flight = self.scoreboard.snd_inflight();
        self.congestion.on_congestion_event(flight);
        let recovery = &mut self.recovery;
        (recovery.phase, recovery.recovery_point) = (Phase::Recovery, self.send.nxt);
        (recovery.prr_delivered, recovery.prr_out) = (0, 0);
        recovery.recover_fs = flight.max(1) as u32;
        (recovery.force_retransmit, recovery.partial) = (true, false);
        recovery.probe = None;
        if self.congestion.is_rate_based() {
            return;
        }
        self.reduce_proportionally(progress, true);
        self.congestion.cwnd = self
            .congestion
            .cwnd
            .max(self.pipe() + self.segment_size.mss());
    }

    /// Bytes delivered by an acknowledgment; without SACK, a duplicate stands for one segment.
    fn delivered(&self, progress: AckResult) -> usize {
        match (self.negotiated.sack, progress.duplicate) {
            (false, true) => self.segment_size.mss(),
            _ => progress.delivered,
        }
    }

    /// RFC 9937 §6: sends in proportion to delivered bytes, so that the flight reaches ssthresh
    /// when the loss is repaired.
    fn reduce_proportionally(&mut self, progress: AckResult, more_lost: bool) {
        let delivered = self.delivered(progress);
        self.recovery.prr_delivered = self.recovery.prr_delivered.saturating_add(delivered as u32);
        let (pipe, ssthresh, recovery) = (self.pipe(), self.congestion.ssthresh, &self.recovery);
        let quota = if pipe > ssthresh {
            let share = recovery.prr_delivered as u128 * ssthresh as u128;
            let share = share.div_ceil(recovery.recover_fs as u128) as usize;
            share.saturating_sub(recovery.prr_out as usize)
        } else {
            let behind = recovery.prr_delivered.saturating_sub(recovery.prr_out) as usize;
            let safe = progress.acknowledged > 0 && !more_lost;
            let more = if safe { self.segment_size.mss() } else { 0 };
            (behind.max(delivered) + more).min(ssthresh - pipe)
        };
        self.congestion.cwnd = (pipe + quota).max(self.segment_size.mss());
    }

    /// Reduces the window for an ECN mark (RFC 3168 §6.1.2), once in each round trip.
    pub(super) fn on_ecn_congestion(&mut self) {
        let before = self
            .recovery
            .cwr_until
            .is_some_and(|marked| self.send.una.before(marked));
        if self.recovery.phase == Phase::Open && !before {
            self.congestion.on_mark(self.scoreboard.snd_inflight());
            self.recovery.cwr_until = Some(self.send.nxt);
            self.ecn.send_cwr = true;
        }
    }

    /// Ends a tail loss probe, which was delivered or has shown a loss (RFC 8985 §7.4.2).
    fn end_probe(&mut self, progress: AckResult) {
        let Some((end, again)) = self.recovery.probe else {
            return;
        };
        if self.send.una.before(end) {
            return;
        }
        let beyond = end.before(self.send.una);
        if !again || beyond || progress.dsack || progress.duplicate {
            self.recovery.probe = None;
        }
        // The retransmitted bytes were needed: a loss was repaired that nothing else shows.
        let repaired = again && beyond && !progress.dsack;
        if repaired && self.recovery.phase == Phase::Open {
            self.congestion.on_mark(progress.flight);
        }
    }

    /// Sets the loss timer after segments were sent or an acknowledgment arrived.
    #[inline]
    pub(super) fn schedule_loss(&mut self, now_ns: u64) {
        let waits = self.waits();
        if waits || self.user_timeout.waits {
            self.schedule_loss_of(now_ns, waits);
        } else {
            self.timers.loss = None;
        }
    }

    /// [`Pcb::schedule_loss`], if something is in flight, or was.
    #[inline(never)]
    fn schedule_loss_of(&mut self, now_ns: u64, waits: bool) {
        let persists = matches!(self.timers.loss, Some((LossTimer::Persist, _)));
        self.timers.loss = if self.scoreboard.is_empty() {
            match (self.is_window_closed(), persists) {
                (false, _) => None,
                (true, true) => self.timers.loss,
                (true, false) => Some((LossTimer::Persist, now_ns + self.rtt.rto_ns())),
            }
        } else {
            let timeout_ns = (self.recovery.since_ns + self.rtt.rto_ns()).max(now_ns + 1);
            match (as_ns(self.recovery.reorder_ns), self.probe_after_ns()) {
                (Some(at_ns), _) => Some((LossTimer::Reorder, at_ns.max(now_ns + 1))),
                // At the latest at the retransmission time-out (RFC 8985 §7.2).
                (None, Some(after_ns)) => {
                    Some((LossTimer::Probe, (now_ns + after_ns).min(timeout_ns)))
                }
                _ => Some((LossTimer::Timeout, timeout_ns)),
            }
        };
        self.update_user_timeout(now_ns, waits);
    }

    /// Time after a segment at which a tail loss probe is sent (RFC 8985 §7.2); `None` if it would
    /// be of no use.
    ///
    /// Unlike there, and as in QUIC (RFC 9002 §6.2), a fast recovery has probes, too. One
    /// acknowledgment may cover the repaired hole and all behind it; if that one is lost, or the
    /// retransmission, nothing else comes until the time-out.
    fn probe_after_ns(&self) -> Option<u64> {
        let silent = self.recovery.phase != Phase::Loss && self.recovery.probe.is_none();
        if !self.negotiated.sack
            || !self.limits.tail_loss_probe
            || !silent
            || self.scoreboard.lost() > 0
            || self.recovery.retries > 0
        {
            return None;
        }
        let delayed_ns = if self.scoreboard.snd_inflight() <= self.segment_size.mss() {
            WC_DEL_ACK_NS
        } else {
            0
        };
        Some(2 * self.rtt.srtt_ns()? + delayed_ns)
    }

    /// Processes the expired loss timer; false if the connection is to be given up.
    pub(super) fn loss_timeout(&mut self, now_ns: u64, timer: LossTimer) -> bool {
        if self.user_timeout_expired(now_ns) {
            return false;
        }
        self.timers.loss = None;
        match timer {
            LossTimer::Reorder => {
                if self.detect_loss(now_ns) > 0 && self.recovery.phase == Phase::Open {
                    self.enter_recovery(AckResult::default());
                }
            }
            LossTimer::Probe => self.probe(now_ns),
            LossTimer::Timeout => return self.timed_out(now_ns),
            LossTimer::Persist => {
                self.recovery.retries += 1;
                self.rtt.on_rto();
                self.ack.probe_window = true;
                (self.send.sws_override, self.send.push) = (true, true);
                self.timers.loss = Some((LossTimer::Persist, now_ns + self.rtt.rto_ns()));
                self.update_user_timeout(now_ns, self.waits());
                return self.recovery.retries <= self.limits.retries.into();
            }
        }
        self.schedule_loss(now_ns);
        true
    }

    /// Sends one segment as a probe: new bytes, or again the last ones that have not arrived.
    fn probe(&mut self, now_ns: u64) {
        let end = self.send.nxt;
        let new =
            self.send.unsent() > 0 && self.send.allows(end.plus(1)) && !self.scoreboard.is_full();
        if !new {
            let last = self.scoreboard.split_at_last(self.segment_size.mss());
            self.scoreboard.mark_lost(|sent| Some(sent.start) == last);
        }
        self.recovery.force_retransmit = true;
        // In a recovery the window is reduced already.
        let shows_loss = !new && self.recovery.phase == Phase::Open;
        self.recovery.probe = Some((end, shows_loss));
        self.recovery.since_ns = now_ns;
    }

    fn timed_out(&mut self, now_ns: u64) -> bool {
        self.recovery.retries += 1;
        let most = if self.is_opening() {
            self.limits.syn_retries
        } else {
            self.limits.retries
        };
        if self.recovery.retries > most.into() {
            return false;
        }
        // A middlebox may drop segments that offer ECN (RFC 3168 §6.1.1.1).
        if self.state == State::SynSent {
            self.ecn.give_up();
        }
        // RFC 1122 §4.2.3.5: the next hop may be wrong.
        if self
            .recovery
            .retries
            .is_multiple_of(REACHABILITY_SUSPECT_RETRIES)
        {
            self.reachability.suspect();
        }
        // By now the peer should have acknowledged what it reported as received (RFC 2018 §8).
        if self.scoreboard.first().is_some_and(|sent| sent.sacked) {
            self.scoreboard.forget_sacked();
        }
        if self.recovery.phase != Phase::Loss {
            // In a recovery the window is what may be sent now; ssthresh is what it is reduced to.
            if self.recovery.phase == Phase::Recovery && !self.congestion.is_rate_based() {
                let window = self.congestion.cwnd.max(self.congestion.ssthresh);
                self.congestion.cwnd = window;
            }
            self.congestion
                .on_congestion_event(self.scoreboard.snd_inflight());
        }
        self.congestion.on_rto();
        self.rtt.on_rto();
        let recovery = &mut self.recovery;
        (recovery.phase, recovery.recovery_point) = (Phase::Loss, self.send.nxt);
        (recovery.since_ns, recovery.duplicates, recovery.probe) = (now_ns, 0, None);
        recovery.reorder_ns = None;
        recovery.force_retransmit = true;
        let congestion = &mut self.congestion;
        let each = |sent: &Sent| congestion.on_lost(sent);
        self.scoreboard.mark_lost_with(|_| true, each);
        self.schedule_loss(now_ns);
        true
    }
}
