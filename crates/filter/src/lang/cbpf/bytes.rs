//! The binary form: arrays of `struct sock_filter`, eight bytes an instruction.

use super::{INSNS_MAX, Insn, code};

/// The byte order of `code` and `k` in an array of `struct sock_filter`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// Least significant byte first.
    Little,
    /// Most significant byte first.
    Big,
}

impl Order {
    /// The byte order of this machine.
    pub const HOST: Order = if cfg!(target_endian = "little") {
        Order::Little
    } else {
        Order::Big
    };
}

/// The error of bytes that are not an array of instructions.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BytesError {
    /// There are no bytes.
    #[error("there are no bytes; a program has at least one instruction of 8 bytes")]
    Empty,
    /// The length is not a multiple of 8.
    #[error("{0} bytes do not make whole instructions of 8 bytes; {rest} are left over", rest = .0 % 8)]
    Ragged(usize),
    /// The program exceeds [`INSNS_MAX`] instructions.
    #[error("{0} bytes make more than {INSNS_MAX} instructions")]
    TooLong(usize),
    /// The last instruction is not `ret` in either byte order, so the byte order is
    /// unknown.
    #[error(
        "the last instruction's code is {little:#06x} read little-endian and {big:#06x} read \
         big-endian; a program ends in ret, 0x0006 or 0x0016"
    )]
    NoReturn {
        /// The last code, read little-endian.
        little: u16,
        /// The last code, read big-endian.
        big: u16,
    },
}

/// Parses an array of `struct sock_filter` and detects its byte order. Every valid
/// program ends in `ret`, whose codes (6 and 22) are invalid in the other order.
pub fn from_bytes(bytes: &[u8]) -> Result<Vec<Insn>, BytesError> {
    check_len(bytes)?;
    let last = &bytes[bytes.len() - 8..];
    let little = u16::from_le_bytes([last[0], last[1]]);
    let big = u16::from_be_bytes([last[0], last[1]]);
    let is_ret = |value| value == code::RET | code::K || value == code::RET | code::A;
    if is_ret(little) {
        from_bytes_in(bytes, Order::Little)
    } else if is_ret(big) {
        from_bytes_in(bytes, Order::Big)
    } else {
        Err(BytesError::NoReturn { little, big })
    }
}

/// Parses an array of `struct sock_filter` in the given byte order.
pub fn from_bytes_in(bytes: &[u8], order: Order) -> Result<Vec<Insn>, BytesError> {
    check_len(bytes)?;
    let (chunks, _) = bytes.as_chunks::<8>();
    let insns = chunks.iter().map(|&[c0, c1, jt, jf, k0, k1, k2, k3]| {
        let (code, k) = match order {
            Order::Little => (
                u16::from_le_bytes([c0, c1]),
                u32::from_le_bytes([k0, k1, k2, k3]),
            ),
            Order::Big => (
                u16::from_be_bytes([c0, c1]),
                u32::from_be_bytes([k0, k1, k2, k3]),
            ),
        };
        Insn { code, jt, jf, k }
    });
    Ok(insns.collect())
}

fn check_len(bytes: &[u8]) -> Result<(), BytesError> {
    match bytes.len() {
        0 => Err(BytesError::Empty),
        len if len % 8 != 0 => Err(BytesError::Ragged(len)),
        len if len / 8 > INSNS_MAX => Err(BytesError::TooLong(len)),
        _ => Ok(()),
    }
}

/// Serialises an array of `struct sock_filter`.
pub fn to_bytes(insns: &[Insn], order: Order) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(insns.len() * 8);
    for insn in insns {
        let (code, k) = match order {
            Order::Little => (insn.code.to_le_bytes(), insn.k.to_le_bytes()),
            Order::Big => (insn.code.to_be_bytes(), insn.k.to_be_bytes()),
        };
        bytes.extend_from_slice(&code);
        bytes.extend_from_slice(&[insn.jt, insn.jf]);
        bytes.extend_from_slice(&k);
    }
    bytes
}
