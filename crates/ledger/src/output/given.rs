//! The record of an output's data, to be compared later with the data at its target.

use crate::prove::{PeriodKey, add};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use weir_meter::{Direction, Totals};

/// The sums of a delivery.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Given {
    /// Whether a filter has left records out, or lines have no direction.
    pub(crate) in_part: bool,
    /// Periods of audit counters, which outputs do not have.
    pub(crate) skipped: Vec<PeriodKey>,
    /// By period.
    pub(crate) periods: Vec<(PeriodKey, Totals)>,
}

impl Given {
    pub(crate) fn totals(&self) -> Totals {
        let mut sum = Totals::default();
        self.periods
            .iter()
            .for_each(|(_, more)| add(&mut sum, more));
        sum
    }
}

/// The sums that are found in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// Of a form that names periods.
    ByPeriod(BTreeMap<PeriodKey, Totals>),
    /// Of one that does not.
    Whole(Totals),
}

/// Adds packets and bytes of a line to the sums of its direction; those of a line without one count as
/// up.
pub(crate) fn count(sum: &mut Totals, direction: Option<Direction>, packets: u64, bytes: u64) {
    let direction = direction.map_or(0, |direction| direction as usize);
    sum.packets[direction] = sum.packets[direction].saturating_add(packets);
    sum.bytes[direction] = sum.bytes[direction].saturating_add(bytes);
}
