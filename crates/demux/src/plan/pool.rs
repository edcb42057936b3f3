//! The expressions of a plan: shared by all bindings, freed with the last use.

use super::hash::WordHash;
use crate::expr::Exprs;
use std::collections::HashMap;
use weir_filter::ir::{BinOp, Op, Operand, Value, Width};

/// Every expression in use, by name, with the count of its uses.
#[derive(Clone, Debug)]
pub(super) struct Pool {
    nodes: Vec<Node>,
    free: Vec<u32>,
    names: HashMap<Op, Value, WordHash>,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    op: Op,
    read: Read,
    /// How many expressions, subtables and residuals name it.
    uses: u32,
    /// The bits that may be set.
    bits: u32,
}

/// How an expression is evaluated: the usual ones at a stroke.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Read {
    /// Bytes at a fixed place, or behind a header.
    Load(Load),
    /// The length of a header.
    Length(Length),
    /// Bytes at another place.
    From {
        width: Width,
        offset: u32,
        base: Value,
    },
    /// The length on the wire.
    WireLen,
    /// Anything else: computed once for each frame and remembered.
    Computed,
}

/// Bytes behind a header: `load [((load.1 [byte] & mask) << shift) + offset]`.
/// With a mask of zero they are at a fixed place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Load {
    offset: u32,
    header: Length,
    /// Bits of four bytes that are behind those wanted: 0, 16 or 24.
    excess: u8,
}

/// The length of a header, from one byte of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Length {
    byte: u32,
    mask: u8,
    shift: u8,
}

impl Length {
    /// No header at all.
    const NONE: Length = Length {
        byte: 0,
        mask: 0,
        shift: 0,
    };

    /// What it is in a frame; `None` if the frame ends before.
    #[inline]
    pub(super) fn of(self, bytes: &[u8]) -> Option<u32> {
        let byte = bytes.get(self.byte as usize)?;
        Some(u32::from(byte & self.mask) << self.shift)
    }
}

impl Load {
    fn new(width: Width, header: Length, offset: u32) -> Load {
        Load {
            offset,
            header,
            excess: 32 - 8 * width.bytes() as u8,
        }
    }

    /// The bytes in a frame; `None` if the frame ends before. All widths take
    /// one way, which the processor foresees.
    #[inline]
    pub(super) fn of(self, bytes: &[u8]) -> Option<u32> {
        let start = self.header.of(bytes)? as usize + self.offset as usize;
        let rest = bytes.get(start..)?;
        match rest.first_chunk() {
            Some(word) => Some(u32::from_be_bytes(*word) >> self.excess),
            None => self.at_end(rest),
        }
    }

    /// The same of the last three bytes.
    #[cold]
    fn at_end(self, rest: &[u8]) -> Option<u32> {
        let wanted = rest.get(..4 - usize::from(self.excess) / 8)?;
        let value = |value, byte: &u8| value << 8 | u32::from(*byte);
        Some(wanted.iter().fold(0, value))
    }
}

impl Pool {
    /// A pool without expressions; `hash` is for their names.
    pub(super) fn new(hash: WordHash) -> Pool {
        Pool {
            nodes: Vec::new(),
            free: Vec::new(),
            names: HashMap::with_hasher(hash),
        }
    }

    #[cfg(test)]
    pub(super) fn names_hash(&self) -> &WordHash {
        self.names.hasher()
    }

    #[inline]
    pub(super) fn op(&self, expr: Value) -> Op {
        self.nodes[expr.index()].op
    }

    /// How `expr` is evaluated.
    #[inline]
    pub(super) fn read(&self, expr: Value) -> &Read {
        &self.nodes[expr.index()].read
    }

    fn read_of(&self, op: Op) -> Read {
        match op {
            Op::Len => Read::WireLen,
            Op::Load {
                width,
                base: None,
                offset,
            } => Read::Load(Load::new(width, Length::NONE, offset)),
            Op::Load {
                width,
                base: Some(base),
                offset,
            } => match *self.read(base) {
                Read::Length(length) => Read::Load(Load::new(width, length, offset)),
                _ => Read::From {
                    width,
                    offset,
                    base,
                },
            },
            Op::Bin {
                op: BinOp::Shl,
                a: Operand::Val(masked),
                b: Operand::Imm(shift @ 0..=8),
            } => match self.op(masked) {
                Op::Bin {
                    op: BinOp::And,
                    a: Operand::Val(byte),
                    b: Operand::Imm(mask @ 0..=0xff),
                } => match self.op(byte) {
                    Op::Load {
                        width: Width::B1,
                        base: None,
                        offset,
                    } => Read::Length(Length {
                        byte: offset,
                        mask: mask as u8,
                        shift: shift as u8,
                    }),
                    _ => Read::Computed,
                },
                _ => Read::Computed,
            },
            Op::Param | Op::Bin { .. } | Op::Test { .. } => Read::Computed,
        }
    }

    /// The bits of `expr` that may be set.
    pub(super) fn bits(&self, expr: Value) -> u32 {
        self.nodes[expr.index()].bits
    }

    /// One past the largest name in use.
    #[inline]
    pub(super) fn capacity(&self) -> usize {
        self.nodes.len()
    }

    /// Expressions in use.
    pub(super) fn len(&self) -> usize {
        self.names.len()
    }

    /// Names in use.
    pub(super) fn names(&self) -> impl Iterator<Item = Value> {
        let used = |(_, node): &(usize, &Node)| node.uses > 0;
        let nodes = self.nodes.iter().enumerate().filter(used);
        nodes.map(|(index, _)| Value(index as u32))
    }

    fn node(&mut self, op: Op, bits: u32) -> Value {
        for operand in op.operands().filter_map(Operand::value) {
            self.nodes[operand.index()].uses += 1;
        }
        let node = Node {
            op,
            read: self.read_of(op),
            uses: 0,
            bits,
        };
        let name = match self.free.pop() {
            Some(index) => {
                self.nodes[index as usize] = node;
                Value(index)
            }
            None => {
                self.nodes.push(node);
                Value(self.nodes.len() as u32 - 1)
            }
        };
        self.names.insert(op, name);
        name
    }

    /// How many of a filter's expressions are not in use yet.
    pub(super) fn unknown(&self, exprs: &Exprs) -> usize {
        let mut names: Vec<Option<Value>> = Vec::with_capacity(exprs.len());
        for op in exprs.ops() {
            let mut known = true;
            let op = op.map_operands(|operand| match operand {
                Operand::Val(operand) => {
                    let name = names.get(operand.index()).copied().flatten();
                    known &= name.is_some();
                    name.map_or(operand.into(), Operand::Val)
                }
                constant => constant,
            });
            let name = self.names.get(&ordered(op)).copied();
            names.push(name.filter(|_| known));
        }
        names.iter().filter(|name| name.is_none()).count()
    }

    /// Begins one more use of an expression in use.
    pub(super) fn retain(&mut self, expr: Value) {
        self.nodes[expr.index()].uses += 1;
    }

    /// Ends one use.
    pub(super) fn release(&mut self, expr: Value) {
        let node = &mut self.nodes[expr.index()];
        node.uses -= 1;
        if node.uses > 0 {
            return;
        }
        let op = node.op;
        self.names.remove(&op);
        self.free.push(expr.0);
        // As deep as an expression at most: `limits::EXPR_DEPTH_MAX`.
        for operand in op.operands().filter_map(Operand::value) {
            self.release(operand);
        }
    }
}

/// Gives the plan's names for the names in one filter.
pub(super) struct Translation<'e> {
    exprs: &'e Exprs,
    names: Vec<Option<Value>>,
}

impl<'e> Translation<'e> {
    pub(super) fn new(exprs: &'e Exprs) -> Translation<'e> {
        Translation {
            exprs,
            names: vec![None; exprs.len()],
        }
    }

    /// The plan's name for `expr`; counts as one use.
    pub(super) fn intern(&mut self, pool: &mut Pool, expr: Value) -> Value {
        let name = self.find(pool, expr);
        pool.nodes[name.index()].uses += 1;
        name
    }

    fn find(&mut self, pool: &mut Pool, expr: Value) -> Value {
        if let Some(name) = self.names[expr.index()] {
            return name;
        }
        let op = self.exprs.op(expr).map_operands(|operand| match operand {
            Operand::Val(operand) => Operand::Val(self.find(pool, operand)),
            constant => constant,
        });
        let op = ordered(op);
        let name = match pool.names.get(&op) {
            Some(name) => *name,
            None => pool.node(op, self.exprs.bits(expr)),
        };
        self.names[expr.index()] = Some(name);
        name
    }
}

/// Operands that may change places, in the order of the plan's names.
fn ordered(op: Op) -> Op {
    match op {
        Op::Bin {
            op,
            a: Operand::Val(a),
            b: Operand::Val(b),
        } if op.commutes() && b < a => Op::Bin {
            op,
            a: Operand::Val(b),
            b: Operand::Val(a),
        },
        op => op,
    }
}
