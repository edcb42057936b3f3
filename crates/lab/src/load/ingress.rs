//! Where a generator's frames come in that no one sends.

use super::generator::GeneratorError;
use super::program::Output;
use crate::net::Device;
use weir_link::bpf::{self, Map, MapSpec, ObjectKind, Program};
use weir_link::net::{Interface, Xdp, XdpMode};

/// A device that frames come into.
#[derive(Debug)]
pub(super) struct Ingress {
    ifindex: u32,
    /// Has the XDP program of its driver, as long as this lives.
    slot: Option<Map>,
}

impl Ingress {
    /// At that device, as it is now.
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

    /// What is behind the driver. A generic XDP program is the host's part.
    pub(super) fn exit(&self) -> Output {
        match self.slot {
            Some(_) => Output::Program,
            None => Output::Host,
        }
    }
}

/// The number of a program that runs in the driver.
fn native(xdp: Xdp) -> Option<u32> {
    xdp.program_id.filter(|_| xdp.mode == XdpMode::Native)
}

/// A slot with the program of that number in it.
fn slot_of(id: u32) -> Result<Map, GeneratorError> {
    let program = Program::from_fd(bpf::open(ObjectKind::Program, id, false)?);
    let slot = Map::create("generator_slot", &MapSpec::prog_array(1))?;
    slot.put(&[0; 4], &program)?;
    Ok(slot)
}
