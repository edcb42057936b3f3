//! Where values live in generated code, and what instructions read.

/// A general register by its machine number.
pub(super) type Reg = u8;

/// Registers as bits by machine number.
pub(super) type RegSet = u32;

/// Register numbers are below this on both machines.
pub(super) const REGS_MAX: usize = 32;

/// Where a value lives for the whole of its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Location {
    /// A register; its upper 32 bits are zero.
    Reg(Reg),
    /// The n-th four-byte slot of the stack frame.
    Slot(u16),
}

impl Location {
    /// A number that no other place has: registers first, then slots.
    pub(super) fn index(self) -> usize {
        match self {
            Location::Reg(reg) => usize::from(reg),
            Location::Slot(slot) => REGS_MAX + usize::from(slot),
        }
    }
}

/// What an instruction reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Src {
    /// A constant.
    Imm(u32),
    /// A place.
    At(Location),
}

impl From<Location> for Src {
    fn from(place: Location) -> Src {
        Src::At(place)
    }
}

/// A position in the frame: base (zero-extended) plus offset, in 64 bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Address {
    /// The variable part.
    pub(super) base: Option<Location>,
    /// The constant part.
    pub(super) offset: u32,
}
