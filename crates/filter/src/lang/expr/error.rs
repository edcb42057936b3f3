//! Why a text is refused, and where.

use std::fmt;
use std::ops::Range;

/// Why an expression is refused: where in the text, what is wrong there, what
/// was expected, and the nearest word that would be right.
///
/// The display form is one line that holds all of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Error {
    /// The offending bytes of the text; empty and at its end where the text
    /// ends too early.
    pub span: Range<usize>,
    /// What is wrong, with the offending word in it.
    pub message: String,
    /// What would be right at that place, if that can be said.
    pub expected: Option<String>,
    /// The nearest valid word, where one is near.
    pub suggestion: Option<String>,
}

impl Error {
    /// An error at `span`, so far with a message only.
    pub(crate) fn new(span: Range<usize>, message: impl Into<String>) -> Error {
        Error {
            span,
            message: message.into(),
            expected: None,
            suggestion: None,
        }
    }

    /// Adds what was expected.
    pub(crate) fn expected(mut self, what: impl Into<String>) -> Error {
        self.expected = Some(what.into());
        self
    }

    /// Adds the nearest valid word.
    pub(crate) fn suggest(mut self, word: Option<String>) -> Error {
        self.suggestion = word;
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if let Some(expected) = &self.expected {
            write!(f, "; expected {expected}")?;
        }
        if let Some(word) = &self.suggestion {
            write!(f, "; did you mean `{word}`?")?;
        }
        write!(f, " (at byte {})", self.span.start)
    }
}

impl std::error::Error for Error {}
