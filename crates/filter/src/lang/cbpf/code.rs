//! The parts of an instruction's code: the class, and the fields of each class. The
//! values are those of `<linux/bpf_common.h>` and `<linux/filter.h>`.

/// Class: load into `A`.
pub const LD: u16 = 0x00;
/// Class: load into `X`.
pub const LDX: u16 = 0x01;
/// Class: store `A` into scratch memory.
pub const ST: u16 = 0x02;
/// Class: store `X` into scratch memory.
pub const STX: u16 = 0x03;
/// Class: arithmetic on `A`.
pub const ALU: u16 = 0x04;
/// Class: jump.
pub const JMP: u16 = 0x05;
/// Class: return a verdict.
pub const RET: u16 = 0x06;
/// Class: copy between `A` and `X`.
pub const MISC: u16 = 0x07;

/// Load size: four bytes.
pub const W: u16 = 0x00;
/// Load size: two bytes.
pub const H: u16 = 0x08;
/// Load size: one byte.
pub const B: u16 = 0x10;

/// Load mode: the constant.
pub const IMM: u16 = 0x00;
/// Load mode: the bytes of the frame at the constant.
pub const ABS: u16 = 0x20;
/// Load mode: the bytes of the frame at `X` plus the constant.
pub const IND: u16 = 0x40;
/// Load mode: scratch memory.
pub const MEM: u16 = 0x60;
/// Load mode: the frame's length on the wire.
pub const LEN: u16 = 0x80;
/// Load mode, `LDX` only: four times the low nibble of a byte of the frame.
pub const MSH: u16 = 0xa0;

/// Arithmetic: add.
pub const ADD: u16 = 0x00;
/// Arithmetic: subtract.
pub const SUB: u16 = 0x10;
/// Arithmetic: multiply.
pub const MUL: u16 = 0x20;
/// Arithmetic: divide.
pub const DIV: u16 = 0x30;
/// Arithmetic: bitwise or.
pub const OR: u16 = 0x40;
/// Arithmetic: bitwise and.
pub const AND: u16 = 0x50;
/// Arithmetic: shift left.
pub const LSH: u16 = 0x60;
/// Arithmetic: shift right.
pub const RSH: u16 = 0x70;
/// Arithmetic: negate `A`; takes no operand.
pub const NEG: u16 = 0x80;
/// Arithmetic: remainder.
pub const MOD: u16 = 0x90;
/// Arithmetic: bitwise exclusive or.
pub const XOR: u16 = 0xa0;

/// Jump: always, by the distance in the constant.
pub const JA: u16 = 0x00;
/// Jump: if equal.
pub const JEQ: u16 = 0x10;
/// Jump: if greater, unsigned.
pub const JGT: u16 = 0x20;
/// Jump: if greater or equal, unsigned.
pub const JGE: u16 = 0x30;
/// Jump: if the operands have a bit in common.
pub const JSET: u16 = 0x40;

/// Operand: the constant.
pub const K: u16 = 0x00;
/// Operand: `X`.
pub const X: u16 = 0x08;
/// Operand of [`RET`]: `A`.
pub const A: u16 = 0x10;

/// Copy `A` to `X`.
pub const TAX: u16 = 0x00;
/// Copy `X` to `A`.
pub const TXA: u16 = 0x80;

/// The class bits of a code.
pub const fn class(code: u16) -> u16 {
    code & 0x07
}

/// The load size bits of a code.
pub const fn size(code: u16) -> u16 {
    code & 0x18
}

/// The load mode bits of a code.
pub const fn mode(code: u16) -> u16 {
    code & 0xe0
}

/// The arithmetic or jump bits of a code.
pub const fn op(code: u16) -> u16 {
    code & 0xf0
}

/// Whether the operand of an arithmetic or jump code is `X`.
pub const fn takes_x(code: u16) -> bool {
    code & 0x08 != 0
}

/// The first address that the Linux kernel does not treat as bytes of the frame
/// (`SKF_LL_OFF`, unsigned).
pub const SKF_LL_OFF: u32 = 0xffe0_0000;
/// The first address that the kernel counts from the network header (`SKF_NET_OFF`).
pub const SKF_NET_OFF: u32 = 0xfff0_0000;
/// The first address of a field outside the frame, an ancillary field (`SKF_AD_OFF`).
pub const SKF_AD_OFF: u32 = 0xffff_f000;
/// The address whose load computes `A ^ X` (`SKF_AD_OFF + SKF_AD_ALU_XOR_X`), from the
/// time before [`XOR`]. It is the only special address that is independent of the link.
pub const SKF_AD_ALU_XOR_X: u32 = SKF_AD_OFF + 40;

/// Ancillary fields: offset from [`SKF_AD_OFF`], and the name in `tcpdump -d`.
pub(super) const ANCILLARY: [(u32, &str); 16] = [
    (0, "proto"),
    (4, "type"),
    (8, "ifidx"),
    (12, "nla"),
    (16, "nlan"),
    (20, "mark"),
    (24, "queue"),
    (28, "hatype"),
    (32, "rxhash"),
    (36, "cpu"),
    (40, "xor_x"),
    (44, "vlan_tci"),
    (48, "vlanp"),
    (52, "poff"),
    (56, "random"),
    (60, "vlan_tpid"),
];

/// The name of the ancillary field at address `k`; `None` for other addresses.
pub(super) fn ancillary_name(k: u32) -> Option<&'static str> {
    let offset = k.checked_sub(SKF_AD_OFF)?;
    let row = ANCILLARY.iter().find(|(at, _)| *at == offset);
    row.map(|(_, name)| *name)
}
