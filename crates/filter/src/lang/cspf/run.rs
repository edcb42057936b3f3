//! Interpreter of the words: an oracle for [`lower`](super::lower), with which it
//! shares only the decoder.

use weir_wire::LinkType;

use super::inst::{Action, Inst, Operator, inst_at};
use super::lower::header_len;
use super::{Dialect, Filter};
use crate::interp;
use crate::ir::Width;

/// Runs a program on the captured `bytes` of a frame of `wire_len` bytes; returns
/// whether it accepts.
///
/// Like the old interpreters, it checks every step and rejects the frame if a check
/// fails. A program that passed [`verify`](super::verify) fails only on a word outside
/// the packet or a zero divisor. The link type matters only to Mach; see
/// [`lower`](super::lower).
pub fn run(filter: &Filter, linktype: LinkType, bytes: &[u8], wire_len: u32) -> bool {
    let mut machine = Machine {
        dialect: filter.dialect,
        header_len: header_len(linktype),
        bytes,
        wire_len,
        stack: Vec::new(),
        offset: 0,
    };
    machine.run(&filter.words).unwrap_or(false)
}

struct Machine<'b> {
    dialect: Dialect,
    /// Length of the link header, for Mach; `None` if the link type has none.
    header_len: Option<u32>,
    bytes: &'b [u8],
    wire_len: u32,
    stack: Vec<u32>,
    offset: u32,
}

impl Machine<'_> {
    /// The verdict; `None` if a check failed.
    fn run(&mut self, words: &[u16]) -> Option<bool> {
        let mut at = 0;
        while at < words.len() {
            let inst = inst_at(self.dialect, words, at)?;
            at += inst.len;
            if let Some(distance) = self.act(&inst)? {
                // The distance counts from the literal, the last word of the instruction.
                at = at - 1 + distance;
            }
            let is_branch = matches!(inst.action, Action::Branch { .. });
            if is_branch && at >= words.len() {
                return None;
            }
            if self.stack.len() > self.dialect.stack_max() {
                return None;
            }
            if inst.operator != Operator::Nop
                && let Some(verdict) = self.operate(inst.operator)?
            {
                return Some(verdict);
            }
        }
        Some(self.top() != 0)
    }

    /// The top cell; an empty stack counts as a true cell.
    fn top(&self) -> u32 {
        self.stack.last().copied().unwrap_or(1)
    }

    /// Executes the action; returns the distance of a branch that is taken. `None` rejects.
    fn act(&mut self, inst: &Inst) -> Option<Option<usize>> {
        let literal = inst.literal;
        let pushed = match inst.action {
            Action::NoPush => return Some(None),
            Action::Literal | Action::LongLiteral => literal,
            Action::Constant(constant) => constant.into(),
            Action::Word(n) => self.word(u64::from(n) + u64::from(self.offset))?,
            Action::Header(n) => self.header_word(n.into())?,
            Action::Copy(n) => match self.stack.len().checked_sub(usize::from(n))? {
                0 => 1,
                cell => self.stack[cell - 1],
            },
            Action::WordAt => {
                let n = self.stack.pop()?;
                self.word(n.into())?
            }
            Action::HeaderAt => {
                let n = self.stack.pop()?;
                self.header_word(n.into())?
            }
            Action::Field(width) => interp::load(width, literal.into(), self.bytes)?,
            Action::FieldAt(width) => {
                let position = self.stack.pop()?;
                interp::load(width, position.into(), self.bytes)?
            }
            Action::Length => self.wire_len,
            Action::LoadOffset => {
                self.offset = literal;
                return Some(None);
            }
            Action::Branch { when } => {
                let taken = (self.top() != 0) == when;
                return Some(taken.then_some(literal as usize));
            }
            Action::Pop => {
                self.stack.pop()?;
                return Some(None);
            }
        };
        self.stack.push(pushed);
        Some(None)
    }

    /// The word with index `n` of the packet.
    fn word(&self, n: u64) -> Option<u32> {
        if self.dialect != Dialect::Mach {
            return interp::load(Width::B2, n * 2, self.bytes);
        }
        // Mach's packet starts with its own length and type, followed by the payload of
        // the link header. The type is the last word of that header.
        let header_len = self.header_len?;
        if (self.bytes.len() as u64) < u64::from(header_len) {
            return None;
        }
        match n {
            0 => Some(self.wire_len.wrapping_sub(header_len).wrapping_add(4) & 0xffff),
            _ => interp::load(Width::B2, u64::from(header_len) - 4 + n * 2, self.bytes),
        }
    }

    fn header_word(&self, n: u64) -> Option<u32> {
        let inside = n < u64::from(self.header_len? / 2);
        inside.then(|| interp::load(Width::B2, n * 2, self.bytes))?
    }

    /// Executes the operator; returns a verdict if it ends the program. `None` rejects.
    fn operate(&mut self, operator: Operator) -> Option<Option<bool>> {
        if self.stack.len() < 2 {
            return None;
        }
        let (t1, t2) = (self.stack.pop()?, self.stack.pop()?);
        let result = match operator {
            Operator::Nop => unreachable!("the caller skips it"),
            Operator::Eq => (t2 == t1).into(),
            Operator::Neq => (t2 != t1).into(),
            Operator::Lt => (t2 < t1).into(),
            Operator::Le => (t2 <= t1).into(),
            Operator::Gt => (t2 > t1).into(),
            Operator::Ge => (t2 >= t1).into(),
            Operator::And => t2 & t1,
            Operator::Or => t2 | t1,
            Operator::Xor => t2 ^ t1,
            Operator::Lsh => t2.checked_shl(t1).unwrap_or(0),
            // Mach's cells are C's `int`, whose right shift keeps the sign.
            Operator::Rsh if self.dialect == Dialect::Mach => t2
                .cast_signed()
                .checked_shr(t1)
                .unwrap_or(0)
                .cast_unsigned(),
            Operator::Rsh => t2.checked_shr(t1).unwrap_or(0),
            Operator::Add => t2.wrapping_add(t1),
            Operator::Sub => t2.wrapping_sub(t1),
            Operator::Mul => t2.wrapping_mul(t1),
            Operator::Div => t2.checked_div(t1)?,
            Operator::Mod => t2.checked_rem(t1)?,
            Operator::Cor if t2 == t1 => return Some(Some(true)),
            Operator::Cand if t2 != t1 => return Some(Some(false)),
            Operator::Cnor if t2 == t1 => return Some(Some(false)),
            Operator::Cnand if t2 != t1 => return Some(Some(true)),
            Operator::Cor | Operator::Cand | Operator::Cnor | Operator::Cnand => {
                if !self.dialect.pushes_on_continue() {
                    return Some(None);
                }
                (t2 == t1).into()
            }
        };
        self.stack.push(result);
        Some(None)
    }
}
