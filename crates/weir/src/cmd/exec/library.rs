//! Where `libweir_exec.so` is: beside the binary, or where it is installed.

use crate::error::CliError;
use std::fs::File;
use std::path::{Path, PathBuf};

const NAME: &str = "libweir_exec.so";

/// Folders with the library, relative to the binary's: the same (an archive), Cargo's for
/// libraries, and that of an installation below `bin`'s parent.
const BESIDE: [&str; 3] = [".", "deps", "../lib/weir"];

/// Finds the library: `given`, or one beside the binary.
///
/// # Errors
/// If there is none, it cannot be read, or its path cannot be given to the dynamic linker.
pub(super) fn find(given: Option<&Path>) -> Result<PathBuf, CliError> {
    let found = match given {
        Some(given) => given.to_owned(),
        None => beside()?,
    };
    let cannot = |error| CliError::run(format!("cannot read {}: {error}", found.display()));
    // The dynamic linker would go on without a library that it cannot read.
    File::open(&found).map_err(cannot)?;
    let found = found.canonicalize().map_err(cannot)?;
    // The dynamic linker separates names by both.
    if found.to_string_lossy().contains([':', ' ']) {
        return Err(CliError::run(format!(
            "the dynamic linker cannot load {}: a folder's name has a colon or a blank",
            found.display()
        )));
    }
    Ok(found)
}

fn beside() -> Result<PathBuf, CliError> {
    let binary = std::env::current_exe()
        .map_err(|error| CliError::run(format!("cannot find the program itself: {error}")))?;
    let folder = binary.parent().unwrap_or(Path::new("/"));
    let places = BESIDE.map(|place| folder.join(place).join(NAME));
    let found = places.iter().find(|place| place.is_file());
    found.cloned().ok_or_else(|| {
        let all: Vec<_> = places.iter().map(|at| at.display().to_string()).collect();
        CliError::run(format!(
            "{NAME} is at none of {}: it is built with weir; put it beside {}, or give --library",
            all.join(", "),
            binary.display()
        ))
    })
}
