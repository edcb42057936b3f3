//! Usage records that survive anything: from a counter's chunk to the billing system, once.
//!
//! ```text
//!  counter ─► Spool ──(any transport, at least once)──► Ledger ─► outputs: CSV, JSON Lines
//!               ▲                                         │
//!               └──────────── acknowledgment ─────────────┘
//! ```
//!
//! [`Spool`] is the counter's own store: a chunk is on the disk before anything else happens to it,
//! and is deleted only when the ledger has acknowledged it. [`Ledger`] inserts a chunk's identity
//! and rows in one transaction, so a chunk that arrives twice counts once. Chunks of a counter are
//! chained by SHA-256: the ledger notices a chunk that is missing or was changed. [`Ledger::prove`]
//! compares the link's totals with the sums of records and with each output.
//!
//! A counter's session events are in its [`SessionLog`]. All are SQLite files (write-ahead log, synced at each commit). NetTap 2000 paper, §2.

mod codec;
mod error;
mod ledger;
mod lock;
mod output;
mod prove;
mod session_log;
mod spool;
mod usage;

pub use codec::{CHUNK_BYTES_MAX, Encoded, decode, encode};
pub use error::LedgerError;
pub use ledger::{Accepted, Ledger};
pub use lock::StoreLock;
pub use output::{Format, OutputFile};
pub use prove::{Difference, PeriodProof, Proof};
pub use session_log::SessionLog;
pub use spool::{Spool, Stored};
pub use usage::{Group, Row, UsageQuery};
