//! From words to the tree, with precedence as pcap-filter(7) has it.
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
//! `and` and `or` bind equally, from left to right. An identifier without a
//! head takes the qualifiers of what stands before it. Arithmetic binds, from
//! loose to tight, `|`, `&`, `<< >>`, `+ -`, `* /`, unary `-`; `%` and `^` have
//! no place in that order: whatever stands to their right, or to the right of
//! an operator before them, is taken first.
//!
//! A shift-reduce parser with its own stack: nesting costs heap, not the
//! call stack.

use crate::ir::{BinOp, Cmp};

use super::ast::{Arith, Ast, ByteOp, Dir, Id, Kind, LlcKind, Node, Prim, Quals, Span};
use super::error::Error;
use super::lexer::{Lexer, Word};
use super::suggest::nearest;
use super::token::{Foreign, KEYWORDS, Proto, Token};

/// What may stand at a place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Need {
    /// A term, an identifier, or arithmetic.
    Any,
    /// An identifier.
    Id,
    /// Arithmetic.
    Arith,
}

/// What waits for an operand.
#[derive(Clone, Copy, Debug)]
enum Frame {
    Paren {
        inherited: Option<Quals>,
        need: Need,
        start: usize,
    },
    Not(Need),
    /// A left operand and its `and` or `or`.
    List {
        and: bool,
        ids: bool,
        left: u32,
    },
    /// Qualifiers that wait for their identifier.
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

/// An operand as far as it is read.
#[derive(Clone, Copy, Debug)]
struct Operand {
    value: Value,
    /// What an identifier behind it inherits.
    quals: Option<Quals>,
    span: Span,
    /// Identifiers in parentheses of their own, which no further parentheses
    /// may open with.
    closed: bool,
}

#[derive(Clone, Copy, Debug)]
enum Value {
    /// A number, which may still become an identifier or arithmetic.
    Num(u32),
    Arith(u32),
    Id(u32),
    Term(u32),
}

enum Step {
    /// A larger operand.
    Operand(Operand),
    /// An operator was read; its right operand comes next.
    Next,
    Done,
}

/// Parses a text, which must hold at least one word.
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
    /// Where the arithmetic of the next relation begins.
    relation_first: u32,
}

impl<'t> Parser<'t> {
    /// The word ahead, which is passed.
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

    /// Reads an operand, or what comes before one (`None`).
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

    /// A name or an address, with the qualifiers in force.
    fn identifier(&mut self) -> Result<Operand, Error> {
        let Some(quals) = self.inherited else {
            return Err(self.unqualified(Span::new(self.ahead.start, self.ahead.end)));
        };
        let word = self.advance()?;
        let first = Span::new(word.start, word.end);
        let mut end = word.end;
        let id = match (word.token, self.ahead.token) {
            (Token::Dotted | Token::Ip6Addr, Token::Slash) => {
                self.advance()?;
                let Token::Num(bits) = self.ahead.token else {
                    return Err(self.unexpected("a prefix length behind `/`", &[]));
                };
                end = self.advance()?.end;
                match word.token {
                    Token::Dotted => Id::DottedBits(first, bits),
                    _ => Id::Ip6Bits(first, bits),
                }
            }
            (Token::Dotted, Token::Mask) => {
                self.advance()?;
                if self.ahead.token != Token::Dotted {
                    return Err(self.unexpected("a mask such as 255.255.255.0", &[]));
                }
                let mask = self.advance()?;
                end = mask.end;
                Id::DottedMask(first, Span::new(mask.start, mask.end))
            }
            (Token::Dotted, _) => Id::Dotted,
            (Token::Ip6Addr, _) => Id::Ip6,
            (Token::Mac, _) => Id::Mac,
            (Token::ArcnetAddr, _) => Id::Arcnet,
            _ => Id::Name,
        };
        let span = Span::new(word.start, end);
        let node = self.node(Node::Prim(Prim::Id(quals, id), span));
        Ok(Operand {
            value: Value::Id(node),
            quals: Some(quals),
            span,
            closed: false,
        })
    }

    /// What may follow a protocol, or stand without one.
    fn behind_proto(&mut self, proto: Option<Proto>, span: Span) -> Result<Option<Operand>, Error> {
        let start = span.start as usize;
        let kind = match self.ahead.token {
            Token::Src | Token::Dst => {
                let dir = self.direction()?;
                let kind = match self.ahead.token {
                    Token::Host => Kind::Host,
                    Token::Net => Kind::Net,
                    Token::Port => Kind::Port,
                    Token::PortRange => Kind::PortRange,
                    _ => Kind::Default,
                };
                if kind != Kind::Default {
                    self.advance()?;
                }
                return self.head(Quals { proto, dir, kind }, start);
            }
            Token::Host => Kind::Host,
            Token::Net => Kind::Net,
            Token::Port => Kind::Port,
            Token::PortRange => Kind::PortRange,
            Token::Gateway => Kind::Gateway,
            Token::ProtoKw => Kind::Proto,
            Token::ProtoChain => Kind::ProtoChain,
            Token::Broadcast => {
                let end = self.advance()?.end;
                return Ok(self.term(Prim::Broadcast(proto), start, end));
            }
            Token::Multicast => {
                let end = self.advance()?.end;
                return Ok(self.term(Prim::Multicast(proto), start, end));
            }
            _ => {
                return match proto {
                    Some(proto) => Ok(self.term(Prim::Abbrev(proto), start, span.end as usize)),
                    None => Err(self.no_operand(Need::Any)),
                };
            }
        };
        self.advance()?;
        let dir = Dir::Default;
        self.head(Quals { proto, dir, kind }, start)
    }

    fn head(&mut self, quals: Quals, start: usize) -> Result<Option<Operand>, Error> {
        self.inherited = Some(quals);
        self.push(Frame::Head(quals, start))
    }

    /// `src`, `dst`, or both with `and` or `or` between them.
    fn direction(&mut self) -> Result<Dir, Error> {
        let first = self.advance()?.token;
        let (alone, other) = match first {
            Token::Src => (Dir::Src, Token::Dst),
            _ => (Dir::Dst, Token::Src),
        };
        let both = match self.ahead.token {
            Token::And => Dir::And,
            Token::Or => Dir::Or,
            _ => return Ok(alone),
        };
        self.advance()?;
        if self.ahead.token != other {
            let word = if other == Token::Dst { "dst" } else { "src" };
            return Err(self.unexpected(&format!("`{word}`"), &[word]));
        }
        self.advance()?;
        Ok(both)
    }

    /// A primitive that starts with a word of its own.
    fn primitive(&mut self) -> Result<Option<Operand>, Error> {
        let Word { token, start, end } = self.ahead;
        let simple = match token {
            Token::Inbound => Prim::Inbound,
            Token::Outbound => Prim::Outbound,
            Token::Pppoed => Prim::Pppoed,
            Token::Less | Token::Greater | Token::IfIndex => {
                self.advance()?;
                let (number, end) = self.number()?;
                let prim = match token {
                    Token::Less => Prim::Less(number),
                    Token::Greater => Prim::Greater(number),
                    _ => Prim::IfIndex(number),
                };
                return Ok(self.term(prim, start, end));
            }
            Token::Byte => return self.byte(),
            Token::Vlan | Token::Mpls | Token::Pppoes | Token::Geneve | Token::Vxlan => {
                self.advance()?;
                let (number, end) = self.parenthesised_number(end)?;
                let prim = match token {
                    Token::Vlan => Prim::Vlan(number),
                    Token::Mpls => Prim::Mpls(number),
                    Token::Pppoes => Prim::Pppoes(number),
                    Token::Geneve => Prim::Geneve(number),
                    _ => Prim::Vxlan(number),
                };
                return Ok(self.term(prim, start, end));
            }
            Token::Llc => {
                self.advance()?;
                let (kind, end) = self.llc_kind(end)?;
                return Ok(self.term(Prim::Llc(kind), start, end));
            }
            _ => return self.behind_proto(None, Span::new(start, end)),
        };
        self.advance()?;
        Ok(self.term(simple, start, end))
    }

    fn number(&mut self) -> Result<(u32, usize), Error> {
        let Token::Num(number) = self.ahead.token else {
            return Err(self.unexpected("a number", &[]));
        };
        let end = self.advance()?.end;
        Ok((number, end))
    }

    /// A number in any number of parentheses, or nothing.
    fn parenthesised_number(&mut self, end: usize) -> Result<(Option<u32>, usize), Error> {
        let mut depth = 0_usize;
        while self.ahead.token == Token::LParen {
            self.advance()?;
            depth += 1;
        }
        if depth == 0 && !matches!(self.ahead.token, Token::Num(_)) {
            return Ok((None, end));
        }
        let (number, mut end) = self.number()?;
        for _ in 0..depth {
            if self.ahead.token != Token::RParen {
                return Err(self.unexpected("`)`", &[]));
            }
            end = self.advance()?.end;
        }
        Ok((Some(number), end))
    }

    /// `byte N op N`.
    fn byte(&mut self) -> Result<Option<Operand>, Error> {
        let start = self.advance()?.start;
        let (index, _) = self.number()?;
        let op = match self.ahead.token {
            Token::Amp => ByteOp::NonZero(BinOp::And),
            Token::Pipe => ByteOp::NonZero(BinOp::Or),
            Token::Lt => ByteOp::Compare(Cmp::Lt),
            Token::Gt => ByteOp::Compare(Cmp::Gt),
            Token::Eq => ByteOp::Compare(Cmp::Eq),
            _ => return Err(self.unexpected("one of `=`, `<`, `>`, `&` and `|`", &[])),
        };
        self.advance()?;
        let (value, end) = self.number()?;
        Ok(self.term(Prim::Byte(index, op, value), start, end))
    }

    fn llc_kind(&mut self, end: usize) -> Result<(LlcKind, usize), Error> {
        const KINDS: [(&str, LlcKind); 14] = [
            ("i", LlcKind::Information),
            ("s", LlcKind::Supervisory),
            ("u", LlcKind::Unnumbered),
            ("rr", LlcKind::S(0x01)),
            ("rnr", LlcKind::S(0x05)),
            ("rej", LlcKind::S(0x09)),
            ("ui", LlcKind::U(0x03)),
            ("ua", LlcKind::U(0x63)),
            ("disc", LlcKind::U(0x43)),
            ("dm", LlcKind::U(0x0f)),
            ("sabme", LlcKind::U(0x6f)),
            ("test", LlcKind::U(0xe3)),
            ("xid", LlcKind::U(0xaf)),
            ("frmr", LlcKind::U(0x87)),
        ];
        if self.ahead.token == Token::Rnr {
            let end = self.advance()?.end;
            return Ok((LlcKind::S(0x05), end));
        }
        if self.ahead.token != Token::Name {
            return Ok((LlcKind::Any, end));
        }
        let text = unescaped(self.ahead_text());
        let row = KINDS
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(text));
        let Some((_, kind)) = row else {
            let names: Vec<&str> = KINDS.iter().map(|(name, _)| *name).collect();
            return Err(self.unexpected("a kind of LLC frame, such as `ui`", &names));
        };
        let end = self.advance()?.end;
        Ok((*kind, end))
    }

    /// Goes on with an operand, by what waits for it and what comes next.
    fn step(&mut self, operand: Operand) -> Result<Step, Error> {
        match operand.value {
            Value::Num(number) => self.step_number(number, operand),
            Value::Arith(arith) => self.step_arith(arith, operand),
            Value::Id(node) => self.step_id(node, operand),
            Value::Term(node) => self.step_term(node, operand),
        }
    }

    fn step_number(&mut self, number: u32, operand: Operand) -> Result<Step, Error> {
        let need = self.need();
        let ahead = self.ahead.token;
        let continues = arith_op(ahead).is_some() || relation(ahead).is_some();
        if ahead == Token::RParen
            && let Some(Frame::Paren { start, .. }) = self.stack.last()
        {
            let start = *start;
            self.stack.pop();
            let end = self.advance()?.end;
            return Ok(Step::Operand(Operand {
                span: Span::new(start, end),
                ..operand
            }));
        }
        if need == Need::Arith || (continues && need == Need::Any) {
            let arith = self.arith(Arith::Num(number));
            return Ok(Step::Operand(self.arithmetic(arith, operand.span)));
        }
        let Some(quals) = self.inherited else {
            return Err(self.unqualified(operand.span));
        };
        let prim = Prim::Id(quals, Id::Num(number));
        let node = self.node(Node::Prim(prim, operand.span));
        Ok(Step::Operand(Operand {
            value: Value::Id(node),
            quals: Some(quals),
            span: operand.span,
            closed: false,
        }))
    }

    fn step_arith(&mut self, arith: u32, operand: Operand) -> Result<Step, Error> {
        if let Some((op, precedence)) = arith_op(self.ahead.token) {
            let waits = match self.stack.last() {
                Some(Frame::Neg) => Some(u8::MAX),
                Some(Frame::Bin { precedence, .. }) => *precedence,
                _ => None,
            };
            let first_waiting = matches!((waits, precedence), (Some(w), Some(p)) if w >= p);
            if !first_waiting {
                let right = self.advance()?.end;
                self.stack.push(Frame::Bin {
                    op,
                    precedence,
                    left: arith,
                    right,
                });
                return Ok(Step::Next);
            }
        }
        match self.stack.last().copied() {
            Some(Frame::Neg) => {
                self.stack.pop();
                let negated = self.arith(Arith::Neg(arith));
                Ok(Step::Operand(self.arithmetic(negated, operand.span)))
            }
            Some(Frame::Bin {
                op, left, right, ..
            }) => {
                self.stack.pop();
                let span = Span::new(right, operand.span.end as usize);
                let bin = self.arith(Arith::Bin(op, left, arith, span));
                Ok(Step::Operand(self.arithmetic(bin, operand.span)))
            }
            Some(Frame::Index { proto, span }) => self.close_index(proto, span, arith),
            Some(Frame::Rel { cmp, left, start }) => {
                self.stack.pop();
                let prim = Prim::Relation {
                    cmp,
                    first: self.relation_first,
                    left,
                    right: arith,
                };
                self.relation_first = self.ast.arith.len() as u32;
                let term = self.term(prim, start, operand.span.end as usize);
                term.map_or(Ok(Step::Next), |term| Ok(Step::Operand(term)))
            }
            Some(Frame::Paren { start, need, .. })
                if self.ahead.token == Token::RParen && need != Need::Id =>
            {
                self.stack.pop();
                let end = self.advance()?.end;
                let span = Span::new(start, end);
                Ok(Step::Operand(self.arithmetic(arith, span)))
            }
            _ => self.open_relation(arith, operand.span),
        }
    }

    fn open_relation(&mut self, left: u32, span: Span) -> Result<Step, Error> {
        match (relation(self.ahead.token), self.need()) {
            (Some(cmp), Need::Any) => {
                self.advance()?;
                let start = span.start as usize;
                self.stack.push(Frame::Rel { cmp, left, start });
                Ok(Step::Next)
            }
            (_, Need::Arith) => Err(self.unexpected("an operator or `)`", &[])),
            _ => Err(self.unexpected("a comparison such as `=` or `>`", &[])),
        }
    }

    fn close_index(&mut self, proto: Proto, span: Span, index: u32) -> Result<Step, Error> {
        let mut size = 1;
        if self.ahead.token == Token::Colon {
            self.advance()?;
            size = self.number()?.0;
        }
        if self.ahead.token != Token::RBracket {
            return Err(self.unexpected("`]`, an operator, or `:` and a size of 1, 2 or 4", &[]));
        }
        let end = self.advance()?.end;
        self.stack.pop();
        let load = self.arith(Arith::Load {
            proto,
            index,
            size,
            span,
        });
        let span = Span::new(span.start as usize, end);
        Ok(Step::Operand(self.arithmetic(load, span)))
    }

    fn step_id(&mut self, node: u32, operand: Operand) -> Result<Step, Error> {
        match self.stack.last().copied() {
            Some(Frame::Not(_)) => {
                self.stack.pop();
                let value = Value::Id(self.node(Node::Not(node)));
                let closed = false;
                Ok(Step::Operand(Operand {
                    value,
                    closed,
                    ..operand
                }))
            }
            Some(Frame::Head(quals, start)) => {
                self.stack.pop();
                Ok(Step::Operand(Operand {
                    value: Value::Term(node),
                    quals: Some(quals),
                    span: Span::new(start, operand.span.end as usize),
                    closed: false,
                }))
            }
            Some(Frame::List { and, ids, left }) => {
                self.stack.pop();
                let both = self.list(and, left, node);
                let value = if ids {
                    Value::Id(both)
                } else {
                    Value::Term(both)
                };
                let closed = false;
                Ok(Step::Operand(Operand {
                    value,
                    closed,
                    ..operand
                }))
            }
            Some(Frame::Paren { start, .. }) if operand.closed => {
                let span = Span::new(start, operand.span.end as usize);
                Err(Error::new(
                    span.range(),
                    "a list of identifiers cannot begin with another list",
                )
                .expected("one pair of parentheses, or the single identifier first"))
            }
            Some(Frame::Paren { start, .. }) => match self.ahead.token {
                Token::And | Token::Or => self.open_list(node, true, operand),
                Token::RParen => {
                    self.stack.pop();
                    let end = self.advance()?.end;
                    let span = Span::new(start, end);
                    let closed = true;
                    Ok(Step::Operand(Operand {
                        span,
                        closed,
                        ..operand
                    }))
                }
                _ => Err(self.unexpected("`and`, `or` or `)`", &["and", "or"])),
            },
            _ => Err(self.unqualified(operand.span)),
        }
    }

    fn step_term(&mut self, node: u32, operand: Operand) -> Result<Step, Error> {
        match self.stack.last().copied() {
            Some(Frame::Not(Need::Any)) => {
                self.stack.pop();
                let value = Value::Term(self.node(Node::Not(node)));
                let closed = false;
                Ok(Step::Operand(Operand {
                    value,
                    closed,
                    ..operand
                }))
            }
            Some(Frame::List {
                and,
                ids: false,
                left,
            }) => {
                self.stack.pop();
                let value = Value::Term(self.list(and, left, node));
                let closed = false;
                Ok(Step::Operand(Operand {
                    value,
                    closed,
                    ..operand
                }))
            }
            Some(Frame::Paren {
                inherited,
                need: Need::Any,
                start,
            }) => match self.ahead.token {
                Token::And | Token::Or => self.open_list(node, false, operand),
                Token::RParen => {
                    self.stack.pop();
                    let end = self.advance()?.end;
                    Ok(Step::Operand(Operand {
                        value: Value::Term(node),
                        quals: inherited,
                        span: Span::new(start, end),
                        closed: false,
                    }))
                }
                Token::End => Err(Error::new(start..start + 1, "this `(` is never closed")
                    .expected("`)` before the end of the text")),
                _ => Err(self.after_term(operand, "`and`, `or` or `)`")),
            },
            None => match self.ahead.token {
                Token::And | Token::Or => self.open_list(node, false, operand),
                Token::End => Ok(Step::Done),
                _ => Err(self.after_term(operand, "`and`, `or` or the end")),
            },
            // A term where only an identifier fits has been refused before.
            _ => Err(self.unexpected("an identifier", &[])),
        }
    }

    fn list(&mut self, and: bool, left: u32, right: u32) -> u32 {
        self.node(match and {
            true => Node::And(left, right),
            false => Node::Or(left, right),
        })
    }

    fn open_list(&mut self, left: u32, ids: bool, operand: Operand) -> Result<Step, Error> {
        let and = self.advance()?.token == Token::And;
        self.inherited = operand.quals;
        self.stack.push(Frame::List { and, ids, left });
        Ok(Step::Next)
    }
}

/// Messages.
impl Parser<'_> {
    /// The word ahead does not fit.
    fn unexpected(&self, expected: &str, valid: &[&str]) -> Error {
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

    /// Nothing that starts an operand.
    fn no_operand(&self, need: Need) -> Error {
        let word =
            self.ahead.token != Token::End && self.ahead_text().as_bytes()[0].is_ascii_alphabetic();
        match (need, self.stack.last()) {
            (Need::Arith, _) => self.unexpected("a number, `len` or bytes such as `ip[0]`", &[]),
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

    /// A name or address that nothing qualifies.
    fn unqualified(&self, span: Span) -> Error {
        let text = span.of(self.text);
        let message = format!("`{}` is no test on its own", shortened(text));
        let starts = KEYWORDS.iter().filter(|(_, token)| starts_term(*token));
        let suggestion = nearest(text, starts.map(|(word, _)| *word));
        let expected = match text.as_bytes().first() {
            Some(b'0'..=b'9' | b':') => "a qualifier before it, such as `host` or `port`",
            _ => "a test such as `tcp`, or a qualifier such as `host` before a name",
        };
        Error::new(span.range(), message)
            .expected(expected)
            .suggest(suggestion)
    }

    /// A word behind a complete term.
    fn after_term(&self, operand: Operand, expected: &str) -> Error {
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

/// The text of a name without the backslash that may escape it.
pub(super) fn unescaped(text: &str) -> &str {
    text.strip_prefix('\\').unwrap_or(text)
}

/// A word short enough for a message.
pub(super) fn shortened(text: &str) -> String {
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
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

/// The operator and its precedence; `None` for the two that have none.
fn arith_op(token: Token) -> Option<(BinOp, Option<u8>)> {
    Some(match token {
        Token::Pipe => (BinOp::Or, Some(1)),
        Token::Amp => (BinOp::And, Some(2)),
        Token::Shl => (BinOp::Shl, Some(3)),
        Token::Shr => (BinOp::Shr, Some(3)),
        Token::Plus => (BinOp::Add, Some(4)),
        Token::Minus => (BinOp::Sub, Some(4)),
        Token::Star => (BinOp::Mul, Some(5)),
        Token::Slash => (BinOp::Div, Some(5)),
        Token::Percent => (BinOp::Mod, None),
        Token::Caret => (BinOp::Xor, None),
        _ => return None,
    })
}

fn relation(token: Token) -> Option<Cmp> {
    Some(match token {
        Token::Eq => Cmp::Eq,
        Token::Ne => Cmp::Ne,
        Token::Lt => Cmp::Lt,
        Token::Le => Cmp::Le,
        Token::Gt => Cmp::Gt,
        Token::Ge => Cmp::Ge,
        _ => return None,
    })
}
