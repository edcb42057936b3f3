//! The C functions that programs call in place of the C library's.

pub(crate) mod connect;
mod data;
mod descriptor;
mod file;
mod message;
mod naming;
mod opening;
mod polling;

pub use connect::connect;
pub use data::*;
pub use descriptor::*;
pub use file::*;
pub use message::*;
pub use naming::*;
pub use opening::*;
pub use polling::*;

use libc::{c_int, ssize_t};

/// Sets `errno`.
fn set_errno(number: c_int) {
    // SAFETY: the C library's pointer is valid in its thread.
    unsafe { *libc::__errno_location() = number };
}

/// The result of a C function: -1 with `errno` for an error.
fn answer(result: Result<c_int, c_int>) -> c_int {
    result.unwrap_or_else(|number| {
        set_errno(number);
        -1
    })
}

/// As [`answer`], for a number of bytes.
fn length(result: Result<usize, c_int>) -> ssize_t {
    match result {
        Ok(count) => count as ssize_t,
        Err(number) => {
            set_errno(number);
            -1
        }
    }
}
