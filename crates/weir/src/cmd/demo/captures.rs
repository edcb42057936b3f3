//! `weir demo --write`: captures for experiments.

use super::{Arrived, START_NS, lend};
use crate::error::CliError;
use crate::input::capture_file::make_folder;
use std::fs::OpenOptions;
use std::path::Path;
use weir_link::mem::traffic::{Medium, Traffic};
use weir_link::pcap::{FrameRef, Interface, WriteError, Writer};

/// The capture of the demo's traffic.
pub(super) const OFFICE: &str = "office.pcapng";
/// The capture of Pup.
pub(super) const PUP: &str = "pup.pcapng";
/// Frames of the capture of Pup.
const PUP_FRAMES: usize = 1000;

/// Writes `frames`, and some Pup frames of a separate link, to `folder`.
pub(super) fn write(folder: &Path, frames: &[Arrived], seed: u64) -> Result<(), CliError> {
    make_folder(folder)?;
    let ethernet = Interface {
        name: Some("mem0".into()),
        ..Interface::ethernet()
    };
    let office = frames.iter().map(|frame| lend(frame, &ethernet));
    one(&folder.join(OFFICE), office)?;

    let medium = Medium::ThreeMegabit;
    let experimental = Interface {
        linktype: medium.linktype(),
        name: Some("mem1".into()),
        ..Interface::ethernet()
    };
    let pups: Vec<Arrived> = Traffic::new(seed, medium)
        .take(PUP_FRAMES)
        .map(|frame| Arrived {
            time_ns: START_NS + frame.time_ns as i64,
            bytes: frame.bytes,
        })
        .collect();
    let pups = pups.iter().map(|frame| lend(frame, &experimental));
    one(&folder.join(PUP), pups)
}

fn one<'a>(path: &Path, frames: impl Iterator<Item = FrameRef<'a>>) -> Result<(), CliError> {
    let mut writer = Writer::create(path).map_err(CliError::run)?;
    let written = || -> Result<(), WriteError> {
        for frame in frames {
            writer.write(&frame)?;
        }
        writer.finish().map(|_| ())
    };
    written().map_err(|error| {
        let whole = match error {
            WriteError::Write { whole, .. } => Some(whole),
            _ => None,
        };
        // A capture of all frames that arrived, in the format of `weir demux`.
        let cut = |whole| OpenOptions::new().write(true).open(path)?.set_len(whole);
        let is_cut = whole.is_some_and(|whole| cut(whole).is_ok());
        let end = if is_cut { "; it ends there" } else { "" };
        CliError::run(format!("{}: {error}{end}", path.display()))
    })
}
