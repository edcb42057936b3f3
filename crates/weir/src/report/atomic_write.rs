//! Replaces files while other processes read them.

use crate::error::CliError;
use crate::signals::ShutdownSignal;
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
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
    rename_new(path, content)
}

/// As [`replace`], for a file in a folder that the user has named, not itself: what is there under
/// the name is replaced, a symbolic link, too.
///
/// # Errors
/// The system's error.
pub(crate) fn replace_in(folder: &Path, name: &str, content: &str) -> io::Result<()> {
    rename_new(&folder.join(name), content)
}

/// Writes beside the path, and renames; what cannot be written whole is removed.
fn rename_new(path: &Path, content: &str) -> io::Result<()> {
    let beside = beside(path);
    let written = create_new(&beside)?.write_all(content.as_bytes());
    let renamed = written.and_then(|()| fs::rename(&beside, path));
    if renamed.is_err() {
        let _ = fs::remove_file(&beside);
    }
    renamed
}

/// Refuses a folder in which another user can put links where this process writes: one of another
/// user's or that others may write to, or one below such a folder. Under sudo(8) its user's are own,
/// too; a group of the owner's number is the owner's alone.
///
/// # Errors
/// Why the folder is refused.
pub(crate) fn check_owner(folder: &Path) -> Result<(), String> {
    let own = rustix::process::geteuid().as_raw();
    let sudo_user = std::env::var("SUDO_UID").ok();
    let sudo_user = sudo_user
        .filter(|_| own == 0)
        .and_then(|uid| uid.parse().ok());
    let owners = [0, own, sudo_user.unwrap_or(own)];
    let cannot = |error: io::Error| format!("cannot use {}: {error}", folder.display());
    let path = fs::canonicalize(folder).map_err(cannot)?;
    for (above, path) in path.ancestors().enumerate() {
        let facts = fs::metadata(path).map_err(cannot)?;
        let (path, folder, mode) = (path.display(), folder.display(), facts.mode());
        if !owners.contains(&facts.uid()) {
            return Err(format!(
                "{path} belongs to another user (uid {}), who could have other files written \
                 instead of those in {folder}: give a folder of your own",
                facts.uid()
            ));
        }
        let is_owners = [0, facts.uid()].contains(&facts.gid());
        let by_others = mode & 0o002 != 0 || mode & 0o020 != 0 && !is_owners;
        // In a sticky folder above, as /tmp, the next one is safe from others.
        let is_sticky = above > 0 && mode & 0o1000 != 0;
        if by_others && !is_sticky {
            return Err(format!(
                "other users may write to {path}, and could have other files written instead of \
                 those in {folder}: give a folder of your own"
            ));
        }
    }
    Ok(())
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
    use super::{can, check_owner, replace, replace_in};
    use std::fs;
    use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};

    /// A link that stands where a file of a folder is written is replaced, not followed.
    #[test]
    fn files_of_a_folder_are_never_written_through_links() {
        let folder = std::env::temp_dir().join(format!("weir-replace-in-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let precious = folder.join("precious");
        fs::write(&precious, "precious").unwrap();
        for name in ["a.svg", "a.svg.new"] {
            symlink(&precious, folder.join(name)).unwrap();
        }
        replace_in(&folder, "a.svg", "drawn").unwrap();
        assert_eq!(fs::read_to_string(&precious).unwrap(), "precious");
        let written = folder.join("a.svg");
        assert!(!written.is_symlink());
        assert_eq!(fs::read_to_string(written).unwrap(), "drawn");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn folders_that_others_can_change_are_refused() {
        let folder = std::env::temp_dir().join(format!("weir-owner-{}", std::process::id()));
        let inner = folder.join("inner");
        fs::create_dir_all(&inner).unwrap();
        let set = |mode| fs::set_permissions(&folder, fs::Permissions::from_mode(mode)).unwrap();
        set(0o755);
        check_owner(&inner).unwrap();
        set(0o757);
        for path in [&folder, &inner] {
            let why = check_owner(path).unwrap_err();
            assert!(why.contains("other users may write to"), "{why}");
        }
        set(0o1777);
        check_owner(&inner).unwrap();
        assert!(check_owner(&folder).is_err());
        if rustix::process::geteuid().is_root() {
            set(0o755);
            std::os::unix::fs::chown(&folder, Some(65_534), None).unwrap();
            let why = check_owner(&inner).unwrap_err();
            assert!(why.contains("uid 65534"), "{why}");
        }
        assert!(check_owner(&folder.join("none")).is_err());
        fs::remove_dir_all(folder).unwrap();
    }

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
