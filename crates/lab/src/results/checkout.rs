//! The checkout of weir's sources, and its commit.

use crate::net::Process;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Time limit of a git command.
const LIMIT: Duration = Duration::from_secs(20);

/// A commit of git.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Commit {
    /// The hash, in hexadecimal.
    pub id: String,
    /// Whether a tracked file differs from the commit.
    pub dirty: bool,
}

impl fmt::Display for Commit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = self.id.get(..12).unwrap_or(&self.id);
        write!(f, "{id}{}", if self.dirty { " (dirty)" } else { "" })
    }
}

/// A folder with weir's sources.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Checkout(PathBuf);

impl Checkout {
    /// The nearest folder at or above `start` with weir's workspace.
    pub fn around(start: &Path) -> Option<Checkout> {
        let is_root = |folder: &&Path| {
            let has = |path| folder.join(path).is_file();
            has("Cargo.toml") && has("crates/lab/Cargo.toml") && has("crates/weir/Cargo.toml")
        };
        let root = start.ancestors().find(is_root)?;
        Some(Checkout(root.to_owned()))
    }

    /// The checkout's root folder.
    pub fn root(&self) -> &Path {
        &self.0
    }

    /// The present commit; `None` without git, outside a repository, and if git
    /// refuses to read another user's repository.
    pub fn commit(&self) -> Option<Commit> {
        let id = self.git(&["rev-parse", "--verify", "HEAD"])?;
        let changes = self.git(&["status", "--porcelain", "--untracked-files=no"])?;
        Some(Commit {
            id: id.trim().to_owned(),
            dirty: !changes.is_empty(),
        })
    }

    /// The output of git with these arguments; `None` if git fails.
    fn git(&self, arguments: &[&str]) -> Option<String> {
        let mut git = Command::new("git");
        git.arg("-C").arg(&self.0).args(arguments);
        // Takes no lock that another git process would wait for.
        git.env("GIT_OPTIONAL_LOCKS", "0");
        git.stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        git.process_group(0);
        let output = Process::start_in_session(&mut git)
            .ok()?
            .output(LIMIT)
            .ok()?;
        output
            .status
            .success()
            .then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }
}
