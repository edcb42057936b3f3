//! Register allocation by linear scan (Poletto and Sarkar, "Linear scan register
//! allocation", 1999).
//!
//! Edges lead forward, so a value lives from its definition to its last use in code
//! order; one pass over that order finds all live intervals. A value without a
//! register is on the stack for its whole life.

use super::EmitError;
use super::insn::Reg;
use super::lower::{Lowered, Step, cut};
use crate::ir::{Block, Operand, Program, Term, Value};

/// The location of a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Location {
    /// No location: the value is not used.
    Nowhere,
    /// A register.
    Reg(Reg),
    /// 8 bytes of stack at this offset from the frame pointer.
    Slot(i16),
}

/// The registers and stack slots available for values.
pub(super) struct RegisterFile<'a> {
    pub(super) regs: &'a [Reg],
    /// Slots are below this offset from the frame pointer.
    pub(super) stack_top: i16,
    /// Maximum number of slots.
    pub(super) slots_max: usize,
}

/// A live interval. Each step has two positions: the first for operands read before
/// the result is written, the second for operands read later and for the result.
#[derive(Clone, Copy)]
struct LiveInterval {
    start: u32,
    end: u32,
    /// A value whose register should be reused.
    hint: Option<Value>,
}

const UNBORN: u32 = u32::MAX;

/// The live intervals of all values, and the positions of calls.
pub(super) struct LiveIntervals {
    of: Vec<LiveInterval>,
    calls: Vec<u32>,
}

impl LiveIntervals {
    pub(super) fn new(program: &Program, lowered: &Lowered) -> LiveIntervals {
        let unborn = LiveInterval {
            start: UNBORN,
            end: 0,
            hint: None,
        };
        let mut lives = LiveIntervals {
            of: vec![unborn; lowered.used.len()],
            calls: Vec::new(),
        };
        let mut at = 0;
        for (index, steps) in lowered.blocks.iter().enumerate() {
            let Some(steps) = steps else { continue };
            for step in steps {
                lives.step(*step, at);
                at += 2;
            }
            if !cut(steps) {
                lives.term(program, lowered, Block(index as u32), at);
            }
            at += 2;
        }
        lives
    }

    fn step(&mut self, step: Step, at: u32) {
        let (early, late) = step.uses();
        if let Some(value) = early {
            self.live_until(value, at);
        }
        if let Some(value) = late {
            self.live_until(value, at + 1);
        }
        if let Some(dst) = step.dst() {
            self.born(dst, at + 1, early);
        }
        if let Step::Fetch { .. } = step {
            self.calls.push(at);
        }
    }

    fn term(&mut self, program: &Program, lowered: &Lowered, block: Block, at: u32) {
        let term = &program.block(block).term;
        let read = match term {
            Term::Branch { a, b, .. } => [Some(*a), Some(*b)],
            Term::Return(verdict) => [Some(*verdict), None],
            Term::Jump(_) => [None, None],
        };
        for value in read.into_iter().flatten().filter_map(Operand::value) {
            self.live_until(value, at);
        }
        for edge in term.edges() {
            if lowered.blocks[edge.block.index()].is_none() {
                continue;
            }
            let params = &program.block(edge.block).params;
            for (param, arg) in params.iter().zip(&edge.args) {
                if lowered.used[param.index()] {
                    if let Some(value) = arg.value() {
                        self.live_until(value, at);
                    }
                    self.born(*param, at + 1, arg.value());
                }
            }
        }
    }

    fn live_until(&mut self, value: Value, at: u32) {
        let life = &mut self.of[value.index()];
        life.end = life.end.max(at);
    }

    fn born(&mut self, value: Value, at: u32, hint: Option<Value>) {
        let life = &mut self.of[value.index()];
        if life.start == UNBORN {
            *life = LiveInterval {
                start: at,
                end: life.end.max(at),
                hint,
            };
        }
    }

    fn spans_call(&self, life: LiveInterval) -> bool {
        let next = self.calls.partition_point(|&call| call < life.start);
        self.calls.get(next).is_some_and(|&call| call < life.end)
    }

    /// The used values in order of their start.
    fn in_order(&self) -> Vec<Value> {
        let mut order: Vec<Value> = (0..self.of.len() as u32)
            .map(Value)
            .filter(|value| self.of[value.index()].start != UNBORN)
            .collect();
        order.sort_by_key(|value| self.of[value.index()].start);
        order
    }

    /// Assigns a location to each value.
    pub(super) fn allocate(&self, room: &RegisterFile<'_>) -> Result<Vec<Location>, EmitError> {
        let order = self.in_order();
        let mut scan = LinearScan {
            intervals: self,
            regs: room.regs,
            locations: vec![Location::Nowhere; self.of.len()],
            active: Vec::new(),
        };
        for &value in &order {
            scan.assign(value);
        }
        let mut locations = scan.locations;
        self.assign_spill_slots(&order, room, &mut locations)?;
        Ok(locations)
    }

    /// Assigns stack slots to values without a register; disjoint intervals share a slot.
    fn assign_spill_slots(
        &self,
        order: &[Value],
        room: &RegisterFile<'_>,
        locations: &mut [Location],
    ) -> Result<(), EmitError> {
        let mut busy_until: Vec<u32> = Vec::new();
        for value in order {
            if locations[value.index()] != Location::Nowhere {
                continue;
            }
            let life = self.of[value.index()];
            let free = busy_until.iter().position(|&end| end < life.start);
            let slot = free.unwrap_or(busy_until.len());
            if slot == busy_until.len() {
                busy_until.push(0);
            }
            if slot >= room.slots_max {
                let (regs, slots) = (room.regs.len(), room.slots_max);
                return Err(EmitError::TooManyLive { regs, slots });
            }
            busy_until[slot] = life.end;
            locations[value.index()] = Location::Slot(room.stack_top - 8 * (slot as i16 + 1));
        }
        Ok(())
    }
}

struct LinearScan<'a> {
    intervals: &'a LiveIntervals,
    regs: &'a [Reg],
    /// Locations so far. During the scan `Nowhere` also means a slot yet to be assigned.
    locations: Vec<Location>,
    /// Values whose registers are in use now.
    active: Vec<(Value, Reg)>,
}

impl LinearScan<'_> {
    fn assign(&mut self, value: Value) {
        let life = self.intervals.of[value.index()];
        let lives = self.intervals;
        self.active
            .retain(|(other, _)| lives.of[other.index()].end >= life.start);
        let spans_call = lives.spans_call(life);
        let suits = |reg: Reg| reg.survives_calls() || !spans_call;
        let is_free = |reg: Reg| suits(reg) && self.active.iter().all(|(_, used)| *used != reg);
        let hinted = life
            .hint
            .and_then(|hint| match self.locations[hint.index()] {
                Location::Reg(reg) if is_free(reg) => Some(reg),
                _ => None,
            });
        let free = hinted.or_else(|| self.regs.iter().copied().find(|&reg| is_free(reg)));
        if let Some(reg) = free {
            self.active.push((value, reg));
            self.locations[value.index()] = Location::Reg(reg);
            return;
        }
        // The interval that ends last is spilled.
        let rivals = (0..self.active.len()).filter(|&index| suits(self.active[index].1));
        let last = rivals.max_by_key(|&index| lives.of[self.active[index].0.index()].end);
        if let Some(index) = last {
            let (rival, reg) = self.active[index];
            if lives.of[rival.index()].end > life.end {
                self.locations[rival.index()] = Location::Nowhere;
                self.locations[value.index()] = Location::Reg(reg);
                self.active[index] = (value, reg);
            }
        }
    }
}
