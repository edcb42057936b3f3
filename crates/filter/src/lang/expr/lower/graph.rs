//! The graph of tests and their targets.

use crate::ir::Cmp;

use super::super::generate::{Node, PredRef, PredicateArena, Source, Test};
use super::fold::Folded;

/// The target of an edge: a test or a verdict.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Target {
    Test(u32),
    Accept,
    Reject,
}

/// The tests that a predicate needs.
#[derive(Debug)]
pub(super) struct Graph {
    pub(super) root: Target,
    /// For each test, its targets when it holds and when it fails; `None` if the
    /// predicate does not need the test.
    pub(super) targets: Vec<Option<(Target, Target)>>,
}

impl Graph {
    /// Propagates the two verdicts from the root down to every test.
    pub(super) fn of(code: &PredicateArena, root: PredRef) -> Graph {
        let mut graph = Graph {
            root: Target::Reject,
            targets: vec![None; code.tests.len()],
        };
        if let Some(constant) = root.constant() {
            graph.root = if constant {
                Target::Accept
            } else {
                Target::Reject
            };
            return graph;
        }
        graph.root = Target::Test(code.head(root));
        let mut nodes = vec![None; code.nodes.len()];
        nodes[root.0 as usize] = Some((Target::Accept, Target::Reject));
        // Parents have higher indices than their children.
        for index in (0..code.nodes.len()).rev() {
            let Some((then, otherwise)) = nodes[index] else {
                continue;
            };
            match code.nodes[index] {
                Node::Test(test) => graph.targets[test as usize] = Some((then, otherwise)),
                Node::Not(a) => nodes[a.0 as usize] = Some((otherwise, then)),
                Node::And(a, b) => {
                    nodes[a.0 as usize] = Some((Target::Test(code.head(b)), otherwise));
                    nodes[b.0 as usize] = Some((then, otherwise));
                }
                Node::Or(a, b) => {
                    nodes[a.0 as usize] = Some((then, Target::Test(code.head(b))));
                    nodes[b.0 as usize] = Some((then, otherwise));
                }
            }
        }
        graph
    }

    /// Moves the root past tests with a constant outcome. The loads of the first test
    /// remain, as in libpcap.
    pub(super) fn skip_constant_root(&mut self, code: &PredicateArena, folded: &Folded) {
        let first = self.root;
        let mut root = first;
        while let Target::Test(test) = root {
            let (Some((then, otherwise)), Some(compare)) = (
                self.targets[test as usize],
                code.tests[test as usize].compare,
            ) else {
                break;
            };
            root = match decided(folded, compare) {
                _ if then == otherwise => then,
                Some(true) => then,
                Some(false) => otherwise,
                None => break,
            };
        }
        match (first, root) {
            (Target::Test(first), Target::Test(_)) if Target::Test(first) != root => {
                self.targets[first as usize] = Some((root, root));
            }
            _ => self.root = root,
        }
    }
}

/// The outcome of a comparison of constants; `None` for other comparisons.
pub(super) fn decided(folded: &Folded, (cmp, a, b): (Cmp, Source, Source)) -> Option<bool> {
    Some(cmp.eval(folded.constant(a)?, folded.constant(b)?))
}

/// The operations of a test.
pub(super) fn ops<'c>(code: &'c PredicateArena, test: &Test) -> &'c [super::super::generate::Op] {
    &code.ops[test.ops.0 as usize..test.ops.1 as usize]
}
