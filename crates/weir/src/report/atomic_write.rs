//! Replaces files while other processes read them.

use crate::error::CliError;
use crate::signals::ShutdownSignal;
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

/// Writes a file so that a reader sees the complete old or new content. A path
/// that is not a regular file itself, such as a FIFO, a device, or the symbolic
/// link `/dev/stdout`, is written to, never replaced.
///
/// # Errors
/// The system's error.
pub(crate) fn replace(path: &Path, content: &str) -> io::Result<()> {
    let is_file = fs::symlink_metadata(path).map_or(true, |facts| facts.is_file());
    if !is_file {
        return fs::write(path, content);
    }
    let beside = beside(path);
    create_new(&beside)?.write_all(content.as_bytes())?;
    fs::rename(&beside, path)
}

/// Checks that [`replace`] can write there; the present content stays.
///
/// # Errors
/// The file's name and the system's error.
pub(crate) fn can(path: &Path) -> Result<(), String> {
    let is_file = fs::symlink_metadata(path).map_or(true, |facts| facts.is_file());
    let tried = if is_file {
        let beside = beside(path);
        create_new(&beside).and_then(|_| fs::remove_file(&beside))
    } else {
        // Opened through a symbolic link; the present content stays.
        OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map(drop)
    };
    tried.map_err(|error| format!("cannot write {}: {error}", path.display()))
}

/// Creates or truncates a file. For a FIFO, waits until a process reads it or a
/// signal arrives.
///
/// # Errors
/// The signal, or the file's name and the system's error.
pub(crate) fn create(path: &Path, stop: &ShutdownSignal) -> Result<File, CliError> {
    /// Interval of checks for a reader.
    const READER_POLL_INTERVAL: Duration = Duration::from_millis(50);
    let cannot =
        |error: io::Error| CliError::run(format!("cannot create {}: {error}", path.display()));
    if !fs::metadata(path).is_ok_and(|facts| facts.file_type().is_fifo()) {
        return File::create(path).map_err(cannot);
    }
    let mut options = OpenOptions::new();
    options
        .write(true)
        .custom_flags(OFlags::NONBLOCK.bits() as i32);
    loop {
        match options.open(path) {
            Err(error) if error.raw_os_error() == Some(Errno::NXIO.raw_os_error()) => {
                if stop.is_requested() {
                    return Err(CliError::Stopped(stop.signal()));
                }
                stop.wait(READER_POLL_INTERVAL);
            }
            Err(error) => return Err(cannot(error)),
            Ok(file) => {
                let waits = fcntl_setfl(&file, OFlags::empty());
                waits.map_err(|error| cannot(error.into()))?;
                return Ok(file);
            }
        }
    }
}

/// Makes a file that was not there: what a crash has left under the name goes, and a symbolic link
/// that another user has put there is not followed.
fn create_new(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => File::create_new(path),
    }
}

fn beside(path: &Path) -> std::path::PathBuf {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    beside.into()
}

#[cfg(test)]
mod tests {
    use super::{can, replace};
    use std::fs;
    use std::os::unix::fs::{FileTypeExt, symlink};

    #[test]
    fn files_are_replaced_and_devices_stay() {
        let folder = std::env::temp_dir().join(format!("weir-replace-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let file = folder.join("stats.json");
        for content in ["{\"frames\":1}\n", "{}\n"] {
            replace(&file, content).unwrap();
            can(&file).unwrap();
            assert_eq!(fs::read_to_string(&file).unwrap(), content);
        }
        // Another user's link where the new content goes first: replaced, not followed.
        let precious = folder.join("precious");
        fs::write(&precious, "precious").unwrap();
        let beside = folder.join("stats.json.new");
        symlink(&precious, &beside).unwrap();
        replace(&file, "{}\n").unwrap();
        symlink(&precious, &beside).unwrap();
        can(&file).unwrap();
        assert_eq!(fs::read_to_string(&precious).unwrap(), "precious");
        fs::remove_file(&precious).unwrap();
        let nowhere = folder.join("none/stats.json");
        assert!(can(&nowhere).unwrap_err().contains("none/stats.json"));
        // By symbolic links of the test, so that a mistake damages no device.
        let full = folder.join("full");
        symlink("/dev/full", &full).unwrap();
        assert!(replace(&full, "{}\n").is_err(), "no room");
        let null = folder.join("null");
        symlink("/dev/null", &null).unwrap();
        replace(&null, "{}\n").unwrap();
        let link = folder.join("link");
        symlink(&file, &link).unwrap();
        replace(&link, "[]\n").unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "[]\n");
        assert!(link.is_symlink());
        assert!(fs::metadata(&null).unwrap().file_type().is_char_device());
        assert_eq!(
            fs::read_dir(&folder).unwrap().count(),
            4,
            "nothing beside them"
        );
        fs::remove_dir_all(&folder).unwrap();
    }
}
