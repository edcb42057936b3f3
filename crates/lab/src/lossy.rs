//! Packet loss by a BPF program: forwards the frames received on one device to another of the same
//! namespace, except those selected by a seed and the frame's number.

use crate::net::Device;
use crate::rng::Rng;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use weir_filter::backend::ebpf::{Insn, Reg, helper, op};
use weir_link::bpf::{Attachment, Hook, Load, Map, MapMemory, MapSpec, Program, ProgramType};

/// Verdicts of the program: `TC_ACT_SHOT`.
const DROP: i32 = 2;

/// Offsets of the 8-byte words in the map's value.
const INDEX: i16 = 0;
const DROPPED: i16 = 8;
const SEED: i16 = 16;
const SHARE: i16 = 24;

/// The program at one device.
#[derive(Debug)]
pub struct Lossy {
    state: MapMemory,
    _map: Map,
    _attachment: Attachment,
}

impl Lossy {
    /// Forwards frames received by `from` to `to`, without loss at first.
    ///
    /// # Errors
    /// The kernel's error: needs privilege and Linux 6.6.
    pub fn between(from: &Device, to: &Device) -> io::Result<Lossy> {
        let spec = MapSpec {
            mmapable: true,
            ..MapSpec::array(32, 1)
        };
        let map = Map::create("lossy", &spec).map_err(io::Error::other)?;
        let state = map.map_memory(true).map_err(io::Error::other)?;
        let load = Load {
            maps: &[map.as_fd()],
            name: "lossy",
            ..Load::new(ProgramType::SchedCls)
        };
        let program = Program::load(&program(to.index()), &load).map_err(io::Error::other)?;
        let attachment = from
            .host()
            .run(|| Attachment::new(&program, from.index(), Hook::TcIngress));
        Ok(Lossy {
            state,
            _map: map,
            _attachment: attachment.map_err(io::Error::other)?,
        })
    }

    /// From now on drops `per_million` of a million frames; the seed selects them by their number,
    /// counted from 0.
    ///
    /// # Panics
    /// If `per_million` exceeds one million.
    pub fn begin(&self, seed: u64, per_million: u32) {
        assert!(per_million <= 1_000_000);
        // The seed is mixed first, so that neighbouring seeds are independent.
        let seed = Rng::new(seed).bits() as u32;
        let share = u64::from(u32::MAX) * u64::from(per_million) / 1_000_000;
        for (offset, value) in [
            (INDEX, 0),
            (DROPPED, 0),
            (SEED, seed.into()),
            (SHARE, share),
        ] {
            self.number(offset).store(value, Ordering::Release);
        }
    }

    /// Numbers of frames received and dropped.
    pub fn counts(&self) -> (u64, u64) {
        let load = |offset| self.number(offset).load(Ordering::Acquire);
        (load(INDEX), load(DROPPED))
    }

    fn number(&self, offset: i16) -> &std::sync::atomic::AtomicU64 {
        let number = self.state.u64(0, offset as usize);
        number.expect("the value has 32 bytes, and is mapped to be written")
    }
}

/// The program: drops a frame if the hash of its number and the seed (the finaliser of MurmurHash3)
/// is below the loss rate.
fn program(to: u32) -> Vec<Insn> {
    let [value, value_upper] = Insn::load_map_value(Reg::R6, 0, 0);
    let hashed = [(16, 0x85eb_ca6b_u32), (13, 0xc2b2_ae35), (16, 1)];
    let mut insns = vec![
        value,
        value_upper,
        Insn::load(op::DW, Reg::R1, Reg::R6, INDEX),
        Insn::mov64(Reg::R2, Reg::R1),
        Insn::alu64(op::ADD, Reg::R2, 1),
        Insn::store(op::DW, Reg::R6, INDEX, Reg::R2),
        Insn::load(op::DW, Reg::R2, Reg::R6, SEED),
        Insn::alu32(op::MUL, Reg::R1, 0x9e37_79b1_u32 as i32),
        Insn::alu32(op::XOR, Reg::R1, Reg::R2),
    ];
    for (shift, factor) in hashed {
        insns.extend([
            Insn::mov32(Reg::R2, Reg::R1),
            Insn::alu32(op::RSH, Reg::R2, shift),
            Insn::alu32(op::XOR, Reg::R1, Reg::R2),
            Insn::alu32(op::MUL, Reg::R1, factor as i32),
        ]);
    }
    let pass = Insn {
        off: 5,
        ..Insn::jump64(op::JGE, Reg::R1, Reg::R3)
    };
    insns.extend([
        Insn::load(op::DW, Reg::R3, Reg::R6, SHARE),
        pass,
        Insn::load(op::DW, Reg::R2, Reg::R6, DROPPED),
        Insn::alu64(op::ADD, Reg::R2, 1),
        Insn::store(op::DW, Reg::R6, DROPPED, Reg::R2),
        Insn::mov32(Reg::R0, DROP),
        Insn::exit(),
        Insn::mov32(Reg::R1, to as i32),
        Insn::mov32(Reg::R2, 0),
        Insn::call(helper::REDIRECT),
        Insn::exit(),
    ]);
    insns
}
