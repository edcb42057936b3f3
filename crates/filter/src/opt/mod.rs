//! The optimiser: passes that make a program smaller and faster without
//! changing any verdict.
//!
//! A program is brought into the form that `graph` describes, in which
//! values float; the passes run over it in rounds until none changes anything;
//! then it is written back. `docs/explanation/compiler.md` describes the passes
//! and what they rely on.

pub(crate) mod bounds_checks;
mod compare_chain;
pub(crate) mod cond;
mod facts;
mod fold;
pub(crate) mod graph;
mod jump_threading;
mod reorder;
mod schedule;
pub(crate) mod split_branch;
mod straighten;
pub(crate) mod substitute;
pub(crate) mod tail_merge;
pub(crate) mod value_range;

use crate::ir::Program;
use graph::Graph;

/// How many rounds the passes run at most. Each round makes progress, so
/// ordinary programs settle in two or three.
const ROUNDS_MAX: usize = 10;

/// One pass of the optimiser.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pass {
    /// Blocks joined, block parameters removed.
    Straighten,
    /// Truth values turned into control flow.
    Split,
    /// Dominated tests and jump threading.
    Thread,
    /// Checks that others make needless dropped.
    Checks,
    /// Identical blocks made one.
    Merge,
    /// Tests of one value put side by side.
    Reorder,
}

impl Pass {
    /// Every pass, in the order in which a round runs them.
    pub const ALL: [Pass; 6] = [
        Pass::Straighten,
        Pass::Split,
        Pass::Thread,
        Pass::Checks,
        Pass::Merge,
        Pass::Reorder,
    ];

    /// Runs this pass alone, once, on a verified program; for tests. What
    /// every pass has in common happens too: constants are folded, equal
    /// values made one, and what nothing needs is dropped.
    pub fn run(self, program: &mut Program) {
        let mut graph = Graph::of(program);
        graph.tidy();
        if self.apply(&mut graph) {
            graph.tidy();
        }
        finish(program, &mut graph);
    }

    /// The passes that may find more to do after this one changed something.
    fn enables(self) -> &'static [Pass] {
        match self {
            Pass::Split | Pass::Straighten => &Pass::ALL,
            Pass::Thread => &[
                Pass::Thread,
                Pass::Straighten,
                Pass::Checks,
                Pass::Merge,
                Pass::Reorder,
            ],
            Pass::Checks => &[Pass::Merge, Pass::Reorder],
            Pass::Merge => &[Pass::Thread, Pass::Straighten],
            Pass::Reorder => &[Pass::Merge],
        }
    }

    fn apply(self, graph: &mut Graph) -> bool {
        match self {
            Pass::Split => split_branch::split(graph),
            Pass::Thread => jump_threading::thread(graph),
            Pass::Straighten => straighten::straighten(graph),
            Pass::Checks => bounds_checks::minimise(graph),
            Pass::Merge => tail_merge::merge(graph),
            Pass::Reorder => reorder::reorder(graph),
        }
    }
}

/// Makes `program`, which must be verified, smaller and faster. The verdict on
/// every frame stays the same, truncated ones included; the result is
/// verified too. Time is near linear in the program's size.
pub fn optimise(program: &mut Program) {
    let mut graph = Graph::of(program);
    graph.tidy();
    let mut due = [true; Pass::ALL.len()];
    for _ in 0..ROUNDS_MAX {
        for pass in Pass::ALL {
            let is_due = std::mem::replace(&mut due[pass as usize], false);
            if !is_due || !pass.apply(&mut graph) {
                continue;
            }
            graph.tidy();
            for &enabled in pass.enables() {
                due[enabled as usize] = true;
            }
        }
        if due == [false; Pass::ALL.len()] {
            break;
        }
    }
    finish(program, &mut graph);
}

/// Writes the graph back. Where values would have to be computed anew in very
/// many places, the program stays as it is.
fn finish(program: &mut Program, graph: &mut Graph) {
    let values_max = 2 * program.values.len() + 64;
    if let Some(rebuilt) = schedule::rebuild(graph, values_max) {
        *program = rebuilt;
    }
}
