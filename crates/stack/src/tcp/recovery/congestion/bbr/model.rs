//! BBR's model of the path (draft §5.5): bandwidth, aggregation, round-trip time, and the effect of
//! losses on both.

use super::{Bbr, INFINITE, MIN_RTT_FILTER_NS, PROBE_RTT_INTERVAL_NS, Phase, RATE_MAX};
use crate::tcp::recovery::congestion::Window;
use crate::tcp::recovery::congestion::delivery_rate::RateSample;
use crate::tcp::recovery::scoreboard::Sent;

/// Losses that are tolerated in a round trip, as a part of all bytes in flight: BBR.LossThresh, 2
/// %.
const LOSS_THRESH: f64 = 0.02;
/// Least part of the short-term model that remains after a round trip with losses: BBR.Beta.
const BETA: f64 = 0.7;
/// Round trips over which the aggregation of acknowledgments is remembered:
/// BBR.ExtraAckedFilterLen.
const EXTRA_ACKED_ROUNDS: usize = 10;

/// The most bytes that were acknowledged beyond the bandwidth in each of the last round trips
/// (BBR.extra_acked_filter).
#[derive(Clone, Debug, Default)]
pub(super) struct ExtraAcked {
    rounds: [u32; EXTRA_ACKED_ROUNDS],
    last_round: u32,
}

impl ExtraAcked {
    /// Adds a number of this round trip; returns the greatest.
    pub(super) fn update(&mut self, round: u32, extra: u64, only_this_round: bool) -> u64 {
        let passed = round.wrapping_sub(self.last_round) as usize;
        for ahead in 1..=passed.min(EXTRA_ACKED_ROUNDS) {
            let index = (self.last_round as usize).wrapping_add(ahead) % EXTRA_ACKED_ROUNDS;
            self.rounds[index] = 0;
        }
        self.last_round = round;
        let this = &mut self.rounds[round as usize % EXTRA_ACKED_ROUNDS];
        *this = (*this).max(u32::try_from(extra).unwrap_or(u32::MAX));
        if only_this_round {
            (*this).into()
        } else {
            self.rounds.iter().copied().max().unwrap_or(0).into()
        }
    }
}

impl Bbr {
    pub(super) fn max_bw(&self) -> u64 {
        self.max_bw_filter[0].max(self.max_bw_filter[1])
    }

    pub(super) fn update_round(&mut self, sample: &RateSample) {
        self.round_start = sample.has_data && sample.prior_delivered >= self.next_round_delivered;
        if self.round_start {
            self.start_round();
            self.round_count = self.round_count.wrapping_add(1);
            self.rounds_since_probe_up = self.rounds_since_probe_up.saturating_add(1);
        }
    }

    pub(super) fn start_round(&mut self) {
        self.next_round_delivered = self.sampler.delivered;
    }

    pub(super) fn update_max_bw(&mut self, sample: &RateSample) {
        self.update_round(sample);
        let rate = sample.delivery_rate;
        if rate > 0 && (rate >= self.max_bw() || !sample.is_app_limited) {
            self.max_bw_filter[1] = self.max_bw_filter[1].max(rate.min(RATE_MAX));
        }
    }

    /// AdvanceMaxBwFilter; a cycle without samples does not count.
    pub(super) fn advance_max_bw_filter(&mut self) {
        if self.max_bw_filter[1] > 0 {
            self.max_bw_filter = [self.max_bw_filter[1], 0];
        }
    }

    pub(super) fn update_latest_delivery_signals(&mut self, sample: &RateSample) {
        self.loss_round_start = false;
        if !sample.has_data {
            return;
        }
        self.bw_latest = self.bw_latest.max(sample.delivery_rate);
        self.inflight_latest = self.inflight_latest.max(sample.delivered);
        if sample.prior_delivered >= self.loss_round_delivered {
            self.loss_round_delivered = self.sampler.delivered;
            self.loss_round_start = true;
        }
    }

    pub(super) fn advance_latest_delivery_signals(&mut self, sample: &RateSample) {
        if self.loss_round_start {
            self.bw_latest = sample.delivery_rate;
            self.inflight_latest = sample.delivered;
            self.loss_ranges = 0;
        }
    }

    pub(super) fn reset_congestion_signals(&mut self) {
        self.is_loss_in_round = false;
        self.loss_ranges = 0;
        (self.bw_latest, self.inflight_latest) = (0, 0);
    }

    pub(super) fn update_congestion_signals(&mut self, sample: &RateSample) {
        self.update_max_bw(sample);
        if self.loss_round_start {
            self.adapt_lower_bounds();
            self.is_loss_in_round = false;
        }
    }

    /// AdaptLowerBoundsFromCongestion: once a round trip.
    pub(super) fn adapt_lower_bounds(&mut self) {
        if self.phase.is_accelerating() || !self.is_loss_in_round {
            return;
        }
        if self.bw_shortterm == INFINITE {
            self.bw_shortterm = self.max_bw();
        }
        if self.inflight_shortterm == INFINITE {
            self.inflight_shortterm = self.cwnd as u64;
        }
        let less = |value: u64| (BETA * value as f64) as u64;
        self.bw_shortterm = self.bw_latest.max(less(self.bw_shortterm));
        self.inflight_shortterm = self.inflight_latest.max(less(self.inflight_shortterm));
    }

    pub(super) fn reset_short_term_model(&mut self) {
        (self.bw_shortterm, self.inflight_shortterm) = (INFINITE, INFINITE);
    }

    pub(super) fn update_ack_aggregation(&mut self, sample: &RateSample) {
        let interval_ns = self.now_ns.saturating_sub(self.extra_acked_start_ns);
        let mut expected = (self.bw as f64 * interval_ns as f64 / 1e9) as u64;
        if self.extra_acked_delivered <= expected {
            self.extra_acked_delivered = 0;
            self.extra_acked_start_ns = self.now_ns;
            expected = 0;
        }
        self.extra_acked_delivered += sample.newly_acked;
        let extra = self.extra_acked_delivered.saturating_sub(expected);
        let extra = extra.min(self.cwnd as u64);
        let filter = &mut self.extra_acked_filter;
        self.extra_acked = filter.update(self.round_count, extra, !self.full_bw_reached);
    }

    pub(super) fn update_min_rtt(&mut self, sample: &RateSample) {
        let has_expired = |stamp_ns: u64, after_ns| self.now_ns > stamp_ns.saturating_add(after_ns);
        self.probe_rtt_expired = has_expired(self.probe_rtt_min_stamp_ns, PROBE_RTT_INTERVAL_NS);
        let min_rtt_expired = has_expired(self.min_rtt_stamp_ns, MIN_RTT_FILTER_NS);
        if let Some(rtt_ns) = sample.rtt_ns
            && (rtt_ns < self.probe_rtt_min_ns || self.probe_rtt_expired)
        {
            (self.probe_rtt_min_ns, self.probe_rtt_min_stamp_ns) = (rtt_ns.max(1), self.now_ns);
        }
        if self.probe_rtt_min_ns < self.min_rtt_ns || min_rtt_expired {
            self.min_rtt_ns = self.probe_rtt_min_ns;
            self.min_rtt_stamp_ns = self.probe_rtt_min_stamp_ns;
        }
    }

    pub(super) fn is_inflight_too_high(&self, sample: &RateSample) -> bool {
        let tolerated = sample.tx_in_flight as f64 * LOSS_THRESH;
        sample.lost as f64 > tolerated || (sample.lost > 0 && !self.has_sack)
    }

    pub(super) fn handle_inflight_too_high(&mut self, sample: &RateSample) {
        self.prev_probe_too_high = true;
        self.is_bw_probe_sample = false;
        if !sample.is_app_limited {
            let least = (self.target_inflight() as f64 * BETA) as u64;
            self.inflight_longterm = sample.tx_in_flight.max(least);
        }
        if self.phase == Phase::ProbeBwUp {
            self.start_probe_bw_down();
        }
    }

    /// NoteLoss.
    pub(in crate::tcp::recovery::congestion) fn note_loss(&mut self) {
        if !self.is_loss_in_round {
            self.loss_round_delivered = self.sampler.delivered;
            self.save_cwnd();
        }
        self.is_loss_in_round = true;
    }

    /// HandleLostPacket.
    pub(in crate::tcp::recovery::congestion) fn on_lost(&mut self, window: Window, sent: &Sent) {
        self.take_window(window);
        let size = sent.end.since(sent.start) as u64;
        self.sampler.lost += size;
        self.note_loss();
        if self.loss_ranges == 0 || sent.start != self.last_lost_end {
            self.loss_ranges = self.loss_ranges.saturating_add(1);
        }
        self.last_lost_end = sent.end;
        let Some(snapshot) = self.sampler.snapshot(sent) else {
            return;
        };
        if !self.is_bw_probe_sample {
            return;
        }
        let mut sample = RateSample {
            tx_in_flight: snapshot.tx_in_flight.into(),
            lost: self.sampler.lost - snapshot.lost,
            is_app_limited: snapshot.is_app_limited,
            ..RateSample::default()
        };
        if self.is_inflight_too_high(&sample) {
            sample.tx_in_flight = inflight_at_loss(&sample, size);
            self.handle_inflight_too_high(&sample);
        }
    }
}

/// InflightAtLoss: the bytes in flight when the losses crossed the threshold, perhaps in the middle
/// of this segment of `size` bytes.
pub(super) fn inflight_at_loss(sample: &RateSample, size: u64) -> u64 {
    let inflight_prev = sample.tx_in_flight.saturating_sub(size) as f64;
    let lost_prev = sample.lost.saturating_sub(size) as f64;
    let lost_prefix = (LOSS_THRESH * inflight_prev - lost_prev) / (1.0 - LOSS_THRESH);
    (inflight_prev + lost_prefix) as u64
}
