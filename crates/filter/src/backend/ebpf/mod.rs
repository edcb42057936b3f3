//! The eBPF back end: compiles a program to instructions for the kernel, or for a
//! virtual machine in user space.
//!
//! ```text
//!  ir::Program ─► required_len: bytes that every accepting path reads
//!              ─► lower:        steps, with bounds checks made explicit and shared
//!              ─► regalloc:     registers and stack slots (linear scan)
//!              ─► code:         instructions with labels ─► asm ─► Vec<Insn>
//! ```
//!
//! [`emit`] returns a whole program. [`emit_fragment`] adds the filter alone to a
//! program under construction, with the caller's registers and labels.
//!
//! The kernel's verifier accepts the output from Linux 6.1 on. Each load follows a
//! comparison with the end of the frame. A variable offset is bounded before it is
//! added to a pointer. Jumps inside a block only reject, so that the verifier's work
//! stays close to the length of the program. Loading the program needs `CAP_BPF`,
//! `CAP_PERFMON` and `CAP_NET_ADMIN`, or root.
//!
//! Limits: with direct access, bytes from offset 65,535 on count as not captured,
//! since the verifier tracks no larger offset. Values that live at the same time
//! must fit into the free registers and the stack; see [`EmitError`].

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

/// Bytes of stack of one program (the kernel's `MAX_BPF_STACK`).
pub const STACK_BYTES: i32 = 512;

/// Numbers of the kernel's helper functions that generated programs call.
pub mod helper {
    /// `bpf_map_lookup_elem(map, key)`: the address of the value, or null. Linux 3.18.
    pub const MAP_LOOKUP_ELEM: i32 = 1;
    /// `bpf_ktime_get_ns()`: `CLOCK_MONOTONIC`, in nanoseconds. Linux 4.1.
    pub const KTIME_GET_NS: i32 = 5;
    /// `bpf_tail_call(context, programs, slot)`: continues in the program of that
    /// slot; returns if the slot is empty. Linux 4.2.
    pub const TAIL_CALL: i32 = 12;
    /// `bpf_redirect(ifindex, flags)`: redirects the frame to an interface. Linux 4.4.
    pub const REDIRECT: i32 = 23;
    /// `bpf_skb_load_bytes(skb, offset, to, len)`: 0, or a negative number if a byte
    /// is outside the frame. Linux 4.5.
    pub const SKB_LOAD_BYTES: i32 = 26;
    /// `bpf_redirect_map(map, key, flags)`: redirects to an entry of a map of devices,
    /// sockets or CPUs. Linux 4.14.
    pub const REDIRECT_MAP: i32 = 51;
    /// `bpf_ringbuf_output(ring, bytes, len, flags)`: 0, or a negative number if the
    /// ring is full. Linux 5.8.
    pub const RINGBUF_OUTPUT: i32 = 130;
    /// `bpf_ringbuf_reserve(ring, constant_len, 0)`: the address of a record to fill,
    /// or null if the ring is full. Linux 5.8.
    pub const RINGBUF_RESERVE: i32 = 131;
    /// `bpf_ringbuf_submit(record, flags)`. Linux 5.8.
    pub const RINGBUF_SUBMIT: i32 = 132;
    /// `bpf_ringbuf_discard(record, flags)`. Linux 5.8.
    pub const RINGBUF_DISCARD: i32 = 133;
    /// `bpf_xdp_get_buff_len(xdp)`: length of the frame with all fragments. Linux 5.18.
    pub const XDP_GET_BUFF_LEN: i32 = 188;
    /// `bpf_xdp_load_bytes(xdp, offset, to, len)`: as [`SKB_LOAD_BYTES`]. Linux 5.18.
    pub const XDP_LOAD_BYTES: i32 = 189;
}

/// The reason why a program cannot be compiled to eBPF.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EmitError {
    /// The program exceeds the limit on instructions.
    #[error(
        "the filter becomes {count} eBPF instructions, at most {max} are allowed; split it into several"
    )]
    TooManyInsns {
        /// Instructions of the program.
        count: usize,
        /// The limit.
        max: usize,
    },
    /// A jump exceeds the range of 16 bits, and `gotol` is not allowed.
    #[error(
        "the filter needs a jump over {distance} eBPF instructions, at most 32767 are possible without `gotol` (Linux 6.6)"
    )]
    JumpTooFar {
        /// Distance, in instructions.
        distance: i64,
    },
    /// More values live at one time than registers and stack slots can hold.
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

/// How a fragment reads the bytes of the frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Through pointers to the first byte and behind the last: XDP without frags,
    /// the linear part of an skb, plain memory. The code preserves both registers.
    Direct {
        /// Register with the address of the first byte.
        start: Reg,
        /// Register with the address behind the last byte.
        end: Reg,
    },
    /// By a helper call for each load: reaches all bytes of a frame with frags, but
    /// is slower.
    Call {
        /// [`helper::SKB_LOAD_BYTES`] or [`helper::XDP_LOAD_BYTES`].
        helper: i32,
        /// Register with the context, one of r6 to r9; the code preserves it.
        context: Reg,
    },
    /// By a call for each load of a routine in the same program; see [`Asm::call`].
    /// The routine has the arguments and the result of the helper.
    Routine {
        /// The routine's label.
        routine: Label,
        /// Register with the context, one of r6 to r9; the code preserves it.
        context: Reg,
        /// The conditional jumps of the routine.
        jumps: LoadJumps,
    },
}

/// The maximum number of conditional jumps that a call of a load routine adds to a path.
/// The verifier follows a routine anew with each call, and keeps the other side of each
/// jump pending.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LoadJumps {
    /// A load at a constant offset.
    pub constant: u32,
    /// A load at a computed offset.
    pub computed: u32,
}

/// The location of the frame's length on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WireLen {
    /// In this register, which the code preserves.
    Reg(Reg),
    /// In 8 bytes of stack at this negative offset from the frame pointer.
    Stack(i16),
    /// The difference of the pointers of [`Access::Direct`]. Pointer subtraction
    /// requires `CAP_PERFMON`.
    Span,
}

/// The interface between a filter's code and the surrounding program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fragment<'a> {
    /// Access to the frame's bytes.
    pub access: Access,
    /// Location of the length on the wire.
    pub wire_len: WireLen,
    /// Receives the snap length of an accepted frame; may be one of `free`.
    pub result: Reg,
    /// Registers that the code may change; more of them make faster code. At least
    /// two with [`Access::Direct`]; else r0 to r5 must be among them.
    pub free: &'a [Reg],
    /// The code may use the stack below this offset from the frame pointer: 0, or a
    /// negative multiple of 8.
    pub stack_top: i16,
    /// Continuation for an accepted frame; must be bound behind the fragment.
    pub accept: Label,
    /// Continuation for a rejected frame; the result register is undefined.
    pub reject: Label,
    /// Continuation for a frame that is rejected because a load is beyond the reach
    /// of `access`: `reject`, or code that retries with an access of longer reach.
    pub short: Label,
    /// Whether comparisons run on a copy of a reused value, so that the verifier
    /// learns nothing about the value. The copy costs a frame two instructions. Without
    /// `CAP_PERFMON` the verifier also follows branches that cannot be taken, as a CPU
    /// may speculatively. Then a few dozen ranges of one field would exceed its limit.
    pub is_hidden: bool,
}

/// Approximate number of conditional jumps on the longest path of a program that
/// loads by calls of a routine with `jumps`. The verifier keeps as many pending states,
/// and allows 8,192 in one program.
pub fn path_jumps(program: &Program, jumps: LoadJumps) -> u32 {
    code::path_jumps(program, jumps)
}

/// Adds the code of a verified program to `asm`. The code ends in jumps to the labels
/// of `fragment` and does not fall through.
///
/// # Errors
/// [`EmitError::TooManyLive`]. [`Asm::finish`] checks the length and the jumps.
///
/// # Panics
/// If `fragment` violates a condition stated at its fields.
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
