//! The byte order of a file or section.

/// The byte order of numbers: the machine's or the reverse.
#[derive(Clone, Copy)]
pub(super) struct ByteOrder {
    pub(super) swapped: bool,
}

impl ByteOrder {
    /// The 16-bit number at `at`, which must be inside `bytes`.
    #[inline]
    pub(super) fn half(self, bytes: &[u8], at: usize) -> u16 {
        let half = u16::from_ne_bytes(array(bytes, at));
        if self.swapped {
            half.swap_bytes()
        } else {
            half
        }
    }

    /// The 32-bit number at `at`, which must be inside `bytes`.
    #[inline]
    pub(super) fn word(self, bytes: &[u8], at: usize) -> u32 {
        let word = u32::from_ne_bytes(array(bytes, at));
        if self.swapped {
            word.swap_bytes()
        } else {
            word
        }
    }

    /// The 64-bit number at `at`, which must be inside `bytes`.
    pub(super) fn long(self, bytes: &[u8], at: usize) -> u64 {
        let long = u64::from_ne_bytes(array(bytes, at));
        if self.swapped {
            long.swap_bytes()
        } else {
            long
        }
    }
}

/// The `N` bytes from `at` on, which must be inside `bytes`.
#[inline]
pub(super) fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    *bytes[at..]
        .first_chunk()
        .expect("checked to be long enough")
}
