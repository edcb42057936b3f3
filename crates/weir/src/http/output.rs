//! Where a body goes: standard output, a file, or what stands for one.

use crate::error::CliError;
use crate::report::atomic_write;
use crate::signals::ShutdownSignal;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

/// Bytes that a pipe takes at once if it takes any (`PIPE_BUF`).
const PIPE_LEN: usize = 4096;

/// Where the body goes.
pub(crate) enum Output<'a> {
    /// Standard output, or what is no regular file: a device, a FIFO, a
    /// symbolic link.
    Destination(Destination<'a>),
    /// Beside the file, until it is whole.
    Partial(PartialFile),
}

/// The destination of a download; a signal ends a blocked write.
pub(crate) struct Destination<'a> {
    file: File,
    /// `None` for standard output.
    path: Option<PathBuf>,
    /// A write to it does not wait for a reader.
    is_file: bool,
    stop: &'a ShutdownSignal,
}

/// A file that is not whole yet, and does not look as if it were; removed if
/// it does not become so.
pub(crate) struct PartialFile {
    file: File,
    beside: PathBuf,
    path: PathBuf,
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        // Renamed if it became whole.
        let _ = fs::remove_file(&self.beside);
    }
}

impl<'a> Output<'a> {
    /// The file at `path`; without one, or for `-`, standard output.
    pub(crate) fn open(
        path: Option<&Path>,
        stop: &'a ShutdownSignal,
    ) -> Result<Output<'a>, CliError> {
        let path = path.filter(|path| path.as_os_str() != "-");
        let file = match path {
            None => {
                let copy = io::stdout().as_fd().try_clone_to_owned();
                File::from(copy.map_err(CliError::output)?)
            }
            Some(path) if fs::symlink_metadata(path).map_or(true, |facts| facts.is_file()) => {
                let part = PartialFile::open(path).map_err(|error| cannot_write(path, &error))?;
                return Ok(Output::Partial(part));
            }
            Some(path) => atomic_write::create(path, stop)?,
        };
        Ok(Output::Destination(Destination {
            is_file: file.metadata().is_ok_and(|facts| facts.is_file()),
            file,
            path: path.map(Path::to_owned),
            stop,
        }))
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), CliError> {
        match self {
            Output::Destination(place) => place.write(bytes),
            Output::Partial(part) => {
                let written = part.file.write_all(bytes);
                written.map_err(|error| cannot_write(&part.path, &error))
            }
        }
    }

    /// All of it was written.
    pub(crate) fn finish(self) -> Result<(), CliError> {
        match self {
            Output::Destination(..) => Ok(()),
            Output::Partial(part) => fs::rename(&part.beside, &part.path)
                .map_err(|error| cannot_write(&part.path, &error)),
        }
    }
}

impl PartialFile {
    /// Makes a new file beside the one at `path`, with its permissions, if that
    /// may be written.
    fn open(path: &Path) -> io::Result<PartialFile> {
        let permissions = match OpenOptions::new().write(true).open(path) {
            Ok(file) => Some(file.metadata()?.permissions()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let name = |count: u32| {
            let mut beside = path.as_os_str().to_owned();
            match count {
                0 => beside.push(".part"),
                more => beside.push(format!(".part{more}")),
            }
            PathBuf::from(beside)
        };
        let mut count = 0;
        let (file, beside) = loop {
            let beside = name(count);
            match OpenOptions::new()
                .write(true)
                .create_new(true)
                .open(&beside)
            {
                Ok(file) => break (file, beside),
                // Another's, which stays.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => count += 1,
                Err(error) => return Err(error),
            }
        };
        let part = PartialFile {
            file,
            beside,
            path: path.to_owned(),
        };
        if let Some(permissions) = permissions {
            part.file.set_permissions(permissions)?;
        }
        Ok(part)
    }
}

impl Destination<'_> {
    fn write(&mut self, bytes: &[u8]) -> Result<(), CliError> {
        let most = if self.is_file { usize::MAX } else { PIPE_LEN };
        for some in bytes.chunks(most) {
            self.wait()?;
            let written = self.file.write_all(some);
            written.map_err(|error| match &self.path {
                None => CliError::output(error),
                Some(path) => cannot_write(path, &error),
            })?;
        }
        Ok(())
    }

    /// Until it takes bytes, or fails, or a signal comes.
    fn wait(&self) -> Result<(), CliError> {
        if self.is_file {
            return Ok(());
        }
        let mut fds = [
            PollFd::new(&self.file, PollFlags::OUT),
            PollFd::from_borrowed_fd(self.stop.fd(), PollFlags::IN),
        ];
        // Other signals interrupt it; what else fails does so when writing.
        while poll(&mut fds, None) == Err(Errno::INTR) {}
        if self.stop.is_requested() {
            Err(CliError::Stopped(self.stop.signal()))
        } else {
            Ok(())
        }
    }
}

fn cannot_write(path: &Path, error: &io::Error) -> CliError {
    let remedy = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            ": make room, or give another place with -o"
        }
        _ => "",
    };
    CliError::run(format!("cannot write {}: {error}{remedy}", path.display()))
}
