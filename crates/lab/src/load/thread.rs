//! Interrupts a generator's thread in a long system call.
#![allow(unsafe_code)] // Calls that the safe libraries lack.

use std::io;
use std::os::unix::thread::JoinHandleExt;
use std::sync::OnceLock;
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Prepares the calling thread for [`call_back`].
pub(super) fn allow_call_back() -> io::Result<()> {
    static INSTALLED: OnceLock<Result<(), i32>> = OnceLock::new();
    let installed = INSTALLED.get_or_init(|| install().map_err(|e| e.raw_os_error().unwrap_or(0)));
    installed.map_err(io::Error::from_raw_os_error)?;
    // SAFETY: an all-zero set is valid, and both calls only read or write it;
    // the signal is unblocked for this thread.
    let result = unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, signal());
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut())
    };
    match result {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(code)),
    }
}

/// Interrupts a thread's system call repeatedly until the thread ends: it may
/// have been about to enter the next one.
pub(super) fn call_back<T>(thread: &JoinHandle<T>) {
    while !thread.is_finished() {
        // SAFETY: the thread was not joined, so its handle is valid.
        unsafe { libc::pthread_kill(thread.as_pthread_t(), signal()) };
        thread::sleep(Duration::from_micros(200));
    }
}

/// A real-time signal without a known use.
fn signal() -> libc::c_int {
    libc::SIGRTMIN() + 13
}

/// Installs a handler that does nothing, so that the signal interrupts system
/// calls.
fn install() -> io::Result<()> {
    extern "C" fn nothing(_: libc::c_int) {}
    // SAFETY: an all-zero action is valid; its handler is then set to a
    // function that does nothing and is therefore async-signal-safe.
    let result = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as *const () as usize;
        libc::sigaction(signal(), &raw const action, std::ptr::null_mut())
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
