//! BBR's control parameters (draft §5.6): pacing rate, send quantum, window.

use super::{Bbr, INFINITE, PROBE_RTT_CWND_GAIN, Phase, RATE_MAX, STARTUP_PACING_GAIN};
use crate::tcp::recovery::congestion::{WINDOW_MAX, initial_window};

/// The part of `inflight_longterm` that is left free for other flows: BBR.Headroom.
const HEADROOM: f64 = 0.15;
/// BBR.MinPipeCwnd, in segments.
const MIN_PIPE_CWND: usize = 4;
/// The part of the bandwidth that is paced: BBR.PacingMarginPercent is 1.
const PACING_MARGIN: f64 = 0.99;
/// The bytes of this time are sent at once: C.send_quantum.
const QUANTUM_NS: u64 = 1_000_000;
const QUANTUM_MAX: usize = 64 << 10;
/// The round-trip time before the first measurement, for the first rate.
const RTT_NOMINAL_NS: u64 = 1_000_000;

impl Bbr {
    /// The pacing rate, never zero.
    pub(super) fn rate(&self) -> u64 {
        // At least a quantum a second, so that the pacer is never stuck.
        self.pacing_rate.clamp(2 * self.mss as u64, RATE_MAX)
    }

    /// Bytes at the pacing rate in a time.
    pub(in crate::tcp::recovery::congestion) fn paced_bytes(&self, interval_ns: u64) -> u64 {
        (self.rate() as f64 * interval_ns as f64 / 1e9) as u64
    }

    /// C.send_quantum.
    pub(super) fn send_quantum(&self) -> usize {
        let quantum = self.paced_bytes(QUANTUM_NS) as usize;
        quantum.min(QUANTUM_MAX).max(2 * self.mss)
    }

    /// Bytes that may be sent now, or the time when some may.
    pub(in crate::tcp::recovery::congestion) fn budget(
        &mut self,
        now_ns: u64,
    ) -> Result<usize, u64> {
        if self.quantum_left == 0 {
            if now_ns < self.next_send_ns {
                return Err(self.next_send_ns);
            }
            let quantum = self.send_quantum();
            let late_ns = quantum as f64 * 1e9 / self.rate() as f64;
            let earliest_ns = now_ns.saturating_sub(late_ns as u64);
            self.next_send_ns = self.next_send_ns.max(earliest_ns);
            self.quantum_left = quantum;
        }
        Ok(self.quantum_left)
    }

    /// InitPacingRate, and once more when a round trip was measured.
    pub(super) fn init_pacing_rate(&mut self, srtt_ns: u64) {
        if self.has_seen_rtt || (self.pacing_rate > 0 && srtt_ns == 0) {
            return;
        }
        let rtt_ns = match srtt_ns {
            0 => RTT_NOMINAL_NS,
            _ => srtt_ns,
        };
        let first = initial_window(self.mss) as f64;
        let rate = STARTUP_PACING_GAIN * first * 1e9 / rtt_ns as f64;
        self.pacing_rate = rate as u64;
        if srtt_ns > 0 {
            self.has_seen_rtt = true;
            (self.min_rtt_ns, self.min_rtt_stamp_ns) = (srtt_ns, self.now_ns);
            (self.probe_rtt_min_ns, self.probe_rtt_min_stamp_ns) = (srtt_ns, self.now_ns);
        }
    }

    /// SetPacingRateWithGain.
    pub(super) fn set_pacing_rate_with_gain(&mut self, gain: f64) {
        let rate = (gain * self.bw as f64 * PACING_MARGIN) as u64;
        if self.full_bw_reached || rate > self.pacing_rate {
            self.pacing_rate = rate;
        }
    }

    pub(super) fn min_pipe_cwnd(&self) -> usize {
        MIN_PIPE_CWND * self.mss
    }

    /// BDPMultiple, of this bandwidth.
    pub(super) fn bdp_multiple(&self, bw: u64, gain: f64) -> u64 {
        match self.min_rtt_ns {
            INFINITE => initial_window(self.mss) as u64,
            min_rtt_ns => (gain * bw as f64 * min_rtt_ns as f64 / 1e9) as u64,
        }
    }

    /// QuantizationBudget.
    pub(super) fn quantization_budget(&self, inflight: u64) -> u64 {
        let offload_budget = 3 * self.send_quantum();
        let floor = offload_budget.max(self.min_pipe_cwnd()) as u64;
        let more = match self.phase {
            Phase::ProbeBwUp => 2 * self.mss as u64,
            _ => 0,
        };
        inflight.max(floor).saturating_add(more)
    }

    /// Inflight(gain), of this bandwidth.
    pub(super) fn inflight_at(&self, bw: u64, gain: f64) -> u64 {
        self.quantization_budget(self.bdp_multiple(bw, gain))
    }

    /// TargetInflight.
    pub(super) fn target_inflight(&self) -> u64 {
        self.bdp_multiple(self.bw, 1.0).min(self.cwnd as u64)
    }

    pub(super) fn inflight_with_headroom(&self) -> u64 {
        if self.inflight_longterm == INFINITE {
            return INFINITE;
        }
        let headroom = (HEADROOM * self.inflight_longterm as f64) as u64;
        let headroom = headroom.max(self.mss as u64);
        let inflight = self.inflight_longterm.saturating_sub(headroom);
        inflight.max(self.min_pipe_cwnd() as u64)
    }

    pub(super) fn probe_rtt_cwnd(&self) -> usize {
        let cwnd = self.bdp_multiple(self.bw, PROBE_RTT_CWND_GAIN) as usize;
        cwnd.max(self.min_pipe_cwnd())
    }

    /// SetCwnd, BoundCwndForProbeRTT, BoundCwndForModel.
    pub(super) fn set_cwnd(&mut self, newly_acked: u64) {
        let newly_acked = newly_acked as usize;
        let inflight = self.bdp_multiple(self.bw, self.phase.cwnd_gain());
        let inflight = inflight.saturating_add(self.extra_acked);
        let max_inflight = self.quantization_budget(inflight) as usize;
        let first = initial_window(self.mss);
        if self.full_bw_reached {
            self.cwnd = self.cwnd.saturating_add(newly_acked).min(max_inflight);
        } else if self.cwnd < max_inflight || self.sampler.delivered < first as u64 {
            self.cwnd = self.cwnd.saturating_add(newly_acked);
        }
        self.cwnd = self.cwnd.clamp(self.min_pipe_cwnd(), WINDOW_MAX);
        if self.phase == Phase::ProbeRtt {
            self.cwnd = self.cwnd.min(self.probe_rtt_cwnd());
        }
        let cap = match self.phase {
            Phase::ProbeBwDown | Phase::ProbeBwRefill | Phase::ProbeBwUp => self.inflight_longterm,
            Phase::ProbeBwCruise | Phase::ProbeRtt => self.inflight_with_headroom(),
            Phase::Startup | Phase::Drain => INFINITE,
        };
        let cap = cap.min(self.inflight_shortterm);
        let cap = cap.max(self.min_pipe_cwnd() as u64);
        self.cwnd = self.cwnd.min(cap.min(WINDOW_MAX as u64) as usize);
    }

    pub(super) fn save_cwnd(&mut self) {
        self.prior_cwnd = if self.in_recovery || self.phase == Phase::ProbeRtt {
            self.prior_cwnd.max(self.cwnd)
        } else {
            self.cwnd
        };
    }

    pub(super) fn restore_cwnd(&mut self) {
        self.cwnd = self.cwnd.max(self.prior_cwnd);
    }
}
