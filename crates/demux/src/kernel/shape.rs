//! Shapes of the kernel half: fields, where they stand in the key, guards.

use super::expr::Expr;
use super::image::Image;
use super::layout::{LANES_MAX, UNIT_WORDS, shape};
use super::sieve::Sieve;
use crate::plan::hash::{KeyHash, Secret};
use weir_filter::ir::Op;

/// A field of a key: bits of an expression.
pub(super) type Field = (Expr, u32);

/// All entries whose keys are values of the same fields.
pub(super) struct Shape {
    /// Never given again.
    pub(super) number: u32,
    pub(super) fields: Box<[Field]>,
    pub(super) parts: Vec<Part>,
    pub(super) lanes: usize,
    pub(super) hash: KeyHash,
    pub(super) guards: Vec<Guard>,
    /// Where the store has guards and hash.
    pub(super) unit: u32,
    /// For each field the value of all entries, if they have the same.
    pub(super) constant: Vec<Option<u32>>,
    /// Which frames may have an entry; `None` with too many entries.
    pub(super) sieve: Option<Sieve>,
    /// What residual tests of its entries use.
    pub(super) values: Vec<Expr>,
    pub(super) entries: usize,
}

/// Where a field stands in the key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    /// Which of the fields.
    pub(super) field: usize,
    pub(super) lane: usize,
    pub(super) shift: u32,
}

/// A field that had one value in all entries when it was looked at: a frame
/// with another is sent on before anything is hashed. It is data, so that it
/// can be opened while a program runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Guard {
    pub(super) field: usize,
    pub(super) state: GuardState,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum GuardState {
    /// No entry yet.
    Fresh,
    /// All entries have this value.
    One(u32),
    /// They differ: every frame passes.
    Open,
}

impl Shape {
    /// Units of the piece of the store that a shape of so many fields takes.
    pub(super) fn units(fields: &[Field]) -> u32 {
        let (_, lanes) = packed(fields);
        (shape::FACTORS + 2 * lanes as u32).div_ceil(UNIT_WORDS)
    }

    /// Made for an entry of `values`, in a piece of the store at `unit`.
    pub(super) fn new(
        number: u32,
        fields: &[Field],
        values: &[u32],
        secret: Secret,
        unit: u32,
        image: &mut Image,
    ) -> Shape {
        let (parts, lanes) = packed(fields);
        let fixed = |(expr, _): &Field| matches!(expr.ops(), [Op::Load { .. }]);
        let guarded = (0..fields.len()).filter(|field| fixed(&fields[*field]));
        let hash = secret.key_hash(u64::from(number), lanes);
        for guard in 0..shape::GUARDS_MAX as u32 {
            image.put(unit, shape::GUARDS + guard, 0);
        }
        image.put(unit, shape::START, hash.start);
        image.put(unit, shape::MIX, hash.mix.into());
        for (lane, (low, high)) in hash.factors.iter().enumerate() {
            let word = shape::FACTORS + 2 * lane as u32;
            image.put(unit, word, *low);
            image.put(unit, word + 1, *high);
        }
        Shape {
            number,
            fields: fields.into(),
            parts,
            lanes,
            hash,
            guards: guarded
                .take(shape::GUARDS_MAX)
                .map(|field| Guard {
                    field,
                    state: GuardState::Fresh,
                })
                .collect(),
            unit,
            constant: values.iter().copied().map(Some).collect(),
            sieve: None,
            values: Vec::new(),
            entries: 0,
        }
    }

    /// The field whose values a sieve should know: one that differs from
    /// entry to entry as far as is known, else one without a guard, and with
    /// many bits.
    pub(super) fn telling_field(&self) -> Option<usize> {
        let guarded = |field: usize| self.guards.iter().any(|guard| guard.field == field);
        (0..self.fields.len()).max_by_key(|field| {
            let (expr, mask) = &self.fields[*field];
            let simple = std::cmp::Reverse(expr.ops().len());
            let varies = self.constant[*field].is_none();
            (varies, !guarded(*field), mask.count_ones(), simple)
        })
    }

    /// Notes that there is an entry of `values`.
    pub(super) fn note(&mut self, values: &[u32]) {
        for (constant, value) in self.constant.iter_mut().zip(values) {
            if *constant != Some(*value) {
                *constant = None;
            }
        }
    }

    /// A field of a key.
    pub(super) fn value_of(&self, field: usize, key: &[u64]) -> u32 {
        let part = self.parts.iter().find(|part| part.field == field);
        let (_, mask) = self.fields[field];
        part.map_or(0, |part| (key[part.lane] >> part.shift) as u32 & mask)
    }

    /// The key that holds `values`, one for each of the fields.
    pub(super) fn key(&self, values: &[u32]) -> [u64; LANES_MAX] {
        let mut key = [0; LANES_MAX];
        for part in &self.parts {
            key[part.lane] |= u64::from(values[part.field]) << part.shift;
        }
        key
    }

    pub(super) fn hash(&self, key: &[u64]) -> u32 {
        self.hash.hash(&key[..self.lanes])
    }

    /// Opens guards that `values` do not pass, and gives the numbers and new
    /// words of those that changed.
    pub(super) fn pass(&mut self, values: &[u32]) -> Vec<(usize, u64)> {
        let mut changed = Vec::new();
        for (index, guard) in self.guards.iter_mut().enumerate() {
            let value = values[guard.field];
            let state = match guard.state {
                GuardState::Fresh => GuardState::One(value),
                GuardState::One(known) if known != value => GuardState::Open,
                same => same,
            };
            if state != guard.state {
                guard.state = state;
                let word = match state {
                    GuardState::One(value) => {
                        u64::from(value) << 32 | u64::from(self.fields[guard.field].1)
                    }
                    _ => 0,
                };
                changed.push((index, word));
            }
        }
        changed
    }
}

/// Where each field goes in the key: whole bytes, wide fields first, so that
/// none straddles a word. Sorted by word.
fn packed(fields: &[Field]) -> (Vec<Part>, usize) {
    let width = |(_, mask): &Field| match 32 - mask.leading_zeros() {
        0..=8 => 8,
        9..=16 => 16,
        _ => 32,
    };
    let mut by_width: Vec<usize> = (0..fields.len()).collect();
    by_width.sort_by_key(|field| std::cmp::Reverse(width(&fields[*field])));
    let mut bit = 0;
    let mut parts = Vec::with_capacity(fields.len());
    for field in by_width {
        parts.push(Part {
            field,
            lane: bit as usize / 64,
            shift: bit % 64,
        });
        bit += width(&fields[field]);
    }
    (parts, bit.div_ceil(64) as usize)
}
