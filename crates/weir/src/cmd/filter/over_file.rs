//! `weir filter --run`: one filter over one capture.

use super::Args;
use crate::failure::Failure;
use crate::source::{Compiled, Compiler};
use crate::text;
use serde::Serialize;
use std::path::Path;
use weir_filter::backend::Runner;
use weir_link::pcap::Reader;
use weir_wire::LinkType;

#[derive(Serialize)]
struct Counts {
    frames: u64,
    accepted: u64,
}

/// Counts the frames of the capture at `path` that the filter accepts.
pub(super) fn run(
    args: &Args,
    compiler: &Compiler,
    filter: &[u8],
    path: &Path,
) -> Result<(), Failure> {
    // A filter that means nothing on any link is refused before the file is
    // looked at.
    if let Some(linktype) = args.linktype {
        compile(compiler, args, filter, linktype)?;
    }
    let mut reader =
        Reader::open(path).map_err(|error| Failure::run(format!("{}: {error}", path.display())))?;
    let mut counts = Counts {
        frames: 0,
        accepted: 0,
    };
    let mut runners: Vec<(LinkType, Runner)> = Vec::new();
    if let (Some(interface), None) = (reader.interfaces().first(), args.linktype) {
        compile(compiler, args, filter, interface.linktype)?;
    }
    let damage = loop {
        let frame = match reader.next_frame() {
            Ok(Some(frame)) => frame,
            Ok(None) => break None,
            Err(error) => break Some(error),
        };
        let linktype = args.linktype.unwrap_or(frame.linktype());
        let known = runners.iter().position(|(known, _)| *known == linktype);
        let index = match known {
            Some(index) => index,
            None => {
                let compiled = compile(compiler, args, filter, linktype)?;
                runners.push((linktype, Runner::new(compiled.program)));
                runners.len() - 1
            }
        };
        counts.frames += 1;
        let verdict = runners[index].1.run(frame.bytes, frame.wire_len);
        counts.accepted += u64::from(verdict != 0);
    };
    super::print(&shown(args.json, &counts))?;
    match damage {
        None => Ok(()),
        Some(error) => Err(Failure::run(format!("{}: {error}", path.display()))),
    }
}

fn compile(
    compiler: &Compiler,
    args: &Args,
    filter: &[u8],
    linktype: LinkType,
) -> Result<Compiled, Failure> {
    compiler
        .compile(args.lang, filter, linktype)
        .map_err(|why| Failure::refused(format!("link type {linktype}: {why}")))
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
