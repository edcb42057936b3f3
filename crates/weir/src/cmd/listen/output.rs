//! What becomes of the frames: lines, a file, and the sum at the end.

use super::Args;
use crate::failure::{Failure, say};
use crate::replace;
use crate::stop::Stop;
use crate::summary::summary;
use crate::text;
use serde::Serialize;
use std::borrow::Cow;
use std::io::{BufWriter, Stdout, Write};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};
use weir_broker::{Frame, Frames, Port};
use weir_link::pcap::{FrameRef, Interface, WriteError, Writer};
use weir_wire::LinkType;

/// The line at the end, stable for scripts.
#[derive(Clone, Copy, Default, Serialize)]
struct Sum {
    frames: u64,
    /// As on the wire.
    bytes: u64,
    lost: u64,
}

#[derive(Serialize)]
struct JsonFrame {
    time: Option<String>,
    len: u32,
    captured: usize,
    outgoing: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    segment_size: Option<u16>,
    lost_before: u32,
    summary: String,
}

pub(super) struct Output {
    sum: Sum,
    /// How frames are shown, if they are.
    shown: Option<Shown>,
    file: Option<Capture>,
    linktype: LinkType,
    /// Segments of super-frames are frames of their own.
    split: bool,
}

/// A frame as it is put out: as it came, or a segment of it.
struct Piece<'a> {
    frame: &'a Frame<'a>,
    bytes: Cow<'a, [u8]>,
    len: u32,
    segment_size: Option<u16>,
    lost_before: u32,
}

impl<'a> Piece<'a> {
    fn whole(frame: &'a Frame<'a>) -> Piece<'a> {
        Piece {
            frame,
            bytes: Cow::Borrowed(frame.bytes()),
            len: frame.original_len(),
            segment_size: frame.segment_size(),
            lost_before: frame.lost_before(),
        }
    }

    /// The frames that go over the wire for one.
    fn segments(frame: &'a Frame<'a>) -> impl Iterator<Item = Piece<'a>> {
        frame.segments().enumerate().map(|(number, bytes)| {
            let whole = Piece::whole(frame);
            match bytes {
                // As it came: it is no super-frame, or could not be cut.
                Cow::Borrowed(_) => whole,
                Cow::Owned(bytes) => Piece {
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

struct Capture {
    name: String,
    writer: Writer<Box<dyn Write>>,
    interface: Interface,
}

impl Output {
    pub(super) fn new(args: &Args, port: &Port, stop: &Stop) -> Result<Output, Failure> {
        let linktype = port.linktype();
        let file = args.write.as_deref();
        let file = file.map(|path| Capture::create(path, linktype, &args.interface, stop));
        let shown = match (args.quiet || file.is_some(), args.json) {
            (true, _) => None,
            (false, true) => Some(Shown::Json),
            (false, false) => Some(Shown::Lines),
        };
        Ok(Output {
            sum: Sum::default(),
            shown,
            file: file.transpose()?,
            linktype,
            split: args.split,
        })
    }

    /// Frames so far.
    pub(super) fn frames(&self) -> u64 {
        self.sum.frames
    }

    /// Takes `most` of the frames.
    pub(super) fn frames_came(&mut self, frames: Frames<'_>, most: u64) -> Result<(), Failure> {
        if frames.is_empty() {
            // What was written can be read while nothing comes.
            return self.file.as_mut().map_or(Ok(()), Capture::flush);
        }
        let mut out = BufWriter::new(std::io::stdout());
        let end = self.sum.frames.saturating_add(most);
        for frame in frames {
            if !self.split {
                self.piece(&mut out, &Piece::whole(&frame))?;
            } else {
                let left = usize::try_from(end - self.sum.frames).unwrap_or(usize::MAX);
                for piece in Piece::segments(&frame).take(left) {
                    self.piece(&mut out, &piece)?;
                }
            }
            if self.sum.frames == end {
                break;
            }
        }
        out.flush().map_err(Failure::output)
    }

    fn piece(&mut self, out: &mut BufWriter<Stdout>, piece: &Piece<'_>) -> Result<(), Failure> {
        self.sum.frames += 1;
        self.sum.bytes += u64::from(piece.len);
        self.sum.lost += u64::from(piece.lost_before);
        if let Some(file) = &mut self.file {
            file.write(piece)?;
        }
        match self.shown {
            Some(shown) => self.show(out, shown, piece),
            None => Ok(()),
        }
    }

    fn show(
        &self,
        out: &mut BufWriter<Stdout>,
        shown: Shown,
        piece: &Piece<'_>,
    ) -> Result<(), Failure> {
        let time = time_ns(piece.frame).map(|time| text::time(Some(time)));
        let summary = summary(&piece.bytes, self.linktype);
        let outgoing = piece.frame.is_outgoing();
        let line = match shown {
            Shown::Json => {
                let frame = JsonFrame {
                    time,
                    len: piece.len,
                    captured: piece.bytes.len(),
                    outgoing,
                    segment_size: piece.segment_size,
                    lost_before: piece.lost_before,
                    summary,
                };
                serde_json::to_string(&frame).map_err(Failure::run)?
            }
            Shown::Lines => {
                let time = time.map_or(String::new(), |time| time + " ");
                let way = if outgoing { '<' } else { '>' };
                let len = piece.len;
                let segments = piece
                    .segment_size
                    .map_or(String::new(), |size| format!(", in segments of {size}"));
                let lost = match piece.lost_before {
                    0 => String::new(),
                    lost => format!(" ({} lost before)", text::grouped(lost.into())),
                };
                format!("{time}{way} {summary}, {len} bytes{segments}{lost}")
            }
        };
        writeln!(out, "{line}").map_err(Failure::output)
    }

    /// Completes the file and reports; `lost` as the kernel counted it.
    pub(super) fn finish(mut self, args: &Args, lost: Option<u64>) -> Result<(), Failure> {
        let written = self.file.take().map_or(Ok(()), Capture::finish);
        self.sum.lost = lost.unwrap_or(self.sum.lost);
        let line = match args.json {
            true => serde_json::to_string(&self.sum).map_err(Failure::run)?,
            false => format!(
                "{}, {} bytes, {} lost",
                text::frames(self.sum.frames),
                text::grouped(self.sum.bytes),
                text::grouped(self.sum.lost)
            ),
        };
        if args.write.as_deref() == Some(Path::new("-")) {
            say(&line);
        } else {
            writeln!(std::io::stdout(), "{line}").map_err(Failure::output)?;
        }
        written
    }
}

impl Capture {
    fn create(
        path: &Path,
        linktype: LinkType,
        name: &str,
        stop: &Stop,
    ) -> Result<Capture, Failure> {
        let output: Box<dyn Write> = if path == Path::new("-") {
            Box::new(std::io::stdout())
        } else {
            Box::new(replace::create(path, stop)?)
        };
        let interface = Interface {
            linktype,
            name: Some(name.to_owned()),
            ..Interface::ethernet()
        };
        let mut capture = Capture {
            name: path.display().to_string(),
            writer: Writer::new(output).map_err(Failure::run)?,
            interface,
        };
        capture.flush()?;
        Ok(capture)
    }

    fn failed(&self, error: WriteError) -> Failure {
        match error {
            WriteError::Write { source, .. } if self.name == "-" => Failure::output(source),
            error => Failure::run(format!("{}: {error}", self.name)),
        }
    }

    fn write(&mut self, piece: &Piece<'_>) -> Result<(), Failure> {
        let written = self.writer.write(&FrameRef {
            bytes: &piece.bytes,
            wire_len: piece.len,
            time_ns: time_ns(piece.frame),
            interface_index: 0,
            interface: &self.interface,
        });
        written.map_err(|error| self.failed(error))
    }

    fn flush(&mut self) -> Result<(), Failure> {
        let flushed = self.writer.flush();
        flushed.map_err(|error| self.failed(error))
    }

    fn finish(mut self) -> Result<(), Failure> {
        if self.writer.is_empty() {
            // Readers ask for a link type.
            let described = self.writer.describe(&self.interface);
            described.map_err(|error| self.failed(error))?;
        }
        self.flush()
    }
}

fn time_ns(frame: &Frame<'_>) -> Option<i64> {
    let since = |time: SystemTime| time.duration_since(UNIX_EPOCH).ok();
    i64::try_from(frame.timestamp().and_then(since)?.as_nanos()).ok()
}
