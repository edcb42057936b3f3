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
    /// `BPF_F_XDP_HAS_FRAGS`, Linux 5.18): through pointers where the first
    /// piece has all that the filter reads, else by calls.
    XdpFrags,
    /// The kernel's tc hooks: as above. A VLAN tag that the device took out of
    /// the frame is not seen.
    Tc,
    /// A socket filter: by calls only, since it may use no pointers.
    SocketFilter,
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
/// When it does not fit; see [`EmitError`].
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

/// Where fragments go on.
#[derive(Clone, Copy)]
struct Labels {
    accept: Label,
    reject: Label,
}

/// The slot that keeps the length on the wire, if the filter reads it.
const LEN_SLOT: i16 = -8;

fn save_len_from(asm: &mut Asm, len: Reg) {
    asm.push(Insn::store(op::DW, Reg::FP, LEN_SLOT, len));
}

/// Where the length is kept, and the stack below. A filter that does not read
/// it is not charged for it.
fn len_location(needs_len: bool) -> (WireLen, i16) {
    (
        WireLen::Stack(LEN_SLOT),
        if needs_len { LEN_SLOT } else { 0 },
    )
}

/// The pointers of direct access.
const POINTERS: Access = Access::Direct {
    start: Reg::R1,
    end: Reg::R2,
};

/// What direct access leaves free; [`CONTEXT`] comes last.
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

/// Keeps the context where calls are made.
const CONTEXT: Reg = Reg::R6;

/// A filter with direct access, the pointers being loaded.
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

/// Offsets in `struct xdp_md`.
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

/// A context whose frame may be in several pieces, of which pointers reach
/// the first.
struct FragmentedCtx {
    /// Offsets of the pointers.
    data: i16,
    data_end: i16,
    /// Loads from anywhere.
    load: i32,
    /// How to get the length of all.
    len: Len,
}

enum Len {
    /// At this offset of the context.
    Field(i16),
    /// By this helper.
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
    /// r0 = the length of all pieces; r1 to r5 may be lost.
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

/// Reads through pointers; should the first piece be too short, and not be
/// all, starts again and reads by calls. Filters mostly look at headers, and
/// those are mostly in the first piece.
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

/// A filter that makes a call for each load, the context being kept.
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
