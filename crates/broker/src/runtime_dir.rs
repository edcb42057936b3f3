//! What outlives a broker: a folder that says which ports there are, and by
//! which the next broker sees who still has them.
//!
//! ```text
//!  /run/weir/
//!  ├── lock         locked by the broker
//!  ├── bpf/         a BPF file system, of root alone: what divides frames
//!  └── ports/       of root alone
//!      ├── 7.port   what port 7 is (JSON, the last line)
//!      └── 7.held   locked by whoever has port 7
//! ```
//!
//! The lock on `7.held` belongs to a descriptor that the port's program gets
//! and nobody else has. It ends with the last copy of that descriptor, by
//! whatever death, and no process can end it for another. The broker needs no
//! connection to see it.

use crate::engine::kernel::SweepError;
use crate::policy::PeerCred;
use crate::protocol::OpenPort;
use rustix::fs::{self, AtFlags, FlockOperation, Mode, OFlags};
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
use weir_link::live::PathError;

/// Where a broker keeps it, unless told otherwise.
pub const FOLDER_DEFAULT: &str = "/run/weir";

/// Bytes of a port's file from which on it is written anew, and not appended to:
/// a request is not longer.
const PORT_LEN_MAX: usize = crate::protocol::MESSAGE_LEN_MAX;

/// Most bytes of what is noted of a port at once.
const LINE_LEN_MAX: usize = 2 * PORT_LEN_MAX;

/// How long the kernel may take to remove what a dead program sent by.
const EXIT_WAIT_MAX: Duration = Duration::from_secs(1);

/// Why nothing can be kept in a folder.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeDirError {
    /// Another broker does.
    #[error("another broker runs with {}; stop it first", path.display())]
    InUse {
        /// The folder.
        path: PathBuf,
    },
    /// Others could change it.
    #[error(
        "{} belongs to user {uid}, with mode {mode:o}: it must be root's, and nobody else's to write", path.display()
    )]
    NotOurs {
        /// The folder.
        path: PathBuf,
        /// Whose it is.
        uid: u32,
        /// Who may do what.
        mode: u32,
    },
    /// The BPF file system.
    #[error(transparent)]
    Pins(#[from] PinError),
    /// What was attached, or made.
    #[error(transparent)]
    Sweep(#[from] SweepError),
    /// Anything else.
    #[error("cannot {what} {} ({source})", path.display())]
    System {
        /// What was to be done.
        what: &'static str,
        /// With which path.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// The folder, of one broker at a time.
#[derive(Debug)]
pub struct RuntimeDir {
    path: PathBuf,
    ports: OwnedFd,
    pins: Arc<PinFolder>,
    /// Open files of ports that have changed of late, the latest last: who
    /// changes a filter once often does so again.
    open_records: VecDeque<OpenRecord>,
    _lock: OwnedFd,
}

/// The open file of a port.
#[derive(Debug)]
struct OpenRecord {
    port: u32,
    file: File,
    len: usize,
}

/// Most files that are kept open.
const CHANGED_MAX: usize = 16;

/// A port as it is kept.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct PortRecord {
    /// Its number.
    pub(crate) port: u32,
    /// The protocol that its program speaks, and by which it reads its ring; not
    /// said by version 1.
    #[serde(default)]
    pub(crate) version: u16,
    /// Its place in the interface's divider.
    pub(crate) slot: u32,
    /// The interface's number.
    pub(crate) ifindex: u32,
    /// Its network namespace.
    pub(crate) namespace: Option<u64>,
    /// The user.
    pub(crate) uid: u32,
    /// The user's groups.
    pub(crate) gids: Vec<u32>,
    /// The process that opened it.
    pub(crate) pid: u32,
    /// Whether that was the superuser.
    #[serde(default)]
    pub(crate) is_superuser: bool,
    /// What was asked for.
    pub(crate) asked: OpenPort,
    /// By which its program proves that it is its own
    /// ([`RequestKind::Resume`](crate::protocol::RequestKind::Resume)).
    #[serde(default)]
    pub(crate) secret: String,
    /// What it sends by.
    #[serde(default)]
    pub(crate) path: Option<EgressRecord>,
}

/// A path that a port sends by.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct EgressRecord {
    /// Its name.
    pub(crate) name: String,
    /// Its rules, as a filter: by other rules it does not go on.
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
const OWNER: Mode = Mode::RUSR.union(Mode::WUSR);

impl RuntimeDir {
    /// Makes the folder where it is missing, locks it, and mounts the BPF
    /// file system where there is none. Needs privilege.
    ///
    /// # Errors
    /// See [`RuntimeDirError`].
    pub fn open(path: &Path) -> Result<RuntimeDir, RuntimeDirError> {
        let folder = open_folder(path)?;
        let lock = fs::openat(
            &folder,
            "lock",
            OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC,
            OWNER,
        );
        let lock = lock.map_err(failed("open the lock in", path))?;
        match fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                let path = path.to_owned();
                return Err(RuntimeDirError::InUse { path });
            }
            Err(error) => return Err(failed("lock", path)(error)),
        }
        made(fs::mkdirat(&folder, "ports", Mode::RWXU)).map_err(failed("make `ports` in", path))?;
        let ports = fs::openat(&folder, "ports", FOLDER, Mode::empty());
        Ok(RuntimeDir {
            path: path.to_owned(),
            ports: ports.map_err(failed("open `ports` in", path))?,
            pins: Arc::new(PinFolder::mount(&path.join("bpf"))?),
            open_records: VecDeque::new(),
            _lock: lock,
        })
    }

    /// Where what divides frames is pinned.
    pub fn pins(&self) -> &Arc<PinFolder> {
        &self.pins
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Notes a port, in place of what was noted.
    pub(crate) fn save(&mut self, port: &PortRecord) -> io::Result<()> {
        self.open_records.retain(|one| one.port != port.port);
        let (new, name) = (format!("{}.new", port.port), format!("{}.port", port.port));
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
        let text = line(port)?;
        let file = fs::openat(&self.ports, &new, flags, OWNER)?;
        File::from(file).write_all(&text)?;
        // All of it, or what was there.
        Ok(fs::renameat(&self.ports, &new, &self.ports, &name)?)
    }

    /// Notes what has changed of a port that is noted: a line more, which
    /// is quicker than a new file.
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
        // By one call: a line that a dying broker has left unfinished is
        // passed over.
        if let Err(error) = changed.file.write_all(&line) {
            // The next line is not to go on behind a part of this one.
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
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let name = format!("{port}.port");
        let file = File::from(fs::openat(&self.ports, &name, flags, Mode::empty())?);
        let len = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX);
        Ok(OpenRecord { port, file, len })
    }

    /// A descriptor that holds a port, for its program.
    pub(crate) fn lifetime_fd(&self, port: u32) -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::CREATE | OFlags::CLOEXEC;
        let held = fs::openat(&self.ports, format!("{port}.held"), flags, OWNER)?;
        fs::flock(&held, FlockOperation::NonBlockingLockShared)?;
        Ok(held)
    }

    /// Whether some program has the port.
    pub(crate) fn is_owned(&self, port: u32) -> bool {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let held = fs::openat(&self.ports, format!("{port}.held"), flags, Mode::empty());
        held.is_ok_and(|held| {
            fs::flock(&held, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK)
        })
    }

    /// Forgets a port.
    pub(crate) fn forget(&mut self, port: u32) {
        self.open_records.retain(|one| one.port != port);
        for kind in ["port", "held", "new"] {
            let _ = fs::unlinkat(&self.ports, format!("{port}.{kind}"), AtFlags::empty());
        }
    }

    /// The ports that are noted, by number. What cannot be read, since a
    /// broker was killed in the middle, is forgotten.
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
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = fs::openat(&self.ports, format!("{number}.port"), flags, Mode::empty());
        let mut text = Vec::new();
        let file = io::Read::take(File::from(file.ok()?), (PORT_LEN_MAX + LINE_LEN_MAX) as u64);
        io::Read::read_to_end(&mut { file }, &mut text).ok()?;
        let mut lines = text.split(|byte| *byte == b'\n').rev();
        lines.find_map(|line| serde_json::from_slice(line).ok())
    }

    /// Removes everything that a broker has left, the folder's contents and
    /// the BPF file system included. Ports that are still read get nothing
    /// any more.
    ///
    /// # Errors
    /// See [`RuntimeDirError`]; [`RuntimeDirError::InUse`] while a broker runs.
    pub fn clean(path: &Path) -> Result<(), RuntimeDirError> {
        let mut keep = RuntimeDir::open(path)?;
        if path == Path::new(FOLDER_DEFAULT) {
            crate::client::sweep_roster();
        }
        let swept = sweep_all(&keep.pins);
        for number in keep.numbers() {
            keep.forget(number);
        }
        swept?;
        drop(keep.pins);
        let bpf = path.join("bpf");
        PinFolder::unmount(&bpf)?;
        let folder = open_folder(path)?;
        let remove = |name: &str, flags| match fs::unlinkat(&folder, name, flags) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(failed("clean", path)(error)),
        };
        remove("bpf", AtFlags::REMOVEDIR)?;
        remove("ports", AtFlags::REMOVEDIR)?;
        remove("lock", AtFlags::empty())
    }
}

/// Begins with a line's end, so that nothing unfinished is before it.
fn line(port: &PortRecord) -> io::Result<Vec<u8>> {
    let mut text = vec![b'\n'];
    serde_json::to_writer(&mut text, port)?;
    text.push(b'\n');
    if text.len() > LINE_LEN_MAX {
        // The next broker would not read it.
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok(text)
}

/// Sweeps everything. A path of another network namespace can only be removed
/// when its user is gone, and the kernel takes a moment to see to that.
fn sweep_all(pins: &Arc<PinFolder>) -> Result<(), SweepError> {
    let deadline = Instant::now() + EXIT_WAIT_MAX;
    loop {
        match crate::engine::kernel::sweep(pins, &[], &[]) {
            Err(SweepError::Path(PathError::Elsewhere { .. })) if Instant::now() < deadline => {
                std::thread::sleep(EXIT_WAIT_MAX / 50);
            }
            swept => return swept,
        }
    }
}

pub(crate) fn open_folder(path: &Path) -> Result<OwnedFd, RuntimeDirError> {
    let mode = Mode::RWXU | Mode::RGRP | Mode::XGRP | Mode::ROTH | Mode::XOTH;
    let is_new = fs::mkdir(path, mode);
    let folder = fs::open(path, FOLDER, Mode::empty()).map_err(failed("open", path))?;
    match is_new {
        // Whatever the mask of this process: the socket may be in it.
        Ok(()) => fs::fchmod(&folder, mode).map_err(failed("make the folder", path))?,
        Err(Errno::EXIST) => {}
        Err(error) => return Err(failed("make the folder", path)(error)),
    }
    let stat = fs::fstat(folder.as_fd()).map_err(failed("look at", path))?;
    let (uid, mode) = (stat.st_uid, stat.st_mode & 0o7777);
    if uid != rustix::process::geteuid().as_raw() || mode & 0o022 != 0 {
        let path = path.to_owned();
        return Err(RuntimeDirError::NotOurs { path, uid, mode });
    }
    Ok(folder)
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
