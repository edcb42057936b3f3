//! Lowering of the IR to steps of a few instructions each. Bounds checks become
//! explicit and shared, and dead values are dropped.

use super::required_len::{ANCHORS_MAX, Anchor, CALL_MAX, DIRECT_MAX, RequiredLen, RequiredLens};
use crate::ir::{BinOp, Block, Cmp, Op, Operand, Program, Term, Value, Width};

/// A step, which becomes a few instructions. Value numbers beyond those of the program
/// denote addresses in the frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// The length on the wire.
    Len { dst: Value },
    /// `dst` = start of the frame + `base`; the frame is too short if `base > max`.
    Address { dst: Value, base: Value, max: u32 },
    /// The frame is too short unless `extent` bytes follow the address, or the start.
    Guard { from: Option<Value>, extent: u32 },
    /// Loads from an address, or the start, within a guarded extent.
    Load {
        dst: Value,
        from: Option<Value>,
        offset: u32,
        width: Width,
    },
    /// Loads by a call, which checks bounds itself. The frame is too short if
    /// `base > max`; `max` is `None` if `base` cannot exceed the reach.
    Fetch {
        dst: Option<Value>,
        base: Option<Value>,
        offset: u32,
        width: Width,
        max: Option<u32>,
    },
    /// Rejects if `value` is zero.
    NonZero { value: Value },
    /// The frame is certainly too short; the last step of its block.
    Short,
    /// Arithmetic; the divisor is not zero.
    Bin {
        dst: Value,
        op: BinOp,
        a: Operand,
        b: Operand,
    },
    /// A comparison as a value, never `Gt` or `Le`: those are swapped to `Lt` and `Ge`.
    Test {
        dst: Value,
        cmp: Cmp,
        a: Operand,
        b: Operand,
    },
}

impl Step {
    /// The value that the step computes.
    pub(super) fn dst(self) -> Option<Value> {
        match self {
            Step::Len { dst }
            | Step::Address { dst, .. }
            | Step::Load { dst, .. }
            | Step::Bin { dst, .. }
            | Step::Test { dst, .. } => Some(dst),
            Step::Fetch { dst, .. } => dst,
            Step::Guard { .. } | Step::NonZero { .. } | Step::Short => None,
        }
    }

    /// The value read before the result is written; and the value read later, whose
    /// register the result must not take.
    pub(super) fn uses(self) -> (Option<Value>, Option<Value>) {
        match self {
            Step::Len { .. } | Step::Short => (None, None),
            Step::Address { base, .. } => (Some(base), None),
            Step::Guard { from, .. } | Step::Load { from, .. } => (from, None),
            Step::Fetch { base, .. } => (base, None),
            Step::NonZero { value } => (Some(value), None),
            Step::Bin { a, b, .. } | Step::Test { a, b, .. } => (a.value(), b.value()),
        }
    }

    /// Whether the step may jump; the verifier then explores both paths.
    pub(super) fn may_reject(self) -> bool {
        matches!(
            self,
            Step::Address { .. } | Step::Guard { .. } | Step::Fetch { .. } | Step::NonZero { .. }
        )
    }
}

/// A program in steps.
pub(super) struct Lowered {
    /// The steps of each block; `None` if the block is unreachable or never accepts.
    /// A block that ends in [`Step::Short`] has no terminator.
    pub(super) blocks: Vec<Option<Vec<Step>>>,
    /// Whether each value, addresses included, must be computed.
    pub(super) used: Vec<bool>,
}

/// The kind of access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mode {
    /// Through pointers, after a bounds check.
    Direct,
    /// By calls.
    Call,
}

impl Mode {
    /// Bytes from the start of a frame that the access reaches.
    pub(super) fn reach_max(self) -> u32 {
        match self {
            Mode::Direct => DIRECT_MAX,
            Mode::Call => CALL_MAX,
        }
    }
}

/// Whether the steps end in [`Step::Short`].
pub(super) fn cut(steps: &[Step]) -> bool {
    steps.last() == Some(&Step::Short)
}

pub(super) fn lower(program: &Program, reach: &RequiredLens, mode: Mode) -> Lowered {
    let mut lowering = Lowering {
        program,
        reach,
        mode,
        used: used(program, &reach.needs),
        rooms: Vec::new(),
        known: vec![None; program.blocks.len()],
    };
    let mut blocks = Vec::with_capacity(program.blocks.len());
    if let Some(entry) = lowering.known.first_mut() {
        *entry = Some(Vec::new());
    }
    for index in 0..program.blocks.len() {
        let known = lowering.known[index].take();
        let reached = known.filter(|_| reach.needs[index] != RequiredLen::Never);
        blocks.push(reached.map(|known| lowering.block(Block(index as u32), known)));
    }
    Lowered {
        blocks,
        used: lowering.used,
    }
}

/// The values that a verdict or a check depends on. One backward pass suffices, since
/// definitions precede uses.
fn used(program: &Program, needs: &[RequiredLen]) -> Vec<bool> {
    let mut used = vec![false; program.values.len()];
    for (index, block) in program.blocks.iter().enumerate().rev() {
        if needs[index] == RequiredLen::Never {
            continue;
        }
        let mut mark = |operand: Operand| {
            if let Operand::Val(value) = operand {
                used[value.index()] = true;
            }
        };
        match &block.term {
            Term::Branch { a, b, .. } => {
                mark(*a);
                mark(*b);
            }
            Term::Return(verdict) => mark(*verdict),
            Term::Jump(_) => {}
        }
        for edge in block.term.edges() {
            if needs[edge.block.index()] != RequiredLen::Never {
                let params = &program.block(edge.block).params;
                for (param, arg) in params.iter().zip(&edge.args) {
                    if let (true, Operand::Val(value)) = (used[param.index()], arg) {
                        used[value.index()] = true;
                    }
                }
            }
        }
        for &value in block.insts.iter().rev() {
            mark_operands(&mut used, value, program.op(value));
        }
    }
    used
}

fn mark_operands(used: &mut [bool], value: Value, op: Op) {
    let wanted = used[value.index()];
    for (position, operand) in op.operands().enumerate() {
        // A divisor and the base of a load are read for their checks, used or not.
        let checked = match op {
            Op::Load { .. } => true,
            Op::Bin { op, .. } => op.may_reject() && position == 1,
            _ => false,
        };
        if let (true, Operand::Val(operand)) = (wanted || checked, operand) {
            used[operand.index()] = true;
        }
    }
}

/// A guarded extent: `extent` bytes from the anchor are known to be captured. `address`
/// holds the anchor's address, `None` for the start of the frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Guarded {
    anchor: Anchor,
    address: Option<Value>,
    extent: u32,
}

struct Lowering<'p> {
    program: &'p Program,
    reach: &'p RequiredLens,
    mode: Mode,
    used: Vec<bool>,
    /// For each address, the largest extent that the verifier allows to guard behind it.
    rooms: Vec<u32>,
    /// Extents guarded at the start of each block; `None` before an edge leads there.
    known: Vec<Option<Vec<Guarded>>>,
}

impl Lowering<'_> {
    fn block(&mut self, block: Block, mut known: Vec<Guarded>) -> Vec<Step> {
        let program = self.program;
        let body = program.block(block);
        let mut steps = Vec::with_capacity(body.insts.len() + 2);
        for &value in &body.insts {
            self.op(block, value, &mut known, &mut steps);
            if cut(&steps) {
                return steps;
            }
        }
        for edge in body.term.edges() {
            meet(&mut self.known[edge.block.index()], &known);
        }
        steps
    }

    fn op(&mut self, block: Block, dst: Value, known: &mut Vec<Guarded>, steps: &mut Vec<Step>) {
        let wanted = self.used[dst.index()];
        match self.program.op(dst) {
            Op::Load { width, offset, .. }
                if offset.saturating_add(width.bytes()) > self.mode.reach_max() =>
            {
                steps.push(Step::Short);
            }
            Op::Load {
                width,
                base,
                offset,
            } if self.mode == Mode::Call => {
                let bound = base.map_or(0, |base| self.reach.bounds[base.index()]);
                let max = CALL_MAX - (offset + width.bytes());
                steps.push(Step::Fetch {
                    dst: wanted.then_some(dst),
                    base,
                    offset,
                    width,
                    max: (bound > max).then_some(max),
                });
            }
            Op::Load {
                width,
                base,
                offset,
            } => {
                let from = self.guard(block, base, offset + width.bytes(), known, steps);
                if wanted {
                    steps.push(Step::Load {
                        dst,
                        from,
                        offset,
                        width,
                    });
                }
            }
            Op::Bin { op, a, b } => {
                if let (true, Operand::Val(value)) = (op.may_reject(), b) {
                    steps.push(Step::NonZero { value });
                }
                if wanted {
                    steps.push(bin(dst, op, a, b));
                }
            }
            Op::Len if wanted => steps.push(Step::Len { dst }),
            Op::Test { cmp, a, b } if wanted => steps.push(test(dst, cmp, a, b)),
            Op::Len | Op::Test { .. } | Op::Param => {}
        }
    }

    /// Ensures that `extent` bytes from the anchor are guarded; returns the address to
    /// load from, `None` for the start of the frame.
    fn guard(
        &mut self,
        block: Block,
        anchor: Anchor,
        extent: u32,
        known: &mut Vec<Guarded>,
        steps: &mut Vec<Step>,
    ) -> Option<Value> {
        let need = self.reach.needs[block.index()].extent(anchor).max(extent);
        let found = known.iter().position(|guarded| guarded.anchor == anchor);
        if let Some(index) = found {
            let Guarded {
                address,
                extent: already,
                ..
            } = known[index];
            let room = address.map_or(DIRECT_MAX, |address| self.room(address));
            if already >= extent {
                return address;
            }
            if room >= extent {
                known[index].extent = need.min(room);
                let extent = known[index].extent;
                steps.push(Step::Guard {
                    from: address,
                    extent,
                });
                return address;
            }
            known.remove(index);
        }
        let address = anchor.map(|base| self.address(base, need, steps));
        steps.push(Step::Guard {
            from: address,
            extent: need,
        });
        if known.len() == ANCHORS_MAX {
            known.remove(0);
        }
        known.push(Guarded {
            anchor,
            address,
            extent: need,
        });
        address
    }

    fn room(&self, address: Value) -> u32 {
        self.rooms[address.index() - self.program.values.len()]
    }

    /// Computes the address of `base`. The base is compared with its bound even if it
    /// cannot exceed it. Verifier versions differ in the bounds that they know, and may
    /// forget them, for example when a sum of the base is compared.
    fn address(&mut self, base: Value, need: u32, steps: &mut Vec<Step>) -> Value {
        let dst = Value((self.program.values.len() + self.rooms.len()) as u32);
        let max = self.reach.bounds[base.index()].min(DIRECT_MAX - need);
        self.rooms.push(DIRECT_MAX - max);
        self.used.push(true);
        steps.push(Step::Address { dst, base, max });
        dst
    }
}

/// Intersects the guarded extents of several edges: those known on every edge through
/// the same address remain.
fn meet(target: &mut Option<Vec<Guarded>>, incoming: &[Guarded]) {
    let Some(list) = target else {
        *target = Some(incoming.to_vec());
        return;
    };
    list.retain_mut(|guarded| {
        let same =
            |other: &&Guarded| (other.anchor, other.address) == (guarded.anchor, guarded.address);
        let other = incoming.iter().find(same);
        if let Some(other) = other {
            guarded.extent = guarded.extent.min(other.extent);
        }
        other.is_some()
    });
}

/// Puts a constant on the right of a commutative operation, where eBPF has immediates.
fn bin(dst: Value, op: BinOp, a: Operand, b: Operand) -> Step {
    let (a, b) = match (a, b) {
        (Operand::Imm(_), Operand::Val(_)) if op.commutes() => (b, a),
        _ => (a, b),
    };
    Step::Bin { dst, op, a, b }
}

fn test(dst: Value, cmp: Cmp, a: Operand, b: Operand) -> Step {
    let (cmp, a, b) = match cmp {
        Cmp::Gt | Cmp::Le => (cmp.swapped(), b, a),
        _ => (cmp, a, b),
    };
    Step::Test { dst, cmp, a, b }
}
