//! Deadlines that may be absent.

use std::num::NonZeroU64;

/// A time in nanoseconds, or never, in eight bytes; zero counts as one.
pub(crate) type OptDeadline = Option<NonZeroU64>;

/// A deadline at that time.
#[inline]
pub(crate) fn from_ns(ns: u64) -> OptDeadline {
    NonZeroU64::new(ns.max(1))
}

/// The time as a number.
#[inline]
pub(crate) fn as_ns(when: OptDeadline) -> Option<u64> {
    when.map(NonZeroU64::get)
}
