//! The stack language of 1987: from the IR to words.
//!
//! ```text
//!                      weir, sun ─► layout: block by block, with branches ─┐
//!  Program ─► flat ─┤                                                      ├─► words
//!                      paper, bsd, dec, mach ─► chain: tests in a row ─────┘
//! ```
//!
//! `flat` copies blocks until none has parameters, as most dialects have no
//! way to bring different cells to one place; `weir` has, where that is
//! shorter. `wide` (cells of 32 bits) and
//! `narrow` (16) turn values into trees of pushes and operators, which `code`
//! writes down.
//!
//! A verdict here is yes or no: a snap length is lost.
//!
//! Old dialects read whole words only, at constant places. Where that reads
//! more than the program does, it is still exact if every shorter frame is
//! rejected in the end anyway; `required_len` knows how long a frame must be for that.

mod code;
mod emit;
mod layout;
mod required_len;
mod select16;
mod select32;
mod specialise;
mod straight_line;
mod test;
mod tree;

use weir_wire::LinkType;

use crate::ir::{Op, Program, Value};
use crate::lang::cspf::{Dialect, Filter, VerifyError, verify};

/// Blocks, and values, of a program without parameters, at most. A program of
/// more has no chance to become few enough words.
const PARTS_MAX: usize = 1 << 15;

/// Words that are written at most, to tell how many there would be. Every
/// branch reaches across so many.
const WORDS_TRIED: usize = 1 << 15;

/// How deep a tree of values may be.
const TREE_DEPTH_MAX: usize = 400;

/// Why a program has no words in a dialect.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EmitError {
    /// The dialect lacks what the program needs.
    #[error("the dialect {dialect} cannot say {what}; the dialect weir can")]
    Inexpressible {
        /// What the program needs.
        what: String,
        /// The dialect.
        dialect: Dialect,
    },
    /// More words than the dialect allows.
    #[error(
        "the filter takes {words} words in the dialect {dialect}, which allows {max}{remedy}",
        max = .dialect.words_max(),
        remedy = remedy(*.dialect)
    )]
    TooManyWords {
        /// How many words it takes.
        words: usize,
        /// The dialect.
        dialect: Dialect,
    },
    /// So many words that they were not counted.
    #[error(
        "the filter takes more than {tried} words in the dialect {dialect}, which allows \
         {max}{remedy}",
        max = .dialect.words_max(),
        remedy = remedy(*.dialect)
    )]
    FarTooManyWords {
        /// How many were tried.
        tried: usize,
        /// The dialect.
        dialect: Dialect,
    },
    /// More cells than the dialect's stack has.
    #[error(
        "the filter needs more than the {max} cells of the dialect {dialect}'s stack{remedy}",
        max = .dialect.stack_max(),
        remedy = remedy(*.dialect)
    )]
    TooManyCells {
        /// The dialect.
        dialect: Dialect,
    },
}

fn remedy(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Weir => "; divide it into several, or use another back end",
        _ => "; the dialect weir allows 4096 words and 255 cells",
    }
}

/// Writes a program in a dialect. The result is verified, and accepts exactly
/// the frames for which the program gives a snap length other than zero; the
/// snap length itself is lost.
///
/// The dialect `weir` can say every program that is short enough. `sun` has
/// tests of 16-bit words at constant places, and branches; `paper`, `bsd`,
/// `dec` and `mach` have tests in a row. What they cannot say exactly is
/// refused. `program` must be verified, and should be optimised.
///
/// The link type matters to Mach alone, which keeps the link header apart; see
/// [`lower`](crate::lang::cspf::lower).
pub fn emit(program: &Program, dialect: Dialect, linktype: LinkType) -> Result<Filter, EmitError> {
    let target = Target { dialect, linktype };
    let flat = specialise::flatten(program).ok_or(target.far_too_many());
    let words = match dialect {
        Dialect::Weir => {
            let flat = flat.and_then(|flat| layout::emit(&flat, target));
            if program.blocks.iter().all(|block| block.params.is_empty()) {
                flat?
            } else {
                shorter(
                    flat,
                    layout::emit(&specialise::split_edges(program), target),
                )?
            }
        }
        Dialect::Sun => layout::emit(&flat?, target)?,
        Dialect::Paper | Dialect::Bsd | Dialect::Dec | Dialect::Mach => {
            straight_line::emit(&flat?, target)?
        }
    };
    let filter = Filter::new(dialect, words);
    match verify(&filter) {
        Ok(()) => Ok(filter),
        Err(VerifyError::TooLong { count: words, .. }) => {
            Err(EmitError::TooManyWords { words, dialect })
        }
        Err(VerifyError::Overflow { .. }) => Err(EmitError::TooManyCells { dialect }),
        Err(error) => panic!("emitted words are valid: {error}"),
    }
}

/// The shorter of two ways to say the same; what was not counted is longer.
fn shorter(
    a: Result<Vec<u16>, EmitError>,
    b: Result<Vec<u16>, EmitError>,
) -> Result<Vec<u16>, EmitError> {
    match (a, b) {
        (Ok(a), Ok(b)) if a.len() <= b.len() => Ok(a),
        (Ok(a), Err(_)) => Ok(a),
        (_, b) => b,
    }
}

/// What words are made for.
#[derive(Clone, Copy)]
struct Target {
    dialect: Dialect,
    linktype: LinkType,
}

impl Target {
    /// Whether cells have 32 bits and arithmetic.
    fn is_wide(self) -> bool {
        matches!(self.dialect, Dialect::Weir | Dialect::Mach)
    }

    fn far_too_many(self) -> EmitError {
        EmitError::FarTooManyWords {
            tried: WORDS_TRIED,
            dialect: self.dialect,
        }
    }

    fn inexpressible(self, what: impl Into<String>) -> EmitError {
        EmitError::Inexpressible {
            what: what.into(),
            dialect: self.dialect,
        }
    }
}

/// Counts how often each value is used.
fn use_counts(program: &Program) -> Vec<u32> {
    let mut counts = vec![0; program.values.len()];
    let mut count = |value: Value| counts[value.index()] += 1;
    for block in &program.blocks {
        for &inst in &block.insts {
            let operands = program.op(inst).operands();
            operands
                .filter_map(|operand| operand.value())
                .for_each(&mut count);
        }
        let operands = block.term.operands();
        operands
            .filter_map(|operand| operand.value())
            .for_each(&mut count);
    }
    counts
}

/// The byte behind the last that a load at a constant place reads.
fn end_of(op: Op) -> Option<u64> {
    match op {
        Op::Load {
            width,
            base: None,
            offset,
        } => Some(u64::from(offset) + u64::from(width.bytes())),
        _ => None,
    }
}
