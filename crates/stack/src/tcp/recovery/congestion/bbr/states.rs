//! BBR's state machine (draft §5.3): Startup, Drain, the cycle of ProbeBW,
//! ProbeRTT.

use super::{AckPhase, Bbr, INFINITE, PROBE_RTT_DURATION_NS, Phase};
use crate::tcp::recovery::congestion::delivery_rate::RateSample;

/// Discontiguous losses in a round trip that end Startup:
/// BBRStartupFullLossCnt.
const STARTUP_FULL_LOSS_COUNT: u8 = 6;
/// Growth by which the bandwidth has not reached its plateau, and round trips
/// without it.
const FULL_BW_GROWTH: f64 = 1.25;
pub(super) const FULL_BW_COUNT: u8 = 3;
/// Most round trips of Drain.
const DRAIN_ROUNDS: u32 = 3;
/// Most round trips between probes for bandwidth: as often as a Reno flow of this bandwidth has a
/// loss (T_reno_bound).
const RENO_ROUNDS_MAX: usize = 63;
/// Least time between probes for bandwidth, and the range of its random addition.
const PROBE_WAIT_NS: u64 = 2_000_000_000;
const PROBE_WAIT_RANDOM_MS: u32 = 1000;

impl Bbr {
    pub(super) fn reset_full_bw(&mut self) {
        (self.full_bw, self.full_bw_count, self.full_bw_now) = (0, 0, false);
    }

    pub(super) fn check_full_bw_reached(&mut self, sample: &RateSample) {
        if self.full_bw_now || !self.round_start || sample.is_app_limited {
            return;
        }
        if sample.delivery_rate as f64 >= self.full_bw as f64 * FULL_BW_GROWTH {
            self.reset_full_bw();
            self.full_bw = sample.delivery_rate;
            return;
        }
        self.full_bw_count += 1;
        self.full_bw_now = self.full_bw_count >= FULL_BW_COUNT;
        self.full_bw_reached |= self.full_bw_now;
    }

    pub(super) fn check_startup_done(&mut self, sample: &RateSample) {
        if self.phase == Phase::Startup && self.is_startup_loss_high(sample) {
            self.full_bw_reached = true;
            let bdp = self.bdp_multiple(self.bw, 1.0);
            self.inflight_longterm = bdp.max(self.inflight_latest);
        }
        if self.phase == Phase::Startup && self.full_bw_reached {
            self.phase = Phase::Drain;
            self.drain_start_round = self.round_count;
        }
    }

    /// CheckStartupHighLoss. A round trip of losses ends at the acknowledgment of a segment sent
    /// after the first of them: recovery has then lasted for one.
    pub(super) fn is_startup_loss_high(&self, sample: &RateSample) -> bool {
        if !self.in_recovery || !self.loss_round_start {
            return false;
        }
        if self.has_sack {
            self.loss_ranges >= STARTUP_FULL_LOSS_COUNT && self.is_inflight_too_high(sample)
        } else {
            self.loss_ranges > 0
        }
    }

    pub(super) fn check_drain_done(&mut self) {
        let rounds = self.round_count.wrapping_sub(self.drain_start_round);
        let is_drained = self.inflight <= self.inflight_at(self.bw, 1.0);
        if self.phase == Phase::Drain && (is_drained || rounds > DRAIN_ROUNDS) {
            self.start_probe_bw_down();
        }
    }

    pub(super) fn start_probe_bw_down(&mut self) {
        self.reset_congestion_signals();
        self.probe_up_acked_per_inc = INFINITE;
        self.pick_probe_wait();
        self.cycle_ns = self.now_ns;
        self.ack_phase = AckPhase::ProbeStopping;
        self.start_round();
        self.phase = Phase::ProbeBwDown;
    }

    pub(super) fn start_probe_bw_refill(&mut self) {
        self.reset_short_term_model();
        (self.bw_probe_up_rounds, self.bw_probe_up_acked) = (0, 0);
        self.prev_probe_precautionary = false;
        self.ack_phase = AckPhase::Refilling;
        self.start_round();
        self.phase = Phase::ProbeBwRefill;
    }

    pub(super) fn start_probe_bw_up(&mut self, sample: &RateSample) {
        self.ack_phase = AckPhase::ProbeStarting;
        self.start_round();
        self.reset_full_bw();
        self.full_bw = sample.delivery_rate;
        self.phase = Phase::ProbeBwUp;
        self.raise_inflight_longterm_slope();
    }

    pub(super) fn update_probe_bw_cycle_phase(&mut self, sample: &RateSample) {
        if !self.full_bw_reached || self.adapt_long_term_model(sample) {
            return;
        }
        let phase = self.phase;
        match phase {
            Phase::ProbeBwDown | Phase::ProbeBwCruise if self.is_time_to_probe_bw() => {
                self.start_probe_bw_refill();
            }
            Phase::ProbeBwDown if self.is_time_to_cruise() => self.phase = Phase::ProbeBwCruise,
            Phase::ProbeBwRefill if self.round_start => {
                self.is_bw_probe_sample = true;
                self.start_probe_bw_up(sample);
            }
            Phase::ProbeBwUp if self.is_time_to_go_down(sample) => {
                self.prev_probe_too_high = false;
                self.start_probe_bw_down();
            }
            _ => {}
        }
    }

    pub(super) fn is_time_to_cruise(&self) -> bool {
        self.inflight <= self.inflight_with_headroom()
            && self.inflight <= self.inflight_at(self.max_bw(), 1.0)
    }

    pub(super) fn is_time_to_go_down(&mut self, sample: &RateSample) -> bool {
        if self.prev_probe_too_high && self.inflight >= self.inflight_longterm {
            self.prev_probe_precautionary = true;
            return true;
        }
        if self.is_cwnd_limited && self.cwnd as u64 >= self.inflight_longterm {
            // The bytes in flight limit the bandwidth.
            self.reset_full_bw();
            self.full_bw = sample.delivery_rate;
            return false;
        }
        self.full_bw_now
    }

    pub(super) fn is_time_to_probe_bw(&self) -> bool {
        let has_elapsed = self.now_ns > self.cycle_ns.saturating_add(self.bw_probe_wait_ns);
        let reno_rounds = self.target_inflight() as usize / self.mss;
        let rounds = reno_rounds.min(RENO_ROUNDS_MAX) as u32;
        has_elapsed || self.rounds_since_probe_up >= rounds
    }

    pub(super) fn pick_probe_wait(&mut self) {
        self.rounds_since_probe_up = self.rng.below(2);
        let random_ms = self.rng.below(PROBE_WAIT_RANDOM_MS + 1);
        self.bw_probe_wait_ns = PROBE_WAIT_NS + u64::from(random_ms) * 1_000_000;
    }

    pub(super) fn raise_inflight_longterm_slope(&mut self) {
        let growth = 1_usize << self.bw_probe_up_rounds;
        self.bw_probe_up_rounds = (self.bw_probe_up_rounds + 1).min(30);
        self.probe_up_acked_per_inc = (self.cwnd / growth).max(self.mss) as u64;
    }

    pub(super) fn probe_inflight_longterm_upward(&mut self, sample: &RateSample) {
        if !self.is_cwnd_limited || (self.cwnd as u64) < self.inflight_longterm {
            return;
        }
        self.bw_probe_up_acked += sample.newly_acked;
        if self.bw_probe_up_acked >= self.probe_up_acked_per_inc {
            let delta = self.bw_probe_up_acked / self.probe_up_acked_per_inc;
            self.bw_probe_up_acked %= self.probe_up_acked_per_inc;
            let grown = delta.saturating_mul(self.mss as u64);
            self.inflight_longterm = self.inflight_longterm.saturating_add(grown);
        }
        if self.round_start {
            self.raise_inflight_longterm_slope();
        }
    }

    /// AdaptLongTermModel: returns whether it has decided on the next state.
    pub(super) fn adapt_long_term_model(&mut self, sample: &RateSample) -> bool {
        if self.ack_phase == AckPhase::ProbeStarting && self.round_start {
            self.ack_phase = AckPhase::ProbeFeedback;
        }
        if self.ack_phase == AckPhase::ProbeStopping && self.round_start {
            self.is_bw_probe_sample = false;
            self.ack_phase = AckPhase::Init;
            if self.phase.is_probe_bw() {
                if !sample.is_app_limited {
                    self.advance_max_bw_filter();
                }
                if self.prev_probe_precautionary && !self.prev_probe_too_high {
                    self.start_probe_bw_refill();
                    return true;
                }
            }
        }
        if !self.is_inflight_too_high(sample) && self.inflight_longterm != INFINITE {
            self.inflight_longterm = self.inflight_longterm.max(sample.tx_in_flight);
            if self.phase == Phase::ProbeBwUp {
                self.probe_inflight_longterm_upward(sample);
            }
        }
        false
    }

    pub(super) fn check_probe_rtt(&mut self, sample: &RateSample) {
        if self.phase != Phase::ProbeRtt && self.probe_rtt_expired && !self.idle_restart {
            self.save_cwnd();
            self.phase = Phase::ProbeRtt;
            self.probe_rtt_done_ns = 0;
            self.ack_phase = AckPhase::ProbeStopping;
            self.start_round();
        }
        if self.phase == Phase::ProbeRtt {
            self.handle_probe_rtt();
        }
        if sample.delivered > 0 {
            self.idle_restart = false;
        }
    }

    pub(super) fn handle_probe_rtt(&mut self) {
        // The low rates of ProbeRTT are no measurements.
        self.sampler.mark_app_limited(self.inflight as usize);
        if self.probe_rtt_done_ns == 0 {
            if self.inflight <= self.probe_rtt_cwnd() as u64 {
                self.probe_rtt_done_ns = self.now_ns + PROBE_RTT_DURATION_NS;
                self.probe_rtt_round_done = false;
                self.start_round();
            }
            return;
        }
        self.probe_rtt_round_done |= self.round_start;
        if self.probe_rtt_round_done {
            self.check_probe_rtt_done();
        }
    }

    pub(super) fn check_probe_rtt_done(&mut self) {
        if self.probe_rtt_done_ns == 0 || self.now_ns <= self.probe_rtt_done_ns {
            return;
        }
        self.probe_rtt_min_stamp_ns = self.now_ns;
        self.restore_cwnd();
        self.reset_short_term_model();
        if self.full_bw_reached {
            self.start_probe_bw_down();
            self.phase = Phase::ProbeBwCruise;
        } else {
            self.phase = Phase::Startup;
        }
    }
}
