//! When something is due, if ever.

/// The earlier of two times at which something is due, in nanoseconds.
#[inline]
pub(crate) fn earlier(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}
