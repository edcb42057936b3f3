//! The disassembler: prints programs in the style of the paper's figures.

use std::fmt::Write;

use super::inst::{ACTION_BITS, len_of, operator_of};
use super::{Dialect, Filter};

/// Prints the program as text that [`assemble`](super::assemble) turns back into the
/// same words. A program with a priority becomes a structure as in figures 3-8 and
/// 3-9, others become a list. An undefined word becomes a number.
pub fn disassemble(filter: &Filter) -> String {
    let Filter {
        dialect,
        priority,
        words,
    } = filter;
    let mut out = String::with_capacity(words.len() * 16);
    let indent = if priority.is_some() { "    " } else { "" };
    if let Some(priority) = priority {
        let name = match dialect {
            Dialect::Sun => "packetfilt",
            _ => "enfilter",
        };
        line(&mut out, format_args!("struct {name} f = {{"));
        let count = words.len();
        line(
            &mut out,
            format_args!("    {priority}, {count}, /* priority and length */"),
        );
    }
    let mut rest = &words[..];
    while !rest.is_empty() {
        let (text, len) = inst_text(*dialect, rest);
        line(&mut out, format_args!("{indent}{text},"));
        rest = &rest[len..];
    }
    if priority.is_some() {
        line(&mut out, format_args!("}};"));
    }
    out
}

/// Prints the words as a list of hexadecimal numbers, which
/// [`assemble`](super::assemble) accepts.
pub fn numbers(words: &[u16]) -> String {
    let mut out = String::with_capacity(words.len() * 8);
    for word in words {
        line(&mut out, format_args!("{word:#06x},"));
    }
    out
}

fn line(out: &mut String, text: std::fmt::Arguments<'_>) {
    writeln!(out, "{text}").expect("a String takes all that is written");
}

/// The text of the instruction at the start of `words`, and its number of words.
pub(super) fn inst_text(dialect: Dialect, words: &[u16]) -> (String, usize) {
    let word = words[0];
    let Some(mut text) = word_text(dialect, word) else {
        return (format!("{word:#06x}"), 1);
    };
    let len = len_of(dialect, word).min(words.len());
    for literal in &words[1..len] {
        // Small numbers are mostly counts and offsets, large ones bit patterns.
        match literal {
            0..256 => write!(text, ", {literal}"),
            _ => write!(text, ", {literal:#06x}"),
        }
        .expect("a String takes all that is written");
    }
    (text, len)
}

/// A word by the names of action and operator; `None` if the dialect lacks one.
fn word_text(dialect: Dialect, word: u16) -> Option<String> {
    operator_of(dialect, word)?;
    let (operator, _) = dialect.operators()[usize::from(word >> ACTION_BITS)];
    let value = word & ((1 << ACTION_BITS) - 1);
    let action = action_text(dialect, value)?;
    Some(match (value, operator) {
        (0, "NOP") => "NOP".into(),
        (0, operator) => operator.into(),
        (_, "NOP") => action,
        (_, operator) => format!("{action} | {operator}"),
    })
}

fn action_text(dialect: Dialect, value: u16) -> Option<String> {
    for &(start, end, name) in dialect.ranges() {
        if (start..end).contains(&value) {
            return Some(format!("{name}+{}", value - start));
        }
    }
    let row = dialect.actions().find(|(known, ..)| *known == value);
    row.map(|(_, name, _)| (*name).to_owned())
}
