//! Reading whole files of text, of which none may be endless.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// The bytes of the file at `path`, `-` being standard input, if they are at
/// most `len_max`. The length that the system states is not relied on: a pipe
/// and a device have none. The error is the whole message, with the name.
pub(crate) fn read(path: &Path, len_max: u64) -> Result<Vec<u8>, String> {
    let stdin = path == Path::new("-");
    let say = |error: io::Error| {
        if stdin {
            format!("standard input: {error}")
        } else {
            format!("{}: {error}", path.display())
        }
    };
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
        let message = format!("longer than {len_max} bytes, the most that is read");
        return Err(say(io::Error::other(message)));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endless_file_is_refused() {
        let error = read(Path::new("/dev/zero"), 1000).unwrap_err();
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
    fn what_cannot_be_read_is_named() {
        assert!(read(Path::new("/"), 1).unwrap_err().starts_with("/: "));
        let missing = read(Path::new("/no/such/file"), 1).unwrap_err();
        assert!(missing.starts_with("/no/such/file: "), "{missing}");
    }
}
