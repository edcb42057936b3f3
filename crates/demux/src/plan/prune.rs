//! Which shapes can match a frame at all, found field by field.
//!
//! For each expression, each mask it is used with has a map from value to the
//! shapes that have an entry with that value there. One look-up for each mask
//! then tells which of the shapes that use the expression are still possible;
//! the others are neither hashed nor probed. With rules of many prefix
//! lengths this is "tuple pruning" (Srinivasan, Suri, Varghese, "Packet
//! classification using tuple space search", 1999); with a single mask, such
//! as an ethertype, it is one level of a decision tree. Most look-ups find
//! nothing, so a filter of a few bits for each value comes before the map.

use super::hash::WordMix;
use super::sets::{SetTable, Shapes};
use super::slots::{PAYLOAD_MIN, Slots};
use crate::filter::Field;
use crate::limits::LISTED_MAX;
use weir_filter::ir::Value;

/// Look-ups of a mask that cost as much as the probe of a shape.
const MASKS_PER_PROBE: usize = 4;

/// What pruning knows.
#[derive(Clone)]
pub(super) struct Prune {
    mix: WordMix,
    /// All shapes.
    all: Shapes,
    steps: Vec<Step>,
    /// Values listed, in all fields of all shapes.
    listed_values: usize,
    /// How many may be.
    listed_max: usize,
}

/// One expression.
#[derive(Clone)]
pub(super) struct Step {
    expr: Value,
    /// Shapes that have it in their key.
    users: Shapes,
    users_count: usize,
    /// Those of them whose values are listed here.
    listed: Shapes,
    listed_count: u32,
    masks: Vec<Mask>,
}

/// One mask of an expression.
#[derive(Clone)]
struct Mask {
    mask: u32,
    presence: Presence,
    values: Values,
    /// Shapes that use it and are listed.
    shapes: u32,
}

impl Prune {
    pub(super) fn new(mix: WordMix) -> Prune {
        Prune {
            mix,
            all: Shapes::default(),
            steps: Vec::new(),
            listed_values: 0,
            listed_max: LISTED_MAX,
        }
    }

    /// Leaves in `alive` the shapes that may match a frame whose expressions
    /// have the values that `value` gives.
    pub(super) fn run(
        &self,
        alive: &mut Shapes,
        set: &mut Shapes,
        mut value: impl FnMut(Value) -> Option<u32>,
    ) {
        alive.copy_from(&self.all);
        for step in &self.steps {
            if !alive.shares(&step.listed, 2.max(step.masks.len() / MASKS_PER_PROBE)) {
                continue;
            }
            match value(step.expr) {
                Some(value) => step.narrow(self.mix, alive, set, value),
                None => alive.subtract(&step.users),
            }
        }
    }

    /// Each expression, in the order in which they are tried: how many shapes
    /// use it, and with which masks.
    pub(super) fn steps(&self) -> impl Iterator<Item = (Value, usize, Vec<u32>)> {
        self.steps.iter().map(|step| {
            let masks = step.masks.iter().map(|mask| mask.mask);
            (step.expr, step.users_count, masks.collect())
        })
    }

    /// A new shape without entries.
    pub(super) fn add_shape(&mut self, shape: u32, fields: &[Field]) {
        let words = Shapes::words_for(shape);
        self.all.grow(words);
        for step in &mut self.steps {
            step.users.grow(words);
            step.listed.grow(words);
            for mask in &mut step.masks {
                mask.values.sets.grow(words);
            }
        }
        self.all.insert(shape);
        for field in fields {
            let step = self.step(field.expr);
            step.users.insert(shape);
            step.users_count += 1;
            step.list(*field, shape);
        }
        self.sort();
    }

    fn step(&mut self, expr: Value) -> &mut Step {
        let found = self.steps.iter().position(|step| step.expr == expr);
        let words = self.all.word_count();
        let index = found.unwrap_or_else(|| {
            self.steps.push(Step {
                expr,
                users: Shapes::with_words(words),
                users_count: 0,
                listed: Shapes::with_words(words),
                listed_count: 0,
                masks: Vec::new(),
            });
            self.steps.len() - 1
        });
        &mut self.steps[index]
    }

    /// Few masks first, and among these what most shapes have in their keys.
    fn sort(&mut self) {
        let key = |step: &Step| (step.masks.len(), usize::MAX - step.users_count);
        self.steps.sort_by_key(key);
    }

    /// A shape without entries goes.
    pub(super) fn remove_shape(&mut self, shape: u32, fields: &[Field]) {
        self.all.remove(shape);
        for field in fields {
            self.unlist(*field, shape, std::iter::empty());
            let found = self.steps.iter().position(|step| step.expr == field.expr);
            let Some(index) = found else { continue };
            let step = &mut self.steps[index];
            step.users.remove(shape);
            step.users_count -= 1;
            if step.users_count == 0 {
                self.steps.remove(index);
            }
        }
        self.sort();
    }

    /// Whether no further value may be added.
    pub(super) fn is_full(&self) -> bool {
        self.listed_values == self.listed_max
    }

    /// `shape` now has an entry with `value` in `field`.
    pub(super) fn add_value(&mut self, field: Field, shape: u32, value: u32) {
        let (mix, hash) = (self.mix, self.mix.mix(value));
        if let Some(mask) = self.mask(field) {
            mask.values.insert(hash, shape);
            mask.presence.insert(value, mix, &mask.values);
            self.listed_values += 1;
        }
    }

    /// It has none any more.
    pub(super) fn remove_value(&mut self, field: Field, shape: u32, value: u32) {
        let hash = self.mix.mix(value);
        if let Some(mask) = self.mask(field) {
            mask.values.remove(hash, shape);
            self.listed_values -= 1;
        }
    }

    fn mask(&mut self, field: Field) -> Option<&mut Mask> {
        let step = (self.steps.iter_mut()).find(|step| step.expr == field.expr)?;
        step.masks.iter_mut().find(|mask| mask.mask == field.mask)
    }

    /// `shape` has too many values in `field` to list them: takes back those
    /// listed.
    pub(super) fn unlist(&mut self, field: Field, shape: u32, values: impl Iterator<Item = u32>) {
        let found = (self.steps.iter_mut()).find(|step| step.expr == field.expr);
        let Some(step) = found else { return };
        if !step.listed.contains(shape) {
            return;
        }
        step.listed.remove(shape);
        step.listed_count -= 1;
        let found = step.masks.iter().position(|mask| mask.mask == field.mask);
        let Some(index) = found else { return };
        let mask = &mut step.masks[index];
        for value in values {
            mask.values.remove(self.mix.mix(value), shape);
            self.listed_values -= 1;
        }
        mask.shapes -= 1;
        if mask.shapes == 0 {
            step.masks.remove(index);
        }
    }
}

impl Step {
    fn list(&mut self, field: Field, shape: u32) {
        self.listed.insert(shape);
        self.listed_count += 1;
        let found = (self.masks.iter_mut()).find(|mask| mask.mask == field.mask);
        match found {
            Some(mask) => mask.shapes += 1,
            None => self.masks.push(Mask {
                mask: field.mask,
                presence: Presence::new(),
                values: Values::with_words(self.listed.word_count()),
                shapes: 1,
            }),
        }
    }

    /// Leaves alive what has an entry with `value`, or is not listed.
    fn narrow(&self, mix: WordMix, alive: &mut Shapes, set: &mut Shapes, value: u32) {
        if let [mask] = &self.masks[..] {
            return self.narrow_by(mask, mix.mix(value & mask.mask), alive);
        }
        set.clear_as(&self.listed);
        for mask in &self.masks {
            let value = value & mask.mask;
            if mask.presence.may_contain(value) {
                match mask.values.get(mix.mix(value)) {
                    Listed::None => {}
                    Listed::One(shape) => set.insert(shape),
                    Listed::Some(_, shapes) => set.add(shapes),
                }
            }
        }
        alive.keep(set.words(), &self.listed);
    }

    /// The same where there is only one mask.
    #[inline]
    fn narrow_by(&self, mask: &Mask, hash: u32, alive: &mut Shapes) {
        match mask.values.get(hash) {
            Listed::None => alive.subtract(&self.listed),
            Listed::One(shape) => {
                let was_alive = alive.contains(shape);
                alive.subtract(&self.listed);
                if was_alive {
                    alive.insert(shape);
                }
            }
            // All of them: nothing to leave out.
            Listed::Some(count, _) if count == self.listed_count => {}
            Listed::Some(_, shapes) => alive.keep(shapes, &self.listed),
        }
    }
}

/// Which shapes have an entry with some value.
enum Listed<'v> {
    None,
    One(u32),
    /// How many, and the set of them.
    Some(u32, &'v [u64]),
}

/// The shapes that have an entry with some value, by the value's hash: the
/// hash maps values one to one. A single shape is in the slot itself.
#[derive(Clone)]
struct Values {
    slots: Slots,
    sets: SetTable,
}

/// Marks a payload that is the number of a set.
const SET: u32 = 1 << 31;

impl Values {
    fn with_words(words: usize) -> Values {
        Values {
            slots: Slots::new(),
            sets: SetTable::with_words(words),
        }
    }

    #[inline]
    fn get(&self, hash: u32) -> Listed<'_> {
        match self.slots.find(hash, |_| true) {
            None => Listed::None,
            Some((_, payload)) if payload & SET == 0 => Listed::One(payload - PAYLOAD_MIN),
            Some((_, payload)) => {
                let number = payload & !SET;
                Listed::Some(self.sets.count(number), self.sets.get(number))
            }
        }
    }

    fn insert(&mut self, hash: u32, shape: u32) {
        match self.slots.find(hash, |_| true) {
            None => self.slots.insert(hash, shape + PAYLOAD_MIN),
            Some((place, payload)) if payload & SET == 0 => {
                let number = self.sets.make();
                self.sets.insert(number, payload - PAYLOAD_MIN);
                self.sets.insert(number, shape);
                self.slots.replace(place, number | SET);
            }
            Some((_, payload)) => self.sets.insert(payload & !SET, shape),
        }
    }

    fn remove(&mut self, hash: u32, shape: u32) {
        if let Some((place, payload)) = self.slots.find(hash, |_| true)
            && (payload & SET == 0 || self.sets.remove(payload & !SET, shape))
        {
            self.slots.remove(place);
        }
    }
}

/// A filter before a map: one bit for each value, in 8 to 32 times as many
/// bits. Bits of removed values stay until the filter is made anew, and then
/// only cost a look-up.
#[derive(Clone)]
struct Presence {
    words: Vec<u64>,
    /// How far to shift a product of 32 bits to have as many as there are.
    shift: u32,
    /// Inserts since it was made.
    inserts: usize,
}

impl Presence {
    fn new() -> Presence {
        Presence::with_bits(6)
    }

    fn with_bits(bits: u32) -> Presence {
        Presence {
            words: vec![0; 1 << (bits - 6)],
            shift: u32::BITS - bits,
            inserts: 0,
        }
    }

    #[inline]
    fn place(&self, value: u32) -> (usize, u64) {
        let bit = value.wrapping_mul(0x9e37_79b1) >> self.shift;
        ((bit / 64) as usize, 1 << (bit % 64))
    }

    #[inline]
    fn may_contain(&self, value: u32) -> bool {
        let (at, bit) = self.place(value);
        self.words.get(at).is_some_and(|word| word & bit != 0)
    }

    fn set(&mut self, value: u32) {
        let (at, bit) = self.place(value);
        self.words[at] |= bit;
        self.inserts += 1;
    }

    /// Adds a value that is among `all`.
    fn insert(&mut self, value: u32, mix: WordMix, all: &Values) {
        if (self.inserts + 1) * 8 <= self.words.len() * 64 {
            return self.set(value);
        }
        let bits = (all.slots.len() * 16).next_power_of_two().ilog2();
        *self = Presence::with_bits(bits.clamp(6, 24));
        for hash in all.slots.hashes() {
            self.set(mix.unmix(hash));
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Binding, Filter, Plan, Target, Verdict};
    use weir_filter::ir::Program;

    /// Byte `at` has one value, and the next one another.
    fn filter(at: u32, first: u32, second: u32) -> Filter {
        let text = format!(
            "filter {{
b0:
  v0 = load.1 [{at}]
  br eq v0, {first}, b1, b3
b1:
  v1 = load.1 [{}]
  br eq v1, {second}, b2, b3
b2:
  ret 64
b3:
  ret 0
}}",
            at + 1
        );
        Filter::new(text.parse::<Program>().expect("well formed"))
    }

    #[test]
    fn a_full_list_prunes_less_and_changes_no_verdict() {
        const SHAPES: u32 = 12;
        const VALUES: u32 = 10;
        let (mut plan, mut verdict) = (Plan::tabled(1), Verdict::new());
        plan.prune.listed_max = 70;
        let all = (0..SHAPES).flat_map(|at| (0..VALUES).map(move |n| (at, n)));
        let mut ids = Vec::new();
        for (tag, (at, n)) in (0..).zip(all.clone()) {
            let binding = Binding {
                filter: filter(at, 100 + n, 50 - n),
                priority: 1,
                copy: true,
                target: Target::Kernel,
                tag,
            };
            ids.push(plan.bind(binding).expect("room"));
            assert!(plan.prune.listed_values <= 70);
        }
        assert!(plan.prune.listed_values > 20, "the first stay listed");
        for (tag, (at, n)) in (0..).zip(all) {
            let mut bytes = [0; 64];
            bytes[at as usize] = 100 + n as u8;
            bytes[at as usize + 1] = 50 - n as u8;
            plan.run(&bytes, 64, &mut verdict);
            let tags: Vec<u32> = verdict.deliveries().iter().map(|d| d.tag).collect();
            assert_eq!(tags, [tag]);
        }
        for id in ids {
            plan.unbind(id).expect("bound");
        }
        assert_eq!(plan.prune.listed_values, 0);
    }
}
