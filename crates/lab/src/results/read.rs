//! Reading files of results.

use super::Measurement;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Bytes of a file of results at most: some hundred thousand measurements.
const FILE_MAX: u64 = 256 << 20;

/// Where a measurement stands.
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
        /// What the system says.
        error: io::Error,
    },
    /// A line is no measurement.
    #[error("{place}: no measurement: {error}")]
    Line {
        /// Where it is.
        place: LineRef,
        /// What is wrong with it.
        error: serde_json::Error,
    },
}

/// The measurements of a file, with their places. Empty lines are passed over.
///
/// # Errors
/// If the file cannot be read, is longer than 256 MiB, or has a line that is no
/// measurement.
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
