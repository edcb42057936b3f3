//! Why bytes are not the header they are taken for.

/// A header that is not whole, or says what cannot be.
#[derive(thiserror::Error, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Error {
    /// Fewer bytes than the header has.
    #[error("{header} is cut short: {have} of {need} bytes are there")]
    CutShort {
        /// Which header.
        header: &'static str,
        /// Bytes it has, or at least has.
        need: usize,
        /// Bytes that are there.
        have: usize,
    },
    /// A field whose value contradicts the format.
    #[error("{header} has {field} {value}, which cannot be")]
    Field {
        /// Which header.
        header: &'static str,
        /// Which field of it.
        field: &'static str,
        /// Its value.
        value: u32,
    },
}

/// Checks that `bytes` holds a header's `need` bytes.
#[inline]
pub(crate) fn require_len(header: &'static str, bytes: &[u8], need: usize) -> Result<(), Error> {
    let have = bytes.len();
    if have < need {
        return Err(Error::CutShort { header, need, have });
    }
    Ok(())
}
