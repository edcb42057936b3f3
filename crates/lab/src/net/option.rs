//! Options of the kernel's sockets that the safe libraries lack.
#![allow(unsafe_code)] // One system call.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// `setsockopt(2)` with a number.
///
/// # Errors
/// The kernel's.
pub fn set_option(socket: impl AsFd, level: i32, name: i32, value: i32) -> io::Result<()> {
    set_option_bytes(socket, level, name, &value.to_ne_bytes())
}

/// `setsockopt(2)` with bytes.
///
/// # Errors
/// The kernel's.
pub fn set_option_bytes(socket: impl AsFd, level: i32, name: i32, value: &[u8]) -> io::Result<()> {
    let fd = socket.as_fd().as_raw_fd();
    let len = value.len() as libc::socklen_t;
    // SAFETY: the bytes are there for as long as the call lasts, and so many.
    let result = unsafe { libc::setsockopt(fd, level, name, value.as_ptr().cast(), len) };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// `getsockopt(2)`: fills the buffer from its start; gives how many bytes.
///
/// # Errors
/// The kernel's.
pub fn get_option(socket: impl AsFd, level: i32, name: i32, value: &mut [u8]) -> io::Result<usize> {
    let fd = socket.as_fd().as_raw_fd();
    let mut len = value.len() as libc::socklen_t;
    // SAFETY: the buffer is there for as long as the call lasts, and is so long.
    let result = unsafe { libc::getsockopt(fd, level, name, value.as_mut_ptr().cast(), &mut len) };
    match result {
        0 => Ok(len as usize),
        _ => Err(io::Error::last_os_error()),
    }
}
