//! Where a generator's frames arrive if no device sends them.

use super::generator::GeneratorError;
use super::program::Output;
use crate::net::Device;
use weir_link::bpf::{self, Map, MapSpec, ObjectKind, Program};
use weir_link::net::{Interface, Xdp, XdpMode};

/// A device at which frames arrive.
#[derive(Debug)]
pub(super) struct Ingress {
    ifindex: u32,
    /// Holds the driver's XDP program while this value lives.
    slot: Option<Map>,
}

impl Ingress {
    /// The present state of that device.
    pub(super) fn at(device: &Device) -> Result<Ingress, GeneratorError> {
        let ifindex = device.index();
        let interface = device.host().run(|| Interface::numbered(ifindex))?;
        let program = interface.xdp.and_then(native);
        let slot = program.map(slot_of).transpose()?;
        Ok(Ingress { ifindex, slot })
    }

    pub(super) fn ifindex(&self) -> u32 {
        self.ifindex
    }

    pub(super) fn slot(&self) -> Option<&Map> {
        self.slot.as_ref()
    }

    /// The step behind the driver. A generic XDP program counts as the host's
    /// part.
    pub(super) fn exit(&self) -> Output {
        match self.slot {
            Some(_) => Output::Program,
            None => Output::Host,
        }
    }
}

/// The id of a program that runs in the driver.
fn native(xdp: Xdp) -> Option<u32> {
    xdp.program_id.filter(|_| xdp.mode == XdpMode::Native)
}

/// A program array with that program.
fn slot_of(id: u32) -> Result<Map, GeneratorError> {
    let program = Program::from_fd(bpf::open(ObjectKind::Program, id, false)?);
    let slot = Map::create("generator_slot", &MapSpec::prog_array(1))?;
    slot.put(&[0; 4], &program)?;
    Ok(slot)
}
