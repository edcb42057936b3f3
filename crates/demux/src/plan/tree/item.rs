//! An entry in a leaf: its checks and its delivery, in two cache lines.

use super::EntryRef;
use crate::plan::hash::WordHash;
use crate::verdict::Delivery;
use std::collections::HashMap;
use weir_filter::ir::Value;

/// Number of checks that an item performs itself.
const CHECKS: usize = 8;
/// The number of no field.
const NO_FIELD: u16 = u16::MAX;

/// An entry in a leaf, with all that most frames need of the entry.
#[derive(Clone, Copy)]
pub(in crate::plan) struct Item {
    /// The delivery. A snap length of zero means that the entry in the subtable
    /// has to be consulted when all checks hold.
    pub(in crate::plan) delivery: Delivery,
    pub(in crate::plan) name: EntryRef,
    /// The numbers of the checked fields, up to the first `NO_FIELD`.
    fields: [u16; CHECKS],
    lo: [u32; CHECKS],
    span: [u32; CHECKS],
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

/// The fields that a tree's items check, by number. They stay as long as the
/// tree; when there are too many, items leave checks to the entries.
pub(super) struct Fields {
    all: Vec<Bits>,
    numbers: HashMap<Bits, u16, WordHash>,
}

impl Fields {
    pub(super) fn new(hash: WordHash) -> Fields {
        Fields {
            all: Vec::new(),
            numbers: HashMap::with_hasher(hash),
        }
    }

    #[inline]
    pub(super) fn get(&self, number: u16) -> Option<Bits> {
        self.all.get(usize::from(number)).copied()
    }

    fn number(&mut self, bits: Bits) -> Option<u16> {
        if let Some(number) = self.numbers.get(&bits) {
            return Some(*number);
        }
        let number = u16::try_from(self.all.len()).ok();
        let number = number.filter(|number| *number != NO_FIELD)?;
        self.all.push(bits);
        self.numbers.insert(bits, number);
        Some(number)
    }
}

impl Item {
    /// Makes an item that performs the first of some checks itself; if there
    /// are more, the entry has to be consulted.
    pub(super) fn new(
        delivery: Delivery,
        name: EntryRef,
        checks: &[Check],
        fields: &mut Fields,
    ) -> Item {
        let mut item = Item {
            delivery,
            name,
            fields: [NO_FIELD; CHECKS],
            lo: [0; CHECKS],
            span: [0; CHECKS],
        };
        if checks.len() > CHECKS {
            item.must_check_entry();
        }
        for (at, check) in checks.iter().enumerate().take(CHECKS) {
            let Some(number) = fields.number(check.bits) else {
                item.must_check_entry();
                break;
            };
            (item.fields[at], item.lo[at], item.span[at]) = (number, check.lo, check.span);
        }
        item
    }

    /// Notes that the entry requires more than the checks.
    pub(super) fn must_check_entry(&mut self) {
        self.delivery.snap_len = 0;
    }

    /// Whether a frame passes all checks; `value` returns the value of a field.
    #[inline]
    pub(in crate::plan) fn passes(&self, mut value: impl FnMut(u16) -> Option<u32>) -> bool {
        for ((field, lo), span) in self.fields.iter().zip(&self.lo).zip(&self.span) {
            if *field == NO_FIELD {
                return true;
            }
            let value = value(*field);
            if value.is_none_or(|value| value.wrapping_sub(*lo) > *span) {
                return false;
            }
        }
        true
    }
}
