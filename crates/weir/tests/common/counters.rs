//! The pinned counters of the one meter of a host.

use std::sync::atomic::Ordering;
use weir_lab::net::Host;
use weir_link::bpf::{Map, PinFolder};

/// The folder of pins of all counters.
pub(crate) const PINS: &str = "/run/weir/meter";

/// Their folder.
pub(crate) fn folder(host: &Host) -> PinFolder {
    let all = PinFolder::open(&host.seen(PINS.as_ref())).unwrap();
    let (_, names) = all.list().unwrap();
    assert_eq!(names.len(), 1, "{names:?}");
    all.existing(&names[0]).unwrap().unwrap()
}

/// Writes another version of their layout; returns the former one.
pub(crate) fn set_version(host: &Host, version: u64) -> u64 {
    let control = folder(host).get("meter-control").unwrap().unwrap();
    let memory = Map::from_fd(control).unwrap().map_memory(true).unwrap();
    memory.u64(0, 0).unwrap().swap(version, Ordering::SeqCst)
}
