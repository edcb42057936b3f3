//! Where a body goes: standard output, a file, or what stands for one.

use crate::error::Failure;
use crate::report::atomic_write;
use crate::signals::Stop;
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
    Place(Place<'a>),
    /// Beside the file, until it is whole.
    Part(Part),
}

/// What may not be read for as long as it likes: a signal ends the wait.
pub(crate) struct Place<'a> {
    file: File,
    /// `None` for standard output.
    path: Option<PathBuf>,
    /// A write to it does not wait for a reader.
    is_file: bool,
    stop: &'a Stop,
}

/// A file that is not whole yet, and does not look as if it were; removed if
/// it does not become so.
pub(crate) struct Part {
    file: File,
    beside: PathBuf,
    path: PathBuf,
}

impl Drop for Part {
    fn drop(&mut self) {
        // Renamed if it became whole.
        let _ = fs::remove_file(&self.beside);
    }
}

impl<'a> Output<'a> {
    /// The file at `path`, or standard output.
    pub(crate) fn open(path: Option<&Path>, stop: &'a Stop) -> Result<Output<'a>, Failure> {
        let file = match path {
            None => {
                let copy = io::stdout().as_fd().try_clone_to_owned();
                File::from(copy.map_err(Failure::output)?)
            }
            Some(path) if fs::symlink_metadata(path).map_or(true, |facts| facts.is_file()) => {
                let part = Part::open(path).map_err(|error| cannot_write(path, &error))?;
                return Ok(Output::Part(part));
            }
            Some(path) => atomic_write::create(path, stop)?,
        };
        Ok(Output::Place(Place {
            is_file: file.metadata().is_ok_and(|facts| facts.is_file()),
            file,
            path: path.map(Path::to_owned),
            stop,
        }))
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        match self {
            Output::Place(place) => place.write(bytes),
            Output::Part(part) => {
                let written = part.file.write_all(bytes);
                written.map_err(|error| cannot_write(&part.path, &error))
            }
        }
    }

    /// All of it was written.
    pub(crate) fn finish(self) -> Result<(), Failure> {
        match self {
            Output::Place(..) => Ok(()),
            Output::Part(part) => fs::rename(&part.beside, &part.path)
                .map_err(|error| cannot_write(&part.path, &error)),
        }
    }
}

impl Part {
    /// Makes a new file beside the one at `path`, with its permissions, if that
    /// may be written.
    fn open(path: &Path) -> io::Result<Part> {
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
        let part = Part {
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

impl Place<'_> {
    fn write(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let most = if self.is_file { usize::MAX } else { PIPE_LEN };
        for some in bytes.chunks(most) {
            self.wait()?;
            let written = self.file.write_all(some);
            written.map_err(|error| match &self.path {
                None => Failure::output(error),
                Some(path) => cannot_write(path, &error),
            })?;
        }
        Ok(())
    }

    /// Until it takes bytes, or fails, or a signal comes.
    fn wait(&self) -> Result<(), Failure> {
        if self.is_file {
            return Ok(());
        }
        let mut fds = [
            PollFd::new(&self.file, PollFlags::OUT),
            PollFd::from_borrowed_fd(self.stop.fd(), PollFlags::IN),
        ];
        // Other signals interrupt it; what else fails does so when writing.
        while poll(&mut fds, None) == Err(Errno::INTR) {}
        match self.stop.asked() {
            true => Err(Failure::Stopped(self.stop.signal())),
            false => Ok(()),
        }
    }
}

fn cannot_write(path: &Path, error: &io::Error) -> Failure {
    let remedy = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            ": make room, or give another place with -o"
        }
        _ => "",
    };
    Failure::run(format!("cannot write {}: {error}{remedy}", path.display()))
}
