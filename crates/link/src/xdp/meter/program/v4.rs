//! Which row an IPv4 address has: one line of the table of addresses.

use super::super::layout::{LINE_BYTES, MUL_A, MUL_B, V4_SLOTS, place};
use super::Spec;
use weir_filter::backend::ebpf::{Asm, Insn, Label, Reg, helper, op};

/// Adds the look-up of the address in `address`, which survives calls: r3 = its row plus 1, or goes to
/// `none`. Eight bytes of the stack at `scratch` are lost.
pub(super) fn look_up(
    asm: &mut Asm,
    spec: &Spec,
    (address, scratch): (Reg, i16),
    none: Label,
    first_place: u16,
) {
    let found = asm.label();
    asm.extend(Insn::load64(Reg::R1, spec.seed));
    asm.push(Insn::alu64(op::XOR, Reg::R1, address));
    asm.extend(Insn::load64(Reg::R2, MUL_A));
    asm.extend([
        Insn::alu64(op::MUL, Reg::R1, Reg::R2),
        Insn::mov64(Reg::R2, Reg::R1),
        Insn::alu64(op::RSH, Reg::R2, 32),
        Insn::alu64(op::XOR, Reg::R1, Reg::R2),
    ]);
    asm.extend(Insn::load64(Reg::R2, MUL_B));
    asm.extend([
        Insn::alu64(op::MUL, Reg::R1, Reg::R2),
        Insn::alu64(op::RSH, Reg::R1, 32),
        // What it was made from does not matter to the verifier any more (as `lose_track`).
        Insn::store(op::W, Reg::FP, scratch + 4, Reg::R1),
        Insn::alu64(op::MUL, Reg::R1, spec.v4_lines as i32),
        Insn::alu64(op::RSH, Reg::R1, 32),
        Insn::store(op::W, Reg::FP, scratch, Reg::R1),
        Insn::mov64(Reg::R2, Reg::FP),
        Insn::alu64(op::ADD, Reg::R2, i32::from(scratch)),
    ]);
    asm.extend(Insn::load_map(Reg::R1, first_place + place::V4));
    asm.push(Insn::call(helper::MAP_LOOKUP_ELEM));
    asm.jump(Insn::jump64(op::JEQ, Reg::R0, 0), none);
    let within = (LINE_BYTES - 8) as i32;
    asm.extend([
        Insn::load(op::W, Reg::R1, Reg::FP, scratch + 4),
        Insn::alu64(op::LSH, Reg::R1, 3),
    ]);
    for number in 0..V4_SLOTS as i32 {
        asm.extend([
            Insn::mov64(Reg::R2, Reg::R1),
            Insn::alu64(op::ADD, Reg::R2, 8 * number),
            Insn::alu64(op::AND, Reg::R2, within),
            Insn::alu64(op::ADD, Reg::R2, Reg::R0),
            Insn::load(op::DW, Reg::R3, Reg::R2, 0),
            Insn::mov32(Reg::R4, Reg::R3),
        ]);
        asm.jump(Insn::jump64(op::JEQ, Reg::R4, address), found);
    }
    asm.goto(none);
    asm.bind(found);
    asm.push(Insn::alu64(op::RSH, Reg::R3, 32));
    // An empty slot looks like that of address 0, which is not in this table.
    asm.jump(Insn::jump64(op::JEQ, Reg::R3, 0), none);
}

/// The routine that gives the row plus 1 of the address r1, or 0.
pub(super) fn emit_v4(asm: &mut Asm, spec: &Spec, v4: Label, first_place: u16) {
    let none = asm.label();
    asm.bind(v4);
    asm.push(Insn::mov64(Reg::R6, Reg::R1));
    look_up(asm, spec, (Reg::R6, -8), none, first_place);
    asm.extend([Insn::mov64(Reg::R0, Reg::R3), Insn::exit()]);
    asm.bind(none);
    asm.extend([Insn::mov64(Reg::R0, 0), Insn::exit()]);
}
