//! The counter's own store: chunks that the ledger has not acknowledged.

use crate::LedgerError;
use crate::codec::{Encoded, encode};
use crate::lock::StoreLock;
use crate::store::{Layout, bits, immediate, key, of, open};
use rusqlite::{Connection, OptionalExtension, params};
use std::path::{Path, PathBuf};
use weir_meter::{Chunk, ChunkId};

/// "weiS": what SQLite's `application_id` says of a spool.
const LAYOUT: Layout = Layout {
    application: 0x7765_6953,
    schema: SCHEMA,
    upgrades: &[],
};

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
        let db = open(path, &LAYOUT)?;
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

    /// Places of the first chunks in the order of storing that no ledger has acknowledged, at most
    /// `limit`.
    ///
    /// # Errors
    ///
    /// If the file cannot be read.
    pub fn places(&self, limit: u32) -> Result<Vec<i64>, LedgerError> {
        self.db
            .prepare_cached("SELECT sequence FROM chunk ORDER BY sequence LIMIT ?1")
            .and_then(|mut select| select.query_map([limit], |row| row.get(0))?.collect())
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
