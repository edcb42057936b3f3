//! Tests: trees of which only the truth value matters.

use super::tree::{Tree, opposite};
use crate::ir::Cmp;
use crate::lang::cspf::Operator;

/// A test: holds if the tree's value is not zero, or if it is zero when negated.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Test {
    pub(super) tree: Tree,
    pub(super) negated: bool,
}

impl Test {
    /// The test `a cmp b`.
    pub(super) fn new(cmp: Cmp, a: Tree, b: Tree) -> Test {
        let (operator, negated) = match cmp {
            Cmp::Eq if b == Tree::Imm(0) => return Test::of(a).not(),
            Cmp::Ne if b == Tree::Imm(0) => return Test::of(a),
            Cmp::Eq => (Operator::Eq, false),
            Cmp::Ne => (Operator::Neq, false),
            Cmp::Lt => (Operator::Lt, false),
            Cmp::Le => (Operator::Le, false),
            Cmp::Gt => (Operator::Gt, false),
            Cmp::Ge => (Operator::Ge, false),
            Cmp::Set => (Operator::And, false),
            Cmp::Clear => (Operator::And, true),
        };
        let tree = Tree::bin(operator, a, b);
        Test { tree, negated }
    }

    /// The test whether a value is not zero.
    pub(super) fn of(tree: Tree) -> Test {
        let negated = false;
        Test { tree, negated }
    }

    /// The negation.
    pub(super) fn not(self) -> Test {
        match self.tree {
            Tree::Bin(operator, a, b) if opposite(operator).is_some() => {
                let operator = opposite(operator).unwrap_or(operator);
                let tree = Tree::Bin(operator, a, b);
                Test { tree, ..self }
            }
            tree => Test {
                tree,
                negated: !self.negated,
            },
        }
    }

    /// The test as a tree with the value 0 or 1.
    pub(super) fn truth(self) -> Tree {
        if !self.negated && self.tree.is_truth() {
            return self.tree;
        }
        let operator = if self.negated {
            Operator::Eq
        } else {
            Operator::Neq
        };
        match self.tree {
            Tree::Imm(constant) => Tree::Imm(((constant != 0) != self.negated).into()),
            tree => Tree::bin(operator, tree, Tree::Imm(0)),
        }
    }

    /// The test as a tree with a value other than zero if it holds.
    pub(super) fn number(self) -> Tree {
        if self.negated {
            self.truth()
        } else {
            self.tree
        }
    }

    /// The outcome, if it is the same on every frame.
    pub(super) fn constant(&self) -> Option<bool> {
        match self.tree {
            Tree::Imm(constant) => Some((constant != 0) != self.negated),
            _ => None,
        }
    }
}
