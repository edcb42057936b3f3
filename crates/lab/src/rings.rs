//! Readers of rings, also where they should not be: for tests of both.
#![allow(unsafe_code)] // Promises of tests, and fork(2).

use rustix::process::{Pid, WaitOptions, waitpid};
use std::os::fd::OwnedFd;
use weir_ring::{Error, Reader};

/// A reader of a ring. Where a test opens another one before this one is
/// dropped, it must not go by what records hold.
///
/// # Errors
/// As for [`Reader::open`].
pub fn reader(ring: OwnedFd) -> Result<Reader, Error> {
    // SAFETY: a test opens one reader at a time; or it is about two, and then
    // looks at lengths and adds up bytes only.
    unsafe { Reader::open(ring) }
}

/// Runs something in a forked process; gives its exit status, or the negative
/// number of the signal that killed it. What it runs must not allocate, since
/// other threads of the test may have held the allocator's locks.
///
/// # Panics
/// If there is no other process to be had.
pub fn in_fork(run: impl FnOnce() -> u8) -> i32 {
    // SAFETY: the child runs what allocates nothing, by the caller's word, and
    // ends without running anything else of this process.
    let child = unsafe { libc::fork() };
    match child {
        0 => {
            let status = run();
            // SAFETY: it ends the process.
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
