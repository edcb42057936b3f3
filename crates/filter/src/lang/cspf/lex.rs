//! The lexer of the assembler.

use crate::lang::shown;

/// A token.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Token<'t> {
    /// A name: letters, digits and underscores.
    Name(&'t str),
    /// A number, decimal, octal (`017`) or hexadecimal (`0xf`), as in C.
    Number(u32),
    /// One of `, + | { } [ ] = ;`.
    Mark(char),
    /// The end of a line.
    Newline,
    /// The end of the text.
    End,
}

/// A lexer that tracks line numbers. Its memory does not grow with the text.
pub(super) struct Lexer<'t> {
    rest: &'t str,
    line: usize,
}

impl<'t> Lexer<'t> {
    pub(super) fn new(text: &'t str) -> Lexer<'t> {
        Lexer {
            rest: text,
            line: 1,
        }
    }

    /// The line of the last token, from 1.
    pub(super) fn line(&self) -> usize {
        self.line
    }

    /// The next token. A comment counts as white space. A newline belongs to the line
    /// that it starts.
    pub(super) fn next(&mut self) -> Result<Token<'t>, String> {
        loop {
            let spaces = [' ', '\t', '\r', '\x0c'];
            self.rest = self.rest.trim_start_matches(spaces);
            if let Some(comment) = self.rest.strip_prefix("/*") {
                let Some(end) = comment.find("*/") else {
                    return Err("the comment that starts here never ends; expected `*/`".into());
                };
                self.line += comment[..end].matches('\n').count();
                self.rest = &comment[end + 2..];
            } else if self.rest.starts_with("//") || self.rest.starts_with('#') {
                let end = self.rest.find('\n').unwrap_or(self.rest.len());
                self.rest = &self.rest[end..];
            } else {
                return self.token();
            }
        }
    }

    fn token(&mut self) -> Result<Token<'t>, String> {
        let Some(first) = self.rest.chars().next() else {
            return Ok(Token::End);
        };
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if is_word(first) {
            let end = self.rest.find(|c| !is_word(c)).unwrap_or(self.rest.len());
            let (word, rest) = self.rest.split_at(end);
            self.rest = rest;
            return if first.is_ascii_digit() {
                number(word).map(Token::Number)
            } else {
                Ok(Token::Name(word))
            };
        }
        self.rest = &self.rest[first.len_utf8()..];
        match first {
            '\n' => {
                self.line += 1;
                Ok(Token::Newline)
            }
            ',' | '+' | '|' | '{' | '}' | '[' | ']' | '=' | ';' => Ok(Token::Mark(first)),
            _ => Err(format!(
                "found {}, expected a name, a number, `,`, `|` or `+`",
                shown(first.encode_utf8(&mut [0; 4]))
            )),
        }
    }
}

fn number(text: &str) -> Result<u32, String> {
    let hex = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    let (digits, radix) = match (hex, text.strip_prefix('0')) {
        (Some(digits), _) => (digits, 16),
        (None, Some(digits)) if !digits.is_empty() => (digits, 8),
        _ => (text, 10),
    };
    u32::from_str_radix(digits, radix).map_err(|_| {
        format!(
            "found {}, expected a number as in C: 35, 0x23 or, in octal, 043",
            shown(text)
        )
    })
}
