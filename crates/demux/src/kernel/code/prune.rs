//! Pruned subtables: the intersection of the cells of all fields, and the look-up
//! of each subtable that remains.
//!
//! ```text
//!  expressions, once ─► cells ─► bits ─► each bit: masks of the subtable's key
//!                                          its layout: key ─► look-up ─► next bit
//! ```

use super::super::expr::Expr;
use super::super::layout::{UNIT_BYTES, candidate, entry, scratch, subtable as words};
use super::super::maps::MapRole;
use super::super::prune::{BITS, Pruned, Pruning};
use super::super::subtable::Subtable;
use super::candidates::covers;
use super::{CALLEE_SAVED, Coder, SCRATCH};
use std::collections::BTreeMap;
use weir_filter::backend::ebpf::{Insn, Label, Reg, op};

/// The registers that collect words of bits, five words at a time.
const BIT_REGS: [Reg; 5] = [Reg::R3, Reg::R4, Reg::R5, Reg::R0, CALLEE_SAVED];

/// How a key is assembled. Subtables whose keys differ only in the masks of their
/// fields have the same layout and share its code.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct KeyLayout<'p> {
    lanes: usize,
    parts: Vec<LayoutPart<'p>>,
    /// The expressions of residual tests that are not shared, each with its number
    /// among the subtable's values.
    own: Vec<(usize, &'p Expr)>,
}

/// Where an expression stands in a key, and how many bits it has there.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct LayoutPart<'p> {
    lane: usize,
    shift: u32,
    bits: u32,
    expr: &'p Expr,
}

impl<'p> KeyLayout<'p> {
    fn of(subtable: &'p Subtable, shared: &[&Expr]) -> KeyLayout<'p> {
        let parts = subtable.key_parts.iter().map(|part| LayoutPart {
            lane: part.lane,
            shift: part.shift,
            bits: part.bits,
            expr: &subtable.signature.fields[part.field].0,
        });
        KeyLayout {
            lanes: subtable.lanes,
            parts: parts.collect(),
            own: (0..)
                .zip(&subtable.values)
                .filter(|(_, expr)| !shared.contains(expr))
                .collect(),
        }
    }
}

/// Where the look-ups continue.
struct Continuations<'p> {
    /// At the next subtable of the word.
    next: Label,
    /// At the look-up of the candidate.
    resolve: Label,
    /// At the code that assembles keys of a layout.
    layouts: BTreeMap<KeyLayout<'p>, Label>,
}

/// Offset in the only candidate: pruned subtables are looked up one at a time.
fn in_candidate(at: i16) -> i16 {
    scratch::CANDIDATE + at
}

impl<'p> Coder<'p> {
    /// Looks up all subtables that are pruned, the best rank first.
    pub(super) fn pruned(&mut self, pruning: &'p Pruning) {
        self.shared = self.shared_exprs(pruning);
        self.save_shared_values();
        self.all_bits(pruning);
        let words = pruning.bit_words();
        let starts: Vec<Label> = (0..=words).map(|_| self.asm.label()).collect();
        let mut to = Continuations {
            next: self.asm.label(),
            resolve: self.asm.label(),
            layouts: BTreeMap::new(),
        };
        let turns: Vec<Label> = (0..words).map(|_| self.asm.label()).collect();
        for (word, subtables) in pruning.subtables.chunks(BITS).enumerate() {
            let [start, end] = [starts[word], starts[word + 1]];
            self.asm.bind(start);
            self.word(pruning, word, end);
            self.asm.bind(turns[word]);
            self.round(starts[words]);
            self.get(op::DW, Reg::R1, SCRATCH, scratch::BITS);
            self.branch(op::JEQ, Reg::R1, 0, end);
            self.least_bit(subtables, 0, &mut to);
        }
        self.asm.bind(to.next);
        self.get(op::W, Reg::R2, SCRATCH, scratch::WORD);
        for (word, turn) in turns.iter().enumerate() {
            self.branch(op::JEQ, Reg::R2, word as i32, *turn);
        }
        self.asm.goto(starts[words]);
        for (layout, label) in &to.layouts {
            self.asm.bind(*label);
            self.key_of_layout(layout, &to);
        }
        self.asm.bind(to.resolve);
        self.resolve_one(to.next);
        self.asm.bind(starts[words]);
        self.shared.clear();
    }

    /// The expressions whose values are computed once for all subtables: those of
    /// the fields that have cells, then the most used of the others.
    fn shared_exprs(&self, pruning: &'p Pruning) -> Vec<&'p Expr> {
        let mut shared: Vec<&Expr> = pruning.fields.iter().map(|field| &field.field.0).collect();
        shared.sort();
        shared.dedup();
        let mut counts: BTreeMap<&Expr, usize> = BTreeMap::new();
        let plan = self.plan;
        for subtable in pruning
            .subtables
            .iter()
            .filter_map(|n| plan.subtables.get(n))
        {
            let fields = subtable.signature.fields.iter().map(|(expr, _)| expr);
            for expr in fields.chain(&subtable.values) {
                *counts.entry(expr).or_insert(0) += 1;
            }
        }
        let mut others: Vec<(&Expr, usize)> = counts.into_iter().collect();
        others.retain(|(expr, count)| *count > 1 && !shared.contains(expr));
        others.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        shared.extend(others.into_iter().map(|(expr, _)| expr));
        shared.truncate(scratch::SHARED_MAX);
        shared
    }

    /// Saves the values of the shared expressions.
    fn save_shared_values(&mut self) {
        for at in 0..self.shared.len() {
            self.save_value(self.shared[at], at);
        }
    }

    /// Saves the value of an expression as number `at` of the shared values.
    fn save_value(&mut self, expr: &Expr, at: usize) {
        let none = self.asm.label();
        let at = scratch::SHARED + 8 * at as i16;
        let checked = self.checked;
        self.set(op::DW, SCRATCH, at, candidate::NO_VALUE);
        self.eval(expr, none);
        self.push(Insn::mov32(Reg::R1, Reg::R1));
        self.set(op::DW, SCRATCH, at, Reg::R1);
        self.asm.bind(none);
        // What one value needs of the frame, another may do without.
        self.checked = checked;
    }

    /// r1 = the value of an expression; continues at `fail` if the frame has none.
    /// The other registers stay if the expression is shared.
    fn value_of(&mut self, expr: &Expr, fail: Label) {
        let Some(at) = self.shared.iter().position(|known| *known == expr) else {
            return self.eval(expr, fail);
        };
        self.get(op::DW, Reg::R1, SCRATCH, scratch::SHARED + 8 * at as i16);
        self.branch(op::JEQ, Reg::R1, candidate::NO_VALUE, fail);
    }

    /// Saves the intersection of the frame's cells of all fields.
    fn all_bits(&mut self, pruning: &Pruning) {
        let all: Vec<usize> = (0..pruning.bit_words()).collect();
        for batch in all.chunks(BIT_REGS.len()) {
            let words: Vec<(usize, Reg)> = batch.iter().copied().zip(BIT_REGS).collect();
            for (word, reg) in &words {
                self.constant(*reg, pruning.all(*word));
            }
            let mut absent = Vec::new();
            for pruned in &pruning.fields {
                let asked = |(word, _): &(usize, Reg)| pruned.words.contains(word);
                let asked: Vec<(usize, Reg)> = words.iter().copied().filter(asked).collect();
                let [none, done] = [(); 2].map(|()| self.asm.label());
                self.cell(pruned, &asked, none);
                self.asm.bind(done);
                absent.push((pruned, asked, none, done));
            }
            for (word, reg) in &words {
                let open = pruning.open * UNIT_BYTES + 8 * *word as u32;
                self.map_value(Reg::R1, MapRole::Store, open);
                self.get(op::DW, Reg::R1, Reg::R1, 0);
                self.alu(op::OR, *reg, Reg::R1);
                self.set(op::DW, SCRATCH, scratch::ALL_BITS + 8 * *word as i16, *reg);
            }
            let behind = self.asm.label();
            self.asm.goto(behind);
            for (pruned, asked, none, done) in absent {
                self.asm.bind(none);
                for (word, reg) in asked {
                    self.constant(Reg::R1, pruned.always(word));
                    self.alu(op::AND, reg, Reg::R1);
                }
                self.asm.goto(done);
            }
            self.asm.bind(behind);
        }
    }

    /// Clears the bits of some words that the frame's cell of a field does not
    /// have; continues at `none` if the frame does not have the field.
    fn cell(&mut self, pruned: &Pruned, asked: &[(usize, Reg)], none: Label) {
        let (expr, mask) = &pruned.field;
        self.value_of(expr, none);
        if !covers(*mask, expr) {
            self.push(Insn::alu32(op::AND, Reg::R1, *mask as i32));
        }
        self.push(Insn::alu32(op::MUL, Reg::R1, pruned.factor as i32));
        self.push(Insn::alu32(op::RSH, Reg::R1, pruned.shift as i32));
        self.alu(op::LSH, Reg::R1, pruned.cell_bytes().ilog2() as i32);
        self.map_value(Reg::R2, MapRole::Store, pruned.unit * UNIT_BYTES);
        self.add(Reg::R1, Reg::R2);
        for (at, word) in (0..).zip(&pruned.words) {
            if let Some((_, reg)) = asked.iter().find(|(asked, _)| asked == word) {
                self.get(op::DW, Reg::R2, Reg::R1, 8 * at);
                self.alu(op::AND, *reg, Reg::R2);
            }
        }
    }

    /// Starts with a word's subtables; continues at `otherwise` if the word has no
    /// bit, or if all of its entries come after the limit.
    fn word(&mut self, pruning: &Pruning, word: usize, otherwise: Label) {
        let best = pruning.best * UNIT_BYTES + 8 * word as u32;
        self.get(
            op::DW,
            Reg::R3,
            SCRATCH,
            scratch::ALL_BITS + 8 * word as i16,
        );
        self.branch(op::JEQ, Reg::R3, 0, otherwise);
        self.map_value(Reg::R1, MapRole::Store, best);
        self.get(op::DW, Reg::R1, Reg::R1, 0);
        self.get(op::DW, Reg::R2, SCRATCH, scratch::LIMIT);
        self.branch(op::JGE, Reg::R1, Reg::R2, otherwise);
        self.set(op::DW, SCRATCH, scratch::BITS, Reg::R3);
        self.set(op::W, SCRATCH, scratch::WORD, word as i32);
    }

    /// On to the subtable of the lowest bit that is set in r1, from `first` on.
    fn least_bit(&mut self, subtables: &[u32], first: usize, to: &mut Continuations<'p>) {
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

    /// Clears a subtable's bit and those below. Saves the subtable's own part of a
    /// candidate, and continues at its layout, unless all of its entries come after
    /// the limit.
    fn pruned_subtable(&mut self, number: u32, bit: usize, to: &mut Continuations<'p>) {
        let above = u64::MAX.checked_shl(bit as u32 + 1).unwrap_or(0);
        self.constant(Reg::R2, above);
        self.alu(op::AND, Reg::R1, Reg::R2);
        self.set(op::DW, SCRATCH, scratch::BITS, Reg::R1);
        let Some(subtable) = self.plan.subtables.get(&number) else {
            return self.asm.goto(to.next);
        };
        let best = subtable.unit * UNIT_BYTES + 8 * words::BEST;
        self.map_value(Reg::R1, MapRole::Store, best);
        self.get(op::DW, Reg::R1, Reg::R1, 0);
        self.get(op::DW, Reg::R2, SCRATCH, scratch::LIMIT);
        self.branch(op::JGE, Reg::R1, Reg::R2, to.next);
        // The verifier does not track constants in this memory, and so examines the
        // code of a layout once for all subtables.
        self.set(
            op::W,
            SCRATCH,
            in_candidate(candidate::SUBTABLE),
            number as i32,
        );
        self.set(
            op::W,
            SCRATCH,
            in_candidate(candidate::UNIT),
            subtable.unit as i32,
        );
        for (lane, mask) in subtable
            .key_mask()
            .into_iter()
            .take(subtable.lanes)
            .enumerate()
        {
            self.constant(Reg::R1, mask);
            self.set(op::DW, SCRATCH, scratch::KEY + 8 * lane as i16, Reg::R1);
        }
        let mut indices = [u8::MAX; candidate::VALUES_MAX];
        for (at, (index, expr)) in indices.iter_mut().zip(&subtable.values).enumerate() {
            let shared = self.shared.iter().position(|known| *known == expr);
            *index = shared.unwrap_or(scratch::SHARED_MAX + at) as u8;
        }
        self.constant(Reg::R1, u64::from_ne_bytes(indices));
        self.set(
            op::DW,
            SCRATCH,
            in_candidate(candidate::VALUE_INDICES),
            Reg::R1,
        );
        let layout = KeyLayout::of(subtable, &self.shared);
        let layout = to.layouts.entry(layout);
        let label = *layout.or_insert_with(|| self.asm.label());
        self.asm.goto(label);
    }

    /// Completes the candidate of a subtable whose masks are in scratch memory: its
    /// key, its own values, and the key's hash.
    fn key_of_layout(&mut self, layout: &KeyLayout<'p>, to: &Continuations<'p>) {
        self.checked = 0;
        for lane in 0..layout.lanes {
            let parts = layout.parts.iter().filter(|part| part.lane == lane);
            for (at, part) in parts.enumerate() {
                self.value_of(part.expr, to.next);
                let mask = u32::MAX >> (u32::BITS - part.bits);
                self.push(Insn::alu32(op::AND, Reg::R1, mask as i32));
                if part.shift > 0 {
                    self.alu(op::LSH, Reg::R1, part.shift as i32);
                }
                if at == 0 {
                    self.mov(CALLEE_SAVED, Reg::R1);
                } else {
                    self.alu(op::OR, CALLEE_SAVED, Reg::R1);
                }
            }
            self.get(op::DW, Reg::R1, SCRATCH, scratch::KEY + 8 * lane as i16);
            self.alu(op::AND, CALLEE_SAVED, Reg::R1);
            let at = in_candidate(candidate::KEY + 8 * lane as i16);
            self.set(op::DW, SCRATCH, at, CALLEE_SAVED);
        }
        self.set(
            op::W,
            SCRATCH,
            in_candidate(candidate::LANES),
            layout.lanes as i32,
        );
        let rest_key = entry::rest_key_tests(layout.lanes);
        self.set(
            op::W,
            SCRATCH,
            in_candidate(candidate::REST_KEY),
            rest_key as i32,
        );
        for (at, expr) in &layout.own {
            self.save_value(expr, scratch::SHARED_MAX + at);
        }
        self.mov(CALLEE_SAVED, SCRATCH);
        self.add(CALLEE_SAVED, i32::from(scratch::CANDIDATE));
        self.hash(Some(layout.lanes), to.next);
        self.asm.goto(to.resolve);
    }
}
