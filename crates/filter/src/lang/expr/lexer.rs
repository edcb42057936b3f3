//! The lexer: takes the longest match at each position, and of equal matches the more
//! specific (a keyword before a number before a name).
//!
//! ```text
//! name      [A-Za-z0-9] ( [-_.A-Za-z0-9]* [.A-Za-z0-9] )?   or  \ anything
//! number    [0-9]+  |  0x hex+              (a leading 0 makes it octal)
//! dotted    N.N  |  N.N.N  |  N.N.N.N
//! mac       six of one or two hex digits between : or - or . ;
//!           three of four hex digits between . ; twelve hex digits
//! ```
//!
//! A hyphen inside a word belongs to the word. `a-b` is one name, and `1-1` is not a
//! subtraction, unlike `1 - 1`.

use std::net::Ipv6Addr;

use super::error::Error;
use super::token::{Token, keyword};
use crate::lang::{shortened, shown};

/// A token with its range in the text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Word {
    pub(super) token: Token,
    pub(super) start: usize,
    pub(super) end: usize,
}

/// The lexer's state.
#[derive(Clone, Debug)]
pub(super) struct Lexer<'t> {
    text: &'t str,
    position: usize,
}

impl<'t> Lexer<'t> {
    pub(super) fn new(text: &'t str) -> Lexer<'t> {
        Lexer { text, position: 0 }
    }

    /// The next token; at the end of the text, [`Token::End`] at every call.
    pub(super) fn next(&mut self) -> Result<Word, Error> {
        let bytes = self.text.as_bytes();
        while matches!(bytes.get(self.position), Some(b' ' | b'\t' | b'\r' | b'\n')) {
            self.position += 1;
        }
        let start = self.position;
        let rest = &bytes[start..];
        let Some(&first) = rest.first() else {
            return Ok(self.word(Token::End, 0));
        };
        if first.is_ascii_alphanumeric() || (first == b':' && rest.get(1) == Some(&b':')) {
            return self.alphanumeric(rest);
        }
        if let Some((token, length)) = operator(rest) {
            return Ok(self.word(token, length));
        }
        match first {
            b'\\' => {
                let ends = |byte: &u8| matches!(byte, b' ' | b'!' | b'(' | b')' | b'\n' | b'\t');
                let length = rest.iter().position(ends).unwrap_or(rest.len());
                if length > 1 {
                    return Ok(self.word(Token::Name, length));
                }
                Err(Error::new(start..start + 1, "`\\` escapes nothing")
                    .expected("a name right behind the backslash"))
            }
            b'$' => match hex_run(&rest[1..]).min(2) {
                0 => Err(self.stray(start)),
                digits => Ok(self.word(Token::ArcnetAddr, 1 + digits)),
            },
            _ => Err(self.stray(start)),
        }
    }

    fn word(&mut self, token: Token, length: usize) -> Word {
        let start = self.position;
        self.position += length;
        Word {
            token,
            start,
            end: start + length,
        }
    }

    fn stray(&self, start: usize) -> Error {
        let stray = self.text[start..].chars().next().unwrap_or(' ');
        let span = start..start + stray.len_utf8();
        let error = Error::new(span, format!("`{stray}` means nothing here"));
        error.expected("a word, a number, an operator or a parenthesis")
    }

    /// Lexes a word that starts with a letter, a digit or `::`.
    fn alphanumeric(&mut self, rest: &[u8]) -> Result<Word, Error> {
        let start = self.position;
        let length = name_len(rest);
        // An address with colons may extend beyond the name.
        if begins_with_colons(rest) {
            let (token, longest) = with_colons(rest);
            if longest > length {
                let text = &self.text[start..start + longest];
                let span = start..start + longest;
                return match token {
                    Some(Token::Ip6Addr) if text.parse::<Ipv6Addr>().is_err() => Err(Error::new(
                        span,
                        format!("{} is no IPv6 address", shown(text)),
                    )),
                    Some(token) => Ok(self.word(token, longest)),
                    None => Err(
                        Error::new(span, format!("{} is no MAC address", shown(text)))
                            .expected("six bytes with `:` between them, as in `0:1b:c:d:e:ff`"),
                    ),
                };
            }
        }
        let text = &self.text[start..start + length];
        if let Some(token) = keyword(text) {
            return Ok(self.word(token, length));
        }
        let word = text.as_bytes();
        if is_mac_word(word) {
            return Ok(self.word(Token::Mac, length));
        }
        if word[0].is_ascii_digit() {
            let digits = number_len(word);
            if digits == length {
                let value = number(text).map_err(|fault| fault.error(text, start))?;
                return Ok(self.word(Token::Num(value), length));
            }
            if dotted_len(word, 2..=4) == length {
                return Ok(self.word(Token::Dotted, length));
            }
        }
        Ok(self.word(Token::Name, length))
    }
}

fn operator(rest: &[u8]) -> Option<(Token, usize)> {
    let double = match rest.get(..2) {
        Some(b">=") => Some(Token::Ge),
        Some(b"<=") => Some(Token::Le),
        Some(b"!=") => Some(Token::Ne),
        Some(b"==") => Some(Token::Eq),
        Some(b"<<") => Some(Token::Shl),
        Some(b">>") => Some(Token::Shr),
        Some(b"&&") => Some(Token::And),
        Some(b"||") => Some(Token::Or),
        _ => None,
    };
    if let Some(token) = double {
        return Some((token, 2));
    }
    let single = match rest[0] {
        b'+' => Token::Plus,
        b'-' => Token::Minus,
        b'*' => Token::Star,
        b'/' => Token::Slash,
        b'%' => Token::Percent,
        b':' => Token::Colon,
        b'[' => Token::LBracket,
        b']' => Token::RBracket,
        b'!' => Token::Not,
        b'<' => Token::Lt,
        b'>' => Token::Gt,
        b'(' => Token::LParen,
        b')' => Token::RParen,
        b'&' => Token::Amp,
        b'|' => Token::Pipe,
        b'^' => Token::Caret,
        b'=' => Token::Eq,
        _ => return None,
    };
    Some((single, 1))
}

/// Length of the name at the start; zero if there is none.
fn name_len(rest: &[u8]) -> usize {
    if !rest[0].is_ascii_alphanumeric() {
        return 0;
    }
    let inside = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let run = rest
        .iter()
        .position(|byte| !inside(byte))
        .unwrap_or(rest.len());
    let last = rest[..run]
        .iter()
        .rposition(|byte| !matches!(byte, b'-' | b'_'));
    last.map_or(1, |last| last + 1)
}

fn hex_run(rest: &[u8]) -> usize {
    let end = rest.iter().position(|byte| !byte.is_ascii_hexdigit());
    end.unwrap_or(rest.len())
}

/// Length of the decimal, octal or hexadecimal number at the start.
fn number_len(rest: &[u8]) -> usize {
    if let [b'0', b'x' | b'X', digits @ ..] = rest {
        let run = hex_run(digits);
        return if run == 0 { 1 } else { 2 + run };
    }
    let end = rest.iter().position(|byte| !byte.is_ascii_digit());
    end.unwrap_or(rest.len())
}

/// Length of the longest sequence of numbers with dots whose number of parts is in
/// `count`; zero if there is none.
fn dotted_len(rest: &[u8], count: std::ops::RangeInclusive<usize>) -> usize {
    let (mut position, mut found, mut accepted) = (0, 0, 0);
    while found < *count.end() {
        let length = number_len(&rest[position..]);
        if length == 0 {
            break;
        }
        position += length;
        found += 1;
        if count.contains(&found) {
            accepted = position;
        }
        if rest.get(position) != Some(&b'.') {
            break;
        }
        position += 1;
    }
    accepted
}

/// Whether a whole word without colons is a MAC address.
fn is_mac_word(word: &[u8]) -> bool {
    let digits = |part: &[u8]| part.iter().all(u8::is_ascii_hexdigit);
    match word.len() {
        12 if digits(word) => return true,
        14 if word[4] == b'.' && word[9] == b'.' => {
            if digits(&word[..4]) && digits(&word[5..9]) && digits(&word[10..]) {
                return true;
            }
        }
        11..=17 => {}
        _ => return false,
    }
    [b'-', b'.'].into_iter().any(|separator| {
        let mut parts = 0;
        let short = |part: &[u8]| (1..=2).contains(&part.len()) && digits(part);
        let all = word.split(|&byte| byte == separator).all(|part| {
            parts += 1;
            short(part)
        });
        all && parts == 6
    })
}

/// Whether an address with colons may start here: at most four digits and a colon.
fn begins_with_colons(rest: &[u8]) -> bool {
    let digits = rest.iter().take(4);
    let run = digits.take_while(|byte| byte.is_ascii_hexdigit()).count();
    rest.get(run) == Some(&b':')
}

/// The longest address with colons at the start: its token and length. The token is
/// `None` for an incomplete MAC address.
fn with_colons(rest: &[u8]) -> (Option<Token>, usize) {
    let candidates = [
        (Some(Token::Mac), colon_mac_len(rest)),
        (Some(Token::Ip6Addr), ip6_len(rest)),
        (None, broken_mac_len(rest)),
    ];
    // The first of equal lengths wins.
    let mut best = candidates[0];
    for candidate in &candidates[1..] {
        if candidate.1 > best.1 {
            best = *candidate;
        }
    }
    best
}

fn colon_mac_len(rest: &[u8]) -> usize {
    let mut position = 0;
    for part in 0..6 {
        let run = hex_run(&rest[position..]);
        let last = part == 5;
        if run == 0 || (!last && (run > 2 || rest.get(position + run) != Some(&b':'))) {
            return 0;
        }
        position += run.min(2) + usize::from(!last);
    }
    position
}

/// Length of an incomplete MAC address: at least two groups of one or two digits, each
/// followed by colons; else zero.
fn broken_mac_len(rest: &[u8]) -> usize {
    let (mut position, mut parts) = (0, 0);
    loop {
        let run = hex_run(&rest[position..]);
        let after = &rest[position + run..];
        let colons = after.iter().take_while(|byte| **byte == b':').count();
        if !(1..=2).contains(&run) || colons == 0 {
            return if parts >= 2 { position } else { 0 };
        }
        position += run + colons;
        parts += 1;
    }
}

/// Length of the longest IPv6 address at the start; zero if there is none.
fn ip6_len(rest: &[u8]) -> usize {
    let double = |position: usize| rest.get(position..position + 2) == Some(b"::");
    let (mut groups, mut position, mut best) = (0, 0, 0);
    let mut elided = double(0);
    if elided {
        position = 2;
        best = 2;
    }
    loop {
        if (elided && groups <= 5) || (!elided && groups == 6) {
            let quad = dotted_len(&rest[position..], 4..=4);
            if quad > 0 {
                best = best.max(position + quad);
            }
        }
        let run = hex_run(&rest[position..]);
        if run == 0 || groups == if elided { 7 } else { 8 } {
            return best;
        }
        groups += 1;
        let end = position + run.min(4);
        if elided || groups == 8 {
            best = best.max(end);
        }
        if run > 4 {
            return best;
        }
        if double(end) && !elided && groups <= 7 {
            elided = true;
            position = end + 2;
            best = best.max(position);
        } else if rest.get(end) == Some(&b':') {
            position = end + 1;
        } else {
            return best;
        }
    }
}

/// The reason why digits are not a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NumberFault {
    /// A digit that the base does not have, or no digit.
    Digit,
    /// A value of more than 32 bits.
    Overflow,
}

impl NumberFault {
    pub(super) fn error(self, text: &str, start: usize) -> Error {
        let span = start..start + text.len();
        match self {
            NumberFault::Digit => Error::new(
                span,
                format!(
                    "{} is octal, for its leading 0, but has an 8 or 9",
                    shown(text)
                ),
            )
            .expected("digits from 0 to 7, or no leading 0"),
            NumberFault::Overflow => {
                let message = format!("the number {} does not fit 32 bits", shortened(text));
                Error::new(span, message).expected("at most 4294967295")
            }
        }
    }
}

/// Parses a number: hexadecimal after `0x`, octal after `0`, else decimal.
pub(super) fn number(text: &str) -> Result<u32, NumberFault> {
    let bytes = text.as_bytes();
    let (digits, base) = match bytes {
        [b'0', b'x' | b'X', digits @ ..] => (digits, 16),
        [b'0', digits @ ..] => (digits, 8),
        digits => (digits, 10),
    };
    let mut value = 0_u32;
    for &digit in digits {
        let digit = char::from(digit).to_digit(base).ok_or(NumberFault::Digit)?;
        let shifted = value.checked_mul(base).ok_or(NumberFault::Overflow)?;
        value = shifted.checked_add(digit).ok_or(NumberFault::Overflow)?;
    }
    Ok(value)
}

/// The bytes of a MAC address; `text` has been recognised by the lexer.
pub(super) fn mac_bytes(text: &str) -> [u8; 6] {
    let digit = |byte: u8| char::from(byte).to_digit(16).unwrap_or(0) as u8;
    let bytes = text.as_bytes();
    let mut mac = [0; 6];
    if bytes.len() == 12 && bytes.iter().all(u8::is_ascii_hexdigit)
        || bytes.len() == 14 && bytes[4] == b'.' && bytes[9] == b'.'
    {
        let digits = bytes.iter().filter(|byte| **byte != b'.');
        for (index, &byte) in digits.enumerate() {
            mac[index / 2] = mac[index / 2] << 4 | digit(byte);
        }
        return mac;
    }
    let parts = bytes.split(|byte| matches!(byte, b':' | b'-' | b'.'));
    for (slot, part) in mac.iter_mut().zip(parts) {
        *slot = part.iter().fold(0, |value, &byte| value << 4 | digit(byte));
    }
    mac
}

/// The value of a dotted number, and its number of bits; `None` if a part exceeds 255.
/// Parts are decimal despite leading zeros.
pub(super) fn dotted_value(text: &str) -> Option<(u32, u32)> {
    let (mut value, mut bits) = (0_u32, 0);
    for part in text.split('.') {
        let mut octet = 0_u32;
        for byte in part.bytes() {
            let digit = char::from(byte).to_digit(10)?;
            octet = octet * 10 + digit;
            if octet > 255 {
                return None;
            }
        }
        value = value << 8 | octet;
        bits += 8;
    }
    Some((value, bits))
}
