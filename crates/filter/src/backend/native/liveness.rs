//! Analyses before code generation: live intervals, byte orders, required lengths.

use super::required_len::{self, Extent};
use crate::ir::{BinOp, Cmp, Op, Operand, Program, Term, Value, Width};

/// A position in layout order: one for the start of each block, which defines its
/// parameters, one for each instruction, one for each terminator.
pub(super) type Position = u32;

/// Facts about a value.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ValueUses {
    /// Position of the definition.
    pub(super) start: Position,
    /// Position of the last use; `start` if there is none. Edges lead forward, so the
    /// interval covers every path from the definition to a use.
    pub(super) end: Position,
    /// Whether a use needs the numeric value. Otherwise all uses test equality or
    /// bits, for which the bytes of the frame may stay unswapped, with swapped
    /// constants.
    ordered: bool,
    /// Width of a value that is kept in the frame's byte order, two or four bytes;
    /// `None` for a value in numeric order.
    pub(super) raw: Option<Width>,
    /// Bytes from the position given by this value that every accepting path from its
    /// definition reads; zero if no check is due there.
    pub(super) reach: u64,
}

impl ValueUses {
    /// Whether any instruction reads the value.
    pub(super) fn is_used(&self) -> bool {
        self.end > self.start
    }
}

/// Facts about a program.
#[derive(Debug)]
pub(super) struct Liveness {
    /// Facts about each value.
    pub(super) values: Vec<ValueUses>,
    /// Required length of each block: bytes that every accepting path from it reads.
    pub(super) needs: Vec<Extent>,
    /// Whether the length on the wire is used.
    pub(super) has_len: bool,
    /// Whether there is a division by other than a constant power of two.
    pub(super) has_division: bool,
}

impl Liveness {
    /// Analyses a verified program.
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

    /// Assigns the positions of definitions; returns the position after the last.
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

    /// Finds last uses, byte orders and required lengths, in reverse order: all uses of
    /// a value precede its definition.
    fn backward_pass(&mut self, program: &Program, end: Position) {
        let mut position = end;
        for (index, block) in program.blocks.iter().enumerate().rev() {
            position -= 1;
            let mut need = required_len::at_end(program, index, &self.needs);
            if need.never_accepts() {
                // No code is generated for the block, so its uses do not count.
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

    /// Keeps loads whose numeric value is not needed, and their masked parts, in the
    /// frame's byte order.
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

/// The constant that tests a raw value of `width` as `constant` tests the numeric
/// value; valid for equality, for bits and as a mask.
///
/// The upper half of `constant` is kept for a two-byte value, which has no such bits:
/// the test fails as it does for the numeric value.
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
