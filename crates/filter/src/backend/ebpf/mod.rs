//! eBPF: a program as instructions for the kernel, or for a virtual machine
//! in user space.
//!
//! ```text
//!  ir::Program ─► reach: how far accepting paths must be able to read
//!              ─► lower: steps, with bounds checks made explicit and shared
//!              ─► alloc: registers and stack slots (linear scan)
//!              ─► code:  instructions with labels ─► asm ─► Vec<Insn>
//! ```
//!
//! [`emit`] gives whole programs. [`emit_fragment`] adds the filter alone to
//! a program under construction, with the registers and labels it is given,
//! for those who generate more around it.
//!
//! What comes out is what the kernel's verifier accepts, from Linux 6.1 on:
//! each load follows a comparison with the end of the frame; a variable
//! offset is bounded before it is added; nothing but a rejection hangs on a
//! jump inside of a block, so that the verifier's work stays close to the
//! length of the program. It takes a privileged loader (`CAP_BPF`,
//! `CAP_PERFMON` and `CAP_NET_ADMIN`, or root).
//!
//! Bounds: with direct access, bytes from offset 65,535 on count as not
//! captured (the kernel tracks no offset beyond that). Values that live at
//! the same time must fit into the free registers and the stack; see
//! [`EmitError`].

mod asm;
mod code;
mod disasm;
mod insn;
mod lower;
mod program;
mod regalloc;
mod required_len;

pub use asm::{Asm, Label, Limits};
pub use disasm::Listing;
pub use insn::{Insn, Reg, Src, op};
pub use program::{MEMORY_CONTEXT_BYTES, Options, Returns, Target, XdpLen, emit};
pub use required_len::DIRECT_MAX;

use crate::ir::Program;

/// Bytes of stack that one program has.
pub const STACK_BYTES: i32 = 512;

/// Numbers of the kernel's helper functions that programs here call.
pub mod helper {
    /// `bpf_map_lookup_elem(map, key)`: the value, or null. Linux 3.18.
    pub const MAP_LOOKUP_ELEM: i32 = 1;
    /// `bpf_ktime_get_ns()`: `CLOCK_MONOTONIC`, in nanoseconds. Linux 4.1.
    pub const KTIME_GET_NS: i32 = 5;
    /// `bpf_tail_call(context, programs, slot)`: goes on in the program of
    /// that slot, or returns if it has none. Linux 4.2.
    pub const TAIL_CALL: i32 = 12;
    /// `bpf_redirect(interface, flags)`. Linux 4.4.
    pub const REDIRECT: i32 = 23;
    /// `bpf_skb_load_bytes(skb, offset, to, len)`: 0, or negative outside the
    /// frame. Linux 4.5.
    pub const SKB_LOAD_BYTES: i32 = 26;
    /// `bpf_redirect_map(map, key, flags)`: to that entry of a map of
    /// devices, sockets or CPUs. Linux 4.14.
    pub const REDIRECT_MAP: i32 = 51;
    /// `bpf_ringbuf_output(ring, bytes, len, flags)`: 0, or negative without
    /// room. Linux 5.8.
    pub const RINGBUF_OUTPUT: i32 = 130;
    /// `bpf_ringbuf_reserve(ring, constant_len, 0)`: a record to fill, or
    /// null without room. Linux 5.8.
    pub const RINGBUF_RESERVE: i32 = 131;
    /// `bpf_ringbuf_submit(record, flags)`. Linux 5.8.
    pub const RINGBUF_SUBMIT: i32 = 132;
    /// `bpf_ringbuf_discard(record, flags)`. Linux 5.8.
    pub const RINGBUF_DISCARD: i32 = 133;
    /// `bpf_xdp_get_buff_len(xdp)`: bytes of the whole frame. Linux 5.18.
    pub const XDP_GET_BUFF_LEN: i32 = 188;
    /// `bpf_xdp_load_bytes(xdp, offset, to, len)`: as for an skb. Linux 5.18.
    pub const XDP_LOAD_BYTES: i32 = 189;
}

/// Why a program cannot be expressed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EmitError {
    /// Longer than the kernel takes.
    #[error(
        "the filter becomes {count} eBPF instructions, at most {max} are allowed; split it into several"
    )]
    TooManyInsns {
        /// How many there would be.
        count: usize,
        /// How many there may be.
        max: usize,
    },
    /// A jump further than 16 bits, where `gotol` is not allowed.
    #[error(
        "the filter needs a jump over {distance} eBPF instructions, at most 32767 are possible without `gotol` (Linux 6.6)"
    )]
    JumpTooFar {
        /// How far, in instructions.
        distance: i64,
    },
    /// More values at one time than there is place for.
    #[error(
        "the filter keeps more values at one time than {regs} registers and {slots} stack slots hold; optimise or split it"
    )]
    TooManyLive {
        /// Registers for values.
        regs: usize,
        /// Stack slots of 8 bytes.
        slots: usize,
    },
}

/// How a fragment gets at the frame's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Through pointers to the first byte and behind the last: XDP without
    /// fragments, the linear part of an skb, plain memory. Both registers are
    /// left as they are.
    Direct {
        /// Points to the frame.
        start: Reg,
        /// Points behind it.
        end: Reg,
    },
    /// By a call for each load: reaches every byte of frames that are not in
    /// one piece, but slower.
    Call {
        /// [`helper::SKB_LOAD_BYTES`] or [`helper::XDP_LOAD_BYTES`].
        helper: i32,
        /// Holds the context; one of r6 to r9, left as it is.
        context: Reg,
    },
    /// By a call for each load to a routine of the same program, which takes
    /// and gives what a helper does: see [`Asm::call`].
    Routine {
        /// Where it begins.
        routine: Label,
        /// As for `Call`.
        context: Reg,
    },
}

/// Where a fragment finds the length on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WireLen {
    /// In this register, which is left as it is.
    Reg(Reg),
    /// In the 8 bytes of stack at this (negative) offset.
    Stack(i16),
    /// It is the distance between the pointers of [`Access::Direct`]. To
    /// subtract pointers takes `CAP_PERFMON`.
    Span,
}

/// What surrounds a filter's code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fragment<'a> {
    /// How to load.
    pub access: Access,
    /// Where the length on the wire is.
    pub wire_len: WireLen,
    /// Receives the snap length of a frame that is accepted; one of `free` or
    /// another.
    pub result: Reg,
    /// Registers the code may change: the more, the faster. With
    /// [`Access::Direct`] at least two, with [`Access::Call`] all of r0 to r5.
    pub free: &'a [Reg],
    /// The code may use the stack below this offset from the frame pointer:
    /// 0, or a negative multiple of 8.
    pub stack_top: i16,
    /// Where to go on with a frame that is accepted. Must be bound behind the
    /// fragment.
    pub accept: Label,
    /// Where to go on with one that is rejected; the result is undefined.
    pub reject: Label,
    /// Where to go on with one that is rejected because a load lies outside
    /// of what `access` reaches. The same as `reject`, or code that tries
    /// again with an access that reaches further.
    pub short: Label,
    /// What a comparison tells of a value that is used again is hidden from the
    /// verifier, which costs a frame two instructions. Without `CAP_PERFMON` it
    /// also follows branches that it knows not to be taken, as the processor may
    /// do: a few dozen ranges of one field would be more than it follows at all.
    pub is_hidden: bool,
}

/// About how many conditional jumps are on the longest path through the code of a
/// program that loads by calls. The verifier keeps as many pending, and at most
/// 8,192 of all of a program.
pub fn path_jumps(program: &Program) -> u32 {
    code::path_jumps(program, lower::Mode::Call)
}

/// Adds the code of a verified program to `asm`. It ends in jumps to the
/// labels and does not fall through.
///
/// # Errors
/// [`EmitError::TooManyLive`]. Length and jumps are judged by
/// [`Asm::finish`].
///
/// # Panics
/// If `fragment` breaks a condition that its fields state.
pub fn emit_fragment(
    asm: &mut Asm,
    program: &Program,
    fragment: &Fragment<'_>,
) -> Result<(), EmitError> {
    assert!(
        (-STACK_BYTES..=0).contains(&i32::from(fragment.stack_top)) && fragment.stack_top % 8 == 0,
        "stack_top is 0 or a negative multiple of 8 within the stack"
    );
    match fragment.access {
        Access::Direct { start, end } => {
            let apart = fragment.free.iter().all(|reg| ![start, end].contains(reg));
            assert!(
                apart && fragment.free.len() >= 2,
                "two registers are free besides the pointers"
            );
        }
        Access::Call { context, .. } | Access::Routine { context, .. } => {
            let arguments = [Reg::R0, Reg::R1, Reg::R2, Reg::R3, Reg::R4, Reg::R5];
            assert!(
                arguments.iter().all(|reg| fragment.free.contains(reg)),
                "r0 to r5 are free where calls are made"
            );
            assert!(
                context.survives_calls() && !fragment.free.contains(&context),
                "the context outlives calls"
            );
            assert!(fragment.wire_len != WireLen::Span, "a span needs pointers");
        }
    }
    code::generate(asm, program, fragment)
}
