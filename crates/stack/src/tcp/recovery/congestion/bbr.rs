//! BBR version 3 (draft-ietf-ccwg-bbr-06): the window and the pacing rate follow a model of the
//! path, made of the delivery rate, the round-trip time, and losses.
//!
//! Names are the draft's. Differences from the draft:
//! - Snapshots and samples: see [`super::delivery_rate`].
//! - The stack does not report spurious recoveries, so nothing is undone.
//! - A CE mark counts as a loss does for the short-term model (§3.6 leaves the response open, but
//!   wants one).
//! - A sender that is late for its departure time catches up, by at most a send quantum: user-level
//!   timers are late.

mod control;
mod model;
mod states;

use super::delivery_rate::Sampler;
use super::{Ack, Controller, Transmit, Window};
use crate::rng::Rng;
use crate::tcp::recovery::scoreboard::Sent;
use crate::tcp::seq::Seq;
use model::ExtraAcked;

/// BBR.StartupPacingGain: 4 ln 2.
const STARTUP_PACING_GAIN: f64 = 2.77;
/// BBR.MinRTTFilterLen, BBR.ProbeRTTInterval, BBR.ProbeRTTDuration.
const MIN_RTT_FILTER_NS: u64 = 10_000_000_000;
const PROBE_RTT_INTERVAL_NS: u64 = 5_000_000_000;
const PROBE_RTT_DURATION_NS: u64 = 200_000_000;
const PROBE_RTT_CWND_GAIN: f64 = 0.5;
/// The highest rate, in bytes a second: 8 Tb/s.
const RATE_MAX: u64 = 1 << 40;
/// Infinity: no measurement yet, or no bound.
const INFINITE: u64 = u64::MAX;

/// States of the machine (BBR.state).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Startup,
    Drain,
    ProbeBwDown,
    ProbeBwCruise,
    ProbeBwRefill,
    ProbeBwUp,
    ProbeRtt,
}

impl Phase {
    fn pacing_gain(self) -> f64 {
        match self {
            Phase::Startup => STARTUP_PACING_GAIN,
            Phase::Drain => 0.5,
            Phase::ProbeBwDown => 0.9,
            Phase::ProbeBwUp => 1.25,
            Phase::ProbeBwCruise | Phase::ProbeBwRefill | Phase::ProbeRtt => 1.0,
        }
    }

    fn cwnd_gain(self) -> f64 {
        match self {
            Phase::ProbeBwUp => 2.25,
            Phase::ProbeRtt => PROBE_RTT_CWND_GAIN,
            _ => 2.0,
        }
    }

    fn is_probe_bw(self) -> bool {
        matches!(
            self,
            Phase::ProbeBwDown | Phase::ProbeBwCruise | Phase::ProbeBwRefill | Phase::ProbeBwUp
        )
    }

    /// IsProbingBW.
    fn is_accelerating(self) -> bool {
        matches!(
            self,
            Phase::Startup | Phase::ProbeBwRefill | Phase::ProbeBwUp
        )
    }
}

/// What acknowledgments show of a probe for bandwidth (BBR.ack_phase).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum AckPhase {
    Init,
    Refilling,
    ProbeStarting,
    ProbeFeedback,
    ProbeStopping,
}

/// The state of BBR of one connection. Bytes, bytes a second, nanoseconds.
#[derive(Clone, Debug)]
pub(super) struct Bbr {
    sampler: Sampler,
    rng: Rng,
    // From the rest of TCP.
    cwnd: usize,
    mss: usize,
    now_ns: u64,
    inflight: u64,
    is_cwnd_limited: bool,
    in_recovery: bool,
    has_sack: bool,
    // The pacer.
    pacing_rate: u64,
    next_send_ns: u64,
    /// When waiting data may be sent; `u64::MAX` if none waits.
    pub(super) wake_ns: u64,
    /// Bytes of the present quantum that may still be sent.
    quantum_left: usize,
    /// A measured round trip has set the first rate.
    has_seen_rtt: bool,
    /// The application had written nothing more when the last segment was sent.
    has_run_out: bool,
    // The state machine.
    phase: Phase,
    ack_phase: AckPhase,
    round_count: u32,
    round_start: bool,
    next_round_delivered: u64,
    drain_start_round: u32,
    idle_restart: bool,
    /// The window that recovery or ProbeRTT reduced.
    prior_cwnd: usize,
    // The bandwidth: of the cycle before, and of this one.
    max_bw_filter: [u64; 2],
    bw: u64,
    // The short-term model.
    bw_shortterm: u64,
    inflight_shortterm: u64,
    bw_latest: u64,
    inflight_latest: u64,
    loss_round_delivered: u64,
    loss_round_start: bool,
    is_loss_in_round: bool,
    /// Discontiguous losses in the round trip, and where the last one ends.
    loss_ranges: u8,
    last_lost_end: Seq,
    // The long-term model.
    inflight_longterm: u64,
    is_bw_probe_sample: bool,
    prev_probe_too_high: bool,
    prev_probe_precautionary: bool,
    bw_probe_up_rounds: u8,
    bw_probe_up_acked: u64,
    probe_up_acked_per_inc: u64,
    rounds_since_probe_up: u32,
    bw_probe_wait_ns: u64,
    cycle_ns: u64,
    // Whether the pipe is full.
    full_bw: u64,
    full_bw_count: u8,
    full_bw_now: bool,
    full_bw_reached: bool,
    // Aggregation.
    extra_acked_filter: ExtraAcked,
    extra_acked: u64,
    extra_acked_start_ns: u64,
    extra_acked_delivered: u64,
    // The round-trip time.
    min_rtt_ns: u64,
    min_rtt_stamp_ns: u64,
    probe_rtt_min_ns: u64,
    probe_rtt_min_stamp_ns: u64,
    probe_rtt_expired: bool,
    probe_rtt_round_done: bool,
    /// When ProbeRTT may end; zero while too much is in flight.
    probe_rtt_done_ns: u64,
}

impl Bbr {
    /// `seed` is that of BBR's random numbers (OnInit).
    pub(super) fn new(seed: u64) -> Bbr {
        Bbr {
            sampler: Sampler::default(),
            rng: Rng::new(seed),
            cwnd: 0,
            mss: 1,
            now_ns: 0,
            inflight: 0,
            is_cwnd_limited: false,
            in_recovery: false,
            has_sack: true,
            pacing_rate: 0,
            next_send_ns: 0,
            wake_ns: u64::MAX,
            quantum_left: 0,
            has_seen_rtt: false,
            has_run_out: false,
            phase: Phase::Startup,
            ack_phase: AckPhase::Init,
            round_count: 0,
            round_start: false,
            next_round_delivered: 0,
            drain_start_round: 0,
            idle_restart: false,
            prior_cwnd: 0,
            max_bw_filter: [0; 2],
            bw: 0,
            bw_shortterm: INFINITE,
            inflight_shortterm: INFINITE,
            bw_latest: 0,
            inflight_latest: 0,
            loss_round_delivered: 0,
            loss_round_start: false,
            is_loss_in_round: false,
            loss_ranges: 0,
            last_lost_end: Seq(0),
            inflight_longterm: INFINITE,
            is_bw_probe_sample: false,
            prev_probe_too_high: false,
            prev_probe_precautionary: false,
            bw_probe_up_rounds: 0,
            bw_probe_up_acked: 0,
            probe_up_acked_per_inc: INFINITE,
            rounds_since_probe_up: 0,
            bw_probe_wait_ns: 0,
            cycle_ns: 0,
            full_bw: 0,
            full_bw_count: 0,
            full_bw_now: false,
            full_bw_reached: false,
            extra_acked_filter: ExtraAcked::default(),
            extra_acked: 0,
            extra_acked_start_ns: 0,
            extra_acked_delivered: 0,
            min_rtt_ns: INFINITE,
            min_rtt_stamp_ns: 0,
            probe_rtt_min_ns: INFINITE,
            probe_rtt_min_stamp_ns: 0,
            probe_rtt_expired: false,
            probe_rtt_round_done: false,
            probe_rtt_done_ns: 0,
        }
    }

    pub(super) fn set_cwnd_limited(&mut self, is_cwnd_limited: bool) {
        self.is_cwnd_limited = is_cwnd_limited;
    }

    fn take_window(&mut self, window: Window) {
        (self.cwnd, self.mss) = (window.cwnd, window.mss.max(1));
    }

    /// Processes a sent segment.
    pub(super) fn on_sent(&mut self, sent: &Transmit, oldest_ns: impl FnOnce() -> u64) {
        if sent.is_first {
            self.sampler.clear();
        }
        let Transmit {
            now_ns,
            bytes,
            inflight,
            ..
        } = *sent;
        self.sampler.on_sent(now_ns, bytes, inflight, oldest_ns);
        self.quantum_left = self.quantum_left.saturating_sub(bytes);
        // A SYN is sent before there is a rate.
        if self.pacing_rate > 0 {
            let delay_ns = bytes as f64 * 1e9 / self.rate() as f64;
            self.next_send_ns = self.next_send_ns.saturating_add(delay_ns as u64);
        }
    }

    pub(super) fn count_delivered(&mut self, bytes: usize, now_ns: u64) {
        self.sampler.count_delivered(bytes, now_ns);
    }

    pub(super) fn on_delivered(&mut self, sent: &Sent) {
        self.sampler.on_delivered(sent);
    }

    pub(super) fn on_rtt(&mut self, rtt_ns: u64) {
        self.sampler.on_rtt(rtt_ns);
    }

    pub(super) fn on_ran_out(&mut self) {
        self.has_run_out = true;
    }

    /// Bytes of memory of the samples.
    pub(super) fn memory(&self) -> usize {
        self.sampler.memory()
    }

    pub(super) fn release(&mut self) {
        self.sampler.release();
    }

    /// Prepares sending: CheckIfApplicationLimited and OnTransmit. Returns the window.
    pub(super) fn before_send(
        &mut self,
        window: Window,
        now_ns: u64,
        inflight: usize,
        srtt_ns: u64,
    ) -> usize {
        self.take_window(window);
        (self.now_ns, self.inflight) = (now_ns, inflight as u64);
        self.init_pacing_rate(srtt_ns);
        // The pacer's delay is no gap of the application.
        if std::mem::take(&mut self.has_run_out) && now_ns >= self.next_send_ns {
            self.sampler.mark_app_limited(inflight);
        }
        if inflight == 0 && self.sampler.is_app_limited() {
            self.restart_from_idle();
        }
        self.cwnd
    }

    /// HandleRestartFromIdle.
    fn restart_from_idle(&mut self) {
        self.idle_restart = true;
        self.extra_acked_start_ns = self.now_ns;
        if self.phase.is_probe_bw() {
            self.set_pacing_rate_with_gain(1.0);
        } else if self.phase == Phase::ProbeRtt {
            self.check_probe_rtt_done();
        }
    }
}

impl Controller for Bbr {
    /// UpdateOnACK.
    fn on_ack(&mut self, window: Window, ack: &Ack) -> usize {
        self.take_window(window);
        (self.now_ns, self.inflight) = (ack.now_ns, ack.inflight as u64);
        (self.has_sack, self.in_recovery) = (ack.sack, ack.in_recovery);
        self.init_pacing_rate(ack.srtt_ns);
        let sample = self.sampler.generate(ack.min_rtt_ns);
        self.update_latest_delivery_signals(&sample);
        self.update_congestion_signals(&sample);
        self.update_ack_aggregation(&sample);
        self.check_full_bw_reached(&sample);
        self.check_startup_done(&sample);
        self.check_drain_done();
        if sample.has_data {
            self.update_probe_bw_cycle_phase(&sample);
        }
        self.update_min_rtt(&sample);
        self.check_probe_rtt(&sample);
        self.advance_latest_delivery_signals(&sample);
        self.bw = self.max_bw().min(self.bw_shortterm);
        self.set_pacing_rate_with_gain(self.phase.pacing_gain());
        self.set_cwnd(sample.newly_acked);
        self.cwnd
    }

    /// OnEnterFastRecovery, also for a mark. BBR has no threshold.
    fn on_congestion_event(&mut self, window: Window, _flight: usize) -> usize {
        self.take_window(window);
        self.save_cwnd();
        self.in_recovery = true;
        window.ssthresh
    }

    fn on_recovery_end(&mut self, window: Window) -> usize {
        self.take_window(window);
        self.in_recovery = false;
        self.restore_cwnd();
        self.cwnd
    }

    /// OnEnterRTO: everything in flight counts as lost.
    fn on_rto(&mut self, window: Window) -> usize {
        self.take_window(window);
        self.save_cwnd();
        self.in_recovery = true;
        window.mss
    }

    /// The model stays valid: the first bytes are paced (§5.4).
    fn on_idle(&mut self, window: Window) -> usize {
        window.cwnd
    }
}

#[cfg(test)]
mod tests;
