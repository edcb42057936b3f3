//! A plan with one port, which gets copies of the frames that a filter accepts.

use super::bound::{self, binding};
use std::os::fd::OwnedFd;
use weir_demux::kernel::record::Record;
use weir_demux::kernel::{Hook as PlanHook, KernelPlan, MapRole, Options};
use weir_lab::net::Device;
use weir_link::bpf::{Hook, Map, MapSpec};
use weir_link::live::Dispatcher;
use weir_link::plan::PlanMaps;
use weir_ring::Reader;

pub(crate) struct OnePort {
    plan: KernelPlan,
    pub(crate) maps: PlanMaps,
    ring: Map,
}

impl OnePort {
    pub(crate) fn new(filter: &str, ring_bytes: u32) -> OnePort {
        let mut plan = KernelPlan::new(Options {
            seed: 0x1987,
            ..Options::default()
        });
        let mut maps = PlanMaps::new(&plan).unwrap();
        let ring = Map::create("port", &MapSpec::ring_buf(ring_bytes)).unwrap();
        maps.map(MapRole::Rings).put(&[0; 4], &ring).unwrap();
        let bound = plan.bind(binding(bound::filter(filter), 5, true, 0, 1));
        let (_, change) = bound.unwrap();
        maps.apply(&plan, &change).unwrap();
        OnePort { plan, maps, ring }
    }

    pub(crate) fn reader(&self) -> Reader {
        weir_lab::rings::reader(OwnedFd::from(self.ring.try_clone().unwrap())).unwrap()
    }

    /// Attaches a dispatcher to a hook of a device, with the plan from the
    /// first frame on.
    pub(crate) fn attach(&self, device: &Device, hook: Hook) -> Dispatcher {
        let program = self.maps.load(&self.plan, plan_hook(hook)).unwrap();
        let attach = || Dispatcher::attach_with(device.index(), hook, None, Some(&program));
        device.host().run(attach).unwrap()
    }
}

/// The corresponding hook of the plan.
pub(crate) fn plan_hook(hook: Hook) -> PlanHook {
    match hook {
        Hook::XdpNative | Hook::XdpGeneric => PlanHook::Xdp,
        Hook::TcIngress => PlanHook::TcIngress,
        Hook::TcEgress => PlanHook::TcEgress,
    }
}

/// Reads all available records.
pub(crate) fn read_all(reader: &mut Reader, mut each: impl FnMut(Record<'_>)) {
    loop {
        let batch = reader.peek().unwrap();
        if batch.is_empty() {
            return;
        }
        for record in &batch {
            each(Record::parse(record).unwrap());
        }
    }
}
