//! Code generation: writes trees and tests as words.

use super::test::Test;
use super::tree::{Tree, exchanged};
use super::{EmitError, Target, WORDS_TRIED};
use crate::ir::Width;
use crate::lang::cspf::{ACTION_BITS, Action, Operator, header_len};

/// The reason why a tree was not written.
pub(super) enum Fault {
    /// A cell to copy is out of the reach of `PUSHSTK`; the caller may try another tree.
    TooFar,
    /// Any other tree would fail too.
    Error(EmitError),
}

impl From<EmitError> for Fault {
    fn from(error: EmitError) -> Fault {
        Fault::Error(error)
    }
}

pub(super) struct Code {
    target: Target,
    pub(super) words: Vec<u16>,
    /// Number of cells on the stack.
    pub(super) depth: usize,
    /// The truth value of the top cell, if known.
    top: Option<bool>,
}

impl Code {
    pub(super) fn new(target: Target) -> Code {
        Code {
            target,
            words: Vec::new(),
            depth: 0,
            top: None,
        }
    }

    /// The truth value of the top cell, if known. An empty stack counts as a true cell.
    pub(super) fn top(&self) -> Option<bool> {
        match self.depth {
            0 => Some(true),
            _ => self.top,
        }
    }

    /// Forgets the truth value of the top cell, where several paths meet.
    pub(super) fn forget_top(&mut self) {
        self.top = None;
    }

    /// Removes all words after the first `len`.
    pub(super) fn back_to(&mut self, len: usize, depth: usize) {
        self.words.truncate(len);
        self.depth = depth;
        self.top = None;
    }

    fn has(&self, action: Action) -> bool {
        self.target.dialect.action_code(action).is_some()
    }

    /// Writes one instruction.
    pub(super) fn inst(
        &mut self,
        action: Action,
        operator: Operator,
        literals: &[u16],
    ) -> Result<(), EmitError> {
        let dialect = self.target.dialect;
        let missing = || {
            self.target
                .inexpressible(format!("`{action:?}` `{operator:?}`"))
        };
        let action_code = dialect.action_code(action).ok_or_else(missing)?;
        let operator_code = dialect.operator_code(operator).ok_or_else(missing)?;
        if self.words.len() >= WORDS_TRIED {
            return Err(self.target.far_too_many());
        }
        self.words.push(operator_code << ACTION_BITS | action_code);
        self.words.extend_from_slice(literals);
        let (_, change) = action.effect();
        self.depth = self.depth.saturating_add_signed(change);
        if operator != Operator::Nop {
            self.depth = self.depth.saturating_sub(2) + operator.leaves(dialect);
        }
        self.top = None;
        Ok(())
    }

    /// Writes an operator without a push; nothing for `Nop`.
    fn apply(&mut self, operator: Operator) -> Result<(), EmitError> {
        match operator {
            Operator::Nop => Ok(()),
            operator => self.inst(Action::NoPush, operator, &[]),
        }
    }

    /// Pushes a constant, then applies the operator.
    fn constant(&mut self, constant: u32, operator: Operator) -> Result<(), EmitError> {
        let Ok(low) = u16::try_from(constant) else {
            let halves = [(constant >> 16) as u16, constant as u16];
            if self.has(Action::LongLiteral) {
                return self.inst(Action::LongLiteral, operator, &halves);
            }
            // Mach has no long literal; shifts compose one.
            self.constant(halves[0].into(), Operator::Nop)?;
            self.constant(16, Operator::Lsh)?;
            if halves[1] != 0 {
                self.constant(halves[1].into(), Operator::Or)?;
            }
            return self.apply(operator);
        };
        let short = Action::Constant(low);
        if self.has(short) {
            self.inst(short, operator, &[])
        } else {
            self.inst(Action::Literal, operator, &[low])
        }
    }

    /// The action that pushes the 16-bit word at byte `at`.
    fn word(&self, at: u32) -> Result<Action, EmitError> {
        let Target { dialect, linktype } = self.target;
        let words = at / 2;
        let action = if !self.has(Action::Header(0)) {
            u16::try_from(words).ok().map(Action::Word)
        } else {
            let header = header_len(linktype).ok_or_else(|| {
                let what = format!(
                    "the end of the header of link type {linktype} (EN10MB, EN3MB and LINUX_SLL work)"
                );
                self.target.inexpressible(what)
            })?;
            let number = if at < header {
                words
            } else {
                // Mach synthesises words 0 and 1 from the link header.
                (at - header) / 2 + 2
            };
            let number = u16::try_from(number).ok();
            if at < header {
                number.map(Action::Header)
            } else {
                number.map(Action::Word)
            }
        };
        action
            .filter(|action| dialect.action_code(*action).is_some())
            .ok_or_else(|| {
                self.target
                    .inexpressible(format!("the word at byte {at}, beyond its reach"))
            })
    }

    /// Pushes the value of a tree, then applies the operator.
    pub(super) fn push(&mut self, tree: &Tree, operator: Operator) -> Result<(), Fault> {
        match tree {
            Tree::Imm(constant) => self.constant(*constant, operator)?,
            Tree::Word(at) => {
                let action = self.word(*at)?;
                self.inst(action, operator, &[])?;
            }
            Tree::Field(width, at) => match u32::from(*at) {
                at if *width == Width::B2 && at % 2 == 0 && self.word(at).is_ok() => {
                    let action = self.word(at)?;
                    self.inst(action, operator, &[])?;
                }
                _ => self.inst(Action::Field(*width), operator, &[*at])?,
            },
            Tree::FieldAt(width, at) => {
                self.push(at, Operator::Nop)?;
                self.inst(Action::FieldAt(*width), operator, &[])?;
            }
            Tree::Len => self.inst(Action::Length, operator, &[])?,
            Tree::Cell(cell) => {
                let distance = self.depth - 1 - cell;
                if distance > 31 {
                    return Err(Fault::TooFar);
                }
                self.inst(Action::Copy(distance as u16), operator, &[])?;
            }
            Tree::Bin(inner, a, b) => {
                self.pair(a, b, *inner)?;
                self.apply(operator)?;
            }
        }
        Ok(())
    }

    /// Pushes two values, then applies the operator. A leaf is pushed last if the operator
    /// allows that, since its instruction can contain the operator.
    fn pair(&mut self, a: &Tree, b: &Tree, operator: Operator) -> Result<(), Fault> {
        if let (true, Some(exchanged)) = (a.is_leaf() && !b.is_leaf(), exchanged(operator)) {
            self.push(b, Operator::Nop)?;
            return self.push(a, exchanged);
        }
        self.push(a, Operator::Nop)?;
        self.push(b, operator)
    }

    /// Ends the program with `verdict` if the test holds.
    pub(super) fn end_if(&mut self, test: &Test, verdict: bool) -> Result<(), Fault> {
        if let (Tree::Bin(Operator::And, p, q), false, true) =
            (&test.tree, verdict, test.negated && test.tree.is_truth())
        {
            // Rejects if either part fails, in any order.
            self.end_if(&Test::of((**p).clone()).not(), false)?;
            return self.end_if(&Test::of((**q).clone()).not(), false);
        }
        let zero = Tree::Imm(0);
        let (a, b, on_equal) = match &test.tree {
            Tree::Bin(Operator::Eq, a, b) => (&**a, &**b, !test.negated),
            Tree::Bin(Operator::Neq, a, b) => (&**a, &**b, test.negated),
            tree => (tree, &zero, test.negated),
        };
        let operator = match (on_equal, verdict) {
            (true, true) => Operator::Cor,
            (true, false) => Operator::Cnor,
            (false, true) => Operator::Cnand,
            (false, false) => Operator::Cand,
        };
        self.pair(a, b, operator)?;
        // The program continues with the result of the comparison.
        let pushes = self.target.dialect.pushes_on_continue();
        self.top = pushes.then_some(!on_equal);
        Ok(())
    }

    /// Ends the program by a test, at the position of its last word.
    pub(super) fn decide_last(&mut self, test: Test) -> Result<(), Fault> {
        match test.tree {
            Tree::Bin(Operator::And, p, q) if !test.negated && p.is_truth() && q.is_truth() => {
                self.end_if(&Test::of(*p).not(), false)?;
                self.decide_last(Test::of(*q))
            }
            _ => self.push(&test.number(), Operator::Nop),
        }
    }

    /// Ends the program with a verdict, before other words.
    pub(super) fn end(&mut self, verdict: bool) -> Result<(), Fault> {
        let (equal, operator) = if verdict {
            (true, Operator::Cor)
        } else {
            (false, Operator::Cand)
        };
        let top = match self.top() {
            Some(top) if self.depth > 0 => top,
            _ => {
                self.constant(1, Operator::Nop)?;
                true
            }
        };
        // A known top cell is 0 or 1.
        self.constant((top == equal).into(), operator)?;
        Ok(())
    }

    /// Ends the program with a verdict, at the position of its last word.
    pub(super) fn end_last(&mut self, verdict: bool) -> Result<(), Fault> {
        if self.words.is_empty() || self.top != Some(verdict) {
            self.constant(verdict.into(), Operator::Nop)?;
        }
        Ok(())
    }
}
