//! The code generator: one pass over the blocks in order.

use super::liveness::{Liveness, swapped_constant};
use super::location::{Address, Location, Src};
use super::moves::Moves;
use super::regalloc::{Allocation, allocate};
use super::required_len::Extent;
use super::target::{Label, REJECT, Requirements, TargetAsm};
use super::{CODE_BYTES_MAX, NativeError};
use crate::ir::{BasicBlock, BinOp, Block, Cmp, Edge, Op, Operand, Program, Term, Value};

/// Generated code, with marks for the listing if requested.
#[derive(Debug)]
pub(super) struct Generated {
    pub(super) bytes: Vec<u8>,
    /// Start of each part, in ascending order.
    pub(super) marks: Vec<(usize, ListingMark)>,
    pub(super) locations: Allocation,
}

/// The kind of a part of the code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ListingMark {
    /// The start of a block.
    Block(Block),
    /// A check that this number of bytes is captured behind a position.
    Check(Option<Value>, u64),
    /// One instruction.
    Inst(Value),
    /// A block's terminator.
    Term(Block),
    /// The code that rejects frames.
    Reject,
}

/// Generates code for a verified program.
pub(super) fn generate<M: TargetAsm>(
    program: &Program,
    want_marks: bool,
) -> Result<Generated, NativeError> {
    let facts = Liveness::of(program);
    let (registers, len_register) = M::registers(facts.has_len, facts.has_division);
    let allocation = allocate(program, &facts, registers, len_register)?;
    let machine = M::begin(Requirements {
        len: facts.has_len,
        division: facts.has_division,
        slots: allocation.slots,
        blocks: program.blocks.len(),
        far: is_far(program),
    });
    let mut generator = Generator {
        program,
        proven: vec![None; program.blocks.len()],
        moves: Moves::new(allocation.slots),
        liveness: facts,
        locations: allocation,
        machine,
        state: Extent::default(),
        marks: want_marks.then(Vec::new),
    };
    generator.proven[0] = Some(Extent::default());
    for (index, block) in program.blocks.iter().enumerate() {
        generator.block(index, block);
        let bytes = generator.machine.code().len();
        if bytes > CODE_BYTES_MAX {
            return Err(NativeError::TooLong {
                max: CODE_BYTES_MAX,
            });
        }
    }
    generator.mark(ListingMark::Reject);
    generator.machine.code().bind(REJECT);
    generator.machine.ret(Src::Imm(0));
    Ok(Generated {
        bytes: generator.machine.into_code().finish::<M>(),
        marks: generator.marks.unwrap_or_default(),
        locations: generator.locations,
    })
}

/// Whether the code may exceed 1 MiB. One instruction of the IR takes at most 128 bytes
/// on any architecture, and one move at most 16.
fn is_far(program: &Program) -> bool {
    let parts = program.values.len() + program.blocks.len();
    let edges = program.blocks.iter().flat_map(|block| block.term.edges());
    let moves: usize = edges.map(|edge| edge.args.len()).sum();
    128 * parts + 16 * moves >= 1 << 20
}

struct Generator<'p, M> {
    program: &'p Program,
    liveness: Liveness,
    locations: Allocation,
    machine: M,
    /// For each block, the proof common to all paths so far; `None` before the first.
    proven: Vec<Option<Extent>>,
    /// The proof at the current position.
    state: Extent,
    moves: Moves,
    marks: Option<Vec<(usize, ListingMark)>>,
}

impl<M: TargetAsm> Generator<'_, M> {
    fn mark(&mut self, mark: ListingMark) {
        if let Some(marks) = &mut self.marks {
            marks.push((self.machine.code().len(), mark));
        }
    }

    fn src(&self, operand: Operand) -> Src {
        match operand {
            Operand::Imm(constant) => Src::Imm(constant),
            Operand::Val(value) => self.location(value).into(),
        }
    }

    fn location(&self, value: Value) -> Location {
        self.locations.of[value.index()].expect("a value that is read has a location")
    }

    fn block(&mut self, index: usize, block: &BasicBlock) {
        let need = self.liveness.needs[index];
        let Some(proven) = self.proven[index].filter(|_| !need.never_accepts()) else {
            if index == 0 {
                self.machine.jump(REJECT);
            }
            return;
        };
        let name = Block(index as u32);
        self.machine.code().bind(label_of(name));
        self.mark(ListingMark::Block(name));
        self.state = proven;
        if let Some((base, extent)) = need.based {
            self.ensure(Some(base), extent);
        }
        self.ensure(None, need.fixed);
        for &param in &block.params {
            self.ensure_reach(param);
        }
        for &value in &block.insts {
            self.inst(value);
            self.ensure_reach(value);
        }
        self.mark(ListingMark::Term(name));
        self.term(index, &block.term);
    }

    /// Checks that `extent` bytes are captured behind `base`, unless that is proven.
    fn ensure(&mut self, base: Option<Value>, extent: u64) {
        if !self.state.covers(base, extent) {
            self.mark(ListingMark::Check(base, extent));
            let location = base.map(|base| self.location(base));
            self.machine.check(location, extent);
            self.state.prove(base, extent);
        }
    }

    /// Checks the bytes behind position `value` that every accepting path reads.
    fn ensure_reach(&mut self, value: Value) {
        let reach = self.liveness.values[value.index()].reach;
        if reach > 0 {
            self.ensure(Some(value), reach);
        }
    }

    fn inst(&mut self, value: Value) {
        let to = self.locations.of[value.index()];
        let op = self.program.op(value);
        if let Op::Load {
            width,
            base,
            offset,
        } = op
        {
            self.ensure(base, u64::from(offset) + u64::from(width.bytes()));
        }
        self.mark(ListingMark::Inst(value));
        match op {
            // The length stays in its register.
            Op::Param | Op::Len => {}
            Op::Load {
                width,
                base,
                offset,
            } => {
                if let Some(to) = to {
                    let raw = self.liveness.values[value.index()].raw.is_some();
                    let base = base.map(|base| self.location(base));
                    self.machine.load(to, width, raw, Address { base, offset });
                }
            }
            Op::Bin { op, a, b } => self.bin(op, to, a, b),
            Op::Test { cmp, a, b } => {
                let Some(to) = to else { return };
                match self.comparison(cmp, a, b) {
                    Ok((cmp, a, b)) => self.machine.test(cmp, to, a, b),
                    Err(known) => self.machine.mov(to, Src::Imm(known.into())),
                }
            }
        }
    }

    fn bin(&mut self, op: BinOp, to: Option<Location>, a: Operand, b: Operand) {
        match b {
            Operand::Imm(0) if op.may_reject() => return self.machine.jump(REJECT),
            Operand::Val(b) if op.may_reject() => {
                let b = self.location(b);
                self.machine.branch(Cmp::Eq, b, Src::Imm(0), REJECT);
            }
            _ => {}
        }
        let Some(to) = to else { return };
        if let (Operand::Imm(a), Operand::Imm(b)) = (a, b) {
            let known = op.eval(a, b).unwrap_or(0);
            return self.machine.mov(to, Src::Imm(known));
        }
        let (a, b) = self.pair(a, b);
        let (op, b) = match (op, b) {
            (BinOp::Div, Src::Imm(divisor)) if divisor.is_power_of_two() => {
                (BinOp::Shr, Src::Imm(divisor.trailing_zeros()))
            }
            (BinOp::Mod, Src::Imm(divisor)) if divisor.is_power_of_two() => {
                (BinOp::And, Src::Imm(divisor - 1))
            }
            _ => (op, b),
        };
        self.machine.bin(op, to, a, b);
    }

    /// Both operands; a constant compared with a raw value is swapped.
    fn pair(&self, a: Operand, b: Operand) -> (Src, Src) {
        let width = |value: Value| self.liveness.values[value.index()].raw;
        match (a, b) {
            (Operand::Val(a), Operand::Imm(b)) => {
                let b = width(a).map_or(b, |width| swapped_constant(b, width));
                (self.location(a).into(), Src::Imm(b))
            }
            (Operand::Imm(a), Operand::Val(b)) => {
                let a = width(b).map_or(a, |width| swapped_constant(a, width));
                (Src::Imm(a), self.location(b).into())
            }
            _ => (self.src(a), self.src(b)),
        }
    }

    /// A comparison with any constant on the right; or, as an error, the truth value of
    /// two constants.
    fn comparison(&self, cmp: Cmp, a: Operand, b: Operand) -> Result<(Cmp, Location, Src), bool> {
        match self.pair(a, b) {
            (Src::Imm(a), Src::Imm(b)) => Err(cmp.eval(a, b)),
            (Src::At(a), b) => Ok((cmp, a, b)),
            (a, Src::At(b)) => Ok((cmp.swapped(), b, a)),
        }
    }

    fn term(&mut self, index: usize, term: &Term) {
        match term {
            Term::Return(verdict) => {
                let verdict = self.src(*verdict);
                self.machine.ret(verdict);
            }
            Term::Jump(edge) => {
                self.reached(edge);
                self.go(index, edge);
            }
            Term::Branch {
                cmp,
                a,
                b,
                then,
                otherwise,
            } => match self.comparison(*cmp, *a, *b) {
                Err(known) => {
                    let edge = if known { then } else { otherwise };
                    self.reached(edge);
                    self.go(index, edge);
                }
                Ok(comparison) => {
                    self.reached(then);
                    self.reached(otherwise);
                    self.branch(index, comparison, then, otherwise);
                }
            },
        }
    }

    fn branch(
        &mut self,
        index: usize,
        (cmp, a, b): (Cmp, Location, Src),
        then: &Edge,
        otherwise: &Edge,
    ) {
        if then == otherwise {
            self.go(index, then);
        } else if !self.has_moves(then)
            && (self.has_moves(otherwise) || !self.is_next(index, then.block))
        {
            self.machine.branch(cmp, a, b, self.target(then));
            self.go(index, otherwise);
        } else if !self.has_moves(otherwise) {
            let target = self.target(otherwise);
            self.machine.branch(cmp.negated(), a, b, target);
            self.go(index, then);
        } else {
            let other = self.machine.code().label();
            self.machine.branch(cmp.negated(), a, b, other);
            self.go_far(then);
            self.machine.code().bind(other);
            self.go(index, otherwise);
        }
    }

    /// Records what is proven at the end of `edge`.
    fn reached(&mut self, edge: &Edge) {
        let proven = &mut self.proven[edge.block.index()];
        *proven = Some(proven.map_or(self.state, |other| other.on_both(self.state)));
    }

    /// Whether control falls through from the end of block `index` to `block`: no block
    /// between them has code. A block between them without a path so far gets none
    /// later.
    fn is_next(&self, index: usize, block: Block) -> bool {
        let between = index + 1..block.index();
        self.has_code(block) && !between.into_iter().any(|i| self.has_code(Block(i as u32)))
    }

    fn has_code(&self, block: Block) -> bool {
        let never = self.liveness.needs[block.index()].never_accepts();
        !never && self.proven[block.index()].is_some()
    }

    /// The label of the edge's target after its moves.
    fn target(&self, edge: &Edge) -> Label {
        if self.has_code(edge.block) {
            label_of(edge.block)
        } else {
            REJECT
        }
    }

    /// The moves of an edge, including those from a location to itself.
    fn moves(&self, edge: &Edge) -> impl Iterator<Item = (Location, Src)> {
        let live = self.has_code(edge.block);
        let params = self.program.block(edge.block).params.iter();
        let pairs = params.zip(&edge.args).filter(move |_| live);
        pairs.filter_map(|(param, &arg)| {
            let to = self.locations.of[param.index()]?;
            Some((to, self.src(arg)))
        })
    }

    fn has_moves(&self, edge: &Edge) -> bool {
        self.moves(edge).any(|(to, from)| from != Src::At(to))
    }

    /// Emits an edge; falls through if its target comes next.
    fn go(&mut self, index: usize, edge: &Edge) {
        self.make_moves(edge);
        if !self.is_next(index, edge.block) {
            let target = self.target(edge);
            self.machine.jump(target);
        }
    }

    /// Emits an edge with a jump, since other code of the same block follows.
    fn go_far(&mut self, edge: &Edge) {
        self.make_moves(edge);
        let target = self.target(edge);
        self.machine.jump(target);
    }

    fn make_moves(&mut self, edge: &Edge) {
        let mut moves = std::mem::take(&mut self.moves);
        for (to, from) in self.moves(edge) {
            moves.add(to, from);
        }
        moves.make(M::SPARE, |to, from| self.machine.mov(to, from));
        self.moves = moves;
    }
}

/// The label of a block.
fn label_of(block: Block) -> Label {
    block.0 + 1
}
