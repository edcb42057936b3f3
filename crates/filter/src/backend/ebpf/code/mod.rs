//! Code generation: turns steps into instructions.

mod arith;
mod flow;
mod loads;

use super::asm::{Asm, Label};
use super::insn::{Insn, Reg, Src, op};
use super::lower::{Lowered, Mode, Step, cut, lower};
use super::regalloc::{LiveIntervals, Location, RegisterFile};
use super::required_len::analyse;
use super::{Access, EmitError, Fragment, LoadJumps, STACK_BYTES};
use crate::ir::{BinOp, Block, Operand, Program, Term, Value};

/// Maximum number of conditional jumps on one path with the normal layout. Longer paths
/// are laid out so that the verifier has fewer pending states; its limit is 8,192.
const PATH_JUMPS_MAX: u32 = 7_000;

/// Adds the code of `program` to `asm`; implements [`super::emit_fragment`].
pub(super) fn generate(
    asm: &mut Asm,
    program: &Program,
    fragment: &Fragment,
) -> Result<(), EmitError> {
    let (mode, jumps) = match fragment.access {
        Access::Direct { .. } => (Mode::Direct, LoadJumps::default()),
        Access::Call { .. } => (Mode::Call, LoadJumps::default()),
        Access::Routine { jumps, .. } => (Mode::Call, jumps),
    };
    let lowered = lower(program, &analyse(program, mode.reach_max()), mode);
    let (locations, scratch) = allocate(program, &lowered, fragment)?;
    let labels = program.blocks.iter().map(|_| asm.label()).collect();
    let heights = heights(program, &lowered, jumps);
    let mut coder = Coder {
        asm,
        program,
        fragment,
        lowered: &lowered,
        locations,
        scratch,
        labels,
        deep: heights.first().copied().unwrap_or(0) > PATH_JUMPS_MAX,
        heights,
        last_uses: last_uses(program),
    };
    if lowered.blocks.first().is_none_or(Option::is_none) {
        coder.asm.goto(fragment.reject);
    }
    for index in 0..program.blocks.len() {
        coder.block(Block(index as u32));
    }
    Ok(())
}

/// Assigns locations to all values, and two scratch registers without values. The
/// second is reserved only if a step needs it.
fn allocate(
    program: &Program,
    lowered: &Lowered,
    fragment: &Fragment,
) -> Result<(Vec<Location>, [Reg; 2]), EmitError> {
    let lives = LiveIntervals::new(program, lowered);
    let slots_max = (STACK_BYTES + i32::from(fragment.stack_top)) / 8;
    let mut room = RegisterFile {
        regs: &[],
        stack_top: fragment.stack_top,
        slots_max: usize::try_from(slots_max).unwrap_or(0),
    };
    if let Access::Call { .. } | Access::Routine { .. } = fragment.access {
        let kept = |reg: &Reg| ![Reg::R1, Reg::R2].contains(reg);
        let regs: Vec<Reg> = fragment.free.iter().copied().filter(kept).collect();
        room = RegisterFile {
            regs: &regs,
            stack_top: room.stack_top - 8,
            slots_max: room.slots_max.saturating_sub(1),
        };
        return Ok((lives.allocate(&room)?, [Reg::R1, Reg::R2]));
    }
    let [regs @ .., second, first] = fragment.free else {
        panic!("a fragment needs two free registers, and better more");
    };
    let most = &fragment.free[..regs.len() + 1];
    room.regs = most;
    let in_registers =
        |locations: &[Location]| !locations.iter().any(|p| matches!(p, Location::Slot(_)));
    if let Ok(locations) = lives.allocate(&room)
        && in_registers(&locations)
        && !lowered
            .blocks
            .iter()
            .flatten()
            .flatten()
            .any(shifts_by_value)
    {
        return Ok((locations, [*first, *first]));
    }
    room.regs = regs;
    Ok((lives.allocate(&room)?, [*first, *second]))
}

fn shifts_by_value(step: &Step) -> bool {
    matches!(
        step,
        Step::Bin {
            op: BinOp::Shl | BinOp::Shr,
            b: Operand::Val(_),
            ..
        }
    )
}

/// For each block, the number of conditional jumps on the longest path from it, with
/// those of the load routine.
fn heights(program: &Program, lowered: &Lowered, jumps: LoadJumps) -> Vec<u32> {
    let mut heights = vec![0; program.blocks.len()];
    for (index, steps) in lowered.blocks.iter().enumerate().rev() {
        let Some(steps) = steps else { continue };
        let term = &program.blocks[index].term;
        let behind = term.edges().map(|edge| heights[edge.block.index()]);
        let own: u32 = steps.iter().map(|step| step_jumps(*step, jumps)).sum();
        heights[index] = behind.max().unwrap_or(0) + own + 1;
    }
    heights
}

/// The maximum number of conditional jumps of a step on one path: two of its own if it
/// may reject, and those of the load routine.
fn step_jumps(step: Step, jumps: LoadJumps) -> u32 {
    let own = if step.may_reject() { 2 } else { 0 };
    match step {
        Step::Fetch { base: None, .. } => own + jumps.constant,
        Step::Fetch { base: Some(_), .. } => own + jumps.computed,
        _ => own,
    }
}

/// Implements [`super::path_jumps`].
pub(super) fn path_jumps(program: &Program, jumps: LoadJumps) -> u32 {
    let lowered = lower(
        program,
        &analyse(program, Mode::Call.reach_max()),
        Mode::Call,
    );
    heights(program, &lowered, jumps)
        .first()
        .copied()
        .unwrap_or(0)
}

/// For each value, the last block that uses it in an instruction or terminator.
fn last_uses(program: &Program) -> Vec<usize> {
    let mut last = vec![0; program.values.len()];
    for (index, block) in program.blocks.iter().enumerate() {
        let computed = block.insts.iter().map(|value| program.op(*value));
        let computed = computed.flat_map(|op| op.operands());
        let passed = block
            .term
            .edges()
            .flat_map(|edge| edge.args.iter().copied());
        let used = computed.chain(block.term.operands()).chain(passed);
        for value in used.filter_map(Operand::value) {
            last[value.index()] = index;
        }
    }
    last
}

struct Coder<'a> {
    asm: &'a mut Asm,
    program: &'a Program,
    fragment: &'a Fragment<'a>,
    lowered: &'a Lowered,
    locations: Vec<Location>,
    scratch: [Reg; 2],
    labels: Vec<Label>,
    heights: Vec<u32>,
    /// Whether paths are so long that the shorter branch must come first.
    deep: bool,
    /// For each value, the last block that uses it.
    last_uses: Vec<usize>,
}

impl Coder<'_> {
    fn block(&mut self, block: Block) {
        let lowered = self.lowered;
        let Some(steps) = &lowered.blocks[block.index()] else {
            return;
        };
        self.asm.bind(self.labels[block.index()]);
        for step in steps {
            self.step(*step);
        }
        if cut(steps) {
            return;
        }
        let program = self.program;
        match &program.block(block).term {
            Term::Return(verdict) => self.ret(*verdict),
            Term::Jump(edge) => self.edge(edge),
            Term::Branch {
                cmp,
                a,
                b,
                then,
                otherwise,
            } => self.branch(block, *cmp, (*a, *b), then, otherwise),
        }
    }

    fn location(&self, value: Value) -> Location {
        self.locations[value.index()]
    }

    /// A register with `value`: its own, or `scratch` after a reload.
    fn read(&mut self, value: Value, scratch: Reg) -> Reg {
        match self.location(value) {
            Location::Reg(reg) => reg,
            Location::Slot(slot) => {
                self.asm.push(Insn::load(op::DW, scratch, Reg::FP, slot));
                scratch
            }
            Location::Nowhere => unreachable!("{value} is read but has no location"),
        }
    }

    fn read_operand(&mut self, operand: Operand, scratch: Reg) -> Src {
        match operand {
            Operand::Imm(constant) => Src::Imm(constant as i32),
            Operand::Val(value) => Src::Reg(self.read(value, scratch)),
        }
    }

    /// The register to compute `dst` in, before [`write`](Self::write).
    fn target(&self, dst: Value) -> Reg {
        match self.location(dst) {
            Location::Reg(reg) => reg,
            _ => self.scratch[0],
        }
    }

    fn write(&mut self, dst: Value, from: Reg) {
        if let Location::Slot(slot) = self.location(dst) {
            self.asm.push(Insn::store(op::DW, Reg::FP, slot, from));
        }
    }

    fn mov32(&mut self, dst: Reg, src: Src) {
        if src != Src::Reg(dst) {
            self.asm.push(Insn::mov32(dst, src));
        }
    }

    /// Jumps to `label` if the comparison holds.
    fn leave_if(&mut self, insn: Insn, inverse: u8, label: Label) {
        if self.deep {
            let on = self.asm.label();
            let code = insn.code & 0x0f | inverse;
            self.asm.jump(Insn { code, ..insn }, on);
            self.asm.goto(label);
            self.asm.bind(on);
        } else {
            self.asm.jump(insn, label);
        }
    }

    fn short_if(&mut self, insn: Insn, inverse: u8) {
        self.leave_if(insn, inverse, self.fragment.short);
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Short => self.asm.goto(self.fragment.short),
            Step::Len { dst } => self.wire_len(dst),
            Step::Address { dst, base, max } => self.address(dst, base, max),
            Step::Guard { from, extent } => self.guard(from, extent),
            Step::Load {
                dst,
                from,
                offset,
                width,
            } => self.load(dst, from, offset, width),
            Step::Fetch { dst, .. } => self.fetch(step, dst),
            Step::NonZero { value } => {
                let reg = self.read(value, self.scratch[0]);
                self.leave_if(Insn::jump32(op::JEQ, reg, 0), op::JNE, self.fragment.reject);
            }
            Step::Bin { dst, op, a, b } => self.bin(dst, op, a, b),
            Step::Test { dst, cmp, a, b } => self.test(dst, cmp, a, b),
        }
    }
}
