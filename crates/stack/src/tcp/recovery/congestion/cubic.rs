//! CUBIC's window (RFC 9438).

use super::{Ack, AdditiveIncrease, Controller, Window};

/// CUBIC's constants (RFC 9438 §4.6, §5).
pub(super) const BETA: f64 = 0.7;
pub(super) const C: f64 = 0.4;

/// The state of CUBIC of one connection.
#[derive(Clone, Debug, Default)]
pub(super) struct Cubic {
    /// The window before the last reduction, in segments.
    w_max: f64,
    /// Growth since then; `None` until the next ACK in congestion avoidance.
    epoch: Option<Box<Epoch>>,
    increase: AdditiveIncrease,
}

/// A period of growth without a congestion event.
#[derive(Clone, Debug)]
struct Epoch {
    start_ns: u64,
    /// Seconds until the window is back at its maximum.
    k: f64,
    /// Reno's window over the same period, in segments.
    w_est: f64,
}

impl Cubic {
    /// RFC 9438 §4.2 to §4.5.
    fn grow(&mut self, window: &mut Window, bytes: usize, ack: &Ack) {
        let mss = window.mss as f64;
        let segments = window.cwnd as f64 / mss;
        let w_max = self.w_max.max(segments);
        let epoch = self.epoch.get_or_insert_with(|| {
            Box::new(Epoch {
                start_ns: ack.now_ns,
                k: ((w_max - segments) / C).cbrt(),
                w_est: segments,
            })
        });
        let seconds = |ns: u64| ns as f64 / 1e9;
        let at = seconds(ack.now_ns.saturating_sub(epoch.start_ns));
        let cubic = |t: f64| C * (t - epoch.k).powi(3) + w_max;
        // As fast as Reno would be, with its average over a cycle (§4.3).
        let alpha = if epoch.w_est < w_max {
            3.0 * (1.0 - BETA) / (1.0 + BETA)
        } else {
            1.0
        };
        epoch.w_est += alpha * bytes as f64 / window.cwnd as f64;
        if cubic(at) < epoch.w_est {
            window.cwnd = window.cwnd.max((epoch.w_est * mss) as usize);
            return;
        }
        let target = cubic(at + seconds(ack.srtt_ns)).clamp(segments, 1.5 * segments);
        // One segment more for each `per` acknowledged; at least a hundredth
        // of Reno's growth near the plateau.
        let per = window.cwnd as f64 / (target - segments).max(0.01);
        self.increase.add(window, bytes, per as usize);
    }
}

impl Controller for Cubic {
    fn on_ack(&mut self, mut window: Window, ack: &Ack) -> usize {
        let bytes = window.slow_start(ack.bytes);
        if bytes > 0 {
            self.grow(&mut window, bytes, ack);
        }
        window.cwnd
    }

    fn on_congestion_event(&mut self, window: Window, _flight: usize) -> usize {
        let segments = window.cwnd as f64 / window.mss as f64;
        // Fast convergence (RFC 9438 §4.7): a flow that shrinks leaves room.
        self.w_max = if segments < self.w_max {
            segments * (1.0 + BETA) / 2.0
        } else {
            segments
        };
        self.epoch = None;
        self.increase.bytes_acked = 0;
        // RFC 9438 §4.6 permits the window in place of the flight size where an
        // idle window does not grow: a single loss then does not cost a
        // connection its whole rate.
        ((window.cwnd as f64 * BETA) as usize).max(2 * window.mss)
    }

    fn on_rto(&mut self, window: Window) -> usize {
        self.epoch = None;
        window.mss
    }

    fn on_idle(&mut self, window: Window) -> usize {
        self.epoch = None;
        window.cwnd.min(super::initial_window(window.mss))
    }

    fn shift_epoch(&mut self) {
        self.epoch = None;
    }
}
