//! Decoded instructions: actions and operators.

use super::dialect::{Dialect, PUSHHDR, PUSHSTK};
use crate::ir::Width;

/// Number of bits of the action; the operator has the remaining six.
pub(crate) const ACTION_BITS: u32 = 10;

/// The effect of an instruction on the stack before its operator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Action {
    /// No effect.
    NoPush,
    /// Pushes the next word.
    Literal,
    /// Pushes the next two words as one 32-bit number, the high word first.
    LongLiteral,
    /// Pushes a constant.
    Constant(u16),
    /// Pushes a word of the packet, by its index.
    Word(u16),
    /// Pushes a word of the link header, by its index.
    Header(u16),
    /// Pushes a copy of a cell, by its distance from the top.
    Copy(u16),
    /// Pops an index and pushes that word of the packet.
    WordAt,
    /// Pops an index and pushes that word of the link header.
    HeaderAt,
    /// Pushes the field at the byte offset in the next word.
    Field(Width),
    /// Pops a byte offset and pushes the field there.
    FieldAt(Width),
    /// Pushes the frame's length on the wire.
    Length,
    /// Sets the offset register to the next word.
    LoadOffset,
    /// Branches by the distance in the next word, counted from that word, if the truth
    /// of the top cell equals `when`.
    Branch {
        /// The truth value for which the branch is taken.
        when: bool,
    },
    /// Drops the top cell.
    Pop,
}

impl Action {
    /// Number of literal words.
    pub(crate) fn literals(self) -> usize {
        match self {
            Action::Literal | Action::Field(_) | Action::LoadOffset | Action::Branch { .. } => 1,
            Action::LongLiteral => 2,
            _ => 0,
        }
    }

    /// The number of cells required, and the change in their number.
    pub(crate) fn effect(self) -> (usize, isize) {
        match self {
            Action::NoPush | Action::LoadOffset | Action::Branch { .. } => (0, 0),
            // An empty stack counts as one true cell, which may be copied.
            Action::Copy(n) => (usize::from(n), 1),
            Action::WordAt | Action::HeaderAt | Action::FieldAt(_) => (1, 0),
            Action::Pop => (1, -1),
            _ => (0, 1),
        }
    }
}

/// The effect of an instruction on the two top cells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Operator {
    /// No effect.
    Nop,
    /// `T2 == T1`
    Eq,
    /// `T2 < T1`
    Lt,
    /// `T2 <= T1`
    Le,
    /// `T2 > T1`
    Gt,
    /// `T2 >= T1`
    Ge,
    /// Bitwise and.
    And,
    /// Bitwise or.
    Or,
    /// Bitwise exclusive or.
    Xor,
    /// Accepts if the cells are equal.
    Cor,
    /// Rejects if the cells are unequal.
    Cand,
    /// Rejects if the cells are equal.
    Cnor,
    /// Accepts if the cells are unequal.
    Cnand,
    /// `T2 != T1`
    Neq,
    /// `T2 << T1`
    Lsh,
    /// `T2 >> T1`
    Rsh,
    /// `T2 + T1`
    Add,
    /// `T2 - T1`
    Sub,
    /// `T2 * T1`
    Mul,
    /// `T2 / T1`
    Div,
    /// The remainder of `T2 / T1`.
    Mod,
}

impl Operator {
    /// Whether the operator may end the program.
    pub(crate) fn is_short_circuit(self) -> bool {
        matches!(
            self,
            Operator::Cor | Operator::Cand | Operator::Cnor | Operator::Cnand
        )
    }

    /// Number of cells that remain of the two top cells.
    pub(crate) fn leaves(self, dialect: Dialect) -> usize {
        match self {
            Operator::Nop => 2,
            op if op.is_short_circuit() => usize::from(dialect.pushes_on_continue()),
            _ => 1,
        }
    }
}

/// The action of a word; `None` if the dialect lacks it.
pub(super) fn action_of(dialect: Dialect, word: u16) -> Option<Action> {
    let value = word & ((1 << ACTION_BITS) - 1);
    let mut ranges = dialect.ranges().iter();
    if let Some(&(start, ..)) = ranges.find(|(start, end, _)| (*start..*end).contains(&value)) {
        let n = value - start;
        return Some(match start {
            PUSHSTK => Action::Copy(n),
            PUSHHDR => Action::Header(n),
            _ => Action::Word(n),
        });
    }
    let row = dialect.actions().find(|(known, ..)| *known == value);
    row.map(|&(_, _, action)| action)
}

/// The operator of a word; `None` if the dialect lacks it.
pub(super) fn operator_of(dialect: Dialect, word: u16) -> Option<Operator> {
    let row = dialect.operators().get(usize::from(word >> ACTION_BITS));
    row.map(|&(_, operator)| operator)
}

/// Words of the instruction that starts with `word`, literals included; 1 for an
/// undefined word. The result may exceed the words that remain.
pub(super) fn len_of(dialect: Dialect, word: u16) -> usize {
    match (action_of(dialect, word), operator_of(dialect, word)) {
        (Some(action), Some(_)) => 1 + action.literals(),
        _ => 1,
    }
}

/// A decoded instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Inst {
    pub(super) action: Action,
    pub(super) operator: Operator,
    /// The literal words as one number; zero without literals.
    pub(super) literal: u32,
    /// Number of words.
    pub(super) len: usize,
}

/// The instruction at word `at`; `None` if it is undefined or incomplete.
pub(super) fn inst_at(dialect: Dialect, words: &[u16], at: usize) -> Option<Inst> {
    let word = *words.get(at)?;
    let action = action_of(dialect, word)?;
    let operator = operator_of(dialect, word)?;
    let len = 1 + action.literals();
    let literals = words.get(at + 1..at + len)?;
    let literal = literals
        .iter()
        .fold(0, |high, &low| high << 16 | u32::from(low));
    Some(Inst {
        action,
        operator,
        literal,
        len,
    })
}
