//! Deadlines of all connections: one each, in a heap of four children.
//!
//! A deadline that moves away stays where it is until it is due; the caller
//! then sets the new one. So what moves with every segment, such as the
//! retransmission's, costs nothing.

const CHILDREN: usize = 4;
const NOWHERE: u32 = u32::MAX;

/// See the module.
#[derive(Default)]
pub(super) struct TimerHeap {
    /// When, and whose.
    heap: Vec<(u64, u32)>,
    /// Where each one's entry is.
    positions: Vec<u32>,
}

impl TimerHeap {
    /// Sees to it that `who` is due at `at_ns`, or before.
    pub(super) fn set(&mut self, who: u32, at_ns: u64) {
        let index = who as usize;
        if index >= self.positions.len() {
            self.positions.resize(index + 1, NOWHERE);
        }
        let mut place = self.positions[index] as usize;
        match self.heap.get(place) {
            Some(entry) if entry.0 <= at_ns => return,
            Some(_) => {}
            None => {
                place = self.heap.len();
                self.heap.push((at_ns, who));
            }
        }
        self.sift_up(place, (at_ns, who));
    }

    /// Forgets about `who`.
    pub(super) fn remove(&mut self, who: u32) {
        let place = self
            .positions
            .get(who as usize)
            .map_or(NOWHERE, |place| *place);
        if place != NOWHERE {
            self.take(place as usize);
        }
    }

    /// Who is due by `now_ns`, and no longer has a deadline then.
    pub(super) fn pop(&mut self, now_ns: u64) -> Option<u32> {
        let &(at_ns, who) = self.heap.first()?;
        (at_ns <= now_ns).then(|| {
            self.take(0);
            who
        })
    }

    /// The earliest deadline; `u64::MAX` if there is none.
    pub(super) fn next_ns(&self) -> u64 {
        self.heap.first().map_or(u64::MAX, |(at_ns, _)| *at_ns)
    }

    fn take(&mut self, place: usize) {
        let (_, who) = self.heap.swap_remove(place);
        self.positions[who as usize] = NOWHERE;
        if let Some(&moved) = self.heap.get(place) {
            let place = self.sift_up(place, moved);
            self.sift_down(place, moved);
        }
    }

    /// Puts an entry here, or as far up as it belongs; gives its place.
    #[inline]
    fn sift_up(&mut self, mut place: usize, entry: (u64, u32)) -> usize {
        while place > 0 {
            let parent = (place - 1) / CHILDREN;
            if self.heap[parent].0 <= entry.0 {
                break;
            }
            self.put(place, self.heap[parent]);
            place = parent;
        }
        self.put(place, entry);
        place
    }

    /// Puts an entry here, or as far down as it belongs.
    fn sift_down(&mut self, mut place: usize, entry: (u64, u32)) {
        loop {
            let first = place * CHILDREN + 1;
            let children = first..(first + CHILDREN).min(self.heap.len());
            let least = children.min_by_key(|child| self.heap[*child].0);
            let Some(least) = least.filter(|least| self.heap[*least].0 < entry.0) else {
                break;
            };
            self.put(place, self.heap[least]);
            place = least;
        }
        self.put(place, entry);
    }

    fn put(&mut self, place: usize, entry: (u64, u32)) {
        self.heap[place] = entry;
        self.positions[entry.1 as usize] = place as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;
    use std::collections::BTreeMap;

    #[test]
    fn deadlines_come_in_order_and_only_get_earlier() {
        let mut rng = Rng::new(3);
        let (mut deadlines, mut model) = (TimerHeap::default(), BTreeMap::<u32, u64>::new());
        let mut now_ns = 0;
        for _ in 0..20_000 {
            let who = rng.below(300);
            match rng.below(8) {
                0 => {
                    deadlines.remove(who);
                    model.remove(&who);
                }
                1 => {
                    now_ns += u64::from(rng.below(100));
                    while let Some(who) = deadlines.pop(now_ns) {
                        let at_ns = model.remove(&who).unwrap();
                        assert!(at_ns <= now_ns);
                        assert!(model.values().all(|other| *other >= at_ns));
                    }
                    assert!(model.values().all(|at_ns| *at_ns > now_ns));
                }
                _ => {
                    let at_ns = now_ns + u64::from(rng.below(2000));
                    deadlines.set(who, at_ns);
                    let known = model.entry(who).or_insert(at_ns);
                    *known = (*known).min(at_ns);
                }
            }
            let earliest = model.values().min().copied();
            assert_eq!(deadlines.next_ns(), earliest.unwrap_or(u64::MAX));
        }
    }
}
