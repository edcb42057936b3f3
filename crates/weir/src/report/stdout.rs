//! Reports on standard output.

use crate::error::Failure;
use serde::Serialize;
use std::io::{self, Write};

/// Prints a report: as one line of JSON, or as a person reads it.
pub(crate) fn report<R: Serialize + ?Sized>(
    json: bool,
    report: &R,
    text: impl FnOnce() -> String,
) -> Result<(), Failure> {
    let line = match json {
        true => serde_json::to_string(report).map_err(Failure::run)?,
        false => text(),
    };
    writeln!(io::stdout(), "{line}").map_err(Failure::output)
}
