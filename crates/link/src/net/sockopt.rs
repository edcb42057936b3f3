//! Socket options that rustix lacks.
#![allow(unsafe_code)] // The system call.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// Sets an option to a value without pointers.
pub(crate) fn set_option<T: Copy>(
    socket: &OwnedFd,
    level: i32,
    option: i32,
    value: &T,
) -> io::Result<()> {
    let len = size_of::<T>() as libc::socklen_t;
    let value = (&raw const *value).cast();
    // SAFETY: the kernel reads exactly the bytes of `value`.
    match unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, value, len) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
