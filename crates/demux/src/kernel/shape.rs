//! Shapes of the kernel half: fields, where they stand in the key, guards.

use super::expr::Expr;
use super::layout::LANES_MAX;
use crate::plan::hash::{KeyHash, Secret};
use weir_filter::ir::Op;

/// Guards of one shape, at most: a guard costs three instructions.
const GUARDS_MAX: usize = 4;

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
    /// Where the guards stand in the store.
    pub(super) guard_unit: u32,
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
    pub(super) fn new(number: u32, fields: &[Field], secret: Secret, guard_unit: u32) -> Shape {
        let (parts, lanes) = packed(fields);
        let fixed = |(expr, _): &Field| matches!(expr.ops(), [Op::Load { .. }]);
        let guarded = (0..fields.len()).filter(|field| fixed(&fields[*field]));
        Shape {
            number,
            fields: fields.into(),
            parts,
            lanes,
            hash: secret.key_hash(u64::from(number), lanes),
            guards: guarded
                .take(GUARDS_MAX)
                .map(|field| Guard {
                    field,
                    state: GuardState::Fresh,
                })
                .collect(),
            guard_unit,
            values: Vec::new(),
            entries: 0,
        }
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

    /// Opens guards that `values` do not pass, and gives the words of those
    /// that changed.
    pub(super) fn pass(&mut self, values: &[u32]) -> Vec<(u32, u64)> {
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
                changed.push((index as u32, word));
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
