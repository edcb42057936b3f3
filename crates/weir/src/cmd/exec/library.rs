//! Where the libraries are that are loaded into programs: beside the binary, or where they are
//! installed.

use crate::error::CliError;
use std::fs::File;
use std::path::{Path, PathBuf};

/// weir's sockets.
pub(super) const EXEC: Library = Library {
    name: "libweir_exec.so",
    option: "--library",
};
/// weir's libpcap.
pub(super) const PCAP: Library = Library {
    name: "libweir_pcap.so",
    option: "--pcap-library",
};

/// A library that is built with weir.
#[derive(Clone, Copy, Debug)]
pub(super) struct Library {
    name: &'static str,
    /// The option that gives its path.
    option: &'static str,
}

/// Folders with the libraries, relative to the binary's: the same (an archive), Cargo's for
/// libraries, and that of an installation below `bin`'s parent.
const BESIDE: [&str; 3] = [".", "deps", "../lib/weir"];

/// Finds the library: `given`, or one beside the binary.
///
/// # Errors
/// If there is none, it cannot be read, or its path cannot be given to the dynamic linker.
pub(super) fn find(library: Library, given: Option<&Path>) -> Result<PathBuf, CliError> {
    let found = match given {
        Some(given) => given.to_owned(),
        None => beside(library)?,
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

fn beside(library: Library) -> Result<PathBuf, CliError> {
    let Library { name, option } = library;
    let binary = std::env::current_exe()
        .map_err(|error| CliError::run(format!("cannot find the program itself: {error}")))?;
    let folder = binary.parent().unwrap_or(Path::new("/"));
    let places = BESIDE.map(|place| folder.join(place).join(name));
    let found = places.iter().find(|place| place.is_file());
    found.cloned().ok_or_else(|| {
        let all: Vec<_> = places.iter().map(|at| at.display().to_string()).collect();
        CliError::run(format!(
            "{name} is at none of {}: it is built with weir; put it beside {}, or give {option}",
            all.join(", "),
            binary.display()
        ))
    })
}
