//! [`AckState`]: which acknowledgments are owed, and which may be delayed (RFC 9293 §3.8.6.3,
//! RFC 5681 §4.2; Linux' `icsk_ack`).

use crate::deadline::{OptDeadline, from_ns};
use crate::tcp::buffer::receive_buffer::Insertion;
use crate::tcp::seq::Seq;
use std::num::NonZeroU64;

/// Number of acknowledgments at the start that are not delayed, since they open the peer's
/// congestion window.
pub(in crate::tcp) const QUICKACKS_MAX: u8 = 16;
/// Longest delay of an acknowledgment, in nanoseconds: 40 ms (RFC 9293 §3.8.6.3 requires less
/// than half a second).
pub(in crate::tcp) const DELAYED_ACK_NS: u64 = 40_000_000;
/// Shortest time, in nanoseconds, between challenge ACKs of a connection, so that two confused
/// peers do not answer one another for ever (RFC 5961 §7).
const CHALLENGE_INTERVAL_NS: u64 = 100_000_000;

/// The acknowledgments of one connection. The timer of a delayed one is with the others, in
/// `Timers::ack_ns`; a segment that acknowledges everything clears both.
#[derive(Clone, Copy, Debug)]
pub(in crate::tcp) struct AckState {
    /// When the last challenge ACK was sent (RFC 5961); `None` before the first.
    pub(in crate::tcp) challenged_ns: Option<NonZeroU64>,
    /// The sequence number that was last acknowledged to the peer (Last.ACK.sent of RFC 7323
    /// §4.3).
    pub(in crate::tcp) last_sent: Seq,
    /// Whether an acknowledgment must be sent at once.
    pub(in crate::tcp) now: bool,
    /// Number of further acknowledgments that are not delayed.
    pub(in crate::tcp) quick: u8,
    /// Whether a probe must be sent, which the peer acknowledges: for the window, or to keep the
    /// connection alive.
    pub(in crate::tcp) probe_window: bool,
    /// Whether the application answers what it receives, so that acknowledgments go with data.
    pub(in crate::tcp) pingpong: bool,
}

impl AckState {
    pub(super) fn new() -> AckState {
        AckState {
            challenged_ns: None,
            last_sent: Seq(0),
            now: false,
            quick: QUICKACKS_MAX,
            probe_window: false,
            pingpong: false,
        }
    }

    /// Decides about the acknowledgment of a segment's data, after which `rcv_nxt` is expected:
    /// at once, or by `timer`. Every second full segment of `mss` bytes is acknowledged at once.
    #[inline]
    pub(in crate::tcp) fn schedule(
        &mut self,
        now_ns: u64,
        taken: Insertion,
        (rcv_nxt, mss): (Seq, usize),
        timer: &mut OptDeadline,
    ) {
        match taken {
            Insertion::InOrder if self.quick > 0 && !self.pingpong => {
                self.quick -= 1;
                self.now = true;
            }
            Insertion::InOrder if rcv_nxt.since(self.last_sent) < 2 * mss => {
                if timer.is_none() {
                    *timer = from_ns(now_ns + DELAYED_ACK_NS);
                }
            }
            Insertion::InOrder => self.now = true,
            Insertion::FilledHole | Insertion::OutOfOrder | Insertion::Duplicate => {
                self.quick = QUICKACKS_MAX;
                self.now = true;
            }
        }
    }

    /// Owes a challenge ACK, unless one was sent within [`CHALLENGE_INTERVAL_NS`] (RFC 5961).
    pub(in crate::tcp) fn challenge(&mut self, now_ns: u64) {
        let lately = |then_ns: NonZeroU64| now_ns < then_ns.get() + CHALLENGE_INTERVAL_NS;
        if !self.challenged_ns.is_some_and(lately) {
            self.challenged_ns = NonZeroU64::new(now_ns.max(1));
            self.now = true;
        }
    }

    /// Chooses whether acknowledgments are delayed (`TCP_QUICKACK`); a delayed one, whose timer
    /// runs, becomes due if they are not.
    pub(in crate::tcp) fn set_quick(&mut self, quick: bool, is_delayed: bool) {
        self.pingpong = !quick;
        if quick {
            self.quick = QUICKACKS_MAX;
            self.now |= is_delayed;
        }
    }
}
