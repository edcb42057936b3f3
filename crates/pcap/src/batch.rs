//! Frames that were read from a port and are yet to be given to the application.
//!
//! They are copies: the application may call anything for the same handle while it has one, and
//! the ring's space is free at once, so that the readiness of the ring is exact.

use crate::types::PktHdr;
use libc::timeval;
use std::time::{Duration, SystemTime};
use weir_broker::Frame;

/// Frames of a batch, at most.
pub(crate) const FRAMES_MAX: usize = 256;

/// Frames in order of arrival.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    headers: Vec<PktHdr>,
    bytes: Vec<u8>,
    /// The next frame, and where its bytes begin.
    next: usize,
    start: usize,
}

impl Batch {
    pub(crate) fn is_empty(&self) -> bool {
        self.next == self.headers.len()
    }

    /// Forgets all frames.
    pub(crate) fn clear(&mut self) {
        self.headers.clear();
        self.bytes.clear();
        (self.next, self.start) = (0, 0);
    }

    /// Appends a frame, whose timestamp is in nanoseconds or in microseconds.
    pub(crate) fn push(&mut self, frame: &Frame<'_>, nano: bool) {
        let bytes = frame.bytes();
        let at = frame.timestamp().unwrap_or(SystemTime::UNIX_EPOCH);
        let since = at.duration_since(SystemTime::UNIX_EPOCH);
        self.headers.push(PktHdr {
            ts: time(since.unwrap_or_default(), nano),
            caplen: u32::try_from(bytes.len()).unwrap_or(u32::MAX),
            len: frame.original_len(),
        });
        self.bytes.extend_from_slice(bytes);
    }

    /// The next frame; both stay where they are until the batch is cleared.
    pub(crate) fn take(&mut self) -> Option<(&PktHdr, &[u8])> {
        let header = self.headers.get(self.next)?;
        let end = self.start + header.caplen as usize;
        let bytes = &self.bytes[self.start..end];
        self.next += 1;
        self.start = end;
        Some((header, bytes))
    }
}

fn time(since: Duration, nano: bool) -> timeval {
    let fraction = if nano {
        since.subsec_nanos()
    } else {
        since.subsec_micros()
    };
    timeval {
        tv_sec: since.as_secs().cast_signed(),
        tv_usec: fraction.into(),
    }
}
