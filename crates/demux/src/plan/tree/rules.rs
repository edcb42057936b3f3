//! What entries require, as a tree asks for it.

use super::item::{Bits, Check, Fields, Item};
use super::{Name, Path};
use crate::filter::Snap;
use crate::plan::pool::Pool;
use crate::plan::residual::Residuals;
use crate::plan::slab::Slab;
use crate::plan::subtable::Shape;
use crate::plan::table::Entry;
use crate::verdict::Delivery;
use weir_filter::ir::Value;

/// The part of a plan that a tree reads when it changes.
pub(in crate::plan) struct Rules<'p> {
    pub(in crate::plan) shapes: &'p Slab<Shape>,
    pub(in crate::plan) residuals: &'p Residuals,
    pub(in crate::plan) pool: &'p mut Pool,
}

impl Rules<'_> {
    pub(super) fn entry(&self, (shape, index): Name) -> Option<Entry> {
        Some(self.shapes.get(shape)?.table.entry(index))
    }

    /// Bits that an entry requires: the fields of its key, and the leading bits
    /// that all values of a range share.
    pub(super) fn required(&self, (shape, index): Name) -> impl Iterator<Item = (Value, u32, u32)> {
        let shape = self.shapes.get(shape);
        let fields = shape.into_iter().flat_map(move |shape| {
            let parts = shape.parts.iter();
            parts.map(move |part| (part.expr, part.mask, shape.value(part, index)))
        });
        let residual = shape.map_or(Residuals::NOTHING, |shape| {
            shape.table.entry(index).residual
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

    /// The value that an entry requires in a field, if it requires one.
    pub(super) fn value(&self, name: Name, Bits { expr, mask }: Bits) -> Option<u32> {
        let mut required = self.required(name);
        let (.., value) =
            required.find(|(other, bits, _)| *other == expr && bits & mask == mask)?;
        Some(value & mask)
    }

    /// The item of an entry behind `path`.
    pub(super) fn item(&self, name: Name, entry: Entry, path: &Path, fields: &mut Fields) -> Item {
        let delivery = Delivery {
            rank: entry.rank,
            binding: entry.binding,
            target: entry.target,
            tag: entry.tag,
            snap_len: entry.snap,
        };
        let mut item = Item::new(delivery, name, &self.checks(name, entry, path), fields);
        if !self.ranges_only(entry) {
            item.ask_entry();
        }
        item
    }

    /// The fields and ranges that an entry requires and `path` does not know,
    /// those first that tell the most.
    fn checks(&self, name: Name, entry: Entry, path: &Path) -> Vec<Check> {
        let mut checks: Vec<(u32, Check)> = Vec::with_capacity(8);
        let mut add = |weight, bits, lo, span| checks.push((weight, Check { bits, lo, span }));
        if let Some(shape) = self.shapes.get(name.0) {
            for part in &shape.parts {
                let (expr, mask) = (part.expr, part.mask);
                let unknown = unknown(path, Bits { expr, mask });
                // What all entries of a shape share tells less.
                let is_shared = shape.distinct(part.field as usize) == Some(1);
                let weight = if is_shared { unknown } else { 8 * unknown };
                if unknown > 0 {
                    add(weight, Bits { expr, mask }, shape.value(part, name.1), 0);
                }
            }
        }
        for (expr, lo, hi) in self.residuals.ranges(entry.residual) {
            let mask = u32::MAX;
            let width = self.pool.bits(expr).count_ones();
            let free = (hi - lo).checked_ilog2().map_or(0, |log| log + 1);
            // Rounded up: a half of all values is left out by it, too.
            let told = (width + 1).saturating_sub(free);
            let weight = 8 * told.min(unknown(path, Bits { expr, mask }));
            add(weight, Bits { expr, mask }, lo, hi - lo);
        }
        checks.sort_by_key(|(weight, _)| std::cmp::Reverse(*weight));
        checks.into_iter().map(|(_, check)| check).collect()
    }

    /// Whether ranges are all that an entry tests besides its key.
    fn ranges_only(&self, entry: Entry) -> bool {
        let Some(residual) = self.residuals.get(entry.residual) else {
            return true;
        };
        let ranges = self.residuals.ranges(entry.residual).count();
        ranges == residual.tests.len() && matches!(residual.snap, Snap::Const(_))
    }
}

/// How many bits of a field a path does not know.
fn unknown(path: &Path, field: Bits) -> u32 {
    let same = path.iter().filter(|known| known.expr == field.expr);
    let known = same.fold(0, |mask, known| mask | known.mask);
    (field.mask & !known).count_ones()
}
