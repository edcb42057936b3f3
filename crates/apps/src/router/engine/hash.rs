//! A hash for the choice among equal-cost hops.

/// The finaliser of MurmurHash3: a bijective mixing of 64 bits.
pub(super) fn mixed(mut bits: u64) -> u64 {
    bits ^= bits >> 33;
    bits = bits.wrapping_mul(0xff51_afd7_ed55_8ccd);
    bits ^= bits >> 33;
    bits = bits.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    bits ^ bits >> 33
}
