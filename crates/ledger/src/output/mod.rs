//! Outputs: what a billing system reads. Each record appears once, and can be written again.

mod cdr;
#[cfg(feature = "postgres")]
mod connection;
mod files;
pub(crate) mod given;
mod ipfix;
mod lines;
#[cfg(feature = "parquet")]
mod parquet;
#[cfg(feature = "postgres")]
mod postgres;
mod shape;
mod text;

pub(crate) use files::totals;
pub use shape::{Column, Filter, Shape, Span};

use crate::store::{immediate, of};
use crate::{Ledger, LedgerError};
use given::Given;
use rusqlite::{OptionalExtension, params};
use std::path::{Path, PathBuf};

/// Chunks a delivery at most: a file is written and read back whole.
const CHUNKS_MAX: i64 = 64;

/// The form of an output's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Comma-separated values with a head line (RFC 4180).
    Csv,
    /// A JSON object a line.
    JsonLines,
    /// Apache Parquet.
    #[cfg(feature = "parquet")]
    Parquet,
    /// IPFIX messages (RFC 7011, RFC 5655).
    Ipfix,
    /// An ExternalCDR of CGRateS a line, as JSON.
    Cgrates,
}

impl Format {
    /// All formats.
    pub const ALL: &[Format] = &[
        Format::Csv,
        Format::JsonLines,
        #[cfg(feature = "parquet")]
        Format::Parquet,
        Format::Ipfix,
        Format::Cgrates,
    ];

    /// The name in configurations.
    pub fn name(self) -> &'static str {
        match self {
            Format::Csv => "csv",
            Format::JsonLines => "json-lines",
            #[cfg(feature = "parquet")]
            Format::Parquet => "parquet",
            Format::Ipfix => "ipfix",
            Format::Cgrates => "cgrates",
        }
    }

    /// The ending of file names.
    pub fn extension(self) -> &'static str {
        match self {
            Format::Csv => "csv",
            Format::JsonLines => "ndjson",
            #[cfg(feature = "parquet")]
            Format::Parquet => "parquet",
            Format::Ipfix => "ipfix",
            Format::Cgrates => "cdr",
        }
    }

    /// The format of a file by its name's ending.
    pub fn of_path(path: &Path) -> Option<Format> {
        let extension = path.extension()?.to_str()?;
        let mut all = Format::ALL.iter().copied();
        all.find(|format| format.extension() == extension)
    }
}

/// Where an output goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Files in a folder.
    Files {
        /// Their form.
        format: Format,
        /// The folder.
        folder: PathBuf,
    },
    /// Tables of a PostgreSQL database.
    #[cfg(feature = "postgres")]
    Postgres {
        /// How to connect: a connection string or URL of libpq's form.
        connection: String,
        /// The table of the records; the table of chunks has the same name with `_chunk` behind.
        table: String,
    },
    /// An IPFIX collector, by TCP.
    Collector {
        /// Host and port.
        address: String,
    },
}

#[cfg(feature = "postgres")]
impl Target {
    /// Whether PostgreSQL's client understands a connection string; if not, why.
    ///
    /// # Errors
    ///
    /// The fault of the connection.
    pub fn check_connection(connection: &str) -> Result<(), String> {
        connection::check(connection)
    }
}

/// An output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// Its name, by which the ledger keeps its position.
    pub name: String,
    /// Where it goes.
    pub target: Target,
    /// Which records, and how they are put together.
    pub shape: Shape,
}

impl Output {
    /// The file of the chunks from `first` to `last`; empty if the output does not write files.
    fn path(&self, first: i64, last: i64) -> PathBuf {
        match &self.target {
            Target::Files { format, folder } => {
                let (name, extension) = (&self.name, format.extension());
                folder.join(format!("{name}-{first:08}-{last:08}.{extension}"))
            }
            _ => PathBuf::new(),
        }
    }
}

/// What an output had been given at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivered {
    /// The file; `None` if the output does not write files.
    pub path: Option<PathBuf>,
    /// The number of records.
    pub records: u64,
}

/// A delivery that is planned: first and last chunk by the ledger's sequence, and the file's path.
type Plan = (i64, i64, PathBuf);

impl Ledger {
    /// Gives the output what it has not had yet. A file appears whole or not at all; whatever happens,
    /// each record is in one file, and in a database once. A collector may be sent what it has had
    /// already, if the mediator is killed meanwhile.
    ///
    /// # Errors
    ///
    /// If it cannot be written: then the output's position stays, and the next call goes on.
    pub fn deliver(&mut self, output: &Output) -> Result<Vec<Delivered>, LedgerError> {
        let error = of(&self.path);
        let mut all = Vec::new();
        self.db
            .execute(
                "INSERT OR IGNORE INTO output (name, position) VALUES (?1, 0)",
                [&output.name],
            )
            .map_err(&error)?;
        while let Some((first, last, path)) = self.plan(output).map_err(&error)? {
            let sequences = self.sequences(first, last)?;
            let (hash, given, delivered) = self.give(output, &sequences, &path)?;
            let given = serde_json::to_string(&given).expect("sums are JSON");
            let finish = |db: &mut rusqlite::Connection| {
                let transaction = immediate(db)?;
                transaction.execute(
                    "UPDATE output_file SET hash = ?3, given = ?4, path = iif(?5, path, '')
                     WHERE output = ?1 AND first = ?2",
                    params![output.name, first, hash, given, delivered.path.is_some()],
                )?;
                transaction.execute(
                    "UPDATE output SET position = ?2 WHERE name = ?1",
                    params![output.name, last],
                )?;
                transaction.commit()
            };
            finish(&mut self.db).map_err(&error)?;
            if delivered.records > 0 {
                all.push(delivered);
            }
        }
        Ok(all)
    }

    /// Gives the output the records of some periods again, beside what it has had: its position stays.
    /// Those are the periods that start within these Unix times in nanoseconds; of this number and this
    /// counter alone, if they are given. A file has `replay` and the time of the first period in its
    /// name; in a database records that are there already stay as they are.
    ///
    /// # Errors
    ///
    /// If there are no such periods, or if they cannot be written.
    pub fn replay(&mut self, output: &Output, which: &Replay) -> Result<Delivered, LedgerError> {
        let sequences = self
            .db
            .prepare(
                "SELECT sequence FROM chunk WHERE start_ns >= ?1 AND start_ns < ?2
                   AND (?3 IS NULL OR period = ?3) AND (?4 IS NULL OR counter = ?4)
                 ORDER BY sequence",
            )
            .and_then(|mut select| {
                let which = params![
                    which.since_unix_ns.unwrap_or(i64::MIN),
                    which.until_unix_ns.unwrap_or(i64::MAX),
                    which.period.map(crate::store::bits),
                    which.counter,
                ];
                select
                    .query_map(which, |row| row.get(0))?
                    .collect::<rusqlite::Result<Vec<i64>>>()
            })
            .map_err(of(&self.path))?;
        let (Some(first), Some(last)) = (sequences.first(), sequences.last()) else {
            return Err(LedgerError::NoPeriods);
        };
        let path = match &output.target {
            Target::Files { format, folder } => {
                let (name, extension) = (&output.name, format.extension());
                folder.join(format!("{name}-replay-{first:08}-{last:08}.{extension}"))
            }
            _ => PathBuf::new(),
        };
        Ok(self.give(output, &sequences, &path)?.2)
    }

    fn give(
        &self,
        output: &Output,
        sequences: &[i64],
        path: &Path,
    ) -> Result<([u8; 32], Given, Delivered), LedgerError> {
        match &output.target {
            Target::Files { format, .. } => {
                let (hash, given, records) =
                    self.write_file(sequences, &output.shape, path, *format)?;
                let path = (records > 0).then(|| path.to_owned());
                Ok((hash, given, Delivered { path, records }))
            }
            #[cfg(feature = "postgres")]
            Target::Postgres { connection, table } => {
                let (given, records) = self.copy_into(connection, table, sequences, output)?;
                let path = None;
                Ok(([0; 32], given, Delivered { path, records }))
            }
            Target::Collector { address } => {
                let (given, records) = self.send_to(address, sequences, &output.shape)?;
                let path = None;
                Ok(([0; 32], given, Delivered { path, records }))
            }
        }
    }

    /// The next delivery of an output: the one that was planned before a crash, or a new one, planned
    /// durably.
    fn plan(&mut self, output: &Output) -> rusqlite::Result<Option<Plan>> {
        let transaction = immediate(&mut self.db)?;
        let planned = transaction
            .query_row(
                "SELECT first, last, path FROM output_file WHERE output = ?1 AND hash IS NULL",
                [&output.name],
                |row| Ok((row.get(0)?, row.get(1)?, row.get::<_, String>(2)?)),
            )
            .optional()?;
        if let Some((first, last, planned)) = planned {
            // The configuration may have another folder or format by now.
            let path = output.path(first, last);
            if path.to_string_lossy() != planned {
                transaction.execute(
                    "UPDATE output_file SET path = ?3 WHERE output = ?1 AND first = ?2",
                    params![output.name, first, path.to_string_lossy()],
                )?;
                transaction.commit()?;
            }
            return Ok(Some((first, last, path)));
        }
        let (first, last): (Option<i64>, Option<i64>) = transaction.query_row(
            "SELECT min(sequence), max(sequence) FROM (SELECT sequence FROM chunk
             WHERE sequence > (SELECT position FROM output WHERE name = ?1)
             ORDER BY sequence LIMIT ?2)",
            params![output.name, CHUNKS_MAX],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )?;
        let (Some(first), Some(last)) = (first, last) else {
            return Ok(None);
        };
        let path = output.path(first, last);
        transaction.execute(
            "INSERT INTO output_file (output, first, last, path) VALUES (?1, ?2, ?3, ?4)",
            params![output.name, first, last, path.to_string_lossy()],
        )?;
        transaction.commit()?;
        Ok(Some((first, last, path)))
    }

    fn sequences(&self, first: i64, last: i64) -> Result<Vec<i64>, LedgerError> {
        self.db
            .prepare_cached(
                "SELECT sequence FROM chunk WHERE sequence BETWEEN ?1 AND ?2 ORDER BY sequence",
            )
            .and_then(|mut select| {
                select
                    .query_map([first, last], |row| row.get(0))?
                    .collect::<rusqlite::Result<Vec<i64>>>()
            })
            .map_err(of(&self.path))
    }
}

/// Which periods are given again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replay {
    /// Only periods that start at this Unix time in nanoseconds or later.
    pub since_unix_ns: Option<i64>,
    /// Only periods that start before this one.
    pub until_unix_ns: Option<i64>,
    /// Only periods of this number.
    pub period: Option<u64>,
    /// Only those of this counter.
    pub counter: Option<String>,
}
