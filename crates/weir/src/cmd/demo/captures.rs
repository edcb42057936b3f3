//! `weir demo --write`: captures to try weir on.

use super::{Arrived, START_NS, lend};
use crate::failure::Failure;
use std::fs;
use std::path::Path;
use weir_link::mem::traffic::{Medium, Traffic};
use weir_link::pcap::{FrameRef, Interface, WriteError, Writer};

/// Frames of the capture of Pup.
const PUP_FRAMES: usize = 1000;

/// Writes `frames`, and some Pup frames of a link of their own, to `folder`.
pub(super) fn write(folder: &Path, frames: &[Arrived], seed: u64) -> Result<(), Failure> {
    fs::create_dir_all(folder).map_err(|error| {
        Failure::run(format!(
            "cannot make the folder {}: {error}",
            folder.display()
        ))
    })?;
    let ethernet = Interface {
        name: Some("mem0".into()),
        ..Interface::ethernet()
    };
    let office = frames.iter().map(|frame| lend(frame, &ethernet));
    one(&folder.join("office.pcapng"), office)?;

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
    one(&folder.join("pup.pcapng"), pups)
}

fn one<'a>(path: &Path, frames: impl Iterator<Item = FrameRef<'a>>) -> Result<(), Failure> {
    let mut writer = Writer::create(path).map_err(Failure::run)?;
    let written = || -> Result<(), WriteError> {
        for frame in frames {
            writer.write(&frame)?;
        }
        writer.finish().map(|_| ())
    };
    written().map_err(|error| Failure::run(format!("{}: {error}", path.display())))
}
