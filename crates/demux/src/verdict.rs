//! The verdict of a plan on one frame: its deliveries, and whether it is taken.

use crate::binding::{BindingId, Rank, Target};
use crate::plan::NodeRef;

/// The delivery of the frame to one binding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Delivery {
    /// The binding's position in the order of the plan.
    pub rank: Rank,
    /// The binding that accepted.
    pub binding: BindingId,
    /// The destination of the frame.
    pub target: Target,
    /// The binding's tag.
    pub tag: u32,
    /// Number of bytes of the frame that the filter asks for; never zero. A
    /// value beyond the frame's length means the whole frame.
    pub snap_len: u32,
}

/// The deliveries of one frame, filled by [`Plan::run`](crate::Plan::run).
///
/// A verdict owns the result's memory and the scratch memory of the run. Reuse
/// one verdict for many frames, on one thread, with any plan.
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

    /// The deliveries in rank order: the copies, then the binding that took the
    /// frame, if one did. A claim is listed among the copies.
    pub fn deliveries(&self) -> &[Delivery] {
        &self.deliveries
    }

    /// Whether a binding took the frame. If not, the default applies: on a
    /// live link the kernel's own protocols get it.
    pub fn is_taken(&self) -> bool {
        self.taken
    }

    /// Whether a claim kept the bindings behind it from taking the frame, which
    /// goes to the kernel's own protocols. Never true of a frame that is taken.
    pub fn is_claimed(&self) -> bool {
        self.claimed
    }

    /// The delivery that took the frame; `None` if no binding took it.
    pub fn taker(&self) -> Option<&Delivery> {
        self.deliveries.last().filter(|_| self.taken)
    }
}

/// Scratch memory of a run, reused by the next: one `Walk` for each frame of a
/// batch.
#[derive(Clone, Default, Debug)]
pub(crate) struct Scratch {
    walks: Vec<Walk>,
    /// The results of a batch's searches.
    found: Vec<Vec<Delivery>>,
}

impl Scratch {
    /// Memory for `count` frames.
    #[inline]
    pub(crate) fn walks(&mut self, count: usize) -> &mut [Walk] {
        if self.walks.len() < count {
            self.walks.resize_with(count, Walk::default);
        }
        &mut self.walks[..count]
    }

    /// Memory for what a batch of `count` frames finds.
    pub(crate) fn found(&mut self, count: usize) -> &mut [Vec<Delivery>] {
        if self.found.len() < count {
            self.found.resize_with(count, Vec::new);
        }
        &mut self.found[..count]
    }

    /// Both for a batch of `count` frames.
    pub(crate) fn of_batch(&mut self, count: usize) -> (&mut [Walk], &mut [Vec<Delivery>]) {
        self.walks(count);
        self.found(count);
        (&mut self.walks[..count], &mut self.found[..count])
    }
}

/// Scratch memory of one frame's search through the tables.
#[derive(Clone, Default, Debug)]
pub(crate) struct Walk {
    pub(crate) memo: Memo,
    /// The values of the fields that nodes of a tree read, except for lanes.
    pub(crate) fields: Memo,
    /// Nodes of the tree yet to be searched, each with its best rank.
    pub(crate) pending: Vec<(Rank, NodeRef)>,
}

/// Memoised values of expressions on the present frame.
///
/// An entry is valid only if it bears the frame's stamp, so that the memo needs
/// no clearing between frames.
#[derive(Clone, Default, Debug)]
pub(crate) struct Memo {
    /// Stamp and value; a stamp one above the frame's means that the expression
    /// has no value.
    values: Vec<(u32, u32)>,
    stamp: u32,
}

/// The memo's entry for an expression.
pub(crate) enum Memoised {
    Value(u32),
    NoValue,
    Unknown,
}

impl Memo {
    /// Begins a new frame, with expressions numbered below `len`.
    #[inline]
    pub(crate) fn begin(&mut self, len: usize) {
        self.stamp = self.stamp.wrapping_add(2);
        if self.values.len() < len || self.stamp == 0 {
            // The stamp has wrapped: an old entry could bear the new stamp.
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
