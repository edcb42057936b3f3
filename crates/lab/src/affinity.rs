//! Which CPU runs what, and before whom: measurements need both.
#![allow(unsafe_code)] // Calls that the safe libraries lack.

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// The CPUs that the calling thread may run on, in order.
///
/// # Errors
/// What the system says.
pub fn allowed() -> io::Result<Vec<usize>> {
    let set = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU)
        .filter(|&cpu| set.is_set(cpu))
        .collect())
}

/// Has a thread run on that CPU only: `None` for the calling one.
///
/// # Errors
/// If there is no such CPU here, or no such thread.
pub fn pin(thread: Option<u32>, cpu: usize) -> io::Result<()> {
    if cpu >= CpuSet::MAX_CPU {
        let message = format!("there is no CPU {cpu}");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    let thread = thread.and_then(|id| Pid::from_raw(id as i32));
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(sched_setaffinity(thread, &set)?)
}

/// Has a command's process run on that CPU only.
pub fn pin_command(command: &mut Command, cpu: usize) {
    // SAFETY: the closure makes one system call, and neither allocates nor
    // takes a lock, but for the message of a CPU that does not exist.
    unsafe { command.pre_exec(move || pin(None, cpu)) };
}

/// Gives a thread the lowest of the real-time priorities, or an ordinary one
/// again: `None` for the calling one. With it, it runs before all that is not
/// real-time; the kernel still keeps a twentieth of each second for the others.
/// Threads and processes that it starts do not inherit it.
///
/// # Errors
/// Without privilege, or if there is no such thread.
pub fn set_realtime(thread: Option<u32>, on: bool) -> io::Result<()> {
    set_level(thread, i32::from(on))
}

/// Has a thread run before those that are [real-time](set_realtime): `None`
/// for the calling one. The one that starts and ends them must, or they would
/// keep it from doing so.
///
/// # Errors
/// Without privilege, or if there is no such thread.
pub fn set_foremost(thread: Option<u32>) -> io::Result<()> {
    set_level(thread, 2)
}

/// The real-time priority of that level; an ordinary one for zero.
fn set_level(thread: Option<u32>, level: i32) -> io::Result<()> {
    let policy = match level {
        0 => libc::SCHED_OTHER,
        _ => libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK,
    };
    let parameters = libc::sched_param {
        sched_priority: level,
    };
    let thread = thread.unwrap_or(0) as i32;
    // SAFETY: the parameters are read only; zero is the calling thread.
    match unsafe { libc::sched_setscheduler(thread, policy, &raw const parameters) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
