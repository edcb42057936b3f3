//! Code generation: turns the syntax tree into tests of bytes for one link type, a
//! file for each family of primitives.
//!
//! The tests and their order are those of libpcap, since the order is observable: a
//! load beyond the captured bytes rejects the frame, whichever tests would follow.

mod address;
mod arith;
mod encap;
mod ether;
mod host;
mod layout;
mod link;
mod port;
mod predicate;
mod proto;
mod protochain;

pub(super) use predicate::{Node, Op, PredRef, PredicateArena, Register, Source, Temp, Test};

use crate::ir::{BinOp, Cmp, Width, limits};
use crate::lang::shortened;

use super::Context;
use super::ast::{self, Ast, Dir, Id, Kind, LlcKind, Prim, Quals, Span};
use super::error::Error;
use super::token::Proto;
use layout::{From, IP6_HEADER, Layout, Link, MPLS_ENTRY, Position};

type Fault<T> = Result<T, Error>;

/// Generates the predicate of a whole text.
pub(super) fn generate(
    text: &str,
    ast: &Ast,
    context: &Context<'_>,
) -> Fault<(PredicateArena, PredRef)> {
    let mut generator = Generator {
        text,
        ast,
        context,
        layout: Layout::of(Link::of(context.linktype)),
        code: PredicateArena::default(),
        span: Span::new(0, text.len()),
    };
    let mut preds: Vec<PredRef> = Vec::with_capacity(ast.nodes.len());
    for node in &ast.nodes {
        let pred = match *node {
            ast::Node::And(a, b) => generator.code.and(preds[a as usize], preds[b as usize]),
            ast::Node::Or(a, b) => generator.code.or(preds[a as usize], preds[b as usize]),
            ast::Node::Not(a) => generator.code.not(preds[a as usize]),
            ast::Node::Prim(prim, span) => {
                generator.span = span;
                let pred = generator.primitive(prim)?;
                generator.check_size()?;
                pred
            }
        };
        preds.push(pred);
    }
    let root = preds.last().copied().unwrap_or(PredRef::TRUE);
    Ok((generator.code, root))
}

struct Generator<'a> {
    text: &'a str,
    ast: &'a Ast,
    context: &'a Context<'a>,
    layout: Layout,
    code: PredicateArena,
    /// The span of the current primitive.
    span: Span,
}

impl Generator<'_> {
    fn primitive(&mut self, prim: Prim) -> Fault<PredRef> {
        match prim {
            Prim::Id(quals, id) => self.identifier(quals, id),
            Prim::Abbrev(proto) => self.abbreviation(proto),
            Prim::Relation {
                cmp,
                first,
                left,
                right,
            } => self.relation(cmp, first, left, right),
            Prim::Broadcast(proto) => self.broadcast(proto),
            Prim::Multicast(proto) => self.multicast(proto),
            Prim::Less(length) => Ok(self.length(Cmp::Le, length)),
            Prim::Greater(length) => Ok(self.length(Cmp::Ge, length)),
            Prim::Byte(index, op, value) => self.byte(index, op, value),
            Prim::Inbound => self.direction("inbound", Cmp::Ne),
            Prim::Outbound => self.direction("outbound", Cmp::Eq),
            Prim::IfIndex(index) => self.interface(index),
            Prim::Vlan(tag) => self.vlan(tag),
            Prim::Mpls(label) => self.mpls(label),
            Prim::Pppoed => self.link_type(link::PPPOE_DISCOVERY),
            Prim::Pppoes(session) => self.pppoe_session(session),
            Prim::Geneve(vni) => self.geneve(vni),
            Prim::Vxlan(vni) => self.vxlan(vni),
            Prim::Llc(kind) => self.llc(kind),
        }
    }

    /// Checks the limits of the IR.
    fn check_size(&self) -> Fault<()> {
        if self.code.tests.len() + 2 > limits::BLOCKS_MAX {
            return Err(self.error(format!(
                "the expression needs more than {} tests",
                limits::BLOCKS_MAX - 2
            )));
        }
        if self.code.ops.len() > limits::VALUES_MAX {
            return Err(self.error(format!(
                "the expression needs more than {} operations",
                limits::VALUES_MAX
            )));
        }
        Ok(())
    }

    /// An error at the current primitive.
    fn error(&self, message: impl Into<String>) -> Error {
        Error::new(self.span.range(), message)
    }

    /// The text of the current primitive, shortened for a message.
    fn word(&self) -> String {
        shortened(self.span.of(self.text))
    }

    /// An error: `what` cannot be tested on this link layer.
    fn not_on_link(&self, what: &str) -> Error {
        let link = self.layout.link.linktype();
        if self.layout.link.linktype() == self.context.linktype {
            let error = self.error(format!("{what} cannot be tested on link type {link}"));
            match self.layout.link {
                Link::Ethernet3Mb => {
                    error.expected("a test of bytes, such as `ether[3] = 2`, or of the length")
                }
                Link::Other(_) => error
                    .expected("a test of the length, such as `len > 100`: no more of it is known"),
                _ => error,
            }
        } else {
            self.error(format!(
                "{what} cannot be tested behind this encapsulation ({link})"
            ))
        }
    }

    fn no_qualifier(&self, qualifier: &str, what: &str) -> Error {
        self.error(format!("`{qualifier}` cannot qualify {what}"))
    }

    fn check_max(&self, what: &str, value: u32, max: u32) -> Fault<()> {
        if value <= max {
            return Ok(());
        }
        let error = self.error(format!("the {what} {value} is too large"));
        Err(error.expected(format!("at most {max}")))
    }

    /// The value of the position's register, if it has one.
    fn variable(&mut self, position: Position) -> Option<Temp> {
        let register = position.register?;
        Some(self.code.op(Op::Get(register)))
    }

    fn load_at(&mut self, position: Position, offset: u32, width: Width) -> Temp {
        let base = self.variable(position);
        let offset = position.constant.wrapping_add(offset);
        self.code.op(Op::Load {
            width,
            base,
            index: None,
            offset,
        })
    }

    /// The length of the IPv4 header plus the variable part of its position.
    fn ip_header_len(&mut self) -> Temp {
        let network = self.layout.network();
        let base = self.variable(network);
        let first = self.code.op(Op::Load {
            width: Width::B1,
            base,
            index: None,
            offset: network.constant,
        });
        let words = self.code.op(Op::Mask(first, 0xf));
        let bytes = self.code.bin(BinOp::Shl, words, 2);
        match base {
            Some(base) => self.code.bin(BinOp::Add, bytes, base),
            None => bytes,
        }
    }

    fn load(&mut self, from: From, offset: u32, width: Width) -> Temp {
        let layout = self.layout;
        let position = match from {
            From::LinkHeader => layout.link_header,
            From::LinkType => layout.link_type.unwrap_or(Position::at(0)),
            From::Llc => layout.payload,
            From::Network => layout.network(),
            From::NetworkNoSnap => layout.payload.plus(layout.network_no_snap),
            From::Label => layout.network().plus(MPLS_ENTRY.wrapping_neg()),
            From::Transport6 => layout.network().plus(IP6_HEADER),
            From::Transport4 => {
                let base = Some(self.ip_header_len());
                let offset = layout.network().constant.wrapping_add(offset);
                return self.code.op(Op::Load {
                    width,
                    base,
                    index: None,
                    offset,
                });
            }
        };
        self.load_at(position, offset, width)
    }

    fn compare(&mut self, from: From, offset: u32, width: Width, cmp: Cmp, value: u32) -> PredRef {
        let begin = self.code.begin();
        let loaded = self.load(from, offset, width);
        self.code.test(begin, cmp, loaded, value)
    }

    fn equal(&mut self, from: From, offset: u32, width: Width, value: u32) -> PredRef {
        self.compare(from, offset, width, Cmp::Eq, value)
    }

    /// A test whether a field masked by `mask` equals `value`.
    fn masked(&mut self, from: From, offset: u32, width: Width, value: u32, mask: u32) -> PredRef {
        match mask {
            0 if value == 0 => return PredRef::TRUE,
            0 => return PredRef::FALSE,
            u32::MAX => return self.equal(from, offset, width, value),
            _ => {}
        }
        let begin = self.code.begin();
        let loaded = self.load(from, offset, width);
        let bits = self.code.op(Op::Mask(loaded, mask));
        self.code.test(begin, Cmp::Eq, bits, value)
    }

    /// A test whether any bit of `mask` is set (`Set`) or none is (`Clear`).
    fn bits(&mut self, from: From, offset: u32, width: Width, cmp: Cmp, mask: u32) -> PredRef {
        self.compare(from, offset, width, cmp, mask)
    }

    /// A test whether bytes are equal, compared from the end in the largest units.
    fn bytes(&mut self, from: From, offset: u32, bytes: &[u8]) -> PredRef {
        let mut pred = PredRef::TRUE;
        let mut rest = bytes;
        while !rest.is_empty() {
            let (width, size) = match rest.len() {
                4.. => (Width::B4, 4),
                2.. => (Width::B2, 2),
                _ => (Width::B1, 1),
            };
            let (before, piece) = rest.split_at(rest.len() - size);
            let value = piece
                .iter()
                .fold(0, |value, &byte| value << 8 | u32::from(byte));
            let same = self.equal(from, offset + before.len() as u32, width, value);
            pred = self.code.and(pred, same);
            rest = before;
        }
        pred
    }

    fn length(&mut self, cmp: Cmp, length: u32) -> PredRef {
        let begin = self.code.begin();
        let wire = self.code.op(Op::Len);
        self.code.test(begin, cmp, wire, length)
    }

    /// Combines the predicates of source and destination by the direction.
    fn directed(&mut self, dir: Dir, mut one: impl FnMut(&mut Self, bool) -> PredRef) -> PredRef {
        match dir {
            Dir::Src => one(self, true),
            Dir::Dst => one(self, false),
            Dir::And => {
                let (src, dst) = (one(self, true), one(self, false));
                self.code.and(src, dst)
            }
            Dir::Default | Dir::Or => {
                let (src, dst) = (one(self, true), one(self, false));
                self.code.or(src, dst)
            }
        }
    }
}
