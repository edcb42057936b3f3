//! The signature of a filter: equal for filters that differ only in constants.

use super::{Analysis, Field, Path};
use crate::expr::Exprs;
use std::hash::{BuildHasher, Hash};
use weir_filter::ir::{Operand, Value};

/// The set of subtables that a filter's paths need, as a hash that does not
/// depend on any plan.
///
/// Signatures of different kinds may collide, though seldom: only costs may
/// depend on them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FilterSignature {
    /// Equal for all filters of the kind.
    pub(crate) hash: u64,
    /// Number of subtables.
    pub(crate) subtables: u32,
}

impl FilterSignature {
    pub(super) fn of(exprs: &Exprs, analysis: &Analysis) -> FilterSignature {
        let Analysis::Paths(paths) = analysis else {
            return FilterSignature {
                hash: 0,
                subtables: 0,
            };
        };
        let names = expr_names(exprs);
        // The fields of a subtable have no order.
        let field = |&(Field { expr, mask }, _): &_| hash((names[expr.index()], mask));
        let subtable = |path: &Path| path.key.iter().map(field).fold(0, u64::wrapping_add);
        let mut subtables: Vec<u64> = paths.iter().map(subtable).collect();
        subtables.sort_unstable();
        subtables.dedup();
        FilterSignature {
            hash: subtables
                .iter()
                .fold(0, |name, &subtable| hash((name, subtable))),
            subtables: subtables.len() as u32,
        }
    }
}

/// Hashes of the expressions, equal for equal expressions of two filters.
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
