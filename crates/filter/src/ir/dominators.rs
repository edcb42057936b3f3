//! The dominator tree of a forward control-flow graph.

use super::{Block, Program};

/// The dominator tree, made for look-ups in logarithmic time: a chain of
/// 100,000 blocks that all lead to one reject block must not cost a walk of
/// the whole chain for each.
///
/// Besides its parent each block knows one ancestor further up, at distances
/// that halve (Myers, "An applicative random-access stack", 1983).
#[derive(Debug)]
pub(super) struct Dominators {
    /// The immediate dominator; the entry, and a block nothing reaches, has
    /// itself.
    pub(super) parents: Vec<Block>,
    jumps: Vec<Block>,
    depths: Vec<u32>,
}

impl Dominators {
    /// One pass suffices because edges lead forward, which the program must
    /// satisfy.
    pub(super) fn of(program: &Program) -> Dominators {
        let count = program.blocks.len();
        let own: Vec<Block> = (0..count as u32).map(Block).collect();
        let mut tree = Dominators {
            parents: own.clone(),
            jumps: own,
            depths: vec![0; count],
        };
        let mut reached = vec![false; count];
        if let Some(entry) = reached.first_mut() {
            *entry = true;
        }
        for (index, block) in program.blocks.iter().enumerate() {
            if !reached[index] {
                continue;
            }
            let here = Block(index as u32);
            if index > 0 {
                tree.enter(here);
            }
            for edge in block.term.edges() {
                let target = edge.block.index();
                tree.parents[target] = if reached[target] {
                    tree.common(tree.parents[target], here)
                } else {
                    here
                };
                reached[target] = true;
            }
        }
        tree
    }

    /// Fixes the depth and the jump of a block whose parent is final.
    fn enter(&mut self, block: Block) {
        let parent = self.parents[block.index()];
        let jump = self.jumps[parent.index()];
        let further = self.jumps[jump.index()];
        let depth = |block: Block| self.depths[block.index()];
        let doubled = depth(parent) - depth(jump) == depth(jump) - depth(further);
        self.depths[block.index()] = depth(parent) + 1;
        self.jumps[block.index()] = if doubled { further } else { parent };
    }

    /// The ancestor of `block` at `depth`, which is no greater than its own.
    fn at_depth(&self, mut block: Block, depth: u32) -> Block {
        while self.depths[block.index()] > depth {
            let jump = self.jumps[block.index()];
            block = if self.depths[jump.index()] < depth {
                self.parents[block.index()]
            } else {
                jump
            };
        }
        block
    }

    /// The nearest block that dominates both.
    fn common(&self, a: Block, b: Block) -> Block {
        let depth = self.depths[a.index()].min(self.depths[b.index()]);
        let (mut a, mut b) = (self.at_depth(a, depth), self.at_depth(b, depth));
        while a != b {
            let jumps = (self.jumps[a.index()], self.jumps[b.index()]);
            (a, b) = if jumps.0 == jumps.1 {
                (self.parents[a.index()], self.parents[b.index()])
            } else {
                jumps
            };
        }
        a
    }

    /// Whether every path to `block` passes `home`, or they are the same.
    pub(super) fn dominates(&self, home: Block, block: Block) -> bool {
        let depth = self.depths[home.index()];
        depth <= self.depths[block.index()] && self.at_depth(block, depth) == home
    }
}
