//! Whole programs: the thin wrappers around a fragment.

use super::insn::{Insn, Reg, op};
use super::{Access, Asm, EmitError, Fragment, Label, Limits, WireLen, emit_fragment, helper};
use crate::ir::{Op, Program};

/// Bytes of the context of [`Target::Memory`].
pub const MEMORY_CONTEXT_BYTES: usize = 24;

/// Who runs the program, and what it is given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// A virtual machine in user space. r1 points to three 64-bit numbers:
    /// the address of the frame's first byte, the address behind its last
    /// captured byte, and its length on the wire.
    Memory,
    /// The kernel's XDP hook, frames in one piece, read through pointers. Of a
    /// frame with fragments it sees the first piece only.
    Xdp(XdpLen),
    /// The kernel's XDP hook, frames with fragments too (load with
    /// `BPF_F_XDP_HAS_FRAGS`, Linux 5.18), read by calls.
    XdpFrags,
    /// The kernel's tc hooks and socket filters, read by calls.
    Skb,
}

/// What [`Target::Xdp`] takes as the length on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum XdpLen {
    /// The bytes of the one piece.
    Linear,
    /// The bytes of all pieces (Linux 5.18).
    Whole,
    /// 32 bits at the start of the frame's metadata, in the host's order,
    /// written by whoever ran before; without them the frame is rejected.
    Meta,
}

/// What a program returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Returns {
    /// The snap length, as a socket filter does; 0 rejects.
    SnapLen,
    /// One of two codes, as XDP and tc actions are.
    Codes {
        /// For a frame that is accepted.
        accept: i32,
        /// For one that is rejected.
        reject: i32,
    },
}

/// What to make of a filter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Who runs it.
    pub target: Target,
    /// What it returns.
    pub returns: Returns,
    /// How long it may be.
    pub limits: Limits,
}

impl Options {
    /// For `target`, returning the snap length, within the kernel's limits.
    pub fn new(target: Target) -> Options {
        Options {
            target,
            returns: Returns::SnapLen,
            limits: Limits::default(),
        }
    }
}

/// A verified program as one whole eBPF program.
///
/// ```
/// use weir_filter::backend::ebpf::{Listing, Options, Target, XdpLen, emit};
///
/// let arp: weir_filter::ir::Program = "filter {
/// b0:
///   v0 = load.2 [12]
///   br eq v0, 0x806, b1, b2
/// b1:
///   ret 262144
/// b2:
///   ret 0
/// }".parse().unwrap();
/// let insns = emit(&arp, &Options::new(Target::Xdp(XdpLen::Linear))).unwrap();
/// assert_eq!(format!("\n{}", Listing(&insns)), "
///    0: (61) r2 = *(u32 *)(r1 +4)
///    1: (61) r1 = *(u32 *)(r1 +0)
///    2: (bf) r9 = r1
///    3: (07) r9 += 14
///    4: (2d) if r9 > r2 goto pc+5
///    5: (69) r0 = *(u16 *)(r1 +12)
///    6: (dc) r0 = be16 r0
///    7: (56) if w0 != 2054 goto pc+2
///    8: (b4) w0 = 262144
///    9: (95) exit
///   10: (b4) w0 = 0
///   11: (95) exit
/// ");
/// ```
///
/// # Errors
/// When it does not fit; see [`EmitError`].
pub fn emit(program: &Program, options: &Options) -> Result<Vec<Insn>, EmitError> {
    let mut asm = Asm::new();
    let (accept, reject) = (asm.label(), asm.label());
    let needs_len = program.values.contains(&Op::Len);
    let (access, wire_len) = prologue(&mut asm, options.target, needs_len, reject);
    let direct = [
        Reg::R0,
        Reg::R3,
        Reg::R4,
        Reg::R5,
        Reg::R6,
        Reg::R7,
        Reg::R8,
        Reg::R9,
    ];
    let call = [
        Reg::R0,
        Reg::R1,
        Reg::R2,
        Reg::R3,
        Reg::R4,
        Reg::R5,
        Reg::R7,
        Reg::R8,
        Reg::R9,
    ];
    let free = match access {
        Access::Direct { .. } => &direct[..],
        Access::Call { .. } => &call[..],
    };
    let stack_top = match wire_len {
        WireLen::Stack(slot) => slot,
        _ => 0,
    };
    let fragment = Fragment {
        access,
        wire_len,
        result: Reg::R0,
        free,
        stack_top,
        accept,
        reject,
    };
    emit_fragment(&mut asm, program, &fragment)?;
    asm.bind(accept);
    let reject_code = match options.returns {
        Returns::SnapLen => 0,
        Returns::Codes { accept, reject } => {
            asm.push(Insn::mov32(Reg::R0, accept));
            reject
        }
    };
    asm.push(Insn::exit());
    asm.bind(reject);
    asm.push(Insn::mov32(Reg::R0, reject_code));
    asm.push(Insn::exit());
    asm.finish(&options.limits)
}

/// The slot that keeps the length on the wire, if the filter reads it.
const LEN_SLOT: i16 = -8;

/// Offsets in `struct xdp_md`.
const XDP_DATA: i16 = 0;
const XDP_DATA_END: i16 = 4;
const XDP_DATA_META: i16 = 8;
/// Offset of `len` in `struct __sk_buff`.
const SKB_LEN: i16 = 0;

fn prologue(asm: &mut Asm, target: Target, needs_len: bool, reject: Label) -> (Access, WireLen) {
    let direct = Access::Direct {
        start: Reg::R1,
        end: Reg::R2,
    };
    let calls = |helper| Access::Call {
        helper,
        context: Reg::R6,
    };
    let kept = WireLen::Stack(LEN_SLOT);
    let keep = |asm: &mut Asm, from| asm.push(Insn::store(op::DW, Reg::FP, LEN_SLOT, from));
    // Without a use of the length it costs nothing, and no stack.
    let len = |wire_len| {
        if needs_len {
            wire_len
        } else {
            WireLen::Reg(Reg::R0)
        }
    };
    match target {
        Target::Memory => {
            if needs_len {
                asm.push(Insn::load(op::DW, Reg::R3, Reg::R1, 16));
                keep(asm, Reg::R3);
            }
            asm.push(Insn::load(op::DW, Reg::R2, Reg::R1, 8));
            asm.push(Insn::load(op::DW, Reg::R1, Reg::R1, 0));
            (direct, len(kept))
        }
        Target::Xdp(source) => {
            if needs_len && source == XdpLen::Whole {
                asm.push(Insn::mov64(Reg::R6, Reg::R1));
                asm.push(Insn::call(helper::XDP_GET_BUFF_LEN));
                keep(asm, Reg::R0);
                asm.push(Insn::mov64(Reg::R1, Reg::R6));
            }
            let meta = needs_len && source == XdpLen::Meta;
            if meta {
                asm.push(Insn::load(op::W, Reg::R3, Reg::R1, XDP_DATA_META));
            }
            asm.push(Insn::load(op::W, Reg::R2, Reg::R1, XDP_DATA_END));
            asm.push(Insn::load(op::W, Reg::R1, Reg::R1, XDP_DATA));
            if meta {
                asm.push(Insn::mov64(Reg::R4, Reg::R3));
                asm.push(Insn::alu64(op::ADD, Reg::R4, 4));
                asm.jump(Insn::jump64(op::JGT, Reg::R4, Reg::R1), reject);
                asm.push(Insn::load(op::W, Reg::R3, Reg::R3, 0));
                keep(asm, Reg::R3);
            }
            match source {
                XdpLen::Linear => (direct, len(WireLen::Span)),
                XdpLen::Whole | XdpLen::Meta => (direct, len(kept)),
            }
        }
        Target::XdpFrags => {
            asm.push(Insn::mov64(Reg::R6, Reg::R1));
            if needs_len {
                asm.push(Insn::call(helper::XDP_GET_BUFF_LEN));
                keep(asm, Reg::R0);
            }
            (calls(helper::XDP_LOAD_BYTES), len(kept))
        }
        Target::Skb => {
            asm.push(Insn::mov64(Reg::R6, Reg::R1));
            if needs_len {
                asm.push(Insn::load(op::W, Reg::R0, Reg::R6, SKB_LEN));
                keep(asm, Reg::R0);
            }
            (calls(helper::SKB_LOAD_BYTES), len(kept))
        }
    }
}
