//! What filters that differ in their constants only have in common.

use super::{Analysis, Field, Path};
use crate::expr::Exprs;
use std::hash::{BuildHasher, Hash};
use weir_filter::ir::{Operand, Value};

/// The shapes that a filter's paths have, as a name that does not depend on
/// any plan.
///
/// Names of different kinds may be equal, if seldom: nothing but costs may
/// depend on them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Kind {
    /// The same for all filters of the kind.
    pub(crate) name: u64,
    /// How many shapes.
    pub(crate) shapes: u32,
}

impl Kind {
    pub(super) fn of(exprs: &Exprs, analysis: &Analysis) -> Kind {
        let Analysis::Paths(paths) = analysis else {
            return Kind { name: 0, shapes: 0 };
        };
        let names = expr_names(exprs);
        // A shape has its fields in no order.
        let field = |&(Field { expr, mask }, _): &_| hash((names[expr.index()], mask));
        let shape = |path: &Path| path.key.iter().map(field).fold(0, u64::wrapping_add);
        let mut shapes: Vec<u64> = paths.iter().map(shape).collect();
        shapes.sort_unstable();
        shapes.dedup();
        Kind {
            name: shapes.iter().fold(0, |name, &shape| hash((name, shape))),
            shapes: shapes.len() as u32,
        }
    }
}

/// Names that two expressions of two filters share if they are equal.
fn expr_names(exprs: &Exprs) -> Vec<u64> {
    let mut names: Vec<u64> = Vec::with_capacity(exprs.len());
    for op in exprs.ops() {
        let op = op.map_operands(|operand| match operand {
            Operand::Val(expr) => Operand::Val(Value(names[expr.index()] as u32)),
            constant => constant,
        });
        names.push(hash(op));
    }
    names
}

fn hash(item: impl Hash) -> u64 {
    crate::plan::WordHash::FIXED.hash_one(item)
}
