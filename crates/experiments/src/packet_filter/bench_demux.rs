//! One port in the kernel, with any number of filters.

use super::MeasureError;
use weir_demux::kernel::{Hook, KernelPlan, MapRole, Options, PortSettings};
use weir_demux::{Binding, Filter, Target};
use weir_link::bpf::Program;
use weir_link::plan::PlanMaps;
use weir_ring::Reader;

/// Bytes of the port's queue.
const RING_BYTES: u32 = 1 << 20;

/// A plan in the kernel whose filters all lead to one port.
pub(super) struct BenchDemux {
    /// For XDP.
    pub(super) program: Program,
    /// The port.
    pub(super) reader: Reader,
    _maps: PlanMaps,
}

impl BenchDemux {
    /// The filters are tried in this order, and take.
    pub(super) fn new(filters: &[Filter]) -> Result<BenchDemux, MeasureError> {
        let mut plan = KernelPlan::new(Options {
            ports_max: 1,
            ..Options::default()
        });
        for filter in filters {
            let binding = Binding {
                filter: filter.clone(),
                priority: 0,
                copy: false,
                target: Target::Port(0),
                tag: 0,
            };
            // The maps are made and filled only afterwards.
            let _ = plan.bind(binding)?;
        }
        let maps = PlanMaps::new(&plan)?;
        let (ring, reader) = weir_link::bpf::ring(RING_BYTES)?;
        let place = 0_u32.to_ne_bytes();
        maps.map(MapRole::Rings).put(&place, &ring)?;
        maps.set_port(0, PortSettings::default(), true)?;
        let program = maps.load(&plan, Hook::Xdp)?;
        Ok(BenchDemux {
            program,
            reader,
            _maps: maps,
        })
    }
}
