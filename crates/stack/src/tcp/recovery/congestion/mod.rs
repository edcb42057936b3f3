//! Congestion control: how many bytes may be in the network, and how fast they may be sent.
//!
//! [`Congestion`] is the rest of TCP's view: the congestion window, the slow-start threshold, and
//! the events that change them. An algorithm's decisions are behind [`Controller`], with all of its
//! state:
//!
//! | algorithm | file | window follows |
//! |---|---|---|
//! | [`Algorithm::Cubic`] | `cubic` | losses (RFC 9438) |
//! | [`Algorithm::NewReno`] | `new_reno` | losses (RFC 5681) |
//! | [`Algorithm::Bbr`] | `bbr`, `delivery_rate` | a model of the path (draft-ietf-ccwg-bbr) |
//!
//! The first two are *window-based*: `recovery` reduces their window by
//! proportional rate reduction (RFC 9937), and lets it grow only while it is
//! used. BBR is *rate-based*: it sees each segment that is sent, delivered or
//! lost, sets its window itself in recovery too, and paces.

mod bbr;
mod cubic;
mod delivery_rate;
mod new_reno;
#[cfg(test)]
mod tests;

use crate::tcp::recovery::scoreboard::Sent;
use crate::tcp::seq::Seq;
use bbr::Bbr;
use cubic::Cubic;
use new_reno::NewReno;
use std::fmt;
use std::str::FromStr;

/// A congestion control algorithm, by the name that Linux has for it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Algorithm {
    /// `cubic`: CUBIC (RFC 9438).
    #[default]
    Cubic,
    /// `reno`: additive increase, multiplicative decrease (RFC 5681).
    NewReno,
    /// `bbr`: BBR version 3 (draft-ietf-ccwg-bbr).
    Bbr,
}

impl Algorithm {
    /// All algorithms.
    pub const ALL: [Algorithm; 3] = [Algorithm::Cubic, Algorithm::NewReno, Algorithm::Bbr];

    /// The name, as in Linux' `TCP_CONGESTION`.
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::Cubic => "cubic",
            Algorithm::NewReno => "reno",
            Algorithm::Bbr => "bbr",
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An unknown name of an algorithm.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`{0}` is no congestion control: give cubic, reno or bbr")]
pub struct UnknownAlgorithm(String);

impl FromStr for Algorithm {
    type Err = UnknownAlgorithm;

    fn from_str(name: &str) -> Result<Algorithm, UnknownAlgorithm> {
        let found = Algorithm::ALL
            .into_iter()
            .find(|known| known.name() == name);
        found.ok_or_else(|| UnknownAlgorithm(name.to_owned()))
    }
}

/// The largest window, in bytes: TCP cannot number more.
const WINDOW_MAX: usize = 1 << 30;

/// The first window of a connection, in bytes (RFC 6928 §2).
fn initial_window(mss: usize) -> usize {
    (10 * mss).min((2 * mss).max(14_600))
}

/// The window of a connection, which an algorithm sets, in bytes.
#[derive(Clone, Copy, Debug)]
struct Window {
    cwnd: usize,
    ssthresh: usize,
    mss: usize,
}

impl Window {
    /// Grows up to the threshold; returns the acknowledged bytes that remain (RFC 5681 §3.1).
    fn slow_start(&mut self, bytes: usize) -> usize {
        let room = self.ssthresh.saturating_sub(self.cwnd);
        let grown = bytes.min(room);
        self.cwnd += grown;
        bytes - grown
    }
}

/// Growth by one segment for a number of acknowledged bytes (RFC 3465).
#[derive(Clone, Debug, Default)]
struct AdditiveIncrease {
    /// Acknowledged bytes that have not grown the window yet.
    bytes_acked: usize,
}

impl AdditiveIncrease {
    /// Adds a segment to the window for each `per` bytes acknowledged.
    fn add(&mut self, window: &mut Window, bytes: usize, per: usize) {
        self.bytes_acked += bytes;
        let per = per.max(1);
        if self.bytes_acked >= per {
            // At most as fast as slow start, though `per` may have shrunk.
            let grown = self.bytes_acked / per * window.mss;
            window.cwnd += grown.min(bytes.max(window.mss));
            self.bytes_acked %= per;
        }
    }
}

/// An acknowledgment.
#[derive(Clone, Copy, Default, Debug)]
pub(in crate::tcp) struct Ack {
    pub(in crate::tcp) now_ns: u64,
    /// Bytes that let the window grow.
    pub(in crate::tcp) bytes: usize,
    /// The smoothed round-trip time, zero before the first measurement.
    pub(in crate::tcp) srtt_ns: u64,
    /// The least round-trip time, zero before the first measurement.
    pub(in crate::tcp) min_rtt_ns: u64,
    /// Bytes in the network after the acknowledgment.
    pub(in crate::tcp) inflight: usize,
    /// Whether the peer sends SACK blocks.
    pub(in crate::tcp) sack: bool,
    /// Whether a loss is still being repaired.
    pub(in crate::tcp) in_recovery: bool,
}

/// A sent segment.
#[derive(Clone, Copy, Debug)]
pub(in crate::tcp) struct Transmit {
    pub(in crate::tcp) now_ns: u64,
    pub(in crate::tcp) bytes: usize,
    /// Bytes in the network, including this segment.
    pub(in crate::tcp) inflight: usize,
    /// No other segment is unacknowledged.
    pub(in crate::tcp) is_first: bool,
}

/// The decisions of an algorithm. The defaults are those of a window-based one.
trait Controller {
    /// Processes acknowledged bytes; returns the window. A window-based algorithm is called only
    /// while the window is in use and no loss is repaired.
    fn on_ack(&mut self, window: Window, ack: &Ack) -> usize;

    /// Processes the first loss or mark of a round trip, with `flight` bytes unacknowledged;
    /// returns the threshold.
    fn on_congestion_event(&mut self, window: Window, flight: usize) -> usize;

    /// Processes an expired retransmission time-out; returns the window (RFC 5681 §3.1).
    fn on_rto(&mut self, window: Window) -> usize {
        window.mss
    }

    /// Processes the end of a recovery; returns the window.
    fn on_recovery_end(&mut self, window: Window) -> usize {
        window.ssthresh
    }

    /// Processes an idle time longer than a time-out; returns the window (RFC 5681 §4.1).
    fn on_idle(&mut self, window: Window) -> usize {
        window.cwnd.min(initial_window(window.mss))
    }

    /// The window was not used: stops growth by time (RFC 9438 §5.8).
    fn shift_epoch(&mut self) {}
}

/// The state of a connection's algorithm. BBR's is large, and boxed.
#[derive(Clone, Debug)]
enum State {
    Cubic(Cubic),
    NewReno(NewReno),
    Bbr(Box<Bbr>),
}

impl State {
    fn controller(&mut self) -> &mut dyn Controller {
        match self {
            State::Cubic(cubic) => cubic,
            State::NewReno(new_reno) => new_reno,
            State::Bbr(bbr) => &mut **bbr,
        }
    }
}

/// The used part of the window in the current round trip (after RFC 7661).
#[derive(Clone, Copy, Default, Debug)]
struct WindowUsage {
    /// The window was the limit.
    cwnd_limited: bool,
    /// A segment was sent in the round trip.
    begun: bool,
    /// Most bytes in flight.
    max: u32,
    /// The round trip ends when this number is acknowledged.
    until: Seq,
}

/// The congestion window of one connection.
#[derive(Clone, Debug)]
pub(in crate::tcp) struct Congestion {
    pub(in crate::tcp) cwnd: usize,
    pub(in crate::tcp) ssthresh: usize,
    mss: u32,
    state: State,
    usage: WindowUsage,
}

impl Congestion {
    /// `seed` is that of BBR's random numbers.
    pub(in crate::tcp) fn new(algorithm: Algorithm, mss: usize, seed: u64) -> Congestion {
        Congestion {
            cwnd: initial_window(mss),
            ssthresh: WINDOW_MAX,
            mss: mss as u32,
            state: match algorithm {
                Algorithm::Cubic => State::Cubic(Cubic::default()),
                Algorithm::NewReno => State::NewReno(NewReno::default()),
                Algorithm::Bbr => State::Bbr(Box::new(Bbr::new(seed))),
            },
            usage: WindowUsage::default(),
        }
    }

    fn window(&self) -> Window {
        Window {
            cwnd: self.cwnd,
            ssthresh: self.ssthresh,
            mss: self.mss as usize,
        }
    }

    /// Whether the algorithm is rate-based: it sets the window in recovery, too, and paces.
    #[inline]
    pub(in crate::tcp) fn is_rate_based(&self) -> bool {
        matches!(self.state, State::Bbr(_))
    }

    #[inline]
    fn bbr(&mut self) -> Option<&mut Bbr> {
        match &mut self.state {
            State::Bbr(bbr) => Some(bbr),
            _ => None,
        }
    }

    /// Records sent segments: `outstanding` bytes up to `nxt` are unacknowledged, and the window
    /// was the limit or not.
    pub(in crate::tcp) fn on_transmit(
        &mut self,
        una: Seq,
        nxt: Seq,
        outstanding: usize,
        cwnd_limited: bool,
    ) {
        let usage = &mut self.usage;
        let outstanding = u32::try_from(outstanding).unwrap_or(u32::MAX);
        let over = !usage.begun || usage.until.at_most(una);
        if over || cwnd_limited || (!usage.cwnd_limited && outstanding > usage.max) {
            (usage.cwnd_limited, usage.max) = (cwnd_limited, outstanding);
            (usage.begun, usage.until) = (true, nxt);
        }
    }

    /// Whether the window is the limit, by the bytes sent in this round trip: in slow start it may
    /// be twice the bytes in flight (after RFC 7661).
    pub(in crate::tcp) fn is_in_use(&self) -> bool {
        let slow_start = self.cwnd < self.ssthresh;
        self.usage.cwnd_limited || (slow_start && self.cwnd < 2 * self.usage.max as usize)
    }

    /// Factor, as a fraction, by which a window-based algorithm may send faster than a window in a
    /// round trip, so that no data waits for the window to grow. The numbers are Linux'
    /// `tcp_pacing_ss_ratio` and `tcp_pacing_ca_ratio`.
    fn pacing_gain(&self) -> (usize, u64) {
        if self.cwnd < self.ssthresh / 2 {
            (2, 1)
        } else {
            (6, 5)
        }
    }

    /// Bytes that the pacing rate allows in a time; zero if no rate is known.
    pub(in crate::tcp) fn paced_bytes(&self, interval_ns: u64, srtt_ns: Option<u64>) -> u64 {
        if let State::Bbr(bbr) = &self.state {
            return bbr.paced_bytes(interval_ns);
        }
        let (gain, per) = self.pacing_gain();
        match srtt_ns {
            Some(srtt_ns) => (self.cwnd * gain) as u64 * interval_ns / (per * srtt_ns),
            None => 0,
        }
    }

    /// New or lost bytes that an algorithm that paces allows now, or the time when it allows some.
    #[inline]
    pub(in crate::tcp) fn pacing_budget(&mut self, now_ns: u64) -> Result<usize, u64> {
        self.bbr().map_or(Ok(usize::MAX), |bbr| bbr.budget(now_ns))
    }

    /// When the pacing rate allows a connection with unsent data to send; `u64::MAX` if the
    /// connection does not wait for that.
    #[inline]
    pub(in crate::tcp) fn wake_ns(&self) -> u64 {
        match &self.state {
            State::Bbr(bbr) => bbr.wake_ns,
            _ => u64::MAX,
        }
    }

    /// Makes the connection wait for the pacing rate until `wake_ns`.
    pub(in crate::tcp) fn wait_until(&mut self, wake_ns: u64) {
        if let Some(bbr) = self.bbr() {
            bbr.wake_ns = wake_ns;
        }
    }

    /// Ends the wait for the pacing rate if its time has come.
    pub(in crate::tcp) fn end_wait(&mut self, now_ns: u64) {
        if self.wake_ns() <= now_ns {
            self.wait_until(u64::MAX);
        }
    }

    /// The slow-start threshold; `None` before the first loss.
    pub(in crate::tcp) fn threshold(&self) -> Option<usize> {
        (self.ssthresh < WINDOW_MAX).then_some(self.ssthresh)
    }

    /// Sets the segment size.
    pub(in crate::tcp) fn set_mss(&mut self, mss: usize) {
        let before = self.mss as usize;
        self.cwnd = if self.cwnd == initial_window(before) {
            initial_window(mss)
        } else {
            (self.cwnd / before.max(1)).max(1) * mss
        };
        self.mss = mss as u32;
    }

    /// Processes an acknowledgment: see [`Controller::on_ack`].
    pub(in crate::tcp) fn on_ack(&mut self, ack: &Ack) {
        let window = self.window();
        let cwnd = match &mut self.state {
            State::Bbr(bbr) => {
                bbr.set_cwnd_limited(self.usage.cwnd_limited);
                bbr.on_ack(window, ack)
            }
            state => state.controller().on_ack(window, ack),
        };
        self.cwnd = cwnd.min(WINDOW_MAX);
    }

    /// Processes a loss: see [`Controller::on_congestion_event`]. The caller sets the window.
    pub(in crate::tcp) fn on_congestion_event(&mut self, flight: usize) {
        let window = self.window();
        let controller = self.state.controller();
        self.ssthresh = controller.on_congestion_event(window, flight);
    }

    /// Processes a congestion event without a lost segment: a mark, or a loss that a probe has
    /// repaired.
    pub(in crate::tcp) fn on_mark(&mut self, flight: usize) {
        self.on_congestion_event(flight);
        if let Some(bbr) = self.bbr() {
            bbr.note_loss();
        }
        self.on_recovery_end();
    }

    /// Ends a recovery: see [`Controller::on_recovery_end`].
    pub(in crate::tcp) fn on_recovery_end(&mut self) {
        let window = self.window();
        self.cwnd = self.state.controller().on_recovery_end(window);
    }

    /// Processes a time-out: see [`Controller::on_rto`].
    pub(in crate::tcp) fn on_rto(&mut self) {
        let window = self.window();
        self.cwnd = self.state.controller().on_rto(window);
    }

    /// Processes an idle time: see [`Controller::on_idle`].
    pub(in crate::tcp) fn on_idle(&mut self) {
        let window = self.window();
        self.cwnd = self.state.controller().on_idle(window);
    }

    /// Stops growth by time: see [`Controller::shift_epoch`].
    pub(in crate::tcp) fn shift_epoch(&mut self) {
        self.state.controller().shift_epoch();
    }

    /// Processes a sent segment; `oldest_ns` is the time of sending of the oldest one in flight.
    #[inline]
    pub(in crate::tcp) fn on_sent(&mut self, sent: &Transmit, oldest_ns: impl FnOnce() -> u64) {
        if let Some(bbr) = self.bbr() {
            bbr.on_sent(sent, oldest_ns);
        }
    }

    /// Counts delivered bytes.
    #[inline]
    pub(in crate::tcp) fn count_delivered(&mut self, bytes: usize, now_ns: u64) {
        if let Some(bbr) = self.bbr() {
            bbr.count_delivered(bytes, now_ns);
        }
    }

    /// Processes the delivery of a segment or a part of it.
    #[inline]
    pub(in crate::tcp) fn on_delivered(&mut self, sent: &Sent) {
        if let Some(bbr) = self.bbr() {
            bbr.on_delivered(sent);
        }
    }

    /// Processes a segment that counts as lost.
    pub(in crate::tcp) fn on_lost(&mut self, sent: &Sent) {
        let window = self.window();
        if let Some(bbr) = self.bbr() {
            bbr.on_lost(window, sent);
        }
    }

    /// Records a measured round-trip time, of the latest-sent segment that an acknowledgment
    /// covers.
    #[inline]
    pub(in crate::tcp) fn on_rtt(&mut self, rtt_ns: u64) {
        if let Some(bbr) = self.bbr() {
            bbr.on_rtt(rtt_ns);
        }
    }

    /// Prepares sending: `inflight` bytes are in the network.
    #[inline]
    pub(in crate::tcp) fn before_send(&mut self, now_ns: u64, inflight: usize, srtt_ns: u64) {
        let window = self.window();
        if let Some(bbr) = self.bbr() {
            self.cwnd = bbr.before_send(window, now_ns, inflight, srtt_ns);
        }
    }

    /// Records that all written bytes were sent, and that the window would allow more.
    #[inline]
    pub(in crate::tcp) fn on_ran_out(&mut self) {
        if let Some(bbr) = self.bbr() {
            bbr.on_ran_out();
        }
    }

    /// Bytes of memory of an algorithm's samples of segments in flight.
    #[inline]
    pub(in crate::tcp) fn memory(&self) -> usize {
        match &self.state {
            State::Bbr(bbr) => bbr.memory(),
            _ => 0,
        }
    }

    /// Frees memory that an idle connection does not need.
    pub(in crate::tcp) fn release(&mut self) {
        if let Some(bbr) = self.bbr() {
            bbr.release();
        }
    }
}
