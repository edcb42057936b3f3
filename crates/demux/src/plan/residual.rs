//! Residuals: what entries require besides their keys.

use super::slab::Slab;
use crate::filter::{Snap, Test};
use weir_filter::ir::Value;

/// The tests and the snap length of an entry, beyond its key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Residual {
    pub(super) tests: Box<[Test]>,
    pub(super) snap: Snap,
}

/// The residuals of a plan, by number; zero stands for no residual.
#[derive(Default)]
pub(super) struct Residuals(Slab<Residual>);

impl Residuals {
    /// The number for no residual.
    pub(super) const NOTHING: u32 = 0;

    pub(super) fn insert(&mut self, residual: Residual) -> u32 {
        if residual.tests.is_empty() && matches!(residual.snap, Snap::Const(_)) {
            return Self::NOTHING;
        }
        self.0.insert(residual) + 1
    }

    #[inline]
    pub(super) fn get(&self, number: u32) -> Option<&Residual> {
        self.0.get(number.checked_sub(1)?)
    }

    pub(super) fn remove(&mut self, number: u32) -> Option<Residual> {
        self.0.remove(number.checked_sub(1)?)
    }

    /// The ranges among an entry's residual tests: expression, least and
    /// greatest value.
    pub(super) fn ranges(&self, number: u32) -> impl Iterator<Item = (Value, u32, u32)> {
        let tests = self.get(number).map_or(&[][..], |residual| &residual.tests);
        tests.iter().filter_map(|test| match *test {
            Test::Range { expr, lo, hi } => Some((expr, lo, hi)),
            _ => None,
        })
    }
}
