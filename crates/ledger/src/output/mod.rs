//! Outputs: files that a billing system reads. Each appears whole, once, and can be written again.

use crate::prove::PeriodKey;
use crate::spool::{immediate, of};
use crate::{Ledger, LedgerError};
use rusqlite::{OptionalExtension, params};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use weir_meter::{Direction, Manifest, Owner, OwnerKind, Totals};

/// Chunks a file at most: a file is written and read back whole.
const CHUNKS_MAX: i64 = 64;

/// The form of an output's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Comma-separated values with a head line (RFC 4180).
    Csv,
    /// A JSON object a line.
    JsonLines,
}

impl Format {
    /// The ending of file names.
    pub fn extension(self) -> &'static str {
        match self {
            Format::Csv => "csv",
            Format::JsonLines => "ndjson",
        }
    }

    /// The format of a file by its name's ending.
    pub fn of_path(path: &Path) -> Option<Format> {
        let extension = path.extension()?.to_str()?;
        [Format::Csv, Format::JsonLines]
            .into_iter()
            .find(|format| format.extension() == extension)
    }
}

/// A file of an output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputFile {
    /// Where it is.
    pub path: PathBuf,
    /// Its number of records.
    pub records: u64,
}

/// A record as outputs have it: its identity first.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Line {
    counter: String,
    /// Hexadecimal, since it may be beyond the whole numbers of JSON readers.
    boot_epoch: String,
    period: u64,
    chunk: u32,
    record: u64,
    /// RFC 3339, UTC.
    start: String,
    end: String,
    owner: OwnerKind,
    subscriber: String,
    session: String,
    keys: String,
    class: String,
    chargeable_user: String,
    service: String,
    direction: Direction,
    flags: u8,
    packets: u64,
    bytes: u64,
    /// The other measures, as a JSON object.
    more: String,
}

impl Ledger {
    /// Writes what the output has not had yet into files in `folder`, and gives them. A file appears
    /// whole or not at all; whatever happens, each record is in one file.
    ///
    /// # Errors
    ///
    /// If a file cannot be written: then the output's position stays, and the next call goes on.
    pub fn deliver(
        &mut self,
        output: &str,
        format: Format,
        folder: &Path,
    ) -> Result<Vec<OutputFile>, LedgerError> {
        let error = of(&self.path);
        let mut files = Vec::new();
        self.db
            .execute(
                "INSERT OR IGNORE INTO output (name, position) VALUES (?1, 0)",
                [output],
            )
            .map_err(&error)?;
        while let Some((first, last, path)) = self.plan(output, format, folder).map_err(&error)? {
            let (hash, records) = self.write(first, last, &path, format)?;
            let finish = |db: &mut rusqlite::Connection| {
                let transaction = immediate(db)?;
                transaction.execute(
                    "UPDATE output_file SET hash = ?3 WHERE output = ?1 AND first = ?2",
                    params![output, first, hash],
                )?;
                transaction.execute(
                    "UPDATE output SET position = ?2 WHERE name = ?1",
                    params![output, last],
                )?;
                transaction.commit()
            };
            finish(&mut self.db).map_err(&error)?;
            files.push(OutputFile { path, records });
        }
        Ok(files)
    }

    /// Writes the records of the periods that start within these Unix times in nanoseconds into one
    /// file again, beside what the output has had: its position stays.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub fn replay(
        &self,
        since: i64,
        until: i64,
        format: Format,
        path: &Path,
    ) -> Result<OutputFile, LedgerError> {
        let error = of(&self.path);
        let sequences = self
            .db
            .prepare("SELECT sequence FROM chunk WHERE start_ns >= ?1 AND start_ns < ?2 ORDER BY sequence")
            .and_then(|mut select| {
                select
                    .query_map([since, until], |row| row.get(0))?
                    .collect::<rusqlite::Result<Vec<i64>>>()
            })
            .map_err(&error)?;
        let (_, records) = self.write_chunks(&sequences, path, format)?;
        let path = path.to_owned();
        Ok(OutputFile { path, records })
    }

    /// The next file of an output: the one that was planned before a crash, or a new one, planned
    /// durably.
    fn plan(
        &mut self,
        output: &str,
        format: Format,
        folder: &Path,
    ) -> rusqlite::Result<Option<(i64, i64, PathBuf)>> {
        let transaction = immediate(&mut self.db)?;
        let planned = transaction
            .query_row(
                "SELECT first, last, path FROM output_file WHERE output = ?1 AND hash IS NULL",
                [output],
                |row| {
                    let path: String = row.get(2)?;
                    Ok((row.get(0)?, row.get(1)?, PathBuf::from(path)))
                },
            )
            .optional()?;
        if planned.is_some() {
            return Ok(planned);
        }
        let (first, last): (Option<i64>, Option<i64>) = transaction.query_row(
            "SELECT min(sequence), max(sequence) FROM (SELECT sequence FROM chunk
             WHERE sequence > (SELECT position FROM output WHERE name = ?1)
             ORDER BY sequence LIMIT ?2)",
            params![output, CHUNKS_MAX],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )?;
        let (Some(first), Some(last)) = (first, last) else {
            return Ok(None);
        };
        let name = format!("{output}-{first:08}-{last:08}.{}", format.extension());
        let path = folder.join(name);
        transaction.execute(
            "INSERT INTO output_file (output, first, last, path) VALUES (?1, ?2, ?3, ?4)",
            params![output, first, last, path.to_string_lossy()],
        )?;
        transaction.commit()?;
        Ok(Some((first, last, path)))
    }

    fn write(
        &self,
        first: i64,
        last: i64,
        path: &Path,
        format: Format,
    ) -> Result<([u8; 32], u64), LedgerError> {
        let sequences = self
            .db
            .prepare_cached(
                "SELECT sequence FROM chunk WHERE sequence BETWEEN ?1 AND ?2 ORDER BY sequence",
            )
            .and_then(|mut select| {
                select
                    .query_map([first, last], |row| row.get(0))?
                    .collect::<rusqlite::Result<Vec<i64>>>()
            })
            .map_err(of(&self.path))?;
        self.write_chunks(&sequences, path, format)
    }

    /// Writes a file beside its place, syncs it, and renames it into its place.
    fn write_chunks(
        &self,
        sequences: &[i64],
        path: &Path,
        format: Format,
    ) -> Result<([u8; 32], u64), LedgerError> {
        let failed = |source: io::Error| LedgerError::Output {
            path: path.to_owned(),
            source,
        };
        let mut beside = path.as_os_str().to_owned();
        beside.push(".part");
        let beside = PathBuf::from(beside);
        let mut out = Hashed {
            inner: BufWriter::new(create_new(&beside).map_err(failed)?),
            hash: Sha256::new(),
        };
        let mut records = 0;
        {
            let mut writer = Writer::new(format, &mut out);
            for sequence in sequences {
                records += self.write_chunk(*sequence, &mut writer, path)?;
            }
            writer.finish().map_err(failed)?;
        }
        let file = out
            .inner
            .into_inner()
            .map_err(|full| failed(full.into_error()))?;
        file.sync_all().map_err(failed)?;
        fs::rename(&beside, path).map_err(failed)?;
        let folder = path
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty());
        let folder = File::open(folder.unwrap_or(Path::new("."))).map_err(failed)?;
        folder.sync_all().map_err(failed)?;
        Ok((out.hash.finalize().into(), records))
    }

    fn write_chunk<W: Write>(
        &self,
        sequence: i64,
        writer: &mut Writer<W>,
        path: &Path,
    ) -> Result<u64, LedgerError> {
        let error = of(&self.path);
        let manifest: String = self
            .db
            .query_row(
                "SELECT manifest FROM chunk WHERE sequence = ?1",
                [sequence],
                |row| row.get(0),
            )
            .map_err(&error)?;
        let damaged = |why: serde_json::Error| LedgerError::Damaged {
            id: format!("in row {sequence} of {}", self.path.display()),
            why: why.to_string(),
        };
        let manifest: Manifest = serde_json::from_str(&manifest).map_err(damaged)?;
        let [start, end] = manifest.unix_ns.map(time);
        let mut select = self
            .db
            .prepare_cached(
                "SELECT usage.record, owner.owner, service.name, usage.direction, usage.flags,
                        usage.packets, usage.bytes, usage.more
                 FROM usage
                 JOIN owner ON owner.id = usage.owner
                 JOIN service ON service.id = usage.service
                 WHERE usage.chunk = ?1 ORDER BY usage.record",
            )
            .map_err(&error)?;
        let mut rows = select.query([sequence]).map_err(&error)?;
        let mut records = 0;
        while let Some(row) = rows.next().map_err(&error)? {
            let column = |row: &rusqlite::Row<'_>| -> rusqlite::Result<_> {
                Ok((
                    row.get::<_, i64>(0)?.cast_unsigned(),
                    row.get::<_, String>(1)?,
                    row.get::<_, String>(2)?,
                    row.get::<_, u8>(3)?,
                    row.get::<_, u8>(4)?,
                    row.get::<_, i64>(5)?.cast_unsigned(),
                    row.get::<_, i64>(6)?.cast_unsigned(),
                    row.get::<_, Option<String>>(7)?,
                ))
            };
            let (record, owner, service, direction, flags, packets, bytes, more) =
                column(row).map_err(&error)?;
            let owner: Owner = serde_json::from_str(&owner).map_err(damaged)?;
            let keys: Vec<String> = owner.keys.iter().map(ToString::to_string).collect();
            let class: Vec<String> = owner.class.iter().map(|class| hex(class)).collect();
            let line = Line {
                counter: manifest.id.counter.clone(),
                boot_epoch: format!("{:016x}", manifest.id.boot_epoch),
                period: manifest.id.period,
                chunk: manifest.id.number,
                record,
                start: start.clone(),
                end: end.clone(),
                owner: owner.kind,
                subscriber: owner.subscriber,
                session: owner.session,
                keys: keys.join(" "),
                class: class.join(" "),
                chargeable_user: owner
                    .chargeable_user
                    .as_deref()
                    .map(hex)
                    .unwrap_or_default(),
                service,
                direction: if direction == 0 {
                    Direction::Up
                } else {
                    Direction::Down
                },
                flags,
                packets,
                bytes,
                more: more.unwrap_or_default(),
            };
            writer.line(&line).map_err(|source| LedgerError::Output {
                path: path.to_owned(),
                source,
            })?;
            records += 1;
        }
        Ok(records)
    }
}

/// Makes a file that was not there: what a crash has left under the name goes, and a symbolic link
/// that another user has put there is not followed.
fn create_new(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o640).open(path)
}

fn time(unix_ns: i64) -> String {
    let time = jiff::Timestamp::from_nanosecond(unix_ns.into());
    time.map(|time| time.to_string()).unwrap_or_default()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

enum Writer<W: Write> {
    Csv(Box<csv::Writer<W>>),
    JsonLines(W),
}

impl<W: Write> Writer<W> {
    fn new(format: Format, out: W) -> Writer<W> {
        match format {
            Format::Csv => Writer::Csv(Box::new(csv::Writer::from_writer(out))),
            Format::JsonLines => Writer::JsonLines(out),
        }
    }

    fn line(&mut self, line: &Line) -> io::Result<()> {
        match self {
            Writer::Csv(csv) => csv.serialize(line).map_err(io::Error::from),
            Writer::JsonLines(out) => {
                serde_json::to_writer(&mut *out, line)?;
                out.write_all(b"\n")
            }
        }
    }

    fn finish(&mut self) -> io::Result<()> {
        match self {
            Writer::Csv(csv) => csv.flush(),
            Writer::JsonLines(out) => out.flush(),
        }
    }
}

struct Hashed<W> {
    inner: W,
    hash: Sha256,
}

impl<W: Write> Write for Hashed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.hash.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// The sums by period of a file, read back.
pub(crate) fn file_totals(
    path: &Path,
    format: Format,
) -> Result<BTreeMap<PeriodKey, Totals>, String> {
    let file = File::open(path).map_err(|error| error.to_string())?;
    let mut totals = BTreeMap::new();
    match format {
        Format::Csv => {
            for line in csv::Reader::from_reader(BufReader::new(file)).deserialize() {
                count(
                    line.map_err(|error: csv::Error| error.to_string())?,
                    &mut totals,
                )?;
            }
        }
        Format::JsonLines => {
            for line in BufReader::new(file).lines() {
                let line = line.map_err(|error| error.to_string())?;
                let line = serde_json::from_str(&line).map_err(|error| error.to_string())?;
                count(line, &mut totals)?;
            }
        }
    }
    Ok(totals)
}

fn count(line: Line, totals: &mut BTreeMap<PeriodKey, Totals>) -> Result<(), String> {
    let epoch = u64::from_str_radix(&line.boot_epoch, 16).map_err(|error| error.to_string())?;
    let sum: &mut Totals = totals
        .entry((line.counter, epoch, line.period))
        .or_default();
    let direction = line.direction as usize;
    sum.packets[direction] = sum.packets[direction].wrapping_add(line.packets);
    sum.bytes[direction] = sum.bytes[direction].wrapping_add(line.bytes);
    Ok(())
}
