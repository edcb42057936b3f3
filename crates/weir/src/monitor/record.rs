//! Recording frames to a file, with the keys of TLS connections beside them.

use crate::cmd::listen::capture::{Capture, Rotation};
use crate::error::CliError;
use crate::signals::ShutdownSignal;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use weir_link::pcap::Interface;

/// Most bytes of a key log that are read at a time.
const KEYS_MAX: u64 = 1 << 20;
/// How often the key log is looked at.
const KEYS_INTERVAL: Duration = Duration::from_millis(200);

/// A TLS key log (`SSLKEYLOGFILE`), read as it grows.
pub(crate) struct KeyLog {
    path: PathBuf,
    read: u64,
    looked: Option<Instant>,
}

impl KeyLog {
    /// The key log at `path`; it may appear later.
    pub(crate) fn new(path: &Path) -> KeyLog {
        KeyLog {
            path: path.to_owned(),
            read: 0,
            looked: None,
        }
    }

    /// The key log at `path`, of which at most the last `len` bytes are read.
    pub(crate) fn last(path: &Path, len: u64) -> KeyLog {
        let mut log = KeyLog::new(path);
        let Ok(file) = path.metadata() else {
            return log;
        };
        log.read = file.len().saturating_sub(len);
        if log.read > 0 {
            // The rest of the line that begins before.
            let mut line = Vec::new();
            let read = File::open(path).and_then(|mut file| {
                file.seek(SeekFrom::Start(log.read))?;
                BufReader::new(file.take(KEYS_MAX)).read_until(b'\n', &mut line)
            });
            log.read += read.unwrap_or(0) as u64;
        }
        log
    }

    /// Complete lines that have come since the last call, as many as a block of pcapng has room for;
    /// empty if there are none.
    pub(crate) fn next(&mut self) -> Vec<u8> {
        self.looked = None;
        self.fresh()
    }

    /// Gives `write` all complete lines that have come since the last call, in such pieces.
    pub(crate) fn rest<E>(
        &mut self,
        mut write: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        loop {
            let lines = self.next();
            if lines.is_empty() {
                return Ok(());
            }
            write(&lines)?;
        }
    }

    /// Complete lines that have come since the last call; empty if none have, or the file cannot
    /// be read yet.
    fn fresh(&mut self) -> Vec<u8> {
        if self.looked.is_some_and(|at| at.elapsed() < KEYS_INTERVAL) {
            return Vec::new();
        }
        self.looked = Some(Instant::now());
        let mut bytes = Vec::new();
        let read = File::open(&self.path).and_then(|mut file| {
            file.seek(SeekFrom::Start(self.read))?;
            file.take(KEYS_MAX).read_to_end(&mut bytes)
        });
        let lines = bytes.iter().rposition(|byte| *byte == b'\n');
        bytes.truncate(lines.map_or(0, |at| at + 1));
        if read.is_ok() {
            self.read += bytes.len() as u64;
        }
        bytes
    }
}

/// A file that frames are recorded to.
pub(crate) struct Recorder {
    path: PathBuf,
    capture: Capture,
    /// Interfaces described so far.
    interfaces: usize,
    frames: u64,
    keys: Option<KeyLog>,
    flushed: Instant,
}

/// How often recorded frames are written to the file.
const FLUSH_INTERVAL: Duration = Duration::from_millis(200);

impl Recorder {
    /// Begins a file: pcap if its name ends so, else pcapng.
    pub(crate) fn create(
        path: &Path,
        keys: Option<&Path>,
        stop: &ShutdownSignal,
    ) -> Result<Recorder, CliError> {
        if keys.is_some()
            && path
                .extension()
                .is_some_and(|end| end.eq_ignore_ascii_case("pcap"))
        {
            return Err(CliError::refused(format!(
                "{}: pcap has no place for TLS keys: give a name in .pcapng, or no --tls-keys",
                path.display()
            )));
        }
        Ok(Recorder {
            path: path.to_owned(),
            capture: Capture::create(path, Rotation::default(), stop)?,
            interfaces: 0,
            frames: 0,
            keys: keys.map(KeyLog::new),
            flushed: Instant::now(),
        })
    }

    /// Its name, and the number of frames so far.
    pub(crate) fn state(&self) -> (&Path, u64) {
        (&self.path, self.frames)
    }

    /// Writes a frame of one of the interfaces.
    pub(crate) fn write(
        &mut self,
        interfaces: &[Interface],
        interface: u32,
        bytes: &[u8],
        len: u32,
        time_ns: Option<i64>,
    ) -> Result<(), CliError> {
        for new in &interfaces[self.interfaces.min(interfaces.len())..] {
            self.capture.add_interface(new.clone());
        }
        self.interfaces = self.interfaces.max(interfaces.len());
        self.capture
            .write(interface as usize, bytes, len, time_ns)?;
        self.frames += 1;
        Ok(())
    }

    /// Writes what is buffered, if it is time to; new TLS keys come before the next frames.
    pub(crate) fn rest(&mut self) -> Result<(), CliError> {
        let fresh = self.keys.as_mut().map(KeyLog::fresh).unwrap_or_default();
        if !fresh.is_empty() {
            self.capture.tls_keys(&fresh)?;
        }
        if self.flushed.elapsed() < FLUSH_INTERVAL {
            return Ok(());
        }
        self.flushed = Instant::now();
        self.capture.flush()
    }

    /// Completes the file; returns its name and the number of frames.
    pub(crate) fn finish(mut self, interfaces: &[Interface]) -> Result<(PathBuf, u64), CliError> {
        for new in &interfaces[self.interfaces.min(interfaces.len())..] {
            self.capture.add_interface(new.clone());
        }
        if let Some(keys) = &mut self.keys {
            keys.rest(|lines| self.capture.tls_keys(lines))?;
        }
        self.capture.complete()?;
        Ok((self.path, self.frames))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_long_key_log_the_last_whole_lines_are_read() {
        let path = std::env::temp_dir().join(format!("weir-key-log-{}", std::process::id()));
        std::fs::write(&path, "one\ntwo\nthree\nfo").unwrap();
        let read = |len| {
            let mut keys = KeyLog::last(&path, len);
            let mut text = Vec::new();
            let rest = keys.rest(|lines| {
                text.extend_from_slice(lines);
                Ok::<(), ()>(())
            });
            rest.unwrap();
            String::from_utf8(text).unwrap()
        };
        let found = [100, 16, 15, 9, 8, 1].map(read);
        std::fs::remove_file(&path).unwrap();
        let all = "one\ntwo\nthree\n";
        assert_eq!(found, [all, all, "two\nthree\n", "three\n", "", ""]);
    }
}
