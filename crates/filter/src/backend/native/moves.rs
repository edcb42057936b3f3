//! Parallel moves: the arguments of an edge are assigned to parameters at once, but
//! machines move one at a time. This module orders the moves and breaks cycles.

use super::location::{Location, REGS_MAX, Src};

/// A scheduler of parallel moves; its memory is reused between edges.
#[derive(Debug, Default)]
pub(super) struct Moves {
    /// Pending moves as (to, from); the targets differ.
    list: Vec<(Location, Src)>,
    /// For each location, the number of pending moves that read it.
    readers: Vec<u16>,
    /// For each location, the index of the pending move that writes it, plus one.
    writer: Vec<u16>,
    /// Moves whose target no pending move reads.
    ready: Vec<u16>,
}

impl Moves {
    /// For locations with up to `slots` stack slots.
    pub(super) fn new(slots: usize) -> Moves {
        Moves {
            readers: vec![0; REGS_MAX + slots],
            writer: vec![0; REGS_MAX + slots],
            ..Moves::default()
        }
    }

    /// Adds a move; a move from a location to itself is dropped.
    pub(super) fn add(&mut self, to: Location, from: Src) {
        if from != Src::At(to) {
            self.list.push((to, from));
        }
    }

    /// Emits the added moves in a valid order by `emit(to, from)`. No move may use the
    /// location `spare`.
    pub(super) fn make(&mut self, spare: Location, mut emit: impl FnMut(Location, Src)) {
        for (index, &(to, from)) in self.list.iter().enumerate() {
            self.writer[to.index()] = index as u16 + 1;
            if let Src::At(location) = from {
                self.readers[location.index()] += 1;
            }
        }
        for (index, &(to, _)) in self.list.iter().enumerate() {
            if self.readers[to.index()] == 0 {
                self.ready.push(index as u16);
            }
        }
        while let Some(index) = self.ready.pop() {
            let (to, from) = self.list[usize::from(index)];
            emit(to, from);
            self.writer[to.index()] = 0;
            if let Src::At(location) = from {
                self.readers[location.index()] -= 1;
                let writer = self.writer[location.index()];
                if self.readers[location.index()] == 0 && writer > 0 {
                    self.ready.push(writer - 1);
                }
            }
        }
        self.break_cycles(spare, emit);
        self.list.clear();
    }

    /// Emits the remaining moves: cycles, in which each location is read once and
    /// written once.
    fn break_cycles(&mut self, spare: Location, mut emit: impl FnMut(Location, Src)) {
        for index in 0..self.list.len() {
            let first = self.list[index].0;
            if self.writer[first.index()] == 0 {
                continue;
            }
            emit(spare, first.into());
            let mut to = first;
            loop {
                let writer = usize::from(self.writer[to.index()]) - 1;
                self.writer[to.index()] = 0;
                let Src::At(from) = self.list[writer].1 else {
                    unreachable!("a constant never waits")
                };
                self.readers[from.index()] = 0;
                if from == first {
                    emit(to, spare.into());
                    break;
                }
                emit(to, from.into());
                to = from;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPARE: Location = Location::Reg(31);

    /// Runs `moves` in order and compares the result with the parallel assignment.
    fn check(moves: &[(Location, Src)], order: &mut Moves) -> usize {
        let mut now: Vec<u32> = (0..REGS_MAX as u32 + 8).collect();
        let mut want = now.clone();
        for &(to, from) in moves {
            want[to.index()] = match from {
                Src::Imm(constant) => constant,
                Src::At(location) => now[location.index()],
            };
            order.add(to, from);
        }
        let mut count = 0;
        order.make(SPARE, |to, from| {
            count += 1;
            now[to.index()] = match from {
                Src::Imm(constant) => constant,
                Src::At(location) => now[location.index()],
            };
        });
        want[SPARE.index()] = now[SPARE.index()];
        assert_eq!(now, want, "{moves:?}");
        count
    }

    #[test]
    fn every_set_of_four_moves_is_as_if_at_once() {
        let locations = [
            Location::Reg(0),
            Location::Reg(5),
            Location::Slot(0),
            Location::Slot(7),
        ];
        let mut order = Moves::new(8);
        for code in 0..6_usize.pow(4) {
            let choice = |index: u32| code / 6_usize.pow(index) % 6;
            let moves: Vec<(Location, Src)> = (0..4)
                .filter(|&index| choice(index) < 5)
                .map(|index| {
                    let from = match choice(index) {
                        4 => Src::Imm(1_000 + index),
                        location => locations[location].into(),
                    };
                    (locations[index as usize], from)
                })
                .collect();
            let count = check(&moves, &mut order);
            assert!(count <= moves.len() + 2, "{moves:?}");
        }
    }
}
