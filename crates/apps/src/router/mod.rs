//! The router: live links in `live`, and an engine without I/O in `engine`.

pub mod engine;
mod live;

pub use live::{RunError, Snapshot, check, clean, run};
