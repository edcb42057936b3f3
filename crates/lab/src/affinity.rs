//! CPU affinity and real-time priority of threads, for measurements.
#![allow(unsafe_code)] // Calls that the safe libraries lack.

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// The CPUs that the calling thread may run on, in ascending order.
///
/// # Errors
/// The system's error.
pub fn allowed() -> io::Result<Vec<usize>> {
    let set = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU)
        .filter(|&cpu| set.is_set(cpu))
        .collect())
}

/// Restricts a thread to one CPU; `None` is the calling thread.
///
/// # Errors
/// If there is no such CPU or thread.
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

/// Restricts the process of a command to one CPU.
pub fn pin_command(command: &mut Command, cpu: usize) {
    // SAFETY: the closure makes one system call, and neither allocates nor
    // takes a lock, except for the message about a CPU that does not exist.
    unsafe { command.pre_exec(move || pin(None, cpu)) };
}

/// Gives a thread the lowest real-time priority, or the ordinary scheduling
/// policy again; `None` is the calling thread. A real-time thread runs before
/// all ordinary ones, but the kernel reserves a twentieth of each second for
/// the latter. Threads and processes that it starts do not inherit the
/// priority.
///
/// # Errors
/// Without privilege, or if there is no such thread.
pub fn set_realtime(thread: Option<u32>, on: bool) -> io::Result<()> {
    set_level(thread, i32::from(on))
}

/// Gives a thread a higher priority than [`set_realtime`] does; `None` is the
/// calling thread. The thread that starts and stops real-time threads needs it,
/// since they would otherwise keep it from running.
///
/// # Errors
/// Without privilege, or if there is no such thread.
pub fn set_foremost(thread: Option<u32>) -> io::Result<()> {
    set_level(thread, 2)
}

/// Sets the real-time priority to `level`; 0 selects the ordinary policy.
fn set_level(thread: Option<u32>, level: i32) -> io::Result<()> {
    let policy = match level {
        0 => libc::SCHED_OTHER,
        _ => libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK,
    };
    let parameters = libc::sched_param {
        sched_priority: level,
    };
    let thread = thread.unwrap_or(0) as i32;
    // SAFETY: the parameters are only read; 0 is the calling thread.
    match unsafe { libc::sched_setscheduler(thread, policy, &raw const parameters) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
