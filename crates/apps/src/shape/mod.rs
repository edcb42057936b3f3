//! Output link scheduling between two links: a bump in the wire that shapes what
//! leaves each of them.
//!
//! ```text
//!  link A ─► switch ─► class by filter, flow by key ─► scheduler of link B ─► link B     and back
//! ```
//!
//! - [`config`]: `shape.toml`, and `[[scheduler]]` of any configuration.
//! - [`Shaper`]: a link's classes, flows and queues, without I/O.
//! - [`run`]: two links, by a tap.
//!
//! All frames come to user space. Frames that wait stay in the memory that they
//! were received in: each link's queues hold a bounded number of chunks, and the
//! longest queue gives way.

mod classify;
pub mod config;
mod live;
mod output;
mod shaper;
#[cfg(test)]
mod tests;
mod values;

pub use live::{Snapshot, run};
pub(crate) use output::Output;
pub use shaper::{Shaped, Shaper};
pub use weir_sched::{ClassCounts, Next};
