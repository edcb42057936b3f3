//! The output of frames: lines, files, and the summary at the end.

use super::Args;
use super::capture::Capture;
use crate::error::{CliError, say};
use crate::report::format;
use crate::signals::ShutdownSignal;
use serde::Serialize;
use std::borrow::Cow;
use std::io::{BufWriter, Stdout, Write};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use weir_broker::{Frame, Frames};
use weir_link::pcap::{FrameRef, Interface};
use weir_monitor::frame_summary;
use weir_wire::LinkType;

/// The summary, with a stable JSON form.
#[derive(Clone, Copy, Default, Serialize)]
struct Sum {
    frames: u64,
    /// Bytes on the wire.
    bytes: u64,
    lost: u64,
}

#[derive(Serialize)]
struct JsonFrame<'a> {
    time: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    interface: Option<&'a str>,
    len: u32,
    captured: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    outgoing: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    segment_size: Option<u16>,
    lost_before: u32,
    summary: String,
}

/// An interface with a port.
struct Source {
    name: String,
    linktype: LinkType,
}

pub(super) struct Output {
    sum: Sum,
    /// How frames are shown; `None` to show none.
    shown: Option<Shown>,
    file: Option<Capture>,
    sources: Vec<Source>,
    snap_len: Option<u32>,
    /// Whether a frame's line contains its interface.
    names_interfaces: bool,
    /// Whether segments of super-frames count as frames.
    split: bool,
    /// Whether the last file has ended.
    is_over: bool,
    /// Whether each frame is written to the file at once.
    packet_buffered: bool,
    /// When buffered frames are written to the file.
    flushes: Flushes,
    /// Whether frames go to standard output, not only the final line.
    to_stdout: bool,
}

/// Longest time that frames are buffered: short for a reader at a pipe, and
/// with few writes.
const FLUSH_INTERVAL: Duration = Duration::from_millis(100);

/// When a file is flushed: for the first frames after a quiet time at once, for those that follow at
/// most once in [`FLUSH_INTERVAL`].
#[derive(Debug, Default)]
struct Flushes {
    due: Option<Instant>,
    last: Option<Instant>,
}

impl Flushes {
    /// Notes that frames came; returns whether to flush now. Otherwise, a flush is due later.
    fn is_next(&mut self, now: impl FnOnce() -> Instant) -> bool {
        if self.due.is_none() {
            let next = self.last.and_then(|last| last.checked_add(FLUSH_INTERVAL));
            self.due = next.filter(|next| *next > now());
        }
        self.due.is_none()
    }

    /// Whether frames are buffered.
    fn is_pending(&self) -> bool {
        self.due.is_some()
    }

    fn done(&mut self, now: Instant) {
        (self.due, self.last) = (None, Some(now));
    }
}

/// A frame for output: as received, or one segment of it.
struct OutputFrame<'a> {
    bytes: Cow<'a, [u8]>,
    len: u32,
    time_ns: Option<i64>,
    /// Whether the host sent it, where that is known.
    is_outgoing: Option<bool>,
    segment_size: Option<u16>,
    lost_before: u32,
}

impl<'a> OutputFrame<'a> {
    fn complete(frame: &'a Frame<'a>) -> OutputFrame<'a> {
        OutputFrame {
            bytes: Cow::Borrowed(frame.bytes()),
            len: frame.original_len(),
            time_ns: time_ns(frame),
            is_outgoing: Some(frame.is_outgoing()),
            segment_size: frame.segment_size(),
            lost_before: frame.lost_before(),
        }
    }

    /// The frames on the wire that a frame represents.
    fn segments(frame: &'a Frame<'a>) -> impl Iterator<Item = OutputFrame<'a>> {
        frame.segments().enumerate().map(|(number, bytes)| {
            let whole = OutputFrame::complete(frame);
            match bytes {
                // Unchanged: not a super-frame, or it could not be segmented.
                Cow::Borrowed(_) => whole,
                Cow::Owned(bytes) => OutputFrame {
                    len: bytes.len() as u32,
                    segment_size: None,
                    lost_before: if number == 0 { whole.lost_before } else { 0 },
                    bytes: Cow::Owned(bytes),
                    ..whole
                },
            }
        })
    }
}

#[derive(Clone, Copy)]
enum Shown {
    Lines,
    Json,
}

impl Output {
    /// An output without sources; the file is started.
    pub(super) fn new(args: &Args, stop: &ShutdownSignal) -> Result<Output, CliError> {
        let file = args.write.as_deref();
        let file = file.map(|path| Capture::create(path, args.rotation(), stop));
        let shown = match (args.quiet || file.is_some(), args.json) {
            (true, _) => None,
            (false, true) => Some(Shown::Json),
            (false, false) => Some(Shown::Lines),
        };
        Ok(Output {
            sum: Sum::default(),
            shown,
            file: file.transpose()?,
            sources: Vec::new(),
            snap_len: args.snap_len(),
            names_interfaces: args.interface() == super::ANY,
            split: args.split,
            is_over: false,
            packet_buffered: args.packet_buffered,
            flushes: Flushes::default(),
            to_stdout: args.write.as_deref().is_none_or(is_stdout),
        })
    }

    /// The number of the source with that name and link type, which is added if
    /// new.
    pub(super) fn source(&mut self, name: &str, linktype: LinkType) -> usize {
        let mut known = self.sources.iter();
        let is_it = |one: &Source| one.name == name && one.linktype == linktype;
        if let Some(number) = known.position(is_it) {
            return number;
        }
        if let Some(file) = &mut self.file {
            let interface = Interface {
                linktype,
                name: Some(name.to_owned()),
                ..Interface::ethernet()
            };
            file.add_interface(Interface {
                snaplen: self.snap_len.unwrap_or(interface.snaplen),
                ..interface
            });
        }
        self.sources.push(Source {
            name: name.to_owned(),
            linktype,
        });
        self.sources.len() - 1
    }

    /// Number of frames so far.
    pub(super) fn frames(&self) -> u64 {
        self.sum.frames
    }

    /// Bytes on the wire of these frames.
    pub(super) fn bytes(&self) -> u64 {
        self.sum.bytes
    }

    /// Whether the last file has ended, so that no frame can be written.
    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    /// When [`rest`](Self::rest) must be called; `None` if nothing is buffered.
    pub(super) fn flush_due(&self) -> Option<Instant> {
        self.flushes.due
    }

    /// Whether frames go to standard output and its reader has closed it.
    pub(super) fn is_closed(&self, stop: &ShutdownSignal) -> bool {
        self.to_stdout && stop.wait_unless_closed(Duration::ZERO, &std::io::stdout())
    }

    /// Writes buffered frames to the file, for its reader, if there are any.
    pub(super) fn rest(&mut self) -> Result<(), CliError> {
        if self.flushes.is_pending() {
            return self.flush_file();
        }
        Ok(())
    }

    fn flush_file(&mut self) -> Result<(), CliError> {
        self.flushes.done(Instant::now());
        self.file.as_mut().map_or(Ok(()), Capture::flush)
    }

    /// Outputs at most `most` of the frames of the source with that number.
    pub(super) fn frames_came(
        &mut self,
        source: usize,
        frames: Frames<'_>,
        most: u64,
    ) -> Result<(), CliError> {
        let mut out = BufWriter::new(std::io::stdout());
        let end = self.sum.frames.saturating_add(most);
        for frame in frames {
            if self.sum.frames == end || self.is_over {
                break;
            }
            if !self.split {
                self.put_frame(&mut out, source, &OutputFrame::complete(&frame))?;
            } else {
                let left = usize::try_from(end - self.sum.frames).unwrap_or(usize::MAX);
                for piece in OutputFrame::segments(&frame).take(left) {
                    self.put_frame(&mut out, source, &piece)?;
                }
            }
        }
        if self.packet_buffered || self.file.is_some() && self.flushes.is_next(Instant::now) {
            self.flush_file()?;
        }
        out.flush().map_err(CliError::output)
    }

    /// Takes a frame of a capture file, of the source of that number.
    pub(super) fn frame_read(
        &mut self,
        out: &mut BufWriter<Stdout>,
        source: usize,
        frame: &FrameRef<'_>,
        has_time: bool,
    ) -> Result<(), CliError> {
        let snap_len = self.snap_len.map_or(usize::MAX, |len| len as usize);
        let piece = OutputFrame {
            bytes: Cow::Borrowed(&frame.bytes[..frame.bytes.len().min(snap_len)]),
            len: frame.wire_len,
            time_ns: frame.time_ns.filter(|_| has_time),
            is_outgoing: None,
            segment_size: None,
            lost_before: 0,
        };
        self.put_frame(out, source, &piece)
    }

    fn put_frame(
        &mut self,
        out: &mut BufWriter<Stdout>,
        source: usize,
        piece: &OutputFrame<'_>,
    ) -> Result<(), CliError> {
        if let Some(file) = &mut self.file {
            let is_written = file.write(source, &piece.bytes, piece.len, piece.time_ns)?;
            self.is_over = !is_written;
            if self.is_over {
                return Ok(());
            }
        }
        self.sum.frames += 1;
        self.sum.bytes += u64::from(piece.len);
        self.sum.lost += u64::from(piece.lost_before);
        match self.shown {
            Some(shown) => self.show(out, shown, source, piece),
            None => Ok(()),
        }
    }

    fn show(
        &self,
        out: &mut BufWriter<Stdout>,
        shown: Shown,
        source: usize,
        piece: &OutputFrame<'_>,
    ) -> Result<(), CliError> {
        let time = piece.time_ns;
        let Source { name, linktype } = &self.sources[source];
        let summary = frame_summary::line(&piece.bytes, piece.len as usize, *linktype);
        let outgoing = piece.is_outgoing;
        let interface = self.names_interfaces.then_some(name.as_str());
        let line = match shown {
            Shown::Json => {
                let frame = JsonFrame {
                    time: time.map(|time| format::time(Some(time))),
                    interface,
                    len: piece.len,
                    captured: piece.bytes.len(),
                    outgoing,
                    segment_size: piece.segment_size,
                    lost_before: piece.lost_before,
                    summary,
                };
                serde_json::to_string(&frame).map_err(CliError::run)?
            }
            Shown::Lines => {
                let time = time.map_or(String::new(), |time| format::time_of_day(time) + " ");
                let interface = interface.map_or(String::new(), |name| format!("{name} "));
                let way = match outgoing {
                    Some(true) => "Out ",
                    Some(false) => "In  ",
                    None => "",
                };
                let len = piece.len;
                let segments = piece
                    .segment_size
                    .map_or(String::new(), |size| format!(", in segments of {size}"));
                let lost = match piece.lost_before {
                    0 => String::new(),
                    lost => format!(" ({} lost before)", format::grouped(lost.into())),
                };
                let captured = match piece.bytes.len() {
                    captured if captured < len as usize => format!(", {captured} captured"),
                    _ => String::new(),
                };
                format!("{time}{interface}{way}{summary}, {len} bytes{captured}{segments}{lost}")
            }
        };
        writeln!(out, "{line}").map_err(CliError::output)
    }

    /// Completes the file and prints the summary; `lost` is the kernel's count.
    pub(super) fn finish(mut self, args: &Args, lost: Option<u64>) -> Result<(), CliError> {
        let written = self.file.as_mut().map_or(Ok(()), Capture::complete);
        self.sum.lost = lost.unwrap_or(self.sum.lost);
        // A file's reader asks no kernel.
        let is_live = args.read.is_none();
        let line = if args.json {
            serde_json::to_string(&self.sum).map_err(CliError::run)?
        } else {
            let lost = if is_live {
                format!(", {} lost", format::grouped(self.sum.lost))
            } else {
                String::new()
            };
            format!(
                "{}, {} bytes{lost}",
                format::frames(self.sum.frames),
                format::grouped(self.sum.bytes),
            )
        };
        if args.write.as_deref().is_some_and(is_stdout) {
            say(&line);
        } else {
            writeln!(std::io::stdout(), "{line}").map_err(CliError::output)?;
        }
        written
    }
}

/// Whether this path is standard output.
fn is_stdout(path: &Path) -> bool {
    path == Path::new("-")
}

fn time_ns(frame: &Frame<'_>) -> Option<i64> {
    let since = |time: SystemTime| time.duration_since(UNIX_EPOCH).ok();
    i64::try_from(frame.timestamp().and_then(since)?.as_nanos()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_frames_are_flushed_at_once_and_later_ones_together() {
        let began = Instant::now();
        let mut flushes = Flushes::default();
        let mut flushed = Vec::new();
        // A frame each millisecond for a second, a pause, and one more.
        for ms in (0..1_000).chain([2_000]) {
            let now = began + Duration::from_millis(ms);
            if flushes.due.is_some_and(|due| due <= now) || flushes.is_next(|| now) {
                flushes.done(now);
                flushed.push(ms);
            }
        }
        assert_eq!(flushed[..3], [0, 100, 200]);
        assert_eq!(flushed.last(), Some(&2_000));
        assert_eq!(flushed.len(), 11);
    }

    #[test]
    fn a_wait_without_frames_delays_no_frame() {
        let began = Instant::now();
        let mut flushes = Flushes::default();
        assert!(!flushes.is_pending());
        assert!(flushes.is_next(|| began));
        flushes.done(began);
        // Nothing is buffered when the wait for the next frames ends.
        assert!(!flushes.is_pending());
        let later = began + FLUSH_INTERVAL;
        assert!(flushes.is_next(|| later));
        flushes.done(later);
        assert!(!flushes.is_next(|| later));
        assert!(flushes.is_pending());
    }
}
