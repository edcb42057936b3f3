//! Output of commands.

pub(super) mod atomic_write;
pub(super) mod flow_cache;
pub(super) mod format;
pub(super) mod metrics;
pub(super) mod plot;
pub(super) mod queues;
pub(super) mod round_trips;
pub(super) mod screen;
pub(super) mod stats_file;
pub(super) mod stdout;
pub(super) mod tx_burst;
