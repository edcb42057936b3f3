//! Captures named on the command line: opening, error messages, progress; and
//! output folders.

use crate::error::CliError;
use crate::signals::ShutdownSignal;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rustix::fs::OFlags;
use std::fs::{self, Metadata, OpenOptions};
use std::io::{self, IsTerminal};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use weir_link::pcap::{Error, Reader};

/// Opens the capture at `path`; `-` is standard input. Reading standard input
/// and other files that may block (a FIFO, such as a shell's `<(…)`, a
/// terminal) ends when a signal arrives.
pub(crate) fn open(path: &Path, stop: &ShutdownSignal) -> Result<Reader, Error> {
    if path == Path::new("-") {
        return Reader::new(stop.interruptible(io::stdin()));
    }
    let waits = |metadata: Metadata| !metadata.is_file() && !metadata.is_dir();
    if !fs::metadata(path).is_ok_and(waits) {
        return Reader::open(path);
    }
    // Opened without waiting for the other end of a FIFO: poll waits for it.
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(OFlags::NONBLOCK.bits() as i32)
        .open(path);
    let input = opened.map_err(|source| Error::Open {
        path: path.to_owned(),
        source,
    })?;
    Reader::new(stop.interruptible(input))
}

/// Fails if one of the captures does not exist, before any is read, so that a
/// misspelt name costs no time.
pub(crate) fn all_there(paths: &[PathBuf]) -> Result<(), CliError> {
    for path in paths.iter().filter(|path| *path != Path::new("-")) {
        fs::metadata(path).map_err(|source| {
            let path = path.clone();
            CliError::run(Error::Open { path, source })
        })?;
    }
    Ok(())
}

/// Whether the file exists but is damaged: then the frames read before are
/// reported, even if there are none.
pub(crate) fn is_damage(error: &Error) -> bool {
    matches!(error, Error::Damaged { .. })
}

/// The message of `error`, with the file's name.
pub(crate) fn complaint(path: &Path, error: &Error) -> String {
    match error {
        Error::Open { .. } => error.to_string(),
        Error::Read { .. } | Error::Damaged { .. } if path == Path::new("-") => {
            format!("standard input: {error}")
        }
        Error::Read { .. } | Error::Damaged { .. } => format!("{}: {error}", path.display()),
    }
}

/// Creates `folder` and its parents, if missing.
pub(crate) fn make_folder(folder: &Path) -> Result<(), CliError> {
    fs::create_dir_all(folder).map_err(|error| {
        let shown = folder.display();
        let why = if error.kind() == io::ErrorKind::AlreadyExists {
            format!("{shown} exists and is not a folder: give --write another")
        } else {
            format!("cannot make the folder {shown}: {error}")
        };
        CliError::run(why)
    })
}

/// A progress bar on standard error, if that is a terminal.
pub(crate) fn progress_bar(reader: &Reader, quiet: bool) -> ProgressBar {
    if quiet || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = match reader.progress().total {
        Some(total) => ProgressBar::new(total).with_style(
            ProgressStyle::with_template(
                "{bytes} of {total_bytes}  {wide_bar}  {binary_bytes_per_sec}  {eta} left",
            )
            .expect("the template is well-formed"),
        ),
        None => ProgressBar::no_length().with_style(
            ProgressStyle::with_template("{bytes}  {binary_bytes_per_sec}  {elapsed}")
                .expect("the template is well-formed"),
        ),
    };
    bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(5));
    bar
}
