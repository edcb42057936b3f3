//! The counter's own store: chunks that the ledger has not acknowledged.

use crate::LedgerError;
use crate::codec::{Encoded, encode};
use crate::lock::StoreLock;
use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior, params};
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use weir_meter::{Chunk, ChunkId};

/// "weiS": what SQLite's `application_id` says of a spool.
const APPLICATION: i64 = 0x7765_6953;
const LAYOUT: i64 = 1;

const SCHEMA: &str = "
CREATE TABLE chunk (
    sequence   INTEGER PRIMARY KEY AUTOINCREMENT,
    counter    TEXT NOT NULL,
    boot_epoch INTEGER NOT NULL,
    period     INTEGER NOT NULL,
    number     INTEGER NOT NULL,
    hash       BLOB NOT NULL,
    bytes      BLOB NOT NULL,
    UNIQUE (counter, boot_epoch, period, number)
) STRICT;
-- What stays when chunks are deleted: the end of each counter's chain, and what its next period
-- starts from.
CREATE TABLE head (
    counter    TEXT PRIMARY KEY,
    boot_epoch INTEGER NOT NULL,
    period     INTEGER NOT NULL,
    hash       BLOB NOT NULL,
    base       BLOB NOT NULL
) STRICT;
";

/// A chunk in a spool.
#[derive(Clone, Debug)]
pub struct Stored {
    /// Its place in the order of storing.
    pub sequence: i64,
    /// Its bytes and hash.
    pub encoded: Encoded,
}

/// The store of one counter, or of several on one machine.
#[derive(Debug)]
pub struct Spool {
    path: PathBuf,
    db: Connection,
}

impl Spool {
    /// Opens the spool, or makes one.
    ///
    /// # Errors
    ///
    /// If the file cannot be opened or made, is no spool, or of another version.
    pub fn open(path: &Path) -> Result<Spool, LedgerError> {
        let db = open(path, APPLICATION, LAYOUT, SCHEMA)?;
        Ok(Spool {
            path: path.to_owned(),
            db,
        })
    }

    /// Reserves the spool for this process, until the lock is dropped: two counters must not share
    /// one. The mediator, which only takes chunks away, needs no lock.
    ///
    /// # Errors
    ///
    /// If another process has it, or if the lock's file cannot be made.
    pub fn lock(&self) -> Result<StoreLock, LedgerError> {
        StoreLock::take(
            &self.path,
            "give this counter another name or another --spool",
        )
    }

    /// Puts all chunks of a period on the disk, all or none, with the cumulative values from which
    /// the next period is counted. Fills in each chunk's `previous`. When this returns, they are
    /// durable. A period that was stored before is left as it is, whatever its chunks say now, and so
    /// is its base: see [`last`](Self::last).
    ///
    /// # Errors
    ///
    /// If the disk is full or fails: then nothing has changed, and the period can be stored later.
    pub fn store(&mut self, chunks: &mut [Chunk], base: &[u8]) -> Result<(), LedgerError> {
        let path = self.path.clone();
        self.store_all(chunks, base).map_err(of(&path))
    }

    fn store_all(&mut self, chunks: &mut [Chunk], base: &[u8]) -> rusqlite::Result<()> {
        let Some(first) = chunks.first() else {
            return Ok(());
        };
        let transaction = immediate(&mut self.db)?;
        let head: Option<(i64, i64, [u8; 32])> = transaction
            .query_row(
                "SELECT boot_epoch, period, hash FROM head WHERE counter = ?1",
                [&first.manifest.id.counter],
                |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)),
            )
            .optional()?;
        let mut previous = head.map(|head| head.2).unwrap_or_default();
        for chunk in chunks {
            let id = chunk.manifest.id.clone();
            // A period is stored whole, so one up to the head's is a repetition, even if its chunks
            // have been acknowledged and deleted meanwhile.
            let stored = head.is_some_and(|(epoch, period, _)| {
                epoch == bits(id.boot_epoch) && id.period <= period.cast_unsigned()
            });
            let there: bool = stored
                || transaction
                    .prepare_cached(
                        "SELECT 1 FROM chunk WHERE counter = ?1 AND boot_epoch = ?2
                         AND period = ?3 AND number = ?4",
                    )?
                    .exists(key(&id))?;
            if there {
                continue;
            }
            chunk.manifest.previous = previous;
            let encoded = encode(chunk);
            previous = encoded.hash;
            transaction
                .prepare_cached(
                    "INSERT INTO chunk (counter, boot_epoch, period, number, hash, bytes)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
                )?
                .execute(params![
                    id.counter,
                    bits(id.boot_epoch),
                    bits(id.period),
                    id.number,
                    encoded.hash,
                    encoded.bytes
                ])?;
            transaction
                .prepare_cached(
                    "INSERT OR REPLACE INTO head (counter, boot_epoch, period, hash, base)
                     VALUES (?1, ?2, ?3, ?4, ?5)",
                )?
                .execute(params![
                    id.counter,
                    bits(id.boot_epoch),
                    bits(id.period),
                    encoded.hash,
                    base
                ])?;
        }
        transaction.commit()
    }

    /// The counter's last durable period: boot epoch, number, and the cumulative values at its end.
    ///
    /// # Errors
    ///
    /// If the file cannot be read.
    pub fn last(&self, counter: &str) -> Result<Option<(u64, u64, Vec<u8>)>, LedgerError> {
        self.db
            .query_row(
                "SELECT boot_epoch, period, base FROM head WHERE counter = ?1",
                [counter],
                |row| {
                    let (epoch, period): (i64, i64) = (row.get(0)?, row.get(1)?);
                    Ok((epoch.cast_unsigned(), period.cast_unsigned(), row.get(2)?))
                },
            )
            .optional()
            .map_err(of(&self.path))
    }

    /// The first chunk behind this place in the order of storing that no ledger has acknowledged.
    ///
    /// # Errors
    ///
    /// If the file cannot be read.
    pub fn next(&self, after: i64) -> Result<Option<Stored>, LedgerError> {
        self.db
            .prepare_cached(
                "SELECT sequence, hash, bytes FROM chunk WHERE sequence > ?1
                 ORDER BY sequence LIMIT 1",
            )
            .and_then(|mut select| {
                select
                    .query_row([after], |row| {
                        Ok(Stored {
                            sequence: row.get(0)?,
                            encoded: Encoded {
                                hash: row.get(1)?,
                                bytes: row.get(2)?,
                            },
                        })
                    })
                    .optional()
            })
            .map_err(of(&self.path))
    }

    /// Number of chunks that wait for the ledger's acknowledgment.
    ///
    /// # Errors
    ///
    /// If the file cannot be read.
    pub fn waiting(&self) -> Result<u64, LedgerError> {
        let count = self
            .db
            .query_row("SELECT count(*) FROM chunk", [], |row| row.get::<_, i64>(0));
        count.map(i64::cast_unsigned).map_err(of(&self.path))
    }

    /// Deletes a chunk that the ledger has acknowledged. The acknowledgment names the hash: one of
    /// other content deletes nothing.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub fn acknowledge(&mut self, id: &ChunkId, hash: &[u8; 32]) -> Result<bool, LedgerError> {
        let (counter, epoch, period, number) = key(id);
        self.db
            .execute(
                "DELETE FROM chunk WHERE counter = ?1 AND boot_epoch = ?2 AND period = ?3
                 AND number = ?4 AND hash = ?5",
                params![counter, epoch, period, number, hash],
            )
            .map(|deleted| deleted > 0)
            .map_err(of(&self.path))
    }
}

/// SQLite's integers are signed: the same 64 bits.
pub(crate) fn bits(value: u64) -> i64 {
    value.cast_signed()
}

pub(crate) fn key(id: &ChunkId) -> (&str, i64, i64, u32) {
    let epoch = bits(id.boot_epoch);
    (&id.counter, epoch, bits(id.period), id.number)
}

pub(crate) fn of(path: &Path) -> impl Fn(rusqlite::Error) -> LedgerError + use<> {
    let path = path.to_owned();
    move |source| LedgerError::Database {
        path: path.clone(),
        source,
    }
}

/// A transaction that has the right to write from its beginning: one that reads first and then
/// finds that another process has written fails at once, however long it would wait.
pub(crate) fn immediate(db: &mut Connection) -> rusqlite::Result<Transaction<'_>> {
    db.transaction_with_behavior(TransactionBehavior::Immediate)
}

/// Makes an empty file that only its user may read, if there is none: SQLite's other files of a
/// store have its mode. Opening the store says what is wrong.
pub(crate) fn make_private(path: &Path) {
    let mut options = OpenOptions::new();
    let _ = options.write(true).create_new(true).mode(0o600).open(path);
}

/// Opens a store of this kind and layout, or makes one.
pub(crate) fn open(
    path: &Path,
    application: i64,
    layout: i64,
    schema: &str,
) -> Result<Connection, LedgerError> {
    let error = of(path);
    make_private(path);
    let mut db = Connection::open(path).map_err(&error)?;
    db.busy_timeout(std::time::Duration::from_secs(10))
        .map_err(&error)?;
    let pragma = |db: &Connection, name: &str| {
        db.query_row(&format!("PRAGMA {name}"), [], |row| row.get::<_, i64>(0))
    };
    let found = pragma(&db, "application_id").map_err(|source| {
        if source.sqlite_error_code() == Some(rusqlite::ErrorCode::NotADatabase) {
            LedgerError::Foreign(path.to_owned())
        } else {
            error(source)
        }
    })?;
    // A commit is on the disk when it returns; readers do not wait for a writer.
    db.execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;")
        .map_err(&error)?;
    // Two programs that start together: one of them makes the tables.
    let transaction = immediate(&mut db).map_err(&error)?;
    let empty = transaction
        .query_row("SELECT count(*) = 0 FROM sqlite_schema", [], |row| {
            row.get(0)
        })
        .map_err(&error)?;
    let found = if found == 0 {
        pragma(&transaction, "application_id").map_err(&error)?
    } else {
        found
    };
    if found == 0 && empty {
        let versions =
            format!("PRAGMA application_id = {application}; PRAGMA user_version = {layout};");
        transaction
            .execute_batch(&format!("{schema}{versions}"))
            .map_err(&error)?;
    } else if found != application {
        return Err(LedgerError::Foreign(path.to_owned()));
    } else {
        let found = pragma(&transaction, "user_version").map_err(&error)?;
        if found != layout {
            return Err(LedgerError::Layout {
                path: path.to_owned(),
                found,
                known: layout,
            });
        }
    }
    transaction.commit().map_err(&error)?;
    Ok(db)
}
