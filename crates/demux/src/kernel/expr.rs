//! Expressions by what they are, not by a name in one filter: the operations
//! in an order of definition, the last one being the value.

use crate::expr::Exprs;
use std::sync::Arc;
use weir_filter::ir::{Op, Operand, Value};

/// An expression over a frame. Equal ones are equal values; no pool, no
/// counts of uses.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct Expr(Arc<[Op]>);

impl Expr {
    /// The expression that a filter calls `signature`.
    pub(super) fn of(exprs: &Exprs, name: Value) -> Expr {
        let op = exprs.op(name);
        if op.operands().all(|operand| operand.value().is_none()) {
            return Expr([op].into());
        }
        let mut ops = Vec::with_capacity(8);
        let mut known = Vec::with_capacity(8);
        copy(exprs, name, &mut ops, &mut known);
        Expr(ops.into())
    }

    /// Its operations; operands name earlier ones by number.
    pub(super) fn ops(&self) -> &[Op] {
        &self.0
    }

    /// How many of the operations are loads at computed offsets.
    pub(super) fn computed_loads(&self) -> usize {
        let loads = self.0.iter();
        let loads = loads.filter(|op| matches!(op, Op::Load { base: Some(_), .. }));
        loads.count()
    }
}

/// As deep as an expression at most: `limits::EXPR_DEPTH_MAX`.
fn copy(exprs: &Exprs, name: Value, ops: &mut Vec<Op>, known: &mut Vec<(Value, Value)>) -> Value {
    if let Some((_, copied)) = known.iter().find(|(original, _)| *original == name) {
        return *copied;
    }
    let op = exprs.op(name).map_operands(|operand| match operand {
        Operand::Val(operand) => Operand::Val(copy(exprs, operand, ops, known)),
        constant => constant,
    });
    ops.push(op);
    let copied = Value(ops.len() as u32 - 1);
    known.push((name, copied));
    copied
}
