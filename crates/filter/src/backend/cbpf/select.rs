//! Instruction selection for the values that blocks compare, return and pass.
//!
//! A frame never changes, so a value can be recomputed wherever its loads are in
//! bounds. That often costs one load, while keeping the value costs a store and a
//! reload. So every block computes its values from the state that all predecessors
//! leave in `A`, `X` and scratch memory. Only values of several instructions that are
//! needed again are kept.
//!
//! The selector uses a list of tasks instead of recursion, since values may be deep.

use super::cost::Costs;
use super::{EMITTED_MAX, EmitError, INSNS_PER_PART_MAX};
use crate::ir::{BinOp, Cmp, Edge, Op, Operand, Value, Width};
use crate::lang::cbpf::Insn;
use crate::lang::cbpf::code::*;
use crate::opt::graph::{Flow, Graph, Node};

/// Slots below this number may live across blocks; higher ones are local to a block.
pub(super) const SHARED_MAX: usize = 64;

/// The end of a block.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum End {
    Return(Insn),
    Jump(usize),
    Branch {
        code: u16,
        k: u32,
        then: usize,
        otherwise: usize,
    },
}

impl End {
    /// The blocks that the end leads to.
    pub(super) fn targets(self) -> impl Iterator<Item = usize> {
        let (first, second) = match self {
            End::Return(_) => (None, None),
            End::Jump(target) => (Some(target), None),
            End::Branch {
                then, otherwise, ..
            } => (Some(then), Some(otherwise)),
        };
        first.into_iter().chain(second)
    }
}

/// A block: a range of [`Code::insns`], and its end.
#[derive(Clone, Copy, Debug)]
pub(super) struct CodeBlock {
    pub(super) first: usize,
    pub(super) last: usize,
    pub(super) end: End,
}

/// Selected code; instructions for scratch memory contain slots instead of words.
#[derive(Debug)]
pub(super) struct Code {
    pub(super) insns: Vec<Insn>,
    pub(super) blocks: Vec<CodeBlock>,
}

/// The values known to be in registers and slots.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
struct State {
    a: Option<Value>,
    x: Option<Value>,
    /// Bit set of the slots that have been stored.
    stored: u64,
}

impl State {
    /// The state that holds after either of two paths.
    fn meet(self, other: State) -> State {
        State {
            a: self.a.filter(|_| self.a == other.a),
            x: self.x.filter(|_| self.x == other.x),
            stored: self.stored & other.stored,
        }
    }
}

/// One step of computing a value.
#[derive(Clone, Copy, Debug)]
enum Task {
    /// Compute the value in `A`.
    InA(Value),
    /// Compute the value in `X`; may change `A`.
    InX(Value),
    /// Compute the value in `X` without changing `A`.
    DirectlyInX(Value),
    /// Emit an instruction that changes `A`.
    Alter(Insn),
    /// Record that `A` holds the value.
    Done(Value),
    /// Copy the value from `A` to `X`.
    Move(Value),
    /// Store `A` in a local slot.
    Stash(u32),
    /// Reload the value from a local slot to `X`.
    Unstash(u32, Value),
}

/// Selects instructions for a lowered, tidy graph. With `keep`, values that could be
/// recomputed may be kept in slots.
///
/// # Errors
/// If more parameters are live at one time than there are slots, or the code is too
/// long.
pub(super) fn select(graph: &Graph, keep: bool) -> Result<Code, EmitError> {
    let count = graph.nodes.len();
    let mut selector = Selector {
        costs: Costs::of(graph, keep)?,
        code: Code {
            insns: Vec::with_capacity(2 * count),
            blocks: Vec::with_capacity(count),
        },
        entry: vec![None; count],
        state: State::default(),
        tasks: Vec::new(),
        stashes: 0,
        insns_max: EMITTED_MAX.min(INSNS_PER_PART_MAX * (graph.ops.len() + count)),
        graph,
    };
    selector.entry[0] = Some(State::default());
    for index in 0..count {
        selector.block(index);
        if selector.is_too_long() {
            let max = selector.insns_max;
            return Err(EmitError::TooLong { max });
        }
    }
    Ok(selector.code)
}

struct Selector<'g> {
    graph: &'g Graph,
    costs: Costs,
    code: Code,
    entry: Vec<Option<State>>,
    state: State,
    tasks: Vec<Task>,
    stashes: u32,
    insns_max: usize,
}

impl Selector<'_> {
    fn block(&mut self, index: usize) {
        let graph = self.graph;
        let node = &graph.nodes[index];
        self.state = self.entry[index].unwrap_or_default();
        self.stashes = SHARED_MAX as u32;
        let first = self.code.insns.len();
        self.checks(node);
        let end = match &node.flow {
            Flow::Return(Operand::Imm(verdict)) => End::Return(Insn::stmt(RET | K, *verdict)),
            Flow::Return(Operand::Val(value)) => {
                self.run(Task::InA(*value));
                End::Return(Insn::stmt(RET | A, 0))
            }
            Flow::Jump(edge) => {
                self.pass(edge);
                End::Jump(edge.block.index())
            }
            Flow::Branch {
                cond,
                then,
                otherwise,
            } => self.branch(*cond, then.block.index(), otherwise.block.index()),
        };
        for target in end.targets() {
            let entry = &mut self.entry[target];
            *entry = Some(entry.map_or(self.state, |known| known.meet(self.state)));
        }
        self.code.blocks.push(CodeBlock {
            first,
            last: self.code.insns.len(),
            end,
        });
    }

    /// Emits the checks of the block other than those of its subject.
    fn checks(&mut self, node: &Node) {
        if node.bound > 0 {
            // If `A` holds a value that is needed next, the check uses `X`.
            if self
                .costs
                .is_leaf_of(self.graph, node.flow.subject(), self.state.a)
            {
                self.state.x = None;
                self.emit(LDX | B | MSH, node.bound - 1);
            } else {
                self.run(Task::InA(node.bound_load));
            }
        }
        for &effect in &node.effects {
            self.run(Task::InA(effect));
        }
    }

    /// Stores the arguments of an edge, in reverse order, so that the first parameter
    /// remains in `A`.
    fn pass(&mut self, edge: &Edge) {
        let graph = self.graph;
        let params = &graph.nodes[edge.block.index()].params;
        for (&param, &arg) in params.iter().zip(&edge.args).rev() {
            let slot = self.costs.slot(param).expect("every parameter has a slot");
            match arg {
                Operand::Val(value)
                    if self.state.x == Some(value) && self.state.a != arg.value() =>
                {
                    self.emit(STX, slot);
                    self.state.x = Some(param);
                    continue;
                }
                Operand::Val(value) => self.run(Task::InA(value)),
                Operand::Imm(constant) => self.emit(LD | IMM, constant),
            }
            self.emit(ST, slot);
            self.state.a = Some(param);
        }
    }

    fn branch(&mut self, cond: Value, then: usize, otherwise: usize) -> End {
        let Op::Test { cmp, a, b } = self.graph.op(cond) else {
            unreachable!("a branch has a test");
        };
        let (Operand::Val(a), jump) = (a, jump_of(cmp)) else {
            unreachable!("a test has its constant to the right");
        };
        let b = match b {
            Operand::Imm(k) => {
                self.run(Task::InA(a));
                return End::Branch {
                    code: JMP | jump | K,
                    k,
                    then,
                    otherwise,
                };
            }
            Operand::Val(b) => b,
        };
        // `a > b` is the negation of `b >= a`, so either value may be in `X`.
        if self.pair(a, b, true) {
            let (jump, then, otherwise) = match cmp {
                Cmp::Gt => (JGE, otherwise, then),
                _ => (jump, then, otherwise),
            };
            return End::Branch {
                code: JMP | jump | X,
                k: 0,
                then,
                otherwise,
            };
        }
        End::Branch {
            code: JMP | jump | X,
            k: 0,
            then,
            otherwise,
        }
    }

    /// Computes two values in `A` and `X`; returns whether they are exchanged, which
    /// happens only if `swappable`.
    fn pair(&mut self, a: Value, b: Value, swappable: bool) -> bool {
        let swapped = self.plan_pair(a, b, swappable);
        self.drain();
        swapped
    }

    /// Like [`pair`](Self::pair), but only adds the tasks.
    fn plan_pair(&mut self, a: Value, b: Value, swappable: bool) -> bool {
        let costs = &self.costs;
        let (a_keeps_x, b_keeps_x) = (costs.preserves_x(a), costs.preserves_x(b));
        if a == b {
            self.tasks.extend([Task::Move(a), Task::InA(a)]);
            return false;
        }
        let in_x = |value| self.state.x == Some(value);
        if in_x(b) && a_keeps_x || in_x(a) && b_keeps_x && swappable {
            let swapped = !(in_x(b) && a_keeps_x);
            self.tasks.push(Task::InA(if swapped { b } else { a }));
            return swapped;
        }
        if self.is_x_loadable(b) {
            self.tasks.extend([Task::DirectlyInX(b), Task::InA(a)]);
            return false;
        }
        if swappable && self.is_x_loadable(a) {
            self.tasks.extend([Task::DirectlyInX(a), Task::InA(b)]);
            return true;
        }
        let a_first = swappable && b_keeps_x && (self.state.a == Some(a) || !a_keeps_x);
        if a_keeps_x && !a_first {
            self.tasks.extend([Task::InA(a), Task::InX(b)]);
            return false;
        }
        if a_first {
            self.tasks.extend([Task::InA(b), Task::InX(a)]);
            return true;
        }
        let stash = self.stashes;
        self.stashes += 1;
        self.tasks.extend([
            Task::Unstash(stash, b),
            Task::InA(a),
            Task::Stash(stash),
            Task::InA(b),
        ]);
        false
    }

    /// Whether the value can be loaded into `X` without changing `A`.
    fn is_x_loadable(&self, value: Value) -> bool {
        self.costs.is_reloadable(value, self.state.stored)
            || matches!(self.graph.op(value), Op::Len)
            || self.costs.header_length(self.graph, value).is_some()
    }

    fn emit(&mut self, code: u16, k: u32) {
        self.code.insns.push(Insn::stmt(code, k));
    }

    fn run(&mut self, task: Task) {
        self.tasks.push(task);
        self.drain();
    }

    /// Executes the tasks, up to the limit on instructions: the code of a nested value may
    /// be far longer than the program.
    fn drain(&mut self) {
        while let Some(task) = self.tasks.pop() {
            if self.is_too_long() {
                self.tasks.clear();
            } else {
                self.step(task);
            }
        }
    }

    fn is_too_long(&self) -> bool {
        self.code.insns.len() > self.insns_max
    }

    fn step(&mut self, task: Task) {
        match task {
            Task::InA(value) => self.in_a(value),
            Task::InX(value) => self.in_x(value),
            Task::DirectlyInX(value) => self.directly_in_x(value),
            Task::Alter(insn) => {
                self.code.insns.push(insn);
                self.state.a = None;
            }
            Task::Done(value) => self.done(value),
            Task::Move(value) => {
                self.emit(MISC | TAX, 0);
                self.state.x = Some(value);
            }
            Task::Stash(slot) => self.emit(ST, slot),
            Task::Unstash(slot, value) => {
                self.emit(LDX | MEM, slot);
                self.state.x = Some(value);
            }
        }
    }

    /// Records that `A` holds the value, and stores it if it has a slot.
    fn done(&mut self, value: Value) {
        self.state.a = Some(value);
        if let Some(slot) = self.costs.slot(value)
            && !self.costs.is_reloadable(value, self.state.stored)
        {
            self.state.stored |= 1 << slot;
            self.emit(ST, slot);
        }
    }

    fn directly_in_x(&mut self, value: Value) {
        if self.state.x == Some(value) {
            return;
        }
        if let Some(slot) = self.reload_slot(value) {
            self.emit(LDX | MEM, slot);
        } else if let Some(offset) = self.costs.header_length(self.graph, value) {
            self.emit(LDX | B | MSH, offset);
        } else {
            self.emit(LDX | W | LEN, 0);
        }
        self.state.x = Some(value);
    }

    fn reload_slot(&self, value: Value) -> Option<u32> {
        let kept = self.costs.is_reloadable(value, self.state.stored);
        self.costs.slot(value).filter(|_| kept)
    }

    fn in_x(&mut self, value: Value) {
        if self.state.x == Some(value) {
            return;
        }
        if self.state.a == Some(value) {
            self.step(Task::Move(value));
        } else if self.is_x_loadable(value) {
            self.directly_in_x(value);
        } else {
            self.tasks.extend([Task::Move(value), Task::InA(value)]);
        }
    }

    fn in_a(&mut self, value: Value) {
        if self.state.a == Some(value) {
            return;
        }
        if let Some(slot) = self.reload_slot(value)
            && !self.is_single_load(value)
        {
            self.emit(LD | MEM, slot);
            self.state.a = Some(value);
            return;
        }
        if self.state.x == Some(value) {
            self.emit(MISC | TXA, 0);
            self.done(value);
            return;
        }
        self.tasks.push(Task::Done(value));
        match self.graph.op(value) {
            Op::Len => self.step(Task::Alter(Insn::stmt(LD | W | LEN, 0))),
            Op::Load {
                width,
                base,
                offset,
            } => self.load(width, base, offset),
            Op::Bin { op, a, b } => self.bin(value, op, a, b),
            Op::Param | Op::Test { .. } => {
                unreachable!("parameters are kept, tests are branched on")
            }
        }
    }

    /// Whether a single load from the frame yields the value, so that a reload from its
    /// slot saves nothing.
    fn is_single_load(&self, value: Value) -> bool {
        match self.graph.op(value) {
            Op::Load { base, .. } => base.is_none() || base == self.state.x,
            _ => false,
        }
    }

    fn load(&mut self, width: Width, base: Option<Value>, offset: u32) {
        let size = match width {
            Width::B1 => B,
            Width::B2 => H,
            Width::B4 => W,
        };
        match base {
            None => self.step(Task::Alter(Insn::stmt(LD | size | ABS, offset))),
            Some(base) => {
                let insn = Insn::stmt(LD | size | IND, offset);
                self.tasks.extend([Task::Alter(insn), Task::InX(base)]);
            }
        }
    }

    fn bin(&mut self, value: Value, op: BinOp, a: Operand, b: Operand) {
        if self.costs.header_length(self.graph, value).is_some() {
            // Two instructions instead of three.
            self.directly_in_x(value);
            self.step(Task::Alter(Insn::stmt(MISC | TXA, 0)));
            return;
        }
        match (a, b) {
            (Operand::Val(a), Operand::Imm(k)) => {
                let (op, k) = match op {
                    // Subtraction of a small constant is more readable.
                    BinOp::Add if k >= 1 << 31 => (SUB, k.wrapping_neg()),
                    op => (alu_of(op), k),
                };
                let insn = Insn::stmt(ALU | op | K, k);
                self.tasks.extend([Task::Alter(insn), Task::InA(a)]);
            }
            (Operand::Imm(k), Operand::Val(b)) if op == BinOp::Sub => {
                if k != 0 {
                    self.tasks.push(Task::Alter(Insn::stmt(ALU | ADD | K, k)));
                }
                let negate = Insn::stmt(ALU | NEG, 0);
                self.tasks.extend([Task::Alter(negate), Task::InA(b)]);
            }
            (Operand::Imm(k), Operand::Val(b)) => {
                let insn = Insn::stmt(ALU | alu_of(op) | X, 0);
                let load = Insn::stmt(LD | IMM, k);
                self.tasks
                    .extend([Task::Alter(insn), Task::Alter(load), Task::InX(b)]);
            }
            (Operand::Val(a), Operand::Val(b)) => self.bin_values(op, a, b),
            (Operand::Imm(_), Operand::Imm(_)) => unreachable!("constants are folded"),
        }
    }

    fn bin_values(&mut self, op: BinOp, a: Value, b: Value) {
        let before = self.tasks.len();
        let swappable = op.commutes() || op == BinOp::Sub;
        let swapped = self.plan_pair(a, b, swappable);
        let mut after = vec![Task::Alter(Insn::stmt(ALU | alu_of(op) | X, 0))];
        if swapped && op == BinOp::Sub {
            // Compute b - a and negate it.
            after.insert(0, Task::Alter(Insn::stmt(ALU | NEG, 0)));
        }
        self.tasks.splice(before..before, after);
    }
}

fn alu_of(op: BinOp) -> u16 {
    match op {
        BinOp::Add => ADD,
        BinOp::Sub => SUB,
        BinOp::Mul => MUL,
        BinOp::Div => DIV,
        BinOp::Mod => MOD,
        BinOp::And => AND,
        BinOp::Or => OR,
        BinOp::Xor => XOR,
        BinOp::Shl => LSH,
        BinOp::Shr => RSH,
    }
}

fn jump_of(cmp: Cmp) -> u16 {
    match cmp {
        Cmp::Eq => JEQ,
        Cmp::Gt => JGT,
        Cmp::Set => JSET,
        _ => unreachable!("tests are in canonical form"),
    }
}
