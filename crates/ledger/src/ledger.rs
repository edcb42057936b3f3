//! The ledger: every chunk once, with its rows.

use crate::LedgerError;
use crate::codec::{Encoded, decode};
use crate::lock::StoreLock;
use crate::store::{self, Layout, Stamp, bits, immediate, key, of, open, open_read};
use rusqlite::{Connection, OptionalExtension, params};
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use weir_meter::{Chunk, Key, Measure, Owner, OwnerKind, Record};

/// "weiL" is what SQLite's `application_id` says of a ledger.
pub(crate) const LAYOUT: Layout = Layout {
    application: 0x7765_694c,
    schema: SCHEMA,
    upgrades: &[UPGRADE_2],
};

const SCHEMA: &str = "
CREATE TABLE chunk (
    sequence     INTEGER PRIMARY KEY AUTOINCREMENT,
    counter      TEXT NOT NULL,
    boot_epoch   INTEGER NOT NULL,
    period       INTEGER NOT NULL,
    number       INTEGER NOT NULL,
    last         INTEGER NOT NULL,
    start_ns     INTEGER NOT NULL,
    end_ns       INTEGER NOT NULL,
    link_packets_up   INTEGER NOT NULL,
    link_packets_down INTEGER NOT NULL,
    link_bytes_up     INTEGER NOT NULL,
    link_bytes_down   INTEGER NOT NULL,
    hash         BLOB NOT NULL,
    previous     BLOB NOT NULL,
    manifest     TEXT NOT NULL,
    UNIQUE (counter, boot_epoch, period, number)
) STRICT;
CREATE INDEX chunk_time ON chunk (start_ns);
CREATE TABLE owner (
    id           INTEGER PRIMARY KEY,
    content      BLOB NOT NULL UNIQUE,
    kind         INTEGER NOT NULL,
    subscriber   TEXT NOT NULL,
    session      TEXT NOT NULL,
    owner        TEXT NOT NULL
) STRICT;
CREATE INDEX owner_subscriber ON owner (subscriber);
CREATE TABLE service (
    id   INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE
) STRICT;
CREATE TABLE measure (
    name     TEXT PRIMARY KEY,
    additive INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
-- `record` is the record's place in its chunk; `more` has the measures besides packets and bytes.
CREATE TABLE usage (
    chunk     INTEGER NOT NULL REFERENCES chunk ON DELETE CASCADE,
    record    INTEGER NOT NULL,
    owner     INTEGER NOT NULL REFERENCES owner,
    service   INTEGER NOT NULL REFERENCES service,
    direction INTEGER NOT NULL,
    flags     INTEGER NOT NULL,
    packets   INTEGER NOT NULL,
    bytes     INTEGER NOT NULL,
    more      TEXT,
    PRIMARY KEY (chunk, record)
) STRICT, WITHOUT ROWID;
CREATE INDEX usage_owner ON usage (owner);
-- Hashes of chunks that retention deleted: the chain of those that stay.
CREATE TABLE deleted (
    hash BLOB PRIMARY KEY
) STRICT, WITHOUT ROWID;
CREATE TABLE output (
    name     TEXT PRIMARY KEY,
    position INTEGER NOT NULL
) STRICT;
-- A file is planned before it is written: after a crash the same file is written again.
CREATE TABLE output_file (
    output   TEXT NOT NULL REFERENCES output,
    first    INTEGER NOT NULL,
    last     INTEGER NOT NULL,
    path     TEXT NOT NULL,
    hash     BLOB,
    PRIMARY KEY (output, first)
) STRICT;
";

const UPGRADE_2: &str = "
-- What access servers say that sessions used, from their beginning to the end of the chunk's period.
CREATE TABLE reported (
    chunk        INTEGER NOT NULL REFERENCES chunk ON DELETE CASCADE,
    owner        INTEGER NOT NULL REFERENCES owner,
    bytes_up     INTEGER NOT NULL,
    bytes_down   INTEGER NOT NULL,
    packets_up   INTEGER NOT NULL,
    packets_down INTEGER NOT NULL,
    PRIMARY KEY (chunk, owner)
) STRICT, WITHOUT ROWID;
CREATE INDEX reported_owner ON reported (owner);
CREATE INDEX chunk_counter_time ON chunk (counter, start_ns);
-- Counters whose records are not simply charged.
CREATE TABLE role (
    counter TEXT PRIMARY KEY,
    point   TEXT NOT NULL,
    role    TEXT NOT NULL
) STRICT, WITHOUT ROWID;
-- Gaps of counters that an audit counter has filled, as far as it could.
CREATE TABLE filled (
    counter TEXT NOT NULL,
    from_ns INTEGER NOT NULL,
    to_ns   INTEGER NOT NULL,
    PRIMARY KEY (counter, from_ns, to_ns)
) STRICT, WITHOUT ROWID;
-- The sums that an output's file was given, by period, as JSON.
ALTER TABLE output_file ADD COLUMN given TEXT;
";

/// The outcome of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accepted {
    /// It is in the ledger now.
    New,
    /// It was there already, with the same content.
    Known,
    /// It took the place of another content ([`Ledger::replace`]).
    Replaced,
}

/// The store of all counters' records.
#[derive(Debug)]
pub struct Ledger {
    pub(crate) path: PathBuf,
    pub(crate) db: Connection,
    /// The file's state when it was opened for reading, if nothing else shows changes.
    stamp: Option<Stamp>,
    /// The last chunk when gaps were looked for.
    pub(crate) looked_to: i64,
}

impl Ledger {
    /// Opens the ledger, or makes one.
    ///
    /// # Errors
    ///
    /// If the file cannot be opened or made, is no ledger, or of another version.
    pub fn open(path: &Path) -> Result<Ledger, LedgerError> {
        let db = open(path, &LAYOUT)?;
        db.pragma_update(None, "foreign_keys", true)
            .map_err(of(path))?;
        Ok(Ledger {
            path: path.to_owned(),
            db,
            stamp: None,
            looked_to: -1,
        })
    }

    /// Opens a ledger to look at it: without a need to write to its file or folder, unless it is of an
    /// earlier version.
    ///
    /// # Errors
    ///
    /// If the file is not there, cannot be read, is no ledger, or of another version.
    pub fn open_read(path: &Path) -> Result<Ledger, LedgerError> {
        let opened = match open_read(path, &LAYOUT) {
            Err(LedgerError::Layout { found, known, .. }) if found < known => {
                drop(Ledger::open(path)?);
                open_read(path, &LAYOUT)
            }
            opened => opened,
        };
        let (db, stamp) = opened?;
        Ok(Ledger {
            path: path.to_owned(),
            db,
            stamp,
            looked_to: -1,
        })
    }

    /// Removes a ledger without chunks, as an attempt to make one on a full disk leaves it. Returns whether
    /// it is removed: not if it has chunks, if another program has it open, or if it is no ledger.
    pub fn remove_unused(path: &Path) -> bool {
        store::remove_if(path, |db| {
            let tables: i64 =
                db.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
            if tables == 0 {
                return Ok(true);
            }
            let of: i64 = db.query_row("PRAGMA application_id", [], |row| row.get(0))?;
            let any = "SELECT EXISTS (SELECT * FROM chunk) OR EXISTS (SELECT * FROM output)";
            Ok(of == LAYOUT.application && !db.query_row(any, [], |row| row.get::<_, bool>(0))?)
        })
    }

    /// Whether what was read is of one time. If not (another program has begun to write since
    /// [`open_read`](Self::open_read)), open the ledger again and read anew.
    pub fn is_consistent(&self) -> bool {
        let stamp = self.stamp.as_ref();
        stamp.is_none_or(|stamp| stamp.is_current(&self.path))
    }

    /// The ledger's file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reserves the ledger for this process's outputs, until the lock is dropped: two mediators must
    /// not write the same files. Counters and readers need no lock.
    ///
    /// # Errors
    ///
    /// If another process has it, or if the lock's file cannot be made.
    pub fn lock(&self) -> Result<StoreLock, LedgerError> {
        StoreLock::take(&self.path, "stop that process or name another store")
    }

    /// Inserts a chunk's identity and rows in one transaction; when this returns, they are durable,
    /// and the chunk may be acknowledged. A chunk that is there already changes nothing.
    ///
    /// # Errors
    ///
    /// If the bytes are no chunk, if the ledger has the identity with other content, or if the disk
    /// is full or fails: then nothing has changed.
    pub fn accept(&mut self, encoded: &Encoded) -> Result<(Chunk, Accepted), LedgerError> {
        let chunk = decode(&encoded.bytes)?;
        // Values that came with the bytes are checked.
        let hash: [u8; 32] = Sha256::digest(&encoded.bytes).into();
        let error = of(&self.path);
        let transaction = immediate(&mut self.db).map_err(&error)?;
        let known = known(&transaction, &chunk).map_err(&error)?;
        match known {
            Some(same) if same == hash => return Ok((chunk, Accepted::Known)),
            Some(_) => return Err(LedgerError::Contradiction(Box::new(chunk.manifest.id))),
            None => {}
        }
        insert(&transaction, &chunk, &hash).map_err(&error)?;
        transaction.commit().map_err(&error)?;
        Ok((chunk, Accepted::New))
    }

    /// Inserts the records of a capture in one transaction, in place of those that the ledger has of
    /// the same counter and boot epoch: a capture that is metered again by another configuration.
    ///
    /// # Errors
    ///
    /// If the bytes are no chunks, if an output has had the former records already, or if the disk is
    /// full or fails: then nothing has changed.
    pub fn replace(&mut self, chunks: &[Encoded]) -> Result<Accepted, LedgerError> {
        let decoded = chunks.iter().map(|chunk| decode(&chunk.bytes));
        let decoded = decoded.collect::<Result<Vec<_>, _>>()?;
        let Some(first) = decoded.first().map(|chunk| &chunk.manifest.id) else {
            return Ok(Accepted::Known);
        };
        let error = of(&self.path);
        let transaction = immediate(&mut self.db).map_err(&error)?;
        let epoch = params![first.counter, bits(first.boot_epoch)];
        let which = "counter = ?1 AND boot_epoch = ?2";
        let mut former = HashMap::new();
        {
            let mut select = transaction
                .prepare(&format!("SELECT hash, sequence FROM chunk WHERE {which}"))
                .map_err(&error)?;
            let mut rows = select.query(epoch).map_err(&error)?;
            while let Some(row) = rows.next().map_err(&error)? {
                let hash: [u8; 32] = row.get(0).map_err(&error)?;
                former.insert(hash, row.get::<_, i64>(1).map_err(&error)?);
            }
        }
        let hashes: Vec<[u8; 32]> = chunks
            .iter()
            .map(|chunk| Sha256::digest(&chunk.bytes).into())
            .collect();
        if former.len() == chunks.len() && hashes.iter().all(|hash| former.contains_key(hash)) {
            return Ok(Accepted::Known);
        }
        let delivered: i64 = transaction
            .query_row(
                "SELECT coalesce(max(last), 0) FROM output_file",
                [],
                |row| row.get(0),
            )
            .map_err(&error)?;
        if former.values().any(|sequence| *sequence <= delivered) {
            return Err(LedgerError::Contradiction(Box::new(first.clone())));
        }
        transaction
            .execute(&format!("DELETE FROM chunk WHERE {which}"), epoch)
            .map_err(&error)?;
        for (chunk, hash) in decoded.iter().zip(&hashes) {
            insert(&transaction, chunk, hash).map_err(&error)?;
        }
        transaction.commit().map_err(&error)?;
        Ok(if former.is_empty() {
            Accepted::New
        } else {
            Accepted::Replaced
        })
    }
}

fn known(transaction: &Connection, chunk: &Chunk) -> rusqlite::Result<Option<[u8; 32]>> {
    transaction
        .prepare_cached(
            "SELECT hash FROM chunk WHERE counter = ?1 AND boot_epoch = ?2 AND period = ?3
             AND number = ?4",
        )?
        .query_row(key(&chunk.manifest.id), |row| row.get(0))
        .optional()
}

pub(crate) fn insert(
    transaction: &Connection,
    chunk: &Chunk,
    hash: &[u8; 32],
) -> rusqlite::Result<()> {
    let manifest = &chunk.manifest;
    let (id, link) = (&manifest.id, &manifest.link);
    transaction
        .prepare_cached(
            "INSERT INTO chunk (counter, boot_epoch, period, number, last, start_ns, end_ns,
                 link_packets_up, link_packets_down, link_bytes_up, link_bytes_down,
                 hash, previous, manifest)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)",
        )?
        .execute(params![
            id.counter,
            bits(id.boot_epoch),
            bits(id.period),
            id.number,
            manifest.last,
            manifest.unix_ns[0],
            manifest.unix_ns[1],
            bits(link.packets[0]),
            bits(link.packets[1]),
            bits(link.bytes[0]),
            bits(link.bytes[1]),
            hash,
            manifest.previous,
            serde_json::to_string(manifest).expect("a manifest is JSON"),
        ])?;
    let sequence = transaction.last_insert_rowid();
    let owners = chunk
        .owners
        .iter()
        .map(|owner| owner_id(transaction, owner))
        .collect::<rusqlite::Result<Vec<_>>>()?;
    let services = chunk
        .services
        .iter()
        .map(|name| service_id(transaction, name))
        .collect::<rusqlite::Result<Vec<_>>>()?;
    for (owner, id) in chunk.owners.iter().zip(&owners) {
        let Some([bytes_up, bytes_down, packets_up, packets_down]) = owner.reported else {
            continue;
        };
        transaction
            .prepare_cached(
                "INSERT OR REPLACE INTO reported
                     (chunk, owner, bytes_up, bytes_down, packets_up, packets_down)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
            )?
            .execute(params![
                sequence,
                id,
                bits(bytes_up),
                bits(bytes_down),
                bits(packets_up),
                bits(packets_down)
            ])?;
    }
    for measure in &chunk.measures {
        transaction
            .prepare_cached("INSERT OR IGNORE INTO measure (name, additive) VALUES (?1, ?2)")?
            .execute(params![measure.name, measure.additive])?;
    }
    let columns = Columns::of(&chunk.measures);
    let mut row = transaction.prepare_cached(
        "INSERT INTO usage (chunk, record, owner, service, direction, flags, packets, bytes, more)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
    )?;
    for (number, record) in chunk.records.iter().enumerate() {
        row.execute(params![
            sequence,
            bits(number as u64),
            owners[record.owner as usize],
            services[usize::from(record.service)],
            record.direction as u8,
            record.flags.0,
            bits(columns.packets.map_or(0, |at| record.counts[at])),
            bits(columns.bytes.map_or(0, |at| record.counts[at])),
            columns.more(record),
        ])?;
    }
    Ok(())
}

/// Where a chunk's measures go.
struct Columns<'a> {
    packets: Option<usize>,
    bytes: Option<usize>,
    more: Vec<(usize, &'a str)>,
}

impl Columns<'_> {
    fn of(measures: &[Measure]) -> Columns<'_> {
        let at = |name| measures.iter().position(|measure| measure.name == name);
        let (packets, bytes) = (at("packets"), at("bytes"));
        let more = measures.iter().enumerate();
        let more = more.filter(|(at, _)| Some(*at) != packets && Some(*at) != bytes);
        Columns {
            packets,
            bytes,
            more: more.map(|(at, measure)| (at, &*measure.name)).collect(),
        }
    }

    /// The other measures that are not zero, as a JSON object.
    fn more(&self, record: &Record) -> Option<String> {
        let counts = self
            .more
            .iter()
            .map(|(at, name)| (*name, record.counts[*at]));
        let counts: HashMap<&str, u64> = counts.filter(|(_, count)| *count > 0).collect();
        let json = || serde_json::to_string(&counts).expect("counts are JSON");
        (!counts.is_empty()).then(json)
    }
}

/// The stored part of an owner: all but the values that change from period to period.
#[derive(Serialize)]
struct Identity<'a> {
    kind: OwnerKind,
    subscriber: &'a str,
    session: &'a str,
    keys: &'a [Key],
    class: &'a [Vec<u8>],
    chargeable_user: Option<&'a [u8]>,
    started_unix_ns: i64,
}

/// The row of an owner, made if it is new.
pub(crate) fn owner_id(transaction: &Connection, owner: &Owner) -> rusqlite::Result<i64> {
    let identity = Identity {
        kind: owner.kind,
        subscriber: &owner.subscriber,
        session: &owner.session,
        keys: &owner.keys,
        class: &owner.class,
        chargeable_user: owner.chargeable_user.as_deref(),
        started_unix_ns: owner.started_unix_ns,
    };
    let json = serde_json::to_string(&identity).expect("an owner is JSON");
    let content: [u8; 32] = Sha256::digest(&json).into();
    let found = transaction
        .prepare_cached("SELECT id FROM owner WHERE content = ?1")?
        .query_row([content], |row| row.get(0))
        .optional()?;
    if let Some(id) = found {
        return Ok(id);
    }
    transaction
        .prepare_cached(
            "INSERT INTO owner (content, kind, subscriber, session, owner)
             VALUES (?1, ?2, ?3, ?4, ?5)",
        )?
        .insert(params![
            content,
            kind_number(owner.kind),
            owner.subscriber,
            owner.session,
            json
        ])
}

/// The number of a kind of owner in the table `owner`.
pub(crate) fn kind_number(kind: OwnerKind) -> i64 {
    match kind {
        OwnerKind::Session => 0,
        OwnerKind::Unattributed => 1,
        OwnerKind::Overflow => 2,
    }
}

fn service_id(transaction: &Connection, name: &str) -> rusqlite::Result<i64> {
    transaction
        .prepare_cached("INSERT OR IGNORE INTO service (name) VALUES (?1)")?
        .execute([name])?;
    transaction
        .prepare_cached("SELECT id FROM service WHERE name = ?1")?
        .query_row([name], |row| row.get(0))
}
