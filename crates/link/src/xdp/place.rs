//! Where what outlives a tap's process is pinned.
#![allow(unsafe_code)] // A thread of its own in another mount namespace.

use crate::bpf::{PinError, PinFolder};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};
use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;

/// The folder of everything that is weir's at run time.
const RUN: &str = "/run/weir";

/// The BPF file system of taps.
const TAPS: &str = "/run/weir/taps";

/// The folder for what these interfaces of the calling thread's network
/// namespace share, in any order; made if it is missing.
///
/// It is a folder of the first process's mount namespace: that of `ip netns
/// exec` goes with its last process, and all pins in it.
pub(super) fn folder(interfaces: &[u32]) -> Result<(PinFolder, PinFolder, String), PinError> {
    let mut numbers = interfaces.to_vec();
    numbers.sort_unstable();
    let failed = |source: io::Error| PinError::System {
        what: "tell the network namespace by",
        path: "/proc/thread-self/ns/net".into(),
        source,
    };
    let namespace = std::fs::metadata("/proc/thread-self/ns/net").map_err(failed)?;
    let mut name = format!("net{}", namespace.ino());
    for number in numbers {
        name.push_str(&format!("-{number}"));
    }
    let taps = std::thread::scope(|scope| scope.spawn(mount).join());
    let taps = taps.unwrap_or_else(|_| Err(failed(io::ErrorKind::Other.into())))?;
    let folder = taps.folder(&name)?;
    Ok((taps, folder, name))
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
