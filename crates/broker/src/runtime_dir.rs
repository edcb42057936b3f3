//! The persistent state of a broker: a folder that records the ports, and by
//! which the next broker sees which programs still hold them.
//!
//! ```text
//!  /run/weir/broker/  of the broker's user; /run/weir is root's, and has taps and more
//!  ├── socket       and socket.root: see the protocol
//!  ├── lock         locked by the broker
//!  ├── bpf/         a BPF file system, of the broker's user alone: what divides frames
//!  └── ports/       of the broker's user alone
//!      ├── 7.port   what port 7 is (JSON, the last line)
//!      └── 7.held   locked by the process of port 7
//! ```
//!
//! The lock on `7.held` belongs to an open file description that only the
//! port's program gets. The lock ends with the last copy of that descriptor,
//! however the process ends, and no other process can release it. The broker
//! needs no connection to test it.

use crate::engine::kernel::SweepError;
use crate::policy::PeerCred;
use crate::protocol::OpenPort;
use crate::trusted_path::owner_of;
use rustix::fs::{self, AtFlags, FlockOperation, Gid, Mode, OFlags, Stat, Uid};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use weir_link::bpf::{PinError, PinFolder};
use weir_link::live::EgressError;

/// The default path of the folder.
pub const FOLDER_DEFAULT: &str = "/run/weir/broker";

/// The folder of all that weir keeps at run time, root's alone: a broker of
/// another user must not be able to replace what root's processes find there.
pub(crate) const ROOT_FOLDER: &str = "/run/weir";

/// Size in bytes from which on a port's file is rewritten instead of appended
/// to: no request is longer.
const PORT_LEN_MAX: usize = crate::protocol::MESSAGE_LEN_MAX;

/// Largest length of one record of a port, in bytes.
const LINE_LEN_MAX: usize = 2 * PORT_LEN_MAX;

/// Time limit for the kernel to remove the egress path of a dead program.
const EXIT_WAIT_MAX: Duration = Duration::from_secs(1);

/// The reason why a folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeDirError {
    /// Another broker uses the folder.
    #[error("another broker runs with {}; stop it first", path.display())]
    InUse {
        /// The folder.
        path: PathBuf,
    },
    /// Other users could change the folder.
    #[error(
        "{} belongs to user {uid}, with mode {mode:o}: it must belong to the broker's user, here {own}, which \
         alone may write to it; as root, `weir broker --clean` removes what a broker of another user has left",
        path.display()
    )]
    NotOurs {
        /// The folder.
        path: PathBuf,
        /// The folder's owner.
        uid: u32,
        /// The folder's mode.
        mode: u32,
        /// The process's user.
        own: u32,
    },
    /// A broker that is not root finds no folder, or no BPF file system in it.
    #[error(
        "{} is not prepared for a broker of user {uid}: as root, run `weir broker --prepare {uid}` with the \
         same --socket and --keep",
        path.display()
    )]
    NotPrepared {
        /// The folder.
        path: PathBuf,
        /// The broker's user.
        uid: u32,
    },
    /// Other users than root could replace the folder.
    #[error(
        "users other than root could replace {}: each folder on the way to it must be root's, and no \
         other user may write to it, not even to a sticky one as /tmp",
        path.display()
    )]
    NotRoots {
        /// The folder.
        path: PathBuf,
    },
    /// The BPF file system.
    #[error(transparent)]
    Pins(#[from] PinError),
    /// An attached or made object could not be removed.
    #[error(transparent)]
    Sweep(#[from] SweepError),
    /// Any other system error.
    #[error("cannot {what} {} ({source})", path.display())]
    System {
        /// The operation that failed.
        what: &'static str,
        /// The path of the operation.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// The state that [`RuntimeDir::clean`] has removed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Cleaned {
    /// Number of ports.
    pub ports: usize,
    /// Number of those that a process had open, and that receive nothing any more.
    pub open: usize,
    /// The interfaces whose frames were divided: the inode of the network namespace, and the ifindex.
    pub interfaces: Vec<(u64, u32)>,
}

/// The folder, locked by one broker at a time.
#[derive(Debug)]
pub struct RuntimeDir {
    path: PathBuf,
    ports: OwnedFd,
    pins: Arc<PinFolder>,
    /// Open files of recently changed ports, the latest last: a filter that
    /// changes often is likely to change again.
    open_records: VecDeque<OpenRecord>,
    _lock: OwnedFd,
}

/// The open file of a port's record.
#[derive(Debug)]
struct OpenRecord {
    port: u32,
    file: File,
    len: usize,
}

/// Largest number of files that stay open.
const CHANGED_MAX: usize = 16;

/// The record of a port.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct PortRecord {
    /// The port's number.
    pub(crate) port: u32,
    /// The protocol version of its program, which determines the ring's format;
    /// absent in version 1.
    #[serde(default)]
    pub(crate) version: u16,
    /// The port's slot in the interface's demultiplexer.
    pub(crate) slot: u32,
    /// The ifindex of the interface.
    pub(crate) ifindex: u32,
    /// The inode of the interface's network namespace.
    pub(crate) namespace: Option<u64>,
    /// The user.
    pub(crate) uid: u32,
    /// The user's groups.
    pub(crate) gids: Vec<u32>,
    /// The process that opened it.
    pub(crate) pid: u32,
    /// Whether the opener was the superuser.
    #[serde(default)]
    pub(crate) is_superuser: bool,
    /// The request that opened the port.
    pub(crate) asked: OpenPort,
    /// The secret by which the program proves that the port is its own
    /// ([`RequestKind::Resume`](crate::protocol::RequestKind::Resume)).
    #[serde(default)]
    pub(crate) secret: String,
    /// The port's egress path.
    #[serde(default)]
    pub(crate) path: Option<EgressRecord>,
}

/// The record of a port's egress path.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct EgressRecord {
    /// The path's name.
    pub(crate) name: String,
    /// The path's rules, as a filter: with other rules it does not continue.
    pub(crate) rules: String,
}

impl PortRecord {
    pub(crate) fn peer_cred(&self) -> PeerCred {
        PeerCred {
            uid: self.uid,
            gids: self.gids.as_slice().into(),
            pid: self.pid,
            is_superuser: self.is_superuser,
        }
    }
}

const FOLDER: OFlags = OFlags::DIRECTORY
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);
const FOLDER_MODE: Mode = Mode::from_raw_mode(0o755);
/// Of all files in the folder: no link is followed, no FIFO waited for.
const FILE: OFlags = OFlags::NOFOLLOW
    .union(OFlags::NONBLOCK)
    .union(OFlags::CLOEXEC);
const OWNER: Mode = Mode::RUSR.union(Mode::WUSR);

impl RuntimeDir {
    /// Opens the folder: makes it if it is missing, locks it, and mounts the
    /// BPF file system if there is none. Needs privilege.
    ///
    /// # Errors
    /// See [`RuntimeDirError`].
    pub fn open(path: &Path) -> Result<RuntimeDir, RuntimeDirError> {
        let own = rustix::process::geteuid();
        let folder = open_folder(path)?;
        let bpf = path.join("bpf");
        let pins = || match PinFolder::mount(&bpf) {
            Err(PinError::NotPermitted { .. }) if !own.is_root() => {
                let (path, uid) = (path.to_owned(), own.as_raw());
                Err(RuntimeDirError::NotPrepared { path, uid })
            }
            pins => Ok(pins?),
        };
        RuntimeDir::locked(path, &folder, pins)
    }

    /// Makes the folder, if it is missing, and checks that it is the process's
    /// user's: what [`open`](Self::open) begins with. Before that, no file may be
    /// made in it.
    ///
    /// # Errors
    /// See [`RuntimeDirError`].
    pub fn make(path: &Path) -> Result<(), RuntimeDirError> {
        open_folder(path).map(drop)
    }

    /// Makes the folder for brokers of another user, and mounts the BPF file
    /// system, which such a broker may not; changes nothing if that is done.
    /// Needs root.
    ///
    /// # Errors
    /// See [`RuntimeDirError`]; if a broker of another user has state there.
    pub fn prepare(path: &Path, uid: u32, gid: u32) -> Result<(), RuntimeDirError> {
        make_root_folder(path)?;
        if !is_below_roots(path) {
            let path = path.to_owned();
            return Err(RuntimeDirError::NotRoots { path });
        }
        made(fs::mkdir(path, FOLDER_MODE)).map_err(failed("make the folder", path))?;
        let folder = fs::open(path, FOLDER, Mode::empty()).map_err(failed("open", path))?;
        let stat = fs::fstat(&folder).map_err(failed("look at", path))?;
        // Root's, if it was made above, or by an earlier attempt.
        let names = fs::Dir::read_from(&folder).map_err(failed("list", path))?;
        let mut names = names.flatten().filter(|entry| {
            let name = entry.file_name().to_bytes();
            ![&b"."[..], b"..", b"bpf"].contains(&name)
        });
        if stat.st_uid != uid && (stat.st_uid != 0 || names.next().is_some()) {
            return Err(not_ours(path, &stat, uid));
        }
        PinFolder::mount_for(&path.join("bpf"), uid, gid)?;
        // The last step: from now on the user can change what is in the folder.
        let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
        fs::fchown(&folder, Some(uid), Some(gid))
            .and_then(|()| fs::fchmod(&folder, FOLDER_MODE))
            .map_err(failed("give away", path))
    }

    /// The folder of a broker of this user, or for root, of any user.
    fn open_to_clean(path: &Path) -> Result<RuntimeDir, RuntimeDirError> {
        let own = rustix::process::geteuid();
        let (folder, stat) = open_checked(path)?;
        if stat.st_uid == own.as_raw() || !own.is_root() {
            return RuntimeDir::open(path);
        }
        if stat.st_mode & 0o022 != 0 || !is_below_roots(path) {
            return Err(not_ours(path, &stat, own.as_raw()));
        }
        let bpf = path.join("bpf");
        let pins = || Ok(PinFolder::mount_for(&bpf, stat.st_uid, stat.st_gid)?);
        RuntimeDir::locked(path, &folder, pins)
    }

    /// Locks the folder and opens what is in it. It may be another user's, who
    /// may have put any file there: links are not followed, and no file is waited
    /// for.
    fn locked(
        path: &Path,
        folder: &OwnedFd,
        pins: impl FnOnce() -> Result<PinFolder, RuntimeDirError>,
    ) -> Result<RuntimeDir, RuntimeDirError> {
        let lock = fs::openat(folder, "lock", OFlags::RDWR | OFlags::CREATE | FILE, OWNER);
        let lock = lock.map_err(failed("open the lock in", path))?;
        match fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                let path = path.to_owned();
                return Err(RuntimeDirError::InUse { path });
            }
            Err(error) => return Err(failed("lock", path)(error)),
        }
        made(fs::mkdirat(folder, "ports", Mode::RWXU)).map_err(failed("make `ports` in", path))?;
        let ports = fs::openat(folder, "ports", FOLDER, Mode::empty());
        Ok(RuntimeDir {
            path: path.to_owned(),
            ports: ports.map_err(failed("open `ports` in", path))?,
            pins: Arc::new(pins()?),
            open_records: VecDeque::new(),
            _lock: lock,
        })
    }

    /// The folder of pinned programs and maps.
    pub fn pins(&self) -> &Arc<PinFolder> {
        &self.pins
    }

    /// The path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the record of a port, in place of the former one.
    pub(crate) fn save(&mut self, port: &PortRecord) -> io::Result<()> {
        self.open_records.retain(|one| one.port != port.port);
        let (new, name) = (format!("{}.new", port.port), format!("{}.port", port.port));
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | FILE;
        let text = line(port)?;
        let file = fs::openat(&self.ports, &new, flags, OWNER)?;
        File::from(file).write_all(&text)?;
        // The rename makes the new record appear whole, or the old one stay.
        Ok(fs::renameat(&self.ports, &new, &self.ports, &name)?)
    }

    /// Appends a changed record to a port's file, which is faster than a new
    /// file.
    pub(crate) fn save_change(&mut self, port: &PortRecord) -> io::Result<()> {
        let known = self
            .open_records
            .iter()
            .position(|one| one.port == port.port);
        let mut changed = match known.and_then(|at| self.open_records.remove(at)) {
            Some(known) => known,
            None => self.open_changed(port.port)?,
        };
        if changed.len > PORT_LEN_MAX {
            return self.save(port);
        }
        let line = line(port)?;
        // One call: a reader skips a line that a dying broker left incomplete.
        if let Err(error) = changed.file.write_all(&line) {
            // The next line must not follow a part of this one.
            let _ = changed.file.set_len(changed.len as u64);
            return Err(error);
        }
        changed.len += line.len();
        if self.open_records.len() >= CHANGED_MAX {
            self.open_records.pop_front();
        }
        self.open_records.push_back(changed);
        Ok(())
    }

    fn open_changed(&self, port: u32) -> io::Result<OpenRecord> {
        let flags = OFlags::WRONLY | OFlags::APPEND | FILE;
        let name = format!("{port}.port");
        let file = File::from(fs::openat(&self.ports, &name, flags, Mode::empty())?);
        let len = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX);
        Ok(OpenRecord { port, file, len })
    }

    /// The descriptor with the lock that keeps a port alive, for its program.
    pub(crate) fn lifetime_fd(&self, port: u32) -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::CREATE | FILE;
        let held = fs::openat(&self.ports, format!("{port}.held"), flags, OWNER)?;
        fs::flock(&held, FlockOperation::NonBlockingLockShared)?;
        Ok(held)
    }

    /// Whether a program holds the port.
    pub(crate) fn is_owned(&self, port: u32) -> bool {
        let flags = OFlags::RDONLY | FILE;
        let held = fs::openat(&self.ports, format!("{port}.held"), flags, Mode::empty());
        held.is_ok_and(|held| {
            fs::flock(&held, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK)
        })
    }

    /// Removes the record of a port.
    pub(crate) fn forget(&mut self, port: u32) {
        self.open_records.retain(|one| one.port != port);
        for kind in ["port", "held", "new"] {
            let _ = fs::unlinkat(&self.ports, format!("{port}.{kind}"), AtFlags::empty());
        }
    }

    /// The recorded ports, sorted by number. A record that a killed broker left
    /// unreadable is removed.
    pub(crate) fn ports(&mut self) -> Vec<PortRecord> {
        let mut all = Vec::new();
        for number in self.numbers() {
            match self.port(number) {
                Some(port) if port.port == number => all.push(port),
                _ => self.forget(number),
            }
        }
        all
    }

    fn numbers(&self) -> Vec<u32> {
        let Ok(dir) = fs::Dir::read_from(&self.ports) else {
            return Vec::new();
        };
        let number = |entry: fs::DirEntry| {
            let name = entry.file_name().to_str().ok()?;
            name.split('.').next()?.parse().ok()
        };
        let mut numbers: Vec<u32> = dir.flatten().filter_map(number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers
    }

    fn port(&self, number: u32) -> Option<PortRecord> {
        let flags = OFlags::RDONLY | FILE;
        let file = fs::openat(&self.ports, format!("{number}.port"), flags, Mode::empty());
        let mut text = Vec::new();
        let file = io::Read::take(File::from(file.ok()?), (PORT_LEN_MAX + LINE_LEN_MAX) as u64);
        io::Read::read_to_end(&mut { file }, &mut text).ok()?;
        let mut lines = text.split(|byte| *byte == b'\n').rev();
        lines.find_map(|line| serde_json::from_slice(line).ok())
    }

    /// Removes all state that a broker left, including the folder's contents
    /// and the BPF file system; returns what there was. Ports that are still open
    /// receive nothing any more. Root removes also what a broker of another user
    /// left.
    ///
    /// # Errors
    /// See [`RuntimeDirError`]; [`RuntimeDirError::InUse`] while a broker runs.
    pub fn clean(path: &Path) -> Result<Cleaned, RuntimeDirError> {
        let mut keep = RuntimeDir::open_to_clean(path)?;
        let numbers = keep.numbers();
        let cleaned = Cleaned {
            open: numbers.iter().filter(|port| keep.is_owned(**port)).count(),
            ports: numbers.len(),
            interfaces: crate::engine::kernel::pinned_interfaces(&keep.pins)?,
        };
        if path == Path::new(FOLDER_DEFAULT) {
            crate::client::sweep_roster();
        }
        let swept = sweep_all(&keep.pins);
        for number in numbers {
            keep.forget(number);
        }
        swept?;
        drop(keep.pins);
        let bpf = path.join("bpf");
        PinFolder::unmount(&bpf)?;
        let (folder, _) = open_checked(path)?;
        let remove = |name: &str, flags| match fs::unlinkat(&folder, name, flags) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(failed("clean", path)(error)),
        };
        remove("bpf", AtFlags::REMOVEDIR)?;
        remove("ports", AtFlags::REMOVEDIR)?;
        remove("lock", AtFlags::empty())?;
        Ok(cleaned)
    }
}

/// A record line. It starts with a newline, which ends an incomplete line
/// before it.
fn line(port: &PortRecord) -> io::Result<Vec<u8>> {
    let mut text = vec![b'\n'];
    serde_json::to_writer(&mut text, port)?;
    text.push(b'\n');
    if text.len() > LINE_LEN_MAX {
        // The next broker would not read a longer line.
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok(text)
}

/// Removes all pins. An egress path of another network namespace can only be
/// removed when its user is gone, which takes the kernel a moment.
fn sweep_all(pins: &Arc<PinFolder>) -> Result<(), SweepError> {
    let deadline = Instant::now() + EXIT_WAIT_MAX;
    loop {
        match crate::engine::kernel::sweep(pins, &[], &[]) {
            Err(SweepError::Path(EgressError::Elsewhere { .. })) if Instant::now() < deadline => {
                std::thread::sleep(EXIT_WAIT_MAX / 50);
            }
            swept => return swept,
        }
    }
}

/// Opens the folder, which is made if it is missing and must be the process's
/// user's.
pub(crate) fn open_folder(path: &Path) -> Result<OwnedFd, RuntimeDirError> {
    let own = rustix::process::geteuid().as_raw();
    let (folder, stat) = open_checked(path)?;
    if stat.st_uid != own || stat.st_mode & 0o022 != 0 {
        return Err(not_ours(path, &stat, own));
    }
    Ok(folder)
}

/// Opens the folder, which is made if it is missing.
fn open_checked(path: &Path) -> Result<(OwnedFd, Stat), RuntimeDirError> {
    let own = rustix::process::geteuid();
    if own.is_root() {
        make_root_folder(path)?;
    }
    let is_new = fs::mkdir(path, FOLDER_MODE);
    match is_new {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(Errno::ACCESS | Errno::PERM | Errno::NOENT) if !own.is_root() => {
            let (path, uid) = (path.to_owned(), own.as_raw());
            return Err(RuntimeDirError::NotPrepared { path, uid });
        }
        Err(error) => return Err(failed("make the folder", path)(error)),
    }
    let folder = fs::open(path, FOLDER, Mode::empty()).map_err(failed("open", path))?;
    if is_new.is_ok() {
        // Regardless of the process's umask: the socket may be in the folder.
        fs::fchmod(&folder, FOLDER_MODE).map_err(failed("make the folder", path))?;
    }
    let stat = fs::fstat(folder.as_fd()).map_err(failed("look at", path))?;
    Ok((folder, stat))
}

/// Makes the folder that the default one is in, which must be root's.
fn make_root_folder(path: &Path) -> Result<(), RuntimeDirError> {
    if path != Path::new(FOLDER_DEFAULT) {
        return Ok(());
    }
    open_folder(Path::new(ROOT_FOLDER)).map(drop)
}

/// Whether root alone can replace the folder.
fn is_below_roots(path: &Path) -> bool {
    let parent = path.parent().filter(|parent| *parent != Path::new(""));
    owner_of(parent.unwrap_or(Path::new(".")), 0).is_ok_and(|owner| owner.is_some())
}

fn not_ours(path: &Path, stat: &Stat, own: u32) -> RuntimeDirError {
    RuntimeDirError::NotOurs {
        path: path.to_owned(),
        uid: stat.st_uid,
        mode: stat.st_mode & 0o7777,
        own,
    }
}

fn made(result: rustix::io::Result<()>) -> rustix::io::Result<()> {
    match result {
        Err(Errno::EXIST) => Ok(()),
        other => other,
    }
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(Errno) -> RuntimeDirError {
    let path = path.to_owned();
    move |error| RuntimeDirError::System {
        what,
        path,
        source: error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_noted_can_be_read_again() {
        let asked = r#"{"interface": "eth0", "filter": {"text": ""}, "ring": 4096}"#;
        let mut port = PortRecord {
            port: 7,
            version: 0,
            slot: 0,
            ifindex: 2,
            namespace: None,
            uid: 1001,
            gids: vec![u32::MAX; crate::daemon::limits::GROUPS_MAX],
            pid: 1,
            is_superuser: false,
            asked: serde_json::from_str(asked).unwrap(),
            secret: String::new(),
            path: None,
        };
        port.asked.filter.text = "x".repeat(PORT_LEN_MAX);
        assert!(line(&port).is_ok());
        port.gids = vec![u32::MAX; 1 << 16];
        assert!(line(&port).is_err());
    }
}
