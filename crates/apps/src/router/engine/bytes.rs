//! Fields of frames, in network order, at places that were checked before.

/// Bytes of an Ethernet header.
pub(super) const ETHERNET: usize = 14;

pub(super) fn half(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(array(bytes, at))
}

pub(super) fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let found = bytes[at..].first_chunk();
    *found.expect("checked when the frame was classified")
}

pub(super) fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

/// Bits mixed well (the finaliser of MurmurHash3).
pub(super) fn mixed(mut bits: u64) -> u64 {
    bits ^= bits >> 33;
    bits = bits.wrapping_mul(0xff51_afd7_ed55_8ccd);
    bits ^= bits >> 33;
    bits = bits.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    bits ^ bits >> 33
}
