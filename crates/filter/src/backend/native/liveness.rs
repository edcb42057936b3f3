//! What the generator knows of a program before it writes code: how long each
//! value lives, in which byte order it may stay, and what each block needs.

use super::required_len::{self, Extent};
use crate::ir::{BinOp, Cmp, Op, Operand, Program, Term, Value, Width};

/// Positions number everything in layout order: one for each block's start
/// (where its parameters are defined), each instruction and each terminator.
pub(super) type Position = u32;

/// What is known of a value.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ValueUses {
    /// Where it is defined.
    pub(super) start: Position,
    /// Its last use; `start` if there is none. As edges lead forward, the
    /// positions between cover every path from the definition to a use.
    pub(super) end: Position,
    /// Whether a use needs its numeric value; without one, tests for equality
    /// and for bits do as well on the bytes as they lie in the frame, their
    /// constants swapped instead.
    ordered: bool,
    /// It is kept with its bytes as they lie in the frame: two or four of
    /// them, or none of this.
    pub(super) raw: Option<Width>,
    /// Bytes behind this position that every accepting path from its
    /// definition reads; zero if there is nothing to check there.
    pub(super) reach: u64,
}

impl ValueUses {
    /// Whether anything reads it.
    pub(super) fn is_used(&self) -> bool {
        self.end > self.start
    }
}

/// What is known of a program.
#[derive(Debug)]
pub(super) struct Liveness {
    /// By value.
    pub(super) values: Vec<ValueUses>,
    /// By block: what every accepting path from its start needs.
    pub(super) needs: Vec<Extent>,
    /// The length on the wire is used.
    pub(super) has_len: bool,
    /// There is a division by other than a power of two.
    pub(super) has_division: bool,
}

impl Liveness {
    /// The facts of a verified program.
    pub(super) fn of(program: &Program) -> Liveness {
        let mut facts = Liveness {
            values: vec![ValueUses::default(); program.values.len()],
            needs: vec![Extent::REJECTS; program.blocks.len()],
            has_len: false,
            has_division: false,
        };
        let end = facts.number(program);
        facts.backward_pass(program, end);
        facts.choose_byte_orders(program);
        facts
    }

    /// Gives each value its first position; returns the one behind the last.
    fn number(&mut self, program: &Program) -> Position {
        let mut position = 0;
        for block in &program.blocks {
            for &param in &block.params {
                self.define(param, position);
            }
            for &value in &block.insts {
                position += 1;
                self.define(value, position);
                match program.op(value) {
                    Op::Len => self.has_len = true,
                    Op::Bin { op, b, .. } if op.may_reject() => {
                        let shift = b.imm().is_some_and(u32::is_power_of_two);
                        self.has_division |= !shift;
                    }
                    _ => {}
                }
            }
            position += 2;
        }
        position
    }

    fn define(&mut self, value: Value, position: Position) {
        let facts = &mut self.values[value.index()];
        (facts.start, facts.end) = (position, position);
    }

    /// Last uses, byte orders and needs, against the flow: what reads a value
    /// is seen before the value.
    fn backward_pass(&mut self, program: &Program, end: Position) {
        let mut position = end;
        for (index, block) in program.blocks.iter().enumerate().rev() {
            position -= 1;
            let mut need = required_len::at_end(program, index, &self.needs);
            if need.never_accepts() {
                // No code is made of it, so its uses do not count.
                position -= block.insts.len() as Position + 1;
                continue;
            }
            self.read_term(&block.term, position);
            for &value in block.insts.iter().rev() {
                position -= 1;
                self.check_at_definition(value, &mut need);
                self.read_op(value, program.op(value), position, &mut need);
            }
            position -= 1;
            for &param in &block.params {
                self.check_at_definition(param, &mut need);
            }
            self.needs[index] = need;
        }
        debug_assert_eq!(position, 0);
    }

    fn check_at_definition(&mut self, value: Value, need: &mut Extent) {
        if let Some((base, reach)) = need.based
            && base == value
        {
            self.values[value.index()].reach = reach;
            need.based = None;
        }
    }

    fn read_op(&mut self, value: Value, op: Op, position: Position, need: &mut Extent) {
        match op {
            Op::Param | Op::Len => {}
            Op::Load {
                width,
                base,
                offset,
            } => {
                need.add_load(base, u64::from(offset) + u64::from(width.bytes()));
                if let Some(base) = base {
                    self.read(base.into(), position, true);
                }
            }
            Op::Bin { op, a, b } => {
                if op.may_reject() && b == Operand::Imm(0) {
                    *need = Extent::REJECTS;
                }
                let masks = op == BinOp::And && (a.imm().is_some() || b.imm().is_some());
                let ordered = !masks || self.values[value.index()].ordered;
                self.read(a, position, ordered);
                self.read(b, position, ordered);
            }
            Op::Test { cmp, a, b } => self.read_pair(cmp, a, b, position),
        }
    }

    fn read_term(&mut self, term: &Term, position: Position) {
        match term {
            Term::Jump(_) => {}
            Term::Return(verdict) => self.read(*verdict, position, true),
            Term::Branch { cmp, a, b, .. } => self.read_pair(*cmp, *a, *b, position),
        }
        for edge in term.edges() {
            if !self.needs[edge.block.index()].never_accepts() {
                for &arg in &edge.args {
                    self.read(arg, position, true);
                }
            }
        }
    }

    fn read_pair(&mut self, cmp: Cmp, a: Operand, b: Operand, position: Position) {
        let by_bits = matches!(cmp, Cmp::Eq | Cmp::Ne | Cmp::Set | Cmp::Clear);
        let ordered = !by_bits || (a.value().is_some() && b.value().is_some());
        self.read(a, position, ordered);
        self.read(b, position, ordered);
    }

    fn read(&mut self, operand: Operand, position: Position, ordered: bool) {
        if let Operand::Val(value) = operand {
            let facts = &mut self.values[value.index()];
            facts.end = facts.end.max(position);
            facts.ordered |= ordered;
        }
    }

    /// Loads that nobody needs in order stay as they lie, and so do their
    /// masked parts.
    fn choose_byte_orders(&mut self, program: &Program) {
        for block in &program.blocks {
            for &value in &block.insts {
                let raw = match program.op(value) {
                    _ if self.values[value.index()].ordered => None,
                    Op::Load { width, .. } if width != Width::B1 => Some(width),
                    Op::Bin {
                        op: BinOp::And,
                        a: Operand::Val(a),
                        b: Operand::Imm(_),
                    }
                    | Op::Bin {
                        op: BinOp::And,
                        a: Operand::Imm(_),
                        b: Operand::Val(a),
                    } => self.values[a.index()].raw,
                    _ => None,
                };
                self.values[value.index()].raw = raw;
            }
        }
    }
}

/// The constant that tests a raw value of `width` as `constant` tests the
/// value in order; only for equality, for bits and as a mask.
///
/// A two-byte value equals no constant beyond 16 bits, and none of its bits
/// is there: such a constant keeps a bit that no raw value has.
pub(super) fn swapped_constant(constant: u32, width: Width) -> u32 {
    match width {
        Width::B1 => constant,
        Width::B2 => {
            let low = u32::from((constant as u16).swap_bytes());
            low | constant & 0xffff_0000
        }
        Width::B4 => constant.swap_bytes(),
    }
}
