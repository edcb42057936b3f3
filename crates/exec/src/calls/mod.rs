//! The C functions that programs call in place of the C library's.

/// Begins a call again if its socket has moved meanwhile ([`MOVED`](crate::sock::MOVED)): the
/// descriptor is now the kernel's.
macro_rules! or_again {
    ($inside:ident, $result:expr, $call:expr) => {{
        let result = $result;
        if matches!(result, Err($crate::sock::MOVED)) {
            drop($inside);
            // SAFETY: the caller's promises.
            return unsafe { $call };
        }
        result
    }};
}

pub(crate) mod connect;
mod data;
mod datagram;
mod descriptor;
mod file;
mod message;
mod names;
mod naming;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod numbered;
pub(crate) mod opening;
mod points;
mod polling;

pub(crate) use data::rooms;
pub use descriptor::{
    _Exit, _exit, close_range, closefrom, dup, dup2, dup3, epoll_ctl, fcntl, fcntl64, fdopen, ioctl,
};
pub use file::{sendfile, sendfile64};
pub use names::*;
pub use naming::*;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub use numbered::syscall;
pub use opening::{bind, listen, socket};
pub use points::*;
pub use polling::{epoll_create, epoll_create1};

use libc::{c_int, ssize_t};

/// Sets `errno`.
fn set_errno(number: c_int) {
    // A call that the caller does not begin again was interrupted, as it seems to the application.
    let number = if number == crate::sock::MOVED {
        libc::EINTR
    } else {
        number
    };
    // SAFETY: the C library's pointer is valid in its thread.
    unsafe { *libc::__errno_location() = number };
}

/// The result of a C function: -1 with `errno` for an error.
pub(crate) fn answer(result: Result<c_int, c_int>) -> c_int {
    result.unwrap_or_else(|number| {
        set_errno(number);
        -1
    })
}

/// As [`answer`], for a number of bytes.
pub(crate) fn length(result: Result<usize, c_int>) -> ssize_t {
    match result {
        Ok(count) => count as ssize_t,
        Err(number) => {
            set_errno(number);
            -1
        }
    }
}
