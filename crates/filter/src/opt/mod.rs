//! The optimiser: passes that make a program smaller and faster without changing
//! any verdict.
//!
//! A program is converted into the form of `graph`, in which values float. The
//! passes run over the graph in rounds until none changes anything; then `schedule`
//! converts the graph back. `docs/explanation/compiler.md` describes each pass.

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

/// Maximum number of rounds of passes. Each round makes progress; ordinary programs
/// settle in two or three.
const ROUNDS_MAX: usize = 10;

/// One pass of the optimiser.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pass {
    /// Joins blocks and removes block parameters (`straighten`).
    Straighten,
    /// Turns truth values into control flow (`split_branch`).
    Split,
    /// Decides dominated tests and threads jumps (`jump_threading`).
    Thread,
    /// Drops redundant checks (`bounds_checks`).
    Checks,
    /// Merges identical blocks (`tail_merge`).
    Merge,
    /// Puts tests of one value side by side (`reorder`).
    Reorder,
}

impl Pass {
    /// Every pass, in the order of a round.
    pub const ALL: [Pass; 6] = [
        Pass::Straighten,
        Pass::Split,
        Pass::Thread,
        Pass::Checks,
        Pass::Merge,
        Pass::Reorder,
    ];

    /// Runs this pass alone, once, on a verified program; for tests. The conversion
    /// to the graph and back also folds constants, merges equal values and drops dead
    /// ones.
    pub fn run(self, program: &mut Program) {
        let mut graph = Graph::of(program);
        graph.tidy();
        if self.apply(&mut graph) {
            graph.tidy();
        }
        finish(program, &mut graph);
    }

    /// The passes that may find more work after this pass has changed the graph.
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

/// Makes `program`, which must be verified, smaller and faster. The verdict on every
/// frame, truncated ones included, stays the same, and the result is valid. Time
/// is near linear in the program's size.
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

/// Converts the graph back. If that would duplicate too many values, the program
/// stays as it is.
fn finish(program: &mut Program, graph: &mut Graph) {
    let values_max = 2 * program.values.len() + 64;
    if let Some(rebuilt) = schedule::rebuild(graph, values_max) {
        *program = rebuilt;
    }
}
