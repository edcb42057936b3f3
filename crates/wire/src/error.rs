//! The error of parsing a header.

/// A header is cut short, or a field contradicts the format.
#[derive(thiserror::Error, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Error {
    /// Fewer bytes are captured than the header has.
    #[error("{header} is cut short: {have} of {need} bytes are there")]
    CutShort {
        /// The header, with its article, as in "an IPv4 header".
        header: &'static str,
        /// Bytes that the header needs, at least.
        need: usize,
        /// Bytes that are present.
        have: usize,
    },
    /// A field whose value contradicts the format.
    #[error("{header} has {field} {value}, which is invalid")]
    Field {
        /// The header, with its article.
        header: &'static str,
        /// The field of the header.
        field: &'static str,
        /// The field's value.
        value: u32,
    },
}

/// Checks that `bytes` holds the `need` bytes of a header.
#[inline]
pub(crate) fn require_len(header: &'static str, bytes: &[u8], need: usize) -> Result<(), Error> {
    let have = bytes.len();
    if have < need {
        return Err(Error::CutShort { header, need, have });
    }
    Ok(())
}
