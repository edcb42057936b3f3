//! A flow counter as flow exporters in eBPF have it: a hash table with a value for each CPU. And what
//! writes the address and the port of a frame before the program that is measured.

use super::tables::driver;
use std::os::fd::AsFd;
use weir_filter::backend::ebpf::{Asm, Insn, Limits, Reg, helper, op};
use weir_link::bpf::{Load, Map, MapSpec, Program, ProgramType};

/// The first destination port.
pub(crate) const PORT: u16 = 1000;

/// Writes a source address and a destination port at random, and goes on in a program.
pub(crate) struct Driver {
    pub(crate) program: Program,
    /// The program's slot.
    _slots: Map,
}

impl Driver {
    /// The lowest `PORT_BITS` bits of a key's number choose its port, from [`PORT`]; the others its
    /// address.
    pub(crate) fn new(keys: u32, port_bits: u32, next: Program) -> Driver {
        let state = MapSpec {
            mmapable: true,
            ..MapSpec::array(64, 1)
        };
        let state = Map::create("meter_bench", &state).expect("a map");
        let slots = Map::create("meter_slots", &MapSpec::prog_array(1)).expect("a map");
        slots.put(&[0; 4], &next).expect("the slot takes it");
        let mut asm = Asm::new();
        let end = asm.label();
        asm.push(Insn::mov64(Reg::R8, Reg::R1));
        driver(&mut asm, keys);
        asm.extend([
            Insn::load(op::W, Reg::R2, Reg::R8, 0),
            Insn::load(op::W, Reg::R3, Reg::R8, 4),
            Insn::mov64(Reg::R4, Reg::R2),
            Insn::alu64(op::ADD, Reg::R4, 38),
        ]);
        asm.jump(Insn::jump64(op::JGT, Reg::R4, Reg::R3), end);
        asm.extend([
            Insn::mov64(Reg::R7, Reg::R6),
            Insn::alu64(op::AND, Reg::R7, (1 << port_bits) - 1),
            Insn::alu64(op::ADD, Reg::R7, i32::from(PORT)),
            Insn::to_be(Reg::R7, 16),
            Insn::store(op::H, Reg::R2, 36, Reg::R7),
            Insn::alu64(op::AND, Reg::R6, 0x00ff_ffff),
            Insn::alu64(op::RSH, Reg::R6, port_bits as i32),
            Insn::alu64(op::OR, Reg::R6, 0x0a00_0000),
            Insn::to_be(Reg::R6, 32),
            Insn::store(op::W, Reg::R2, 26, Reg::R6),
            Insn::mov64(Reg::R1, Reg::R8),
        ]);
        asm.extend(Insn::load_map(Reg::R2, 1));
        asm.extend([Insn::mov64(Reg::R3, 0), Insn::call(helper::TAIL_CALL)]);
        asm.bind(end);
        asm.extend([Insn::mov32(Reg::R0, 1), Insn::exit()]);
        let insns = asm.finish(&Limits::default()).expect("a short program");
        let load = Load {
            maps: &[state.as_fd(), slots.as_fd()],
            // Programs that call each other must agree on it.
            frags: true,
            ..Load::new(ProgramType::Xdp)
        };
        Driver {
            program: Program::load(&insns, &load).unwrap_or_else(|error| panic!("{error}")),
            _slots: slots,
        }
    }
}

fn load(asm: Asm, maps: &[&Map]) -> Program {
    let insns = asm.finish(&Limits::default()).expect("a short program");
    let maps: Vec<_> = maps.iter().map(AsFd::as_fd).collect();
    let load = Load {
        maps: &maps,
        frags: true,
        ..Load::new(ProgramType::Xdp)
    };
    Program::load(&insns, &load).unwrap_or_else(|error| panic!("{error}"))
}

/// What the others are net of.
pub(crate) fn nothing() -> Program {
    let mut asm = Asm::new();
    asm.extend([Insn::mov32(Reg::R0, 1), Insn::exit()]);
    load(asm, &[])
}

pub(crate) struct FlowCounter {
    pub(crate) program: Program,
    pub(crate) flows: Map,
}

impl FlowCounter {
    /// Its key is an address of 16 bytes, kind, class and direction; the class is that of the
    /// lower bits of a port, without any table.
    pub(crate) fn new(keys: u32, port_bits: u32) -> FlowCounter {
        let spec = MapSpec::per_cpu_hash(24, 16, keys);
        let flows = Map::create("meter_flows", &spec).expect("a map");
        for first in (0..keys).step_by(1 << 14) {
            let numbers = first..keys.min(first + (1 << 14));
            let values = vec![0; numbers.len() * flows.value_bytes()];
            let keys: Vec<u8> = numbers.flat_map(|number| key(number, port_bits)).collect();
            flows.update_batch(&keys, &values).expect("room");
        }
        let mut asm = Asm::new();
        let end = asm.label();
        asm.extend([
            Insn::mov64(Reg::R6, Reg::R1),
            Insn::load(op::W, Reg::R7, Reg::R1, 0),
            Insn::load(op::W, Reg::R8, Reg::R1, 4),
            Insn::mov64(Reg::R4, Reg::R7),
            Insn::alu64(op::ADD, Reg::R4, 38),
        ]);
        asm.jump(Insn::jump64(op::JGT, Reg::R4, Reg::R8), end);
        asm.push(Insn::load(op::H, Reg::R1, Reg::R7, 12));
        asm.jump(Insn::jump64(op::JNE, Reg::R1, 8), end);
        asm.push(Insn::load(op::B, Reg::R1, Reg::R7, 14));
        asm.jump(Insn::jump64(op::JNE, Reg::R1, 0x45), end);
        asm.extend([
            Insn::load(op::W, Reg::R1, Reg::R7, 26),
            Insn::store(op::DW, Reg::FP, -24, Reg::R1),
            Insn::store(op::DW, Reg::FP, -16, 0),
            Insn::load(op::B, Reg::R1, Reg::R7, 37),
            Insn::alu64(op::AND, Reg::R1, 7),
            Insn::store(op::DW, Reg::FP, -8, Reg::R1),
            Insn::mov64(Reg::R2, Reg::FP),
            Insn::alu64(op::ADD, Reg::R2, -24),
        ]);
        asm.extend(Insn::load_map(Reg::R1, 0));
        asm.push(Insn::call(helper::MAP_LOOKUP_ELEM));
        asm.jump(Insn::jump64(op::JEQ, Reg::R0, 0), end);
        asm.extend([
            Insn::alu64(op::SUB, Reg::R8, Reg::R7),
            Insn::load(op::DW, Reg::R1, Reg::R0, 0),
            Insn::alu64(op::ADD, Reg::R1, 1),
            Insn::store(op::DW, Reg::R0, 0, Reg::R1),
            Insn::load(op::DW, Reg::R1, Reg::R0, 8),
            Insn::alu64(op::ADD, Reg::R1, Reg::R8),
            Insn::store(op::DW, Reg::R0, 8, Reg::R1),
        ]);
        asm.bind(end);
        asm.extend([Insn::mov32(Reg::R0, 1), Insn::exit()]);
        FlowCounter {
            program: load(asm, &[&flows]),
            flows,
        }
    }
}

/// The key of a frame, as the program makes it.
fn key(number: u32, port_bits: u32) -> [u8; 24] {
    let mut key = [0; 24];
    key[..4].copy_from_slice(&(0x0a00_0000 + (number >> port_bits)).to_be_bytes());
    let port = u32::from(PORT) + (number & ((1 << port_bits) - 1));
    key[16] = port as u8 & 7;
    key
}

/// How many flows have packets, and how many packets they have.
pub(crate) fn counted(flows: &Map) -> (u64, u64) {
    let (_, values) = flows.entries().expect("entries");
    let sums = values.chunks_exact(flows.value_bytes()).map(|value| {
        let cpus = value.chunks_exact(16);
        let packets = cpus.map(|cpu| u64::from_ne_bytes(cpu[..8].try_into().expect("8 bytes")));
        packets.sum::<u64>()
    });
    sums.fold((0, 0), |(flows, sum), packets| {
        (flows + u64::from(packets > 0), sum + packets)
    })
}
