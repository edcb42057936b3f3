//! Usage records that survive anything: from a counter's chunk to the billing system, once.
//!
//! ```text
//!  counter ─► Spool ──(any transport, at least once)──► Ledger ─► outputs: files, PostgreSQL, IPFIX
//!               ▲                                         │
//!               └──────────── acknowledgment ─────────────┘
//! ```
//!
//! [`Spool`] is the counter's own store: a chunk is on the disk before anything else happens to it,
//! and is deleted only when the ledger has acknowledged it. [`Ledger`] inserts a chunk's identity
//! and rows in one transaction, so a chunk that arrives twice counts once. Chunks of a counter are
//! chained by SHA-256: the ledger notices a chunk that is missing or was changed. [`Ledger::prove`]
//! compares the link's totals with the sums of records and with each output. [`Point`]s say which
//! counters see the same packets, so that these are charged once.
//!
//! A counter's session events are in its [`SessionLog`]. All are SQLite files (write-ahead log, synced at each commit). NetTap 2000 paper, §2.

mod codec;
mod error;
mod ledger;
mod lock;
mod maintain;
mod nats;
mod output;
mod planning;
mod points;
mod progress;
mod prove;
mod session_log;
mod shorten;
mod spool;
mod store;
mod tls;
mod usage;

pub use codec::{CHUNK_BYTES_MAX, Encoded, decode, encode};
pub use error::LedgerError;
pub use ledger::{Accepted, Ledger};
pub use lock::StoreLock;
pub use nats::{NatsError, RESEND, Shipped, Shipper, Taken, Taker, check_nats_url};
pub use output::{Column, Delivered, Filter, Format, Output, Replay, Shape, Span, Target};
pub use planning::{Load, SessionUse};
pub use points::{Audit, AuditRow, Point, Role, fill_counter};
pub use progress::Progress;
pub use prove::{Difference, InterfaceProof, PeriodProof, Proof};
pub use session_log::SessionLog;
pub use shorten::Shortening;
pub use spool::{Meaning, Spool, Stored, StoredPeriod};
pub use usage::{Group, Row, UsageQuery};
