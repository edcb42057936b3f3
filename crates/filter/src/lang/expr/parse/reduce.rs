//! The reductions of the grammar: each combines an operand with the top of the stack,
//! or shifts the next token.

use super::*;
use crate::lang::expr::ast::Id;

impl Parser<'_> {
    /// Reduces `operand`, or shifts, depending on the stack and the next token.
    pub(super) fn step(&mut self, operand: Operand) -> Result<Step, Error> {
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
            // Terms in place of identifiers have been refused before.
            _ => Err(self.unexpected("an identifier", &[])),
        }
    }

    fn list(&mut self, and: bool, left: u32, right: u32) -> u32 {
        self.node(if and {
            Node::And(left, right)
        } else {
            Node::Or(left, right)
        })
    }

    fn open_list(&mut self, left: u32, ids: bool, operand: Operand) -> Result<Step, Error> {
        let and = self.advance()?.token == Token::And;
        self.inherited = operand.quals;
        self.stack.push(Frame::List { and, ids, left });
        Ok(Step::Next)
    }
}

/// Operator and precedence of a token; the precedence is `None` for `%` and `^`.
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
