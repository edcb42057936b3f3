//! Pins: BPF objects that outlive the process.
//!
//! Pins are in a folder of a private BPF file system that only its owner can
//! enter. The usual `/sys/fs/bpf` is readable by all users, and is a different
//! one inside `ip netns exec`. Below the folder no symbolic link is followed.

use super::sys;
use rustix::fs::{self, AtFlags, Dir, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Longest name of a pin, in bytes.
const NAME_BYTES_MAX: usize = 128;

/// `BPF_FS_MAGIC`.
const BPF_FS: u64 = 0xcafe_4a11;

/// Why a pin was not created, found or removed.
#[derive(Debug, thiserror::Error)]
pub enum PinError {
    /// The name is not valid for a pin.
    #[error("a pin cannot be named `{name}`: 1 to 128 letters, digits, `-` and `_`")]
    BadName {
        /// The name.
        name: String,
    },
    /// Another user can change the folder.
    #[error(
        "{} belongs to user {uid}, with mode {mode:o}: a folder for pins must belong to the process's user, with mode 700", path.display()
    )]
    NotOurs {
        /// The folder.
        path: PathBuf,
        /// Its owner.
        uid: u32,
        /// Its mode bits.
        mode: u32,
    },
    /// The folder is not in a BPF file system.
    #[error("no BPF file system is mounted on {}", path.display())]
    NotMounted {
        /// The folder.
        path: PathBuf,
    },
    /// The caller lacks privilege.
    #[error("to {what} {} is not permitted: run as root", path.display())]
    NotPermitted {
        /// The operation that failed.
        what: &'static str,
        /// The path.
        path: PathBuf,
    },
    /// Any other error.
    #[error("cannot {what} {} ({source})", path.display())]
    System {
        /// The operation that failed.
        what: &'static str,
        /// The path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// A folder of a BPF file system, held open.
#[derive(Debug)]
pub struct PinFolder {
    folder: OwnedFd,
    path: PathBuf,
    /// The user that this folder and those below must belong to.
    owner: u32,
}

impl PinFolder {
    /// Mounts a BPF file system with mode 700 on the folder `path`, which is
    /// created if missing. The mount is private: mount namespaces that are made
    /// later have a copy, and those that exist may get one, which mode 700
    /// guards. An existing BPF file system is used.
    ///
    /// # Errors
    /// Without privilege; if the folder is a symbolic link or belongs to
    /// another user.
    pub fn mount(path: &Path) -> Result<PinFolder, PinError> {
        match fs::mkdir(path, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(failed("make the folder", path, error)),
        }
        match PinFolder::open(path) {
            Err(PinError::NotMounted { .. }) => {}
            other => return other,
        }
        let below = open_folder(path)?;
        let target = format!("/proc/self/fd/{}", below.as_raw_fd());
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        rustix::mount::mount("bpf", &*target, "bpf", flags, Some(c"mode=0700"))
            .and_then(|()| rustix::mount::mount_change(path, MountPropagationFlags::PRIVATE))
            .map_err(|error| failed("mount a BPF file system on", path, error))?;
        PinFolder::open(path)
    }

    /// As [`mount`](Self::mount), for processes of another user, which may not
    /// mount: the file system becomes the user's. One that is the user's already
    /// is used. Other users than root and this one must not be able to write to
    /// the folder that `path` is in.
    ///
    /// # Errors
    /// As those of [`mount`](Self::mount).
    pub fn mount_for(path: &Path, uid: u32, gid: u32) -> Result<PinFolder, PinError> {
        match fs::mkdir(path, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(failed("make the folder", path, error)),
        }
        match PinFolder::open_of(path, uid) {
            Err(PinError::NotMounted { .. }) => {}
            // The folder below: root's, as made above.
            Err(PinError::NotOurs { uid: 0, .. } | PinError::NotPermitted { .. }) => {}
            other => return other,
        }
        let below = open_folder(path)?;
        if is_bpf(&below, path)? {
            return PinFolder::open_of(path, uid);
        }
        let of = |folder: &OwnedFd| format!("/proc/self/fd/{}", folder.as_raw_fd());
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        rustix::mount::mount("bpf", &*of(&below), "bpf", flags, Some(c"mode=0700"))
            .map_err(|error| failed("mount a BPF file system on", path, error))?;
        // By a descriptor: the user may change what is in the folder around it.
        let flags = OFlags::RDONLY | FOLDER_ONLY;
        let made = fs::open(path, flags, Mode::empty());
        let made = made.map_err(|error| failed("open", path, error))?;
        if !is_bpf(&made, path)? {
            let path = path.to_owned();
            return Err(PinError::NotMounted { path });
        }
        let owner = (
            rustix::fs::Uid::from_raw(uid),
            rustix::fs::Gid::from_raw(gid),
        );
        rustix::mount::mount_change(&*of(&made), MountPropagationFlags::PRIVATE)
            .and_then(|()| fs::fchown(&made, Some(owner.0), Some(owner.1)))
            .map_err(|error| failed("give away the BPF file system on", path, error))?;
        PinFolder::open_of(path, uid)
    }

    /// Opens a folder of a BPF file system.
    ///
    /// # Errors
    /// If there is none, or if another user can change it.
    pub fn open(path: &Path) -> Result<PinFolder, PinError> {
        PinFolder::open_of(path, rustix::process::geteuid().as_raw())
    }

    /// As [`open`](Self::open), of another user's.
    ///
    /// # Errors
    /// As those of [`open`](Self::open).
    pub fn open_of(path: &Path, owner: u32) -> Result<PinFolder, PinError> {
        PinFolder::check(open_folder(path)?, path.to_owned(), owner)
    }

    fn check(folder: OwnedFd, path: PathBuf, owner: u32) -> Result<PinFolder, PinError> {
        let stat = fs::fstat(&folder).map_err(|error| failed("look at", &path, error))?;
        let (uid, mode) = (stat.st_uid, stat.st_mode & 0o777);
        if uid == 0 && mode & 0o077 == 0 && owner != 0 {
            let what = "use";
            return Err(PinError::NotPermitted { what, path });
        }
        if uid != owner || mode & 0o077 != 0 {
            return Err(PinError::NotOurs { path, uid, mode });
        }
        if !is_bpf(&folder, &path)? {
            return Err(PinError::NotMounted { path });
        }
        Ok(PinFolder {
            folder,
            path,
            owner,
        })
    }

    /// Unmounts the file system at `path`; its pins are removed when its last
    /// open descriptor is closed.
    ///
    /// # Errors
    /// The system's error.
    pub fn unmount(path: &Path) -> Result<(), PinError> {
        let flags = UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
        rustix::mount::unmount(path, flags).map_err(|error| failed("unmount", path, error))
    }

    /// The folder's path at the time it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The subfolder `name`, created if missing.
    ///
    /// # Errors
    /// The system's error.
    pub fn folder(&self, name: &str) -> Result<PinFolder, PinError> {
        let path = self.checked(name)?;
        match fs::mkdirat(&self.folder, name, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(failed("make the folder", &path, error)),
        }
        self.existing(name)?
            .ok_or_else(|| failed("open the folder", &path, Errno::NOENT))
    }

    /// The subfolder `name`; `None` if it does not exist.
    ///
    /// # Errors
    /// The system's error.
    pub fn existing(&self, name: &str) -> Result<Option<PinFolder>, PinError> {
        let path = self.checked(name)?;
        match fs::openat(&self.folder, name, FOLDER, Mode::empty()) {
            Ok(folder) => PinFolder::check(folder, path, self.owner).map(Some),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(failed("open the folder", &path, error)),
        }
    }

    /// Pins a program, map or attachment under an unused name.
    ///
    /// # Errors
    /// If the name is in use; otherwise the system's error.
    pub fn pin(&self, name: &str, object: impl AsFd) -> Result<(), PinError> {
        let path = self.checked(name)?;
        let pinned = sys::obj_pin(object.as_fd(), &self.through_proc(name));
        pinned.map_err(|source| explain("pin", &path, source))
    }

    /// The pinned object; `None` if there is none.
    ///
    /// # Errors
    /// The system's error; also if the name is not a pin.
    pub fn get(&self, name: &str) -> Result<Option<OwnedFd>, PinError> {
        let path = self.checked(name)?;
        match fs::statat(&self.folder, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile => {}
            Ok(_) => return Err(failed("take for a pin", &path, Errno::INVAL)),
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(failed("look at", &path, error)),
        }
        match sys::obj_get(&self.through_proc(name)) {
            Ok(fd) => Ok(Some(fd)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(explain("open the pin", &path, source)),
        }
    }

    /// Removes a pin; `false` if there was none.
    ///
    /// # Errors
    /// The system's error.
    pub fn unpin(&self, name: &str) -> Result<bool, PinError> {
        self.remove(name, AtFlags::empty())
    }

    /// Removes an empty folder; `false` if there was none.
    ///
    /// # Errors
    /// The system's error.
    pub fn remove_folder(&self, name: &str) -> Result<bool, PinError> {
        self.remove(name, AtFlags::REMOVEDIR)
    }

    fn remove(&self, name: &str, flags: AtFlags) -> Result<bool, PinError> {
        let path = self.checked(name)?;
        match fs::unlinkat(&self.folder, name, flags) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(failed("remove", &path, error)),
        }
    }

    /// Takes an exclusive lock (flock(2)) on the folder until the returned
    /// descriptor is closed; `None` if another process has it. Pins can be
    /// created and removed regardless of the lock.
    ///
    /// # Errors
    /// The system's error.
    pub fn lock_alone(&self) -> Result<Option<OwnedFd>, PinError> {
        let locked = self.readable().and_then(|folder| {
            fs::flock(&folder, FlockOperation::NonBlockingLockExclusive)?;
            Ok(folder)
        });
        match locked {
            Ok(folder) => Ok(Some(folder)),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(failed("lock", &self.path, error)),
        }
    }

    /// The process that holds the [exclusive lock](Self::lock_alone), if the
    /// system shows it.
    pub fn locked_by(&self) -> Option<u32> {
        let stat = fs::fstat(&self.folder).ok()?;
        let (major, minor) = (fs::major(stat.st_dev), fs::minor(stat.st_dev));
        // proc_locks(5): `1: FLOCK ADVISORY WRITE 1234 00:2f:5678 0 EOF`.
        let which = format!("{major:02x}:{minor:02x}:{}", stat.st_ino);
        let locks = std::fs::read_to_string("/proc/locks").ok()?;
        let mut locks = locks.lines().map(|line| line.split_ascii_whitespace());
        locks.find_map(|mut words| {
            let (is_flock, process) = (words.nth(1)? == "FLOCK", words.nth(2)?);
            let is_it = is_flock && words.next()? == which;
            is_it.then(|| process.parse().ok())?
        })
    }

    /// Whether the folder still exists under its path.
    ///
    /// # Errors
    /// The system's error.
    pub fn is_there(&self) -> Result<bool, PinError> {
        let stat = fs::fstat(&self.folder);
        let stat = stat.map_err(|error| failed("look at", &self.path, error))?;
        Ok(stat.st_nlink > 0)
    }

    fn readable(&self) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | FOLDER_ONLY;
        fs::openat(&self.folder, c".", flags, Mode::empty())
    }

    /// The names of the folder's pins, and of its subfolders, each sorted.
    ///
    /// # Errors
    /// The system's error.
    pub fn list(&self) -> Result<(Vec<String>, Vec<String>), PinError> {
        let list = |error| failed("list", &self.path, error);
        let dir = Dir::new(self.readable().map_err(list)?).map_err(list)?;
        let (mut pins, mut folders) = (Vec::new(), Vec::new());
        for entry in dir {
            let entry = entry.map_err(list)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            match entry.file_type() {
                FileType::Directory if !name.starts_with('.') => folders.push(name),
                // Names with a dot are the kernel's own.
                FileType::RegularFile if !name.contains('.') => pins.push(name),
                _ => {}
            }
        }
        pins.sort();
        folders.sort();
        Ok((pins, folders))
    }

    fn checked(&self, name: &str) -> Result<PathBuf, PinError> {
        let fine = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        if (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(fine) {
            return Ok(self.path.join(name));
        }
        Err(PinError::BadName { name: name.into() })
    }

    /// A path to `name` by way of the folder's descriptor (`/proc/self/fd`).
    fn through_proc(&self, name: &str) -> CString {
        let path = format!("/proc/self/fd/{}/{name}", self.folder.as_raw_fd());
        CString::new(path).expect("a checked name has no zero byte")
    }
}

const FOLDER_ONLY: OFlags = OFlags::DIRECTORY
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);
const FOLDER: OFlags = OFlags::PATH.union(FOLDER_ONLY);

fn open_folder(path: &Path) -> Result<OwnedFd, PinError> {
    let opened = fs::open(path, FOLDER, Mode::empty());
    opened.map_err(|error| {
        failed(
            "open the folder (which must be no symbolic link)",
            path,
            error,
        )
    })
}

fn is_bpf(folder: &OwnedFd, path: &Path) -> Result<bool, PinError> {
    let system = fs::fstatfs(folder).map_err(|error| failed("look at", path, error))?;
    Ok(system.f_type as u64 & 0xffff_ffff == BPF_FS)
}

fn failed(what: &'static str, path: &Path, error: Errno) -> PinError {
    explain(what, path, error.into())
}

fn explain(what: &'static str, path: &Path, source: io::Error) -> PinError {
    let path = path.to_owned();
    if source.kind() == io::ErrorKind::PermissionDenied {
        PinError::NotPermitted { what, path }
    } else {
        PinError::System { what, path, source }
    }
}
