//! Chains of equality tests of one value, and a direct way through them (GCC's
//! if-to-switch conversion).
//!
//! Where a value is known, each test of the chain is decided, and jump threading
//! could step past one test at a time. `(src a and tcp) or (src b and udp) or …` has
//! as many edges with a known source as tests of the source, so single steps would
//! take quadratic time.

use super::graph::{Flow, Graph, NONE};
use crate::ir::{Block, Cmp, Edge, Op, Operand, Value};

/// The chains of a graph. A node is in a chain if it does nothing but compare a
/// value with a constant for equality. The chain continues at `otherwise` while
/// that node compares the same value.
#[derive(Debug)]
pub(crate) struct CompareChains {
    /// Chain of each node, or `NONE`.
    run_of: Vec<u32>,
    /// For each chain, the block to continue at if no constant was equal.
    ends: Vec<Block>,
    /// Chain, constant and node of every comparison, in ascending order.
    tests: Vec<(u32, u32, u32)>,
}

/// Value, constant and `otherwise` block of a node that only compares for equality;
/// `None` for other nodes.
fn comparison(graph: &Graph, index: usize) -> Option<(Value, u32, Block)> {
    let node = &graph.nodes[index];
    let Flow::Branch {
        cond, otherwise, ..
    } = &node.flow
    else {
        return None;
    };
    let Op::Test {
        cmp: Cmp::Eq,
        a: Operand::Val(value),
        b: Operand::Imm(constant),
    } = graph.op(*cond)
    else {
        return None;
    };
    // With these conditions the first node of a chain checks all that the others do.
    let plain = node.params.is_empty()
        && node.effects.is_empty()
        && node.bound <= graph.info(value).bound
        && otherwise.args.is_empty();
    plain.then_some((value, constant, otherwise.block))
}

impl CompareChains {
    /// Finds the chains of a tidy graph.
    pub(crate) fn of(graph: &Graph) -> CompareChains {
        let count = graph.nodes.len();
        let mut runs = CompareChains {
            run_of: vec![NONE; count],
            ends: Vec::new(),
            tests: Vec::new(),
        };
        // First node and compared value of each chain so far.
        let mut heads: Vec<(u32, Value)> = Vec::new();
        for index in (0..count).rev() {
            let Some((value, constant, next)) = comparison(graph, index) else {
                continue;
            };
            let run = runs.run_of[next.index()];
            let run = match heads.get_mut(run as usize) {
                Some(head) if *head == (next.0, value) => {
                    head.0 = index as u32;
                    run
                }
                _ => {
                    heads.push((index as u32, value));
                    runs.ends.push(next);
                    heads.len() as u32 - 1
                }
            };
            runs.tests.push((run, constant, index as u32));
            runs.run_of[index] = run;
        }
        runs.tests.sort_unstable();
        runs
    }

    /// The continuation at `node` if the chain's value is `found`: the next node that
    /// compares with `found`, or the end of the chain. `None` if `node` is in no chain.
    pub(crate) fn resolve(&self, node: Block, found: u32) -> Option<Edge> {
        let run = *self.run_of.get(node.index())?;
        let end = *self.ends.get(run as usize)?;
        // Nodes of a chain lead forward.
        let equal = self
            .tests
            .partition_point(|&test| test < (run, found, node.0));
        let block = match self.tests.get(equal) {
            Some(&(in_run, constant, equal)) if (in_run, constant) == (run, found) => Block(equal),
            _ => end,
        };
        Some(Edge::to(block))
    }
}
