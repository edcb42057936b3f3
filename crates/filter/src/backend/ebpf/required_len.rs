//! Required length: an analysis of the bytes that accepting paths read, so that one
//! bounds check covers many loads (anticipated checks).
//!
//! A load outside the frame rejects. So the bytes that *every* accepting path from a
//! point loads may be required at that point: a shorter frame is rejected either
//! way. An extent is measured from an **anchor**: the start of the frame, or the
//! start plus a value that is the base of a load.

use crate::ir::{BinOp, Block, Op, Operand, Program, Term, Value};

/// Bytes that direct access reaches from the start of the frame, one less than 64 KiB:
/// the kernel's `MAX_PACKET_OFF`.
pub const DIRECT_MAX: u32 = 0xffff;

/// Bytes that the kernel's load helpers reach; they refuse offsets beyond `INT_MAX`.
pub(super) const CALL_MAX: u32 = 0x7fff_ffff;

/// The origin of an extent: the start of the frame, plus the value if there is one.
pub(super) type Anchor = Option<Value>;

/// Maximum number of anchors tracked at one point; loads from others are checked more
/// often.
pub(super) const ANCHORS_MAX: usize = 8;

/// The requirement common to all paths from the start of a block to acceptance.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum RequiredLen {
    /// No path accepts.
    Never,
    /// Every accepting path loads at least these extents from these anchors.
    Extents(Vec<(Anchor, u32)>),
}

impl RequiredLen {
    /// The extent from `anchor`; 0 if unknown.
    pub(super) fn extent(&self, anchor: Anchor) -> u32 {
        match self {
            RequiredLen::Never => 0,
            RequiredLen::Extents(list) => {
                let row = list.iter().find(|(candidate, _)| *candidate == anchor);
                row.map_or(0, |(_, extent)| *extent)
            }
        }
    }

    /// The requirement where either continuation may be taken.
    fn either(self, other: &RequiredLen) -> RequiredLen {
        match (self, other) {
            (RequiredLen::Never, other) => other.clone(),
            (this, RequiredLen::Never) => this,
            (RequiredLen::Extents(mut list), other) => {
                for (anchor, extent) in &mut list {
                    *extent = other.extent(*anchor).min(*extent);
                }
                list.retain(|(_, extent)| *extent > 0);
                RequiredLen::Extents(list)
            }
        }
    }
}

/// The requirement of each block, and an upper bound of each value.
pub(super) struct RequiredLens {
    pub(super) needs: Vec<RequiredLen>,
    pub(super) bounds: Vec<u32>,
}

/// Analyses a verified program for an access that reaches `max` bytes.
pub(super) fn analyse(program: &Program, max: u32) -> RequiredLens {
    let homes = homes(program);
    let mut needs = vec![RequiredLen::Never; program.blocks.len()];
    for index in (0..program.blocks.len()).rev() {
        needs[index] = need_of(program, index, &needs, &homes, max);
    }
    RequiredLens {
        needs,
        bounds: bounds(program),
    }
}

/// The index of the block that defines each value.
fn homes(program: &Program) -> Vec<u32> {
    let mut homes = vec![u32::MAX; program.values.len()];
    for (index, block) in program.blocks.iter().enumerate() {
        for value in block.params.iter().chain(&block.insts) {
            homes[value.index()] = index as u32;
        }
    }
    homes
}

fn need_of(
    program: &Program,
    index: usize,
    needs: &[RequiredLen],
    homes: &[u32],
    max: u32,
) -> RequiredLen {
    let block = program.block(Block(index as u32));
    let mut behind = match &block.term {
        Term::Return(Operand::Imm(0)) => RequiredLen::Never,
        Term::Return(_) => RequiredLen::Extents(Vec::new()),
        _ => RequiredLen::Never,
    };
    for edge in block.term.edges() {
        behind = behind.either(&before(&needs[edge.block.index()], edge.block, homes));
    }
    let RequiredLen::Extents(behind) = behind else {
        return RequiredLen::Never;
    };
    let mut list = Vec::new();
    for &value in &block.insts {
        match program.op(value) {
            Op::Load {
                width,
                base,
                offset,
            } => {
                let extent = offset.saturating_add(width.bytes()).min(max);
                raise(&mut list, base, extent);
            }
            Op::Bin {
                op: BinOp::Div | BinOp::Mod,
                b: Operand::Imm(0),
                ..
            } => return RequiredLen::Never,
            _ => {}
        }
    }
    for (anchor, extent) in behind {
        raise(&mut list, anchor, extent);
    }
    RequiredLen::Extents(list)
}

/// The requirement on the edges to `block`, without anchors that the block defines.
fn before(need: &RequiredLen, block: Block, homes: &[u32]) -> RequiredLen {
    match need {
        RequiredLen::Never => RequiredLen::Never,
        RequiredLen::Extents(list) => {
            let outside = |anchor: Anchor| {
                anchor.is_none_or(|value| homes[value.index()] as usize != block.index())
            };
            let list = list.iter().filter(|(anchor, _)| outside(*anchor));
            RequiredLen::Extents(list.copied().collect())
        }
    }
}

fn raise(list: &mut Vec<(Anchor, u32)>, anchor: Anchor, extent: u32) {
    if let Some((_, known)) = list.iter_mut().find(|(other, _)| *other == anchor) {
        *known = extent.max(*known);
    } else if list.len() < ANCHORS_MAX {
        list.push((anchor, extent));
    }
}

/// Upper bounds of values that hold on every path.
fn bounds(program: &Program) -> Vec<u32> {
    let mut bounds = vec![u32::MAX; program.values.len()];
    for &value in program.blocks.iter().flat_map(|block| &block.insts) {
        let of = |operand: Operand| match operand {
            Operand::Imm(constant) => constant,
            Operand::Val(value) => bounds[value.index()],
        };
        bounds[value.index()] = match program.op(value) {
            Op::Load { width, .. } => width.max_value(),
            Op::Test { .. } => 1,
            Op::Bin { op, a, b } => bound_of(op, of(a), of(b), b),
            _ => u32::MAX,
        };
    }
    bounds
}

fn bound_of(op: BinOp, a: u32, b: u32, right: Operand) -> u32 {
    match (op, right) {
        (BinOp::And, _) => a.min(b),
        (BinOp::Add, _) => a.saturating_add(b),
        (BinOp::Shl, Operand::Imm(shift)) if shift <= a.leading_zeros() && shift < 32 => a << shift,
        (BinOp::Shr, Operand::Imm(shift)) if shift < 32 => a >> shift,
        _ => u32::MAX,
    }
}
