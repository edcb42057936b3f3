//! Subtables of the kernel half: fields, where they stand in the key, guards.

use super::expr::Expr;
use super::image::Image;
use super::layout::{LANES_MAX, UNIT_WORDS, subtable};
use super::prefilter::{PrefilterKey, Span};
use crate::plan::hash::{KeyHash, Secret};
use std::collections::BTreeMap;
use weir_filter::ir::Op;

/// A field of a key: bits of an expression.
pub(super) type Field = (Expr, u32);

/// Values of a field that count as few.
const SMALL_VALUES_MAX: usize = 8;

/// Limit on different values of the split field; with more, a subtable has none.
const SPLIT_VALUES_MAX: usize = 2_048;

/// The identity of a subtable.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Signature {
    pub(super) fields: Vec<Field>,
    /// Of what each entry asks a range, one of its own.
    pub(super) range: Option<Expr>,
    /// With a range, the values of all fields of a byte, such as the protocol:
    /// which ranges there are depends on them. Empty where there would be too
    /// many subtables.
    pub(super) narrow: Vec<u32>,
}

/// The field that best distinguishes a subtable's entries from other frames.
#[derive(Debug)]
pub(super) struct SplitField {
    pub(super) key: PrefilterKey,
    /// The values, and how many entries have each.
    spans: BTreeMap<Span, u32>,
}

/// All entries whose keys are values of the same fields.
pub(super) struct Subtable {
    /// Never given again.
    pub(super) number: u32,
    pub(super) signature: Signature,
    pub(super) key_parts: Vec<KeyPart>,
    pub(super) lanes: usize,
    pub(super) hash: KeyHash,
    pub(super) guards: Vec<Guard>,
    /// Where the store has guards and hash.
    pub(super) unit: u32,
    /// For each field its values, and how many entries have each, as long as
    /// they are few.
    small_values: Vec<Option<BTreeMap<u32, u32>>>,
    /// `None` with too many values.
    pub(super) split: Option<SplitField>,
    /// Values that residual tests of its entries use.
    pub(super) values: Vec<Expr>,
    pub(super) entries: usize,
}

/// Where a field stands in the key.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeyPart {
    /// Which of the fields.
    pub(super) field: usize,
    pub(super) lane: usize,
    pub(super) shift: u32,
    /// The field's width in the key: 8, 16 or 32 bits.
    pub(super) bits: u32,
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

impl Subtable {
    /// Units of the piece of the store that a subtable of this many fields takes.
    pub(super) fn units(fields: &[Field]) -> u32 {
        let (_, lanes) = packed(fields);
        (subtable::FACTORS + 2 * lanes as u32).div_ceil(UNIT_WORDS)
    }

    /// An empty one, in a piece of the store at `unit`.
    pub(super) fn new(
        number: u32,
        name: Signature,
        secret: Secret,
        unit: u32,
        image: &mut Image,
    ) -> Subtable {
        let fields = &name.fields[..];
        let (parts, lanes) = packed(fields);
        // Fields at a fixed offset in all frames are preferred.
        let fixed = |(expr, _): &Field| matches!(expr.ops(), [Op::Load { .. }]);
        let mut guarded: Vec<usize> = (0..fields.len()).collect();
        guarded.sort_by_key(|field| !fixed(&fields[*field]));
        let hash = secret.key_hash(u64::from(number), lanes);
        for guard in 0..subtable::GUARDS_MAX as u32 {
            image.put(unit, subtable::GUARDS + guard, 0);
        }
        image.put(unit, subtable::START, hash.start);
        image.put(unit, subtable::MIX, hash.mix.into());
        image.put(unit, subtable::BEST, u64::MAX);
        for (lane, (low, high)) in hash.factors.iter().enumerate() {
            let word = subtable::FACTORS + 2 * lane as u32;
            image.put(unit, word, *low);
            image.put(unit, word + 1, *high);
        }
        let guards = guarded
            .into_iter()
            .take(subtable::GUARDS_MAX)
            .map(|field| Guard {
                field,
                state: GuardState::Fresh,
            });
        Subtable {
            number,
            key_parts: parts,
            lanes,
            hash,
            guards: guards.collect(),
            unit,
            small_values: vec![Some(BTreeMap::new()); fields.len()],
            split: None,
            signature: name,
            values: Vec::new(),
            entries: 0,
        }
    }

    /// The most selective field: one with many values, and many bits; else the
    /// range, if there is one; else any field.
    fn best_split(&self) -> Option<PrefilterKey> {
        let field = (0..self.signature.fields.len()).max_by_key(|field| {
            let (expr, mask) = &self.signature.fields[*field];
            let simple = std::cmp::Reverse(expr.ops().len());
            (
                self.small_values[*field].is_none(),
                mask.count_ones(),
                simple,
            )
        });
        let field = field
            .filter(|field| self.small_values[*field].is_none() || self.signature.range.is_none());
        match (field, &self.signature.range) {
            (Some(field), _) => Some(PrefilterKey::Field(self.signature.fields[field].clone())),
            (None, range) => range.clone().map(PrefilterKey::Range),
        }
    }

    /// A field that is now more selective than the split field, if there is one.
    pub(super) fn resplit(&self) -> Option<PrefilterKey> {
        let known = self.split.as_ref().map(|telling| &telling.key);
        let most = self.best_split()?;
        let is_new = known != Some(&most) && (known.is_some() || self.entries <= SPLIT_VALUES_MAX);
        is_new.then_some(most)
    }

    /// Makes another field the split field.
    pub(super) fn set_split(&mut self, prefilter_key: PrefilterKey, spans: BTreeMap<Span, u32>) {
        self.split = (spans.len() <= SPLIT_VALUES_MAX).then_some(SplitField {
            key: prefilter_key,
            spans,
        });
    }

    /// The keys that its entries compare with few values, and these values, sorted.
    pub(super) fn small_value_keys(&self) -> impl Iterator<Item = (PrefilterKey, Vec<u32>)> {
        let fields = self.signature.fields.iter().zip(&self.small_values);
        fields.filter_map(|(field, few)| {
            let values = few.as_ref()?.keys().copied().collect();
            Some((PrefilterKey::Field(field.clone()), values))
        })
    }

    fn small_values_of(&self, prefilter_key: &PrefilterKey) -> Option<&BTreeMap<u32, u32>> {
        self.small_values[self.field(prefilter_key)?].as_ref()
    }

    fn field(&self, prefilter_key: &PrefilterKey) -> Option<usize> {
        let PrefilterKey::Field(field) = prefilter_key else {
            return None;
        };
        self.signature
            .fields
            .iter()
            .position(|known| known == field)
    }

    /// All values that entries have in what is asked for, if it is known.
    pub(super) fn spans(&self, prefilter_key: &PrefilterKey) -> Option<Vec<(Span, u32)>> {
        if let Some(few) = self.small_values_of(prefilter_key) {
            let spans = few.iter().map(|(value, count)| ((*value, *value), *count));
            return Some(spans.collect());
        }
        let telling = self
            .split
            .as_ref()
            .filter(|telling| telling.key == *prefilter_key);
        let spans = telling?.spans.iter();
        Some(spans.map(|(span, count)| (*span, *count)).collect())
    }

    /// The span in a prefilter's key of an entry with `values` and a range.
    pub(super) fn span_of(
        &self,
        prefilter_key: &PrefilterKey,
        values: &[u32],
        range: Option<Span>,
    ) -> Option<Span> {
        match self.field(prefilter_key) {
            Some(field) => Some((values[field], values[field])),
            None => range,
        }
    }

    /// The same, from an entry's key.
    pub(super) fn span_of_key(
        &self,
        prefilter_key: &PrefilterKey,
        key: &[u64],
        range: Option<Span>,
    ) -> Option<Span> {
        match self.field(prefilter_key) {
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
            let prefilter_key = self.best_split();
            self.split = prefilter_key.map(|prefilter_key| SplitField {
                key: prefilter_key,
                spans: BTreeMap::new(),
            });
        }
        for (few, value) in self.small_values.iter_mut().zip(values) {
            if let Some(known) = few {
                *known.entry(*value).or_insert(0) += 1;
                if known.len() > SMALL_VALUES_MAX {
                    *few = None;
                }
            }
        }
        let telling = self.split.as_ref();
        let span = telling.and_then(|telling| self.span_of(&telling.key, values, range));
        if let (Some(telling), Some(span)) = (&mut self.split, span) {
            *telling.spans.entry(span).or_insert(0) += 1;
            if telling.spans.len() > SPLIT_VALUES_MAX {
                self.split = None;
            }
        }
    }

    /// Notes that the entry of a key is gone.
    pub(super) fn forget(&mut self, key: &[u64], range: Option<Span>) {
        self.entries -= 1;
        for field in 0..self.small_values.len() {
            let value = self.value_of(field, key);
            if let Some(known) = &mut self.small_values[field] {
                less_one(known, value);
            }
        }
        let telling = self.split.as_ref();
        let span = telling.and_then(|telling| self.span_of_key(&telling.key, key, range));
        if let (Some(telling), Some(span)) = (&mut self.split, span) {
            less_one(&mut telling.spans, span);
        }
    }

    /// A field of a key.
    pub(super) fn value_of(&self, field: usize, key: &[u64]) -> u32 {
        let part = self.key_parts.iter().find(|part| part.field == field);
        let (_, mask) = self.signature.fields[field];
        part.map_or(0, |part| (key[part.lane] >> part.shift) as u32 & mask)
    }

    /// The key that holds `values`, one for each of the fields.
    pub(super) fn key(&self, values: &[u32]) -> [u64; LANES_MAX] {
        let mut key = [0; LANES_MAX];
        for part in &self.key_parts {
            key[part.lane] |= u64::from(values[part.field]) << part.shift;
        }
        key
    }

    /// The masks of the fields, as they stand in a key.
    pub(super) fn key_mask(&self) -> [u64; LANES_MAX] {
        let masks: Vec<u32> = self
            .signature
            .fields
            .iter()
            .map(|(_, mask)| *mask)
            .collect();
        self.key(&masks)
    }

    /// The values of a field; `None` if they are more than `SMALL_VALUES_MAX`.
    pub(super) fn small_values_at(&self, field: usize) -> Option<impl Iterator<Item = u32>> {
        Some(self.small_values[field].as_ref()?.keys().copied())
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
                        u64::from(value) << 32 | u64::from(self.signature.fields[guard.field].1)
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
fn packed(fields: &[Field]) -> (Vec<KeyPart>, usize) {
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
        let bits = width(&fields[field]);
        parts.push(KeyPart {
            field,
            lane: bit as usize / 64,
            shift: bit % 64,
            bits,
        });
        bit += bits;
    }
    (parts, bit.div_ceil(64) as usize)
}
