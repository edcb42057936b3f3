//! `weir filter --run`: one filter over one capture.

use super::Args;
use crate::capture;
use crate::failure::Failure;
use crate::source::Compiler;
use crate::stop::Stop;
use crate::text;
use serde::Serialize;
use std::path::Path;
use weir_filter::backend::Runner;
use weir_link::pcap::{Interface, Reader};
use weir_wire::LinkType;

#[derive(Default, Serialize)]
struct Counts {
    frames: u64,
    accepted: u64,
}

/// The filter as one link type has it.
struct Judge {
    linktype: LinkType,
    /// The filter, or why this link type refuses it.
    runner: Result<Runner, String>,
    frames: u64,
}

/// Counts the frames of the capture at `path` that the filter accepts.
pub(super) fn run(
    args: &Args,
    compiler: &Compiler,
    filter: &[u8],
    path: &Path,
) -> Result<(), Failure> {
    let judge = |linktype| Judge {
        linktype,
        runner: compile(compiler, args, filter, linktype),
        frames: 0,
    };
    let first = |linktype| {
        let judge = judge(linktype);
        match judge.runner {
            Ok(_) => Ok(judge),
            Err(why) => Err(Failure::refused(why)),
        }
    };
    // A filter that means nothing on the link is refused before the file is
    // looked at, if the link type is known.
    let mut judges = Vec::new();
    if let Some(linktype) = args.linktype {
        judges.push(first(linktype)?);
    }
    let stop = Stop::watch()?;
    let mut reader = match capture::open(path, &stop) {
        Ok(reader) => reader,
        Err(_) if stop.asked() => return Err(Failure::Stopped(stop.signal())),
        Err(error) => {
            if capture::is_damage(&error) {
                super::print(&shown(args.json, &Counts::default()))?;
            }
            return Err(Failure::run(capture::complaint(path, &error)));
        }
    };
    if judges.is_empty() {
        let interface = reader.interfaces().first();
        let interface = interface.cloned().unwrap_or_else(Interface::ethernet);
        judges.push(first(interface.linktype)?);
    }
    let mut counts = Counts::default();
    let broken = count(args, &mut reader, &stop, judge, &mut judges, &mut counts);
    let mut troubles: Vec<String> = broken
        .err()
        .map(|error| capture::complaint(path, &error))
        .into_iter()
        .collect();
    troubles.extend(judges.iter().filter_map(unjudged));
    let printed = super::print(&shown(args.json, &counts));
    if !troubles.is_empty() {
        return Err(Failure::run(troubles.join("\nweir: ")));
    }
    if stop.asked() {
        return Err(Failure::Stopped(stop.signal()));
    }
    printed
}

/// Counts until the end, the first damage, or a signal.
fn count(
    args: &Args,
    reader: &mut Reader,
    stop: &Stop,
    judge: impl Fn(LinkType) -> Judge,
    judges: &mut Vec<Judge>,
    counts: &mut Counts,
) -> Result<(), weir_link::pcap::Error> {
    let progress = capture::progress_bar(reader, false);
    let mut last = 0;
    let ended = loop {
        let frame = match reader.next_frame() {
            Ok(Some(frame)) => frame,
            _ if stop.asked() => break Ok(()),
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        };
        let linktype = args.linktype.unwrap_or(frame.linktype());
        if judges[last].linktype != linktype {
            let known = judges.iter().position(|known| known.linktype == linktype);
            last = known.unwrap_or_else(|| {
                judges.push(judge(linktype));
                judges.len() - 1
            });
        }
        let judge = &mut judges[last];
        judge.frames += 1;
        counts.frames += 1;
        if let Ok(runner) = &judge.runner {
            counts.accepted += u64::from(runner.run(frame.bytes, frame.wire_len) != 0);
        }
        if counts.frames.is_multiple_of(1 << 14) {
            progress.set_position(reader.progress().consumed);
            if stop.asked() {
                break Ok(());
            }
        }
    };
    progress.finish_and_clear();
    ended
}

fn compile(
    compiler: &Compiler,
    args: &Args,
    filter: &[u8],
    linktype: LinkType,
) -> Result<Runner, String> {
    let compiled = compiler.compile(args.lang, filter, linktype);
    match compiled {
        Ok(compiled) => Ok(Runner::new(compiled.program)),
        Err(why) => Err(format!("link type {linktype}: {why}")),
    }
}

/// What is to be said of frames that the filter could not judge.
fn unjudged(judge: &Judge) -> Option<String> {
    let why = judge.runner.as_ref().err()?;
    let frames = text::frames(judge.frames);
    let linktype = judge.linktype;
    Some(format!(
        "{frames} of link type {linktype} not judged:\n{why}"
    ))
}

fn shown(json: bool, counts: &Counts) -> String {
    if json {
        return serde_json::to_string(counts).expect("numbers are JSON");
    }
    format!(
        "{} of {} frames accepted ({})",
        text::grouped(counts.accepted),
        text::grouped(counts.frames),
        text::share(counts.accepted, counts.frames)
    )
}
