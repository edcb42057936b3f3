//! Replaces the host filter of a tapped link.

use super::HostFilter;
use crate::bpf::Attachment;
use crate::xdp::flow_cache::{FlowMaps, FlowProgramSpec};
use crate::xdp::gate::program;
use crate::xdp::gate::{Gate, GateError};
use crate::xdp::meter::MeterStage;
use std::os::fd::{AsFd, OwnedFd};

/// Replaces the host filter in a link's program, from any thread. The call
/// takes milliseconds, while frames continue to pass.
#[derive(Debug)]
pub struct HostFilterUpdater {
    link: u32,
    /// In the order of their indices in the program.
    maps: Vec<OwnedFd>,
    flow_cache: Option<FlowProgramSpec>,
    meter: Option<MeterStage>,
    xdp: Attachment,
}

impl Gate {
    /// An updater for a link, with the flow cache that its program
    /// [uses](Gate::use_flow_cache).
    ///
    /// # Errors
    /// If the process has no free file descriptors.
    pub fn host_filter_updater(
        &self,
        link: usize,
        flow_cache: Option<(&FlowMaps, bool)>,
    ) -> Result<HostFilterUpdater, GateError> {
        let cloned = |fd: std::os::fd::BorrowedFd<'_>| fd.try_clone_to_owned();
        let clone = || {
            let maps = program::maps(self.maps(), flow_cache.map(|(flow_maps, _)| flow_maps));
            let maps: Result<Vec<OwnedFd>, _> = maps.into_iter().map(cloned).collect();
            Ok((maps?, cloned(self.link(link).xdp.as_fd())?))
        };
        let (maps, xdp) = clone().map_err(|source| GateError::System {
            what: "copy descriptors",
            source,
        })?;
        Ok(HostFilterUpdater {
            link: link as u32,
            maps,
            flow_cache: flow_cache.map(|(flow_maps, completes)| flow_maps.spec(completes)),
            meter: self.meter_to_keep(link)?.cloned(),
            xdp: Attachment::from_fd(xdp),
        })
    }
}

impl HostFilterUpdater {
    /// Replaces the filter.
    ///
    /// # Errors
    /// See [`GateError`]; then the previous filter stays.
    pub fn set_host_filter(&self, filter: &HostFilter) -> Result<(), GateError> {
        let maps: Vec<_> = self.maps.iter().map(AsFd::as_fd).collect();
        let program = program::load(
            self.link,
            &maps,
            self.flow_cache.clone(),
            Some(filter),
            self.meter.as_ref(),
        )?;
        Ok(self.xdp.replace(&program)?)
    }
}
