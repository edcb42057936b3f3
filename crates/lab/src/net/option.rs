//! Socket options that the safe libraries lack.
#![allow(unsafe_code)] // One system call.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// `setsockopt(2)` with an integer.
///
/// # Errors
/// The kernel's error.
pub fn set_option(socket: impl AsFd, level: i32, name: i32, value: i32) -> io::Result<()> {
    set_option_bytes(socket, level, name, &value.to_ne_bytes())
}

/// `setsockopt(2)` with bytes.
///
/// # Errors
/// The kernel's error.
pub fn set_option_bytes(socket: impl AsFd, level: i32, name: i32, value: &[u8]) -> io::Result<()> {
    let fd = socket.as_fd().as_raw_fd();
    let len = value.len() as libc::socklen_t;
    // SAFETY: the bytes live as long as the call and have the stated length.
    let result = unsafe { libc::setsockopt(fd, level, name, value.as_ptr().cast(), len) };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// `getsockopt(2)` into a buffer; returns the number of bytes written.
///
/// # Errors
/// The kernel's error.
pub fn get_option(socket: impl AsFd, level: i32, name: i32, value: &mut [u8]) -> io::Result<usize> {
    let fd = socket.as_fd().as_raw_fd();
    let mut len = value.len() as libc::socklen_t;
    // SAFETY: the buffer lives as long as the call and has the stated length.
    let result = unsafe { libc::getsockopt(fd, level, name, value.as_mut_ptr().cast(), &mut len) };
    match result {
        0 => Ok(len as usize),
        _ => Err(io::Error::last_os_error()),
    }
}
