//! Errors of stores.

use std::path::PathBuf;
use weir_meter::ChunkId;

/// A failure of a spool or a ledger.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// The database refuses.
    #[error("{path}: {source}{}", remedy(source))]
    Database {
        /// The store's file.
        path: PathBuf,
        /// SQLite's error.
        source: rusqlite::Error,
    },
    /// The file cannot be read.
    #[error("{path}: {source}: name another file, or let this user read it")]
    Unreadable {
        /// The store's file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is a store of another version.
    #[error(
        "{path}: layout {found}, this weir knows {known}: use a weir of the version that made it, or name another file"
    )]
    Layout {
        /// The store's file.
        path: PathBuf,
        /// Its layout.
        found: i64,
        /// The version that this program reads and writes.
        known: i64,
    },
    /// The file is a database, but of something else.
    #[error("{0}: not a store of weir: name another file")]
    Foreign(PathBuf),
    /// A chunk cannot be read.
    #[error("chunk {id}: {why}")]
    Damaged {
        /// Which one, as far as it is known.
        id: String,
        /// The fault.
        why: String,
    },
    /// A chunk with an identity that the store has, and other content.
    #[error("chunk {} is in the store with other content: two counters have the same name, or one was changed", name(.0))]
    Contradiction(Box<ChunkId>),
    /// An output's file cannot be written.
    #[error("{path}: {source}")]
    Output {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A database does not take an output's records.
    #[error("output {output}: PostgreSQL: {why}; nothing is lost, and it is tried again")]
    Postgres {
        /// The output.
        output: String,
        /// The message of the server or its client.
        why: String,
    },
    /// A collector does not take an output's records.
    #[error("collector {address}: {source}; nothing is lost, and it is tried again")]
    Collector {
        /// Host and port.
        address: String,
        /// Why.
        source: std::io::Error,
    },
    /// There is nothing to give again.
    #[error("the ledger has no such periods: `weir usage --prove` shows which it has")]
    NoPeriods,
    /// Another process has the store for itself.
    #[error("{path}: {holder} uses it: {remedy}")]
    Locked {
        /// The store's file.
        path: PathBuf,
        /// Which process.
        holder: String,
        /// The remedy.
        remedy: &'static str,
    },
    /// The file of a lock cannot be made or written.
    #[error("{path}: {source}")]
    Lock {
        /// The lock's file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// There is no store of this name yet.
    #[error("{0}: no spool is there yet: has its counter begun?")]
    Missing(PathBuf),
    /// A file is where a ledger is to be made.
    #[error("{0}: a file is there already: move it away, or name another --store")]
    Occupied(PathBuf),
    /// A thread cannot be made.
    #[error("no thread for records: {0}: let the service have more tasks or memory")]
    Thread(std::io::Error),
    /// A time that the calendar lacks.
    #[error("{0}")]
    Time(String),
}

impl LedgerError {
    /// Whether what failed may work later: the disk is full or fails, or another process holds the
    /// file.
    pub fn is_transient(&self) -> bool {
        use rusqlite::ErrorCode;
        match self {
            LedgerError::Database { source, .. } => matches!(
                source.sqlite_error_code(),
                Some(
                    ErrorCode::DiskFull
                        | ErrorCode::SystemIoFailure
                        | ErrorCode::DatabaseBusy
                        | ErrorCode::DatabaseLocked
                )
            ),
            LedgerError::Output { source, .. } => matches!(
                source.kind(),
                std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded
            ),
            LedgerError::Thread(_) => true,
            _ => false,
        }
    }
}

fn remedy(source: &rusqlite::Error) -> &'static str {
    match source.sqlite_error_code() {
        Some(rusqlite::ErrorCode::DiskFull) => {
            ": make room on its disk; what was recorded before is there"
        }
        Some(rusqlite::ErrorCode::CannotOpen) => {
            ": is the folder there, and may this user write to it?"
        }
        Some(rusqlite::ErrorCode::SystemIoFailure) => {
            ": is its disk full, or does it fail? What was committed is there"
        }
        Some(rusqlite::ErrorCode::DatabaseBusy) => ": another program holds it; try again later",
        Some(rusqlite::ErrorCode::ReadOnly) => ": this user may not write to it",
        _ => "",
    }
}

/// `counter/boot epoch/period/number`.
pub(crate) fn name(id: &ChunkId) -> String {
    let ChunkId {
        counter,
        boot_epoch,
        period,
        number,
    } = id;
    format!("{counter}/{boot_epoch:016x}/{period}/{number}")
}
