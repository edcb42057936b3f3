//! Error messages of the parser.

use super::super::suggest::nearest;
use super::super::token::KEYWORDS;
use super::*;
use crate::lang::shortened;

impl Parser<'_> {
    /// The next token does not fit.
    pub(super) fn unexpected(&self, expected: &str, valid: &[&str]) -> Error {
        let span = self.ahead.start..self.ahead.end;
        let word = self.ahead_text();
        let message = match self.ahead.token {
            Token::End => "the text ends too early".to_owned(),
            Token::Rnr => format!("`{word}` fits only behind `llc`"),
            _ => format!("`{}` does not fit here", shortened(word)),
        };
        let error = Error::new(span, message).expected(expected);
        error.suggest(nearest(word, valid.iter().copied()))
    }

    /// The next token cannot start an operand.
    pub(super) fn no_operand(&self, need: Need) -> Error {
        let word =
            self.ahead.token != Token::End && self.ahead_text().as_bytes()[0].is_ascii_alphabetic();
        match (need, self.stack.last()) {
            (Need::Arith, _) => {
                let values = KEYWORDS.iter().filter(|(_, token)| starts_value(*token));
                let valid: Vec<&str> = values.map(|(word, _)| *word).collect();
                self.unexpected("a number, `len` or bytes such as `ip[0]`", &valid)
            }
            (Need::Id, Some(Frame::Head(quals, _))) => {
                let what = identifier_kind(*quals);
                let mut error = self.unexpected(what, &[]);
                if word && !matches!(self.ahead.token, Token::And | Token::Or) {
                    error.suggestion = Some(format!("\\{}", self.ahead_text()));
                }
                error
            }
            (Need::Id, _) => self.unexpected("an identifier", &[]),
            (Need::Any, _) => self.unexpected("a test such as `tcp`, `host …` or `len > 100`", &[]),
        }
    }

    /// A name or an address without a qualifier.
    pub(super) fn unqualified(&self, span: Span) -> Error {
        let text = span.of(self.text);
        let message = format!("`{}` is no test on its own", shortened(text));
        let starts = KEYWORDS.iter().filter(|(_, token)| starts_term(*token));
        let suggestion = nearest(text, starts.map(|(word, _)| *word));
        let expected = match text.as_bytes().first() {
            Some(b'0'..=b'9' | b':') => "a qualifier before it, such as `host` or `port`",
            _ => "a test such as `tcp`, or a qualifier such as `host` or `port` before a name",
        };
        Error::new(span.range(), message)
            .expected(expected)
            .suggest(suggestion)
    }

    /// A token after a complete term.
    pub(super) fn after_term(&self, operand: Operand, expected: &str) -> Error {
        let mut valid = vec!["and", "or"];
        let alone = self.text.as_bytes().get(operand.span.range());
        let alone = alone.and_then(|bytes| std::str::from_utf8(bytes).ok());
        let qualifies = KEYWORDS
            .iter()
            .any(|(word, token)| Some(*word) == alone && matches!(token, Token::Proto(_)));
        if qualifies {
            valid.extend(["host", "net", "port", "portrange", "proto", "protochain"]);
            valid.extend(["src", "dst", "gateway", "broadcast", "multicast"]);
            let expected = format!("{expected}, or a qualifier such as `host` or `port`");
            return self.unexpected(&expected, &valid);
        }
        self.unexpected(expected, &valid)
    }
}

fn identifier_kind(quals: Quals) -> &'static str {
    match quals.kind {
        Kind::Default | Kind::Host if quals.proto == Some(Proto::Link) => "a MAC address or a name",
        Kind::Default | Kind::Host => "an address or a host's name",
        Kind::Net => "a network such as 10.0.0.0/8 or 2001:db8::/32",
        Kind::Port => "a port's number or name",
        Kind::PortRange => "two ports with `-` between them",
        Kind::Gateway => "a host's name",
        Kind::Proto | Kind::ProtoChain => "a protocol's number, or its name behind `\\`",
    }
}

fn starts_term(token: Token) -> bool {
    !matches!(
        token,
        Token::And | Token::Or | Token::Mask | Token::Num(_) | Token::Foreign(_) | Token::Rnr
    )
}

fn starts_value(token: Token) -> bool {
    matches!(token, Token::Num(_) | Token::Len | Token::Proto(_))
}
