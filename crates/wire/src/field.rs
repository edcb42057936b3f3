//! Reads and writes of fields in network order, at offsets that are already checked.
//! All functions panic if the field lies outside the bytes.

/// The `N` bytes at offset `at`.
#[inline]
pub fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    *bytes[at..]
        .first_chunk()
        .expect("checked when the view was made")
}

/// The 16-bit number at offset `at`.
#[inline]
pub fn read_u16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(array(bytes, at))
}

/// The 32-bit number at offset `at`.
#[inline]
pub fn read_u32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(array(bytes, at))
}

/// Writes `value` at offset `at`.
#[inline]
pub fn write(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}
