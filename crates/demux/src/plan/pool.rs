//! The expressions of a plan, shared by all bindings and freed with the last
//! use.

use super::hash::WordHash;
use crate::expr::Exprs;
use std::collections::HashMap;
use weir_filter::ir::{BinOp, Op, Operand, Value, Width};

/// The expressions in use, by name, each with a reference count.
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
    /// Number of expressions, subtables and residuals that refer to this one.
    uses: u32,
    /// The bits that may be set.
    bits: u32,
}

/// How an expression is evaluated; common forms have a variant of their own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Read {
    /// Bytes at a fixed offset, or behind a header.
    Load(Load),
    /// The length of a header.
    Length(Length),
    /// Bytes at any other computed offset.
    From {
        width: Width,
        offset: u32,
        base: Value,
    },
    /// The frame's length on the wire.
    WireLen,
    /// Any other expression: computed once for each frame and memoised.
    Computed,
}

/// A load of bytes behind a header: `load [((load.1 [byte] & mask) << shift) +
/// offset]`. A mask of zero makes the offset fixed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Load {
    offset: u32,
    header: Length,
    /// Number of bits that a four-byte load reads behind those wanted: 0, 16 or
    /// 24.
    excess: u8,
}

/// The length of a header, encoded in one byte of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Length {
    byte: u32,
    mask: u8,
    shift: u8,
}

impl Length {
    /// No header: the length is zero.
    const NONE: Length = Length {
        byte: 0,
        mask: 0,
        shift: 0,
    };

    /// The header length in a frame; `None` if the frame ends before the byte.
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

    /// The loaded value; `None` if the frame ends before its last byte. All
    /// widths share one code path, so that branches predict well.
    #[inline]
    pub(super) fn of(self, bytes: &[u8]) -> Option<u32> {
        let start = self.header.of(bytes)? as usize + self.offset as usize;
        let rest = bytes.get(start..)?;
        match rest.first_chunk() {
            Some(word) => Some(u32::from_be_bytes(*word) >> self.excess),
            None => self.at_end(rest),
        }
    }

    /// The same load within the last three bytes of the frame.
    #[cold]
    fn at_end(self, rest: &[u8]) -> Option<u32> {
        at_end(rest, self.excess)
    }
}

/// Loads that every frame makes at once: at fixed offsets, or behind one
/// header.
#[derive(Clone, Debug)]
pub(super) struct Lanes {
    header: Length,
    loads: Vec<Lane>,
}

/// One load of [`Lanes`].
#[derive(Clone, Copy, Debug)]
struct Lane {
    offset: u32,
    /// All ones if the offset counts from the end of the header, else zero.
    behind_header: u32,
    mask: u32,
    excess: u8,
}

impl Lanes {
    /// Number of lanes, at most: five-tuple rules need seven.
    pub(super) const MAX: usize = 8;

    pub(super) fn new() -> Lanes {
        Lanes {
            header: Length::NONE,
            loads: Vec::with_capacity(Lanes::MAX),
        }
    }

    fn lane(&mut self, read: Read, mask: u32) -> Option<Lane> {
        let Read::Load(load) = read else { return None };
        let is_fixed = load.header == Length::NONE;
        if !is_fixed && self.header == Length::NONE {
            self.header = load.header;
        }
        (is_fixed || load.header == self.header).then_some(Lane {
            offset: load.offset,
            behind_header: if is_fixed { 0 } else { u32::MAX },
            mask,
            excess: load.excess,
        })
    }

    /// Adds a lane and returns its number; `None` if the value is no such load,
    /// or there are enough lanes.
    pub(super) fn add(&mut self, read: Read, mask: u32) -> Option<usize> {
        let number = self.loads.len();
        if number == Lanes::MAX {
            return None;
        }
        let lane = self.lane(read, mask)?;
        self.loads.push(lane);
        Some(number)
    }

    /// Replaces a lane; returns `false` if the value is no such load.
    pub(super) fn replace(&mut self, number: usize, read: Read, mask: u32) -> bool {
        let lane = self.lane(read, mask);
        if let Some(lane) = lane {
            self.loads[number] = lane;
        }
        lane.is_some()
    }

    /// Writes the values into `values`; returns the lanes that have none, a bit
    /// for each, since the frame ends before.
    #[inline]
    pub(super) fn read(&self, bytes: &[u8], values: &mut [u32; Lanes::MAX]) -> u8 {
        let header = self.header.of(bytes).unwrap_or(u32::MAX);
        let mut missing = 0;
        for (number, (lane, value)) in self.loads.iter().zip(values).enumerate() {
            let start = lane.offset as usize + (header & lane.behind_header) as usize;
            match bytes.get(start..start + 4).and_then(<[u8]>::first_chunk) {
                Some(word) => *value = u32::from_be_bytes(*word) >> lane.excess & lane.mask,
                None => match lane.at_end(bytes, start) {
                    Some(end) => *value = end,
                    None => missing |= 1 << number,
                },
            }
        }
        missing
    }
}

impl Lane {
    #[cold]
    fn at_end(&self, bytes: &[u8], start: usize) -> Option<u32> {
        Some(at_end(bytes.get(start..)?, self.excess)? & self.mask)
    }
}

/// A load of which `excess` of 32 bits lie beyond the frame.
fn at_end(rest: &[u8], excess: u8) -> Option<u32> {
    let wanted = rest.get(..4 - usize::from(excess) / 8)?;
    let value = |value, byte: &u8| value << 8 | u32::from(*byte);
    Some(wanted.iter().fold(0, value))
}

impl Pool {
    /// Makes an empty pool; `hash` is for the map from operations to names.
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

    /// The way to evaluate `expr`.
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

    /// One past the largest name ever in use.
    #[inline]
    pub(super) fn capacity(&self) -> usize {
        self.nodes.len()
    }

    /// Number of expressions in use.
    pub(super) fn len(&self) -> usize {
        self.names.len()
    }

    /// The names in use.
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

    /// Number of a filter's expressions that the pool does not have.
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

    /// Adds one use to an expression in use.
    pub(super) fn retain(&mut self, expr: Value) {
        self.nodes[expr.index()].uses += 1;
    }

    /// Ends one use; the last use frees the expression and its uses of others.
    pub(super) fn release(&mut self, expr: Value) {
        let node = &mut self.nodes[expr.index()];
        node.uses -= 1;
        if node.uses > 0 {
            return;
        }
        let op = node.op;
        self.names.remove(&op);
        self.free.push(expr.0);
        // The recursion is at most as deep as an expression:
        // `limits::EXPR_DEPTH_MAX`.
        for operand in op.operands().filter_map(Operand::value) {
            self.release(operand);
        }
    }
}

/// Translates names of one filter's expressions into names of the plan's pool.
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

    /// The pool's name for `expr`, added if it is new; counts as one use.
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

/// The operation with commutative operands in the order of the pool's names.
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
