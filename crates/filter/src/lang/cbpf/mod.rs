//! Classic BPF (McCanne and Jacobson, 1993): programs in the text forms of `tcpdump
//! -d`, `-dd` and `-ddd`, and in the binary form of `SO_ATTACH_FILTER`.
//!
//! ```text
//!  -d, -dd, -ddd ─► parse ──┐                       ┌─► text(Form) ─► -d, -dd, -ddd
//!  sock_filter[] ─► from_bytes ─► [Insn] ─► verify ─┼─► run (an oracle)
//!                                                   └─► lift ─► ir::Program
//! ```
//!
//! A program computes on an accumulator `A`, an index register `X` and sixteen
//! words of scratch memory `M[0]` to `M[15]`, all 32 bits wide and zero at the
//! start. `docs/reference/cbpf.md` is the manual.

mod bytes;
pub mod code;
mod lift;
mod parse;
mod run;
mod text;
mod verify;

pub use bytes::{BytesError, Order, from_bytes, from_bytes_in, to_bytes};
pub use lift::{LiftError, lift};
pub use parse::{ParseError, ReadError, parse, read};
pub use run::run;
pub use text::{Form, text};
pub use verify::{VerifyError, verify};

/// Maximum number of instructions in one program (the kernel's `BPF_MAXINSNS`).
pub const INSNS_MAX: usize = 4096;

/// Number of words of scratch memory (the kernel's `BPF_MEMWORDS`).
pub const MEM_WORDS: usize = 16;

/// One instruction, with the layout of the kernel's `struct sock_filter`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(C)]
pub struct Insn {
    /// The code: a class and its fields, as in [`code`].
    pub code: u16,
    /// Instructions skipped by a conditional jump that holds.
    pub jt: u8,
    /// Instructions skipped by a conditional jump that does not hold.
    pub jf: u8,
    /// Constant, address, index of scratch memory, or distance of `JA`.
    pub k: u32,
}

impl Insn {
    /// An instruction that does not branch.
    pub const fn stmt(code: u16, k: u32) -> Insn {
        Insn {
            code,
            jt: 0,
            jf: 0,
            k,
        }
    }

    /// A conditional jump.
    pub const fn jump(code: u16, k: u32, jt: u8, jf: u8) -> Insn {
        Insn { code, jt, jf, k }
    }
}
