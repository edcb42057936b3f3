//! Which granules of the arena are free: best fit, neighbours joined.

use std::collections::{BTreeMap, BTreeSet};

/// Free runs of granules.
#[derive(Debug)]
pub(super) struct FreeList {
    /// Start → length.
    by_start: BTreeMap<u32, u32>,
    /// (length, start).
    by_len: BTreeSet<(u32, u32)>,
    used: u32,
}

impl FreeList {
    /// `len` granules, all free.
    pub(super) fn new(len: u32) -> FreeList {
        FreeList {
            by_start: BTreeMap::from([(0, len)]),
            by_len: BTreeSet::from([(len, 0)]),
            used: 0,
        }
    }

    /// How many granules are taken.
    pub(super) fn used(&self) -> u32 {
        self.used
    }

    /// Takes `len` granules; their start, or `None` if no run is as long.
    pub(super) fn take(&mut self, len: u32) -> Option<u32> {
        let &(found, start) = self.by_len.range((len, 0)..).next()?;
        self.remove(start, found);
        if found > len {
            self.insert(start + len, found - len);
        }
        self.used += len;
        Some(start)
    }

    /// Returns what `take` gave.
    pub(super) fn give(&mut self, start: u32, len: u32) {
        self.used -= len;
        let (mut start, mut len) = (start, len);
        if let Some((&before, &before_len)) = self.by_start.range(..start).next_back() {
            assert!(before + before_len <= start, "granules freed twice");
            if before + before_len == start {
                self.remove(before, before_len);
                (start, len) = (before, before_len + len);
            }
        }
        if let Some(&after_len) = self.by_start.get(&(start + len)) {
            self.remove(start + len, after_len);
            len += after_len;
        }
        self.insert(start, len);
    }

    /// Takes `len` taken granules out of use for good.
    pub(super) fn retire(&mut self, len: u32) {
        self.used -= len;
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
}
