//! Sequence numbers (RFC 9293 §3.4): a circle of 2^32, on which half is
//! before and half is after any point.

/// A sequence number.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Seq(pub(super) u32);

impl Seq {
    /// The number `count` further on.
    pub(super) fn plus(self, count: usize) -> Seq {
        Seq(self.0.wrapping_add(count as u32))
    }

    /// The number `count` back.
    pub(super) fn minus(self, count: u32) -> Seq {
        Seq(self.0.wrapping_sub(count))
    }

    /// How far this is behind `start`, which is not after it.
    pub(super) fn since(self, start: Seq) -> usize {
        self.0.wrapping_sub(start.0) as usize
    }

    pub(super) fn before(self, other: Seq) -> bool {
        (self.0.wrapping_sub(other.0) as i32) < 0
    }

    pub(super) fn at_most(self, other: Seq) -> bool {
        !other.before(self)
    }

    /// The later of two.
    pub(super) fn max(self, other: Seq) -> Seq {
        if self.before(other) { other } else { self }
    }

    /// The earlier of two.
    pub(super) fn min(self, other: Seq) -> Seq {
        if self.before(other) { self } else { other }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_circle_closes() {
        let last = Seq(u32::MAX);
        let next = last.plus(2);
        assert_eq!((next, next.since(last), next.minus(2)), (Seq(1), 2, last));
        assert!(last.before(next) && !next.before(last));
        assert!(last.at_most(last) && !next.at_most(last));
        assert_eq!((last.max(next), last.min(next)), (next, last));
    }
}
