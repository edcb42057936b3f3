//! Deadlines of all connections, one for each, in a heap with four children a node.
//!
//! A deadline that moves later keeps its entry until the entry is due; the caller then sets the new
//! one. Deadlines that move with every segment, such as that of a retransmission, therefore cost
//! nothing.

const CHILDREN: usize = 4;
const NOWHERE: u32 = u32::MAX;

/// The heap of deadlines.
#[derive(Default)]
pub(super) struct TimerHeap {
    /// Entries: deadline, and index of the connection.
    heap: Vec<(u64, u32)>,
    /// The position of each connection's entry.
    positions: Vec<u32>,
}

impl TimerHeap {
    /// Sets the deadline of connection `who` to `at_ns`, unless it is earlier already.
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

    /// Removes the entry of connection `who`.
    pub(super) fn remove(&mut self, who: u32) {
        let place = self
            .positions
            .get(who as usize)
            .map_or(NOWHERE, |place| *place);
        if place != NOWHERE {
            self.take(place as usize);
        }
    }

    /// Removes and returns a connection whose deadline is at most `now_ns`; `None` without one.
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

    /// Moves an entry from a position up to where it belongs; returns its position.
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

    /// Moves an entry from a position down to where it belongs.
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
