//! Pruned subtables: the cells of all fields, what they have in common, and the
//! look-up of each subtable that is left.

use super::super::layout::{UNIT_BYTES, scratch, subtable as words};
use super::super::maps::MapRole;
use super::super::prune::{Pruned, Pruning};
use super::{Coder, SCRATCH};
use weir_filter::backend::ebpf::{Insn, Label, Reg, op};

/// Bits of a word.
const BITS: usize = 64;

/// Where the look-ups go on.
#[derive(Clone, Copy)]
struct Continuations {
    /// At the next subtable of the word.
    next: Label,
    /// At the look-up of the candidate.
    resolve: Label,
}

impl Coder<'_> {
    /// Looks up all subtables that are pruned, the best rank first.
    pub(super) fn pruned(&mut self, pruning: &Pruning) {
        for (at, field) in pruning.fields.iter().enumerate() {
            self.cell(pruning, field, at);
        }
        let words = pruning.bit_words();
        let starts: Vec<Label> = (0..=words).map(|_| self.asm.label()).collect();
        let to = Continuations {
            next: self.asm.label(),
            resolve: self.asm.label(),
        };
        for word in 0..words {
            self.asm.bind(starts[word]);
            self.common_bits(pruning, word, starts[word + 1]);
            self.asm.goto(to.next);
        }
        self.for_each_subtable(pruning, &starts, to);
        self.asm.bind(to.resolve);
        self.resolve(to.next);
        self.asm.goto(to.next);
        self.asm.bind(starts[words]);
    }

    /// Notes where the store has the frame's cell of a field.
    fn cell(&mut self, pruning: &Pruning, pruned: &Pruned, at: usize) {
        let [none, known] = [(); 2].map(|()| self.asm.label());
        let place = scratch::CELLS + 4 * at as i16;
        let (expr, mask) = &pruned.field;
        let checked = self.checked;
        self.eval(expr, none);
        self.push(Insn::alu32(op::AND, Reg::R1, *mask as i32));
        self.push(Insn::alu32(op::MUL, Reg::R1, pruned.factor as i32));
        self.push(Insn::alu32(op::RSH, Reg::R1, pruned.shift as i32));
        self.alu(op::LSH, Reg::R1, pruning.cell_bytes().ilog2() as i32);
        self.add(Reg::R1, (pruned.unit * UNIT_BYTES) as i32);
        self.set(op::W, SCRATCH, place, Reg::R1);
        self.asm.goto(known);
        self.asm.bind(none);
        self.set(op::W, SCRATCH, place, (pruning.none * UNIT_BYTES) as i32);
        self.asm.bind(known);
        self.checked = checked;
    }

    /// Notes a word of what all cells have in common, unless none of its subtables
    /// matters any more.
    fn common_bits(&mut self, pruning: &Pruning, word: usize, otherwise: Label) {
        let of_unit = |unit: u32| unit * UNIT_BYTES + 8 * word as u32;
        self.map_value(Reg::R1, MapRole::Store, of_unit(pruning.best));
        self.get(op::DW, Reg::R1, Reg::R1, 0);
        self.get(op::DW, Reg::R2, SCRATCH, scratch::LIMIT);
        self.branch(op::JGE, Reg::R1, Reg::R2, otherwise);
        self.map_value(Reg::R2, MapRole::Store, 0);
        self.mov(Reg::R3, -1);
        let last = (self.plan.image.units * UNIT_BYTES) as i32;
        for (at, pruned) in pruning.fields.iter().enumerate() {
            self.get(op::W, Reg::R1, SCRATCH, scratch::CELLS + 4 * at as i16);
            self.branch(op::JGT, Reg::R1, last, otherwise);
            self.add(Reg::R1, Reg::R2);
            self.get(op::DW, Reg::R1, Reg::R1, 8 * word as i16);
            let always = pruned.always(word);
            if always != 0 {
                self.constant(Reg::R4, always);
                self.alu(op::OR, Reg::R1, Reg::R4);
            }
            self.alu(op::AND, Reg::R3, Reg::R1);
        }
        self.map_value(Reg::R1, MapRole::Store, of_unit(pruning.open));
        self.get(op::DW, Reg::R1, Reg::R1, 0);
        self.alu(op::OR, Reg::R3, Reg::R1);
        self.set(op::DW, SCRATCH, scratch::BITS, Reg::R3);
        self.set(op::W, SCRATCH, scratch::WORD, word as i32);
    }

    /// The code of each subtable, reached by its bit.
    fn for_each_subtable(&mut self, pruning: &Pruning, starts: &[Label], to: Continuations) {
        let [go_on, out] = [(); 2].map(|()| self.asm.label());
        self.asm.bind(to.next);
        self.round(out);
        self.get(op::DW, Reg::R1, SCRATCH, scratch::BITS);
        self.branch(op::JEQ, Reg::R1, 0, go_on);
        self.get(op::W, Reg::R2, SCRATCH, scratch::WORD);
        for (word, subtables) in pruning.subtables.chunks(BITS).enumerate() {
            let other = self.asm.label();
            self.branch(op::JNE, Reg::R2, word as i32, other);
            self.least_bit(subtables, 0, to);
            self.asm.bind(other);
        }
        self.asm.bind(out);
        self.asm.goto(starts[starts.len() - 1]);

        self.asm.bind(go_on);
        self.get(op::W, Reg::R2, SCRATCH, scratch::WORD);
        for (word, start) in starts.iter().skip(1).enumerate() {
            self.branch(op::JEQ, Reg::R2, word as i32, *start);
        }
        self.asm.goto(starts[starts.len() - 1]);
    }

    /// On to the subtable of the lowest bit that is set in r1, from `first` on.
    fn least_bit(&mut self, subtables: &[u32], first: usize, to: Continuations) {
        let (low, high) = subtables.split_at(subtables.len() / 2);
        if low.is_empty() {
            return self.pruned_subtable(subtables[0], first, to);
        }
        let upper = self.asm.label();
        let mask = ((1_u64 << low.len()) - 1) << first;
        self.constant(Reg::R2, mask);
        self.alu(op::AND, Reg::R2, Reg::R1);
        self.branch(op::JEQ, Reg::R2, 0, upper);
        self.least_bit(low, first, to);
        self.asm.bind(upper);
        self.least_bit(high, first + low.len(), to);
    }

    /// Clears a subtable's bit and those below, and leaves the subtable as a candidate
    /// unless all of its entries come too late.
    fn pruned_subtable(&mut self, number: u32, bit: usize, to: Continuations) {
        let next = self.asm.label();
        let above = u64::MAX.checked_shl(bit as u32 + 1).unwrap_or(0);
        self.constant(Reg::R2, above);
        self.alu(op::AND, Reg::R1, Reg::R2);
        self.set(op::DW, SCRATCH, scratch::BITS, Reg::R1);
        if let Some(subtable) = self.plan.subtables.get(&number) {
            let best = subtable.unit * UNIT_BYTES + 8 * words::BEST;
            self.map_value(Reg::R1, MapRole::Store, best);
            self.get(op::DW, Reg::R1, Reg::R1, 0);
            self.get(op::DW, Reg::R2, SCRATCH, scratch::LIMIT);
            self.branch(op::JGE, Reg::R1, Reg::R2, next);
            self.checked = 0;
            self.key(subtable, next);
            self.candidate(subtable, next);
            self.asm.goto(to.resolve);
        }
        self.asm.bind(next);
        self.asm.goto(to.next);
    }
}
