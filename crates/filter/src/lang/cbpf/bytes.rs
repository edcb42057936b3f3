//! Programs as arrays of `struct sock_filter`, eight bytes an instruction.

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
    /// The order of the host this runs on.
    pub const HOST: Order = if cfg!(target_endian = "little") {
        Order::Little
    } else {
        Order::Big
    };
}

/// Why bytes are not an array of instructions.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BytesError {
    /// There is nothing.
    #[error("there are no bytes; a program has at least one instruction of 8 bytes")]
    Empty,
    /// Part of an instruction is left over.
    #[error("{0} bytes do not make whole instructions of 8 bytes; {rest} are left over", rest = .0 % 8)]
    Ragged(usize),
    /// More than [`INSNS_MAX`].
    #[error("{0} bytes make more than {INSNS_MAX} instructions")]
    TooLong(usize),
    /// The last instruction is `ret` in neither byte order, so there is no
    /// telling which it is.
    #[error(
        "the last instruction's code is {little:#06x} read little-endian and {big:#06x} read \
         big-endian; a program ends in ret, 0x0006 or 0x0016"
    )]
    NoReturn {
        /// The last code, least significant byte first.
        little: u16,
        /// The last code, most significant byte first.
        big: u16,
    },
}

/// Reads an array of `struct sock_filter` and finds out its byte order: every
/// valid program ends in `ret`, whose code (6 or 22) reads as no code at all
/// in the other order.
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

/// Reads an array of `struct sock_filter` in a known byte order.
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

/// Writes an array of `struct sock_filter`.
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
