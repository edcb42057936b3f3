//! The back end for the stack language of 1987 (CSPF): compiles a program to words.
//!
//! ```text
//!                            weir, sun ─► layout: block by block, with branches ──┐
//!  Program ─► specialise ─┤                                                       ├─► words
//!                            others ────► straight_line: tests in sequence ───────┘
//! ```
//!
//! `specialise` copies blocks until none has parameters, since most dialects cannot
//! bring different cells to one place. The dialect `weir` can, and does where that is
//! shorter. `select32` and `select16`, for cells of 32 and 16 bits, turn values into
//! trees of pushes and operators; `code` writes the trees as words.
//!
//! The verdict of a stack program is accept or reject: the snap length is lost.
//!
//! Old dialects read only whole words at constant offsets. A word may contain a byte
//! more than the program reads. This is exact if every frame without that byte is
//! rejected anyway; `required_len` computes the length of frame that acceptance needs.

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

/// Maximum number of blocks, and of values, of a program without parameters. A larger
/// program cannot become few enough words.
const PARTS_MAX: usize = 1 << 15;

/// Maximum number of words that are written, in order to report their number. A branch
/// reaches across that many words.
const WORDS_TRIED: usize = 1 << 15;

/// Maximum number of levels of a tree of values.
const TREE_DEPTH_MAX: usize = 400;

/// The reason why a program cannot be compiled to a dialect.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EmitError {
    /// The dialect lacks an operation.
    #[error("the dialect {dialect} cannot express {what}; the dialect weir can")]
    Inexpressible {
        /// The operation.
        what: String,
        /// The dialect.
        dialect: Dialect,
    },
    /// The program exceeds the dialect's limit on words.
    #[error(
        "the filter takes {words} words in the dialect {dialect}, which allows {max}{remedy}",
        max = .dialect.words_max(),
        remedy = remedy(*.dialect)
    )]
    TooManyWords {
        /// Words that the program needs.
        words: usize,
        /// The dialect.
        dialect: Dialect,
    },
    /// The program exceeds the limit on words that are counted.
    #[error(
        "the filter takes more than {tried} words in the dialect {dialect}, which allows \
         {max}{remedy}",
        max = .dialect.words_max(),
        remedy = remedy(*.dialect)
    )]
    FarTooManyWords {
        /// The limit on words that are counted.
        tried: usize,
        /// The dialect.
        dialect: Dialect,
    },
    /// The program needs more cells than the dialect's stack has.
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

/// Compiles `program`, which must be verified and should be optimised, to a dialect.
/// The result is verified. It accepts exactly the frames for which the program returns
/// a snap length other than zero; the snap length itself is lost.
///
/// The dialect `weir` can express every program that is short enough. `sun` has tests
/// of 16-bit words at constant offsets, and branches; `paper`, `bsd`, `dec` and `mach`
/// have tests in sequence. A program that a dialect cannot express exactly is refused.
///
/// The link type matters only to `mach`, which separates the link header; see
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

/// The shorter of two results; an error counts as longer.
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

/// The dialect and link type that words are emitted for.
#[derive(Clone, Copy)]
struct Target {
    dialect: Dialect,
    linktype: LinkType,
}

impl Target {
    /// Whether cells have 32 bits, with arithmetic.
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

/// The number of uses of each value.
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

/// The end of a load at a constant offset, in bytes; `None` for other operations.
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
