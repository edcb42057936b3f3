//! The sockets that stand for packet sockets and raw sockets.
//!
//! A socket is known by its inode: a copy of its descriptor is the same socket, and a number that
//! the application has closed and the kernel given to another socket is not.

use libc::c_int;
use rustix::fs::{FileType, fstat};
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::Duration;

/// What a socket stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// A packet socket: frames with the link's header.
    Link,
    /// A raw socket: IPv4 packets with their header.
    Ip,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Socket {
    inode: u64,
    pub(super) kind: Kind,
    /// The interface that it is bound to.
    pub(super) index: Option<u32>,
}

/// Sockets that are known at a time; the oldest are forgotten first.
const SOCKETS_MAX: usize = 1024;
/// How often, and with which pauses, to try for a lock: a signal handler may have interrupted the
/// thread that has it.
const LOCK_TRIES: usize = 1000;
const LOCK_PAUSE: Duration = Duration::from_millis(1);

static SOCKETS: Mutex<VecDeque<Socket>> = Mutex::new(VecDeque::new());
/// Whether there was ever one.
static IS_USED: AtomicBool = AtomicBool::new(false);

pub(super) fn lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    for _ in 0..LOCK_TRIES {
        match mutex.try_lock() {
            Ok(guard) => return Some(guard),
            Err(TryLockError::Poisoned(guard)) => return Some(guard.into_inner()),
            Err(TryLockError::WouldBlock) => std::thread::sleep(LOCK_PAUSE),
        }
    }
    None
}

fn inode(fd: c_int) -> Option<u64> {
    if fd < 0 {
        return None;
    }
    // SAFETY: used for the one call; of a number that is no descriptor it fails.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    let facts = fstat(fd).ok()?;
    // Files of other file systems may have the same number.
    let is_socket = FileType::from_raw_mode(facts.st_mode) == FileType::Socket;
    is_socket.then_some(facts.st_ino)
}

pub(super) fn insert(fd: c_int, kind: Kind) {
    let (Some(inode), Some(mut sockets)) = (inode(fd), lock(&SOCKETS)) else {
        return;
    };
    if sockets.len() == SOCKETS_MAX {
        sockets.pop_front();
    }
    sockets.push_back(Socket {
        inode,
        kind,
        index: None,
    });
    IS_USED.store(true, Relaxed);
}

/// The socket of a descriptor; `None` if it is the kernel's own.
pub(super) fn find(fd: c_int) -> Option<Socket> {
    if !IS_USED.load(Relaxed) {
        return None;
    }
    let inode = inode(fd)?;
    let sockets = lock(&SOCKETS)?;
    sockets.iter().rfind(|one| one.inode == inode).copied()
}

pub(super) fn bind(fd: c_int, index: u32) {
    if let (Some(inode), Some(mut sockets)) = (inode(fd), lock(&SOCKETS))
        && let Some(socket) = sockets.iter_mut().rfind(|one| one.inode == inode)
    {
        socket.index = Some(index).filter(|index| *index != 0);
    }
}

/// Says, once, that such a socket only sends; the error of the call.
pub(super) fn refuse_to_receive() -> c_int {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Relaxed) {
        eprintln!(
            "weir: the program receives by a packet socket of its own. weir lets it send by one; to \
             receive, it has to use libpcap, or to run as root without weir"
        );
    }
    libc::EOPNOTSUPP
}
