//! Captures named on the command line: opened, watched, and named in errors.

use crate::stop::Stop;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::path::Path;
use weir_link::pcap::{Error, Reader};

/// Opens the capture at `path`; `-` is standard input, which ends when a
/// signal comes.
pub(crate) fn open(path: &Path, stop: &Stop) -> Result<Reader, Error> {
    if path == Path::new("-") {
        Reader::new(stop.stdin())
    } else {
        Reader::open(path)
    }
}

/// Whether there is a file, but a damaged one: what was read of it is to be
/// reported, even if it is nothing.
pub(crate) fn is_damage(error: &Error) -> bool {
    matches!(error, Error::Damaged { .. })
}

/// The message of `error`, which names the file.
pub(crate) fn complaint(path: &Path, error: &Error) -> String {
    match error {
        Error::Open { .. } => error.to_string(),
        Error::Read { .. } | Error::Damaged { .. } if path == Path::new("-") => {
            format!("standard input: {error}")
        }
        Error::Read { .. } | Error::Damaged { .. } => format!("{}: {error}", path.display()),
    }
}

/// A bar on standard error for a person who waits; none for scripts.
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
