//! Code generation for comparisons of arithmetic on bytes of the frame.
//!
//! A load from a protocol's header is guarded by a test for that protocol. As in
//! libpcap, the guards of an operator's right operand are lost: `1 + tcp[0] = 5` does not
//! test for TCP.

use super::super::ast::Arith;
use super::super::lower::fold;
use super::*;

/// Facts about an arithmetic node before it is computed.
#[derive(Clone, Copy)]
struct ArithInfo {
    /// Tests that must hold before the computation.
    guard: PredRef,
    /// The first literal, if the node starts with one.
    literal: Option<u32>,
}

/// A computed value, and its value after constant folding.
#[derive(Clone, Copy)]
struct Value {
    source: Source,
    folded: Source,
}

impl Value {
    fn of(source: Source) -> Value {
        let folded = source;
        Value { source, folded }
    }
}

impl Generator<'_> {
    pub(super) fn relation(
        &mut self,
        cmp: Cmp,
        first: u32,
        left: u32,
        right: u32,
    ) -> Fault<PredRef> {
        let ast = self.ast;
        let nodes = &ast.arith[first as usize..=right as usize];
        let mut shapes: Vec<ArithInfo> = Vec::with_capacity(nodes.len());
        for node in nodes {
            let shape = self.arith_info(node, &shapes, first)?;
            shapes.push(shape);
        }
        let begin = self.code.begin();
        let mut values: Vec<Value> = Vec::with_capacity(nodes.len());
        for node in nodes {
            let value = self.value(node, &values, first)?;
            values.push(value);
        }
        let [a, b] = [left, right].map(|side| values[(side - first) as usize].source);
        let holds = self.code.test(begin, cmp, a, b);
        let guards = [left, right].map(|side| shapes[(side - first) as usize].guard);
        let guarded = self.code.and(guards[0], holds);
        Ok(self.code.and(guards[1], guarded))
    }

    fn arith_info(&mut self, node: &Arith, shapes: &[ArithInfo], first: u32) -> Fault<ArithInfo> {
        let of = |index: u32| shapes[(index - first) as usize];
        Ok(match *node {
            Arith::Num(number) => ArithInfo {
                guard: PredRef::TRUE,
                literal: Some(number),
            },
            Arith::Len => ArithInfo {
                guard: PredRef::TRUE,
                literal: None,
            },
            Arith::Neg(inner) => of(inner),
            Arith::Load {
                proto,
                index,
                size,
                span,
            } => {
                let inner = of(index);
                if !matches!(size, 1 | 2 | 4) {
                    let message = format!("a load of {size} bytes");
                    let error = Error::new(self.span.range(), message);
                    return Err(error.expected("a size of 1, 2 or 4"));
                }
                let guard = self.load_guard(proto, span)?;
                ArithInfo {
                    guard: self.code.and(inner.guard, guard),
                    ..inner
                }
            }
            Arith::Bin(op, left, right, span) => {
                check_literal(op, of(right).literal, span)?;
                of(left)
            }
        })
    }

    /// The test before a load of `proto[…]`.
    fn load_guard(&mut self, proto: Proto, span: Span) -> Fault<PredRef> {
        match proto {
            Proto::Link => {
                self.check_link_known("`ether[…]`")?;
                Ok(PredRef::TRUE)
            }
            Proto::Ip
            | Proto::Arp
            | Proto::Rarp
            | Proto::Atalk
            | Proto::Decnet
            | Proto::Sca
            | Proto::Lat
            | Proto::Moprc
            | Proto::Mopdl
            | Proto::Ip6 => self.abbreviation(proto),
            Proto::Sctp
            | Proto::Tcp
            | Proto::Udp
            | Proto::Icmp
            | Proto::Igmp
            | Proto::Igrp
            | Proto::Pim
            | Proto::Vrrp
            | Proto::Carp
            | Proto::Icmp6 => self.guard(proto),
            other => {
                let message = format!("no byte of `{}` can be loaded", other.word());
                Err(Error::new(span.range(), message)
                    .expected("a protocol such as `ether`, `ip`, `ip6`, `tcp` or `udp`"))
            }
        }
    }

    fn value(&mut self, node: &Arith, values: &[Value], first: u32) -> Fault<Value> {
        let of = |index: u32| values[(index - first) as usize];
        Ok(match *node {
            Arith::Num(number) => Value::of(Source::Imm(number)),
            Arith::Len => Value::of(self.code.op(Op::Len).into()),
            Arith::Neg(inner) => {
                let negated = self.code.bin(BinOp::Sub, 0, of(inner).source);
                Value {
                    source: negated.into(),
                    folded: match of(inner).folded {
                        Source::Imm(number) => Source::Imm(number.wrapping_neg()),
                        Source::Temp(_) => negated.into(),
                    },
                }
            }
            Arith::Load {
                proto, index, size, ..
            } => Value::of(self.indexed_load(proto, of(index).source, size).into()),
            Arith::Bin(op, left, right, span) => {
                let (left, right) = (of(left), of(right));
                check_constants(op, left.folded, right.folded, span)?;
                let source = self.code.bin(op, left.source, right.source).into();
                Value {
                    source,
                    folded: fold(op, left.folded, right.folded).unwrap_or(source),
                }
            }
        })
    }

    fn indexed_load(&mut self, proto: Proto, index: Source, size: u32) -> Temp {
        let width = match size {
            1 => Width::B1,
            2 => Width::B2,
            _ => Width::B4,
        };
        let layout = self.layout;
        let (base, constant) = match proto {
            Proto::Link => (
                self.variable(layout.link_header),
                layout.link_header.constant,
            ),
            Proto::Icmp6 => {
                let header = layout.network().plus(IP6_HEADER);
                (self.variable(header), header.constant)
            }
            proto if link::keyword_type(proto).is_some() => {
                let network = layout.network();
                (self.variable(network), network.constant)
            }
            _ => (Some(self.ip_header_len()), layout.network().constant),
        };
        self.code.op(Op::Load {
            width,
            base,
            index: Some(index),
            offset: constant,
        })
    }
}

fn check_literal(op: BinOp, literal: Option<u32>, span: Span) -> Fault<()> {
    let message = match (op, literal) {
        (BinOp::Div | BinOp::Mod, Some(0)) => "the divisor is zero, or starts with a 0",
        (BinOp::Shl | BinOp::Shr, Some(32..)) => {
            "the shift is by more than 31 bits, or starts with such a number"
        }
        _ => return Ok(()),
    };
    Err(Error::new(span.range(), message))
}

/// Refuses an operation that would fail on every frame.
fn check_constants(op: BinOp, a: Source, b: Source, span: Span) -> Fault<()> {
    let message = match (op, a, b) {
        (BinOp::Div | BinOp::Mod, _, Source::Imm(0)) => "the divisor is zero",
        (BinOp::Shl | BinOp::Shr, Source::Temp(_), Source::Imm(32..)) => {
            "the shift is by more than 31 bits"
        }
        _ => return Ok(()),
    };
    Err(Error::new(span.range(), message))
}
