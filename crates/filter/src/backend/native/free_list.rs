//! Allocator of the arena's granules: best fit, with adjacent free ranges merged.

use std::collections::{BTreeMap, BTreeSet};

/// The free ranges of granules.
#[derive(Debug)]
pub(super) struct FreeList {
    /// Length by start.
    by_start: BTreeMap<u32, u32>,
    /// Pairs of length and start.
    by_len: BTreeSet<(u32, u32)>,
    used: u32,
}

impl FreeList {
    /// A list of `len` granules, all free.
    pub(super) fn new(len: u32) -> FreeList {
        FreeList {
            by_start: BTreeMap::from([(0, len)]),
            by_len: BTreeSet::from([(len, 0)]),
            used: 0,
        }
    }

    /// Number of granules in use.
    pub(super) fn used(&self) -> u32 {
        self.used
    }

    /// Allocates `len` granules; returns the first, or `None` if no range is long enough.
    pub(super) fn take(&mut self, len: u32) -> Option<u32> {
        let &(found, start) = self.by_len.range((len, 0)..).next()?;
        self.remove(start, found);
        if found > len {
            self.insert(start + len, found - len);
        }
        self.used += len;
        Some(start)
    }

    /// Frees a range that [`take`](Self::take) returned. Panics, without any change, if
    /// the range is already free.
    pub(super) fn give(&mut self, start: u32, len: u32) {
        let before = self.by_start.range(..start + len).next_back();
        let before = before.map(|(&before, &before_len)| (before, before_len));
        if let Some((before, before_len)) = before {
            assert!(before + before_len <= start, "granules freed twice");
        }
        assert!(len <= self.used, "more granules freed than were taken");
        self.used -= len;
        let (mut start, mut len) = (start, len);
        if let Some((before, before_len)) = before
            && before + before_len == start
        {
            self.remove(before, before_len);
            (start, len) = (before, before_len + len);
        }
        if let Some(&after_len) = self.by_start.get(&(start + len)) {
            self.remove(start + len, after_len);
            len += after_len;
        }
        self.insert(start, len);
    }

    /// Removes `len` granules in use for good. Panics if fewer are in use.
    pub(super) fn retire(&mut self, len: u32) {
        assert!(len <= self.used, "more granules freed than were taken");
        self.used -= len;
    }

    /// Removes all free granules before `end` for good.
    pub(super) fn retire_before(&mut self, end: u32) {
        while let Some((&start, &len)) = self.by_start.first_key_value()
            && start < end
        {
            self.remove(start, len);
            if start + len > end {
                self.insert(end, start + len - end);
            }
        }
    }

    fn insert(&mut self, start: u32, len: u32) {
        self.by_start.insert(start, len);
        self.by_len.insert((len, start));
    }

    fn remove(&mut self, start: u32, len: u32) {
        self.by_start.remove(&start);
        self.by_len.remove(&(len, start));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taken_runs_never_overlap_and_all_comes_back_as_one() {
        let mut list = FreeList::new(1_000);
        let mut taken: Vec<(u32, u32)> = Vec::new();
        let mut owner = vec![false; 1_000];
        let mut state = 7_u32;
        for _ in 0..20_000 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let len = 1 + (state >> 20) % 40;
            if state >> 31 == 0 {
                if let Some(start) = list.take(len) {
                    for granule in start..start + len {
                        assert!(!std::mem::replace(&mut owner[granule as usize], true));
                    }
                    taken.push((start, len));
                }
            } else if !taken.is_empty() {
                let (start, len) = taken.swap_remove((state >> 8) as usize % taken.len());
                owner[start as usize..(start + len) as usize].fill(false);
                list.give(start, len);
            }
            let used = owner.iter().filter(|&&used| used).count();
            assert_eq!(list.used() as usize, used);
        }
        for (start, len) in taken {
            list.give(start, len);
        }
        assert_eq!(list.take(1_000), Some(0));
        assert_eq!(list.take(1), None);
    }

    #[test]
    fn what_is_freed_twice_panics_and_leaves_the_list_whole() {
        let mut list = FreeList::new(100);
        assert_eq!(list.take(10), Some(0));
        assert_eq!(list.take(20), Some(10));
        list.give(0, 10);
        for (start, len) in [(0, 10), (5, 5), (0, 20), (25, 10), (90, 10)] {
            let twice = std::panic::AssertUnwindSafe(|| list.give(start, len));
            assert!(std::panic::catch_unwind(twice).is_err(), "{start} {len}");
            assert_eq!(list.used(), 20);
        }
        list.give(10, 20);
        assert_eq!(list.take(100), Some(0));
    }

    #[test]
    fn what_lies_before_a_place_can_be_retired() {
        let mut list = FreeList::new(100);
        assert_eq!(list.take(10), Some(0));
        assert_eq!(list.take(10), Some(10));
        list.give(0, 10);
        list.retire_before(30);
        assert_eq!(list.take(5), Some(30));
        assert_eq!(list.take(66), None);
        assert_eq!(list.take(65), Some(35));
    }
}
