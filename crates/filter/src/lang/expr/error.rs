//! The error of a refused text, with its location.

use std::fmt;
use std::ops::Range;

/// The reason why an expression is refused: location, message, expectation, and the
/// nearest valid word.
///
/// `Display` prints all of it in one line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Error {
    /// The offending bytes of the text; empty, at its end, if the text is incomplete.
    pub span: Range<usize>,
    /// A description of the error that contains the offending word.
    pub message: String,
    /// A description of valid input at that location, if there is one.
    pub expected: Option<String>,
    /// The nearest valid word, if one is near.
    pub suggestion: Option<String>,
}

impl Error {
    /// An error at `span` with a message only.
    pub(crate) fn new(span: Range<usize>, message: impl Into<String>) -> Error {
        Error {
            span,
            message: message.into(),
            expected: None,
            suggestion: None,
        }
    }

    /// Adds the expectation.
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
