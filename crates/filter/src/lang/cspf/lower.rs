//! Lowering of words to the IR: stack cells become values, short-circuit operators
//! become branches.
//!
//! Comparisons and branches on constants are resolved, and unreachable words are
//! dropped. Existing programs contain words after an end, or after a branch that is
//! always taken.
//!
//! Without branches, each word is reached with one stack depth. A word that branches
//! reach with several depths is lowered once for each depth. Cells have 32 bits here: in
//! the dialects with 16-bit cells, no operator yields more than 16 bits.

use weir_wire::LinkType;

use super::inst::{Action, Inst, Operator, inst_at};
use super::verify::{Analysis, analyse, branch_targets};
use super::{Dialect, Filter, VerifyError};
use crate::ir::{self, BinOp, Cmp, Op, Operand, Program, SNAPLEN_ALL, Width, limits};
use crate::lang::ssa::SsaBuilder;

/// The reason why a program cannot be lowered.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LowerError {
    /// The program breaks a rule of its dialect.
    #[error(transparent)]
    Verify(#[from] VerifyError),
    /// Mach's words count from the end of the link header, and this link type has no
    /// header whose last word is the type of the packet.
    #[error(
        "word {at} reads the packet or its link header, which Mach separates; link type \
         {linktype} does not define where the header ends, EN10MB, EN3MB and LINUX_SLL do"
    )]
    LinkHeader {
        /// Index of the word.
        at: usize,
        /// The link type.
        linktype: LinkType,
    },
    /// A push of a word beyond the link header.
    #[error("word {at} reads word {n} of the link header; link type {linktype} has {words}")]
    BeyondHeader {
        /// Index of the word.
        at: usize,
        /// Index in the link header.
        n: u16,
        /// The link type.
        linktype: LinkType,
        /// Number of words in the link header.
        words: u32,
    },
    /// At a join, too many cells differ.
    #[error(
        "at word {at} branches meet with {found} cells that differ; at most {max} may",
        max = limits::BLOCK_PARAMS_MAX
    )]
    TooManyCells {
        /// Index of the word.
        at: usize,
        /// Number of cells that differ.
        found: usize,
    },
}

/// The length of the link header, for link types in which its last word is the type of
/// the packet; else `None`.
pub(crate) fn header_len(linktype: LinkType) -> Option<u32> {
    match linktype {
        LinkType::EN10MB => Some(14),
        LinkType::EN3MB => Some(4),
        LinkType::LINUX_SLL => Some(16),
        _ => None,
    }
}

/// Verifies a program and lowers it to the IR. The result accepts with
/// [`SNAPLEN_ALL`], the whole frame.
///
/// The link type matters only to Mach, which separates the link header.
pub fn lower(filter: &Filter, linktype: LinkType) -> Result<Program, LowerError> {
    let analysis = analyse(filter)?;
    if filter.words.is_empty() {
        return Ok(Program::constant(SNAPLEN_ALL));
    }
    let lowerer = Lowerer {
        filter,
        linktype,
        // The offset register, then the stack cells.
        draft: SsaBuilder::new(vec![Operand::Imm(0)]),
    };
    lowerer.run(&analysis)
}

/// The start of a block: word index, stack depth, and the role among the blocks of
/// that word.
type BlockKey = (usize, usize, BlockRole);

/// Whether control continues after an instruction.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flow {
    GoesOn,
    Ends,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum BlockRole {
    Start,
    IsLength,
    IsWord,
    Join,
}

struct Lowerer<'f> {
    filter: &'f Filter,
    linktype: LinkType,
    draft: SsaBuilder<BlockKey>,
}

impl Lowerer<'_> {
    fn run(mut self, analysis: &Analysis) -> Result<Program, LowerError> {
        self.straight(0, analysis)?;
        while let Some(&place) = self.draft.next_pending() {
            let (at, depth, _) = place;
            // The offset register, then the cells that no `POP` drops.
            let live = 1 + depth.saturating_sub(self.pops(at));
            let found = self.draft.enter(&place, |cell| cell < live);
            if found > limits::BLOCK_PARAMS_MAX {
                return Err(LowerError::TooManyCells { at, found });
            }
            self.straight(at, analysis)?;
        }
        Ok(self.draft.finish())
    }

    /// Lowers from word `start` up to a branch, a word with several predecessors, or the
    /// end.
    fn straight(&mut self, start: usize, analysis: &Analysis) -> Result<(), LowerError> {
        let words = &self.filter.words;
        let mut at = start;
        while let Some(inst) = inst_at(self.filter.dialect, words, at) {
            if at > start && analysis.leader[at] {
                let place = self.block_key(at);
                self.draft.jump(place);
                return Ok(());
            }
            // A branch tests the top cell before the operator runs; the operator runs on
            // both paths.
            let top = self.top();
            self.act(at, &inst)?;
            if self.operate(inst.operator) == Flow::Ends {
                return Ok(());
            }
            if let Action::Branch { when } = inst.action {
                self.branch(at, &inst, top, when);
                return Ok(());
            }
            at += inst.len;
        }
        self.end();
        Ok(())
    }

    /// Number of successive `POP`s at word `at`.
    fn pops(&self, at: usize) -> usize {
        let Filter { dialect, words, .. } = self.filter;
        let is_pop = |at: &usize| {
            let inst = inst_at(*dialect, words, *at);
            inst.is_some_and(|inst| (inst.action, inst.operator) == (Action::Pop, Operator::Nop))
        };
        (at..words.len()).take_while(is_pop).count()
    }

    fn block_key(&self, at: usize) -> BlockKey {
        (at, self.draft.state().len() - 1, BlockRole::Start)
    }

    fn branch(&mut self, at: usize, inst: &Inst, top: Operand, when: bool) {
        let [taken, next] = branch_targets(at, inst).map(|target| self.block_key(target));
        if let Operand::Imm(top) = top {
            let is_taken = (top != 0) == when;
            return self.draft.jump(if is_taken { taken } else { next });
        }
        let cmp = if when { Cmp::Ne } else { Cmp::Eq };
        // Where `BRTR` is not taken, the tested cell is zero.
        let is_zero = when && inst.operator == Operator::Nop;
        self.draft
            .branch_to(cmp, [top, Operand::Imm(0)], taken, |state| {
                if let (true, Some(top)) = (is_zero, state.last_mut()) {
                    *top = Operand::Imm(0);
                }
                next
            });
    }

    /// Ends the program: accepts if the top cell is true.
    fn end(&mut self) {
        let top = self.top();
        self.draft
            .ret_if(Cmp::Ne, [top, Operand::Imm(0)], SNAPLEN_ALL);
        self.draft.ret(Operand::Imm(0));
    }

    /// The top cell; an empty stack counts as a true cell.
    fn top(&self) -> Operand {
        match self.draft.state() {
            [_, .., top] => *top,
            _ => Operand::Imm(1),
        }
    }

    fn pop(&mut self) -> Operand {
        let top = self.top();
        // The offset register is not part of the stack.
        if self.draft.state().len() > 1 {
            self.draft.state_mut().pop();
        }
        top
    }

    fn push(&mut self, cell: impl Into<Operand>) {
        self.draft.state_mut().push(cell.into());
    }

    fn act(&mut self, at: usize, inst: &Inst) -> Result<(), LowerError> {
        let pushed = match inst.action {
            Action::NoPush | Action::Branch { .. } => return Ok(()),
            Action::Literal | Action::LongLiteral => Operand::Imm(inst.literal),
            Action::Constant(constant) => Operand::Imm(constant.into()),
            Action::Word(n) => self.word(at, n)?,
            Action::Header(n) => self.header_word(at, n)?,
            Action::Copy(n) => match self.draft.state() {
                [_, cells @ ..] if usize::from(n) < cells.len() => {
                    cells[cells.len() - 1 - usize::from(n)]
                }
                _ => Operand::Imm(1),
            },
            Action::WordAt if self.filter.dialect == Dialect::Mach => {
                return self.mach_word_at(at);
            }
            Action::WordAt => {
                let n = self.pop();
                let position = self.twice(n);
                self.draft.load(Width::B2, position, 0)
            }
            Action::HeaderAt => self.header_word_at(at)?,
            Action::Field(width) => self.draft.load(width, 0, inst.literal),
            Action::FieldAt(width) => {
                let position = self.pop();
                self.draft.load(width, position, 0)
            }
            Action::Length => self.draft.push(Op::Len),
            Action::LoadOffset => {
                self.draft.state_mut()[0] = Operand::Imm(inst.literal);
                return Ok(());
            }
            Action::Pop => {
                self.pop();
                return Ok(());
            }
        };
        self.push(pushed);
        Ok(())
    }

    /// The word with index `n` of the packet, plus the offset register.
    fn word(&mut self, at: usize, n: u16) -> Result<Operand, LowerError> {
        let n = u32::from(n);
        if self.filter.dialect == Dialect::Mach {
            let header_len = self.header(at)?;
            return Ok(match n {
                0 => self.mach_length(header_len),
                _ => self.draft.load(Width::B2, 0, header_len - 4 + 2 * n),
            });
        }
        let offset = self.draft.state()[0];
        let base = match offset {
            Operand::Imm(offset) => Operand::Imm(2 * offset),
            // The offset has at most 16 bits, so twice the offset fits.
            offset => self.draft.bin(BinOp::Shl, offset, 1),
        };
        Ok(self.draft.load(Width::B2, base, 2 * n))
    }

    /// Converts a number of words to bytes; rejects if the result exceeds 32 bits.
    fn twice(&mut self, n: Operand) -> Operand {
        if let Operand::Imm(n) = n {
            return Operand::Imm(n.saturating_mul(2));
        }
        let most = Operand::Imm(u32::MAX / 2);
        self.draft.ret_if(Cmp::Gt, [n, most], 0);
        self.draft.bin(BinOp::Shl, n, 1)
    }

    fn header(&self, at: usize) -> Result<u32, LowerError> {
        let linktype = self.linktype;
        header_len(linktype).ok_or(LowerError::LinkHeader { at, linktype })
    }

    fn header_word(&mut self, at: usize, n: u16) -> Result<Operand, LowerError> {
        let words = self.header(at)? / 2;
        if u32::from(n) >= words {
            let linktype = self.linktype;
            return Err(LowerError::BeyondHeader {
                at,
                n,
                linktype,
                words,
            });
        }
        Ok(self.draft.load(Width::B2, 0, 2 * u32::from(n)))
    }

    fn header_word_at(&mut self, at: usize) -> Result<Operand, LowerError> {
        let words = Operand::Imm(self.header(at)? / 2);
        let n = self.pop();
        self.draft.ret_if(Cmp::Ge, [n, words], 0);
        let position = self.twice(n);
        Ok(self.draft.load(Width::B2, position, 0))
    }

    /// Mach's word 0: the length of the packet, including its own header of length and
    /// type. A frame without a complete link header has no packet and is rejected.
    fn mach_length(&mut self, header_len: u32) -> Operand {
        self.draft.load(Width::B1, 0, header_len - 1);
        let len = self.draft.push(Op::Len);
        let packet = self.draft.bin(BinOp::Sub, len, header_len - 4);
        self.draft.bin(BinOp::And, packet, 0xffff)
    }

    /// Replaces the top cell, an index, by that word of the packet. Word 0 is computed,
    /// the others are loaded.
    fn mach_word_at(&mut self, at: usize) -> Result<(), LowerError> {
        let header_len = self.header(at)?;
        let n = self.pop();
        let depth = self.draft.state().len();
        let [is_length, is_word, join] =
            [BlockRole::IsLength, BlockRole::IsWord, BlockRole::Join].map(|part| (at, depth, part));
        let zero = Operand::Imm(0);
        self.draft.branch(Cmp::Eq, [n, zero], is_length, is_word);

        self.draft.enter(&is_length, |_| true);
        let length = self.mach_length(header_len);
        self.push(length);
        self.draft.jump(join);

        self.draft.enter(&is_word, |_| true);
        let position = self.twice(n);
        let word = self.draft.load(Width::B2, position, header_len - 4);
        self.push(word);
        self.draft.jump(join);

        self.draft.enter(&join, |_| true);
        Ok(())
    }

    fn operate(&mut self, operator: Operator) -> Flow {
        if operator == Operator::Nop {
            return Flow::GoesOn;
        }
        let (t1, t2) = (self.pop(), self.pop());
        if operator.is_short_circuit() {
            return self.short_circuit(operator, t2, t1);
        }
        if let Some(cmp) = comparison(operator) {
            let (a, b) = (t2, t1);
            let result = self.draft.push(Op::Test { cmp, a, b });
            self.push(result);
            return Flow::GoesOn;
        }
        let result = match arithmetic(operator) {
            BinOp::Shr if self.filter.dialect == Dialect::Mach => self.signed_shift(t2, t1),
            op => self.draft.bin(op, t2, t1),
        };
        self.push(result);
        Flow::GoesOn
    }

    fn short_circuit(&mut self, operator: Operator, t2: Operand, t1: Operand) -> Flow {
        // If the program continues, the result of the comparison is known.
        let (cmp, verdict, result) = match operator {
            Operator::Cor => (Cmp::Eq, SNAPLEN_ALL, 0),
            Operator::Cand => (Cmp::Ne, 0, 1),
            Operator::Cnor => (Cmp::Eq, 0, 0),
            _ => (Cmp::Ne, SNAPLEN_ALL, 1),
        };
        match (t2, t1) {
            (Operand::Imm(a), Operand::Imm(b)) if cmp.eval(a, b) => {
                self.draft.ret(Operand::Imm(verdict));
                return Flow::Ends;
            }
            (Operand::Imm(_), Operand::Imm(_)) => {}
            _ => self.draft.ret_if(cmp, [t2, t1], verdict),
        }
        if self.filter.dialect.pushes_on_continue() {
            self.push(result);
        }
        Flow::GoesOn
    }

    /// An arithmetic shift right: an unsigned shift with the sign bit flipped, minus the
    /// shifted sign bit. A shift by 32 or more gives zero, as in the IR.
    fn signed_shift(&mut self, a: Operand, count: Operand) -> Operand {
        const SIGN: u32 = 1 << 31;
        let flipped = self.draft.bin(BinOp::Xor, a, SIGN);
        let shifted = self.draft.bin(BinOp::Shr, flipped, count);
        let bias = self.draft.bin(BinOp::Shr, SIGN, count);
        self.draft.bin(BinOp::Sub, shifted, bias)
    }
}

fn comparison(operator: Operator) -> Option<Cmp> {
    Some(match operator {
        Operator::Eq => Cmp::Eq,
        Operator::Neq => Cmp::Ne,
        Operator::Lt => Cmp::Lt,
        Operator::Le => Cmp::Le,
        Operator::Gt => Cmp::Gt,
        Operator::Ge => Cmp::Ge,
        _ => return None,
    })
}

fn arithmetic(operator: Operator) -> ir::BinOp {
    match operator {
        Operator::And => BinOp::And,
        Operator::Or => BinOp::Or,
        Operator::Xor => BinOp::Xor,
        Operator::Lsh => BinOp::Shl,
        Operator::Rsh => BinOp::Shr,
        Operator::Add => BinOp::Add,
        Operator::Sub => BinOp::Sub,
        Operator::Mul => BinOp::Mul,
        Operator::Div => BinOp::Div,
        _ => BinOp::Mod,
    }
}
