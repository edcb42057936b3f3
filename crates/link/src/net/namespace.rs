//! Network namespaces without processes, which end with their descriptor.
#![allow(unsafe_code)] // A thread parts from the namespace of the others.

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

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

/// Runs a function on a new thread: namespaces belong to threads.
fn by_a_thread<T: Send>(run: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    std::thread::scope(|scope| scope.spawn(run).join())
        .unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))
}
