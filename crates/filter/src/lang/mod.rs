//! The filter languages. Each front end turns text or words into an
//! [`ir::Program`](crate::ir::Program).

use std::fmt;
use std::str::FromStr;

pub mod cbpf;
pub mod cspf;
pub mod expr;
mod ssa;

/// The language of a filter's source.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Language {
    /// pcap-filter(7) expressions, as tcpdump takes them.
    #[default]
    Expr,
    /// Classic BPF programs.
    Cbpf,
    /// The stack language of the 1987 paper.
    Cspf,
}

impl Language {
    /// Every language, in the order of the documentation.
    pub const ALL: [Language; 3] = [Language::Expr, Language::Cbpf, Language::Cspf];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Language::Expr => "expr",
            Language::Cbpf => "cbpf",
            Language::Cspf => "cspf",
        }
    }
}

impl fmt::Display for Language {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The error of a name that is not a filter language.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`{0}` is no filter language; there are expr, cbpf and cspf")]
pub struct UnknownLanguage(pub String);

impl FromStr for Language {
    type Err = UnknownLanguage;

    /// Parses a name in any case.
    fn from_str(text: &str) -> Result<Language, UnknownLanguage> {
        let named = |language: &Language| language.name().eq_ignore_ascii_case(text.trim());
        let found = Language::ALL.into_iter().find(named);
        found.ok_or_else(|| UnknownLanguage(text.to_owned()))
    }
}

/// Part of an input for an error message, cut after 60 characters.
fn shortened(text: &str) -> String {
    const CHARS_MAX: usize = 60;
    match text.char_indices().nth(CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// [`shortened`] text in backquotes.
fn shown(text: &str) -> String {
    format!("`{}`", shortened(text))
}

/// The Rust examples of the manual, run as doctests.
#[cfg(doctest)]
mod manual {
    #[doc = include_str!("../../../../docs/reference/cbpf.md")]
    struct Cbpf;
    #[doc = include_str!("../../../../docs/reference/stack-language.md")]
    struct StackLanguage;
}
