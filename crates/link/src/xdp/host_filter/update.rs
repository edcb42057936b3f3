//! Another filter of the host's frames for a link that is tapped.

use super::HostFilter;
use crate::bpf::Attachment;
use crate::xdp::flow_cache::{Fast, Spec};
use crate::xdp::gate::program;
use crate::xdp::gate::{Gate, GateError};
use std::os::fd::{AsFd, OwnedFd};

/// Gives a link's program another filter of what is left to the host. From any
/// thread: it takes milliseconds, and frames go on meanwhile.
#[derive(Debug)]
pub struct HostChange {
    link: u32,
    /// As the program names them.
    maps: Vec<OwnedFd>,
    fast: Option<Spec>,
    xdp: Attachment,
}

impl Gate {
    /// For a link, with the cached verdicts that its program
    /// [asks](Gate::use_fast).
    ///
    /// # Errors
    /// When the process has no more descriptors.
    pub fn host_change(
        &self,
        link: usize,
        fast: Option<(&Fast, bool)>,
    ) -> Result<HostChange, GateError> {
        let cloned = |fd: std::os::fd::BorrowedFd<'_>| fd.try_clone_to_owned();
        let clone = || {
            let maps = program::maps(self.maps(), fast.map(|(fast, _)| fast));
            let maps: Result<Vec<OwnedFd>, _> = maps.into_iter().map(cloned).collect();
            Ok((maps?, cloned(self.link(link).xdp.as_fd())?))
        };
        let (maps, xdp) = clone().map_err(|source| GateError::System {
            what: "copy descriptors",
            source,
        })?;
        Ok(HostChange {
            link: link as u32,
            maps,
            fast: fast.map(|(fast, completes)| fast.spec(completes)),
            xdp: Attachment::from_fd(xdp),
        })
    }
}

impl HostChange {
    /// From now on the host is left what this filter accepts.
    ///
    /// # Errors
    /// See [`GateError`]; then it is left what it was before.
    pub fn leave_to_host(&self, filter: &HostFilter) -> Result<(), GateError> {
        let maps: Vec<_> = self.maps.iter().map(AsFd::as_fd).collect();
        let program = program::load(self.link, &maps, self.fast.clone(), Some(filter))?;
        Ok(self.xdp.replace(&program)?)
    }
}
