//! Whole eBPF programs: an entry sequence, one or two fragments, an exit sequence.

use super::insn::{Insn, Reg, op};
use super::{Access, Asm, EmitError, Fragment, Label, Limits, WireLen, emit_fragment, helper};
use crate::ir::{Op, Program};

/// Bytes of the context of [`Target::Memory`]: three 64-bit numbers.
pub const MEMORY_CONTEXT_BYTES: usize = 24;

/// The execution environment of a program, which determines its context.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// A virtual machine in user space. r1 is the address of three 64-bit numbers:
    /// the address of the frame's first byte, the address behind its last captured
    /// byte, and its length on the wire.
    Memory,
    /// The kernel's XDP hook for linear frames, read through pointers. Of a frame with
    /// frags the program sees only the linear part.
    Xdp(XdpLen),
    /// The kernel's XDP hook for frames with frags (loaded with
    /// `BPF_F_XDP_HAS_FRAGS`, Linux 5.18). Reads through pointers if the linear part has
    /// all bytes that the filter needs, else by calls.
    XdpFrags,
    /// The kernel's tc hooks, with the access of `XdpFrags`. The filter does not see a
    /// VLAN tag that the device has removed from the frame.
    Tc,
    /// A socket filter, which may use no pointers: every load is a call.
    SocketFilter,
}

/// The length on the wire for [`Target::Xdp`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum XdpLen {
    /// The length of the linear part.
    Linear,
    /// The length with all frags (Linux 5.18).
    Whole,
    /// A 32-bit number in the host's byte order at the start of the frame's metadata,
    /// written by an earlier program. A frame without metadata is rejected.
    Meta,
}

/// The return value of a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Returns {
    /// The snap length, as of a socket filter; 0 rejects.
    SnapLen,
    /// One of two action codes, as of XDP and tc programs.
    Codes {
        /// The code for an accepted frame.
        accept: i32,
        /// The code for a rejected frame.
        reject: i32,
    },
}

/// The parameters of [`emit`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// The execution environment.
    pub target: Target,
    /// The return value.
    pub returns: Returns,
    /// Limits on length and jumps.
    pub limits: Limits,
}

impl Options {
    /// Options for `target`: returns the snap length, within the kernel's limits.
    pub fn new(target: Target) -> Options {
        Options {
            target,
            returns: Returns::SnapLen,
            limits: Limits::default(),
        }
    }
}

/// Compiles a verified program to a whole eBPF program.
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
///    2: (bf) r6 = r1
///    3: (07) r6 += 14
///    4: (2d) if r6 > r2 goto pc+5
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
/// Those of [`EmitError`].
pub fn emit(program: &Program, options: &Options) -> Result<Vec<Insn>, EmitError> {
    let mut asm = Asm::new();
    let ends = Labels {
        accept: asm.label(),
        reject: asm.label(),
    };
    let needs_len = program.values.contains(&Op::Len);
    match options.target {
        Target::Memory => memory(&mut asm, program, ends, needs_len)?,
        Target::Xdp(source) => xdp(&mut asm, program, ends, source, needs_len)?,
        Target::XdpFrags => fragmented(&mut asm, program, ends, &XDP_FRAGS, needs_len)?,
        Target::Tc => fragmented(&mut asm, program, ends, &TC, needs_len)?,
        Target::SocketFilter => {
            asm.push(Insn::mov64(Reg::R6, Reg::R1));
            if needs_len {
                TC.save_len(&mut asm);
            }
            by_calls(&mut asm, program, ends, &TC, needs_len)?;
        }
    }
    asm.bind(ends.accept);
    let reject_code = match options.returns {
        Returns::SnapLen => 0,
        Returns::Codes { accept, reject } => {
            asm.push(Insn::mov32(Reg::R0, accept));
            reject
        }
    };
    asm.push(Insn::exit());
    asm.bind(ends.reject);
    asm.push(Insn::mov32(Reg::R0, reject_code));
    asm.push(Insn::exit());
    asm.finish(&options.limits)
}

/// The continuations of fragments.
#[derive(Clone, Copy)]
struct Labels {
    accept: Label,
    reject: Label,
}

/// Stack slot of the length on the wire, used only if the filter reads it.
const LEN_SLOT: i16 = -8;

fn save_len_from(asm: &mut Asm, len: Reg) {
    asm.push(Insn::store(op::DW, Reg::FP, LEN_SLOT, len));
}

/// The location of the length, and the stack left below it. A filter that does not
/// read the length needs no slot.
fn len_location(needs_len: bool) -> (WireLen, i16) {
    (
        WireLen::Stack(LEN_SLOT),
        if needs_len { LEN_SLOT } else { 0 },
    )
}

/// Direct access with the pointers in r1 and r2.
const POINTERS: Access = Access::Direct {
    start: Reg::R1,
    end: Reg::R2,
};

/// The free registers with direct access; [`CONTEXT`] comes last.
const FREE: [Reg; 8] = [
    Reg::R0,
    Reg::R3,
    Reg::R4,
    Reg::R5,
    Reg::R7,
    Reg::R8,
    Reg::R9,
    CONTEXT,
];

/// Holds the context across calls.
const CONTEXT: Reg = Reg::R6;

/// Adds a filter with direct access; the pointers are already in [`POINTERS`].
fn by_pointers(
    asm: &mut Asm,
    program: &Program,
    ends: Labels,
    (wire_len, stack_top): (WireLen, i16),
    (free, short): (&[Reg], Label),
) -> Result<(), EmitError> {
    let fragment = Fragment {
        access: POINTERS,
        wire_len,
        result: Reg::R0,
        free,
        stack_top,
        accept: ends.accept,
        reject: ends.reject,
        short,
        is_hidden: false,
    };
    emit_fragment(asm, program, &fragment)
}

fn memory(
    asm: &mut Asm,
    program: &Program,
    ends: Labels,
    needs_len: bool,
) -> Result<(), EmitError> {
    if needs_len {
        asm.push(Insn::load(op::DW, Reg::R3, Reg::R1, 16));
        save_len_from(asm, Reg::R3);
    }
    asm.push(Insn::load(op::DW, Reg::R2, Reg::R1, 8));
    asm.push(Insn::load(op::DW, Reg::R1, Reg::R1, 0));
    by_pointers(
        asm,
        program,
        ends,
        len_location(needs_len),
        (&FREE, ends.reject),
    )
}

/// Offsets of the pointers in `struct xdp_md`.
const XDP_DATA: i16 = 0;
const XDP_DATA_END: i16 = 4;
const XDP_DATA_META: i16 = 8;

fn xdp(
    asm: &mut Asm,
    program: &Program,
    ends: Labels,
    source: XdpLen,
    needs_len: bool,
) -> Result<(), EmitError> {
    if needs_len && source == XdpLen::Whole {
        asm.push(Insn::mov64(CONTEXT, Reg::R1));
        XDP_FRAGS.save_len(asm);
        asm.push(Insn::mov64(Reg::R1, CONTEXT));
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
        asm.jump(Insn::jump64(op::JGT, Reg::R4, Reg::R1), ends.reject);
        asm.push(Insn::load(op::W, Reg::R3, Reg::R3, 0));
        save_len_from(asm, Reg::R3);
    }
    let len = match source {
        XdpLen::Linear => (WireLen::Span, 0),
        XdpLen::Whole | XdpLen::Meta => len_location(needs_len),
    };
    by_pointers(asm, program, ends, len, (&FREE, ends.reject))
}

/// A context whose frame may have frags; pointers reach only the linear part.
struct FragmentedCtx {
    /// Offsets of the pointers in the context.
    data: i16,
    data_end: i16,
    /// The helper that loads from any part.
    load: i32,
    /// The source of the length with all frags.
    len: Len,
}

enum Len {
    /// A field of the context at this offset.
    Field(i16),
    /// The result of this helper.
    Helper(i32),
}

const XDP_FRAGS: FragmentedCtx = FragmentedCtx {
    data: XDP_DATA,
    data_end: XDP_DATA_END,
    load: helper::XDP_LOAD_BYTES,
    len: Len::Helper(helper::XDP_GET_BUFF_LEN),
};

/// Offsets in `struct __sk_buff`.
const TC: FragmentedCtx = FragmentedCtx {
    data: 76,
    data_end: 80,
    load: helper::SKB_LOAD_BYTES,
    len: Len::Field(0),
};

impl FragmentedCtx {
    /// Sets r0 to the length with all frags; may change r1 to r5.
    fn len(&self, asm: &mut Asm) {
        match self.len {
            Len::Field(offset) => asm.push(Insn::load(op::W, Reg::R0, CONTEXT, offset)),
            Len::Helper(helper) => {
                asm.push(Insn::mov64(Reg::R1, CONTEXT));
                asm.push(Insn::call(helper));
            }
        }
    }

    fn save_len(&self, asm: &mut Asm) {
        self.len(asm);
        save_len_from(asm, Reg::R0);
    }
}

/// Reads through pointers; starts again with calls if the linear part is too short and
/// is not the whole frame. Most filters read only headers, and most headers are in
/// the linear part.
fn fragmented(
    asm: &mut Asm,
    program: &Program,
    ends: Labels,
    pieces: &FragmentedCtx,
    needs_len: bool,
) -> Result<(), EmitError> {
    let short = asm.label();
    asm.push(Insn::mov64(CONTEXT, Reg::R1));
    if needs_len {
        pieces.save_len(asm);
    }
    asm.push(Insn::load(op::W, Reg::R1, CONTEXT, pieces.data));
    asm.push(Insn::load(op::W, Reg::R2, CONTEXT, pieces.data_end));
    let free = (&FREE[..FREE.len() - 1], short);
    by_pointers(asm, program, ends, len_location(needs_len), free)?;

    asm.bind(short);
    let linear = Reg::R7;
    asm.push(Insn::mov64(linear, Reg::R2));
    asm.push(Insn::alu64(op::SUB, linear, Reg::R1));
    pieces.len(asm);
    asm.jump(Insn::jump64(op::JGE, linear, Reg::R0), ends.reject);
    by_calls(asm, program, ends, pieces, needs_len)
}

/// Adds a filter that makes a call for each load; [`CONTEXT`] holds the context.
fn by_calls(
    asm: &mut Asm,
    program: &Program,
    ends: Labels,
    pieces: &FragmentedCtx,
    needs_len: bool,
) -> Result<(), EmitError> {
    let (wire_len, stack_top) = len_location(needs_len);
    let fragment = Fragment {
        access: Access::Call {
            helper: pieces.load,
            context: CONTEXT,
        },
        wire_len,
        result: Reg::R0,
        free: &[
            Reg::R0,
            Reg::R1,
            Reg::R2,
            Reg::R3,
            Reg::R4,
            Reg::R5,
            Reg::R7,
            Reg::R8,
            Reg::R9,
        ],
        stack_top,
        accept: ends.accept,
        reject: ends.reject,
        short: ends.reject,
        is_hidden: false,
    };
    emit_fragment(asm, program, &fragment)
}
