//! Compiles a filter's text into an optimised program; errors show the
//! position.

use std::fmt::Write;
use std::ops::Range;
use weir_demux::Filter;
use weir_filter::ir::{self, Program};
use weir_filter::lang::{Language, cbpf, cspf, expr};
use weir_filter::opt;
use weir_link::names::SystemNames;
use weir_wire::LinkType;

/// The parameters of compilation besides the text.
pub(crate) struct Compiler {
    /// The system's names.
    pub(crate) names: SystemNames,
    /// Bytes of an accepted frame to keep.
    pub(crate) snaplen: u32,
    /// The IPv4 mask of the frames' network, for `ip broadcast`.
    pub(crate) netmask: Option<std::net::Ipv4Addr>,
    /// The dialect of stack-language texts.
    pub(crate) dialect: cspf::Dialect,
    /// Whether to optimise.
    pub(crate) optimise: bool,
}

/// A compiled filter.
pub(crate) struct Compiled {
    /// The front end's program.
    pub(crate) plain: Program,
    /// The program to run: optimised, unless optimisation is off.
    pub(crate) program: Program,
}

impl Default for Compiler {
    fn default() -> Self {
        Compiler {
            names: SystemNames::new(),
            snaplen: ir::SNAPLEN_ALL,
            // As for `tcpdump -r`: the capture's network is unknown, and the
            // limited broadcast address is the broadcast address under every
            // mask.
            netmask: Some(std::net::Ipv4Addr::UNSPECIFIED),
            dialect: cspf::Dialect::default(),
            optimise: true,
        }
    }
}

impl Compiler {
    /// Compiles `text` for frames of `linktype`. The error is the complete
    /// message, possibly of several lines.
    pub(crate) fn compile(
        &self,
        lang: Language,
        text: &[u8],
        linktype: LinkType,
    ) -> Result<Compiled, String> {
        let (plain, _) = self.plain(lang, text, linktype)?;
        let mut program = plain.clone();
        if self.optimise {
            opt::optimise(&mut program);
        }
        Ok(Compiled { plain, program })
    }

    /// As [`compile`](Self::compile), for a binding, with the text's priority.
    /// A program that yields keys without optimisation is not optimised.
    pub(crate) fn filter(
        &self,
        lang: Language,
        text: &[u8],
        linktype: LinkType,
    ) -> Result<(Filter, Option<u16>), String> {
        let (plain, priority) = self.plain(lang, text, linktype)?;
        let filter = if self.optimise {
            Filter::from_plain(plain)
        } else {
            Filter::new(plain)
        };
        Ok((filter, priority))
    }

    /// The front end's program for `text`, and the text's priority.
    fn plain(
        &self,
        lang: Language,
        text: &[u8],
        linktype: LinkType,
    ) -> Result<(Program, Option<u16>), String> {
        Ok(match lang {
            Language::Expr => (self.expression(utf8(text)?, linktype)?, None),
            Language::Cbpf => (classic(text)?, None),
            Language::Cspf => {
                let compiled = cspf::compile(utf8(text)?, self.dialect, linktype);
                let (program, priority) = compiled.map_err(|error| error.to_string())?;
                (program, priority.map(u16::from))
            }
        })
    }

    fn expression(&self, text: &str, linktype: LinkType) -> Result<Program, String> {
        let context = expr::Context {
            linktype,
            snaplen: self.snaplen,
            netmask: self.netmask,
            names: &self.names,
        };
        expr::compile(text, &context)
            .map_err(|error| format!("{error}{}", pointer(text, &error.span)))
    }
}

fn utf8(text: &[u8]) -> Result<&str, String> {
    std::str::from_utf8(text).map_err(|error| format!("the filter is not UTF-8 text: {error}"))
}

fn classic(text: &[u8]) -> Result<Program, String> {
    let insns = cbpf::read(text).map_err(|error| error.to_string())?;
    cbpf::lift(&insns).map_err(|error| error.to_string())
}

/// Two lines that show the text around `span` with marks; a long text is cut on
/// both sides.
fn pointer(text: &str, span: &Range<usize>) -> String {
    const CONTEXT_CHARS: usize = 60;
    let start = floor(text, span.start);
    let end = floor(text, span.end.max(span.start));
    let before: Vec<char> = text[..start]
        .chars()
        .rev()
        .take(CONTEXT_CHARS + 1)
        .collect();
    let cut_before = before.len() > CONTEXT_CHARS;
    let before: String = before.into_iter().take(CONTEXT_CHARS).rev().collect();
    let marked: String = text[start..end].chars().take(CONTEXT_CHARS).collect();
    let rest = &text[start + marked.len()..];
    let after: String = rest.chars().take(CONTEXT_CHARS).collect();
    let cut_after = after.len() < rest.len();
    let dots = |cut: bool| if cut { "…" } else { "" };
    let mut out = String::new();
    let line = format!(
        "{}{before}{marked}{after}{}",
        dots(cut_before),
        dots(cut_after)
    );
    let line: String = line.chars().map(visible).collect();
    let indent = before.chars().count() + usize::from(cut_before);
    let carets = marked.chars().count().max(1);
    let _ = write!(
        out,
        "\n  {line}\n  {}{}",
        " ".repeat(indent),
        "^".repeat(carets)
    );
    out
}

/// The nearest character boundary at or before `index`.
fn floor(text: &str, index: usize) -> usize {
    let index = index.min(text.len());
    (0..=index)
        .rev()
        .find(|at| text.is_char_boundary(*at))
        .unwrap_or(0)
}

/// Control characters would displace the marks or control the terminal.
fn visible(c: char) -> char {
    if c.is_control() { ' ' } else { c }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mark_stands_under_the_word() {
        assert_eq!(
            pointer("tcp prot 80", &(4..8)),
            "\n  tcp prot 80\n      ^^^^"
        );
        assert_eq!(pointer("tcp", &(3..3)), "\n  tcp\n     ^");
        assert_eq!(pointer("é x", &(3..4)), "\n  é x\n    ^");
        assert_eq!(pointer("é", &(1..9)), "\n  é\n  ^");
    }

    #[test]
    fn a_long_text_is_cut_around_the_word() {
        let text = format!("{}bad{}", "a".repeat(1_000_000), "b".repeat(1_000_000));
        let shown = pointer(&text, &(1_000_000..1_000_003));
        assert!(shown.len() < 400);
        let lines: Vec<&str> = shown.trim_start().lines().collect();
        let mark = lines[1].chars().position(|c| c == '^').unwrap() - 2;
        assert_eq!(
            lines[0].chars().skip(mark).take(3).collect::<String>(),
            "bad"
        );
    }
}
