//! Runs of tests of one value for equality, and the way through them at once.
//!
//! Where a value is known, each such test is decided, and an edge could be led
//! past them one by one: `(src a and tcp) or (src b and udp) or …` has as many
//! edges with a known source as it has tests of the source, so that would take
//! quadratic time.

use super::graph::{Flow, Graph, NONE};
use crate::ir::{Block, Cmp, Edge, Op, Operand, Value};

/// The runs of a graph. A node is in a run if all it does is to compare a
/// value with a constant; the next in the run is where it leads if they
/// differ, if that compares the same value.
#[derive(Debug)]
pub(crate) struct CompareChains {
    /// Per node its run, or `NONE`.
    run_of: Vec<u32>,
    /// Per run where its last node leads if nothing was equal.
    ends: Vec<Block>,
    /// Run, constant and node of every comparison, in ascending order.
    tests: Vec<(u32, u32, u32)>,
}

/// The comparison that is all a node does.
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
    // So that the first of a run checks all that the others do.
    let plain = node.params.is_empty()
        && node.effects.is_empty()
        && node.bound <= graph.info(value).bound
        && otherwise.args.is_empty();
    plain.then_some((value, constant, otherwise.block))
}

impl CompareChains {
    /// The runs of a tidy graph.
    pub(crate) fn of(graph: &Graph) -> CompareChains {
        let count = graph.nodes.len();
        let mut runs = CompareChains {
            run_of: vec![NONE; count],
            ends: Vec::new(),
            tests: Vec::new(),
        };
        // The first node of each run so far, and what it compares.
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

    /// Where the run that `node` is in leads from there if its value is
    /// `found`: to the next node that compares with that, or out of the run.
    /// `None` if `node` is in no run.
    pub(crate) fn resolve(&self, node: Block, found: u32) -> Option<Edge> {
        let run = *self.run_of.get(node.index())?;
        let end = *self.ends.get(run as usize)?;
        // Nodes of a run lead forward.
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
