//! Reports on standard output.

use crate::error::CliError;
use serde::Serialize;
use std::io::{self, Write};

/// Prints a report, as one line of JSON or as text.
pub(crate) fn report<R: Serialize + ?Sized>(
    json: bool,
    report: &R,
    text: impl FnOnce() -> String,
) -> Result<(), CliError> {
    let line = if json {
        serde_json::to_string(report).map_err(CliError::run)?
    } else {
        text()
    };
    writeln!(io::stdout(), "{line}").map_err(CliError::output)
}

/// Prints a text as it is.
pub(crate) fn text(text: &str) -> Result<(), CliError> {
    io::stdout()
        .write_all(text.as_bytes())
        .map_err(CliError::output)
}
