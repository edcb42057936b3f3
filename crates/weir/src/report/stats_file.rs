//! The output of `--stats-json`: periodic reports in JSON, by a program that forwards frames and
//! must not wait for a reader.

use crate::error::CliError;
use crate::report::atomic_write::{self, replace};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::time::Timespec;
use serde::Serialize;
use std::fs::{self, File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Bytes for which a writable pipe has room (pipe(7)).
const PIPE_BUF_MIN: usize = 4096;

/// Time limit for the reader of the last report.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// The destination of reports.
#[derive(Debug)]
pub(crate) enum StatsFile {
    /// A file, which each report replaces.
    File(PathBuf),
    /// A stream, to which each report is appended as a line.
    Lines(Lines),
}

/// Standard output, a FIFO or a device.
#[derive(Debug)]
pub(crate) struct Lines {
    /// `None` for standard output.
    path: Option<PathBuf>,
    /// `None` if its reader has gone.
    output: Option<File>,
    /// The part of the last report for which there was no room yet.
    unwritten: Vec<u8>,
}

impl StatsFile {
    /// The destination named by the user; `-` is standard output.
    ///
    /// # Errors
    /// If it cannot be written, with advice.
    pub(crate) fn open(path: &Path) -> Result<StatsFile, CliError> {
        let mut file = StatsFile::of(path);
        match &mut file {
            StatsFile::File(path) => atomic_write::can(path).map_err(CliError::run)?,
            StatsFile::Lines(lines) => lines.open().map_err(|error| cannot(path, &error))?,
        }
        Ok(file)
    }

    /// As [`open`](Self::open), for a path that may become writable later.
    pub(crate) fn of(path: &Path) -> StatsFile {
        let is_stdout = path.as_os_str() == "-";
        if !is_stdout && fs::metadata(path).map_or(true, |facts| facts.is_file()) {
            return StatsFile::File(path.to_owned());
        }
        StatsFile::Lines(Lines {
            path: (!is_stdout).then(|| path.to_owned()),
            output: None,
            unwritten: Vec::new(),
        })
    }

    /// Writes a report; skips it if earlier ones have not been written completely.
    ///
    /// # Errors
    /// The system's error; a later call may succeed.
    pub(crate) fn write(&mut self, report: &impl Serialize) -> io::Result<()> {
        let json = serde_json::to_string(report)? + "\n";
        match self {
            StatsFile::File(path) => replace(path, &json),
            StatsFile::Lines(lines) => lines.write(json),
        }
    }

    /// Writes the last report completely.
    ///
    /// # Errors
    /// If it cannot be written, or has no reader.
    pub(crate) fn end(mut self, report: &impl Serialize) -> Result<(), CliError> {
        let flush = |file: &mut StatsFile| match file {
            StatsFile::File(_) => Ok(()),
            StatsFile::Lines(lines) => lines.flush_all(),
        };
        // Another reader may have opened the FIFO.
        let _ = flush(&mut self);
        let wrote = self.write(report).and_then(|()| flush(&mut self));
        wrote.map_err(|error| match &self {
            StatsFile::Lines(Lines { path: None, .. }) => CliError::output(error),
            StatsFile::Lines(Lines {
                path: Some(path), ..
            })
            | StatsFile::File(path) => cannot(path, &error),
        })
    }
}

impl Lines {
    /// Opens it without waiting for the reader of a FIFO.
    fn open(&mut self) -> io::Result<()> {
        // A terminal does not report its room: it is opened again, so that the non-blocking mode
        // affects no other process.
        let terminal = Path::new("/proc/self/fd/1");
        let path = match &self.path {
            Some(path) => path,
            None if io::stdout().is_terminal() => terminal,
            None => {
                let output = io::stdout().as_fd().try_clone_to_owned()?;
                self.output = Some(output.into());
                return Ok(());
            }
        };
        let mut options = OpenOptions::new();
        let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
        options.write(true).custom_flags(flags.bits() as i32);
        self.output = Some(options.open(path)?);
        Ok(())
    }

    fn write(&mut self, line: String) -> io::Result<()> {
        if self.output.is_none() {
            self.open()?;
        }
        self.flush(Duration::ZERO)?;
        if self.unwritten.is_empty() {
            self.unwritten = line.into_bytes();
            self.flush(Duration::ZERO)?;
        }
        Ok(())
    }

    fn flush_all(&mut self) -> io::Result<()> {
        self.flush(FLUSH_TIMEOUT)?;
        if self.unwritten.is_empty() {
            Ok(())
        } else {
            Err(io::Error::other("its reader does not read"))
        }
    }

    /// Writes the rest, as far as there is room within the time limit.
    fn flush(&mut self, wait: Duration) -> io::Result<()> {
        let wait = Timespec::try_from(wait).unwrap_or_default();
        while let Some(output) = &mut self.output
            && !self.unwritten.is_empty()
        {
            match poll(&mut [PollFd::new(&*output, PollFlags::OUT)], Some(&wait)) {
                Ok(0) | Err(Errno::INTR) => break,
                Ok(_) => {}
                Err(error) => return Err(error.into()),
            }
            let most = self.unwritten.len().min(PIPE_BUF_MIN);
            match output.write(&self.unwritten[..most]) {
                Ok(count) => drop(self.unwritten.drain(..count)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => {
                    self.unwritten.clear();
                    self.output = None;
                    return Err(error);
                }
            }
        }
        Ok(())
    }
}

fn cannot(path: &Path, error: &io::Error) -> CliError {
    let code = error.raw_os_error().map(Errno::from_raw_os_error);
    let remedy = match code {
        Some(Errno::ISDIR) => ": name a file in it",
        Some(Errno::NXIO) => ": it has no reader; start the reader first",
        _ => "",
    };
    let path = path.display();
    CliError::run(format!("cannot write {path}: {error}{remedy}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    use std::io::{BufRead, BufReader};

    fn folder(name: &str) -> PathBuf {
        let name = format!("weir-stats-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir(&folder).unwrap();
        folder
    }

    #[test]
    fn what_cannot_be_written_is_refused_with_a_remedy() {
        let folder = folder("refused");
        let fifo = folder.join("fifo");
        mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        for (path, said) in [
            (folder.clone(), "name a file in it"),
            (folder.join("none/stats.json"), "none/stats.json: No such"),
            (fifo, "start the reader first"),
        ] {
            let refused = StatsFile::open(&path).unwrap_err();
            assert!(matches!(refused, CliError::Run(_)));
            assert!(refused.to_string().contains(said), "{refused}");
        }
        fs::remove_dir_all(&folder).unwrap();
    }

    /// In a process of its own: what another test forks has the FIFO's descriptors, too, until it executes its
    /// program, so that the FIFO has readers and writers for longer than this test says.
    #[test]
    fn readers_of_a_fifo_have_whole_lines_and_delay_no_writer() {
        let name = "report::stats_file::tests::lines_of_a_fifo";
        let output = weir_lab::command::Command::itself()
            .args(["--exact", name, "--nocapture"])
            .env(OWN_PROCESS, "1")
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said.contains("1 passed"), "{said}");
    }

    const OWN_PROCESS: &str = "WEIR_TEST_OWN_PROCESS";

    /// A FIFO has complete lines, however slow its reader is, and another reader finds further
    /// lines.
    #[test]
    fn lines_of_a_fifo() {
        if std::env::var_os(OWN_PROCESS).is_none() {
            return;
        }
        let folder = folder("fifo");
        let fifo = folder.join("fifo");
        mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let reader = || {
            let mut options = OpenOptions::new();
            options.read(true);
            options.custom_flags(OFlags::NONBLOCK.bits() as i32);
            BufReader::new(options.open(&fifo).unwrap())
        };
        let mut lines = reader();
        let mut file = StatsFile::open(&fifo).unwrap();
        // More than a pipe holds: 64 KB.
        let report = "x".repeat(5_000);
        for _ in 0..100 {
            file.write(&report).unwrap();
        }
        let mut read = 0;
        let mut line = String::new();
        while lines.read_line(&mut line).is_ok() {
            assert_eq!(line.trim_end(), format!("\"{report}\""));
            read += 1;
            line.clear();
        }
        assert!((1..100).contains(&read), "{read} lines");
        drop(lines);
        assert!(file.write(&0).is_err(), "nobody reads");
        assert!(file.write(&1).is_err(), "nobody reads");
        let lines = reader();
        file.write(&2).unwrap();
        file.end(&3).unwrap();
        let read: Vec<String> = lines.lines().map(Result::unwrap).collect();
        assert_eq!(read, ["2", "3"]);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn the_last_report_fails_where_it_is_not_read() {
        let folder = folder("full");
        let file = StatsFile::open(Path::new("/dev/full")).unwrap();
        let full = file.end(&1).unwrap_err().to_string();
        assert!(full.contains("/dev/full: No space left"), "{full}");
        let path = folder.join("stats.json");
        StatsFile::open(&path).unwrap().end(&1).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "1\n");
        fs::remove_dir_all(&folder).unwrap();
    }
}
