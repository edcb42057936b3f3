//! Sizes in bytes with units, as written in configuration files.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A number of bytes: the size of a queue, or of a share of memory.
///
/// ```
/// use weir_broker::Bytes;
///
/// assert_eq!("1 MiB".parse(), Ok(Bytes(1 << 20)));
/// assert_eq!("1500".parse(), Ok(Bytes(1500)));
/// assert_eq!(Bytes(1 << 16).to_string(), "64 KiB");
/// ```
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Bytes(pub u64);

/// A text that is not a size.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`{0}` is not a size: write a number of bytes, or one with KiB, MiB or GiB")]
pub struct NotASize(pub String);

/// Units, the largest first: letter and size.
const UNITS: [(char, u64); 3] = [('G', 1 << 30), ('M', 1 << 20), ('K', 1 << 10)];

impl FromStr for Bytes {
    type Err = NotASize;

    /// Reads `4096`, `64K`, `64 KiB`, `1MiB`, `2 GiB`; units are powers of
    /// 1,024 and may be in any case.
    fn from_str(text: &str) -> Result<Bytes, NotASize> {
        let refuse = || NotASize(text.chars().take(40).collect());
        let trimmed = text.trim();
        let digits = trimmed.find(|c: char| !c.is_ascii_digit());
        let (number, unit) = trimmed.split_at(digits.unwrap_or(trimmed.len()));
        let number: u64 = number.parse().map_err(|_| refuse())?;
        let unit = unit.trim().to_ascii_lowercase();
        let size = match unit.as_str() {
            "" | "b" => 1,
            unit => {
                let named = |&&(letter, _): &&(char, u64)| {
                    let letter = letter.to_ascii_lowercase();
                    unit == letter.to_string() || unit == format!("{letter}ib")
                };
                UNITS.iter().find(named).ok_or_else(refuse)?.1
            }
        };
        number.checked_mul(size).map(Bytes).ok_or_else(refuse)
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fits = |(_, size): &&(char, u64)| self.0 >= *size && self.0.is_multiple_of(*size);
        match UNITS.iter().find(fits) {
            Some((letter, size)) => write!(f, "{} {letter}iB", self.0 / size),
            None => write!(f, "{} B", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_written() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            (" 64K ", 64 << 10),
            ("64 kib", 64 << 10),
            ("3MiB", 3 << 20),
            ("2 GiB", 2 << 30),
        ] {
            assert_eq!(text.parse(), Ok(Bytes(bytes)), "{text}");
        }
        for text in [
            "",
            "x",
            "-1",
            "1.5M",
            "1 MB",
            "1 TiB",
            "99999999999 GiB",
            "1 M iB",
        ] {
            assert!(text.parse::<Bytes>().is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_shown_is_read_back() {
        for bytes in [0, 1, 1023, 1024, 1025, 1 << 20, (1 << 20) + 1024, 5 << 30] {
            assert_eq!(Bytes(bytes).to_string().parse(), Ok(Bytes(bytes)));
        }
    }
}
