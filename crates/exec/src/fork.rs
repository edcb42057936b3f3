//! Forks: the child's copies of its parent's sockets.
//!
//! The stack's state belongs to the process that started the host; the child has a copy of its
//! memory, but not its threads. The child's descriptors of weir's sockets can be closed, and stay
//! closed for the child alone. Other calls on them fail with `ENETDOWN`, and a message says so
//! once. A child that was forked before its parent needed a host can start a host of its own.

use crate::sock::Sock;
use crate::{host, real, signals, table};
use libc::{c_int, pid_t};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

static SAID: AtomicBool = AtomicBool::new(false);

/// The error of calls on a socket of another process.
pub(crate) fn refuse() -> c_int {
    if !SAID.swap(true, Relaxed) {
        host::say(&format!(
            "process {} uses a socket of the process that forked it: weir's sockets cannot be \
             shared across fork; run the program so that one process has the sockets",
            std::process::id()
        ));
    }
    libc::ENETDOWN
}

/// Runs in the child.
extern "C" fn in_child() {
    if !host::is_configured() {
        return;
    }
    let _inside = signals::enter();
    SAID.store(false, Relaxed);
    // The link is the parent's, and free when the parent ends, however long the child lives.
    table::close_hidden();
    host::begin_anew();
    table::begin_anew(|fd, was_live| {
        if was_live {
            Some(Arc::new(Sock::foreign()))
        } else {
            inherit(fd)
        }
    });
}

/// A socket of the kernel, which both processes have.
fn inherit(fd: c_int) -> Option<Arc<Sock>> {
    let of = |name| {
        let mut value: c_int = 0;
        let mut len = size_of::<c_int>() as libc::socklen_t;
        // SAFETY: the value has the stated length.
        let got = unsafe {
            real::getsockopt(
                fd,
                libc::SOL_SOCKET,
                name,
                (&raw mut value).cast(),
                &raw mut len,
            )
        };
        (got == 0).then_some(value)
    };
    let (domain, kind) = (of(libc::SO_DOMAIN)?, of(libc::SO_TYPE)?);
    // SAFETY: the command takes no pointer.
    let flags = unsafe { real::fcntl(fd, libc::F_GETFL, 0) };
    Some(Arc::new(Sock::open(
        domain,
        kind,
        flags & libc::O_NONBLOCK != 0,
    )))
}

/// Arranges that a child begins anew.
pub(crate) fn watch() {
    // SAFETY: the function has the type that is asked for.
    unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
}

/// `vfork(2)`, as `fork(2)`: a child that shares its parent's memory would change the parent's
/// table when it closes descriptors.
///
/// # Safety
/// As `vfork(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vfork() -> pid_t {
    // SAFETY: a child of fork may do all that a child of vfork may.
    unsafe { real::fork() }
}
