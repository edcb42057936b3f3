//! Files of outputs: written beside their place, synced, renamed.

use super::given::{Found, Given};
use super::lines::{Line, Memory};
use super::shape::Shape;
use super::{Format, cdr, ipfix, text};
use crate::{Ledger, LedgerError};
use sha2::{Digest, Sha256};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Bytes that are collected before they are written.
const BUFFER_LEN: usize = 1 << 18;

impl Ledger {
    /// Writes the lines of some chunks into a file, and gives its hash, their sums and their number.
    /// Without lines there is no file.
    pub(super) fn write_file(
        &self,
        sequences: &[i64],
        shape: &Shape,
        path: &Path,
        format: Format,
    ) -> Result<([u8; 32], Given, u64), LedgerError> {
        let failed = |source: io::Error| LedgerError::Output {
            path: path.to_owned(),
            source,
        };
        let mut beside = path.as_os_str().to_owned();
        beside.push(".part");
        let beside = PathBuf::from(beside);
        let out = Hashed {
            inner: BufWriter::with_capacity(BUFFER_LEN, create_new(&beside).map_err(failed)?),
            hash: Sha256::new(),
        };
        let mut memory = Memory::default();
        let mut records = 0;
        let mut writer = Writer::new(format, out).map_err(failed)?;
        for sequence in sequences {
            records += self.lines(*sequence, shape, &mut memory, &mut |line| {
                writer.line(line).map_err(failed)
            })?;
            writer.end_chunk().map_err(failed)?;
        }
        let out = writer.finish().map_err(failed)?;
        if records == 0 {
            fs::remove_file(&beside).map_err(failed)?;
            return Ok(([0; 32], memory.given, 0));
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
        Ok((out.hash.finalize().into(), memory.given, records))
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

/// A writer of one of the formats.
enum Writer {
    Csv(Box<csv::Writer<Hashed>>),
    JsonLines(Hashed),
    #[cfg(feature = "parquet")]
    Parquet(Box<super::parquet::Writer<Hashed>>),
    Ipfix(Box<ipfix::Encoder>, Hashed),
    Cgrates(Hashed),
}

impl Writer {
    fn new(format: Format, out: Hashed) -> io::Result<Writer> {
        Ok(match format {
            Format::Csv => Writer::Csv(Box::new(csv::Writer::from_writer(out))),
            Format::JsonLines => Writer::JsonLines(out),
            #[cfg(feature = "parquet")]
            Format::Parquet => Writer::Parquet(Box::new(super::parquet::Writer::new(out)?)),
            Format::Ipfix => Writer::Ipfix(Box::default(), out),
            Format::Cgrates => Writer::Cgrates(out),
        })
    }

    fn line(&mut self, line: &Line<'_>) -> io::Result<()> {
        match self {
            Writer::Csv(csv) => text::csv_line(csv, line),
            Writer::JsonLines(out) => text::json_line(out, line),
            #[cfg(feature = "parquet")]
            Writer::Parquet(parquet) => parquet.line(line),
            Writer::Ipfix(ipfix, out) => ipfix.line(line, out),
            Writer::Cgrates(out) => cdr::line(out, line),
        }
    }

    fn end_chunk(&mut self) -> io::Result<()> {
        match self {
            #[cfg(feature = "parquet")]
            Writer::Parquet(parquet) => parquet.end_chunk(),
            _ => Ok(()),
        }
    }

    fn finish(self) -> io::Result<Hashed> {
        match self {
            Writer::Csv(csv) => csv.into_inner().map_err(csv::IntoInnerError::into_error),
            Writer::JsonLines(out) | Writer::Cgrates(out) => Ok(out),
            #[cfg(feature = "parquet")]
            Writer::Parquet(parquet) => parquet.finish(),
            Writer::Ipfix(mut ipfix, mut out) => {
                ipfix.flush(&mut out)?;
                Ok(out)
            }
        }
    }
}

/// A file, and the hash of what is written to it.
pub(super) struct Hashed {
    inner: BufWriter<File>,
    hash: Sha256,
}

impl Write for Hashed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.hash.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// The sums of a file, read back.
pub(crate) fn totals(path: &Path) -> Result<Found, String> {
    let Some(format) = Format::of_path(path) else {
        return Err("not a format that can be read back".to_owned());
    };
    let file = File::open(path).map_err(|error| error.to_string())?;
    match format {
        Format::Csv => text::csv_totals(file).map(Found::ByPeriod),
        Format::JsonLines => text::json_totals(file).map(Found::ByPeriod),
        #[cfg(feature = "parquet")]
        Format::Parquet => super::parquet::totals(file).map(Found::ByPeriod),
        Format::Ipfix => ipfix::totals(file).map(Found::Whole),
        Format::Cgrates => cdr::totals(file).map(Found::ByPeriod),
    }
}
