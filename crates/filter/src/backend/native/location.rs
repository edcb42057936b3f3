//! Locations of values in generated code, and operands of instructions.

/// A general-purpose register by its machine number.
pub(super) type Reg = u8;

/// A set of registers as a bit mask of machine numbers.
pub(super) type RegSet = u32;

/// Upper limit of register numbers on both architectures.
pub(super) const REGS_MAX: usize = 32;

/// The location of a value for its whole life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Location {
    /// A register; its upper 32 bits are zero.
    Reg(Reg),
    /// The n-th four-byte slot of the stack frame.
    Slot(u16),
}

impl Location {
    /// A dense index: registers first, then slots.
    pub(super) fn index(self) -> usize {
        match self {
            Location::Reg(reg) => usize::from(reg),
            Location::Slot(slot) => REGS_MAX + usize::from(slot),
        }
    }
}

/// A source operand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Src {
    /// A constant.
    Imm(u32),
    /// A location.
    At(Location),
}

impl From<Location> for Src {
    fn from(location: Location) -> Src {
        Src::At(location)
    }
}

/// A position in the frame: zero-extended base plus offset, in 64 bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Address {
    /// The variable part.
    pub(super) base: Option<Location>,
    /// The constant part.
    pub(super) offset: u32,
}
