//! The parser: builds the syntax tree, with the precedence rules of pcap-filter(7).
//!
//! ```text
//! expr  = term | expr and/or (term | id)
//! term  = head id | "(" expr ")" | not term | arith relop arith | …
//! id    = name | address | number | "(" ids ")" | not id
//! ids   = id | ids and/or id
//! arith = number | len | proto "[" arith [":" number] "]"
//!       | arith op arith | "-" arith | "(" arith ")"
//! ```
//!
//! `and` and `or` have equal precedence and associate to the left. An identifier
//! without qualifiers inherits those of the term before it. The precedence of
//! arithmetic, from low to high, is `|`, `&`, `<< >>`, `+ -`, `* /`, unary `-`. The
//! operators `%` and `^` have no precedence: all that follows them, or that follows
//! an operator before them, is reduced first.
//!
//! The parser is a shift-reduce parser with an explicit stack, so nesting uses heap
//! memory instead of the call stack.

mod messages;
mod primitive;
mod reduce;

use crate::ir::{BinOp, Cmp};

use super::ast::{Arith, Ast, Kind, Node, Prim, Quals, Span};
use super::error::Error;
use super::lexer::{Lexer, Word};
use super::token::{Foreign, Proto, Token};

/// The kinds of operand that may come next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Need {
    /// A term, an identifier, or arithmetic.
    Any,
    /// An identifier.
    Id,
    /// Arithmetic.
    Arith,
}

/// An entry of the stack: a construct that waits for an operand.
#[derive(Clone, Copy, Debug)]
enum Frame {
    Paren {
        inherited: Option<Quals>,
        need: Need,
        start: usize,
    },
    Not(Need),
    /// A left operand with its `and` or `or`.
    List {
        and: bool,
        ids: bool,
        left: u32,
    },
    /// Qualifiers before their identifier, and the start of the text.
    Head(Quals, usize),
    Neg,
    Bin {
        op: BinOp,
        precedence: Option<u8>,
        left: u32,
        right: usize,
    },
    Rel {
        cmp: Cmp,
        left: u32,
        start: usize,
    },
    Index {
        proto: Proto,
        span: Span,
    },
}

/// An operand that has been parsed so far.
#[derive(Clone, Copy, Debug)]
struct Operand {
    value: Value,
    /// Qualifiers that a following identifier inherits.
    quals: Option<Quals>,
    span: Span,
    /// Whether this is a list of identifiers in parentheses, which may not be the
    /// first element of another list.
    closed: bool,
}

#[derive(Clone, Copy, Debug)]
enum Value {
    /// A number, which may become an identifier or arithmetic.
    Num(u32),
    Arith(u32),
    Id(u32),
    Term(u32),
}

enum Step {
    /// A larger operand has been reduced.
    Operand(Operand),
    /// An operator was shifted; its right operand comes next.
    Next,
    Done,
}

/// Parses a text with at least one token.
pub(super) fn parse(text: &str) -> Result<Ast, Error> {
    let mut lexer = Lexer::new(text);
    let ahead = lexer.next()?;
    let mut parser = Parser {
        text,
        lexer,
        ahead,
        ast: Ast::default(),
        stack: Vec::new(),
        inherited: None,
        relation_first: 0,
    };
    parser.check_foreign()?;
    loop {
        let Some(mut operand) = parser.operand()? else {
            continue;
        };
        loop {
            match parser.step(operand)? {
                Step::Operand(larger) => operand = larger,
                Step::Next => break,
                Step::Done => return Ok(parser.ast),
            }
        }
    }
}

struct Parser<'t> {
    text: &'t str,
    lexer: Lexer<'t>,
    ahead: Word,
    ast: Ast,
    stack: Vec<Frame>,
    inherited: Option<Quals>,
    /// Index of the first arithmetic node of the next relation.
    relation_first: u32,
}

impl<'t> Parser<'t> {
    /// Takes the next token and returns it.
    fn advance(&mut self) -> Result<Word, Error> {
        let word = self.ahead;
        self.ahead = self.lexer.next()?;
        self.check_foreign()?;
        Ok(word)
    }

    fn check_foreign(&self) -> Result<(), Error> {
        let Token::Foreign(foreign) = self.ahead.token else {
            return Ok(());
        };
        let word = self.ahead_text();
        let (needs, message) = match foreign {
            Foreign::Wlan => ("802.11 headers", "an 802.11 link type"),
            Foreign::Atm => ("ATM cells", "the SUNATM link type"),
            Foreign::Ss7 => ("SS7 messages", "an MTP2 link type"),
            Foreign::Pflog => ("the PF firewall's log", "the PFLOG link type"),
            Foreign::Radio => ("a radio header", "an 802.11 link type with one"),
        };
        let message = format!("`{word}` tests {needs}, so it needs {message}, unsupported here");
        Err(Error::new(self.ahead.start..self.ahead.end, message)
            .expected(format!("another test (`\\{word}` if it is a name)")))
    }

    fn ahead_text(&self) -> &'t str {
        &self.text[self.ahead.start..self.ahead.end]
    }

    fn node(&mut self, node: Node) -> u32 {
        self.ast.nodes.push(node);
        self.ast.nodes.len() as u32 - 1
    }

    fn arith(&mut self, arith: Arith) -> u32 {
        self.ast.arith.push(arith);
        self.ast.arith.len() as u32 - 1
    }

    fn need(&self) -> Need {
        match self.stack.last() {
            None => Need::Any,
            Some(Frame::Paren { need, .. } | Frame::Not(need)) => *need,
            Some(Frame::List { ids: false, .. }) => Need::Any,
            Some(Frame::List { ids: true, .. } | Frame::Head(..)) => Need::Id,
            Some(Frame::Neg | Frame::Bin { .. } | Frame::Rel { .. } | Frame::Index { .. }) => {
                Need::Arith
            }
        }
    }

    /// Parses an operand; returns `None` after a prefix, such as `not` or `(`.
    fn operand(&mut self) -> Result<Option<Operand>, Error> {
        let (need, start) = (self.need(), self.ahead.start);
        match (self.ahead.token, need) {
            (Token::Num(number), _) => {
                let word = self.advance()?;
                Ok(Some(Operand {
                    value: Value::Num(number),
                    quals: self.inherited,
                    span: Span::new(start, word.end),
                    closed: false,
                }))
            }
            (Token::LParen, _) => {
                self.advance()?;
                let inherited = self.inherited;
                self.push(Frame::Paren {
                    inherited,
                    need,
                    start,
                })
            }
            (Token::Not, Need::Any | Need::Id) => {
                self.advance()?;
                self.push(Frame::Not(need))
            }
            (Token::Minus, Need::Any | Need::Arith) => {
                self.advance()?;
                self.push(Frame::Neg)
            }
            (Token::Len, Need::Any | Need::Arith) => {
                let word = self.advance()?;
                let length = self.arith(Arith::Len);
                Ok(Some(self.arithmetic(length, Span::new(start, word.end))))
            }
            (Token::Proto(proto), Need::Any | Need::Arith) => {
                let word = self.advance()?;
                let span = Span::new(start, word.end);
                if self.ahead.token == Token::LBracket {
                    self.advance()?;
                    return self.push(Frame::Index { proto, span });
                }
                if need == Need::Arith {
                    return Err(self.unexpected("`[` and the place of the bytes to load", &[]));
                }
                self.behind_proto(Some(proto), span)
            }
            (
                Token::Name | Token::Dotted | Token::Ip6Addr | Token::Mac | Token::ArcnetAddr,
                Need::Any | Need::Id,
            ) => self.identifier().map(Some),
            (_, Need::Any) => self.primitive(),
            _ => Err(self.no_operand(need)),
        }
    }

    fn push(&mut self, frame: Frame) -> Result<Option<Operand>, Error> {
        self.stack.push(frame);
        Ok(None)
    }

    fn arithmetic(&self, arith: u32, span: Span) -> Operand {
        Operand {
            value: Value::Arith(arith),
            quals: None,
            span,
            closed: false,
        }
    }

    fn term(&mut self, prim: Prim, start: usize, end: usize) -> Option<Operand> {
        let span = Span::new(start, end);
        let node = self.node(Node::Prim(prim, span));
        Some(Operand {
            value: Value::Term(node),
            quals: None,
            span,
            closed: false,
        })
    }
}

/// The text of a name without its escaping backslash.
pub(super) fn unescaped(text: &str) -> &str {
    text.strip_prefix('\\').unwrap_or(text)
}
