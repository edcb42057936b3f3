//! [`Negotiated`]: the options that both sides have agreed on (RFC 7323, RFC 2018; Linux'
//! `tcp_options_received`).

use crate::tcp::seq::Seq;
use std::num::NonZeroU64;

/// Age, in nanoseconds, from which on TS.Recent is invalid: 24 days (RFC 7323 §5.5).
const RECENT_NS: u64 = 24 * 86_400 * 1_000_000_000;

/// The state of timestamps, if both sides send them (RFC 7323 §3).
#[derive(Clone, Copy, Debug)]
pub(in crate::tcp) struct Timestamps {
    /// Offset of this connection's timestamp clock.
    pub(in crate::tcp) offset: u32,
    /// TS.Recent, and the time at which it arrived; not zero, so that no timestamps take no more
    /// room than some.
    pub(in crate::tcp) recent: u32,
    pub(in crate::tcp) recent_ns: NonZeroU64,
}

impl Timestamps {
    /// Timestamps whose TS.Recent arrived at `recent_ns`, which is at least 1.
    pub(in crate::tcp) fn new(offset: u32, recent: u32, recent_ns: u64) -> Timestamps {
        Timestamps {
            offset,
            recent,
            recent_ns: NonZeroU64::new(recent_ns).unwrap_or(NonZeroU64::MIN),
        }
    }
}

/// The options of one connection. Before the handshake they are what this side offers; the
/// peer's SYN only takes away.
#[derive(Clone, Copy, Debug)]
pub(in crate::tcp) struct Negotiated {
    /// Timestamps, if both sides send them.
    pub(in crate::tcp) timestamps: Option<Timestamps>,
    /// See [`TcpConfig::timestamps_required`](crate::tcp::TcpConfig::timestamps_required).
    pub(in crate::tcp) timestamps_required: bool,
    /// Whether window scaling was negotiated. The shifts are with the windows.
    pub(in crate::tcp) window_scaling: bool,
    /// Whether selective acknowledgments were negotiated.
    pub(in crate::tcp) sack: bool,
}

impl Negotiated {
    /// Bytes of the timestamps option in a segment; 0 without timestamps.
    pub(in crate::tcp) fn timestamps_len(&self) -> usize {
        if self.timestamps.is_some() { 12 } else { 0 }
    }

    /// The timestamp clock of this connection, in milliseconds.
    pub(in crate::tcp) fn clock(&self, at_ns: u64) -> u32 {
        let offset = self.timestamps.map_or(0, |timestamps| timestamps.offset);
        ((at_ns / 1_000_000) as u32).wrapping_add(offset)
    }

    /// The timestamps of the next segment sent: TSval, TSecr. `None` without timestamps.
    pub(in crate::tcp) fn timestamp_option(&self, now_ns: u64) -> Option<(u32, u32)> {
        self.timestamps
            .map(|ours| (self.clock(now_ns), ours.recent))
    }

    /// PAWS (RFC 7323 §5.3): whether a segment is an old duplicate by its timestamps, or lacks
    /// required ones.
    #[inline]
    pub(in crate::tcp) fn is_old(&self, now_ns: u64, timestamps: Option<(u32, u32)>) -> bool {
        let (Some(ours), Some((value, _))) = (self.timestamps, timestamps) else {
            // Once negotiated, every segment but a RST has timestamps (§3.2).
            return self.timestamps.is_some() && self.timestamps_required;
        };
        let known = now_ns.saturating_sub(ours.recent_ns.get()) < RECENT_NS;
        known && Seq(value).before(Seq(ours.recent))
    }

    /// Updates TS.Recent, which is echoed, from a segment that begins at `seq`; `last_ack_sent`
    /// is what was last acknowledged (RFC 7323 §4.3).
    #[inline]
    pub(in crate::tcp) fn note_timestamp(
        &mut self,
        now_ns: u64,
        (seq, last_ack_sent): (Seq, Seq),
        timestamps: Option<(u32, u32)>,
    ) {
        let Some((value, _)) = timestamps else {
            return;
        };
        if let Some(ours) = &mut self.timestamps
            && seq.at_most(last_ack_sent)
            && Seq(ours.recent).at_most(Seq(value))
        {
            *ours = Timestamps::new(ours.offset, value, now_ns);
        }
    }

    /// Whether the timestamp that an answer to this side's SYN echoes is of a SYN that was
    /// sent; true if there is none (RFC 7323 §3.2).
    pub(in crate::tcp) fn is_echo_of_syn(
        &self,
        now_ns: u64,
        timestamps: Option<(u32, u32)>,
    ) -> bool {
        let (Some(ours), Some((_, echo))) = (self.timestamps, timestamps) else {
            return true;
        };
        let (first, last) = (self.clock(ours.recent_ns.get()), self.clock(now_ns));
        Seq(first).at_most(Seq(echo)) && Seq(echo).at_most(Seq(last))
    }
}
