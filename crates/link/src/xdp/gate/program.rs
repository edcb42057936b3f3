//! Generates the programs at a tap's links. The programs are fixed; all settings are in the shared
//! page.
//!
//! ```text
//!  (metered: first counted)
//!             gate shut ─────────────────────────────────────────────────────────────┐
//!  frame ─► gate? ─► owner alive? ─► host filter ─► flow cache ─► heartbeat? ─► XSK  │
//!                        │ all died                                  │ behind        ▼
//!                        └───────────────────────────────────────────┴─► shut it ─► bypass
//!                                                                         (wire │ kernel │ drop)
//! ```
//!
//! The heartbeat is loaded before the clock, and the difference is compared as a signed number: a
//! beat in between does not count as a hang. Gate and epoch are one word, so that a frame carries
//! the epoch in which it was admitted.
//!
//! Where frames are metered ([`MeterStage`]) that comes before all else, so that
//! a frame is counted once whatever happens to it here. Where the process translates them, each is
//! counted when its way is decided, and those for the XSK by the process.
//!
//! Frames for the host's own protocols ([`HostFilter`]) go on to them while a process is alive,
//! whatever its heartbeat, and do not wake the process.
//!
//! Where there are cached verdicts ([`flow_cache`](crate::xdp::flow_cache)) they are asked
//! between host filter and heartbeat: the filter may read fields, such as ports, that the key of an
//! entry does not have. While the process sleeps they hold as long as its lease; a frame that
//! they answer does not wake it.

use super::GateError;
use super::liveness::{LOCK_WORD, THREADS};
use super::shared_page::{BypassReason, MEMBERS_MAX, QUEUES_MAX, SharedPage, at};
use crate::bpf::{Load, LoadError, Map, Program, ProgramType};
use crate::xdp::abi::{
    DATA, DATA_END, DATA_META, JSGT, JSLE, KTIME_GET_COARSE_NS, RX_QUEUE, XDP_ADJUST_META,
    XDP_DROP, XDP_PASS, XDP_REDIRECT, atomic_add, compare_exchange, fetch_add,
};
use crate::xdp::flow_cache::{FlowMaps, FlowProgramSpec, program as flow_program};
use crate::xdp::host_filter::HostFilter;
use crate::xdp::meter::MeterStage;
use crate::xdp::meter::program::{ZERO, emit_handed};
use std::os::fd::{AsFd, BorrowedFd};
use weir_filter::backend::ebpf::{
    Access, Asm, EmitError, Fragment, Insn, Label, Limits, Reg, WireLen, emit_fragment, helper, op,
};

/// The XDP program's name in the kernel.
pub(in crate::xdp) const PROGRAM_NAME: &str = "weir_tap";

/// `TCX_NEXT`.
const TCX_NEXT: i32 = -1;

const CTX: Reg = Reg::R6;
const PAGE: Reg = Reg::R7;
const BEAT: Reg = Reg::R8;
/// Holds the frame's number in its upper half, once the heartbeat is no longer needed.
const NUMBER: Reg = Reg::R8;
const GATE: Reg = Reg::R9;

/// Stack offset: the gate word, while the flow cache uses its register.
const SAVED_GATE: i16 = flow_program::CALLER_SAVED;
/// Stack offset: what becomes of a frame that is counted when its way is decided: an XDP action, or 0
/// for the bypass. The flow cache does not need its time any more.
const VERDICT: i16 = flow_program::NOW;
/// Stack offset: the length of the whole frame, if the host filter needs it.
const LENGTH: i16 = -16;

/// Indices of the maps; the flow cache's maps follow.
const STATE_MAP: u16 = 0;
const XSKS_MAP: u16 = 1;
const PEERS_MAP: u16 = 2;

/// The key in the XSKMAP of a link's queue.
pub(in crate::xdp) fn socket_key(link: u32, queue: u32) -> u32 {
    link * QUEUES_MAX + queue
}

/// Generates the XDP program of link number `link`, with these maps: shared page, XSKMAP, joined
/// links. With the maps of `flow_cache`, and whether the link's checksums may be partial; and with
/// the filter of the host's frames. `meter` counts each frame first, or when its way is decided.
pub(in crate::xdp) fn xdp(
    link: u32,
    maps: [&Map; 3],
    flow_cache: Option<(&FlowMaps, bool)>,
    host: Option<&HostFilter>,
    meter: Option<&MeterStage>,
) -> Result<Program, GateError> {
    let spec = flow_cache.map(|(flow_maps, completes)| flow_maps.spec(completes));
    let maps = self::maps(maps, flow_cache.map(|(flow_maps, _)| flow_maps));
    load(link, &maps, spec, host, meter)
}

/// The maps of a program, in the order of their indices.
pub(in crate::xdp) fn maps<'a>(
    maps: [&'a Map; 3],
    flow_maps: Option<&'a FlowMaps>,
) -> Vec<BorrowedFd<'a>> {
    let flow_maps = flow_maps.into_iter().flat_map(FlowMaps::maps);
    maps.into_iter().map(AsFd::as_fd).chain(flow_maps).collect()
}

/// Loads the XDP program of a link, with these [`maps`].
pub(in crate::xdp) fn load(
    link: u32,
    maps: &[BorrowedFd<'_>],
    flow_cache: Option<FlowProgramSpec>,
    host: Option<&HostFilter>,
    meter: Option<&MeterStage>,
) -> Result<Program, GateError> {
    let stage = meter.map(|stage| (stage, maps.len() as u16));
    let insns = Xdp::new(link, flow_cache).assemble(host, stage)?;
    let of_stage = meter.into_iter().flat_map(MeterStage::maps);
    let maps: Vec<BorrowedFd<'_>> = maps.iter().copied().chain(of_stage).collect();
    let load = Load {
        name: PROGRAM_NAME,
        frags: true,
        maps: &maps,
        ..Load::new(ProgramType::Xdp)
    };
    Ok(Program::load(&insns, &load)?)
}

/// Whether a host filter fits into the program.
pub(in crate::xdp) fn check(host: &HostFilter) -> Result<(), EmitError> {
    Xdp::new(0, None).assemble(Some(host), None).map(drop)
}

/// Generates the program at tc ingress, which redirects the frames that XDP passed for the bypass.
pub(in crate::xdp) fn tc(peer: u32, page: &Map) -> Result<Program, LoadError> {
    let mut asm = Asm::new();
    let next = asm.label();
    let [first, second] = Insn::load_map_value(PAGE, STATE_MAP, 0);
    asm.push(first);
    asm.push(second);
    asm.push(Insn::load(op::W, Reg::R1, PAGE, at::BYPASS as i16));
    let wire = crate::xdp::Bypass::Wire.number() as i32;
    asm.jump(Insn::jump64(op::JNE, Reg::R1, wire), next);
    asm.push(Insn::mov32(Reg::R1, peer as i32));
    asm.push(Insn::mov32(Reg::R2, 0));
    asm.push(Insn::call(helper::REDIRECT));
    asm.push(Insn::exit());
    asm.bind(next);
    asm.push(Insn::mov32(Reg::R0, TCX_NEXT));
    asm.push(Insn::exit());
    let load = Load {
        name: "weir_tap_wire",
        maps: &[page.as_fd()],
        ..Load::new(ProgramType::SchedCls)
    };
    let insns = asm.finish(&Limits::default());
    Program::load(&insns.expect("the program is short"), &load)
}

struct Xdp {
    asm: Asm,
    link: u32,
    flow_cache: Option<FlowProgramSpec>,
    decided: Option<Decided>,
    died: Label,
    hung: Label,
    bypass: Label,
}

/// Where frames are counted when their way is decided. The verifier follows the routine once for each
/// place that calls it.
#[derive(Clone, Copy)]
struct Decided {
    /// The routine that counts.
    routine: Label,
    /// Where its maps begin.
    first_place: u16,
    /// Counts a frame as it came, then does as [`VERDICT`] says. r7 is the page.
    count: Label,
    /// Drops a frame that the flow cache holds back.
    held_back: Label,
}

impl Xdp {
    fn new(link: u32, flow_cache: Option<FlowProgramSpec>) -> Xdp {
        let mut asm = Asm::new();
        let [died, hung, bypass] = [(); 3].map(|()| asm.label());
        Xdp {
            asm,
            link,
            flow_cache,
            decided: None,
            died,
            hung,
            bypass,
        }
    }

    fn push(&mut self, insns: &[Insn]) {
        insns.iter().for_each(|insn| self.asm.push(*insn));
    }

    /// With a stage that counts, whose maps begin at that place.
    fn assemble(
        mut self,
        host: Option<&HostFilter>,
        meter: Option<(&MeterStage, u16)>,
    ) -> Result<Vec<Insn>, EmitError> {
        let routines = match meter {
            Some((stage, first_place)) if stage.counts_decided() => {
                let [routine, count, held_back] = [(); 3].map(|()| self.asm.label());
                self.decided = Some(Decided {
                    routine,
                    first_place,
                    count,
                    held_back,
                });
                self.push(&[Insn::mov64(CTX, Reg::R1)]);
                None
            }
            Some((stage, first_place)) => {
                let routines = stage.emit(&mut self.asm, first_place)?;
                Some((stage, routines))
            }
            None => {
                self.push(&[Insn::mov64(CTX, Reg::R1)]);
                None
            }
        };
        self.push(&Insn::load_map_value(PAGE, STATE_MAP, 0));
        self.liveness(host)?;
        self.stamp();
        self.redirect_to_xsk();
        let (died, hung, bypass) = (self.died, self.hung, self.bypass);
        // Without a socket the process is gone.
        self.asm.bind(died);
        self.shut(BypassReason::Died, at::DIED);
        self.asm.goto(bypass);
        self.asm.bind(hung);
        self.shut(BypassReason::Hung, at::HUNG);
        self.asm.bind(bypass);
        if let Some(decided) = self.decided {
            self.count(&decided);
        }
        self.around();
        if let Some((stage, routines)) = routines {
            stage.emit_routines(&mut self.asm, routines);
        }
        if let (Some(decided), Some((stage, first_place))) = (self.decided, meter) {
            stage.emit_routine(&mut self.asm, decided.routine, first_place)?;
        }
        self.asm.finish(&Limits::default())
    }

    /// Has the frame counted as it came, and then this become of it.
    fn count_and(&mut self, decided: &Decided, verdict: i32) {
        // By a number that the verifier does not know, so that all ways of a frame are one to it.
        self.push(&Insn::load_map_value(Reg::R1, decided.first_place, 0));
        self.push(&[
            Insn::load(op::DW, Reg::R1, Reg::R1, ZERO),
            Insn::alu64(op::ADD, Reg::R1, verdict),
            Insn::store(op::DW, Reg::FP, VERDICT, Reg::R1),
            Insn::mov64(BEAT, 0),
            Insn::mov64(GATE, 0),
        ]);
        self.asm.goto(decided.count);
    }

    /// Counts each frame that neither the flow cache nor the process forwards; falls through for the
    /// bypass.
    fn count(&mut self, decided: &Decided) {
        let bypass = self.asm.label();
        self.count_and(decided, 0);
        self.asm.bind(decided.held_back);
        self.push(&Insn::load_map_value(PAGE, STATE_MAP, 0));
        self.count_and(decided, XDP_DROP);
        self.asm.bind(decided.count);
        self.push(&[
            Insn::mov64(Reg::R1, CTX),
            Insn::call(helper::XDP_GET_BUFF_LEN),
            Insn::mov64(Reg::R2, Reg::R0),
            Insn::mov64(Reg::R1, CTX),
        ]);
        self.asm.call(decided.routine);
        self.push(&[Insn::load(op::DW, Reg::R0, Reg::FP, VERDICT)]);
        self.asm.jump(Insn::jump64(op::JEQ, Reg::R0, 0), bypass);
        self.push(&[Insn::exit()]);
        self.asm.bind(bypass);
    }

    /// Passes the host's frames. Of a frame in several fragments the filter sees the first.
    fn for_host(&mut self, host: &HostFilter) -> Result<(), EmitError> {
        let [accept, go_on] = [(); 2].map(|()| self.asm.label());
        if host.needs_len() {
            self.push(&[
                Insn::mov64(Reg::R1, CTX),
                Insn::call(helper::XDP_GET_BUFF_LEN),
                Insn::store(op::DW, Reg::FP, LENGTH, Reg::R0),
            ]);
        }
        self.push(&[
            Insn::load(op::W, Reg::R2, CTX, DATA),
            Insn::load(op::W, Reg::R3, CTX, DATA_END),
        ]);
        let fragment = Fragment {
            access: Access::Direct {
                start: Reg::R2,
                end: Reg::R3,
            },
            wire_len: WireLen::Stack(LENGTH),
            result: Reg::R0,
            free: &[Reg::R0, Reg::R1, Reg::R4, Reg::R5],
            stack_top: LENGTH,
            accept,
            reject: go_on,
            short: go_on,
            is_hidden: false,
        };
        emit_fragment(&mut self.asm, host.program(), &fragment)?;
        self.asm.bind(accept);
        self.push(&add(at::to_host(self.link)));
        match self.decided {
            Some(decided) => self.count_and(&decided, XDP_PASS),
            None => self.push(&[Insn::mov32(Reg::R0, XDP_PASS), Insn::exit()]),
        }
        self.asm.bind(go_on);
        Ok(())
    }

    /// Consults the flow cache if the process is alive. The cheap coarse clock is at most one tick
    /// behind; if that leaves a doubt, the exact clock is read too.
    fn lookup_flow_cache(&mut self, spec: &FlowProgramSpec) {
        let [awake, ask, miss] = [(); 3].map(|()| self.asm.label());
        self.push(&[
            Insn::call(KTIME_GET_COARSE_NS),
            Insn::store(op::DW, Reg::FP, flow_program::NOW, Reg::R0),
        ]);
        self.asm.jump(Insn::jump64(op::JNE, BEAT, 0), awake);
        self.push(&[Insn::load(op::DW, Reg::R1, PAGE, at::LEASE as i16)]);
        self.asm.jump(Insn::jump64(op::JGT, Reg::R0, Reg::R1), miss);
        self.asm.goto(ask);
        self.asm.bind(awake);
        self.push(&[
            Insn::alu64(op::SUB, Reg::R0, BEAT),
            Insn::load(op::DW, Reg::R1, PAGE, at::CONFIRMED_LIMIT as i16),
        ]);
        self.asm.jump(Insn::jump64(JSLE, Reg::R0, Reg::R1), ask);
        self.push(&[Insn::call(helper::KTIME_GET_NS)]);
        self.hung_if_stale();
        self.asm.bind(ask);
        self.push(&[Insn::store(op::DW, Reg::FP, SAVED_GATE, GATE)]);
        let decided = self.decided.map(|it| [it.routine, it.held_back]);
        flow_program::emit_lookup(&mut self.asm, self.link, spec, STATE_MAP, decided);
        // The cache has no entry. A later heartbeat is as good as the earlier one.
        self.push(&[Insn::load(op::DW, GATE, Reg::FP, SAVED_GATE)]);
        self.push(&Insn::load_map_value(PAGE, STATE_MAP, 0));
        self.push(&[Insn::load(op::DW, BEAT, PAGE, at::HEARTBEAT as i16)]);
        self.asm.bind(miss);
    }

    fn liveness(&mut self, host: Option<&HostFilter>) -> Result<(), EmitError> {
        self.push(&[
            Insn::load(op::DW, GATE, PAGE, at::GATE as i16),
            Insn::mov64(Reg::R1, GATE),
            Insn::alu64(op::AND, Reg::R1, 1),
        ]);
        let bypass = self.bypass;
        self.asm.jump(Insn::jump64(op::JEQ, Reg::R1, 0), bypass);
        self.anybody();
        self.push(&[Insn::load(op::DW, BEAT, PAGE, at::HEARTBEAT as i16)]);
        // A rule of the host's filter may read fields that no key has.
        if let Some(host) = host {
            self.for_host(host)?;
        }
        if let Some(spec) = self.flow_cache.take() {
            self.lookup_flow_cache(&spec);
            self.flow_cache = Some(spec);
        }
        self.push(&[Insn::call(helper::KTIME_GET_NS)]);
        let (awake, fine) = (self.asm.label(), self.asm.label());
        self.asm.jump(Insn::jump64(op::JNE, BEAT, 0), awake);
        // The process sleeps: this frame wakes it, and the hang limit counts from now.
        self.push(&[
            Insn::mov64(Reg::R1, Reg::R0),
            Insn::mov64(Reg::R0, 0),
            compare_exchange(PAGE, at::HEARTBEAT as i16, Reg::R1),
        ]);
        self.asm.goto(fine);
        self.asm.bind(awake);
        self.hung_if_stale();
        self.asm.bind(fine);
        Ok(())
    }

    /// r0 is the time.
    fn hung_if_stale(&mut self) {
        let hung = self.hung;
        self.push(&[
            Insn::alu64(op::SUB, Reg::R0, BEAT),
            Insn::load(op::DW, Reg::R1, PAGE, at::LIMIT as i16),
        ]);
        self.asm.jump(Insn::jump64(JSGT, Reg::R0, Reg::R1), hung);
    }

    /// Whether a living process holds a liveness lock; usually the first one.
    fn anybody(&mut self) {
        let alive = self.asm.label();
        for slot in 0..MEMBERS_MAX {
            let word = (at::liveness(slot) + LOCK_WORD) as i16;
            // 0 becomes the greatest number.
            self.push(&[
                Insn::load(op::W, Reg::R1, PAGE, word),
                Insn::alu64(op::SUB, Reg::R1, 1),
            ]);
            let threads = THREADS as i32;
            self.asm
                .jump(Insn::jump64(op::JLT, Reg::R1, threads), alive);
        }
        self.asm.goto(self.died);
        self.asm.bind(alive);
    }

    /// With a flow cache: numbers the frames of a queue from 1, in the order in which they arrive
    /// at the socket.
    fn number(&mut self) {
        let died = self.died;
        self.push(&[Insn::load(op::W, Reg::R2, CTX, RX_QUEUE)]);
        let queues = QUEUES_MAX as i32;
        self.asm.jump(Insn::jump64(op::JGE, Reg::R2, queues), died);
        self.push(&[
            Insn::alu64(op::MUL, Reg::R2, at::QUEUE_BYTES as i32),
            Insn::alu64(op::ADD, Reg::R2, PAGE),
            Insn::mov64(NUMBER, 1),
            fetch_add(Reg::R2, at::queue(self.link, 0) as i16, NUMBER),
            Insn::alu64(op::ADD, NUMBER, 1),
            Insn::alu64(op::LSH, NUMBER, 32),
        ]);
    }

    /// Writes the epoch and the number before the frame.
    fn stamp(&mut self) {
        let (none, done) = (self.asm.label(), self.asm.label());
        if self.flow_cache.is_some() {
            self.number();
        } else {
            self.push(&[Insn::mov64(NUMBER, 0)]);
        }
        self.push(&[
            Insn::mov64(Reg::R1, CTX),
            Insn::mov32(Reg::R2, -8),
            Insn::call(XDP_ADJUST_META),
        ]);
        self.asm.jump(Insn::jump64(op::JNE, Reg::R0, 0), none);
        self.push(&[
            Insn::load(op::W, Reg::R1, CTX, DATA_META),
            Insn::load(op::W, Reg::R2, CTX, DATA),
            Insn::mov64(Reg::R3, Reg::R1),
            Insn::alu64(op::ADD, Reg::R3, 8),
        ]);
        self.asm.jump(Insn::jump64(op::JGT, Reg::R3, Reg::R2), none);
        self.push(&[
            Insn::mov64(Reg::R2, GATE),
            Insn::alu64(op::RSH, Reg::R2, 32),
            Insn::alu64(op::OR, Reg::R2, NUMBER),
            Insn::store(op::DW, Reg::R1, 0, Reg::R2),
        ]);
        self.asm.goto(done);
        self.asm.bind(none);
        self.push(&add(at::NO_META));
        self.asm.bind(done);
    }

    fn redirect_to_xsk(&mut self) {
        let died = self.died;
        self.push(&[Insn::load(op::W, Reg::R2, CTX, RX_QUEUE)]);
        let queues = QUEUES_MAX as i32;
        self.asm.jump(Insn::jump64(op::JGE, Reg::R2, queues), died);
        let first = socket_key(self.link, 0) as i32;
        self.push(&[Insn::alu64(op::ADD, Reg::R2, first)]);
        self.push(&Insn::load_map(Reg::R1, XSKS_MAP));
        self.push(&[
            Insn::mov32(Reg::R3, XDP_PASS),
            Insn::call(helper::REDIRECT_MAP),
        ]);
        self.asm
            .jump(Insn::jump32(op::JNE, Reg::R0, XDP_REDIRECT), died);
        if let Some(Decided { first_place, .. }) = self.decided {
            self.push(&[
                Insn::mov64(Reg::R1, CTX),
                Insn::call(helper::XDP_GET_BUFF_LEN),
            ]);
            emit_handed(&mut self.asm, first_place);
            self.push(&[Insn::mov32(Reg::R0, XDP_REDIRECT)]);
        }
        self.push(&[Insn::exit()]);
    }

    /// Shuts the gate if it is unchanged since it was read, and stores the reason.
    fn shut(&mut self, why: BypassReason, counter: usize) {
        let bypass = self.bypass;
        self.push(&[
            Insn::mov64(Reg::R1, GATE),
            Insn::alu64(op::RSH, Reg::R1, 32),
            Insn::alu64(op::ADD, Reg::R1, 1),
            Insn::alu64(op::LSH, Reg::R1, 32),
            Insn::mov64(Reg::R0, GATE),
            compare_exchange(PAGE, at::GATE as i16, Reg::R1),
        ]);
        self.asm.jump(Insn::jump64(op::JNE, Reg::R0, GATE), bypass);
        let why = why.number() as i32;
        self.push(&[Insn::store(op::W, PAGE, at::SHUT_REASON as i16, why)]);
        self.push(&add(counter));
        self.push(&[
            Insn::call(helper::KTIME_GET_NS),
            Insn::store(op::DW, PAGE, at::SHUT_AT as i16, Reg::R0),
        ]);
    }

    fn around(&mut self) {
        let (wire, pass) = (self.asm.label(), self.asm.label());
        self.push(&add(at::LINKS + self.link as usize * at::LINK_BYTES));
        self.push(&[Insn::load(op::W, Reg::R1, PAGE, at::BYPASS as i16)]);
        let number = |bypass: crate::xdp::Bypass| bypass.number() as i32;
        let is_wire = Insn::jump64(op::JEQ, Reg::R1, number(crate::xdp::Bypass::Wire));
        self.asm.jump(is_wire, wire);
        let is_kernel = Insn::jump64(op::JEQ, Reg::R1, number(crate::xdp::Bypass::Kernel));
        self.asm.jump(is_kernel, pass);
        self.push(&[Insn::mov32(Reg::R0, XDP_DROP), Insn::exit()]);
        self.asm.bind(wire);
        // If the other link's driver does not accept redirected frames, the tc program redirects
        // them.
        self.push(&[
            Insn::load(op::W, Reg::R1, PAGE, at::FLOW_CACHE as i16),
            Insn::alu64(op::AND, Reg::R1, 1 << self.link),
        ]);
        self.asm.jump(Insn::jump64(op::JEQ, Reg::R1, 0), pass);
        self.push(&Insn::load_map(Reg::R1, PEERS_MAP));
        self.push(&[
            Insn::mov32(Reg::R2, self.link as i32),
            Insn::mov32(Reg::R3, XDP_PASS),
            Insn::call(helper::REDIRECT_MAP),
            Insn::exit(),
        ]);
        self.asm.bind(pass);
        self.push(&[Insn::mov32(Reg::R0, XDP_PASS), Insn::exit()]);
    }
}

/// Atomically increments a counter of the page.
fn add(at: usize) -> [Insn; 2] {
    [
        Insn::mov64(Reg::R1, 1),
        atomic_add(PAGE, at as i16, Reg::R1),
    ]
}

impl SharedPage {
    /// Whether the page has the layout that these programs use.
    pub(in crate::xdp) fn is_current(&self) -> bool {
        let version = self.atomic_u64(at::VERSION);
        version.load(std::sync::atomic::Ordering::Acquire) == super::shared_page::VERSION
    }
}
