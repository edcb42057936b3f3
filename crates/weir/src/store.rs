//! Where the store of usage records is, if a command line does not say.

use crate::error::CliError;
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// The usual name of the store's file.
pub(crate) const FILE_NAME: &str = "usage.db";

/// The store's file by these rules.
pub(crate) fn path(given: Option<&Path>) -> Result<PathBuf, CliError> {
    if let Some(path) = given {
        return Ok(path.to_owned());
    }
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let folder = if let Some(folder) = variable("STATE_DIRECTORY") {
        PathBuf::from(folder)
    } else if rustix::process::geteuid().is_root() {
        PathBuf::from("/var/lib/weir")
    } else {
        let state = variable("XDG_STATE_HOME").map(PathBuf::from);
        let home = || variable("HOME").map(|home| Path::new(&home).join(".local/state"));
        let Some(state) = state.or_else(home) else {
            return Err(CliError::refused(
                "there is no home folder to keep usage records in: name a file with --store",
            ));
        };
        state.join("weir")
    };
    Ok(folder.join(FILE_NAME))
}

/// As [`path`], and its folder is made if it is not there, for its owner alone.
pub(crate) fn path_made(given: Option<&Path>) -> Result<PathBuf, CliError> {
    let path = path(given)?;
    let folder = path.parent().filter(|_| given.is_none());
    if let Some(folder) = folder {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)
            .map_err(|error| {
                CliError::run(format!(
                    "cannot make {}: {error}: name another file with --store",
                    folder.display()
                ))
            })?;
    }
    Ok(path)
}
