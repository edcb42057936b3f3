//! NewReno's window (RFC 5681 §3.1): additive increase, multiplicative
//! decrease.

use super::{Ack, AdditiveIncrease, Controller, Window};

/// The state of NewReno of one connection.
#[derive(Clone, Debug, Default)]
pub(super) struct NewReno {
    increase: AdditiveIncrease,
}

impl Controller for NewReno {
    fn on_ack(&mut self, mut window: Window, ack: &Ack) -> usize {
        let bytes = window.slow_start(ack.bytes);
        if bytes > 0 {
            let per = window.cwnd;
            self.increase.add(&mut window, bytes, per);
        }
        window.cwnd
    }

    fn on_congestion_event(&mut self, window: Window, flight: usize) -> usize {
        self.increase.bytes_acked = 0;
        let half = (flight.min(window.cwnd) as f64 * 0.5) as usize;
        half.max(2 * window.mss)
    }
}
