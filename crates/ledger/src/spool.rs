//! The counter's own store: chunks that the ledger has not acknowledged.

use crate::LedgerError;
use crate::codec::{Encoded, encode};
use crate::lock::StoreLock;
use crate::store::{Layout, bits, immediate, key, of, open};
use rusqlite::{Connection, OptionalExtension, Transaction, params};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use weir_meter::{Chunk, ChunkId, Measure};

/// "weiS": what SQLite's `application_id` says of a spool.
const LAYOUT: Layout = Layout {
    application: 0x7765_6953,
    schema: SCHEMA,
    upgrades: &[UPGRADE_2],
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

const UPGRADE_2: &str = "
-- What the numbers of a counter's cells mean, for a process that finds them with another configuration.
CREATE TABLE meaning (
    counter    TEXT NOT NULL,
    boot_epoch INTEGER NOT NULL,
    meaning    TEXT NOT NULL,
    PRIMARY KEY (counter, boot_epoch)
) STRICT, WITHOUT ROWID;
";

/// What the numbers of a counter's cells in the kernel mean.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meaning {
    /// Names of services by the numbers of classes.
    pub services: Vec<String>,
    /// The columns of the measures beside packets and bytes.
    pub measures: Vec<Measure>,
}

/// A chunk in a spool.
#[derive(Clone, Debug)]
pub struct Stored {
    /// Its place in the order of storing.
    pub sequence: i64,
    /// Its bytes and hash.
    pub encoded: Encoded,
}

/// A period of a counter on its way to the disk: all its chunks, or none of them if this is dropped.
#[derive(Debug)]
pub struct StoredPeriod<'a> {
    path: PathBuf,
    transaction: Transaction<'a>,
    /// Boot epoch, period and hash of the counter's last chunk before.
    head: Option<(i64, i64, [u8; 32])>,
    /// The hash of its last chunk now.
    previous: [u8; 32],
    /// The last chunk that was put, and whether it says that it is the period's last.
    last: Option<(ChunkId, bool)>,
}

impl StoredPeriod<'_> {
    /// Puts the next chunk there, and fills in its `previous`. A chunk of a period that was stored before
    /// is left as it is, whatever it says now.
    ///
    /// # Errors
    ///
    /// If the disk is full or fails: then nothing has changed, once this is dropped.
    pub fn put(&mut self, chunk: &mut Chunk) -> Result<(), LedgerError> {
        self.insert(chunk).map_err(of(&self.path))
    }

    fn insert(&mut self, chunk: &mut Chunk) -> rusqlite::Result<()> {
        let id = chunk.manifest.id.clone();
        // A period is stored whole, so one up to the head's is a repetition, even if its chunks
        // have been acknowledged and deleted meanwhile.
        let is_stored = self.head.is_some_and(|(epoch, period, _)| {
            epoch == bits(id.boot_epoch) && id.period <= period.cast_unsigned()
        });
        let is_there = is_stored
            || self
                .transaction
                .prepare_cached(
                    "SELECT 1 FROM chunk WHERE counter = ?1 AND boot_epoch = ?2
                     AND period = ?3 AND number = ?4",
                )?
                .exists(key(&id))?;
        if is_there {
            return Ok(());
        }
        chunk.manifest.previous = self.previous;
        let encoded = encode(chunk);
        self.previous = encoded.hash;
        self.transaction
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
        self.last = Some((id, chunk.manifest.last));
        Ok(())
    }

    /// Makes the period durable, with the cumulative values from which the next one is counted. The base
    /// of a period that was stored before stays: see [`last`](Spool::last).
    ///
    /// # Errors
    ///
    /// If the disk is full or fails: then nothing has changed.
    pub fn commit(self, base: &[u8]) -> Result<(), LedgerError> {
        let path = self.path.clone();
        self.end(base).map_err(of(&path))
    }

    fn end(self, base: &[u8]) -> rusqlite::Result<()> {
        if let Some((id, is_whole)) = &self.last {
            // What is missing could never be added: it would count as a repetition.
            assert!(is_whole, "a period is stored with its last chunk");
            self.transaction.execute(
                "INSERT OR REPLACE INTO head (counter, boot_epoch, period, hash, base)
                 VALUES (?1, ?2, ?3, ?4, ?5)",
                params![
                    id.counter,
                    bits(id.boot_epoch),
                    bits(id.period),
                    self.previous,
                    base
                ],
            )?;
        }
        self.transaction.commit()
    }
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

    /// Puts all chunks of a period on the disk, as [`begin`](Self::begin) does.
    ///
    /// # Errors
    ///
    /// If the disk is full or fails: then nothing has changed, and the period can be stored later.
    pub fn store(&mut self, chunks: &mut [Chunk], base: &[u8]) -> Result<(), LedgerError> {
        let Some(first) = chunks.first() else {
            return Ok(());
        };
        let counter = first.manifest.id.counter.clone();
        let mut period = self.begin(&counter)?;
        for chunk in chunks {
            period.put(chunk)?;
        }
        period.commit(base)
    }

    /// Begins to put the chunks of a period on the disk, one after the other, so that not all need to be
    /// in memory. Until [`commit`](StoredPeriod::commit) no other program can write to the spool.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, or if another program holds it.
    pub fn begin(&mut self, counter: &str) -> Result<StoredPeriod<'_>, LedgerError> {
        let path = self.path.clone();
        let begun = immediate(&mut self.db).and_then(|transaction| {
            let head: Option<(i64, i64, [u8; 32])> = transaction
                .query_row(
                    "SELECT boot_epoch, period, hash FROM head WHERE counter = ?1",
                    [counter],
                    |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)),
                )
                .optional()?;
            Ok(StoredPeriod {
                path,
                transaction,
                head,
                previous: head.map(|head| head.2).unwrap_or_default(),
                last: None,
            })
        });
        begun.map_err(of(&self.path))
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

    /// Notes what the cells of a counter's boot epoch mean, before something is counted in them.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub fn note_meaning(
        &mut self,
        counter: &str,
        boot_epoch: u64,
        meaning: &Meaning,
    ) -> Result<(), LedgerError> {
        // Nothing is written at a start that changes nothing: the disk may be full.
        if self.meaning(counter, boot_epoch)?.as_ref() == Some(meaning) {
            return Ok(());
        }
        let json = serde_json::to_string(meaning).expect("names are JSON");
        let noted = self.db.execute(
            "INSERT OR REPLACE INTO meaning (counter, boot_epoch, meaning) VALUES (?1, ?2, ?3)",
            params![counter, bits(boot_epoch), json],
        );
        noted.map(drop).map_err(of(&self.path))
    }

    /// What was noted of the cells of a counter's boot epoch; `None` if nothing was, or if it cannot be
    /// read.
    ///
    /// # Errors
    ///
    /// If the file cannot be read.
    pub fn meaning(&self, counter: &str, boot_epoch: u64) -> Result<Option<Meaning>, LedgerError> {
        let json: Option<String> = self
            .db
            .query_row(
                "SELECT meaning FROM meaning WHERE counter = ?1 AND boot_epoch = ?2",
                params![counter, bits(boot_epoch)],
                |row| row.get(0),
            )
            .optional()
            .map_err(of(&self.path))?;
        Ok(json.and_then(|json| serde_json::from_str(&json).ok()))
    }

    /// Deletes what was noted of all other boot epochs of a counter: their cells are recorded.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub fn forget_meanings(&mut self, counter: &str, but: u64) -> Result<(), LedgerError> {
        let deleted = self.db.execute(
            "DELETE FROM meaning WHERE counter = ?1 AND boot_epoch != ?2",
            params![counter, bits(but)],
        );
        deleted.map(drop).map_err(of(&self.path))
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
