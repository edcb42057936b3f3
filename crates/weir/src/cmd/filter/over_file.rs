//! `weir filter --run`: one filter over one capture.

use super::{Args, Source, of_file};
use crate::error::{CliError, Incomplete};
use crate::filterset::compile::Compiler;
use crate::filterset::per_linktype::{Made, PerLinkType, Refusals};
use crate::input::capture_file;
use crate::report::format;
use crate::signals::ShutdownSignal;
use serde::Serialize;
use std::path::Path;
use weir_filter::backend::Runner;
use weir_link::pcap::{Error, FrameRef, Interface, Reader};
use weir_wire::LinkType;

#[derive(Default, Serialize)]
struct Counts {
    frames: u64,
    accepted: u64,
    /// Why the counts do not cover the whole input, if so.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// The filter compiled for each link type; `None` if it is not valid for the
/// link type.
type Judges = PerLinkType<Option<Runner>>;

/// Counts the frames of the capture at `path` that the filter accepts.
pub(super) fn run(
    args: &Args,
    compiler: &Compiler,
    filter: &Source,
    path: &Path,
) -> Result<(), CliError> {
    let make = |linktype| made(compiler, args, filter, linktype);
    let mut judges = Judges::new();
    // A filter that is not valid for a known link type is refused before the
    // file is read.
    if let Some(linktype) = args.linktype {
        judges.first(linktype, make).map_err(CliError::refused)?;
    }
    let stop = ShutdownSignal::watch_hangup_too()?;
    let mut counts = Counts::default();
    let mut gaps = Incomplete::default();
    match capture_file::open(path, &stop) {
        Ok(mut reader) => {
            let interface = reader.interfaces().first();
            let interface = interface.cloned().unwrap_or_else(Interface::ethernet);
            let first = judges.first(interface.linktype, make);
            first.map_err(CliError::refused)?;
            let judge = |frame: &FrameRef<'_>| {
                let linktype = args.linktype.unwrap_or(frame.linktype());
                let runner = judges.of(linktype, make).and_then(|judge| judge.as_ref());
                runner.is_some_and(|runner| runner.run(frame.bytes, frame.wire_len) != 0)
            };
            match count(&mut reader, &stop, judge, &mut counts) {
                Ok(signal) => gaps.signal = signal,
                Err(error) => gaps.troubles.push(capture_file::complaint(path, &error)),
            }
        }
        Err(_) if stop.is_requested() => gaps.signal = Some(stop.signal()),
        Err(error) if capture_file::is_damage(&error) => {
            gaps.troubles.push(capture_file::complaint(path, &error));
        }
        Err(error) => return Err(CliError::run(capture_file::complaint(path, &error))),
    }
    gaps.troubles.extend(judges.unjudged(|_| String::new()));
    counts.error = gaps.error();
    let printed = super::print(&shown(args.json, &counts));
    gaps.outcome().and(printed)
}

/// Counts until the end, the first damage, or a signal; returns the signal.
fn count(
    reader: &mut Reader,
    stop: &ShutdownSignal,
    mut judge: impl FnMut(&FrameRef<'_>) -> bool,
    counts: &mut Counts,
) -> Result<Option<u8>, Error> {
    let progress = capture_file::progress_bar(reader, false);
    let ended = loop {
        let frame = match reader.next_frame() {
            Ok(Some(frame)) => frame,
            // A pipe ends early on a signal.
            _ if stop.is_requested() => break Ok(Some(stop.signal())),
            Ok(None) => break Ok(None),
            Err(error) => break Err(error),
        };
        counts.frames += 1;
        counts.accepted += u64::from(judge(&frame));
        if counts.frames.is_multiple_of(1 << 14) {
            progress.set_position(reader.progress().consumed);
            if stop.is_requested() {
                break Ok(Some(stop.signal()));
            }
        }
    };
    progress.finish_and_clear();
    ended
}

fn made(
    compiler: &Compiler,
    args: &Args,
    filter: &Source,
    linktype: LinkType,
) -> Made<Option<Runner>> {
    let mut refusals = Refusals::default();
    let it = match compiler.compile(args.lang, &filter.text, linktype) {
        Ok(compiled) => Some(Runner::new(compiled.program)),
        Err(why) => {
            let why = format!("link type {linktype}: {why}");
            refusals.add(of_file(filter.file.as_deref(), &why));
            None
        }
    };
    Made { it, refusals }
}

fn shown(json: bool, counts: &Counts) -> String {
    if json {
        return serde_json::to_string(counts).expect("numbers are JSON");
    }
    format!(
        "{} of {} frames accepted ({})",
        format::grouped(counts.accepted),
        format::grouped(counts.frames),
        format::share(counts.accepted, counts.frames)
    )
}
