//! From steps to instructions.

use super::alloc::{Lives, Place, Room};
use super::asm::{Asm, Label};
use super::insn::{Insn, Reg, Src, op};
use super::lower::{Lowered, Mode, Step, lower};
use super::reach::{CALL_MAX, DIRECT_MAX, analyse};
use super::{Access, EmitError, Fragment, STACK_BYTES, WireLen};
use crate::ir::{BinOp, Block, Cmp, Edge, Operand, Program, Term, Value, Width};

/// Conditional jumps on one path beyond which the code is laid out so that
/// the verifier does not pile them up: it gives up at 8,192.
const PATH_JUMPS_MAX: u32 = 7_000;

/// Adds the code of `program` to `asm`, as [`super::emit_fragment`] says.
pub(super) fn generate(
    asm: &mut Asm,
    program: &Program,
    fragment: &Fragment,
) -> Result<(), EmitError> {
    let (mode, max) = match fragment.access {
        Access::Direct { .. } => (Mode::Direct, DIRECT_MAX),
        Access::Call { .. } => (Mode::Call, CALL_MAX),
    };
    let lowered = lower(program, &analyse(program, max), mode);
    let (places, scratch) = allocate(program, &lowered, fragment)?;
    let labels = program.blocks.iter().map(|_| asm.label()).collect();
    let heights = heights(program, &lowered);
    let mut coder = Coder {
        asm,
        program,
        fragment,
        lowered: &lowered,
        places,
        scratch,
        labels,
        deep: heights.first().copied().unwrap_or(0) > PATH_JUMPS_MAX,
        heights,
    };
    if lowered.blocks.first().is_none_or(Option::is_none) {
        coder.asm.goto(fragment.reject);
    }
    for index in 0..program.blocks.len() {
        coder.block(Block(index as u32));
    }
    Ok(())
}

/// Places for all values, and two registers that hold none. The second is
/// only taken from the values when something needs it.
fn allocate(
    program: &Program,
    lowered: &Lowered,
    fragment: &Fragment,
) -> Result<(Vec<Place>, [Reg; 2]), EmitError> {
    let lives = Lives::new(program, lowered);
    let slots_max = (STACK_BYTES + i32::from(fragment.stack_top)) / 8;
    let mut room = Room {
        regs: &[],
        stack_top: fragment.stack_top,
        slots_max: usize::try_from(slots_max).unwrap_or(0),
    };
    if let Access::Call { .. } = fragment.access {
        let kept = |reg: &Reg| ![Reg::R1, Reg::R2].contains(reg);
        let regs: Vec<Reg> = fragment.free.iter().copied().filter(kept).collect();
        room = Room {
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
    let in_registers = |places: &[Place]| !places.iter().any(|p| matches!(p, Place::Slot(_)));
    if let Ok(places) = lives.allocate(&room)
        && in_registers(&places)
        && !lowered
            .blocks
            .iter()
            .flatten()
            .flatten()
            .any(shifts_by_value)
    {
        return Ok((places, [*first, *first]));
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

/// For each block the conditional jumps on the longest path from it.
fn heights(program: &Program, lowered: &Lowered) -> Vec<u32> {
    let mut heights = vec![0; program.blocks.len()];
    for (index, steps) in lowered.blocks.iter().enumerate().rev() {
        let Some(steps) = steps else { continue };
        let term = &program.blocks[index].term;
        let behind = term.edges().map(|edge| heights[edge.block.index()]);
        let own = steps.iter().filter(|step| step.may_reject()).count() as u32;
        heights[index] = behind.max().unwrap_or(0) + own * 2 + 1;
    }
    heights
}

struct Coder<'a> {
    asm: &'a mut Asm,
    program: &'a Program,
    fragment: &'a Fragment<'a>,
    lowered: &'a Lowered,
    places: Vec<Place>,
    scratch: [Reg; 2],
    labels: Vec<Label>,
    heights: Vec<u32>,
    /// Whether paths are so long that of two ways the shorter must come first.
    deep: bool,
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

    fn place(&self, value: Value) -> Place {
        self.places[value.index()]
    }

    /// A register that holds `value`: its own, or `scratch` after a reload.
    fn read(&mut self, value: Value, scratch: Reg) -> Reg {
        match self.place(value) {
            Place::Reg(reg) => reg,
            Place::Slot(slot) => {
                self.asm.push(Insn::load(op::DW, scratch, Reg::FP, slot));
                scratch
            }
            Place::Nowhere => unreachable!("{value} is read but has no place"),
        }
    }

    fn read_operand(&mut self, operand: Operand, scratch: Reg) -> Src {
        match operand {
            Operand::Imm(constant) => Src::Imm(constant as i32),
            Operand::Val(value) => Src::Reg(self.read(value, scratch)),
        }
    }

    /// Where to compute `dst`; [`write`](Self::write) follows.
    fn target(&self, dst: Value) -> Reg {
        match self.place(dst) {
            Place::Reg(reg) => reg,
            _ => self.scratch[0],
        }
    }

    fn write(&mut self, dst: Value, from: Reg) {
        if let Place::Slot(slot) = self.place(dst) {
            self.asm.push(Insn::store(op::DW, Reg::FP, slot, from));
        }
    }

    fn mov32(&mut self, dst: Reg, src: Src) {
        if src != Src::Reg(dst) {
            self.asm.push(Insn::mov32(dst, src));
        }
    }

    /// Rejects if the comparison holds.
    fn reject_if(&mut self, insn: Insn, inverse: u8) {
        if self.deep {
            let on = self.asm.label();
            let code = insn.code & 0x0f | inverse;
            self.asm.jump(Insn { code, ..insn }, on);
            self.asm.goto(self.fragment.reject);
            self.asm.bind(on);
        } else {
            self.asm.jump(insn, self.fragment.reject);
        }
    }

    fn step(&mut self, step: Step) {
        match step {
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
                self.reject_if(Insn::jump32(op::JEQ, reg, 0), op::JNE);
            }
            Step::Bin { dst, op, a, b } => self.bin(dst, op, a, b),
            Step::Test { dst, cmp, a, b } => self.test(dst, cmp, a, b),
        }
    }

    fn wire_len(&mut self, dst: Value) {
        let to = self.target(dst);
        match (self.fragment.wire_len, self.fragment.access) {
            (WireLen::Reg(reg), _) => self.mov32(to, reg.into()),
            (WireLen::Stack(slot), _) => self.asm.push(Insn::load(op::DW, to, Reg::FP, slot)),
            (WireLen::Span, Access::Direct { start, end }) => {
                self.asm.push(Insn::mov64(to, end));
                self.asm.push(Insn::alu64(op::SUB, to, start));
            }
            (WireLen::Span, Access::Call { .. }) => {
                unreachable!("emit_fragment refuses a span without pointers")
            }
        }
        self.write(dst, to);
    }

    fn address(&mut self, dst: Value, base: Value, max: Option<u32>) {
        let Access::Direct { start, .. } = self.fragment.access else {
            unreachable!("addresses are made for direct access only");
        };
        let to = self.target(dst);
        let from = self.read(base, to);
        // Of a value without a bound the verifier does not know either that
        // its upper half is zero: a move, also onto itself, tells it.
        if from != to || max.is_some() {
            self.asm.push(Insn::mov32(to, from));
        }
        if let Some(max) = max {
            self.reject_if(Insn::jump64(op::JGT, to, max as i32), op::JLE);
        }
        self.asm.push(Insn::alu64(op::ADD, to, start));
        self.write(dst, to);
    }

    /// The register of an address, or of the start of the frame.
    fn pointer(&mut self, from: Option<Value>) -> (Reg, Reg) {
        let Access::Direct { start, end } = self.fragment.access else {
            unreachable!("pointers are used with direct access only");
        };
        let from = from.map_or(start, |address| self.read(address, self.scratch[0]));
        (from, end)
    }

    fn guard(&mut self, from: Option<Value>, extent: u32) {
        let (from, end) = self.pointer(from);
        let probe = self.scratch[0];
        if from != probe {
            self.asm.push(Insn::mov64(probe, from));
        }
        self.asm.push(Insn::alu64(op::ADD, probe, extent as i32));
        self.reject_if(Insn::jump64(op::JGT, probe, end), op::JLE);
    }

    fn load(&mut self, dst: Value, from: Option<Value>, offset: u32, width: Width) {
        let (mut from, _) = self.pointer(from);
        let to = self.target(dst);
        let near = i16::try_from(offset).unwrap_or_else(|_| {
            // The offset in an instruction is signed and has 16 bits.
            let probe = self.scratch[0];
            if from != probe {
                self.asm.push(Insn::mov64(probe, from));
                from = probe;
            }
            self.asm.push(Insn::alu64(op::ADD, probe, offset as i32));
            0
        });
        self.load_be(to, from, near, width);
        self.write(dst, to);
    }

    fn load_be(&mut self, to: Reg, from: Reg, offset: i16, width: Width) {
        let (size, bits) = match width {
            Width::B1 => (op::B, 8),
            Width::B2 => (op::H, 16),
            Width::B4 => (op::W, 32),
        };
        self.asm.push(Insn::load(size, to, from, offset));
        if bits > 8 {
            self.asm.push(Insn::to_be(to, bits));
        }
    }

    /// `helper(context, offset, buffer, length)` gives zero if all was there.
    fn fetch(&mut self, step: Step, dst: Option<Value>) {
        let (
            Access::Call { helper, context },
            Step::Fetch {
                base,
                offset,
                width,
                max,
                ..
            },
        ) = (self.fragment.access, step)
        else {
            unreachable!("fetches are made for access by calls only");
        };
        let buffer = self.fragment.stack_top - 8;
        // The base may live in an argument's register: it is read first.
        match base {
            None => self.asm.push(Insn::mov32(Reg::R2, offset as i32)),
            Some(base) => {
                let from = self.read(base, Reg::R2);
                self.mov32(Reg::R2, from.into());
                if let Some(max) = max {
                    self.reject_if(Insn::jump64(op::JGT, Reg::R2, max as i32), op::JLE);
                }
                if offset > 0 {
                    self.asm.push(Insn::alu64(op::ADD, Reg::R2, offset as i32));
                }
            }
        }
        self.asm.push(Insn::mov64(Reg::R1, context));
        self.asm.push(Insn::mov64(Reg::R3, Reg::FP));
        self.asm
            .push(Insn::alu64(op::ADD, Reg::R3, i32::from(buffer)));
        self.asm.push(Insn::mov32(Reg::R4, width.bytes() as i32));
        self.asm.push(Insn::call(helper));
        self.reject_if(Insn::jump64(op::JNE, Reg::R0, 0), op::JEQ);
        if let Some(dst) = dst {
            let to = self.target(dst);
            self.load_be(to, Reg::FP, buffer, width);
            self.write(dst, to);
        }
    }

    fn bin(&mut self, dst: Value, op: BinOp, a: Operand, b: Operand) {
        let to = self.target(dst);
        let shift = matches!(op, BinOp::Shl | BinOp::Shr);
        if shift && matches!(b, Operand::Imm(32..)) {
            self.asm.push(Insn::mov32(to, 0));
            return self.write(dst, to);
        }
        let a = self.read_operand(a, to);
        self.mov32(to, a);
        if let (true, Operand::Val(count)) = (shift, b) {
            self.clear_if_far(to, count);
        }
        let b = self.read_operand(b, self.scratch[1]);
        self.asm.push(Insn::alu32(code_of(op), to, b));
        self.write(dst, to);
    }

    /// Clears `reg` if `count` is 32 or more, without a jump: the machine
    /// takes counts modulo 32, and the verifier doubles its work at jumps.
    fn clear_if_far(&mut self, reg: Reg, count: Value) {
        let mask = self.scratch[1];
        let count = self.read(count, mask);
        if count != mask {
            self.asm.push(Insn::mov64(mask, count));
        }
        self.asm.push(Insn::alu64(op::SUB, mask, 32));
        self.asm.push(Insn::alu64(op::ARSH, mask, 63));
        self.asm.push(Insn::alu32(op::AND, reg, mask));
    }

    /// A comparison as a value, without a jump: from the sign of a 64-bit
    /// difference of two 32-bit numbers.
    fn test(&mut self, dst: Value, cmp: Cmp, a: Operand, b: Operand) {
        let to = self.target(dst);
        let a = self.read_operand(a, to);
        self.mov32(to, a);
        let b = self.read_operand(b, self.scratch[1]);
        match cmp {
            Cmp::Eq | Cmp::Ne => self.asm.push(Insn::alu32(op::XOR, to, b)),
            Cmp::Set | Cmp::Clear => self.asm.push(Insn::alu32(op::AND, to, b)),
            _ => self.subtract_wide(to, b),
        }
        match cmp {
            Cmp::Eq | Cmp::Clear => self.asm.push(Insn::alu64(op::SUB, to, 1)),
            Cmp::Ne | Cmp::Set => self.asm.push(Insn::neg64(to)),
            _ => {}
        }
        self.asm.push(Insn::alu64(op::RSH, to, 63));
        if cmp == Cmp::Ge {
            self.asm.push(Insn::alu32(op::XOR, to, 1));
        }
        self.write(dst, to);
    }

    /// `reg -= src` in 64 bits, a constant being unsigned 32-bit.
    fn subtract_wide(&mut self, reg: Reg, src: Src) {
        self.asm.push(Insn::alu64(op::SUB, reg, src));
        if let Src::Imm(..0) = src {
            // It was extended by its sign: 2^32 too little was taken.
            let half = i32::MIN;
            self.asm.push(Insn::alu64(op::ADD, reg, half));
            self.asm.push(Insn::alu64(op::ADD, reg, half));
        }
    }

    fn ret(&mut self, verdict: Operand) {
        let result = self.fragment.result;
        match verdict {
            Operand::Imm(constant) => {
                self.asm.push(Insn::mov32(result, constant as i32));
            }
            Operand::Val(value) => {
                let from = self.read(value, result);
                self.mov32(result, from.into());
                self.asm
                    .jump(Insn::jump32(op::JEQ, result, 0), self.fragment.reject);
            }
        }
        self.asm.goto(self.fragment.accept);
    }

    fn branch(
        &mut self,
        block: Block,
        cmp: Cmp,
        (a, b): (Operand, Operand),
        then: &Edge,
        otherwise: &Edge,
    ) {
        let (cmp, a, b) = match (a, b) {
            (Operand::Imm(a), Operand::Imm(b)) => {
                let taken = if cmp.eval(a, b) { then } else { otherwise };
                return self.edge(taken);
            }
            (Operand::Imm(_), _) => (cmp.swapped(), b, a),
            _ => (cmp, a, b),
        };
        let left = self.read_operand(a, self.scratch[0]);
        let Src::Reg(left) = left else {
            unreachable!("a constant was put on the right");
        };
        let right = self.read_operand(b, self.scratch[1]);
        let (mut cmp, mut to, mut fall) = match cmp {
            Cmp::Clear => (Cmp::Set, otherwise, then),
            _ => (cmp, then, otherwise),
        };
        let turn = if self.deep {
            self.height(to) < self.height(fall)
        } else {
            to.block == self.next(block) && fall.block != self.next(block)
        };
        let mut compare = (left, right);
        if turn && cmp == Cmp::Set && self.deep {
            let both = self.scratch[0];
            self.mov32(both, left.into());
            self.asm.push(Insn::alu32(op::AND, both, right));
            (cmp, compare) = (Cmp::Ne, (both, Src::Imm(0)));
        }
        if turn && cmp != Cmp::Set {
            (cmp, to, fall) = (cmp.negated(), fall, to);
        }
        let insn = Insn::jump32(condition_of(cmp), compare.0, compare.1);
        if let Some(label) = self.direct(to) {
            self.asm.jump(insn, label);
            self.edge(fall);
        } else {
            let label = self.asm.label();
            self.asm.jump(insn, label);
            self.edge(fall);
            self.asm.bind(label);
            self.edge(to);
        }
    }

    fn height(&self, edge: &Edge) -> u32 {
        self.heights[edge.block.index()]
    }

    /// The block whose code comes next.
    fn next(&self, block: Block) -> Block {
        let behind = &self.lowered.blocks[block.index() + 1..];
        let gap = behind.iter().position(Option::is_some).unwrap_or(0);
        Block((block.index() + 1 + gap) as u32)
    }

    /// Where the edge leads, if nothing is to be done on the way.
    fn direct(&self, edge: &Edge) -> Option<Label> {
        if self.lowered.blocks[edge.block.index()].is_none() {
            return Some(self.fragment.reject);
        }
        let idle = self.moves(edge).is_empty();
        idle.then(|| self.labels[edge.block.index()])
    }

    fn edge(&mut self, edge: &Edge) {
        if self.lowered.blocks[edge.block.index()].is_none() {
            return self.asm.goto(self.fragment.reject);
        }
        let moves = self.moves(edge);
        self.move_all(moves);
        self.asm.goto(self.labels[edge.block.index()]);
    }

    /// What the edge's arguments must be moved to and from.
    fn moves(&self, edge: &Edge) -> Vec<(Place, From)> {
        let params = &self.program.block(edge.block).params;
        let pairs = params.iter().zip(&edge.args).map(|(param, arg)| {
            let from = match arg {
                Operand::Imm(constant) => From::Imm(*constant),
                Operand::Val(value) => From::Place(self.place(*value)),
            };
            (self.place(*param), from)
        });
        pairs
            .filter(|(to, from)| *to != Place::Nowhere && *from != From::Place(*to))
            .collect()
    }

    /// One parallel assignment: nothing is overwritten before it is read.
    fn move_all(&mut self, mut moves: Vec<(Place, From)>) {
        while !moves.is_empty() {
            let safe = moves.iter().position(|(to, _)| {
                let is_read = |(_, from): &(Place, From)| *from == From::Place(*to);
                !moves.iter().any(is_read)
            });
            if let Some(index) = safe {
                let (to, from) = moves.swap_remove(index);
                self.move_one(to, from);
                continue;
            }
            // Every target is still to be read: a cycle. One of them waits in
            // a scratch register.
            let (first, _) = moves[0];
            let aside = Place::Reg(self.scratch[0]);
            self.move_one(aside, From::Place(first));
            for (_, from) in &mut moves {
                if *from == From::Place(first) {
                    *from = From::Place(aside);
                }
            }
        }
    }

    fn move_one(&mut self, to: Place, from: From) {
        let insn = match (to, from) {
            (Place::Reg(to), From::Imm(constant)) => Insn::mov32(to, constant as i32),
            (Place::Reg(to), From::Place(Place::Reg(from))) => Insn::mov64(to, from),
            (Place::Reg(to), From::Place(Place::Slot(slot))) => {
                Insn::load(op::DW, to, Reg::FP, slot)
            }
            (Place::Slot(slot), From::Place(Place::Reg(from))) => {
                Insn::store(op::DW, Reg::FP, slot, from)
            }
            (Place::Slot(slot), from) => {
                let through = self.scratch[1];
                self.move_one(Place::Reg(through), from);
                Insn::store(op::DW, Reg::FP, slot, through)
            }
            (Place::Nowhere, _) | (_, From::Place(Place::Nowhere)) => {
                unreachable!("what is moved has a place")
            }
        };
        self.asm.push(insn);
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum From {
    Imm(u32),
    Place(Place),
}

fn code_of(op: BinOp) -> u8 {
    match op {
        BinOp::Add => op::ADD,
        BinOp::Sub => op::SUB,
        BinOp::Mul => op::MUL,
        BinOp::Div => op::DIV,
        BinOp::Mod => op::MOD,
        BinOp::And => op::AND,
        BinOp::Or => op::OR,
        BinOp::Xor => op::XOR,
        BinOp::Shl => op::LSH,
        BinOp::Shr => op::RSH,
    }
}

fn condition_of(cmp: Cmp) -> u8 {
    match cmp {
        Cmp::Eq => op::JEQ,
        Cmp::Ne => op::JNE,
        Cmp::Lt => op::JLT,
        Cmp::Le => op::JLE,
        Cmp::Gt => op::JGT,
        Cmp::Ge => op::JGE,
        Cmp::Set => op::JSET,
        Cmp::Clear => unreachable!("its edges were exchanged"),
    }
}
