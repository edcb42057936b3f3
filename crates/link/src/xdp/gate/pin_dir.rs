//! The pin directory of a set of interfaces, for objects that outlive a tap's
//! process.
#![allow(unsafe_code)] // A thread of its own in another mount namespace.

use super::shared_page::LINKS_MAX;
use crate::bpf::{Attachment, PinError, PinFolder};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};
use std::error::Error;
use std::fmt;
use std::fs::{DirBuilder, File};
use std::io;
use std::io::ErrorKind::{NotFound, PermissionDenied};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;
use std::time::{Duration, Instant};

/// weir's run-time directory.
const RUN: &str = "/run/weir";

/// The BPF file system of taps.
const TAPS_BPFFS: &str = "/run/weir/taps";

/// Largest number of folders that are swept before one is created.
const SWEPT_MAX: usize = 1024;

/// Prefix of the pins of XDP programs.
pub(in crate::xdp) const XDP_PIN: &str = "xdp-";

/// Longest time that the kernel takes to close the descriptors of a process
/// that has ended: usually 0.2 s or less, more on a busy machine.
const CLOSING: Duration = Duration::from_secs(1);

/// The locked pin directory of a set of interfaces. Dropping the value, or the
/// end of the process, unlocks it.
#[derive(Debug)]
pub(in crate::xdp) struct PinDir {
    pub(in crate::xdp) parent: PinFolder,
    pub(in crate::xdp) folder: PinFolder,
    pub(in crate::xdp) name: String,
    _lock: OwnedFd,
}

/// Why the pin directory was not taken.
#[derive(Debug)]
pub(in crate::xdp) enum PinDirError {
    /// Another process has it locked.
    Held(Option<OwnerProcess>),
    /// Any other error.
    Pin(PinError),
}

impl From<PinError> for PinDirError {
    fn from(error: PinError) -> PinDirError {
        PinDirError::Pin(error)
    }
}

/// The process that owns a gate.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OwnerProcess {
    /// The process id.
    pub process: u32,
    /// The name of its program, if it can be read.
    pub program: Option<String>,
}

impl OwnerProcess {
    fn of(process: u32) -> OwnerProcess {
        let program = std::fs::read_to_string(format!("/proc/{process}/comm"));
        OwnerProcess {
            process,
            program: program.ok().map(|name| name.trim_end().to_owned()),
        }
    }
}

impl fmt::Display for OwnerProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {}", self.process)?;
        match &self.program {
            Some(program) => write!(f, " (`{program}`)"),
            None => Ok(()),
        }
    }
}

impl PinDir {
    /// Takes the pin directory of these interfaces of the calling thread's
    /// network namespace, in any order; creates it if missing, and removes the
    /// stale directories of interfaces that are gone.
    pub(in crate::xdp) fn take(interfaces: &[u32]) -> Result<PinDir, PinDirError> {
        let name = name(interfaces).map_err(failed)?;
        let parent = parent()?;
        let until = Instant::now() + CLOSING;
        loop {
            let folder = match parent.folder(&name) {
                // Its last owner removed it between the two steps.
                Err(PinError::System { source, .. }) if source.kind() == NotFound => continue,
                folder => folder?,
            };
            match lock(&folder)? {
                Some(_lock) => {
                    return Ok(PinDir {
                        parent,
                        folder,
                        name,
                        _lock,
                    });
                }
                // The owner may have been killed a moment ago.
                None if Instant::now() < until => std::thread::sleep(CLOSING / 100),
                None => return Err(PinDirError::Held(lock_owner(&folder))),
            }
        }
    }

    /// The names of all other pin directories.
    pub(in crate::xdp) fn others(&self) -> Result<Vec<String>, PinError> {
        let mut names = names(&self.parent)?;
        names.retain(|name| *name != self.name);
        Ok(names)
    }
}

fn names(parent: &PinFolder) -> Result<Vec<String>, PinError> {
    let folders = parent.list()?.1;
    Ok(folders.into_iter().take(SWEPT_MAX).collect())
}

/// Locks a folder; `None` if another process has it locked, or if it was
/// removed meanwhile.
pub(in crate::xdp) fn lock(folder: &PinFolder) -> Result<Option<OwnedFd>, PinError> {
    let lock = folder.lock_alone()?;
    Ok(if folder.is_there()? { lock } else { None })
}

/// Whether a program is pinned in any pin directory; `true` also if that cannot
/// be determined.
pub(in crate::xdp) fn is_pinned(program: u32) -> bool {
    let Ok(parent) = parent() else { return true };
    let Ok(names) = names(&parent) else {
        return true;
    };
    let mut folders = names.iter().filter_map(|name| parent.existing(name).ok()?);
    folders.any(|folder| has_any(&folder, &[program]))
}

/// The process that has a pin directory with one of these programs locked.
pub(in crate::xdp) fn owner_holding(programs: &[u32]) -> Option<OwnerProcess> {
    let parent = parent().ok()?;
    let names = names(&parent).ok()?;
    let folders = names.iter().filter_map(|name| parent.existing(name).ok()?);
    let mut folders = folders.filter(|folder| has_any(folder, programs));
    folders.find_map(|folder| lock_owner(&folder))
}

/// Whether one of these programs is pinned in the folder; program ids are
/// unique on the machine.
pub(in crate::xdp) fn has_any(folder: &PinFolder, programs: &[u32]) -> bool {
    let links = (0..LINKS_MAX).map_while(|link| folder.get(&format!("{XDP_PIN}{link}")).ok()?);
    let mut infos = links.filter_map(|xdp| Attachment::from_fd(xdp).info().ok());
    infos.any(|info| programs.contains(&info.program_id))
}

/// A process with a descriptor of one of these XDP attachments (proc(5),
/// `fdinfo`).
pub(in crate::xdp) fn owner_of(programs: &[u32]) -> Option<OwnerProcess> {
    let processes = std::fs::read_dir("/proc").ok()?.flatten();
    let numbers = processes.filter_map(|process| process.file_name().to_str()?.parse().ok());
    let has = |process: &u32| {
        let infos = std::fs::read_dir(format!("/proc/{process}/fdinfo"));
        let infos = infos.into_iter().flatten().flatten();
        let mut texts = infos.filter_map(|info| std::fs::read_to_string(info.path()).ok());
        texts.any(|text| is_link_of(&text, programs))
    };
    numbers.into_iter().find(has).map(OwnerProcess::of)
}

fn is_link_of(fdinfo: &str, programs: &[u32]) -> bool {
    let value = |name: &str| {
        let mut lines = fdinfo.lines().filter_map(|line| line.split_once(':'));
        lines.find(|line| line.0 == name).map(|line| line.1.trim())
    };
    let program = value("prog_id").and_then(|program| program.parse().ok());
    value("link_type") == Some("xdp") && program.is_some_and(|one| programs.contains(&one))
}

fn lock_owner(folder: &PinFolder) -> Option<OwnerProcess> {
    folder.locked_by().map(OwnerProcess::of)
}

/// The swept parent of all pin directories.
pub(in crate::xdp) fn parent() -> Result<PinFolder, PinError> {
    let parent = mount_for_all(Path::new(TAPS_BPFFS))?;
    sweep(&parent);
    Ok(parent)
}

/// A folder for pins below `/run/weir`. A BPF file system that is there in the process's own mount
/// namespace is used: a container's, for example. Otherwise one is mounted, as [`PinFolder::mount`]
/// does, in the mount namespace of process 1: the one of `ip netns exec` ends with its last process,
/// and all pins in it.
///
/// # Errors
/// See [`PinError`].
pub fn mount_for_all(path: &Path) -> Result<PinFolder, PinError> {
    let folder = std::thread::scope(|scope| scope.spawn(|| mount(path)).join());
    folder.unwrap_or_else(|_| Err(failed(io::ErrorKind::Other.into())))
}

fn failed(source: io::Error) -> PinError {
    PinError::System {
        what: "tell the network namespace by",
        path: "/proc/thread-self/ns/net".into(),
        source,
    }
}

/// A name from the namespace's inode number and the interfaces' numbers.
pub(in crate::xdp) fn name(interfaces: &[u32]) -> io::Result<String> {
    let mut numbers = interfaces.to_vec();
    numbers.sort_unstable();
    let namespace = std::fs::metadata("/proc/thread-self/ns/net")?;
    let mut name = format!("net{}", namespace.ino());
    for number in numbers {
        name.push_str(&format!("-{number}"));
    }
    Ok(name)
}

/// Removes the pin directories of interfaces that are gone, except those in
/// use: numbers of namespaces and interfaces are reused, and so are directory
/// names.
fn sweep(taps: &PinFolder) {
    for name in names(taps).iter().flatten() {
        // A directory that cannot be removed does no harm.
        let _ = sweep_dir(taps, name);
    }
}

fn sweep_dir(taps: &PinFolder, name: &str) -> Result<(), Box<dyn Error>> {
    let Some(folder) = taps.existing(name)? else {
        return Ok(());
    };
    let Some(_lock) = lock(&folder)? else {
        return Ok(());
    };
    let (pins, _) = folder.list()?;
    let mut is_any = false;
    for pin in pins.iter().filter(|pin| pin.starts_with(XDP_PIN)) {
        if let Some(xdp) = folder.get(pin)?.map(Attachment::from_fd) {
            if xdp.info()?.ifindex.is_some() {
                return Ok(());
            }
            is_any = true;
        }
    }
    // A directory without a lock holder: its process ended before it had
    // attached anything, or the directory is recent.
    if is_any {
        for pin in &pins {
            folder.unpin(pin)?;
        }
        taps.remove_folder(name)?;
    }
    Ok(())
}

fn mount(path: &Path) -> Result<PinFolder, PinError> {
    if let Ok(folder) = PinFolder::open(path) {
        return Ok(folder);
    }
    // Without permission, the present namespace is used.
    let _ = enter_first();
    let made = DirBuilder::new().recursive(true).mode(0o755).create(RUN);
    made.map_err(|source| match source.kind() {
        PermissionDenied => PinError::NotPermitted {
            what: "make",
            path: RUN.into(),
        },
        _ => PinError::System {
            what: "make the folder",
            path: RUN.into(),
            source,
        },
    })?;
    PinFolder::mount(path)
}

fn enter_first() -> io::Result<()> {
    let first = File::open("/proc/1/ns/mnt")?;
    let ours = File::open("/proc/thread-self/ns/mnt")?;
    if first.metadata()?.ino() == ours.metadata()?.ino() {
        return Ok(());
    }
    // SAFETY: the thread is new and about to end; `unshare` separates only its
    // working directory and root.
    unsafe { unshare_unsafe(UnshareFlags::FS)? };
    Ok(move_into_link_name_space(
        first.as_fd(),
        Some(LinkNameSpaceType::Mount),
    )?)
}
