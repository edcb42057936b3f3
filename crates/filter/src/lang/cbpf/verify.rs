//! The verifier: makes the checks of the Linux kernel (`bpf_check_classic` in
//! `net/core/filter.c`, 6.18). A program that passes can be attached to a socket.

use super::{INSNS_MAX, Insn, MEM_WORDS, code};

/// The reason why the kernel would refuse a program. Instructions are numbered from
/// zero, as in the `-d` form.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum VerifyError {
    /// The program is empty.
    #[error("the program has no instructions")]
    Empty,
    /// The program exceeds [`INSNS_MAX`] instructions.
    #[error("the program has {0} instructions; at most {INSNS_MAX} are allowed")]
    TooLong(usize),
    /// An unknown code.
    #[error("instruction {at} has the code {code:#06x}, which is no classic BPF instruction")]
    UnknownCode {
        /// Index of the instruction.
        at: usize,
        /// The code.
        code: u16,
    },
    /// A jump beyond the last instruction.
    #[error("instruction {at} jumps to {target}, beyond the last instruction, {last}")]
    JumpOut {
        /// Index of the instruction.
        at: usize,
        /// Index of the target.
        target: u64,
        /// Index of the last instruction.
        last: usize,
    },
    /// A jump to an earlier instruction.
    #[error(
        "instruction {at} jumps back to {target}: a loop, such as libpcap makes for protochain \
         and runs in user space only; the kernel refuses it, and so do we"
    )]
    JumpBack {
        /// Index of the instruction.
        at: usize,
        /// Index of the target; negative if it is before the program.
        target: i64,
    },
    /// An index beyond scratch memory.
    #[error("instruction {at} names M[{k}]; there are M[0] to M[15]")]
    ScratchIndex {
        /// Index of the instruction.
        at: usize,
        /// Index of the scratch word.
        k: u32,
    },
    /// A scratch word that is read before it is written on every path.
    #[error("instruction {at} reads M[{k}], which is not written on every path to it")]
    ScratchUnset {
        /// Index of the instruction.
        at: usize,
        /// Index of the scratch word.
        k: u32,
    },
    /// Division or remainder by the constant zero.
    #[error("instruction {at} divides by the constant 0")]
    DivisionByZero {
        /// Index of the instruction.
        at: usize,
    },
    /// A shift by a constant of 32 or more.
    #[error("instruction {at} shifts by {k}; a shift is by at most 31")]
    Shift {
        /// Index of the instruction.
        at: usize,
        /// The constant.
        k: u32,
    },
    /// An unassigned address in the kernel's range for ancillary fields.
    #[error(
        "instruction {at} loads from {k:#x}, which the kernel keeps for fields outside the \
         frame, and there is none at that address"
    )]
    UnknownAncillary {
        /// Index of the instruction.
        at: usize,
        /// The address.
        k: u32,
    },
    /// The last instruction is not `ret`.
    #[error("instruction {at} is the last and does not return; a program ends in ret")]
    NoReturn {
        /// Index of the last instruction.
        at: usize,
    },
}

/// Makes the checks that the Linux kernel makes before it attaches a program.
///
/// A program that passes ends on every frame and reads no scratch word that it has not
/// written. [`run`](super::run) and [`lift`](super::lift) accept it.
pub fn verify(insns: &[Insn]) -> Result<(), VerifyError> {
    match insns.len() {
        0 => return Err(VerifyError::Empty),
        count if count > INSNS_MAX => return Err(VerifyError::TooLong(count)),
        _ => {}
    }
    for (at, insn) in insns.iter().enumerate() {
        check_insn(at, insn, insns.len())?;
    }
    let last = insns.len() - 1;
    if code::class(insns[last].code) != code::RET {
        return Err(VerifyError::NoReturn { at: last });
    }
    check_scratch(insns)
}

/// Whether the kernel knows the code (its `chk_code_allowed`).
fn is_known(value: u16) -> bool {
    use code::*;
    if value > 0xff {
        return false;
    }
    match class(value) {
        LD => matches!(
            (mode(value), size(value)),
            (ABS | IND, W | H | B) | (IMM | MEM | LEN, W)
        ),
        LDX => matches!((mode(value), size(value)), (IMM | MEM | LEN, W) | (MSH, B)),
        ST | STX => value <= STX,
        ALU => op(value) <= XOR && value != (ALU | NEG | X),
        JMP => value == JMP | JA || matches!(op(value), JEQ | JGT | JGE | JSET),
        RET => value == RET | K || value == RET | A,
        _ => value == MISC | TAX || value == MISC | TXA,
    }
}

fn check_insn(at: usize, insn: &Insn, count: usize) -> Result<(), VerifyError> {
    let Insn { code: value, k, .. } = *insn;
    if !is_known(value) {
        return Err(VerifyError::UnknownCode { at, code: value });
    }
    match code::class(value) {
        code::ALU if !code::takes_x(value) => match code::op(value) {
            code::DIV | code::MOD if k == 0 => Err(VerifyError::DivisionByZero { at }),
            code::LSH | code::RSH if k >= 32 => Err(VerifyError::Shift { at, k }),
            _ => Ok(()),
        },
        code::ST | code::STX => check_index(at, k),
        code::LD | code::LDX if code::mode(value) == code::MEM => check_index(at, k),
        code::LD if code::mode(value) == code::ABS => {
            if k >= code::SKF_AD_OFF && code::ancillary_name(k).is_none() {
                return Err(VerifyError::UnknownAncillary { at, k });
            }
            Ok(())
        }
        code::JMP => check_jump(at, insn, count),
        _ => Ok(()),
    }
}

fn check_index(at: usize, k: u32) -> Result<(), VerifyError> {
    if k as usize >= MEM_WORDS {
        return Err(VerifyError::ScratchIndex { at, k });
    }
    Ok(())
}

fn check_jump(at: usize, insn: &Insn, count: usize) -> Result<(), VerifyError> {
    let farthest = if code::op(insn.code) == code::JA {
        insn.k
    } else {
        u32::from(insn.jt.max(insn.jf))
    };
    let target = at as u64 + 1 + u64::from(farthest);
    if target < count as u64 {
        return Ok(());
    }
    // As a signed distance, the jump may be meant to lead back.
    let signed = at as i64 + 1 + i64::from(farthest as i32);
    if (farthest as i32) < 0 && signed >= 0 {
        return Err(VerifyError::JumpBack { at, target: signed });
    }
    let last = count - 1;
    Err(VerifyError::JumpOut { at, target, last })
}

/// Checks that each scratch word is written on every path before it is read (the
/// kernel's `check_load_and_stores`). One pass suffices, since jumps lead forward. Like
/// the kernel, the check continues after a `ret` with the words written before it,
/// although no path does. That only refuses more programs.
fn check_scratch(insns: &[Insn]) -> Result<(), VerifyError> {
    const ALL: u16 = u16::MAX;
    let mut written_at = vec![ALL; insns.len()];
    let mut written = 0;
    for (at, insn) in insns.iter().enumerate() {
        written &= written_at[at];
        match code::class(insn.code) {
            code::ST | code::STX => written |= 1 << insn.k,
            code::LD | code::LDX
                if code::mode(insn.code) == code::MEM && written & (1 << insn.k) == 0 =>
            {
                return Err(VerifyError::ScratchUnset { at, k: insn.k });
            }
            code::JMP => {
                for target in targets(at, insn) {
                    written_at[target] &= written;
                }
                written = ALL;
            }
            _ => {}
        }
    }
    Ok(())
}

/// The targets of a jump in a verified program; both are equal for `JA`.
pub(super) fn targets(at: usize, insn: &Insn) -> [usize; 2] {
    if code::op(insn.code) == code::JA {
        [at + 1 + insn.k as usize; 2]
    } else {
        [at + 1 + usize::from(insn.jt), at + 1 + usize::from(insn.jf)]
    }
}
