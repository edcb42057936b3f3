//! Usage accounting without I/O: which subscriber used which service, in which period, how much.
//!
//! ```text
//!  frames ─► counters (kernel stage, or the engine here) ─┐
//!  sessions: RADIUS, CSV, control socket ─► sessions ─────┤
//!                                                         ▼
//!                          cut of a period ─► chunk of records, with totals and a chained hash
//!                                                         ▼
//!                                       spool ─► ledger ─► outputs   (crate `ledger`)
//! ```
//!
//! A *counter* is one measuring point: one `weir meter` (or `[meter]` of another command) on one
//! link. A *session* is the time in which a *subscriber* owns one or more [`Key`]s. A *service* is
//! a class of traffic. A *period* ends with a *cut*: the sum of the period's records equals the
//! totals of the link in that period, exactly.
//!
//! NetTap 2000 paper, §2 (Libretto: NetCounter and NetMediator).

mod chunk;
pub mod config;
pub mod engine;
mod key;
pub mod list;
pub mod measure;
pub mod parse;
pub mod period;
pub mod policy;
pub mod radius;
mod record;
pub mod services;
mod session;
pub mod sessions;

pub use chunk::{Chunk, ChunkId, InterfaceCounts, Manifest};
pub use key::{Key, KeyKind, ParseKeyError};
pub use record::{Counts, Direction, Flags, Measure, Owner, OwnerKind, Record, Totals};
pub use session::{SessionEvent, SessionEventKind, SessionInfo, SessionSource};

/// The Rust example of the manual, run as a doctest.
#[cfg(doctest)]
mod manual {
    #[doc = include_str!("../../../docs/how-to/add-a-measure.md")]
    struct AddAMeasure;
}
