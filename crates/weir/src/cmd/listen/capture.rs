//! Writes frames to capture files: to one, or to several in rotation, like
//! `tcpdump`.

use crate::error::CliError;
use crate::report::atomic_write;
use crate::signals::ShutdownSignal;
use jiff::Timestamp;
use jiff::fmt::strtime;
use jiff::tz::TimeZone;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};
use weir_link::pcap::{FrameRef, Interface, Reader, WriteError, Writer};

/// When a file ends and the next one starts: tcpdump's `-C`, `-G` and `-W`.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Rotation {
    /// File size in bytes after which the next frame starts another file.
    pub(crate) bytes_max: Option<u64>,
    /// Seconds after which the next frame starts another file.
    pub(crate) seconds_max: Option<u64>,
    /// With a size, the number of files that are overwritten in turn; with a
    /// time, the number of files after which the capture ends.
    pub(crate) files_max: Option<u32>,
}

impl Rotation {
    fn is_any(self) -> bool {
        self != Rotation::default()
    }

    /// The name of a file: of that number in a rotation by size, started at
    /// that time.
    fn name(self, path: &Path, number: u32, began_s: i64) -> Result<PathBuf, String> {
        let text = path.as_os_str().to_string_lossy();
        let name = match self.seconds_max {
            Some(_) => {
                let wrong = |error| format!("`{text}` is not a time pattern: {error}");
                let time = Timestamp::from_second(began_s).map_err(wrong)?;
                strtime::format(text.as_bytes(), &time.to_zoned(TimeZone::UTC)).map_err(wrong)?
            }
            // The path's bytes, which need not be UTF-8.
            None if self.bytes_max.is_none() => return Ok(path.to_owned()),
            None => text.into_owned(),
        };
        let digits = match (self.bytes_max, self.files_max) {
            (Some(_), Some(files)) => (files.max(1) - 1).to_string().len(),
            _ => 0,
        };
        Ok(match (number, digits) {
            (0, 0) => name.into(),
            _ => format!("{name}{number:0digits$}").into(),
        })
    }
}

impl Rotation {
    /// Fails if successive files of a rotation by time would have the same
    /// name. A frame may arrive up to a second after the time has passed.
    fn check_names(self, path: &Path, began_s: i64) -> Result<(), String> {
        let Some(seconds) = self.seconds_max else {
            return Ok(());
        };
        if self.bytes_max.is_none() && self.files_max == Some(1) {
            return Ok(());
        }
        let first = self.name(path, 0, began_s)?;
        for later in [seconds, seconds + 1] {
            if self.name(path, 0, began_s.saturating_add_unsigned(later))? != first {
                return Ok(());
            }
        }
        Err(format!(
            "files of {seconds} s would all be {}, each written over the one before: put the time \
             into the name, as in trace-%Y%m%d-%H%M%S.pcapng",
            first.display()
        ))
    }
}

/// The format of a capture file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Format {
    Pcapng,
    Pcap,
}

impl Format {
    /// By the name that was given: pcap for `.pcap`, whatever rotation appends.
    fn of(path: &Path) -> Format {
        match path.extension() {
            Some(end) if end.eq_ignore_ascii_case("pcap") => Format::Pcap,
            _ => Format::Pcapng,
        }
    }
}

/// The destination of a capture's blocks.
enum Sink {
    File(File),
    Stdout(io::Stdout),
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Sink::File(file) => file.write(bytes),
            Sink::Stdout(out) => out.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Sink::File(file) => file.flush(),
            Sink::Stdout(out) => out.flush(),
        }
    }
}

/// An output of frames to files.
pub(crate) struct Capture {
    /// The path as given; a pattern for a rotation by time.
    path: PathBuf,
    rotation: Rotation,
    format: Format,
    interfaces: Vec<Interface>,
    stop: ShutdownSignal,
    writer: Writer<Sink>,
    /// The present file.
    now: PathBuf,
    /// Its number in a rotation by size; in a rotation by time, the number of
    /// files before it.
    number: u32,
    earlier: u32,
    began_s: i64,
}

impl Capture {
    /// Starts the first file.
    pub(crate) fn create(
        path: &Path,
        rotation: Rotation,
        stop: &ShutdownSignal,
    ) -> Result<Capture, CliError> {
        let is_stdout = path == Path::new("-");
        if is_stdout && rotation.is_any() {
            return Err(CliError::refused(
                "standard output is one file: give --write a name beside -C, -G or -W",
            ));
        }
        let began_s = seconds(None);
        let named = rotation.check_names(path, began_s);
        named.map_err(CliError::refused)?;
        let now = rotation.name(path, 0, began_s).map_err(CliError::refused)?;
        let format = Format::of(path);
        let writer = begin(&now, format, is_stdout, stop)?;
        let mut capture = Capture {
            path: path.to_owned(),
            rotation,
            format,
            interfaces: Vec::new(),
            stop: stop.clone(),
            writer,
            now,
            number: 0,
            earlier: 0,
            began_s,
        };
        capture.flush()?;
        Ok(capture)
    }

    /// Adds an interface, to which frames refer by its number in the order
    /// added.
    pub(crate) fn add_interface(&mut self, interface: Interface) {
        self.interfaces.push(interface);
    }

    /// Writes a frame of the interface with that number; `false` if the last
    /// file ended before it.
    pub(crate) fn write(
        &mut self,
        interface: usize,
        bytes: &[u8],
        wire_len: u32,
        time_ns: Option<i64>,
    ) -> Result<bool, CliError> {
        if self.rotation.is_any() && !self.rotate(seconds(time_ns))? {
            return Ok(false);
        }
        let written = self.writer.write(&FrameRef {
            bytes,
            wire_len,
            time_ns,
            interface_index: interface as u32,
            interface: &self.interfaces[interface],
        });
        written.map_err(|error| self.failed(&error))?;
        Ok(true)
    }

    /// Starts the next file if it is due; `false` if there is none.
    fn rotate(&mut self, at_s: i64) -> Result<bool, CliError> {
        let Rotation {
            bytes_max,
            seconds_max,
            files_max,
        } = self.rotation;
        let is_over = |seconds: u64| at_s.saturating_sub(self.began_s) as u64 >= seconds;
        if at_s >= self.began_s && seconds_max.is_some_and(is_over) {
            self.earlier += 1;
            if bytes_max.is_none() && files_max.is_some_and(|files| self.earlier >= files) {
                return Ok(false);
            }
            (self.began_s, self.number) = (at_s, 0);
        } else if bytes_max.is_some_and(|bytes| self.writer.len() > bytes) {
            self.number += 1;
            if files_max.is_some_and(|files| self.number >= files) {
                self.number = 0;
            }
        } else {
            return Ok(true);
        }
        self.complete()?;
        let named = self.rotation.name(&self.path, self.number, self.began_s);
        self.now = named.map_err(CliError::run)?;
        self.writer = begin(&self.now, self.format, false, &self.stop)?;
        Ok(true)
    }

    /// Writes lines of a TLS key log, before the frames that they decrypt.
    pub(crate) fn tls_keys(&mut self, lines: &[u8]) -> Result<(), CliError> {
        let written = self.writer.tls_keys(lines);
        written.map_err(|error| self.failed(&error))
    }

    /// Flushes written frames, so that readers of the file see them.
    pub(crate) fn flush(&mut self) -> Result<(), CliError> {
        self.writer.flush().map_err(|error| self.failed(&error))
    }

    /// Completes the file. A file without frames describes the first interface,
    /// since readers need a link type.
    pub(crate) fn complete(&mut self) -> Result<(), CliError> {
        if self.writer.is_empty()
            && let Some(first) = self.interfaces.first()
        {
            let described = self.writer.describe(first);
            described.map_err(|error| self.failed(&error))?;
        }
        self.flush()
    }

    /// After a failed write, truncates the file to a valid capture of the
    /// frames that were written.
    fn failed(&self, error: &WriteError) -> CliError {
        let name = self.now.display();
        match (error, self.writer.get_ref()) {
            (WriteError::Write { source, .. }, Sink::Stdout(_)) => {
                CliError::output(io::Error::new(source.kind(), source.to_string()))
            }
            (WriteError::Write { whole, .. }, Sink::File(file)) if file.set_len(*whole).is_ok() => {
                let kept = frames_in(&self.now);
                let kept = crate::report::format::frames(kept);
                CliError::run(format!("{name}: {error}; it ends there, with {kept}"))
            }
            _ => CliError::run(format!("{name}: {error}")),
        }
    }
}

fn begin(
    path: &Path,
    format: Format,
    is_stdout: bool,
    stop: &ShutdownSignal,
) -> Result<Writer<Sink>, CliError> {
    let sink = if is_stdout {
        Sink::Stdout(io::stdout())
    } else {
        Sink::File(atomic_write::create(path, stop)?)
    };
    match format {
        Format::Pcap => Ok(Writer::classic(sink)),
        Format::Pcapng => {
            Writer::new(sink).map_err(|error| CliError::run(format!("{}: {error}", path.display())))
        }
    }
}

/// Number of frames in a capture.
fn frames_in(path: &Path) -> u64 {
    let Ok(mut reader) = Reader::open(path) else {
        return 0;
    };
    let mut frames = 0;
    while let Ok(Some(_)) = reader.next_frame() {
        frames += 1;
    }
    frames
}

/// The second since 1970 of a frame's timestamp; the present one for a frame
/// without a timestamp.
fn seconds(time_ns: Option<i64>) -> i64 {
    match time_ns {
        Some(time_ns) => time_ns.div_euclid(1_000_000_000),
        None => {
            let now = SystemTime::now().duration_since(UNIX_EPOCH);
            now.map_or(0, |since| since.as_secs() as i64)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: i64 = 1_000_000_000;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("weir-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        folder
    }

    fn files(folder: &Path) -> Vec<(String, u64)> {
        let entries = std::fs::read_dir(folder).expect("it is there");
        let mut files: Vec<(String, u64)> = entries
            .map(|entry| {
                let path = entry.expect("an entry").path();
                let name = path.file_name().expect("a name").to_string_lossy();
                (name.into_owned(), frames_in(&path))
            })
            .collect();
        files.sort();
        files
    }

    /// Writes `frames` frames, a second apart; returns whether all were
    /// accepted.
    fn run(folder: &Path, name: &str, rotation: Rotation, frames: i64) -> bool {
        let stop = ShutdownSignal::watch().expect("signals");
        let path = folder.join(name);
        let mut capture = Capture::create(&path, rotation, &stop).expect("a file");
        capture.add_interface(Interface::ethernet());
        let began = capture.began_s;
        let mut all = true;
        for number in 0..frames {
            let time = Some((began + number) * SECOND_NS);
            all &= capture.write(0, &[0; 400], 400, time).expect("room");
            if !all {
                break;
            }
        }
        capture.complete().expect("room");
        all
    }

    #[test]
    fn files_of_a_size_are_numbered_as_tcpdumps_are() {
        let folder = folder("rotate-size");
        let rotation = Rotation {
            bytes_max: Some(1_000),
            ..Rotation::default()
        };
        assert!(run(&folder, "a", rotation, 8));
        let names = |expected: &[(&str, u64)]| -> Vec<(String, u64)> {
            let all = expected.iter();
            all.map(|(name, frames)| ((*name).to_owned(), *frames))
                .collect()
        };
        // A frame after 1,000 bytes starts the next file.
        assert_eq!(files(&folder), names(&[("a", 3), ("a1", 3), ("a2", 2)]));
        let ring = Rotation {
            files_max: Some(11),
            ..rotation
        };
        assert!(run(&folder, "b", ring, 3 * 11 + 4));
        let all = files(&folder);
        let of_ring: Vec<_> = all
            .iter()
            .filter(|(name, _)| name.starts_with('b'))
            .collect();
        assert_eq!(of_ring.len(), 11);
        assert_eq!(*of_ring[1], ("b01".to_owned(), 1), "written over");
        assert_eq!(*of_ring[10], ("b10".to_owned(), 3));
        std::fs::remove_dir_all(&folder).expect("it goes");
    }

    #[test]
    fn the_name_says_which_format() {
        let folder = folder("format");
        let rotation = Rotation {
            bytes_max: Some(1_000),
            ..Rotation::default()
        };
        let begin = |name: &str| {
            let bytes = std::fs::read(folder.join(name)).expect("it is there");
            u32::from_le_bytes(*bytes.first_chunk().expect("a magic number"))
        };
        for (name, second, magic) in [
            ("a.pcap", "a.pcap1", 0xa1b2_3c4d),
            ("b.PCAP", "b.PCAP1", 0xa1b2_3c4d),
            ("c.pcapng", "c.pcapng1", 0x0a0d_0d0a),
            ("d", "d1", 0x0a0d_0d0a),
        ] {
            assert!(run(&folder, name, rotation, 4));
            assert_eq!((begin(name), begin(second)), (magic, magic), "{name}");
            let frames = frames_in(&folder.join(name)) + frames_in(&folder.join(second));
            assert_eq!(frames, 4, "{name}");
        }
        std::fs::remove_dir_all(&folder).expect("it goes");
    }

    #[test]
    fn files_of_a_time_are_named_by_it_and_end_the_capture() {
        let folder = folder("rotate-time");
        let rotation = Rotation {
            seconds_max: Some(3),
            files_max: Some(2),
            ..Rotation::default()
        };
        assert!(
            !run(&folder, "t-%s", rotation, 100),
            "the third does not come"
        );
        let all = files(&folder);
        let frames: Vec<u64> = all.iter().map(|(_, frames)| *frames).collect();
        assert_eq!(frames, [3, 3]);
        let starts: Vec<i64> = all
            .iter()
            .map(|(name, _)| name[2..].parse().expect("seconds"))
            .collect();
        assert_eq!(starts[1] - starts[0], 3);
        std::fs::remove_dir_all(&folder).expect("it goes");
    }

    #[test]
    fn a_pattern_that_gives_one_name_is_refused() {
        let of = |seconds, files_max| Rotation {
            seconds_max: Some(seconds),
            files_max,
            ..Rotation::default()
        };
        // Noon of a day without a leap second.
        let noon = 1_700_049_600;
        for (path, rotation, is_good) in [
            ("a.pcapng", of(5, None), false),
            ("a.pcapng", of(5, Some(2)), false),
            // The only file.
            ("a.pcapng", of(5, Some(1)), true),
            ("a-%H%M.pcapng", of(5, None), false),
            ("a-%H%M.pcapng", of(60, None), true),
            ("a-%H%M%S.pcapng", of(86_400, None), true),
            ("a", Rotation::default(), true),
        ] {
            let checked = rotation.check_names(Path::new(path), noon);
            assert_eq!(checked.is_ok(), is_good, "{path}: {checked:?}");
        }
    }

    #[test]
    fn what_is_no_pattern_and_no_file_is_refused() {
        let stop = ShutdownSignal::watch().expect("signals");
        let rotation = Rotation {
            seconds_max: Some(1),
            ..Rotation::default()
        };
        for path in ["-", "x-%!"] {
            let refused = Capture::create(Path::new(path), rotation, &stop);
            assert!(matches!(refused, Err(CliError::Refused(_))), "{path}");
        }
    }
}
