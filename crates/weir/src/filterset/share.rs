//! The share of a file's frames that `--fanout I/N` asks for.

use crate::error::CliError;
use weir_demux::fanout::{Fanout, Layout, Share, bucket};
use weir_wire::LinkType;

/// The share; a group is of live ports.
pub(crate) fn of_files(fanout: &Fanout) -> Result<Share, CliError> {
    match fanout {
        Fanout::Share(share) => Ok(*share),
        Fanout::Group(group) => Err(CliError::refused(format!(
            "--fanout {}: a group is of those who listen on an interface; give a share of the file, \
             such as 0/4",
            group.name()
        ))),
    }
}

/// Whether a frame belongs to the share, if there is one.
pub(crate) fn has(share: Option<Share>, linktype: LinkType, frame: &[u8]) -> Result<bool, String> {
    let Some(share) = share else { return Ok(true) };
    match Layout::of(linktype) {
        Some(layout) => Ok(share.has(bucket(frame, layout))),
        None => Err(format!(
            "--fanout {share}: frames of link type {linktype} have no flows to share them out by; \
             leave --fanout out"
        )),
    }
}
