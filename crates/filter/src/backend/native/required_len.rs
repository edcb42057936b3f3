//! Required length: the bytes that every accepting path reads, and the bytes proven to
//! be captured (anticipated checks).
//!
//! A load outside the captured bytes rejects the frame, and the program has no other
//! effect before it. So a check may move up as far as every path from there to an
//! accepting verdict would make it. *Needs* are computed backwards: for each block, the
//! extent that all accepting paths from its start read; the generator checks that
//! extent at the block's start. *Proofs* are computed forwards: an extent checked on
//! every path to a block is not checked again.
//!
//! ```text
//!  b0: needs 24   load.2 [12]           check 24 once,
//!   ├─ b1: needs 24   load.1 [23]       nothing here,
//!   └─ b2: needs 58   load.2 [56]       58 here
//! ```
//!
//! An extent counts bytes from the frame's start, or from a position that a value
//! gives, such as the transport header behind an IPv4 header. The analysis tracks one
//! such value for each point, which suffices for usual filters.

use crate::ir::{Operand, Program, Term, Value};

/// The extent at a point from which no path accepts.
pub(super) const NEVER: u64 = u64::MAX;

/// Bytes that are required, or proven to be captured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Extent {
    /// Bytes from the frame's start; [`NEVER`] if no path accepts.
    pub(super) fixed: u64,
    /// A value, and bytes from the position that it gives.
    pub(super) based: Option<(Value, u64)>,
}

impl Extent {
    /// The requirement if no path accepts.
    pub(super) const REJECTS: Extent = Extent {
        fixed: NEVER,
        based: None,
    };

    /// Whether no path from here accepts.
    pub(super) fn never_accepts(self) -> bool {
        self.fixed == NEVER
    }

    /// The extent that holds on both of two paths; a path with [`NEVER`] does not count.
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

    /// Adds the requirement of a load that ends `end` bytes behind `base`.
    pub(super) fn add_load(&mut self, base: Option<Value>, end: u64) {
        match (base, self.based) {
            (None, _) => self.fixed = self.fixed.max(end),
            (Some(base), Some((value, extent))) if value == base => {
                self.based = Some((base, extent.max(end)));
            }
            // The analysis runs backwards: an earlier load's base, which is more useful,
            // replaces that of a later load.
            (Some(base), _) => self.based = Some((base, end)),
        }
    }

    /// Whether this proof covers a load that ends `end` bytes behind `base`.
    pub(super) fn covers(self, base: Option<Value>, end: u64) -> bool {
        match (base, self.based) {
            (None, _) => end <= self.fixed,
            (Some(base), Some((value, extent))) => value == base && end <= extent,
            (Some(_), None) => false,
        }
    }

    /// Adds the proof that `end` bytes behind `base` are captured.
    pub(super) fn prove(&mut self, base: Option<Value>, end: u64) {
        // A base is at least zero, so the bytes are also captured from the start.
        self.fixed = self.fixed.max(end);
        if let Some(base) = base {
            self.based = Some((base, end));
        }
    }
}

/// The requirement at the end of block `index`, from `needs` of its successors.
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
