//! `weir listen -r`: the frames of a capture file in place of an interface's.

use super::Args;
use super::output::Output;
use crate::error::{CliError, Incomplete};
use crate::filterset::compile::Compiler;
use crate::filterset::share;
use crate::input::capture_file;
use crate::signals::ShutdownSignal;
use std::collections::HashMap;
use std::io::{BufWriter, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use weir_demux::fanout::Share;
use weir_filter::backend::Runner;
use weir_filter::lang::Language;
use weir_link::pcap::{Error, Reader};
use weir_wire::LinkType;

/// Puts out the frames of the capture at `path` that the filter accepts.
pub(super) fn run(args: &Args, path: &Path, stop: &ShutdownSignal) -> Result<(), CliError> {
    let complaint = |error: &Error| capture_file::complaint(path, error);
    let mut reader = match capture_file::open(path, stop) {
        Ok(reader) => reader,
        Err(_) if stop.is_requested() => return Err(CliError::Stopped(stop.signal())),
        Err(error) => return Err(CliError::run(complaint(&error))),
    };
    let mut replay = Replay {
        args,
        filter: args.expression(),
        runners: HashMap::new(),
        sources: HashMap::new(),
        share: match &args.fanout {
            Some(fanout) => Some(share::of_files(fanout)?),
            None => None,
        },
    };
    if let Some(out) = &args.write
        && is_same(path, out)
    {
        let out = out.display();
        return Err(CliError::refused(format!(
            "{out} is being read, and would be overwritten: give --write another name"
        )));
    }
    // Refused before a file is written.
    if let Some(first) = reader.interfaces().first() {
        replay.accepts(first.linktype, &[], 0)?;
    }
    let mut output = Output::new(args, stop)?;
    let mut gaps = Incomplete::default();
    match replay.put_all(&mut reader, &mut output, stop) {
        Ok(signal) => gaps.signal = signal,
        Err(Failure::Read(error)) => gaps.troubles.push(complaint(&error)),
        Err(Failure::Other(error)) => return Err(error),
    }
    let reported = output.finish(args, Some(0));
    gaps.outcome().and(reported)
}

/// Whether two names are of one regular file.
pub(crate) fn is_same(a: &Path, b: &Path) -> bool {
    let file = |path: &Path| {
        let metadata = std::fs::metadata(path).ok()?;
        metadata.is_file().then(|| (metadata.dev(), metadata.ino()))
    };
    file(a).is_some_and(|a| file(b) == Some(a))
}

enum Failure {
    Read(Error),
    Other(CliError),
}

impl From<CliError> for Failure {
    fn from(error: CliError) -> Failure {
        Failure::Other(error)
    }
}

struct Replay<'a> {
    args: &'a Args,
    filter: String,
    /// The filter for each link type of the file.
    runners: HashMap<LinkType, Runner>,
    /// The number in the output of each interface of the file.
    sources: HashMap<u32, usize>,
    share: Option<Share>,
}

impl Replay<'_> {
    /// Puts out frames until the end, the count that is asked for, or a signal, which is returned.
    fn put_all(
        &mut self,
        reader: &mut Reader,
        output: &mut Output,
        stop: &ShutdownSignal,
    ) -> Result<Option<u8>, Failure> {
        let mut out = BufWriter::new(std::io::stdout());
        let has_times = !self.args.no_times || self.args.write.is_some();
        let mut read = 0_u64;
        let ended = loop {
            if self.args.count == Some(output.frames()) || output.is_over() {
                break Ok(None);
            }
            let frame = match reader.next_frame() {
                Ok(Some(frame)) => frame,
                _ if stop.is_requested() => break Ok(Some(stop.signal())),
                Ok(None) => break Ok(None),
                Err(error) => break Err(Failure::Read(error)),
            };
            read += 1;
            if read.is_multiple_of(1 << 10) && stop.is_requested() {
                break Ok(Some(stop.signal()));
            }
            let linktype = frame.linktype();
            if !self.accepts(linktype, frame.bytes, frame.wire_len)? {
                continue;
            }
            let mut new =
                || output.source(frame.interface.name.as_deref().unwrap_or("?"), linktype);
            let source = match self.sources.get(&frame.interface_index) {
                Some(source) => *source,
                None => *self.sources.entry(frame.interface_index).or_insert(new()),
            };
            output.frame_read(&mut out, source, &frame, has_times)?;
        };
        out.flush().map_err(CliError::output)?;
        ended
    }

    fn accepts(
        &mut self,
        linktype: LinkType,
        frame: &[u8],
        wire_len: u32,
    ) -> Result<bool, CliError> {
        if !self.runners.contains_key(&linktype) {
            let text = self.filter.as_bytes();
            let compiled = Compiler::default().compile(Language::Expr, text, linktype);
            let compiled = compiled.map_err(CliError::refused)?;
            self.runners.insert(linktype, Runner::new(compiled.program));
        }
        let is_own = share::has(self.share, linktype, frame).map_err(CliError::refused)?;
        Ok(is_own && self.runners[&linktype].run(frame, wire_len) != 0)
    }
}
