//! Where what outlives a tap's process is pinned.
#![allow(unsafe_code)] // A thread of its own in another mount namespace.

use crate::bpf::{Attachment, PinError, PinFolder};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};
use std::error::Error;
use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;

/// The folder of everything that is weir's at run time.
const RUN: &str = "/run/weir";

/// The BPF file system of taps.
const TAPS: &str = "/run/weir/taps";

/// Folders that are looked at before one is made.
const SWEPT_MAX: usize = 1024;

/// How pins of programs at XDP of links begin.
pub(super) const XDP_PIN: &str = "xdp-";

/// The folder for what interfaces share.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) parent: PinFolder,
    pub(super) folder: PinFolder,
    pub(super) name: String,
    /// While somebody has it, nothing is swept.
    pub(super) held: Option<OwnedFd>,
}

impl Place {
    /// The names of other folders for interfaces of the same namespace.
    pub(super) fn others(&self) -> Result<Vec<String>, PinError> {
        let namespace = self.name.split_inclusive('-').next().unwrap_or_default();
        let names = self.parent.list()?.1.into_iter().take(SWEPT_MAX);
        let others = names.filter(|name| name.starts_with(namespace) && *name != self.name);
        Ok(others.collect())
    }
}

/// The folder for what these interfaces of the calling thread's network
/// namespace share, in any order; made if it is missing, and kept from
/// sweepers. What was left of interfaces that are gone is removed.
///
/// It is a folder of the first process's mount namespace: that of `ip netns
/// exec` goes with its last process, and all pins in it.
pub(super) fn folder(interfaces: &[u32]) -> Result<Place, PinError> {
    let name = name(interfaces).map_err(failed)?;
    let parent = std::thread::scope(|scope| scope.spawn(mount).join());
    let parent = parent.unwrap_or_else(|_| Err(failed(io::ErrorKind::Other.into())))?;
    sweep(&parent);
    let held = Some(parent.lock()?);
    let folder = parent.folder(&name)?;
    Ok(Place {
        parent,
        folder,
        name,
        held,
    })
}

fn failed(source: io::Error) -> PinError {
    PinError::System {
        what: "tell the network namespace by",
        path: "/proc/thread-self/ns/net".into(),
        source,
    }
}

/// By the namespace's number and theirs.
pub(super) fn name(interfaces: &[u32]) -> io::Result<String> {
    let mut numbers = interfaces.to_vec();
    numbers.sort_unstable();
    let namespace = std::fs::metadata("/proc/thread-self/ns/net")?;
    let mut name = format!("net{}", namespace.ino());
    for number in numbers {
        name.push_str(&format!("-{number}"));
    }
    Ok(name)
}

/// Removes the folders of interfaces that are gone, with their namespace or
/// alone. Not while anybody makes his own: numbers of namespaces and of
/// interfaces are given again, and so the names of folders.
fn sweep(taps: &PinFolder) {
    let Ok(Some(_alone)) = taps.lock_alone() else {
        return;
    };
    let folders = taps.list().map(|(_, folders)| folders);
    for name in folders.iter().flatten().take(SWEPT_MAX) {
        // What cannot be removed is in nobody's way.
        let _ = sweep_one(taps, name);
    }
}

fn sweep_one(taps: &PinFolder, name: &str) -> Result<(), Box<dyn Error>> {
    let folder = taps.folder(name)?;
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
    // Without: its process died before it had attached anything, or is as old
    // as not to keep us out meanwhile.
    if is_any {
        for pin in &pins {
            folder.unpin(pin)?;
        }
        taps.remove_folder(name)?;
    }
    Ok(())
}

fn mount() -> Result<PinFolder, PinError> {
    // Where that is not allowed, the namespace that we are in must do.
    let _ = enter_first();
    let made = DirBuilder::new().recursive(true).mode(0o755).create(RUN);
    made.map_err(|source| PinError::System {
        what: "make the folder",
        path: RUN.into(),
        source,
    })?;
    PinFolder::mount(Path::new(TAPS))
}

fn enter_first() -> io::Result<()> {
    let first = File::open("/proc/1/ns/mnt")?;
    let ours = File::open("/proc/thread-self/ns/mnt")?;
    if first.metadata()?.ino() == ours.metadata()?.ino() {
        return Ok(());
    }
    // SAFETY: the thread is our own and about to end; it parts with the
    // process's working directory and root only.
    unsafe { unshare_unsafe(UnshareFlags::FS)? };
    Ok(move_into_link_name_space(
        first.as_fd(),
        Some(LinkNameSpaceType::Mount),
    )?)
}
