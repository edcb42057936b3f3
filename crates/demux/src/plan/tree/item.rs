//! An entry of a leaf: its checks, in one cache line, and what else a tree keeps
//! of it.

use super::EntryRef;
use crate::plan::hash::WordHash;
use crate::plan::pool::{Lanes, Pool, Read};
use std::collections::HashMap;
use weir_filter::ir::Value;

/// Number of lanes, at most.
pub(in crate::plan) const LANES: usize = Lanes::MAX;
/// The number of no field.
const NO_FIELD: u16 = u16::MAX;

/// The checks of an entry on the lanes. Most frames that reach an entry read
/// this cache line alone, and compare all lanes at once.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(in crate::plan) struct LaneChecks {
    lo: [u32; LANES],
    span: [u32; LANES],
}

/// The rarely needed part of an entry of a leaf.
#[derive(Clone, Copy)]
pub(in crate::plan) struct Item {
    pub(in crate::plan) name: EntryRef,
    /// The most selective check of a field that is no lane; if there is none,
    /// the most selective check.
    pub(super) first: FirstCheck,
    /// The lanes that the entry checks, a bit for each.
    pub(in crate::plan) lanes: u8,
}

/// The check of an entry that a list holds.
#[derive(Clone, Copy)]
pub(super) struct FirstCheck {
    pub(super) field: u16,
    pub(super) lo: u32,
    pub(super) span: u32,
}

/// Some bits of an expression.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::plan) struct Bits {
    pub(in crate::plan) expr: Value,
    pub(in crate::plan) mask: u32,
}

/// One requirement of an entry: `(expr & mask) - lo <= span`, wrapping.
#[derive(Clone, Copy)]
pub(super) struct Check {
    pub(super) bits: Bits,
    pub(super) lo: u32,
    pub(super) span: u32,
}

/// The fields that a tree's nodes read, by number. They stay as long as the
/// tree; when there are too many, items leave checks to the entries.
///
/// Loads that most entries check are *lanes*, numbered below [`LANES`]: each
/// frame reads all of them at once. It reads the others when a node asks.
pub(super) struct Fields {
    pub(super) lanes: Lanes,
    /// The other fields, numbered from [`LANES`].
    others: Vec<ReadField>,
    numbers: HashMap<Bits, u16, WordHash>,
}

/// A field, and the way to read its expression.
#[derive(Clone, Copy)]
pub(in crate::plan) struct ReadField {
    pub(in crate::plan) bits: Bits,
    pub(in crate::plan) read: Read,
}

impl Fields {
    pub(super) fn new(hash: WordHash) -> Fields {
        Fields {
            lanes: Lanes::new(),
            others: Vec::new(),
            numbers: HashMap::with_hasher(hash),
        }
    }

    /// The fields that are no lanes.
    #[inline]
    pub(super) fn others(&self) -> &[ReadField] {
        &self.others
    }

    /// Makes a field a lane, if there is room, and its value such a load.
    pub(super) fn make_lane(&mut self, bits: Bits, pool: &Pool) {
        if !self.numbers.contains_key(&bits)
            && let Some(lane) = self.lanes.add(*pool.read(bits.expr), bits.mask)
        {
            self.numbers.insert(bits, lane as u16);
        }
    }

    /// The number of a field; `None` if there are too many.
    pub(super) fn number(&mut self, bits: Bits, pool: &Pool) -> Option<u16> {
        let read = *pool.read(bits.expr);
        if let Some(number) = self.numbers.get(&bits) {
            // When no node reads the field any more, the pool may free the
            // expression and use its name for another one.
            let at = usize::from(*number);
            if at < LANES {
                return self.lanes.replace(at, read, bits.mask).then_some(*number);
            }
            self.others[at - LANES].read = read;
            return Some(*number);
        }
        let number = match self.lanes.add(read, bits.mask) {
            Some(lane) => lane as u16,
            None => {
                let number = u16::try_from(LANES + self.others.len()).ok();
                let number = number.filter(|number| *number != NO_FIELD)?;
                self.others.push(ReadField { bits, read });
                number
            }
        };
        self.numbers.insert(bits, number);
        Some(number)
    }
}

impl Check {
    /// The same check as a range of the whole expression, if the bits are its
    /// upper ones: prefixes of all lengths then share a field.
    fn widened(self, pool: &Pool) -> Check {
        let Bits { expr, mask } = self.bits;
        let bits = self.bits.widened(pool);
        if self.span != 0 || bits == self.bits {
            return self;
        }
        Check {
            bits,
            lo: self.lo,
            span: pool.bits(expr) & !mask,
        }
    }
}

impl Bits {
    /// The whole expression if the bits are its upper ones, else the same bits.
    pub(in crate::plan) fn widened(self, pool: &Pool) -> Bits {
        let free = pool.bits(self.expr) & !self.mask;
        match free & free.wrapping_add(1) {
            0 => Bits::whole(self.expr),
            _ => self,
        }
    }

    /// All bits of an expression.
    pub(super) fn whole(expr: Value) -> Bits {
        Bits {
            expr,
            mask: u32::MAX,
        }
    }
}

impl LaneChecks {
    /// No checks.
    pub(super) const NOTHING: LaneChecks = LaneChecks {
        lo: [0; LANES],
        span: [u32::MAX; LANES],
    };

    /// Adds a check; returns `false` if no value could pass.
    fn add(&mut self, lane: usize, lo: u32, span: u32) -> bool {
        let hi = lo.saturating_add(span).min(self.lo[lane] + self.span[lane]);
        let lo = lo.max(self.lo[lane]);
        if lo > hi {
            return false;
        }
        (self.lo[lane], self.span[lane]) = (lo, hi - lo);
        true
    }

    /// The least value that passes on a lane, and the number of further ones.
    pub(super) fn range(&self, lane: usize) -> (u32, u32) {
        (self.lo[lane], self.span[lane])
    }

    /// Whether values pass all checks.
    #[inline]
    pub(in crate::plan) fn pass(&self, values: &[u32; LANES]) -> bool {
        // No branch for each lane, so that the compiler compares several at
        // once.
        let mut fails = 0;
        for ((value, lo), span) in values.iter().zip(&self.lo).zip(&self.span) {
            fails |= u32::from(value.wrapping_sub(*lo) > *span);
        }
        fails == 0
    }
}

impl Item {
    /// Makes an item and its checks on lanes; returns also whether these are
    /// all of `checks`.
    pub(super) fn new(
        name: EntryRef,
        checks: &[Check],
        fields: &mut Fields,
        pool: &Pool,
    ) -> (LaneChecks, Item, bool) {
        let mut lane_checks = LaneChecks::NOTHING;
        let mut are_all = true;
        let mut item = Item {
            name,
            first: FirstCheck {
                field: NO_FIELD,
                lo: 0,
                span: 0,
            },
            lanes: 0,
        };
        for (at, check) in checks.iter().enumerate() {
            let Check { bits, lo, span } = check.widened(pool);
            let Some(field) = fields.number(bits, pool) else {
                are_all = false;
                continue;
            };
            let lane = usize::from(field);
            let is_outside = lane >= LANES && !item.first.is_outside_lanes();
            if at == 0 || is_outside {
                item.first = FirstCheck { field, lo, span };
            }
            if lane < LANES && lane_checks.add(lane, lo, span) {
                item.lanes |= 1 << lane;
            } else {
                are_all = false;
            }
        }
        (lane_checks, item, are_all)
    }

    /// Whether the first check is not among those on lanes.
    pub(super) fn begins_outside_lanes(&self) -> bool {
        self.first.is_outside_lanes()
    }
}

impl FirstCheck {
    /// Whether the check is not of a lane.
    pub(super) fn is_outside_lanes(&self) -> bool {
        usize::from(self.field) >= LANES && self.field != NO_FIELD
    }
}
