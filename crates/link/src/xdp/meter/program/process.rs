//! Frames that a program gives to the process before they are counted, since the process says whose
//! they are.
//!
//! ```text
//!  program at the link: HANDED += 1 ─► XSK ─► process: translates ─► count program: TAKEN += 1,
//!                                      │                             and the stage, on the frame
//!                                      └ lost, or of a killed process: settle program counts
//!                                        HANDED - TAKEN as unattributed
//! ```
//!
//! Both programs run in the kernel by the process's system call (`BPF_PROG_TEST_RUN`), and a kill does
//! not end them halfway: a frame is taken and counted, or neither.

use super::super::layout::{at, place};
use super::{At, CTX, DirectionOf, Emit, FRAME, Spec, emit_routine, stack};
use crate::xdp::abi::{DATA, DATA_END, DATA_META, JSGE, JSLE, XDP_PASS, atomic_add};
use weir_filter::backend::ebpf::{Asm, EmitError, Insn, Limits, Reg, op};
use weir_wire::ethernet;

/// Bytes before a frame for the count program: how many the frame had when it came.
const META_BYTES: i32 = 4;
/// Bytes that the settle program reads: packets and bytes to settle up to.
const SETTLE_BYTES: i32 = 16;

/// Adds the note of a frame that goes to the process: r0 has its bytes; r1 and r2 are lost.
pub(in crate::xdp) fn emit_handed(asm: &mut Asm, first_place: u16) {
    asm.extend(Insn::load_map_value(
        Reg::R1,
        first_place + place::CONTROL,
        0,
    ));
    asm.extend([
        atomic_add(Reg::R1, at::HANDED as i16 + 8, Reg::R0),
        Insn::mov64(Reg::R2, 1),
        atomic_add(Reg::R1, at::HANDED as i16, Reg::R2),
    ]);
}

/// The program that counts a frame of the process: metadata says how many bytes it had when it came.
pub(in crate::xdp) fn count_program(spec: &Spec) -> Result<Vec<Insn>, EmitError> {
    const LEN: Reg = Reg::R7;
    let mut asm = Asm::new();
    let [routine, out] = [(); 2].map(|()| asm.label());
    asm.extend([
        Insn::load(op::W, Reg::R2, Reg::R1, DATA_META),
        Insn::load(op::W, Reg::R3, Reg::R1, DATA),
        Insn::mov64(Reg::R4, Reg::R2),
        Insn::alu64(op::ADD, Reg::R4, META_BYTES),
    ]);
    asm.jump(Insn::jump64(op::JGT, Reg::R4, Reg::R3), out);
    asm.extend([
        Insn::load(op::W, LEN, Reg::R2, 0),
        Insn::mov64(Reg::R2, LEN),
    ]);
    asm.call(routine);
    asm.extend(Insn::load_map_value(Reg::R1, place::CONTROL, 0));
    asm.extend([
        atomic_add(Reg::R1, at::TAKEN as i16 + 8, LEN),
        Insn::mov64(Reg::R2, 1),
        atomic_add(Reg::R1, at::TAKEN as i16, Reg::R2),
    ]);
    asm.bind(out);
    asm.extend([Insn::mov32(Reg::R0, XDP_PASS), Insn::exit()]);
    emit_routine(&mut asm, spec, At::Process, (routine, 0))?;
    asm.finish(&Limits::default())
}

/// The program that counts as unattributed what was handed up to some number and not taken. The
/// frame is these packets and bytes.
pub(in crate::xdp) fn settle_program(spec: &Spec) -> Result<Vec<Insn>, EmitError> {
    let [packets, bytes] = [Reg::R8, Reg::R9];
    let spec = Spec {
        // What is not known has no flow.
        measures: Vec::new(),
        ..spec.clone()
    };
    let mut asm = Asm::new();
    let [out, positive] = [(); 2].map(|()| asm.label());
    let mut emit = Emit {
        asm: &mut asm,
        spec: &spec,
        hook: At::Process,
        first_place: 0,
        is_sum: true,
        direction: match spec.direction_of {
            DirectionOf::One(direction) => Some(direction),
            DirectionOf::Each(_) => None,
        },
    };
    emit.push(&[
        Insn::mov64(CTX, Reg::R1),
        Insn::load(op::W, FRAME, CTX, DATA),
        Insn::load(op::W, Reg::R3, CTX, DATA_END),
        Insn::mov64(Reg::R1, FRAME),
        Insn::alu64(op::ADD, Reg::R1, SETTLE_BYTES),
    ]);
    emit.asm.jump(Insn::jump64(op::JGT, Reg::R1, Reg::R3), out);
    emit.push(&[
        Insn::load(op::DW, packets, FRAME, 0),
        Insn::load(op::DW, bytes, FRAME, 8),
    ]);
    emit.choose_bank();
    emit.value_of(Reg::R1, place::CONTROL);
    for (number, register) in [packets, bytes].into_iter().enumerate() {
        let taken = (at::TAKEN + 8 * number) as i16;
        emit.push(&[
            Insn::load(op::DW, Reg::R2, Reg::R1, taken),
            Insn::store(op::DW, Reg::R1, taken, register),
            Insn::alu64(op::SUB, register, Reg::R2),
        ]);
    }
    emit.asm.jump(Insn::jump64(JSLE, packets, 0), out);
    // Without the link header if that is not counted.
    if spec.counts_ip {
        let header = ethernet::Repr::LEN as i32;
        emit.push(&[
            Insn::mov64(Reg::R2, packets),
            Insn::alu64(op::MUL, Reg::R2, header),
            Insn::alu64(op::SUB, bytes, Reg::R2),
        ]);
    }
    emit.asm.jump(Insn::jump64(JSGE, bytes, 0), positive);
    emit.push(&[Insn::mov64(bytes, 0)]);
    emit.asm.bind(positive);
    emit.push(&[
        Insn::store(op::DW, Reg::FP, stack::PACKETS, packets),
        Insn::store(op::DW, Reg::FP, stack::WIRE, bytes),
        Insn::store(op::DW, Reg::FP, stack::IP_BYTES, bytes),
    ]);
    emit.set(stack::POLICED, 0);
    let overflow = (spec.subscribers + spec.unknown()) as i32;
    emit.set(stack::ROW, overflow);
    emit.set(stack::CLASS, i32::from(spec.listed) + 3);
    let routines = super::Routines::new(emit.asm, 0);
    emit.count(&routines)?;
    emit.asm.bind(out);
    emit.push(&[Insn::mov32(Reg::R0, XDP_PASS), Insn::exit()]);
    super::count::emit_carry(&mut asm, &spec, routines.carry, 0);
    asm.finish(&Limits::default())
}
