//! Puts values into registers and stack slots: linear scan.
//!
//! Edges lead forward, so a value lives from its definition to its last use
//! in the order of the code and no further; one pass over that order finds
//! all lifetimes. What does not fit into registers lives on the stack for
//! the whole of its life (Poletto and Sarkar, "Linear scan register
//! allocation", 1999).

use super::EmitError;
use super::insn::Reg;
use super::lower::{Lowered, Step, cut};
use crate::ir::{Block, Operand, Program, Term, Value};

/// Where a value lives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Location {
    /// Nowhere: nothing needs it.
    Nowhere,
    /// In a register.
    Reg(Reg),
    /// On the stack, at this offset from the frame pointer; 8 bytes.
    Slot(i16),
}

/// What there is to put values into.
pub(super) struct RegisterFile<'a> {
    pub(super) regs: &'a [Reg],
    /// The stack's first byte used above; slots go below.
    pub(super) stack_top: i16,
    /// Slots, at most.
    pub(super) slots_max: usize,
}

/// When a value lives: positions are two a step, the first for what it reads
/// early, the second for what it reads late and for its result.
#[derive(Clone, Copy)]
struct LiveInterval {
    start: u32,
    end: u32,
    /// A value whose register it had better take over.
    hint: Option<Value>,
}

const UNBORN: u32 = u32::MAX;

/// The lives of all values, and where calls are.
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

    /// The values that live, by when they start.
    fn in_order(&self) -> Vec<Value> {
        let mut order: Vec<Value> = (0..self.of.len() as u32)
            .map(Value)
            .filter(|value| self.of[value.index()].start != UNBORN)
            .collect();
        order.sort_by_key(|value| self.of[value.index()].start);
        order
    }

    /// A place for each value.
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
        let mut places = scan.locations;
        self.assign_spill_slots(&order, room, &mut places)?;
        Ok(places)
    }

    /// Gives slots to what got no register; one slot serves many in turn.
    fn assign_spill_slots(
        &self,
        order: &[Value],
        room: &RegisterFile<'_>,
        places: &mut [Location],
    ) -> Result<(), EmitError> {
        let mut busy_until: Vec<u32> = Vec::new();
        for value in order {
            if places[value.index()] != Location::Nowhere {
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
            places[value.index()] = Location::Slot(room.stack_top - 8 * (slot as i16 + 1));
        }
        Ok(())
    }
}

struct LinearScan<'a> {
    intervals: &'a LiveIntervals,
    regs: &'a [Reg],
    /// During the scan `Nowhere` also means: on the stack, place to be found.
    locations: Vec<Location>,
    /// What holds a register now.
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
        // Whatever is needed last gives way.
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
