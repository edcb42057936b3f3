//! [`Activity`]: when a connection last sent and received, and keep-alive probes (RFC 9293
//! §3.8.4).

use super::TcpOptions;
use crate::tcp::{KEEPALIVE_INTERVAL_S, KEEPALIVE_PROBES_MAX};
use std::num::NonZeroU32;

/// Times of one connection, in nanoseconds; all begin with the connection.
#[derive(Clone, Copy, Debug)]
pub(in crate::tcp) struct Activity {
    /// When data, a SYN or a FIN was last sent.
    pub(in crate::tcp) last_sent_ns: u64,
    /// When an acceptable segment was last received.
    pub(in crate::tcp) last_segment_ns: u64,
    /// When data was last received.
    pub(in crate::tcp) last_received_ns: u64,
    /// How long the connection is idle before the first probe (`TCP_KEEPIDLE`), in milliseconds;
    /// `None` without keep-alive.
    keep_alive_ms: Option<NonZeroU32>,
    /// Time from one probe to the next (`TCP_KEEPINTVL`), in seconds.
    keep_alive_interval_s: u16,
    /// Number of probes without an answer that end the connection (`TCP_KEEPCNT`).
    keep_alive_probes: u8,
    /// Number of keep-alive probes since the peer last sent a segment.
    pub(in crate::tcp) probes: u8,
}

impl Activity {
    pub(super) fn new(now_ns: u64) -> Activity {
        Activity {
            last_sent_ns: now_ns,
            last_segment_ns: now_ns,
            last_received_ns: now_ns,
            keep_alive_ms: None,
            keep_alive_interval_s: KEEPALIVE_INTERVAL_S,
            keep_alive_probes: KEEPALIVE_PROBES_MAX,
            probes: 0,
        }
    }

    /// Sets how long the connection is idle before the first keep-alive probe, rounded up to
    /// milliseconds; `None` ends keep-alive.
    pub(in crate::tcp) fn set_keep_alive(&mut self, after_ns: Option<u64>) {
        self.keep_alive_ms = after_ns.map(|after_ns| {
            let ms = u32::try_from(after_ns.div_ceil(1_000_000)).unwrap_or(u32::MAX);
            NonZeroU32::new(ms).unwrap_or(NonZeroU32::MIN)
        });
    }

    /// Sets the time between probes, and the number of probes without an answer that end the
    /// connection.
    pub(in crate::tcp) fn set_keep_alive_probes(&mut self, interval_s: u16, probes: u8) {
        (self.keep_alive_interval_s, self.keep_alive_probes) = (interval_s, probes);
    }

    /// Time from one keep-alive probe to the next, in nanoseconds.
    pub(in crate::tcp) fn keep_alive_interval_ns(&self) -> u64 {
        u64::from(self.keep_alive_interval_s) * 1_000_000_000
    }

    /// How long the connection is idle before the first keep-alive probe, in nanoseconds; `None`
    /// without keep-alive.
    pub(in crate::tcp) fn keep_alive_ns(&self) -> Option<u64> {
        self.keep_alive_ms.map(|ms| u64::from(ms.get()) * 1_000_000)
    }

    /// Records an acceptable segment: the peer is there. Returns for how long it was silent.
    #[inline]
    pub(in crate::tcp) fn note_segment(&mut self, now_ns: u64) -> u64 {
        self.probes = 0;
        let silent_ns = now_ns.saturating_sub(self.last_segment_ns);
        self.last_segment_ns = now_ns;
        silent_ns
    }

    /// When a segment was last sent or received.
    pub(in crate::tcp) fn last_ns(&self) -> u64 {
        self.last_segment_ns.max(self.last_sent_ns)
    }

    /// Whether a peer that was probed is given up: after the user timeout, or without one after the
    /// number of probes.
    pub(in crate::tcp) fn is_unanswered(&self, now_ns: u64, options: &TcpOptions) -> bool {
        let silent_ns = now_ns.saturating_sub(self.last_segment_ns);
        match options.user_timeout_ms {
            Some(ms) => self.probes > 0 && silent_ns >= u64::from(ms.get()) * 1_000_000,
            None => self.probes >= self.keep_alive_probes,
        }
    }
}
