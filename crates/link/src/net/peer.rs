//! The process at the other end of a Unix socket (`unix(7)`): its credentials,
//! and whether it may pass descriptors (`SCM_RIGHTS`).
#![allow(unsafe_code)] // getsockopt(2), for options that rustix lacks.

use super::set_option;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// `SO_PEERGROUPS` of `asm-generic/socket.h` (Linux 4.13).
const SO_PEERGROUPS: i32 = 59;
/// `SO_PEERPIDFD` (Linux 6.5).
const SO_PEERPIDFD: i32 = 77;
/// `SO_PASSRIGHTS` (Linux 6.16).
const SO_PASSRIGHTS: i32 = 83;

/// Initial room for supplementary groups. A process has at most 65,536
/// (`NGROUPS_MAX`).
const GROUPS_FIRST: usize = 32;

/// The credentials of the thread that called connect(2), at that time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Credentials {
    /// The process; `None` if it has no number in this PID namespace.
    pub pid: Option<u32>,
    /// Its effective user.
    pub uid: u32,
    /// Its effective group.
    pub gid: u32,
}

/// Reads an option into `values`; returns the number of bytes that the kernel
/// wrote, or would write if it returns `ERANGE`.
fn option<T: Copy>(
    socket: BorrowedFd<'_>,
    option: i32,
    values: &mut [T],
) -> Result<usize, (io::Error, usize)> {
    let mut len = size_of_val(values) as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `values`, which has as
    // many. The callers read integers, for which any bytes are a value.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            values.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    match result {
        0 => Ok(len as usize),
        _ => Err((io::Error::last_os_error(), len as usize)),
    }
}

/// The credentials of the peer (`SO_PEERCRED`).
///
/// # Errors
/// If the socket is not a connected Unix socket.
pub fn peer_credentials(socket: BorrowedFd<'_>) -> io::Result<Credentials> {
    let mut words = [0u32; 3];
    option(socket, libc::SO_PEERCRED, &mut words).map_err(|(error, _)| error)?;
    let [pid, uid, gid] = words;
    Ok(Credentials {
        pid: (pid != 0).then_some(pid),
        uid,
        gid,
    })
}

/// The supplementary groups of the peer (`SO_PEERGROUPS`), at the time of its
/// connect(2).
///
/// # Errors
/// If the socket is not a connected Unix socket.
pub fn peer_groups(socket: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    let mut groups = vec![0u32; GROUPS_FIRST];
    loop {
        match option(socket, SO_PEERGROUPS, &mut groups) {
            Ok(bytes) => {
                groups.truncate(bytes / size_of::<u32>());
                return Ok(groups);
            }
            Err((error, bytes)) if error.raw_os_error() == Some(libc::ERANGE) => {
                // The credentials of a connection never change, so one larger
                // buffer suffices.
                if bytes <= size_of_val(&groups[..]) {
                    return Err(error);
                }
                groups.resize(bytes / size_of::<u32>(), 0);
            }
            Err((error, _)) => return Err(error),
        }
    }
}

/// A PID descriptor of the peer's process (`SO_PEERPIDFD`). Unlike a number, it
/// never refers to another process.
///
/// # Errors
/// Before Linux 6.5, and if the process has ended (`ESRCH`).
pub fn peer_pidfd(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut fd = [-1i32];
    option(socket, SO_PEERPIDFD, &mut fd).map_err(|(error, _)| error)?;
    if fd[0] < 0 {
        return Err(io::ErrorKind::Unsupported.into());
    }
    // SAFETY: the kernel has made this descriptor for the caller, and only
    // this call knows its number.
    Ok(unsafe { OwnedFd::from_raw_fd(fd[0]) })
}

/// Sets whether peers of this Unix socket may pass descriptors; otherwise their
/// sendmsg(2) fails with `EPERM`. Accepted connections inherit the setting of
/// the listening socket.
///
/// # Errors
/// Before Linux 6.16.
pub fn set_pass_rights(socket: &OwnedFd, pass: bool) -> io::Result<()> {
    set_option(socket, libc::SOL_SOCKET, SO_PASSRIGHTS, &i32::from(pass))
}
