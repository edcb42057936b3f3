//! The dominator tree of a graph, and the walk over it.

use super::graph::Graph;

/// No node.
pub(crate) const NONE: u32 = u32::MAX;

/// The dominator tree of a tidy graph.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    /// For each node its nearest dominator; the entry has itself.
    pub(crate) parent: Vec<u32>,
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
            depth: vec![0; count],
            first_child: vec![NONE; count],
            next_sibling: vec![NONE; count],
            in_edges: vec![0; count],
        };
        tree.parent[0] = 0;
        for index in 0..count {
            if index > 0 {
                tree.depth[index] = tree.depth[tree.parent[index] as usize] + 1;
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

    /// The nearest node that dominates both, if they are not the same.
    pub(crate) fn common(&self, mut a: u32, mut b: u32) -> u32 {
        while a != b {
            if self.depth[a as usize] >= self.depth[b as usize] {
                a = self.parent[a as usize];
            } else {
                b = self.parent[b as usize];
            }
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
