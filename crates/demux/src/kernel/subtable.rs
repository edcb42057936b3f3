//! Shapes of the kernel half: fields, where they stand in the key, guards.

use super::expr::Expr;
use super::image::Image;
use super::layout::{LANES_MAX, UNIT_WORDS, shape};
use super::prefilter::{Ask, Span};
use crate::plan::hash::{KeyHash, Secret};
use std::collections::BTreeMap;
use weir_filter::ir::Op;

/// A field of a key: bits of an expression.
pub(super) type Field = (Expr, u32);

/// Values of a field that count as few.
const FEW_MAX: usize = 8;

/// Different values of the telling field, at most; with more there is none.
const TOLD_MAX: usize = 2_048;

/// What makes a shape.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Name {
    pub(super) fields: Vec<Field>,
    /// Of what each entry asks a range, one of its own.
    pub(super) range: Option<Expr>,
    /// With a range, the values of all fields of a byte, such as the protocol:
    /// which ranges there are depends on them. Empty where there would be too
    /// many shapes.
    pub(super) narrow: Vec<u32>,
}

/// The field that tells a shape's entries best from what else there is.
#[derive(Debug)]
pub(super) struct Telling {
    pub(super) ask: Ask,
    /// The values, and how many entries have each.
    spans: BTreeMap<Span, u32>,
}

/// All entries whose keys are values of the same fields.
pub(super) struct Shape {
    /// Never given again.
    pub(super) number: u32,
    pub(super) name: Name,
    pub(super) parts: Vec<Part>,
    pub(super) lanes: usize,
    pub(super) hash: KeyHash,
    pub(super) guards: Vec<Guard>,
    /// Where the store has guards and hash.
    pub(super) unit: u32,
    /// For each field its values, and how many entries have each, as long as
    /// they are few.
    few: Vec<Option<BTreeMap<u32, u32>>>,
    /// `None` with too many values.
    pub(super) telling: Option<Telling>,
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

    /// An empty one, in a piece of the store at `unit`.
    pub(super) fn new(
        number: u32,
        name: Name,
        secret: Secret,
        unit: u32,
        image: &mut Image,
    ) -> Shape {
        let fields = &name.fields[..];
        let (parts, lanes) = packed(fields);
        // What stands at one place in all frames is looked at first.
        let fixed = |(expr, _): &Field| matches!(expr.ops(), [Op::Load { .. }]);
        let mut guarded: Vec<usize> = (0..fields.len()).collect();
        guarded.sort_by_key(|field| !fixed(&fields[*field]));
        let hash = secret.key_hash(u64::from(number), lanes);
        for guard in 0..shape::GUARDS_MAX as u32 {
            image.put(unit, shape::GUARDS + guard, 0);
        }
        image.put(unit, shape::START, hash.start);
        image.put(unit, shape::MIX, hash.mix.into());
        image.put(unit, shape::BEST, u64::MAX);
        for (lane, (low, high)) in hash.factors.iter().enumerate() {
            let word = shape::FACTORS + 2 * lane as u32;
            image.put(unit, word, *low);
            image.put(unit, word + 1, *high);
        }
        let guards = guarded
            .into_iter()
            .take(shape::GUARDS_MAX)
            .map(|field| Guard {
                field,
                state: GuardState::Fresh,
            });
        Shape {
            number,
            parts,
            lanes,
            hash,
            guards: guards.collect(),
            unit,
            few: vec![Some(BTreeMap::new()); fields.len()],
            telling: None,
            name,
            values: Vec::new(),
            entries: 0,
        }
    }

    /// What tells most: a field with many values, and many bits; else the
    /// range, if there is one; else any field.
    fn most_telling(&self) -> Option<Ask> {
        let field = (0..self.name.fields.len()).max_by_key(|field| {
            let (expr, mask) = &self.name.fields[*field];
            let simple = std::cmp::Reverse(expr.ops().len());
            (self.few[*field].is_none(), mask.count_ones(), simple)
        });
        let field = field.filter(|field| self.few[*field].is_none() || self.name.range.is_none());
        match (field, &self.name.range) {
            (Some(field), _) => Some(Ask::Field(self.name.fields[field].clone())),
            (None, range) => range.clone().map(Ask::Range),
        }
    }

    /// Another field than the telling one, if it tells more now.
    pub(super) fn retold(&self) -> Option<Ask> {
        let known = self.telling.as_ref().map(|telling| &telling.ask);
        let most = self.most_telling()?;
        let is_new = known != Some(&most) && (known.is_some() || self.entries <= TOLD_MAX);
        is_new.then_some(most)
    }

    /// Makes another field the telling one.
    pub(super) fn tell(&mut self, ask: Ask, spans: BTreeMap<Span, u32>) {
        self.telling = (spans.len() <= TOLD_MAX).then_some(Telling { ask, spans });
    }

    /// What its entries ask for with few values, and these, sorted.
    pub(super) fn few_asks(&self) -> impl Iterator<Item = (Ask, Vec<u32>)> {
        let fields = self.name.fields.iter().zip(&self.few);
        fields.filter_map(|(field, few)| {
            let values = few.as_ref()?.keys().copied().collect();
            Some((Ask::Field(field.clone()), values))
        })
    }

    fn few(&self, ask: &Ask) -> Option<&BTreeMap<u32, u32>> {
        self.few[self.field(ask)?].as_ref()
    }

    fn field(&self, ask: &Ask) -> Option<usize> {
        let Ask::Field(field) = ask else { return None };
        self.name.fields.iter().position(|known| known == field)
    }

    /// All values that entries have in what is asked for, if it is known.
    pub(super) fn spans(&self, ask: &Ask) -> Option<Vec<(Span, u32)>> {
        if let Some(few) = self.few(ask) {
            let spans = few.iter().map(|(value, count)| ((*value, *value), *count));
            return Some(spans.collect());
        }
        let telling = self.telling.as_ref().filter(|telling| telling.ask == *ask);
        let spans = telling?.spans.iter();
        Some(spans.map(|(span, count)| (*span, *count)).collect())
    }

    /// What an entry of `values`, and of a range, has in what is asked for.
    pub(super) fn span_of(&self, ask: &Ask, values: &[u32], range: Option<Span>) -> Option<Span> {
        match self.field(ask) {
            Some(field) => Some((values[field], values[field])),
            None => range,
        }
    }

    /// The same, from an entry's key.
    pub(super) fn span_of_key(&self, ask: &Ask, key: &[u64], range: Option<Span>) -> Option<Span> {
        match self.field(ask) {
            Some(field) => {
                let value = self.value_of(field, key);
                Some((value, value))
            }
            None => range,
        }
    }

    /// Notes that there is an entry of `values`.
    pub(super) fn note(&mut self, values: &[u32], range: Option<Span>) {
        self.entries += 1;
        if self.entries == 1 {
            let ask = self.most_telling();
            self.telling = ask.map(|ask| Telling {
                ask,
                spans: BTreeMap::new(),
            });
        }
        for (few, value) in self.few.iter_mut().zip(values) {
            if let Some(known) = few {
                *known.entry(*value).or_insert(0) += 1;
                if known.len() > FEW_MAX {
                    *few = None;
                }
            }
        }
        let telling = self.telling.as_ref();
        let span = telling.and_then(|telling| self.span_of(&telling.ask, values, range));
        if let (Some(telling), Some(span)) = (&mut self.telling, span) {
            *telling.spans.entry(span).or_insert(0) += 1;
            if telling.spans.len() > TOLD_MAX {
                self.telling = None;
            }
        }
    }

    /// Notes that the entry of a key is gone.
    pub(super) fn forget(&mut self, key: &[u64], range: Option<Span>) {
        self.entries -= 1;
        for field in 0..self.few.len() {
            let value = self.value_of(field, key);
            if let Some(known) = &mut self.few[field] {
                less_one(known, value);
            }
        }
        let telling = self.telling.as_ref();
        let span = telling.and_then(|telling| self.span_of_key(&telling.ask, key, range));
        if let (Some(telling), Some(span)) = (&mut self.telling, span) {
            less_one(&mut telling.spans, span);
        }
    }

    /// A field of a key.
    pub(super) fn value_of(&self, field: usize, key: &[u64]) -> u32 {
        let part = self.parts.iter().find(|part| part.field == field);
        let (_, mask) = self.name.fields[field];
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
                        u64::from(value) << 32 | u64::from(self.name.fields[guard.field].1)
                    }
                    _ => 0,
                };
                changed.push((index, word));
            }
        }
        changed
    }
}

fn less_one<K: Ord + Copy>(counts: &mut BTreeMap<K, u32>, key: K) {
    if let Some(count) = counts.get_mut(&key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&key);
        }
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
