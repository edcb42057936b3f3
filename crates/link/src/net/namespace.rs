//! Network namespaces: those without processes, which end with their descriptor, and a search of all.
#![allow(unsafe_code)] // A thread parts from the namespace of the others.

use super::netlink::Netlink;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};
use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Largest number of network namespaces that a search enters, of entries in `/run/netns` that it reads, and of
/// processes whose namespace it looks at.
const ENTERED_MAX: usize = 4096;
const NAMED_MAX: usize = 16_384;
const PROCESSES_MAX: usize = 65_536;

/// Why a namespace was not created or entered.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what} a network namespace ({source}); it needs CAP_SYS_ADMIN")]
pub struct NamespaceError {
    /// The operation that failed.
    pub what: &'static str,
    /// The system's error.
    pub source: io::Error,
}

/// A network namespace held by a descriptor.
#[derive(Debug)]
pub(crate) struct Namespace(OwnedFd);

impl Namespace {
    /// A new namespace; its loopback interface is down.
    pub(crate) fn new() -> Result<Namespace, NamespaceError> {
        let make = || -> io::Result<OwnedFd> {
            // SAFETY: the thread is new and about to end; `unshare` separates
            // only its network namespace.
            unsafe { unshare_unsafe(UnshareFlags::NEWNET)? };
            Ok(File::open("/proc/thread-self/ns/net")?.into())
        };
        let made = by_a_thread(make).map_err(|source| {
            let what = "make";
            NamespaceError { what, source }
        });
        made.map(Namespace)
    }

    /// Runs a function in the namespace.
    pub(crate) fn run<T: Send>(&self, run: impl FnOnce() -> T + Send) -> Result<T, NamespaceError> {
        let inside = || {
            move_into_link_name_space(self.as_fd(), Some(LinkNameSpaceType::Network))?;
            Ok(run())
        };
        by_a_thread(inside).map_err(|source| {
            let what = "enter";
            NamespaceError { what, source }
        })
    }
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A namespace with the sockets by which a process without `CAP_SYS_ADMIN`,
/// which cannot enter it, makes a link's far end there.
#[derive(Debug)]
pub(crate) struct FarNamespace {
    pub(crate) namespace: OwnedFd,
    /// An `AF_XDP` socket.
    pub(crate) xdp: OwnedFd,
    pub(crate) netlink: Netlink,
}

impl FarNamespace {
    /// A new namespace.
    pub(crate) fn new() -> Result<FarNamespace, NamespaceError> {
        let namespace = Namespace::new()?;
        let sockets = namespace.run(|| -> io::Result<_> {
            let (family, kind) = (AddressFamily::XDP, SocketType::RAW);
            let xdp = socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
            Ok((xdp, Netlink::open()?))
        })?;
        let (xdp, netlink) = sockets.map_err(|source| {
            let what = "open sockets in";
            NamespaceError { what, source }
        })?;
        Ok(FarNamespace {
            namespace: namespace.0,
            xdp,
            netlink,
        })
    }

    /// The namespace that another process has made, of its [`fds`](Self::fds).
    pub(crate) fn of(namespace: OwnedFd, xdp: OwnedFd, netlink: OwnedFd) -> FarNamespace {
        FarNamespace {
            namespace,
            xdp,
            netlink: Netlink::from_fd(netlink),
        }
    }

    pub(crate) fn fds(&self) -> [BorrowedFd<'_>; 3] {
        [
            self.namespace.as_fd(),
            self.xdp.as_fd(),
            self.netlink.as_fd(),
        ]
    }
}

/// The result of a [`search`].
#[derive(Debug)]
pub(crate) struct Searched<T> {
    /// What the function returned in the namespace where it returned something.
    pub(crate) found: Option<T>,
    /// Why a namespace was not looked into: the last error, or that there are too many.
    pub(crate) refused: Option<io::Error>,
}

/// Runs a function in each network namespace that has a name of ip-netns(8) or a process, except the calling
/// thread's, until the function finds something. A namespace that only a descriptor holds is not found.
///
/// # Errors
/// If the calling thread's own namespace is not known.
pub(crate) fn search<T: Send>(
    look: impl Fn() -> io::Result<Option<T>> + Send,
) -> io::Result<Searched<T>> {
    let own = identity(Path::new("/proc/thread-self/ns/net"))?;
    by_a_thread(move || {
        let mut seen = HashSet::from([own]);
        let mut refused = None;
        for path in named().chain(of_processes()) {
            if seen.len() > ENTERED_MAX {
                refused = Some(io::Error::other(format!(
                    "there are more than {ENTERED_MAX} namespaces"
                )));
                break;
            }
            let entered = identity(&path).and_then(|identity| {
                if !seen.insert(identity) {
                    return Ok(false);
                }
                let namespace = File::open(&path)?;
                move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
                Ok(true)
            });
            match entered {
                Ok(true) => match look() {
                    Ok(None) => {}
                    Ok(found) => return Ok(Searched { found, refused }),
                    Err(error) => refused = Some(error),
                },
                Ok(false) => {}
                // The process has ended, or the name is left of a namespace before a reboot.
                Err(error) if is_over(&error) => {}
                Err(error) => refused = Some(error),
            }
        }
        let found = None;
        Ok(Searched { found, refused })
    })
}

fn is_over(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENOENT | libc::ESRCH | libc::EINVAL)
    )
}

/// What distinguishes a namespace from all others: the device and inode of its file.
fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let file = std::fs::metadata(path)?;
    Ok((file.dev(), file.ino()))
}

/// The files of namespaces that have a name.
fn named() -> impl Iterator<Item = PathBuf> {
    let entries = std::fs::read_dir("/run/netns").into_iter().flatten();
    entries.take(NAMED_MAX).flatten().map(|entry| entry.path())
}

/// The files of the namespaces of processes.
fn of_processes() -> impl Iterator<Item = PathBuf> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let processes = entries.filter(|entry| {
        let name = entry.file_name();
        name.as_encoded_bytes().iter().all(u8::is_ascii_digit)
    });
    let processes = processes.take(PROCESSES_MAX);
    processes.map(|process| process.path().join("ns/net"))
}

/// Runs a function on a new thread: namespaces belong to threads.
fn by_a_thread<T: Send>(run: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    std::thread::scope(|scope| scope.spawn(run).join())
        .unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))
}
