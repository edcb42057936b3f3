//! Words of eight bytes that a program in the kernel shares with this process,
//! in the only value of a map.

use weir_filter::backend::ebpf::{Insn, Reg, op};

/// The register that holds the value's address in the whole program.
pub(crate) const SHARED: Reg = Reg::R7;

/// `to` = the word at an offset.
pub(crate) fn load(to: Reg, offset: usize) -> Insn {
    Insn::load(op::DW, to, SHARED, offset as i16)
}

/// The word at an offset = `from`.
pub(crate) fn store(offset: usize, from: Reg) -> Insn {
    Insn::store(op::DW, SHARED, offset as i16, from)
}
