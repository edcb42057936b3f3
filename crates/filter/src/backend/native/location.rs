//! Where values live in generated code, and what instructions read.

/// A general register by its machine number.
pub(super) type Reg = u8;

/// Registers as bits by machine number.
pub(super) type RegSet = u32;

/// Register numbers are below this on both machines.
pub(super) const REGS_MAX: usize = 32;

/// Where a value lives for the whole of its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// A register; its upper 32 bits are zero.
    Reg(Reg),
    /// The n-th four-byte slot of the stack frame.
    Slot(u16),
}

impl Place {
    /// A number that no other place has: registers first, then slots.
    pub(super) fn index(self) -> usize {
        match self {
            Place::Reg(reg) => usize::from(reg),
            Place::Slot(slot) => REGS_MAX + usize::from(slot),
        }
    }
}

/// What an instruction reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Src {
    /// A constant.
    Imm(u32),
    /// A place.
    At(Place),
}

impl From<Place> for Src {
    fn from(place: Place) -> Src {
        Src::At(place)
    }
}

/// A position in the frame: base (zero-extended) plus offset, in 64 bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Address {
    /// The variable part.
    pub(super) base: Option<Place>,
    /// The constant part.
    pub(super) offset: u32,
}
