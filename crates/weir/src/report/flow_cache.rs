//! The flow cache's counts in reports.

use serde::Serialize;
use std::fmt;
use weir_tap::FlowCacheStats;

/// The frames that the kernel forwarded by itself; other counts do not include
/// them.
#[derive(Serialize, Clone, Copy, Default, Debug)]
pub(crate) struct FlowCacheReport {
    pub(crate) entries: u64,
    pub(crate) frames: u64,
    bytes: u64,
    remembered: u64,
    forgotten: u64,
    aged: u64,
    flushed: u64,
    full: u64,
    not_by_driver: u64,
    held: u64,
    held_frames: u64,
}

impl From<FlowCacheStats> for FlowCacheReport {
    fn from(counts: FlowCacheStats) -> FlowCacheReport {
        FlowCacheReport {
            entries: counts.entries,
            frames: counts.traffic.frames,
            bytes: counts.traffic.bytes,
            remembered: counts.inserted,
            forgotten: counts.forgotten,
            aged: counts.aged,
            flushed: counts.flushed,
            full: counts.full,
            not_by_driver: counts.no_ndo_xmit,
            held: counts.held_back,
            held_frames: counts.held_back_frames,
        }
    }
}

impl fmt::Display for FlowCacheReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "fast path: {} frames without weir; {} entries, {} made, {} aged, {} full",
            self.frames, self.entries, self.remembered, self.aged, self.full
        )?;
        match self.held_frames {
            0 => Ok(()),
            held => write!(f, "; {held} frames held back"),
        }
    }
}
