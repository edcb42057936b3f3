//! Parsing of identifiers and of primitives that start with a keyword.

use super::super::ast::{ByteOp, Dir, Id, LlcKind};
use super::*;

impl Parser<'_> {
    /// Parses a name or an address; the current qualifiers apply.
    pub(super) fn identifier(&mut self) -> Result<Operand, Error> {
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

    /// Parses the rest of a primitive after a protocol, or without one.
    pub(super) fn behind_proto(
        &mut self,
        proto: Option<Proto>,
        span: Span,
    ) -> Result<Option<Operand>, Error> {
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

    /// Parses `src`, `dst`, or both with `and` or `or` between them.
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

    /// Parses a primitive that starts with a keyword.
    pub(super) fn primitive(&mut self) -> Result<Option<Operand>, Error> {
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

    pub(super) fn number(&mut self) -> Result<(u32, usize), Error> {
        let Token::Num(number) = self.ahead.token else {
            return Err(self.unexpected("a number", &[]));
        };
        let end = self.advance()?.end;
        Ok((number, end))
    }

    /// Parses an optional number in any number of parentheses.
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

    /// Parses `byte N op N`.
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
}
