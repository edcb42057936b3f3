//! Filters that are no data: their programs, one after the other, as far as
//! they come before the best taker.

use super::super::layout::{UNIT_BYTES, entry, scratch};
use super::super::maps::Part;
use super::super::plan::Whole;
use super::resolve::in_entry;
use super::{CONTEXT, Coder, KEPT, LEN, SCRATCH};
use weir_filter::backend::ebpf::{
    Access, EmitError, Fragment, Insn, Reg, WireLen, emit_fragment, op,
};

/// What whole filters leave of the stack to the rest.
const STACK_TOP: i16 = -16;

impl Coder<'_> {
    pub(super) fn whole(&mut self, whole: &Whole) -> Result<(), EmitError> {
        let [accept, next] = [(); 2].map(|()| self.asm.label());
        let at = whole.unit * UNIT_BYTES;
        self.reload_len();
        // Unbound: its rank is after all others.
        self.map_value(Reg::R1, Part::Store, at);
        self.get(op::DW, Reg::R1, Reg::R1, in_entry(entry::RANK));
        self.get(op::DW, Reg::R2, SCRATCH, scratch::BEST);
        self.branch(op::JGE, Reg::R1, Reg::R2, next);
        let fragment = Fragment {
            access: Access::Call {
                helper: self.load_helper(),
                context: CONTEXT,
            },
            wire_len: WireLen::Reg(LEN),
            result: Reg::R0,
            free: &[Reg::R0, Reg::R1, Reg::R2, Reg::R3, Reg::R4, Reg::R5, KEPT],
            stack_top: STACK_TOP,
            accept,
            reject: next,
            short: next,
        };
        emit_fragment(&mut self.asm, whole.filter.program(), &fragment)?;

        self.asm.bind(accept);
        self.push(Insn::mov32(Reg::R3, Reg::R0));
        self.set(op::W, SCRATCH, scratch::ENTRY, whole.unit as i32);
        self.map_value(Reg::R5, Part::Store, at);
        // Once more: it may have been unbound meanwhile.
        self.get(op::DW, Reg::R2, Reg::R5, in_entry(entry::RANK));
        self.get(op::DW, Reg::R1, SCRATCH, scratch::BEST);
        self.branch(op::JGE, Reg::R2, Reg::R1, next);
        self.note(next, next);
        self.asm.bind(next);
        Ok(())
    }
}
