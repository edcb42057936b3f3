//! Trees: values as pushes and operators.

use crate::ir::{Op, Width};
use crate::lang::cspf::Operator;

/// The computation of a value on the stack.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Tree {
    /// A constant.
    Imm(u32),
    /// The 16-bit word of the frame at an even byte offset.
    Word(u32),
    /// A field of the frame at a byte offset.
    Field(Width, u16),
    /// A field of the frame at a computed byte offset.
    FieldAt(Width, Box<Tree>),
    /// The frame's length on the wire.
    Len,
    /// A copy of a cell, numbered from the bottom.
    Cell(usize),
    /// The result of an operator on two trees.
    Bin(Operator, Box<Tree>, Box<Tree>),
}

impl Tree {
    pub(super) fn bin(operator: Operator, a: Tree, b: Tree) -> Tree {
        Tree::Bin(operator, Box::new(a), Box::new(b))
    }

    /// Whether one instruction pushes the value.
    pub(super) fn is_leaf(&self) -> bool {
        !matches!(self, Tree::FieldAt(..) | Tree::Bin(..))
    }

    /// Whether the value is certainly 0 or 1.
    pub(super) fn is_truth(&self) -> bool {
        match self {
            Tree::Imm(constant) => *constant < 2,
            Tree::Bin(operator, a, b) => match operator {
                Operator::And | Operator::Or => a.is_truth() && b.is_truth(),
                operator => opposite(*operator).is_some(),
            },
            _ => false,
        }
    }

    /// The length below which the evaluation rejects a frame; only loads at constant
    /// offsets count.
    pub(super) fn required_len(&self) -> u64 {
        match self {
            Tree::Word(at) => u64::from(*at) + 2,
            Tree::Field(width, at) => u64::from(*at) + u64::from(width.bytes()),
            Tree::FieldAt(_, at) => at.required_len(),
            Tree::Bin(_, a, b) => a.required_len().max(b.required_len()),
            Tree::Imm(_) | Tree::Len | Tree::Cell(_) => 0,
        }
    }

    /// Number of pushes and operators.
    pub(super) fn size(&self) -> usize {
        match self {
            Tree::FieldAt(_, at) => 1 + at.size(),
            Tree::Bin(_, a, b) => 1 + a.size() + b.size(),
            _ => 1,
        }
    }
}

/// The comparison with the opposite result; `None` for other operators.
pub(super) fn opposite(operator: Operator) -> Option<Operator> {
    Some(match operator {
        Operator::Eq => Operator::Neq,
        Operator::Neq => Operator::Eq,
        Operator::Lt => Operator::Ge,
        Operator::Ge => Operator::Lt,
        Operator::Gt => Operator::Le,
        Operator::Le => Operator::Gt,
        _ => return None,
    })
}

/// The operator with the same result for exchanged operands, if there is one.
pub(super) fn exchanged(operator: Operator) -> Option<Operator> {
    Some(match operator {
        Operator::Lt => Operator::Gt,
        Operator::Gt => Operator::Lt,
        Operator::Le => Operator::Ge,
        Operator::Ge => Operator::Le,
        Operator::Eq | Operator::Neq | Operator::And | Operator::Or | Operator::Xor => operator,
        Operator::Add | Operator::Mul => operator,
        operator if operator.is_short_circuit() => operator,
        _ => return None,
    })
}

/// A description of an operation for error messages.
pub(super) fn described(op: Op) -> String {
    match op {
        Op::Load { base: Some(_), .. } => "a field at a computed offset".into(),
        Op::Load { width, offset, .. } => {
            let bytes = width.bytes();
            let what = match bytes {
                1 => "1 byte".into(),
                _ => format!("{bytes} bytes"),
            };
            format!("the {what} at byte {offset} without reading others")
        }
        Op::Len => "the frame's length".into(),
        Op::Bin { op, .. } => format!("the operation `{op:?}`").to_lowercase(),
        Op::Test { .. } | Op::Param => "a truth value".into(),
    }
}
