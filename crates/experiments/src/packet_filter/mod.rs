//! The measurements of Mogul, Rashid and Accetta, "The Packet Filter: An
//! Efficient Mechanism for User-level Network Code" (1987), §6.
//!
//! [`Bench::measure`] gives the figures of this machine's kernel, and the
//! paper's beside them where it has one ([`paper`]). It takes root: two hosts in
//! network namespaces send and receive.

mod bench;
mod bench_demux;
mod cost;
mod cpus;
mod error;
mod figures;
mod filters;
pub mod paper;
mod receive;
mod send;

pub use bench::{Bench, Progress, STEPS, Settings};
pub use cost::Kind;
pub use error::MeasureError;
pub use figures::{BreakEven, Figures, Line, Row};
pub use receive::receiver;
