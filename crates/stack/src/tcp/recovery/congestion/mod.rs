//! How much may be in the network: CUBIC (RFC 9438) and NewReno (RFC 5681),
//! in bytes.

use crate::tcp::seq::Seq;

/// Which algorithm a connection uses.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Algorithm {
    /// CUBIC (RFC 9438).
    #[default]
    Cubic,
    /// Additive increase, multiplicative decrease (RFC 5681).
    NewReno,
}

/// CUBIC's constants (RFC 9438 §4.6, §5).
const BETA: f64 = 0.7;
const C: f64 = 0.4;
/// The most a window grows to, in bytes: no more than TCP can number.
const WINDOW_MAX: usize = 1 << 30;

/// The first window of a connection, in bytes (RFC 6928 §2).
fn initial(mss: usize) -> usize {
    (10 * mss).min((2 * mss).max(14_600))
}

/// CUBIC's memory of the last loss.
#[derive(Clone, Debug, Default)]
struct Cubic {
    /// The window before the last reduction, in segments.
    w_max: f64,
    /// When growth began since, and with what window.
    epoch: Option<Box<Epoch>>,
}

#[derive(Clone, Debug)]
struct Epoch {
    start_ns: u64,
    /// Seconds until the window is back at its maximum.
    k: f64,
    /// What Reno's window would be, in segments.
    w_est: f64,
}

/// How much of the window was used in the round trip that goes on.
#[derive(Clone, Copy, Default, Debug)]
struct WindowUsage {
    /// The window was the limit.
    cwnd_limited: bool,
    /// There is one: something was sent.
    begun: bool,
    /// The most bytes that were in flight.
    most: u32,
    /// It ends when this is acknowledged.
    until: Seq,
}

/// The window of one connection.
#[derive(Clone, Debug)]
pub(in crate::tcp) struct Congestion {
    algorithm: Algorithm,
    pub(in crate::tcp) cwnd: usize,
    pub(in crate::tcp) ssthresh: usize,
    mss: usize,
    cubic: Cubic,
    /// Bytes acknowledged that have not become window yet.
    bytes_acked: usize,
    usage: WindowUsage,
}

impl Congestion {
    pub(in crate::tcp) fn new(algorithm: Algorithm, mss: usize) -> Congestion {
        Congestion {
            algorithm,
            cwnd: initial(mss),
            ssthresh: WINDOW_MAX,
            mss,
            cubic: Cubic {
                w_max: 0.0,
                epoch: None,
            },
            bytes_acked: 0,
            usage: WindowUsage::default(),
        }
    }

    /// Segments went out: `outstanding` bytes of numbers up to `nxt` are not
    /// acknowledged, and the window was the limit, or not.
    pub(in crate::tcp) fn on_transmit(
        &mut self,
        una: Seq,
        nxt: Seq,
        outstanding: usize,
        limited: bool,
    ) {
        let usage = &mut self.usage;
        let outstanding = u32::try_from(outstanding).unwrap_or(u32::MAX);
        let over = !usage.begun || usage.until.at_most(una);
        if over || limited || (!usage.cwnd_limited && outstanding > usage.most) {
            (usage.cwnd_limited, usage.most) = (limited, outstanding);
            (usage.begun, usage.until) = (true, nxt);
        }
    }

    /// Whether the window is the limit, by what went out in this round trip:
    /// in slow start it may be twice what was in flight (RFC 7661, in its
    /// spirit).
    pub(in crate::tcp) fn is_in_use(&self) -> bool {
        let slow_start = self.cwnd < self.ssthresh;
        self.usage.cwnd_limited || (slow_start && self.cwnd < 2 * self.usage.most as usize)
    }

    /// How much faster than a window a round trip bytes may go, as a fraction:
    /// so that nothing waits for the window to grow.
    pub(in crate::tcp) fn pacing_gain(&self) -> (usize, u64) {
        match self.cwnd < self.ssthresh / 2 {
            true => (2, 1),
            false => (6, 5),
        }
    }

    /// Where slow start ends, if a loss has shown it.
    pub(in crate::tcp) fn threshold(&self) -> Option<usize> {
        (self.ssthresh < WINDOW_MAX).then_some(self.ssthresh)
    }

    /// The segment size is known, or has changed.
    pub(in crate::tcp) fn set_mss(&mut self, mss: usize) {
        self.cwnd = match self.cwnd == initial(self.mss) {
            true => initial(mss),
            false => (self.cwnd / self.mss.max(1)).max(1) * mss,
        };
        self.mss = mss;
    }

    /// Bytes have arrived while the window was in use.
    pub(in crate::tcp) fn on_ack(&mut self, bytes: usize, now_ns: u64, srtt_ns: u64) {
        let mut bytes = bytes;
        if self.cwnd < self.ssthresh {
            let grown = bytes.min(self.ssthresh - self.cwnd);
            self.cwnd += grown;
            bytes -= grown;
        }
        if bytes > 0 {
            match self.algorithm {
                Algorithm::NewReno => self.grow(bytes, self.cwnd),
                Algorithm::Cubic => self.grow_cubic(bytes, now_ns, srtt_ns),
            }
        }
        self.cwnd = self.cwnd.min(WINDOW_MAX);
    }

    /// A segment more for each `per` bytes acknowledged.
    fn grow(&mut self, bytes: usize, per: usize) {
        self.bytes_acked += bytes;
        let per = per.max(1);
        if self.bytes_acked >= per {
            // Never faster than slow start, though `per` may have shrunk.
            self.cwnd += (self.bytes_acked / per * self.mss).min(bytes.max(self.mss));
            self.bytes_acked %= per;
        }
    }

    /// RFC 9438 §4.2 to §4.5.
    fn grow_cubic(&mut self, bytes: usize, now_ns: u64, srtt_ns: u64) {
        let mss = self.mss as f64;
        let window = self.cwnd as f64 / mss;
        let w_max = self.cubic.w_max.max(window);
        let epoch = self.cubic.epoch.get_or_insert_with(|| {
            Box::new(Epoch {
                start_ns: now_ns,
                k: ((w_max - window) / C).cbrt(),
                w_est: window,
            })
        });
        let seconds = |ns: u64| ns as f64 / 1e9;
        let at = seconds(now_ns.saturating_sub(epoch.start_ns));
        let cubic = |t: f64| C * (t - epoch.k).powi(3) + w_max;
        // As fast as Reno would be, with its average over a cycle (§4.3).
        let alpha = if epoch.w_est < w_max {
            3.0 * (1.0 - BETA) / (1.0 + BETA)
        } else {
            1.0
        };
        epoch.w_est += alpha * bytes as f64 / self.cwnd as f64;
        if cubic(at) < epoch.w_est {
            self.cwnd = self.cwnd.max((epoch.w_est * mss) as usize);
            return;
        }
        let target = cubic(at + seconds(srtt_ns)).clamp(window, 1.5 * window);
        // One segment more for each `per` acknowledged; at least a hundredth
        // of Reno's growth near the plateau.
        let per = self.cwnd as f64 / (target - window).max(0.01);
        self.grow(bytes, per as usize);
    }

    /// Something was lost or marked while `flight` bytes were in the network:
    /// sets the threshold, and leaves the window to who asked.
    pub(in crate::tcp) fn on_congestion_event(&mut self, flight: usize) {
        let beta = match self.algorithm {
            Algorithm::Cubic => BETA,
            Algorithm::NewReno => 0.5,
        };
        let window = self.cwnd as f64 / self.mss as f64;
        // Fast convergence (RFC 9438 §4.7): who shrinks leaves room.
        self.cubic.w_max = match window < self.cubic.w_max {
            true => window * (1.0 + BETA) / 2.0,
            false => window,
        };
        self.cubic.epoch = None;
        self.bytes_acked = 0;
        // RFC 9438 §4.6 leaves it to whoever does not let an idle window grow to
        // take the window itself, so that a single loss of little is not paid for
        // by a connection's whole rate.
        let from = match self.algorithm {
            Algorithm::Cubic => self.cwnd,
            Algorithm::NewReno => flight.min(self.cwnd),
        };
        self.ssthresh = ((from as f64 * beta) as usize).max(2 * self.mss);
    }

    /// The time-out struck: start over with one segment (RFC 5681 §3.1).
    pub(in crate::tcp) fn on_rto(&mut self) {
        self.cwnd = self.mss;
        self.cubic.epoch = None;
    }

    /// Nothing was sent for longer than a time-out (RFC 5681 §4.1).
    pub(in crate::tcp) fn restart(&mut self) {
        self.cwnd = self.cwnd.min(initial(self.mss));
        self.cubic.epoch = None;
    }

    /// Growth by time stands still while the application is the limit
    /// (RFC 9438 §5.8).
    pub(in crate::tcp) fn shift_epoch(&mut self) {
        self.cubic.epoch = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: usize = 1000;
    const RTT: u64 = 100_000_000;

    /// A round trip in which the whole window is acknowledged.
    fn round(congestion: &mut Congestion, now_ns: &mut u64) {
        *now_ns += RTT;
        for _ in 0..congestion.cwnd / MSS {
            congestion.on_ack(MSS, *now_ns, RTT);
        }
    }

    #[test]
    fn slow_start_doubles_and_reno_adds_one() {
        let mut reno = Congestion::new(Algorithm::NewReno, MSS);
        let mut now_ns = 0;
        round(&mut reno, &mut now_ns);
        assert_eq!(reno.cwnd, 20 * MSS);
        reno.on_congestion_event(reno.cwnd);
        assert_eq!(reno.ssthresh, 10 * MSS);
        reno.cwnd = reno.ssthresh;
        for more in 1..=5 {
            round(&mut reno, &mut now_ns);
            assert_eq!(reno.cwnd, (10 + more) * MSS);
        }
        reno.on_rto();
        assert_eq!(reno.cwnd, MSS);
    }

    /// RFC 9438, figure 1: K seconds after a loss the window is back.
    #[test]
    fn cubic_is_back_at_its_maximum_after_k() {
        let mut cubic = Congestion::new(Algorithm::Cubic, MSS);
        let mut now_ns = 0;
        cubic.cwnd = 1000 * MSS;
        cubic.on_congestion_event(cubic.cwnd);
        assert_eq!(cubic.ssthresh, 700 * MSS);
        cubic.cwnd = cubic.ssthresh;
        let k = (1000.0 * (1.0 - BETA) / C).cbrt();
        let rounds = (k * 1e9 / RTT as f64) as usize;
        let mut windows = Vec::new();
        for _ in 0..2 * rounds {
            round(&mut cubic, &mut now_ns);
            windows.push(cubic.cwnd / MSS);
        }
        let at_k = windows[rounds];
        assert!((985..1015).contains(&at_k), "{at_k} after {k} s");
        // Concave, flat, convex.
        let gained = |from: usize, to: usize| windows[to] - windows[from];
        assert!(gained(0, rounds / 2) > 5 * gained(rounds / 2, rounds));
        assert!(gained(3 * rounds / 2, 2 * rounds - 1) > 5 * gained(rounds, 3 * rounds / 2));
    }

    #[test]
    fn windows_never_vanish_nor_burst() {
        for algorithm in [Algorithm::Cubic, Algorithm::NewReno] {
            let mut congestion = Congestion::new(algorithm, MSS);
            let mut now_ns = 0;
            for step in 0..2000_u64 {
                match step % 97 {
                    13 => {
                        congestion.on_congestion_event(congestion.cwnd / 2);
                        congestion.cwnd = congestion.ssthresh;
                    }
                    57 => congestion.on_rto(),
                    71 => congestion.restart(),
                    83 => congestion.shift_epoch(),
                    91 => now_ns += 60_000_000_000,
                    _ => {}
                }
                let before = congestion.cwnd;
                congestion.on_ack(2 * MSS, now_ns, RTT);
                now_ns += RTT / 10;
                assert!(congestion.cwnd >= MSS && congestion.ssthresh >= 2 * MSS);
                assert!(
                    congestion.cwnd <= before + 2 * MSS,
                    "{before} {}",
                    congestion.cwnd
                );
            }
        }
    }

    /// The windows of a seeded course of events, in segments, one of each 50
    /// steps: congestion window and slow-start threshold.
    fn trace(algorithm: Algorithm) -> Vec<(usize, usize)> {
        let mut rng = crate::rng::Rng::new(9438);
        let mut congestion = Congestion::new(algorithm, MSS);
        let (mut now_ns, mut una, mut trace) = (0, Seq(0), Vec::new());
        for step in 0..1000 {
            let window = congestion.cwnd;
            let nxt = una.plus(window);
            congestion.on_transmit(una, nxt, window, rng.below(8) > 0);
            now_ns += u64::from(rng.below(2 * RTT as u32));
            match rng.below(100) {
                0..5 => {
                    congestion.on_congestion_event(window / 2);
                    congestion.cwnd = congestion.ssthresh;
                }
                5 if rng.below(4) == 0 => {
                    congestion.on_congestion_event(window);
                    congestion.on_rto();
                }
                6 if rng.below(4) == 0 => congestion.restart(),
                7 => congestion.set_mss(MSS / 2 * (1 + rng.below(2) as usize)),
                _ => {}
            }
            if congestion.is_in_use() {
                congestion.on_ack(window, now_ns, RTT);
            } else {
                congestion.shift_epoch();
            }
            una = nxt;
            if step % 50 == 49 {
                let ssthresh = congestion.threshold().unwrap_or(0);
                trace.push((congestion.cwnd / MSS, ssthresh / MSS));
            }
        }
        trace
    }

    /// The windows do not depend on how the code is divided.
    #[test]
    fn windows_are_those_of_before() {
        let expected = [
            (245862, 229376),
            (173315, 86657),
            (90981, 87142),
            (33713, 32567),
            (25833, 25091),
            (7173, 7015),
            (2872, 2707),
            (900, 830),
            (312, 284),
            (17, 15),
            (24, 20),
            (24, 20),
            (17, 14),
            (34, 33),
            (28, 24),
            (22, 21),
            (23, 13),
            (26, 23),
            (54, 20),
            (14, 9),
        ];
        assert_eq!(trace(Algorithm::Cubic), expected);
        let expected = [
            (81954, 81920),
            (2580, 1284),
            (197, 164),
            (26, 6),
            (27, 14),
            (10, 4),
            (19, 2),
            (19, 4),
            (14, 3),
            (7, 2),
            (16, 6),
            (14, 4),
            (10, 2),
            (12, 11),
            (10, 3),
            (8, 4),
            (18, 3),
            (10, 4),
            (43, 3),
            (8, 1),
        ];
        assert_eq!(trace(Algorithm::NewReno), expected);
    }
}
