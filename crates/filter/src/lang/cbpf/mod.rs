//! Classic BPF (McCanne and Jacobson, 1993): programs as `tcpdump -d`, `-dd`
//! and `-ddd` print them and as `SO_ATTACH_FILTER` takes them.
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

/// Instructions in one program at most, as the kernel's `BPF_MAXINSNS`.
pub const INSNS_MAX: usize = 4096;

/// Words of scratch memory.
pub const MEM_WORDS: usize = 16;

/// One instruction, laid out as the kernel's `struct sock_filter`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(C)]
pub struct Insn {
    /// What to do: the sum of a class and its fields, see [`code`].
    pub code: u16,
    /// How many instructions a conditional jump skips when it holds.
    pub jt: u8,
    /// How many it skips when it does not.
    pub jf: u8,
    /// The constant, address, scratch index or (for `JA`) distance.
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
