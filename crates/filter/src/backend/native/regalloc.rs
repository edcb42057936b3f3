//! Register allocation by linear scan (Poletto and Sarkar, "Linear Scan Register
//! Allocation", 1999) over the layout order, in which edges lead forward.
//!
//! Filters rarely hold more than three live values, so one pass without splitting
//! suffices. If registers run out, the value with the latest last use is spilled for
//! its whole life.

use super::liveness::{Liveness, Position};
use super::location::{Location, Reg, RegSet};
use super::{NativeError, SLOTS_MAX};
use crate::ir::{Op, Operand, Program, Term, Value};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The locations of all values.
#[derive(Debug)]
pub(super) struct Allocation {
    /// Location of each value; `None` for an unused value.
    pub(super) of: Vec<Option<Location>>,
    /// Number of stack slots.
    pub(super) slots: usize,
}

/// Allocates `registers` to values. `len_register` holds the length on the wire
/// throughout.
pub(super) fn allocate(
    program: &Program,
    facts: &Liveness,
    registers: RegSet,
    len_register: Reg,
) -> Result<Allocation, NativeError> {
    let mut scan = LinearScan {
        liveness: facts,
        locations: vec![None; program.values.len()],
        hints: vec![None; program.values.len()],
        free: registers,
        active: Vec::with_capacity(registers.count_ones() as usize),
        slots: Slots::default(),
    };
    for (index, block) in program.blocks.iter().enumerate() {
        if facts.needs[index].never_accepts() {
            continue;
        }
        for &param in &block.params {
            scan.assign(param, scan.hints[param.index()])?;
        }
        for &value in &block.insts {
            match program.op(value) {
                Op::Len => scan.locations[value.index()] = Some(Location::Reg(len_register)),
                Op::Bin {
                    a: Operand::Val(a), ..
                } => scan.assign(value, Some(a))?,
                _ => scan.assign(value, None)?,
            }
        }
        scan.hint_params(program, &block.term);
    }
    Ok(Allocation {
        of: scan.locations,
        slots: scan.slots.count,
    })
}

struct LinearScan<'p> {
    liveness: &'p Liveness,
    locations: Vec<Option<Location>>,
    /// For each parameter, an argument whose register would save a move.
    hints: Vec<Option<Value>>,
    free: RegSet,
    /// Values in registers, with their last uses.
    active: Vec<(Position, Reg, Value)>,
    slots: Slots,
}

impl LinearScan<'_> {
    /// Assigns a location to `value`, which is defined now; prefers the register of
    /// `hint` if that is free.
    fn assign(&mut self, value: Value, hint: Option<Value>) -> Result<(), NativeError> {
        let facts = &self.liveness.values[value.index()];
        if !facts.is_used() {
            return Ok(());
        }
        let free = &mut self.free;
        self.active.retain(|&(end, reg, _)| {
            let ends = end <= facts.start;
            *free |= u32::from(ends) << reg;
            !ends
        });
        let hint = hint.and_then(|hint| self.locations[hint.index()]);
        let location = match hint {
            Some(Location::Reg(reg)) if self.free & (1 << reg) != 0 => Location::Reg(reg),
            _ if self.free != 0 => Location::Reg(self.free.trailing_zeros() as Reg),
            _ => self.evict(facts.end, facts.start)?,
        };
        if let Location::Reg(reg) = location {
            self.free &= !(1 << reg);
            self.active.push((facts.end, reg, value));
        }
        self.locations[value.index()] = Some(location);
        Ok(())
    }

    /// Finds a location for an interval if no register is free: the register of the
    /// value with the latest last use, which is spilled, or else a slot.
    fn evict(&mut self, end: Position, start: Position) -> Result<Location, NativeError> {
        let longest = (0..self.active.len()).max_by_key(|&index| self.active[index].0);
        let Some(longest) = longest.filter(|&index| self.active[index].0 > end) else {
            return Ok(Location::Slot(self.slots.take(start, end)?));
        };
        let (other_end, reg, other) = self.active.swap_remove(longest);
        let other_start = self.liveness.values[other.index()].start;
        let slot = self.slots.take(other_start, other_end)?;
        self.locations[other.index()] = Some(Location::Slot(slot));
        Ok(Location::Reg(reg))
    }

    fn hint_params(&mut self, program: &Program, term: &Term) {
        for edge in term.edges() {
            let params = &program.block(edge.block).params;
            for (param, arg) in params.iter().zip(&edge.args) {
                self.hints[param.index()] = arg.value();
            }
        }
    }
}

/// The stack slots and the last use of each.
#[derive(Default)]
struct Slots {
    /// Pairs of last use and slot, the earliest first.
    ends: BinaryHeap<Reverse<(Position, u16)>>,
    count: usize,
}

impl Slots {
    /// A slot that is free from `start` to `end`; an error beyond [`SLOTS_MAX`].
    fn take(&mut self, start: Position, end: Position) -> Result<u16, NativeError> {
        if let Some(&Reverse((last, slot))) = self.ends.peek()
            && last <= start
        {
            self.ends.pop();
            self.ends.push(Reverse((end, slot)));
            return Ok(slot);
        }
        if self.count == SLOTS_MAX {
            return Err(NativeError::TooManyLive { max: SLOTS_MAX });
        }
        let slot = self.count as u16;
        self.count += 1;
        self.ends.push(Reverse((end, slot)));
        Ok(slot)
    }
}
