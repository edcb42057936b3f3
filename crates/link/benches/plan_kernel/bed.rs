//! A plan in the kernel with its ports, and frames to run it on.
#![allow(unsafe_code)] // The promise that a bench opens one reader of a ring.

use std::os::fd::{AsFd, OwnedFd};
use weir_demux::kernel::record::{SHORT_FRAME_MAX, SHORT_HEADER_BYTES};
use weir_demux::kernel::{Change, Half, Hook, KernelPlan, MapRole, Options, Recompile};
use weir_demux::{Binding, BindingId, Filter, Target};
use weir_filter::backend::ebpf::{Asm, Insn, Limits, Reg, helper, op};
use weir_filter::lang::expr::{Context, compile};
use weir_filter::opt::optimise;
use weir_lab::rules::{FiveTuple, UDP};
use weir_link::bpf::{Load, Map, MapSpec, Program, ProgramType};
use weir_link::plan::PlanMaps;
use weir_ring::Reader;
use weir_wire::LinkType;

/// A filter from its text.
pub(crate) fn filter(text: &str) -> Filter {
    let mut program = compile(text, &Context::new(LinkType::EN10MB)).expect(text);
    optimise(&mut program);
    Filter::new(program)
}

pub(crate) fn binding(filter: Filter, copy: bool, port: u32, tag: u32) -> Binding {
    Binding {
        filter,
        priority: 10,
        copy,
        target: Target::Port(port),
        tag,
    }
}

/// Plan, maps, and the slot that a dispatcher goes on in.
pub(crate) struct Bed {
    pub(crate) hook: Hook,
    pub(crate) plan: KernelPlan,
    pub(crate) maps: PlanMaps,
    pub(crate) slots: Map,
    rings: Vec<Map>,
}

/// Of the first port's ring, which holds all frames of a run; the others' may
/// be small, since there are many.
pub(crate) const RING_BYTES: u32 = 1 << 22;

/// Number of frames of 60 bytes that fit there.
pub(crate) const FRAMES_MAX: u32 = 20_000;

impl Bed {
    /// A plan with this many ports, each with a ring of this many bytes; the first
    /// one's has at least [`RING_BYTES`].
    pub(crate) fn new(hook: Hook, ports: u32, ring_bytes: u32) -> Bed {
        let plan = KernelPlan::new(Options {
            seed: 0x5eed,
            ports_max: ports.max(16),
            keys_hint: 1 << 13,
            ..Options::default()
        });
        let maps = PlanMaps::new(&plan).expect("maps");
        let ring = |slot| {
            let bytes = if slot == 0 {
                RING_BYTES.max(ring_bytes)
            } else {
                ring_bytes
            };
            Map::create("port", &MapSpec::ring_buf(bytes)).expect("a ring")
        };
        let rings: Vec<Map> = (0..ports).map(ring).collect();
        let keys: Vec<u8> = (0..ports).flat_map(u32::to_ne_bytes).collect();
        let fds: Vec<_> = rings.iter().map(AsFd::as_fd).collect();
        let put = maps.map(MapRole::Rings).put_batch(&keys, &fds);
        put.expect("rings are put in");
        Bed {
            hook,
            plan,
            maps,
            slots: Map::create("slots", &MapSpec::prog_array(1)).expect("a slot"),
            rings,
        }
    }

    /// Binds, but loads no program.
    pub(crate) fn bind(&mut self, binding: Binding) -> BindingId {
        let (id, change) = self.plan.bind(binding).expect("room");
        self.apply(&change);
        id
    }

    /// Binds if the plan takes it, but loads no program.
    pub(crate) fn try_bind(&mut self, binding: Binding) -> bool {
        let bound = self.plan.bind(binding);
        bound.is_ok_and(|(_, change)| {
            self.apply(&change);
            true
        })
    }

    /// A program of the plan as it is, made as for a live interface: with its
    /// subtables put in order first.
    pub(crate) fn load(&mut self, hook: Hook) -> Program {
        self.plan.prepare_recompile();
        let program = self.maps.load(&self.plan, hook);
        program.unwrap_or_else(|error| panic!("{error}"))
    }

    /// Gives whether a new program is needed.
    pub(crate) fn apply(&mut self, change: &Change) -> bool {
        self.maps.apply(&self.plan, change).expect("writes");
        change.programs == Recompile::Required
    }

    /// Loads the plan's program, into the slot.
    pub(crate) fn swap(&mut self) -> usize {
        let program = self.load(self.hook);
        self.slots
            .put(&[0; 4], &program)
            .expect("the slot takes it");
        self.plan
            .program(self.hook, Half::Subtables)
            .expect("it was lowered above")
            .insns
            .len()
    }

    pub(crate) fn ports(&self) -> usize {
        self.rings.len()
    }

    pub(crate) fn reader(&self, port: usize) -> Reader {
        let ring: OwnedFd = self.rings[port].try_clone().expect("a descriptor").into();
        // SAFETY: a bench has one reader of a port at a time.
        unsafe { Reader::open(ring) }.expect("a reader")
    }

    /// A program that writes the five-tuples of a trace into the frame in turn,
    /// and goes on in the plan. Of the trace it takes a power of two.
    pub(crate) fn trace_driver(&self, tuples: &[FiveTuple]) -> Program {
        /// What differs between frames: addresses and ports, and the protocol.
        const FIELDS: usize = 26;
        const PROTOCOL: usize = 23;
        let count = 1 << tuples.len().ilog2();
        let row = |tuple: &FiveTuple| {
            let frame = tuple.frame();
            let mut row = [0; 16];
            row[..12].copy_from_slice(&frame[FIELDS..][..12]);
            row[12] = frame[PROTOCOL];
            row
        };
        let rows: Vec<u8> = tuples[..count].iter().flat_map(row).collect();
        let array = |bytes: u32| {
            let spec = MapSpec {
                mmapable: true,
                ..MapSpec::array(bytes, 1)
            };
            Map::create("trace", &spec).expect("an array")
        };
        let (state, trace) = (array(8), array(rows.len() as u32));
        trace.update(&[0; 4], &rows).expect("the rows are put in");
        let mut asm = Asm::new();
        let end = asm.label();
        let mut push = |insns: &[Insn]| insns.iter().for_each(|insn| asm.push(*insn));
        push(&[Insn::mov64(Reg::R6, Reg::R1)]);
        push(&Insn::load_map_value(Reg::R2, 1, 0));
        push(&[
            Insn::load(op::DW, Reg::R7, Reg::R2, 0),
            Insn::mov64(Reg::R3, Reg::R7),
            Insn::alu64(op::ADD, Reg::R3, 1),
            Insn::store(op::DW, Reg::R2, 0, Reg::R3),
            Insn::alu64(op::AND, Reg::R7, count as i32 - 1),
            Insn::alu64(op::LSH, Reg::R7, 4),
        ]);
        push(&Insn::load_map_value(Reg::R5, 2, 0));
        push(&[
            Insn::alu64(op::ADD, Reg::R5, Reg::R7),
            Insn::load(op::W, Reg::R2, Reg::R6, 0),
            Insn::load(op::W, Reg::R3, Reg::R6, 4),
            Insn::mov64(Reg::R4, Reg::R2),
            Insn::alu64(op::ADD, Reg::R4, 42),
        ]);
        asm.jump(Insn::jump64(op::JGT, Reg::R4, Reg::R3), end);
        let mut push = |insns: &[Insn]| insns.iter().for_each(|insn| asm.push(*insn));
        for word in 0..3 {
            push(&[
                Insn::load(op::W, Reg::R4, Reg::R5, 4 * word),
                Insn::store(op::W, Reg::R2, FIELDS as i16 + 4 * word, Reg::R4),
            ]);
        }
        push(&[
            Insn::load(op::B, Reg::R4, Reg::R5, 12),
            Insn::store(op::B, Reg::R2, PROTOCOL as i16, Reg::R4),
        ]);
        asm.bind(end);
        self.go_on("trace", asm, &[state, trace])
    }

    /// A driver whose end is missing: on in the plan.
    fn go_on(&self, name: &'static str, mut asm: Asm, state: &[Map]) -> Program {
        let mut push = |insns: &[Insn]| insns.iter().for_each(|insn| asm.push(*insn));
        push(&[Insn::mov64(Reg::R1, Reg::R6)]);
        push(&Insn::load_map(Reg::R2, 0));
        push(&[
            Insn::mov64(Reg::R3, 0),
            Insn::call(helper::TAIL_CALL),
            Insn::mov32(Reg::R0, 2),
            Insn::exit(),
        ]);
        let insns = asm.finish(&Limits::default()).expect("a short program");
        let maps: Vec<_> = [&self.slots]
            .into_iter()
            .chain(state)
            .map(AsFd::as_fd)
            .collect();
        let load = Load {
            name,
            frags: self.hook == Hook::Xdp,
            maps: &maps,
            ..Load::new(match self.hook {
                Hook::Xdp => ProgramType::Xdp,
                _ => ProgramType::SchedCls,
            })
        };
        Program::load(&insns, &load).expect("the driver loads")
    }

    /// A program that writes the fields of a flow into the frame and goes on
    /// in the plan.
    pub(crate) fn driver(&self, flows: &Flows) -> Program {
        let state = MapSpec {
            mmapable: true,
            ..MapSpec::array(8, 1)
        };
        let state = Map::create("driver", &state).expect("an array");
        let mut asm = Asm::new();
        let end = asm.label();
        let mut push = |insns: &[Insn]| insns.iter().for_each(|insn| asm.push(*insn));
        let (data, data_end) = match self.hook {
            Hook::Xdp => (0, 4),
            _ => (76, 80),
        };
        push(&[Insn::mov64(Reg::R6, Reg::R1)]);
        push(&Insn::load_map_value(Reg::R2, 1, 0));
        push(&[
            Insn::load(op::DW, Reg::R7, Reg::R2, 0),
            Insn::mov64(Reg::R3, Reg::R7),
            Insn::alu64(op::ADD, Reg::R3, 1),
            Insn::store(op::DW, Reg::R2, 0, Reg::R3),
        ]);
        if flows.scattered {
            push(&Insn::load64(Reg::R3, 0x9e37_79b9_7f4a_7c15));
            push(&[
                Insn::alu64(op::MUL, Reg::R7, Reg::R3),
                Insn::alu64(op::RSH, Reg::R7, 32),
            ]);
        }
        push(&[
            Insn::alu64(op::MOD, Reg::R7, flows.count as i32),
            Insn::load(op::W, Reg::R2, Reg::R6, data),
            Insn::load(op::W, Reg::R3, Reg::R6, data_end),
            Insn::mov64(Reg::R4, Reg::R2),
            Insn::alu64(op::ADD, Reg::R4, 42),
        ]);
        asm.jump(Insn::jump64(op::JGT, Reg::R4, Reg::R3), end);
        let mut push = |insns: &[Insn]| insns.iter().for_each(|insn| asm.push(*insn));
        push(&[
            Insn::mov64(Reg::R4, Reg::R7),
            Insn::alu64(op::AND, Reg::R4, 1023),
            Insn::alu64(op::ADD, Reg::R4, i32::from(PORT)),
            Insn::to_be(Reg::R4, 16),
            Insn::store(op::H, Reg::R2, 36, Reg::R4),
            Insn::alu64(op::RSH, Reg::R7, 10),
            Insn::alu64(op::ADD, Reg::R7, SRC as i32),
            Insn::to_be(Reg::R7, 32),
            Insn::store(op::W, Reg::R2, 26, Reg::R7),
        ]);
        asm.bind(end);
        self.go_on("driver", asm, &[state])
    }
}

impl Bed {
    /// A program that asks the ports' rings in turn for room and submits it, or
    /// with `looks_only` looks them up and no more: what is the kernel's own of a
    /// frame that is delivered.
    pub(crate) fn rings_alone(&self, looks_only: bool) -> Program {
        let state = MapSpec {
            mmapable: true,
            ..MapSpec::array(8, 1)
        };
        let state = Map::create("turn", &state).expect("an array");
        let mut asm = Asm::new();
        let end = asm.label();
        let mut push = |insns: &[Insn]| insns.iter().for_each(|insn| asm.push(*insn));
        push(&Insn::load_map_value(Reg::R2, 1, 0));
        push(&[
            Insn::load(op::DW, Reg::R7, Reg::R2, 0),
            Insn::mov64(Reg::R3, Reg::R7),
            Insn::alu64(op::ADD, Reg::R3, 1),
            Insn::store(op::DW, Reg::R2, 0, Reg::R3),
            Insn::alu64(op::MOD, Reg::R7, self.ports() as i32),
            Insn::store(op::W, Reg::FP, -4, Reg::R7),
            Insn::mov64(Reg::R2, Reg::FP),
            Insn::alu64(op::ADD, Reg::R2, -4),
        ]);
        push(&Insn::load_map(Reg::R1, 0));
        push(&[Insn::call(helper::MAP_LOOKUP_ELEM)]);
        asm.jump(Insn::jump64(op::JEQ, Reg::R0, 0), end);
        if !looks_only {
            let record = (SHORT_HEADER_BYTES as u32 + SHORT_FRAME_MAX) as i32;
            let mut push = |insns: &[Insn]| insns.iter().for_each(|insn| asm.push(*insn));
            push(&[
                Insn::mov64(Reg::R1, Reg::R0),
                Insn::mov64(Reg::R2, record),
                Insn::mov64(Reg::R3, 0),
                Insn::call(helper::RINGBUF_RESERVE),
            ]);
            asm.jump(Insn::jump64(op::JEQ, Reg::R0, 0), end);
            let mut push = |insns: &[Insn]| insns.iter().for_each(|insn| asm.push(*insn));
            push(&[
                Insn::mov64(Reg::R1, Reg::R0),
                Insn::mov64(Reg::R2, 0),
                Insn::call(helper::RINGBUF_SUBMIT),
            ]);
        }
        asm.bind(end);
        asm.push(Insn::mov32(Reg::R0, 1));
        asm.push(Insn::exit());
        let insns = asm.finish(&Limits::default()).expect("a short program");
        let rings = self.maps.map(MapRole::Rings);
        let load = Load {
            name: "rings",
            maps: &[rings.as_fd(), state.as_fd()],
            ..Load::new(ProgramType::Xdp)
        };
        Program::load(&insns, &load).expect("it loads")
    }
}

/// The first flow's destination port and source address.
const PORT: u16 = 2000;
const SRC: u32 = 0x0a00_0000;

/// How many flows there are in the frames, and in which order they come.
pub(crate) struct Flows {
    pub(crate) count: u32,
    pub(crate) scattered: bool,
}

/// The connection of a flow.
pub(crate) fn flow(number: u32) -> FiveTuple {
    FiveTuple {
        src: SRC + number / 1024,
        dst: 0xc0a8_0001,
        src_port: 777,
        dst_port: PORT + (number % 1024) as u16,
        protocol: UDP,
    }
}

/// The filter of one connection.
pub(crate) fn connection(tuple: &FiveTuple) -> String {
    let (src, dst) = (
        std::net::Ipv4Addr::from(tuple.src),
        std::net::Ipv4Addr::from(tuple.dst),
    );
    format!(
        "ip and udp and src host {src} and dst host {dst} and src port {} and dst port {}",
        tuple.src_port, tuple.dst_port
    )
}
