//! Round-trip time and retransmission time-out (RFC 6298).

/// The time-out before the first measurement, in nanoseconds (RFC 6298 §2.1).
pub(in crate::tcp) const RTO_INITIAL_NS: u64 = 1_000_000_000;
/// Least time-out beyond the round trip, in nanoseconds: below RFC 6298's second, as in Linux, and
/// above the delay of acknowledgments.
pub(in crate::tcp) const RTO_MIN_NS: u64 = 200_000_000;
/// Longest time-out after backing off, in nanoseconds (RFC 6298 §2.5).
pub(in crate::tcp) const RTO_MAX_NS: u64 = 60_000_000_000;

/// Upper bound on useful bytes in flight: `INFLIGHT_FLOOR` bytes, which stay in a second-level
/// cache, or `INFLIGHT_BYTES_PER_NS` (400 Gb/s) for each nanosecond of the least round trip.
pub(in crate::tcp) const INFLIGHT_FLOOR: usize = 512 << 10;
const INFLIGHT_BYTES_PER_NS: u64 = 50;
/// After a measurement of at least `STALE_RTT_NS`, in nanoseconds, the bound is unknown for
/// `STALE_SAMPLES` measurements: the path has changed, or the peer's application reads late, and
/// its host delays acknowledgments.
const STALE_RTT_NS: u64 = 300_000;
const STALE_SAMPLES: u16 = 256;

/// The estimates of one connection.
#[derive(Clone, Debug, Default)]
pub(in crate::tcp) struct Rtt {
    /// The smoothed round-trip time (SRTT); zero before the first measurement.
    srtt_ns: u64,
    rttvar_ns: u64,
    /// The least measured round-trip time.
    min_ns: u64,
    /// Measurements until a late one is forgotten.
    stale_min_rtt: u16,
    /// Number of doublings of the time-out.
    backoff: u32,
}

impl Rtt {
    /// Records a measurement, which ends backing off (RFC 6298 §5.7).
    pub(in crate::tcp) fn measured(&mut self, rtt_ns: u64) {
        let rtt_ns = rtt_ns.max(1);
        self.stale_min_rtt = match rtt_ns {
            STALE_RTT_NS.. => STALE_SAMPLES,
            _ => self.stale_min_rtt.saturating_sub(1),
        };
        if self.srtt_ns == 0 {
            self.srtt_ns = rtt_ns;
            self.rttvar_ns = rtt_ns / 2;
            self.min_ns = rtt_ns;
        } else {
            let error = self.srtt_ns.abs_diff(rtt_ns);
            self.rttvar_ns = (3 * self.rttvar_ns + error) / 4;
            self.srtt_ns = ((7 * self.srtt_ns + rtt_ns) / 8).max(1);
            self.min_ns = self.min_ns.min(rtt_ns);
        }
        self.backoff = 0;
    }

    /// The smoothed round-trip time; `None` before the first measurement.
    pub(in crate::tcp) fn srtt_ns(&self) -> Option<u64> {
        (self.srtt_ns > 0).then_some(self.srtt_ns)
    }

    /// The variation of round-trip times (RTTVAR).
    pub(in crate::tcp) fn rttvar_ns(&self) -> u64 {
        self.rttvar_ns
    }

    /// Number of doublings of the time-out.
    pub(in crate::tcp) fn backoff(&self) -> u32 {
        self.backoff
    }

    /// The least round-trip time; zero before the first measurement.
    pub(in crate::tcp) fn min_ns(&self) -> u64 {
        self.min_ns
    }

    /// Upper bound on useful bytes in flight: further bytes would wait in a queue, and be out of
    /// the caches when they are read.
    pub(in crate::tcp) fn inflight_max(&self) -> usize {
        if self.stale_min_rtt > 0 || self.srtt_ns == 0 {
            return usize::MAX;
        }
        let flight = INFLIGHT_BYTES_PER_NS.saturating_mul(self.min_ns);
        INFLIGHT_FLOOR.max(flight as usize)
    }

    /// The retransmission time-out, doubled at each expiry.
    pub(in crate::tcp) fn rto_ns(&self) -> u64 {
        let base_ns = match self.srtt_ns {
            0 => RTO_INITIAL_NS,
            srtt_ns => srtt_ns + (4 * self.rttvar_ns).max(RTO_MIN_NS),
        };
        let doubled = base_ns
            .checked_shl(self.backoff)
            .filter(|_| self.backoff < 16);
        doubled.unwrap_or(RTO_MAX_NS).min(RTO_MAX_NS)
    }

    /// Records an expired time-out.
    pub(in crate::tcp) fn on_rto(&mut self) {
        self.backoff = (self.backoff + 1).min(16);
    }

    /// Ends backing off: the peer has answered.
    pub(in crate::tcp) fn reset_backoff(&mut self) {
        self.backoff = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn estimates_follow_the_rfc() {
        let mut rtt = Rtt::default();
        assert_eq!((rtt.rto_ns(), rtt.srtt_ns()), (RTO_INITIAL_NS, None));
        rtt.measured(100 * MS);
        assert_eq!((rtt.srtt_ns(), rtt.rto_ns()), (Some(100 * MS), 300 * MS));
        rtt.measured(200 * MS);
        // rttvar = 3/4 * 50 + 1/4 * 100, srtt = 7/8 * 100 + 1/8 * 200.
        let rto_us = 112_500 + 4 * 62_500;
        assert_eq!((rtt.rto_ns() / 1000, rtt.min_ns()), (rto_us, 100 * MS));
        for _ in 0..100 {
            rtt.measured(MS);
        }
        assert_eq!(rtt.rto_ns(), rtt.srtt_ns().unwrap() + RTO_MIN_NS);
    }

    #[test]
    fn short_paths_need_short_flights() {
        let mut rtt = Rtt::default();
        assert_eq!(rtt.inflight_max(), usize::MAX, "nothing is known");
        rtt.measured(80_000);
        assert_eq!(rtt.inflight_max(), 4_000_000);
        rtt.measured(1000);
        assert_eq!(rtt.inflight_max(), INFLIGHT_FLOOR);
        rtt.measured(STALE_RTT_NS);
        for _ in 0..STALE_SAMPLES {
            assert_eq!(rtt.inflight_max(), usize::MAX, "the peer comes late");
            rtt.measured(2000);
        }
        assert_eq!(rtt.inflight_max(), INFLIGHT_FLOOR);
    }

    #[test]
    fn backing_off_is_bounded_and_ends() {
        let mut rtt = Rtt::default();
        rtt.on_rto();
        assert_eq!(rtt.rto_ns(), 2 * RTO_INITIAL_NS);
        for _ in 0..100 {
            rtt.on_rto();
        }
        assert_eq!(rtt.rto_ns(), RTO_MAX_NS);
        rtt.measured(u64::MAX / 64);
        assert_eq!(rtt.rto_ns(), RTO_MAX_NS);
        rtt.reset_backoff();
        assert!(rtt.rto_ns() <= RTO_MAX_NS);
    }
}
