//! The dominator tree of a graph, and the walk over it.

use super::graph::Graph;

/// No node.
pub(crate) const NONE: u32 = u32::MAX;

/// The dominator tree of a tidy graph.
#[derive(Clone, Debug)]
pub(crate) struct Tree {
    /// For each node its nearest dominator; the entry has itself.
    pub(crate) parent: Vec<u32>,
    /// An ancestor further up, at distances that halve, so that looking for a
    /// common dominator takes logarithmic time (as in [`crate::ir`]).
    jump: Vec<u32>,
    depth: Vec<u32>,
    first_child: Vec<u32>,
    next_sibling: Vec<u32>,
    /// How many edges lead to each node.
    pub(crate) in_edges: Vec<u32>,
}

impl Tree {
    /// The tree of a tidy graph. One pass suffices as edges lead forward.
    pub(crate) fn of(graph: &Graph) -> Tree {
        let count = graph.nodes.len();
        let mut tree = Tree {
            parent: vec![NONE; count],
            jump: vec![0; count],
            depth: vec![0; count],
            first_child: vec![NONE; count],
            next_sibling: vec![NONE; count],
            in_edges: vec![0; count],
        };
        tree.parent[0] = 0;
        for index in 0..count {
            if index > 0 {
                tree.place(index);
            }
            for edge in graph.nodes[index].flow.edges() {
                let target = edge.block.index();
                tree.in_edges[target] += 1;
                tree.parent[target] = match tree.parent[target] {
                    NONE => index as u32,
                    known => tree.common(known, index as u32),
                };
            }
        }
        // Last first, so that each list of children is in ascending order.
        for index in (1..count).rev() {
            let parent = tree.parent[index] as usize;
            tree.next_sibling[index] = tree.first_child[parent];
            tree.first_child[parent] = index as u32;
        }
        tree
    }

    /// Fixes the depth and the jump of a node whose parent is final.
    fn place(&mut self, index: usize) {
        let parent = self.parent[index] as usize;
        let jump = self.jump[parent] as usize;
        let further = self.jump[jump];
        let doubled = self.depth[parent] - self.depth[jump]
            == self.depth[jump] - self.depth[further as usize];
        self.depth[index] = self.depth[parent] + 1;
        self.jump[index] = if doubled { further } else { parent as u32 };
    }

    /// The ancestor of `node` at `depth`, which is no greater than its own.
    fn at_depth(&self, mut node: u32, depth: u32) -> u32 {
        while self.depth[node as usize] > depth {
            let jump = self.jump[node as usize];
            node = if self.depth[jump as usize] < depth {
                self.parent[node as usize]
            } else {
                jump
            };
        }
        node
    }

    /// The nearest node that dominates both, if they are not the same.
    pub(crate) fn common(&self, a: u32, b: u32) -> u32 {
        let depth = self.depth[a as usize].min(self.depth[b as usize]);
        let (mut a, mut b) = (self.at_depth(a, depth), self.at_depth(b, depth));
        while a != b {
            let jumps = (self.jump[a as usize], self.jump[b as usize]);
            (a, b) = if jumps.0 == jumps.1 {
                (self.parent[a as usize], self.parent[b as usize])
            } else {
                jumps
            };
        }
        a
    }

    /// Calls `enter` for each node, a dominator before what it dominates and
    /// each node after all its predecessors, and `leave` when all that the
    /// node dominates is done.
    pub(crate) fn walk<S>(
        &self,
        state: &mut S,
        mut enter: impl FnMut(&mut S, usize),
        mut leave: impl FnMut(&mut S, usize),
    ) {
        let mut node = 0_u32;
        loop {
            enter(state, node as usize);
            let mut next = self.first_child[node as usize];
            while next == NONE {
                leave(state, node as usize);
                if node == 0 {
                    return;
                }
                next = self.next_sibling[node as usize];
                node = self.parent[node as usize];
            }
            node = next;
        }
    }
}
