//! Filters that are no data: their programs, one after the other, as far as
//! they come before the limit that the best taker sets.

use super::frame::{TAG_AT, TAG_BYTES, sk_buff};
use super::resolve::in_entry;
use super::{CALLEE_SAVED, CONTEXT, Coder, LEN, SCRATCH};
use crate::kernel::layout::{SLOT_FANOUT, SLOT_KERNEL, UNIT_BYTES, entry, scratch};
use crate::kernel::maps::MapRole;
use crate::kernel::plan::OpaqueFilter;
use weir_filter::backend::ebpf::{
    Access, EmitError, Fragment, Insn, LoadJumps, Reg, WireLen, emit_fragment, helper, op,
};

/// Top of the stack that opaque filters leave to the rest.
const STACK_TOP: i16 = -16;

/// The conditional jumps of [`load_routine`](Coder::load_routine) of which the verifier
/// follows both sides. At a constant offset, the comparisons with the tag's bounds have
/// one outcome, except for the few loads over a bound.
pub(in crate::kernel) const LOAD_JUMPS: LoadJumps = LoadJumps {
    constant: 2,
    computed: 9,
};

impl Coder<'_> {
    pub(super) fn opaque(&mut self, whole: &OpaqueFilter) -> Result<(), EmitError> {
        let [accept, next] = [(); 2].map(|()| self.asm.label());
        let at = whole.entry * UNIT_BYTES;
        self.reload_len();
        // Unbound: its rank is after all others.
        self.map_value(Reg::R1, MapRole::Index, at);
        self.get(op::DW, Reg::R1, Reg::R1, in_entry(entry::RANK));
        self.get(op::DW, Reg::R2, SCRATCH, scratch::LIMIT);
        self.branch(op::JGE, Reg::R1, Reg::R2, next);
        let context = CONTEXT;
        let access = if self.is_tc() {
            Access::Routine {
                routine: self.load,
                context,
                jumps: LOAD_JUMPS,
            }
        } else {
            let helper = self.load_helper();
            Access::Call { helper, context }
        };
        let fragment = Fragment {
            access,
            wire_len: WireLen::Reg(LEN),
            result: Reg::R0,
            free: &[
                Reg::R0,
                Reg::R1,
                Reg::R2,
                Reg::R3,
                Reg::R4,
                Reg::R5,
                CALLEE_SAVED,
            ],
            stack_top: STACK_TOP,
            accept,
            reject: next,
            short: next,
            is_hidden: true,
        };
        emit_fragment(&mut self.asm, whole.filter.program(), &fragment)?;

        self.asm.bind(accept);
        self.push(Insn::mov32(Reg::R3, Reg::R0));
        self.set(op::W, SCRATCH, scratch::ENTRY, whole.entry as i32);
        self.map_value(Reg::R5, MapRole::Index, at);
        // Once more: it may have been unbound meanwhile.
        self.get(op::DW, Reg::R2, Reg::R5, in_entry(entry::RANK));
        self.get(op::DW, Reg::R1, SCRATCH, scratch::LIMIT);
        self.branch(op::JGE, Reg::R2, Reg::R1, next);
        self.note(self.is_fanout(whole), next);
        self.asm.bind(next);
        Ok(())
    }

    /// Whether an opaque filter's target is a fan-out.
    pub(super) fn is_fanout(&self, whole: &OpaqueFilter) -> bool {
        let slot = self.plan.image.entry_word(whole.entry, entry::SLOT) as u32;
        (SLOT_FANOUT..SLOT_KERNEL).contains(&slot)
    }

    /// `bpf_skb_load_bytes` with the tag in its place: the same arguments and
    /// result. The window that a load over the tag's bounds is read from has
    /// the bytes from 8 to 20.
    pub(super) fn load_routine(&mut self) {
        const WINDOW: i16 = -16;
        const WINDOW_AT: i16 = 8;
        let [plain, shifted, fail, short, done] = [(); 5].map(|()| self.asm.label());
        let (offset, to, count) = (Reg::R7, Reg::R8, Reg::R9);
        let load = self.load;
        self.asm.bind(load);
        self.get(op::W, Reg::R5, Reg::R1, sk_buff::VLAN_PRESENT);
        self.branch(op::JEQ, Reg::R5, 0, plain);
        self.mov(Reg::R0, Reg::R2);
        self.add(Reg::R0, Reg::R4);
        self.get(op::W, Reg::R5, Reg::R1, sk_buff::LEN);
        self.add(Reg::R5, i32::from(TAG_BYTES));
        self.branch(op::JGT, Reg::R0, Reg::R5, fail);
        self.branch(op::JLE, Reg::R0, i32::from(TAG_AT), plain);
        self.branch(op::JGE, Reg::R2, i32::from(TAG_AT + TAG_BYTES), shifted);

        for (kept, argument) in [
            (CONTEXT, Reg::R1),
            (offset, Reg::R2),
            (to, Reg::R3),
            (count, Reg::R4),
        ] {
            self.mov(kept, argument);
        }
        self.mov(Reg::R2, i32::from(WINDOW_AT));
        self.mov(Reg::R3, Reg::FP);
        self.add(Reg::R3, i32::from(WINDOW));
        self.mov(Reg::R4, i32::from(TAG_AT - WINDOW_AT));
        self.push(Insn::call(helper::SKB_LOAD_BYTES));
        self.branch(op::JNE, Reg::R0, 0, fail);
        let tag = WINDOW + TAG_AT - WINDOW_AT;
        self.tag_to(Reg::FP, tag);
        let behind = tag + TAG_BYTES;
        self.set(op::DW, Reg::FP, behind, 0);
        self.get(op::W, Reg::R4, CONTEXT, sk_buff::LEN);
        self.branch(op::JLE, Reg::R4, i32::from(TAG_AT), short);
        self.alu(op::SUB, Reg::R4, i32::from(TAG_AT));
        self.at_most(Reg::R4, i32::from(TAG_BYTES));
        self.mov(Reg::R1, CONTEXT);
        self.mov(Reg::R2, i32::from(TAG_AT));
        self.mov(Reg::R3, Reg::FP);
        self.add(Reg::R3, i32::from(behind));
        self.push(Insn::call(helper::SKB_LOAD_BYTES));
        self.branch(op::JNE, Reg::R0, 0, fail);
        self.asm.bind(short);
        self.alu(op::SUB, offset, i32::from(WINDOW_AT));
        self.branch(op::JGT, offset, 7, fail);
        // The window is shifted, not indexed: a loader without CAP_PERFMON may
        // read the stack at constant places only.
        self.get(op::DW, Reg::R1, Reg::FP, WINDOW);
        self.get(op::DW, Reg::R2, Reg::FP, WINDOW + 8);
        self.push(Insn::to_be(Reg::R1, 64));
        self.push(Insn::to_be(Reg::R2, 64));
        self.alu(op::LSH, offset, 3);
        self.mov(Reg::R3, 56);
        self.alu(op::SUB, Reg::R3, offset);
        self.alu(op::LSH, Reg::R1, offset);
        self.alu(op::RSH, Reg::R2, 8);
        self.alu(op::RSH, Reg::R2, Reg::R3);
        self.alu(op::OR, Reg::R1, Reg::R2);
        for byte in 0..4 {
            self.branch(op::JLE, count, i32::from(byte), done);
            self.mov(Reg::R2, Reg::R1);
            self.alu(op::RSH, Reg::R2, 56);
            self.set(op::B, to, byte, Reg::R2);
            self.alu(op::LSH, Reg::R1, 8);
        }
        self.asm.bind(done);
        self.mov(Reg::R0, 0);
        self.push(Insn::exit());

        self.asm.bind(shifted);
        self.alu(op::SUB, Reg::R2, i32::from(TAG_BYTES));
        self.asm.bind(plain);
        self.push(Insn::call(helper::SKB_LOAD_BYTES));
        self.push(Insn::exit());
        self.asm.bind(fail);
        self.mov(Reg::R0, -1);
        self.push(Insn::exit());
    }
}
