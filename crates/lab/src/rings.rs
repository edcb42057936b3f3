//! Ring readers for tests, including a second reader, which is a misuse.
#![allow(unsafe_code)] // Promises of tests, and fork(2).

use rustix::process::{Pid, WaitOptions, waitpid};
use std::os::fd::OwnedFd;
use weir_ring::{Error, Reader};

/// A reader of a ring. A test that opens a second one while the first exists
/// must not rely on the content of records.
///
/// # Errors
/// As for [`Reader::open`].
pub fn reader(ring: OwnedFd) -> Result<Reader, Error> {
    // SAFETY: a test opens one reader at a time, or tests two readers and then
    // only uses lengths and sums of bytes.
    unsafe { Reader::open(ring) }
}

/// Runs a function in a forked process; returns its exit status, or the
/// negative number of the signal that killed it. The function must not
/// allocate, since another thread may have held the allocator's lock at the
/// fork.
///
/// # Panics
/// If the process cannot be forked.
pub fn in_fork(run: impl FnOnce() -> u8) -> i32 {
    // SAFETY: the caller promises that `run` does not allocate, and the child
    // exits without running other code of this process.
    let child = unsafe { libc::fork() };
    match child {
        0 => {
            let status = run();
            // SAFETY: the call ends the process.
            unsafe { libc::_exit(status.into()) }
        }
        _ => {
            let child = Pid::from_raw(child).expect("a process");
            let ended = waitpid(Some(child), WaitOptions::empty());
            let (_, status) = ended.expect("a child").expect("it has ended");
            let signal = status.terminating_signal().map(|signal| -signal);
            status.exit_status().or(signal).unwrap_or(i32::MIN)
        }
    }
}
