//! Static cost of a program, counted on its graph.

use super::{Op, Program};

/// Size of a program, and the least and most work for one frame. An instruction
/// is a computed value or a terminator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cost {
    /// Number of blocks.
    pub blocks: usize,
    /// Number of instructions.
    pub insts: usize,
    /// Number of loads.
    pub loads: usize,
    /// Instructions on the shortest path to a verdict.
    pub path_min: usize,
    /// Instructions on the longest path to a verdict.
    pub path_max: usize,
}

impl Program {
    /// Counts the program's size and its shortest and longest paths. Edges lead
    /// forward, so one pass from the last block to the first suffices.
    pub fn cost(&self) -> Cost {
        let mut to_end = vec![(0_usize, 0_usize); self.blocks.len()];
        for (index, block) in self.blocks.iter().enumerate().rev() {
            let own = block.insts.len() + 1;
            let ahead = block.term.edges().map(|edge| to_end[edge.block.index()]);
            let (least, most) = ahead
                .reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))
                .unwrap_or_default();
            to_end[index] = (own + least, own + most);
        }
        let insts = self.blocks.iter().flat_map(|block| &block.insts);
        let loads = insts.filter(|value| matches!(self.op(**value), Op::Load { .. }));
        let (path_min, path_max) = to_end.first().copied().unwrap_or_default();
        Cost {
            blocks: self.blocks.len(),
            insts: self.len(),
            loads: loads.count(),
            path_min,
            path_max,
        }
    }
}
