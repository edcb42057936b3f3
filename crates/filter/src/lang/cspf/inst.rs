//! Instructions, taken apart.

use super::dialect::{Dialect, PUSHHDR, PUSHSTK};
use crate::ir::Width;

/// Bits of an action; the operator has the rest.
pub(crate) const ACTION_BITS: u32 = 10;

/// What an instruction does to the stack before its operator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Action {
    /// Nothing.
    NoPush,
    /// Pushes the next word.
    Literal,
    /// Pushes the next two words as one number, the high one first.
    LongLiteral,
    /// Pushes a constant.
    Constant(u16),
    /// Pushes a word of the packet, counted in words.
    Word(u16),
    /// Pushes a word of the link header, counted in words.
    Header(u16),
    /// Pushes a copy of a cell, counted from the top.
    Copy(u16),
    /// Pops a number and pushes the word of the packet it counts to.
    WordAt,
    /// Pops a number and pushes the word of the link header it counts to.
    HeaderAt,
    /// Pushes the field at the byte that the next word counts to.
    Field(Width),
    /// Pops a number and pushes the field at the byte it counts to.
    FieldAt(Width),
    /// Pushes the frame's length on the wire.
    Length,
    /// Sets the offset register to the next word.
    LoadOffset,
    /// Goes on at this word's literal plus the literal if the top is true
    /// (not zero) or false, as `when` says.
    Branch {
        /// Whether it takes a true top.
        when: bool,
    },
    /// Drops the top.
    Pop,
}

impl Action {
    /// How many words that follow belong to it.
    pub(crate) fn literals(self) -> usize {
        match self {
            Action::Literal | Action::Field(_) | Action::LoadOffset | Action::Branch { .. } => 1,
            Action::LongLiteral => 2,
            _ => 0,
        }
    }

    /// Cells that must be there, and cells there are more afterwards.
    pub(crate) fn effect(self) -> (usize, isize) {
        match self {
            Action::NoPush | Action::LoadOffset | Action::Branch { .. } => (0, 0),
            // Below the stack lies one true cell, which may be copied.
            Action::Copy(n) => (usize::from(n), 1),
            Action::WordAt | Action::HeaderAt | Action::FieldAt(_) => (1, 0),
            Action::Pop => (1, -1),
            _ => (0, 1),
        }
    }
}

/// What an instruction does to the two top cells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Operator {
    /// Nothing.
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
    /// Accepts if equal.
    Cor,
    /// Rejects if unequal.
    Cand,
    /// Rejects if equal.
    Cnor,
    /// Accepts if unequal.
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
    /// Whether it may end the program at once.
    pub(crate) fn is_short_circuit(self) -> bool {
        matches!(
            self,
            Operator::Cor | Operator::Cand | Operator::Cnor | Operator::Cnand
        )
    }

    /// How many of the two top cells' places stay filled.
    pub(crate) fn leaves(self, dialect: Dialect) -> usize {
        match self {
            Operator::Nop => 2,
            op if op.is_short_circuit() => usize::from(dialect.pushes_on_continue()),
            _ => 1,
        }
    }
}

/// The action of a word, if its dialect has it.
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

/// The operator of a word, if its dialect has it.
pub(super) fn operator_of(dialect: Dialect, word: u16) -> Option<Operator> {
    let row = dialect.operators().get(usize::from(word >> ACTION_BITS));
    row.map(|&(_, operator)| operator)
}

/// How many words the instruction has that starts with `word`, literals
/// included; one for what is no instruction. May exceed what is left.
pub(super) fn len_of(dialect: Dialect, word: u16) -> usize {
    match (action_of(dialect, word), operator_of(dialect, word)) {
        (Some(action), Some(_)) => 1 + action.literals(),
        _ => 1,
    }
}

/// One instruction of a verified program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Inst {
    pub(super) action: Action,
    pub(super) operator: Operator,
    /// The literal words as one number; zero without any.
    pub(super) literal: u32,
    /// How many words it has.
    pub(super) len: usize,
}

/// The instruction at `at`; `None` if there is none or not all of it.
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
