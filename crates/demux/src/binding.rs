//! A binding: a filter, a priority, the copy flag, and a target.

use crate::Filter;
use std::fmt;

/// The destination of the frames that a binding accepts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Target {
    /// The packet-filter port of this number.
    Port(u32),
    /// The tap of this number.
    Tap(u32),
    /// The link of this number: the frame is forwarded.
    Link(u32),
    /// The fan-out of this number: the frame goes to the port that has the
    /// [bucket](crate::fanout::bucket) of its flow. A frame in a bucket that no
    /// port has is not accepted. A plan in user space leaves the choice of the
    /// port to its caller.
    Fanout(u32),
    /// The kernel's own protocols.
    Kernel,
    /// No destination: the frame is dropped.
    Drop,
}

impl Target {
    /// Encodes the target in one word: kind in the upper half, number in the
    /// lower.
    pub(crate) fn to_word(self) -> u64 {
        let (kind, number) = match self {
            Target::Port(number) => (0, number),
            Target::Tap(number) => (1, number),
            Target::Link(number) => (2, number),
            Target::Kernel => (3, 0),
            Target::Drop => (4, 0),
            Target::Fanout(number) => (5, number),
        };
        kind << 32 | u64::from(number)
    }

    pub(crate) fn from_word(word: u64) -> Target {
        let number = word as u32;
        match word >> 32 {
            0 => Target::Port(number),
            1 => Target::Tap(number),
            2 => Target::Link(number),
            3 => Target::Kernel,
            5 => Target::Fanout(number),
            _ => Target::Drop,
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Port(number) => write!(f, "port {number}"),
            Target::Tap(number) => write!(f, "tap {number}"),
            Target::Link(number) => write!(f, "link {number}"),
            Target::Kernel => f.write_str("kernel"),
            Target::Drop => f.write_str("drop"),
            Target::Fanout(number) => write!(f, "fan-out {number}"),
        }
    }
}

/// A filter tied to a target.
#[derive(Clone, Debug)]
pub struct Binding {
    /// The filter that selects the frames.
    pub filter: Filter,
    /// The priority; bindings are tried by decreasing priority.
    ///
    /// Sixteen bits, so that priority, copy flag and order bound fit one 64-bit
    /// word ([`Rank`]), which one comparison orders, here and in a kernel
    /// program.
    pub priority: u16,
    /// Whether accepted frames go on to the bindings after this one (a copy),
    /// or end here (taken). A binding that takes for [`Target::Kernel`] is a
    /// *claim*: its frames go to the host, no binding after it takes them, and
    /// bindings that copy still get their copies.
    pub copy: bool,
    /// The destination of the frames.
    pub target: Target,
    /// A number returned with each frame; the caller defines its meaning, such
    /// as the number of a connection.
    pub tag: u32,
}

/// The identity of one binding in one plan: slot and generation. The plan does
/// not reuse an id, unless one slot is bound 2^32 times.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BindingId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl BindingId {
    /// The index of the binding's slot: unique among the present bindings,
    /// small enough for an array, and reused after the binding is removed.
    pub fn index(self) -> usize {
        self.index as usize
    }

    pub(crate) fn to_word(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    pub(crate) fn from_word(word: u64) -> BindingId {
        BindingId {
            index: word as u32,
            generation: (word >> 32) as u32,
        }
    }
}

impl fmt::Display for BindingId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.index)
    }
}

/// The position of a binding in the order in which a frame meets bindings,
/// least first: decreasing priority, copies before takers, then the order
/// bound.
///
/// ```text
///  63      48 47     46             0
/// ┌──────────┬────────┬──────────────┐
/// │ 65535 –  │ taking │ order bound  │
/// │ priority │        │              │
/// └──────────┴────────┴──────────────┘
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Rank(pub(crate) u64);

impl Rank {
    const TAKING: u64 = 1 << 47;
    /// The largest sequence number, which has 47 bits.
    pub(crate) const SEQUENCE_MAX: u64 = Rank::TAKING - 1;
    /// A rank behind that of every binding.
    pub(crate) const LAST: Rank = Rank(u64::MAX);

    pub(crate) fn new(priority: u16, copy: bool, sequence: u64) -> Rank {
        let taking = if copy { 0 } else { Rank::TAKING };
        Rank(u64::from(u16::MAX - priority) << 48 | taking | sequence)
    }

    /// The binding's priority.
    pub fn priority(self) -> u16 {
        u16::MAX - (self.0 >> 48) as u16
    }

    /// Whether the binding copies.
    pub fn is_copy(self) -> bool {
        self.0 & Rank::TAKING == 0
    }

    /// Whether a binding of this rank and target is a claim: it takes frames
    /// for the kernel.
    pub(crate) fn claims(self, target: Target) -> bool {
        !self.is_copy() && target == Target::Kernel
    }

    /// The rank as one word; the lesser word comes first.
    pub fn to_bits(self) -> u64 {
        self.0
    }
}
