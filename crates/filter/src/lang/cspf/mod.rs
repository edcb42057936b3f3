//! CSPF, the CMU/Stanford Packet Filter: the stack language of Mogul, Rashid and
//! Accetta, "The Packet Filter" (1987), sections 3.1 and 7, with its later dialects.
//!
//! ```text
//!  text ─► assemble ─┐              ┌─► disassemble ─► text
//!                    ├─► Filter ────┼─► verify
//!  bytes, words ─────┘              ├─► run (an oracle)
//!                                   └─► lower ─► ir::Program
//! ```
//!
//! A program is a list of 16-bit words. Each word is an instruction: the low ten bits,
//! the *action*, push a value; the high six bits, the *operator*, replace the two top
//! cells by `T2 op T1`. Some actions take the next words as literals. At the end, the
//! filter accepts if the top of the stack is not zero, or if the stack is empty.
//!
//! `docs/reference/stack-language.md` is the manual, with tables of the dialects.

mod assemble;
mod dialect;
mod disassemble;
mod inst;
mod lex;
mod lower;
mod run;
mod verify;

use crate::ir;
use weir_wire::LinkType;

pub use super::cbpf::Order;
pub use assemble::{AssembleError, assemble};
pub use dialect::{Dialect, UnknownDialect};
pub use disassemble::{disassemble, numbers};
pub(crate) use inst::{ACTION_BITS, Action, Operator};
pub(crate) use lower::header_len;
pub use lower::{LowerError, lower};
pub use run::run;
pub use verify::{VerifyError, verify};

/// A program of the stack language.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Filter {
    /// The dialect of the words.
    pub dialect: Dialect,
    /// The priority, if the text contains one; filters of higher priority run first.
    pub priority: Option<u8>,
    /// The program, unchecked; [`verify`] checks it.
    pub words: Vec<u16>,
}

/// The error of an odd number of bytes.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0} bytes do not make whole words of 2 bytes")]
pub struct OddBytes(pub usize);

impl Filter {
    /// A program of the given words, without a priority.
    pub fn new(dialect: Dialect, words: Vec<u16>) -> Filter {
        Filter {
            dialect,
            priority: None,
            words,
        }
    }

    /// Converts pairs of bytes to words. A program does not contain its byte order, so the
    /// caller states it.
    pub fn from_bytes(bytes: &[u8], order: Order, dialect: Dialect) -> Result<Filter, OddBytes> {
        let (pairs, rest) = bytes.as_chunks::<2>();
        if !rest.is_empty() {
            return Err(OddBytes(bytes.len()));
        }
        let word = |&pair: &[u8; 2]| match order {
            Order::Little => u16::from_le_bytes(pair),
            Order::Big => u16::from_be_bytes(pair),
        };
        Ok(Filter::new(dialect, pairs.iter().map(word).collect()))
    }

    /// The words as bytes in the given order.
    pub fn to_bytes(&self, order: Order) -> Vec<u8> {
        let bytes = |word: &u16| match order {
            Order::Little => word.to_le_bytes(),
            Order::Big => word.to_be_bytes(),
        };
        self.words.iter().flat_map(bytes).collect()
    }
}

/// The reason why a text is not a runnable program.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CompileError {
    /// The text is malformed.
    #[error(transparent)]
    Assemble(#[from] AssembleError),
    /// The program breaks a rule of its dialect, or does not fit the link type.
    #[error(transparent)]
    Lower(#[from] LowerError),
}

/// Assembles, verifies and lowers a text. Returns the program, and the priority if the
/// text contains one.
pub fn compile(
    text: &str,
    dialect: Dialect,
    linktype: LinkType,
) -> Result<(ir::Program, Option<u8>), CompileError> {
    let filter = assemble(text, dialect)?;
    Ok((lower(&filter, linktype)?, filter.priority))
}
