//! Tables of PostgreSQL: the identities of chunks and their rows in one transaction, the rows by binary
//! COPY. A chunk whose identity is there already changes nothing.

use super::Output;
use super::connection::{chain, connect};
use super::given::Given;
use super::lines::{Line, Memory};
use crate::{Ledger, LedgerError};
use ::postgres::Transaction;
use std::borrow::Cow;
use std::collections::HashSet;
use std::io::Write;
use weir_meter::{Direction, OwnerKind};

/// Bytes of rows that are collected before they are sent.
const BUFFER_LEN: usize = 1 << 16;
/// The signature, flags and extension of a binary COPY.
const HEAD: &[u8] = b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0";
/// 2000-01-01 in Unix time, microseconds: where timestamps are counted from.
const EPOCH_US: i64 = 946_684_800_000_000;
/// Columns of the table of records.
const COLUMNS: i16 = 21;

/// A table's name as SQL has it: `schema.table`, each part quoted.
fn quoted(table: &str) -> String {
    let parts: Vec<String> = table.split('.').map(|part| format!("\"{part}\"")).collect();
    parts.join(".")
}

impl Ledger {
    /// Puts the records of some chunks into the tables, those that are not there. When this returns,
    /// they are committed.
    pub(super) fn copy_into(
        &self,
        connection: &str,
        table: &str,
        sequences: &[i64],
        output: &Output,
    ) -> Result<(Given, u64), LedgerError> {
        let of = |why: String| LedgerError::Postgres {
            output: output.name.clone(),
            why,
        };
        let failed = |error: ::postgres::Error| of(chain(&error));
        let mut client = connect(connection).map_err(of)?;
        let mut transaction = client.transaction().map_err(failed)?;
        make_tables(&mut transaction, table).map_err(failed)?;
        let new = self.enter(&mut transaction, table, sequences, &of)?;
        let copy = format!("COPY {} FROM STDIN (FORMAT binary)", quoted(table));
        let mut memory = Memory::default();
        let mut records = 0;
        let sent = |error: std::io::Error| of(chain(&error));
        let mut copy = transaction.copy_in(&copy).map_err(failed)?;
        let mut buffer = Vec::with_capacity(BUFFER_LEN + 4096);
        buffer.extend(HEAD);
        for sequence in sequences {
            let is_new = new.contains(sequence);
            let lines = self.lines(*sequence, &output.shape, &mut memory, &mut |line| {
                if !is_new {
                    return Ok(());
                }
                row(&mut buffer, line);
                if buffer.len() >= BUFFER_LEN {
                    copy.write_all(&buffer).map_err(sent)?;
                    buffer.clear();
                }
                Ok(())
            })?;
            records += if is_new { lines } else { 0 };
        }
        buffer.extend((-1_i16).to_be_bytes());
        copy.write_all(&buffer).map_err(sent)?;
        copy.finish().map_err(failed)?;
        transaction.commit().map_err(failed)?;
        Ok((memory.given, records))
    }

    /// Enters the identities of chunks; gives those that were not there.
    fn enter(
        &self,
        transaction: &mut Transaction<'_>,
        table: &str,
        sequences: &[i64],
        of: &dyn Fn(String) -> LedgerError,
    ) -> Result<HashSet<i64>, LedgerError> {
        let failed = |error: ::postgres::Error| of(chain(&error));
        let chunks = quoted(&format!("{table}_chunk"));
        let insert = transaction
            .prepare(&format!(
                "INSERT INTO {chunks} (counter, boot_epoch, period, chunk, hash)
                 VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING"
            ))
            .map_err(failed)?;
        let same = transaction
            .prepare(&format!(
                "SELECT 1 FROM {chunks} WHERE counter = $1 AND boot_epoch = $2 AND period = $3
                 AND chunk = $4 AND hash = $5"
            ))
            .map_err(failed)?;
        let mut new = HashSet::new();
        for sequence in sequences {
            let id = self.manifest(*sequence)?.id;
            let hash = self.hash(*sequence)?;
            let epoch = format!("{:016x}", id.boot_epoch);
            let period = id.period.cast_signed();
            let number = id.number.cast_signed();
            let identity: [&(dyn ::postgres::types::ToSql + Sync); 5] =
                [&id.counter, &epoch, &period, &number, &&hash[..]];
            if transaction.execute(&insert, &identity).map_err(failed)? == 1 {
                new.insert(*sequence);
            } else if transaction
                .query_opt(&same, &identity)
                .map_err(failed)?
                .is_none()
            {
                return Err(LedgerError::Contradiction(Box::new(id)));
            }
        }
        Ok(new)
    }

    fn hash(&self, sequence: i64) -> Result<[u8; 32], LedgerError> {
        self.db
            .prepare_cached("SELECT hash FROM chunk WHERE sequence = ?1")
            .and_then(|mut select| select.query_row([sequence], |row| row.get(0)))
            .map_err(crate::store::of(&self.path))
    }
}

fn make_tables(transaction: &mut Transaction<'_>, table: &str) -> Result<(), ::postgres::Error> {
    let chunk_table = format!("{table}_chunk");
    let found = transaction.query_one(
        "SELECT to_regclass($1) IS NOT NULL AND to_regclass($2) IS NOT NULL",
        &[&quoted(table), &quoted(&chunk_table)],
    )?;
    if found.get(0) {
        return Ok(());
    }
    let (records, chunks) = (quoted(table), quoted(&chunk_table));
    // Two mediators that start together: one of them makes the tables.
    transaction.batch_execute(&format!(
        "SELECT pg_advisory_xact_lock(hashtext('weir'), hashtext('{table}'));
         CREATE TABLE IF NOT EXISTS {chunks} (
             counter    text NOT NULL,
             boot_epoch text NOT NULL,
             period     bigint NOT NULL,
             chunk      integer NOT NULL,
             hash       bytea NOT NULL,
             PRIMARY KEY (counter, boot_epoch, period, chunk)
         );
         CREATE TABLE IF NOT EXISTS {records} (
             counter          text NOT NULL,
             boot_epoch       text NOT NULL,
             period           bigint NOT NULL,
             chunk            integer NOT NULL,
             record           bigint NOT NULL,
             start            timestamptz NOT NULL,
             \"end\"            timestamptz NOT NULL,
             owner            text,
             subscriber       text NOT NULL,
             session          text NOT NULL,
             keys             text NOT NULL,
             class            text NOT NULL,
             chargeable_user  text NOT NULL,
             service          text NOT NULL,
             direction        text,
             flags            smallint NOT NULL,
             packets          bigint NOT NULL,
             bytes            bigint NOT NULL,
             reported_packets bigint,
             reported_bytes   bigint,
             more             jsonb
         );"
    ))
}

/// A row of a binary COPY.
fn row(out: &mut Vec<u8>, line: &Line<'_>) {
    let chunk = line.chunk;
    out.extend(COLUMNS.to_be_bytes());
    text(out, &chunk.counter);
    text(out, &chunk.boot_epoch_hex);
    long(out, chunk.period.cast_signed());
    field(out, &chunk.number.to_be_bytes());
    long(out, line.record.cast_signed());
    for unix_ns in chunk.unix_ns {
        long(out, unix_ns.div_euclid(1000) - EPOCH_US);
    }
    match line.owner {
        Some(OwnerKind::Session) => text(out, "session"),
        Some(OwnerKind::Unattributed) => text(out, "unattributed"),
        Some(OwnerKind::Overflow) => text(out, "overflow"),
        None => null(out),
    }
    text(out, line.subscriber);
    text(out, line.session);
    text(out, line.keys);
    text(out, line.class);
    text(out, line.chargeable_user);
    text(out, line.service);
    match line.direction {
        Some(Direction::Up) => text(out, "up"),
        Some(Direction::Down) => text(out, "down"),
        None => null(out),
    }
    field(out, &i16::from(line.flags.0).to_be_bytes());
    count(out, line.packets);
    count(out, line.bytes);
    for at in 0..2 {
        match line.reported {
            Some(reported) => count(out, reported[at]),
            None => null(out),
        }
    }
    if line.more.is_empty() {
        null(out);
    } else {
        // jsonb begins with its version, and has no character of code 0.
        let json = line.more.replace("\\u0000", "\\ufffd");
        out.extend((json.len() as i32 + 1).to_be_bytes());
        out.push(1);
        out.extend(json.as_bytes());
    }
}

fn field(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend((bytes.len() as i32).to_be_bytes());
    out.extend(bytes);
}

fn null(out: &mut Vec<u8>) {
    out.extend((-1_i32).to_be_bytes());
}

/// PostgreSQL's texts have no character of code 0.
fn text(out: &mut Vec<u8>, text: &str) {
    let text = if text.contains('\0') {
        Cow::Owned(text.replace('\0', "\u{fffd}"))
    } else {
        Cow::Borrowed(text)
    };
    field(out, text.as_bytes());
}

fn long(out: &mut Vec<u8>, value: i64) {
    field(out, &value.to_be_bytes());
}

/// Writes a count; a count beyond 63 bits is the largest number that PostgreSQL has.
fn count(out: &mut Vec<u8>, value: u64) {
    long(out, i64::try_from(value).unwrap_or(i64::MAX));
}
