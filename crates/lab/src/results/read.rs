//! Reads results files.

use super::Measurement;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Largest size of a results file, in bytes: some hundred thousand
/// measurements.
const FILE_MAX: u64 = 256 << 20;

/// The position of a measurement.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LineRef {
    /// The file.
    pub file: PathBuf,
    /// The line, from 1.
    pub line: usize,
}

impl fmt::Display for LineRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file.display(), self.line)
    }
}

/// Why a file of results cannot be read.
#[derive(Debug, Error)]
pub enum ReadError {
    /// The system's error.
    #[error("cannot read {}: {error}", file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// A line is not a measurement.
    #[error("{place}: not a measurement: {error}")]
    Line {
        /// The line.
        place: LineRef,
        /// The parser's error.
        error: serde_json::Error,
    },
}

/// The measurements of a file, with their positions. Empty lines are skipped.
///
/// # Errors
/// If the file cannot be read, is longer than 256 MiB, or has a line that is
/// not a measurement.
pub fn read(file: &Path) -> Result<Vec<(LineRef, Measurement)>, ReadError> {
    let failed = |error| ReadError::File {
        file: file.to_owned(),
        error,
    };
    let text = bounded(file).map_err(failed)?;
    let lines = text
        .lines()
        .zip(1..)
        .filter(|(text, _)| !text.trim().is_empty());
    let parsed = lines.map(|(text, line)| {
        let file = file.to_owned();
        let place = LineRef { file, line };
        match serde_json::from_str(text) {
            Ok(measurement) => Ok((place, measurement)),
            Err(error) => Err(ReadError::Line { place, error }),
        }
    });
    parsed.collect()
}

fn bounded(file: &Path) -> io::Result<String> {
    use std::io::Read;
    let mut text = String::new();
    let file = std::fs::File::open(file)?;
    file.take(FILE_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > FILE_MAX {
        Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            "more than 256 MiB",
        ))
    } else {
        Ok(text)
    }
}
