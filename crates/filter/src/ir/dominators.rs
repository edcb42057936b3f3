//! The dominator tree of a forward control-flow graph, and a traversal of it.

use super::{Block, Edge};

/// The absence of a block.
const NONE: u32 = u32::MAX;

/// The dominator tree, with ancestor look-ups in logarithmic time. Otherwise a
/// chain of 100,000 blocks that all lead to one reject block would cost a walk
/// of the chain for each block.
///
/// Besides its parent, each block stores one ancestor further up, at distances
/// of a skew binary number (Myers, "An applicative random-access stack", 1983).
#[derive(Clone, Debug)]
pub(crate) struct Dominators {
    /// The immediate dominator of each block. The entry and unreachable blocks have
    /// themselves.
    parents: Vec<Block>,
    jumps: Vec<Block>,
    depths: Vec<u32>,
    /// Number of edges to each block from reachable blocks.
    in_edges: Vec<u32>,
}

impl Dominators {
    /// Builds the tree of `count` blocks, of which block 0 is the entry; `edges`
    /// gives the outgoing edges. All edges must lead forward, so one pass suffices.
    pub(crate) fn of<'e, E>(count: usize, edges: impl Fn(usize) -> E) -> Dominators
    where
        E: Iterator<Item = &'e Edge>,
    {
        let own: Vec<Block> = (0..count as u32).map(Block).collect();
        let mut tree = Dominators {
            parents: own.clone(),
            jumps: own,
            depths: vec![0; count],
            in_edges: vec![0; count],
        };
        for index in 0..count {
            let here = Block(index as u32);
            if index > 0 {
                if tree.in_edges[index] == 0 {
                    continue;
                }
                tree.enter(here);
            }
            for edge in edges(index) {
                let target = edge.block.index();
                tree.parents[target] = match tree.in_edges[target] {
                    0 => here,
                    _ => tree.common(tree.parents[target], here),
                };
                tree.in_edges[target] += 1;
            }
        }
        tree
    }

    /// Sets depth and jump of a block whose parent is final.
    fn enter(&mut self, block: Block) {
        let parent = self.parents[block.index()];
        let jump = self.jumps[parent.index()];
        let further = self.jumps[jump.index()];
        let depth = |block: Block| self.depths[block.index()];
        let doubled = depth(parent) - depth(jump) == depth(jump) - depth(further);
        self.depths[block.index()] = depth(parent) + 1;
        self.jumps[block.index()] = if doubled { further } else { parent };
    }

    /// The ancestor of `block` at `depth`, at most the depth of `block`.
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

    /// The nearest common dominator of `a` and `b`.
    pub(crate) fn common(&self, a: Block, b: Block) -> Block {
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

    /// Whether `home` dominates `block`: every path to `block` passes `home`, or
    /// both are the same block.
    pub(crate) fn dominates(&self, home: Block, block: Block) -> bool {
        let depth = self.depths[home.index()];
        depth <= self.depths[block.index()] && self.at_depth(block, depth) == home
    }

    /// The immediate dominators. The entry and unreachable blocks have themselves.
    pub(crate) fn parents(&self) -> &[Block] {
        &self.parents
    }

    /// The number of edges to each block from reachable blocks.
    pub(crate) fn in_edges(&self) -> &[u32] {
        &self.in_edges
    }

    /// Traverses the reachable blocks depth first. `enter` runs for a dominator
    /// before the blocks that it dominates, and for a block after all its
    /// predecessors; `leave` runs after all blocks that the block dominates.
    pub(crate) fn walk<S>(
        &self,
        state: &mut S,
        mut enter: impl FnMut(&mut S, usize),
        mut leave: impl FnMut(&mut S, usize),
    ) {
        let (first_child, next_sibling) = self.children();
        let mut block = 0_u32;
        loop {
            enter(state, block as usize);
            let mut next = first_child[block as usize];
            while next == NONE {
                leave(state, block as usize);
                if block == 0 {
                    return;
                }
                next = next_sibling[block as usize];
                block = self.parents[block as usize].0;
            }
            block = next;
        }
    }

    /// For each block the first child, and the next sibling, in ascending order.
    fn children(&self) -> (Vec<u32>, Vec<u32>) {
        let count = self.parents.len();
        let (mut first, mut next) = (vec![NONE; count], vec![NONE; count]);
        for index in (1..count).rev() {
            let parent = self.parents[index].index();
            if self.in_edges[index] > 0 {
                next[index] = first[parent];
                first[parent] = index as u32;
            }
        }
        (first, next)
    }
}
