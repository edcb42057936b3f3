//! A plan with one port, which copies what a filter accepts.

use std::os::fd::OwnedFd;
use weir_demux::kernel::{Hook as PlanHook, KernelPlan, Options, Part};
use weir_demux::{Binding, Filter, Target};
use weir_filter::lang::expr::{Context, compile};
use weir_lab::net::Device;
use weir_link::bpf::{Hook, Map, MapSpec};
use weir_link::live::Dispatcher;
use weir_link::plan::PlanMaps;
use weir_ring::Reader;
use weir_wire::LinkType;

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
        maps.map(Part::Rings).put(&[0; 4], &ring).unwrap();
        let filter = compile(filter, &Context::new(LinkType::EN10MB)).unwrap();
        let binding = Binding {
            filter: Filter::new(filter),
            priority: 5,
            copy: true,
            target: Target::Port(0),
            tag: 1,
        };
        let (_, change) = plan.bind(binding).unwrap();
        maps.apply(&plan, &change).unwrap();
        OnePort { plan, maps, ring }
    }

    pub(crate) fn reader(&self) -> Reader {
        Reader::open(OwnedFd::from(self.ring.try_clone().unwrap())).unwrap()
    }

    /// A dispatcher at a hook of a device, with the plan from the first frame
    /// on.
    pub(crate) fn attach(&self, device: &Device, hook: Hook) -> Dispatcher {
        let program = self.maps.load(&self.plan, plan_hook(hook)).unwrap();
        let attach = || Dispatcher::attach_with(device.index(), hook, None, Some(&program));
        device.host().run(attach).unwrap()
    }
}

/// The plan's name for a hook.
pub(crate) fn plan_hook(hook: Hook) -> PlanHook {
    match hook {
        Hook::XdpNative | Hook::XdpGeneric => PlanHook::Xdp,
        Hook::TcIngress => PlanHook::TcIngress,
        Hook::TcEgress => PlanHook::TcEgress,
    }
}
