//! How far into the frame each point of a program is sure to read, and how
//! far is proven to be captured.
//!
//! A load outside the captured bytes rejects the frame, and nothing else
//! happens on the way there: so a check may be made as early as one likes, if
//! every path on to an accepting verdict would make it anyway. *Needs* run
//! backwards: at each block, the extent that all accepting paths from its
//! start read. The generator checks that much at once, at the block's start;
//! *proofs* run forwards: what is already checked on every path to a block is
//! not checked again.
//!
//! ```text
//!  b0: needs 24   load.2 [12]           check 24 once,
//!   ├─ b1: needs 24   load.1 [23]       nothing here,
//!   └─ b2: needs 58   load.2 [56]       58 here
//! ```
//!
//! An extent is a count of bytes from the frame's start, or from a value (the
//! transport header behind an IPv4 header of variable length): one such pair
//! is followed per point, which is what filters have.

use crate::ir::{Operand, Program, Term, Value};

/// The need of a point from where no path accepts.
pub(super) const NEVER: u64 = u64::MAX;

/// Bytes that are needed, or proven to be there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Extent {
    /// From the frame's start; [`NEVER`] if nothing here accepts.
    pub(super) fixed: u64,
    /// From the position that a value gives.
    pub(super) based: Option<(Value, u64)>,
}

impl Extent {
    /// What no accepting path needs.
    pub(super) const REJECTS: Extent = Extent {
        fixed: NEVER,
        based: None,
    };

    /// Whether no path from here accepts.
    pub(super) fn never_accepts(self) -> bool {
        self.fixed == NEVER
    }

    /// What holds on both of two paths, where `NEVER` is no path at all.
    pub(super) fn on_both(self, other: Extent) -> Extent {
        if self.never_accepts() {
            return other;
        }
        if other.never_accepts() {
            return self;
        }
        Extent {
            fixed: self.fixed.min(other.fixed),
            based: match (self.based, other.based) {
                (Some((value, a)), Some((other, b))) if value == other => Some((value, a.min(b))),
                _ => None,
            },
        }
    }

    /// Adds the need of a load that ends `end` bytes behind `base`.
    pub(super) fn add_load(&mut self, base: Option<Value>, end: u64) {
        match (base, self.based) {
            (None, _) => self.fixed = self.fixed.max(end),
            (Some(base), Some((value, extent))) if value == base => {
                self.based = Some((base, extent.max(end)));
            }
            // The earlier load's base is the more useful one.
            (Some(base), _) => self.based = Some((base, end)),
        }
    }

    /// Whether a load that ends `end` bytes behind `base` needs no check where
    /// this is proven.
    pub(super) fn covers(self, base: Option<Value>, end: u64) -> bool {
        match (base, self.based) {
            (None, _) => end <= self.fixed,
            (Some(base), Some((value, extent))) => value == base && end <= extent,
            (Some(_), None) => false,
        }
    }

    /// Adds the proof that `end` bytes behind `base` are captured.
    pub(super) fn prove(&mut self, base: Option<Value>, end: u64) {
        // A base is at least zero.
        self.fixed = self.fixed.max(end);
        if let Some(base) = base {
            self.based = Some((base, end));
        }
    }
}

/// The need at the end of a block whose successors' needs are known.
pub(super) fn at_end(program: &Program, index: usize, needs: &[Extent]) -> Extent {
    match &program.blocks[index].term {
        Term::Return(Operand::Imm(0)) => Extent::REJECTS,
        Term::Return(_) => Extent::default(),
        Term::Jump(edge) => needs[edge.block.index()],
        Term::Branch {
            then, otherwise, ..
        } => needs[then.block.index()].on_both(needs[otherwise.block.index()]),
    }
}
