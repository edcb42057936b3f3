//! What the thread of a generator needs of the system: to be called back
//! from a long system call.
#![allow(unsafe_code)] // Calls that the safe libraries lack.

use std::io;
use std::os::unix::thread::JoinHandleExt;
use std::sync::OnceLock;
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Makes the calling thread one that [`call_back`] can reach.
pub(super) fn allow_call_back() -> io::Result<()> {
    static INSTALLED: OnceLock<Result<(), i32>> = OnceLock::new();
    let installed = INSTALLED.get_or_init(|| install().map_err(|e| e.raw_os_error().unwrap_or(0)));
    installed.map_err(io::Error::from_raw_os_error)?;
    // SAFETY: an all-zero set is one, and both calls only read or write it;
    // the signal is let through to this thread.
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

/// Ends the system call that a thread is in, again and again until the thread
/// ends: it may have been on the way into the next.
pub(super) fn call_back<T>(thread: &JoinHandle<T>) {
    while !thread.is_finished() {
        // SAFETY: the thread was not joined, so its name is still its own.
        unsafe { libc::pthread_kill(thread.as_pthread_t(), signal()) };
        thread::sleep(Duration::from_micros(200));
    }
}

/// A real-time signal that no one is known to use.
fn signal() -> libc::c_int {
    libc::SIGRTMIN() + 13
}

/// Has the signal do nothing but end system calls.
fn install() -> io::Result<()> {
    extern "C" fn nothing(_: libc::c_int) {}
    // SAFETY: an all-zero action is a valid one, whose handler is then set to
    // a function that does nothing and so is safe at any time.
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
