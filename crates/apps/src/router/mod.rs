//! The router: the engine without I/O, and the code that runs it on live links.
//!
//! [`engine`] decides on frames; `live` taps the links, feeds the engine with
//! frames, kernel routes and address changes, and sends its output.

pub mod engine;
mod live;

pub use live::{LogSink, RunError, Snapshot, Stages, check, run, run_through};
