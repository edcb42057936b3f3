//! Kernel constants that the XDP programs use, and atomic instructions.

use weir_filter::backend::ebpf::{Insn, Reg, op};

pub(super) const XDP_DROP: i32 = 1;
pub(super) const XDP_PASS: i32 = 2;
pub(super) const XDP_REDIRECT: i32 = 4;

/// Offsets in `struct xdp_md`.
pub(super) const DATA: i16 = 0;
pub(super) const DATA_END: i16 = 4;
pub(super) const DATA_META: i16 = 8;
pub(super) const RX_QUEUE: i16 = 16;

/// `bpf_get_smp_processor_id()`. Linux 4.1.
pub(super) const PROCESSOR_ID: i32 = 8;
/// `bpf_xdp_adjust_meta(xdp, delta)`. Linux 4.15.
pub(super) const XDP_ADJUST_META: i32 = 54;
/// `bpf_xdp_adjust_tail(xdp, delta)`. Linux 4.18.
pub(super) const XDP_ADJUST_TAIL: i32 = 65;
/// `bpf_ktime_get_coarse_ns()`: `CLOCK_MONOTONIC_COARSE`. Linux 5.11.
pub(super) const KTIME_GET_COARSE_NS: i32 = 160;

/// Jump if greater, signed.
pub(super) const JSGT: u8 = 0x60;
/// Jump if greater or equal, signed.
pub(super) const JSGE: u8 = 0x70;
/// Jump if less, signed.
pub(super) const JSLT: u8 = 0xc0;
/// Jump if less or equal, signed.
pub(super) const JSLE: u8 = 0xd0;

/// `BPF_ATOMIC`, `BPF_FETCH`, `BPF_CMPXCHG`. Linux 5.12.
const ATOMIC: u8 = 0xc0;
const FETCH: i32 = 0x01;
const CMPXCHG: i32 = 0xf1;
const XCHG: i32 = 0xe1;

fn atomic(operation: i32, base: Reg, at: i16, with: Reg) -> Insn {
    Insn {
        code: op::STX | ATOMIC | op::DW,
        imm: operation,
        ..Insn::store(op::DW, base, at, with)
    }
}

/// `*(base + at) += with`, atomically.
pub(super) fn atomic_add(base: Reg, at: i16, with: Reg) -> Insn {
    atomic(op::ADD.into(), base, at, with)
}

/// As [`atomic_add`], for 32 bits.
pub(super) fn atomic_add_u32(base: Reg, at: i16, with: Reg) -> Insn {
    Insn {
        code: op::STX | ATOMIC | op::W,
        imm: op::ADD.into(),
        ..Insn::store(op::W, base, at, with)
    }
}

/// As [`atomic_add`]; `with` receives the previous value.
pub(super) fn fetch_add(base: Reg, at: i16, with: Reg) -> Insn {
    atomic(i32::from(op::ADD) | FETCH, base, at, with)
}

/// `*(base + at) |= with`, atomically.
pub(super) fn atomic_or(base: Reg, at: i16, with: Reg) -> Insn {
    atomic(op::OR.into(), base, at, with)
}

/// `*(base + at) = with` if it equals r0, atomically; r0 receives the previous
/// value.
pub(super) fn compare_exchange(base: Reg, at: i16, with: Reg) -> Insn {
    atomic(CMPXCHG, base, at, with)
}

/// `with` and `*(base + at)` change places, atomically, after all stores before (`BPF_XCHG`, Linux
/// 5.12).
pub(super) fn exchange(base: Reg, at: i16, with: Reg) -> Insn {
    atomic(XCHG, base, at, with)
}
