//! Fan-outs: their buckets in the store.

use super::layout::fanout::{NO_SLOT, UNITS};
use super::limits;
use super::plan::{Change, KernelBindError, KernelPlan, Recompile, full, pair};
use crate::binding::Target;
use crate::fanout::Buckets;

/// The fan-outs by number: the unit where the store has the buckets of each.
#[derive(Default)]
pub(super) struct Fanouts {
    units: Vec<Option<u32>>,
}

impl Fanouts {
    pub(super) fn unit(&self, number: u32) -> Option<u32> {
        self.units.get(number as usize).copied().flatten()
    }

    fn len(&self) -> usize {
        self.units.iter().flatten().count()
    }
}

impl KernelPlan {
    /// Whether there are fan-outs: then programs hash flows.
    pub fn fans_out(&self) -> bool {
        self.fanouts.len() > 0
    }

    /// Makes a fan-out; its number is that of [`Target::Fanout`]. Apply the change
    /// before binding to it: programs without fan-outs lose its frames.
    ///
    /// # Errors
    /// If a limit is reached, or a slot is not one of the plan's.
    pub fn add_fanout(&mut self, buckets: &Buckets) -> Result<(u32, Change), KernelBindError> {
        full("fan-outs", self.fanouts.len() + 1, limits::FANOUTS_MAX)?;
        self.check_slots(buckets)?;
        let is_first = !self.fans_out();
        let renewed = self.make_room(UNITS, 0)?;
        self.epoch += 1;
        let unit = self.image.take(UNITS);
        self.put_buckets(unit, buckets);
        let units = &mut self.fanouts.units;
        let free = units.iter().position(Option::is_none);
        let number = free.unwrap_or(units.len());
        match units.get_mut(number) {
            Some(place) => *place = Some(unit),
            None => units.push(Some(unit)),
        }
        let programs = if is_first || renewed {
            Recompile::Required
        } else {
            Recompile::No
        };
        Ok((number as u32, self.change(programs, renewed)))
    }

    /// Gives buckets to other ports: each by one store, for frames from then on.
    ///
    /// # Errors
    /// If there is no such fan-out, or a slot is not one of the plan's.
    pub fn change_fanout(
        &mut self,
        number: u32,
        buckets: &Buckets,
    ) -> Result<Change, KernelBindError> {
        self.check_slots(buckets)?;
        let unit = self.fanouts.unit(number);
        let unit = unit.ok_or(KernelBindError::Target(Target::Fanout(number)))?;
        self.epoch += 1;
        self.put_buckets(unit, buckets);
        Ok(self.change(Recompile::No, false))
    }

    /// Removes a fan-out to which nothing is bound any more.
    ///
    /// # Errors
    /// If there is no such fan-out.
    pub fn remove_fanout(&mut self, number: u32) -> Result<Change, KernelBindError> {
        let place = self.fanouts.units.get_mut(number as usize);
        let unit = place.and_then(Option::take);
        let unit = unit.ok_or(KernelBindError::Target(Target::Fanout(number)))?;
        self.epoch += 1;
        self.retire_units(unit, UNITS);
        let programs = if self.fans_out() {
            Recompile::No
        } else {
            Recompile::Optional
        };
        Ok(self.change(programs, false))
    }

    fn check_slots(&self, buckets: &Buckets) -> Result<(), KernelBindError> {
        let slots = buckets.iter().flatten().map(|(slot, _)| slot);
        let most = slots.max().map_or(0, |slot| slot as usize + 1);
        full("ports", most, self.options.ports_max as usize)
    }

    fn put_buckets(&mut self, unit: u32, buckets: &Buckets) {
        for (word, port) in (0..).zip(buckets.iter()) {
            let (slot, tag) = port.unwrap_or((NO_SLOT, 0));
            self.image.put(unit, word, pair(slot, tag));
        }
    }
}
