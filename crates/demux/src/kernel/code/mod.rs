//! The program that runs a plan on a frame.
//!
//! Registers: r6 the context, r7 this CPU's scratch memory, r8 the frame's
//! length; r9 what a part needs over calls; r0 to r5 what is at hand.
//!
//! What loops count and remember is in scratch memory, where the verifier
//! knows nothing of it: so it has seen all of a loop after two rounds, and
//! the time it takes grows with the length of the program only. `may_goto`
//! proves to it that each loop ends (Linux 6.9).

mod candidates;
mod dedup_mark;
mod deliver;
mod eval;
mod fanout;
mod frame;
mod opaque;
mod prune;
mod resolve;

pub(super) use opaque::LOAD_JUMPS;

use super::decision_tree::Node;
use super::expr::Expr;
use super::layout::{UNIT_BYTES, scratch};
use super::limits;
use super::maps::{Half, Hook, Lowered, MapRole};
use super::plan::KernelPlan;
use weir_filter::backend::ebpf::{Asm, EmitError, Insn, Label, Limits, Reg, Src, helper, op};

/// Why a plan was not lowered.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the plan cannot become a program for the kernel: {0}")]
pub struct LowerError(#[from] EmitError);

/// The context of the program.
const CONTEXT: Reg = Reg::R6;
/// This CPU's scratch memory.
const SCRATCH: Reg = Reg::R7;
/// The frame's length.
const LEN: Reg = Reg::R8;
/// Outlives calls.
const CALLEE_SAVED: Reg = Reg::R9;

/// `if may_goto`: the jump is taken when a program has gone round too often,
/// eight million times; the verifier takes it as an end of the loop.
const MAY_GOTO: u8 = op::JMP | 0xe0;

/// Places of the maps, as [`KernelPlan::maps`] gives them.
fn place(part: MapRole) -> u16 {
    match part {
        MapRole::Scratch => 0,
        MapRole::Index => 1,
        MapRole::Store => 2,
        MapRole::Rings => 3,
        MapRole::Ports => 4,
        MapRole::Counters => 5,
        MapRole::XdpDelivery => 6,
        MapRole::TcDelivery => 7,
    }
}

impl KernelPlan {
    /// Half of the program for a hook. Call [`prepare_recompile`](Self::prepare_recompile) before the
    /// subtables' half, now and then. The second half is needed if
    /// [`has_second_half`](Self::has_second_half).
    ///
    /// # Errors
    /// If it becomes too long for the kernel.
    pub fn program(&self, hook: Hook, half: Half) -> Result<Lowered, LowerError> {
        let mut coder = Coder::new(self, hook);
        match half {
            Half::Subtables => coder.subtables()?,
            Half::Delivery => coder.delivery(),
        }
        Ok(Lowered {
            insns: coder.asm.finish(&Limits::default())?,
            maps: self.maps(),
            subtables: self.subtables.len(),
            opaque: self.opaque.len(),
        })
    }
}

impl KernelPlan {
    /// Whether the first half of the program for a hook goes on to the second one.
    pub fn has_second_half(&self, hook: Hook) -> bool {
        !self.passes_all() && !self.is_single_program(hook)
    }

    /// Whether no frame can have a receiver: the program is a few instructions.
    fn passes_all(&self) -> bool {
        self.subtables.is_empty() && self.opaque.is_empty()
    }

    fn is_single_program(&self, hook: Hook) -> bool {
        let is_ingress = hook != Hook::TcEgress;
        is_ingress && self.subtables.len() <= SINGLE_PROGRAM_MAX && self.opaque.is_empty()
    }

    /// Subtables that have come since the others were ordered, in parts.
    pub(super) fn newcomers_of(&self, trees: &[Vec<Node>]) -> Vec<Vec<Node>> {
        let mut ordered = Vec::new();
        let nodes = trees.iter().flatten();
        nodes.for_each(|node| node.subtables(&mut ordered));
        let new = self
            .subtables
            .keys()
            .filter(|number| !ordered.contains(number) && !self.prunes(**number));
        let new: Vec<Node> = new.map(|number| Node::Subtable(*number)).collect();
        let parts = new.chunks(scratch::CANDIDATES_MAX as usize);
        parts.map(<[Node]>::to_vec).collect()
    }
}

/// With at most this many subtables the first half has the second half's code too,
/// at XDP and at tc ingress: a frame is spared the tail call, some 20 ns, and
/// loading takes some 3 ms more.
const SINGLE_PROGRAM_MAX: usize = 8;

impl Coder<'_> {
    /// The first half: a frame's candidates. Those of the last part of the
    /// tree are left to the second half, unless opaque filters come behind.
    fn subtables(&mut self) -> Result<(), EmitError> {
        if self.plan.passes_all() {
            self.mov(CONTEXT, Reg::R1);
            self.end();
            return Ok(());
        }
        self.frame();
        let parts = [
            self.plan.trees.clone(),
            self.plan.newcomers_of(&self.plan.trees),
        ]
        .concat();
        let later = usize::from(self.plan.opaque.is_empty());
        if self.plan.is_single_program(self.hook) {
            parts
                .iter()
                .for_each(|part| self.nodes(part, &mut Vec::new()));
            let done = self.asm.label();
            self.resolve(done);
            self.asm.bind(done);
            self.deliver();
            self.flow_routine();
            return Ok(());
        }
        let plan = self.plan;
        let is_opaque = plan.opaque.iter().any(|whole| self.is_fanout(whole));
        let resolves = parts.len() > later || plan.pruning.is_some();
        if is_opaque || plan.fans_out() && resolves {
            self.hash_flow_now();
        }
        if let Some(pruning) = &plan.pruning {
            self.pruned(pruning);
        }
        for (number, part) in parts.iter().enumerate() {
            self.checked = 0;
            self.nodes(part, &mut Vec::new());
            if number + later < parts.len() {
                let done = self.asm.label();
                self.resolve(done);
                self.asm.bind(done);
            }
        }
        for whole in &self.plan.opaque {
            self.opaque(whole)?;
        }
        let is_one_part = parts.len() <= 1 && later == 1 && self.plan.pruning.is_none();
        self.go_on(is_one_part);
        self.end();
        if self.is_tc() {
            self.load_routine();
        }
        self.flow_routine();
        Ok(())
    }

    /// On to the second half, if anything was found: a candidate, or else.
    fn go_on(&mut self, candidates_only: bool) {
        let pass = self.pass;
        self.get(op::W, Reg::R1, SCRATCH, scratch::CANDIDATES);
        if candidates_only {
            self.branch(op::JEQ, Reg::R1, 0, pass);
        } else {
            let found = self.asm.label();
            self.branch(op::JNE, Reg::R1, 0, found);
            self.get(op::W, Reg::R1, SCRATCH, scratch::MATCHES);
            self.branch(op::JNE, Reg::R1, 0, found);
            self.get(op::DW, Reg::R1, SCRATCH, scratch::BEST);
            self.branch(op::JEQ, Reg::R1, -1, pass);
            self.asm.bind(found);
        }
        self.mov(Reg::R1, CONTEXT);
        self.map(Reg::R2, self.hook.delivery_role());
        self.mov(Reg::R3, self.hook.place() as i32);
        self.push(Insn::call(helper::TAIL_CALL));
    }

    /// The second half: entries, and deliveries.
    fn delivery(&mut self) {
        let done = self.asm.label();
        self.mov(CONTEXT, Reg::R1);
        self.own_scratch();
        self.resolve(done);
        self.asm.bind(done);
        self.deliver();
        self.flow_routine();
    }
}

/// A program under construction.
struct Coder<'p> {
    plan: &'p KernelPlan,
    hook: Hook,
    asm: Asm,
    /// Bytes of the frame's start that are copied.
    head: u32,
    /// The frame is known to have as many bytes.
    checked: u32,
    /// Where to go if nothing is to be done.
    pass: Label,
    /// The routine that loads bytes of a frame whose VLAN tag was taken out.
    load: Label,
    /// The routine that finds the bucket of the frame's flow.
    flow: Label,
    /// The frame's flow is hashed at the start.
    is_hashed: bool,
    /// The expressions whose values are in scratch memory, in the order of
    /// [`scratch::SHARED`].
    shared: Vec<&'p Expr>,
}

impl<'p> Coder<'p> {
    fn new(plan: &'p KernelPlan, hook: Hook) -> Coder<'p> {
        let mut asm = Asm::new();
        let [pass, load, flow] = [(); 3].map(|()| asm.label());
        Coder {
            plan,
            hook,
            head: eval::head_bytes(plan),
            asm,
            checked: 0,
            pass,
            load,
            flow,
            is_hashed: false,
            shared: Vec::new(),
        }
    }

    fn is_tc(&self) -> bool {
        self.hook != Hook::Xdp
    }

    /// The helper that loads bytes from anywhere in the frame.
    fn load_helper(&self) -> i32 {
        match self.hook {
            Hook::Xdp => helper::XDP_LOAD_BYTES,
            Hook::TcIngress | Hook::TcEgress => helper::SKB_LOAD_BYTES,
        }
    }

    fn push(&mut self, insn: Insn) {
        self.asm.push(insn);
    }

    fn mov(&mut self, dst: Reg, src: impl Into<Src>) {
        self.push(Insn::mov64(dst, src));
    }

    fn add(&mut self, dst: Reg, src: impl Into<Src>) {
        self.push(Insn::alu64(op::ADD, dst, src));
    }

    fn alu(&mut self, operation: u8, dst: Reg, src: impl Into<Src>) {
        self.push(Insn::alu64(operation, dst, src));
    }

    fn get(&mut self, size: u8, dst: Reg, base: Reg, at: i16) {
        self.push(Insn::load(size, dst, base, at));
    }

    fn set(&mut self, size: u8, base: Reg, at: i16, src: impl Into<Src>) {
        self.push(Insn::store(size, base, at, src));
    }

    /// The frame's length, without bounds that the verifier knows: what
    /// comparisons prove would make it visit the same code again.
    fn reload_len(&mut self) {
        self.get(op::W, LEN, SCRATCH, scratch::LEN);
    }

    /// Jumps if `a condition b`, 64 bits, unsigned.
    fn branch(&mut self, condition: u8, a: Reg, b: impl Into<Src>, to: Label) {
        self.asm.jump(Insn::jump64(condition, a, b), to);
    }

    fn constant(&mut self, dst: Reg, constant: u64) {
        for insn in Insn::load64(dst, constant) {
            self.push(insn);
        }
    }

    fn map(&mut self, dst: Reg, part: MapRole) {
        for insn in Insn::load_map(dst, place(part)) {
            self.push(insn);
        }
    }

    /// `dst` = the address of byte `offset` of a map of one value.
    fn map_value(&mut self, dst: Reg, part: MapRole, offset: u32) {
        for insn in Insn::load_map_value(dst, place(part), offset) {
            self.push(insn);
        }
    }

    /// `dst` = the address of the unit whose number it holds; leaves for
    /// `outside` unless `units` units from there are in the store.
    fn unit(&mut self, dst: Reg, through: Reg, units: u32, outside: Label) {
        let last = self.plan.image.units - units;
        self.branch(op::JGT, dst, last as i32, outside);
        self.alu(op::LSH, dst, 6);
        self.map_value(through, MapRole::Store, 0);
        self.add(dst, through);
    }

    /// `dst` = the address of the entry whose number it holds; leaves for
    /// `outside` if there is none of that number.
    fn entry(&mut self, dst: Reg, through: Reg, outside: Label) {
        let size = self.plan.image.table.size();
        let last = size.spare + size.cells - 1;
        self.branch(op::JGT, dst, last as i32, outside);
        self.entry_address(dst, through);
    }

    /// `dst` = the address of an entry that is known to be there.
    fn entry_address(&mut self, dst: Reg, through: Reg) {
        self.alu(op::LSH, dst, UNIT_BYTES.ilog2() as i32);
        self.map_value(through, MapRole::Index, 0);
        self.add(dst, through);
    }

    /// The loop goes on from here; to `out` if it does not end.
    fn round(&mut self, out: Label) {
        let insn = Insn {
            code: MAY_GOTO,
            ..Insn::goto(0)
        };
        self.asm.jump(insn, out);
    }
}
