//! The flow cache in a link's program: finds a frame's entry and carries out its action.
//!
//! ```text
//!  flow? ─► addresses? ─► stations? ──► slot ─► checks ─► rewrite ─► redirect, count
//!    │          │             │           │       │
//!    └──────────┴─────────────┴───────────┴───────┴─► on: to the application
//!  keys.rs                            slot.rs  checks.rs  send.rs, rewrite.rs
//! ```

mod checks;
mod keys;
mod rewrite;
mod send;
mod slot;
#[cfg(test)]
mod tests;

use super::FlowProgramSpec;
use super::key::{FlowKind, LONG};
use crate::xdp::abi::{DATA, DATA_END};
use weir_filter::backend::ebpf::{Asm, Insn, Label, Reg, helper, op};

const CTX: Reg = Reg::R6;
const FRAME: Reg = Reg::R7;
const END: Reg = Reg::R8;
const ENTRY: Reg = Reg::R9;

/// Stack offset: the time, by the coarse clock.
pub(in crate::xdp) const NOW: i16 = -8;
/// Stack offset: bytes to send.
const SEND: i16 = -16;
/// Stack offset: bytes of the frame.
const LEN: i16 = -24;
const NUMBER: i16 = -32;
/// Stack offset: the entry's counts of this CPU.
const COUNTS: i16 = -40;
const KEY: i16 = COUNTS - LONG as i16;
/// Stack offset: reserved for the caller.
pub(in crate::xdp) const CALLER_SAVED: i16 = KEY - 8;

/// Offsets in a frame.
const TYPE: i16 = 12;
const IP: i16 = weir_wire::ethernet::Repr::LEN as i16;

/// Indices of the maps in a link's program.
mod place {
    pub(super) const INDEX: u16 = 3;
    pub(super) const SLOTS: u16 = 4;
    pub(super) const COUNTS: u16 = 5;
    pub(super) const OUTS: u16 = 6;
}

/// Appends the flow cache's code. On entry r6 is the frame's context and [`NOW`] the time. The code
/// falls through if the application must decide; r6 and [`CALLER_SAVED`] are then preserved, all
/// other registers lost. `state` is the index of the shared page's map; `decided` has a routine that
/// counts a frame as it is sent, of which r1 is the context and r2 the bytes that came, and where one
/// goes that is dropped before.
pub(in crate::xdp) fn emit_lookup(
    asm: &mut Asm,
    link: u32,
    spec: &FlowProgramSpec,
    state: u16,
    decided: Option<[Label; 2]>,
) {
    let [pass_to_userspace, hit, out] = [(); 3].map(|()| asm.label());
    let mut emit = Emit {
        asm,
        link,
        pass_to_userspace,
        spec,
        decided,
    };
    emit.find_frame();
    emit.within(IP, pass_to_userspace);
    for kind in [FlowKind::FiveTuple, FlowKind::IpPair, FlowKind::MacPair] {
        if spec.kinds.contains(&kind) {
            emit.emit_find(kind, hit);
        }
    }
    emit.asm.goto(pass_to_userspace);
    emit.asm.bind(hit);
    emit.try_forward(state);
    emit.check(out, state);
    emit.rewrite_headers();
    emit.rewrite_flow(out);
    emit.asm.bind(out);
    emit.send();
    emit.asm.bind(pass_to_userspace);
}

struct Emit<'a> {
    asm: &'a mut Asm,
    link: u32,
    pass_to_userspace: Label,
    spec: &'a FlowProgramSpec,
    /// The routine that counts a frame, and where one goes that is dropped uncounted.
    decided: Option<[Label; 2]>,
}

/// A number in network byte order, as a load of the frame returns it.
fn wire(number: u16) -> i32 {
    number.to_be().into()
}

impl Emit<'_> {
    fn push(&mut self, insns: &[Insn]) {
        insns.iter().for_each(|insn| self.asm.push(*insn));
    }

    fn find_frame(&mut self) {
        self.push(&[
            Insn::load(op::W, FRAME, CTX, DATA),
            Insn::load(op::W, END, CTX, DATA_END),
        ]);
    }

    /// Jumps to `label` unless the first fragment has at least `bytes` bytes.
    fn within(&mut self, bytes: i16, label: Label) {
        self.push(&[
            Insn::mov64(Reg::R1, FRAME),
            Insn::alu64(op::ADD, Reg::R1, i32::from(bytes)),
        ]);
        self.asm.jump(Insn::jump64(op::JGT, Reg::R1, END), label);
    }

    /// Counts the frame as it is now, if frames are counted here; [`LEN`] has the bytes that came.
    fn count(&mut self) {
        if let Some([routine, _]) = self.decided {
            // All ways here are one to the verifier: it follows the routine once.
            self.push(&[
                Insn::mov64(FRAME, 0),
                Insn::mov64(END, 0),
                Insn::mov64(Reg::R1, CTX),
                Insn::load(op::DW, Reg::R2, Reg::FP, LEN),
            ]);
            self.asm.call(routine);
        }
    }

    fn load(&mut self, size: u8, to: Reg, at: i16) {
        self.asm.push(Insn::load(size, to, FRAME, at));
    }

    fn pass_to_userspace_if(&mut self, condition: u8, register: Reg, than: i32) {
        let pass_to_userspace = self.pass_to_userspace;
        self.asm
            .jump(Insn::jump64(condition, register, than), pass_to_userspace);
    }

    fn look_up(&mut self, place: u16, key: i16) {
        self.push(&Insn::load_map(Reg::R1, place));
        self.push(&[
            Insn::mov64(Reg::R2, Reg::FP),
            Insn::alu64(op::ADD, Reg::R2, i32::from(key)),
            Insn::call(helper::MAP_LOOKUP_ELEM),
        ]);
    }

    /// Branches on the EtherType to `v4` (falls through) or `v6`, each with its whole header
    /// present, or to `other`; r1 is lost.
    fn branch_on_ethertype(&mut self, v6: Label, other: Label) {
        self.load(op::H, Reg::R1, TYPE);
        self.asm
            .jump(Insn::jump64(op::JEQ, Reg::R1, wire(0x86dd)), v6);
        self.is_v4(other);
    }

    /// r1 holds the EtherType.
    fn is_v4(&mut self, other: Label) {
        self.asm
            .jump(Insn::jump64(op::JNE, Reg::R1, wire(0x0800)), other);
        self.within(IP + 20, other);
        self.load(op::B, Reg::R1, IP);
        self.asm.jump(Insn::jump64(op::JNE, Reg::R1, 0x45), other);
    }

    fn is_v6(&mut self, other: Label) {
        self.within(IP + 40, other);
        self.load(op::B, Reg::R1, IP);
        self.push(&[Insn::alu64(op::AND, Reg::R1, 0xf0)]);
        self.asm.jump(Insn::jump64(op::JNE, Reg::R1, 0x60), other);
    }
}
