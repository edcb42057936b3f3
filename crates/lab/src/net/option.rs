//! Options of the kernel's sockets that the safe libraries lack.
#![allow(unsafe_code)] // One system call.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// `setsockopt(2)` with a number.
///
/// # Errors
/// The kernel's.
pub fn set_option(socket: impl AsFd, level: i32, name: i32, value: i32) -> io::Result<()> {
    let fd = socket.as_fd().as_raw_fd();
    let len = size_of_val(&value) as libc::socklen_t;
    // SAFETY: the number is there for as long as the call lasts, and so long.
    let result = unsafe { libc::setsockopt(fd, level, name, (&raw const value).cast(), len) };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
