//! Before new programs are made: what is of no use any more goes, and what
//! programs look at first is made anew where it no longer fits.

use super::image::Write;
use super::layout::scratch;
use super::plan::{KernelPlan, Placed, Retired};
use super::shape::Shape;
use super::sieve::Sieve;

impl KernelPlan {
    /// Drops shapes without entries and filters unbound, and orders the rest;
    /// do so before making new programs, and then make the
    /// [`pending`](Self::pending) writes. What is dropped is kept until the
    /// change is settled.
    pub fn sweep(&mut self) {
        self.epoch += 1;
        let empty = self.shapes.values().filter(|shape| shape.entries == 0);
        let empty: Vec<u32> = empty.map(|shape| shape.number).collect();
        for number in empty {
            if let Some(shape) = self.shapes.remove(&number) {
                self.names.remove(&shape.fields);
                self.retire_units(shape.unit, Shape::units(&shape.fields));
                if let Some(sieve) = shape.sieve {
                    self.retire_units(sieve.unit, sieve.units);
                }
            }
        }
        let mut dead = Vec::new();
        self.wholes.retain(|whole| {
            if whole.dead {
                dead.push(whole.unit);
            }
            !whole.dead
        });
        for unit in dead {
            self.retire_units(unit, 1);
        }
        self.renew_sieves();
        self.grow_trees(scratch::CANDIDATES_MAX as usize);
    }

    /// Writes that no change has given yet: new programs rely on them. They
    /// come once more with the next change, which does no harm.
    pub fn pending(&self) -> &[Write] {
        self.image.writes()
    }

    fn renew_sieves(&mut self) {
        let numbers: Vec<u32> = self.shapes.keys().copied().collect();
        for number in numbers {
            let Some(shape) = self.shapes.get(&number) else {
                continue;
            };
            let (field, entries) = (shape.telling_field(), shape.entries);
            let fits = shape.sieve.as_ref().is_some_and(|sieve| {
                let tells = shape.constant[sieve.field].is_none() || field == Some(sieve.field);
                tells && !sieve.is_crowded(entries)
            });
            let Some(field) = field.filter(|_| !fits) else {
                continue;
            };
            let units = Sieve::units_for(entries * 2);
            let units = units.filter(|units| self.image.has_room(*units, 0));
            if units.is_none() && shape.sieve.is_none() {
                continue;
            }
            let new = units.map(|units| self.new_sieve(number, field, units));
            let Some(shape) = self.shapes.get_mut(&number) else {
                continue;
            };
            if let Some(old) = std::mem::replace(&mut shape.sieve, new) {
                old.open(&mut self.image);
                self.retire_units(old.unit, old.units);
            }
        }
    }

    /// A sieve with all entries of a shape.
    fn new_sieve(&mut self, number: u32, field: usize, units: u32) -> Sieve {
        let placed = self.bindings.iter().filter_map(|(_, bound)| bound.as_ref());
        let placed = placed.flat_map(|bound| &bound.entries);
        let retired = self
            .retired
            .iter()
            .filter_map(|(_, retired)| match retired {
                Retired::Placed(placed) => Some(placed),
                Retired::Units(..) => None,
            });
        let keys = placed.chain(retired).filter_map(|placed| match placed {
            Placed::Entry { unit, .. } => Some(self.image.key(*unit)),
            Placed::Whole { .. } => None,
        });
        let keys = keys.filter(|(of, _)| *of == number);
        let shape = &self.shapes[&number];
        let values: Vec<u32> = keys.map(|(_, key)| shape.value_of(field, &key)).collect();
        let factor = shape.hash.mix;
        let unit = self.image.take(units);
        let mut sieve = Sieve::new(field, unit, units, factor, &mut self.image);
        for value in values {
            sieve.add(value, &mut self.image);
        }
        sieve
    }
}
