//! The requirements of entries, as the tree reads them.

use super::item::{Bits, Check, Fields, Item};
use super::{EntryRef, Path};
use crate::filter::Snap;
use crate::plan::pool::Pool;
use crate::plan::residual::Residuals;
use crate::plan::slab::Slab;
use crate::plan::subtable::Subtable;
use crate::plan::table::Entry;
use crate::verdict::Delivery;
use weir_filter::ir::Value;

/// The parts of a plan that a tree reads when it changes.
pub(in crate::plan) struct Rules<'p> {
    pub(in crate::plan) subtables: &'p Slab<Subtable>,
    pub(in crate::plan) residuals: &'p Residuals,
    pub(in crate::plan) pool: &'p mut Pool,
}

impl Rules<'_> {
    pub(super) fn entry(&self, (subtable, index): EntryRef) -> Option<Entry> {
        Some(self.subtables.get(subtable)?.table.entry(index))
    }

    /// The bits that an entry requires: the fields of its key, and the leading
    /// bits that all values of a range share.
    pub(super) fn required(
        &self,
        (subtable, index): EntryRef,
    ) -> impl Iterator<Item = (Value, u32, u32)> {
        let subtable = self.subtables.get(subtable);
        let fields = subtable.into_iter().flat_map(move |subtable| {
            let parts = subtable.key_parts.iter();
            parts.map(move |part| (part.expr, part.mask, subtable.value(part, index)))
        });
        let residual = subtable.map_or(Residuals::NOTHING, |subtable| {
            subtable.table.entry(index).residual
        });
        let ranges = self
            .residuals
            .ranges(residual)
            .filter_map(|(expr, lo, hi)| {
                let differ = lo ^ hi;
                let low = u32::MAX.checked_shr(differ.leading_zeros()).unwrap_or(0);
                let mask = self.pool.bits(expr) & !low;
                (mask != 0).then_some((expr, mask, lo & mask))
            });
        fields.chain(ranges)
    }

    /// The value that an entry requires in a field; `None` if it requires none.
    pub(super) fn value(&self, name: EntryRef, Bits { expr, mask }: Bits) -> Option<u32> {
        let mut required = self.required(name);
        let (.., value) =
            required.find(|(other, bits, _)| *other == expr && bits & mask == mask)?;
        Some(value & mask)
    }

    /// The item of an entry below `path`.
    pub(super) fn item(
        &self,
        name: EntryRef,
        entry: Entry,
        path: &Path,
        fields: &mut Fields,
    ) -> Item {
        let delivery = Delivery {
            rank: entry.rank,
            binding: entry.binding,
            target: entry.target,
            tag: entry.tag,
            snap_len: entry.snap,
        };
        let mut item = Item::new(delivery, name, &self.checks(name, entry, path), fields);
        if !self.ranges_only(entry) {
            item.must_check_entry();
        }
        item
    }

    /// The fields and ranges that an entry requires and `path` does not imply,
    /// the most selective first.
    fn checks(&self, name: EntryRef, entry: Entry, path: &Path) -> Vec<Check> {
        let mut checks: Vec<(u32, Check)> = Vec::with_capacity(8);
        let mut add = |weight, bits, lo, span| checks.push((weight, Check { bits, lo, span }));
        if let Some(subtable) = self.subtables.get(name.0) {
            for part in &subtable.key_parts {
                let (expr, mask) = (part.expr, part.mask);
                let unknown = unknown(path, Bits { expr, mask });
                // A value that all entries of a subtable share is less
                // selective.
                let is_shared = subtable.distinct(part.field as usize) == Some(1);
                let weight = if is_shared { unknown } else { 8 * unknown };
                if unknown > 0 {
                    add(weight, Bits { expr, mask }, subtable.value(part, name.1), 0);
                }
            }
        }
        for (expr, lo, hi) in self.residuals.ranges(entry.residual) {
            let mask = u32::MAX;
            let width = self.pool.bits(expr).count_ones();
            let free = (hi - lo).checked_ilog2().map_or(0, |log| log + 1);
            // Rounded up, so that a range of half of all values counts, too.
            let known_bits = (width + 1).saturating_sub(free);
            let weight = 8 * known_bits.min(unknown(path, Bits { expr, mask }));
            add(weight, Bits { expr, mask }, lo, hi - lo);
        }
        checks.sort_by_key(|(weight, _)| std::cmp::Reverse(*weight));
        checks.into_iter().map(|(_, check)| check).collect()
    }

    /// Whether an entry's residual tests are all ranges.
    fn ranges_only(&self, entry: Entry) -> bool {
        let Some(residual) = self.residuals.get(entry.residual) else {
            return true;
        };
        let ranges = self.residuals.ranges(entry.residual).count();
        ranges == residual.tests.len() && matches!(residual.snap, Snap::Const(_))
    }
}

/// Number of bits of a field that a path does not fix.
fn unknown(path: &Path, field: Bits) -> u32 {
    let same = path.iter().filter(|known| known.expr == field.expr);
    let known = same.fold(0, |mask, known| mask | known.mask);
    (field.mask & !known).count_ones()
}
