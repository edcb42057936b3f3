//! A sink: counts and drops frames.

use crate::net::{Device, Offloads};
use std::os::fd::AsFd;
use weir_filter::backend::ebpf::{Insn, Reg, helper, op};
use weir_link::bpf::{
    AttachError, Attachment, Hook, Load, LoadError, Map, MapError, MapSpec, Program,
};

/// A program at a device that counts and drops every frame. Dropping the value
/// removes the program.
#[derive(Debug)]
pub struct Sink {
    counters: Map,
    _attachment: Attachment,
}

/// The counters of a [`Sink`].
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counted {
    /// Frames.
    pub frames: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Why a sink was not created or read.
#[derive(Debug, thiserror::Error)]
pub enum SinkError {
    /// The counters failed.
    #[error(transparent)]
    Map(#[from] MapError),
    /// The program could not be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The program could not be attached.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// The device refused a setting.
    #[error(transparent)]
    Device(#[from] crate::net::Error),
}

impl Sink {
    /// Attaches a sink to a device.
    ///
    /// For other hooks than native XDP, GRO is enabled as well: only then does
    /// a veth accept redirected frames, such as a generator's.
    ///
    /// # Errors
    /// If the device has an XDP program already, or refuses one.
    pub fn new(device: &Device, hook: Hook) -> Result<Sink, SinkError> {
        if hook != Hook::XdpNative {
            let now = device.offloads()?;
            device.set_offloads(Offloads {
                generic_receive: true,
                ..now
            })?;
        }
        let counters = Map::create("sink", &MapSpec::per_cpu_array(16, 1))?;
        let load = Load {
            name: "sink",
            maps: &[counters.as_fd()],
            ..Load::at(hook)
        };
        let program = Program::load(&program(hook), &load)?;
        let attach = || Attachment::new(&program, device.index(), hook);
        let attachment = device.host().run(attach)?;
        Ok(Sink {
            counters,
            _attachment: attachment,
        })
    }

    /// The frames since the sink's creation.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn counted(&self) -> Result<Counted, SinkError> {
        let values = self.counters.lookup(&[0; 4])?.unwrap_or_default();
        let mut counted = Counted::default();
        let number = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().expect("of eight bytes"));
        for value in values.chunks_exact(16) {
            counted.frames += number(&value[..8]);
            counted.bytes += number(&value[8..]);
        }
        Ok(counted)
    }
}

/// Increments this CPU's counters and drops the frame.
fn program(hook: Hook) -> Vec<Insn> {
    const XDP_DROP: i32 = 1;
    const TC_ACT_SHOT: i32 = 2;
    const SKB_LEN: i16 = 0;
    let (len, drop) = if hook.is_xdp() {
        // The length of all fragments.
        let len = vec![
            Insn::mov64(Reg::R1, Reg::R6),
            Insn::call(helper::XDP_GET_BUFF_LEN),
            Insn::mov64(Reg::R6, Reg::R0),
        ];
        (len, XDP_DROP)
    } else {
        let len = vec![Insn::load(op::W, Reg::R6, Reg::R6, SKB_LEN)];
        (len, TC_ACT_SHOT)
    };
    let count = [
        Insn::store(op::W, Reg::FP, -4, 0),
        Insn::mov64(Reg::R2, Reg::FP),
        Insn::alu64(op::ADD, Reg::R2, -4),
        Insn::call(helper::MAP_LOOKUP_ELEM),
        Insn {
            off: 6,
            ..Insn::jump64(op::JEQ, Reg::R0, 0)
        },
        Insn::load(op::DW, Reg::R1, Reg::R0, 0),
        Insn::alu64(op::ADD, Reg::R1, 1),
        Insn::store(op::DW, Reg::R0, 0, Reg::R1),
        Insn::load(op::DW, Reg::R1, Reg::R0, 8),
        Insn::alu64(op::ADD, Reg::R1, Reg::R6),
        Insn::store(op::DW, Reg::R0, 8, Reg::R1),
        Insn::mov32(Reg::R0, drop),
        Insn::exit(),
    ];
    let mut insns = vec![Insn::mov64(Reg::R6, Reg::R1)];
    insns.extend(len);
    insns.extend(Insn::load_map(Reg::R1, 0));
    insns.extend(count);
    insns
}
