//! What a plan says of one frame.

use crate::binding::{BindingId, Rank, Target};

/// One binding gets the frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Delivery {
    /// Where the binding stands in the order of the plan.
    pub rank: Rank,
    /// The binding that accepted.
    pub binding: BindingId,
    /// Where the frame goes.
    pub target: Target,
    /// The binding's tag.
    pub tag: u32,
    /// How many bytes of the frame the filter asks for; never zero. More than
    /// the frame has means all of it.
    pub snap_len: u32,
}

/// Who gets a frame: filled by [`Plan::run`](crate::Plan::run).
///
/// It keeps its memory, and scratch memory of the run: use one again and
/// again, on one thread, with any plan.
#[derive(Clone, Default, Debug)]
pub struct Verdict {
    pub(crate) deliveries: Vec<Delivery>,
    pub(crate) taken: bool,
    pub(crate) claimed: bool,
    pub(crate) scratch: Scratch,
}

impl Verdict {
    /// An empty verdict.
    pub fn new() -> Verdict {
        Verdict::default()
    }

    /// The bindings that get the frame, in order: copies, and at the end the
    /// one that took it, if one did. A claim stands among the copies.
    pub fn deliveries(&self) -> &[Delivery] {
        &self.deliveries
    }

    /// Whether a binding took the frame. If not, the default applies: on a
    /// live link the kernel's own protocols get it.
    pub fn is_taken(&self) -> bool {
        self.taken
    }

    /// Whether a claim barred the bindings behind it from taking the frame,
    /// which ends with the kernel's own protocols. Never true of a frame that
    /// is taken.
    pub fn is_claimed(&self) -> bool {
        self.claimed
    }

    /// The delivery that took the frame.
    pub fn taker(&self) -> Option<&Delivery> {
        self.deliveries.last().filter(|_| self.taken)
    }
}

/// Memory of a run that the next one uses again: of each of the frames that
/// are searched for together.
#[derive(Clone, Default, Debug)]
pub(crate) struct Scratch(Vec<Walk>);

impl Scratch {
    /// Memory for so many frames.
    #[inline]
    pub(crate) fn walks(&mut self, count: usize) -> &mut [Walk] {
        if self.0.len() < count {
            self.0.resize_with(count, Walk::default);
        }
        &mut self.0[..count]
    }
}

/// Memory of one frame's way through the tables.
#[derive(Clone, Default, Debug)]
pub(crate) struct Walk {
    pub(crate) memo: Memo,
    /// Who accepted so far, in any order.
    pub(crate) found: Vec<Delivery>,
    /// Parts of a tree that are left to search, each with its best rank.
    pub(crate) pending: Vec<(Rank, u32)>,
}

/// Values of expressions on the frame at hand.
///
/// An entry counts only if it bears the frame's stamp, so that nothing need
/// be cleared between frames.
#[derive(Clone, Default, Debug)]
pub(crate) struct Memo {
    /// Stamp and value; a stamp one more than the frame's means that there is
    /// no value.
    values: Vec<(u32, u32)>,
    stamp: u32,
}

/// What a memo says of an expression.
pub(crate) enum Memoised {
    Value(u32),
    NoValue,
    Unknown,
}

impl Memo {
    /// A new frame, with expressions named below `len`.
    #[inline]
    pub(crate) fn begin(&mut self, len: usize) {
        self.stamp = self.stamp.wrapping_add(2);
        if self.values.len() < len || self.stamp == 0 {
            // The stamps have come round: what is there could be mistaken.
            self.values.clear();
            self.values.resize(len, (0, 0));
            self.stamp = 2;
        }
    }

    #[inline]
    pub(crate) fn get(&self, index: usize) -> Memoised {
        match self.values.get(index) {
            Some((stamp, value)) if *stamp == self.stamp => Memoised::Value(*value),
            Some((stamp, _)) if *stamp == self.stamp + 1 => Memoised::NoValue,
            _ => Memoised::Unknown,
        }
    }

    #[inline]
    pub(crate) fn set(&mut self, index: usize, value: Option<u32>) {
        let stamp = self.stamp + u32::from(value.is_none());
        if let Some(entry) = self.values.get_mut(index) {
            *entry = (stamp, value.unwrap_or(0));
        }
    }
}
