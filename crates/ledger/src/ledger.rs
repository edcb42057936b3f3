//! The ledger: every chunk once, with its rows.

use crate::LedgerError;
use crate::codec::{Encoded, decode};
use crate::lock::StoreLock;
use crate::spool::{bits, immediate, key, make_private, of, open};
use rusqlite::{Connection, OptionalExtension, Transaction, params};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;
use weir_meter::{Chunk, Measure, Owner, OwnerKind, Record};

/// "weiL": what SQLite's `application_id` says of a ledger.
const APPLICATION: i64 = 0x7765_694c;
const LAYOUT: i64 = 1;

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

/// What became of a chunk.
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
}

impl Ledger {
    /// Opens the ledger, or makes one.
    ///
    /// # Errors
    ///
    /// If the file cannot be opened or made, is no ledger, or of another version.
    pub fn open(path: &Path) -> Result<Ledger, LedgerError> {
        let db = open(path, APPLICATION, LAYOUT, SCHEMA)?;
        db.pragma_update(None, "foreign_keys", true)
            .map_err(of(path))?;
        Ok(Ledger {
            path: path.to_owned(),
            db,
        })
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
        // What came with the bytes is not taken on trust.
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

    /// Copies the whole ledger into a new file, while others may use it.
    ///
    /// # Errors
    ///
    /// If the copy cannot be written.
    pub fn back_up(&self, to: &Path) -> Result<(), LedgerError> {
        make_private(to);
        let mut copy = Connection::open(to).map_err(of(to))?;
        let backup = rusqlite::backup::Backup::new(&self.db, &mut copy).map_err(of(to))?;
        backup
            .run_to_completion(4096, Duration::ZERO, None)
            .map_err(of(to))
    }

    /// Deletes the periods that ended before this time (Unix nanoseconds), with their rows, if all
    /// outputs have had them. Gives the number of chunks deleted.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub fn delete_before(&mut self, unix_ns: i64) -> Result<u64, LedgerError> {
        let path = self.path.clone();
        let which = "end_ns < ?1
             AND sequence <= (SELECT coalesce(min(position), 9223372036854775807) FROM output)";
        let mut delete = || {
            let transaction = immediate(&mut self.db)?;
            transaction.execute(
                &format!("INSERT OR IGNORE INTO deleted SELECT hash FROM chunk WHERE {which}"),
                [unix_ns],
            )?;
            let deleted =
                transaction.execute(&format!("DELETE FROM chunk WHERE {which}"), [unix_ns])?;
            transaction.execute(
                "DELETE FROM owner WHERE id NOT IN (SELECT owner FROM usage)",
                [],
            )?;
            transaction.commit()?;
            Ok(deleted as u64)
        };
        delete().map_err(of(&path))
    }

    /// Replaces what identifies a subscriber (name, sessions, keys, Class, Chargeable-User-Identity)
    /// in all records by one mark; the counts stay, so that totals and proofs stay true. Gives the
    /// number of owners erased.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub fn erase(&mut self, subscriber: &str) -> Result<u64, LedgerError> {
        let path = self.path.clone();
        let mut erase = || {
            let transaction = immediate(&mut self.db)?;
            let ids = transaction
                .prepare("SELECT id FROM owner WHERE subscriber = ?1 AND kind = 0")?
                .query_map([subscriber], |row| row.get::<_, i64>(0))?
                .collect::<rusqlite::Result<Vec<_>>>()?;
            let erased = Owner {
                kind: OwnerKind::Session,
                subscriber: "(erased)".to_owned(),
                session: String::new(),
                keys: Vec::new(),
                class: Vec::new(),
                chargeable_user: None,
                started_unix_ns: 0,
            };
            if !ids.is_empty() {
                let to = owner_id(&transaction, &erased)?;
                for id in &ids {
                    transaction
                        .execute("UPDATE usage SET owner = ?1 WHERE owner = ?2", [to, *id])?;
                    transaction.execute("DELETE FROM owner WHERE id = ?1", [id])?;
                }
            }
            transaction.commit()?;
            Ok(ids.len() as u64)
        };
        let erased = erase().map_err(of(&path))?;
        // The old pages may still hold the name: write the file anew without them.
        self.db
            .execute_batch("VACUUM; PRAGMA wal_checkpoint(TRUNCATE);")
            .map_err(of(&path))?;
        Ok(erased)
    }
}

fn known(transaction: &Transaction<'_>, chunk: &Chunk) -> rusqlite::Result<Option<[u8; 32]>> {
    transaction
        .prepare_cached(
            "SELECT hash FROM chunk WHERE counter = ?1 AND boot_epoch = ?2 AND period = ?3
             AND number = ?4",
        )?
        .query_row(key(&chunk.manifest.id), |row| row.get(0))
        .optional()
}

fn insert(transaction: &Transaction<'_>, chunk: &Chunk, hash: &[u8; 32]) -> rusqlite::Result<()> {
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

/// The row of an owner, made if it is new.
fn owner_id(transaction: &Transaction<'_>, owner: &Owner) -> rusqlite::Result<i64> {
    let json = serde_json::to_string(owner).expect("an owner is JSON");
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

fn service_id(transaction: &Transaction<'_>, name: &str) -> rusqlite::Result<i64> {
    transaction
        .prepare_cached("INSERT OR IGNORE INTO service (name) VALUES (?1)")?
        .execute([name])?;
    transaction
        .prepare_cached("SELECT id FROM service WHERE name = ?1")?
        .query_row([name], |row| row.get(0))
}
