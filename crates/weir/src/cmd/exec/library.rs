//! Where the libraries are that are loaded into programs: beside the binary, or where they are
//! installed.

use crate::error::CliError;
use std::fs::File;
use std::io::Read;
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

/// Whether a file begins as a shared library does: 64-bit ELF in this machine's byte order, version 1,
/// of type `ET_DYN`, for the processor of this program (elf(5)).
fn is_shared_library(mut file: File) -> bool {
    let mut header = [0; 20];
    let mut own = header;
    let itself = File::open("/proc/self/exe").and_then(|mut file| file.read_exact(&mut own));
    let order = if cfg!(target_endian = "little") { 1 } else { 2 };
    file.metadata().is_ok_and(|facts| facts.is_file())
        && file.read_exact(&mut header).is_ok()
        && header[..7] == *[b"\x7fELF", &[2, order, 1][..]].concat()
        && header[16..18] == 3_u16.to_ne_bytes()
        && (itself.is_err() || header[18..] == own[18..])
}

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
    // The dynamic linker would go on without a library that it cannot load.
    let file = File::open(&found).map_err(cannot)?;
    if !is_shared_library(file) {
        return Err(CliError::run(format!(
            "{} is no shared library of this machine: {} needs {}",
            found.display(),
            library.option,
            library.name
        )));
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_dynamic_linker_would_ignore_is_refused() {
        let text = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        for given in [text.as_path(), Path::new("/")] {
            let error = find(EXEC, Some(given)).unwrap_err().to_string();
            assert!(
                error.contains("is no shared library of this machine"),
                "{error}"
            );
        }
        // A program that may lie anywhere in memory has the type of a shared library.
        let itself = std::env::current_exe().unwrap();
        assert!(find(EXEC, Some(&itself)).is_ok());
    }
}
