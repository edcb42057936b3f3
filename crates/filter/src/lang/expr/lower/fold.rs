//! Constant folding in the operations of tests, and dead operations.

use crate::ir::BinOp;

use super::super::generate::{Op, PredicateArena, Source, Temp, Test};

/// The folded value of each operation.
#[derive(Debug)]
pub(super) struct Folded {
    values: Vec<Source>,
}

impl Folded {
    pub(super) fn of(code: &PredicateArena) -> Folded {
        let mut folded = Folded {
            values: Vec::with_capacity(code.ops.len()),
        };
        for (index, op) in code.ops.iter().enumerate() {
            let itself = Source::Temp(Temp(index as u32));
            let value = match *op {
                Op::Bin(op, a, b) => fold(op, folded.value(a), folded.value(b)).unwrap_or(itself),
                Op::Mask(a, mask) => {
                    let a = folded.value(a.into());
                    fold(BinOp::And, a, Source::Imm(mask)).unwrap_or(itself)
                }
                _ => itself,
            };
            folded.values.push(value);
        }
        folded
    }

    /// The folded value of a source.
    pub(super) fn value(&self, source: Source) -> Source {
        match source {
            Source::Imm(constant) => Source::Imm(constant),
            Source::Temp(temp) => self.values[temp.0 as usize],
        }
    }

    pub(super) fn constant(&self, source: Source) -> Option<u32> {
        match self.value(source) {
            Source::Imm(constant) => Some(constant),
            Source::Temp(_) => None,
        }
    }

    /// Marks the operations that the comparison or a register of `test` needs. Other
    /// operations are not executed, so their loads cannot reject a frame.
    pub(super) fn used(&self, code: &PredicateArena, test: &Test, used: &mut Vec<bool>) {
        let ops = super::graph::ops(code, test);
        used.clear();
        used.resize(ops.len(), false);
        let begin = test.ops.0;
        let mark = |source: Source, used: &mut [bool]| {
            if let Source::Temp(temp) = self.value(source) {
                used[(temp.0 - begin) as usize] = true;
            }
        };
        if let Some((_, a, b)) = test.compare {
            mark(a, used);
            mark(b, used);
        }
        for (index, op) in ops.iter().enumerate().rev() {
            if !used[index] && !matches!(op, Op::Set(..)) {
                continue;
            }
            used[index] = true;
            match *op {
                Op::Load { base, index, .. } => {
                    if let Some(base) = base {
                        mark(base.into(), used);
                    }
                    if let Some(index) = index {
                        mark(index, used);
                    }
                }
                Op::Bin(_, a, b) => {
                    mark(a, used);
                    mark(b, used);
                }
                Op::Mask(a, _) => mark(a.into(), used),
                Op::Set(_, source) => mark(source, used),
                Op::Len | Op::Get(_) => {}
            }
        }
    }
}

/// The result of an operation if it is a constant or one of the operands; else `None`.
/// Zero divisors have been refused before.
pub(in super::super) fn fold(op: BinOp, a: Source, b: Source) -> Option<Source> {
    match (a, b) {
        (Source::Imm(a), Source::Imm(b)) => op.eval(a, b).map(Source::Imm),
        (Source::Temp(_), Source::Imm(0)) => match op {
            BinOp::Mul | BinOp::And => Some(Source::Imm(0)),
            BinOp::Add | BinOp::Sub | BinOp::Or | BinOp::Xor | BinOp::Shl | BinOp::Shr => Some(a),
            BinOp::Div | BinOp::Mod => None,
        },
        (Source::Imm(0), Source::Temp(_)) => match op {
            BinOp::Add | BinOp::Or | BinOp::Xor => Some(b),
            BinOp::Sub => None,
            _ => Some(Source::Imm(0)),
        },
        _ => None,
    }
}
