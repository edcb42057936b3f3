//! Marks of frames that the plan has seen at XDP, so that it does not see them
//! again at tc while an interface moves from one to the other: then programs
//! are at both.
//!
//! The mark stands in the frame's metadata, which the kernel keeps with it as
//! far as tc. It is the plan's own: another interface's does not count. A driver
//! without metadata leaves frames unmarked; during a move they are then seen
//! twice.
//!
//! ```text
//!             0        8       14       22  24          38
//!  metadata   │ mark   │       │ mark   │   │ link-layer │ packet
//!             └ where tc looks └ and where it looks when the kernel has
//!               for it           forgotten the link-layer header
//! ```
//!
//! It stands there twice: where XDP in generic mode has copied a frame, for
//! want of room before it, the kernel (6.18) forgets the length of the
//! link-layer header (`mac_len`, in `skb_pp_cow_data`). At tc the frame then
//! begins with its packet, and its metadata as many bytes too late.

use super::frame::sk_buff;
use super::{CONTEXT, Coder};
use crate::kernel::plan::KernelPlan;
use weir_filter::backend::ebpf::{Insn, Reg, op};

/// `bpf_xdp_adjust_meta(context, bytes)`: makes room before the frame.
const XDP_ADJUST_META: i32 = 54;

const MARK_BYTES: i16 = 8;

/// Bytes of an Ethernet header: only such interfaces have XDP.
const HEADER_BYTES: i16 = weir_wire::ethernet::Repr::LEN as i16;

/// A mark, and another so far behind it; in fours, as the kernel asks.
const META_BYTES: i16 = (HEADER_BYTES + MARK_BYTES + 3) / 4 * 4;

/// Offsets in `struct xdp_md`.
const XDP_DATA: i16 = 0;
const XDP_DATA_META: i16 = 8;

impl KernelPlan {
    fn mark(&self) -> u64 {
        self.secret.key_hash(u64::MAX, 0).start
    }
}

impl Coder<'_> {
    /// At XDP, for a frame that goes on to the stack.
    pub(super) fn set_mark(&mut self) {
        let none = self.asm.label();
        self.mov(Reg::R1, CONTEXT);
        self.mov(Reg::R2, i32::from(-META_BYTES));
        self.push(Insn::call(XDP_ADJUST_META));
        self.branch(op::JNE, Reg::R0, 0, none);
        self.get(op::W, Reg::R2, CONTEXT, XDP_DATA_META);
        self.get(op::W, Reg::R3, CONTEXT, XDP_DATA);
        self.has_room(none);
        self.constant(Reg::R1, self.plan.mark());
        self.set(op::DW, Reg::R2, 0, Reg::R1);
        self.set(op::DW, Reg::R2, HEADER_BYTES, Reg::R1);
        self.asm.bind(none);
    }

    /// At tc, where frames come in: those with the mark have been seen.
    pub(super) fn skip_marked(&mut self, seen: super::Label) {
        let unmarked = self.asm.label();
        self.get(op::W, Reg::R2, CONTEXT, sk_buff::DATA_META);
        self.get(op::W, Reg::R3, CONTEXT, sk_buff::DATA);
        self.has_room(unmarked);
        self.get(op::DW, Reg::R1, Reg::R2, 0);
        self.constant(Reg::R4, self.plan.mark());
        self.branch(op::JEQ, Reg::R1, Reg::R4, seen);
        self.asm.bind(unmarked);
    }

    /// Leaves unless there is room for both marks between r2 and r3.
    fn has_room(&mut self, otherwise: super::Label) {
        self.mov(Reg::R4, Reg::R2);
        self.add(Reg::R4, i32::from(META_BYTES));
        self.branch(op::JGT, Reg::R4, Reg::R3, otherwise);
    }
}
