//! Reads whole files with a length limit.

use crate::config::Wrong;
use crate::error::CliError;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// The bytes of the file at `path` (`-`: standard input), at most `len_max`.
/// The length that the system reports is not used: a pipe and a device have
/// none. A file that cannot be read is a failure at run time; a longer one is
/// refused.
pub(crate) fn read(path: &Path, len_max: u64) -> Result<Vec<u8>, CliError> {
    let stdin = path == Path::new("-");
    let name = if stdin {
        "standard input".to_owned()
    } else {
        path.display().to_string()
    };
    let say = |error: io::Error| CliError::run(format!("cannot read {name}: {error}"));
    let input: Box<dyn Read> = if stdin {
        Box::new(io::stdin())
    } else {
        Box::new(File::open(path).map_err(say)?)
    };
    let mut bytes = Vec::new();
    input
        .take(len_max + 1)
        .read_to_end(&mut bytes)
        .map_err(say)?;
    if bytes.len() as u64 > len_max {
        return Err(CliError::refused(format!(
            "{name}: longer than {len_max} bytes, the limit"
        )));
    }
    Ok(bytes)
}

/// As [`read`], for TOML: bytes that are not UTF-8 are refused.
pub(crate) fn text(path: &Path, len_max: u64) -> Result<String, CliError> {
    String::from_utf8(read(path, len_max)?).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let before = String::from_utf8_lossy(&error.as_bytes()[..at]);
        let why = format!(
            "the byte {:#04x} is not valid UTF-8, which TOML requires",
            error.as_bytes()[at]
        );
        Wrong::at(&before, at, why).refused(path)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endless_file_is_refused() {
        let error = read(Path::new("/dev/zero"), 1000).unwrap_err();
        assert!(matches!(error, CliError::Refused(_)), "{error}");
        let error = error.to_string();
        assert!(error.starts_with("/dev/zero: longer than 1000"), "{error}");
    }

    #[test]
    fn a_file_may_have_the_most_and_no_more() {
        let path = std::env::temp_dir().join(format!("weir-limited-{}", std::process::id()));
        std::fs::write(&path, [7; 100]).unwrap();
        let (fits, exceeds) = (read(&path, 100), read(&path, 99));
        std::fs::remove_file(&path).unwrap();
        assert_eq!(fits.unwrap(), [7; 100]);
        assert!(exceeds.is_err());
    }

    #[test]
    fn bytes_that_are_no_text_have_a_place() {
        let path = std::env::temp_dir().join(format!("weir-latin1-{}", std::process::id()));
        std::fs::write(&path, b"# \xc3\xa9\na = \"\xe9\"").unwrap();
        let error = text(&path, 100).unwrap_err();
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(error, CliError::Refused(_)), "{error}");
        let said = format!("{}:2:6: the byte 0xe9 is not valid UTF-8", path.display());
        assert!(error.to_string().starts_with(&said), "{error}");
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        for name in ["/", "/no/such/file"] {
            let error = read(Path::new(name), 1).unwrap_err();
            assert!(matches!(error, CliError::Run(_)), "{error}");
            let said = format!("cannot read {name}: ");
            assert!(error.to_string().starts_with(&said), "{error}");
        }
    }
}
